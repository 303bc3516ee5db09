"""The membership registry: its rows in memory (C7-29).

``joins`` writes them.
"""

from __future__ import annotations

from sidecar.rails.connection.kv import Entry
from sidecar.rails.names import buckets
from sidecar.rails.names.errors import InvalidName
from sidecar.rails.planes.delivery.index import MemberIndex
from sidecar.rails.planes.delivery.membership import InvalidRow, decode
from sidecar.rails.planes.delivery.mirror import Mirror
from sidecar.rails.planes.delivery.plane import Plane

_LABEL = "members"


class Members:
    """Rows of the members bucket. ``run`` feeds them; ``current`` makes them as current as the bucket, or raises
    Behind."""

    def __init__(self, plane: Plane) -> None:
        self._plane = plane
        self._index = MemberIndex()
        self._mirror = Mirror(plane, buckets.MEMBERS, _LABEL, self._take)
        self.run, self.current = self._mirror.run, self._mirror.current
        self.members, self.holds, self.of = self._index.members, self._index.holds, self._index.of
        self.oldest = self._index.oldest
        self._gauge = plane.metrics.gauge("delivery_memberships")

    @property
    def reads(self) -> int:
        """Questions to the bucket so far, each of which served everybody who came before it (CD-10)."""
        return self._mirror.reads

    def _take(self, entry: Entry) -> None:
        """A row that cannot be read counts as absent: nobody gets a copy by it."""
        try:
            channel, lifecycle = buckets.parse_member_key(entry.key)
        except InvalidName:
            self._plane.metrics.counter("delivery_bad_rows", _LABEL).inc()
            return
        self._index.remove(channel, lifecycle)
        if not entry.deleted:
            try:
                self._index.put(decode(entry.key, entry.value))
            except InvalidRow as error:
                self._plane.metrics.counter("delivery_bad_rows", _LABEL).inc()
                self._plane.log.error("delivery_bad_membership", error=error)
        self._gauge.set(len(self._index))
