"""One stream out of many ways: renewed while it is handled, in its order, bounded, and put back at the end."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from typing import Any

import orjson
import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg

from sidecar.base.clock import Now
from sidecar.ops.metrics import Metrics
from sidecar.rails.envelopes.message import Message
from sidecar.rails.messaging import inbox as module
from sidecar.rails.messaging.desk import Via
from sidecar.rails.messaging.durables import Durable
from sidecar.rails.messaging.frames import Frame
from sidecar.rails.messaging.held import Held, Word
from sidecar.rails.messaging.inbox import HANDLING_SECONDS, Inbox, InboxClosed
from sidecar.rails.messaging.intake import HeldCopy, Source
from sidecar.rails.messaging.notices import Notices
from sidecar.rails.names import Lifecycle, Principal, headers

pytestmark = pytest.mark.asyncio

LIFE = Lifecycle(Principal("local", "bob"), "b1" * 13)
DM = Durable.dm("main", LIFE)
ROLE = Durable.of_role("main", "reviewer")
BACKSTOP = Durable.backstop("main", LIFE)


class Time:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.at = 1_000.0

    def __call__(self) -> Now:
        return Now(self.at, self.at)


class Said(Source):
    """A durable that only remembers what was said about its copies."""

    def __init__(self, durable: Durable, time: Time) -> None:
        super().__init__(durable, 8, time, None, None)
        self.time = time
        self.words: list[tuple[int, Word]] = []

    async def _read(self) -> None:
        """Nothing comes by itself."""

    async def say(self, frame: Frame, word: Word, delay: float) -> bool:
        self.words.append((frame.sequence, word))
        return True

    def copy(self, sequence: int, text: str = "hi", message_id: str | None = None, **more: Any) -> HeldCopy:
        tail = "cotal.main.inst.local.bob.local.alice" if self.durable is DM else "cotal.main.svc.reviewer.local.alice"
        data = document(message_id or f"m{sequence}", text, **(more or self._route()))
        frame = Frame(tail, data, {}, sequence, 1, 0, 1, f"1.{sequence}.1.1.0")
        return HeldCopy(frame, Held(self.time()), self, self.time)

    def _route(self) -> dict[str, Any]:
        return {"to": "local.bob"} if self.durable is DM else {"toService": "reviewer"}


def document(message_id: str, text: str, **more: Any) -> bytes:
    sender = {"id": "local.alice", "name": "alice"}
    parts = [{"kind": "text", "text": text}]
    return orjson.dumps({"id": message_id, "ts": 1, "space": "main", "from": sender, "parts": parts, **more})


def live(message_id: str, text: str = "hi") -> Msg:
    data = document(message_id, text, channel="general")
    return Msg(Client(), "cotal.main.chat.local.alice.general", "_INBOX_x.r.1", data)


def made(time: Time, **more: Any) -> tuple[Inbox, Metrics]:
    metrics = Metrics()
    return Inbox(mediated=False, clock=time, metrics=metrics, **more), metrics


@pytest.mark.req("C8-62", "C4-19")
async def test_a_copy_is_acked_by_handled_and_not_before() -> None:
    time = Time()
    inbox, metrics = made(time)
    said = Said(DM, time)
    await inbox.durable(said.copy(1), DM)
    delivered = await inbox.next()
    assert (said.words, delivered.durable, inbox.in_flight) == ([], True, (delivered.key,))
    await inbox.durable(said.copy(1), DM)  # delivered again meanwhile
    await delivered.handled()
    await delivered.handled()
    assert said.words == [(1, Word.ACK)]
    await inbox.durable(said.copy(2, message_id="m1"), DM)  # a second copy of what is handled
    assert said.words == [(1, Word.ACK), (2, Word.ACK)]
    assert metrics.totals("messaging_surfaced") == {("dm", "durable"): 1}
    assert metrics.totals("messaging_coalesced") == {("durable",): 2}
    await inbox.close()


def backed_inbox(time: Time) -> tuple[Inbox, Said]:
    inbox, _ = made(time)
    inbox.backed, inbox.own = (lambda channel: channel == "general"), "local.bob"
    return inbox, Said(BACKSTOP, time)


def copy_of_a_post(said: Said, message_id: str) -> HeldCopy:
    """The backstop copy of a live post."""
    copy = said.copy(1, message_id=message_id, channel="general")
    subject = "cotal.main.chat.local.alice.general"
    named = {headers.COPY_SUBJECT: subject, headers.COPY_SEQUENCE: "1", headers.COPY_WHY: "channel"}
    copy.frame = copy.frame._replace(subject=BACKSTOP.pattern, headers=named)
    return copy


@pytest.mark.req("C4-19", "C8-62")
async def test_the_copy_of_a_post_that_was_handled_live_is_waited_for() -> None:
    time = Time()
    inbox, said = backed_inbox(time)
    await inbox.live(live("a"))
    delivered = await inbox.next()
    assert not inbox.owes
    await delivered.handled()
    assert inbox.owes
    waiting = asyncio.create_task(inbox.settled(30.0))
    await inbox.durable(copy_of_a_post(said, "a"), BACKSTOP)
    assert await waiting
    assert (said.words, inbox.owes) == ([(1, Word.ACK)], False)
    await inbox.close()


@pytest.mark.req("C4-19", "C8-62")
async def test_nothing_is_waited_for_that_does_not_come() -> None:
    time = Time()
    inbox, said = backed_inbox(time)
    await inbox.live(live("later"))
    await (await inbox.next()).later()  # its copy is shown again
    await inbox.live(live("early"))
    await inbox.durable(copy_of_a_post(said, "early"), BACKSTOP)
    await (await inbox.next()).handled()
    inbox.backed = lambda _: False  # no membership
    await inbox.live(live("live"))
    await (await inbox.next()).handled()
    inbox.backed, inbox.own = (lambda _: True), "local.alice"
    await inbox.live(live("own"))
    await (await inbox.next()).handled()
    assert not inbox.owes
    assert await inbox.settled(0.0)
    inbox.own = "local.bob"
    await inbox.live(live("b"))
    await (await inbox.next()).handled()
    assert not await inbox.settled(0.001)
    ending = asyncio.create_task(inbox.settled(30.0))
    await asyncio.sleep(0)
    inbox.fail(InboxClosed())
    assert not await ending
    await inbox.close()


async def test_a_member_that_leaves_is_handed_nothing_more() -> None:
    inbox, _ = made(Time())
    waiting = asyncio.create_task(inbox.next())
    await asyncio.sleep(0)
    inbox.leave()
    await inbox.live(live("a"))
    with pytest.raises(InboxClosed):
        await waiting
    with pytest.raises(InboxClosed):
        await inbox.next()
    await inbox.close()


@pytest.mark.req("C8-63", "C8-64", "C4-27")
async def test_a_copy_is_put_back_or_refused_for_good() -> None:
    time = Time()
    inbox, metrics = made(time)
    said = Said(DM, time)
    await inbox.durable(said.copy(1), DM)
    await (await inbox.next()).later()
    await inbox.durable(said.copy(1), DM)
    await (await inbox.next()).refuse()
    bad = said.copy(2)
    bad.frame = bad.frame._replace(data=b"{")
    await inbox.durable(bad, DM)
    assert said.words == [(1, Word.NAK), (1, Word.TERM), (2, Word.TERM)]
    assert metrics.totals("messaging_refused") == {("durable", "malformed-json"): 1}
    await inbox.close()


@pytest.mark.req("C8-66", "C8-67")
async def test_what_is_handled_is_renewed_and_after_ten_minutes_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RENEWAL_TICK", 0.001)
    time = Time()
    inbox, metrics = made(time)
    said = Said(DM, time)
    await inbox.durable(said.copy(1), DM)
    delivered = await inbox.next()
    for renewals in range(1, 4):
        time.at += 20.0
        async with asyncio.timeout(5):
            while said.words.count((1, Word.RENEW)) < renewals:  # noqa: ASYNC110 - what is waited for has no event
                await asyncio.sleep(0.001)
    time.at += HANDLING_SECONDS
    async with asyncio.timeout(5):
        while inbox.in_flight:  # noqa: ASYNC110 - as above
            await asyncio.sleep(0.001)
    await delivered.handled()
    assert {word for _, word in said.words} == {Word.RENEW}
    assert metrics.totals("messaging_given_up") == {(): 1}
    await inbox.durable(said.copy(1), DM)
    assert (await inbox.next()).message.id == "m1"
    await inbox.close()


@pytest.mark.req("C4-18", "C8-65")
async def test_a_live_copy_needs_no_word_and_hears_none() -> None:
    inbox, metrics = made(Time())
    await inbox.live(live("m1"))
    await inbox.live(live("m1"))
    delivered = await inbox.next()
    assert (delivered.ways, delivered.durable, inbox.in_flight) == ((Via.LIVE,), False, ())
    await delivered.handled()
    await inbox.live(live("m1"))
    assert metrics.totals("messaging_coalesced") == {("live",): 2}
    await inbox.close()


async def test_who_brings_too_much_waits_until_it_is_taken() -> None:
    inbox, _ = made(Time(), depth=2)
    for number in range(2):
        await inbox.live(live(f"m{number}"))
    third = asyncio.create_task(inbox.live(live("m2")))
    await asyncio.sleep(0)
    assert not third.done()
    assert [(await inbox.next()).message.id for _ in range(3)] == ["m0", "m1", "m2"]
    await third
    await inbox.close()


class Gate:
    """Admits what it was told to."""

    def __init__(self) -> None:
        self.admits = False
        self.asked: list[HeldCopy] = []

    async def admit(self, copy: HeldCopy, message: Message) -> bool:
        self.asked.append(copy)
        return self.admits


@pytest.mark.req("C8.1-12", "C8.1-13", "C8.1-21")
async def test_work_for_a_role_is_shown_when_the_gate_says_so_at_the_place_where_it_came() -> None:
    time = Time()
    inbox, _ = made(time)
    gate = Gate()
    inbox.gate = gate
    said = Said(ROLE, time)
    await inbox.live(live("a"))
    await inbox.durable(said.copy(7), ROLE)
    await inbox.live(live("b"))
    assert gate.asked == []
    assert (await inbox.next()).message.id == "a"
    await inbox.live(live("c"))
    waiting = asyncio.create_task(inbox.next())
    assert (await waiting).message.id == "b"
    (copy,) = gate.asked
    gate.admits = True
    await inbox.live(live("d"))
    await inbox.offer(copy)
    await inbox.offer(copy)  # it has it only once
    found = [await inbox.next() for _ in range(3)]
    assert [one.message.id for one in found] == ["m7", "c", "d"]
    await found[0].handled()
    assert said.words == [(7, Word.ACK)]
    await inbox.close()


@pytest.mark.req("CD-15")
async def test_the_end_puts_back_what_waits_and_what_was_not_handled() -> None:
    time = Time()
    inbox, _ = made(time)
    said = Said(DM, time)
    for sequence in (1, 2, 3):
        await inbox.durable(said.copy(sequence, message_id="x" if sequence == 3 else None), DM)
    first, second = await inbox.next(), await inbox.next()
    closing = asyncio.create_task(inbox.close(drain=0.05))
    await asyncio.sleep(0)
    await first.handled()
    await closing
    await second.handled()
    assert said.words == [(3, Word.NAK), (1, Word.ACK), (2, Word.NAK)]
    with pytest.raises(InboxClosed):
        await inbox.next()


async def test_what_waits_is_still_read_when_nothing_more_can_come() -> None:
    inbox, _ = made(Time())
    await inbox.live(live("m1"))
    inbox.fail(RuntimeError("the connection has ended"))
    inbox.fail(RuntimeError("second"))
    assert (await inbox.next()).message.id == "m1"
    with pytest.raises(RuntimeError, match="has ended"):
        await inbox.next()
    await inbox.close()


@pytest.mark.req("C4-28", "C4-18", "C12-12")
async def test_in_whatever_order_copies_come_each_message_is_shown_once_and_every_durable_copy_acked() -> None:
    time = Time()
    dm, backstop = Said(DM, time), Said(Durable.backstop("main", LIFE), time)
    post = document("p1", "post", channel="general")
    copied = {
        headers.COPY_SUBJECT: "cotal.main.chat.local.alice.general",
        headers.COPY_SEQUENCE: "5",
        headers.COPY_WHY: "channel",
        headers.DELIVERY_LIMIT: "none",
    }
    subject = f"cotal.main.dlv.local.bob.{LIFE.uid}"

    def bring(inbox: Inbox) -> dict[str, Callable[[], Awaitable[None]]]:
        frame = Frame(subject, post, copied, 3, 1, 0, 1, "1.3.1.1.0")
        return {
            "live": lambda: inbox.live(live("p1", "post")),
            "history": lambda: inbox.history(Frame("cotal.main.chat.local.alice.general", post, {}, 5, 1, 0, 1, "")),
            "backstop": lambda: inbox.durable(HeldCopy(frame, Held(time()), backstop, time), backstop.durable),
            "dm": lambda: inbox.durable(dm.copy(8), DM),
            "again": lambda: inbox.durable(dm.copy(8), DM),
        }

    orders = itertools.permutations(("live", "history", "backstop", "dm", "again"))
    for order, at_once in itertools.product(orders, (True, False)):
        dm.words, backstop.words = [], []
        inbox, _ = made(time)
        ways = bring(inbox)
        shown = []
        for at, way in enumerate(order):
            before = len(inbox._waiting)
            await ways[way]()
            # Either each is handled before the next copy comes, or all of it comes first.
            fresh = len(inbox._waiting) > before if at_once else at == len(order) - 1
            for _ in range((1 if at_once else 2) if fresh else 0):
                shown.append(await inbox.next())
                await shown[-1].handled()
        assert sorted(one.message.id for one in shown) == ["m8", "p1"]
        assert (set(dm.words), backstop.words) == ({(8, Word.ACK)}, [(3, Word.ACK)])
        await inbox.close()
        with pytest.raises(InboxClosed):
            await inbox.next()


class Slow(Gate):
    """Decides when it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.decide = asyncio.Event()

    async def admit(self, copy: HeldCopy, message: Message) -> bool:
        await super().admit(copy, message)
        await self.decide.wait()
        return True


