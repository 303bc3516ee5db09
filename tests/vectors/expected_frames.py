"""The golden frames, built by the product from values; a test decodes them back to the same values."""

from __future__ import annotations

from collections.abc import Callable

from sidecar.coordinator.wire import ids
from sidecar.coordinator.wire.enums import (
    KNOWN_CAPABILITIES,
    Capability,
    ChannelBinding,
    CommandKind,
    ErrorCode,
    GapReason,
    ObjectKind,
    Scope,
)
from sidecar.coordinator.wire.events import event_frames, event_tail
from sidecar.coordinator.wire.fields import Frame
from sidecar.coordinator.wire.frames import (
    Ack,
    CoordCommand,
    CoordCommandResult,
    CoordErrorFrame,
    CoordEvent,
    CoordHello,
    CoordHelloOk,
    CoordPing,
    CoordPong,
    CreditFrame,
    Gap,
    GetOperationResult,
    OpenSnapshot,
    OperationResultFrame,
    Subscribe,
    WorkloadChallenge,
    WorkloadResponse,
)
from sidecar.coordinator.wire.ids import Fingerprint, KeyId
from sidecar.coordinator.wire.limits import (
    PROFILE,
    PROTOCOL,
    REFERENCE,
    RETENTION_FLOOR,
    SERVICE,
    largest_event,
)
from sidecar.coordinator.wire.records import Unknown, WorkloadGrant, succeeded
from tests.vectors import expected_images as images
from tests.vectors import expected_proofs as proofs
from tests.vectors import inputs as fix
from tests.vectors.expected_images import Expected

NONCE = 0x0102030405060708
LIMITS = {
    "max_frame_bytes": REFERENCE.frame,
    "max_page_bytes": REFERENCE.page_bytes,
    "max_page_records": REFERENCE.page_records,
    "max_typed_payload_bytes": REFERENCE.typed_payload,
    "max_event_credit_count": REFERENCE.credit_count,
    "max_event_credit_bytes": REFERENCE.credit_bytes,
}
VERSION = dict(zip(("protocol_major", "protocol_minor", "protocol_patch"), PROTOCOL, strict=True))


def hello() -> CoordHello:
    return CoordHello.build(
        {
            **VERSION,
            **LIMITS,
            "client_name": "golden",
            "offered_capabilities": KNOWN_CAPABILITIES,
            "required_capabilities": Capability.EVENT_REPLAY,
            "workload_offer": proofs.offer(),
        }
    )


def challenge() -> WorkloadChallenge:
    return WorkloadChallenge(
        profile=PROFILE,
        service=SERVICE,
        negotiated_major=PROTOCOL[0],
        negotiated_minor=PROTOCOL[1],
        client_nonce=fix.CLIENT_NONCE,
        server_nonce=fix.SERVER_NONCE,
        server_incarnation=fix.INCARNATION,
        channel_binding_kind=ChannelBinding.UDS_PEER,
        channel_binding=proofs.uds_binding(),
        authority_public_key=proofs.AUTHORITY_PUBLIC,
        authority_proof=proofs.authority_proof(ChannelBinding.UDS_PEER, proofs.uds_binding()),
    )


def response() -> WorkloadResponse:
    return WorkloadResponse(
        key_id=KeyId(proofs.KEY_ID),
        requested_scope_bytes=Scope(fix.SCOPES),
        requested_expiry=fix.REQUESTED_EXPIRY,
        workload_proof=proofs.workload_proof(),
    )


def hello_ok() -> CoordHelloOk:
    return CoordHelloOk.build(
        {
            **VERSION,
            **LIMITS,
            "negotiated_capabilities": KNOWN_CAPABILITIES,
            "coordinator_id": fix.COORDINATOR,
            "authority_epoch": fix.EPOCH,
            "incarnation_id": fix.INCARNATION,
            "workload_grant": WorkloadGrant(
                KeyId(proofs.KEY_ID), Fingerprint(proofs.FINGERPRINT), fix.GRANT_EXPIRY, Scope(fix.SCOPES)
            ),
            "operation_result_retention_secs": RETENTION_FLOOR,
            "activation_certificate": proofs.certificate(),
        }
    )


def command() -> CoordCommand:
    return CoordCommand(
        request_id=7,
        authority_guard=fix.guard(),
        operation_id=fix.OPERATION,
        command_kind=CommandKind.CREATE_OBJECTIVE,
        payload=images.CREATE.body(),
    )


def event() -> CoordEvent:
    source = images.EVENT_10
    return CoordEvent(
        subscription_id=fix.SUBSCRIPTION,
        delivery_sequence=ids.delivery_sequence(1),
        event_sequence=source.event_sequence,
        event_id=source.event_id,
        event_kind=source.event_kind,
        object=source.object,
        object_revision=source.object_revision,
        schema=source.schema,
        payload=source.payload,
    )


