"""OperationResult and the payloads of SUCCEEDED (P7-19, P8-11)."""

from __future__ import annotations

from typing import Annotated, ClassVar, TypeAlias

from sidecar.coordinator.wire.codecs import (
    BYTES32,
    COUNTER,
    ID16,
    U16,
    Codec,
    decode_image,
    encode_image,
    leaf,
    member,
    optional,
    text,
)
from sidecar.coordinator.wire.enums import ErrorCode, IndeterminateReason, ObjectKind, OperationTag, ResultKind
from sidecar.coordinator.wire.errors import MAX_DIAGNOSTIC, refusal_of
from sidecar.coordinator.wire.ids import (
    AuthorityEpoch,
    BindingId,
    EffectAttemptId,
    EventSequence,
    ObjectId,
    RunId,
    WorkSessionId,
)
from sidecar.coordinator.wire.images import Record, record, union
from sidecar.coordinator.wire.limits import HARD

FINAL_TAGS = frozenset({OperationTag.SUCCEEDED, OperationTag.REJECTED, OperationTag.INDETERMINATE})
"""States that an operation never leaves except to its tombstone."""


@record
class ObjectRef(Record):
    """One durable object: family and id, 18 bytes (P7-13)."""

    kind: Annotated[ObjectKind, member(2, ObjectKind)]
    id: Annotated[ObjectId, ID16]


@record
class NoPayload(Record):
    """Result payload NONE: empty."""


@record
class Started(Record):
    """Result payload STARTED: the run and session, and the binding once it is open."""

    run_id: Annotated[RunId, ID16]
    work_session_id: Annotated[WorkSessionId, ID16]
    binding_id: Annotated[BindingId | None, optional(ID16)]


@record
class Document(Record):
    """Result payload DOCUMENT."""

    schema: Annotated[int, U16]
    content: Annotated[bytes, leaf(HARD.typed_payload)]


ResultPayload: TypeAlias = NoPayload | ObjectRef | Started | Document
RESULT_PAYLOADS: dict[ResultKind, type[ResultPayload]] = {
    ResultKind.NONE: NoPayload,
    ResultKind.OBJECT_REF: ObjectRef,
    ResultKind.STARTED: Started,
    ResultKind.DOCUMENT: Document,
}


@record
class Pending(Record):
    """Admitted, outcome open."""

    TAG: ClassVar[int | None] = OperationTag.PENDING
    admitted_epoch: Annotated[AuthorityEpoch, COUNTER]
    admitted_event_sequence: Annotated[EventSequence, COUNTER]


@record
class Succeeded(Record):
    """Done, with a payload of the shape that ``result_kind`` names."""

    TAG: ClassVar[int | None] = OperationTag.SUCCEEDED
    completed_event_sequence: Annotated[EventSequence, COUNTER]
    result_kind: Annotated[ResultKind, member(2, ResultKind)]
    payload: Annotated[bytes, leaf(HARD.typed_payload)]

    def content(self) -> ResultPayload:
        """The payload decoded by its kind; raises ``MalformedMessage``."""
        return RESULT_PAYLOADS[self.result_kind].decode(self.payload)

    def fault(self) -> str | None:
        return refusal_of(self.content)


@record
class Rejected(Record):
    """Admitted and then refused, for example by the target."""

    TAG: ClassVar[int | None] = OperationTag.REJECTED
    completed_event_sequence: Annotated[EventSequence, COUNTER]
    error_code: Annotated[ErrorCode, member(2, ErrorCode)]
    message: Annotated[str, text(MAX_DIAGNOSTIC)]


@record
class Indeterminate(Record):
    """The outcome can not be proved; nothing is ever redispatched (P8-36)."""

    TAG: ClassVar[int | None] = OperationTag.INDETERMINATE
    reason: Annotated[IndeterminateReason, member(1, IndeterminateReason)]
    effect_attempt_id: Annotated[EffectAttemptId | None, optional(ID16)]


@record
class Tombstoned(Record):
    """The body is gone after its retention; digest and final state remain (P8-41)."""

    TAG: ClassVar[int | None] = OperationTag.TOMBSTONED
    command_digest: Annotated[bytes, BYTES32]
    final_state: Annotated[OperationTag, member(1, OperationTag, only=FINAL_TAGS)]


@record
class Unknown(Record):
    """No such operation is known here; never a reason to start new work (P8-39)."""

    TAG: ClassVar[int | None] = OperationTag.UNKNOWN


OperationResult: TypeAlias = Pending | Succeeded | Rejected | Indeterminate | Tombstoned | Unknown
OPERATION_RESULT: Codec[OperationResult] = union(
    "OperationResult", Pending, Succeeded, Rejected, Indeterminate, Tombstoned, Unknown
)


def decode_operation(data: bytes | memoryview) -> OperationResult:
    """The OperationResult whose image is exactly ``data``; raises ``MalformedMessage``."""
    return decode_image(OPERATION_RESULT, data)


def encode_operation(result: OperationResult) -> bytes:
    """Image of a result, tag included; raises ``LocalProtocolError``."""
    return encode_image(OPERATION_RESULT, result)


def succeeded(completed: EventSequence, payload: ResultPayload) -> Succeeded:
    """A SUCCEEDED whose kind is the one of ``payload``."""
    kind = next(kind for kind, shape in RESULT_PAYLOADS.items() if isinstance(payload, shape))
    return Succeeded(completed, kind, payload.encode())
