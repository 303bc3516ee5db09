"""The lease machine against a real engine: every state with every event, for a snapshot and for a replay."""

from __future__ import annotations

import pytest

from sidecar.coordinator.engine.lease import Lease
from sidecar.coordinator.machines.lease import LEASE, LeaseEvent, LeaseState
from sidecar.coordinator.machines.subscription import SubscriptionEvent
from sidecar.coordinator.wire import frames as fr
from sidecar.coordinator.wire.enums import ErrorCode
from sidecar.coordinator.wire.errors import FATAL_CODES
from sidecar.coordinator.wire.ids import ReplayId, SnapshotId, SubscriptionId
from sidecar.coordinator.wire.limits import LEASE_SECONDS, Limits
from tests.unit.engine.fakes import FakeAuthority
from tests.unit.engine.harness import id16, make
from tests.unit.engine.replays import QUEUE, open_replay, pause, reader_of, small_world, state

E, S = LeaseEvent, LeaseState
PAGES = 3
SELECTED = Limits(16_384, 4_096, 3, 2_048, 1_024, 65_536)
"""Three pages of three for what the queue could not hold."""
NO_PAGE = "a page is built for an accepted NEXT alone"
DEAF = "an ordered page of a snapshot is dropped together with its connection"
UNAFFECTED = "a snapshot stays the cut that it is, whatever becomes of its subscription (P9-27)"
UNREACHABLE: dict[tuple[str, LeaseState, LeaseEvent], str] = {
    (kind, state, event): NO_PAGE
    for kind in ("snapshot", "replay")
    for state in (S.NONE, S.OPEN_CURSOR, S.ENDED)
    for event in (E.PAGE, E.LAST_PAGE)
}
UNREACHABLE |= {("snapshot", S.RELEASED, event): DEAF for event in (E.PAGE, E.LAST_PAGE)}
UNREACHABLE |= {("snapshot", state, E.INVALIDATED): UNAFFECTED for state in (S.OPEN_CURSOR, S.PAGE_DUE, S.ENDED)}
"""Pairs that no peer and no clock can bring about, and why."""
CASES = [
    (kind, lease_state, event)
    for kind in ("snapshot", "replay")
    for lease_state, event, _ in LEASE
    if (kind, lease_state, event) not in UNREACHABLE
]


