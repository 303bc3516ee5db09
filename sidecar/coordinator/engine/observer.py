"""What a running coordinator tells about itself; the metrics of the process implement it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from sidecar.coordinator.wire.enums import CommandKind, ErrorCode, GapReason


class Observer(Protocol):
    """Counts, never content: no method receives a payload, a key, an object id or a connection."""

    def command(self, kind: CommandKind, outcome: str) -> None:
        """A command was answered: ``succeeded``, ``repeated`` for a stored result, or the name of its error code."""

    def refused(self, code: ErrorCode) -> None:
        """A COORD_ERROR was produced."""

    def gap(self, reason: GapReason) -> None:
        """A GAP was produced."""

    def credit_stall(self) -> None:
        """A subscription has an event and not the credit for it."""

    def credit_stall_over(self, seconds: float) -> None:
        """It got credit, or was paused or closed, after ``seconds``."""

    def snapshot_page(self, records: int, nbytes: int) -> None:
        """A page was produced; ``nbytes`` of the whole frame."""

    def replay_page(self, events: int, nbytes: int) -> None:
        """A replay page was produced; ``nbytes`` of the whole frame."""

    def lease_expired(self, kind: str) -> None:
        """A lease ran out: ``snapshot`` or ``replay``."""

    def events_sent(self, count: int, nbytes: int) -> None:
        """COORD_EVENTs were produced; ``nbytes`` of the whole frames."""

    def events_dropped(self, count: int) -> None:
        """The oldest ``count`` events left the retained log."""

    def quota(self, resource: str) -> None:
        """An action was refused because this resource (a key of the limits table) is used up."""

    def handshake(self, outcome: str, seconds: float) -> None:
        """A handshake ended, so many seconds after the connection was taken."""

    def frame_in(self, frame_type: int, nbytes: int) -> None:
        """A whole frame arrived."""

    def frames_out(self, frames: Sequence[bytes]) -> None:
        """Whole frames were handed to the transport."""

    def command_wait(self, seconds: float) -> None:
        """A command or lookup had its turn so many seconds after it arrived."""

    def batch(self, size: int, seconds: float) -> None:
        """A batch of ``size`` transactions became durable after ``seconds``."""


class NullObserver:
    """Nobody watches."""

    def command(self, kind: CommandKind, outcome: str) -> None:
        """Ignored."""

    def refused(self, code: ErrorCode) -> None:
        """Ignored."""

    def gap(self, reason: GapReason) -> None:
        """Ignored."""

    def credit_stall(self) -> None:
        """Ignored."""

    def credit_stall_over(self, seconds: float) -> None:
        """Ignored."""

    def snapshot_page(self, records: int, nbytes: int) -> None:
        """Ignored."""

    def replay_page(self, events: int, nbytes: int) -> None:
        """Ignored."""

    def lease_expired(self, kind: str) -> None:
        """Ignored."""

    def events_sent(self, count: int, nbytes: int) -> None:
        """Ignored."""

    def events_dropped(self, count: int) -> None:
        """Ignored."""

    def quota(self, resource: str) -> None:
        """Ignored."""

    def handshake(self, outcome: str, seconds: float) -> None:
        """Ignored."""

    def frame_in(self, frame_type: int, nbytes: int) -> None:
        """Ignored."""

    def frames_out(self, frames: Sequence[bytes]) -> None:
        """Ignored."""

    def command_wait(self, seconds: float) -> None:
        """Ignored."""

    def batch(self, size: int, seconds: float) -> None:
        """Ignored."""


class EngineStats(NamedTuple):
    """Gauges of one moment."""

    connections: int
    subscriptions: int
    """Subscriptions that exist, paused ones too."""
    queued_frames: int
    """Events that wait in unsent queues, over all subscriptions (P3-46)."""
    leases: int
    pinned_bytes: int
    """Bytes held by snapshot cuts and replays (P3-44)."""
    pending: int
    """Admitted operations that are not durable yet (P3-47), and commands and lookups that wait for their turn."""
    backlog: int
    """Commands and lookups that wait for their turn."""
    head_sequence: int
    """EventCut of the newest transaction."""
    durable_sequence: int
    """EventCut of the newest durable batch: what subscribers and snapshots see."""
    retained_from: int
    """First event that SUBSCRIBE can still deliver."""
    fenced: bool
