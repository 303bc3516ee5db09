"""The retained part of the event order, shared by every subscription.

A subscription is a cursor over this log; no event is copied for it. The part of a COORD_EVENT that is equal for all
subscribers is encoded once (P10-14).
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from itertools import compress
from typing import cast

from sidecar.coordinator.engine.state import Event
from sidecar.coordinator.engine.visibility import Visibility
from sidecar.coordinator.wire.enums import EventKind, ObjectKind
from sidecar.coordinator.wire.events import EVENT_HEAD_BYTES, event_image, event_tail
from sidecar.coordinator.wire.ids import EventId, EventSequence, ObjectId, ObjectRevision
from sidecar.coordinator.wire.records import ObjectRef, ReplayEvent

_COMPACT = 4096
"""Empty places of dropped events at the front of the list before it is shortened."""


class LogEntry:
    """One retained event with its shared encoding, which is made when it is first asked for."""

    __slots__ = ("_tail", "event")

    def __init__(self, event: Event) -> None:
        self.event = event
        self._tail: bytes | None = None

    @property
    def tail(self) -> bytes:
        """The encoded fields of the event that do not depend on the subscription."""
        if self._tail is None:
            self._tail = event_tail(replay_event(self.event))
        return self._tail

    @property
    def size(self) -> int:
        """Bytes of the whole frame, which is what it costs in credit (P10-06)."""
        return EVENT_HEAD_BYTES + len(self.tail)

    @property
    def image(self) -> bytes:
        """The event as a replay page carries it. Not kept: most events are never replayed."""
        sequence, event_id, kind, object_kind, object_id, revision, schema, payload, _ = self.event
        return event_image(sequence, event_id, kind, object_kind, object_id, revision, schema, payload)


def replay_event(event: Event) -> ReplayEvent:
    """A stored event as the wire knows it."""
    return ReplayEvent(
        EventSequence(event.sequence),
        EventId(event.event_id),
        EventKind(event.kind),
        ObjectRef(ObjectKind(event.object_kind), ObjectId(event.object_id)),
        ObjectRevision(event.revision),
        event.schema,
        event.payload,
    )


class EventLog:
    """Events ``first`` to ``head``, without a hole. ``first`` is ``head + 1`` when nothing is retained."""

    def __init__(self, tail: Sequence[Event], head: int) -> None:
        self._entries: list[LogEntry | None] = []
        # What decides who sees an event and what it costs, in rows of their own beside the entries: a replay may have
        # to look at all of them, and does so without a step of Python for each.
        self._kinds = bytearray()
        self._principals: list[bytes] = []
        self._sizes = array("I")
        self._skip = 0
        self.head = head - len(tail)
        self.nbytes = 0
        self.append(tail)

    @property
    def first(self) -> int:
        """Sequence of the oldest retained event."""
        return self.head + 1 - len(self)

    def __len__(self) -> int:
        return len(self._entries) - self._skip

    def __getitem__(self, sequence: int) -> LogEntry:
        """The retained event with this sequence; ``LookupError`` outside of ``first..head``."""
        entry = self._entries[sequence - self.head - 1] if sequence <= self.head else None
        if entry is None:
            raise LookupError("the event is not retained")
        return entry

    def seen_behind(self, sequence: int, visibility: Visibility) -> tuple[list[LogEntry], list[int]]:
        """The retained events behind ``sequence`` that are visible, oldest first, and the bytes of their payloads.

        Those between it and ``first`` are missing.
        """
        start = len(self._entries) - max(0, min(self.head - sequence, len(self)))
        mask = visibility.mask(self._kinds[start:], self._principals[start:])
        found = list(compress(self._entries[start:], mask))
        return cast("list[LogEntry]", found), list(compress(self._sizes[start:], mask))

    def mask(self, sequence: int, count: int, visibility: Visibility) -> bytes:
        """Which of the ``count`` events behind ``sequence``, all retained, are visible; see ``Visibility.mask``."""
        start = len(self._entries) + sequence - self.head
        return visibility.mask(self._kinds[start : start + count], self._principals[start : start + count])

    def append(self, events: Iterable[Event]) -> list[LogEntry]:
        """Add events that follow ``head``."""
        added = [LogEntry(event) for event in events]
        sizes = [len(entry.event.payload) for entry in added]
        self._entries += added
        self._kinds += bytes(entry.event.object_kind for entry in added)
        self._principals += [entry.event.principal for entry in added]
        self._sizes.extend(sizes)
        self.head += len(added)
        self.nbytes += sum(sizes)
        return added

    def excess(self, max_bytes: int, max_count: int, step: int | None = None) -> int:
        """First sequence that a log of these bounds would retain; no more than ``step`` behind the first one of now."""
        first, nbytes = self.first, self.nbytes
        end = self.head + 1 if step is None else min(self.head + 1, first + step)
        while first < end and (self.head + 1 - first > max_count or nbytes > max_bytes):
            nbytes -= len(self[first].event.payload)
            first += 1
        return first

    def drop_before(self, sequence: int) -> None:
        """Forget the events before ``sequence``."""
        while self.first < sequence:
            self.nbytes -= len(self[self.first].event.payload)
            self._entries[self._skip] = None
            self._skip += 1
        if self._skip > _COMPACT:
            for row in (self._entries, self._kinds, self._principals, self._sizes):
                del row[: self._skip]
            self._skip = 0
