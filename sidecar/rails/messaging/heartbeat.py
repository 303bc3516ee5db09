"""The own presence record: what it says, as a value, and who writes it every two seconds (C6-01..36).

``OwnPresence`` decides what a change moves. ``Heartbeat`` puts the record under the one key that its principal owns: at
every change, every interval, over as many links as it takes, and a last time as ``offline`` when it is closed.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from types import MappingProxyType
from typing import Final, Self

from sidecar.base.clock import Now
from sidecar.ops.logging import Log
from sidecar.ops.metrics import Metrics
from sidecar.rails.connection import Connection, ConnectionFault, PermissionViolation, Stopped
from sidecar.rails.connection.publishing import StoreRefused, store
from sidecar.rails.envelopes.errors import EnvelopeError
from sidecar.rails.envelopes.presence import Card, Presence, ReportedCondition, Runtime, encode_presence
from sidecar.rails.envelopes.schema import Attention, ChannelMode, Status
from sidecar.rails.names import Lifecycle, Principal, buckets
from sidecar.rails.names.limits import HEARTBEAT_MS, LIVENESS_WINDOW_MS
from sidecar.rails.names.tokens import GRAMMARS

_SHORTEST: Final = 0.1
"""Seconds between two puts, however often the record changes: what changes meanwhile is in the next one."""
ASKED_EVERY: Final = LIVENESS_WINDOW_MS // HEARTBEAT_MS
"""Of so many records that say the same but for the time, one asks the broker whether it was stored: a refusal is known
within the time in which peers take a silent member for offline. The acknowledgement is most of what a put costs."""
FAREWELL_SECONDS: Final = 1.0
"""How long a closing instance tries to say that it is gone; its peers find that out anyway."""
_NO_MODES: Final[Mapping[str, ChannelMode]] = MappingProxyType({})


class NotOwnCard(ValueError):  # noqa: N818 - it says whose card was given
    """The card names another principal than the credential (C2-14, C6-23, C6-36)."""


@dataclass(frozen=True, slots=True)
class OwnPresence:
    """What an instance says of itself. Each change gives a new value; ``now`` is in milliseconds since 1970.

    A session begins with attention ``open`` and without channel modes, whatever the last one had (C6-12, C6-21).
    """

    card: Card
    lifecycle_uid: str
    runtime: Runtime
    status_since: int
    status: Status = Status.IDLE
    activity: str | None = None
    activity_since: int | None = None
    active_at: int | None = None
    condition: ReportedCondition | None = None
    environment: str | None = None
    attention: Attention = Attention.OPEN
    channel_modes: Mapping[str, ChannelMode] = field(default_factory=lambda: _NO_MODES)

    @classmethod
    def begin(cls, card: Card, lifecycle: Lifecycle, runtime: Runtime, now: int) -> Self:
        """The presence of a session that begins. NotOwnCard; EnvelopeError for a card that may not be published."""
        if card.id != lifecycle.principal.dot:
            raise NotOwnCard("the card names another principal than the credential does")
        own = cls(card, lifecycle.uid, runtime, now)
        encode_presence(own.record(now))
        return own

    def doing(self, now: int, *, status: Status | None = None, activity: str | None = None) -> Self:
        """Another status, another activity, or both; what is None stays, an empty activity is none.

        ``statusSince`` is when the pair was entered, ``activitySince`` when the activity was set (C6-07, C6-09).
        ValueError for ``offline``, which is no state of a live instance (C6-31).
        """
        if status is Status.OFFLINE:
            raise ValueError("a live instance is never offline: close it")
        wanted = self.status if status is None else status
        doing = self.activity if activity is None else activity or None
        if (wanted, doing) == (self.status, self.activity):
            return self
        since = self.activity_since if doing == self.activity else (None if doing is None else now)
        return replace(self, status=wanted, activity=doing, status_since=now, activity_since=since)

    def worked(self, at: int) -> Self:
        """The harness reported progress at this time; it stands in the next record (C6-10). Older times are nothing."""
        return self if self.active_at is not None and at <= self.active_at else replace(self, active_at=at)

    def reported(self, condition: ReportedCondition | None) -> Self:
        """What the harness reported to be wrong, or that nothing is; never inferred from anything (C6-04)."""
        return replace(self, condition=condition)

    def attending(self, attention: Attention) -> Self:
        """Another attention mode; advisory (C6-11)."""
        return replace(self, attention=attention)

    def tuned(self, channel: str, mode: ChannelMode | None) -> Self:
        """Another mode of one concrete channel, None for none; advisory (C6-21). InvalidName for a pattern."""
        GRAMMARS["channel"].check(channel)
        modes = {name: one for name, one in self.channel_modes.items() if name != channel}
        if mode is not None:
            modes[channel] = mode
        return replace(self, channel_modes=MappingProxyType(modes))

    def placed(self, environment: str | None) -> Self:
        """Where it runs, in words that nobody parses (C6-05)."""
        return replace(self, environment=environment)

    def record(self, now: int) -> Presence:
        """The record of a heartbeat."""
        return Presence(
            card=self.card,
            status=self.status,
            ts=now,
            condition=self.condition,
            environment=self.environment,
            activity=self.activity,
            status_since=self.status_since,
            activity_since=self.activity_since,
            active_at=self.active_at,
            attention=self.attention,
            lifecycle_uid=self.lifecycle_uid,
            runtime=self.runtime,
            channel_modes=self.channel_modes,
        )

    def farewell(self, now: int) -> Presence:
        """The last record: offline, since no time, without attention and modes; the runtime stays (C6-08, -12, -19)."""
        last = self.record(now)
        return last._replace(status=Status.OFFLINE, status_since=None, attention=None, channel_modes=_NO_MODES)


class Beat(StrEnum):
    """How a put ended; the values are metric labels."""

    STORED = "stored"
    SENT = "sent"
    """Put without asking: the link took it, and one of the next will tell."""
    REFUSED = "refused"
    DENIED = "denied"
    UNREACHABLE = "unreachable"


class Heartbeat:
    """Writes the own record until it is closed. A put that fails is counted, and the next one comes in time."""

    def __init__(
        self,
        connection: Connection,
        space: str,
        own: OwnPresence,
        *,
        clock: Callable[[], Now],
        metrics: Metrics,
        log: Log | None = None,
        interval_ms: int = HEARTBEAT_MS,
    ) -> None:
        self.own = own
        self._connection = connection
        principal = Principal.from_dot(own.card.id)
        names = {"owner": principal.owner, "actor": principal.actor}
        self._subject = buckets.PRESENCE.subject(space, buckets.PRESENCE_KEY, **names)
        self._clock = clock
        self._metrics = metrics
        self._log = log
        self._interval = interval_ms / 1000
        self._wake: asyncio.Future[None] | None = None
        self._changed = False
        self._unasked = 0
        self._written: tuple[OwnPresence, bytes] | None = None
        self._runner: asyncio.Task[None] | None = None

    @property
    def now_ms(self) -> int:
        """The clock, as records say it."""
        return int(self._clock().wall * 1000)

    async def start(self) -> None:
        """Write the first record, then keep it fresh. Raises what that put raises: PermissionViolation above all."""
        await self._put(self._record())
        self._metrics.counter("messaging_heartbeats", Beat.STORED.value).inc()
        self._runner = asyncio.create_task(self._run())

    def update(self, change: Callable[[OwnPresence, int], OwnPresence]) -> None:
        """Change the record; it is written at once. ``change`` gets the presence and the time. Raises what it raises,
        and EnvelopeError for what may not be published."""
        now = self.now_ms
        own = change(self.own, now)
        if own == self.own:
            return
        encode_presence(own.record(now))
        soon = replace(own, active_at=None) != replace(self.own, active_at=None)
        self.own = own
        if soon:  # progress alone waits for the next heartbeat (C6-10)
            self._changed = True
            if self._wake is not None:
                _wake(self._wake)

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        begun = loop.time()
        while True:
            self._wake = loop.create_future()
            # A change while nothing waits is written as soon as it may be.
            timer = loop.call_at(begun + (_SHORTEST if self._changed else self._interval), _wake, self._wake)
            try:
                await self._wake
            finally:
                timer.cancel()
            rest = begun + _SHORTEST - loop.time()
            if rest > 0:
                await asyncio.sleep(rest)
            begun = loop.time()
            self._changed = False
            if not await self._beat():
                return

    async def _beat(self) -> bool:
        """One put; False when no other can follow."""
        outcome = Beat.STORED
        error: Exception | None = None
        try:
            same = self._written is not None and self._written[0] is self.own
            record = self._record()
            if same and self._unasked + 1 < ASKED_EVERY and self._connection.offer(self._subject, record):
                self._unasked += 1
                outcome = Beat.SENT
            else:
                self._unasked = ASKED_EVERY  # what fails is asked for again
                await self._put(record)
                self._unasked = 0
        except Stopped:
            return False
        except PermissionViolation as denied:
            outcome, error = Beat.DENIED, denied
        except (StoreRefused, EnvelopeError) as refused:
            outcome, error = Beat.REFUSED, refused
        except (ConnectionFault, TimeoutError) as lost:
            outcome, error = Beat.UNREACHABLE, lost
        self._metrics.counter("messaging_heartbeats", outcome.value).inc()
        if error is not None and self._log is not None:
            self._log.warning("heartbeat_failed", outcome=outcome.value, error=error)
        return True

    def _record(self) -> bytes:
        """The record of this moment. It was judged when it changed; a heartbeat moves its last member alone."""
        now = self.now_ms
        if self._written is None or self._written[0] is not self.own:
            record = encode_presence(self.own.record(now))
            self._written = self.own, record[: record.rindex(_TIME) + len(_TIME)]
        return b"%b%d}" % (self._written[1], now)

    async def _put(self, record: bytes) -> None:
        await store(self._connection, self._subject, record, seconds=self._interval)

    async def close(self) -> None:
        """Stop, and say once that the instance is offline (C6-32). May be called twice."""
        runner, self._runner = self._runner, None
        if runner is None:
            return
        runner.cancel()
        await asyncio.gather(runner, return_exceptions=True)
        with contextlib.suppress(ConnectionFault, StoreRefused, TimeoutError):
            async with asyncio.timeout(FAREWELL_SECONDS):
                await self._put(encode_presence(self.own.farewell(self.now_ms)))


_TIME: Final = b'"ts":'


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
