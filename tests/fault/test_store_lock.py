"""Two writers, a lock file that goes away, and a store that is replaced under its writer."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from sidecar.coordinator.store import database, errors
from sidecar.coordinator.store.sqlite import SqliteStore
from tests.fault.store_rig import History, activate

ROOT = Path(__file__).resolve().parents[2]
OPEN = (
    "import os, sys\n"
    "from pathlib import Path\n"
    "from sidecar.coordinator.store.errors import StoreError\n"
    "from sidecar.coordinator.store.sqlite import SqliteStore\n"
    "try:\n"
    "    SqliteStore.open(Path(sys.argv[1]), entropy=os.urandom).close()\n"
    "except StoreError as error:\n"
    "    print(type(error).__name__)\n"
    "else:\n"
    "    print('opened')\n"
)


def open_elsewhere(directory: Path) -> str:
    """What another process gets when it opens the store."""
    argv = [sys.executable, "-c", OPEN, str(directory)]
    return subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


@pytest.mark.req("P12-01")
def test_a_second_writer_is_refused_until_the_first_is_gone(tmp_path: Path) -> None:
    store = SqliteStore.open(tmp_path / "store", entropy=os.urandom)
    assert open_elsewhere(tmp_path / "store") == "StoreLocked"
    with pytest.raises(errors.StoreLocked, match="runs on this store"):
        SqliteStore.open(tmp_path / "store", entropy=os.urandom)
    activate(store)  # the refused ones did no harm
    store.close()
    assert open_elsewhere(tmp_path / "store") == "opened"


@pytest.mark.req("P12-01", "P14-05")
def test_a_removed_lock_file_ends_the_writer_and_still_keeps_others_out(tmp_path: Path) -> None:
    directory = tmp_path / "store"
    store = SqliteStore.open(directory, entropy=os.urandom)
    history, epoch = History(), activate(store)
    store.commit(history.next(1, epoch), lambda: None)
    durable = store.load()
    assert store.lock_held()
    (directory / "store.lock").unlink()
    assert not store.lock_held()
    assert open_elsewhere(directory) == "StoreLocked"  # it made a lock file of its own, but the database is in use
    assert not store.lock_held()
    checked = []
    with pytest.raises(errors.StoreLost):
        store.commit(history.next(2, epoch), lambda: checked.append(1))
    with pytest.raises(errors.StoreStopped):
        store.commit(history.next(3, epoch), lambda: None)
    store.close()
    again = SqliteStore.open(directory, entropy=os.urandom)
    assert again.load().last_sequence == durable.last_sequence
    assert not checked
    again.close()


@pytest.mark.req("P14-05")
def test_a_replaced_database_is_noticed_and_left_alone(tmp_path: Path) -> None:
    """An operator restores a copy under the running writer: neither may harm the other."""
    directory, aside = tmp_path / "store", tmp_path / "aside"
    store = SqliteStore.open(directory, entropy=os.urandom)
    history, epoch = History(), activate(store)
    store.commit(history.next(1, epoch), lambda: None)
    shutil.copytree(directory, aside)
    for name in ("coordinator.db", "coordinator.db-wal"):
        (directory / name).rename(tmp_path / name)
        shutil.copy(aside / name, directory / name)
    assert not store.lock_held()
    with pytest.raises(errors.StoreLost):
        store.commit(history.next(2, epoch), lambda: None)
    store.close()
    assert (directory / "coordinator.db-wal").read_bytes() == (aside / "coordinator.db-wal").read_bytes()
    restored = SqliteStore.open(directory, entropy=os.urandom)
    prefix = History()
    prefix.next(1, epoch)
    prefix.check(restored.load())
    restored.close()


@pytest.mark.req("P14-05")
def test_an_activation_is_not_installed_without_the_lock(tmp_path: Path) -> None:
    store = SqliteStore.open(tmp_path / "store", entropy=os.urandom)
    (tmp_path / "store" / "store.lock").rename(tmp_path / "elsewhere")
    with pytest.raises(errors.StoreLost):
        store.install(1, 1, bytes(32), bytes(16))
    store.close()
    again = SqliteStore.open(tmp_path / "store", entropy=os.urandom)
    assert again.installed().epoch == 0
    again.close()


@pytest.mark.req("P14-05")
def test_a_removed_log_ends_the_writer_and_loses_nothing(tmp_path: Path) -> None:
    """What is committed to a log without a name is gone with the process: nothing more may be acknowledged there."""
    directory = tmp_path / "store"
    store = SqliteStore.open(directory, entropy=os.urandom)
    history, epoch = History(), activate(store)
    store.commit(history.next(1, epoch), lambda: None)
    assert store.lock_held()
    (directory / "coordinator.db-wal").unlink()
    assert not store.lock_held()
    with pytest.raises(errors.StoreLost):
        store.commit(history.next(2, epoch), lambda: None)
    store.close()
    again = SqliteStore.open(directory, entropy=os.urandom)
    prefix = History()
    prefix.next(1, epoch)
    prefix.check(again.load())
    again.close()


@pytest.mark.req("P14-05")
@pytest.mark.parametrize("kept", [0.0, 0.5, 0.99])
def test_a_log_that_is_cut_ends_the_writer_and_stays_as_it_is(tmp_path: Path, kept: float) -> None:
    """What was in the rest is gone, but nothing is acknowledged after it, and what is left opens as it once was."""
    directory = tmp_path / "store"
    log = database.log_of(directory / database.NAME)
    store = SqliteStore.open(directory, entropy=os.urandom)
    history, epoch = History(), activate(store)
    for number in range(1, 6):
        store.commit(history.next(number, epoch), lambda: None)
    assert store.lock_held()
    left = int(log.stat().st_size * kept)
    os.truncate(log, left)
    assert not store.lock_held()
    with pytest.raises(errors.StoreLost, match="cut"):
        store.commit(history.next(6, epoch), lambda: None)
    store.close()
    assert log.stat().st_size == left
    again = SqliteStore.open(directory, entropy=os.urandom)
    prefix, found = History(), again.load()
    prefix.skip_to(found.last_sequence)
    prefix.check(found)
    again.close()


def test_a_log_that_sqlite_shortens_itself_is_no_loss(tmp_path: Path) -> None:
    """After one huge transaction the log goes back to what is kept of it, and starts over in place."""
    directory = tmp_path / "store"
    log = database.log_of(directory / database.NAME)
    store = SqliteStore.open(directory, entropy=os.urandom)
    history, epoch = History(), activate(store)
    huge = f"CREATE TABLE huge AS SELECT zeroblob({database.LOG_KEPT + (8 << 20)}) AS bytes"
    store._transact(lambda: store._connection.execute(huge), lambda: None)  # type: ignore[arg-type]
    grown = log.stat().st_size
    assert grown > database.LOG_KEPT
    assert store.lock_held()
    for number in range(1, 4):
        store.commit(history.next(number, epoch), lambda: None)
        assert store.lock_held()
    assert log.stat().st_size == database.LOG_KEPT
    os.truncate(log, database.LOG_KEPT - 1)
    assert not store.lock_held()
    store.close()
