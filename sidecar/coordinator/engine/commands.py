"""What each command needs and does (tables P6-t2 and P7-t1).

``COMMANDS`` is total over CommandKind. A kind without a handler is known and not served by this version: the server
does not offer its capability bit, so it is always refused before admission (P5-17, P7-26).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from sidecar.coordinator.engine.state import Record, State
from sidecar.coordinator.wire.enums import Capability, CommandKind, EventKind, ObjectiveState, ObjectKind, Scope
from sidecar.coordinator.wire.errors import CapabilityRequired, NotFound, RevisionConflict, ScopeDenied
from sidecar.coordinator.wire.ids import ObjectId, ObjectRevision, advance
from sidecar.coordinator.wire.limits import SCHEMA
from sidecar.coordinator.wire.payloads import (
    CancelRun,
    CommandPayload,
    CreateObjective,
    ObjectiveRecord,
    PauseRun,
    RecordPayload,
    ResumeRun,
    UpdateObjective,
)
from sidecar.coordinator.wire.records import ObjectRef, Precondition, ResultPayload, SnapshotRecord


class Put(NamedTuple):
    """A record in its new revision, and the event that tells of it (P7-21)."""

    record: Record
    event: EventKind


class Change(NamedTuple):
    """What an admitted command does when it finishes in its own transaction."""

    puts: tuple[Put, ...]
    result: ResultPayload
    created: bytes
    """State that the operation made, see ``Operation.created``."""


class Command(NamedTuple):
    """One command kind."""

    capabilities: Capability
    scopes: Scope
    run: Callable[[State, Any], Change] | None
    """Makes the change of a decoded payload, or raises a scoped error; it decides on the newest state."""


SERVED_CAPABILITIES = Capability(0)
"""Bits that this version can offer in a handshake."""


def check_allowed(kind: CommandKind, capabilities: int, scopes: int) -> Callable[[State, Any], Change]:
    """What runs a command of this kind, for a connection that may send it (P5-17, P6-10..16, W8-03)."""
    command = COMMANDS[kind]
    if command.run is None or command.capabilities & ~capabilities:
        raise CapabilityRequired(f"{kind.name} is not available without its capability")
    if command.scopes & ~scopes:
        raise ScopeDenied(f"{kind.name} is outside the granted scopes")
    return command.run


def record_of(kind: ObjectKind, id_: bytes, revision: int, payload: RecordPayload) -> Record:
    """A record with its SnapshotRecord image (P7-15, P7-20)."""
    image = SnapshotRecord(kind, ObjectId(id_), ObjectRevision(revision), SCHEMA, payload.body()).encode()
    return Record(kind, id_, revision, image)


def created_object(kind: ObjectKind, id_: bytes, revision: int = 0) -> bytes:
    """The mark of state that an operation made: the object itself, or exactly one revision of it (P8-42)."""
    return Precondition(ObjectRef(kind, ObjectId(id_)), revision).encode()


def remains(created: bytes, state: State) -> bool:
    """Whether any state that an operation made is still there (P8-42)."""
    size = len(created_object(ObjectKind.OBJECTIVE, b"\x01" * 16))
    for at in range(0, len(created), size):
        mark = Precondition.decode(created[at : at + size])
        entry = state.get(mark.object.kind, mark.object.id)
        if entry is not None and mark.expected_revision in (0, entry.revision):
            return True
    return False


def _create_objective(state: State, command: CreateObjective) -> Change:
    """OPEN P7-a: a used id is a conflict; the new objective is Active in revision 1."""
    if state.get(ObjectKind.OBJECTIVE, command.objective_id) is not None:
        raise RevisionConflict("the objective exists")
    return _objective(command, 1, created_object(ObjectKind.OBJECTIVE, command.objective_id))


def _update_objective(state: State, command: UpdateObjective) -> Change:
    """OPEN P7-a: the document is replaced and the revision rises by one."""
    entry = state.get(ObjectKind.OBJECTIVE, command.objective_id)
    if entry is None:
        raise NotFound("no such objective")
    revision = advance(entry.revision)
    return _objective(command, revision, created_object(ObjectKind.OBJECTIVE, command.objective_id, revision))


def _objective(command: CreateObjective | UpdateObjective, revision: int, created: bytes) -> Change:
    payload = ObjectiveRecord(document_schema=command.schema, document=command.document, state=ObjectiveState.ACTIVE)
    record = record_of(ObjectKind.OBJECTIVE, command.objective_id, revision, payload)
    ref = ObjectRef(ObjectKind.OBJECTIVE, ObjectId(command.objective_id))
    return Change((Put(record, EventKind.OBJECTIVE_CHANGED),), ref, created)


def _no_run(state: State, command: CancelRun | PauseRun | ResumeRun) -> Change:
    """START_RUN is not served, so that no run exists yet (OPEN P7-c)."""
    raise NotFound("no such run")


_NO_BITS = Capability(0)
_DELEGATE = Scope.WORK_READ | Scope.WORK_COMMAND | Scope.TERMINAL_CONTROL
_SIGNAL = Scope.WORK_READ | Scope.SIGNAL_ACK
COMMANDS: dict[CommandKind, Command] = {
    CommandKind.CREATE_OBJECTIVE: Command(_NO_BITS, Scope.WORK_COMMAND, _create_objective),
    CommandKind.UPDATE_OBJECTIVE: Command(_NO_BITS, Scope.WORK_COMMAND, _update_objective),
    CommandKind.START_RUN: Command(Capability.TERMINAL_BINDINGS, _DELEGATE, None),
    CommandKind.CANCEL_RUN: Command(_NO_BITS, Scope.WORK_COMMAND, _no_run),
    CommandKind.PAUSE_RUN: Command(_NO_BITS, Scope.WORK_COMMAND, _no_run),
    CommandKind.RESUME_RUN: Command(_NO_BITS, Scope.WORK_COMMAND, _no_run),
    CommandKind.ACK_SIGNAL: Command(Capability.SIGNALS, _SIGNAL, None),
    CommandKind.SUPPRESS_SIGNAL: Command(Capability.SIGNALS, _SIGNAL, None),
    CommandKind.REGISTER_ARTIFACT_MANIFEST: Command(Capability.ARTIFACT_MANIFESTS, Scope.WORK_COMMAND, None),
    CommandKind.END_BINDING: Command(Capability.TERMINAL_BINDINGS, _DELEGATE, None),
    CommandKind.CHANGE_RETENTION: Command(Capability.ADMINISTRATION, Scope.ADMIN, None),
}
"""CANCEL_RUN needs TERMINAL_BINDINGS, WORK_READ and TERMINAL_CONTROL besides once a run can have an active binding."""

Payload = CommandPayload
