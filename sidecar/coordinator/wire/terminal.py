"""Records about terminal resources: ids, bindings, effects and source facts (E-26..29, P8-20..23, P11-01..12).

No terminal bytes, cells, input, history or bootstrap can be written here: facts hold references, outcomes, counts and
digests only (P1-05, P11-11).
"""

from __future__ import annotations

import unicodedata
from typing import Annotated, ClassVar, TypeAlias

from sidecar.coordinator.wire.codecs import (
    BYTES32,
    COUNTER,
    I32,
    ID16,
    SCHEMA_1,
    U16,
    U32,
    U64,
    Codec,
    decode_image,
    encode_image,
    framed,
    leaf,
    member,
    optional,
    text,
)
from sidecar.coordinator.wire.enums import (
    Attention,
    EffectKind,
    EffectState,
    InputResult,
    ProcessSignal,
    ResourceKind,
    ResourceTag,
    SignalResult,
    SourceFactKind,
    SourceGapReason,
    TargetTag,
)
from sidecar.coordinator.wire.errors import RevisionConflict, refusal_of
from sidecar.coordinator.wire.ids import (
    BindingId,
    EffectAttemptId,
    Fingerprint,
    IncarnationId,
    OperationId,
    PendingBindingId,
    SourceSequence,
    WorkSessionId,
)
from sidecar.coordinator.wire.images import Record, nested, record, union
from sidecar.coordinator.wire.limits import HARD, MAX_GROUP_ID, MAX_HOST, MAX_RESOURCE_ID


def _host_fault(host: str) -> str | None:
    if not host:
        return "an empty host"
    if any(unicodedata.category(char) == "Cc" for char in host):
        return "a control character in a host"
    return None


@record
class LocalResource(Record):
    """A resource of the owner itself."""

    TAG: ClassVar[int | None] = ResourceTag.LOCAL
    id: Annotated[int, U32]


@record
class SatelliteResource(Record):
    """A resource of a peer behind a federation hub; only hubs act on it (E-29)."""

    TAG: ClassVar[int | None] = ResourceTag.SATELLITE
    host: Annotated[str, text(MAX_HOST, fault=_host_fault)]
    """1..255 bytes of UTF-8 without control characters."""
    id: Annotated[int, U32]


ResourceId: TypeAlias = LocalResource | SatelliteResource
RESOURCE_ID: Codec[ResourceId] = union("ResourceId", LocalResource, SatelliteResource)


@record
class GroupId(Record):
    """Opaque terminal group of an owner (E-27)."""

    value: Annotated[int, U32]


def decode_resource(data: bytes | memoryview) -> ResourceId:
    """The canonical ResourceId whose image is exactly ``data``; raises ``MalformedMessage`` (E-26, P11-12)."""
    return decode_image(RESOURCE_ID, data)


def check_terminal_kind(kind: int) -> None:
    """Refuse a resource that the owner does not hold as a Terminal (E-28, P11-13).

    ``kind`` is the owner's open u8 kind; it is never in the ResourceId image. Raises ``RevisionConflict``.
    """
    if kind != ResourceKind.TERMINAL:
        raise RevisionConflict("the resource is not a Terminal")


def check_local(resource: ResourceId) -> None:
    """Refuse a Satellite id at an owner that is not a hub (E-29); raises ``RevisionConflict``."""
    if not isinstance(resource, LocalResource):
        raise RevisionConflict("this owner is not a hub: only Local resources exist here")


@record
class TerminalBindingRef(Record):
    """Immutable link of a work session to one live resource (P11-01)."""

    binding_id: Annotated[BindingId, ID16]
    work_session_id: Annotated[WorkSessionId, ID16]
    owner_authority_fingerprint: Annotated[Fingerprint, BYTES32]
    owner_incarnation: Annotated[IncarnationId, ID16]
    resource: Annotated[ResourceId, framed(RESOURCE_ID, cap=MAX_RESOURCE_ID)]


@record
class TerminalSourceRef(Record):
    """Where a source fact comes from (P11-02)."""

    binding_id: Annotated[BindingId, ID16]
    owner_authority_fingerprint: Annotated[Fingerprint, BYTES32]
    owner_incarnation: Annotated[IncarnationId, ID16]
    source_sequence: Annotated[SourceSequence, COUNTER]


@record
class Opened(Record):
    """OPENED: nothing more to say (P11-05)."""


@record
class Closed(Record):
    """CLOSED: how the process ended, if the owner knows (P11-06)."""

    exit_status: Annotated[int | None, optional(I32)]


@record
class InputOutcome(Record):
    """INPUT_RESULT (P11-07)."""

    effect_attempt_id: Annotated[EffectAttemptId, ID16]
    result: Annotated[InputResult, member(1, InputResult)]


@record
class SignalOutcome(Record):
    """SIGNAL_RESULT (P11-08)."""

    effect_attempt_id: Annotated[EffectAttemptId, ID16]
    result: Annotated[SignalResult, member(1, SignalResult)]


@record
class OutputRange(Record):
    """OUTPUT_RANGE: order, count and digest of output, never the output (P11-09, P11-11)."""

    first_owner_seq: Annotated[int, U64]
    last_owner_seq: Annotated[int, U64]
    byte_count: Annotated[int, U64]
    content_sha256: Annotated[bytes, BYTES32]


