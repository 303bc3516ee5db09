"""Records that no command of this version makes: runs, work sessions, signals; and artifacts to begin with."""

from __future__ import annotations

from sidecar.coordinator.engine.commands import record_of
from sidecar.coordinator.engine.state import Record, State
from sidecar.coordinator.wire import payloads as pl
from sidecar.coordinator.wire.enums import (
    BindingState,
    ObjectiveState,
    ObjectKind,
    RunState,
    SignalKind,
    SignalState,
    WorkSessionState,
)
from sidecar.coordinator.wire.ids import (
    ArtifactId,
    BindingId,
    Fingerprint,
    IncarnationId,
    ObjectiveId,
    RunId,
    WorkSessionId,
)
from sidecar.coordinator.wire.records import LocalResource, SnapshotRecord, TerminalBindingRef

BINDING = b"\x77" * 16


def id16(number: int) -> bytes:
    return number.to_bytes(16, "big")


def objective(number: int, document: bytes = b'{"seeded":true}') -> Record:
    payload = pl.ObjectiveRecord(document_schema=1, document=document, state=ObjectiveState.ACTIVE)
    return record_of(ObjectKind.OBJECTIVE, id16(number), 1, payload)


def run(
    number: int,
    state: RunState = RunState.RUNNING,
    *,
    objective: int = 1,
    outcome: bytes | None = None,
    revision: int = 1,
) -> Record:
    payload = pl.RunRecord(objective_id=ObjectiveId(id16(objective)), attempt=1, state=state, outcome=outcome)
    return record_of(ObjectKind.RUN, id16(number), revision, payload)


def session(
    number: int,
    run: int,
    state: WorkSessionState = WorkSessionState.ACTIVE,
    *,
    binding: bytes | None = None,
    revision: int = 1,
) -> Record:
    bound = None if binding is None else BindingId(binding)
    payload = pl.WorkSessionRecord(run_id=RunId(id16(run)), state=state, active_binding=bound)
    return record_of(ObjectKind.WORK_SESSION, id16(number), revision, payload)


def binding(session: int) -> Record:
    """The active binding ``BINDING`` of a work session."""
    ref = TerminalBindingRef(
        BindingId(BINDING),
        WorkSessionId(id16(session)),
        Fingerprint(b"\xf1" * 32),
        IncarnationId(b"\xf2" * 16),
        LocalResource(1),
    )
    return record_of(ObjectKind.BINDING, BINDING, 1, pl.BindingRecord(binding=ref, state=BindingState.ACTIVE))


def signal(number: int, state: SignalState = SignalState.OPEN, *, session: int = 1, revision: int = 1) -> Record:
    payload = pl.SignalRecord(
        work_session_id=WorkSessionId(id16(session)), kind=SignalKind.POLICY, state=state, message="disk budget"
    )
    return record_of(ObjectKind.SIGNAL, id16(number), revision, payload)


def artifact(number: int, latest: int, *, session: int = 1, revision: int = 1) -> Record:
    payload = pl.ArtifactRecord(work_session_id=WorkSessionId(id16(session)), latest_revision=latest)
    return record_of(ObjectKind.ARTIFACT, id16(number), revision, payload)


def manifest(number: int, latest: int, content: bytes = b"m", *, revision: int = 1) -> Record:
    payload = pl.ArtifactManifestRecord(
        artifact_id=ArtifactId(id16(number)), revision=latest, schema=1, manifest=content
    )
    return record_of(ObjectKind.ARTIFACT_MANIFEST, id16(number), revision, payload)


def holding(*records: Record) -> State:
    """A state of these records that no event tells of."""
    return State.build(records, [], [], 0)


def payload_of(record: SnapshotRecord) -> pl.RecordPayload:
    return pl.decode_record_payload(record.kind, record.payload)
