"""On-demand reads of a compatible space: batched Direct Get of the buckets themselves (C6-45, C7-10)."""

from __future__ import annotations

from sidecar.rails.connection import Connection
from sidecar.rails.connection.kv import KeyValue, Unreadable
from sidecar.rails.messaging.reads import Reading, read_large_roster
from sidecar.rails.messaging.registry import Registry, RegistryUnreadable, read_registry
from sidecar.rails.messaging.roster import Roster, RosterUnreadable
from sidecar.rails.names import buckets


class RawReads:
    """The reads of ``sidecar.rails.messaging.reads.Reads``."""

    def __init__(self, connection: Connection, space: str, reading: Reading) -> None:
        self._presence = KeyValue(connection, buckets.PRESENCE, space)
        self._channels = KeyValue(connection, buckets.CHANNELS, space)
        self._reading = reading

    async def roster(self) -> Roster:
        """Who is here. Raises RosterUnreadable."""
        with self._reading.timed("roster"):
            try:
                found = await self._presence.read_all()
            except Unreadable as error:
                raise RosterUnreadable(str(error)) from error
            records = ((key, entry.value) for key, entry in found.items())
            return self._reading.roster(await read_large_roster(records, self._reading.now_ms))

    async def registry(self) -> Registry:
        """What is said of channels. Raises RegistryUnreadable."""
        with self._reading.timed("registry"):
            try:
                found = await self._channels.read_all()
            except Unreadable as error:
                raise RegistryUnreadable(str(error)) from error
            return self._reading.registry(read_registry((key, entry.value) for key, entry in found.items()))
