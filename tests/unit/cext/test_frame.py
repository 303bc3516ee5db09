"""Splitting a stream: what is refused and when, what is reserved and when, and how long views stay true."""

from __future__ import annotations

import asyncio
import pickle
import socket
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import uvloop

from cext.frame import HEADER, MAX_LENGTH, FrameTooLarge, FrameTypeRefused, Splitter, encode_frame, numbered_frames

STORAGE = 16_384
OPEN = [MAX_LENGTH] * 256
HELLO, PAGE = 0x01, 0xA1
HANDSHAKE = [STORAGE if frame_type == HELLO else 0 for frame_type in range(256)]


def header(frame_type: int, length: int) -> bytes:
    return length.to_bytes(4, "big") + bytes([frame_type])


def receive(splitter: Splitter, data: bytes) -> Iterator[tuple[int, memoryview]]:
    """Frames out of bytes that a kernel would write into the splitter's own buffer."""
    while data:
        buffer = splitter.get_buffer(-1)
        count = min(len(buffer), len(data))
        assert count
        buffer[:count] = data[:count]
        data = data[count:]
        splitter.buffer_updated(count)
        while (frame := splitter.next_frame()) is not None:
            yield frame


def received(splitter: Splitter, data: bytes) -> list[tuple[int, bytes]]:
    return [(frame_type, bytes(body)) for frame_type, body in receive(splitter, data)]


def following(splitter: Splitter) -> tuple[int, bytes] | None:
    frame = splitter.next_frame()
    return None if frame is None else (frame[0], bytes(frame[1]))


@contextmanager
def tracing() -> Iterator[None]:
    tracemalloc.start()
    try:
        yield
    finally:
        tracemalloc.stop()


@pytest.fixture
def traced() -> Iterator[None]:
    with tracing():
        yield


@pytest.mark.req("P3-02")
def test_numbered_frames_are_bounded() -> None:
    room = MAX_LENGTH - 8 - 3
    assert len(numbered_frames(b"abc", 1, [bytes(room)])[0]) == 4 + MAX_LENGTH
    with pytest.raises(OverflowError):
        numbered_frames(b"abc", 1, [b"", bytes(room + 1)])
    with pytest.raises(ValueError, match="type"):
        numbered_frames(b"", 1, [])
    for wrong in ([None], ["text"], [bytearray(1)]):
        with pytest.raises(TypeError):
            numbered_frames(b"a", 1, wrong)  # type: ignore[arg-type]


@pytest.mark.req("P4-06")
def test_numbers_of_frames_do_not_wrap() -> None:
    last = 2**64 - 1
    assert numbered_frames(b"a", last, [b"x"])[0].endswith(last.to_bytes(8, "big") + b"x")
    for first, count in ((last, 2), (last - 1, 3), (last + 1, 1), (-1, 1)):
        with pytest.raises(OverflowError):
            numbered_frames(b"a", first, [b""] * count)


@pytest.mark.req("P3-01")
def test_length_counts_type_and_payload() -> None:
    assert encode_frame(0x7F, b"") == bytes.fromhex("000000017f")
    assert encode_frame(0xFF, b"abc") == bytes.fromhex("00000004ff616263")
    splitter = Splitter(OPEN)
    assert received(splitter, bytes.fromhex("000000017f00000004ff616263")) == [(0x7F, b""), (0xFF, b"abc")]
    assert splitter.buffered == 0
    assert (HEADER, MAX_LENGTH) == (5, 1_048_576)


@pytest.mark.req("P3-02")
@pytest.mark.parametrize("length", [1, 2, STORAGE - 4, STORAGE - 3, STORAGE, MAX_LENGTH - 1, MAX_LENGTH])
def test_every_legal_length_is_accepted(length: int) -> None:
    body = bytes(index % 251 for index in range(length - 1))
    splitter = Splitter(OPEN)
    assert received(splitter, encode_frame(3, body) * 2) == [(3, body)] * 2
    splitter.feed(encode_frame(3, body) * 2)
    assert [following(splitter) for _ in range(3)] == [(3, body), (3, body), None]


@pytest.mark.req("P3-02", "P3-10")
@pytest.mark.parametrize("length", [0, MAX_LENGTH + 1, 2**31, 2**32 - 1])
def test_every_other_length_is_refused(length: int) -> None:
    splitter = Splitter(OPEN)
    splitter.feed(header(7, length))
    with pytest.raises(FrameTooLarge) as caught:
        splitter.next_frame()
    assert (caught.value.frame_type, caught.value.length) == (7 if length else 0, length)


