"""Every frame of the protocol (F-01..F-c0, P7-05..11) as one class; ids and images are those of the schemas."""

from __future__ import annotations

from sidecar.coordinator.wire.codecs import (
    BYTES32,
    BYTES64,
    COUNTER,
    CUT,
    FLAG,
    ID16,
    NONCE,
    REQUEST_ID,
    SCHEMA_1,
    SECONDS,
    U16,
    U32,
    U64,
    Codec,
    exactly,
    leaf,
    listing,
    member,
    text,
    uint,
)
from sidecar.coordinator.wire.enums import ChannelBinding, ErrorCode, EventKind, FrameType, GapReason, Scope
from sidecar.coordinator.wire.errors import (
    MAX_DIAGNOSTIC,
    FrameTooLargeError,
    MalformedMessage,
    ProtocolError,
    ProtocolViolation,
)
from sidecar.coordinator.wire.events import COMPLETE_EVENT, EventPayload, event_content
from sidecar.coordinator.wire.fields import FRAMES as FRAMES
from sidecar.coordinator.wire.fields import Field, field
from sidecar.coordinator.wire.fields import Frame as Frame
from sidecar.coordinator.wire.ids import (
    AuthorityEpoch,
    CoordinatorId,
    DeliveryCut,
    DeliverySequence,
    EventCut,
    EventId,
    EventSequence,
    IncarnationId,
    KeyId,
    ObjectRevision,
    OperationId,
    ReplayId,
    SnapshotId,
    SubscriptionId,
)
from sidecar.coordinator.wire.images import nested
from sidecar.coordinator.wire.limits import (
    HARD,
    MAX_CURSOR,
    MAX_NAME,
    PROFILE,
    SERVICE,
    WHOLE_AUTHORITY_SELECTOR,
    Limits,
)
from sidecar.coordinator.wire.payloads import COMPLETE_RECORD, RETENTION_SECONDS
from sidecar.coordinator.wire.records import (
    AUTHORITY_GUARD,
    OPERATION_RESULT,
    PRECONDITIONS,
    SCOPES,
    ActivationCertificate,
    AuthorityGuard,
    ObjectRef,
    OperationResult,
    Precondition,
    ReplayEvent,
    SnapshotRecord,
    WorkloadGrant,
    WorkloadOffer,
)
from sidecar.coordinator.wire.table import FRAME_TABLE as FRAME_TABLE
from sidecar.coordinator.wire.table import caps_for as caps_for

LENGTH_BYTES = 4
"""Width of ``length``, which counts type and body (P3-01)."""

CURSOR: Codec[bytes] = leaf(MAX_CURSOR)
"""Opaque page cursor (P3-30)."""
TYPED_PAYLOAD: Codec[bytes] = leaf(HARD.typed_payload)
SELECTOR: Codec[int] = uint(1, highest=WHOLE_AUTHORITY_SELECTOR, doc=f"u8 = {WHOLE_AUTHORITY_SELECTOR}")
"""WholeAuthoritySelector: the only one there is (P7-14)."""


class CoordHello(Frame, type=FrameType.COORD_HELLO):
    """First frame of a client: version, name, capabilities, limits and workload offer. See ``hello.decode_hello``."""

    protocol_major: Field[int] = field(1, U16)
    protocol_minor: Field[int] = field(2, U16)
    protocol_patch: Field[int] = field(3, U16)
    client_name: Field[str] = field(4, text(MAX_NAME))
    offered_capabilities: Field[int] = field(5, U64)
    required_capabilities: Field[int] = field(6, U64)
    max_frame_bytes: Field[int] = field(7, U32)
    max_page_bytes: Field[int] = field(8, U32)
    max_page_records: Field[int] = field(9, U16)
    max_typed_payload_bytes: Field[int] = field(10, U32)
    max_event_credit_count: Field[int] = field(11, U32)
    max_event_credit_bytes: Field[int] = field(12, U32)
    workload_offer: Field[WorkloadOffer] = field(13, nested(WorkloadOffer))

    def limits(self) -> Limits:
        """The six offered limits, not yet checked: that is ``limits.select``."""
        return _limits(self)


