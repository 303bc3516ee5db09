"""Whole reads of a bucket for callers who get them in pages.

Every page would read the whole bucket anew. What a caller's first page was read of is kept for its next ones: for a
moment, and for so many callers at a time. Whoever finds nothing kept has it read again, so that nothing depends on it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

from sidecar.base.clock import Now
from sidecar.rails.connection.kv import Entry
from sidecar.rails.names import Lifecycle

KEPT_SECONDS: Final = 5.0
MOST_KEPT: Final = 64
"""Callers whose reads are kept. The oldest goes first."""


class Pages:
    """One bucket. ``read`` reads all of it."""

    def __init__(self, read: Callable[[], Awaitable[dict[str, Entry]]], clock: Callable[[], Now]) -> None:
        self._read, self._clock = read, clock
        self._kept: dict[Lifecycle, tuple[float, dict[str, Entry]]] = {}

    def __len__(self) -> int:
        return len(self._kept)

    async def entries(self, caller: Lifecycle, after: str) -> dict[str, Entry]:
        """The entries of which a page behind ``after`` is made; the first page is of a read that begins now. Raises
        what ``read`` raises."""
        kept = self._kept.get(caller) if after else None
        if kept is not None and self._clock().mono < kept[0]:
            return kept[1]
        entries = await self._read()
        self.ended(caller)
        self._kept[caller] = (self._clock().mono + KEPT_SECONDS, entries)
        if len(self._kept) > MOST_KEPT:
            del self._kept[next(iter(self._kept))]
        return entries

    def ended(self, caller: Lifecycle) -> None:
        """The caller has had its last page."""
        self._kept.pop(caller, None)

    def expire(self) -> None:
        """Forget the reads of callers who did not ask on."""
        now = self._clock().mono
        for caller in [caller for caller, (until, _) in self._kept.items() if until <= now]:
            del self._kept[caller]
