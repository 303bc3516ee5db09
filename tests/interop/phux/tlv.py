"""Bytes: varints, positional images and TLV bodies (rows E-01 to E-30).

A *codec* turns one value into its positional image and back. A *body* is a run of TLV fields, each of which holds one
image; it is read into a dictionary of named values by a list of `Field`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

BYTES = 4  # the only wire type that a body may hold (E-09)
MAX_FIELD_ID = 0xFFFF_FFFF
MAX_VARINT_BYTES = 10


class Malformed(Exception):  # noqa: N818 - the word of the error code
    """Bytes that are not the canonical image of anything: MALFORMED_MESSAGE."""


# ---- varints ----


def varint(value: int) -> bytes:
    """Shortest unsigned LEB128 (E-03)."""
    out = bytearray()
    while value > 0x7F:
        out.append(0x80 | value & 0x7F)
        value >>= 7
    out.append(value)
    return bytes(out)


class Image:
    """A cursor over bytes; every read is checked against the end before anything is kept of it."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    @property
    def left(self) -> int:
        return len(self._data) - self._at

    def take(self, count: int) -> bytes:
        if count > self.left:
            raise Malformed(f"{count} bytes wanted, {self.left} left")
        start, self._at = self._at, self._at + count
        return self._data[start : self._at]

    def uint(self, width: int) -> int:
        return int.from_bytes(self.take(width), "big")

    def varint(self) -> int:
        value = 0
        for place in range(MAX_VARINT_BYTES):
            byte = self.take(1)[0]
            value |= (byte & 0x7F) << 7 * place
            if byte < 0x80:
                if byte == 0 and place:
                    raise Malformed("a varint that is not the shortest")
                return value
        raise Malformed("a varint of more than 10 bytes")

    def end(self) -> None:
        if self.left:
            raise Malformed(f"{self.left} bytes too many")


# ---- positional images ----


@dataclass(frozen=True)
class Codec:
    """How one type is written and read at its place in an image."""

    write: Callable[[Any], bytes]
    read: Callable[[Image], Any]

    def parse(self, data: bytes) -> Any:
        """The value whose image is all of `data` (E-14, E-23)."""
        image = Image(data)
        value = self.read(image)
        image.end()
        return value


def checked(codec: Codec, valid: Callable[[Any], bool], why: str) -> Codec:
    """The same image with fewer values. Raises Malformed on both ways."""

    def hold(value: Any) -> Any:
        if not valid(value):
            raise Malformed(f"{why}: {value!r}")
        return value

    return Codec(lambda value: codec.write(hold(value)), lambda image: hold(codec.read(image)))


def uint(width: int) -> Codec:
    """Unsigned big-endian integer of `width` bytes (E-15)."""
    return Codec(lambda value: int(value).to_bytes(width, "big"), lambda image: image.uint(width))


def fixed(width: int) -> Codec:
    """Bytes of one exact width, without a length (E-24)."""
    raw = Codec(bytes, lambda image: image.take(width))
    return checked(raw, lambda value: len(value) == width, f"not {width} bytes")


def leaf(cap: int = 0xFFFF_FFFF) -> Codec:
    """`u32 length, raw` (E-16); the length is held against the cap before the bytes are taken (E-17)."""

    def write(value: bytes) -> bytes:
        if len(value) > cap:
            raise Malformed(f"{len(value)} bytes, at most {cap}")
        return len(value).to_bytes(4, "big") + value

    def read(image: Image) -> bytes:
        length = image.uint(4)
        if length > cap:
            raise Malformed(f"{length} bytes, at most {cap}")
        return image.take(length)

    return Codec(write, read)


def text(cap: int = 0xFFFF_FFFF) -> Codec:
    """A leaf of UTF-8 (E-18)."""
    raw = leaf(cap)

    def read(image: Image) -> str:
        try:
            return raw.read(image).decode()  # type: ignore[no-any-return]
        except UnicodeDecodeError:
            raise Malformed("not UTF-8") from None

    return Codec(lambda value: raw.write(value.encode()), read)


def literal(image: bytes) -> Codec:
    """A leaf with one legal content."""
    return checked(leaf(len(image)), lambda value: value == image, f"not {image!r}")


def closed(kind: type[IntEnum], width: int) -> Codec:
    """A member of a closed enum (P7-12, P7-27)."""

    def read(image: Image) -> IntEnum:
        value = image.uint(width)
        try:
            return kind(value)
        except ValueError:
            raise Malformed(f"{kind.__name__} {value}") from None

    return Codec(lambda value: kind(value).to_bytes(width, "big"), read)


def optional(codec: Codec) -> Codec:
    """Nested `optional<T>`: 0, or 1 and the value; None stands for absent (E-20)."""

    def read(image: Image) -> Any:
        return codec.read(image) if BOOL.read(image) else None

    return Codec(lambda value: b"\0" if value is None else b"\1" + codec.write(value), read)


