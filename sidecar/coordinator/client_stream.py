"""One subscription as its client sees it: exact-next deliveries, exact-next revisions, credit, gaps (P10).

A stream is never quietly incomplete. Whatever is not the next thing makes it stale, and a stale stream delivers nothing
any more until a replay of what it missed or a fresh snapshot heals it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from enum import Enum
from types import MappingProxyType

from cext.credit import Credit
from sidecar.coordinator.client_errors import PeerFault
from sidecar.coordinator.client_events import Change, Replay, StreamGap, StreamStale, WorkEvent
from sidecar.coordinator.wire.enums import ErrorCode
from sidecar.coordinator.wire.frames import CoordEvent, Gap
from sidecar.coordinator.wire.ids import EventCut, ObjectRevision, SubscriptionId
from sidecar.coordinator.wire.limits import Selected, largest_event
from sidecar.coordinator.wire.records import SnapshotRecord

FRAME_OVERHEAD = 5
"""Bytes of a frame beside its body: u32 length and u8 type."""


class StreamState(Enum):
    """Life of a subscription at the client (P10-01). STALE is this side's own: what it found is not healed here."""

    RESERVED_SNAPSHOT = "reserved_snapshot"
    LIVE = "live"
    PAUSED_GAP = "paused_gap"
    REPLAYING = "replaying"
    STALE = "stale"


class Projection:
    """What a stream knows of the visible objects: a verified cut plus every event after it (P10-15).

    A complete projection (from a snapshot, or from the first event on) knows that an object it does not hold is absent.
    An incomplete one follows from the middle and takes an object's first sight as its start. A stale projection stays
    readable as a historical cut; only a verified replay updates it again.
    """

    def __init__(self, records: Iterable[SnapshotRecord], cut: EventCut, *, complete: bool = True) -> None:
        self._records = {record.key(): record for record in records}
        self._revisions: dict[bytes, ObjectRevision] = {key: record.revision for key, record in self._records.items()}
        self._complete = complete
        self.cut: EventCut = cut
        """Sequence of the last event that is included."""
        self.stale: str | None = None
        """Why this is not the current state any more; None while it is."""

    @property
    def records(self) -> Mapping[bytes, SnapshotRecord]:
        """Objects by their 18-byte key (kind, id), read only."""
        return MappingProxyType(self._records)

    def accepts(self, key: bytes, revision: ObjectRevision) -> bool:
        """Is this the next revision of the object?"""
        known = self._revisions.get(key)
        if known is None:
            return revision == 1 if self._complete else True
        return revision == known + 1

    def apply(self, event: Change) -> None:
        """Include an event that ``accepts`` agreed to."""
        key = event.object.encode()
        self._revisions[key] = event.revision
        if event.record is not None:
            self._records[key] = event.record
        elif key in self._records:  # a source fact counts as a revision of its binding and leaves the record as it is
            self._records[key] = replace(self._records[key], revision=event.revision)
        self.cut = EventCut(event.sequence)


