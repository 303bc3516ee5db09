"""The negative recipes over every frame, command payload and record payload: nothing malformed decodes."""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum

import pytest

from cext.tlv import encode_varint
from sidecar.coordinator.wire import enums
from sidecar.coordinator.wire.codecs import encode_image
from sidecar.coordinator.wire.enums import FrameType
from sidecar.coordinator.wire.errors import FrameTooLargeError, MalformedMessage
from sidecar.coordinator.wire.fields import Body, Field
from sidecar.coordinator.wire.frames import FRAMES, decode_frame
from sidecar.coordinator.wire.images import Record
from tests.oracles.wire import join, read_varint, split
from tests.unit.wire.samples import BODIES, FRAME_SAMPLES, RECORDS

EVERY_BODY = [pytest.param(body, id=name) for name, body in BODIES.items()]
EVERY_FIELD = [
    pytest.param(body, item, id=f"{name} {item.name}") for name, body in BODIES.items() for item in body.FIELDS
]
LOOSE = [pytest.param(body, id=name) for name, body in BODIES.items() if not body.STRICT]
STRICT = [pytest.param(body, id=name) for name, body in BODIES.items() if body.STRICT]
ENUMS = {
    value.__name__: value for value in vars(enums).values() if isinstance(value, type) and issubclass(value, IntEnum)
}
"""Closed sets by the name that a codec's documentation gives."""


def refuse(body: Body, image: bytes) -> None:
    with pytest.raises(MalformedMessage) as caught:
        type(body).decode(image)
    assert caught.value.fatal


def replaced(body: Body, item: Field[object], value: bytes) -> bytes:
    """The body with another value image in one field."""
    return join([(key, value if key == item.id else old) for key, old in split(body.body())])


def positions(image: bytes) -> Iterator[tuple[int, int, int]]:
    """(offset of the id, offset of the length, offset of the value) of each field."""
    at = 0
    while at < len(image):
        start = at
        _, at = read_varint(image, at)
        length = at + 1
        size, at = read_varint(image, length)
        yield start, length, at
        at += size


@pytest.mark.req("E-13", "P3-12", "P5-06", "P5-07", "P7-16", "P7-20")
@pytest.mark.parametrize(("body", "item"), EVERY_FIELD)
def test_a_dropped_field_is_missing_or_absent(body: Body, item: Field[object]) -> None:
    image = join([field for field in split(body.body()) if field[0] != item.id])
    if item.required:
        refuse(body, image)
    else:
        decoded = type(body).decode(image)
        assert getattr(decoded, item.name) == item.default
        assert type(body).build({each.name: getattr(decoded, each.name) for each in body.FIELDS}).body() == image


@pytest.mark.req("E-08", "P3-12")
@pytest.mark.parametrize(("body", "item"), EVERY_FIELD)
def test_a_duplicated_field_is_malformed(body: Body, item: Field[object]) -> None:
    fields = split(body.body())
    twice = next(field for field in fields if field[0] == item.id)
    refuse(body, join([*fields, twice]))


@pytest.mark.req("E-08")
@pytest.mark.parametrize("body", LOOSE)
def test_a_duplicated_unknown_field_is_malformed(body: Body) -> None:
    for unknown in (99, 300):
        refuse(body, body.body() + join([(unknown, b""), (unknown, b"x")]))


@pytest.mark.req("E-06", "P1-10", "P3-12", "P5-21")
@pytest.mark.parametrize("body", LOOSE)
def test_an_unknown_field_is_skipped_and_kept(body: Body) -> None:
    decoded = type(body).decode(join([(99, b"later")]) + body.body())
    assert all(getattr(decoded, item.name) == getattr(body, item.name) for item in body.FIELDS)
    assert decoded.unknown() == join([(99, b"later")])
    assert decoded.body() == body.body() + join([(99, b"later")])


@pytest.mark.req("E-06", "E-07")
@pytest.mark.parametrize("body", LOOSE)
def test_fields_in_any_order_are_taken_and_written_in_increasing_order(body: Body) -> None:
    decoded = type(body).decode(join(split(body.body())[::-1]))
    assert decoded == body
    assert [key for key, _ in split(decoded.body())] == sorted(item.id for item in body.FIELDS)


@pytest.mark.req("E-25", "W7-03")
@pytest.mark.parametrize("body", STRICT)
def test_strict_frames_refuse_another_order(body: Body) -> None:
    fields = split(body.body())
    for at in range(len(fields) - 1):
        swapped = [*fields[:at], fields[at + 1], fields[at], *fields[at + 2 :]]
        refuse(body, join(swapped))


@pytest.mark.req("E-25", "W7-04", "W7-08")
@pytest.mark.parametrize("body", STRICT)
def test_strict_frames_refuse_unknown_fields(body: Body) -> None:
    refuse(body, body.body() + join([(body.FIELDS[-1].id + 1, b"")]))
    refuse(body, body.body() + join([(99, b"later")]))
    refuse(body, body.body() + b"\x00")


