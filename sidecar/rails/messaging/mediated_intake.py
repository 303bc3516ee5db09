"""A durable source that the delivery plane reads for a member of a mediated space: ``fetch`` and ``settle`` (C9-47).

The plane may be down for as long as it likes: fetching goes on with growing waits, words about copies are kept and said
when it is back, up to a bound. Whatever gets lost on the way comes again, because only an ack that arrived ends a copy.
The intake names itself by a session, and says now and then that it still has its copies: those of a process that died
are given to the next one without waiting for their ack wait.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple

from sidecar.base.clock import Now, system_now
from sidecar.base.strictjson import JsonValue
from sidecar.ops.logging import Log
from sidecar.ops.metrics import Metrics
from sidecar.rails.connection import Connection
from sidecar.rails.connection.streams import ConsumerGone
from sidecar.rails.endpoint.caller import Calls
from sidecar.rails.endpoint.codes import CallError, Code
from sidecar.rails.endpoint.contracts import DELIVERY_ENDPOINT, MAX_BATCH, MAX_SETTLED
from sidecar.rails.messaging.durables import Durable
from sidecar.rails.messaging.frames import BadFrame, Frame, read_frame
from sidecar.rails.messaging.held import TIMED, Held, Word
from sidecar.rails.messaging.intake import ROLE_BATCH, IntakeRefused, Source
from sidecar.rails.messaging.pacing import Backoff, Batching

WAIT_SECONDS: Final = 20.0
"""How long one fetch waits for a first copy: less than half of an ack wait, because the copy counts as old as that."""
FIRST_WAIT_SECONDS: Final = 1.0
"""How long the first fetch waits: whoever reads is to know soon whether the durable is there."""
CALL_SECONDS: Final = 5.0
END_SECONDS: Final = 2.0
"""How long the end of the reading waits for the plane to hear of it."""
HOLD_SECONDS: Final = 3.0
"""How often an intake with copies says that it has them. The plane gives them to a newer process after eight seconds
without a word."""
FIRST_RETRY, LONGEST_RETRY = 0.25, 10.0
MAX_WORDS: Final = 4096
"""Words that wait for the plane. Above it the oldest is lost, and its copy comes again."""


class _Item(NamedTuple):
    word: Word
    token: str
    delay_ms: int
    done: asyncio.Future[bool]


class MediatedIntake(Source):
    """Long polls for copies, and settles them in batches. Made like RawIntake, with a caller."""

    def __init__(
        self,
        connection: Connection,
        caller: Calls,
        durable: Durable,
        *,
        most: int | None = None,
        wait: float = WAIT_SECONDS,
        clock: Callable[[], Now] = system_now,
        chance: Callable[[], float] = random.random,
        entropy: Callable[[int], bytes] = os.urandom,
        metrics: Metrics | None = None,
        log: Log | None = None,
    ) -> None:
        most = most or (ROLE_BATCH if durable.role else MAX_BATCH)
        super().__init__(durable, most, clock, metrics, log)
        self._connection, self._caller = connection, caller
        self._wait, self._chance = wait, chance
        self._session = entropy(16).hex()
        self._held: dict[str, Now] = {}
        self._holder: asyncio.Task[None] | None = None
        self._batching = Batching(most)
        self._words: deque[_Item] = deque()
        self._some = asyncio.Event()
        self._settler: asyncio.Task[None] | None = None
        self._failing = False
        self._fetched = False
        self._closed = False

    def _about(self) -> dict[str, JsonValue]:
        role: dict[str, JsonValue] = {"role": self.durable.role} if self.durable.role else {}
        session: dict[str, JsonValue] = {"session": self._session} if self._session else {}
        return {"source": self.durable.source.value, **session, **role}

    # ---- reading ----

    async def _read(self) -> None:
        backoff = Backoff(FIRST_RETRY, LONGEST_RETRY)
        while True:
            await self._room()
            asked = self._clock()
            try:
                frames = await self._fetch()
            except CallError as error:
                await self._failed(error, backoff)
                continue
            backoff.succeeded()
            self._recovered()
            self.found()
            self._batching.came(len(frames))
            self._holds(frames, asked)
            for frame in frames:
                await self._put(frame, asked)  # the broker may have given it out as soon as it was asked for
            await self._queue.join()  # the next batch is not to wait here with its ack wait running

    async def _fetch(self) -> list[Frame]:
        wait = self._wait if self._fetched else min(self._wait, FIRST_WAIT_SECONDS)
        args = {**self._about(), "batch": self._batching.size, "waitMs": int(wait * 1000)}
        answer = await self._caller.call(DELIVERY_ENDPOINT, "fetch", args, seconds=wait + CALL_SECONDS)
        self._fetched = True
        listed = answer.get("frames") if isinstance(answer, dict) else None
        frames = []
        for value in listed if isinstance(listed, list) else []:
            try:
                frames.append(read_frame(value))
            except BadFrame as error:  # it cannot be settled either; the broker gives it out again
                self._failure("bad_answer", str(error))
        return frames

    async def _failed(self, error: CallError, backoff: Backoff) -> None:
        """Wait before the next attempt, or end the source when no attempt can help."""
        if error.code == Code.NOT_FOUND:
            raise ConsumerGone(error.message)
        if error.code == Code.PERMISSION_DENIED:
            raise IntakeRefused(error.code, error.message)
        self._failure("unanswered", error.code)
        if not self._connection.linked:
            await self._connection.restored(-1)  # raises Stopped, when there will be no link any more
            return
        await asyncio.sleep(backoff.failed(self._chance()))

    def _failure(self, kind: str, why: str) -> None:
        if self._metrics is not None:
            self._metrics.counter("messaging_fetch_failures", kind).inc()
        if self._log is not None and not self._failing:
            self._log.warning("messaging_fetch_failed", source=self.durable.source.value, kind=kind, why=why)
        self._failing = True

    def _recovered(self) -> None:
        if self._failing and self._log is not None:
            self._log.info("messaging_fetch_resumed", source=self.durable.source.value)
        self._failing = False

    # ---- what it has ----

    def _holds(self, frames: list[Frame], came: Now) -> None:
        self._held |= {frame.token: came for frame in frames}
        if frames and self._holder is None:
            self._holder = asyncio.create_task(self._hold())

    async def _hold(self) -> None:
        """Say from time to time that this process has copies and lives."""
        while True:
            await asyncio.sleep(HOLD_SECONDS)
            now = self._clock()
            self._held = {token: came for token, came in self._held.items() if Held(came).fresh(now)}
            if not self._held:
                continue
            items: list[JsonValue] = [{"token": next(iter(self._held)), "how": "hold"}]
            with contextlib.suppress(CallError):  # the plane is away: it will have forgotten who held what
                await self._caller.call(
                    DELIVERY_ENDPOINT, "settle", {**self._about(), "items": items}, seconds=CALL_SECONDS
                )

    # ---- settling ----

    async def say(self, frame: Frame, word: Word, delay: float) -> bool:
        """Queue a word for the plane. A renewal returns when the plane has it or it got lost; the others at once."""
        if self._closed:  # nobody would send it, and nobody may wait for that
            self._settled(word, "lost")
            return False
        if word is Word.RENEW:
            self._held[frame.token] = self._clock()
        else:
            self._held.pop(frame.token, None)
        done: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        if len(self._words) >= MAX_WORDS:
            self._lost(self._words.popleft())
        self._words.append(_Item(word, frame.token, int(delay * 1000), done))
        self._some.set()
        if self._settler is None:
            self._settler = asyncio.create_task(self._settle())
        return await done if word is Word.RENEW else True

    async def _settle(self) -> None:
        backoff = Backoff(FIRST_RETRY, LONGEST_RETRY)
        while True:
            while not self._words:
                self._some.clear()
                await self._some.wait()
            if await self._flush():
                backoff.succeeded()
            else:
                await asyncio.sleep(backoff.failed(self._chance()))

    async def _flush(self) -> bool:
        """Say up to one call's worth of words; what depends on the ack wait is lost when the call fails."""
        items = [self._words.popleft() for _ in range(min(len(self._words), MAX_SETTLED))]
        try:
            answer = await self._caller.call(
                DELIVERY_ENDPOINT, "settle", {**self._about(), "items": [_spelled(item) for item in items]},
                seconds=CALL_SECONDS,
            )  # fmt: skip
        except CallError:
            for item in items:
                if item.word in TIMED:
                    self._lost(item)
            self._words.extendleft(item for item in reversed(items) if item.word not in TIMED)
            return False
        except asyncio.CancelledError:
            self._words.extendleft(reversed(items))
            raise
        told = answer.get("settled") if isinstance(answer, dict) else None
        settled = told if isinstance(told, list) and len(told) == len(items) else [False] * len(items)
        for item, good in zip(items, settled, strict=True):
            if good is True:
                self._settled(item.word, "sent")
                _finish(item, said=True)
            else:
                self._lost(item)
        return True

    def _lost(self, item: _Item) -> None:
        self._settled(item.word, "lost")
        _finish(item, said=False)

    async def stop(self) -> None:
        """Read no more. The plane is told, so that a fetch that still waits there keeps no copy from the next one."""
        if self._pump is not None and self._session:
            self._pump.cancel()
            with contextlib.suppress(CallError):
                args: dict[str, JsonValue] = {**self._about(), "items": [], "end": True}
                await self._caller.call(DELIVERY_ENDPOINT, "settle", args, seconds=END_SECONDS)
            self._session = ""  # what is said from now on is no word of a reader
        await super().stop()

    async def close(self) -> None:
        """Stop for good; the words that wait are said once more, for a bounded time."""
        await super().close()
        self._closed = True
        for task in (self._holder, self._settler):
            if task is not None:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CALL_SECONDS):
                while self._words and await self._flush():
                    pass
        while self._words:
            self._lost(self._words.popleft())


def _finish(item: _Item, *, said: bool) -> None:
    if not item.done.done():
        item.done.set_result(said)


def _spelled(item: _Item) -> JsonValue:
    spelled: dict[str, JsonValue] = {"token": item.token, "how": item.word.value}
    if item.word is Word.NAK and item.delay_ms:
        spelled["delayMs"] = item.delay_ms
    return spelled
