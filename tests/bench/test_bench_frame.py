"""Splitting and building frames beside the plain-Python oracle and beside the copy of the bytes alone."""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable

import pytest

from cext.frame import MAX_LENGTH, Splitter, encode_frame
from tests.bench.measure import report
from tests.oracles import frame as oracle

CAPS = [MAX_LENGTH] * 256
STORAGE = 16_384


def splitting(stream: bytes) -> dict[str, Callable[[], object]]:
    """Ways to take a stream that arrives in reads of at most the fixed storage to its frames."""
    pieces = [stream[at : at + STORAGE] for at in range(0, len(stream), STORAGE)]
    real, fed, plain = Splitter(CAPS), Splitter(CAPS), oracle.Splitter(CAPS)
    scratch, head = bytearray(STORAGE), struct.Struct(">IB")

    def buffered() -> None:
        for piece in pieces:
            left = memoryview(piece)
            while left:
                buffer = real.get_buffer(-1)
                count = min(len(buffer), len(left))
                buffer[:count] = left[:count]
                left = left[count:]
                real.buffer_updated(count)
                while real.next_frame() is not None:
                    pass

    def feeding() -> None:
        for piece in pieces:
            fed.feed(piece)
            while fed.next_frame() is not None:
                pass

    def reference() -> None:
        for piece in pieces:
            plain.feed(piece)
            while plain.next_frame() is not None:
                pass

    def headers() -> None:
        at = 0
        while at < len(stream):
            at += 4 + head.unpack_from(stream, at)[0]

    def copies() -> None:
        for piece in pieces:
            scratch[: len(piece)] = piece

    return {
        "cext.frame, lent buffer": buffered,
        "cext.frame, fed": feeding,
        "plain Python": reference,
        "floor: headers by struct, no checks": headers,
        "floor: copy of the bytes": copies,
    }


@pytest.mark.parametrize(("size", "count"), [(59, 256), (1000, 64), (200_000, 4)])
def test_split(capsys: pytest.CaptureFixture[str], size: int, count: int) -> None:
    stream = oracle.encode_frame(1, bytes(size)) * count
    report(capsys, f"frame: splitting {count} frames of {size} bytes of body", splitting(stream))


def test_encode(capsys: pytest.CaptureFixture[str]) -> None:
    body = bytes(200)
    head = struct.Struct(">IB")
    report(
        capsys,
        "frame: building a frame of 200 bytes of body",
        {
            "cext.frame": lambda: encode_frame(0x10, body),
            "plain Python": lambda: oracle.encode_frame(0x10, body),
            "floor: struct and one join": lambda: head.pack(201, 0x10) + body,
        },
    )


def test_backlog(capsys: pytest.CaptureFixture[str]) -> None:
    """Views that are still held when the storage is full: it is replaced, and this is what that costs."""
    piece = oracle.encode_frame(1, bytes(59)) * 256
    plain, real = oracle.Splitter(CAPS), Splitter(CAPS)

    def keep(splitter: Splitter | oracle.Splitter) -> None:
        held: deque[object] = deque(maxlen=512)
        for _ in range(4):
            splitter.feed(piece)
            while (frame := splitter.next_frame()) is not None:
                held.append(frame)

    report(
        capsys,
        "frame: 1,024 frames of 59 bytes, the last 512 held",
        {"cext.frame": lambda: keep(real), "plain Python": lambda: keep(plain)},
    )