@record
class AttentionRaised(Record):
    """ATTENTION (P11-10)."""

    attention: Annotated[Attention, member(2, Attention)]


FactPayload: TypeAlias = Opened | Closed | InputOutcome | SignalOutcome | OutputRange | AttentionRaised
FACT_PAYLOADS: dict[SourceFactKind, type[FactPayload]] = {
    SourceFactKind.OPENED: Opened,
    SourceFactKind.CLOSED: Closed,
    SourceFactKind.INPUT_RESULT: InputOutcome,
    SourceFactKind.SIGNAL_RESULT: SignalOutcome,
    SourceFactKind.OUTPUT_RANGE: OutputRange,
    SourceFactKind.ATTENTION: AttentionRaised,
}


@record
class TerminalSourceFact(Record):
    """One fact that a terminal owner reports on an active binding (P11-03)."""

    source: Annotated[TerminalSourceRef, nested(TerminalSourceRef)]
    kind: Annotated[SourceFactKind, member(2, SourceFactKind)]
    schema: Annotated[int, SCHEMA_1]
    payload: Annotated[bytes, leaf(HARD.typed_payload)]

    def content(self) -> FactPayload:
        """The payload decoded by its kind; raises ``MalformedMessage``."""
        return FACT_PAYLOADS[self.kind].decode(self.payload)

    def fault(self) -> str | None:
        return refusal_of(self.content)


@record
class SourceGap(Record):
    """Payload of a SOURCE_GAP event (P7-23)."""

    binding_id: Annotated[BindingId, ID16]
    expected_source: Annotated[SourceSequence, COUNTER]
    observed_source: Annotated[SourceSequence, COUNTER]
    reason: Annotated[SourceGapReason, member(1, SourceGapReason)]


@record
class PendingSpawn(Record):
    """Target of SPAWN: an owner's group and the id that the binding will get (P8-22)."""

    TAG: ClassVar[int | None] = TargetTag.PENDING_SPAWN
    pending_binding_id: Annotated[PendingBindingId, ID16]
    owner_authority_fingerprint: Annotated[Fingerprint, BYTES32]
    owner_incarnation: Annotated[IncarnationId, ID16]
    group: Annotated[GroupId, framed(nested(GroupId), cap=MAX_GROUP_ID)]


@record
class ActiveBinding(Record):
    """Target of KILL and PROCESS_SIGNAL (P8-22)."""

    TAG: ClassVar[int | None] = TargetTag.ACTIVE_BINDING
    binding: Annotated[TerminalBindingRef, nested(TerminalBindingRef)]


EffectTarget: TypeAlias = PendingSpawn | ActiveBinding
EFFECT_TARGET: Codec[EffectTarget] = union("EffectTarget", PendingSpawn, ActiveBinding)


@record
class SpawnPayload(Record):
    """What SPAWN starts (P8-23)."""

    work_session_id: Annotated[WorkSessionId, ID16]
    executor_schema: Annotated[int, U16]
    executor_document: Annotated[bytes, leaf(HARD.typed_payload)]


@record
class KillPayload(Record):
    """KILL carries nothing (P8-23)."""


@record
class ProcessSignalPayload(Record):
    """Which signal PROCESS_SIGNAL sends (P8-23)."""

    signal: Annotated[ProcessSignal, member(1, ProcessSignal)]


EffectPayload: TypeAlias = SpawnPayload | KillPayload | ProcessSignalPayload
EFFECT_PAYLOADS: dict[EffectKind, type[EffectPayload]] = {
    EffectKind.SPAWN: SpawnPayload,
    EffectKind.KILL: KillPayload,
    EffectKind.PROCESS_SIGNAL: ProcessSignalPayload,
}
EFFECT_TARGETS: dict[EffectKind, type[EffectTarget]] = {
    EffectKind.SPAWN: PendingSpawn,
    EffectKind.KILL: ActiveBinding,
    EffectKind.PROCESS_SIGNAL: ActiveBinding,
}
"""The one target shape that each kind needs (P8-26)."""


@record
class EffectAttempt(Record):
    """Durable outbox row of a delegated terminal effect (P8-20)."""

    effect_attempt_id: Annotated[EffectAttemptId, ID16]
    operation_id: Annotated[OperationId, ID16]
    kind: Annotated[EffectKind, member(1, EffectKind)]
    target: Annotated[EffectTarget, EFFECT_TARGET]
    effect_digest: Annotated[bytes, BYTES32]
    payload: Annotated[bytes, leaf(SpawnPayload.CODEC.hi)]
    state: Annotated[EffectState, member(1, EffectState)]

    def content(self) -> EffectPayload:
        """The payload decoded by its kind; raises ``MalformedMessage``."""
        return EFFECT_PAYLOADS[self.kind].decode(self.payload)

    def fault(self) -> str | None:
        if not isinstance(self.target, EFFECT_TARGETS[self.kind]):
            return f"{self.kind.name} does not take this target"
        return refusal_of(self.content)


def encode_target(target: EffectTarget) -> bytes:
    """Image of a target, as it enters the effect digest (P8-27)."""
    return encode_image(EFFECT_TARGET, target)
