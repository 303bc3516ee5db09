"""Presence as it changes: for whoever acts on liveness (C6-48).

``Fold`` turns records and time into transitions; ``PresenceWatch`` feeds it from a watch of the bucket. A peer becomes
offline by its own word, by a delete or purge of its key, and by silence: no record within the window, on its clock or
on ours. The last one also covers a key that aged out of the bucket, which a watch does not tell (OPEN C6-c).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from enum import StrEnum
from typing import Final, NamedTuple

from sidecar.base.clock import Now
from sidecar.ops.logging import Log
from sidecar.ops.metrics import Metrics
from sidecar.rails.connection import Connection
from sidecar.rails.connection.kv import Entry, KeyValue
from sidecar.rails.messaging.roster import Dropped, Roster, Row, derived, is_stale, read_row
from sidecar.rails.names import Principal, buckets
from sidecar.rails.names.limits import LIVENESS_WINDOW_MS

MAX_ROWS: Final = 20_000
"""Peers that a watch keeps. Above it those that have been offline for longest go first; a live one beyond is dropped
and reported."""
SWEEP_SECONDS: Final = 0.5
"""How late an offline by silence may be noticed."""


class Change(StrEnum):
    """What happened to a peer; the values are metric labels."""

    JOINED = "joined"
    CHANGED = "changed"
    OFFLINE = "offline"


class Transition(NamedTuple):
    """One change of the roster. ``before`` is None for a peer that was not known."""

    change: Change
    row: Row
    before: Row | None

    @property
    def principal(self) -> Principal:
        """Whose change it is."""
        return self.row.principal


class _Kept(NamedTuple):
    """A row, and when its last record came, by our clock."""

    row: Row
    heard: int


class Fold:
    """The roster of a watch. All times are milliseconds since 1970."""

    def __init__(self, window: int = LIVENESS_WINDOW_MS, *, most: int = MAX_ROWS) -> None:
        self._window = window
        self._most = most
        self._rows: dict[str, _Kept] = {}

    def take(self, entry: Entry, now: int) -> Transition | Dropped | None:
        """A record or marker came. None: nothing that anybody would see has changed."""
        if entry.deleted:
            return self._offline(entry.key)
        row = read_row(entry.key, entry.value, now, self._window)
        if isinstance(row, Dropped):
            return row
        kept = self._rows.pop(entry.key, None)
        before = None if kept is None else kept.row
        if before is None and not self._room():
            return Dropped(entry.key, f"the roster holds {self._most} live peers")
        self._rows[entry.key] = _Kept(row, now)
        if row.live:
            if before is None or not before.live:
                return Transition(Change.JOINED, row, before)
            return None if _same(before, row) else Transition(Change.CHANGED, row, before)
        return Transition(Change.OFFLINE, row, before) if before is not None and before.live else None

    def sweep(self, now: int) -> list[Transition]:
        """Who has become offline by silence."""
        silent = [key for key, kept in self._rows.items() if kept.row.live and self._silent(kept, now)]
        return [gone for key in silent if (gone := self._offline(key)) is not None]

    def roster(self, now: int) -> Roster:
        """Everybody known, the offline ones too (C6-35)."""
        return Roster({key: kept.row for key, kept in self._rows.items()}, (), now)

    def _silent(self, kept: _Kept, now: int) -> bool:
        return now - kept.heard > self._window or is_stale(kept.row.presence, now, self._window)

    def _offline(self, key: str) -> Transition | None:
        kept = self._rows.get(key)
        if kept is None or not kept.row.live:
            return None
        row = kept.row._replace(presence=derived(kept.row.presence))
        self._rows[key] = kept._replace(row=row)
        return Transition(Change.OFFLINE, row, kept.row)

    def _room(self) -> bool:
        """Make room for one more; the rows stand in the order of their last record."""
        if len(self._rows) < self._most:
            return True
        gone = next((key for key, kept in self._rows.items() if not kept.row.live), None)
        if gone is None:
            return False
        del self._rows[gone]
        return True


def changes(before: Roster, now: Roster) -> list[Transition]:
    """What happened between two reads that completed, for whoever may not watch (C6-44)."""
    found = []
    for key, row in now.rows.items():
        known = before.rows.get(key)
        if row.live and (known is None or not known.live):
            found.append(Transition(Change.JOINED, row, known))
        elif known is not None and known.live and not row.live:
            found.append(Transition(Change.OFFLINE, row, known))
        elif known is not None and row.live and not _same(known, row):
            found.append(Transition(Change.CHANGED, row, known))
    gone = (row for key, row in before.rows.items() if key not in now.rows and row.live)
    return found + [Transition(Change.OFFLINE, row._replace(presence=derived(row.presence)), row) for row in gone]


def _same(before: Row, row: Row) -> bool:
    """Whether two records differ in nothing but the heartbeat and the progress that came with it."""
    ts, active_at = row.presence.ts, row.presence.active_at
    return before.presence._replace(ts=ts, active_at=active_at) == row.presence


class PresenceWatch:
    """Transitions of a space's presence, for one reader."""

    def __init__(
        self,
        connection: Connection,
        space: str,
        watcher: str,
        *,
        clock: Callable[[], Now],
        metrics: Metrics,
        log: Log | None = None,
        window: int = LIVENESS_WINDOW_MS,
    ) -> None:
        """``watcher`` names the consumer: one word, unique among the watchers of the bucket."""
        self._watch = KeyValue(connection, buckets.PRESENCE, space).watch(watcher)
        self._clock = clock
        self._metrics = metrics
        self._log = log
        self._fold = Fold(window)
        self._ready: deque[Transition] = deque()
        self._swept_at = 0
        self._reading: asyncio.Task[Entry] | None = None
        self.primed = self._watch.primed
        """Set when everybody who was there at the begin has been taken in."""

    @property
    def roster(self) -> Roster:
        """Everybody known at this moment."""
        now = int(self._clock().wall * 1000)
        self._swept(now)
        return self._fold.roster(now)

    async def next(self) -> Transition:
        """The next transition. Raises Stopped, PermissionViolation, ConsumerRefused, SubscriptionClosed."""
        while not self._ready:
            if self._reading is None:
                self._reading = asyncio.create_task(self._watch.next())
            # A read is never cancelled: it may be in the middle of making the consumer anew.
            await asyncio.wait((self._reading,), timeout=SWEEP_SECONDS)
            now = int(self._clock().wall * 1000)
            if self._reading.done():
                reading, self._reading = self._reading, None
                self._taken(self._fold.take(reading.result(), now))
            if not 0 <= now - self._swept_at < SWEEP_SECONDS * 1000:
                self._swept(now)
        return self._ready.popleft()

    def _taken(self, found: Transition | Dropped | None) -> None:
        if isinstance(found, Dropped):
            self._metrics.counter("messaging_presence_dropped").inc()
            if self._log is not None:
                self._log.warning("presence_dropped", why=found.why)
        elif found is not None:
            self._metrics.counter("messaging_presence_changes", found.change.value).inc()
            self._ready.append(found)

    def _swept(self, now: int) -> None:
        self._swept_at = now
        for gone in self._fold.sweep(now):
            self._taken(gone)

    async def close(self) -> None:
        """Stop watching."""
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)
        await self._watch.close()
