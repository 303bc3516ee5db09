"""Owner-only files: what is refused, and what a crash or a race can leave behind."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sidecar.base.safefile import (
    READ_ATTEMPTS,
    DirLock,
    UnsafeFile,
    check_private_dir,
    ensure_private_dir,
    read_private,
    read_secret,
    stat_signature,
    write_private,
)
from sidecar.base.secret import Secret

OLD, NEW = b"old content", b"new content, longer than the old one " * 2000
WRITE_STEPS = ["locked", "created", "written", "synced", "renamed", "durable"]
CREATE_STEPS = ["locked", "created", "written", "synced", "linked", "renamed", "durable"]


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    private = tmp_path / "private"
    private.mkdir(mode=0o700)
    return private


@pytest.fixture
def file(directory: Path) -> Path:
    path = directory / "file"
    path.write_bytes(OLD)
    path.chmod(0o600)
    return path


def child(code: str, *arguments: object, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    argv = [sys.executable, "-c", "import os, sys, signal\nfrom sidecar.base import safefile\n" + code]
    return subprocess.run([*argv, *map(str, arguments)], input=stdin, capture_output=True, check=False, timeout=60)


# ---- reading ----


@pytest.mark.req("W2-12", "W2-21")
def test_an_owner_only_regular_file_is_read_whole(file: Path) -> None:
    assert read_private(file, 1024) == OLD
    assert read_private(file, len(OLD)) == OLD
    assert read_secret(file, 1024) == Secret(OLD)


@pytest.mark.req("W2-12", "W2-21")
@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604, 0o660, 0o700, 0o400, 0o601])
def test_other_modes_are_refused(file: Path, mode: int) -> None:
    file.chmod(mode)
    with pytest.raises(UnsafeFile, match=rf"mode {mode:04o}; run: chmod 600"):
        read_private(file, 1024)


@pytest.mark.req("W2-12", "W2-21")
def test_links_directories_and_fifos_are_refused(file: Path) -> None:
    link, fifo, folder = file.with_name("link"), file.with_name("fifo"), file.with_name("folder")
    link.symlink_to(file)
    os.mkfifo(fifo, 0o600)
    folder.mkdir(mode=0o600)
    for path in (link, fifo, folder):
        with pytest.raises(UnsafeFile, match="not a regular file") as refused:
            read_private(path, 1024)
        assert refused.value.path == str(path)
        assert "\n" not in str(refused.value)


def foreign_file(directory: Path) -> Path:
    """A regular file of another user: root can make one, everybody else finds one."""
    if os.geteuid() != 0:
        return Path("/etc/passwd")
    path = directory / "foreign"
    path.write_bytes(OLD)
    path.chmod(0o600)
    os.chown(path, 65534, 65534)
    return path


@pytest.mark.req("W2-12", "W2-21")
def test_a_foreign_owner_is_refused(directory: Path) -> None:
    with pytest.raises(UnsafeFile, match="belongs to uid"):
        read_private(foreign_file(directory), 1 << 20)


def test_a_longer_file_is_refused_and_a_missing_one_is_missing(file: Path) -> None:
    with pytest.raises(UnsafeFile, match=f"longer than {len(OLD) - 1} bytes"):
        read_private(file, len(OLD) - 1)
    with pytest.raises(FileNotFoundError):
        read_private(file.with_name("missing"), 1)


def replace_with(path: Path, data: bytes) -> None:
    fresh = path.with_name("fresh")
    fresh.write_bytes(data)
    fresh.chmod(0o600)
    fresh.rename(path)


def rewrite_in_place(path: Path, data: bytes) -> None:
    with path.open("r+b") as stream:
        stream.write(data[: len(OLD)])


@pytest.mark.req("W2-22")
@pytest.mark.parametrize("moment", ["checked", "opened", "read"])
@pytest.mark.parametrize("change", [replace_with, rewrite_in_place], ids=["replaced", "rewritten"])
def test_a_change_while_reading_is_noticed(file: Path, moment: str, change: Callable[[Path, bytes], None]) -> None:
    attempts = 0

    def interfere(step: str) -> None:
        nonlocal attempts
        if step == moment:
            attempts += 1
            if attempts == 1:
                change(file, NEW)

    content = read_private(file, len(NEW), step=interfere)
    assert content == (NEW if change is replace_with else NEW[: len(OLD)])
    assert attempts == 2


@pytest.mark.req("W2-22")
@pytest.mark.parametrize("moment", ["checked", "opened", "read"])
def test_a_file_that_keeps_changing_is_given_up(file: Path, moment: str) -> None:
    attempts = 0

    def interfere(step: str) -> None:
        nonlocal attempts
        if step == moment:
            attempts += 1
            replace_with(file, NEW + bytes(attempts))

    with pytest.raises(UnsafeFile, match="keeps changing"):
        read_private(file, 1 << 20, step=interfere)
    assert attempts == READ_ATTEMPTS == 4


@pytest.mark.req("W2-12", "W2-22")
def test_a_link_put_there_after_the_check_is_not_followed(file: Path) -> None:
    other = file.with_name("other")
    replace_with(other, NEW)

    def interfere(step: str) -> None:
        if step == "checked":
            file.unlink(missing_ok=True)
            file.symlink_to(other)

    with pytest.raises(UnsafeFile, match="not a regular file"):
        read_private(file, 1 << 20, step=interfere)


@pytest.mark.req("W2-12")
def test_files_are_opened_no_follow(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flags: list[int] = []
    real_open = os.open

    def recording(path: str | Path, wanted: int, mode: int = 0o777) -> int:
        flags.append(wanted)
        return real_open(path, wanted, mode)

    monkeypatch.setattr(os, "open", recording)
    read_private(file, 1024)
    assert [bool(wanted & os.O_NOFOLLOW) for wanted in flags] == [True]


@pytest.mark.req("W2-22")
def test_a_directory_swapped_for_a_moment_is_noticed(file: Path) -> None:
    """The checked file is back before the end, untouched; what was opened in between was another one."""
    directory, away, other = file.parent, file.parent.with_name("away"), file.parent.with_name("other")
    other.mkdir(mode=0o700)
    replace_with(other / file.name, NEW[: len(OLD)])
    steps = iter(["checked", "opened"])

    def swap(step: str) -> None:
        if step == next(steps, ""):
            first, second = (away, other) if step == "checked" else (other, away)
            directory.rename(first)
            second.rename(directory)

    assert read_private(file, 1024, step=swap) == OLD


def test_a_file_removed_while_reading_is_missing(file: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_private(file, 1024, step=lambda step: file.unlink() if step == "checked" else None)


@pytest.mark.req("W2-22")
def test_the_signature_sees_every_kind_of_change(file: Path) -> None:
    seen = {stat_signature(file)}
    changes: list[Callable[[], object]] = [
        lambda: rewrite_in_place(file, NEW),
        lambda: replace_with(file, NEW),
        lambda: file.chmod(0o640),
        lambda: os.utime(file, ns=(1, 1)),
        file.unlink,
    ]
    for change in changes:
        change()
        seen.add(stat_signature(file))
    assert len(seen) == len(changes) + 1
    assert stat_signature(file) is None


# ---- directories ----


@pytest.mark.req("W2-11", "W2-21")
@pytest.mark.parametrize("mode", [0o775, 0o755, 0o710, 0o701, 0o777])
def test_a_directory_open_to_others_is_refused(directory: Path, mode: int) -> None:
    directory.chmod(mode)
    for check in (check_private_dir, ensure_private_dir):
        with pytest.raises(UnsafeFile, match=f"mode {mode:04o}"):
            check(directory)


@pytest.mark.parametrize("sticky", [False, True])
def test_nobody_is_told_to_close_a_directory_that_others_need(directory: Path, sticky: bool) -> None:
    directory.chmod(0o1777 if sticky else 0o755)
    with pytest.raises(UnsafeFile) as refused:
        check_private_dir(directory)
    assert ("chmod" in str(refused.value), "of its own" in str(refused.value)) == (not sticky, sticky)


@pytest.mark.parametrize("path", ["/", "/etc", "/usr/"])
def test_the_directories_of_the_system_are_not_to_be_closed(path: str) -> None:
    # They are root's: anybody else is told that first.
    told = "use a directory of its own" if os.geteuid() == 0 else "belongs to uid"
    with pytest.raises(UnsafeFile, match=told) as refused:
        check_private_dir(path)
    assert "chmod" not in str(refused.value)


@pytest.mark.req("W2-11")
def test_a_directory_of_another_user_is_refused(directory: Path) -> None:
    foreign = Path("/etc")
    if os.geteuid() == 0:
        foreign = directory / "foreign"
        foreign.mkdir(mode=0o700)
        os.chown(foreign, 65534, 65534)
    with pytest.raises(UnsafeFile, match="belongs to uid"):
        check_private_dir(foreign)


@pytest.mark.req("W2-11")
def test_links_and_files_are_no_directories(file: Path, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(file.parent)
    for path in (link, file):
        with pytest.raises(UnsafeFile, match="not a directory"):
            check_private_dir(path)
    with pytest.raises(FileNotFoundError):
        check_private_dir(tmp_path / "missing")


@pytest.mark.req("W2-11")
@pytest.mark.parametrize("umask", [0o000, 0o022, 0o277])
def test_a_made_directory_is_owner_only_whatever_the_umask(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask & 0o077)
    try:
        (tmp_path / "parent").mkdir(mode=0o700)
        os.umask(umask)
        ensure_private_dir(tmp_path / "parent" / "state")
    finally:
        os.umask(before)
    assert (tmp_path / "parent" / "state").stat().st_mode & 0o7777 == 0o700
    ensure_private_dir(tmp_path / "parent" / "state")


# ---- writing ----


@pytest.mark.req("W2-13", "W2-21")
@pytest.mark.parametrize("umask", [0o000, 0o777])
def test_a_written_file_is_owner_only_and_alone(directory: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        write_private(directory / "file", NEW)
        write_private(directory / "file", Secret(OLD))
    finally:
        os.umask(before)
    assert read_private(directory / "file", 1024) == OLD
    assert os.listdir(directory) == ["file"]


@pytest.mark.req("W2-13", "W2-21")
def test_the_content_is_durable_before_the_name_and_the_name_before_the_end(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    real_fsync, real_rename = os.fsync, os.rename

    def fsync(fd: int) -> None:
        done.append(f"fsync {Path(os.readlink(f'/proc/self/fd/{fd}')).name}")
        real_fsync(fd)

    def rename(source: Path, target: Path) -> None:
        assert source.read_bytes() == NEW
        assert source.parent == target.parent
        done.append(f"rename {source.name}")
        real_rename(source, target)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "rename", rename)
    write_private(file, NEW, step=done.append)
    assert done == [
        "locked",
        "created",
        "written",
        "fsync .file.tmp",
        "synced",
        "rename .file.tmp",
        "renamed",
        "fsync private",
        "durable",
    ]


KILLED_WRITE = """
def step(name):
    if name == sys.argv[2]:
        os.kill(os.getpid(), signal.SIGKILL)
