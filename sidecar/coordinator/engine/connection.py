"""One attached connection: its lanes of outgoing frames, its open requests, what it holds.

Output has two lanes. The control lane (P3-37) carries PONG, renewals, gaps and errors that answer no open request, and
is always written first. The data lane carries the replies of open requests, in order; a page stands there as an order
and is built when it is taken. Events are in no lane: they are read from the log while ``take`` has room.

Everything is bounded: a request id stays occupied until its terminal reply was taken, so the request quota bounds the
data lane; the control lane has its own limits; a gap is the one of its subscription, or stands in front of the answer
to an open OPEN_REPLAY.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, NamedTuple, Protocol

from cext.credit import Quota
from sidecar.base.clock import Now
from sidecar.coordinator.authority.grants import Grant
from sidecar.coordinator.engine.quota import Resource
from sidecar.coordinator.engine.visibility import Visibility
from sidecar.coordinator.machines.request import REQUEST, RequestEvent, RequestState
from sidecar.coordinator.machines.subscription import SubscriptionState
from sidecar.coordinator.wire.enums import ErrorCode
from sidecar.coordinator.wire.errors import ProtocolError, ResourceExhausted
from sidecar.coordinator.wire.frames import CoordErrorFrame
from sidecar.coordinator.wire.limits import CONTROL_BYTES, CONTROL_FRAMES, Limits

if TYPE_CHECKING:
    from sidecar.coordinator.engine.lease import Lease
    from sidecar.coordinator.engine.runtime import Runtime
    from sidecar.coordinator.engine.subscription import Subscription

_REMEMBERED = 64
"""Closed subscriptions whose late CREDIT is told from a fault (OPEN P10-b)."""


class Sink(Protocol):
    """The transport of a connection."""

    def wake(self) -> None:
        """There is output to take. Called at most once between two calls of ``take``, and once more when the connection
        is closing; it must not call back at once."""


class Reply(NamedTuple):
    """A frame of the data lane; ``done`` is the request that it ends, 0 when more follows."""

    frame: bytes
    done: int


class PageOrder(NamedTuple):
    """A page to build when the transport has room for it."""

    lease: Lease
    request_id: int


class Producer(Protocol):
    """What makes the frames that are built only when taken."""

    def may_send(self, conn: Connection) -> bool:
        """Recheck grant and certificate (P6-08); closes the connection when one is gone."""

    def page(self, conn: Connection, order: PageOrder) -> list[Reply]:
        """The page, and the end behind a last page; or the error that ends the request."""

    def events(self, conn: Connection, frames: list[bytes], room: int) -> None:
        """Append events of live subscriptions up to about ``room`` bytes."""

    def clock(self, now: Now) -> None:
        """The time of this call."""


class Connection:
    """An active connection. Made by ``Engine.attach``."""

    def __init__(
        self,
        runtime: Runtime,
        producer: Producer,
        sink: Sink,
        grant: Grant,
        capabilities: int,
        selected: Limits,
        quota: Quota,
    ) -> None:
        self.grant = grant
        self.capabilities = capabilities
        self.selected = selected
        self.visibility = Visibility.of(grant.scopes, capabilities, grant.key_id)
        self.quota = quota
        self.out: deque[Reply | PageOrder] = deque()
        self.control: deque[bytes] = deque()
        self.writable = True
        """Set by the transport; while ``False`` no page and no event is produced."""
        self.closing: ErrorCode | None = None
        """Set once: after the control lane is taken the transport closes."""
        self.requests: set[int] = set()
        self.backlog_bytes = 0
        """Payload bytes of its commands that wait for their turn."""
        self.subscriptions: dict[bytes, Subscription] = {}
        self.closed_subscriptions: deque[bytes] = deque(maxlen=_REMEMBERED)
        self.leases: dict[bytes, Lease] = {}
        self.turn = 0
        self.result_seconds = runtime.kept(runtime.durable).result_seconds
        """Retention of results that HELLO_OK tells this peer of: what it completes is kept for as long at least."""
        self._runtime = runtime
        self._producer = producer
        self._sink = sink
        self._renewed: bytes | None = None
        self._control_used = 0
        self._control_bytes = 0
        self._awake = False

    def subscription_state(self, id_: bytes) -> SubscriptionState:
        """What an id that a frame names is to this connection (OPEN P10-d)."""
        sub = self.subscriptions.get(id_)
        if sub is not None:
            return sub.state
        return SubscriptionState.CLOSED if id_ in self.closed_subscriptions else SubscriptionState.NONE

    # ---- requests ----

    def open_request(self, request_id: int) -> None:
        """Occupy a request id (P7-09, P7-10, P3-33)."""
        REQUEST.after(self.request_state(request_id), RequestEvent.ARRIVED)
        self._runtime.charge(self.quota, [(Resource.REQUESTS, 1)])
        self.requests.add(request_id)

    def request_state(self, request_id: int) -> RequestState:
        """What an id is to this connection."""
        return RequestState.OPEN if request_id in self.requests else RequestState.FREE

    def _done(self, request_id: int) -> None:
        if self.request_state(request_id) is RequestState.OPEN:
            self.requests.discard(request_id)
            self.quota.release(Resource.REQUESTS)
            for sub in self.subscriptions.values():
                sub.reply_taken(request_id)

    # ---- output ----

    def reply(self, frame: bytes, done: int) -> None:
        """Queue a reply; ``done`` is the request that it ends, 0 when more follows."""
        self._queue(Reply(frame, done))

    def order_page(self, lease: Lease, request_id: int) -> None:
        """Queue a page of a lease."""
        self._queue(PageOrder(lease, request_id))

    def _queue(self, item: Reply | PageOrder) -> None:
        if self.closing is None:
            self.out.append(item)
            self.wake()

    def send_control(self, frame: bytes) -> None:
        """Queue a frame in the reserved lane (P3-37); a peer that never reads it is closed."""
        if self.closing is not None:
            return
        if self._control_used >= CONTROL_FRAMES or self._control_bytes + len(frame) > CONTROL_BYTES:
            self.close(ResourceExhausted("the control lane is full", fatal=True))
            return
        self._control_used += 1
        self._control_bytes += len(frame)
        self.control.append(frame)
        self.wake()

    def push_gap(self, frame: bytes) -> None:
        """Queue a GAP: each subscription has room for one of its own, whatever else the lane holds (P10-17)."""
        self.control.append(frame)
        self.wake()

    def push_renewal(self, frame: bytes) -> None:
        """Queue COORD_AUTHORITY_RENEWED; a newer one takes the place of one that was not taken yet."""
        self._renewed = frame
        self.wake()

    def refusal(self, error: ProtocolError) -> bytes:
        """The COORD_ERROR of an error, counted."""
        self._runtime.observer.refused(error.code)
        return CoordErrorFrame.of(error).encode()

    def push_error(self, error: ProtocolError) -> None:
        """Queue a COORD_ERROR that ends no open request."""
        self.send_control(self.refusal(error))

    @property
    def control_load(self) -> tuple[int, int]:
        """Frames and bytes of the control lane that count against its limits (P3-37)."""
        return self._control_used, self._control_bytes

    @property
    def congested(self) -> bool:
        """Read nothing more from this peer for now: the control lane is half full, until it was taken; or a batch's
        worth of payload waits for its turn, until enough of it had it (then the transport is woken)."""
        return (
            self._control_used * 2 >= CONTROL_FRAMES
            or self._control_bytes * 2 >= CONTROL_BYTES
            or self.backlog_bytes >= self._runtime.policy.batch_bytes
        )

    def close(self, error: ProtocolError) -> None:
        """Say goodbye through the reserved lane; nothing else that is queued goes out (P13-05, W8-10)."""
        if self.closing is None:
            self.control.append(self.refusal(error))
            self.shut(error.code)

    def shut(self, code: ErrorCode) -> None:
        """Close without a word from this side."""
        if self.closing is None:
            self.closing = code
            self.out.clear()
            # A transport that is not writable takes nothing and may have been woken for that already. The end it must
            # hear of all the same.
            self._awake = False
            self.wake()

    def forget_requests(self) -> None:
        """The connection is over: no request of it will be answered."""
        if self.requests:
            self.quota.release(Resource.REQUESTS, len(self.requests))
            self.requests.clear()

    def wake(self) -> None:
        """Tell the transport once that there is output."""
        if not self._awake:
            self._awake = True
            self._sink.wake()

    def take(self, max_bytes: int, now: Now | None = None) -> list[bytes]:
        """Whole frames to write, at most one beyond ``max_bytes``; empty when there is nothing to write now.

        Requests whose terminal reply is among them are over. ``now`` lets grant and certificate be rechecked at this
        very moment (P6-08); without it the time of the engine's last call counts.
        """
        self._awake = False
        if now is not None:
            self._producer.clock(now)
        frames: list[bytes] = []
        if self.closing is None and not self._producer.may_send(self):
            assert self.closing is not None
        room = self._take_control(frames, max_bytes)
        if self.closing is None and room > 0:
            room = self._take_replies(frames, room)
            if room > 0 and self.writable:
                self._producer.events(self, frames, room)
        return frames

    def _take_control(self, frames: list[bytes], room: int) -> int:
        if self._renewed is not None:
            if self.closing is None:
                frames.append(self._renewed)
                room -= len(self._renewed)
            self._renewed = None
        while self.control and room > 0:
            frame = self.control.popleft()
            frames.append(frame)
            room -= len(frame)
        if not self.control:
            self._control_used = self._control_bytes = 0
        return room

    def _take_replies(self, frames: list[bytes], room: int) -> int:
        while self.out and room > 0:
            item = self.out[0]
            if isinstance(item, PageOrder):
                if not self.writable:
                    break
                self.out.popleft()
                self.out.extendleft(reversed(self._producer.page(self, item)))
                continue
            self.out.popleft()
            frames.append(item.frame)
            room -= len(item.frame)
            self._done(item.done)
        return room
