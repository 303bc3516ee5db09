"""Positional images inside fields, varints and the encoder (rows E-01..E-03, E-07, E-15..E-24)."""

from typing import Literal, TypeAlias, final

_Bytes: TypeAlias = bytes | bytearray | memoryview
_Reason: TypeAlias = Literal[
    "varint",
    "length",
    "truncated",
    "trailing",
    "duplicate",
    "wire_type",
    "field_id",
    "width",
    "missing",
    "utf8",
    "bool",
    "zero",
    "cap",
    "order",
    "unknown",
    "presence",
    "count",
    "tag",
]

class TlvError(ValueError):
    """A body or image that breaks the encoding.

    ``field`` is the top-level field id, 0 when there is none. Of several faults the first in body order is reported;
    a repeated unknown id of 256 and more, then a missing field, are found after the walk.
    """

    reason: _Reason
    field: int
    def __init__(self, reason: str, field: int = 0) -> None: ...

@final
class Cursor:
    """Positional reader over ``data[start:end]``; a read past the end raises ``TlvError("truncated")``."""

    def __init__(self, data: _Bytes, start: int = 0, end: int = -1) -> None:
        """``end`` -1 is the end of the data; bounds outside of the data raise ValueError."""

    @property
    def remaining(self) -> int: ...
    def u8(self) -> int: ...
    def u16(self) -> int: ...
    def u32(self) -> int: ...
    def u64(self) -> int: ...
    def i32(self) -> int: ...
    def take(self, count: int) -> bytes:
        """Copy of the next ``count`` bytes."""

    def leaf(self, cap: int) -> bytes:
        """``u32 length || content``; "length" beyond the data, "cap" above the cap (E-17)."""

    def text(self, cap: int) -> str:
        """A leaf of strict UTF-8; the cap counts bytes."""

    def presence(self) -> bool:
        """Presence byte of a nested optional (E-20)."""

    def count(self, cap: int) -> int:
        """u16 number of list elements, at most ``cap`` ("count", E-22, P3-60)."""

    def tag(self, highest: int) -> int:
        """u8 tag of a nested union, at most ``highest`` ("tag", E-21)."""

    def finish(self) -> None:
        """Nothing may be left ("trailing", E-23)."""

@final
class Writer:
    """Builds one body (``field_*``) or one positional image (the others); the two do not mix (ValueError).

    Numbers out of their width raise OverflowError, ids that do not increase ValueError (E-07), text with a lone
    surrogate ``TlvError("utf8")``. A refused call changes nothing.
    """

    def __init__(self) -> None: ...
    def field_u8(self, field_id: int, value: int) -> None: ...
    def field_u16(self, field_id: int, value: int) -> None: ...
    def field_u32(self, field_id: int, value: int) -> None: ...
    def field_u64(self, field_id: int, value: int) -> None: ...
    def field_bool(self, field_id: int, value: bool) -> None: ...
    def field_raw(self, field_id: int, data: _Bytes) -> None: ...
    def field_leaf(self, field_id: int, data: _Bytes) -> None: ...
    def field_text(self, field_id: int, text: str) -> None: ...
    def u8(self, value: int) -> None: ...
    def u16(self, value: int) -> None: ...
    def u32(self, value: int) -> None: ...
    def u64(self, value: int) -> None: ...
    def i32(self, value: int) -> None: ...
    def raw(self, data: _Bytes) -> None: ...
    def leaf(self, data: _Bytes) -> None: ...
    def text(self, text: str) -> None: ...
    def take(self) -> bytes:
        """The image; the writer is empty again."""

    def take_frame(self, frame_type: int) -> bytes:
        """``u32 length || u8 type || image`` (P3-01); OverflowError when ``length`` would exceed 1 MiB."""

def encode_varint(value: int) -> bytes:
    """Minimal varint of 0..2**64-1 (E-03)."""

def decode_varint(data: _Bytes, offset: int = 0) -> tuple[int, int]:
    """(value, offset behind it); raises :class:`TlvError` "varint" or "truncated" (E-04)."""
