"""Aggregate quotas, connection below principal below server: charged before acting, given back exactly (P3-33..50)."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum

from cext.credit import Quota
from sidecar.coordinator.wire.ids import U64_MAX
from sidecar.coordinator.wire.limits import QUEUE_BYTES, QUEUE_FRAMES, QUOTAS, QuotaCaps


class Resource(IntEnum):
    """Index of each resource of the limits table in every ``Quota``."""

    CONNECTIONS = 0
    REQUESTS = 1
    LEASES = 2
    PINNED_BYTES = 3
    SUBSCRIPTIONS = 4
    QUEUE_FRAMES = 5
    QUEUE_BYTES = 6
    PENDING_OPERATIONS = 7

    @property
    def label(self) -> str:
        """Its key in the limits table."""
        return self.name.lower()


class Quotas:
    """The counters of one server: its own, and one per principal for as long as the principal holds anything.

    ``caps`` replaces rows of the limits table; no value may be above the hard one (P3-e). A reconnect finds the
    principal's counters as they are (P3-41).
    """

    def __init__(self, caps: Mapping[str, QuotaCaps] | None = None) -> None:
        table = {**QUOTAS, **(caps or {})}
        rows = [table[resource.label] for resource in Resource]
        for resource, row in zip(Resource, rows, strict=True):
            hard = QUOTAS[resource.label]
            if any(_cap(own) > _cap(limit) for own, limit in zip(row, hard, strict=True)):
                raise ValueError(f"the quota of {resource.label} is above its hard cap")
        self._connection = [_cap(row.connection) for row in rows]
        self._principal = [_cap(row.principal) for row in rows]
        self._queue = [U64_MAX] * len(Resource)
        self._queue[Resource.QUEUE_FRAMES] = QUEUE_FRAMES
        self._queue[Resource.QUEUE_BYTES] = QUEUE_BYTES
        self.server = Quota([_cap(row.server) for row in rows])
        self._principals: dict[bytes, Quota] = {}

    def principal(self, key_id: bytes) -> Quota:
        """The counters of a principal, whatever connections it has."""
        quota = self._principals.get(key_id)
        if quota is None:
            quota = self._principals[key_id] = Quota(self._principal, self.server)
        return quota

    def connection(self, key_id: bytes) -> Quota:
        """New counters of one connection of a principal."""
        return Quota(self._connection, self.principal(key_id))

    def queue(self, connection: Quota) -> Quota:
        """New counters of the unsent queue of one subscription (P3-36)."""
        return Quota(self._queue, connection)

    def forget_idle(self, key_id: bytes) -> None:
        """Drop the counters of a principal that holds nothing, so that past principals cost no memory."""
        quota = self._principals.get(key_id)
        if quota is not None and not any(quota.used(resource) for resource in Resource):
            del self._principals[key_id]

    def held(self) -> list[tuple[bytes, Quota]]:
        """Key id and counters of every principal that holds something."""
        return list(self._principals.items())

    @property
    def principals(self) -> int:
        """Principals that hold something."""
        return len(self._principals)


def _cap(value: int | None) -> int:
    return U64_MAX if value is None else value
