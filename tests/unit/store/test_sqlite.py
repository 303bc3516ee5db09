"""Opening, loading, committing and refusing."""

from __future__ import annotations

import hashlib
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sidecar.coordinator.engine.state import EMPTY_STATE, Batch, Event, Operation, Record
from sidecar.coordinator.store import errors, schema
from sidecar.coordinator.store.sqlite import Installed, SqliteStore
from tests.fault.store_rig import INCARNATION, TOKEN, History, activate

TOP = 2**64 - 1
LATE = schema.to_column(TOP - 1)


def nothing() -> None:
    """A certificate that is always valid."""


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def store(directory: Path) -> Iterator[SqliteStore]:
    opened = SqliteStore.open(directory, entropy=os.urandom)
    yield opened
    opened.close()


def reopened(directory: Path) -> SqliteStore:
    return SqliteStore.open(directory, entropy=os.urandom)


def files(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def edit(directory: Path, *statements: str) -> None:
    """Change a closed store from outside."""
    with sqlite3.connect(directory / "coordinator.db") as connection:
        for statement in statements:
            connection.execute(statement)
    connection.close()


@pytest.mark.req("P4-07")
def test_a_new_store_draws_its_id_once(directory: Path) -> None:
    draws = iter([bytes(16), b"\x11" * 16, b"\x22" * 16])
    first = SqliteStore.open(directory, entropy=lambda size: next(draws))
    assert first.coordinator_id == b"\x11" * 16  # never all zero
    assert first.installed() == Installed(0, 0, bytes(32), bytes(16))
    assert first.load() == EMPTY_STATE
    first.close()
    second = SqliteStore.open(directory, entropy=lambda size: next(draws))
    assert second.coordinator_id == b"\x11" * 16
    assert next(draws) == b"\x22" * 16  # opening drew nothing
    second.close()


def test_files_are_private_and_few(store: SqliteStore, directory: Path) -> None:
    activate(store)
    assert directory.stat().st_mode & 0o777 == 0o700
    assert files(directory) == ["coordinator.db", "coordinator.db-wal", "store.lock"]
    assert {path.stat().st_mode & 0o777 for path in directory.iterdir()} == {0o600}
    store.close()
    store.close()
    assert files(directory) == ["coordinator.db", "store.lock"]


@pytest.mark.req("P12-02")
def test_the_store_holds_no_witness_state(store: SqliteStore, directory: Path) -> None:
    """All that an activation leaves here is its numbers, the hash of its token and the incarnation."""
    token = os.urandom(32)
    store.install(5, 7, hashlib.sha256(token).digest(), INCARNATION)
    assert token not in b"".join(path.read_bytes() for path in directory.iterdir())
    store.close()
    assert token not in (directory / "coordinator.db").read_bytes()
    with sqlite3.connect(directory / "coordinator.db") as connection:
        tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")}
        columns = [row[1] for row in connection.execute("PRAGMA table_info(authority)")]
    connection.close()
    assert tables == {"authority", "records", "operations", "events"}
    assert columns == [
        "one",
        "coordinator_id",
        "epoch",
        "activation_sequence",
        "token_sha256",
        "incarnation_id",
        "last_sequence",
        "pruned_through",
    ]


def test_an_installation_only_goes_up_and_survives(store: SqliteStore, directory: Path) -> None:
    store.install(5, 7, TOKEN, INCARNATION)
    for epoch, activation in ((5, 8), (6, 7), (4, 9), (6, 6), (5, 7)):
        with pytest.raises(errors.StaleBatch, match="later activation"):
            store.install(epoch, activation, TOKEN, INCARNATION)
    store.close()
    again = reopened(directory)
    assert again.installed() == Installed(5, 7, TOKEN, INCARNATION)
    again.install(6, 8, TOKEN, INCARNATION)
    again.close()


@pytest.mark.req("P8-13")
def test_what_was_committed_is_loaded(store: SqliteStore, directory: Path) -> None:
    history, epoch = History(), activate(store)
    for number in range(1, 101):
        store.commit(history.next(number, epoch), nothing)
    history.check(store.load())
    assert store.last_sequence == history.last_sequence
    store.close()
    again = reopened(directory)
    history.check(again.load())
    epoch = activate(again)
    again.commit_all([history.next(1, epoch), history.next(2, epoch), history.next(3, epoch)], nothing)
    history.check(again.load())
    again.close()


def test_every_setting_that_durability_needs_is_on(store: SqliteStore) -> None:
    assert store._connection.pragma("journal_mode") == "wal"
    assert store._connection.pragma("synchronous") == 2
    assert store._connection.pragma("locking_mode") == "exclusive"


@pytest.mark.req("P12-16", "P8-13")
def test_the_check_runs_after_the_rows_and_before_the_commit(store: SqliteStore, directory: Path) -> None:
    history, epoch = History(), activate(store)
    store.commit(history.next(1, epoch), nothing)
    batch = history.next(2, epoch)
    seen: list[tuple[bool, int]] = []

    def expired() -> None:
        rows = store._connection.execute("SELECT count(*) FROM operations").get
        seen.append((store._connection.in_transaction, rows))
        raise PermissionError("expired")

    with pytest.raises(PermissionError, match="expired"):
        store.commit(batch, expired)
    assert seen == [(True, len(history.operations))]
    for call in (lambda: store.commit(batch, nothing), store.load, lambda: activate(store)):
        with pytest.raises(errors.StoreStopped, match="stopped after: expired"):
            call()
    store.close()
    again = reopened(directory)
    prefix = History()
    prefix.next(1, epoch)
    prefix.check(again.load())
    again.close()


def batch_of(**changes: Any) -> Batch:
    event = Event(1, b"e" * 16, 1, 1, b"o" * 16, 1, 1, b"payload", b"")
    return Batch(1, 1, 1, (), (), (), (event,), 1, 0)._replace(**changes)


EVENT = batch_of().events[0]


@pytest.mark.parametrize(
    "changes",
    [
        {"epoch": 2},
        {"activation_sequence": 2},
        {"number": 2},
        {"number": 0},
        {"events": (EVENT._replace(sequence=2),)},
        {"events": (EVENT, EVENT._replace(sequence=3)), "last_sequence": 2},
        {"events": (EVENT, EVENT), "last_sequence": 2},
        {"last_sequence": 2},
        {"last_sequence": 0},
        {"events": (), "last_sequence": 1},
        {"pruned_through": 2},
        {"pruned_through": -1},
    ],
)
@pytest.mark.req("P14-05")
def test_a_batch_that_does_not_fit_is_refused_whole(
    store: SqliteStore, directory: Path, changes: dict[str, object]
) -> None:
    activate(store)
    with pytest.raises(errors.StaleBatch):
        store.commit(batch_of(**changes), nothing)
    with pytest.raises(errors.StoreStopped):
        store.commit(batch_of(), nothing)
    store.close()
    again = reopened(directory)
    assert again.load() == EMPTY_STATE
    again.close()


def test_batches_of_one_commit_must_follow_each_other(store: SqliteStore, directory: Path) -> None:
    activate(store)
    second = batch_of(number=2, events=(EVENT._replace(sequence=3),), last_sequence=3)
    with pytest.raises(errors.StaleBatch):
        store.commit_all([batch_of(), second], nothing)
    store.close()
    again = reopened(directory)
    assert again.load() == EMPTY_STATE
    again.close()


def test_an_older_activation_cannot_write(store: SqliteStore) -> None:
    activate(store)
    store.install(9, 9, TOKEN, INCARNATION)
    with pytest.raises(errors.StaleBatch, match="another activation"):
        store.commit(batch_of(), nothing)


@pytest.mark.req("P4-06")
def test_counters_reach_their_last_value_and_never_wrap(store: SqliteStore, directory: Path) -> None:
    store.install(TOP - 1, TOP - 1, TOKEN, INCARNATION)
    store.close()
    edit(directory, f"UPDATE authority SET last_sequence = {LATE}, pruned_through = {LATE}")
    again = reopened(directory)
    again.install(TOP, TOP, TOKEN, INCARNATION)
    record = Record(1, b"o" * 16, TOP, b"image")
    operation = Operation(b"p" * 16, TOP, b"image", b"k" * 32, b"d" * 32, 1, b"r", TOP, TOP, b"")
    last = EVENT._replace(sequence=TOP, revision=TOP)
    batch = Batch(1, TOP, TOP, (record,), (operation,), (), (last,), TOP, TOP - 1)
    again.commit(batch, nothing)
    state = again.load()
    assert (state.last_sequence, state.tail) == (TOP, (last,))
    assert state.get(1, b"o" * 16) == record
    assert state.operation(b"p" * 16) == operation
    beyond = Batch(2, TOP, TOP, (), (), (), (EVENT._replace(sequence=TOP + 1),), TOP + 1, TOP - 1)
    with pytest.raises(errors.CounterExhausted):
        again.commit(beyond, nothing)
    with pytest.raises(errors.StoreStopped):
        again.commit(batch._replace(number=2), nothing)
    again.close()
    final = reopened(directory)
    assert (final.load().last_sequence, final.load().tail) == (TOP, (last,))
    assert final.installed() == Installed(TOP, TOP, TOKEN, INCARNATION)
    with pytest.raises(errors.CounterExhausted):
        final.install(TOP + 1, TOP + 1, TOKEN, INCARNATION)
    final.close()


@pytest.mark.parametrize("value", [0, 1, 2**63 - 1, 2**63, TOP])
def test_column_values_keep_their_order(value: int) -> None:
    assert schema.from_column(schema.to_column(value)) == value
    assert -(2**63) <= schema.to_column(value) < 2**63
    assert (schema.to_column(value) < schema.to_column(2**63)) == (value < 2**63)
    for outside in (-1, TOP + 1):
        with pytest.raises(OverflowError):
            schema.to_column(outside)


@pytest.mark.req("P12-33", "P14-05")
def test_a_newer_schema_is_refused_and_left_as_it_is(store: SqliteStore, directory: Path) -> None:
    activate(store)
    store.close()
    edit(directory, f"PRAGMA user_version = {schema.VERSION + 1}")
    before = (directory / "coordinator.db").read_bytes()
    with pytest.raises(
        errors.StoreTooNew, match=f"has schema {schema.VERSION + 1}, this program knows {schema.VERSION}"
    ):
        reopened(directory)
    assert (directory / "coordinator.db").read_bytes() == before
    assert files(directory) == ["coordinator.db", "store.lock"]
    edit(directory, f"PRAGMA user_version = {schema.VERSION}")
    reopened(directory).close()


@pytest.mark.req("P12-33")
def test_a_store_of_the_first_schema_is_upgraded_with_everything_in_it(store: SqliteStore, directory: Path) -> None:
    history, epoch = History(), activate(store)
    for number in range(1, 11):
        store.commit(history.next(number, epoch), nothing)
    store.close()
    edit(directory, "ALTER TABLE operations DROP COLUMN note", "PRAGMA user_version = 1")
    for _ in range(2):  # the second opening finds the upgraded one
        again = reopened(directory)
        history.check(again.load())
        again.close()
    again = reopened(directory)
    epoch = activate(again)
    (operation, *_), last = history.operations.values(), history.last_sequence
    noted = operation._replace(note=b"seen by the night shift")
    event = EVENT._replace(sequence=last + 1)
    again.commit(Batch(1, epoch, epoch, (), (noted,), (), (event,), last + 1, history.pruned_through), nothing)
    again.close()
    again = reopened(directory)
    assert again.load().operation(operation.id) == noted
    again.close()


def test_removed_records_go_before_what_the_same_batch_puts(store: SqliteStore, directory: Path) -> None:
    activate(store)
    kept, gone = Record(9, b"k" * 16, 3, b"kept"), Record(9, b"g" * 16, 1, b"gone")
    other = Record(8, gone.id, 1, b"another family")
    store.commit(batch_of(records=(kept, gone, other)), nothing)
    again = kept._replace(revision=1, image=b"again")
    removed = ((9, kept.id), (9, gone.id), (9, b"never there....."))
    store.commit(Batch(2, 1, 1, (again,), (), (), (), 1, 0, removed), nothing)
    store.close()
    reread = reopened(directory)
    state = reread.load()
    reread.close()
    assert (state.get(9, kept.id), state.get(9, gone.id), state.get(8, gone.id)) == (again, None, other)


@pytest.mark.parametrize(
    "statements",
    [
        ["PRAGMA user_version = 0"],
        ["PRAGMA application_id = 0"],
        ["DELETE FROM authority"],
        ["DROP TABLE authority"],
        ["PRAGMA journal_mode = DELETE"],
    ],
)
def test_a_database_that_is_no_store_is_refused(store: SqliteStore, directory: Path, statements: list[str]) -> None:
    store.close()
    edit(directory, *statements)
    for _ in range(2):  # nothing stays locked
        with pytest.raises(errors.StoreCorrupt):
            reopened(directory)


@pytest.mark.parametrize(
    "statements",
    [
        [f"DELETE FROM events WHERE sequence = {schema.to_column(2)}"],
        ["DELETE FROM events"],
        [f"DELETE FROM events WHERE sequence = {schema.to_column(1)}"],
        ["DROP TABLE records"],
    ],
)
def test_rows_that_do_not_fit_together_are_refused(store: SqliteStore, directory: Path, statements: list[str]) -> None:
    activate(store)
    store.commit(batch_of(events=(EVENT, EVENT._replace(sequence=2)), last_sequence=2), nothing)
    store.close()
    edit(directory, *statements)
    again = reopened(directory)
    with pytest.raises(errors.StoreCorrupt):
        again.load()
    again.close()


def test_a_row_that_breaks_its_check_is_found_at_opening(store: SqliteStore, directory: Path) -> None:
    activate(store)
    store.commit(batch_of(), nothing)
    store.close()
    edit(directory, "PRAGMA ignore_check_constraints = ON", "UPDATE events SET object_id = x'00'")
    with pytest.raises(errors.StoreCorrupt, match="is damaged"):
        reopened(directory)


@pytest.mark.parametrize("damage", ["empty", "text", "half", "page", "header"])
def test_a_damaged_file_is_refused_and_never_taken_for_a_new_store(
    store: SqliteStore, directory: Path, damage: str
) -> None:
    history, epoch = History(), activate(store)
    for number in range(1, 60):
        store.commit(history.next(number, epoch), nothing)
    store.close()
    path = directory / "coordinator.db"
    content = bytearray(path.read_bytes())
    if damage == "empty":
        content.clear()
    elif damage == "text":
        content[:] = b"this is not a database\n" * 400
    elif damage == "half":
        del content[len(content) // 2 :]
    elif damage == "page":
        content[8192:12288] = os.urandom(4096)
    else:
        content[:100] = bytes(100)
    path.write_bytes(content)
    with pytest.raises(errors.StoreCorrupt):
        reopened(directory)
    assert path.read_bytes() == content


def test_a_lost_database_beside_its_log_is_not_made_anew(store: SqliteStore, directory: Path) -> None:
    activate(store)
    log = (directory / "coordinator.db-wal").read_bytes()
    store.close()
    (directory / "coordinator.db").unlink()
    (directory / "coordinator.db-wal").write_bytes(log)
    with pytest.raises(errors.StoreCorrupt, match="missing beside its wal file"):
        reopened(directory)


def test_a_half_made_database_is_made_again(directory: Path) -> None:
    directory.mkdir(mode=0o700)
    (directory / "coordinator.db.new").write_bytes(b"half")
    (directory / "coordinator.db.new-wal").write_bytes(b"half")
    reopened(directory).close()
    assert files(directory) == ["coordinator.db", "store.lock"]


@pytest.mark.parametrize("name", ["store.lock", "coordinator.db"])
def test_names_that_lead_elsewhere_or_let_others_in_are_refused(
    store: SqliteStore, directory: Path, tmp_path: Path, name: str
) -> None:
    store.close()
    path = directory / name
    path.chmod(0o640)
    with pytest.raises(errors.StoreUnsafe, match="chmod 600"):
        reopened(directory)
    path.chmod(0o600)
    path.rename(tmp_path / "moved")
    path.symlink_to(tmp_path / "moved")
    with pytest.raises(errors.StoreUnsafe, match="not a regular file"):
        reopened(directory)
    path.unlink()
    path.mkdir()
    with pytest.raises(errors.StoreUnsafe, match="not a regular file"):
        reopened(directory)


def test_an_open_directory_is_refused(directory: Path, tmp_path: Path) -> None:
    directory.mkdir()
    directory.chmod(0o750)
    with pytest.raises(errors.StoreUnsafe, match="chmod 700"):
        reopened(directory)
    blocked = tmp_path / "file"
    blocked.write_bytes(b"")
    with pytest.raises(errors.StoreError):
        reopened(blocked / "store")


def test_a_closed_store_refuses(store: SqliteStore) -> None:
    store.close()
    assert not store.lock_held()
    for call in (lambda: store.commit(batch_of(), nothing), store.load, lambda: activate(store)):
        with pytest.raises(errors.StoreStopped, match="is closed"):
            call()


@pytest.mark.req("P8-13", "P8-17", "P8-42")
def test_an_id_that_is_forgotten_and_admitted_again_in_one_batch_is_kept(store: SqliteStore, directory: Path) -> None:
    activate(store)
    old = Operation(b"\x88" * 16, 2, b"tombstone", b"\x01" * 32, b"\x02" * 32, 1, b"\x04", 1, 1, b"")
    new = old._replace(revision=1, image=b"again", digest=b"\x03" * 32, result=b"\x01", completed_at=2)
    installed = store.installed()
    for number, operation, removed in ((1, old, ()), (2, new, (old.id,))):
        event = Event(number, number.to_bytes(16, "big"), 11, 7, operation.id, operation.revision, 1, b"", b"\x01" * 32)
        store.commit(
            Batch(
                number, installed.epoch, installed.activation_sequence, (), (operation,), removed, (event,), number, 0
            ),
            nothing,
        )
    store.close()
    again = reopened(directory)
    assert again.load().operation(old.id) == new
    again.close()
