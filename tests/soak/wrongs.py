"""What no client should do, and the code that the specification answers it with."""

from __future__ import annotations

import random
import time
from dataclasses import replace
from typing import Any

from cext.frame import encode_frame
from sidecar.base.ed25519 import SigningKey
from sidecar.coordinator.authority.proof import make_response
from sidecar.coordinator.wire import frames as fr
from sidecar.coordinator.wire.enums import Capability, CommandKind, EndReason, ErrorCode, FrameType
from sidecar.coordinator.wire.ids import (
    BindingId,
    EventCut,
    ObjectiveId,
    OperationId,
    SnapshotId,
    SubscriptionId,
)
from sidecar.coordinator.wire.payloads import EndBinding, UpdateObjective
from tests.e2e.peer import hello
from tests.soak.talk import Talk

E = ErrorCode
Image = bytes | fr.Frame
Wrong = tuple[str, Image, ErrorCode]
REQUESTS = (
    FrameType.COORD_COMMAND,
    FrameType.GET_OPERATION_RESULT,
    FrameType.OPEN_SNAPSHOT,
    FrameType.SNAPSHOT_NEXT,
    FrameType.SNAPSHOT_APPLIED,
    FrameType.SUBSCRIBE,
    FrameType.CREDIT,
    FrameType.OPEN_REPLAY,
    FrameType.REPLAY_NEXT,
    FrameType.REPLAY_APPLIED,
    FrameType.COORD_PING,
    FrameType.COORD_PONG,
)
"""Frames of a client whose body can be malformed in an active connection."""
TO_CLIENTS = (FrameType.ACK, FrameType.SNAPSHOT_BEGIN, FrameType.COORD_EVENT, FrameType.GAP, FrameType.COORD_HELLO_OK)
BAD_BODIES = (b"\x01", b"\x01\x04\x04\x00", b"\x01\x04\xff\x01", b"\x00\x04\x00", b"\x81\x00\x04\x00", b"\x01\x01\x00")
"""Too short, longer than the frame, id 0, a varint that is not the shortest, another wire type."""


def before_hello(rng: random.Random) -> tuple[Image, ErrorCode]:
    """Something instead of an acceptable COORD_HELLO."""
    choices: tuple[tuple[Image, ErrorCode], ...] = (
        (hello(protocol_minor=2), E.VERSION_INCOMPATIBLE),
        (hello(protocol_major=1), E.VERSION_INCOMPATIBLE),
        (hello(required_capabilities=0x4), E.CAPABILITY_REQUIRED),
        (hello(offered_capabilities=0x2, required_capabilities=0x2), E.CAPABILITY_REQUIRED),
        (hello(max_page_records=0), E.MALFORMED_MESSAGE),
        (hello(max_event_credit_bytes=10), E.MALFORMED_MESSAGE),
        (encode_frame(FrameType.COORD_HELLO, rng.choice(BAD_BODIES)), E.MALFORMED_MESSAGE),
        (fr.Ack(request_id=1), E.PROTOCOL_ERROR),
        (b"\x00\x00\x00\x05\x10\x01\x04\x04\x00", E.PROTOCOL_ERROR),
        (b"\x00\x00\x00\x01\x77", E.PROTOCOL_ERROR),
        (b"\x00\x00\x00\x00\x01", E.FRAME_TOO_LARGE),
        (b"\x00\x00\x40\x01\x01", E.FRAME_TOO_LARGE),
        (b"\xff\xff\xff\xff\x01", E.FRAME_TOO_LARGE),
    )
    return rng.choice(choices)


