"""One loop of the delivery plane: messages of a durable become copies, and each is settled when its copies are stored.

``FanOut`` and ``Reader`` say what becomes of a message; the rest is here. Nothing is settled before the broker has
acknowledged every copy, so that a crash at any point gives the message again, to this process or the next. What was
stored before the crash is then a duplicate under the same message id, and the broker keeps one. What does not succeed
is given back with a delay; it blocks nothing behind it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from enum import Enum
from typing import Any, Final, NamedTuple

from nats.aio.msg import Msg

from sidecar.base.clock import Now
from sidecar.rails.connection import NotConnected
from sidecar.rails.connection.streams import BoundConsumer, ConsumerGone
from sidecar.rails.names import headers
from sidecar.rails.names.acks import AckTail, tail_of
from sidecar.rails.names.limits import READER_MAX_ACK_PENDING
from sidecar.rails.planes.delivery.broker import Unanswered, consumer_info, create, durable, prove, stream_state
from sidecar.rails.planes.delivery.mirror import Behind
from sidecar.rails.planes.delivery.pipeline import Ending, Pipeline
from sidecar.rails.planes.delivery.plane import Plane

BATCH: Final = 128
"""Messages that are decided by one look at memberships, lists and the registry."""
PULL: Final = READER_MAX_ACK_PENDING // 2
"""Messages asked for at a time: while one half of what the broker lets out is carried, the other half comes."""
PULL_BYTES: Final = 16 * 1024 * 1024
HELD_BYTES: Final = 32 * 1024 * 1024
"""Payload that is held for messages on their way; above it no more are read."""
FRESH_SECONDS: Final = 2.0
"""A look at memberships, lists and the registry that is older serves no further decision."""
STALE_SECONDS: Final = 10.0
"""What was decided by an older look is not sent any more, where it decides who reads (``CopyLoop.fresh``): the process
may have stood still, and another one may hold the lease since."""
AGAIN_SECONDS: Final = {Ending.REFUSED: 2.0, Ending.TIMEOUT: 0.5, Ending.LINK: 0.0, Ending.STALE: 0.0}
"""After which delay the broker gives a message again whose copy was not stored."""
LOOK_SECONDS: Final = 10.0
"""How often the pending messages are asked for while nothing comes."""
_PAUSE: Final = 0.5
_LINE: Final = len("NATS/1.0\r\n\r\n")
_PAIR: Final = len(": \r\n")


class Point(Enum):
    """Where a loop can be stopped by a test, or by a crash."""

    PULLED = "messages were read, and nothing was decided"
    SENT = "the copies of a message were sent"
    STORED = "they are acknowledged, and the message is not settled"
    SETTLED = "the message is settled"


At = Callable[[Point], Awaitable[None]]


class Outgoing(NamedTuple):
    """One copy: where it goes, under which headers, and the label of the counter for it."""

    subject: str
    headers: Mapping[str, str]
    why: str


class Send(NamedTuple):
    """Store these copies of the message's payload, then ack it."""

    copies: Sequence[Outgoing]


class Drop(NamedTuple):
    """The message goes no further, for this reason."""

    reason: str


class Defer(NamedTuple):
    """It cannot be decided yet."""

    seconds: float


Verdict = Send | Drop | Defer


class Held(NamedTuple):
    """A message of the durable, and the numbers of this delivery."""

    message: Msg
    tail: AckTail


class _Job:
    """A message whose copies are on their way."""

    __slots__ = ("failed", "held", "left")

    def __init__(self, held: Held, left: int) -> None:
        self.held, self.left = held, left
        self.failed: Ending | None = None


