"""Plain-Python frame splitter, written for clarity: the tests compare ``cext.frame`` with it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

MAX_LENGTH = 1_048_576


class FrameTooLarge(ValueError):  # noqa: N818 - as in cext
    """(frame type, length)."""


class FrameTypeRefused(ValueError):  # noqa: N818 - as in cext
    """(frame type, length)."""


def encode_frame(frame_type: int, body: bytes) -> bytes:
    return (len(body) + 1).to_bytes(4, "big") + bytes([frame_type]) + body


def numbered_frames(prefix: bytes, first: int, tails: Iterable[bytes]) -> list[bytes]:
    bodies = [prefix + number.to_bytes(8, "big") + tail for number, tail in enumerate(tails, first)]
    return [len(body).to_bytes(4, "big") + body for body in bodies]


class Splitter:
    def __init__(self, caps: Sequence[int]) -> None:
        self.caps, self.data = caps, bytearray()

    def feed(self, data: bytes) -> None:
        self.data += data

    def next_frame(self) -> tuple[int, bytes] | None:
        if len(self.data) < 4:
            return None
        length = int.from_bytes(self.data[:4], "big")
        if length == 0:
            raise FrameTooLarge(0, 0)
        if len(self.data) < 5:
            return None
        frame_type = self.data[4]
        if self.caps[frame_type] == 0:
            raise FrameTypeRefused(frame_type, length)
        if length > self.caps[frame_type]:
            raise FrameTooLarge(frame_type, length)
        if len(self.data) < 4 + length:
            return None
        body = bytes(self.data[5 : 4 + length])
        del self.data[: 4 + length]
        return frame_type, body
