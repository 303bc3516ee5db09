"""Scanning message bodies: every refusal, the getters and the canonical form, at the byte level."""

from __future__ import annotations

import mmap
import pickle
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from cext.tlv import (
    BOOL,
    FIXED,
    LEAF,
    NONZERO,
    RAW,
    STR,
    Fields,
    Schema,
    TlvError,
    Writer,
    encode_varint,
)
from tests.oracles.tlv import body, field, leaf

COMMAND = Schema(
    [
        (1, FIXED | NONZERO, 4, 4, True),
        (2, FIXED, 64, 64, True),
        (3, FIXED | NONZERO, 16, 16, True),
        (4, FIXED, 2, 2, True),
        (5, LEAF, 0, 1000, True),
        (6, RAW, 2, 1666, False),
        (7, STR, 1, 8, False),
        (8, BOOL, 1, 1, False),
        (9, FIXED, 8, 8, False),
    ]
)
REQUIRED = {1: b"\0\0\0\x07", 2: bytes(64), 3: b"\x88" * 16, 4: b"\0\1", 5: leaf(b"payload")}


def image(**changes: bytes | None) -> bytes:
    """The command with fields changed (``f7=value``) or left out (``f1=None``)."""
    values: dict[int, bytes | None] = {**REQUIRED, **{int(name[1:]): value for name, value in changes.items()}}
    return body((field_id, value) for field_id, value in sorted(values.items()) if value is not None)


def refused(schema: Schema, data: bytes | memoryview, reason: str, at_field: int) -> None:
    with pytest.raises(TlvError) as caught:
        schema.scan(data)
    assert (caught.value.reason, caught.value.field) == (reason, at_field)


@pytest.mark.req("E-02")
def test_a_field_is_id_wire_type_length_value() -> None:
    fields = Schema([(2, FIXED, 2, 2, True)]).scan(bytes.fromhex("0204020001"))
    assert fields.u16(2) == 1
    assert fields.raw(2) == b"\0\1"


@pytest.mark.req("E-04")
@pytest.mark.parametrize(
    ("varint", "reason"),
    [
        ("8100", "varint"),
        ("808000", "varint"),
        ("8000", "varint"),
        ("ff" * 9 + "02", "varint"),
        ("80" * 9 + "00", "varint"),
        ("ff" * 10 + "01", "varint"),
        ("80", "truncated"),
        ("ff" * 9, "truncated"),
    ],
)
def test_a_bad_varint_is_refused_as_id_and_as_length(varint: str, reason: str) -> None:
    bad = bytes.fromhex(varint)
    rest = b"\4\0" if reason == "varint" else b""
    refused(COMMAND, image() + bad + rest, reason, 0)
    refused(COMMAND, image() + b"\x63\4" + bad + rest, reason, 0x63)


@pytest.mark.req("E-05")
@pytest.mark.parametrize("length", [1, 2**20, 2**32, 2**40, 2**64 - 1])
@pytest.mark.parametrize("field_id", [1, 99])
def test_a_length_beyond_the_body_is_refused_before_anything_is_reserved(length: int, field_id: int) -> None:
    data = bytes([field_id, 4]) + encode_varint(length)
    tracemalloc.start()
    try:
        refused(COMMAND, data, "length", field_id)
        assert tracemalloc.get_traced_memory()[1] < 32_768
    finally:
        tracemalloc.stop()


@pytest.mark.req("E-06")
def test_fields_are_matched_by_id_and_unknown_ones_skipped() -> None:
    data = body([(99, b"skipped"), *reversed(REQUIRED.items()), (2**32 - 1, bytes(300))])
    fields = COMMAND.scan(data)
    assert fields.u32(1) == 7
    assert fields.leaf(5) == b"payload"
    assert not fields.has(99)


@pytest.mark.req("E-06")
def test_out_of_order_fields_are_accepted_and_made_canonical() -> None:
    shuffled = body(
        [(300, b"c"), (5, leaf(b"")), (4, b"\0\1"), (12, b"b"), (3, b"\1" * 16), (2, bytes(64)), (1, b"\0\0\0\1")]
    )
    fields = COMMAND.scan(shuffled)
    assert fields.canonical() == body(
        [(1, b"\0\0\0\1"), (2, bytes(64)), (3, b"\1" * 16), (4, b"\0\1"), (5, leaf(b"")), (12, b"b"), (300, b"c")]
    )
    assert fields.unknown() == body([(12, b"b"), (300, b"c")])
    assert COMMAND.scan(fields.canonical()).canonical() == fields.canonical()