@pytest.mark.req("E-25", "W7-03")
@pytest.mark.parametrize("body", STRICT)
def test_strict_frames_refuse_another_width(body: Body) -> None:
    for item in body.FIELDS:
        value = dict(split(body.body()))[item.id]
        refuse(body, replaced(body, item, value[:-1]))
        refuse(body, replaced(body, item, value + b"\x01"))


@pytest.mark.req("E-05", "E-13", "E-23", "P3-12")
@pytest.mark.parametrize("body", EVERY_BODY)
def test_a_truncated_body_is_malformed(body: Body) -> None:
    image = body.body()
    complete = {start for start, _, _ in positions(image)}
    for size in range(len(image)):
        whole_fields = [start for start in sorted(complete) if start >= size] if size in complete else None
        lost = len(whole_fields) if whole_fields is not None else 0
        if whole_fields is not None and not any(item.required for item in body.FIELDS[-lost:]):
            assert type(body).decode(image[:size]) != body
        else:
            refuse(body, image[:size])


@pytest.mark.req("E-14", "E-17", "E-23", "E-24", "P3-13", "P3-61", "P3-62")
@pytest.mark.parametrize(("body", "item"), EVERY_FIELD)
def test_a_byte_behind_a_value_is_malformed(body: Body, item: Field[object]) -> None:
    value = dict(split(body.body()))[item.id]
    refuse(body, replaced(body, item, value + b"\x00"))


@pytest.mark.req("E-14", "E-17", "E-23", "E-24", "P3-13", "P3-62")
@pytest.mark.parametrize(("body", "item"), EVERY_FIELD)
def test_a_value_that_ends_early_is_malformed(body: Body, item: Field[object]) -> None:
    value = dict(split(body.body()))[item.id]
    refuse(body, replaced(body, item, value[:-1]))
    refuse(body, replaced(body, item, b""))


@pytest.mark.req("E-09", "E-10", "P3-12")
@pytest.mark.parametrize("body", EVERY_BODY)
def test_another_wire_type_is_malformed(body: Body) -> None:
    image = bytearray(body.body())
    for _, length, _ in list(positions(bytes(image))):
        assert image[length - 1] == enums.WireType.BYTES
        for other in (0, 1, 2, 3, 5, 6, 7, 255):
            image[length - 1] = other
            refuse(body, bytes(image))
        image[length - 1] = enums.WireType.BYTES


@pytest.mark.req("E-10")
@pytest.mark.parametrize("body", LOOSE)
def test_another_wire_type_of_an_unknown_field_is_malformed(body: Body) -> None:
    for wire_type in (0, 2, 5):
        refuse(body, body.body() + bytes([99, wire_type, 0]))


@pytest.mark.req("E-04", "P3-12")
@pytest.mark.parametrize("body", EVERY_BODY)
def test_a_longer_varint_is_malformed(body: Body) -> None:
    image = body.body()
    for start, length, _ in positions(image):
        for at in (start, length):
            for padded in (b"\x00", b"\x80\x00"):
                longer = image[:at] + bytes([image[at] | 0x80]) + padded + image[at + 1 :]
                if image[at] < 0x80:
                    refuse(body, longer)
    refuse(body, image + b"\x80" * 10 + b"\x01\x04\x00")
    refuse(body, image + b"\x80")


@pytest.mark.req("E-05")
@pytest.mark.parametrize("body", EVERY_BODY)
def test_a_length_beyond_the_body_is_malformed(body: Body) -> None:
    for length in (1, 0xFFFFFFFF, 1 << 40):
        refuse(body, body.body() + b"\x63\x04" + encode_varint(length))
    image = body.body()
    start, length, _ = list(positions(image))[-1]
    refuse(body, image[:length] + encode_varint(1 << 40) + image[length + 1 :])
    assert start < length


@pytest.mark.parametrize("body", EVERY_BODY)
def test_field_id_zero_is_malformed(body: Body) -> None:
    refuse(body, body.body() + b"\x00\x04\x00")
    refuse(body, body.body() + encode_varint(1 << 32) + b"\x04\x00")


@pytest.mark.req("E-30", "P3-12")
@pytest.mark.parametrize("kind", [pytest.param(kind, id=kind.name) for kind in FrameType])
def test_a_flipped_byte_is_refused_or_means_something_else(kind: FrameType) -> None:
    sample = FRAME_SAMPLES[kind]
    image = sample.body()
    for at in range(len(image)):
        for flip in (0x01, 0x80, 0xFF):
            changed = image[:at] + bytes([image[at] ^ flip]) + image[at + 1 :]
            try:
                decoded = decode_frame(kind, changed)
            except (MalformedMessage, FrameTooLargeError):
                continue
            assert decoded != sample


