"""CHANGE_RETENTION (OPEN P7-g, P7-l)."""

from __future__ import annotations

from sidecar.coordinator.engine.commands import Change, Put, Situation, changed, record_of
from sidecar.coordinator.wire.enums import AdminKind, ObjectKind
from sidecar.coordinator.wire.ids import advance
from sidecar.coordinator.wire.payloads import AdminRecord, ChangeRetention
from sidecar.coordinator.wire.records import AdminRetention


def change_retention(situation: Situation, command: ChangeRetention) -> Change:
    """The one RETENTION record, under the coordinator's own id; what it means is ``Policy.kept``."""
    values = AdminRetention(command.operation_result_secs, command.event_bytes, command.artifact_bytes)
    payload = AdminRecord(admin_kind=AdminKind.RETENTION, payload=values.encode())
    stored = situation.state.get(ObjectKind.ADMIN, situation.coordinator_id)
    revision = 1 if stored is None else advance(stored.revision)
    record = record_of(ObjectKind.ADMIN, situation.coordinator_id, revision, payload)
    return changed((Put(record, None),), record)
