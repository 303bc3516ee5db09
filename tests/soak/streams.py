"""Subscriptions, snapshots and replays as a client of the soak follows them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from cext.digest import ReplayDigest, SnapshotDigest
from sidecar.coordinator.wire import frames as fr
from sidecar.coordinator.wire.enums import ObjectKind
from tests.soak.truth import Failed, Truth


@dataclass
class Stream:
    """One subscription. It starts at a cut, and live unless it is reserved."""

    event: int
    """Last event up to which it is contiguous."""
    live: bool = True
    paused: bool = False
    lost: bool = False
    """What it missed is not retained."""
    delivery: int = 0
    count: int = 0
    nbytes: int = 0
    """Credit that is left, to the byte (P10-06)."""
    outlived: bool = False
    """It paused because what it missed left the log."""
    busy: bool = False
    """Its healing was asked for."""
    abandoned: bool = False
    """Its replay was begun and left as it is: that may overflow, or not."""
    got: list[int] = field(default_factory=list)
    """Events since ``start``."""

    def __post_init__(self) -> None:
        self.start = self.event

    def give(self, count: int, nbytes: int) -> None:
        self.count += count
        self.nbytes += nbytes

    def event_came(self, event: fr.CoordEvent, size: int) -> None:
        """One delivery: in its turn, while it is live, and within the credit (P10-11, P10-18)."""
        if not self.live:
            raise Failed("an event before APPLIED or behind a gap")
        if event.delivery_sequence != self.delivery + 1:
            raise Failed(f"delivery {event.delivery_sequence} follows {self.delivery}")
        if event.event_sequence <= self.event:
            raise Failed(f"event {event.event_sequence} follows {self.event}")
        self.count -= 1
        self.nbytes -= size
        if self.count < 0 or self.nbytes < 0:
            raise Failed(f"a delivery without credit: {self.count} events and {self.nbytes} bytes are left")
        self.delivery, self.event = int(event.delivery_sequence), int(event.event_sequence)
        self.got.append(self.event)

    def pause(self) -> None:
        """It lost continuity; its credit is gone (P10-17)."""
        self.live, self.paused = False, True
        self.count = self.nbytes = 0

    def heal(self, cut: int) -> None:
        """A replay was applied: it goes on behind its cut."""
        self.live, self.paused = True, False
        self.event = self.start = cut


@dataclass
class Reading:
    """A snapshot that is being read."""

    begin: fr.SnapshotBegin
    opened: float
    objectives: dict[bytes, int] = field(default_factory=dict)
    """Revisions that it holds."""
    lost: bool = False
    """Its reserved subscription lost continuity: it can be read, and not applied."""
    pages: int = 0
    ended: bool = False
    busy: bool = False
    """The next step was asked for."""
    _images: list[bytes] = field(default_factory=list)
    _last: Any = None

    def __post_init__(self) -> None:
        self.cursor = self.begin.first_cursor

    def page(self, page: fr.SnapshotPage) -> None:
        if page.cursor != self.cursor or page.page_index != self.pages:
            raise Failed("another page than the one that was asked for")
        self.cursor, self.pages = page.next_cursor, self.pages + 1
        for record in page.records:
            if self._last is not None and record.key() <= self._last:
                raise Failed("the records of a snapshot are not in order")
            self._last = record.key()
            self._images.append(record.encode())
            if record.kind is ObjectKind.OBJECTIVE:
                self.objectives[record.id] = int(record.revision)

    def end(self, end: fr.SnapshotEnd) -> None:
        """All of it is here and is what the server digested (P9-16)."""
        self.ended = True
        guard, count = self.begin.authority_guard, len(self._images)
        digest = SnapshotDigest(
            guard.coordinator_id,
            guard.authority_epoch,
            guard.activation_sequence,
            self.begin.base_event_sequence,
            count,
        )
        for image in self._images:
            digest.update(image)
        if (end.page_count, end.record_count, end.canonical_sha256) != (self.pages, count, digest.digest()):
            raise Failed("the end of a snapshot does not fit what came")
        self._images.clear()


@dataclass
class Healing:
    """A replay that is being read."""

    begin: fr.ReplayBegin
    after: int
    guard: Any
    opened: float
    sequences: list[int] = field(default_factory=list)
    pages: int = 0
    ended: bool = False
    busy: bool = False
    """The next step was asked for."""
    _images: list[bytes] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.cursor = self.begin.first_cursor

    def page(self, page: fr.ReplayPage, truth: Truth) -> None:
        if page.cursor != self.cursor or page.page_index != self.pages:
            raise Failed("another page than the one that was asked for")
        self.cursor, self.pages = page.next_cursor, self.pages + 1
        for event in page.events:
            if event.event_sequence <= (self.sequences[-1] if self.sequences else self.after):
                raise Failed("the events of a replay are not in order")
            truth.told(event)
            self.sequences.append(int(event.event_sequence))
            self._images.append(event.encode())

    def end(self, end: fr.ReplayEnd) -> None:
        """All of it is here and is what the server digested (P10-30)."""
        self.ended = True
        begin, count = self.begin, len(self._images)
        digest = ReplayDigest(
            self.guard.coordinator_id,
            self.guard.authority_epoch,
            self.guard.activation_sequence,
            begin.subscription_id,
            self.after,
            begin.replay_cut,
            count,
        )
        for image in self._images:
            digest.update(image)
        if (end.page_count, end.event_count, end.canonical_sha256) != (self.pages, count, digest.digest()):
            raise Failed("the end of a replay does not fit what came")
        if begin.first_event != (self.sequences[0] if self.sequences else None):
            raise Failed("a replay begins with another event than it said")
        self._images.clear()
