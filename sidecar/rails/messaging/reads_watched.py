"""Roster and registry for whoever may only watch the buckets: observers, admins and operators of both forms.

Each read is a watch that ends when everything that was there at its begin has come (C6-44). The broker forgets its
consumer a few seconds later.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Final

from sidecar.rails.connection import Connection, ConnectionFault
from sidecar.rails.connection.kv import Entry, KeyValue
from sidecar.rails.connection.streams import ConsumerGone, ConsumerRefused
from sidecar.rails.messaging.reads import Reading, read_large_roster
from sidecar.rails.messaging.registry import Registry, RegistryUnreadable, read_registry
from sidecar.rails.messaging.roster import Roster, RosterUnreadable
from sidecar.rails.names import buckets

READ_SECONDS: Final = 10.0
"""The longest that a read takes."""
_NAME_BYTES: Final = 8


class WatchedReads:
    """The reads of ``sidecar.rails.messaging.reads.Reads``."""

    def __init__(
        self, connection: Connection, space: str, reading: Reading, *, entropy: Callable[[int], bytes]
    ) -> None:
        self._presence = KeyValue(connection, buckets.PRESENCE, space)
        self._channels = KeyValue(connection, buckets.CHANNELS, space)
        self._reading = reading
        self._entropy = entropy

    async def roster(self) -> Roster:
        """Who is here. Raises RosterUnreadable."""
        with self._reading.timed("roster"):
            try:
                found = await self._all(self._presence)
            except _TROUBLE as error:
                raise RosterUnreadable(_why(error)) from error
            records = ((key, entry.value) for key, entry in found.items())
            return self._reading.roster(await read_large_roster(records, self._reading.now_ms))

    async def registry(self) -> Registry:
        """What is said of channels. Raises RegistryUnreadable."""
        with self._reading.timed("registry"):
            try:
                found = await self._all(self._channels)
            except _TROUBLE as error:
                raise RegistryUnreadable(_why(error)) from error
            return self._reading.registry(read_registry((key, entry.value) for key, entry in found.items()))

    async def _all(self, bucket: KeyValue) -> dict[str, Entry]:
        """Every current value, by key."""
        watch = bucket.watch(self._entropy(_NAME_BYTES).hex())
        found: dict[str, Entry] = {}
        primed = asyncio.create_task(watch.primed.wait())
        coming: asyncio.Task[Entry] | None = None
        try:
            async with asyncio.timeout(READ_SECONDS):
                while True:
                    coming = asyncio.create_task(watch.next())
                    await asyncio.wait((primed, coming), return_when=asyncio.FIRST_COMPLETED)
                    if not coming.done():
                        return found
                    entry = coming.result()
                    found.pop(entry.key, None)
                    if not entry.deleted:
                        found[entry.key] = entry
        finally:
            for task in (primed, coming):
                if task is not None:
                    task.cancel()
                    with contextlib.suppress(asyncio.CancelledError, *_TROUBLE):
                        await task
            await watch.close()


_TROUBLE: Final = (ConnectionFault, ConsumerGone, ConsumerRefused, TimeoutError)


def _why(error: Exception) -> str:
    return str(error) or "it did not come to its end in time"