def test_an_ordered_body_is_its_own_canonical_form() -> None:
    data = image(f12=b"b", f300=b"c")
    fields = COMMAND.scan(data)
    assert fields.canonical() == data
    assert fields.unknown() == body([(12, b"b"), (300, b"c")])
    assert COMMAND.scan(image()).unknown() == b""


@pytest.mark.req("E-08")
@pytest.mark.parametrize(
    ("extra", "at_field"),
    [
        (field(1, b"\0\0\0\7"), 1),
        (field(5, leaf(b"other")), 5),
        (field(99, b"") + field(99, b""), 99),
        (field(255, b"") + field(300, b"") + field(255, b""), 255),
        (field(256, b"") + field(256, b""), 0),
        (field(300, b"") + field(400, b"") + field(300, b""), 0),
        (field(2**32 - 1, b"") + field(256, b"") + field(2**32 - 1, b"x"), 0),
    ],
)
def test_an_id_that_occurs_twice_is_refused(extra: bytes, at_field: int) -> None:
    refused(COMMAND, image() + extra, "duplicate", at_field)


@pytest.mark.req("E-08", "E-30")
@pytest.mark.parametrize("repeat", [False, True])
def test_many_unordered_unknown_ids_cost_no_more_memory_than_the_body(repeat: bool) -> None:
    count = 500_000
    ids = [256 + index * 7919 % count for index in range(count)]
    if repeat:
        ids[-1] = ids[0]
    data = b"".join(encode_varint(number) + b"\4\0" for number in ids)
    tracemalloc.start()
    try:
        if repeat:
            refused(Schema([]), data, "duplicate", 0)
        else:
            Schema([]).scan(data)
        assert tracemalloc.get_traced_memory()[1] <= len(data)
    finally:
        tracemalloc.stop()


@pytest.mark.req("E-10")
@pytest.mark.parametrize("wire_type", [0, 1, 2, 3, 5, 6, 7, 8, 0x84, 255])
def test_a_known_field_of_another_wire_type_is_refused(wire_type: int) -> None:
    refused(COMMAND, bytes([1, wire_type]) + b"\4\0\0\0\7" + image(f1=None), "wire_type", 1)


@pytest.mark.parametrize("wire_type", [0, 1, 2, 3, 5, 6, 7, 255])
def test_an_unknown_field_of_another_wire_type_is_refused(wire_type: int) -> None:
    refused(COMMAND, image() + bytes([99, wire_type, 0]), "wire_type", 99)


@pytest.mark.parametrize("field_id", [0, 2**32, 2**64 - 1])
def test_ids_outside_of_32_bits_are_refused(field_id: int) -> None:
    refused(COMMAND, image() + encode_varint(field_id) + b"\4\0", "field_id", 0)


@pytest.mark.req("E-11")
def test_ids_are_scoped_per_message_and_start_at_one() -> None:
    data = field(1, b"\0\0\0\1")
    assert Schema([(1, FIXED, 4, 4, True)]).scan(data).u32(1) == 1
    assert Schema([(1, LEAF, 0, 0, False)]).scan(field(1, leaf(b""))).leaf(1) == b""
    refused(Schema([(1, BOOL, 1, 1, True)]), data, "width", 1)
    with pytest.raises(ValueError, match="field id 0"):
        Schema([(0, FIXED, 4, 4, True)])
    with pytest.raises(ValueError, match="field id 0"):
        Writer().field_u32(0, 1)


@pytest.mark.req("E-12")
def test_an_absent_optional_field_is_not_there() -> None:
    error = Schema([(1, FIXED, 4, 4, False), (2, FIXED, 2, 2, True), (3, STR, 0, 1024, True)])
    writer = Writer()
    writer.field_u16(2, 4)
    writer.field_text(3, "")
    data = writer.take()
    assert data.startswith(bytes.fromhex("020402"))
    fields = error.scan(data)
    assert not fields.has(1)
    with pytest.raises(TlvError, match="field 1: missing"):
        fields.u32(1)


