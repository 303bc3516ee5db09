"""The subscription machine against a real engine: every state with every event."""

from __future__ import annotations

import re

import pytest

from sidecar.coordinator.authority.grants import Registry
from sidecar.coordinator.engine.replay import ReplayLease
from sidecar.coordinator.machines.subscription import FOLLOWING, SUBSCRIPTION, SubscriptionEvent, SubscriptionState
from sidecar.coordinator.wire import frames as fr
from sidecar.coordinator.wire.enums import ErrorCode, FrameType, GapReason
from sidecar.coordinator.wire.errors import FATAL_CODES
from sidecar.coordinator.wire.ids import EventCut, ReplayId, SnapshotId, SubscriptionId
from sidecar.coordinator.wire.limits import LEASE_SECONDS, Limits
from tests.unit.engine.harness import id16, make
from tests.unit.engine.replays import QUEUE, applied, open_replay, reader_of, small_world

E, S = SubscriptionEvent, SubscriptionState
SELECTED = Limits(16_384, 4_096, 3, 300, 1_024, 65_536)
SHORT_LOG = 8
"""Events of a log in which the fifth visible event pushes out the first."""
NOT_BY_SNAPSHOT = "its subscription is none of a snapshot"
NO_REPLAY = "a replay lease is held exactly while its subscription is replaying"
LOST_AT_ONCE = "an event that it waits for can not leave the log without a gap"
UNREACHABLE: dict[tuple[SubscriptionState, SubscriptionEvent], str] = {
    (S.NONE, E.SNAPSHOT_APPLIED): NOT_BY_SNAPSHOT,
    (S.NONE, E.SNAPSHOT_EXPIRED): NOT_BY_SNAPSHOT,
    **{(state, E.REPLAY_EXPIRED): NO_REPLAY for state in S if state is not S.REPLAYING},
    **{(state, E.OPEN_REPLAY_LOST): LOST_AT_ONCE for state in FOLLOWING},
}
"""Pairs that no peer, no clock and no store can bring about, and why."""
REPLIES = re.compile(r"GAP|ACK|SUBSCRIBED|SNAPSHOT_BEGIN|REPLAY_BEGIN|COORD_EVENT")


