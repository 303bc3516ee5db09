"""Whole-authority snapshots: an immutable cut, read page by page under a lease (P9)."""

from __future__ import annotations

from collections.abc import Iterator

from cext.digest import SnapshotDigest
from sidecar.coordinator.engine.connection import Connection, PageOrder, Reply
from sidecar.coordinator.engine.pages import page_room, snapshot_page
from sidecar.coordinator.engine.quota import Resource
from sidecar.coordinator.engine.runtime import CURSOR_BYTES, Runtime
from sidecar.coordinator.engine.state import Entry, Family
from sidecar.coordinator.engine.subscription import Streams, Subscription, SubscriptionState, check_initial_credit
from sidecar.coordinator.wire.enums import GapReason
from sidecar.coordinator.wire.errors import CursorInvalid, MalformedMessage, NotFound, ResourceExhausted
from sidecar.coordinator.wire.frames import (
    Ack,
    OpenSnapshot,
    SnapshotApplied,
    SnapshotBegin,
    SnapshotEnd,
    SnapshotNext,
)
from sidecar.coordinator.wire.ids import EventCut, SnapshotId, snapshot_id
from sidecar.coordinator.wire.limits import LEASE_SECONDS
from sidecar.coordinator.wire.records import AuthorityGuard


class Lease:
    """One snapshot of one connection. It holds the cut until its end, and its slot until APPLIED or expiry."""

    def __init__(
        self, id_: SnapshotId, conn: Connection, families: list[Family], digest: SnapshotDigest, expires: float
    ):
        self.id = id_
        self.conn = conn
        self.expires = expires
        """Monotonic second of expiry (P9-05)."""
        self.pinned = sum(family.nbytes for family in families)
        self.digest = digest
        self.record_count = sum(family.records for family in families)
        self.page_count = 0
        self.cursor: bytes | None = None
        """The one cursor that NEXT may name; ``None`` once the last page was built (P9-08)."""
        self.outstanding = False
        """A NEXT was accepted and its page is not built yet (P9-07)."""
        self.subscription: Subscription | None = None
        self.rows: Iterator[Entry] = (entry for family in families for _, entry in family.entries.items())
        self.carried: Entry | None = next(self.rows, None)
        """The record that the next page begins with."""

    @property
    def ended(self) -> bool:
        """Whether the END was built."""
        return self.carried is None

    def fill(self, max_records: int, max_bytes: int) -> list[bytes]:
        """The images of the next page, at least one; ``carried`` moves on (P9-10..12)."""
        images: list[bytes] = []
        while self.carried is not None and len(images) < max_records:
            max_bytes -= len(self.carried.image)
            if images and max_bytes < 0:
                break
            images.append(self.carried.image)
            self.carried = next(self.rows, None)
        return images