class Case:
    """A lease that was brought into a state, and the frames that name it."""

    def __init__(self, kind: str, lease_state: LeaseState, event: LeaseEvent) -> None:
        self.kind, self.event = kind, event
        self.world = small_world()
        self.client = reader_of(self.world, selected=SELECTED)
        self.maker = self.world.connect(2)
        self.id, self.cursor, self.subscription = id16(78), bytes(32), SubscriptionId(id16(77))
        self.lease: Lease | None = None
        self.paused = b""
        if lease_state is not S.NONE:
            self._enter(lease_state)
        elif (kind, event) != ("snapshot", E.OPEN_EMPTY):
            self.paused = pause(self.client, self.maker)
        assert self.now is lease_state

    def _enter(self, wanted: LeaseState) -> None:
        self.paused = pause(self.client, self.maker)
        begin = self.client.ask(self.open())[0]
        self.begun(begin)
        if wanted in (S.RELEASED, S.EXPIRED) and self.event in (E.PAGE, E.LAST_PAGE):
            self._order()
            if wanted is S.EXPIRED:
                self.world.advance(LEASE_SECONDS)
            else:
                make(self.maker, QUEUE + 1, 500)
        elif wanted is S.PAGE_DUE:
            self._order()
        elif wanted is S.EXPIRED:
            self.world.advance(LEASE_SECONDS)
        elif wanted is not S.OPEN_CURSOR:
            self.turn(PAGES)
            if wanted is S.RELEASED:
                self.client.ask(self.applied())
        self.client.pull()

    def begun(self, begin: fr.Frame) -> None:
        """Remember what a BEGIN tells."""
        assert isinstance(begin, fr.SnapshotBegin | fr.ReplayBegin)
        self.id = begin.snapshot_id if isinstance(begin, fr.SnapshotBegin) else begin.replay_id
        self.cursor = begin.first_cursor or self.cursor
        assert begin.subscription_id is not None
        self.subscription = begin.subscription_id
        self.lease = self.client.conn.leases[self.id]

    def _order(self) -> None:
        """A NEXT is accepted, and its page can not be sent yet: the last one if the event is about it."""
        if self.event is E.LAST_PAGE:
            self.turn(PAGES - 1)
        self.client.conn.writable = False
        self.client.send(self.next(self.cursor))

    def turn(self, pages: int) -> None:
        """Read so many pages."""
        for _ in range(pages):
            page = self.client.ask(self.next(self.cursor))[0]
            assert isinstance(page, fr.SnapshotPage | fr.ReplayPage)
            self.cursor = page.next_cursor or self.cursor

    def told(self) -> list[fr.Frame]:
        """What comes, but for the page that was due before the event and what stands in front of an OPEN_EMPTY."""
        due = self.now is S.PAGE_DUE and self.event not in (E.PAGE, E.LAST_PAGE)
        skipped = (fr.Subscribed, fr.Gap, fr.SnapshotPage, fr.ReplayPage)[: 4 if due else 2]
        self.client.conn.writable = True
        return [frame for frame in self.client.pull() if not isinstance(frame, skipped)]

    @property
    def now(self) -> LeaseState:
        return S.NONE if self.lease is None else self.lease.state

    def open(self) -> fr.OpenSnapshot | fr.OpenReplay:
        if self.kind == "snapshot":
            return self.client.open_snapshot(reserve=True)
        return open_replay(self.client, self.paused, state(self.client, self.paused).last_event)

    def open_empty(self) -> fr.Frame:
        """An OPEN of what has nothing to send."""
        if self.kind == "snapshot" and not self.paused:
            return self.client.open_snapshot(reserve=True)
        known = set(self.client.conn.subscriptions)
        self.client.send(self.client.subscribe(self.world.disk.last_sequence))
        (idle,) = set(self.client.conn.subscriptions) - known
        self.world.engine._streams.lose(state(self.client, idle), SubscriptionEvent.QUEUE_FULL)
        return open_replay(self.client, idle, self.world.disk.last_sequence)

    def next(self, cursor: bytes) -> fr.Frame:
        request = next(self.client.requests)
        if self.kind == "snapshot":
            return fr.SnapshotNext(request_id=request, snapshot_id=SnapshotId(self.id), cursor=cursor)
        return fr.ReplayNext(request_id=request, replay_id=ReplayId(self.id), cursor=cursor)

    def applied(self, count: int = 0, subscription: bytes | None = None) -> fr.Frame:
        request, named = next(self.client.requests), SubscriptionId(subscription or self.subscription)
        if self.kind == "snapshot":
            return fr.SnapshotApplied(
                request_id=request,
                snapshot_id=SnapshotId(self.id),
                subscription_id=named,
                initial_credit_count=count,
                initial_credit_bytes=0,
            )
        return fr.ReplayApplied(
            request_id=request,
            replay_id=ReplayId(self.id),
            subscription_id=named,
            initial_credit_count=count,
            initial_credit_bytes=0,
        )

    def frame(self) -> fr.Frame | None:
        """What the peer sends to bring the event about; ``None`` when it is none of its frames."""
        if self.event is E.OPEN:
            return self.open() if self.lease is None else self.client.open_snapshot(reserve=True)
        if self.event is E.OPEN_EMPTY:
            return self.open_empty()
        if self.event is E.OPEN_REFUSED:
            while len(self.client.conn.leases) < 8:
                self.client.ask(self.client.open_snapshot())
            return self.open() if self.lease is None else self.client.open_snapshot(reserve=True)
        if self.event is E.NEXT:
            return self.next(self.cursor)
        if self.event is E.NEXT_OTHER:
            return self.next(b"\x01" * 32)
        if self.event is E.APPLIED:
            return self.applied()
        if self.event is E.APPLIED_UNFIT:
            return self.applied(subscription=id16(99))
        if self.event is E.GUARD_STALE:
            now = self.world.now
            self.world.engine.renew(FakeAuthority(wall_expiry=now.wall + 1, deadline_mono=now.mono + 1))
            self.world.advance(1, tick=False)
            return self.next(self.cursor)
        return None

    def happen(self) -> None:
        """What is not in the hands of the peer."""
        if self.event in (E.PAGE, E.LAST_PAGE):
            self.client.conn.writable = True
        elif self.event is E.EXPIRY:
            self.world.advance(LEASE_SECONDS)
        elif self.event is E.INVALIDATED:
            make(self.maker, QUEUE + 1, 700)
        else:
            assert self.event is E.DISCONNECT
            self.client.detach()