@pytest.mark.req("P3-02")
def test_a_length_of_zero_is_refused_without_a_type_byte() -> None:
    splitter = Splitter(OPEN)
    splitter.feed(bytes(3))
    assert splitter.next_frame() is None
    splitter.feed(b"\0")
    with pytest.raises(FrameTooLarge):
        splitter.next_frame()


@pytest.mark.req("P3-03")
def test_peers_that_announce_a_mebibyte_and_stall_cost_only_the_fixed_storage(traced: None) -> None:
    splitters = [Splitter(OPEN) for _ in range(1000)]
    for splitter in splitters:
        assert list(receive(splitter, encode_frame(1, b"x")))
    before = tracemalloc.get_traced_memory()[0]
    for splitter in splitters:
        assert not list(receive(splitter, header(PAGE, MAX_LENGTH) + bytes(100)))
    assert tracemalloc.get_traced_memory()[1] - before < STORAGE
    assert before < 1000 * (STORAGE + 2500)


@pytest.mark.req("P3-04", "P3-10")
@pytest.mark.parametrize("length", [1, 2, STORAGE, MAX_LENGTH, MAX_LENGTH + 1, 2**32 - 1])
def test_a_type_without_a_cap_is_refused_whatever_its_length(traced: None, length: int) -> None:
    splitter = Splitter(HANDSHAKE)
    splitter.feed(header(PAGE, length))
    with pytest.raises(FrameTypeRefused) as caught:
        splitter.next_frame()
    assert (caught.value.frame_type, caught.value.length) == (PAGE, length)
    assert tracemalloc.get_traced_memory()[1] < 2 * STORAGE


@pytest.mark.req("P3-05")
@pytest.mark.parametrize("length", [STORAGE - 3, STORAGE, 100_001, MAX_LENGTH])
def test_exactly_the_payload_is_reserved(length: int) -> None:
    most = encode_frame(1, b"small") + header(PAGE, length) + bytes(STORAGE - HEADER - 1)
    with tracing():
        splitter = Splitter(OPEN)
        assert received(splitter, most) == [(1, b"small")]
        assert sizes() == [STORAGE]
        # The byte that fills the fixed storage brings the reservation, and what follows goes straight into it.
        assert received(splitter, b"\0") == []
        assert sizes() == sorted([STORAGE, length - 1])
        assert len(splitter.get_buffer(-1)) == length - 1 - (STORAGE - HEADER)


def sizes() -> list[int]:
    """Live blocks of the size of the storage and up."""
    return sorted(trace.size for trace in tracemalloc.take_snapshot().traces if trace.size > STORAGE - 5)


@pytest.mark.req("P3-06")
def test_a_handshake_frame_has_sixteen_kibibytes() -> None:
    splitter = Splitter(HANDSHAKE)
    body = bytes(STORAGE - 1)
    assert received(splitter, encode_frame(HELLO, body)) == [(HELLO, body)]
    splitter.feed(header(HELLO, STORAGE + 1))
    with pytest.raises(FrameTooLarge):
        splitter.next_frame()


@pytest.mark.req("P3-07")
@pytest.mark.parametrize("selected", [4096, 524_288])
def test_the_selected_cap_holds_for_frames_that_are_already_here(selected: int) -> None:
    splitter = Splitter(HANDSHAKE)
    splitter.feed(encode_frame(HELLO, b"hello") + encode_frame(PAGE, bytes(selected - 1)) + header(PAGE, selected + 1))
    assert following(splitter) == (HELLO, b"hello")
    splitter.set_caps([selected] * 256)
    assert following(splitter) == (PAGE, bytes(selected - 1))
    with pytest.raises(FrameTooLarge) as caught:
        splitter.next_frame()
    assert caught.value.length == selected + 1


@pytest.mark.parametrize("announced", [20_000, 100])
def test_a_frame_under_way_is_judged_by_the_caps_of_the_moment(announced: int) -> None:
    splitter = Splitter(OPEN)
    list(receive(splitter, encode_frame(PAGE, bytes(announced - 1))[:-1]))
    splitter.set_caps([announced - 1] * 256)
    with pytest.raises(FrameTooLarge):
        list(receive(splitter, b"\0"))


@pytest.mark.req("P3-10")
@pytest.mark.parametrize(("bad", "error"), [(header(9, 2), FrameTypeRefused), (header(1, 101), FrameTooLarge)])
def test_a_refused_stream_stays_refused_and_holds_nothing(traced: None, bad: bytes, error: type[Exception]) -> None:
    splitter = Splitter([100] * 9 + [0] * 247)
    splitter.feed(encode_frame(1, b"before") + bad + bytes(500_000))
    kept = splitter.next_frame()
    assert kept is not None
    for _ in range(3):
        with pytest.raises(error):
            splitter.next_frame()
        assert splitter.buffered == 0
        splitter.set_caps(OPEN)
        splitter.feed(encode_frame(1, bytes(100_000)))
        # What a kernel still delivers is thrown away, but not over a view that is still held.
        for _ in range(3):
            buffer = splitter.get_buffer(-1)
            assert buffer
            buffer[:] = b"\xff" * len(buffer)
            splitter.buffer_updated(len(buffer))
    assert bytes(kept[1]) == b"before"
    assert sum(sizes()) <= 2 * STORAGE


