"""Owner-only files: strict reads that are stable, writes that survive a crash whole (W2-10..W2-13, W2-21, W2-22).

Every check is on the object itself (``lstat``, ``O_NOFOLLOW``, ``fstat``), never on a name that may lead elsewhere.
Steps of a read or write can be observed through ``step``; tests kill the process there.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shlex
import stat
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Final

from sidecar.base.secret import Secret

READ_ATTEMPTS: Final = 4
LOCK_SECONDS: Final = 5.0
_LOCK_POLL_SECONDS: Final = 0.01
_FILE_MODE: Final = 0o600
_DIR_MODE: Final = 0o700

Step = Callable[[str], None]


class UnsafeFile(ValueError):  # noqa: N818 - a state of the file, not a mishap
    """A file or directory that must not be used; ``path`` and a one-line ``reason`` that says what to change."""

    def __init__(self, path: str | os.PathLike[str], reason: str) -> None:
        super().__init__(f"{os.fspath(path)} {reason}")
        self.path = os.fspath(path)
        self.reason = reason


def quoted(path: str | os.PathLike[str]) -> str:
    """The path as a shell takes it, for advice that is copied from an error line."""
    return shlex.quote(os.fspath(path))


def _no_step(name: str) -> None:
    """Nobody watches."""


def check_private_dir(path: str | os.PathLike[str]) -> None:
    """The directory itself (no symbolic link), owned by the effective user, no bit for others (W2-11).

    Raises :exc:`UnsafeFile`, or FileNotFoundError when nothing is there.
    """
    info = os.lstat(path)
    if not stat.S_ISDIR(info.st_mode):
        raise UnsafeFile(path, "is not a directory (symbolic links are not followed)")
    _check_owner(path, info)
    if stat.S_IMODE(info.st_mode) & 0o077:
        raise UnsafeFile(path, f"is open to others (mode {stat.S_IMODE(info.st_mode):04o}); {_closing(path, info)}")


def _closing(path: str | os.PathLike[str], info: os.stat_result) -> str:
    """What to do about an open directory. One that others need (``/``, ``/tmp``, ``/etc``) is never to be closed."""
    shared = info.st_mode & stat.S_ISVTX or os.path.dirname(os.path.abspath(path)) == os.sep
    return "use a directory of its own inside of it" if shared else f"run: chmod 700 {quoted(path)}"


def ensure_private_dir(path: str | os.PathLike[str]) -> None:
    """Make the directory (mode 0700, durable in its parent) when it is missing, then :func:`check_private_dir`."""
    directory = Path(path)
    directory.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        directory.mkdir(mode=_DIR_MODE)
        directory.chmod(_DIR_MODE)  # whatever the umask took away
        _sync_dir(directory.parent)
    check_private_dir(directory)


def stat_signature(path: str | os.PathLike[str]) -> tuple[int, ...] | None:
    """(dev, ino, size, mode, uid, mtime_ns, ctime_ns) of the file itself; None when nothing is there."""
    try:
        return _signature(os.lstat(path))
    except FileNotFoundError:
        return None


def read_private(path: str | os.PathLike[str], limit: int, *, step: Step = _no_step) -> bytes:
    """Read at most ``limit`` bytes of an owner-only file, whole and unchanged while read (W2-12, W2-22).

    Raises :exc:`UnsafeFile` for anything but a regular file of the effective user with mode 0600, for one that is
    longer than ``limit`` or that changed during each of four attempts. FileNotFoundError and other OSErrors pass.
    """
    return bytes(_read_stable(path, limit, step))


def read_secret(path: str | os.PathLike[str], limit: int) -> Secret:
    """:func:`read_private` for secret bytes: they exist in the returned buffer only."""
    return Secret.adopt(_read_stable(path, limit, _no_step))


def _read_stable(path: str | os.PathLike[str], limit: int, step: Step) -> bytearray:
    for _ in range(READ_ATTEMPTS):
        before = os.lstat(path)
        _check_private_file(path, before)
        step("checked")
        try:
            fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ELOOP):
                raise
            continue  # gone or a link since the lstat: look again
        try:
            step("opened")
            if _signature(os.fstat(fd)) != _signature(before):
                continue
            data = _read_up_to(fd, limit + 1)
            step("read")
        finally:
            os.close(fd)
        if stat_signature(path) == _signature(before):
            if len(data) > limit:
                raise UnsafeFile(path, f"is longer than {limit} bytes")
            return data
    raise UnsafeFile(path, "keeps changing while it is read; try again when nobody writes it")


def _read_up_to(fd: int, size: int) -> bytearray:
    # The file is stable when this is right at all, so its size is the size of the buffer: no spare copies of a secret.
    data = bytearray(min(size, os.fstat(fd).st_size))
    view = memoryview(data)
    filled = 0
    while filled < len(view) and (got := os.readv(fd, [view[filled:]])):
        filled += got
    view.release()
    del data[filled:]
    return data


def write_private(
    path: str | os.PathLike[str],
    data: bytes | Secret,
    *,
    lock: DirLock | None = None,
    replace: bool = True,
    step: Step = _no_step,
) -> None:
    """Write ``data`` as an owner-only file that is old or new, never half (W2-13).

    Same-directory temporary file (0600), fsync, rename, fsync of the directory, all under the directory's lock; give
    ``lock`` when the caller holds it already. With ``replace=False`` an existing file stays: FileExistsError.
    A temporary file that a killed writer left is removed by the next write. OSErrors pass through, nothing changed.
    """
    target = Path(path)
    with contextlib.ExitStack() as stack:
        if lock is None:
            stack.enter_context(DirLock(target.parent))
        step("locked")
        temporary = target.with_name(f".{target.name}.tmp")
        temporary.unlink(missing_ok=True)
        try:
            _write_temporary(temporary, data, step)
            if replace:
                os.rename(temporary, target)
            else:
                os.link(temporary, target)
                step("linked")
                temporary.unlink()
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        step("renamed")
        _sync_dir(target.parent)
        step("durable")


def _write_temporary(temporary: Path, data: bytes | Secret, step: Step) -> None:
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, _FILE_MODE)
    try:
        os.fchmod(fd, _FILE_MODE)
        step("created")
        view = memoryview(data.reveal() if isinstance(data, Secret) else data)
        while view:
            view = view[os.write(fd, view) :]
        step("written")
        os.fsync(fd)
        step("synced")
    finally:
        os.close(fd)


def _sync_dir(directory: Path) -> None:
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


class DirLock:
    """Exclusive advisory lock of a directory, as a context manager; the kernel drops it when the process dies.

    The lock is on the directory itself: no lock file to leave behind, and only who may open the directory can hold it.
    Waits at most ``seconds``, then raises :exc:`UnsafeFile`.
    """

    def __init__(self, path: str | os.PathLike[str], seconds: float = LOCK_SECONDS) -> None:
        self._path = path
        self._seconds = seconds
        self._fd = -1

    def __enter__(self) -> DirLock:
        self._fd = os.open(self._path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        deadline = time.monotonic() + self._seconds
        while True:
            try:
                fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    self._close()
                    raise UnsafeFile(self._path, "is locked by another process; wait for it to finish") from None
                time.sleep(_LOCK_POLL_SECONDS)
            except BaseException:
                self._close()
                raise
            else:
                return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()

    def _close(self) -> None:
        os.close(self._fd)
        self._fd = -1


def _signature(info: os.stat_result) -> tuple[int, ...]:
    return (info.st_dev, info.st_ino, info.st_size, info.st_mode, info.st_uid, info.st_mtime_ns, info.st_ctime_ns)


def _check_owner(path: str | os.PathLike[str], info: os.stat_result) -> None:
    if info.st_uid != os.geteuid():
        raise UnsafeFile(path, f"belongs to uid {info.st_uid}, not to uid {os.geteuid()} that runs this")


def _check_private_file(path: str | os.PathLike[str], info: os.stat_result) -> None:
    if not stat.S_ISREG(info.st_mode):
        raise UnsafeFile(path, "is not a regular file (symbolic links are not followed)")
    _check_owner(path, info)
    if stat.S_IMODE(info.st_mode) != _FILE_MODE:
        raise UnsafeFile(path, f"has mode {stat.S_IMODE(info.st_mode):04o}; run: chmod 600 {quoted(path)}")
