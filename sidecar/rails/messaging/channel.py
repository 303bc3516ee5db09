"""One channel of one member: its standing, its subscription, and what it still lacks."""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from nats.aio.msg import Msg

from sidecar.ops.metrics import Metrics
from sidecar.rails.connection import PermissionViolation, Subscription
from sidecar.rails.messaging.membership import Event, Join, Marks, Scope, Standing, after, scope_of
from sidecar.rails.names.subjects import delivery_of

MOST_SEEN = 256
"""Channels below a pattern that are remembered, to be read again after an interruption."""


class Past(NamedTuple):
    """Which history a join brings, whatever the registry says: its switch is no boundary (C7-27). What is not older
    than ``since_ms`` (milliseconds since 1970; None: all that is kept), or with ``skipped`` none."""

    since_ms: int | None = None
    skipped: bool = False


NO_PAST = Past(skipped=True)


class Left(NamedTuple):
    """How a leave ended. ``closed``: there is no durable membership any more."""

    channel: str
    closed: bool


class Channel:
    """The books of one channel or pattern. Whoever changes its standing holds ``turn``, or is a task of its own."""

    def __init__(self, name: str, metrics: Metrics) -> None:
        self.name = name
        self.scope = scope_of(name)
        self.turn = asyncio.Lock()
        self.standing = Standing()
        self.generation: int | None = None
        """Of the durable membership, as the delivery plane named it."""
        self.pump: asyncio.Task[None] | None = None
        self.member: asyncio.Task[None] | None = None
        self._metrics = metrics
        self._reset()

    def _reset(self, past: Past | None = None) -> None:
        self.marks = Marks()
        self.past = past
        """The history that was asked for; None: by the registry."""
        self.backfilled = past is not None and past.skipped
        """Whether the history up to the watermark is read, or known to be none of the channel's."""
        self.behind: dict[str, int] = {}
        """How far each channel's history was read, while the read is not complete."""
        self.seen: dict[str, None] = {}
        self.unmarked = 0
        """Live messages since the last mark."""
        self.enrolled = False
        """Nothing more is to be tried for the membership."""
        self.shortfall: str | None = None
        self.refusal: PermissionViolation | None = None
        """Why it is not joined any more, though nobody left it."""
        self._subscription: Subscription | None = None
        self._nudged = False

    # ---- standing ----

    def begin(self, past: Past | None = None) -> None:
        """A join begins. Raises NotPossible."""
        self._reset(past)
        self.move(Event.JOIN)

    def move(self, event: Event) -> None:
        """Something happened. Raises NotPossible."""
        moved = after(self.standing, event)
        self._count(-1)
        self.standing = moved
        self._count(1)

    def gone(self) -> None:
        """The process does not count it any more."""
        self._count(-1)
        self.standing = Standing()

    def _count(self, step: int) -> None:
        if self.standing != Standing():
            self._metrics.gauge("messaging_channels", self.standing.shown).inc(step)

    @property
    def join(self) -> Join:
        """How it is joined."""
        return Join(self.name, self.standing.state, self.shortfall)

    # ---- subscription ----

    @property
    def subscription(self) -> Subscription:
        """The one that the broker took."""
        assert self._subscription is not None
        return self._subscription

    def subscribed(self, subscription: Subscription) -> None:
        """The broker took it. What was stored between the watermark and now may have been missed."""
        self._subscription = subscription
        self._whole = (subscription.interruptions, subscription.dropped)
        if self.marks.known:
            self.marks.interrupted()

    @property
    def breaks(self) -> tuple[int, int]:
        """How often something may have been missed; to be compared with itself."""
        return self.subscription.interruptions, self.subscription.dropped

    def was_interrupted(self) -> bool:
        """Whether something may have been missed since the last question; it is noted."""
        subscription = self._subscription
        assert subscription is not None
        if (subscription.interruptions, subscription.dropped) == self._whole:
            return False
        self._whole = (subscription.interruptions, subscription.dropped)
        self.marks.interrupted()
        return True

    @property
    def lacks(self) -> bool:
        """Whether something is to be read from history."""
        return not self.backfilled or self.marks.gap is not None

    def came(self, message: Msg) -> None:
        """A live message."""
        self.unmarked += 1
        if self.scope is not Scope.CONCRETE and len(self.seen) < MOST_SEEN:
            delivery = delivery_of(message.subject)
            if delivery is not None:
                self.seen[delivery.rest] = None

    def mark(self, frontier: int) -> None:
        """The frontier, with the subscription in place before and after it was read."""
        self.unmarked = 0
        self.marks.mark(frontier)

    def nudge(self) -> None:
        """Wake the pump: what it lacks may be had now."""
        self._nudged = True
        if self._subscription is not None:
            self._subscription.nudge()

    def take_nudge(self) -> bool:
        """Whether there was a nudge since the last question."""
        nudged, self._nudged = self._nudged, False
        return nudged

    async def stop(self) -> None:
        """End the tasks and the subscription; the standing is the caller's."""
        tasks = [task for task in (self.pump, self.member) if task is not None]
        self.pump = self.member = None
        for task in tasks:
            task.cancel()
        try:
            await asyncio.gather(*tasks, return_exceptions=True)
        finally:
            if self._subscription is not None:
                await self._subscription.close()
