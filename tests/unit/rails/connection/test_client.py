"""The short ways of our client beside the library's own: the same bytes go out, the same messages come in."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Mapping
from typing import Any

import nats.errors
import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg

from sidecar.rails.connection.client import EASY, LinkClient
from sidecar.rails.names import headers

SUBJECTS = ("cotal.main.chat.x", "a", "", "a b", "a\r\nPING", "caf\xe9", "a.\x7f", "a.*")
REPLIES = ("", "_INBOX_x.r.1", "r r", "r\n")
VALUES = ("1", "", "two words", " padded", "a\r\nb", "caf\xe9", "\t", "x" * 300)
NAMES = (headers.MESSAGE_ID, headers.COPY_SUBJECT, "Other", "bad name", "", "Evil\r\nName")
DATA = (b"", b"{}", b"\r\nPING\r\n", bytes(100))


async def client(kind: type[Client], *, max_payload: int = 200, status: int = Client.CONNECTED) -> Any:
    """A client as it is behind a login, with a flusher that takes nothing."""
    made: Any = kind()
    made._status, made._max_payload, made._max_pending_size = status, max_payload, 2 * EASY
    made._flush_queue, made._flusher_task = asyncio.Queue(maxsize=4), asyncio.create_task(asyncio.Event().wait())
    return made


async def out(made: Any, subject: str, data: bytes, reply: str, found: Mapping[str, str] | None) -> Any:
    """What a publish leaves behind, by the library's way."""
    try:
        await made.publish(subject, data, reply=reply, headers=None if found is None else dict(found))
    except nats.errors.Error as error:
        return type(error)
    return b"".join(made._pending), made._pending_data_size, dict(made.stats), made._flush_queue.qsize()


def test_whatever_is_offered_goes_out_as_the_library_sends_it() -> None:
    async def run() -> int:
        taken = 0
        blocks = [None, {}, *({name: value} for name in NAMES for value in VALUES)]
        blocks += [{headers.MESSAGE_ID: "m-1", headers.COPY_SEQUENCE: "7"}]
        ours, theirs = await client(LinkClient), await client(Client)
        for subject, reply, data, found in itertools.product(SUBJECTS, REPLIES, DATA, blocks):
            for made in (ours, theirs):
                made._pending, made._pending_data_size, made._flush_queue = [], 0, asyncio.Queue(maxsize=4)
                made.stats.update(out_msgs=0, out_bytes=0)
            expected = await out(theirs, subject, data, reply, found)
            if ours.offer(subject, data, reply, found):
                taken += 1
                left = (b"".join(ours._pending), ours._pending_data_size, dict(ours.stats), ours._flush_queue.qsize())
                assert left == expected, (subject, reply, data, found)
            else:
                assert not ours._pending
                assert ours._flush_queue.empty()
                assert not ours.stats["out_msgs"]
        for made in (ours, theirs):
            made._flusher_task.cancel()
        return taken

    assert asyncio.run(run()) > 100


def test_what_needs_to_wait_or_to_be_refused_is_left_to_the_library() -> None:
    async def run() -> None:
        made = await client(LinkClient)
        assert not made.offer("a", bytes(201), "", None)
        made._pending_data_size = EASY - 1
        assert not made.offer("a", b"xx", "", None)
        assert made.offer("a", b"x", "", None)
        for status in (Client.DISCONNECTED, Client.CLOSED, Client.DRAINING_SUBS, Client.DRAINING_PUBS):
            other = await client(LinkClient, status=status)
            assert not other.offer("a", b"x", "", None)
            other._flusher_task.cancel()
        made._flusher_task.cancel()
        await asyncio.gather(made._flusher_task, return_exceptions=True)
        made._pending_data_size = 0
        assert not made.offer("a", b"x", "", None), "nobody would ever send it"
        assert not LinkClient().offer("a", b"x", "", None), "there was no login yet"

    asyncio.run(run())


@pytest.mark.parametrize("block", [b"", b"NATS/1.0\r\nNats-Msg-Id: m-1\r\n\r\n", b"NATS/1.0 503\r\n\r\n"])
def test_a_message_is_handed_over_as_the_library_builds_it(block: bytes) -> None:
    async def told(*, short: bool) -> tuple[object, ...]:
        made: Any = LinkClient()
        subscription, got = await subscribed(made), list[Msg]()
        if short:
            made.deliver(subscription._id, got.append)
        await made._process_msg(subscription._id, b"a.b", b"r", b"data", block)
        if not short:
            got.append(subscription._pending_queue.get_nowait())
        assert subscription._pending_queue.empty()
        (one,) = got
        stats = made.stats["in_msgs"], made.stats["in_bytes"], subscription._received
        return one.subject, one.reply, one.data, one.headers, one._sid, stats

    async def run() -> None:
        assert await told(short=True) == await told(short=False)

    asyncio.run(run())


async def subscribed(made: Any) -> Any:
    """A subscription whose queue nobody reads."""
    made._flush_queue = asyncio.Queue()

    async def never(message: Msg) -> None:
        raise AssertionError(message)

    placed = await made.subscribe("a.b", cb=never)
    placed._wait_for_msgs_task.cancel()
    return placed


def test_what_is_queued_stays_in_front_and_what_was_removed_gets_nothing() -> None:
    async def run() -> None:
        made: Any = LinkClient()
        placed, got = await subscribed(made), []
        await made._process_msg(placed._id, b"a.b", b"", b"1", b"")
        made.deliver(placed._id, lambda message: got.append(message.data))
        await made._process_msg(placed._id, b"a.b", b"", b"2", b"")
        assert placed._pending_queue.qsize() == 2
        while not placed._pending_queue.empty():
            placed._pending_queue.get_nowait()
        await made._process_msg(placed._id, b"a.b", b"", b"3", b"")
        assert got == [b"3"]
        made._remove_sub(placed._id)
        await made._process_msg(placed._id, b"a.b", b"", b"4", b"")
        assert got == [b"3"]
        assert not made._takes

    asyncio.run(run())


def test_a_reader_that_raises_is_told_to_the_error_callback() -> None:
    async def run() -> list[Exception]:
        made: Any = LinkClient()
        placed, errors = await subscribed(made), []

        async def heard(error: Exception) -> None:
            errors.append(error)

        def bad(message: Msg) -> None:
            raise ValueError(message.subject)

        made._error_cb = heard
        made.deliver(placed._id, bad)
        await made._process_msg(placed._id, b"a.b", b"", b"1", b"")
        return errors

    assert [str(error) for error in asyncio.run(run())] == ["a.b"]
