"""Payloads of commands and of snapshot records (P7-16..20, P7-24, P7-26, P7-27): TLV bodies inside a leaf."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeAlias

from cext.tlv import Cursor
from sidecar.coordinator.wire.codecs import (
    BYTES32,
    ID16,
    U16,
    U32,
    U64,
    Codec,
    framed,
    leaf,
    member,
    text,
    uint,
)
from sidecar.coordinator.wire.enums import (
    AdminKind,
    BindingState,
    CommandKind,
    EndReason,
    ObjectiveState,
    ObjectKind,
    RunState,
    SignalKind,
    SignalState,
    WorkSessionState,
)
from sidecar.coordinator.wire.errors import MAX_DIAGNOSTIC, CapabilityRequired, refusal_of
from sidecar.coordinator.wire.fields import Body, Field, field
from sidecar.coordinator.wire.ids import (
    ArtifactId,
    BindingId,
    Fingerprint,
    IncarnationId,
    KeyId,
    ObjectiveId,
    PendingBindingId,
    RunId,
    SignalId,
    WorkSessionId,
)
from sidecar.coordinator.wire.images import nested
from sidecar.coordinator.wire.limits import HARD, MAX_GROUP_ID, RETENTION_FLOOR, SCHEMA
from sidecar.coordinator.wire.records import ADMIN_PAYLOADS, AdminPayload, GroupId, SnapshotRecord, TerminalBindingRef
from sidecar.coordinator.wire.results import OPERATION_RESULT, OperationResult

RETENTION_SECONDS: Codec[int] = uint(8, lowest=RETENTION_FLOOR, doc=f"u64 ≥ {RETENTION_FLOOR}")
"""A shorter retention of results is out of range (P5-10)."""
DOCUMENT: Codec[bytes] = leaf(HARD.typed_payload)
"""A document, manifest or outcome; bulk content belongs to an Artifact, not here (P3-52)."""


class CreateObjective(Body, title="CREATE_OBJECTIVE"):
    objective_id: Field[ObjectiveId] = field(1, ID16)
    schema: Field[int] = field(2, U16)
    document: Field[bytes] = field(3, DOCUMENT)


class UpdateObjective(Body, title="UPDATE_OBJECTIVE"):
    objective_id: Field[ObjectiveId] = field(1, ID16)
    schema: Field[int] = field(2, U16)
    document: Field[bytes] = field(3, DOCUMENT)


class StartRun(Body, title="START_RUN"):
    objective_id: Field[ObjectiveId] = field(1, ID16)
    run_id: Field[RunId] = field(2, ID16)
    work_session_id: Field[WorkSessionId] = field(3, ID16)
    executor_schema: Field[int] = field(4, U16)
    executor_document: Field[bytes] = field(5, DOCUMENT)
    pending_binding_id: Field[PendingBindingId] = field(6, ID16)
    owner_authority_fingerprint: Field[Fingerprint] = field(7, BYTES32)
    owner_incarnation: Field[IncarnationId] = field(8, ID16)
    terminal_group: Field[GroupId] = field(9, framed(nested(GroupId), cap=MAX_GROUP_ID))


class CancelRun(Body, title="CANCEL_RUN"):
    run_id: Field[RunId] = field(1, ID16)


class PauseRun(Body, title="PAUSE_RUN"):
    run_id: Field[RunId] = field(1, ID16)


class ResumeRun(Body, title="RESUME_RUN"):
    run_id: Field[RunId] = field(1, ID16)


class AckSignal(Body, title="ACK_SIGNAL"):
    signal_id: Field[SignalId] = field(1, ID16)
    note: Field[str | None] = field(2, text(MAX_DIAGNOSTIC), default=None)


class SuppressSignal(Body, title="SUPPRESS_SIGNAL"):
    signal_id: Field[SignalId] = field(1, ID16)
    note: Field[str | None] = field(2, text(MAX_DIAGNOSTIC), default=None)


class RegisterArtifactManifest(Body, title="REGISTER_ARTIFACT_MANIFEST"):
    artifact_id: Field[ArtifactId] = field(1, ID16)
    revision: Field[int] = field(2, U64)
    schema: Field[int] = field(3, U16)
    manifest: Field[bytes] = field(4, DOCUMENT)


class EndBinding(Body, title="END_BINDING"):
    binding_id: Field[BindingId] = field(1, ID16)
    reason: Field[EndReason] = field(2, member(1, EndReason))


class ChangeRetention(Body, title="CHANGE_RETENTION"):
    operation_result_secs: Field[int] = field(1, RETENTION_SECONDS)
    event_bytes: Field[int] = field(2, U64)
    artifact_bytes: Field[int] = field(3, U64)


CommandPayload: TypeAlias = (
    CreateObjective
    | UpdateObjective
    | StartRun
    | CancelRun
    | PauseRun
    | ResumeRun
    | AckSignal
    | SuppressSignal
    | RegisterArtifactManifest
    | EndBinding
    | ChangeRetention
)
COMMANDS: dict[int, type[CommandPayload]] = {
    CommandKind.CREATE_OBJECTIVE: CreateObjective,
    CommandKind.UPDATE_OBJECTIVE: UpdateObjective,
    CommandKind.START_RUN: StartRun,
    CommandKind.CANCEL_RUN: CancelRun,
    CommandKind.PAUSE_RUN: PauseRun,
    CommandKind.RESUME_RUN: ResumeRun,
    CommandKind.ACK_SIGNAL: AckSignal,
    CommandKind.SUPPRESS_SIGNAL: SuppressSignal,
    CommandKind.REGISTER_ARTIFACT_MANIFEST: RegisterArtifactManifest,
    CommandKind.END_BINDING: EndBinding,
    CommandKind.CHANGE_RETENTION: ChangeRetention,
}


def decode_command(kind: int, payload: bytes | memoryview) -> CommandPayload:
    """The payload of a command.

    Raises ``CapabilityRequired`` (scoped) for a kind or an objective schema that this version does not know: a newer
    one is by definition gated (P7-24..26). Raises ``MalformedMessage`` when the bytes are not a payload of the kind.
    """
    shape = COMMANDS.get(kind)
    if shape is None:
        raise CapabilityRequired(f"command kind {kind} is not known")
    command = shape.decode(payload)
    if isinstance(command, CreateObjective | UpdateObjective) and command.schema != SCHEMA:
        raise CapabilityRequired(f"document schema {command.schema} is not known")
    return command


class ObjectiveRecord(Body, title="OBJECTIVE"):
    document_schema: Field[int] = field(1, U16)
    document: Field[bytes] = field(2, DOCUMENT)
    state: Field[ObjectiveState] = field(3, member(1, ObjectiveState))


class RunRecord(Body, title="RUN"):
    objective_id: Field[ObjectiveId] = field(1, ID16)
    attempt: Field[int] = field(2, U32)
    state: Field[RunState] = field(3, member(1, RunState))
    outcome: Field[bytes | None] = field(4, DOCUMENT, default=None)


class WorkSessionRecord(Body, title="WORK_SESSION"):
    run_id: Field[RunId] = field(1, ID16)
    state: Field[WorkSessionState] = field(2, member(1, WorkSessionState))
    active_binding: Field[BindingId | None] = field(3, ID16, default=None)


class BindingRecord(Body, title="BINDING"):
    binding: Field[TerminalBindingRef] = field(1, nested(TerminalBindingRef))
    state: Field[BindingState] = field(2, member(1, BindingState))
    end_reason: Field[EndReason | None] = field(3, member(1, EndReason), default=None)


class ArtifactRecord(Body, title="ARTIFACT"):
    work_session_id: Field[WorkSessionId] = field(1, ID16)
    latest_revision: Field[int] = field(2, U64)


class ArtifactManifestRecord(Body, title="ARTIFACT_MANIFEST"):
    artifact_id: Field[ArtifactId] = field(1, ID16)
    revision: Field[int] = field(2, U64)
    schema: Field[int] = field(3, U16)
    manifest: Field[bytes] = field(4, DOCUMENT)


class SignalRecord(Body, title="SIGNAL"):
    work_session_id: Field[WorkSessionId] = field(1, ID16)
    kind: Field[SignalKind] = field(2, member(2, SignalKind))
    state: Field[SignalState] = field(3, member(1, SignalState))
    message: Field[str] = field(4, text(MAX_DIAGNOSTIC))


class OperationRecord(Body, title="OPERATION"):
    principal_key_id: Field[KeyId] = field(1, BYTES32)
    result: Field[OperationResult] = field(2, OPERATION_RESULT)


class EvidenceRecord(Body, title="EVIDENCE"):
    work_session_id: Field[WorkSessionId] = field(1, ID16)
    artifact_id: Field[ArtifactId] = field(2, ID16)
    seal_sha256: Field[bytes] = field(3, BYTES32)


class AdminRecord(Body, title="ADMIN"):
    admin_kind: Field[AdminKind] = field(1, member(2, AdminKind))
    payload: Field[bytes] = field(2, DOCUMENT)

    def content(self) -> AdminPayload:
        """The payload decoded by its kind; raises ``MalformedMessage``."""
        return ADMIN_PAYLOADS[self.admin_kind].decode(self.payload)

    def fault(self) -> str | None:
        return refusal_of(self.content)


RecordPayload: TypeAlias = (
    ObjectiveRecord
    | RunRecord
    | WorkSessionRecord
    | BindingRecord
    | ArtifactRecord
    | SignalRecord
    | OperationRecord
    | EvidenceRecord
    | AdminRecord
    | ArtifactManifestRecord
)
RECORD_PAYLOADS: dict[ObjectKind, type[RecordPayload]] = {
    ObjectKind.OBJECTIVE: ObjectiveRecord,
    ObjectKind.RUN: RunRecord,
    ObjectKind.WORK_SESSION: WorkSessionRecord,
    ObjectKind.BINDING: BindingRecord,
    ObjectKind.ARTIFACT: ArtifactRecord,
    ObjectKind.SIGNAL: SignalRecord,
    ObjectKind.OPERATION: OperationRecord,
    ObjectKind.EVIDENCE: EvidenceRecord,
    ObjectKind.ADMIN: AdminRecord,
    ObjectKind.ARTIFACT_MANIFEST: ArtifactManifestRecord,
}


def decode_record_payload(kind: ObjectKind, payload: bytes | memoryview) -> RecordPayload:
    """The payload of a snapshot record; raises ``MalformedMessage`` (P7-20, P7-27)."""
    return RECORD_PAYLOADS[kind].decode(payload)


def _complete(codec: Codec[SnapshotRecord]) -> Codec[SnapshotRecord]:
    def read(cursor: Cursor) -> SnapshotRecord:
        found = codec.read(cursor)
        decode_record_payload(found.kind, found.payload)
        return found

    return replace(codec, read=read)


COMPLETE_RECORD: Codec[SnapshotRecord] = _complete(nested(SnapshotRecord))
"""A SnapshotRecord whose payload is decoded too: what a client takes from pages and events."""
