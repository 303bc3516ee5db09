"""One durable source of a member, in either form of a space: copies come in, words about them go out.

    intake = RawIntake(connection, Durable.dm(space, lifecycle), metrics=metrics, log=log)     # compatible
    copy = await intake.take()
    async with copy.kept(): ...          # shown and being handled: renewed for as long as the block takes
    await copy.ack()                     # or nak(delay), term()

At-least-once: what is not acked comes again. What cannot be a copy of this source is dropped and counted before
anything of it is read. ``next`` and ``take`` raise what ends a source: ConsumerGone when there is no such durable,
PermissionViolation or IntakeRefused when the member may not read it, Stopped with the connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable
from typing import Final, Protocol

from sidecar.base.clock import Now, system_now
from sidecar.ops.logging import Log
from sidecar.ops.metrics import Metrics
from sidecar.rails.connection import Connection, ConnectionFault, NotConnected
from sidecar.rails.connection.streams import HEARTBEAT, BoundConsumer
from sidecar.rails.messaging.durables import Durable, Odd
from sidecar.rails.messaging.frames import Frame, frame_of
from sidecar.rails.messaging.held import TIMED, Copy, Held, Wish, Word
from sidecar.rails.names import InvalidName
from sidecar.rails.names.acks import ack_subject

BATCH: Final = 16
"""Copies of one raw pull. They wait in memory with their ack wait running, so there are few."""
ROLE_BATCH: Final = 1
"""A copy that one holder keeps waiting is one that no other holder gets."""
ROLE_UNSHOWN: Final = 4
"""Copies of a role's queue that a member holds and has not shown; with so many it asks for no other."""
RETRY_RENEWAL: Final = 1.0
"""Seconds between renewals that got lost."""
_NANO: Final = 10**9