@pytest.mark.req("P3-11")
@pytest.mark.parametrize(("extra", "left"), [(b"", 0), (b"x", 1)])
def test_a_message_of_another_real_size_shows(extra: bytes, left: int) -> None:
    splitter = Splitter(OPEN)
    splitter.feed(encode_frame(1, b"body") + extra)
    assert following(splitter) == (1, b"body")
    assert splitter.next_frame() is None
    assert splitter.buffered == left
    short = Splitter(OPEN)
    short.feed(encode_frame(1, b"body")[:-1])
    assert short.next_frame() is None
    assert short.buffered == 8


@pytest.mark.req("P3-53")
def test_received_data_raises_no_bound() -> None:
    cap = 40_000
    splitter = Splitter([cap] * 256)
    for _ in range(50):
        assert len(splitter.get_buffer(2**30)) <= STORAGE
        assert len(list(receive(splitter, encode_frame(PAGE, bytes(cap - 1))))) == 1
    splitter.feed(header(PAGE, cap + 1))
    with pytest.raises(FrameTooLarge):
        splitter.next_frame()


@pytest.mark.parametrize("size", [0, 1, 59, 5000, STORAGE - HEADER, STORAGE, 70_000])
def test_a_view_is_never_overwritten(size: int) -> None:
    splitter = Splitter(OPEN)
    bodies = [bytes([index]) * size for index in range(100)]
    stream = b"".join(encode_frame(1, body) for body in bodies)
    held = [view for _, view in receive(splitter, stream)]
    splitter.feed(stream)
    while (frame := splitter.next_frame()) is not None:
        held.append(frame[1])
    del splitter
    assert held == bodies * 2
    assert all(view.readonly and view.format == "B" for view in held)


def test_memory_is_given_back_after_large_frames_and_views(traced: None) -> None:
    splitter = Splitter(OPEN)
    held = list(receive(splitter, encode_frame(1, bytes(900_000)) + encode_frame(1, bytes(60)) * 2000))
    assert tracemalloc.get_traced_memory()[0] > 900_000
    del held
    assert sizes() == [STORAGE]
    # Without views the one block is used over and over, from its start.
    for _ in range(3):
        received(splitter, encode_frame(1, bytes(60)) * 3)
        assert len(splitter.get_buffer(-1)) == STORAGE
    assert sizes() == [STORAGE]


def test_a_view_gives_no_way_to_the_storage() -> None:
    splitter = Splitter(OPEN)
    splitter.feed(encode_frame(1, b"body"))
    frame = splitter.next_frame()
    assert frame is not None
    with pytest.raises(TypeError):
        frame[1][0] = 1
    with pytest.raises(BufferError):
        memoryview(frame[1].obj)


def test_get_buffer_asks_for_frames_to_be_split_first() -> None:
    splitter = Splitter(OPEN)
    splitter.feed(encode_frame(1, b"fed"))
    with pytest.raises(BufferError):
        splitter.get_buffer(-1)
    assert following(splitter) == (1, b"fed")
    while True:
        try:
            buffer = splitter.get_buffer(-1)
        except BufferError:
            break
        frame = encode_frame(2, bytes(len(buffer) - HEADER))
        buffer[:] = frame
        splitter.buffer_updated(len(frame))
    assert splitter.buffered <= STORAGE
    assert splitter.next_frame() is not None
    assert splitter.next_frame() is None
    assert splitter.get_buffer(-1)


def test_a_complete_large_frame_is_split_before_more_is_read() -> None:
    splitter = Splitter(OPEN)
    frame = encode_frame(1, bytes(20_000))
    list(receive(splitter, frame[:-1]))
    splitter.get_buffer(-1)[:] = b"\0"
    splitter.buffer_updated(1)
    with pytest.raises(BufferError):
        splitter.get_buffer(-1)
    assert following(splitter) == (1, bytes(20_000))
    assert splitter.get_buffer(-1)


@pytest.mark.parametrize("nbytes", [-1, STORAGE + 1, 2**40])
def test_more_bytes_than_were_lent_are_refused(nbytes: int) -> None:
    splitter = Splitter(OPEN)
    splitter.get_buffer(-1)
    with pytest.raises(ValueError, match="bytes in a buffer"):
        splitter.buffer_updated(nbytes)


