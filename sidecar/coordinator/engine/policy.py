"""What an operator decides about the engine, each value at or below the protocol's hard bound (P3-e)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final, NamedTuple

from sidecar.coordinator.engine.state import State
from sidecar.coordinator.wire.enums import ObjectKind
from sidecar.coordinator.wire.limits import HARD, PAGE_OVERHEAD, RETENTION_FLOOR, Limits, QuotaCaps, check_offer
from sidecar.coordinator.wire.payloads import AdminRecord
from sidecar.coordinator.wire.records import AdminRetention, SnapshotRecord

EVENT_BYTES: Final = 64 * 1_048_576
EVENT_COUNT: Final = 262_144
STORAGE_BYTES: Final = 512 * 1_048_576
"""Hard bounds of what is kept; it is in memory as a whole."""


class Kept(NamedTuple):
    """How long and how much is kept."""

    result_seconds: int
    """Retention of final results as it is advertised (P5-10)."""
    event_bytes: int
    """Payload bytes of the event log."""
    artifact_bytes: int
    """Bytes of all manifest records together."""


@dataclass(frozen=True, slots=True)
class Policy:
    """Bounds of one server. ``ValueError`` (``MalformedMessage`` for the limits) when one is not allowed."""

    limits: Limits = HARD
    """The server's side of the negotiated limits; also what a record may measure (P3-f)."""
    quotas: Mapping[str, QuotaCaps] = field(default_factory=dict)
    """Rows that replace those of the limits table."""
    retention_seconds: int = RETENTION_FLOOR
    """Retention of final results (P5-10, P8-40); CHANGE_RETENTION can only make it longer."""
    tombstone_seconds: int = RETENTION_FLOOR
    """How long a tombstone stays at least, once nothing that its operation created remains (P8-42)."""
    event_bytes: int = EVENT_BYTES
    """Payload bytes of the retained event log; older events can no longer be subscribed to. CHANGE_RETENTION can only
    make it less."""
    event_count: int = EVENT_COUNT
    """Events of the retained log."""
    storage_bytes: int = STORAGE_BYTES
    """Bytes of all record images; above it new work is refused, old results stay readable (P5-11)."""
    batch_events: int = 128
    """Events after which a batch takes no further transaction; below the unsent queue of a subscription.

    More would share an fsync among more commands, fewer would let a newcomer wait for less: at this size the fsync is
    already a small part of what a full batch takes.
    """
    batch_bytes: int = 1_048_576
    """Payload bytes of events after which it takes none; far below the event log, or readers could not keep up."""
    prune_batch: int = 256
    """Operations that one tick prunes at most."""

    def __post_init__(self) -> None:
        check_offer(self.limits)
        if min(self.retention_seconds, self.tombstone_seconds) < RETENTION_FLOOR:
            raise ValueError(f"results are kept for at least {RETENTION_FLOOR} seconds")
        bounds = (
            self.event_bytes,
            self.event_count,
            self.storage_bytes,
            self.batch_events,
            self.batch_bytes,
            self.prune_batch,
        )
        if min(bounds) < 1:
            raise ValueError("a bound is at least 1")
        if self.event_bytes > EVENT_BYTES or self.event_count > EVENT_COUNT or self.storage_bytes > STORAGE_BYTES:
            raise ValueError("what is kept is above its hard bound")

    def kept(self, state: State, coordinator_id: bytes) -> Kept:
        """What holds in ``state``: the last CHANGE_RETENTION within these bounds (OPEN P7-g)."""
        entry = state.get(ObjectKind.ADMIN, coordinator_id)
        if entry is None:
            return Kept(self.retention_seconds, self.event_bytes, self.storage_bytes)
        asked = _asked(entry.image)
        return Kept(
            max(self.retention_seconds, asked.operation_result_secs),
            min(self.event_bytes, asked.event_bytes),
            min(self.storage_bytes, asked.artifact_bytes),
        )

    @property
    def largest_image(self) -> int:
        """Bytes that a record image may have so that one event and one page can hold it (P3-f)."""
        return min(self.limits.typed_payload, self.limits.page_bytes - PAGE_OVERHEAD)


@lru_cache(maxsize=8)
def _asked(image: bytes) -> AdminRetention:
    """The values of a RETENTION record; every transaction asks for them."""
    values = AdminRecord.decode(SnapshotRecord.decode(image).payload).content()
    assert isinstance(values, AdminRetention)
    return values