def enum_fields() -> Iterator[tuple[Body, Field[object], type[IntEnum]]]:
    for body in BODIES.values():
        for item in body.FIELDS:
            words = item.codec.doc.split()
            if words[0] in ("u8", "u16") and words[-1] in ENUMS:
                yield body, item, ENUMS[words[-1]]


@pytest.mark.req("P7-12", "P7-18", "P7-27", "P10-21", "P13-02", "W5-01")
@pytest.mark.parametrize(
    ("body", "item", "values"),
    [pytest.param(*case, id=f"{case[0].TITLE} {case[1].name}") for case in enum_fields()],
)
def test_values_outside_a_closed_set_are_malformed(body: Body, item: Field[object], values: type[IntEnum]) -> None:
    width = item.codec.lo
    numbers = {int(value) for value in values}
    strangers = {max(numbers) + 1, 200, 256**width - 1} | ({0} if 0 not in numbers else set())
    for stranger in sorted(strangers - numbers):
        if stranger < 256**width:
            refuse(body, replaced(body, item, stranger.to_bytes(width, "big")))


def test_the_enum_recipe_covers_every_closed_field() -> None:
    covered = {(body.TITLE, item.name) for body, item, _ in enum_fields()}
    assert {("COORD_EVENT", "event_kind"), ("GAP", "reason"), ("COORD_ERROR", "code")} <= covered
    assert {("END_BINDING", "reason"), ("SIGNAL", "kind"), ("ADMIN", "admin_kind")} <= covered
    assert len(covered) == 13


def columns(record: Record) -> list[bytes]:
    """Images of the columns, with what stands in front of them."""
    lead = (b"" if record.TAG is None else bytes([record.TAG])) + record.LEAD
    images = [lead]
    rest = record.encode()[len(lead) :]
    for name, codec in record.COLUMNS:
        image = encode_image(codec, getattr(record, name))
        assert rest.startswith(image)
        rest = rest[len(image) :]
        images.append(image)
    assert rest == b""
    return images


EVERY_RECORD = [pytest.param(each, id=f"{at} {type(each).__name__}") for at, each in enumerate(RECORDS)]


@pytest.mark.req("E-23", "E-16", "E-24", "P3-61", "P7-19")
@pytest.mark.parametrize("record", EVERY_RECORD)
def test_a_record_fills_its_image_exactly(record: Record) -> None:
    image = record.encode()
    assert type(record).decode(image) == record
    for size in range(len(image)):
        with pytest.raises(MalformedMessage):
            type(record).decode(image[:size])
    with pytest.raises(MalformedMessage):
        type(record).decode(image + b"\x00")


@pytest.mark.req("P7-12", "P7-27", "P8-11", "P8-21", "P8-23", "P11-04", "P11-07", "P11-08", "P11-10")
@pytest.mark.parametrize("record", EVERY_RECORD)
def test_a_record_refuses_values_outside_its_closed_sets(record: Record) -> None:
    images = columns(record)
    for at, (_, codec) in enumerate(record.COLUMNS, start=1):
        words = codec.doc.split()
        if words[0] not in ("u8", "u16") or len(words) < 2 or words[1] not in ENUMS:
            continue
        width = codec.lo
        for stranger in (max(int(value) for value in ENUMS[words[1]]) + 1, 256**width - 1):
            changed = [*images[:at], stranger.to_bytes(width, "big"), *images[at + 1 :]]
            with pytest.raises(MalformedMessage):
                type(record).decode(b"".join(changed))


@pytest.mark.req("P4-01", "P4-04")
@pytest.mark.parametrize("record", EVERY_RECORD)
def test_a_record_refuses_zero_ids_and_counters(record: Record) -> None:
    images = columns(record)
    for at, (_, codec) in enumerate(record.COLUMNS, start=1):
        if codec.doc in ("id16", "u64 ≠ 0", "nonce32"):
            changed = [*images[:at], bytes(codec.lo), *images[at + 1 :]]
            with pytest.raises(MalformedMessage):
                type(record).decode(b"".join(changed))


@pytest.mark.req("P4-01", "P4-04", "P7-09", "W3-08")
@pytest.mark.parametrize(("body", "item"), EVERY_FIELD)
def test_a_body_refuses_zero_ids_counters_nonces_and_request_ids(body: Body, item: Field[object]) -> None:
    zero = bytes(len(dict(split(body.body()))[item.id]))
    if item.codec.doc in ("id16", "u64 ≠ 0", "nonce32", "u32 ≠ 0"):
        refuse(body, replaced(body, item, zero))
    elif item.codec.doc in ("u64 cut", "u64", "u32"):
        assert getattr(type(body).decode(replaced(body, item, zero)), item.name) == 0


def test_every_type_has_a_frame_and_a_sample() -> None:
    assert set(FRAMES) == set(FrameType) == set(FRAME_SAMPLES)