class WorkloadResponse(Frame, type=FrameType.WORKLOAD_RESPONSE, strict=True):
    """The client's proof (W7-02). Strict: exactly these fields, once, ascending (E-25)."""

    key_id: Field[KeyId] = field(1, BYTES32)
    requested_scope_bytes: Field[Scope] = field(2, SCOPES)
    requested_expiry: Field[int] = field(3, SECONDS)
    workload_proof: Field[bytes] = field(4, BYTES64)


class CoordCommand(Frame, type=FrameType.COORD_COMMAND):
    """An idempotent command (P8-01). ``payload`` is decoded by ``payloads.decode_command``; the kind is a plain number
    here because an unknown one is answered scoped, not refused as malformed."""

    request_id: Field[int] = field(1, REQUEST_ID)
    authority_guard: Field[AuthorityGuard] = field(2, AUTHORITY_GUARD)
    operation_id: Field[OperationId] = field(3, ID16)
    command_kind: Field[int] = field(4, U16)
    payload: Field[bytes] = field(5, TYPED_PAYLOAD)
    preconditions: Field[tuple[Precondition, ...]] = field(6, PRECONDITIONS, default=())


class GetOperationResult(Frame, type=FrameType.GET_OPERATION_RESULT):
    """Look up what became of an operation (P8-02)."""

    request_id: Field[int] = field(1, REQUEST_ID)
    authority_guard: Field[AuthorityGuard] = field(2, AUTHORITY_GUARD)
    operation_id: Field[OperationId] = field(3, ID16)


class OpenSnapshot(Frame, type=FrameType.OPEN_SNAPSHOT):
    """Take an immutable cut of everything visible (P9-01)."""

    request_id: Field[int] = field(1, REQUEST_ID)
    authority_guard: Field[AuthorityGuard] = field(2, AUTHORITY_GUARD)
    selector: Field[int] = field(3, SELECTOR)
    reserve_subscription: Field[bool] = field(4, FLAG)
    replace_paused_subscription: Field[SubscriptionId | None] = field(5, ID16, default=None)


class SnapshotNext(Frame, type=FrameType.SNAPSHOT_NEXT):
    """Ask for the page at ``cursor``."""

    request_id: Field[int] = field(1, REQUEST_ID)
    snapshot_id: Field[SnapshotId] = field(2, ID16)
    cursor: Field[bytes] = field(3, CURSOR)


class SnapshotApplied(Frame, type=FrameType.SNAPSHOT_APPLIED):
    """The snapshot is verified; a reserved subscription gets its only initial credit here (P9-23)."""

    request_id: Field[int] = field(1, REQUEST_ID)
    snapshot_id: Field[SnapshotId] = field(2, ID16)
    subscription_id: Field[SubscriptionId | None] = field(3, ID16, default=None)
    initial_credit_count: Field[int] = field(4, U32)
    initial_credit_bytes: Field[int] = field(5, U32)


class Subscribe(Frame, type=FrameType.SUBSCRIBE):
    """Follow events after a cut (P10-02)."""

    request_id: Field[int] = field(1, REQUEST_ID)
    authority_guard: Field[AuthorityGuard] = field(2, AUTHORITY_GUARD)
    after_event_sequence: Field[EventCut] = field(3, CUT)
    initial_credit_count: Field[int] = field(4, U32)
    initial_credit_bytes: Field[int] = field(5, U32)


class CreditFrame(Frame, type=FrameType.CREDIT):
    """Allow more events; no acknowledgement of anything (P10-10)."""

    subscription_id: Field[SubscriptionId] = field(1, ID16)
    add_count: Field[int] = field(2, U32)
    add_bytes: Field[int] = field(3, U32)


class OpenReplay(Frame, type=FrameType.OPEN_REPLAY):
    """Heal a paused subscription from the last contiguous event on (P10-22..25)."""

    request_id: Field[int] = field(1, REQUEST_ID)
    authority_guard: Field[AuthorityGuard] = field(2, AUTHORITY_GUARD)
    subscription_id: Field[SubscriptionId] = field(3, ID16)
    after_event_sequence: Field[EventCut] = field(4, CUT)


class ReplayNext(Frame, type=FrameType.REPLAY_NEXT):
    """Ask for the page at ``cursor``."""

    request_id: Field[int] = field(1, REQUEST_ID)
    replay_id: Field[ReplayId] = field(2, ID16)
    cursor: Field[bytes] = field(3, CURSOR)