def _gap(delivery: int, event_cut: int, reason: GapReason, observed: int | None = None) -> Gap:
    return Gap(
        subscription_id=fix.SUBSCRIPTION,
        last_contiguous_delivery=ids.delivery_cut(delivery),
        last_contiguous_event=ids.event_cut(event_cut),
        observed_event=None if observed is None else ids.event_sequence(observed),
        reason=reason,
    )


RESULT = succeeded(ids.event_sequence(10), fix.ref(ObjectKind.OBJECTIVE, fix.OBJECTIVE))

GOLDEN: dict[str, tuple[tuple[str, ...], Callable[[], Frame]]] = {
    "COORD_PING nonce 0102030405060708": (("P7-07",), lambda: CoordPing(nonce=NONCE)),
    "COORD_PONG same nonce": (("P7-07",), lambda: CoordPong(nonce=NONCE)),
    "COORD_HELLO (reference offers, caps 1f/01)": (("P5-06", "P1-01"), hello),
    "WORKLOAD_CHALLENGE": (("W7-01", "W1-01", "W1-02", "W1-03"), challenge),
    "WORKLOAD_RESPONSE": (("W7-02", "W1-02", "P6-01"), response),
    "COORD_HELLO_OK": (("P5-07", "P1-01", "W7-05"), hello_ok),
    "ACK request 7": (("P7-06",), lambda: Ack(request_id=7)),
    "COORD_COMMAND (OP-A)": (("P8-01", "P4-10", "P4-14", "P8-05"), command),
    "COORD_COMMAND_RESULT request 7, SUCCEEDED at event 10, OBJECT_REF OBJECTIVE 22..": (
        ("P8-01", "P8-11", "P7-19"),
        lambda: CoordCommandResult(request_id=7, operation=RESULT),
    ),
    "OPERATION_RESULT request 8, UNKNOWN": (
        ("P8-02", "P8-11"),
        lambda: OperationResultFrame(request_id=8, operation=Unknown()),
    ),
    "GET_OPERATION_RESULT request 8": (
        ("P8-02", "P4-10", "P4-14"),
        lambda: GetOperationResult(request_id=8, authority_guard=fix.guard(), operation_id=fix.OPERATION),
    ),
    "OPEN_SNAPSHOT request 1, reserve, no replace": (
        ("P4-10", "P7-14"),
        lambda: OpenSnapshot(request_id=1, authority_guard=fix.guard(), selector=0, reserve_subscription=True),
    ),
    "SUBSCRIBE request 2, after 9, credit 16/65536": (
        ("P4-10", "P4-05"),
        lambda: Subscribe(
            request_id=2,
            authority_guard=fix.guard(),
            after_event_sequence=ids.event_cut(9),
            initial_credit_count=16,
            initial_credit_bytes=65536,
        ),
    ),
    "CREDIT 8/4096": (
        ("P7-11",),
        lambda: CreditFrame(subscription_id=fix.SUBSCRIPTION, add_count=8, add_bytes=4096),
    ),
    "GAP pre-first-event, RETENTION, no observed event": (
        ("P10-20", "P7-11", "P4-05"),
        lambda: _gap(0, 9, GapReason.RETENTION),
    ),
    "GAP after delivery 3/event 12, observed 13, QUEUE_OVERFLOW": (
        ("P10-20",),
        lambda: _gap(3, 12, GapReason.QUEUE_OVERFLOW, 13),
    ),
    "COORD_EVENT delivery 1": (("P7-21", "P7-11"), event),
    'COORD_ERROR SCOPE_DENIED request 7, message ""': (
        ("P13-01",),
        lambda: CoordErrorFrame(request_id=7, code=ErrorCode.SCOPE_DENIED, message=""),
    ),
    'COORD_ERROR uncorrelated PROTOCOL_ERROR, message ""': (
        ("P13-01", "E-12"),
        lambda: CoordErrorFrame(code=ErrorCode.PROTOCOL_ERROR, message=""),
    ),
}


def _largest(size: int) -> Callable[[], str]:
    return lambda: f"{largest_event(size)} (overhead {largest_event(size) - size})"


def frames() -> Expected:
    found: Expected = {}
    for name, (rows, build) in GOLDEN.items():
        found[name] = (("E-01", "P3-01", "P7-05", *rows), lambda build=build: build().encode().hex())  # type: ignore[misc]
    found["COORD_EVENT outer length debited (4+length)"] = (
        (),
        lambda: str(len(event_frames(fix.SUBSCRIPTION, ids.delivery_sequence(1), [event_tail(images.EVENT_10)])[0])),
    )
    for size in (1024, 131072, 262144):
        found[f"max COORD_EVENT bytes for typed payload {size}"] = (("P3-24",), _largest(size))
    sizes: dict[str, Callable[[], Frame]] = {
        "COORD_HELLO": hello,
        "CHALLENGE": challenge,
        "RESPONSE": response,
        "HELLO_OK": hello_ok,
    }
    for label, make in sizes.items():
        found[f"{label} frame bytes"] = (("P3-01",), lambda make=make: str(len(make().encode())))  # type: ignore[misc]
    return found