async def together(*work: Coroutine[Any, Any, None]) -> None:
    """Run all of it until the first one ends; its error is raised when the others have ended too."""
    tasks = [asyncio.create_task(one) for one in work]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class CopyLoop(ABC):
    """``run`` ends only by an error: Stopped, PermissionViolation, DurableDiffers, or the cancellation."""

    def __init__(self, plane: Plane, label: str, stream: str, consumer: str, pattern: str, at: At | None) -> None:
        self.plane, self.label = plane, label
        self._stream, self._consumer, self._pattern, self._at = stream, consumer, pattern, at
        self._pipeline = Pipeline(plane, label)
        self._waiting: deque[Held] = deque()
        self._in_hand: dict[int, int] = {}
        self._returned: set[int] = set()
        """What was given back and has not come again. The broker lets out no more before it has an end to these."""
        self._looked: Now | None = None
        self._bytes = 0
        self._highest = 0
        self._pending = 0
        self._wake = asyncio.Event()
        self._freed = asyncio.Event()
        self._settling: deque[tuple[Held, bytes, Point | None]] = deque()
        self._settle_wake = asyncio.Event()
        self.bound = asyncio.Event()
        """Set when the durable is there: from then on no message is missed."""

    # ---- what a kind of loop says ----

    @abstractmethod
    async def start(self) -> dict[str, Any]:
        """Where the durable begins when there is none and no floor is known. Raises Unanswered, Behind."""

    @abstractmethod
    async def ready(self) -> None:
        """Return when everything that decisions need is current. Raises Behind, Unanswered."""

    @abstractmethod
    def judge(self, held: Held) -> Verdict:
        """What becomes of a message; never raises."""

    async def dressed(self, copy: Outgoing) -> Mapping[str, str]:
        """The headers of a copy at the moment in which it is sent. Raises Unanswered."""
        return copy.headers

    @abstractmethod
    def stored(self, held: Held) -> None:
        """Every copy of the message is stored."""

    # ---- the loop ----

    @property
    def floor(self) -> int:
        """The stream sequence up to which every message that came was settled."""
        return min((*self._in_hand, *self._returned), default=self._highest + 1) - 1

    async def run(self) -> None:
        """Carry messages for ever."""
        await self._insisted(self._bind)
        self.bound.set()
        await self._insisted(self._pipeline.open)
        await together(self._pipeline.run(), self._feed(), self._work(), self._settle(), self._look())

    async def _insisted(self, step: Callable[[], Awaitable[None]]) -> None:
        """Do it, as often as it takes: the broker may be down."""
        while True:
            try:
                await step()
                return
            except (Unanswered, Behind, NotConnected) as error:
                self.plane.log.warning("delivery_loop_waits", loop=self.label, error=error)
                await asyncio.sleep(_PAUSE)

    async def _reached(self, point: Point) -> None:
        if self._at is not None:
            await self._at(point)

    async def _bind(self) -> None:
        config = durable(self._consumer, self._pattern, {})
        if await prove(self.plane.connection, self._stream, config):
            return
        begin = await self._begin()
        await create(self.plane.connection, self._stream, {**config, **begin})
        self._returned.clear()  # they come again, with everything behind the floor
        self.plane.metrics.counter("delivery_durables_made", self.label).inc()
        self.plane.log.warning("delivery_durable_made", loop=self.label, consumer=self._consumer, **begin)

    async def _begin(self) -> dict[str, Any]:
        """Where a durable made anew goes on: behind what this run, and those before it, are known to have settled."""
        kept = self.plane.floors.of(self._consumer, await stream_state(self.plane.connection, self._stream))
        known = [*([self.floor] if self._highest else []), *([] if kept is None else [kept])]
        if known:
            return {"deliver_policy": "by_start_sequence", "opt_start_seq": min(known) + 1}
        return await self.start()

    async def _feed(self) -> None:
        """Read messages as long as there is room for them."""
        while True:
            consumer = BoundConsumer(
                self.plane.connection, self._stream, self._consumer, batch=PULL, max_bytes=PULL_BYTES
            )
            try:
                while True:
                    self._take(await consumer.next())
                    while self._bytes > HELD_BYTES:
                        self._freed.clear()
                        await self._freed.wait()
            except ConsumerGone:
                await self._insisted(self._bind)
            except NotConnected:
                await asyncio.sleep(_PAUSE)
            finally:
                with contextlib.suppress(Exception):  # the end of the connection comes as the error of its readers
                    await consumer.close()

    def _take(self, message: Msg) -> None:
        tail = tail_of(message.reply, self._stream, self._consumer)
        if tail.sequence in self._in_hand:
            return  # it took longer than the ack wait, and is still on its way
        self._in_hand[tail.sequence] = len(message.data)
        self._returned.discard(tail.sequence)
        self._bytes += len(message.data)
        self._highest = max(self._highest, tail.sequence)
        self._waiting.append(Held(message, tail))
        self._pending = tail.pending
        self._wake.set()

    async def _work(self) -> None:
        while True:
            while not self._waiting:
                self._wake.clear()
                await self._wake.wait()
            self._show(self._pending + len(self._in_hand))
            batch = [self._waiting.popleft() for _ in range(min(BATCH, len(self._waiting)))]
            await self._reached(Point.PULLED)
            self._looked = None
            for held in batch:
                if self._age() > FRESH_SECONDS:
                    await self._insisted(self._ready)
                await self._carry(held, self.judge(held))

    async def _ready(self) -> None:
        """Become current; the look is as old as the question."""
        asked = self.plane.clock()
        await self.ready()
        self._looked = asked

    def _age(self) -> float:
        """Seconds since the last look, on either clock: one of them stands still while a machine is suspended."""
        now, looked = self.plane.clock(), self._looked
        return math.inf if looked is None else max(now.mono - looked.mono, now.wall - looked.wall)

    async def _carry(self, held: Held, verdict: Verdict) -> None:
        if isinstance(verdict, Drop):
            self._dropped(verdict.reason)
            self._settled(held, headers.TERM)
        elif isinstance(verdict, Defer):
            self._settled(held, _nak(verdict.seconds))
        elif not verdict.copies:
            self._settled(held, headers.ACK)
        else:
            job = _Job(held, len(verdict.copies))
            for copy in verdict.copies:
                await self._send(job, copy)
            await self._reached(Point.SENT)

    async def _send(self, job: _Job, copy: Outgoing) -> None:
        data = job.held.message.data

        def told(ending: Ending) -> None:
            self._told(job, copy, ending)

        await self._pipeline.room(len(data))
        while True:
            try:
                dressed = await self.dressed(copy)
                break
            except Unanswered:
                await asyncio.sleep(_PAUSE)
        if self.fresh and self._age() > STALE_SECONDS:
            self._told(job, copy, Ending.STALE)
            return
        if len(data) + header_bytes(dressed) > self.plane.connection.max_payload:
            # The broker would end the connection of whoever sends it.
            self._dropped("too_large")
            self._told(job, None, Ending.STORED)
            return
        await self._pipeline.send(copy.subject, data, dressed, told)

    def _told(self, job: _Job, copy: Outgoing | None, ending: Ending) -> None:
        job.left -= 1
        if ending in AGAIN_SECONDS:
            job.failed = ending
        elif copy is not None:
            kind = "delivery_duplicates" if ending is Ending.DUPLICATE else self.counter
            label = self.label if ending is Ending.DUPLICATE else copy.why
            self.plane.metrics.counter(kind, label).inc()
        if job.left:
            return
        if job.failed is not None:
            self.plane.metrics.counter("delivery_retries", self.label, job.failed.value).inc()
            self._settled(job.held, _nak(AGAIN_SECONDS[job.failed]))
            return
        self.stored(job.held)
        self._settled(job.held, headers.ACK, Point.STORED)

    counter = "delivery_copies"
    """What counts copies by why they were made."""
    fresh = False
    """Whether a copy is only sent by a decision of the last seconds; else its next reader decides again."""

    def _dropped(self, reason: str) -> None:
        self.plane.metrics.counter("delivery_dropped", self.label, reason).inc()
        self.plane.log.warning("delivery_dropped", loop=self.label, reason=reason)

    # ---- settling ----

    def _settled(self, held: Held, body: bytes, point: Point | None = None) -> None:
        self._settling.append((held, body, point))
        self._settle_wake.set()

    async def _settle(self) -> None:
        """Tell the broker, in the order in which it was known. A word that is lost is said again after a redelivery."""
        while True:
            while not self._settling:
                self._settle_wake.clear()
                await self._settle_wake.wait()
            held, body, point = self._settling.popleft()
            if point is not None:
                await self._reached(point)
            if not self.plane.connection.offer(held.message.reply, body):
                await self._insisted(lambda reply=held.message.reply, body=body: self._say(reply, body))  # type: ignore[misc]
            self._bytes -= self._in_hand.pop(held.tail.sequence, 0)
            if body.startswith(headers.NAK):
                self._returned.add(held.tail.sequence)
            self._freed.set()
            if body is headers.ACK:
                await self._reached(Point.SETTLED)

    async def _say(self, reply: str, body: bytes) -> None:
        await self.plane.connection.send(reply, body)

    # ---- gauges ----

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            try:
                info = await consumer_info(self.plane.connection, self._stream, self._consumer)
            except Unanswered:
                continue
            if info is not None:
                self._show(int(info.get("num_pending", 0)) + int(info.get("num_ack_pending", 0)))

    def _show(self, pending: int) -> None:
        self.plane.metrics.gauge("delivery_pending", self.label).set(pending)


def _nak(seconds: float) -> bytes:
    if not seconds:
        return headers.NAK
    return headers.NAK + b" " + json.dumps({"delay": int(seconds * 1_000_000_000)}).encode()


def header_bytes(found: Mapping[str, str]) -> int:
    """Bytes of a header block as the broker counts them; the values are ASCII."""
    return _LINE + sum(map(len, found)) + sum(map(len, found.values())) + _PAIR * len(found)