safefile.write_private(sys.argv[1], sys.stdin.buffer.read(), replace=sys.argv[3] == "replace", step=step)
"""


@pytest.mark.req("W2-13", "W2-21")
@pytest.mark.parametrize("step", WRITE_STEPS)
def test_a_kill_while_replacing_leaves_old_or_new(file: Path, step: str) -> None:
    assert child(KILLED_WRITE, file, step, "replace", stdin=NEW).returncode == -signal.SIGKILL
    renamed = step in ("renamed", "durable")
    assert read_private(file, 1 << 20) == (NEW if renamed else OLD)
    write_private(file, b"next")
    assert read_private(file, 1024) == b"next"
    assert os.listdir(file.parent) == ["file"]


@pytest.mark.req("W2-13", "W2-21")
@pytest.mark.parametrize("step", CREATE_STEPS)
def test_a_kill_while_creating_leaves_nothing_or_new(directory: Path, step: str) -> None:
    path = directory / "file"
    assert child(KILLED_WRITE, path, step, "create", stdin=NEW).returncode == -signal.SIGKILL
    if step in ("linked", "renamed", "durable"):
        assert read_private(path, 1 << 20) == NEW
        with pytest.raises(FileExistsError):
            write_private(path, b"next", replace=False)
        assert read_private(path, 1 << 20) == NEW
    else:
        assert not path.exists()
        write_private(path, b"next", replace=False)
    assert os.listdir(directory) == ["file"]


@pytest.mark.req("W2-13")
def test_creating_never_overwrites(file: Path) -> None:
    with pytest.raises(FileExistsError):
        write_private(file, NEW, replace=False)
    assert read_private(file, 1024) == OLD
    assert os.listdir(file.parent) == ["file"]


@pytest.mark.req("W2-13")
def test_a_failed_write_keeps_the_old_file_and_leaves_no_temporary(file: Path) -> None:
    code = (
        "import resource\nresource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
        "try:\n    safefile.write_private(sys.argv[1], sys.stdin.buffer.read())\n"
        "except OSError as error:\n    print(error.errno)"
    )
    done = child(code, file, stdin=NEW)
    assert done.stdout.split() == [b"27"], done.stderr  # EFBIG, as a full disk would be ENOSPC
    assert read_private(file, 1024) == OLD
    assert os.listdir(file.parent) == ["file"]
    assert resource.getrlimit(resource.RLIMIT_FSIZE) != (1000, 1000)


# ---- locking ----

HOLD = """
with safefile.DirLock(sys.argv[1]):
    print("held", flush=True)
    sys.stdin.read()
