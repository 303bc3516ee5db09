"""What an operator decides about the engine, each value at or below the protocol's hard bound (P3-e)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from sidecar.coordinator.wire.limits import HARD, PAGE_OVERHEAD, RETENTION_FLOOR, Limits, QuotaCaps, check_offer


@dataclass(frozen=True, slots=True)
class Policy:
    """Bounds of one server. ``ValueError`` (``MalformedMessage`` for the limits) when one is not allowed."""

    limits: Limits = HARD
    """The server's side of the negotiated limits; also what a record may measure (P3-f)."""
    quotas: Mapping[str, QuotaCaps] = field(default_factory=dict)
    """Rows that replace those of the limits table."""
    retention_seconds: int = RETENTION_FLOOR
    """Advertised retention of final results (P5-10, P8-40)."""
    tombstone_seconds: int = RETENTION_FLOOR
    """How long a tombstone stays at least, once nothing that its operation created remains (P8-42)."""
    event_bytes: int = 64 * 1_048_576
    """Payload bytes of the retained event log; older events can no longer be subscribed to."""
    event_count: int = 262_144
    """Events of the retained log."""
    storage_bytes: int = 512 * 1_048_576
    """Bytes of all record images; above it new work is refused, old results stay readable (P5-11)."""
    batch_events: int = 256
    """Events after which a batch takes no further transaction; below the unsent queue of a subscription."""
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

    @property
    def largest_image(self) -> int:
        """Bytes that a record image may have so that one event and one page can hold it (P3-f)."""
        return min(self.limits.typed_payload, self.limits.page_bytes - PAGE_OVERHEAD)