class Snapshots:
    """All snapshot leases of an engine."""

    def __init__(self, runtime: Runtime, streams: Streams) -> None:
        self._runtime = runtime
        self._streams = streams

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
        digest = SnapshotDigest(authority.coordinator_id, authority.epoch, authority.activation_sequence, base, records)
        lease = Lease(runtime.fresh_id(snapshot_id), conn, families, digest, runtime.now.mono + LEASE_SECONDS)
        conn.leases[lease.id] = lease
        if reserve:
            lease.subscription = self._streams.reserve(conn, base, replaced, frame.request_id)
        if not lease.ended:
            lease.cursor = runtime.fresh_cursor()
        begin = SnapshotBegin(
            request_id=frame.request_id,
            snapshot_id=lease.id,
            authority_guard=AuthorityGuard.decode(authority.guard),
            base_event_sequence=EventCut(base),
            first_cursor=lease.cursor,
            subscription_id=lease.subscription.id if lease.subscription is not None else None,
            lease_expires_at=int(runtime.now.wall) + LEASE_SECONDS,
        ).encode()
        if lease.ended:
            conn.reply(begin, 0)
            conn.reply(self._end(lease, frame.request_id), frame.request_id)
        else:
            conn.reply(begin, frame.request_id)
        return lease.expires

    def _replaced(self, conn: Connection, id_: bytes | None, reserve: bool) -> Subscription | None:
        """The paused subscription that the new one takes the place of (OPEN P9-a)."""
        if id_ is None:
            return None
        if not reserve:
            raise MalformedMessage("a subscription is replaced only by a reserved one")
        sub = conn.subscriptions.get(id_)
        if sub is None or sub.state is not SubscriptionState.PAUSED_GAP:
            raise NotFound("no paused subscription of this connection has that id")
        return sub

    def next(self, conn: Connection, frame: SnapshotNext) -> None:
        """SNAPSHOT_NEXT with the one cursor that is good (P9-07..09)."""
        lease = self._lease(conn, frame.snapshot_id)
        if lease.outstanding or lease.cursor is None or frame.cursor != lease.cursor:
            raise CursorInvalid("the cursor is not the next one of this snapshot")
        lease.outstanding = True
        conn.order_page(lease, frame.request_id)

    def page(self, conn: Connection, order: PageOrder) -> list[Reply]:
        """Build an ordered page; behind the last one stands the END of the same request (P9-18..20)."""
        lease, request_id = order
        try:
            self._lease(conn, lease.id)
        except CursorInvalid as error:
            error.request_id = request_id
            return [Reply(conn.refusal(error), request_id)]
        assert lease.cursor is not None, "NEXT was accepted for it"
        images = lease.fill(conn.selected.page_records, page_room(conn.selected.page_bytes, CURSOR_BYTES))
        cursor, index = lease.cursor, lease.page_count
        lease.outstanding = False
        lease.page_count += 1
        lease.cursor = None if lease.ended else self._runtime.fresh_cursor()
        joined = b"".join(images)
        lease.digest.update(joined)
        frame = snapshot_page(request_id, lease.id, cursor, index, len(images), joined, lease.cursor)
        self._runtime.observer.snapshot_page(len(images), len(frame))
        if lease.cursor is not None:
            return [Reply(frame, request_id)]
        return [Reply(frame, 0), Reply(self._end(lease, request_id), request_id)]

    def _end(self, lease: Lease, request_id: int) -> bytes:
        """SNAPSHOT_END; the cut is given up (P9-21, OPEN P9-d)."""
        self._unpin(lease)
        return SnapshotEnd(
            request_id=request_id,
            snapshot_id=lease.id,
            page_count=lease.page_count,
            record_count=lease.record_count,
            canonical_sha256=lease.digest.digest(),
        ).encode()

    def applied(self, conn: Connection, frame: SnapshotApplied) -> None:
        """SNAPSHOT_APPLIED after the END: the reserved subscription goes live, the lease is over (P9-23, P9-24)."""
        lease = self._lease(conn, frame.snapshot_id)
        if not lease.ended:
            raise CursorInvalid("the snapshot has not ended")
        sub, count, nbytes = lease.subscription, frame.initial_credit_count, frame.initial_credit_bytes
        if frame.subscription_id != (None if sub is None else sub.id) or (sub is None and (count or nbytes)):
            raise MalformedMessage("not the subscription of this snapshot")
        check_initial_credit(conn, count, nbytes)
        self.release(lease)
        if sub is not None:
            if sub.state is not SubscriptionState.RESERVED_SNAPSHOT:
                raise CursorInvalid("the reserved subscription lost continuity")
            self._streams.go_live(sub, count, nbytes, frame.request_id)
        conn.reply(Ack(request_id=frame.request_id).encode(), frame.request_id)

    def _lease(self, conn: Connection, id_: SnapshotId) -> Lease:
        """The lease of this connection with that id (P9-05, P9-09)."""
        lease = conn.leases.get(id_)
        if lease is not None and lease.expires <= self._runtime.now.mono:
            self._expire(lease)
            lease = None
        if lease is None:
            raise CursorInvalid("no such snapshot")
        return lease

    # ---- the end of leases ----

    def expire(self, connections: list[Connection]) -> None:
        """Release what is older than a lease lasts (P3-40, P3-50)."""
        now = self._runtime.now.mono
        for conn in connections:
            for lease in list(conn.leases.values()):
                if lease.expires <= now:
                    self._expire(lease)

    def _expire(self, lease: Lease) -> None:
        self.release(lease)
        sub = lease.subscription
        if sub is not None and sub.state is SubscriptionState.RESERVED_SNAPSHOT:
            self._streams.gap(sub, GapReason.CURSOR_INVALID)

    def release(self, lease: Lease) -> None:
        """Give back the slot and whatever is still pinned."""
        self._unpin(lease)
        del lease.conn.leases[lease.id]
        lease.conn.quota.release(Resource.LEASES)

    def _unpin(self, lease: Lease) -> None:
        lease.conn.quota.release(Resource.PINNED_BYTES, lease.pinned)
        lease.pinned = 0
        lease.rows = iter(())
