"""`explain`: every golden frame in readable form, the first fault with offset and row, and nothing secret."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from sidecar.coordinator.explain import Explained, explain, text_of
from sidecar.coordinator.wire.enums import CommandKind, FrameType
from sidecar.coordinator.wire.frames import CoordCommand, CoordPing
from sidecar.coordinator.wire.limits import HARD
from tests.canary import CANARY, spellings_in
from tests.oracles import wire as oracle
from tests.unit.wire.samples import FRAME_SAMPLES
from tests.vectors import inputs as fix
from tests.vectors.expected_frames import GOLDEN

PING = CoordPing(nonce=7).encode()


def only(data: bytes) -> Explained:
    found = list(explain(data))
    assert len(found) == 1
    return found[0]


def message(kind: FrameType, body: bytes) -> bytes:
    return (len(body) + 1).to_bytes(4, "big") + bytes([kind]) + body


def field(found: Explained, name: str) -> str:
    return next(item.value for item in found.items if item.name == name)


@pytest.mark.parametrize("name", GOLDEN)
def test_a_golden_frame_is_good_and_every_field_of_it_is_told(name: str) -> None:
    data = bytes.fromhex(fix.VECTORS[name])
    found = only(data)
    assert (found.fault, found.length, found.type) == (None, len(data), data[4])
    told = {item.id for item in found.items if item.depth == 1 and item.id is not None}
    assert told == {field_id for field_id, _ in oracle.split(data[5:])}


@pytest.mark.parametrize("kind", FrameType)
def test_every_frame_type_is_explained(kind: FrameType) -> None:
    found = only(FRAME_SAMPLES[kind].encode())
    assert (found.name, found.fault) == (kind.name, None)


@pytest.mark.parametrize("name", fix.VECTORS)
def test_no_vector_of_whatever_kind_makes_it_fail(name: str) -> None:
    text = fix.VECTORS[name]
    data = bytes.fromhex(text) if len(text) % 2 == 0 and set(text) <= set("0123456789abcdef") else text.encode()
    assert sum(found.length for found in explain(data)) == len(data)


def test_what_nests_is_told_in_its_parts() -> None:
    name = next(name for name in GOLDEN if name.startswith("COORD_COMMAND_RESULT"))
    found = only(bytes.fromhex(fix.VECTORS[name]))
    assert field(found, "operation") == "Succeeded"
    assert field(found, "result_kind") == "OBJECT_REF (1)"
    assert field(found, "kind") == "OBJECTIVE (1)"
    event = only(bytes.fromhex(fix.VECTORS["COORD_EVENT delivery 1"]))
    assert field(event, "event_kind") == "OBJECTIVE_CHANGED (1)"
    assert field(event, "document") == "'{\"t\":1}'"
    assert event.states == ("ACT",)
    assert event.sender == "server"


COMMAND = bytes.fromhex(fix.VECTORS["COORD_COMMAND (OP-A)"])
REQUEST = bytes.fromhex("010404")  # field 1, wire type 4, length 4


def ack(body: str) -> bytes:
    return message(FrameType.ACK, bytes.fromhex(body))


def changed(data: bytes, at: int, new: bytes) -> bytes:
    return data[:at] + new + data[at + len(new) :]


EVENT = bytes.fromhex(fix.VECTORS["COORD_EVENT delivery 1"])
OTHER_EVENT = EVENT.replace(b"\x22" * 16, b"\x21" * 16, 1)
SCHEMA_FIELD = bytes.fromhex("0204020001")
OBJECTIVE = bytes.fromhex(fix.VECTORS["OP-B preconditions image (sorted)"])[2:28]
TWICE = COMMAND[5:] + bytes([6, 4, 2 + 2 * len(OBJECTIVE), 0, 2]) + 2 * OBJECTIVE
FAULTS: dict[str, tuple[bytes, str, int]] = {
    "non-minimal varint": (ack("8100040400000007"), "E-04", 5),
    "varint that ends early": (ack("80"), "E-04", 5),
    "varint of eleven bytes": (ack("ff" * 10 + "01"), "E-04", 5),
    "length beyond the body": (ack("01040500000007"), "E-05", 7),
    "field twice": (ack("01040400000007" * 2), "E-08", 12),
    "unknown field twice": (ack("01040400000007" + "090400" * 2), "E-08", 15),
    "field id 0": (ack("000400"), "E-11", 5),
    "wire type of a known field": (ack("01020400000007"), "E-10", 6),
    "wire type of an unknown field": (ack("090204"), "E-09", 6),
    "body ends in a field": (ack("01"), "E-02", 6),
    "missing field": (ack(""), "E-13", 5),
    "short integer": (ack("010403000007"), "E-14", 8),
    "long integer": (ack("0104050000000700"), "E-14", 12),
    "request 0": (ack("01040400000000"), "P7-09", 8),
    "length 0": (bytes(4) + b"\x82", "P3-02", 0),
    "length above 1 MiB": ((HARD.frame + 1).to_bytes(4, "big") + b"\x82", "P3-02", 0),
    "unknown type": (bytes.fromhex("0000000102"), "P7-02", 4),
    "cut off": (PING[:-1], "P3-01", 0),
    "no header": (PING[:3], "P3-01", 0),
    "command field missing": (COMMAND.replace(SCHEMA_FIELD, b"\x09" + SCHEMA_FIELD[1:]), "P7-16", len(COMMAND)),
    "precondition twice": (message(FrameType.COORD_COMMAND, TWICE), "P8-04", len(TWICE) + 5 - len(OBJECTIVE)),
    "all zero id": (COMMAND.replace(b"\x22" * 16, bytes(16)), "P4-01", COMMAND.index(b"\x22" * 16)),
    "event about another object": (OTHER_EVENT, "P7-21", EVENT.rindex(b"\x09\x04") + 3),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_named_with_its_row_and_offset(name: str) -> None:
    data, row, offset = FAULTS[name]
    fault = only(data).fault
    assert fault is not None
    assert (fault.row, fault.offset) == (row, offset), fault


def test_what_was_read_before_the_fault_is_told() -> None:
    found = only(ack("01040400000007" + "0904"))
    assert [(item.name, item.value) for item in found.items] == [("request_id", "7")]
    assert found.fault is not None


def test_an_unknown_field_is_no_fault_and_is_shown() -> None:
    found = only(ack("01040400000007" + "63040378797a"))
    assert found.fault is None
    assert [(item.id, item.value) for item in found.items] == [(1, "7"), (0x63, "'xyz'")]


def test_a_command_of_an_unknown_kind_stays_as_it_is() -> None:
    command = CoordCommand.decode(COMMAND[5:])
    other = CoordCommand(
        request_id=1,
        authority_guard=command.authority_guard,
        operation_id=command.operation_id,
        command_kind=max(CommandKind) + 1,
        payload=b"\xff",
    )
    assert only(other.encode()).fault is None


def test_a_capture_goes_on_behind_a_bad_body_and_ends_at_a_bad_length() -> None:
    rows = [
        found.fault and (found.fault.row, found.fault.offset)
        for found in explain(PING + ack("") + PING + bytes(4) + PING)
    ]
    start = 2 * len(PING) + len(ack(""))
    assert rows == [None, ("E-13", len(PING) + 5), None, ("P3-02", start)]


def test_direction_and_state_are_judged_when_they_are_known() -> None:
    def rows(data: bytes, **known: str) -> list[str | None]:
        judge: Callable[..., list[Explained]] = lambda **options: list(explain(data, **options))  # noqa: E731
        return [found.fault and found.fault.row for found in judge(**known)]

    hello, response = (FRAME_SAMPLES[kind].encode() for kind in (FrameType.COORD_HELLO, FrameType.WORKLOAD_RESPONSE))
    assert rows(COMMAND, sent_by="server") == ["P7-03"]
    assert rows(COMMAND, sent_by="client") == [None]
    assert rows(COMMAND, state="PRE") == ["P7-04"]
    assert rows(hello + response + COMMAND, state="PRE") == [None, None, None]
    assert rows(hello + hello, state="PRE") == [None, "P7-04"]
    assert rows(COMMAND) == [None]


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        (FrameType.COORD_HELLO, ("client_nonce",)),
        (FrameType.WORKLOAD_CHALLENGE, ("client_nonce", "server_nonce", "authority_proof")),
        (FrameType.WORKLOAD_RESPONSE, ("workload_proof",)),
        (FrameType.COORD_HELLO_OK, ("fencing_token", "signature")),
        (FrameType.COORD_AUTHORITY_RENEWED, ("fencing_token", "signature")),
        (FrameType.SNAPSHOT_NEXT, ("cursor",)),
        (FrameType.SNAPSHOT_BEGIN, ("first_cursor",)),
    ],
)
def test_proofs_nonces_cursors_and_the_token_are_not_shown(kind: FrameType, names: tuple[str, ...]) -> None:
    """The canary stands where the secret was; it is in the bytes and nowhere in what is told of them."""
    data = FRAME_SAMPLES[kind].encode()
    for name in names:
        found = only(data)
        item = next(item for item in found.items if item.name == name)
        start = item.offset + (4 if item.type.startswith("bytes ≤") else 0)
        size = int.from_bytes(data[item.offset : start], "big") or len(CANARY)
        data = changed(data, start, CANARY[:size])
        secret = CANARY[:size]
        assert secret in data
    found = only(data)
    assert found.fault is None
    told = "\n".join(text_of(found)) + json.dumps(found.as_json())
    assert secret.hex() not in told
    assert secret.decode() not in told
    assert not spellings_in(told)
