"""Two readings of the specification judge the same spoilt frames: what one refuses, the other refuses."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from tests.interop.logins import answered, hello
from tests.interop.phux import enums as e
from tests.interop.phux import records as r
from tests.interop.phux.client import Client
from tests.interop.phux.connection import Closed, Connection
from tests.interop.phux.frames import SHAPES, Type, encode_body, message
from tests.interop.phux.handshake import REFERENCE_LIMITS
from tests.interop.phux.tlv import BYTES, U16, Malformed, split, varint
from tests.interop.raw import answer, body_of
from tests.interop.server import Server

CASES = 30  # for each frame type
JUDGED = [
    Type.COORD_COMMAND,
    Type.GET_OPERATION_RESULT,
    Type.OPEN_SNAPSHOT,
    Type.SNAPSHOT_NEXT,
    Type.SNAPSHOT_APPLIED,
    Type.SUBSCRIBE,
    Type.OPEN_REPLAY,
    Type.REPLAY_NEXT,
    Type.REPLAY_APPLIED,
    Type.COORD_PING,
]
VERSION_FIELDS = bytes.fromhex("01040200000204020001")
OFFER = r.PROFILE.write(e.PROFILE)
CREDIT = {"initial_credit_count": 1, "initial_credit_bytes": 1_000}


def good(client: Client, chance: random.Random) -> dict[Type, dict[str, Any]]:
    """Legal values for each request; what they name need not be there."""
    one, two = chance.randbytes(16), chance.randbytes(16)
    guarded: dict[str, Any] = {"request_id": 7, "authority_guard": client.guard}
    payload = r.COMMAND_PAYLOADS[e.CommandKind.CREATE_OBJECTIVE].encode(
        {"objective_id": one, "schema": 1, "document": b"{}"}
    )
    held = [
        r.Precondition(r.ObjectRef(e.ObjectKind.RUN, two), 0),
        r.Precondition(r.ObjectRef(e.ObjectKind.RUN, one), 0),
    ]
    return {
        Type.COORD_COMMAND: {
            **guarded,
            "operation_id": two,
            "command_kind": e.CommandKind.CREATE_OBJECTIVE,
            "payload": payload,
            "preconditions": held,
        },
        Type.GET_OPERATION_RESULT: {**guarded, "operation_id": one},
        Type.OPEN_SNAPSHOT: {
            **guarded,
            "selector": 0,
            "reserve_subscription": True,
            "replace_paused_subscription": one,
        },
        Type.SNAPSHOT_NEXT: {"request_id": 7, "snapshot_id": one, "cursor": two},
        Type.SNAPSHOT_APPLIED: {"request_id": 7, "snapshot_id": one, "subscription_id": two, **CREDIT},
        Type.SUBSCRIBE: {**guarded, "after_event_sequence": 0, **CREDIT},
        Type.OPEN_REPLAY: {**guarded, "subscription_id": one, "after_event_sequence": 5},
        Type.REPLAY_NEXT: {"request_id": 7, "replay_id": one, "cursor": two},
        Type.REPLAY_APPLIED: {"request_id": 7, "replay_id": one, "subscription_id": two, **CREDIT},
        Type.COORD_PING: {"nonce": 7},
    }


# ---- what spoils a body ----


def _long(value: int, chance: random.Random) -> bytes:
    """A varint, seldom in a longer form."""
    shortest = varint(value)
    return shortest if chance.random() < 0.7 else shortest[:-1] + bytes([shortest[-1] | 0x80, 0])


def _join(fields: list[tuple[int, bytes]], chance: random.Random) -> bytes:
    """The fields, one of them with an odd id, type or length."""
    out, odd = b"", chance.randrange(len(fields) * 2)
    for index, (field_id, value) in enumerate(fields):
        wire_type = BYTES if index != odd or chance.random() < 0.6 else chance.randrange(8)
        length = len(value) if index != odd or chance.random() < 0.6 else max(0, len(value) + chance.choice((-1, 1)))
        numbers = (
            (_long(field_id, chance), _long(length, chance)) if index == odd else (varint(field_id), varint(length))
        )
        out += numbers[0] + bytes([wire_type]) + numbers[1] + value
    return out


def _bytes(body: bytes, chance: random.Random) -> bytes:
    """A byte changed, put in, or left out."""
    place = chance.randrange(len(body))
    changed = chance.choice(([chance.randrange(256)], [body[place] ^ 1 << chance.randrange(8)], [], [body[place], 0]))
    return body[:place] + bytes(changed) + body[place + 1 :]


def _fields(body: bytes, chance: random.Random) -> bytes:
    """A field dropped, doubled, added or moved."""
    fields = split(body)
    place = chance.randrange(len(fields))
    what = chance.randrange(4)
    if what == 0 and len(fields) > 1:
        del fields[place]
    elif what == 1:
        fields.insert(place, fields[chance.randrange(len(fields))])
    elif what == 2:
        fields.append((chance.choice((0, 15, 99, 127, 128, 1 << 32, (1 << 32) - 1)), chance.randbytes(3)))
    else:
        chance.shuffle(fields)
    return _join(fields, chance)


def _value(body: bytes, chance: random.Random) -> bytes:
    """A value of another width or content."""
    fields = split(body)
    place = chance.randrange(len(fields))
    field_id, value = fields[place]
    spoilt = chance.choice(
        (value[:-1], value + b"\0", bytes(len(value)), b"\xff" * len(value), _bytes(value, chance), value * 2, b"")
    )
    fields[place] = (field_id, spoilt)
    return _join(fields, chance)


SPOILERS: tuple[Callable[[bytes, random.Random], bytes], ...] = (_bytes, _fields, _value)


# ---- two verdicts ----


def own_verdict(frame_type: Type, body: bytes, guard: r.Guard) -> bool | None:
    """Whether the frame is malformed by this reading; None where more than its form decides."""
    try:
        found = dict(split(body))
        if frame_type is Type.COORD_COMMAND and len(found.get(4, b"")) == 2:
            kind = U16.parse(found[4])
            if kind not in list(e.CommandKind):
                return None  # gated, and its payload is of no known form (OPEN P7-k)
        values = SHAPES[frame_type].body.decode(body)
        if values.get("authority_guard", guard) != guard:
            return None  # stale, and what is inside its fields may be read before or after that (OPEN P8-b)
        if frame_type is Type.COORD_COMMAND:
            payload = r.COMMAND_PAYLOADS[values["command_kind"]].decode(values["payload"])
            if payload.get("schema", 1) != 1:
                return None  # refused before admission with a code that no row names (P7-24)
    except Malformed:
        return True
    if values.get("replace_paused_subscription") and not values["reserve_subscription"]:
        return None  # malformed too, but behind the guard (OPEN P9-a)
    over = values.get("initial_credit_count", 0) > 1_024 or values.get("initial_credit_bytes", 0) > 4_194_304
    return None if over else False


def hello_verdict(body: bytes) -> bool | None:
    """The same for COORD_HELLO, while its version, offer and limits are as they should be."""
    if not body.startswith(VERSION_FIELDS):
        return None
    try:
        offer = dict(split(body)).get(13, b"")
    except Malformed:
        return True
    if not offer.startswith(OFFER):
        return None
    try:
        values = SHAPES[Type.COORD_HELLO].body.decode(body)
    except Malformed:
        return True
    limits = all(values[name] == value for name, value in REFERENCE_LIMITS.items())
    return False if limits and not values["required_capabilities"] else None


def response_verdict(body: bytes) -> bool:
    """The same for WORKLOAD_RESPONSE, whose body is closed (E-25)."""
    try:
        SHAPES[Type.WORKLOAD_RESPONSE].body.decode(body)
    except Malformed:
        return True
    return False


def compare(connection: Connection, frame_type: Type, body: bytes, expected: bool | None) -> None:
    """Ask the server for its verdict where there is one to expect; what is malformed ends the connection."""
    if expected is None:
        return
    frame = answer(connection, message(frame_type, body))
    found = frame.type is Type.COORD_ERROR and frame["code"] is e.ErrorCode.MALFORMED_MESSAGE
    assert found is expected, f"{body.hex()}: malformed is {expected} here; {frame} there"
    if found:
        with pytest.raises(Closed):
            connection.receive()


def spoil(body: bytes, chance: random.Random) -> bytes:
    """The body, spoilt once or twice."""
    for _ in range(chance.choice((1, 1, 1, 2))):
        try:
            body = chance.choice(SPOILERS)(body, chance)
        except (Malformed, ValueError, IndexError):
            break  # nothing is left that could be spoilt further
    return body


def judge(server: Server, frame_type: Type, seed: int) -> None:
    """One spoilt frame of an active connection."""
    chance = random.Random(seed)
    with server.client(capabilities=0x1F) as client:
        body = spoil(encode_body(frame_type, good(client, chance)[frame_type]), chance)
        compare(client.connection, frame_type, body, own_verdict(frame_type, body, client.guard))


def judge_login(server: Server, frame_type: Type, seed: int) -> None:
    """One spoilt frame of a login."""
    connection = Connection(server.path)
    try:
        if frame_type is Type.COORD_HELLO:
            body = spoil(body_of(hello()), random.Random(seed))
            compare(connection, frame_type, body, hello_verdict(body))
        else:
            body = spoil(body_of(answered(server, connection).fields()), random.Random(seed))
            compare(connection, frame_type, body, response_verdict(body))
    finally:
        connection.close()


@pytest.mark.req(
    "E-04", "E-05", "E-06", "E-08", "E-10", "E-13", "E-14", "E-17", "E-23", "E-24", "P3-12", "P3-60", "P3-61"
)
@pytest.mark.parametrize("frame_type", JUDGED, ids=lambda kind: kind.name)
def test_both_readings_judge_alike(server: Server, frame_type: Type) -> None:
    for seed in range(CASES):
        judge(server, frame_type, seed)


@pytest.mark.req("E-25", "W7-03", "W7-04", "W8-01", "W10-07", "P5-06")
@pytest.mark.parametrize("frame_type", [Type.COORD_HELLO, Type.WORKLOAD_RESPONSE], ids=lambda kind: kind.name)
def test_both_readings_judge_a_login_alike(server: Server, frame_type: Type) -> None:
    for seed in range(CASES):
        judge_login(server, frame_type, seed)