def instead_of_response(
    rng: random.Random, challenge: fr.WorkloadChallenge, key: SigningKey, stranger: SigningKey
) -> tuple[Image, ErrorCode]:
    """Something instead of an acceptable WORKLOAD_RESPONSE."""
    soon = int(time.time()) + 600
    good = make_response(challenge, key, scopes=1, requested_expiry=soon).encode()
    other = replace_nonce(challenge)
    choices: tuple[tuple[Image, ErrorCode], ...] = (
        (make_response(challenge, stranger, scopes=1, requested_expiry=soon), E.AUTHENTICATION_FAILED),
        (make_response(challenge, key, scopes=1, requested_expiry=soon - 1_200), E.AUTHENTICATION_FAILED),
        (make_response(other, key, scopes=1, requested_expiry=soon), E.AUTHENTICATION_FAILED),
        (good[:-1] + bytes([good[-1] ^ 1]), E.AUTHENTICATION_FAILED),
        (encode_frame(FrameType.WORKLOAD_RESPONSE, good[5:] + b"\x09\x04\x00"), E.MALFORMED_MESSAGE),
        (encode_frame(FrameType.WORKLOAD_RESPONSE, good[5:-1]), E.MALFORMED_MESSAGE),
        (fr.CoordPing(nonce=1), E.PROTOCOL_ERROR),
        (hello(), E.PROTOCOL_ERROR),
        (b"\x00\x00\x40\x01\x04", E.FRAME_TOO_LARGE),
    )
    return rng.choice(choices)


def replace_nonce(challenge: fr.WorkloadChallenge) -> fr.WorkloadChallenge:
    """The same challenge as if it had come on another connection."""
    names = [name for name in type(challenge).__annotations__ if hasattr(challenge, name)]
    values: dict[str, Any] = {name: getattr(challenge, name) for name in names}
    return fr.WorkloadChallenge(**{**values, "server_nonce": bytes(31) + b"\x01"})


def fatal(rng: random.Random, talk: Talk) -> tuple[str, bytes, frozenset[ErrorCode]]:
    """Something that ends an active connection: its name, image, and codes."""
    name, image, code = rng.choice([*_broken(rng, talk), *_unlawful(rng, talk), *_unfit(rng, talk)])
    return name, image if isinstance(image, bytes) else image.encode(), frozenset({code})


def _snapshot(talk: Talk, **changes: Any) -> fr.OpenSnapshot:
    values: dict[str, Any] = {"authority_guard": talk.guard, "selector": 0, "reserve_subscription": False}
    return fr.OpenSnapshot(**{**values, "request_id": next(talk.requests), **changes})


def _broken(rng: random.Random, talk: Talk) -> list[Wrong]:
    """What is no frame of a client in this state, or not whole."""
    zero = _snapshot(talk, request_id=1).encode().replace(b"\x01\x04\x04\0\0\0\x01", b"\x01\x04\x04\0\0\0\0", 1)
    return [
        ("unknown type", b"\x00\x00\x00\x01\x77", E.PROTOCOL_ERROR),
        ("frame of a server", encode_frame(rng.choice(TO_CLIENTS), b""), E.PROTOCOL_ERROR),
        ("second HELLO", hello(), E.PROTOCOL_ERROR),
        ("second RESPONSE", encode_frame(FrameType.WORKLOAD_RESPONSE, b""), E.PROTOCOL_ERROR),
        ("length 0", b"\x00\x00\x00\x00\x10", E.FRAME_TOO_LARGE),
        ("length above the cap", (talk.selected.frame + 1).to_bytes(4, "big") + b"\x10", E.FRAME_TOO_LARGE),
        ("bad body", encode_frame(rng.choice(REQUESTS), rng.choice(BAD_BODIES)), E.MALFORMED_MESSAGE),
        ("request 0", zero, E.MALFORMED_MESSAGE),
    ]


def _unlawful(rng: random.Random, talk: Talk) -> list[Wrong]:
    """Whole frames that nobody may send: another authority, a request id that is taken, credit for nothing."""
    changes: dict[str, Any] = rng.choice(
        (
            {"authority_epoch": 99},
            {"activation_sequence": 99},
            {"coordinator_id": bytes(15) + b"\x01"},
            {"fencing_token_sha256": bytes(32)},
        )
    )
    stale, ident = replace(talk.guard, **changes), rng.randbytes(16)
    lookup = fr.GetOperationResult(
        request_id=next(talk.requests), authority_guard=stale, operation_id=OperationId(ident)
    )
    twice = _snapshot(talk)
    # The first of the two is legal and may be answered.
    talk.expect(twice, {E.RESOURCE_EXHAUSTED})
    credit = fr.CreditFrame(subscription_id=SubscriptionId(ident), add_count=1, add_bytes=1)
    return [
        ("stale guard", _snapshot(talk, authority_guard=stale, reserve_subscription=True), E.STALE_AUTHORITY),
        ("stale lookup", lookup, E.STALE_AUTHORITY),
        ("request twice", twice.encode() + twice.encode(), E.MALFORMED_MESSAGE),
        ("credit for nothing", credit, E.PROTOCOL_ERROR),
    ]


