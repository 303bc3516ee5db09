"""Any split of any stream gives the same frames and the same refusal as the plain-Python splitter in one piece."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cext.frame import MAX_LENGTH, FrameTooLarge, FrameTypeRefused, Splitter, numbered_frames
from tests.oracles import frame as oracle

Outcome = tuple[list[tuple[int, bytes]], tuple[str, int, int] | None]
STORAGE = 16_384

TYPES = st.sampled_from([0x01, 0x10, 0x7F, 0xA1, 0xFF])
SIZES = st.integers(0, 80) | st.sampled_from(
    [4090, 12_283, STORAGE - 10, STORAGE - 6, STORAGE - 5, STORAGE - 4, STORAGE, STORAGE + 1, 40_000]
)
FRAMES = st.builds(lambda kind, size: oracle.encode_frame(kind, bytes([kind ^ size & 0xFF]) * size), TYPES, SIZES)
RAW_HEADERS = st.builds(
    lambda length, kind: length.to_bytes(4, "big") + bytes([kind]),
    st.sampled_from([0, 1, 6, STORAGE, MAX_LENGTH, MAX_LENGTH + 1, 2**32 - 1]),
    st.integers(0, 255),
)
WHOLE = st.lists(FRAMES, min_size=1, max_size=8).map(b"".join)
STREAMS = WHOLE | st.builds(lambda frames, tail: frames + tail, WHOLE, RAW_HEADERS | st.binary(max_size=8) | FRAMES)
CAPS = st.sampled_from(
    [
        [MAX_LENGTH] * 256,
        [MAX_LENGTH] * 256,
        [STORAGE] * 256,
        [64] * 256,
        [MAX_LENGTH if kind in (0x01, 0x10, 0xA1) else 0 for kind in range(256)],
    ]
)
CUTS = st.lists(st.integers(1, 7) | st.integers(1, 5000) | st.integers(1, 60_000), min_size=1, max_size=12)


def expected(stream: bytes, caps: list[int]) -> Outcome:
    splitter, frames = oracle.Splitter(caps), []
    splitter.feed(stream)
    try:
        while (frame := splitter.next_frame()) is not None:
            frames.append(frame)
    except (oracle.FrameTooLarge, oracle.FrameTypeRefused) as error:
        return frames, (type(error).__name__, *error.args)
    return frames, None


def write(splitter: Splitter, piece: bytes) -> int:
    """As a kernel does: into the lent buffer, at most what fits."""
    buffer = splitter.get_buffer(-1)
    count = min(len(buffer), len(piece))
    buffer[:count] = piece[:count]
    splitter.buffer_updated(count)
    return count


def actual(stream: bytes, caps: list[int], cuts: list[int], feeds: list[bool], hold: bool) -> Outcome:
    """Frames of the stream in pieces of the given sizes (over and over), each fed or written into the buffer."""
    splitter = Splitter(caps)
    frames: list[tuple[int, bytes]] = []
    held: list[tuple[int, memoryview]] = []
    at = turn = 0
    while at < len(stream):
        piece = stream[at : at + cuts[turn % len(cuts)]]
        if feeds[turn % len(feeds)]:
            splitter.feed(piece)
            at += len(piece)
        else:
            at += write(splitter, piece)
        turn += 1
        try:
            while (frame := splitter.next_frame()) is not None:
                frames.append((frame[0], bytes(frame[1])))
                if hold:
                    held.append(frame)
        except (FrameTooLarge, FrameTypeRefused) as error:
            assert [(kind, bytes(body)) for kind, body in held] == (frames if hold else [])
            return frames, (type(error).__name__, error.frame_type, error.length)
        assert splitter.buffered <= len(stream) - sum(5 + len(body) for _, body in frames)
    assert [(kind, bytes(body)) for kind, body in held] == (frames if hold else [])
    return frames, None


@pytest.mark.req("P3-01", "P3-02", "P3-04", "P3-07", "P3-10")
@given(stream=STREAMS, caps=CAPS, cuts=CUTS, feeds=st.lists(st.booleans(), min_size=1, max_size=5), hold=st.booleans())
@settings(max_examples=200, deadline=None)
def test_every_split_gives_the_same_frames(
    stream: bytes, caps: list[int], cuts: list[int], feeds: list[bool], hold: bool
) -> None:
    assert actual(stream, caps, cuts, feeds, hold) == expected(stream, caps)


SHORT = b"".join(oracle.encode_frame(kind, bytes(size)) for kind, size in [(1, 0), (0x7F, 8), (0x10, 3)])
REFUSED = SHORT + bytes.fromhex("00000002fe00")


@pytest.mark.req("P3-01", "P3-04")
@pytest.mark.parametrize("size", range(1, len(REFUSED) + 1))
@pytest.mark.parametrize("fed", [True, False])
@pytest.mark.parametrize("stream", [SHORT, REFUSED, SHORT + bytes(4), SHORT + b"\0\x10\0\1\1"])
def test_pieces_of_every_size(stream: bytes, fed: bool, size: int) -> None:
    caps = [0 if kind == 0xFE else MAX_LENGTH for kind in range(256)]
    assert actual(stream, caps, [size], [fed], hold=True) == expected(stream, caps)


@pytest.mark.req("P3-10")
@given(stream=st.binary(max_size=400), caps=CAPS, cuts=CUTS)
@settings(max_examples=200, deadline=None)
def test_arbitrary_bytes_are_split_or_refused(stream: bytes, caps: list[int], cuts: list[int]) -> None:
    assert actual(stream, caps, cuts, [False, True], hold=False) == expected(stream, caps)


@pytest.mark.req("P3-01", "P10-14")
@given(
    prefix=st.binary(min_size=1, max_size=40),
    first=st.integers(0, 300) | st.integers(0, 2**64 - 9),
    tails=st.lists(st.binary(max_size=60) | st.integers(0, 70_000).map(bytes), max_size=8),
)
@settings(max_examples=200, deadline=None)
def test_numbered_frames_equal_the_oracle(prefix: bytes, first: int, tails: list[bytes]) -> None:
    made = numbered_frames(prefix, first, tails)
    assert made == numbered_frames(prefix, first, iter(tails)) == oracle.numbered_frames(prefix, first, tails)
    splitter = Splitter([MAX_LENGTH] * 256)
    splitter.feed(b"".join(made))
    for number, tail in enumerate(tails, first):
        found = splitter.next_frame()
        assert found is not None
        assert (found[0], bytes(found[1])) == (prefix[0], prefix[1:] + number.to_bytes(8, "big") + tail)