class ReplayApplied(Frame, type=FrameType.REPLAY_APPLIED):
    """The replay is verified; gives the resumed credit (P10-33)."""

    request_id: Field[int] = field(1, REQUEST_ID)
    replay_id: Field[ReplayId] = field(2, ID16)
    subscription_id: Field[SubscriptionId] = field(3, ID16)
    initial_credit_count: Field[int] = field(4, U32)
    initial_credit_bytes: Field[int] = field(5, U32)


class CoordPing(Frame, type=FrameType.COORD_PING):
    """Liveness, from either side (P7-07)."""

    nonce: Field[int] = field(1, U64)


class CoordPong(Frame, type=FrameType.COORD_PONG):
    """Answer to a ping with its nonce (P7-07)."""

    nonce: Field[int] = field(1, U64)


class CoordHelloOk(Frame, type=FrameType.COORD_HELLO_OK):
    """The connection is active: selected limits, grant and activation certificate (P5-07)."""

    protocol_major: Field[int] = field(1, U16)
    protocol_minor: Field[int] = field(2, U16)
    protocol_patch: Field[int] = field(3, U16)
    negotiated_capabilities: Field[int] = field(4, U64)
    coordinator_id: Field[CoordinatorId] = field(5, ID16)
    authority_epoch: Field[AuthorityEpoch] = field(6, COUNTER)
    incarnation_id: Field[IncarnationId] = field(7, ID16)
    max_frame_bytes: Field[int] = field(8, U32)
    max_page_bytes: Field[int] = field(9, U32)
    max_page_records: Field[int] = field(10, U16)
    max_typed_payload_bytes: Field[int] = field(11, U32)
    max_event_credit_count: Field[int] = field(12, U32)
    max_event_credit_bytes: Field[int] = field(13, U32)
    workload_grant: Field[WorkloadGrant] = field(14, nested(WorkloadGrant))
    operation_result_retention_secs: Field[int] = field(15, RETENTION_SECONDS)
    activation_certificate: Field[ActivationCertificate] = field(16, nested(ActivationCertificate))

    def limits(self) -> Limits:
        """The six selected limits."""
        return _limits(self)


class Ack(Frame, type=FrameType.ACK):
    """A SNAPSHOT_APPLIED or REPLAY_APPLIED took effect (P7-06)."""

    request_id: Field[int] = field(1, REQUEST_ID)


class AuthorityRenewed(Frame, type=FrameType.COORD_AUTHORITY_RENEWED):
    """The witness renewed the certificate (P7-08, P12-15)."""

    activation_certificate: Field[ActivationCertificate] = field(1, nested(ActivationCertificate))


class WorkloadChallenge(Frame, type=FrameType.WORKLOAD_CHALLENGE, strict=True):
    """The server's proof and its binding of the channel (W7-01). Strict (E-25)."""

    profile: Field[bytes] = field(1, exactly(PROFILE))
    service: Field[bytes] = field(2, exactly(SERVICE))
    negotiated_major: Field[int] = field(3, U16)
    negotiated_minor: Field[int] = field(4, U16)
    client_nonce: Field[bytes] = field(5, NONCE)
    server_nonce: Field[bytes] = field(6, NONCE)
    server_incarnation: Field[IncarnationId] = field(7, ID16)
    channel_binding_kind: Field[ChannelBinding] = field(8, member(1, ChannelBinding))
    channel_binding: Field[bytes] = field(9, BYTES32)
    authority_public_key: Field[bytes] = field(10, BYTES32)
    authority_proof: Field[bytes] = field(11, BYTES64)


class CoordCommandResult(Frame, type=FrameType.COORD_COMMAND_RESULT):
    """Terminal reply of COORD_COMMAND."""

    request_id: Field[int] = field(1, REQUEST_ID)
    operation: Field[OperationResult] = field(2, OPERATION_RESULT)


class OperationResultFrame(Frame, type=FrameType.OPERATION_RESULT):
    """Terminal reply of GET_OPERATION_RESULT."""

    request_id: Field[int] = field(1, REQUEST_ID)
    operation: Field[OperationResult] = field(2, OPERATION_RESULT)


