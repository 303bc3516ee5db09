"""Positional images and the encoder: bounds of every read, the rules of every write, golden frames."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from cext.frame import encode_frame
from cext.tlv import RAW, Cursor, Schema, TlvError, Writer, decode_varint, encode_varint
from tests.oracles.tlv import field, leaf

VECTORS = dict(
    line.split("\t")
    for line in (Path(__file__).parents[2] / "vectors" / "coordinator.tsv").read_text("utf-8").splitlines()
)
FRAME_NAMES = (
    "COORD_",
    "WORKLOAD_",
    "ACK request",
    "OPERATION_RESULT",
    "GET_OPER",
    "OPEN_SNAP",
    "SUBSCRIBE",
    "CREDIT ",
    "GAP ",
)
FRAMES = {
    name: bytes.fromhex(text)
    for name, text in VECTORS.items()
    if name.startswith(FRAME_NAMES) and text.startswith("0000")
}


def refused(call: Callable[[], object], reason: str) -> None:
    with pytest.raises(TlvError) as caught:
        call()
    assert (caught.value.reason, caught.value.field) == (reason, 0)


def fields_of(body: bytes) -> list[tuple[int, int, bytes]]:
    """(id, wire type, value) of a body, without the scanner."""
    found, at = [], 0
    while at < len(body):
        field_id, at = decode_varint(body, at)
        wire_type = body[at]
        length, at = decode_varint(body, at + 1)
        found.append((field_id, wire_type, body[at : at + length]))
        at += length
    return found


def test_the_vectors_hold_every_golden_frame() -> None:
    assert len(FRAMES) == 19


@pytest.mark.req("E-01", "E-07", "E-09", "P3-01")
@pytest.mark.parametrize("name", FRAMES)
def test_golden_frames_are_fields_and_nothing_else(name: str) -> None:
    frame = FRAMES[name]
    body = frame[5:]
    assert int.from_bytes(frame[:4], "big") == 1 + len(body)
    writer = Writer()
    for field_id, wire_type, value in fields_of(body):
        assert wire_type == 4
        writer.field_raw(field_id, value)
    assert writer.take_frame(frame[4]) == frame
    assert encode_frame(frame[4], body) == frame
    assert Schema([]).scan(body).unknown() == body


@pytest.mark.req("E-02", "E-15", "E-16")
@pytest.mark.parametrize(
    ("write", "image_hex"),
    [
        (lambda w: w.field_u16(2, 1), "0204020001"),
        (lambda w: w.field_text(4, "ab"), "040406000000026162"),
        (lambda w: w.field_u32(1, 7), "01040400000007"),
        (lambda w: w.field_u8(300, 255), "ac020401ff"),
        (lambda w: w.field_u64(2**32 - 1, 2**64 - 2), "ffffffff0f0408fffffffffffffffe"),
        (lambda w: w.field_leaf(1, b""), "01040400000000"),
        (lambda w: w.field_raw(1, b""), "010400"),
        (lambda w: w.field_raw(1, bytes(128)), "01048001" + "00" * 128),
        (lambda w: w.field_bool(1, True), "01040101"),
        (lambda w: w.field_bool(1, False), "01040100"),
        (lambda w: w.u8(255), "ff"),
        (lambda w: w.u16(0x102), "0102"),
        (lambda w: w.u32(0x1020304), "01020304"),
        (lambda w: w.u64(0x102030405060708), "0102030405060708"),
        (lambda w: w.i32(-1), "ffffffff"),
        (lambda w: w.i32(-(2**31)), "80000000"),
        (lambda w: w.raw(b"raw"), "726177"),
        (lambda w: w.leaf(b""), "00000000"),
        (lambda w: w.leaf(bytearray(b"ab")), "000000026162"),
        (lambda w: w.text("é\0"), "00000003c3a900"),
    ],
)
def test_each_write_has_its_image(write: Callable[[Writer], None], image_hex: str) -> None:
    writer = Writer()
    write(writer)
    assert writer.take().hex() == image_hex
    write(writer)
    assert writer.take_frame(0x90).hex() == f"{len(image_hex) // 2 + 1:08x}90{image_hex}"
    assert writer.take() == b""


@pytest.mark.req("E-09")
def test_every_field_is_written_with_wire_type_four() -> None:
    writer = Writer()
    writer.field_u8(1, 1)
    writer.field_u16(2, 1)
    writer.field_u32(3, 1)
    writer.field_u64(4, 1)
    writer.field_bool(5, True)
    writer.field_raw(6, b"x")
    writer.field_leaf(7, b"x")
    writer.field_text(8, "x")
    assert [wire_type for _, wire_type, _ in fields_of(writer.take())] == [4] * 8


@pytest.mark.req("E-07")
@pytest.mark.parametrize("after", [1, 2, 3])
def test_ids_must_increase(after: int) -> None:
    writer = Writer()
    writer.field_u8(3, 1)
    with pytest.raises(ValueError, match="ids increase"):
        writer.field_u8(after, 2)
    writer.field_u8(4, 3)
    assert writer.take() == field(3, b"\1") + field(4, b"\3")
    writer.field_u8(after, 2)
    assert writer.take() == field(after, b"\2")


@pytest.mark.parametrize(
    "write",
    [
        lambda w: w.field_u8(9, 256),
        lambda w: w.field_u16(9, -1),
        lambda w: w.field_u32(9, 2**32),
        lambda w: w.field_u64(9, 2**64),
        lambda w: w.field_u8(2**32, 1),
        lambda w: w.field_u8(-1, 1),
        lambda w: w.field_raw(9, "text"),
        lambda w: w.field_leaf(9, None),
        lambda w: w.field_text(9, b"bytes"),
        lambda w: w.field_text(9, "\ud800"),
        lambda w: w.u8(1),
        lambda w: w.text("\udfff"),
        lambda w: w.leaf(b"x"),
    ],
)
def test_a_refused_write_changes_nothing(write: Callable[[Writer], None]) -> None:
    writer = Writer()
    writer.field_u8(1, 1)
    with pytest.raises((OverflowError, TypeError, ValueError)):
        write(writer)
    writer.field_u8(9, 1)
    assert writer.take() == field(1, b"\1") + field(9, b"\1")


def test_positional_bytes_and_fields_do_not_mix() -> None:
    writer = Writer()
    writer.u8(1)
    with pytest.raises(ValueError, match="positional image"):
        writer.field_u8(1, 1)
    for value in (256, -1):
        with pytest.raises(OverflowError):
            writer.u8(value)
    for value in (2**31, -(2**31) - 1):
        with pytest.raises(OverflowError):
            writer.i32(value)
    assert writer.take() == b"\1"


@pytest.mark.req("P3-02")
def test_a_frame_above_the_hard_cap_cannot_be_written() -> None:
    writer = Writer()
    writer.raw(bytes(1_048_575))
    assert writer.take_frame(1)[:5] == bytes.fromhex("0010000001")
    writer.raw(bytes(1_048_576))
    with pytest.raises(OverflowError, match="1048577"):
        writer.take_frame(1)
    assert len(writer.take()) == 1_048_576
    with pytest.raises(OverflowError):
        writer.take_frame(256)
    assert writer.take_frame(255) == bytes.fromhex("00000001ff")


def test_a_writer_gives_back_the_memory_of_a_large_image() -> None:
    writer = Writer()
    tracemalloc.start()
    try:
        writer.raw(bytes(1_000_000))
        writer.take()
        assert tracemalloc.get_traced_memory()[0] < 70_000
        writer.raw(b"next")
        assert writer.take() == b"next"
    finally:
        tracemalloc.stop()


READS: dict[str, tuple[Callable[[Cursor], object], bytes, object]] = {
    "u8": (lambda c: c.u8(), b"\xfe", 0xFE),
    "u16": (lambda c: c.u16(), b"\xfe\xdc", 0xFEDC),
    "u32": (lambda c: c.u32(), b"\xfe\xdc\xba\x98", 0xFEDCBA98),
    "u64": (lambda c: c.u64(), b"\xfe\xdc\xba\x98\x76\x54\x32\x10", 0xFEDCBA9876543210),
    "i32": (lambda c: c.i32(), b"\xff\xff\xff\xff", -1),
    "take": (lambda c: c.take(3), b"abc", b"abc"),
    "leaf": (lambda c: c.leaf(3), leaf(b"abc"), b"abc"),
    "text": (lambda c: c.text(3), leaf("é!".encode()), "é!"),
    "absent": (lambda c: c.presence(), b"\0", False),
    "present": (lambda c: c.presence(), b"\1", True),
    "count": (lambda c: c.count(1024), b"\4\0", 1024),
    "tag": (lambda c: c.tag(5), b"\5", 5),
}


@pytest.mark.req("E-15", "E-16", "E-23", "E-24", "P3-62")
@pytest.mark.parametrize("name", READS)
def test_each_read_takes_its_image_and_stops_at_the_end(name: str) -> None:
    read, image, value = READS[name]
    cursor = Cursor(b"<" + image + b">", 1, 1 + len(image))
    assert cursor.remaining == len(image)
    assert read(cursor) == value
    cursor.finish()
    with pytest.raises(TlvError, match="truncated"):
        read(cursor)
    for end in range(len(image)):
        # Bytes behind the end are there, but not for this cursor.
        with pytest.raises(TlvError, match=r"truncated|length"):
            read(Cursor(image + b"\0" * 8, 0, end))
    cursor = Cursor(image + b">")
    read(cursor)
    refused(cursor.finish, "trailing")


@pytest.mark.req("E-17")
@pytest.mark.parametrize("length", [4, 2**16, 2**31, 2**32 - 1])
def test_a_leaf_length_beyond_the_data_is_refused_unreserved(length: int) -> None:
    data = length.to_bytes(4, "big") + b"abc"
    tracemalloc.start()
    try:
        refused(lambda: Cursor(data).leaf(2**32), "length")
        refused(lambda: Cursor(data).text(2**32), "length")
        assert tracemalloc.get_traced_memory()[1] < 32_768
    finally:
        tracemalloc.stop()


@pytest.mark.req("E-17")
def test_a_leaf_above_its_cap_is_refused_and_not_consumed() -> None:
    cursor = Cursor(leaf(b"abcd"))
    refused(lambda: cursor.leaf(3), "cap")
    refused(lambda: cursor.text(3), "cap")
    assert cursor.leaf(4) == b"abcd"


@pytest.mark.req("E-18", "P3-62")
@pytest.mark.parametrize("sequence", ["c0af", "eda080", "f4908080", "ff", "c3", "e282"])
def test_invalid_utf8_in_nested_text_is_refused(sequence: str) -> None:
    refused(lambda: Cursor(leaf(b"12345678" + bytes.fromhex(sequence))).text(100), "utf8")


@pytest.mark.req("E-20", "P3-62")
def test_a_nested_optional_has_a_presence_byte() -> None:
    absent, present = Cursor(bytes.fromhex("00")), Cursor(bytes.fromhex("0100000001"))
    assert absent.presence() is False
    absent.finish()
    assert present.presence() is True
    assert present.u32() == 1
    present.finish()
    for byte in (2, 0x80, 255):
        refused(Cursor(bytes([byte, 0, 0, 0, 1])).presence, "presence")


@pytest.mark.req("E-21")
def test_a_union_tag_is_known_and_its_decoder_ends_with_the_field() -> None:
    # A tag and a u32 are declared; the field holds only the tag, and the next field's bytes follow in the body.
    body = field(1, b"\5") + field(2, b"\0\0\0\7")
    fields = Schema([(1, RAW, 1, 10, True), (2, RAW, 4, 4, True)]).scan(body)
    cursor = Cursor(fields.view(1))
    assert cursor.tag(5) == 5
    refused(cursor.u32, "truncated")
    refused(lambda: Cursor(b"\6").tag(5), "tag")


@pytest.mark.req("E-22", "P3-60")
def test_a_list_is_read_by_element_and_never_reserved_by_count() -> None:
    record = bytes(26)
    cursor = Cursor(b"\xff\xff" + record)
    tracemalloc.start()
    try:
        count = cursor.count(0xFFFF)
        assert count == 0xFFFF
        assert cursor.take(26) == record
        refused(lambda: cursor.take(26), "truncated")
        assert tracemalloc.get_traced_memory()[1] < 32_768
    finally:
        tracemalloc.stop()
    refused(lambda: Cursor(b"\x04\x01" + record).count(1024), "count")
    assert Cursor(b"\x04\x00" + record).count(1024) == 1024


def test_a_cursor_stays_within_the_bounds_that_it_was_given() -> None:
    for start, end in ((-1, 2), (3, 2), (0, 4), (4, -1), (0, -2)):
        with pytest.raises(ValueError, match="outside"):
            Cursor(b"abc", start, end)
    assert Cursor(b"abc", 3).remaining == 0
    assert Cursor(b"abc", 1).take(2) == b"bc"
    with pytest.raises(ValueError, match="negative"):
        Cursor(b"abc").take(-1)
    with pytest.raises(TlvError, match="truncated"):
        Cursor(b"abc").take(2**62)


def test_a_cursor_holds_the_buffer_that_it_reads() -> None:
    data = bytearray(b"abc")
    cursor = Cursor(data)
    with pytest.raises(BufferError):
        data.clear()
    del cursor
    data.clear()


@pytest.mark.req("E-03")
@pytest.mark.parametrize(
    ("value", "image_hex"),
    [
        (0, "00"),
        (1, "01"),
        (127, "7f"),
        (128, "8001"),
        (300, "ac02"),
        (16383, "ff7f"),
        (16384, "808001"),
        (1048576, "808040"),
        (2**64 - 1, "ff" * 9 + "01"),
    ],
)
def test_varint_vectors(value: int, image_hex: str) -> None:
    assert encode_varint(value).hex() == image_hex
    assert decode_varint(bytes.fromhex("00" + image_hex + "00"), 1) == (value, 1 + len(image_hex) // 2)


def test_varints_outside_of_their_range_are_misuse() -> None:
    for value in (-1, 2**64):
        with pytest.raises(OverflowError):
            encode_varint(value)
    for offset in (-1, 2):
        with pytest.raises(ValueError, match="outside"):
            decode_varint(b"\0", offset)
    with pytest.raises(TlvError, match="truncated"):
        decode_varint(b"\0", 1)
