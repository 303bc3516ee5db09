"""Joining and leaving channels, and what comes in on them: live, from history, and again after an interruption.

A join is the broker's acceptance of a subscription and nothing else (C7-12, C7-17). What belongs to it beyond that, the
history up to the watermark and the durable membership, is had when it can be had: at once, or later and tried again
while the delivery plane is away. Until then the member is joined live, and the shortfall says so (C7-37).
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Callable
from typing import Final

from sidecar.base.clock import Now
from sidecar.ops.logging import Log
from sidecar.ops.metrics import Metrics
from sidecar.rails.connection import Connection, ConnectionFault, Fault, PermissionViolation, Stopped
from sidecar.rails.messaging.channel import Channel, Left, Past
from sidecar.rails.messaging.enrolment import Enrolment
from sidecar.rails.messaging.history import History, HistoryNotGranted, HistoryUnreadable
from sidecar.rails.messaging.inbox import Inbox
from sidecar.rails.messaging.membership import (
    LIVE_ONLY,
    MARK_MESSAGES,
    MARK_SECONDS,
    Event,
    Join,
    Scope,
    Standing,
    State,
)
from sidecar.rails.messaging.pacing import Backoff
from sidecar.rails.messaging.replay import Replay
from sidecar.rails.names.subjects import CHAT
from sidecar.rails.names.tokens import subscribe_channel

MOST_CHANNELS: Final = 1_024
"""Channels and patterns of one member."""
WATERMARK_SECONDS: Final = 2.0
"""How long a join waits for the frontier before it subscribes without one."""
FIRST_RETRY, LONGEST_RETRY = 1.0, 30.0
"""Seconds between attempts to write or close a membership (C7-36)."""
STRIDE: Final = 64
"""Live messages after which a channel looks for what it lacks."""
HOLD_SECONDS: Final = 2.0
"""How long live posts wait for what is read from history."""
_READ_RETRY, _LONGEST_READ_RETRY = 0.5, 10.0


class TooManyChannels(Exception):  # noqa: N818 - a state
    """The member has as many channels as it can have."""


class Channels:
    """The channels of one member."""

    def __init__(
        self,
        connection: Connection,
        space: str,
        history: History,
        enrolment: Enrolment,
        replay: Replay,
        inbox: Inbox,
        *,
        clock: Callable[[], Now],
        metrics: Metrics,
        log: Log | None = None,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._connection = connection
        self._chance = chance
        self._space = space
        self._history = history
        self._enrolment = enrolment
        self._replay = replay
        self._inbox = inbox
        self._clock = clock
        self._metrics = metrics
        self._log = log
        self._channels: dict[str, Channel] = {}
        self._closed = False
        self._busy = asyncio.Event()
        self._marker: asyncio.Task[None] | None = None

    @property
    def standings(self) -> dict[str, Standing]:
        """Every channel that is joined, on its way, or not closed yet (C4-17)."""
        return {name: channel.standing for name, channel in self._channels.items()}

    def join_of(self, name: str) -> Join | None:
        """How a channel is joined at this moment; None: it is not."""
        channel = self._channels.get(name)
        if channel is None or not channel.standing.joined:
            return None
        return channel.join

    def backed(self, target: str) -> bool:
        """Whether posts of one channel have durable copies, by a membership of it or of a family that it is in."""
        levels = target.split(".")
        families = (f"{'.'.join(levels[:depth])}.>" for depth in range(1, len(levels)))
        found = (self._channels.get(name) for name in (target, *families))
        return any(channel is not None and channel.standing.state is State.DURABLE for channel in found)

    # ---- join ----

    async def join(self, text: str, past: Past | None = None) -> Join:
        """Join a channel or pattern. When it returns, posts come in live; ``Join`` says whether durable copies do.
        Its history comes as the registry says, or as ``past`` does.

        Raises InvalidName, PermissionViolation when the broker refuses (C7-13), NotConnected or Stopped without a
        link, TooManyChannels. Joining again tells how the channel is joined.
        """
        async with self._turn(subscribe_channel(text)) as channel:
            if channel.standing.joined:
                return channel.join
            await channel.stop()
            channel.begin(past)
            try:
                await self._subscribe(channel)
            except BaseException as error:
                channel.move(Event.REFUSED)
                denied = isinstance(error, PermissionViolation)
                self._metrics.counter("messaging_joins", "refused" if denied else "failed").inc()
                await channel.stop()
                raise
            channel.move(Event.CONFIRMED)
            channel.pump = asyncio.create_task(self._pump(channel))
            if self._marker is None and not self._closed:
                self._marker = asyncio.create_task(self._mark())
            try:
                await self._enrol(channel)
            finally:
                if not channel.enrolled and channel.standing.joined:
                    channel.member = asyncio.create_task(self._enrol_later(channel))
            if channel.refusal is not None:  # the broker took it, and not any more
                self._metrics.counter("messaging_joins", "refused").inc()
                raise channel.refusal
            join = channel.join
            self._metrics.counter("messaging_joins", "durable" if join.durable else "live").inc()
            if join.shortfall is not None and self._log is not None:
                self._log.warning("channel_joined_live", channel=channel.name, shortfall=join.shortfall)
            return join

    @contextlib.asynccontextmanager
    async def _turn(self, name: str) -> AsyncIterator[Channel]:
        """The books of a channel, for whoever joins or leaves it: nobody else does meanwhile. What is not joined then
        is closed or forgotten. Raises TooManyChannels, Stopped."""
        while True:
            if self._closed:
                raise Stopped(Fault.LOST, "the member was closed")
            channel = self._channels.get(name)
            if channel is None:
                if len(self._channels) >= MOST_CHANNELS:
                    raise TooManyChannels(f"a member has at most {MOST_CHANNELS} channels")
                channel = self._channels[name] = Channel(name, self._metrics)
            async with channel.turn:
                if self._channels.get(name) is not channel:
                    continue  # it was forgotten while this one waited
                try:
                    yield channel
                finally:
                    await self._rest(channel)
                return

    async def _subscribe(self, channel: Channel) -> None:
        """Watermark, then subscription (C7-20, C7-21). A frontier that cannot be read keeps nobody from joining.

        The frontier behind the subscription says where history ends and what is live begins: nothing that is posted
        after the join is shown as history (C7-24).
        """
        watermark = await self._frontier()
        if watermark is not None:
            channel.marks.begin(watermark)
        subject = CHAT.filter(space=self._space, channel=channel.name)
        channel.subscribed(await self._connection.subscribe(subject))
        end = None if watermark is None else await self._frontier()
        if end is not None:
            channel.marks.ends(end)

    async def _frontier(self) -> int | None:
        """The end of CHAT; None when it cannot be read in time."""
        with contextlib.suppress(HistoryUnreadable, HistoryNotGranted, ConnectionFault, TimeoutError):
            async with asyncio.timeout(WATERMARK_SECONDS):
                return await self._history.frontier()
        return None

    async def _enrol(self, channel: Channel) -> None:
        """One attempt at everything beyond the subscription."""
        if channel.scope is Scope.PATTERN:
            channel.shortfall = LIVE_ONLY
        await self._enrolment.write(channel)
        channel.nudge()

    async def _enrol_later(self, channel: Channel) -> None:
        backoff = Backoff(FIRST_RETRY, LONGEST_RETRY)
        while not channel.enrolled:
            await asyncio.sleep(backoff.failed(self._chance()))
            await self._enrol(channel)
        if self._log is not None:
            self._log.info("channel_enrolled", channel=channel.name, state=channel.standing.shown)

    # ---- what comes in ----

    async def _pump(self, channel: Channel) -> None:
        """Bring what a channel has to the inbox, until the subscription ends."""
        backoff = Backoff(_READ_RETRY, _LONGEST_READ_RETRY)
        while True:
            try:
                await self._bring(channel)
            except Exception as error:  # whatever it is, no channel is joined and silent
                ended = channel.subscription.error
                if ended is None:
                    self._metrics.counter("messaging_channel_faults").inc()
                    if self._log is not None:
                        self._log.error("channel_fault", channel=channel.name, error=type(error).__name__)
                    await asyncio.sleep(backoff.failed(self._chance()))
                    continue
                if isinstance(ended, Stopped):
                    self._inbox.fail(ended)
                elif isinstance(ended, PermissionViolation):
                    await self._dropped(channel, ended)
                return

    async def _bring(self, channel: Channel) -> None:
        subscription = channel.subscription
        backoff = Backoff(_READ_RETRY, _LONGEST_READ_RETRY)
        retry_at = 0.0
        reading: asyncio.Task[bool] | None = None
        try:
            while True:
                if channel.was_interrupted() or channel.take_nudge():
                    retry_at = 0.0
                if reading is None and channel.lacks and self._clock().mono >= retry_at:
                    reading = asyncio.create_task(self._replay.run(channel))
                    reading.add_done_callback(lambda _: subscription.nudge())
                    # The past comes before what is live, unless it lets itself be waited for.
                    await asyncio.wait((reading,), timeout=HOLD_SECONDS)
                if reading is not None and reading.done():
                    if reading.result():
                        backoff.succeeded()
                    else:
                        retry_at = self._clock().mono + backoff.failed(self._chance())
                    reading = None
                if await self._bring_some(channel):
                    rest = max(0.0, retry_at - self._clock().mono) if reading is None and channel.lacks else None
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(rest):
                            await subscription.stirred()
        finally:
            if reading is not None:
                reading.cancel()
                await asyncio.gather(reading, return_exceptions=True)

    async def _bring_some(self, channel: Channel) -> bool:
        """Bring live messages, a bounded number; True when there are no more. Raises what ended the subscription."""
        subscription = channel.subscription
        for _ in range(STRIDE):
            message = subscription.poll()
            if message is None:
                return True
            channel.came(message)
            await self._inbox.live(message)
        if channel.unmarked >= MARK_MESSAGES:
            self._busy.set()
        return False

    async def _dropped(self, channel: Channel, error: PermissionViolation) -> None:
        """The broker refuses what it took before: the channel is not joined any more (C7-18)."""
        self._metrics.counter("messaging_channel_refusals").inc()
        if self._log is not None:
            self._log.error("channel_dropped", channel=channel.name, text=str(error))
        channel.move(Event.DROPPED)
        channel.refusal = error
        if channel.member is not None:
            channel.member.cancel()
            channel.member = None
        await channel.subscription.close()
        if not channel.turn.locked():  # else whoever has the turn does it
            await self._rest(channel)

    async def _mark(self) -> None:
        """Note from time to time how far the channels have come (``Marks``)."""
        while True:
            self._busy.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(MARK_SECONDS):
                    await self._busy.wait()
            standing = [
                (one, one.breaks)
                for one in self._channels.values()
                if one.standing.joined and one.unmarked and not one.lacks
            ]
            if not standing:
                continue
            try:
                frontier = await self._history.frontier()
            except (HistoryUnreadable, HistoryNotGranted, ConnectionFault):
                continue  # the marks stay where they are: more is read again, nothing is missed
            for channel, breaks in standing:
                if channel.breaks == breaks:
                    channel.mark(frontier)

    # ---- leave ----

    async def leave(self, text: str) -> Left:
        """Leave a channel, also one that an earlier process of this lifecycle joined (C7-15, C7-19). ``Left`` says
        whether the durable membership is closed; where it is not, closing is tried until it is."""
        async with self._turn(subscribe_channel(text)) as channel:
            channel.move(Event.LEAVE)
            try:
                await channel.stop()
                closed = await self._enrolment.leave(channel)
            except BaseException:
                channel.move(Event.GONE)
                raise
            channel.move(Event.CLOSED if closed else Event.GONE)
            return Left(channel.name, closed)

    async def _rest(self, channel: Channel) -> None:
        """A channel that is not joined: close what is owed, or forget it. After the end nothing of it goes on."""
        if self._closed:
            await channel.stop()
            channel.gone()
        elif channel.standing.joined:
            return
        elif not channel.standing.owed:
            self._channels.pop(channel.name, None)
        elif channel.member is None:
            channel.member = asyncio.create_task(self._close_later(channel))

    async def _close_later(self, channel: Channel) -> None:
        backoff = Backoff(FIRST_RETRY, LONGEST_RETRY)
        while channel.standing.owed:
            await asyncio.sleep(backoff.failed(self._chance()))
            if await self._enrolment.close(channel):
                channel.move(Event.CLOSED)
        self._channels.pop(channel.name, None)
        if self._log is not None:
            self._log.info("membership_closed", channel=channel.name)

    async def close(self) -> None:
        """Stop reading. Memberships stay: they are the lifecycle's, not the process's. A join or leave that is under
        way ends by itself, and leaves nothing behind."""
        self._closed = True
        if self._marker is not None:
            self._marker.cancel()
            await asyncio.gather(self._marker, return_exceptions=True)
        for channel in list(self._channels.values()):
            await channel.stop()
            if not channel.turn.locked():
                channel.gone()
        self._channels.clear()