"""


@contextlib.contextmanager
def held_elsewhere(directory: Path) -> Iterator[subprocess.Popen[bytes]]:
    argv = [sys.executable, "-c", "import sys\nfrom sidecar.base import safefile\n" + HOLD, str(directory)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        yield process
        process.kill()


@pytest.mark.req("W2-13", "W2-21")
def test_the_lock_excludes_other_processes_and_dies_with_its_holder(file: Path) -> None:
    with held_elsewhere(file.parent) as holder:
        with pytest.raises(UnsafeFile, match="locked by another process"), DirLock(file.parent, seconds=0):
            pytest.fail("two holders")
        holder.kill()
        holder.wait()
        with DirLock(file.parent, seconds=0) as lock:
            write_private(file, NEW, lock=lock)
    assert read_private(file, 1 << 20) == NEW
    assert os.listdir(file.parent) == ["file"]


@pytest.mark.req("W2-13")
def test_a_write_waits_for_the_lock(file: Path) -> None:
    """A writer without a lock of its own takes it: while it is inside, nobody else can."""

    def step(name: str) -> None:
        if name != "durable":
            assert child("with safefile.DirLock(sys.argv[1], seconds=0): pass", file.parent).returncode == 1

    write_private(file, NEW, step=step)
    with DirLock(file.parent, seconds=0):
        pass


@pytest.mark.req("W2-13", "W2-22")
def test_concurrent_writers_never_mix(directory: Path) -> None:
    code = "for round in range(40):\n    safefile.write_private(sys.argv[1], sys.argv[2].encode() * (1 + round * 50))\n"
    path = directory / "file"
    write_private(path, b"0")
    argv = [sys.executable, "-c", "import sys\nfrom sidecar.base import safefile\n" + code, str(path)]
    writers = [subprocess.Popen([*argv, name]) for name in "abc"]
    reads = 0
    while any(writer.poll() is None for writer in writers):
        with contextlib.suppress(UnsafeFile):  # it may keep changing, but what is read is whole
            content = read_private(path, 1 << 20)
            assert len(set(content)) == 1
            assert content == b"0" or (len(content) - 1) % 50 == 0
            reads += 1
    assert [writer.wait() for writer in writers] == [0, 0, 0]
    assert reads
    assert os.listdir(directory) == ["file"]
