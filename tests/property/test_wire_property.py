"""Round trips of generated values, agreement with the oracle, and arbitrary bytes."""

from __future__ import annotations

import random
import struct
import tracemalloc
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sidecar.coordinator.wire.enums import CommandKind, FrameType, ObjectKind
from sidecar.coordinator.wire.errors import FrameTooLargeError, MalformedMessage, ProtocolError
from sidecar.coordinator.wire.events import event_frames, event_tail
from sidecar.coordinator.wire.fields import Body
from sidecar.coordinator.wire.frames import FRAMES, decode_frame
from sidecar.coordinator.wire.hello import decode_hello
from sidecar.coordinator.wire.images import Record
from sidecar.coordinator.wire.payloads import COMMANDS, RECORD_PAYLOADS, decode_command, decode_record_payload
from sidecar.coordinator.wire.records import ReplayEvent
from tests.oracles import wire as oracle
from tests.property.wire_values import CLASSES, bodies_of, plain, records_of
from tests.unit.wire.samples import FRAME_SAMPLES

KINDS = [pytest.param(kind, id=kind.name) for kind in FrameType]
PAYLOADS = [
    *(pytest.param(shape, id=f"command {CommandKind(kind).name}") for kind, shape in COMMANDS.items()),
    *(pytest.param(shape, id=f"record {kind.name}") for kind, shape in RECORD_PAYLOADS.items()),
]
THOROUGH = settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])


def flat(body: Body) -> dict[str, Any]:
    """The oracle's form: a frame's values by name, absent optional fields left out."""
    found: dict[str, Any] = {}
    for item in body.FIELDS:
        value = getattr(body, item.name)
        if body.fields.has(item.id):
            if item.codec.doc == "WorkloadOffer":
                found[item.name] = (body.raw(item.name)[:20], value.client_nonce)
            elif item.codec.doc == "ActivationCertificate":
                found[item.name] = (body.raw(item.name)[:1], *plain(value))
            elif item.codec.doc.startswith('"'):
                found[item.name] = body.raw(item.name)
            else:
                found[item.name] = plain(value)
    return found


@pytest.mark.req("E-01", "E-07", "E-30", "P3-01", "P7-05")
@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
@THOROUGH
def test_frames_round_trip_and_agree_with_the_oracle(kind: FrameType, data: st.DataObject) -> None:
    frame = data.draw(bodies_of(FRAMES[kind]))
    message = frame.encode()
    assert struct.unpack_from(">IB", message) == (len(message) - 4, kind)
    decoded = decode_frame(kind, memoryview(message)[5:])
    assert decoded == frame
    assert hash(decoded) == hash(frame)
    for item in frame.FIELDS:
        assert getattr(decoded, item.name) == getattr(frame, item.name)
    values = oracle.decode(kind, message[5:])
    assert values == flat(frame)
    assert oracle.encode(kind, values) == message


@pytest.mark.req("P7-16", "P7-20")
@pytest.mark.parametrize("shape", PAYLOADS)
@given(data=st.data())
@THOROUGH
def test_payloads_round_trip(shape: type[Body], data: st.DataObject) -> None:
    body = data.draw(bodies_of(shape))
    decoded = shape.decode(body.body())
    assert decoded == body
    for item in shape.FIELDS:
        assert getattr(decoded, item.name) == getattr(body, item.name)


@pytest.mark.req("P3-61", "P3-62")
@pytest.mark.parametrize("kind", [pytest.param(kind, id=name) for name, kind in CLASSES.items()])
@given(data=st.data())
@THOROUGH
def test_records_round_trip(kind: type[Record], data: st.DataObject) -> None:
    record = data.draw(records_of(kind))
    assert kind.decode(record.encode()) == record
    assert kind.decode(record.encode()).encode() == record.encode()


@given(event=records_of(ReplayEvent), subscription=st.binary(min_size=16, max_size=16).filter(any))
@THOROUGH
def test_fan_out_bytes_equal_the_frame(event: Any, subscription: Any) -> None:
    built = event_frames(subscription, 3, [event_tail(event)])[0]  # type: ignore[arg-type]
    decoded = decode_frame(built[4], built[5:])
    assert decoded.encode() == built


def verdict(kind: int, body: bytes) -> dict[str, Any] | None:
    """What the product makes of a body: its values, or ``None`` for a refusal."""
    try:
        return flat(decode_frame(kind, body))
    except (MalformedMessage, FrameTooLargeError):
        return None


def oracle_verdict(kind: int, body: bytes) -> dict[str, Any] | None:
    try:
        return oracle.decode(kind, body)
    except oracle.Refused:
        return None


def mutations(body: bytes, source: random.Random) -> bytes:
    """A legal body with a few bytes changed, inserted, removed or repeated."""
    changed = bytearray(body)
    for _ in range(source.randint(1, 3)):
        at = source.randrange(len(changed) + 1)
        action = source.randrange(4)
        if action == 0 and at < len(changed):
            changed[at] = source.choice((0, 1, 4, 0x80, 0xFF, source.randrange(256)))
        elif action == 1:
            changed[at:at] = source.randbytes(source.randint(1, 4))
        elif action == 2:
            del changed[at : at + source.randint(1, 4)]
        else:
            changed[at:at] = changed[at : at + source.randint(1, 40)]
    return bytes(changed)


@pytest.mark.req("E-30", "E-13", "E-14", "P3-12")
@pytest.mark.parametrize("kind", KINDS)
def test_damaged_bodies_get_the_oracles_verdict(kind: FrameType) -> None:
    source = random.Random(f"damaged {kind}")
    body = FRAME_SAMPLES[kind].body()
    for _ in range(600):
        damaged = mutations(body, source)
        assert verdict(kind, damaged) == oracle_verdict(kind, damaged), damaged.hex()


@pytest.mark.req("E-30")
@given(kind=st.integers(0, 255), body=st.binary(max_size=300))
@settings(max_examples=200)
def test_arbitrary_bytes_raise_only_protocol_errors(kind: int, body: bytes) -> None:
    for decode in (
        lambda: decode_frame(kind, body),
        lambda: decode_hello(body),
        lambda: decode_command(kind, body),
        lambda: decode_record_payload(ObjectKind(1 + kind % 10), body),
    ):
        try:
            decode()
        except ProtocolError:
            continue


@pytest.mark.req("E-30")
def test_random_bodies_never_panic_nor_grow() -> None:
    source = random.Random(30)
    kinds = list(FrameType)
    bodies = [source.randbytes(source.randrange(80)) for _ in range(2_000)]
    bodies += [b"\x01\x04" + source.randbytes(source.randrange(80)) for _ in range(2_000)]
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for index, body in enumerate(bodies):
            try:
                decode_frame(kinds[index % len(kinds)], body)
            except MalformedMessage:
                continue
        current, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak - before < 262_144
    assert current - before < 65_536
