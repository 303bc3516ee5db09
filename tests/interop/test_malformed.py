"""Malformed input on a live connection: the code of each class, the close, and nothing felt by anyone else."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.interop.phux import enums as e
from tests.interop.phux import records as r
from tests.interop.phux.client import Client
from tests.interop.phux.frames import SHAPES, Type, message
from tests.interop.phux.tlv import U16, field_bytes, leaf, varint
from tests.interop.raw import Fields, answer, body_of, fields_of, header, refuses
from tests.interop.scenes import create, objective
from tests.interop.server import Server

MALFORMED = e.ErrorCode.MALFORMED_MESSAGE
CREATE = e.CommandKind.CREATE_OBJECTIVE


@pytest.fixture(scope="module")
def bystander(server: Server) -> Iterator[Client]:
    with server.client() as client:
        yield client


@pytest.fixture(autouse=True)
def _others_are_not_touched(bystander: Client) -> Iterator[None]:
    yield
    assert bystander.lookup(secrets.token_bytes(16)) == r.Unknown()


def lookup(client: Client) -> Fields:
    return fields_of(
        Type.GET_OPERATION_RESULT, request_id=5, authority_guard=client.guard, operation_id=secrets.token_bytes(16)
    )


def snapshot(client: Client, **values: Any) -> Fields:
    return fields_of(
        Type.OPEN_SNAPSHOT, request_id=5, authority_guard=client.guard, selector=0, reserve_subscription=True, **values
    )


def command(client: Client, payload: bytes | None = None, kind: e.CommandKind = CREATE, **values: Any) -> Fields:
    return fields_of(
        Type.COORD_COMMAND,
        request_id=5,
        authority_guard=client.guard,
        operation_id=secrets.token_bytes(16),
        command_kind=kind,
        payload=r.COMMAND_PAYLOADS[CREATE].encode(objective()) if payload is None else payload,
        **values,
    )


def payload_fields() -> Fields:
    return {1: secrets.token_bytes(16), 2: U16.write(1), 3: leaf().write(b"{}")}


# ---- the envelope ----


@pytest.mark.req("P3-02", "P3-04", "P3-07", "P3-10", "P13-05")
@pytest.mark.parametrize(
    "data",
    [
        b"\0\0\0\0",
        header(0, Type.COORD_PING),
        header(1_048_577, Type.COORD_COMMAND),
        header(0xFFFF_FFFF, Type.COORD_COMMAND),
        header(524_289, Type.GET_OPERATION_RESULT),
        header(524_289, Type.COORD_PING),
    ],
)
def test_a_length_out_of_range(client: Client, data: bytes) -> None:
    refuses(client.connection, data, e.ErrorCode.FRAME_TOO_LARGE)


@pytest.mark.req("P3-07", "E-06", "P5-21")
def test_a_frame_of_the_selected_size_is_read(client: Client) -> None:
    body = body_of(lookup(client))
    room = 524_288 - 1 - len(body)
    filler = field_bytes(99, bytes(room - 5))
    assert len(filler) == room
    assert answer(client.connection, message(Type.GET_OPERATION_RESULT, body + filler))["operation"] == r.Unknown()


@pytest.mark.req("P7-02")
@pytest.mark.parametrize(
    "unknown", [0x00, 0x02, 0x03, 0x05, 0x0F, 0x12, 0x1F, 0x28, 0x7E, 0x81, 0x85, 0xB2, 0xC1, 0xFE]
)
def test_an_unknown_type(client: Client, unknown: int) -> None:
    refuses(client.connection, header(1_048_576, unknown), e.ErrorCode.PROTOCOL_ERROR)


@pytest.mark.req("P7-03", "P3-04", "P13-05")
@pytest.mark.parametrize("frame_type", [kind for kind, shape in SHAPES.items() if not shape.to_server], ids=hex)
def test_a_type_of_the_other_direction(client: Client, frame_type: Type) -> None:
    refuses(client.connection, header(1_048_576, frame_type), e.ErrorCode.PROTOCOL_ERROR)


@pytest.mark.req("P7-04", "W3-14")
@pytest.mark.parametrize("frame_type", [Type.COORD_HELLO, Type.WORKLOAD_RESPONSE])
def test_a_type_of_another_state(client: Client, frame_type: Type) -> None:
    refuses(client.connection, header(200, frame_type), e.ErrorCode.PROTOCOL_ERROR)


@pytest.mark.req("P3-09", "P3-29")
def test_a_payload_over_the_typed_cap(client: Client) -> None:
    payload = r.COMMAND_PAYLOADS[CREATE].encode(objective(b""))
    document = bytes(131_073 - len(payload) - 2)  # its length takes two bytes more than that of the empty one
    too_long = r.COMMAND_PAYLOADS[CREATE].encode(objective(document))
    assert len(too_long) == 131_073
    refuses(
        client.connection, message(Type.COORD_COMMAND, body_of(command(client, too_long))), e.ErrorCode.FRAME_TOO_LARGE
    )


@pytest.mark.req("P3-09", "P3-29")
def test_a_payload_at_the_typed_cap_is_read(client: Client) -> None:
    payload = r.COMMAND_PAYLOADS[CREATE].encode(objective(b""))
    exact = r.COMMAND_PAYLOADS[CREATE].encode(objective(bytes(131_072 - len(payload) - 2)))
    assert len(exact) == 131_072
    reply = answer(client.connection, message(Type.COORD_COMMAND, body_of(command(client, exact))))
    assert reply["request_id"] == 5
    assert reply.type is Type.COORD_COMMAND_RESULT or reply["code"] is e.ErrorCode.RESOURCE_EXHAUSTED
    client.ping()


def test_a_frame_may_come_byte_by_byte(client: Client) -> None:
    data = message(Type.COORD_PING, field_bytes(1, bytes(8)))
    for byte in data[:-1]:
        client.connection.send_bytes(bytes([byte]))
    assert answer(client.connection, data[-1:]).type is Type.COORD_PONG


# ---- TLV ----

TLV: dict[str, Callable[[bytes], bytes]] = {
    "a longer varint for an id": lambda body: b"\x81\0" + body[1:],
    "a much longer varint for an id": lambda body: b"\x81\x80\0" + body[1:],
    "a longer varint for a length": lambda body: body[:2] + b"\x84\0" + body[3:],
    "an id of 11 bytes": lambda body: b"\x80" * 10 + b"\1" + body[1:],
    "an id that does not end": lambda body: body + b"\x99",
    "a field without a type": lambda body: body + b"\x63",
    "a field without a length": lambda body: body + b"\x63\4",
    "a length beyond the body": lambda body: body + b"\x63\4" + varint(1 << 40),
    "a length beyond the body by one": lambda body: body + b"\x63\4\2\0",
    "the body cut by one": lambda body: body[:-1],
    "field id 0": lambda body: body + field_bytes(0, b""),
    "field id 2^32": lambda body: body + field_bytes(1 << 32, b""),
    "a known field twice": lambda body: body + body[:7],
    "an unknown field twice": lambda body: body + field_bytes(99, b"a") + field_bytes(99, b"b"),
    "a known field as VARINT": lambda body: body[:1] + b"\0" + body[2:],
    "a known field as FIXED32": lambda body: b"\1\2" + body[3:],
    "an unknown field as VARINT": lambda body: body + b"\x63\0\1",
    "no body at all": lambda body: b"",
}


@pytest.mark.req("E-04", "E-05", "E-08", "E-10", "E-13", "P3-12", "P13-05", "W8-01")
@pytest.mark.parametrize("spoil", TLV.values(), ids=TLV)
def test_a_body_that_is_no_canonical_tlv(client: Client, spoil: Callable[[bytes], bytes]) -> None:
    refuses(client.connection, message(Type.GET_OPERATION_RESULT, spoil(body_of(lookup(client)))), MALFORMED)


@pytest.mark.req("E-06", "P5-21")
def test_unknown_and_unordered_fields_are_read(client: Client) -> None:
    fields = {**lookup(client), 99: b"new", 4_294_967_295: b""}
    for order in (list(fields.items()), list(fields.items())[::-1]):
        reply = answer(client.connection, message(Type.GET_OPERATION_RESULT, body_of(order)))
        assert reply["operation"] == r.Unknown()


@pytest.mark.req("E-13", "E-14", "E-23", "E-24")
@pytest.mark.parametrize("field", [1, 2, 3])
@pytest.mark.parametrize("change", ["missing", "empty", "short", "long"])
def test_a_field_of_another_width(client: Client, field: int, change: str) -> None:
    fields = lookup(client)
    value = fields.pop(field)
    if change != "missing":
        fields[field] = {"empty": b"", "short": value[:-1], "long": value + b"\0"}[change]
    refuses(client.connection, message(Type.GET_OPERATION_RESULT, body_of(sorted(fields.items()))), MALFORMED)


def changed(fields: Fields, field: int, value: bytes) -> Fields:
    return dict(sorted({**fields, field: value}.items()))


VALUES: dict[str, tuple[Type, Callable[[Client], Fields]]] = {
    "request id 0": (Type.GET_OPERATION_RESULT, lambda c: changed(lookup(c), 1, bytes(4))),
    "an operation id of zeros": (Type.GET_OPERATION_RESULT, lambda c: changed(lookup(c), 3, bytes(16))),
    "a guard of zeros": (Type.GET_OPERATION_RESULT, lambda c: changed(lookup(c), 2, bytes(64))),
    "a bool of 2": (Type.OPEN_SNAPSHOT, lambda c: changed(snapshot(c), 4, b"\2")),
    "selector 1": (Type.OPEN_SNAPSHOT, lambda c: changed(snapshot(c), 3, b"\1")),
    "a selector of two bytes": (Type.OPEN_SNAPSHOT, lambda c: changed(snapshot(c), 3, b"\0\0")),
    "a replacement id of zeros": (Type.OPEN_SNAPSHOT, lambda c: changed(snapshot(c), 5, bytes(16))),
    "a leaf longer than its field": (Type.COORD_COMMAND, lambda c: changed(command(c), 5, b"\xff" * 4 + b"abc")),
    "a leaf shorter than its field": (Type.COORD_COMMAND, lambda c: changed(command(c), 5, b"\0\0\0\1ab")),
    "a payload without its length": (Type.COORD_COMMAND, lambda c: changed(command(c), 5, body_of(payload_fields()))),
    "a command kind of one byte": (Type.COORD_COMMAND, lambda c: changed(command(c), 4, b"\1")),
}


@pytest.mark.req("P7-09", "P7-14", "P4-01", "P4-04", "E-16", "E-17", "E-19", "E-23", "P3-60", "P3-61", "P3-62")
@pytest.mark.parametrize("case", VALUES.values(), ids=VALUES)
def test_a_value_that_its_type_has_not(client: Client, case: tuple[Type, Callable[[Client], Fields]]) -> None:
    frame_type, fields = case
    refuses(client.connection, message(frame_type, body_of(fields(client))), MALFORMED)


# ---- commands ----

PAYLOADS: dict[str, Callable[[], bytes]] = {
    "empty": lambda: b"",
    "no id": lambda: body_of({2: U16.write(1), 3: leaf().write(b"{}")}),
    "no schema": lambda: body_of({1: bytes([1]) * 16, 3: leaf().write(b"{}")}),
    "no document": lambda: body_of({1: bytes([1]) * 16, 2: U16.write(1)}),
    "an id of zeros": lambda: body_of({**payload_fields(), 1: bytes(16)}),
    "an id of 15 bytes": lambda: body_of({**payload_fields(), 1: bytes([1]) * 15}),
    "a schema of 4 bytes": lambda: body_of({**payload_fields(), 2: bytes([0, 0, 0, 1])}),
    "a raw document": lambda: body_of({**payload_fields(), 3: b'{"t":1}'}),
    "a document with a byte after it": lambda: body_of({**payload_fields(), 3: leaf().write(b"{}") + b"\0"}),
    "a field twice": lambda: body_of([*payload_fields().items(), (2, U16.write(1))]),
    "an unknown field as VARINT": lambda: body_of(payload_fields()) + b"\x63\0\1",
    "a varint too long": lambda: b"\x81\0" + body_of(payload_fields())[1:],
}


@pytest.mark.req("P7-16", "P8-16", "P3-12")
@pytest.mark.parametrize("payload", PAYLOADS.values(), ids=PAYLOADS)
def test_a_malformed_command_payload(client: Client, bystander: Client, payload: Callable[[], bytes]) -> None:
    fields = command(client, payload())
    refuses(client.connection, message(Type.COORD_COMMAND, body_of(fields)), MALFORMED)
    assert bystander.lookup(fields[3]) == r.Unknown()


@pytest.mark.req("P7-26", "P7-12", "W1-05")
@pytest.mark.parametrize("kind", [0, 12, 0xFFFF])
def test_an_unknown_command_kind_is_gated(client: Client, bystander: Client, kind: int) -> None:
    fields = changed(command(client), 4, U16.write(kind))
    reply = answer(client.connection, message(Type.COORD_COMMAND, body_of(fields)))
    assert (reply["request_id"], reply["code"]) == (5, e.ErrorCode.CAPABILITY_REQUIRED)
    client.ping()
    assert bystander.lookup(fields[3]) == r.Unknown()


@pytest.mark.req("P7-24", "P7-26")
def test_an_unknown_document_schema_is_refused(client: Client, bystander: Client) -> None:
    fields = command(client, body_of({**payload_fields(), 2: U16.write(2)}))
    reply = answer(client.connection, message(Type.COORD_COMMAND, body_of(fields)))
    assert reply.type is Type.COORD_ERROR
    assert reply["request_id"] == 5
    assert bystander.lookup(fields[3]) == r.Unknown()


def held(count: int) -> list[bytes]:
    return [
        r.PRECONDITION.write(r.Precondition(r.ObjectRef(e.ObjectKind.OBJECTIVE, bytes([1]) * 15 + bytes([index])), 0))
        for index in range(count)
    ]


PRECONDITIONS: dict[str, bytes] = {
    "one object twice": U16.write(2) + held(1)[0] * 2,
    "one object twice with other revisions": U16.write(2) + held(1)[0] + held(1)[0][:-1] + b"\1",
    "65 of them": U16.write(65) + b"".join(held(65)),
    "a count beyond the field": U16.write(0xFFFF) + held(1)[0],
    "a count below the field": U16.write(1) + b"".join(held(2)),
    "half a count": b"\0",
    "an empty field": b"",
    "an unknown object kind": U16.write(1) + b"\0\x0b" + held(1)[0][2:],
    "object kind 0": U16.write(1) + b"\0\0" + held(1)[0][2:],
    "an id of zeros": U16.write(1) + b"\0\1" + bytes(24),
}


@pytest.mark.req("P8-04", "P3-39", "E-22", "E-23", "P7-13", "P13-05")
@pytest.mark.parametrize("image", PRECONDITIONS.values(), ids=PRECONDITIONS)
def test_malformed_preconditions(client: Client, bystander: Client, image: bytes) -> None:
    fields = changed(command(client), 6, image)
    refuses(client.connection, message(Type.COORD_COMMAND, body_of(fields)), MALFORMED)
    assert bystander.lookup(fields[3]) == r.Unknown()


@pytest.mark.req("P3-39")
def test_as_many_preconditions_as_there_may_be(client: Client) -> None:
    fields = changed(command(client), 6, U16.write(64) + b"".join(held(64)))
    reply = answer(client.connection, message(Type.COORD_COMMAND, body_of(fields)))
    assert isinstance(reply["operation"], r.Succeeded)


# ---- requests, cursors ----


@pytest.mark.req("P7-10", "P13-05")
def test_a_request_id_under_way_is_taken(client: Client) -> None:
    both = b"".join(message(Type.COORD_COMMAND, body_of(command(client))) for _ in range(2))
    assert refuses(client.connection, both, MALFORMED)["request_id"] == 5


@pytest.mark.req("P3-30", "P9-09")
def test_the_length_of_a_cursor(server: Server, client: Client) -> None:
    create(client)
    opened = client.open_snapshot()
    fields = fields_of(Type.SNAPSHOT_NEXT, request_id=77, snapshot_id=opened.id, cursor=bytes(4_096))
    reply = answer(client.connection, message(Type.SNAPSHOT_NEXT, body_of(fields)))
    assert reply["code"] is e.ErrorCode.CURSOR_INVALID
    fields[3] = leaf().write(bytes(4_097))
    refuses(client.connection, message(Type.SNAPSHOT_NEXT, body_of(fields)), MALFORMED)


@pytest.mark.req("P13-05", "P4-12")
def test_a_fatal_error_names_its_request(client: Client) -> None:
    fields = changed(lookup(client), 2, r.GUARD.write(client.guard._replace(authority_epoch=99)))
    error = refuses(client.connection, message(Type.GET_OPERATION_RESULT, body_of(fields)), e.ErrorCode.STALE_AUTHORITY)
    assert error["request_id"] == 5


@pytest.mark.req("P13-05")
@pytest.mark.parametrize(
    "data", [message(Type.COORD_ERROR, b"\2\4\2\0\4\3\4\4" + bytes(4)), message(Type.COORD_ERROR, b"")]
)
def test_an_error_from_a_client_ends_its_connection(client: Client, data: bytes) -> None:
    client.connection.send_bytes(data)
    assert client.wait_closed() in {None, MALFORMED}


@pytest.mark.req("P13-03")
def test_messages_tell_nothing_of_the_input(client: Client) -> None:
    canary = b"canary-of-the-payload"
    fields = changed(command(client, body_of({**payload_fields(), 3: canary})), 99, canary)
    error = refuses(client.connection, message(Type.COORD_COMMAND, body_of(fields)), MALFORMED)
    assert canary.decode() not in error["message"]
    assert canary.hex() not in error["message"]
