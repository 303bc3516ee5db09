"""Images of values: the one place that says how a type looks in bytes (E-14..E-24, P3-60..62, P4-01, P4-04).

A value has the same image as a column of a positional record and as the value of a top-level TLV field (the field
only adds its id, wire type and length), so a :class:`Codec` serves both. It tells the one-pass scan what it may check
by width, reads the image through a bounds-checked cursor, writes it, and names itself for the documentation.

Readers raise ``MalformedMessage`` or ``TlvError``; writers raise ``LocalProtocolError``, or an error that
:func:`written` turns into it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum, IntFlag
from typing import Any, Generic, TypeVar

from cext.tlv import BOOL, FIXED, LEAF, NONZERO, RAW, STR, Cursor, Fields, TlvError, Writer
from sidecar.coordinator.wire.errors import LocalProtocolError, MalformedMessage
from sidecar.coordinator.wire.limits import HARD, SCHEMA

T = TypeVar("T")
E = TypeVar("E", bound=IntEnum)
F = TypeVar("F", bound=IntFlag)

_PREFIX = 4
"""Bytes of the u32 length in front of a leaf or a framed image."""

_READ_UINT: dict[int, Callable[[Cursor], int]] = {1: Cursor.u8, 2: Cursor.u16, 4: Cursor.u32, 8: Cursor.u64}
_TAKE_UINT: dict[int, Callable[[Fields, int], int]] = {1: Fields.u8, 2: Fields.u16, 4: Fields.u32, 8: Fields.u64}
_WRITE_UINT: dict[int, Callable[[Writer, int], None]] = {1: Writer.u8, 2: Writer.u16, 4: Writer.u32, 8: Writer.u64}


@dataclass(frozen=True, slots=True)
class Codec(Generic[T]):
    """How one type looks in bytes.

    ``kind``, ``lo`` and ``hi`` are what the TLV schema checks in its one pass: bytes of the whole image, or of the
    content for LEAF and STR. ``checked`` says that this pass leaves nothing more to check.
    """

    doc: str
    kind: int
    lo: int
    hi: int
    read: Callable[[Cursor], T]
    write: Callable[[Writer, T], None]
    take: Callable[[Fields, int], T]
    checked: bool
    parts: Any = None
    """What a composite image is made of, for a reader that names each part: one of the classes below, the class of a
    positional record, or the members of a union by their tag. ``None`` for a plain value."""

    @property
    def width(self) -> tuple[int, int]:
        """Least and most bytes of the whole image."""
        prefix = _PREFIX if self.kind in (LEAF, STR) else 0
        return self.lo + prefix, min(self.hi + prefix, HARD.frame)


@dataclass(frozen=True, slots=True)
class OptionalOf:
    """Presence byte, then the value."""

    codec: Codec[Any]


@dataclass(frozen=True, slots=True)
class FramedOf:
    """``u32 length`` of at most ``high``, then an image of exactly that length."""

    codec: Codec[Any]
    high: int


@dataclass(frozen=True, slots=True)
class ListOf:
    """``u16 count`` of at most ``cap``, then the elements; no two of one ``order`` where there is one."""

    codec: Codec[Any]
    cap: int
    order: Callable[[Any], bytes] | None


def decode_image(codec: Codec[T], data: bytes | memoryview) -> T:
    """The value whose image is exactly ``data``; anything else is ``MalformedMessage`` (E-23)."""
    try:
        cursor = Cursor(data)
        value = codec.read(cursor)
        cursor.finish()
    except TlvError as error:
        raise MalformedMessage(f"{codec.doc}: {error.reason}") from None
    return value


def encode_image(codec: Codec[T], value: T) -> bytes:
    """The image of ``value``; raises ``LocalProtocolError`` when it has none."""
    return written(codec.doc, lambda out: codec.write(out, value))


def written(name: str, write: Callable[[Writer], None]) -> bytes:
    """What ``write`` puts into a fresh writer; whatever is wrong with a value becomes ``LocalProtocolError``."""
    out = Writer()
    try:
        write(out)
        return out.take()
    except LocalProtocolError:
        raise
    except (ValueError, OverflowError, TypeError, AttributeError) as error:
        raise LocalProtocolError(f"{name}: {type(error).__name__}") from None


def _take_image(read: Callable[[Cursor], T]) -> Callable[[Fields, int], T]:
    def take(fields: Fields, field_id: int) -> T:
        cursor = Cursor(fields.view(field_id))
        value = read(cursor)
        cursor.finish()
        return value

    return take


def uint(width: int, *, lowest: int = 0, highest: int | None = None, doc: str = "") -> Codec[Any]:
    """Unsigned big-endian integer of ``width`` bytes, within ``lowest..highest`` (E-15)."""
    read_raw, take_raw, write_raw = _READ_UINT[width], _TAKE_UINT[width], _WRITE_UINT[width]
    top = (1 << 8 * width) - 1 if highest is None else highest
    doc = doc or f"u{8 * width}"

    def within(value: int) -> int:
        if not lowest <= value <= top:
            raise MalformedMessage(f"{doc}: out of range")
        return value

    def write(out: Writer, value: int) -> None:
        if not lowest <= value <= top:
            raise LocalProtocolError(f"{doc} must be in {lowest}..{top}")
        write_raw(out, value)

    kind = FIXED | NONZERO if lowest else FIXED
    if highest is None and lowest <= 1:
        read = (lambda cursor: within(read_raw(cursor))) if lowest else read_raw
        return Codec(doc, kind, width, width, read, write, take_raw, True)
    return Codec(
        doc,
        kind,
        width,
        width,
        lambda cursor: within(read_raw(cursor)),
        write,
        lambda fields, field_id: within(take_raw(fields, field_id)),
        False,
    )


def member(width: int, values: type[E], *, only: frozenset[int] | None = None) -> Codec[E]:
    """Closed enum of ``width`` bytes; other values are malformed (P7-12, P7-27). ``only`` narrows the set."""
    read_raw, take_raw, write_raw = _READ_UINT[width], _TAKE_UINT[width], _WRITE_UINT[width]
    members = {int(value): value for value in values if only is None or value in only}
    narrowed = "" if only is None else f" {sorted(members)}"
    doc = f"u{8 * width} {values.__name__}{narrowed}"

    def unknown(value: int) -> MalformedMessage:
        return MalformedMessage(f"{doc}: {value} is not allocated")

    def read(cursor: Cursor) -> E:
        value = read_raw(cursor)
        found = members.get(value)
        if found is None:
            raise unknown(value)
        return found

    def take(fields: Fields, field_id: int) -> E:
        value = take_raw(fields, field_id)
        found = members.get(value)
        if found is None:
            raise unknown(value)
        return found

    def write(out: Writer, value: E) -> None:
        if value not in members:
            raise LocalProtocolError(f"{doc}: {value} is not allocated")
        write_raw(out, value)

    return Codec(doc, FIXED, width, width, read, write, take, False)


def bits(known: F) -> Codec[F]:
    """u64 bit set without unallocated bits (P6-02)."""
    kind, mask = type(known), int(known)
    doc = f"u64 {kind.__name__} set"

    def allocated(value: int) -> F:
        if value & ~mask:
            raise MalformedMessage(f"{doc}: bits outside 0x{mask:x}")
        return kind(value)

    def write(out: Writer, value: F) -> None:
        if value & ~mask:
            raise LocalProtocolError(f"{doc}: bits outside 0x{mask:x}")
        out.u64(value)

    return Codec(
        doc,
        FIXED,
        8,
        8,
        lambda cursor: allocated(cursor.u64()),
        write,
        lambda fields, field_id: allocated(fields.u64(field_id)),
        False,
    )


def fixed(width: int, *, nonzero: bool = False, doc: str = "") -> Codec[Any]:
    """Exactly ``width`` bytes without a length (E-24); ``nonzero`` refuses the all-zero value (P4-01)."""
    doc = doc or f"bytes{width}"
    zero = bytes(width)

    def read(cursor: Cursor) -> bytes:
        value = cursor.take(width)
        if nonzero and value == zero:
            raise MalformedMessage(f"{doc}: all zero")
        return value

    def write(out: Writer, value: bytes) -> None:
        if len(value) != width or (nonzero and value == zero):
            raise LocalProtocolError(f"{doc} must have {width} bytes" + (", not all zero" if nonzero else ""))
        out.raw(value)

    return Codec(doc, FIXED | NONZERO if nonzero else FIXED, width, width, read, write, Fields.raw, True)


def leaf(cap: int) -> Codec[bytes]:
    """``u32 length`` and that many raw bytes, at most ``cap`` (E-16, E-17)."""

    def write(out: Writer, value: bytes) -> None:
        if len(value) > cap:
            raise LocalProtocolError(f"bytes are longer than {cap}")
        out.leaf(value)

    return Codec(f"bytes ≤ {cap}", LEAF, 0, cap, lambda cursor: cursor.leaf(cap), write, Fields.leaf, True)


def exactly(content: bytes) -> Codec[bytes]:
    """A leaf with one legal content (W1-01, W1-03)."""
    size = len(content)
    doc = f'"{content.decode("ascii")}"'

    def same(value: bytes) -> bytes:
        if value != content:
            raise MalformedMessage(f"expected {doc}")
        return value

    def write(out: Writer, value: bytes) -> None:
        if value != content:
            raise LocalProtocolError(f"must be {doc}")
        out.leaf(value)

    return Codec(
        doc,
        LEAF,
        size,
        size,
        lambda cursor: same(cursor.leaf(size)),
        write,
        lambda fields, field_id: same(fields.leaf(field_id)),
        False,
    )


def text(cap: int, *, fault: Callable[[str], str | None] | None = None) -> Codec[str]:
    """``u32 length`` and that many bytes of strict UTF-8 (E-16, E-18); ``fault`` says what else may be wrong."""

    def legal(value: str) -> str:
        if fault is not None and (problem := fault(value)):
            raise MalformedMessage(problem)
        return value

    def write(out: Writer, value: str) -> None:
        if len(value.encode()) > cap:
            raise LocalProtocolError(f"text is longer than {cap} bytes")
        if fault is not None and (problem := fault(value)):
            raise LocalProtocolError(problem)
        out.text(value)

    def take(fields: Fields, field_id: int) -> str:
        return legal(fields.text(field_id))

    return Codec(f"str ≤ {cap}", STR, 0, cap, lambda cursor: legal(cursor.text(cap)), write, take, fault is None)


def optional(codec: Codec[T]) -> Codec[T | None]:
    """Optional inside a positional record: presence byte 0 or 1, then the value (E-20)."""

    def read(cursor: Cursor) -> T | None:
        return codec.read(cursor) if cursor.presence() else None

    def write(out: Writer, value: T | None) -> None:
        out.u8(value is not None)
        if value is not None:
            codec.write(out, value)

    doc, widest = f"optional<{codec.doc}>", 1 + codec.width[1]
    return Codec(doc, RAW, 1, widest, read, write, _take_image(read), False, OptionalOf(codec))


def framed(codec: Codec[T], *, cap: int) -> Codec[T]:
    """``u32 length`` and an image of exactly that length, read by a decoder bounded by it (E-21, E-23)."""
    low, high = codec.width
    high = min(high, cap)

    def read(cursor: Cursor) -> T:
        inner = Cursor(cursor.leaf(high))
        value = codec.read(inner)
        inner.finish()
        return value

    def write(out: Writer, value: T) -> None:
        image = encode_image(codec, value)
        if len(image) > high:
            raise LocalProtocolError(f"{codec.doc} is longer than {high} bytes")
        out.leaf(image)

    def take(fields: Fields, field_id: int) -> T:
        return decode_image(codec, fields.leaf_view(field_id))

    return Codec(f"u32 length ‖ {codec.doc}", LEAF, low, high, read, write, take, False, FramedOf(codec, high))


def listing(
    codec: Codec[T],
    *,
    cap: int,
    order: Callable[[T], bytes] | None = None,
) -> Codec[tuple[T, ...]]:
    """``u16 count`` and that many elements, at most ``cap``; nothing is reserved by count (E-22, P3-60).

    With ``order`` the elements are a set: two of one key are malformed, the writer sorts, the reader takes any order
    and keeps it (P8-03, P8-04).
    """
    high = codec.width[1]

    def read(cursor: Cursor) -> tuple[T, ...]:
        count = cursor.u16()
        if count > cap:
            raise MalformedMessage(f"list of {codec.doc}: {count} elements, at most {cap}")
        values = []
        for _ in range(count):
            values.append(codec.read(cursor))
        if order is not None and len({order(value) for value in values}) != count:
            raise MalformedMessage(f"list of {codec.doc}: two elements of one key")
        return tuple(values)

    def write(out: Writer, values: tuple[T, ...]) -> None:
        if len(values) > cap:
            raise LocalProtocolError(f"list of {codec.doc} is longer than {cap}")
        if order is not None:
            values = tuple(sorted(values, key=order))
            if len({order(value) for value in values}) != len(values):
                raise LocalProtocolError(f"list of {codec.doc}: two elements of one key")
        out.u16(len(values))
        for value in values:
            codec.write(out, value)

    widest = min(2 + cap * high, HARD.frame)
    doc, parts = f"list<{codec.doc}> ≤ {cap}", ListOf(codec, cap, order)
    return Codec(doc, RAW, 2, widest, read, write, _take_image(read), False, parts)


def _read_i32(cursor: Cursor) -> int:
    return cursor.i32()


def _write_flag(out: Writer, value: bool) -> None:
    if not isinstance(value, bool):
        raise LocalProtocolError("bool must be True or False")
    out.u8(value)


U8: Codec[int] = uint(1)
U16: Codec[int] = uint(2)
U32: Codec[int] = uint(4)
U64: Codec[int] = uint(8)
I32: Codec[int] = Codec("i32", FIXED, 4, 4, _read_i32, Writer.i32, Fields.i32, True)
FLAG: Codec[bool] = Codec("bool", BOOL, 1, 1, Cursor.presence, _write_flag, Fields.boolean, True)
REQUEST_ID: Codec[int] = uint(4, lowest=1, doc="u32 ≠ 0")
"""Connection-local request id (P7-09)."""
ID16: Codec[Any] = fixed(16, nonzero=True, doc="id16")
"""Any nominal id; the field's annotation says which (P4-01)."""
BYTES32: Codec[Any] = fixed(32)
BYTES64: Codec[bytes] = fixed(64)
NONCE: Codec[bytes] = fixed(32, nonzero=True, doc="nonce32")
"""A handshake nonce is never all zero (W3-08)."""
COUNTER: Codec[Any] = uint(8, lowest=1, doc="u64 ≠ 0")
"""Any checked counter; the field's annotation says which (P4-04)."""
CUT: Codec[Any] = uint(8, doc="u64 cut")
"""EventCut or DeliveryCut; 0 = none yet (P4-05)."""
SCHEMA_1: Codec[int] = uint(2, lowest=SCHEMA, highest=SCHEMA, doc=f"u16 = {SCHEMA}")
"""The only schema of records, facts and events in this version (P7-24)."""
SECONDS: Codec[int] = uint(8, doc="u64 s")
"""Unix seconds."""
