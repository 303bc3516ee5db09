"""Invisible staging of a replay until its END proves it complete (P10-32).

Nothing leaves this module before cursors, page indexes, order, revisions, totals and digest were verified. As with a
snapshot the digest covers a count that only END tells, so the event images are held and folded at the end.
"""

from __future__ import annotations

from collections.abc import Iterable

from cext.digest import ReplayDigest
from sidecar.coordinator.client_errors import ReplayTooLarge, VerificationFailed
from sidecar.coordinator.client_events import Change, Replay
from sidecar.coordinator.client_handshake import ReplayBound
from sidecar.coordinator.client_stream import Stream
from sidecar.coordinator.wire.events import replayed_content
from sidecar.coordinator.wire.frames import ReplayBegin, ReplayEnd, ReplayPage
from sidecar.coordinator.wire.ids import EventCut, ObjectRevision, ReplayId
from sidecar.coordinator.wire.records import AuthorityGuard, ReplayEvent, SnapshotRecord

_COUNT_BYTES = 2


class ReplayStaging:
    """One replay on its way in; what does not fit raises ``VerificationFailed``, what is too much ``ReplayTooLarge``.

    ``after`` is the cut that was asked for. Events that the stream knows already (of an earlier replay that was
    verified and then not resumed) are verified with the rest and not published a second time. The frames were decoded
    completely before, the payload of every event included (P7-21, P7-27).
    """

    def __init__(
        self, begin: ReplayBegin, guard: AuthorityGuard, stream: Stream, after: EventCut, bound: ReplayBound
    ) -> None:
        if begin.subscription_id != stream.subscription_id:
            raise VerificationFailed("subscription", "the replay is of another subscription")
        if begin.replay_cut < max(after, stream.last_event):
            raise VerificationFailed("cut", f"the replay ends at {begin.replay_cut}, before what is known already")
        if (begin.first_event is None) != (begin.first_cursor is None):
            raise VerificationFailed("first_event", "a replay with events and no page, or with pages and no event")
        self.replay_id: ReplayId = begin.replay_id
        self.cursor: bytes | None = begin.first_cursor
        self._stream = stream
        self._guard = guard
        self._after = after
        self._through: EventCut = begin.replay_cut
        self._first_event = begin.first_event
        self._bound = bound
        self._last_event: int = after
        self._revisions: dict[bytes, ObjectRevision] = {}
        self._events: list[Change] = []
        self._images: list[bytes] = []
        self._cursors: set[bytes] = set()
        self._event_count = 0
        self._staged_bytes = 0

    def page(self, page: ReplayPage) -> None:
        """Take the page that was asked for with ``cursor``; that is the next one afterwards, None after the last."""
        if page.replay_id != self.replay_id or page.cursor != self.cursor:
            raise VerificationFailed("cursor", "a replay page does not answer the request for it")
        self._cursors.add(page.cursor)
        if page.next_cursor in self._cursors:
            raise VerificationFailed("cursor", "a replay leads back to a page that was taken already")
        if page.page_index != len(self._images):
            raise VerificationFailed("page_index", f"replay page {page.page_index} came instead of {len(self._images)}")
        if not page.events:
            raise VerificationFailed("page_events", "a replay page is empty")
        image = page.raw("events")[_COUNT_BYTES:]
        self._event_count += len(page.events)
        self._staged_bytes += len(image) + len(page.cursor)
        if self._event_count > self._bound.events or self._staged_bytes > self._bound.nbytes:
            raise ReplayTooLarge(
                f"the replay is above {self._bound.events} events or {self._bound.nbytes} bytes; take a fresh snapshot"
            )
        self._images.append(image)
        self._stage(page.events)
        self.cursor = page.next_cursor

    def _stage(self, events: Iterable[ReplayEvent]) -> None:
        for event in events:
            if not self._last_event < event.event_sequence <= self._through:
                raise VerificationFailed(
                    "order",
                    f"replayed event {event.event_sequence} is not within {self._last_event + 1}..{self._through}",
                )
            if self._last_event == self._after and event.event_sequence != self._first_event:
                raise VerificationFailed("first_event", "the replay does not begin with the event that it named")
            self._last_event = event.event_sequence
            if event.event_sequence > self._stream.last_event:
                self._events.append(self._next_revision(event))

    def _next_revision(self, event: ReplayEvent) -> Change:
        key, revision = event.object.encode(), event.object_revision
        known = self._revisions.get(key)
        expected = self._stream.projection.accepts(key, revision) if known is None else revision == known + 1
        if not expected:
            raise VerificationFailed("revision", f"replayed revision {revision} is not the next one of its object")
        self._revisions[key] = revision
        return _change(event)

    def end(self, end: ReplayEnd) -> Replay:
        """Verify the whole after its last page; what is returned may be published."""
        if end.replay_id != self.replay_id:
            raise VerificationFailed("end", "the end of another replay")
        if (end.page_count, end.event_count) != (len(self._images), self._event_count):
            raise VerificationFailed("totals", "the totals of the replay are not what was received")
        guard = self._guard
        digest = ReplayDigest(
            guard.coordinator_id,
            guard.authority_epoch,
            guard.activation_sequence,
            self._stream.subscription_id,
            self._after,
            self._through,
            self._event_count,
        )
        for image in self._images:
            digest.update(image)
        if digest.digest() != end.canonical_sha256:
            raise VerificationFailed("digest", "the digest of the replay does not match what was received")
        return Replay(
            self._stream.subscription_id,
            self._after,
            self._through,
            tuple(self._events),
            self._event_count,
            len(self._images),
            end.canonical_sha256,
        )


def _change(event: ReplayEvent) -> Change:
    # Decoding the page proved that the payload is about this very object and revision (P7-21).
    content = replayed_content(event)
    return Change(
        event.event_sequence,
        event.event_id,
        event.event_kind,
        event.object,
        event.object_revision,
        event.payload,
        content if isinstance(content, SnapshotRecord) else None,
    )
