"""TLV bodies and positional images of the coordinator wire (rows E-01..E-25)."""

from collections.abc import Iterable
from typing import Final, TypeAlias, final

from cext.image import Cursor as Cursor
from cext.image import TlvError as TlvError
from cext.image import Writer as Writer
from cext.image import decode_varint as decode_varint
from cext.image import encode_varint as encode_varint

_Bytes: TypeAlias = bytes | bytearray | memoryview

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
