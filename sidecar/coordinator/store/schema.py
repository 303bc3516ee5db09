"""Tables of the store, and how rows of the engine stand in them.

SQLite integers are signed: a u64 is stored as ``value - 2**63``, which keeps its order, so that every comparison in SQL
is right up to 2**64 - 1. Identifiers, images and digests are blobs of their exact bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from sidecar.coordinator.engine.state import Event, Operation, Record

APPLICATION_ID: Final = 0x70687863  # "phxc"
VERSION: Final = 2
_BIAS: Final = 1 << 63


def to_column(value: int) -> int:
    """The signed column value of a u64; ``OverflowError`` outside 0 .. 2**64 - 1."""
    if not 0 <= value < 1 << 64:
        raise OverflowError("a counter left the range of u64")
    return value - _BIAS


def from_column(value: int) -> int:
    """The u64 of a column value."""
    return value + _BIAS


# One row. Epoch and activation 0 mean that nothing was ever activated.
AUTHORITY: Final = """
CREATE TABLE authority (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    coordinator_id BLOB NOT NULL CHECK (length(coordinator_id) = 16),
    epoch INTEGER NOT NULL,
    activation_sequence INTEGER NOT NULL,
    token_sha256 BLOB NOT NULL CHECK (length(token_sha256) = 32),
    incarnation_id BLOB NOT NULL CHECK (length(incarnation_id) = 16),
    last_sequence INTEGER NOT NULL,
    pruned_through INTEGER NOT NULL CHECK (pruned_through <= last_sequence)
) STRICT
"""
RECORDS: Final = """
CREATE TABLE records (
    kind INTEGER NOT NULL CHECK (kind BETWEEN 0 AND 65535),
    id BLOB NOT NULL CHECK (length(id) = 16),
    revision INTEGER NOT NULL,
    image BLOB NOT NULL,
    PRIMARY KEY (kind, id)
) STRICT
"""
OPERATIONS: Final = """
CREATE TABLE operations (
    id BLOB PRIMARY KEY NOT NULL CHECK (length(id) = 16),
    revision INTEGER NOT NULL,
    image BLOB NOT NULL,
    principal BLOB NOT NULL CHECK (length(principal) = 32),
    digest BLOB NOT NULL CHECK (length(digest) = 32),
    command_kind INTEGER NOT NULL CHECK (command_kind BETWEEN 0 AND 65535),
    result BLOB NOT NULL,
    completed_at INTEGER NOT NULL,
    retention INTEGER NOT NULL,
    created BLOB NOT NULL CHECK (length(created) % 26 = 0),
    note BLOB NOT NULL DEFAULT x''
) STRICT
"""
EVENTS: Final = """
CREATE TABLE events (
    sequence INTEGER PRIMARY KEY,
    event_id BLOB NOT NULL CHECK (length(event_id) = 16),
    kind INTEGER NOT NULL CHECK (kind BETWEEN 0 AND 65535),
    object_kind INTEGER NOT NULL CHECK (object_kind BETWEEN 0 AND 65535),
    object_id BLOB NOT NULL CHECK (length(object_id) = 16),
    revision INTEGER NOT NULL,
    schema INTEGER NOT NULL CHECK (schema BETWEEN 0 AND 65535),
    payload BLOB NOT NULL,
    principal BLOB NOT NULL CHECK (length(principal) IN (0, 32))
) STRICT
"""
TABLES: Final = (AUTHORITY, RECORDS, OPERATIONS, EVENTS)
UPGRADES: Final = {1: "ALTER TABLE operations ADD COLUMN note BLOB NOT NULL DEFAULT x''"}
"""What makes a store of a version one of the next version."""

PUT_RECORD: Final = (
    "INSERT INTO records VALUES (?, ?, ?, ?) "
    "ON CONFLICT (kind, id) DO UPDATE SET revision = excluded.revision, image = excluded.image"
)
PUT_OPERATION: Final = (
    "INSERT INTO operations VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) "
    "ON CONFLICT (id) DO UPDATE SET revision = excluded.revision, image = excluded.image, "
    "principal = excluded.principal, digest = excluded.digest, command_kind = excluded.command_kind, "
    "result = excluded.result, completed_at = excluded.completed_at, retention = excluded.retention, "
    "created = excluded.created, note = excluded.note"
)
DROP_RECORD: Final = "DELETE FROM records WHERE kind = ? AND id = ?"
DROP_OPERATION: Final = "DELETE FROM operations WHERE id = ?"
ADD_EVENT: Final = "INSERT INTO events VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
PRUNE_EVENTS: Final = "DELETE FROM events WHERE sequence <= ?"
ADVANCE: Final = "UPDATE authority SET last_sequence = ?, pruned_through = ?"
INSTALL: Final = "UPDATE authority SET epoch = ?, activation_sequence = ?, token_sha256 = ?, incarnation_id = ?"

GET_AUTHORITY: Final = (
    "SELECT coordinator_id, epoch, activation_sequence, token_sha256, incarnation_id, last_sequence, pruned_through "
    "FROM authority"
)
GET_RECORDS: Final = "SELECT kind, id, revision, image FROM records"
GET_OPERATIONS: Final = (
    "SELECT id, revision, image, principal, digest, command_kind, result, completed_at, retention, created, "
    "note FROM operations"
)
GET_EVENTS: Final = (
    "SELECT sequence, event_id, kind, object_kind, object_id, revision, schema, payload, principal FROM events "
    "ORDER BY sequence"
)


def record_row(row: Record) -> tuple[int, bytes, int, bytes]:
    """Columns of PUT_RECORD."""
    return row.kind, row.id, to_column(row.revision), row.image


def operation_row(row: Operation) -> tuple[int | bytes, ...]:
    """Columns of PUT_OPERATION."""
    return row._replace(
        revision=to_column(row.revision),
        completed_at=to_column(row.completed_at),
        retention=to_column(row.retention),
    )


def event_row(row: Event) -> tuple[int | bytes, ...]:
    """Columns of ADD_EVENT."""
    return row._replace(sequence=to_column(row.sequence), revision=to_column(row.revision))


def read_records(rows: Iterator[tuple[int, bytes, int, bytes]]) -> Iterator[Record]:
    """Rows of GET_RECORDS."""
    for kind, id_, revision, image in rows:
        yield Record(kind, id_, from_column(revision), image)


def read_operations(rows: Iterator[tuple[object, ...]]) -> Iterator[Operation]:
    """Rows of GET_OPERATIONS."""
    for columns in rows:
        row = Operation._make(columns)
        yield row._replace(
            revision=from_column(row.revision),
            completed_at=from_column(row.completed_at),
            retention=from_column(row.retention),
        )


def read_events(rows: Iterator[tuple[object, ...]]) -> Iterator[Event]:
    """Rows of GET_EVENTS, oldest first."""
    for columns in rows:
        row = Event._make(columns)
        yield row._replace(sequence=from_column(row.sequence), revision=from_column(row.revision))