class SnapshotBegin(Frame, type=FrameType.SNAPSHOT_BEGIN):
    """The cut stands. Without ``first_cursor`` it is empty and SNAPSHOT_END follows (P9-17)."""

    request_id: Field[int] = field(1, REQUEST_ID)
    snapshot_id: Field[SnapshotId] = field(2, ID16)
    authority_guard: Field[AuthorityGuard] = field(3, AUTHORITY_GUARD)
    base_event_sequence: Field[EventCut] = field(4, CUT)
    first_cursor: Field[bytes | None] = field(5, CURSOR, default=None)
    subscription_id: Field[SubscriptionId | None] = field(6, ID16, default=None)
    lease_expires_at: Field[int] = field(7, SECONDS)


class SnapshotPage(Frame, type=FrameType.SNAPSHOT_PAGE):
    """One page of records; without ``next_cursor`` the last one (P9-18, P9-19)."""

    request_id: Field[int] = field(1, REQUEST_ID)
    snapshot_id: Field[SnapshotId] = field(2, ID16)
    cursor: Field[bytes] = field(3, CURSOR)
    page_index: Field[int] = field(4, U32)
    records: Field[tuple[SnapshotRecord, ...]] = field(5, listing(COMPLETE_RECORD, cap=HARD.page_records))
    next_cursor: Field[bytes | None] = field(6, CURSOR, default=None)


class SnapshotEnd(Frame, type=FrameType.SNAPSHOT_END):
    """Totals and digest of the whole snapshot (P9-14, P9-21)."""

    request_id: Field[int] = field(1, REQUEST_ID)
    snapshot_id: Field[SnapshotId] = field(2, ID16)
    page_count: Field[int] = field(3, U32)
    record_count: Field[int] = field(4, U64)
    canonical_sha256: Field[bytes] = field(5, BYTES32)


class Subscribed(Frame, type=FrameType.SUBSCRIBED):
    """A direct subscription is live (P10-03)."""

    request_id: Field[int] = field(1, REQUEST_ID)
    subscription_id: Field[SubscriptionId] = field(2, ID16)
    next_delivery_sequence: Field[DeliverySequence] = field(3, COUNTER)


class ReplayBegin(Frame, type=FrameType.REPLAY_BEGIN):
    """The replay is fixed up to ``replay_cut``; ``first_event`` is there when it is not empty (P10-27)."""

    request_id: Field[int] = field(1, REQUEST_ID)
    replay_id: Field[ReplayId] = field(2, ID16)
    subscription_id: Field[SubscriptionId] = field(3, ID16)
    first_event: Field[EventSequence | None] = field(4, COUNTER, default=None)
    replay_cut: Field[EventCut] = field(5, CUT)
    first_cursor: Field[bytes | None] = field(6, CURSOR, default=None)
    lease_expires_at: Field[int] = field(7, SECONDS)


class ReplayPage(Frame, type=FrameType.REPLAY_PAGE):
    """One page of events; without ``next_cursor`` the last one."""

    request_id: Field[int] = field(1, REQUEST_ID)
    replay_id: Field[ReplayId] = field(2, ID16)
    cursor: Field[bytes] = field(3, CURSOR)
    page_index: Field[int] = field(4, U32)
    events: Field[tuple[ReplayEvent, ...]] = field(5, listing(COMPLETE_EVENT, cap=HARD.page_records))
    next_cursor: Field[bytes | None] = field(6, CURSOR, default=None)


class ReplayEnd(Frame, type=FrameType.REPLAY_END):
    """Totals and digest of the whole replay (P10-30)."""

    request_id: Field[int] = field(1, REQUEST_ID)
    replay_id: Field[ReplayId] = field(2, ID16)
    page_count: Field[int] = field(3, U32)
    event_count: Field[int] = field(4, U64)
    canonical_sha256: Field[bytes] = field(5, BYTES32)


