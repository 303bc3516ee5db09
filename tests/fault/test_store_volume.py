"""Full disks and volumes that cannot be written, made by the kernel and by SQLite, never by a stand-in."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from sidecar.coordinator.store import errors
from sidecar.coordinator.store.sqlite import SqliteStore
from tests.fault.store_rig import History, activate

ROOT = Path(__file__).resolve().parents[2]
NOBODY = 65534


def reopen(directory: Path, history: History) -> None:
    store = SqliteStore.open(directory, entropy=os.urandom)
    state = store.load()
    history.skip_to(state.last_sequence)
    history.check(state)
    store.close()


@pytest.mark.req("P8-13", "P8-17")
@pytest.mark.parametrize("limit", [70_000, 200_000, 333_333, 1_000_000])
def test_a_full_disk_ends_the_writer_and_loses_nothing(tmp_path: Path, limit: int) -> None:
    """The kernel refuses every byte beyond ``limit``, as a full disk does, in the middle of whatever SQLite writes."""
    directory = tmp_path / "store"
    argv = [sys.executable, "-m", "tests.fault.store_rig", str(directory), "1", "--limit", str(limit)]
    victim = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert victim.returncode == 0, victim.stderr
    lines = [line.split(maxsplit=2) for line in victim.stdout.splitlines()]
    durable = [int(line[1]) for line in lines if line[0] == "durable"]
    failed = [line for line in lines if line[0] == "failed"]
    # One failure is told to each batch that it hit, the ones behind it hear that the writer has ended.
    assert durable
    assert failed[0][2].startswith("CommitFailed")
    assert all(line[2].split(":")[0] in {"CommitFailed", "StoreStopped"} for line in failed)
    assert int(failed[0][1]) == durable[-1] + 1
    after = lines[lines.index(failed[0]) :]
    assert {line[0] for line in after} <= {"failed", "refused"}
    history = History()
    reopen(directory, history)
    assert history.done >= durable[-1]


@pytest.mark.req("P8-17")
def test_sqlite_full_is_told_as_a_full_disk(tmp_path: Path) -> None:
    store = SqliteStore.open(tmp_path / "store", entropy=os.urandom)
    history, epoch = History(), activate(store)
    store._connection.pragma("max_page_count", 30)
    failure = None
    while failure is None:
        batch = history.next(history.done + 1, epoch)
        try:
            store.commit(batch, lambda: None)
        except errors.CommitFailed as error:
            failure = error
    assert str(failure) == f"{store.path}: the disk is full, free some space first"
    assert failure.durable is False
    with pytest.raises(errors.StoreStopped, match="the disk is full"):
        store.commit(history.next(history.done + 1, epoch), lambda: None)
    with pytest.raises(errors.StoreStopped):
        store.install(9, 9, bytes(32), bytes(16))
    store.close()
    prefix = History()
    reopen(tmp_path / "store", prefix)
    assert prefix.done == history.done - 2 > 0


@contextmanager
def somebody() -> Iterator[Path]:
    """A private directory of a user whom permissions bind: tests that run as root become somebody else for a while."""
    root = os.geteuid() == 0
    directory = Path(tempfile.mkdtemp(prefix="sidecar-store-"))
    if root:
        os.chown(directory, NOBODY, NOBODY)
        os.seteuid(NOBODY)
    try:
        yield directory
    finally:
        if root:
            os.seteuid(0)
        for path in directory.iterdir():
            path.unlink()
        directory.rmdir()


def test_a_read_only_directory_is_refused_at_opening() -> None:
    with somebody() as directory:
        directory.chmod(0o500)
        with pytest.raises(errors.StoreReadOnly, match=r"store\.lock: cannot be opened for writing"):
            SqliteStore.open(directory, entropy=os.urandom)
        assert list(directory.iterdir()) == []


def test_a_directory_that_became_read_only_is_refused_and_opens_again_later() -> None:
    with somebody() as directory:
        SqliteStore.open(directory, entropy=os.urandom).close()
        directory.chmod(0o500)
        with pytest.raises(errors.StoreReadOnly):
            SqliteStore.open(directory, entropy=os.urandom)
        directory.chmod(0o700)
        SqliteStore.open(directory, entropy=os.urandom).close()


@pytest.mark.parametrize("name", ["coordinator.db", "store.lock"])
def test_a_read_only_file_is_refused_at_opening(name: str) -> None:
    with somebody() as directory:
        SqliteStore.open(directory, entropy=os.urandom).close()
        (directory / name).chmod(0o400)
        with pytest.raises(errors.StoreReadOnly, match=name):
            SqliteStore.open(directory, entropy=os.urandom)
        (directory / name).chmod(0o600)
        SqliteStore.open(directory, entropy=os.urandom).close()