def test_a_buffer_is_lent_for_one_update_and_not_across_a_feed() -> None:
    splitter = Splitter(OPEN)
    with pytest.raises(ValueError, match="buffer of 0"):
        splitter.buffer_updated(1)
    splitter.get_buffer(-1)
    splitter.buffer_updated(0)
    with pytest.raises(ValueError, match="buffer of 0"):
        splitter.buffer_updated(1)
    splitter.get_buffer(-1)
    splitter.feed(b"\0")
    with pytest.raises(ValueError, match="buffer of 0"):
        splitter.buffer_updated(1)


@pytest.mark.parametrize("data", [b"\0\0\0\2\1x", bytearray(b"\0\0\0\2\1x"), memoryview(b"\0\0\0\2\1x")])
def test_any_bytes_can_be_fed(data: bytes) -> None:
    splitter = Splitter(OPEN)
    splitter.feed(data)
    assert following(splitter) == (1, b"x")
    with pytest.raises(TypeError):
        splitter.feed(5)  # type: ignore[arg-type]


def test_bytes_may_be_fed_while_earlier_ones_are_still_split() -> None:
    splitter = Splitter(OPEN)
    frames = [(index, bytes([index]) * 500) for index in range(200)]
    stream = b"".join(encode_frame(*frame) for frame in frames)
    for at in range(0, len(stream), 30_000):
        splitter.feed(stream[at : at + 30_000])
        assert following(splitter) == frames.pop(0)
    assert splitter.buffered == sum(5 + len(body) for _, body in frames)
    assert [following(splitter) for _ in range(len(frames) + 1)] == [*frames, None]


@pytest.mark.parametrize("caps", [[1] * 255, [1] * 257, [MAX_LENGTH + 1] * 256, [-1] * 256, [*[1] * 255, 2**40]])
def test_a_bad_cap_table_is_refused_and_the_old_one_stays(caps: list[int]) -> None:
    with pytest.raises(ValueError, match="cap"):
        Splitter(caps)
    splitter = Splitter(OPEN)
    with pytest.raises(ValueError, match="cap"):
        splitter.set_caps(caps)
    splitter.feed(encode_frame(255, bytes(100)))
    assert following(splitter) == (255, bytes(100))


def test_a_frame_above_the_hard_cap_is_not_written() -> None:
    assert len(encode_frame(1, bytes(MAX_LENGTH - 1))) == MAX_LENGTH + 4
    with pytest.raises(OverflowError, match="1048577"):
        encode_frame(1, bytes(MAX_LENGTH))
    for frame_type in (-1, 256):
        with pytest.raises(OverflowError):
            encode_frame(frame_type, b"")


def test_refusals_say_what_they_refused_and_travel() -> None:
    for error, text in ((FrameTooLarge(0xA1, 9), "0xa1"), (FrameTypeRefused(0x0F, 9), "0x0f")):
        copied = pickle.loads(pickle.dumps(error))
        assert (type(copied), copied.frame_type, copied.length) == (type(error), error.frame_type, 9)
        assert text in str(error)


class Receiver(asyncio.BufferedProtocol):
    def __init__(self) -> None:
        self.splitter = Splitter(OPEN)
        self.frames: list[tuple[int, memoryview]] = []
        self.done = asyncio.get_running_loop().create_future()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self.splitter.get_buffer(sizehint)

    def buffer_updated(self, nbytes: int) -> None:
        self.splitter.buffer_updated(nbytes)
        while (frame := self.splitter.next_frame()) is not None:
            self.frames.append(frame)

    def connection_lost(self, exc: Exception | None) -> None:
        self.done.set_result(exc)


async def exchange(frames: list[tuple[int, bytes]]) -> Receiver:
    ours, theirs = socket.socketpair()
    _, receiver = await asyncio.get_running_loop().create_connection(Receiver, sock=ours)
    _, writer = await asyncio.open_connection(sock=theirs)
    for frame in frames:
        writer.write(encode_frame(*frame))
    await writer.drain()
    writer.close()
    await writer.wait_closed()
    assert await receiver.done is None
    return receiver


@pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_a_kernel_reads_straight_into_the_splitter(loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    sizes = [0, 1, 300_000, 59, STORAGE - 4, STORAGE - 5, 7] * 10
    sent = [(index, bytes([index]) * size) for index, size in enumerate(sizes)]
    with asyncio.Runner(loop_factory=loop) as runner:
        receiver = runner.run(exchange(sent))
    assert [(frame_type, bytes(body)) for frame_type, body in receiver.frames] == sent
    assert receiver.splitter.buffered == 0