class CoordEvent(Frame, type=FrameType.COORD_EVENT):
    """One event of one subscription. Senders use ``events.event_frames``, which shares the bytes between receivers."""

    subscription_id: Field[SubscriptionId] = field(1, ID16)
    delivery_sequence: Field[DeliverySequence] = field(2, COUNTER)
    event_sequence: Field[EventSequence] = field(3, COUNTER)
    event_id: Field[EventId] = field(4, ID16)
    event_kind: Field[EventKind] = field(5, member(2, EventKind))
    object: Field[ObjectRef] = field(6, nested(ObjectRef))
    object_revision: Field[ObjectRevision] = field(7, COUNTER)
    schema: Field[int] = field(8, SCHEMA_1)
    payload: Field[bytes] = field(9, TYPED_PAYLOAD)

    @property
    def content(self) -> EventPayload:
        """What the payload holds; it was decoded with the frame."""
        content: EventPayload = self.__dict__["_content"]
        return content

    def fault(self) -> str | None:
        try:
            content = event_content(self.event_kind, self.object, self.object_revision, self.payload)
        except ProtocolError as error:
            return error.message
        self.__dict__["_content"] = content
        return None


class Gap(Frame, type=FrameType.GAP):
    """A subscription lost continuity and is paused (P10-20)."""

    subscription_id: Field[SubscriptionId] = field(1, ID16)
    last_contiguous_delivery: Field[DeliveryCut] = field(2, CUT)
    last_contiguous_event: Field[EventCut] = field(3, CUT)
    observed_event: Field[EventSequence | None] = field(4, COUNTER, default=None)
    reason: Field[GapReason] = field(5, member(1, GapReason))


class CoordErrorFrame(Frame, type=FrameType.COORD_ERROR):
    """A refusal, of one request when it names it (P13-01)."""

    request_id: Field[int | None] = field(1, REQUEST_ID, default=None)
    code: Field[ErrorCode] = field(2, member(2, ErrorCode))
    message: Field[str] = field(3, text(MAX_DIAGNOSTIC))

    @classmethod
    def of(cls, error: ProtocolError) -> CoordErrorFrame:
        """The frame that tells the peer of ``error``."""
        return cls(request_id=error.request_id, code=error.code, message=error.message)


def decode_frame(frame_type: int, data: bytes | bytearray | memoryview, selected: Limits | None = None) -> Frame:
    """The frame of a received type and body.

    With ``selected`` also holds the negotiated caps that the length stage can not see: content of a typed payload
    (``FrameTooLargeError``, P3-09) and records of a page (``MalformedMessage``, P3-28). Raises ``ProtocolViolation``
    for an unknown type (P7-02) and ``MalformedMessage`` for everything that is not an image of the type.
    """
    shape = FRAMES.get(frame_type)
    if shape is None:
        raise ProtocolViolation(f"frame type 0x{frame_type:02x} is not known")
    frame = shape.decode(data)
    if selected is not None:
        _check_selected(frame, selected)
    return frame


def decode_message(message: bytes, selected: Limits | None = None) -> Frame:
    """The frame that fills ``message`` exactly: for transports that keep message boundaries (P3-11).

    Raises ``FrameTooLargeError`` for a length outside 1..1 MiB and ``MalformedMessage`` when it is not the real one.
    """
    length = int.from_bytes(message[:LENGTH_BYTES], "big")
    if not 1 <= length <= HARD.frame:
        raise FrameTooLargeError(f"a frame of length {length}")
    if len(message) != LENGTH_BYTES + length:
        raise MalformedMessage("declared and real length differ")
    return decode_frame(message[LENGTH_BYTES], memoryview(message)[LENGTH_BYTES + 1 :], selected)


def _check_selected(frame: Frame, selected: Limits) -> None:
    bounded = frame.typed_payload()
    if bounded is not None:
        if len(frame.fields.leaf_view(bounded.id)) > selected.typed_payload:
            detail = f"{frame.TITLE}: payload is above the selected {selected.typed_payload} bytes"
            raise FrameTooLargeError(detail, request_id=getattr(frame, "request_id", None))
    elif isinstance(frame, SnapshotPage | ReplayPage):
        count = len(frame.records if isinstance(frame, SnapshotPage) else frame.events)
        if count > selected.page_records:
            raise MalformedMessage(f"{frame.TITLE}: {count} records, at most {selected.page_records} were selected")


def _limits(frame: CoordHello | CoordHelloOk) -> Limits:
    return Limits(
        frame.max_frame_bytes,
        frame.max_page_bytes,
        frame.max_page_records,
        frame.max_typed_payload_bytes,
        frame.max_event_credit_count,
        frame.max_event_credit_bytes,
    )