@pytest.mark.req("E-13")
@pytest.mark.parametrize("field_id", sorted(REQUIRED))
def test_a_missing_required_field_is_refused(field_id: int) -> None:
    refused(COMMAND, image(**{f"f{field_id}": None}), "missing", field_id)


@pytest.mark.req("E-14", "E-24")
@pytest.mark.parametrize(
    ("field_id", "widths"), [(1, (0, 3, 5)), (4, (1, 3)), (3, (15, 17)), (2, (63, 65)), (9, (7, 9)), (8, (0, 2))]
)
def test_a_value_of_another_width_is_refused(field_id: int, widths: tuple[int, ...]) -> None:
    for width in widths:
        refused(COMMAND, image(**{f"f{field_id}": b"\1" * width}), "width", field_id)


def test_a_nested_image_is_bounded() -> None:
    for size in (2, 1666):
        assert COMMAND.scan(image(f6=bytes(size))).raw(6) == bytes(size)
    refused(COMMAND, image(f6=b"\0"), "width", 6)
    refused(COMMAND, image(f6=bytes(1667)), "cap", 6)


@pytest.mark.parametrize("field_id", [1, 3])
def test_an_id_or_counter_of_zero_is_refused(field_id: int) -> None:
    width = len(REQUIRED[field_id])
    refused(COMMAND, image(**{f"f{field_id}": bytes(width)}), "zero", field_id)
    assert COMMAND.scan(image(**{f"f{field_id}": bytes(width - 1) + b"\1"})).has(field_id)


@pytest.mark.req("E-15")
def test_numbers_are_big_endian() -> None:
    schema = Schema([(1, FIXED, 1, 1, True), (2, FIXED, 2, 2, True), (4, FIXED, 4, 4, True), (8, FIXED, 8, 8, True)])
    data = body([(1, b"\xfe"), (2, b"\xfe\xdc"), (4, b"\xfe\xdc\xba\x98"), (8, b"\xfe\xdc\xba\x98\x76\x54\x32\x10")])
    fields = schema.scan(data)
    assert (fields.u8(1), fields.u16(2), fields.u32(4), fields.u64(8)) == (
        0xFE,
        0xFEDC,
        0xFEDCBA98,
        0xFEDCBA9876543210,
    )
    assert fields.i32(4) == 0xFEDCBA98 - 2**32
    assert schema.scan(body([(1, b"\0"), (2, b"\0\0"), (4, b"\xff" * 4), (8, bytes(8))])).i32(4) == -1


@pytest.mark.req("E-16")
@pytest.mark.parametrize("content", [b"", b"a", bytes(range(256)), bytes(1000)])
def test_a_leaf_has_its_length_in_front(content: bytes) -> None:
    fields = COMMAND.scan(image(f5=len(content).to_bytes(4, "big") + content))
    assert fields.leaf(5) == content
    assert fields.leaf_view(5) == content
    assert fields.raw(5) == leaf(content)


@pytest.mark.req("E-17", "E-23")
@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b"", "truncated"),
        (b"\0\0\0", "truncated"),
        (b"\xff\xff\xff\xff" + bytes(6), "length"),
        (b"\0\0\0\7" + bytes(6), "length"),
        (b"\0\0\0\5" + bytes(6), "trailing"),
        (leaf(bytes(1001)), "cap"),
    ],
)
def test_a_leaf_that_does_not_fit_its_field_or_cap_is_refused(value: bytes, reason: str) -> None:
    refused(COMMAND, image(f5=value), reason, 5)


def test_text_has_a_lower_and_an_upper_bound() -> None:
    refused(COMMAND, image(f7=leaf(b"")), "width", 7)
    refused(COMMAND, image(f7=leaf("é".encode() * 4 + b"x")), "cap", 7)
    assert COMMAND.scan(image(f7=leaf("é".encode() * 4))).text(7) == "éééé"


