"""Plain-Python TLV codec, written for clarity: the tests compare ``cext.tlv`` with it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

FieldSpec = tuple[int, int, int, int, bool]
FIXED, LEAF, STR, BOOL, RAW, NONZERO = 0, 1, 2, 3, 4, 0x10
WIRE_BYTES = 4


class TlvError(ValueError):
    def __init__(self, reason: str, field: int = 0) -> None:
        super().__init__(reason, field)
        self.reason, self.field = reason, field


def encode_varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def decode_varint(data: bytes, offset: int = 0, field: int = 0) -> tuple[int, int]:
    value = 0
    for index in range(10):
        if offset + index >= len(data):
            raise TlvError("truncated", field)
        byte = data[offset + index]
        value |= (byte & 0x7F) << (7 * index)
        if value >> 64:
            break
        if byte < 0x80:
            if index and byte == 0:
                break
            return value, offset + index + 1
    raise TlvError("varint", field)


def leaf(content: bytes) -> bytes:
    return len(content).to_bytes(4, "big") + content


def field(field_id: int, value: bytes) -> bytes:
    return encode_varint(field_id) + bytes([WIRE_BYTES]) + encode_varint(len(value)) + value


def body(fields: Iterable[tuple[int, bytes]]) -> bytes:
    return b"".join(field(*item) for item in fields)


def _check_leaf(kind: int, lo: int, hi: int, value: bytes) -> str | None:
    if len(value) < 4:
        return "truncated"
    length, content = int.from_bytes(value[:4], "big"), value[4:]
    if length != len(content):
        return "length" if length > len(content) else "trailing"
    if not lo <= length <= hi:
        return "cap" if length > hi else "width"
    if kind == STR:
        try:
            content.decode("utf-8")
        except UnicodeDecodeError:
            return "utf8"
    return None


def check(kind: int, lo: int, hi: int, value: bytes) -> str | None:
    """Why a value is refused, or None."""
    if kind in (LEAF, STR):
        return _check_leaf(kind, lo, hi, value)
    if kind == RAW:
        if lo <= len(value) <= hi:
            return None
        return "cap" if len(value) > hi else "width"
    if len(value) != (1 if kind == BOOL else lo):
        return "width"
    if kind == BOOL:
        return None if value in (b"\0", b"\1") else "bool"
    return "zero" if kind & NONZERO and not any(value) else None


@dataclass
class Scanned:
    items: list[tuple[int, bytes]]
    known: set[int]

    @property
    def values(self) -> dict[int, bytes]:
        return {field_id: value for field_id, value in self.items if field_id in self.known}

    def unknown(self) -> bytes:
        return body(sorted(item for item in self.items if item[0] not in self.known))

    def canonical(self) -> bytes:
        return body(sorted(self.items))


def _read_field(data: bytes, at: int) -> tuple[int, bytes, int]:
    field_id, at = decode_varint(data, at)
    if not 1 <= field_id <= 0xFFFFFFFF:
        raise TlvError("field_id")
    if at == len(data):
        raise TlvError("truncated", field_id)
    if data[at] != WIRE_BYTES:
        raise TlvError("wire_type", field_id)
    length, at = decode_varint(data, at + 1, field_id)
    if length > len(data) - at:
        raise TlvError("length", field_id)
    return field_id, data[at : at + length], at + length


def scan(fields: Iterable[FieldSpec], data: bytes, *, strict: bool = False) -> Scanned:
    known = {spec[0]: spec[1:] for spec in fields}
    items: list[tuple[int, bytes]] = []
    seen: set[int] = set()
    late_duplicate = False
    at = 0
    while at < len(data):
        field_id, value, at = _read_field(data, at)
        if field_id in seen and (field_id < 256 or strict):
            raise TlvError("duplicate" if field_id in known or not strict else "unknown", field_id)
        late_duplicate |= field_id in seen
        if strict and field_id not in known:
            raise TlvError("unknown", field_id)
        if strict and items and field_id < items[-1][0]:
            raise TlvError("order", field_id)
        if field_id in known:
            kind, lo, hi, _ = known[field_id]
            if reason := check(kind, lo, hi, value):
                raise TlvError(reason, field_id)
        seen.add(field_id)
        items.append((field_id, value))
    if late_duplicate:
        raise TlvError("duplicate")
    for field_id, (_, _, _, required) in sorted(known.items()):
        if required and field_id not in seen:
            raise TlvError("missing", field_id)
    return Scanned(items, set(known))


class Cursor:
    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    @property
    def remaining(self) -> int:
        return len(self.data) - self.at

    def take(self, count: int) -> bytes:
        if count > self.remaining:
            raise TlvError("truncated")
        self.at += count
        return self.data[self.at - count : self.at]

    def number(self, width: int, *, signed: bool = False) -> int:
        return int.from_bytes(self.take(width), "big", signed=signed)

    def leaf(self, cap: int) -> bytes:
        start = self.at
        length = self.number(4)
        if length > self.remaining or length > cap:
            reason = "length" if length > self.remaining else "cap"
            self.at = start
            raise TlvError(reason)
        return self.take(length)

    def text(self, cap: int) -> str:
        try:
            return self.leaf(cap).decode("utf-8")
        except UnicodeDecodeError:
            raise TlvError("utf8") from None

    def bounded(self, width: int, highest: int, reason: str) -> int:
        value = self.number(width)
        if value > highest:
            raise TlvError(reason)
        return value

    def finish(self) -> None:
        if self.remaining:
            raise TlvError("trailing")
