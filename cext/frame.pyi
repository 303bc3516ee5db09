"""Splits a byte stream into frames ``u32 length || u8 type || payload`` (rows P3-01..P3-07, P3-10, P3-53)."""

from collections.abc import Iterable, Sequence
from typing import Final, TypeAlias, final

_Bytes: TypeAlias = bytes | bytearray | memoryview

MAX_LENGTH: Final[int]
"""Largest ``length`` (type and payload) of any frame: 1 MiB (P3-02)."""
HEADER: Final[int]
"""Bytes of length and type."""

class FrameTooLarge(ValueError):  # noqa: N818 - named after its protocol code
    """``length`` is 0, above 1 MiB or above the cap of its type. ``frame_type`` is 0 for length 0: it has none."""

    frame_type: int
    length: int
    def __init__(self, frame_type: int, length: int) -> None: ...

class FrameTypeRefused(ValueError):  # noqa: N818
    """The cap of the type is 0, whatever the length: unknown type, wrong direction or wrong state (P3-04)."""

    frame_type: int
    length: int
    def __init__(self, frame_type: int, length: int) -> None: ...

@final
class Splitter:
    """Incremental splitter of one connection; any fragmentation of a stream gives the same frames."""

    def __init__(self, caps: Sequence[int]) -> None:
        """``caps``: 256 bounds on ``length`` by frame type, at most 1 MiB each; 0 refuses the type."""

    def set_caps(self, caps: Sequence[int]) -> None:
        """New caps for every frame that was not returned yet."""

    def get_buffer(self, size_hint: int) -> memoryview:
        """Where the kernel may write next, for ``asyncio.BufferedProtocol``; valid until the next call, never empty.

        BufferError if the storage is full of frames that :meth:`next_frame` was not asked for: split, or stop reading.
        """

    def buffer_updated(self, nbytes: int) -> None:
        """That many bytes were written to the last buffer; ValueError if that is more than it holds."""

    def feed(self, data: _Bytes) -> None:
        """Bytes that are already in memory, any number."""

    def next_frame(self) -> tuple[int, memoryview] | None:
        """The next whole frame as (type, body), or None if more bytes are needed.

        The body is a read-only view without a copy, valid as long as it is held. The header is judged against the
        caps in force at this call, before anything is reserved for the payload: :class:`FrameTooLarge` or
        :class:`FrameTypeRefused`, from then on at every call; the bytes held are dropped and later ones ignored.
        """

    @property
    def buffered(self) -> int:
        """Bytes received that were not returned in a frame."""

def encode_frame(frame_type: int, body: _Bytes) -> bytes:
    """One frame (P3-01); OverflowError when ``length`` would exceed 1 MiB."""

def numbered_frames(prefix: bytes, first: int, tails: Iterable[bytes]) -> list[bytes]:
    """Frames ``u32 length || prefix || u64 number || tail``, one for each tail, numbered from ``first`` on.

    ``prefix`` begins with the type. OverflowError when a ``length`` would exceed 1 MiB or a number 2**64 - 1.
    """