def list_of(codec: Codec, cap: int) -> Codec:
    """`u16 count` and so many elements (E-22)."""

    def write(values: Sequence[Any]) -> bytes:
        if len(values) > cap:
            raise Malformed(f"{len(values)} elements, at most {cap}")
        return len(values).to_bytes(2, "big") + b"".join(codec.write(value) for value in values)

    def read(image: Image) -> list[Any]:
        count = image.uint(2)
        if count > cap:
            raise Malformed(f"{count} elements, at most {cap}")
        return [codec.read(image) for _ in range(count)]

    return Codec(write, read)


def record(kind: Callable[..., Any], *codecs: Codec) -> Codec:
    """Members one after the other; `kind` is a NamedTuple class with as many members."""

    def write(value: Iterable[Any]) -> bytes:
        return b"".join(codec.write(member) for codec, member in zip(codecs, value, strict=True))

    return Codec(write, lambda image: kind(*[codec.read(image) for codec in codecs]))


def union(kinds: Mapping[int, tuple[type, Codec]]) -> Codec:
    """`u8 tag` and the image of the member that it names (E-21)."""
    tags = {kind: tag for tag, (kind, _) in kinds.items()}

    def write(value: Any) -> bytes:
        tag = tags[type(value)]
        return bytes([tag]) + kinds[tag][1].write(value)

    def read(image: Image) -> Any:
        tag = image.uint(1)
        if tag not in kinds:
            raise Malformed(f"union tag {tag}")
        return kinds[tag][1].read(image)

    return Codec(write, read)


U8, U16, U32, U64 = uint(1), uint(2), uint(4), uint(8)
BOOL = Codec(lambda value: bytes([bool(value)]), checked(U8, lambda value: value < 2, "not a bool").read)
I32 = Codec(
    lambda value: int(value).to_bytes(4, "big", signed=True),
    lambda image: int.from_bytes(image.take(4), "big", signed=True),
)
REQUEST_ID = checked(U32, bool, "a request id of zero")  # P7-09
COUNTER = checked(U64, bool, "a counter of zero")  # P4-04
CUT = U64  # 0 is before the first (P4-05)
IDENT = checked(fixed(16), any, "an id of zeros")  # P4-01
BYTES32, BYTES64 = fixed(32), fixed(64)


# ---- bodies ----


@dataclass(frozen=True)
class Field:
    """One known field of a body."""

    id: int
    name: str
    codec: Codec
    required: bool = True


def field_bytes(field_id: int, value: bytes) -> bytes:
    """One TLV field (E-02)."""
    return varint(field_id) + bytes([BYTES]) + varint(len(value)) + value


def split(body: bytes) -> list[tuple[int, bytes]]:
    """The fields of a body in the order of the wire. Raises Malformed (E-04, E-05, E-08, E-10)."""
    image = Image(body)
    fields: list[tuple[int, bytes]] = []
    seen: set[int] = set()
    while image.left:
        field_id = image.varint()
        if not 1 <= field_id <= MAX_FIELD_ID:
            raise Malformed(f"field id {field_id}")
        if field_id in seen:
            raise Malformed(f"field {field_id} twice")
        seen.add(field_id)
        if (wire_type := image.uint(1)) != BYTES:
            raise Malformed(f"field {field_id} with wire type {wire_type}")
        fields.append((field_id, image.take(image.varint())))
    return fields


class Body:
    """A body of known fields, and what it does with others.

    `strict` closes it: unknown and out-of-order fields are malformed (E-25).
    """

    UNKNOWN = "unknown"  # name under which unknown fields are kept, as one canonical byte string

    def __init__(self, *fields: Field, strict: bool = False) -> None:
        self.fields = fields
        self.strict = strict
        self._by_id = {field.id: field for field in fields}

    def encode(self, values: Mapping[str, Any]) -> bytes:
        """Each present field once, ids increasing (E-07, E-12); unknown fields come last, as given."""
        names = {field.name for field in self.fields}
        if stray := set(values) - names - {self.UNKNOWN}:
            raise KeyError(f"no such field: {sorted(stray)}")
        out = b""
        for field in self.fields:
            if values.get(field.name) is not None:
                out += field_bytes(field.id, field.codec.write(values[field.name]))
            elif field.required:
                raise KeyError(f"field {field.name} is required")
        return out + bytes(values.get(self.UNKNOWN, b""))

    def decode(self, body: bytes) -> dict[str, Any]:
        """Named values; absent optional fields are None. Raises Malformed."""
        found = split(body)
        ids = [field_id for field_id, _ in found]
        if self.strict and (ids != sorted(ids) or not set(ids) <= set(self._by_id)):
            raise Malformed("an unknown field or another order in a closed body")
        raw = dict(found)
        values: dict[str, Any] = {}
        for field in self.fields:
            if field.id in raw:
                values[field.name] = field.codec.parse(raw[field.id])
            elif field.required:
                raise Malformed(f"field {field.name} is missing")
            else:
                values[field.name] = None
        unknown = sorted(field_id for field_id in ids if field_id not in self._by_id)
        if unknown:
            values[self.UNKNOWN] = b"".join(field_bytes(field_id, raw[field_id]) for field_id in unknown)
        return values
