"""What snapshots and replays have in common: something immutable, read page by page under a lease (P9-04..21, P10-29).

A lease pins its images, which are charged before it is made. They go out in pages under a cursor that is good once.
Its END gives the pinned bytes back; its slot is given back by APPLIED, by its expiry, or with its connection.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import ClassVar, TypeVar

from cext.digest import ReplayDigest, SnapshotDigest
from sidecar.coordinator.engine.connection import Connection, PageOrder, Reply
from sidecar.coordinator.engine.observer import Observer
from sidecar.coordinator.engine.pages import page_frame, page_room
from sidecar.coordinator.engine.quota import Resource
from sidecar.coordinator.engine.runtime import CURSOR_BYTES, Runtime
from sidecar.coordinator.engine.subscription import Streams, Subscription, check_initial_credit
from sidecar.coordinator.machines.lease import LEASE, LeaseEvent, LeaseState
from sidecar.coordinator.machines.subscription import SubscriptionEvent
from sidecar.coordinator.wire.enums import FrameType
from sidecar.coordinator.wire.errors import CursorInvalid
from sidecar.coordinator.wire.frames import Ack, ReplayApplied, ReplayNext, SnapshotApplied, SnapshotNext
from sidecar.coordinator.wire.limits import LEASE_SECONDS

L = TypeVar("L", bound="Lease")


class Lease(ABC):
    """One snapshot or replay of one connection."""

    KIND: ClassVar[str]
    """Its name for people and metrics."""
    PAGE: ClassVar[FrameType]
    APPLIED: ClassVar[SubscriptionEvent]
    """What APPLIED means to its subscription."""
    EXPIRED: ClassVar[SubscriptionEvent]
    """What its expiry means to its subscription."""

    def __init__(
        self,
        id_: bytes,
        conn: Connection,
        images: Iterator[bytes],
        count: int,
        pinned: int,
        digest: SnapshotDigest | ReplayDigest,
        opened: float,
    ) -> None:
        self.id = id_
        self.conn = conn
        self.expires = opened + LEASE_SECONDS
        """Monotonic second of expiry (P9-05)."""
        self.count = count
        """Images in all."""
        self.pinned = pinned
        """Bytes that are charged for them."""
        self.digest = digest
        self.page_count = 0
        self.cursor: bytes | None = None
        """The one cursor that NEXT may name; ``None`` once the last page was built (P9-08)."""
        self.subscription: Subscription | None = None
        """The one that APPLIED makes live."""
        self._images = images
        self._carried = next(images, None)
        """The image that the next page begins with."""
        self.state = LEASE.after(LeaseState.NONE, LeaseEvent.OPEN_EMPTY if self._carried is None else LeaseEvent.OPEN)

    @property
    def ended(self) -> bool:
        """Whether the END was built."""
        return self.state is LeaseState.ENDED

    def fill(self, max_records: int, max_bytes: int) -> list[bytes]:
        """The images of the page that is due, at least one (P9-10..12)."""
        images: list[bytes] = []
        carried = self._carried
        while carried is not None and len(images) < max_records:
            max_bytes -= len(carried)
            if images and max_bytes < 0:
                break
            images.append(carried)
            carried = next(self._images, None)
        self._carried = carried
        self.state = LEASE.after(self.state, LeaseEvent.LAST_PAGE if carried is None else LeaseEvent.PAGE)
        return images

    @abstractmethod
    def end(self, request_id: int) -> bytes:
        """The END frame."""

    @abstractmethod
    def observe(self, observer: Observer, count: int, nbytes: int) -> None:
        """Tell of a page of ``count`` images in ``nbytes``."""

    def unpin(self) -> None:
        """Give back the pinned bytes (OPEN P9-d)."""
        self.conn.quota.release(Resource.PINNED_BYTES, self.pinned)
        self.pinned = 0
        self._images = iter(())

    def release(self, event: LeaseEvent) -> None:
        """The lease is over: give back everything. Nothing more happens when it was over already."""
        self.state = LEASE.after(self.state, event)
        if self.conn.leases.pop(self.id, None) is not None:
            self.unpin()
            self.conn.quota.release(Resource.LEASES)


class Leases:
    """All leases of an engine."""

    def __init__(self, runtime: Runtime, streams: Streams) -> None:
        self._runtime = runtime
        self._streams = streams

    def hold(self, lease: Lease) -> None:
        """A lease that was charged begins; its first cursor is made unless it is empty."""
        lease.conn.leases[lease.id] = lease
        if not lease.ended:
            lease.cursor = self._runtime.fresh_cursor()

    def begin(self, lease: Lease, begin: bytes, request_id: int) -> None:
        """Answer the OPEN: with its BEGIN, and the END behind it when there is nothing to send (P9-17, P9-20)."""
        if lease.ended:
            lease.conn.reply(begin, 0)
            lease.conn.reply(self._end(lease, request_id), request_id)
        else:
            lease.conn.reply(begin, request_id)

    def find(self, conn: Connection, shape: type[L], id_: bytes, event: LeaseEvent) -> L:
        """The lease of this connection that a frame names, for ``event`` (P9-05, P9-09)."""
        lease = conn.leases.get(id_)
        if lease is not None and lease.expires <= self._runtime.now.mono:
            self._expire(lease)
            lease = None
        if not isinstance(lease, shape):
            LEASE.after(LeaseState.NONE, event)
            raise AssertionError("what is not there takes no frame")
        return lease

    def next(self, conn: Connection, shape: type[L], id_: bytes, frame: SnapshotNext | ReplayNext) -> None:
        """A NEXT with the one cursor that is good (P9-07..09)."""
        lease = self.find(conn, shape, id_, LeaseEvent.NEXT)
        lease.state = LEASE.after(
            lease.state, LeaseEvent.NEXT if frame.cursor == lease.cursor else LeaseEvent.NEXT_OTHER
        )
        conn.order_page(lease, frame.request_id)

    def page(self, conn: Connection, order: PageOrder) -> list[Reply]:
        """Build an ordered page; behind the last one stands the END of the same request (P9-18..20)."""
        lease, request_id = order
        if lease.expires <= self._runtime.now.mono:
            self._expire(lease)
        cursor, index = lease.cursor, lease.page_count
        assert cursor is not None, "NEXT was accepted for it"
        try:
            images = lease.fill(conn.selected.page_records, page_room(conn.selected.page_bytes, CURSOR_BYTES))
        except CursorInvalid as error:
            error.request_id = request_id
            return [Reply(conn.refusal(error), request_id)]
        lease.page_count += 1
        lease.cursor = None if lease.ended else self._runtime.fresh_cursor()
        frame, covered = page_frame(lease.PAGE, request_id, lease.id, cursor, index, images, lease.cursor)
        lease.digest.update(covered)
        lease.observe(self._runtime.observer, len(images), len(frame))
        if lease.cursor is not None:
            return [Reply(frame, request_id)]
        return [Reply(frame, 0), Reply(self._end(lease, request_id), request_id)]

    def _end(self, lease: Lease, request_id: int) -> bytes:
        lease.unpin()
        return lease.end(request_id)

    def applied(self, conn: Connection, lease: Lease, frame: SnapshotApplied | ReplayApplied) -> None:
        """APPLIED after the END: the lease is over and its subscription goes live (P9-23, P9-24, P10-33)."""
        sub, count, nbytes = lease.subscription, frame.initial_credit_count, frame.initial_credit_bytes
        if sub is None:
            fits = frame.subscription_id is None and not count and not nbytes
        else:
            fits = frame.subscription_id == sub.id
        LEASE.after(lease.state, LeaseEvent.APPLIED if fits else LeaseEvent.APPLIED_UNFIT)
        check_initial_credit(conn, count, nbytes)
        lease.release(LeaseEvent.APPLIED)
        if sub is not None:
            self._streams.go_live(sub, lease.APPLIED, count, nbytes, frame.request_id)
        conn.reply(Ack(request_id=frame.request_id).encode(), frame.request_id)

    def expire(self, connections: list[Connection]) -> None:
        """Release what is older than a lease lasts (P3-40, P3-50)."""
        now = self._runtime.now.mono
        for conn in connections:
            for lease in list(conn.leases.values()):
                if lease.expires <= now:
                    self._expire(lease)

    def _expire(self, lease: Lease) -> None:
        if lease.id not in lease.conn.leases:
            return
        lease.release(LeaseEvent.EXPIRY)
        self._runtime.observer.lease_expired(lease.KIND)
        if lease.subscription is not None:
            self._streams.lose(lease.subscription, lease.EXPIRED)
