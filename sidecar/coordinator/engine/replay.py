"""Replay: what a paused subscription missed, as an immutable list of events, read page by page (P10-22..35)."""

from __future__ import annotations

from cext.digest import ReplayDigest
from sidecar.coordinator.engine.connection import Connection
from sidecar.coordinator.engine.lease import Lease, Leases
from sidecar.coordinator.engine.log import LogEntry
from sidecar.coordinator.engine.observer import Observer
from sidecar.coordinator.engine.pages import page_room
from sidecar.coordinator.engine.quota import Resource
from sidecar.coordinator.engine.runtime import CURSOR_BYTES, Runtime
from sidecar.coordinator.engine.subscription import Streams, Subscription
from sidecar.coordinator.machines.lease import LeaseEvent
from sidecar.coordinator.machines.subscription import SUBSCRIPTION, SubscriptionEvent
from sidecar.coordinator.wire.enums import Capability, FrameType, GapReason
from sidecar.coordinator.wire.errors import CapabilityRequired, ResourceExhausted
from sidecar.coordinator.wire.events import IMAGE_HEAD_BYTES
from sidecar.coordinator.wire.frames import OpenReplay, ReplayApplied, ReplayBegin, ReplayEnd, ReplayNext
from sidecar.coordinator.wire.ids import EventCut, EventSequence, ReplayId, replay_id
from sidecar.coordinator.wire.limits import LEASE_SECONDS

_OVERSIZED = "an event is larger than the selected limits"


class ReplayLease(Lease):
    """The visible events of one subscription between its gap and the head of that moment."""

    KIND = "replay"
    PAGE = FrameType.REPLAY_PAGE
    APPLIED = SubscriptionEvent.REPLAY_APPLIED
    EXPIRED = SubscriptionEvent.REPLAY_EXPIRED
    start: int
    """Event from which the subscription is contiguous."""
    cut: int
    """Last event that the replay can hold."""

    def end(self, request_id: int) -> bytes:
        """REPLAY_END (P10-30)."""
        return ReplayEnd(
            request_id=request_id,
            replay_id=ReplayId(self.id),
            page_count=self.page_count,
            event_count=self.count,
            canonical_sha256=self.digest.digest(),
        ).encode()

    def observe(self, observer: Observer, count: int, nbytes: int) -> None:
        """Tell of a page."""
        observer.replay_page(count, nbytes)


class Replays:
    """The replay requests of an engine."""

    def __init__(self, runtime: Runtime, streams: Streams, leases: Leases) -> None:
        self._runtime = runtime
        self._streams = streams
        self._leases = leases

    def open(self, conn: Connection, frame: OpenReplay) -> float:
        """OPEN_REPLAY: find, charge, pin, answer; a refusal leaves the subscription paused (P10-23..28).

        Returns the monotonic second at which the lease expires.
        """
        _need_capability(conn)
        state, runtime = conn.subscription_state(frame.subscription_id), self._runtime
        SUBSCRIPTION.after(state, SubscriptionEvent.OPEN_REPLAY)
        sub, log = conn.subscriptions[frame.subscription_id], runtime.log
        if frame.after_event_sequence != sub.last_event:
            SUBSCRIPTION.after(state, SubscriptionEvent.OPEN_REPLAY_ELSEWHERE)
        # What lies between the last delivered event and the cursor is known to be hidden: it need not be retained.
        if sub.cursor + 1 < log.first:
            self._streams.tell_gap(sub, GapReason.RETENTION)
            SUBSCRIPTION.after(state, SubscriptionEvent.OPEN_REPLAY_LOST)
        entries, pinned = self._charged(sub)
        authority, cut = runtime.authority, log.head
        lease = ReplayLease(
            runtime.fresh_id(replay_id),
            conn,
            (entry.image for entry in entries),
            len(entries),
            pinned,
            ReplayDigest(
                authority.coordinator_id,
                authority.epoch,
                authority.activation_sequence,
                sub.id,
                sub.last_event,
                cut,
                len(entries),
            ),
            runtime.now.mono,
        )
        self._leases.hold(lease)
        lease.subscription, lease.start, lease.cut = sub, sub.cursor, cut
        self._streams.replay(sub, lease, frame.request_id)
        begin = ReplayBegin(
            request_id=frame.request_id,
            replay_id=ReplayId(lease.id),
            subscription_id=sub.id,
            first_event=EventSequence(entries[0].event.sequence) if entries else None,
            replay_cut=EventCut(cut),
            first_cursor=lease.cursor,
            lease_expires_at=int(runtime.now.wall) + LEASE_SECONDS,
        )
        self._leases.begin(lease, begin.encode(), frame.request_id)
        return lease.expires

    def _charged(self, sub: Subscription) -> tuple[list[LogEntry], int]:
        """What the replay holds and the bytes of its images, charged with its lease (P9-04, P3-48).

        What a paused subscription missed only grows. What is known of it from a refusal is charged first, so that
        asking again costs nothing until it fits: looking through the log is the dearest thing that one frame can ask.
        """
        if sub.oversized:
            raise ResourceExhausted(_OVERSIZED)
        known, quota = sub.missed_bytes, sub.conn.quota
        self._runtime.charge(quota, [(Resource.LEASES, 1), (Resource.PINNED_BYTES, known)])
        try:
            entries = self._missed(sub)
            self._runtime.charge(quota, [(Resource.PINNED_BYTES, sub.missed_bytes - known)])
        except ResourceExhausted:
            quota.release(Resource.LEASES)
            quota.release(Resource.PINNED_BYTES, known)
            raise
        return entries, sub.missed_bytes

    def _missed(self, sub: Subscription) -> list[LogEntry]:
        """The visible events behind the pause.

        An event is never split: a peer that negotiated less than one needs heals by a snapshot (OPEN P3-g).
        """
        selected = sub.conn.selected
        most = min(selected.typed_payload, page_room(selected.page_bytes, CURSOR_BYTES) - IMAGE_HEAD_BYTES)
        entries, sizes = self._runtime.log.seen_behind(sub.cursor, sub.visibility)
        if max(sizes, default=0) > most:
            sub.oversized = True
            raise ResourceExhausted(_OVERSIZED)
        sub.missed_bytes = sum(sizes) + IMAGE_HEAD_BYTES * len(entries)
        return entries

    def next(self, conn: Connection, frame: ReplayNext) -> None:
        """REPLAY_NEXT."""
        _need_capability(conn)
        self._leases.next(conn, ReplayLease, frame.replay_id, frame)

    def applied(self, conn: Connection, frame: ReplayApplied) -> None:
        """REPLAY_APPLIED: the subscription goes on behind the replay, with fresh credit (P10-33, P10-34)."""
        _need_capability(conn)
        lease = self._leases.find(conn, ReplayLease, frame.replay_id, LeaseEvent.APPLIED)
        self._leases.applied(conn, lease, frame)


def _need_capability(conn: Connection) -> None:
    if not conn.capabilities & Capability.EVENT_REPLAY:
        raise CapabilityRequired("EVENT_REPLAY is not negotiated")