BAD_UTF8 = [
    "c0af", "c1bf", "e080af", "e09fbf", "f08080af", "f08fbfbf",  # overlong
    "eda080", "edbfbf",  # surrogates
    "f4908080", "f5808080", "ff", "fe",  # above U+10FFFF or never used
    "80", "bf", "c3", "e282", "f09f98", "c328", "e28228", "f09f9828", "f0289f98",  # tails
]  # fmt: skip
GOOD_UTF8 = ["c280", "dfbf", "e0a080", "ed9fbf", "ee8080", "efbfbf", "f0908080", "f48fbfbf", "00", "7f"]


@pytest.mark.req("E-18")
@pytest.mark.parametrize("sequence", BAD_UTF8)
@pytest.mark.parametrize("around", [(0, 0), (1, 0), (8, 0), (7, 8), (16, 3), (0, 9)])
def test_invalid_utf8_is_refused(sequence: str, around: tuple[int, int]) -> None:
    schema = Schema([(1, STR, 0, 100, True)])
    content = b"a" * around[0] + bytes.fromhex(sequence) + b"z" * around[1]
    refused(schema, field(1, leaf(content)), "utf8", 1)
    # The same bytes are fine where no text is declared.
    assert Schema([(1, LEAF, 0, 100, True)]).scan(field(1, leaf(content))).leaf(1) == content


@pytest.mark.req("E-18")
@pytest.mark.parametrize("sequence", GOOD_UTF8)
def test_the_edges_of_utf8_are_accepted(sequence: str) -> None:
    schema = Schema([(1, STR, 0, 100, True)])
    for content in (bytes.fromhex(sequence), b"12345678" + bytes.fromhex(sequence) * 3 + b"z"):
        assert schema.scan(field(1, leaf(content))).text(1) == content.decode()


@pytest.mark.req("E-18")
@pytest.mark.parametrize(("cut", "next_id"), [("c3", 0xA9), ("e282", 300), ("f09f98", 0x80)])
def test_a_sequence_does_not_go_on_in_the_next_field(cut: str, next_id: int) -> None:
    following = field(next_id, b"")
    assert following[0] & 0xC0 == 0x80
    refused(Schema([(1, STR, 0, 100, True)]), field(1, leaf(bytes.fromhex(cut))) + following, "utf8", 1)


@pytest.mark.req("E-19")
def test_a_bool_is_zero_or_one() -> None:
    assert COMMAND.scan(image(f8=b"\0")).boolean(8) is False
    assert COMMAND.scan(image(f8=b"\1")).boolean(8) is True
    for value in (b"\2", b"\x80", b"\xff"):
        refused(COMMAND, image(f8=value), "bool", 8)


@pytest.mark.req("E-23", "E-24")
def test_a_guard_of_65_bytes_is_refused() -> None:
    refused(COMMAND, image(f2=bytes(65)), "width", 2)


@pytest.mark.req("E-25")
def test_workload_frames_close_the_skip_rule() -> None:
    strict = Schema([(1, FIXED, 2, 2, True), (2, FIXED, 2, 2, True), (3, FIXED, 2, 2, True)], strict=True)
    one, two, three = (field(number, b"\0\1") for number in (1, 2, 3))
    assert strict.scan(one + two + three).u16(3) == 1
    refused(strict, one + two + three + field(12, b""), "unknown", 12)
    refused(strict, one + two + three + field(300, b""), "unknown", 300)
    refused(strict, two + one + three, "order", 1)
    refused(strict, one + three + two, "order", 2)
    refused(strict, one + two + two + three, "duplicate", 2)
    refused(strict, one + three, "missing", 2)
    refused(strict, one + two, "missing", 3)
    refused(strict, one + two + field(3, b"\0\1\2"), "width", 3)


@pytest.mark.parametrize("cut", range(1, len(image())))
def test_every_prefix_is_refused(cut: int) -> None:
    with pytest.raises(TlvError):
        COMMAND.scan(image()[:cut])


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_views_outlive_the_scan_and_the_callers_reference(kind: Callable[[bytes], bytes]) -> None:
    fields = COMMAND.scan(kind(image(f7=leaf(b"abc"))))
    view, content = fields.view(3), fields.leaf_view(7)
    del fields
    assert view.readonly
    assert view.format == "B"
    assert bytes(view) == b"\x88" * 16
    assert bytes(content) == b"abc"


