"""Subscriptions: cursors over the shared log with dual credit, exact-next deliveries and explicit gaps (P10).

What waits for a subscription is a distance in the log, not a copy. It counts as its *unsent queue* (P3-36, P3-46) as
far as it can not go out: the subscription is reserved or replaying, the credit does not cover it, or the transport
pushes back. Events from before a SUBSCRIBE are history: they are read from the log at the pace of the credit and never
queued (OPEN P10-c).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from typing import TYPE_CHECKING

from cext.credit import Credit, CreditOverflow, Quota
from sidecar.coordinator.engine.connection import Connection
from sidecar.coordinator.engine.log import LogEntry
from sidecar.coordinator.engine.quota import Resource
from sidecar.coordinator.engine.runtime import Runtime
from sidecar.coordinator.engine.stretch import Stretches
from sidecar.coordinator.engine.visibility import Visibility
from sidecar.coordinator.machines.lease import LeaseEvent
from sidecar.coordinator.machines.subscription import FOLLOWING, SUBSCRIPTION, SubscriptionEvent
from sidecar.coordinator.machines.subscription import SubscriptionState as SubscriptionState
from sidecar.coordinator.wire.enums import GapReason
from sidecar.coordinator.wire.errors import CursorInvalid, MalformedMessage
from sidecar.coordinator.wire.events import event_frames
from sidecar.coordinator.wire.frames import CreditFrame, Gap, Subscribe, Subscribed
from sidecar.coordinator.wire.ids import (
    DeliveryCut,
    DeliverySequence,
    EventCut,
    EventSequence,
    SubscriptionId,
    advance,
    subscription_id,
)

if TYPE_CHECKING:
    from sidecar.coordinator.engine.replay import ReplayLease

_QUANTUM = 65_536
"""Bytes that one subscription sends before the next of its connection has its turn."""

_GAPS = {
    SubscriptionEvent.QUEUE_FULL: GapReason.QUEUE_OVERFLOW,
    SubscriptionEvent.EVENTS_LOST: GapReason.RETENTION,
    SubscriptionEvent.EVENT_TOO_LARGE: GapReason.INTERNAL,
    SubscriptionEvent.SNAPSHOT_EXPIRED: GapReason.CURSOR_INVALID,
}
"""What the peer is told of a pause; of one for another reason it knows already (OPEN P10-h)."""


class Subscription:
    """One subscription of one connection; it ends with it (OPEN P10-d)."""

    __slots__ = (
        "behind",
        "conn",
        "credit",
        "cursor",
        "delivery",
        "healing",
        "history_end",
        "id",
        "lag_bytes",
        "lag_frames",
        "last_event",
        "missed_bytes",
        "named",
        "oversized",
        "queue",
        "queued_bytes",
        "queued_frames",
        "stalled",
        "stalled_since",
        "state",
        "visibility",
    )

    def __init__(
        self,
        id_: SubscriptionId,
        conn: Connection,
        state: SubscriptionState,
        after: int,
        history_end: int,
        queue: Quota,
        behind: int,
    ) -> None:
        self.id = id_
        self.conn = conn
        self.state = state
        self.visibility: Visibility = conn.visibility
        self.cursor = after
        """Last event of the log that was delivered or stepped over."""
        self.history_end = history_end
        """Events up to here are history and count in no queue."""
        self.delivery = DeliveryCut(0)
        """DeliveryCut: the last delivery (P10-11)."""
        self.last_event = EventCut(after)
        """EventCut of the last delivered event, or of the start (OPEN P10-f); the cut of a replay is a new start."""
        self.credit = Credit(conn.selected.credit_count, conn.selected.credit_bytes)
        self.lag_frames = 0
        """Visible events behind ``history_end`` that were not sent."""
        self.lag_bytes = 0
        self.queue = queue
        self.queued_frames = 0
        """What of the lag is charged as unsent queue."""
        self.queued_bytes = 0
        self.stalled = False
        """An event waits and the credit does not cover it."""
        self.stalled_since = 0.0
        """Monotonic second at which that began."""
        self.behind = behind
        """The request whose reply a gap must not overtake: the one that names the subscription, begins its replay or
        makes it live; 0 once that reply was taken. The id itself may serve another request then."""
        self.named = False
        """Whether the peer was told of the subscription."""
        self.healing: ReplayLease | None = None
        """The replay that it waits for; there is one exactly while it is REPLAYING."""
        self.missed_bytes = 0
        """While it is paused: bytes that a replay needs at least, as far as one was tried."""
        self.oversized = False
        """While it is paused: an event that it missed exceeds the selected limits."""

    def reply_taken(self, request_id: int) -> None:
        """The terminal reply of a request goes out."""
        if self.behind == request_id:
            self.behind = 0
            self.named = True

    @property
    def open(self) -> bool:
        """Whether events are kept or sent for it."""
        return self.state in FOLLOWING

    @property
    def waiting(self) -> bool:
        """Whether the log may hold an event for it."""
        return self.lag_frames > 0 or self.cursor < self.history_end

    def unsent(self) -> tuple[int, int]:
        """Frames and bytes that wait and can not go out now: what counts as the unsent queue."""
        if self.state is not SubscriptionState.LIVE or not self.conn.writable or self.cursor < self.history_end:
            return self.lag_frames, self.lag_bytes
        if self.credit.nbytes < self.lag_bytes:
            return self.lag_frames, self.lag_bytes
        # The bytes suffice for all of it, so that the count alone says how much stays behind.
        frames = max(0, self.lag_frames - self.credit.count)
        return frames, self.lag_bytes if frames else 0

    def give_up_replay(self) -> None:
        """A replay that is not applied heals nothing: the subscription stands where it was before (P10-35)."""
        if self.healing is not None:
            self.cursor = self.healing.start
            self.healing.release(LeaseEvent.INVALIDATED)
            self.healing = None

    def drop(self, state: SubscriptionState) -> None:
        """Pause or close: queue, credit and what they charge are gone (P10-17)."""
        self.give_up_replay()
        self.state = state
        self.queue.release_all()
        self.credit.clear()
        self.oversized = False
        self.missed_bytes = 0
        self.lag_frames = self.lag_bytes = self.queued_frames = self.queued_bytes = 0
        self.history_end = self.cursor


class Streams:
    """All subscriptions of an engine."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._stretches = Stretches(runtime.log)

    # ---- life ----

    def subscribe(self, conn: Connection, frame: Subscribe) -> None:
        """SUBSCRIBE: LIVE at once, with its only initial credit (P10-02, P14-12)."""
        after, log = frame.after_event_sequence, self._runtime.log
        check_initial_credit(conn, frame.initial_credit_count, frame.initial_credit_bytes)
        if after > log.head:
            raise CursorInvalid("the cut lies in the future")
        self._runtime.charge(conn.quota, [(Resource.SUBSCRIPTIONS, 1)])
        state = SUBSCRIPTION.after(SubscriptionState.NONE, SubscriptionEvent.SUBSCRIBE)
        sub = self._make(conn, state, after, log.head, frame.request_id)
        sub.credit.add(frame.initial_credit_count, frame.initial_credit_bytes)
        answer = Subscribed(
            request_id=frame.request_id, subscription_id=sub.id, next_delivery_sequence=DeliverySequence(1)
        )
        conn.reply(answer.encode(), frame.request_id)
        if after + 1 < log.first:
            self.lose(sub, SubscriptionEvent.EVENTS_LOST)

    def reserve(self, conn: Connection, base: int, replaced: Subscription | None, request_id: int) -> Subscription:
        """A RESERVED_SNAPSHOT subscription at a cut; its slot is charged already, or taken over (P9-25, P9-26)."""
        if replaced is not None:
            self.close(replaced, SubscriptionEvent.REPLACE, keep_slot=True)
        state = SUBSCRIPTION.after(SubscriptionState.NONE, SubscriptionEvent.RESERVE)
        return self._make(conn, state, base, base, request_id)

    def _make(
        self, conn: Connection, state: SubscriptionState, after: int, history_end: int, request_id: int
    ) -> Subscription:
        queue = self._runtime.quotas.queue(conn.quota)
        sub = Subscription(self._runtime.fresh_id(subscription_id), conn, state, after, history_end, queue, request_id)
        conn.subscriptions[sub.id] = sub
        return sub

    def replay(self, sub: Subscription, lease: ReplayLease, request_id: int) -> None:
        """PAUSED_GAP to REPLAYING: what comes behind the cut of the replay is queued from now on (P10-25)."""
        sub.state = SUBSCRIPTION.after(sub.state, SubscriptionEvent.OPEN_REPLAY)
        sub.healing = lease
        sub.cursor = sub.history_end = lease.cut
        sub.behind = request_id

    def go_live(self, sub: Subscription, applied: SubscriptionEvent, count: int, nbytes: int, request_id: int) -> None:
        """Its snapshot or replay was applied: LIVE, with the only credit there is (P10-04, P10-33, P10-34)."""
        sub.state = SUBSCRIPTION.after(sub.state, applied)
        if sub.healing is not None:
            sub.last_event = EventCut(sub.healing.cut)
            sub.healing = None
        sub.behind = request_id
        sub.credit.add(count, nbytes)
        self._settle(sub)

    def close(self, sub: Subscription, event: SubscriptionEvent, *, keep_slot: bool = False) -> None:
        """CLOSED; late CREDIT for it is still known as harmless (OPEN P10-b)."""
        state = SUBSCRIPTION.after(sub.state, event)
        self._end_stall(sub)
        sub.drop(state)
        del sub.conn.subscriptions[sub.id]
        sub.conn.closed_subscriptions.append(sub.id)
        if not keep_slot:
            sub.conn.quota.release(Resource.SUBSCRIPTIONS)

    def credit(self, conn: Connection, frame: CreditFrame) -> None:
        """CREDIT (P10-08, P10-09); what crosses a gap or a close on the wire is no fault (OPEN P10-b)."""
        state = conn.subscription_state(frame.subscription_id)
        SUBSCRIPTION.after(state, SubscriptionEvent.CREDIT)
        if state is not SubscriptionState.LIVE:
            return
        sub = conn.subscriptions[frame.subscription_id]
        try:
            sub.credit.add(frame.add_count, frame.add_bytes)
        except CreditOverflow:
            SUBSCRIPTION.after(state, SubscriptionEvent.CREDIT_ABOVE)
        self._end_stall(sub)
        self._settle(sub)
        if sub.waiting:
            conn.wake()

    def _end_stall(self, sub: Subscription) -> None:
        """It waits for credit no more: there is some, or it is paused or closed."""
        if sub.stalled:
            sub.stalled = False
            self._runtime.observer.credit_stall_over(self._runtime.now.mono - sub.stalled_since)

    # ---- continuity ----

    def lose(self, sub: Subscription, event: SubscriptionEvent) -> None:
        """Something ends its continuity: PAUSED_GAP if it had any, and the one GAP of this loss (P10-17, P10-18)."""
        state = SUBSCRIPTION.after(sub.state, event)
        if state is not sub.state:
            if event in _GAPS:
                self.tell_gap(sub, _GAPS[event])
            self._end_stall(sub)
            sub.drop(state)

    def tell_gap(self, sub: Subscription, reason: GapReason, *, last: bool = False) -> None:
        """GAP, through reserved capacity.

        With ``last`` the connection is over: no reply goes out any more, so that there is none to wait for.
        """
        sub.give_up_replay()
        frame = Gap(
            subscription_id=sub.id,
            last_contiguous_delivery=sub.delivery,
            last_contiguous_event=sub.last_event,
            observed_event=self._first_waiting(sub),
            reason=reason,
        ).encode()
        self._runtime.observer.gap(reason)
        if sub.behind == 0 or (last and sub.named):
            sub.conn.push_gap(frame)
        elif not last:
            sub.conn.reply(frame, 0)

    def _first_waiting(self, sub: Subscription) -> EventSequence | None:
        """Sequence of the first event that was not delivered, if it is known (P10-20)."""
        log = self._runtime.log
        if not sub.waiting or sub.cursor + 1 < log.first:
            return None
        first = self._stretches.behind(sub.cursor, sub.visibility).first()
        return None if first is None else EventSequence(first)

    def end(self, conn: Connection, reason: GapReason) -> None:
        """The authority or the grant is gone: one GAP for each open subscription, then all are closed (W8-09)."""
        for sub in list(conn.subscriptions.values()):
            if sub.open:
                self.tell_gap(sub, reason, last=True)
            self.close(sub, SubscriptionEvent.AUTHORITY_LOST)

    # ---- new and old events ----

    def published(self, added: list[LogEntry], connections: list[Connection]) -> None:
        """Events became durable: count them for every subscription that sees them (P9-25, P3-46)."""
        shares: dict[Visibility, tuple[int, int]] = {}
        for conn in connections:
            for sub in _open(conn):
                share = shares.get(sub.visibility)
                if share is None:
                    sizes = [entry.size for entry in added if sub.visibility.sees_event(entry.event)]
                    share = shares[sub.visibility] = (len(sizes), sum(sizes))
                if not sub.waiting:
                    sub.cursor = added[0].event.sequence - 1
                sub.lag_frames += share[0]
                sub.lag_bytes += share[1]
                self._settle(sub)
                if sub.waiting and sub.state is SubscriptionState.LIVE and not sub.stalled:
                    conn.wake()

    def _settle(self, sub: Subscription) -> None:
        """Charge what waits and can not go out, or give it back; a full queue is a gap (P3-36, P3-46, P3-48)."""
        frames, nbytes = sub.unsent()
        if frames == sub.queued_frames and nbytes == sub.queued_bytes:
            return
        changes = (
            (Resource.QUEUE_FRAMES, frames - sub.queued_frames),
            (Resource.QUEUE_BYTES, nbytes - sub.queued_bytes),
        )
        if not sub.queue.charge_many([(resource, change) for resource, change in changes if change > 0]):
            self._runtime.observer.quota(Resource.QUEUE_FRAMES.label)
            self.lose(sub, SubscriptionEvent.QUEUE_FULL)
            return
        for resource, change in changes:
            if change < 0:
                sub.queue.release(resource, -change)
        sub.queued_frames, sub.queued_bytes = frames, nbytes

    def retained_from(self, first: int, connections: list[Connection]) -> None:
        """The log is about to lose everything before ``first``: whoever still waits for some of it has a gap."""
        newest: dict[Visibility, int] = {}
        for conn in connections:
            for sub in list(_open(conn)):
                if sub.cursor + 1 >= first:
                    continue
                if sub.visibility not in newest:
                    newest[sub.visibility] = self._newest_before(first, sub.visibility)
                if sub.waiting and newest[sub.visibility] > sub.cursor:
                    self.lose(sub, SubscriptionEvent.EVENTS_LOST)
                else:
                    sub.cursor = first - 1

    def _newest_before(self, first: int, visibility: Visibility) -> int:
        """The newest retained event before ``first`` that is visible; what lies before all of them when none is."""
        log = self._runtime.log
        before = log.first - 1
        return before + 1 + log.mask(before, first - log.first, visibility).rfind(1)

    # ---- delivery ----

    def deliver(self, conn: Connection, frames: list[bytes], room: int) -> None:
        """Append events of the live subscriptions, each in its turn, up to about ``room`` bytes."""
        subs = [sub for sub in conn.subscriptions.values() if sub.state is SubscriptionState.LIVE and sub.waiting]
        if not subs:
            return
        conn.turn += 1
        start = conn.turn % len(subs)
        subs = subs[start:] + subs[:start]
        unfinished = False
        while subs and room > 0:
            again = []
            for sub in subs:
                if room <= 0:
                    break
                sent = self._deliver_some(sub, frames, min(room, _QUANTUM))
                room -= sent
                if sent and sub.waiting:
                    again.append(sub)
                unfinished |= not sent and sub.waiting and not sub.stalled
            subs = again
        if unfinished:
            conn.wake()

    def _deliver_some(self, sub: Subscription, frames: list[bytes], room: int) -> int:
        """One turn: of the stretch behind the cursor what credit and ``room`` bytes allow; the bytes sent."""
        stretch, credit = self._stretches.behind(sub.cursor, sub.visibility), sub.credit
        stretch.grow(credit, room)
        fit = stretch.fitting(sub.conn.selected)
        wanted = min(fit, bisect_left(stretch.ends, room) + 1)
        count = min(wanted, credit.count, bisect_right(stretch.ends, credit.nbytes))
        sent = stretch.ends[count - 1] if count else 0
        if count:
            first = DeliverySequence(advance(sub.delivery))
            sub.delivery = advance(sub.delivery, count)
            credit.spend(sent, count)
            frames += event_frames(sub.id, first, stretch.tails[:count])
            sub.cursor = stretch.sequences[count - 1]
            sub.last_event = EventCut(sub.cursor)
            history = bisect_right(stretch.sequences, sub.history_end, 0, count)
            sub.lag_frames -= count - history
            sub.lag_bytes -= sent - (stretch.ends[history - 1] if history else 0)
            self._runtime.observer.events_sent(count, sent)
        if count == len(stretch.tails):
            sub.cursor = stretch.through
        elif count < wanted:
            if not sub.stalled:
                self._runtime.observer.credit_stall()
                sub.stalled, sub.stalled_since = True, self._runtime.now.mono
        elif count == fit and sent < room:
            # This peer negotiated less than the event needs; it is never split or skipped (OPEN P3-g).
            self.lose(sub, SubscriptionEvent.EVENT_TOO_LARGE)
            return sent
        self._settle(sub)
        return sent


def _open(conn: Connection) -> Iterator[Subscription]:
    for sub in list(conn.subscriptions.values()):
        if sub.open:
            yield sub


def check_initial_credit(conn: Connection, count: int, nbytes: int) -> None:
    """Initial credit above the selected maxima is malformed, zero is legal (OPEN P9-g)."""
    if count > conn.selected.credit_count or nbytes > conn.selected.credit_bytes:
        raise MalformedMessage("initial credit above the selected maximum")
