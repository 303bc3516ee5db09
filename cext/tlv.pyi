"""TLV bodies and positional images of the coordinator wire (rows E-01..E-25)."""

from collections.abc import Iterable
from typing import Final, Literal, TypeAlias, final

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

FIXED: Final[int]
"""Value of exactly ``lo == hi`` bytes; or-ed with ``NONZERO``, not all zero."""
LEAF: Final[int]
"""``u32 length || content`` with ``lo..hi`` bytes of content."""
STR: Final[int]
"""A leaf whose content is strict UTF-8 (E-18)."""
BOOL: Final[int]
"""One byte, 0 or 1 (E-19); the bounds are not used."""
RAW: Final[int]
"""A nested image of ``lo..hi`` bytes, checked by its own decoder."""
NONZERO: Final[int]

class TlvError(ValueError):
    """A body or image that breaks the encoding.

    ``field`` is the top-level field id, 0 when there is none. Of several faults the first in body order is reported;
    a repeated unknown id of 256 and more, then a missing field, are found after the walk.
    """

    reason: _Reason
    field: int
    def __init__(self, reason: str, field: int = 0) -> None: ...

@final
class Schema:
    """The known fields of one message, compiled for :meth:`scan`."""

    def __init__(self, fields: Iterable[tuple[int, int, int, int, bool]], *, strict: bool = False) -> None:
        """``fields``: (id 1..255, kind, lo, hi, required), at most 64; bounds in bytes of value or of leaf content.

        ``strict`` refuses unknown and out-of-order ids (workload frames, E-25).
        """

    def scan(self, body: _Bytes) -> Fields:
        """Check a whole body in one pass; raises :class:`TlvError`. The body must not be changed while in use."""

@final
class Fields:
    """Offset table over one checked body.

    A getter of a field that is not there raises ``TlvError("missing")``, one of another width ``TlvError("width")``,
    and a leaf, text or bool getter of a field declared otherwise ``TypeError``.
    """

    def has(self, field_id: int) -> bool: ...
    def u8(self, field_id: int) -> int: ...
    def u16(self, field_id: int) -> int: ...
    def u32(self, field_id: int) -> int: ...
    def u64(self, field_id: int) -> int: ...
    def i32(self, field_id: int) -> int: ...
    def boolean(self, field_id: int) -> bool: ...
    def raw(self, field_id: int) -> bytes:
        """Copy of the value image."""

    def view(self, field_id: int) -> memoryview:
        """Read-only view of the value image; keeps the body's buffer."""

    def leaf(self, field_id: int) -> bytes:
        """Content of a LEAF or STR field, without its length."""

    def leaf_view(self, field_id: int) -> memoryview: ...
    def text(self, field_id: int) -> str:
        """Content of a STR field."""

    def unknown(self) -> bytes:
        """Unknown fields, whole, in increasing id order (P8-07)."""

    def canonical(self) -> bytes:
        """The body with its fields in increasing id order (P8-08)."""

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
