"""What a client holds of the authority: a view, the pages that become one, and the stream that keeps it current.

A view changes only by verified steps: a whole snapshot, a whole replay, or the next event (parts P9 and P10).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum, auto

from tests.interop.phux import digests
from tests.interop.phux import records as r
from tests.interop.phux.digests import sha256
from tests.interop.phux.enums import GapReason
from tests.interop.phux.frames import Frame


class NotContinuous(Exception):  # noqa: N818 - what it is
    """A page, a total, a digest or an event that does not follow from what the client holds."""


def hold(condition: bool, why: str) -> None:
    """Raises NotContinuous unless the condition holds."""
    if not condition:
        raise NotContinuous(why)


@dataclass
class View:
    """Visible objects: their revision, and their last record when one was seen."""

    revisions: dict[r.ObjectRef, int] = field(default_factory=dict)
    records: dict[r.ObjectRef, r.SnapshotRecord] = field(default_factory=dict)

    @classmethod
    def of(cls, records: Sequence[r.SnapshotRecord]) -> View:
        return cls(
            {record.object: record.revision for record in records}, {record.object: record for record in records}
        )

    def apply(self, events: Sequence[r.ReplayEvent]) -> None:
        """All of the events or none: each takes its object to the next revision, absent being 0 (P10-15)."""
        revisions, records = dict(self.revisions), dict(self.records)
        for event in events:
            after = r.event_record(event)
            hold(event.object_revision == revisions.get(event.object, 0) + 1, f"revision of {event.object}")
            revisions[event.object] = event.object_revision
            if after is not None:
                records[event.object] = after
        self.revisions, self.records = revisions, records


class Pages:
    """Staged pages of a snapshot or a replay; nothing of them is visible before `check_end` passed (P9-16, P10-32)."""

    def __init__(self, first_cursor: bytes | None) -> None:
        self.cursor = first_cursor
        self.index = 0
        self.ended = False

    def turn(self, page: Frame, count: int, most: int) -> None:
        """Echoed cursor, contiguous index, bounded size, a new cursor (P9-08, P9-10, P9-11)."""
        hold(page["cursor"] == self.cursor, "the page of another cursor")
        hold(page["page_index"] == self.index, f"page {page['page_index']} instead of {self.index}")
        hold(0 < count <= most, f"{count} on a page of at most {most}")
        hold(page["next_cursor"] != self.cursor, "the same cursor again")
        self.cursor = page["next_cursor"]
        self.index += 1

    def check_end(self, end: Frame, count: int, total: int, preimage: bytes) -> None:
        """Totals and digest (P9-21)."""
        hold(self.cursor is None, "an end before the last page")
        hold(end["page_count"] == self.index, f"{end['page_count']} pages counted, {self.index} seen")
        hold(total == count, f"{total} counted, {count} seen")
        hold(end["canonical_sha256"] == sha256(preimage), "another digest")
        self.ended = True


class Snapshot:
    """One whole-authority snapshot while it comes in."""

    def __init__(self, begin: Frame, guard: r.Guard, most_records: int) -> None:
        hold(begin["authority_guard"] == guard, "a snapshot of another authority")
        self.id: bytes = begin["snapshot_id"]
        self.base: int = begin["base_event_sequence"]
        self.lease_expires_at: int = begin["lease_expires_at"]
        self.pages = Pages(begin["first_cursor"])
        self.stream: Stream | None = None
        self.records: list[r.SnapshotRecord] = []
        self._guard = guard
        self._most = most_records

    def add(self, page: Frame) -> None:
        """Stage a page: keys ascend over the whole snapshot, so none comes twice (P9-12)."""
        records: list[r.SnapshotRecord] = page["records"]
        self.pages.turn(page, len(records), self._most)
        for record in records:
            hold(not self.records or self.records[-1].object.key < record.object.key, "objects out of order")
            _ = record.values
            self.records.append(record)

    def finish(self, end: Frame) -> None:
        preimage = digests.snapshot_preimage(self._guard, self.base, self.records)
        self.pages.check_end(end, len(self.records), end["record_count"], preimage)
        if self.stream:
            self.stream.view = self.view()

    def view(self) -> View:
        """What the snapshot says. Raises NotContinuous before its end was verified."""
        hold(self.pages.ended, "the snapshot is not complete")
        return View.of(self.records)


class Phase(Enum):
    """Of a subscription (P10-01)."""

    RESERVED = auto()
    LIVE = auto()
    PAUSED_GAP = auto()
    REPLAYING = auto()
    CLOSED = auto()


class Stream:
    """One subscription: exact-next deliveries, rising events, spent credit, and the gap that pauses it."""

    def __init__(self, subscription_id: bytes, phase: Phase, last_event: int, view: View | None) -> None:
        """`last_event` is the cut it starts after; without a view revisions are not held.

        `cut` is the last contiguous event as the server counts it: a replay moves it when its application is
        acknowledged, while the view, and `last_event` with it, moves when the replay is verified.
        """
        self.id = subscription_id
        self.phase = phase
        self.last_delivery = 0
        self.last_event = last_event
        self.cut = last_event
        self.view = view
        self.credit = (0, 0)
        self.events: list[r.ReplayEvent] = []
        self.sizes: list[int] = []
        self.gaps: list[Frame] = []
        self._event_ids: set[bytes] = set()

    def add_credit(self, count: int, size: int) -> None:
        self.credit = (self.credit[0] + count, self.credit[1] + size)

    def resume(self, count: int, size: int) -> None:
        """The one initial credit of a phase; what was left of an older one is gone (P10-33)."""
        self.phase = Phase.LIVE
        self.credit = (count, size)

    def deliver(self, frame: Frame) -> None:
        """Take a COORD_EVENT (P9-24, P10-06, P10-07, P10-11 to P10-15)."""
        hold(self.phase is Phase.LIVE, f"an event while {self.phase.name}")
        hold(frame["delivery_sequence"] == self.last_delivery + 1, f"delivery {frame['delivery_sequence']}")
        self.add_credit(-1, -frame.size)
        hold(min(self.credit) >= 0, "an event without credit")
        event = r.ReplayEvent(*[frame[name] for name in r.ReplayEvent._fields])
        self.publish([event])
        self.last_delivery += 1
        self.cut = event.event_sequence
        self.sizes.append(frame.size)

    def publish(self, events: Sequence[r.ReplayEvent]) -> None:
        """Apply events that were verified in their frame or replay."""
        for event in events:
            hold(event.event_sequence > self.last_event, f"event {event.event_sequence} after {self.last_event}")
            hold(event.event_id not in self._event_ids, "an event id twice")
            self._event_ids.add(event.event_id)
            self.last_event = event.event_sequence
        if self.view is not None:
            self.view.apply(events)
        self.events += events

    def take_gap(self, gap: Frame, replay_asked: bool) -> None:
        """Pause; a paused subscription has no second gap but the answer to a replay that cannot be (P10-17, P10-20)."""
        again = self.phase is Phase.PAUSED_GAP and replay_asked and gap["reason"] is GapReason.RETENTION
        hold(self.phase in {Phase.RESERVED, Phase.LIVE, Phase.REPLAYING} or again, f"a gap while {self.phase.name}")
        hold(gap["last_contiguous_delivery"] == self.last_delivery, "a gap after another delivery")
        hold(gap["last_contiguous_event"] == self.cut, "a gap after another event")
        hold(gap["observed_event"] is None or gap["observed_event"] > self.cut, "an observed event from before")
        self.phase = Phase.PAUSED_GAP
        self.gaps.append(gap)


class Replay:
    """One replay of a paused subscription while it comes in."""

    def __init__(self, begin: Frame, stream: Stream, guard: r.Guard, most_events: int) -> None:
        hold(begin["subscription_id"] == stream.id, "a replay of another subscription")
        self.id: bytes = begin["replay_id"]
        self.after = stream.cut
        self.cut: int = begin["replay_cut"]
        self.first_event: int | None = begin["first_event"]
        self.lease_expires_at: int = begin["lease_expires_at"]
        hold(self.cut >= self.after, "a replay that ends before it starts")
        hold((self.first_event is None) == (begin["first_cursor"] is None), "a first event without a page")
        self.pages = Pages(begin["first_cursor"])
        self.stream = stream
        self.events: list[r.ReplayEvent] = []
        self._guard = guard
        self._most = most_events
        stream.phase = Phase.REPLAYING

    def add(self, page: Frame) -> None:
        """Stage a page: events rise within (after, cut] (P10-27)."""
        events: list[r.ReplayEvent] = page["events"]
        self.pages.turn(page, len(events), self._most)
        for event in events:
            before = self.events[-1].event_sequence if self.events else self.after
            hold(before < event.event_sequence <= self.cut, f"event {event.event_sequence} after {before}")
            r.event_record(event)
            self.events.append(event)
        hold(self.events[0].event_sequence == self.first_event, "another first event")

    def finish(self, end: Frame) -> None:
        preimage = digests.replay_preimage(self._guard, self.stream.id, self.after, self.cut, self.events)
        self.pages.check_end(end, len(self.events), end["event_count"], preimage)
        self.stream.publish([event for event in self.events if event.event_sequence > self.stream.last_event])

    def resume(self, count: int, size: int) -> None:
        """Applied: what follows comes after the cut (P10-34)."""
        self.stream.cut = self.stream.last_event = self.cut
        self.stream.resume(count, size)