class Case:
    """A subscription of a connection that was brought into a state, and what may happen to it.

    Every one of them was made by a snapshot. It pauses by the expiry of that snapshot, or by overflow where the
    snapshot has to be there still.
    """

    def __init__(self, state: SubscriptionState, event: SubscriptionEvent) -> None:
        short = event in (E.EVENTS_LOST, E.OPEN_REPLAY_LOST)
        self.world = small_world(event_count=SHORT_LOG) if short else small_world()
        self.client = reader_of(self.world, selected=SELECTED)
        self.maker = self.world.connect(2)
        self.state, self.id, self.made = state, SubscriptionId(id16(77)), 0
        self.snapshot = fr.SnapshotBegin(
            request_id=1,
            snapshot_id=SnapshotId(id16(78)),
            authority_guard=self.client.guard,
            base_event_sequence=EventCut(0),
            lease_expires_at=1,
        )
        self.replay = fr.ReplayBegin(
            request_id=1,
            replay_id=ReplayId(id16(79)),
            subscription_id=self.id,
            replay_cut=EventCut(0),
            lease_expires_at=1,
        )
        if state is not S.NONE:
            self._enter(state, overflow=event in (E.SNAPSHOT_APPLIED, E.SNAPSHOT_EXPIRED))
        assert self.now is state

    def _enter(self, state: SubscriptionState, *, overflow: bool) -> None:
        begin = self.client.ask(self.client.open_snapshot(reserve=True))[0]
        assert isinstance(begin, fr.SnapshotBegin)
        assert begin.subscription_id is not None
        self.snapshot, self.id = begin, begin.subscription_id
        if state is S.RESERVED_SNAPSHOT:
            return
        if overflow:
            self.events(QUEUE + 1)
            self.world.advance(1)
        else:
            self.world.advance(LEASE_SECONDS)
        self.client.pull()
        if state is S.CLOSED:
            self.client.ask(self.client.open_snapshot(reserve=True, replace=self.id))
        elif state is not S.PAUSED_GAP:
            self.replay = self._replayed()
            if state is S.LIVE:
                self.client.ask(applied(self.client, self.replay))

    def _replayed(self) -> fr.ReplayBegin:
        begin, *rest = self.client.ask(open_replay(self.client, self.id, 0))
        assert isinstance(begin, fr.ReplayBegin)
        cursor = begin.first_cursor
        while cursor is not None:
            page, *rest = self.client.ask(
                fr.ReplayNext(request_id=next(self.client.requests), replay_id=begin.replay_id, cursor=cursor)
            )
            assert isinstance(page, fr.ReplayPage)
            cursor = page.next_cursor
        assert isinstance(rest[0], fr.ReplayEnd)
        return begin

    @property
    def now(self) -> SubscriptionState:
        return self.client.conn.subscription_state(self.id)

    @property
    def cut(self) -> int:
        """Where a replay has to start."""
        sub = self.client.conn.subscriptions.get(self.id)
        return 0 if sub is None else sub.last_event

    def told(self) -> list[fr.Frame]:
        """What comes, but for gaps of other subscriptions; a gap that is found while events are sent comes after."""
        frames = [*self.client.pull(), *self.client.pull()]
        return [frame for frame in frames if not isinstance(frame, fr.Gap) or frame.subscription_id == self.id]

    def events(self, count: int, document: bytes = b"d") -> None:
        """So many visible events."""
        make(self.maker, count, 1_000 + self.made, document=document)
        self.made += count

    def frame(self, event: SubscriptionEvent) -> fr.Frame | None:
        """What the peer sends to bring the event about; ``None`` when it is none of its frames."""
        client = self.client
        snapshot_applied = client.applied(self.snapshot, subscription=self.id)
        frames: dict[SubscriptionEvent, fr.Frame] = {
            E.SUBSCRIBE: client.subscribe(self.world.disk.last_sequence),
            E.RESERVE: client.open_snapshot(reserve=True),
            E.CREDIT: client.credit(self.id, 1, 1_000),
            E.CREDIT_ABOVE: client.credit(self.id, SELECTED.credit_count + 1, 0),
            E.SNAPSHOT_APPLIED: snapshot_applied,
            E.REPLACE: client.open_snapshot(reserve=True, replace=self.id),
            E.OPEN_REPLAY: open_replay(client, self.id, self.cut),
            E.OPEN_REPLAY_ELSEWHERE: open_replay(client, self.id, self.cut + 1),
            E.OPEN_REPLAY_LOST: open_replay(client, self.id, self.cut),
            E.REPLAY_APPLIED: applied(client, self.replay, subscription=self.id),
        }
        return frames.get(event)

    def happen(self, event: SubscriptionEvent) -> None:
        """What is not in the hands of the peer."""
        if event is E.EVENT:
            if self.state is S.LIVE:
                self.client.ask(self.client.credit(self.id, 1, 1_000))
            self.events(2)
        elif event in (E.SNAPSHOT_EXPIRED, E.REPLAY_EXPIRED):
            self.world.advance(LEASE_SECONDS - (1 if event is E.SNAPSHOT_EXPIRED and self.state is not _R else 0))
        elif event is E.QUEUE_FULL:
            self.events(QUEUE + 1)
        elif event is E.EVENTS_LOST:
            self.events(SHORT_LOG // 2 + 1)
        elif event is E.EVENT_TOO_LARGE:
            self.events(1, bytes(SELECTED.typed_payload))
        elif event is E.AUTHORITY_LOST:
            self.world.engine.set_registry(Registry((), 2), self.world.now)
        else:
            assert event is E.DISCONNECT
            self.client.detach()


_R = S.RESERVED_SNAPSHOT


def check_answer(frames: list[fr.Frame], reply: str, error: ErrorCode | None) -> None:
    """The frames that came are those that the table names, and the reason of a gap is too."""
    names = [FrameType(frame.TYPE).name for frame in frames]
    told = {name for name in names if REPLIES.fullmatch(name)}
    assert told == set(REPLIES.findall(reply)), (names, reply)
    for frame in frames:
        if isinstance(frame, fr.Gap):
            assert GapReason(frame.reason).name in reply
    if error is not None:
        assert [frame.code for frame in frames if isinstance(frame, fr.CoordErrorFrame)] == [error]


@pytest.mark.req("P10-01", "P10-02", "P10-04", "P10-08", "P10-17", "P10-18", "P10-23", "P10-24", "P10-28", "P10-34")
@pytest.mark.req("P10-35", "P10-36", "P9-26", "P9-27", "P14-13", "P14-12")
@pytest.mark.parametrize(
    ("state", "event"), [(state, event) for state, event, _ in SUBSCRIPTION if (state, event) not in UNREACHABLE]
)
def test_the_engine_does_what_the_table_says(state: SubscriptionState, event: SubscriptionEvent) -> None:
    case, step = Case(state, event), SUBSCRIPTION.step(state, event)
    if event is E.OPEN_REPLAY_LOST:
        case.events(SHORT_LOG)
        case.client.pull()
    frame = case.frame(event)
    if step.error in FATAL_CODES:
        assert frame is not None
        case.client.fatal(frame, step.error)
        assert case.now is step.next
        return
    known = set(case.client.conn.subscriptions)
    if frame is None:
        case.happen(event)
        frames = case.told() if case.client.conn in case.world.engine.connections else []
    else:
        case.client.send(frame)
        frames = case.told()
    if event in (E.SUBSCRIBE, E.RESERVE):
        (made,) = set(case.client.conn.subscriptions) - known
        if state is S.NONE:
            case.id = SubscriptionId(made)
        else:
            check_answer([], "", None)
            assert case.now is step.next
            return
    assert case.now is step.next
    if event is E.AUTHORITY_LOST:
        gaps = [frame.reason for frame in frames if isinstance(frame, fr.Gap)]
        assert gaps == ([GapReason.GRANT_REVOKED] if "GAP" in step.reply else [])
        return
    check_answer(frames, step.reply, step.error)


@pytest.mark.req("P10-01")
@pytest.mark.parametrize(("state", "event"), list(UNREACHABLE), ids=str)
def test_what_does_not_occur_changes_nothing(state: SubscriptionState, event: SubscriptionEvent) -> None:
    """The reason why it does not occur holds in the real engine, and the table gives no way out of the state."""
    reason, step = UNREACHABLE[state, event], SUBSCRIPTION.step(state, event)
    assert step.next is state
    if reason is LOST_AT_ONCE:
        case = Case(state, E.EVENTS_LOST)
        case.happen(E.EVENTS_LOST)
        case.client.pull()
        assert case.now is S.PAUSED_GAP
        assert step.error is SUBSCRIPTION.step(state, E.OPEN_REPLAY).error
        return
    case = Case(state, event)
    if reason is NO_REPLAY:
        assert not any(isinstance(lease, ReplayLease) for lease in case.client.conn.leases.values())
    else:
        case.client.ask(case.client.open_snapshot())
        (lease,) = case.client.conn.leases.values()
        assert lease.subscription is None


def test_events_are_kept_in_the_states_of_the_specification() -> None:
    assert {S.RESERVED_SNAPSHOT, S.LIVE, S.REPLAYING} == set(FOLLOWING)
