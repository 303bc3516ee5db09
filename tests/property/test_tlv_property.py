"""cext.tlv against its plain-Python oracle: valid, damaged and arbitrary bodies, cursors and writers."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cext.tlv import BOOL, FIXED, LEAF, NONZERO, RAW, STR, Cursor, Fields, Schema, TlvError, Writer, decode_varint
from tests.oracles import tlv as oracle

Spec = tuple[int, int, int, int, bool]
KNOWN_IDS = st.integers(1, 12) | st.sampled_from([127, 128, 255])
ANY_IDS = KNOWN_IDS | st.integers(13, 400) | st.integers(2**32 - 3, 2**32 - 1)


@st.composite
def specs(draw: st.DrawFn) -> list[Spec]:
    found = []
    for field_id in draw(st.lists(KNOWN_IDS, unique=True, max_size=8)):
        kind = draw(st.sampled_from([FIXED, FIXED | NONZERO, LEAF, STR, BOOL, RAW]))
        lo = draw(st.integers(0, 3) | st.sampled_from([4, 8, 16]))
        hi = lo if kind in (FIXED, FIXED | NONZERO) else lo + draw(st.integers(0, 200))
        found.append((field_id, kind, lo, hi, draw(st.booleans())))
    return found


def value_of(draw: st.DrawFn, kind: int, lo: int, hi: int, spoil: bool) -> bytes:
    """A legal value, or with `spoil` often one just beyond."""
    if kind == BOOL:
        return draw(st.sampled_from([b"\2", b"", b"\0\0", b"\1"] if spoil else [b"\0", b"\1"]))
    size = draw(st.sampled_from([lo, hi + 1, max(lo - 1, 0)]) if spoil else st.integers(lo, hi))
    if kind == STR:
        text = draw(st.text(max_size=size)).encode("utf-8", "surrogatepass")[:size]
        content = text + b"a" * (size - len(text))
    else:
        content = draw(st.binary(min_size=size, max_size=size))
    if kind not in (LEAF, STR):
        return content
    off = draw(st.sampled_from([0, 1, -1])) if spoil else 0
    return (len(content) + off & 0xFFFFFFFF).to_bytes(4, "big") + content


@st.composite
def bodies(draw: st.DrawFn, fields: list[Spec], strict: bool = False) -> bytes:
    spoiled, shuffled, damaged, cut = (draw(st.sampled_from([False, False, False, True])) for _ in range(4))
    items = []
    for field_id, kind, lo, hi, required in fields:
        if (required and not damaged) or draw(st.booleans()):
            items.append((field_id, value_of(draw, kind, lo, hi, spoiled)))
    if not strict or damaged:
        known = set() if damaged else {spec[0] for spec in fields}
        extra = st.tuples(ANY_IDS.filter(lambda number: number not in known), st.binary(max_size=140))
        items += draw(st.lists(extra, max_size=4, unique_by=None if damaged else lambda item: item[0]))
    data = bytearray(oracle.body(draw(st.permutations(items)) if shuffled else sorted(items)))
    if damaged and data:
        data[draw(st.integers(0, len(data) - 1))] = draw(st.sampled_from([0, 1, 4, 0x7F, 0x80, 0xFF]))
    return bytes(data[: draw(st.integers(0, len(data)))] if cut else data)


def outcome(call: Callable[..., Any], error: type[Any], *args: object) -> Any:
    try:
        return call(*args)
    except error as refusal:
        return refusal.reason, refusal.field


def compare(fields: list[Spec], data: bytes, strict: bool) -> None:
    real = outcome(lambda: Schema(fields, strict=strict).scan(data), TlvError)
    plain = outcome(lambda: oracle.scan(fields, data, strict=strict), oracle.TlvError)
    if not isinstance(real, Fields):
        assert real == plain
        return
    assert isinstance(plain, oracle.Scanned), plain
    assert real.unknown() == plain.unknown()
    assert real.canonical() == plain.canonical()
    for field_id, kind, *_ in fields:
        assert real.has(field_id) == (field_id in plain.values)
        if not real.has(field_id):
            continue
        value = plain.values[field_id]
        assert real.raw(field_id) == bytes(real.view(field_id)) == value
        if kind in (LEAF, STR):
            assert real.leaf(field_id) == bytes(real.leaf_view(field_id)) == value[4:]
        if kind == STR:
            assert real.text(field_id) == value[4:].decode()
        if kind == BOOL:
            assert real.boolean(field_id) == (value == b"\1")
        for width, getter in {1: real.u8, 2: real.u16, 4: real.u32, 8: real.u64}.items():
            number = outcome(getter, TlvError, field_id)
            assert number == (int.from_bytes(value, "big") if len(value) == width else ("width", field_id))


@pytest.mark.req("E-04", "E-05", "E-06", "E-08", "E-10", "E-13", "E-14", "E-17", "E-18", "E-19", "E-25")
@given(data=st.data(), fields=specs(), strict=st.booleans())
@settings(max_examples=200, deadline=None)
def test_scans_equal_the_oracle(data: st.DataObject, fields: list[Spec], strict: bool) -> None:
    compare(fields, data.draw(bodies(fields, strict)), strict)


@pytest.mark.req("E-30")
@given(data=st.binary(max_size=300), fields=specs(), strict=st.booleans())
@settings(max_examples=200, deadline=None)
def test_arbitrary_bytes_are_scanned_or_refused(data: bytes, fields: list[Spec], strict: bool) -> None:
    compare(fields, data, strict)


@pytest.mark.req("E-05", "E-30")
@given(data=st.binary(max_size=300), fields=specs())
@settings(max_examples=100, deadline=None)
def test_a_scan_allocates_no_more_than_its_table_and_the_body(data: bytes, fields: list[Spec]) -> None:
    schema = Schema(fields)
    outcome(lambda: schema.scan(data), TlvError)
    tracemalloc.start()
    try:
        outcome(lambda: schema.scan(data), TlvError)
        # An error object with its traceback, or the table, and at most four bytes for each unknown field.
        assert tracemalloc.get_traced_memory()[1] < 4096 + len(data)
    finally:
        tracemalloc.stop()


@pytest.mark.req("E-03", "E-04")
@given(value=st.integers(0, 2**64 - 1), noise=st.binary(max_size=12))
@settings(max_examples=200, deadline=None)
def test_varints_equal_the_oracle(value: int, noise: bytes) -> None:
    image = oracle.encode_varint(value)
    assert decode_varint(noise + image + noise, len(noise)) == (value, len(noise) + len(image))
    assert outcome(lambda: decode_varint(noise), TlvError) == outcome(
        lambda: oracle.decode_varint(noise), oracle.TlvError
    )


@pytest.mark.req("E-18")
@given(content=st.binary(max_size=24) | st.text(max_size=12).map(lambda text: text.encode("utf-8", "surrogatepass")))
@settings(max_examples=200, deadline=None)
def test_text_is_what_python_calls_utf8(content: bytes) -> None:
    image = oracle.leaf(content)
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError:
        assert outcome(lambda: Cursor(image).text(100), TlvError) == ("utf8", 0)
    else:
        assert Cursor(image).text(100) == text


READS: dict[str, tuple[Callable[[Cursor], object], Callable[[oracle.Cursor], object]]] = {
    "u8": (lambda c: c.u8(), lambda c: c.number(1)),
    "u16": (lambda c: c.u16(), lambda c: c.number(2)),
    "u32": (lambda c: c.u32(), lambda c: c.number(4)),
    "u64": (lambda c: c.u64(), lambda c: c.number(8)),
    "i32": (lambda c: c.i32(), lambda c: c.number(4, signed=True)),
    "take": (lambda c: c.take(3), lambda c: c.take(3)),
    "leaf": (lambda c: c.leaf(4), lambda c: c.leaf(4)),
    "text": (lambda c: c.text(4), lambda c: c.text(4)),
    "presence": (lambda c: c.presence(), lambda c: c.bounded(1, 1, "presence") == 1),
    "count": (lambda c: c.count(300), lambda c: c.bounded(2, 300, "count")),
    "tag": (lambda c: c.tag(5), lambda c: c.bounded(1, 5, "tag")),
    "finish": (lambda c: c.finish(), lambda c: c.finish()),
}


@pytest.mark.req("E-16", "E-17", "E-20", "E-21", "E-22", "E-23", "E-30", "P3-62")
@given(
    data=st.lists(
        st.sampled_from([b"\0", b"\1", b"\2", b"\0\0\0", b"\0\0\0\2", b"ab", b"\xc3\xa9", b"\xff"]), max_size=20
    ),
    calls=st.lists(st.sampled_from(sorted(READS)), max_size=20),
)
@settings(max_examples=200, deadline=None)
def test_cursors_equal_the_oracle(data: list[bytes], calls: list[str]) -> None:
    image = b"".join(data)
    real, plain = Cursor(b"\xee" + image + b"\xee" * 9, 1, 1 + len(image)), oracle.Cursor(image)
    for name in calls:
        read, reference = READS[name]
        result = outcome(read, TlvError, real)
        assert result == outcome(reference, oracle.TlvError, plain)
        assert real.remaining == plain.remaining


@pytest.mark.req("E-01", "E-02", "E-07")
@given(items=st.dictionaries(ANY_IDS, st.binary(max_size=300), max_size=20))
@settings(max_examples=200, deadline=None)
def test_what_is_written_is_what_is_scanned(items: dict[int, bytes]) -> None:
    writer = Writer()
    for field_id, value in sorted(items.items()):
        writer.field_raw(field_id, value)
    body = writer.take()
    assert body == oracle.body(sorted(items.items()))
    assert oracle.scan([], body).items == sorted(items.items())
    assert Schema([]).scan(body).unknown() == body