class IntakeRefused(Exception):  # noqa: N818 - the plane's word
    """The delivery plane does not read this source for this member; ``code`` is its reason."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code


class IntakeClosed(Exception):  # noqa: N818 - a state
    """The owner closed the intake."""


class Intake(Protocol):
    """One durable source in either form (C8-62..67)."""

    durable: Durable
    found: Callable[[], object]
    """Called whenever the durable was seen to be there and readable, with or without a copy."""

    async def take(self) -> HeldCopy:
        """The next copy, to be settled by itself."""

    async def next(self) -> Frame:
        """The next copy, to be settled with the calls below. Whoever uses these minds the ack discipline himself."""

    async def ack(self, frame: Frame) -> None:
        """It was shown or handled."""

    async def nak(self, frame: Frame, delay: float = 0.0) -> None:
        """Not now: deliver it again, not before ``delay`` seconds."""

    async def term(self, frame: Frame) -> None:
        """It is permanently invalid: never again."""

    async def renew(self, frame: Frame) -> None:
        """It is still being handled: the ack wait begins anew."""

    async def stop(self) -> None:
        """Read no more, and put back what nobody has taken; what was taken can still be settled."""

    async def close(self) -> None:
        """Stop for good. What was not settled comes again, to whoever reads next."""


class HeldCopy:
    """A copy with its books. Every word about it is said at most once, and none too late (``Held``)."""

    def __init__(self, frame: Frame, held: Held, source: Source, clock: Callable[[], Now]) -> None:
        self.frame = frame
        self.held = held
        self._source = source
        self._clock = clock

    @property
    def fresh(self) -> bool:
        """Whether nobody else can have been given the message since."""
        return self.held.fresh(self._clock())

    def show(self) -> None:
        """It is shown, or handed to a handler, now."""
        self.held.wish(Wish.SHOW, self._clock())
        self._source.moved()

    async def ack(self) -> None:
        """It was shown or handled. NotShown when it was neither (C8-62)."""
        await self._say(Wish.ACK)

    async def nak(self, delay: float = 0.0) -> None:
        """Deliver it again (C8-63)."""
        await self._say(Wish.NAK, delay)

    async def term(self) -> None:
        """It is invalid for good (C8-64)."""
        await self._say(Wish.TERM)

    async def renew(self) -> bool:
        """Begin the ack wait anew; False when it may be over already and nothing was said, or what was said got lost
        (C8-67)."""
        at = self._clock()
        renewed = await self._say(Wish.RENEW)
        if renewed:
            self.held.renewed(at)
        return renewed

    def forget(self) -> None:
        """Drop it without a word."""
        self.held.wish(Wish.FORGET, self._clock())
        self._source.moved()

    async def _say(self, wish: Wish, delay: float = 0.0) -> bool:
        word = self.held.wish(wish, self._clock())
        self._source.moved()
        return word is not None and await self._source.say(self.frame, word, delay)

    @contextlib.asynccontextmanager
    async def kept(self) -> AsyncIterator[None]:
        """Show the copy, and renew it for as long as the block takes (C8-66)."""
        self.show()
        task = asyncio.create_task(self._keep())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _keep(self) -> None:
        while True:
            await asyncio.sleep(self.held.renew_in(self._clock()) or RETRY_RENEWAL)
            if not await self.renew() and not self.fresh:
                return


class Source(ABC):
    """What both forms share: a pump that stamps copies as they come, and the queue behind it.

    The queue holds one batch. A copy that stood in it for longer than its ack wait is dropped: it comes again. Of a
    role's queue, which other holders read too, no more is asked for while a few copies were not shown yet.
    """

    def __init__(
        self,
        durable: Durable,
        depth: int,
        clock: Callable[[], Now],
        metrics: Metrics | None,
        log: Log | None,
    ) -> None:
        self.durable = durable
        self.found: Callable[[], object] = lambda: None
        self._clock = clock
        self._metrics = metrics
        self._log = log
        self._queue: asyncio.Queue[tuple[Frame, Held] | Exception] = asyncio.Queue(depth)
        self._pump: asyncio.Task[None] | None = None
        self._ended: Exception | None = None
        self._unshown: list[HeldCopy] = []
        self._coming = 0
        self._moved = asyncio.Event()

    @abstractmethod
    async def _read(self) -> None:
        """Put copies until cancelled; what it raises ends the source."""

    @abstractmethod
    async def say(self, frame: Frame, word: Word, delay: float) -> bool:
        """Hand a word about a copy on; False when it is known to be lost: it is counted, and the copy comes again."""

    async def take(self) -> HeldCopy:
        """The next copy."""
        if self._pump is None:
            self._pump = asyncio.create_task(self._run())
        while True:
            if self._ended is not None and self._queue.empty():
                raise self._ended
            came = await self._queue.get()
            self._queue.task_done()
            self._coming -= not isinstance(came, Exception)
            if isinstance(came, Exception):
                self._ended = came
            elif came[1].fresh(self._clock()):
                copy = HeldCopy(*came, self, self._clock)
                if self.durable.role:
                    self._unshown.append(copy)
                return copy
            else:
                self._dropped(Odd.STALE)

    def moved(self) -> None:
        """A copy was shown or settled."""
        self._moved.set()

    async def _room(self) -> None:
        """Until another copy may be asked for. One whose ack wait is over is not held any more."""
        while self.durable.role:
            now = self._clock()
            self._unshown = [copy for copy in self._unshown if copy.held.state is Copy.HELD and copy.held.fresh(now)]
            if len(self._unshown) + self._coming < ROLE_UNSHOWN:
                return
            self._moved.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(RETRY_RENEWAL):
                    await self._moved.wait()

    async def next(self) -> Frame:
        """The next copy, without its books."""
        return (await self.take()).frame

    async def ack(self, frame: Frame) -> None:
        """It was shown or handled."""
        await self.say(frame, Word.ACK, 0.0)

    async def nak(self, frame: Frame, delay: float = 0.0) -> None:
        """Deliver it again."""
        await self.say(frame, Word.NAK, delay)

    async def term(self, frame: Frame) -> None:
        """It is invalid for good."""
        await self.say(frame, Word.TERM, 0.0)

    async def renew(self, frame: Frame) -> None:
        """Begin the ack wait anew."""
        await self.say(frame, Word.RENEW, 0.0)

    async def stop(self) -> None:
        """Read no more. May be called twice."""
        if self._pump is not None:
            self._pump.cancel()
            await asyncio.gather(self._pump, return_exceptions=True)
        while not self._queue.empty():
            came = self._queue.get_nowait()
            self._queue.task_done()
            if not isinstance(came, Exception):
                await HeldCopy(*came, self, self._clock).nak()
        self._ended = self._ended or IntakeClosed("the intake was closed")
        with contextlib.suppress(asyncio.QueueFull):  # one who waits for the queue waits because it is empty
            self._queue.put_nowait(self._ended)

    async def close(self) -> None:
        """Stop for good."""
        await self.stop()

    async def _run(self) -> None:
        try:
            await self._read()
        except Exception as error:  # told to the reader, whatever it is
            await self._queue.put(error)

    async def _put(self, frame: Frame, came: Now) -> None:
        """A copy that came not before ``came``; an odd one is dropped here."""
        odd = self.durable.odd(frame) or (Odd.OMITTED if frame.omitted else None)
        if odd is None:
            if self._metrics is not None:
                again = "again" if frame.delivered > 1 else "first"
                self._metrics.counter("messaging_copies", self.durable.source.value, again).inc()
            self._coming += 1
            await self._queue.put((frame, Held(came)))
            return
        self._dropped(odd)
        await self.term(frame)  # it is this consumer's own copy, and it will never be another one

    def _dropped(self, odd: Odd) -> None:
        if self._metrics is not None:
            self._metrics.counter("messaging_frames_dropped", self.durable.source.value, odd.value).inc()
        if self._log is not None and odd is not Odd.STALE:
            self._log.warning("messaging_frame_dropped", source=self.durable.source.value, reason=odd.value)

    def _settled(self, word: Word, outcome: str) -> None:
        if self._metrics is not None:
            self._metrics.counter("messaging_settled", word.value, outcome).inc()


class RawIntake(Source):
    """Reads a durable of the own lifecycle, or of a role, itself (compatible spaces; C8-31, C8-43)."""

    def __init__(
        self,
        connection: Connection,
        durable: Durable,
        *,
        batch: int | None = None,
        heartbeat: float = HEARTBEAT,
        clock: Callable[[], Now] = system_now,
        metrics: Metrics | None = None,
        log: Log | None = None,
    ) -> None:
        batch = batch or (ROLE_BATCH if durable.role else BATCH)
        super().__init__(durable, batch, clock, metrics, log)
        self._connection = connection
        self._consumer = BoundConsumer(
            connection,
            durable.stream,
            durable.consumer,
            batch=batch,
            heartbeat=heartbeat,
            found=lambda: self.found(),  # who wants to hear it is said later
        )

    async def _read(self) -> None:
        while True:
            await self._room()
            try:
                message = await self._consumer.next()
            except NotConnected:
                await self._connection.restored(-1)  # raises Stopped, when there will be no link any more
                continue
            came = self._clock()
            try:
                frame = frame_of(message, self.durable.stream, self.durable.consumer)
            except InvalidName:  # not a copy of this consumer: there is nothing to settle
                self._dropped(Odd.FOREIGN)
                continue
            await self._put(frame, came)

    async def say(self, frame: Frame, word: Word, delay: float) -> bool:
        """Hand a word to the broker, without an answer."""
        subject = ack_subject(self.durable.stream, self.durable.consumer, frame.token)
        body = word.body
        if word in TIMED and not self._connection.linked:  # until there is a link again, the ack wait does the same
            self._settled(word, "lost")
            return False
        if word is Word.NAK and delay > 0:
            body += b" " + json.dumps({"delay": int(delay * _NANO)}).encode()
        try:
            await self._connection.send(subject, body)
        except ConnectionFault:
            self._settled(word, "lost")
            return False
        self._settled(word, "sent")
        return True

    async def stop(self) -> None:
        """Read no more."""
        await self._consumer.close()  # first: what is put back must not come to this reader
        await super().stop()