def answered(frames: list[fr.Frame]) -> set[str]:
    """The kinds of frames that came: BEGIN, PAGE, END, ACK."""
    kinds = {
        fr.SnapshotBegin: "BEGIN",
        fr.ReplayBegin: "BEGIN",
        fr.SnapshotPage: "PAGE",
        fr.ReplayPage: "PAGE",
        fr.SnapshotEnd: "END",
        fr.ReplayEnd: "END",
        fr.Ack: "ACK",
    }
    return {kinds[type(frame)] for frame in frames if type(frame) in kinds}


@pytest.mark.req("P9-05", "P9-06", "P9-07", "P9-08", "P9-09", "P9-17", "P9-18", "P9-19", "P9-20", "P9-23", "P10-29")
@pytest.mark.req("P10-33", "P10-35", "P3-38", "P3-40", "P3-48", "P3-50", "P4-13", "P14-11")
@pytest.mark.parametrize(("kind", "lease_state", "event"), CASES)
def test_the_engine_does_what_the_table_says(kind: str, lease_state: LeaseState, event: LeaseEvent) -> None:
    case, step = Case(kind, lease_state, event), LEASE.step(lease_state, event)
    frame = case.frame()
    if step.error in FATAL_CODES:
        assert frame is not None
        case.client.fatal(frame, step.error)
        assert case.now is step.next
        assert case.world.used().keys() <= {"connections"}
        return
    before = set(case.client.conn.leases)
    if frame is None:
        case.happen()
    else:
        case.client.send(frame)
    if event not in (E.PAGE, E.LAST_PAGE) and lease_state is not S.NONE:
        assert case.now is step.next, "before there is room for a page"
        if event is E.NEXT and step.error is None:
            return
    frames = case.told() if case.client.conn in case.world.engine.connections else []
    if event in (E.OPEN, E.OPEN_EMPTY):
        (made,) = set(case.client.conn.leases) - before
        if lease_state is S.NONE:
            case.begun(frames[0])
            assert (case.id, answered(frames)) == (made, set(step.reply.split(", ")))
            assert case.now is step.next
        return
    named = step.reply.split(";")[0]
    codes = [frame.code for frame in frames if isinstance(frame, fr.CoordErrorFrame)]
    error = ErrorCode.CURSOR_INVALID if "page that is due is refused" in step.reply else step.error
    assert codes == ([] if error is None else [error])
    assert answered(frames) - {"BEGIN"} == {name for name in ("PAGE", "END", "ACK") if name in named and error is None}
    if step.error is ErrorCode.RESOURCE_EXHAUSTED:
        assert set(case.client.conn.leases) == before
    if event in (E.PAGE, E.LAST_PAGE):
        assert case.now is step.next
    if case.lease is not None:
        held = case.now in (S.OPEN_CURSOR, S.PAGE_DUE)
        assert (case.lease.pinned > 0) == held
        assert (case.lease.id in case.client.conn.leases) == (held or case.now is S.ENDED)


@pytest.mark.req("P9-07", "P9-27", "P10-29")
@pytest.mark.parametrize(("kind", "lease_state", "event"), list(UNREACHABLE))
def test_what_does_not_occur_changes_nothing(kind: str, lease_state: LeaseState, event: LeaseEvent) -> None:
    """The reason why it does not occur holds in the real engine."""
    reason = UNREACHABLE[kind, lease_state, event]
    case = Case(kind, S.PAGE_DUE if reason is DEAF else lease_state, event)
    if reason is NO_PAGE:
        assert list(case.client.conn.out) == []
        case.client.conn.writable = True
        assert case.client.pull() == []
        assert case.now is lease_state is LEASE.step(lease_state, event).next
    elif reason is DEAF:
        case.client.detach()
        assert case.now is S.RELEASED
        assert case.client.conn.take(1 << 20, case.world.now) == []
    else:
        make(case.maker, QUEUE + 1, 700)
        assert [type(frame) for frame in case.client.pull()] == [fr.Gap]
        assert case.now is lease_state
