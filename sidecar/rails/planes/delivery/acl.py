"""The read lists of a space as the delivery plane knows them: in memory, and exactly where that counts (C7-30, CD-05).

A lifecycle without a row, or with one that cannot be read, is not known: nothing is given to it and nothing is dropped
for it yet (OPEN C8-e). A row that allows nothing is known and allows nothing.
"""

from __future__ import annotations

from sidecar.rails.connection.kv import Entry, KeyValue
from sidecar.rails.names import buckets
from sidecar.rails.names.errors import InvalidName
from sidecar.rails.names.principals import Lifecycle
from sidecar.rails.planes.delivery.mirror import Mirror
from sidecar.rails.planes.delivery.plane import Plane
from sidecar.rails.space.acl import AclRow, InvalidRow

_LABEL = "acl"


class Acl:
    """Rows of the ACL bucket. ``run`` feeds them; ``current`` makes them as current as the bucket, or raises Behind."""

    def __init__(self, plane: Plane) -> None:
        self._plane = plane
        self._by_principal: dict[str, dict[Lifecycle, AclRow]] = {}
        self._values = KeyValue(plane.connection, buckets.ACL, plane.space)
        self._mirror = Mirror(plane, buckets.ACL, _LABEL, self._take)
        self.run, self.current = self._mirror.run, self._mirror.current

    def row(self, lifecycle: Lifecycle) -> AclRow | None:
        """What a lifecycle may read, None where that is not known."""
        return self._by_principal.get(lifecycle.principal.dot, {}).get(lifecycle)

    def newest(self, principal: str) -> tuple[Lifecycle, AclRow] | None:
        """The lifecycle of a principal (in dot-form) whose row was written last, which is the one that lives now. The
        order of the bucket says which; the times in the rows are those of whatever machine wrote them."""
        rows = self._by_principal.get(principal)
        return next(reversed(rows.items())) if rows else None

    async def exact(self, lifecycle: Lifecycle) -> AclRow | None:
        """The row as the stream's leader has it now; None without one that can be read. Raises Unreadable."""
        key = buckets.ACL_KEY.build(**lifecycle.names)
        entry = await self._values.get(key)
        return None if entry is None else self._decoded(entry)

    def _take(self, entry: Entry) -> None:
        try:
            lifecycle = Lifecycle.from_dot(entry.key)
        except InvalidName:
            self._plane.metrics.counter("delivery_bad_rows", _LABEL).inc()
            return
        row = None if entry.deleted else self._decoded(entry)
        rows = self._by_principal.setdefault(lifecycle.principal.dot, {})
        rows.pop(lifecycle, None)
        if row is not None:
            rows[lifecycle] = row  # behind those that were written before
        elif not rows:
            del self._by_principal[lifecycle.principal.dot]

    def _decoded(self, entry: Entry) -> AclRow | None:
        try:
            return AclRow.decode(entry.value)
        except InvalidRow as error:
            self._plane.metrics.counter("delivery_bad_rows", _LABEL).inc()
            self._plane.log.error("delivery_bad_acl_row", error=error)
            return None
