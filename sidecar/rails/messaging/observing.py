"""Posts for an observer as one stream: from history and as they come, each once (CB-61, C4-18).

The tap carries no sequences. So the end of CHAT is noted before it is opened, and again from time to time; when it may
have missed something, what was stored since the last note is read from history, and what was shown already is dropped
by sender and id.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Final, NamedTuple

import orjson

from sidecar.base.clock import Now, system_now
from sidecar.ops.logging import Log
from sidecar.ops.metrics import Metrics
from sidecar.rails.connection import Connection, ConnectionFault
from sidecar.rails.envelopes.coalesce import Coalescer
from sidecar.rails.envelopes.receive import Received, Rejected, Source, receive
from sidecar.rails.messaging.desk import Via
from sidecar.rails.messaging.frames import Frame
from sidecar.rails.messaging.readers import HistoryReader, HistoryUnreadable, Tap, Tapped
from sidecar.rails.names import api, streams
from sidecar.rails.names.grants import covers
from sidecar.rails.names.subjects import delivery_of
from sidecar.rails.names.tokens import TAIL

NOTE_SECONDS: Final = 10.0
"""How often the end of CHAT is noted. What is read again after an interruption stays below what is remembered."""
REMEMBERED: Final = 16_384
_RETRY: Final = 1.0
_CHANNEL: Final = "channel"


class Observed(NamedTuple):
    """One message, and by which way it came first."""

    received: Received
    via: Via


class Gap(NamedTuple):
    """Something was missed and cannot be read from history yet; that is tried until it can."""

    why: str


class Observation:
    """What an observer or admin sees of some channels. Made by :meth:`open`, read by :meth:`events`."""

    def __init__(
        self,
        connection: Connection,
        space: str,
        history: HistoryReader,
        tap: Tap,
        channels: Sequence[str],
        clock: Callable[[], Now],
    ) -> None:
        self._connection, self._space = connection, space
        self._history, self._tap, self._channels = history, tap, channels
        self._clock = clock
        self._seen = Coalescer(REMEMBERED)
        self._noted = self._latest = 0
        self._noted_at = clock().mono
        self._again = asyncio.Event()
        self._reading: asyncio.Task[Tapped] | None = None

    @classmethod
    async def open(
        cls,
        connection: Connection,
        space: str,
        reader: str,
        channels: Sequence[str],
        *,
        admin: bool = False,
        clock: Callable[[], Now] = system_now,
        metrics: Metrics | None = None,
        log: Log | None = None,
    ) -> Observation:
        """``reader`` is the credential's own nkey; ``channels`` are names and patterns. An admin sees direct messages
        and requests too. Raises HistoryUnreadable, PermissionViolation, NotConnected, Stopped."""
        history = HistoryReader(connection, space, reader, metrics=metrics, log=log)
        frontier = await frontier_of(connection, space)
        tap = await Tap.open(connection, space, admin=admin, metrics=metrics, log=log)
        made = cls(connection, space, history, tap, channels, clock)
        made._noted = made._latest = frontier
        return made

    @property
    def refused(self) -> dict[str, int]:
        """How many live frames were refused, by reason."""
        return {reason: count for reason, count in self._tap.refused.items() if count}

    async def events(self, since_ms: int | None = None, *, past: bool = False) -> AsyncIterator[Observed | Gap]:
        """With ``past`` first what history holds (not older than ``since_ms``), then what comes. Raises
        HistoryUnreadable for that first read, and what ended the tap."""
        if past:
            async for observed in self._read(0, self._noted, since_ms):
                yield observed
        while True:
            tapped = await self._next()
            if tapped is None or tapped.missed:
                async for event in self._heal():
                    yield event
            if tapped is not None and self._wanted(tapped.received) and self._first(tapped.received):
                yield Observed(tapped.received, Via.LIVE)

    def look_again(self) -> None:
        """There is a link again: what was stored meanwhile is read now, and not with the next post."""
        self._again.set()

    async def _next(self) -> Tapped | None:
        """The next of the tap, None for a look at history; meanwhile the end of CHAT is noted."""
        if self._reading is None:
            self._reading = asyncio.create_task(self._tap.next())
        again = asyncio.create_task(self._again.wait())
        try:
            while not self._reading.done() and not again.done():
                rest = self._noted_at + NOTE_SECONDS - self._clock().mono
                await asyncio.wait((self._reading, again), timeout=rest, return_when=asyncio.FIRST_COMPLETED)
                await self._note()
        finally:
            again.cancel()
        self._again.clear()
        if not self._reading.done():
            return None
        reading, self._reading = self._reading, None
        return reading.result()

    async def _note(self) -> None:
        if self._clock().mono - self._noted_at < NOTE_SECONDS:
            return
        self._noted_at = self._clock().mono
        with contextlib.suppress(HistoryUnreadable, ConnectionFault, TimeoutError):
            # What was stored before the last note has come in by now.
            self._noted, self._latest = self._latest, await frontier_of(self._connection, self._space)

    async def _heal(self) -> AsyncIterator[Observed | Gap]:
        """What was stored since the last note, read again until that is possible. A stream that ends before the note
        is another one."""
        while True:
            try:
                frontier = await frontier_of(self._connection, self._space)
                async for observed in self._read(self._noted if frontier >= self._noted else 0, frontier, None):
                    yield observed
            except (HistoryUnreadable, ConnectionFault, TimeoutError) as error:
                yield Gap(str(error) or "no answer in time")
                await asyncio.sleep(_RETRY)
                continue
            self._noted = self._latest = frontier
            return

    async def _read(self, after: int, up_to: int, since_ms: int | None) -> AsyncIterator[Observed]:
        if up_to <= after:
            return
        # One pattern is read as it is; of several everything is read once, and what is not asked for is dropped.
        pattern = self._channels[0] if len(self._channels) == 1 else TAIL
        async for frame in self._history.chat(pattern, after=after, up_to=up_to):
            received = received_of(frame)
            if received is None or (since_ms is not None and frame.time_ms < since_ms):
                continue
            if self._wanted(received) and self._first(received):
                yield Observed(received, Via.HISTORY)

    def _wanted(self, received: Received) -> bool:
        meta = received.meta
        return meta.kind != _CHANNEL or any(covers(one, meta.target) for one in self._channels)

    def _first(self, received: Received) -> bool:
        return self._seen.first(f"{received.meta.sender} {received.message.id}" if received.message.id else "")

    async def close(self) -> None:
        """Stop."""
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)
        await self._tap.close()


def received_of(frame: Frame) -> Received | None:
    """The message of a stored frame; None for one that is refused."""
    try:
        return receive(frame.data, delivery_of(frame.subject), Source.HISTORY, header_names=frame.headers)
    except Rejected:
        return None


async def frontier_of(connection: Connection, space: str) -> int:
    """The last sequence of CHAT. Raises HistoryUnreadable, and what a request raises."""
    answer = await connection.request(api.STREAM_INFO.build(stream=streams.CHAT.stream(space)))
    try:
        return int(orjson.loads(answer.data)["state"]["last_seq"])
    except (ValueError, KeyError, TypeError):
        raise HistoryUnreadable("the stream of posts does not say where it ends") from None
