"""What a member reads of its space on demand, in either form (C6-44..47, C7-10, C7-11).

``RawReads`` of a compatible space asks the buckets themselves, ``MediatedReads`` asks the delivery plane. Neither binds
a consumer, and neither keeps anything: who shows the roster or resolves a class reads first. The history of a channel
is ``sidecar.rails.messaging.history``.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import Final, Protocol

from sidecar.base.clock import Now
from sidecar.ops.logging import Log
from sidecar.ops.metrics import Metrics
from sidecar.rails.messaging.registry import Registry
from sidecar.rails.messaging.roster import Dropped, Roster, Row, read_row, roster_of

ROWS_AT_ONCE: Final = 64
"""Presence records that are read in one turn of the event loop."""
_SHOWN: Final = 3


class Reads(Protocol):
    """The reads of one member."""

    async def roster(self) -> Roster:
        """Who is here. Raises RosterUnreadable: nothing may be said of who is absent (C6-47)."""

    async def registry(self) -> Registry:
        """What is said of channels. Raises RegistryUnreadable."""


class Reading:
    """How reads are seen: counted, timed, and what they dropped said once for each read."""

    def __init__(self, clock: Callable[[], Now], metrics: Metrics, log: Log | None = None) -> None:
        self.clock = clock
        self._metrics = metrics
        self._log = log

    @property
    def now_ms(self) -> int:
        """Milliseconds since 1970."""
        return int(self.clock().wall * 1000)

    @contextlib.contextmanager
    def timed(self, what: str) -> Iterator[None]:
        """One read of the ``roster`` or the ``registry``."""
        begun = self.clock().mono
        outcome = "unreadable"
        try:
            yield
            outcome = "complete"
        finally:
            self._metrics.counter("messaging_reads", what, outcome).inc()
            self._metrics.histogram("messaging_read_seconds", what).observe(self.clock().mono - begun)

    def roster(self, roster: Roster) -> Roster:
        """Report what was dropped (C6-43)."""
        self._unread("messaging_presence_dropped", "presence_dropped", [one.why for one in roster.dropped])
        return roster

    def registry(self, registry: Registry) -> Registry:
        """Report what counts as absent."""
        names = [one.field or "entry" for one in registry.unread]
        self._unread("messaging_registry_unread", "registry_unread", names)
        return registry

    def _unread(self, counter: str, event: str, reasons: list[str]) -> None:
        if reasons:
            self._metrics.counter(counter).inc(len(reasons))
            if self._log is not None:
                self._log.warning(event, count=len(reasons), reasons=sorted(set(reasons))[:_SHOWN])


async def read_large_roster(records: Iterable[tuple[str, bytes]], now: int) -> Roster:
    """What ``read_roster`` gives, with turns of the loop in between: thousands of records take tenths of a second."""
    read: list[tuple[str, Row | Dropped]] = []
    for key, value in records:
        read.append((key, read_row(key, value, now)))
        if not len(read) % ROWS_AT_ONCE:
            await asyncio.sleep(0)
    return roster_of(read, now)
