"""Whole-authority snapshots: an immutable cut, read page by page under a lease (P9)."""

from __future__ import annotations

from itertools import chain
from operator import attrgetter

from cext.digest import SnapshotDigest
from sidecar.coordinator.engine.connection import Connection
from sidecar.coordinator.engine.lease import Lease, Leases
from sidecar.coordinator.engine.observer import Observer
from sidecar.coordinator.engine.pages import page_room
from sidecar.coordinator.engine.quota import Resource
from sidecar.coordinator.engine.runtime import CURSOR_BYTES, Runtime
from sidecar.coordinator.engine.subscription import Streams, Subscription
from sidecar.coordinator.machines.lease import LeaseEvent
from sidecar.coordinator.machines.subscription import SUBSCRIPTION, SubscriptionEvent
from sidecar.coordinator.wire.enums import FrameType
from sidecar.coordinator.wire.errors import MalformedMessage, ResourceExhausted
from sidecar.coordinator.wire.frames import OpenSnapshot, SnapshotApplied, SnapshotBegin, SnapshotEnd, SnapshotNext
from sidecar.coordinator.wire.ids import EventCut, SnapshotId, snapshot_id
from sidecar.coordinator.wire.limits import LEASE_SECONDS
from sidecar.coordinator.wire.records import AuthorityGuard

_IMAGE = attrgetter("image")


class SnapshotLease(Lease):
    """A cut."""

    KIND = "snapshot"
    PAGE = FrameType.SNAPSHOT_PAGE
    APPLIED = SubscriptionEvent.SNAPSHOT_APPLIED
    EXPIRED = SubscriptionEvent.SNAPSHOT_EXPIRED

    def end(self, request_id: int) -> bytes:
        """SNAPSHOT_END (P9-21)."""
        return SnapshotEnd(
            request_id=request_id,
            snapshot_id=SnapshotId(self.id),
            page_count=self.page_count,
            record_count=self.count,
            canonical_sha256=self.digest.digest(),
        ).encode()

    def observe(self, observer: Observer, count: int, nbytes: int) -> None:
        """Tell of a page."""
        observer.snapshot_page(count, nbytes)


class Snapshots:
    """The snapshot requests of an engine."""

    def __init__(self, runtime: Runtime, streams: Streams, leases: Leases) -> None:
        self._runtime = runtime
        self._streams = streams
        self._leases = leases

    def open(self, conn: Connection, frame: OpenSnapshot) -> float:
        """OPEN_SNAPSHOT: charge, cut, answer; a refusal leaves nothing behind (P9-04, P9-17, P9-22, P9-26).

        Returns the monotonic second at which the lease expires.
        """
        runtime = self._runtime
        reserve = frame.reserve_subscription
        replaced = self._replaced(conn, frame.replace_paused_subscription, reserve)
        state = runtime.durable
        families = list(conn.visibility.cut(state))
        largest = max((family.largest for family in families), default=0)
        if largest and largest > page_room(conn.selected.page_bytes, CURSOR_BYTES):
            raise ResourceExhausted("a record is larger than the selected page")
        slots = 1 if reserve and replaced is None else 0
        pinned = sum(family.nbytes for family in families)
        runtime.charge(
            conn.quota, [(Resource.LEASES, 1), (Resource.PINNED_BYTES, pinned), (Resource.SUBSCRIPTIONS, slots)]
        )
        authority, base = runtime.authority, state.last_sequence
        records = sum(family.records for family in families)
        lease = SnapshotLease(
            runtime.fresh_id(snapshot_id),
            conn,
            map(_IMAGE, chain.from_iterable(family.entries.values() for family in families)),
            records,
            pinned,
            SnapshotDigest(authority.coordinator_id, authority.epoch, authority.activation_sequence, base, records),
            runtime.now.mono,
        )
        self._leases.hold(lease)
        if reserve:
            lease.subscription = self._streams.reserve(conn, base, replaced, frame.request_id)
        begin = SnapshotBegin(
            request_id=frame.request_id,
            snapshot_id=SnapshotId(lease.id),
            authority_guard=AuthorityGuard.decode(authority.guard),
            base_event_sequence=EventCut(base),
            first_cursor=lease.cursor,
            subscription_id=lease.subscription.id if lease.subscription is not None else None,
            lease_expires_at=int(runtime.now.wall) + LEASE_SECONDS,
        )
        self._leases.begin(lease, begin.encode(), frame.request_id)
        return lease.expires

    def _replaced(self, conn: Connection, id_: bytes | None, reserve: bool) -> Subscription | None:
        """The paused subscription that the new one takes the place of (OPEN P9-a)."""
        if id_ is None:
            return None
        if not reserve:
            raise MalformedMessage("a subscription is replaced only by a reserved one")
        SUBSCRIPTION.after(conn.subscription_state(id_), SubscriptionEvent.REPLACE)
        return conn.subscriptions[id_]

    def next(self, conn: Connection, frame: SnapshotNext) -> None:
        """SNAPSHOT_NEXT."""
        self._leases.next(conn, SnapshotLease, frame.snapshot_id, frame)

    def applied(self, conn: Connection, frame: SnapshotApplied) -> None:
        """SNAPSHOT_APPLIED."""
        lease = self._leases.find(conn, SnapshotLease, frame.snapshot_id, LeaseEvent.APPLIED)
        self._leases.applied(conn, lease, frame)
