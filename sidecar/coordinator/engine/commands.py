"""The vocabulary of command handlers: what they decide on, and the change that they make.

The handlers themselves, and the table of what each command needs, are in ``handlers``.
"""

from __future__ import annotations

from typing import NamedTuple, TypeVar

from sidecar.coordinator.engine.state import Record, State
from sidecar.coordinator.engine.visibility import Visibility
from sidecar.coordinator.wire.enums import EventKind, ObjectKind
from sidecar.coordinator.wire.fields import Body
from sidecar.coordinator.wire.ids import ObjectId, ObjectRevision
from sidecar.coordinator.wire.limits import SCHEMA
from sidecar.coordinator.wire.payloads import RecordPayload
from sidecar.coordinator.wire.records import ObjectRef, Precondition, SnapshotRecord

P = TypeVar("P", bound=Body)

_MARK = 26
"""Bytes of a Precondition image."""


class Put(NamedTuple):
    """A record in its new revision, and the event that tells of it (P7-21)."""

    record: Record
    event: EventKind | None
    """``None`` for the ADMIN family, which has no event kind (OPEN P7-g)."""


class Change(NamedTuple):
    """What an admitted command does when it finishes in its own transaction."""

    puts: tuple[Put, ...]
    result: ObjectRef
    """Ids alone: no command of this version answers with a DOCUMENT, so that no result needs redaction (OPEN P6-b)."""
    created: bytes
    """State that the operation made, see ``Operation.created``."""


class Situation(NamedTuple):
    """What a handler decides on: the newest state, and the rights of the connection."""

    state: State
    preconditions: tuple[Precondition, ...]
    """They hold."""
    visibility: Visibility
    """Decides about preconditions. The target that a payload names is governed by the command's own scopes alone:
    PAUSE_RUN needs no right to read (table P6-t2)."""
    capabilities: int
    scopes: int
    coordinator_id: bytes


def record_of(kind: ObjectKind, id_: bytes, revision: int, payload: RecordPayload) -> Record:
    """A record with its SnapshotRecord image (P7-15, P7-20)."""
    image = SnapshotRecord(kind, ObjectId(id_), ObjectRevision(revision), SCHEMA, payload.body()).encode()
    return Record(kind, id_, revision, image)


def find(state: State, kind: ObjectKind, id_: bytes, shape: type[P]) -> tuple[int, P] | None:
    """Revision and payload of a stored object, or ``None``."""
    entry = state.get(kind, id_)
    return None if entry is None else (entry.revision, shape.decode(SnapshotRecord.decode(entry.image).payload))


def changed(puts: tuple[Put, ...], target: Record) -> Change:
    """A change that made exactly these revisions; its result names ``target``."""
    created = b"".join(created_object(ObjectKind(put.record.kind), put.record.id, put.record.revision) for put in puts)
    return Change(puts, ObjectRef(ObjectKind(target.kind), ObjectId(target.id)), created)


def created_object(kind: ObjectKind, id_: bytes, revision: int = 0) -> bytes:
    """The mark of state that an operation made: the object itself, or exactly one revision of it (P8-42)."""
    return Precondition(ObjectRef(kind, ObjectId(id_)), revision).encode()


def remains(created: bytes, state: State) -> bool:
    """Whether any state that an operation made is still there (P8-42)."""
    for at in range(0, len(created), _MARK):
        mark = Precondition.decode(created[at : at + _MARK])
        entry = state.get(mark.object.kind, mark.object.id)
        if entry is not None and mark.expected_revision in (0, entry.revision):
            return True
    return False
