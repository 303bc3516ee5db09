"""The frame catalogue: envelope, directions, states, caps and fields (rows P3-01 to P3-13, P7-01 to P7-14)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Flag, IntEnum, auto
from typing import Any

from tests.interop.phux import enums as e
from tests.interop.phux import records as r
from tests.interop.phux.tlv import (
    BOOL,
    BYTES32,
    BYTES64,
    COUNTER,
    CUT,
    IDENT,
    REQUEST_ID,
    U16,
    U32,
    U64,
    Body,
    Field,
    Malformed,
    closed,
    leaf,
    list_of,
    text,
)


class Type(IntEnum):
    COORD_HELLO = 0x01
    WORKLOAD_RESPONSE = 0x04
    COORD_COMMAND = 0x10
    GET_OPERATION_RESULT = 0x11
    OPEN_SNAPSHOT = 0x20
    SNAPSHOT_NEXT = 0x21
    SNAPSHOT_APPLIED = 0x22
    SUBSCRIBE = 0x23
    CREDIT = 0x24
    OPEN_REPLAY = 0x25
    REPLAY_NEXT = 0x26
    REPLAY_APPLIED = 0x27
    COORD_PING = 0x7F
    COORD_HELLO_OK = 0x80
    ACK = 0x82
    COORD_AUTHORITY_RENEWED = 0x83
    WORKLOAD_CHALLENGE = 0x84
    COORD_COMMAND_RESULT = 0x90
    OPERATION_RESULT = 0x91
    SNAPSHOT_BEGIN = 0xA0
    SNAPSHOT_PAGE = 0xA1
    SNAPSHOT_END = 0xA2
    SUBSCRIBED = 0xA3
    REPLAY_BEGIN = 0xA4
    REPLAY_PAGE = 0xA5
    REPLAY_END = 0xA6
    COORD_EVENT = 0xB0
    GAP = 0xB1
    COORD_ERROR = 0xC0
    COORD_PONG = 0xFF


class State(Flag):
    """Of a connection: before HELLO, challenge sent, active."""

    PRE = auto()
    CHAL = auto()
    ACT = auto()


class Cap(Flag):
    """What bounds a frame beside the selected frame size."""

    FRAME = auto()
    PAGE = auto()
    TYPED = auto()


@dataclass(frozen=True)
class Shape:
    """A row of the catalogue."""

    body: Body
    to_server: bool
    to_client: bool
    legal: State
    cap: Cap = Cap.FRAME


@dataclass(frozen=True)
class Frame:
    """A decoded frame; `size` is that of the whole message, as credit counts it (P10-06)."""

    type: Type
    values: dict[str, Any]
    size: int

    def __getitem__(self, name: str) -> Any:
        """The value of a field; None when it is absent."""
        return self.values[name]


REQUEST = Field(1, "request_id", REQUEST_ID)
GUARD = Field(2, "authority_guard", r.GUARD)
CURSOR = leaf(e.MAX_CURSOR)


def _version() -> tuple[Field, ...]:
    return Field(1, "protocol_major", U16), Field(2, "protocol_minor", U16), Field(3, "protocol_patch", U16)


def _limits(first: int) -> tuple[Field, ...]:
    names = {
        "max_frame_bytes": U32,
        "max_page_bytes": U32,
        "max_page_records": U16,
        "max_typed_payload_bytes": U32,
        "max_event_credit_count": U32,
        "max_event_credit_bytes": U32,
    }
    return tuple(Field(first + index, name, codec) for index, (name, codec) in enumerate(names.items()))


def _credit(first: int) -> tuple[Field, ...]:
    return Field(first, "initial_credit_count", U32), Field(first + 1, "initial_credit_bytes", U32)


def _challenge() -> Body:
    return Body(
        Field(1, "profile", r.PROFILE),
        Field(2, "service", r.SERVICE),
        Field(3, "negotiated_major", U16),
        Field(4, "negotiated_minor", U16),
        Field(5, "client_nonce", r.NONCE),
        Field(6, "server_nonce", r.NONCE),
        Field(7, "server_incarnation", IDENT),
        Field(8, "channel_binding_kind", closed(e.ChannelBinding, 1)),
        Field(9, "channel_binding", BYTES32),
        Field(10, "authority_public_key", BYTES32),
        Field(11, "authority_proof", BYTES64),
        strict=True,
    )


def _hello_ok() -> Body:
    return Body(
        *_version(),
        Field(4, "negotiated_capabilities", U64),
        Field(5, "coordinator_id", IDENT),
        Field(6, "authority_epoch", COUNTER),
        Field(7, "incarnation_id", IDENT),
        *_limits(8),
        Field(14, "workload_grant", r.WORKLOAD_GRANT),
        Field(15, "operation_result_retention_secs", U64),
        Field(16, "activation_certificate", r.CERTIFICATE),
    )


NONCE = Body(Field(1, "nonce", U64))
RESULT = Body(REQUEST, Field(2, "operation", r.OPERATION_RESULT))
ANY = State.PRE | State.CHAL | State.ACT


def _request(*fields: Field, cap: Cap = Cap.FRAME) -> Shape:
    return Shape(Body(*fields), True, False, State.ACT, cap)


def _reply(*fields: Field, cap: Cap = Cap.FRAME) -> Shape:
    return Shape(Body(*fields), False, True, State.ACT, cap)


SNAPSHOT = Field(2, "snapshot_id", IDENT)
REPLAY = Field(2, "replay_id", IDENT)
END = (Field(3, "page_count", U32), Field(5, "canonical_sha256", BYTES32))

SHAPES: dict[Type, Shape] = {
    Type.COORD_HELLO: Shape(
        Body(
            *_version(),
            Field(4, "client_name", text(e.MAX_NAME)),
            Field(5, "offered_capabilities", U64),
            Field(6, "required_capabilities", U64),
            *_limits(7),
            Field(13, "workload_offer", r.WORKLOAD_OFFER),
        ),
        True,
        False,
        State.PRE,
    ),
    Type.WORKLOAD_RESPONSE: Shape(
        Body(
            Field(1, "key_id", BYTES32),
            Field(2, "scope", r.SCOPES),
            Field(3, "requested_expiry", U64),
            Field(4, "workload_proof", BYTES64),
            strict=True,
        ),
        True,
        False,
        State.CHAL,
    ),
    Type.COORD_COMMAND: _request(
        REQUEST,
        GUARD,
        Field(3, "operation_id", IDENT),
        Field(4, "command_kind", closed(e.CommandKind, 2)),
        Field(5, "payload", leaf()),
        Field(6, "preconditions", r.PRECONDITIONS, required=False),
        cap=Cap.TYPED,
    ),
    Type.GET_OPERATION_RESULT: _request(REQUEST, GUARD, Field(3, "operation_id", IDENT)),
    Type.OPEN_SNAPSHOT: _request(
        REQUEST,
        GUARD,
        Field(3, "selector", closed(e.Selector, 1)),
        Field(4, "reserve_subscription", BOOL),
        Field(5, "replace_paused_subscription", IDENT, required=False),
    ),
    Type.SNAPSHOT_NEXT: _request(REQUEST, SNAPSHOT, Field(3, "cursor", CURSOR)),
    Type.SNAPSHOT_APPLIED: _request(REQUEST, SNAPSHOT, Field(3, "subscription_id", IDENT, False), *_credit(4)),
    Type.SUBSCRIBE: _request(REQUEST, GUARD, Field(3, "after_event_sequence", CUT), *_credit(4)),
    Type.CREDIT: _request(Field(1, "subscription_id", IDENT), Field(2, "add_count", U32), Field(3, "add_bytes", U32)),
    Type.OPEN_REPLAY: _request(
        REQUEST, GUARD, Field(3, "subscription_id", IDENT), Field(4, "after_event_sequence", CUT)
    ),
    Type.REPLAY_NEXT: _request(REQUEST, REPLAY, Field(3, "cursor", CURSOR)),
    Type.REPLAY_APPLIED: _request(REQUEST, REPLAY, Field(3, "subscription_id", IDENT), *_credit(4)),
    Type.COORD_PING: Shape(NONCE, True, True, State.PRE | State.ACT),
    Type.COORD_HELLO_OK: Shape(_hello_ok(), False, True, State.CHAL),
    Type.ACK: _reply(REQUEST),
    Type.COORD_AUTHORITY_RENEWED: _reply(Field(1, "activation_certificate", r.CERTIFICATE)),
    Type.WORKLOAD_CHALLENGE: Shape(_challenge(), False, True, State.PRE),
    Type.COORD_COMMAND_RESULT: Shape(RESULT, False, True, State.ACT),
    Type.OPERATION_RESULT: Shape(RESULT, False, True, State.ACT),
    Type.SNAPSHOT_BEGIN: _reply(
        REQUEST,
        SNAPSHOT,
        Field(3, "authority_guard", r.GUARD),
        Field(4, "base_event_sequence", CUT),
        Field(5, "first_cursor", CURSOR, False),
        Field(6, "subscription_id", IDENT, False),
        Field(7, "lease_expires_at", U64),
    ),
    Type.SNAPSHOT_PAGE: _reply(
        REQUEST,
        SNAPSHOT,
        Field(3, "cursor", CURSOR),
        Field(4, "page_index", U32),
        Field(5, "records", list_of(r.SNAPSHOT_RECORD, e.MAX_PAGE_RECORDS)),
        Field(6, "next_cursor", CURSOR, False),
        cap=Cap.PAGE,
    ),
    Type.SNAPSHOT_END: _reply(REQUEST, SNAPSHOT, END[0], Field(4, "record_count", U64), END[1]),
    Type.SUBSCRIBED: _reply(REQUEST, Field(2, "subscription_id", IDENT), Field(3, "next_delivery_sequence", COUNTER)),
    Type.REPLAY_BEGIN: _reply(
        REQUEST,
        REPLAY,
        Field(3, "subscription_id", IDENT),
        Field(4, "first_event", COUNTER, False),
        Field(5, "replay_cut", CUT),
        Field(6, "first_cursor", CURSOR, False),
        Field(7, "lease_expires_at", U64),
    ),
    Type.REPLAY_PAGE: _reply(
        REQUEST,
        REPLAY,
        Field(3, "cursor", CURSOR),
        Field(4, "page_index", U32),
        Field(5, "events", list_of(r.REPLAY_EVENT, e.MAX_PAGE_RECORDS)),
        Field(6, "next_cursor", CURSOR, False),
        cap=Cap.PAGE,
    ),
    Type.REPLAY_END: _reply(REQUEST, REPLAY, END[0], Field(4, "event_count", U64), END[1]),
    Type.COORD_EVENT: _reply(
        Field(1, "subscription_id", IDENT),
        Field(2, "delivery_sequence", COUNTER),
        Field(3, "event_sequence", COUNTER),
        Field(4, "event_id", IDENT),
        Field(5, "event_kind", closed(e.EventKind, 2)),
        Field(6, "object", r.OBJECT_REF),
        Field(7, "object_revision", COUNTER),
        Field(8, "schema", U16),
        Field(9, "payload", leaf()),
        cap=Cap.TYPED,
    ),
    Type.GAP: _reply(
        Field(1, "subscription_id", IDENT),
        Field(2, "last_contiguous_delivery", CUT),
        Field(3, "last_contiguous_event", CUT),
        Field(4, "observed_event", COUNTER, False),
        Field(5, "reason", closed(e.GapReason, 1)),
    ),
    Type.COORD_ERROR: Shape(
        Body(
            Field(1, "request_id", REQUEST_ID, False),
            Field(2, "code", closed(e.ErrorCode, 2)),
            Field(3, "message", text(e.MAX_DIAGNOSTIC)),
        ),
        True,
        True,
        ANY,
    ),
    Type.COORD_PONG: Shape(NONCE, True, True, State.PRE | State.ACT),
}
assert set(SHAPES) == set(Type)


def encode_body(frame_type: Type, values: Mapping[str, Any]) -> bytes:
    """The canonical body of a frame."""
    return SHAPES[frame_type].body.encode(values)


def message(frame_type: int, body: bytes) -> bytes:
    """A whole message: `u32 length, u8 type, body` (P3-01)."""
    return (1 + len(body)).to_bytes(4, "big") + bytes([frame_type]) + body


def encode(frame_type: Type, **values: Any) -> bytes:
    """A whole message from named field values."""
    return message(frame_type, encode_body(frame_type, values))


def decode(data: bytes) -> Frame:
    """The frame of one whole message. Raises Malformed."""
    if len(data) < 5 or int.from_bytes(data[:4], "big") != len(data) - 4 or data[4] not in list(Type):
        raise Malformed("not one whole message of a known type")
    frame_type = Type(data[4])
    return Frame(frame_type, SHAPES[frame_type].body.decode(data[5:]), len(data))