def _unfit(rng: random.Random, talk: Talk) -> list[Wrong]:
    """Requests whose values do not fit each other or what was negotiated."""
    rooted: dict[str, Any] = {"request_id": next(talk.requests), "authority_guard": talk.guard}
    above: dict[str, Any] = {"initial_credit_count": talk.selected.credit_count + 1, "initial_credit_bytes": 0}
    ident = rng.randbytes(16)
    command: dict[str, Any] = {
        **rooted,
        "operation_id": OperationId(ident),
        "command_kind": int(CommandKind.UPDATE_OBJECTIVE),
    }
    found: list[Wrong] = [
        ("credit above", fr.Subscribe(**rooted, after_event_sequence=EventCut(0), **above), E.MALFORMED_MESSAGE),
        (
            "replaced without reserve",
            _snapshot(talk, replace_paused_subscription=SubscriptionId(ident)),
            E.MALFORMED_MESSAGE,
        ),
        ("bad payload", fr.CoordCommand(**command, payload=b"\x01\x04\x00"), E.MALFORMED_MESSAGE),
    ]
    if talk.selected.typed_payload < 10_000:
        document = bytes(talk.selected.typed_payload)
        big = UpdateObjective(objective_id=ObjectiveId(ident), schema=1, document=document).body()
        found.append(("typed payload above", fr.CoordCommand(**command, payload=big), E.FRAME_TOO_LARGE))
    return found


def scoped(rng: random.Random, talk: Talk) -> tuple[fr.Frame, frozenset[ErrorCode]]:
    """Something that is refused and leaves the connection as it was."""
    rooted: dict[str, Any] = {"request_id": next(talk.requests), "authority_guard": talk.guard}
    one: dict[str, Any] = {"request_id": rooted["request_id"]}
    credit: dict[str, Any] = {"initial_credit_count": 0, "initial_credit_bytes": 0}
    ident = rng.randbytes(16)
    replays = bool(talk.capabilities & Capability.EVENT_REPLAY)
    ending = EndBinding(binding_id=BindingId(ident), reason=EndReason.CANCELLED).body()
    update = UpdateObjective(objective_id=ObjectiveId(ident), schema=1, document=b"x").body()
    may_work = bool(talk.scopes & 0x2)
    choices: tuple[tuple[fr.Frame, ErrorCode], ...] = (
        (fr.SnapshotNext(**one, snapshot_id=SnapshotId(ident), cursor=b"x"), E.CURSOR_INVALID),
        (fr.SnapshotApplied(**one, snapshot_id=SnapshotId(ident), **credit), E.CURSOR_INVALID),
        (
            fr.OpenReplay(**rooted, subscription_id=SubscriptionId(ident), after_event_sequence=EventCut(0)),
            E.NOT_FOUND if replays else E.CAPABILITY_REQUIRED,
        ),
        (fr.Subscribe(**rooted, after_event_sequence=EventCut(1 << 40), **credit), E.CURSOR_INVALID),
        (
            fr.OpenSnapshot(
                **rooted, selector=0, reserve_subscription=True, replace_paused_subscription=SubscriptionId(ident)
            ),
            E.NOT_FOUND,
        ),
        (
            fr.CoordCommand(**rooted, operation_id=OperationId(ident), command_kind=99, payload=b""),
            E.CAPABILITY_REQUIRED,
        ),
        (
            fr.CoordCommand(
                **rooted,
                operation_id=OperationId(ident),
                command_kind=int(CommandKind.END_BINDING),
                payload=ending,
            ),
            E.CAPABILITY_REQUIRED,
        ),
        (
            fr.CoordCommand(
                **rooted,
                operation_id=OperationId(ident),
                command_kind=int(CommandKind.UPDATE_OBJECTIVE),
                payload=update,
            ),
            E.NOT_FOUND if may_work else E.SCOPE_DENIED,
        ),
    )
    frame, code = rng.choice(choices)
    return frame, frozenset({code})