def test_a_mutable_body_cannot_be_resized_under_its_table() -> None:
    data = bytearray(image())
    fields = COMMAND.scan(data)
    with pytest.raises(BufferError):
        data.clear()
    del fields
    data.clear()


@pytest.mark.parametrize(("kept", "left"), [(0, b""), (45, field(400, b"x" * 40))])
def test_a_body_that_was_changed_after_all_cannot_lead_out_of_it(kept: int, left: bytes) -> None:
    data = bytearray(body([(400, b"x" * 40), (300, b"y" * 40)]))
    fields = Schema([]).scan(data)
    data[kept:] = b"\xff" * (len(data) - kept)
    assert fields.canonical() == left
    assert fields.unknown() == left


def test_a_getter_refuses_a_field_of_another_kind_or_width() -> None:
    fields = COMMAND.scan(image(f7=leaf(b"abc")))
    for getter in (fields.u8, fields.u16, fields.u64):
        with pytest.raises(TlvError, match="field 1: width"):
            getter(1)
    for wrong in (
        lambda: fields.leaf(2),
        lambda: fields.leaf_view(6),
        lambda: fields.text(5),
        lambda: fields.boolean(4),
    ):
        with pytest.raises((TypeError, TlvError)):
            wrong()
    assert fields.leaf(7) == b"abc"


@pytest.mark.parametrize("field_id", [-1, 0, 6, 10, 255, 256, 2**31])
def test_a_getter_of_a_field_that_is_not_there_says_so(field_id: int) -> None:
    for fields in (COMMAND.scan(image()), Fields()):
        assert fields.has(field_id) is False
        for getter in (fields.u32, fields.raw, fields.view, fields.leaf, fields.leaf_view, fields.text, fields.boolean):
            with pytest.raises(TlvError, match="missing"):
                getter(field_id)
    assert Fields().canonical() == Fields().unknown() == b""


def test_a_table_gives_no_buffer_of_its_own() -> None:
    for owner in (COMMAND.scan(image()), COMMAND.scan(image()).view(3).obj):
        with pytest.raises(BufferError):
            memoryview(owner)  # type: ignore[arg-type]


def test_a_body_beyond_31_bits_is_refused_unread(tmp_path: Path) -> None:
    with (tmp_path / "sparse").open("w+b") as file:
        file.truncate(2**31)
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as huge, memoryview(huge) as view:
            refused(Schema([]), view, "cap", 0)


@pytest.mark.parametrize(
    "fields",
    [
        [(256, FIXED, 1, 1, True)],
        [(1, FIXED, 1, 1, True), (1, RAW, 0, 1, True)],
        [(1, FIXED, 1, 2, True)],
        [(1, RAW, 2, 1, True)],
        [(1, RAW, -1, 1, True)],
        [(1, RAW, 0, 2**31, True)],
        [(1, 5, 0, 1, True)],
        [(1, LEAF | NONZERO, 0, 1, True)],
        [(number, FIXED, 1, 1, True) for number in range(1, 66)],
    ],
)
def test_a_schema_that_makes_no_sense_is_refused(fields: list[tuple[int, int, int, int, bool]]) -> None:
    with pytest.raises(ValueError, match=r"field|bounds|more than"):
        Schema(fields)


def test_each_of_64_fields_is_required_and_read() -> None:
    schema = Schema([(number, FIXED, 1, 1, True) for number in range(192, 256)])
    values = {number: bytes([number]) for number in range(192, 256)}
    assert schema.scan(body(values.items())).u8(255) == 255
    for absent in values:
        refused(schema, body(item for item in values.items() if item[0] != absent), "missing", absent)


def test_an_error_keeps_its_reason_when_it_travels() -> None:
    with pytest.raises(TlvError) as caught:
        COMMAND.scan(image(f4=b""))
    copied = pickle.loads(pickle.dumps(caught.value))
    assert (type(copied), copied.reason, copied.field, str(copied)) == (TlvError, "width", 4, "field 4: width")
    assert str(TlvError("trailing")) == "trailing"
