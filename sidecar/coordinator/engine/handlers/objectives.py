"""CREATE_OBJECTIVE and UPDATE_OBJECTIVE (OPEN P7-a)."""

from __future__ import annotations

from sidecar.coordinator.engine.commands import Change, Put, Situation, created_object, record_of
from sidecar.coordinator.wire.enums import EventKind, ObjectiveState, ObjectKind
from sidecar.coordinator.wire.errors import NotFound, RevisionConflict
from sidecar.coordinator.wire.ids import ObjectId, advance
from sidecar.coordinator.wire.payloads import CreateObjective, ObjectiveRecord, UpdateObjective
from sidecar.coordinator.wire.records import ObjectRef


def create_objective(situation: Situation, command: CreateObjective) -> Change:
    """A used id is a conflict; the new objective is Active in revision 1."""
    if situation.state.get(ObjectKind.OBJECTIVE, command.objective_id) is not None:
        raise RevisionConflict("the objective exists")
    return _objective(command, 1, created_object(ObjectKind.OBJECTIVE, command.objective_id))


def update_objective(situation: Situation, command: UpdateObjective) -> Change:
    """The document is replaced and the revision rises by one."""
    entry = situation.state.get(ObjectKind.OBJECTIVE, command.objective_id)
    if entry is None:
        raise NotFound("no such objective")
    revision = advance(entry.revision)
    return _objective(command, revision, created_object(ObjectKind.OBJECTIVE, command.objective_id, revision))


def _objective(command: CreateObjective | UpdateObjective, revision: int, created: bytes) -> Change:
    payload = ObjectiveRecord(document_schema=command.schema, document=command.document, state=ObjectiveState.ACTIVE)
    record = record_of(ObjectKind.OBJECTIVE, command.objective_id, revision, payload)
    ref = ObjectRef(ObjectKind.OBJECTIVE, ObjectId(command.objective_id))
    return Change((Put(record, EventKind.OBJECTIVE_CHANGED),), ref, created)
