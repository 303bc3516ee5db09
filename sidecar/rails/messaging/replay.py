"""What a channel lacks, from history: the past of a join, and what an interruption kept away (C7-22..24, C4-26)."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Final

from sidecar.base.clock import Now
from sidecar.ops.logging import Log
from sidecar.ops.metrics import Metrics
from sidecar.rails.connection import ConnectionFault
from sidecar.rails.messaging.channel import Channel
from sidecar.rails.messaging.enrolment import SharedRegistry
from sidecar.rails.messaging.history import History, HistoryNotGranted, HistoryUnreadable
from sidecar.rails.messaging.inbox import Inbox
from sidecar.rails.messaging.membership import Scope, State, within
from sidecar.rails.messaging.registry import Effective, Registry, RegistryUnreadable

MOST_TARGETS: Final = 256
"""Channels below a pattern that are read, one after the other."""


class Replay:
    """Reads of history for the channels of one member, into its inbox. A read is of one channel (C7-22): of a pattern
    those channels are read that the registry names, and that were heard live."""

    def __init__(
        self,
        registry: SharedRegistry,
        history: History,
        inbox: Inbox,
        *,
        clock: Callable[[], Now],
        metrics: Metrics,
        log: Log | None = None,
    ) -> None:
        self._registry = registry
        self._history = history
        self._inbox = inbox
        self._clock = clock
        self._metrics = metrics
        self._log = log

    async def run(self, channel: Channel) -> bool:
        """Read what the channel lacks; False when that was not possible, and is to be tried again."""
        begun = self._clock().mono
        outcome = "unreadable"
        try:
            await self._run(channel)
            outcome = "complete"
        except HistoryNotGranted as error:
            # Nothing changes that but another credential: what is not granted is not lacked.
            outcome = "not_granted"
            channel.backfilled, channel.marks.gap = True, None
            self._said(channel, error)
        except (HistoryUnreadable, RegistryUnreadable, ConnectionFault) as error:
            self._said(channel, error)
        finally:
            self._metrics.counter("messaging_history_reads", outcome).inc()
            self._metrics.histogram("messaging_history_seconds").observe(self._clock().mono - begun)
        return outcome != "unreadable"

    def _said(self, channel: Channel, error: Exception) -> None:
        if self._log is not None:
            self._log.warning("channel_history_unread", channel=channel.name, text=str(error))

    async def _run(self, channel: Channel) -> None:
        registry = await self._registry.read()
        if not channel.marks.known:
            # There was no frontier before the subscription: this one is the watermark, and what is live comes twice.
            channel.marks.begin(await self._history.frontier())
        if not channel.backfilled:
            await self._backfill(channel, registry)
        if channel.marks.gap is not None:
            await self._catch_up(channel, registry, channel.marks.gap)

    async def _backfill(self, channel: Channel, registry: Registry) -> None:
        """The past of the join, up to the watermark and no further back than the window."""
        watermark = channel.marks.watermark
        assert watermark is not None
        asked = channel.past
        for name, effective in self._targets(channel, registry, every=asked is not None):
            window = effective.window_seconds
            since = None if window is None else max(0, int((self._clock().wall - window) * 1000))
            since = since if asked is None else asked.since_ms
            await self._read(channel, name, watermark, channel.behind.get(name, 0), since)
        channel.backfilled = True
        channel.behind.clear()

    async def _catch_up(self, channel: Channel, registry: Registry, gap: int) -> None:
        """What was stored since the last mark. A stream that ends before the mark is another one: all of it is read."""
        breaks = channel.breaks
        end = channel.marks.end
        frontier = await self._history.frontier() if end is None else end
        after = gap if frontier >= gap else 0
        targets = self._targets(channel, registry)
        if frontier > after:
            for name, _ in targets:
                await self._read(channel, name, frontier, max(after, channel.behind.get(name, 0)), None)
        channel.behind.clear()
        channel.marks.read_up_to(frontier)
        if channel.breaks != breaks:
            channel.marks.interrupted()
        durable = channel.standing.state is State.DURABLE
        outcome = "read" if targets else "backstop" if durable else "lost"
        self._metrics.counter("messaging_gaps", outcome).inc()

    def _targets(self, channel: Channel, registry: Registry, *, every: bool = False) -> list[tuple[str, Effective]]:
        """The channels to read, each with replay in force, or ``every`` one."""
        if channel.scope is Scope.CONCRETE:
            names = [channel.name]
        else:
            names = within(channel.name, dict.fromkeys((*registry.channels, *channel.seen)))
        found = [(name, effective) for name in names if (effective := registry.effective(name)).replay or every]
        if len(found) > MOST_TARGETS and self._log is not None:
            self._log.warning("channel_history_cut", channel=channel.name, channels=len(found), read=MOST_TARGETS)
        return found[:MOST_TARGETS]

    async def _read(self, channel: Channel, name: str, up_to: int, after: int, since_ms: int | None) -> None:
        async with contextlib.aclosing(self._history.read(name, up_to=up_to, after=after, since_ms=since_ms)) as frames:
            async for frame in frames:
                await self._inbox.history(frame)
                channel.behind[name] = frame.sequence
                self._metrics.counter("messaging_backfilled").inc()
