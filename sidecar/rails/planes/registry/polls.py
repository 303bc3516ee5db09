"""Long polls of registrations: who waits for a change of one record shares its reads with everybody who does."""

from __future__ import annotations

import asyncio
from typing import Final

from sidecar.ops.metrics import Metrics
from sidecar.rails.planes.registration.merged import Merged
from sidecar.rails.planes.registry.records import Records

EVERY_SECONDS: Final = 0.5
"""How often a record is read for those who wait for it."""


class Polls:
    """One read at a time for each record that somebody waits for, and none for the others."""

    def __init__(self, records: Records, metrics: Metrics) -> None:
        self._records = records
        self._waiting = metrics.gauge("registry_polls")
        self._reads: dict[tuple[str, str], asyncio.Task[Merged]] = {}

    async def changed(self, endpoint: str, instance: str, known: tuple[int, int], seconds: float) -> Merged:
        """Both halves as soon as a revision (of spec, of status) is not the known one, or after ``seconds`` as they are
        then. Raises Unreadable."""
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        self._waiting.inc()
        try:
            while True:
                found = await self._next(endpoint, instance)
                if found.changed(*known) or loop.time() >= until:
                    return found
        finally:
            self._waiting.dec()

    async def _next(self, endpoint: str, instance: str) -> Merged:
        """What the next read gives, which begins behind this call."""
        key = (endpoint, instance)
        task = self._reads.get(key)
        if task is None:
            task = self._reads[key] = asyncio.create_task(self._read(key))
            task.add_done_callback(_retrieve)
        # One who gives up takes the read from nobody else.
        return await asyncio.shield(task)

    async def close(self) -> None:
        """End every read that is under way."""
        tasks = list(self._reads.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _read(self, key: tuple[str, str]) -> Merged:
        try:
            await asyncio.sleep(EVERY_SECONDS)
        finally:
            # Who comes from here on waits for a read of its own.
            del self._reads[key]
        return await self._records.record(*key)


def _retrieve(task: asyncio.Task[Merged]) -> None:
    """A read that failed is told to who waits for it; to nobody if none does any more."""
    if not task.cancelled():
        task.exception()
