"""Everything that comes in for a member as one stream: judged, coalesced, handed out in order, settled when handled.

What is refused is counted by its reason and never tried again: dropped live, skipped in history, terminated where it is
durable (C4-25, C4-27). The stream holds a bounded number of deliveries; who brings more waits.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

from nats.aio.msg import Msg
from prometheus_client import Counter

from sidecar.base.clock import Now
from sidecar.ops.logging import Log
from sidecar.ops.metrics import Metrics
from sidecar.rails.connection import ConnectionFault
from sidecar.rails.envelopes.message import Message
from sidecar.rails.envelopes.receive import Meta, Received, Rejected, Source, receive
from sidecar.rails.messaging.desk import Delivery, Desk, Place, Stage, Via, identity_of
from sidecar.rails.messaging.durables import Durable, From, judge
from sidecar.rails.messaging.frames import Frame
from sidecar.rails.messaging.intake import HeldCopy
from sidecar.rails.messaging.notices import AnycastNotice, Eviction, Notices
from sidecar.rails.messaging.owed import Owed
from sidecar.rails.names.subjects import DELIVERY_KINDS, delivery_of

DEPTH: Final = 1_024
"""Deliveries that wait for the member."""
HANDLING_SECONDS: Final = 600.0
"""How long a delivery is renewed while it is handled; then it is given up and comes again."""
RENEWAL_TICK: Final = 5.0
MOST_PARKED: Final = 64
"""Requests that the gate has, and may give back."""
_ANYCAST: Final = DELIVERY_KINDS["svc"]
_POST: Final = DELIVERY_KINDS["chat"]
# Members by name once: looking one up in its class is slow, and this is done for each message.
_SOURCE_LIVE, _SOURCE_HISTORY, _LIVE, _HISTORY = Source.LIVE, Source.HISTORY, Via.LIVE, Via.HISTORY
_NOBODY: Final = frozenset[str]()


def _never(_: str) -> bool:
    """No channel has durable copies."""
    return False


class InboxClosed(Exception):  # noqa: N818 - a state
    """There will be no more deliveries."""


class Gate(Protocol):
    """What decides about work for a role, right before it is shown (C8.1-12, C8.1-13)."""

    async def admit(self, copy: HeldCopy, message: Message) -> bool:
        """Whether it is shown now; otherwise the gate has it, and will put it back or forget it."""


class Delivered:
    """One message, as a member gets it. ``meta.kind`` and ``meta.target`` come from the subject (C4-05).

    A message with durable copies is acked by :meth:`handled` and never before; a process that ends without it gets the
    message again. While it is out, its copies are renewed, for ten minutes at most. A message that only came from
    history needs no word, though one does no harm; a post that came live and was handled is not shown again when its
    durable copy comes behind it.
    """

    __slots__ = ("_delivery", "_inbox", "message", "meta")

    def __init__(self, delivery: Delivery[HeldCopy], inbox: Inbox) -> None:
        self._delivery = delivery
        self._inbox = inbox
        self.message: Message = delivery.message
        self.meta: Meta = delivery.meta

    @property
    def key(self) -> int:
        """Tells this delivery from all others of this process, also from others with the same id or none (CD-15)."""
        return self._delivery.key

    @property
    def ways(self) -> tuple[Via, ...]:
        """The ways in which copies of it came so far."""
        return tuple(self._delivery.ways)

    @property
    def durable(self) -> bool:
        """Whether there is a copy that :meth:`handled` acks."""
        return bool(self._delivery.copies)

    @property
    def notice(self) -> AnycastNotice | None:
        """What the delivery plane says of an own request for a role; an answer is not expected (C8.1-47, C8.1-48)."""
        return self._delivery.notice

    @property
    def eviction(self) -> Eviction | None:
        """Older copies may have been removed before they were read: the history of the channels has them (C8-56)."""
        return self._delivery.eviction

    async def handled(self) -> None:
        """It was handled: its durable copies are acked, those that still come too (C4-19, C8-62)."""
        for copy in self._inbox.done(self._delivery):
            await copy.ack()

    async def refuse(self) -> None:
        """It is invalid for good: its durable copies are terminated (C8-64)."""
        for copy in self._inbox.done(self._delivery):
            await copy.term()

    async def later(self, delay: float = 0.0) -> None:
        """Not now: its durable copies come again, not before ``delay`` seconds (C8-63). One without them is gone."""
        for copy in self._inbox.done(self._delivery, again=True):
            await copy.nak(delay)


class Inbox:
    """The one stream of a member. Several bring to it, one reads."""

    def __init__(
        self,
        *,
        mediated: bool,
        clock: Callable[[], Now],
        metrics: Metrics | None = None,
        log: Log | None = None,
        notices: Notices | None = None,
        depth: int = DEPTH,
        desk: Desk[HeldCopy] | None = None,
    ) -> None:
        self.gate: Gate | None = None
        self.backed: Callable[[str], bool] = _never
        """Whether posts of a channel have durable copies that are read here."""
        self.own = ""
        """The member's own principal in dot-form: an author gets no copies."""
        self._mediated = mediated
        self._clock = clock
        self._metrics = metrics
        self._log = log
        self._notices = notices
        self._depth = depth
        self._desk: Desk[HeldCopy] = desk or Desk()
        self._roles: dict[str, Durable] = {}
        self._parked: dict[HeldCopy, tuple[Durable, int]] = {}
        self._waiting: deque[Delivery[HeldCopy]] = deque()
        self._some = asyncio.Event()
        self._moved = asyncio.Event()
        self._owed = Owed()
        self._leaving = False
        self._closed = False
        self._ending: Exception = InboxClosed()
        self._told = (0, 0)
        self._surfaced: dict[tuple[str, Via], Counter] = {}
        if metrics is not None:
            for kind, via in itertools.product(DELIVERY_KINDS.values(), Via):
                self._surfaced[kind, via] = metrics.counter("messaging_surfaced", kind, via.value)
        self._keeper: asyncio.Task[None] | None = None

    # ---- what comes in ----

    async def live(self, message: Msg) -> None:
        """A frame of a core subscription of a channel (C8-25)."""
        try:
            received = receive(
                message.data,
                delivery_of(message.subject),
                _SOURCE_LIVE,
                header_names=message.headers or _NOBODY,
                reply=message.reply,
                mediated=self._mediated,
            )
        except Rejected as error:
            self._refused(error, _LIVE)
            return
        if self._plain(received, _LIVE):
            await self._room()

    async def history(self, frame: Frame) -> None:
        """A frame of the history of a channel (C7-24)."""
        try:
            received = receive(
                frame.data,
                delivery_of(frame.subject),
                _SOURCE_HISTORY,
                header_names=frame.headers,
                mediated=self._mediated,
            )
        except Rejected as error:
            self._refused(error, _HISTORY)
            return
        if self._plain(received, _HISTORY):
            await self._room()

    async def durable(self, copy: HeldCopy, durable: Durable) -> None:
        """A copy of a durable of the member. What is refused for good is terminated here."""
        via = Via.BACKSTOP if durable.source is From.BACKSTOP else Via.DURABLE
        if durable.role:
            self._roles[durable.role] = durable
        try:
            received = judge(copy.frame, durable, mediated=self._mediated)
        except Rejected as error:
            self._refused(error, via)
            await copy.term()
            return
        try:
            notice = None if self._notices is None else await self._notices.of(received)
        except BaseException:  # whoever reads is stopped: nobody has the copy, and nobody would settle it
            await copy.nak()
            raise
        place = Place(durable.consumer, copy.frame.sequence)
        delivery, new = self._desk.take_durable(received, via, place, copy)
        if delivery is not None:
            delivery.notice = notice or delivery.notice
            if self._notices is not None and via is Via.BACKSTOP:
                delivery.eviction = self._notices.eviction(copy.frame) or delivery.eviction
        if new and delivery is not None:
            if self._put(delivery):
                await self._room()
            return
        self._coalesced(via)
        if delivery is None:
            copy.show()
            await copy.ack()
            if self._owed.came(identity_of(received)):
                self._moved.set()
        elif delivery.stage is Stage.OUT:
            copy.show()

    async def offer(self, copy: HeldCopy) -> None:
        """The gate gives a copy back: it may be read now, at the place where it came (C8.1-21)."""
        parked = self._parked.pop(copy, None)
        if parked is None:
            return  # it was parked for so long that others took its place: the broker delivers it again
        durable, arrival = parked
        received = judge(copy.frame, durable, mediated=self._mediated)
        place = Place(durable.consumer, copy.frame.sequence)
        delivery, new = self._desk.take_durable(received, Via.DURABLE, place, copy)
        if new and delivery is not None:
            delivery.arrival = arrival
            self._put(delivery)  # the gate holds few, and must not wait

    def _plain(self, received: Received, via: Via) -> bool:
        """Take a copy that is never acked; True when there is one delivery too many."""
        delivery, new = self._desk.take(received, via)
        if new and delivery is not None:
            return self._put(delivery)
        self._coalesced(via)
        return False

    def _put(self, delivery: Delivery[HeldCopy]) -> bool:
        """Put a delivery where it belongs by its arrival; True when there is one too many."""
        waiting = self._waiting
        if not waiting or waiting[-1].arrival < delivery.arrival:
            waiting.append(delivery)
        else:
            behind = len(waiting) - 1
            while behind and waiting[behind - 1].arrival > delivery.arrival:
                behind -= 1
            waiting.insert(behind, delivery)
        self._some.set()
        return len(waiting) > self._depth

    async def _room(self) -> None:
        """Whoever brought the one too many brings no other before there is room."""
        while len(self._waiting) > self._depth and not self._closed:
            self._moved.clear()
            await self._moved.wait()

    def _refused(self, error: Rejected, via: Via) -> None:
        if self._metrics is not None:
            self._metrics.counter("messaging_refused", via.value, error.reason.value).inc()
        if self._log is not None:
            self._log.warning("message_refused", reason=error.reason.value, way=via.value, detail=error.detail)

    def _coalesced(self, via: Via) -> None:
        if self._metrics is not None:
            self._metrics.counter("messaging_coalesced", via.value).inc()

    # ---- what goes out ----

    async def next(self) -> Delivered:
        """The next delivery, in the order of the first copies. Raises InboxClosed, or what :meth:`fail` said."""
        if self._keeper is None and not self._closed:
            self._keeper = asyncio.create_task(self._keep())
        while True:
            if self._leaving:
                raise InboxClosed
            if not self._waiting:
                if self._closed:
                    raise self._ending
                self._some.clear()
                await self._some.wait()
                continue
            head = self._waiting[0]
            if head.copies and self._desk.full and not self._closed:
                self._moved.clear()
                await self._moved.wait()
                continue
            self._waiting.popleft()
            self._moved.set()
            gate = self.gate if head.meta.kind == _ANYCAST else None
            if gate is None or await self._admitted(head, gate):
                return self._handed_out(head)

    async def _admitted(self, delivery: Delivery[HeldCopy], gate: Gate) -> bool:
        copy = next(iter(delivery.copies.values()))
        # The copy is the gate's until it is admitted; the next one of this message is another delivery.
        self._parked[copy] = (self._roles[delivery.meta.target], delivery.arrival)
        if len(self._parked) > MOST_PARKED:
            del self._parked[next(iter(self._parked))]
        try:
            shown = await gate.admit(copy, delivery.message)
        except BaseException:  # whoever asked for it waits no more: the next one who asks gets it
            self._parked.pop(copy, None)
            self._put(delivery)
            raise
        if shown:
            self._parked.pop(copy, None)
        else:
            self._desk.close(delivery, again=True)
        return shown

    def _handed_out(self, delivery: Delivery[HeldCopy]) -> Delivered:
        if delivery.copies:
            now = self._clock()
            for copy in delivery.copies.values():
                if self._metrics is not None:
                    self._metrics.histogram("messaging_wait_seconds").observe(copy.held.age(now))
                copy.show()
        self._desk.hand_out(delivery)
        if self._metrics is not None:
            self._surfaced[delivery.meta.kind, delivery.ways[0]].inc()
            if delivery.meta.mismatched:
                self._metrics.counter("messaging_mismatched").inc()
        return Delivered(delivery, self)

    def done(self, delivery: Delivery[HeldCopy], *, again: bool = False) -> list[HeldCopy]:
        """The member is done with a delivery: the copies to settle."""
        if not (again or delivery.copies or delivery.stage is Stage.DONE):
            self._expect(delivery)
        copies = self._desk.close(delivery, again=again)
        self._moved.set()
        return copies

    def _expect(self, delivery: Delivery[HeldCopy]) -> None:
        """It is handled, and its durable copy comes later, if there is to be one."""
        meta = delivery.meta
        expected = meta.kind == _POST and _LIVE in delivery.ways and meta.sender != self.own
        if expected and delivery.identity and self.backed(meta.target):
            self._owed.expect(delivery.identity, meta.target, self._clock().mono)

    @property
    def in_flight(self) -> tuple[int, ...]:
        """The keys of deliveries that were handed out and have copies to settle; the oldest first."""
        return tuple(delivery.key for delivery in self._desk.bound)

    async def _keep(self) -> None:
        """Renew what is being handled (C8-66), and give up what is handled for too long."""
        while True:
            await asyncio.sleep(RENEWAL_TICK)
            self._gauges(len(self._waiting), self._desk.out)
            # Beside each other, so that the renewals of a mediated space go in few calls.
            await asyncio.gather(*(copy.renew() for delivery in self._desk.bound for copy in self._due(delivery)))

    def _gauges(self, waiting: int, out: int) -> None:
        """Tell how much there is, from time to time: several members of a process share the gauges."""
        if self._metrics is not None:
            self._metrics.gauge("messaging_waiting").inc(waiting - self._told[0])
            self._metrics.gauge("messaging_in_flight").inc(out - self._told[1])
        self._told = (waiting, out)

    def _due(self, delivery: Delivery[HeldCopy]) -> list[HeldCopy]:
        """The copies to renew; none of a delivery that is given up."""
        now = self._clock()
        delivery.out_since = delivery.out_since or now.mono
        if now.mono - delivery.out_since > HANDLING_SECONDS:
            for copy in self.done(delivery, again=True):
                copy.forget()
            if self._metrics is not None:
                self._metrics.counter("messaging_given_up").inc()
            if self._log is not None:
                self._log.error("delivery_given_up", kind=delivery.meta.kind, key=delivery.key)
            return []
        return [copy for copy in delivery.copies.values() if copy.held.renew_in(now) <= RENEWAL_TICK]

    # ---- the end ----

    def fail(self, error: Exception) -> None:
        """Nothing more will come; what waits can still be read."""
        if not self._closed:
            self._closed, self._ending = True, error
            self._some.set()
            self._moved.set()

    async def _put_back(self, delivery: Delivery[HeldCopy]) -> None:
        for copy in self.done(delivery, again=True):
            with contextlib.suppress(ConnectionFault):  # without a link the ack wait does the same
                await copy.nak()

    def leave(self) -> None:
        """Nothing more is handed out; what was may still be settled."""
        self._leaving = True
        self._some.set()
        self._moved.set()

    @property
    def owes(self) -> bool:
        """Whether a post was handled whose durable copy is still expected."""
        return self._owed.until(self._clock().mono, self.backed) > 0

    async def settled(self, seconds: float) -> bool:
        """Wait for the durable copies of posts that were handled; False when some have not come by then. At once when
        there are none to come, or nothing comes any more."""
        end = self._clock().mono + seconds
        while not self._closed and (until := self._owed.until(self._clock().mono, self.backed)):
            self._moved.clear()
            try:
                async with asyncio.timeout(min(end, until) - self._clock().mono):
                    await self._moved.wait()
            except TimeoutError:
                return False
        return not self.owes

    async def drain(self, seconds: float) -> bool:
        """Wait until the member has settled what it has; False when that takes longer."""
        try:
            async with asyncio.timeout(seconds):
                while self._desk.bound:
                    self._moved.clear()
                    await self._moved.wait()
        except TimeoutError:
            return False
        return True

    async def close(self, *, drain: float = 0.0) -> None:
        """No more deliveries. What waits is put back, and so is what the member has not settled within
        ``drain`` seconds: it comes again without waiting for its ack wait. May be called twice."""
        self._closed = True
        self._some.set()
        self._moved.set()
        try:
            while self._waiting:
                await self._put_back(self._waiting.popleft())
            if not await self.drain(drain):
                for delivery in self._desk.bound:
                    await self._put_back(delivery)
        finally:
            if self._keeper is not None:
                self._keeper.cancel()
                await asyncio.gather(self._keeper, return_exceptions=True)
            self._gauges(0, 0)