class Stream:
    """One subscription; the session feeds it its frames and sends the credit that it asks for."""

    def __init__(
        self,
        request_id: int,
        subscription_id: SubscriptionId,
        selected: Selected,
        projection: Projection,
        state: StreamState,
    ) -> None:
        self.request_id = request_id
        self.subscription_id = subscription_id
        self.projection = projection
        self.state = state
        self.last_delivery: int = 0
        self.last_event: int = projection.cut
        self.heal_from: EventCut | None = None
        """Cut from which a replay heals the paused stream, as its GAP named it (P10-24); None: no replay does."""
        self.replay: int | None = None
        """Handle of the replay under way."""
        self._visible: int = projection.cut
        self._floor: int = projection.cut
        self._forgotten: int = 0
        self._credit = Credit(selected.credit_count, selected.credit_bytes)
        self._window = (0, 0)
        self._largest = largest_event(selected.typed_payload)
        self._owed_count = 0
        self._owed_bytes = 0

    @property
    def window(self) -> tuple[int, int]:
        """Events and bytes of the latest initial credit."""
        return self._window

    def go_live(self, count: int, nbytes: int) -> None:
        """The initial or resumed credit was granted and acknowledged; an older credit is gone (P10-33)."""
        self._credit.add(count, nbytes)
        self._window = (count, nbytes)
        self._owed_count = self._owed_bytes = 0
        self._forgotten = self.last_delivery
        self._floor = self._visible
        self.heal_from = self.replay = None
        self.projection.stale = None
        self.state = StreamState.LIVE

    def event(self, frame: CoordEvent, body_bytes: int) -> WorkEvent | StreamStale | None:
        """Judge one COORD_EVENT. None when the stream is stale and the event is ignored.

        Raises ``PeerFault`` for an event that must not exist at all: without credit, before ACK, after GAP, malformed.
        """
        if self.state is StreamState.STALE:
            return None
        nbytes = FRAME_OVERHEAD + body_bytes
        # Before the ACK and after a GAP there is no credit at all (P9-23, P10-17).
        if not self._credit.spend(nbytes):
            fault = f"an event beyond the credit of a subscription that is {self.state.value}"
            raise PeerFault(ErrorCode.PROTOCOL_ERROR, fault)
        if frame.delivery_sequence != self.last_delivery + 1:
            return self.go_stale(f"delivery {frame.delivery_sequence} came instead of {self.last_delivery + 1}")
        if frame.event_sequence <= self.last_event:
            return self.go_stale(f"event {frame.event_sequence} came after event {self.last_event}")
        event = _work_event(frame, nbytes)
        if not self.projection.accepts(event.object.encode(), event.revision):
            return self.go_stale(f"revision {event.revision} is not the next one of its object")
        self.projection.apply(event)
        self.last_delivery = event.delivery
        self.last_event = self._visible = self._floor = event.sequence
        return event

    def gap(self, frame: Gap) -> StreamGap | StreamStale:
        """The server paused the stream; a replay under way is void (P10-35).

        A GAP that does not name the last delivery that came tells of lost ones: that is this side's finding.
        """
        if self.state is StreamState.PAUSED_GAP:
            raise PeerFault(ErrorCode.PROTOCOL_ERROR, "a second GAP of a paused subscription")
        before, self.replay = self.state, None
        self._credit.clear()
        if before is not StreamState.STALE:
            position = (frame.last_contiguous_delivery, frame.last_contiguous_event)
            # Events that are hidden or that a replay brought may or may not count for the server (P10-f).
            if position[0] != self.last_delivery or not self._floor <= position[1] <= self.last_event:
                return self.go_stale(f"GAP after delivery {position[0]}, event {position[1]}, which is not what came")
        continues = before in (StreamState.LIVE, StreamState.REPLAYING)
        self.heal_from = frame.last_contiguous_event if continues else None
        self.state = StreamState.PAUSED_GAP
        self.projection.stale = f"gap: {frame.reason.name}"
        return StreamGap(
            self.subscription_id,
            frame.last_contiguous_delivery,
            frame.last_contiguous_event,
            frame.observed_event,
            frame.reason,
        )

    def replaying(self, handle: int) -> None:
        """A replay was asked for."""
        self.state = StreamState.REPLAYING
        self.replay = handle

    def replayed(self, replay: Replay) -> None:
        """A replay was verified: what it brought is known now, and nothing up to its cut is delivered any more."""
        for event in replay.events:
            self.projection.apply(event)
            self._visible = event.sequence
        self.last_event = self.projection.cut = replay.through

    def paused_again(self) -> None:
        """The server refused the replay or let it expire: the subscription waits as before (P10-h)."""
        self.state = StreamState.PAUSED_GAP
        self.replay = None

    def not_resumed(self, detail: str) -> StreamStale:
        """A replay was published and then the server did not take its credit; the stream is paused as before."""
        self.projection.stale = detail
        return StreamStale(self.subscription_id, self.last_delivery, self.last_event, detail, healable=True)

    def go_stale(self, detail: str) -> StreamStale:
        """Nothing after this point is trusted; the projection stays what it was."""
        self.state = StreamState.STALE
        self.heal_from = self.replay = None
        self.projection.stale = detail
        return StreamStale(self.subscription_id, self.last_delivery, self.last_event, detail)

    def consumed(self, event: WorkEvent) -> tuple[int, int] | None:
        """The application is done with an event: the credit to give back now, or None while there is enough left.

        Giving back exactly what was used keeps the balance within what was granted at first (P10-16). Events from
        before a replay used a credit that is gone with it.
        """
        if event.delivery <= self._forgotten:
            return None
        self._owed_count += 1
        self._owed_bytes += event.nbytes
        count, nbytes = self._window
        # The byte balance must never rest below one event of the largest size: that event would wait for ever.
        enough = 2 * self._owed_count < count and 2 * self._owed_bytes < nbytes and self._credit.nbytes >= self._largest
        if self.state is not StreamState.LIVE or enough:
            return None
        owed = (self._owed_count, self._owed_bytes)
        self._owed_count = self._owed_bytes = 0
        self._credit.add(*owed)
        return owed


def _work_event(frame: CoordEvent, nbytes: int) -> WorkEvent:
    # Decoding the frame proved that the payload is about this very object and revision (P7-21).
    content = frame.content
    return WorkEvent(
        frame.event_sequence,
        frame.event_id,
        frame.event_kind,
        frame.object,
        frame.object_revision,
        frame.payload,
        content if isinstance(content, SnapshotRecord) else None,
        frame.subscription_id,
        frame.delivery_sequence,
        nbytes,
    )