@pytest.mark.req("C8.1-12", "C8-62")
async def test_a_request_whose_reader_gave_up_waiting_for_the_take_is_the_next_delivery() -> None:
    """``asyncio.timeout`` around the wait for the next delivery must not make a message vanish."""
    time = Time()
    inbox, _ = made(time)
    inbox.gate = gate = Slow()
    said = Said(ROLE, time)
    await inbox.durable(said.copy(7), ROLE)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await inbox.next()
    await inbox.durable(said.copy(7), ROLE)  # delivered again
    await inbox.live(live("b"))
    gate.decide.set()
    async with asyncio.timeout(5):
        found = [await inbox.next(), await inbox.next()]
    assert [one.message.id for one in found] == ["m7", "b"]
    await found[0].handled()
    assert said.words == [(7, Word.ACK)]
    await inbox.close()


class Lost(Said):
    """A durable whose renewals wait for an answer that does not come."""

    async def say(self, frame: Frame, word: Word, delay: float) -> bool:
        await super().say(frame, word, delay)
        if word is Word.RENEW:
            await asyncio.Event().wait()
        return True


@pytest.mark.req("C8-66")
async def test_a_renewal_that_waits_holds_up_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RENEWAL_TICK", 0.001)
    time = Time()
    inbox, _ = made(time)
    lost = Lost(DM, time)
    for sequence in (1, 2):
        await inbox.durable(lost.copy(sequence), DM)
        await inbox.next()
    time.at += 20.0
    async with asyncio.timeout(5):
        while len(lost.words) < 2:  # noqa: ASYNC110 - what is waited for has no event
            await asyncio.sleep(0.001)
    await inbox.close()


async def test_whoever_asks_behind_the_end_leaves_nothing_running() -> None:
    inbox, _ = made(Time())
    await inbox.close()
    before = asyncio.all_tasks()
    with pytest.raises(InboxClosed):
        await inbox.next()
    assert asyncio.all_tasks() == before


@pytest.mark.req("C8-63")
async def test_a_copy_whose_reader_is_stopped_while_the_lease_is_read_is_put_back() -> None:
    asked = asyncio.Event()

    async def hanging() -> str | None:
        asked.set()
        await asyncio.Event().wait()
        return None

    time = Time()
    inbox, _ = made(time, notices=Notices(hanging, clock=time))
    said = Said(DM, time)
    claim = {"seq": 1, "role": "reviewer", "event": "taken", "taker": {"id": "local.rev", "name": "Rev"}}
    copy = said.copy(1, to="local.bob", parts=[{"kind": "data", "data": {headers.ANYCAST_NOTICE: claim}}])
    bringing = asyncio.create_task(inbox.durable(copy, DM))
    await asked.wait()
    bringing.cancel()
    await asyncio.wait((bringing,))
    assert bringing.cancelled()
    assert said.words == [(1, Word.NAK)]
    await inbox.close()
