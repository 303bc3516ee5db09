"""Our parser beside the library's: the same happens for every stream of bytes, however it is cut into reads."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from nats.errors import ProtocolError
from nats.protocol.parser import AWAITING_CONTROL_LINE, Parser

from sidecar.rails.connection.parser import SHORT, LinkParser

THOROUGH = settings(max_examples=500, deadline=None, suppress_health_check=[HealthCheck.too_slow])
QUEUED = 3
"""The subscription whose messages are not handed over at once."""
BAD = 4
"""The one whose reader raises."""


class Heard:
    """A client that notes what it is told."""

    def __init__(self) -> None:
        self.told: list[Any] = []
        self.short = 0

    def hand(self, sid: int, subject: bytes, reply: bytes, data: bytes) -> bool:
        if sid == QUEUED:
            return False
        self.short += 1
        self.told.append((sid, subject, reply, data, None))
        if sid == BAD:
            raise ValueError(sid)
        return True

    async def _error_cb(self, error: Exception) -> None:
        assert isinstance(error, ValueError)

    async def _process_msg(self, *told: Any) -> None:
        self.told.append(told)

    async def _process_err(self, told: str) -> None:
        self.told.append(("err", told))

    async def _process_info(self, told: Any) -> None:
        self.told.append(("info", told))

    async def _process_ping(self) -> None:
        self.told.append("ping")

    async def _process_pong(self) -> None:
        self.told.append("pong")


async def heard(kind: type[Parser], reads: list[bytes]) -> tuple[Any, ...]:
    """What was told, whether the stream is refused, and how many went the short way."""
    client, refused = Heard(), False
    parser = kind(client)
    try:
        for data in reads:
            await parser.parse(data)
    except ProtocolError:
        refused = True
    return client.told, refused, client.short


def alike(reads: list[bytes]) -> int:
    async def run() -> int:
        *told, short = await heard(LinkParser, reads)
        *plain, _ = await heard(Parser, reads)
        assert told == plain
        return int(short)

    return asyncio.run(run())


def message(sid: int, subject: bytes, reply: bytes, data: bytes) -> bytes:
    return b"MSG %b %d %b%d\r\n%b\r\n" % (subject, sid, reply and reply + b" ", len(data), data)


def headed(sid: int, subject: bytes, reply: bytes, data: bytes) -> bytes:
    head = b"NATS/1.0\r\nA: b\r\n\r\n"
    sizes = (len(head), len(head) + len(data), head, data)
    return b"HMSG %b %d %b%d %d\r\n%b%b\r\n" % (subject, sid, reply and reply + b" ", *sizes)


NAMES = st.sampled_from([b"a", b"a.b.c", b"_INBOX_x.r.1"])
PARTS = st.tuples(
    st.integers(1, 4), NAMES, st.just(b"") | NAMES, st.binary(max_size=40) | st.just(b"PING\r\nMSG a 1 5\r\n")
)
LINES = st.sampled_from(
    [
        b"PING\r\n",
        b"PONG\r\n",
        b"+OK\r\n",
        b"-ERR 'Stale Connection'\r\n",
        b'INFO {"a":1}\r\n',
        b"MSG  a  1  2\r\nhi\r\n",
    ]
)
BROKEN = st.sampled_from([b"MSG a 1 x\r\n", b"NONSENSE\r\n", b"\r\n", b"MSG a 1\r\n"])
STREAMS = st.lists(PARTS.map(lambda one: message(*one)) | PARTS.map(lambda one: headed(*one)) | LINES, max_size=12).map(
    b"".join
)


@THOROUGH
@given(stream=STREAMS, broken=st.just(b"") | BROKEN, cuts=st.lists(st.integers(0, 600), max_size=12))
def test_every_stream_in_every_cut_is_taken_alike(stream: bytes, broken: bytes, cuts: list[int]) -> None:
    whole = stream + broken
    places = sorted({0, len(whole), *(cut % (len(whole) + 1) for cut in cuts)})
    alike([whole[begin:end] for begin, end in itertools.pairwise(places)])


@pytest.mark.parametrize("at", range(140))
def test_every_cut_of_three_messages(at: int) -> None:
    whole = b"".join(message(sid, b"a.b", reply, b"x" * 20) for sid, reply in ((1, b""), (2, b"r"), (1, b"r.r")))
    assert alike([whole[:at], whole[at:]]) == 3 or at < len(whole)


@pytest.mark.parametrize("size", [SHORT - 1, SHORT, SHORT + 1, 3 * SHORT])
@pytest.mark.parametrize("step", [1_000, 32_768])
def test_large_messages_come_whole_and_what_is_behind_them_goes_the_short_way_again(size: int, step: int) -> None:
    whole = message(1, b"a", b"", b"x" * size) + message(2, b"b", b"r", b"y") * 3
    short = alike([whole[at : at + step] for at in range(0, len(whole), step)])
    assert short == (4 if size <= SHORT else 3)


def test_under_load_every_message_goes_the_short_way() -> None:
    whole = b"".join(message(1, b"a.b", b"r", b"%d" % number * 50) for number in range(1_000))
    assert alike([whole[at : at + 32_768] for at in range(0, len(whole), 32_768)]) >= 990


def test_a_reset_forgets_what_was_kept_for_the_next_read() -> None:
    async def run() -> None:
        client = Heard()
        parser = LinkParser(client)
        await parser.parse(b"MSG a 1 5\r\nhe")
        parser.reset()
        assert parser.state == AWAITING_CONTROL_LINE
        await parser.parse(message(1, b"b", b"", b"x"))
        assert client.told == [(1, b"b", b"", b"x", None)]

    asyncio.run(run())
