"""Gaps: every loss of continuity is said out loud, once (P10-17..20, P10-37)."""

from __future__ import annotations

import pytest

from sidecar.coordinator.engine.policy import Policy
from sidecar.coordinator.engine.subscription import SubscriptionState
from sidecar.coordinator.wire import frames as fr
from sidecar.coordinator.wire.enums import GapReason, Scope
from sidecar.coordinator.wire.ids import SubscriptionId
from sidecar.coordinator.wire.limits import Limits
from tests.unit.engine.harness import Client, World, make


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def client(world: World) -> Client:
    return world.connect(1, scopes=Scope.WORK_READ)


@pytest.fixture
def maker(world: World) -> Client:
    """Another principal, whose operations ``client`` does not see: one event of each command is visible."""
    return world.connect(2)


@pytest.mark.req("P10-17", "P10-18", "P10-20", "P3-36", "P14-13", "P15-06", "P10-10")
def test_a_full_queue_is_one_gap_and_then_silence(world: World, client: Client, maker: Client) -> None:
    subscription = client.live(0, 3, 1_000)
    make(maker, 3)
    client.pull()
    make(maker, 1_024, 100)
    client.pull()
    assert client.gaps() == []
    assert world.engine.stats().queued_frames == 1_024
    make(maker, 1, 5_000)
    (gap,) = client.pull()
    assert isinstance(gap, fr.Gap)
    assert (gap.subscription_id, gap.reason) == (subscription, GapReason.QUEUE_OVERFLOW)
    assert (gap.last_contiguous_delivery, gap.last_contiguous_event, gap.observed_event) == (3, 5, 7)
    assert world.engine.stats().queued_frames == 0, "queued deltas are discarded"
    # Credit that crosses the gap on the wire is ignored, and brings no event back.
    client.ask(client.credit(subscription, 4_096, 1 << 23))
    make(maker, 10, 6_000)
    assert client.pull() == []
    sub = client.conn.subscriptions[SubscriptionId(subscription)]
    assert sub.state is SubscriptionState.PAUSED_GAP
    assert (sub.credit.count, sub.credit.nbytes) == (0, 0)


@pytest.mark.req("P10-20", "P14-13")
def test_a_gap_before_the_first_event_has_delivery_zero(client: Client, maker: Client) -> None:
    make(maker, 2)
    client.live(4, 0, 0)
    make(maker, 1_025, 100)
    (gap,) = client.pull()
    assert isinstance(gap, fr.Gap)
    assert (gap.last_contiguous_delivery, gap.last_contiguous_event, gap.observed_event) == (0, 4, 5)


@pytest.mark.req("P3-36", "P10-17")
def test_the_queue_is_bounded_by_bytes_too(client: Client, maker: Client) -> None:
    client.live(0, 0, 0)
    make(maker, 16, document=bytes(250_000))
    assert client.pull() == []
    make(maker, 1, 100, document=bytes(250_000))
    assert [frame.reason for frame in client.pull() if isinstance(frame, fr.Gap)] == [GapReason.QUEUE_OVERFLOW]


@pytest.mark.req("P10-17")
def test_a_transport_that_pushes_back_fills_the_queue(world: World, client: Client, maker: Client) -> None:
    client.live(0)
    client.conn.writable = False
    make(maker, 1_024)
    assert client.pull() == []
    assert world.engine.stats().queued_frames == 1_024
    make(maker, 1, 5_000)
    assert [type(frame) for frame in client.pull()] == [fr.Gap]


@pytest.mark.req("P10-17", "P10-20")
def test_history_that_is_not_retained_is_a_gap_behind_the_answer(maker: Client, client: Client) -> None:
    world = maker.world
    make(maker, 5)
    world.policy = Policy(event_count=4)
    restarted = world.restart()
    late = restarted.connect(1, scopes=Scope.WORK_READ)
    for after, gap in ((0, True), (5, True), (6, False), (10, False)):
        answers = late.ask(late.subscribe(after, 10, 10_000))
        assert isinstance(answers[0], fr.Subscribed)
        if gap:
            (frame,) = answers[1:]
            assert isinstance(frame, fr.Gap)
            assert (frame.subscription_id, frame.reason) == (answers[0].subscription_id, GapReason.RETENTION)
            assert (frame.last_contiguous_delivery, frame.last_contiguous_event) == (0, after)
            assert frame.observed_event is None
        else:
            assert not any(isinstance(frame, fr.Gap) for frame in answers)


@pytest.mark.req("P10-17", "P10-37", "P10-10")
def test_an_event_that_leaves_the_log_unsent_is_a_gap_and_a_hidden_one_is_not() -> None:
    world = World(policy=Policy(event_count=20))
    client, maker = world.connect(1, scopes=Scope.WORK_READ), world.connect(2)
    blind = world.connect(3, scopes=Scope.SIGNAL_ACK)
    make(maker, 5)
    slow = client.live(0, 2, 1_000)
    blind.live(0, 0, 0)
    make(maker, 10, 100)
    client.pull()
    (gap,) = client.gaps()
    assert (gap.subscription_id, gap.reason) == (slow, GapReason.RETENTION)
    assert (gap.last_contiguous_delivery, gap.last_contiguous_event, gap.observed_event) == (2, 3, 5)
    assert blind.gaps() == []
    assert world.engine.stats().retained_from == 11
    # Who has read everything does not mind.
    reader = world.connect(4, scopes=Scope.WORK_READ)
    reader.live(30, 4_096, 1 << 20)
    for number in range(200, 230):
        make(maker, 1, number)
        reader.pull()
    assert (len(reader.events()), reader.gaps()) == (30, [])


@pytest.mark.req("P10-17", "P10-37")
def test_an_event_that_the_peer_can_not_take_is_an_internal_gap(world: World, maker: Client) -> None:
    small = world.connect(1, scopes=Scope.WORK_READ, selected=Limits(8_192, 4_096, 16, 300, 64, 65_536))
    subscription = small.live(0, 64, 60_000)
    make(maker, 1)
    make(maker, 1, 2, document=b"x" * 250)
    make(maker, 1, 3, document=b"x" * 251)
    make(maker, 1, 4, document=b"x" * 252)
    small.pull()
    assert len(small.events()) == 3
    (gap,) = small.gaps()
    assert (gap.subscription_id, gap.reason, gap.last_contiguous_delivery) == (subscription, GapReason.INTERNAL, 3)
    assert (gap.last_contiguous_event, gap.observed_event) == (5, 7)


@pytest.mark.req("P10-17")
def test_a_gap_never_overtakes_the_answer_that_names_its_subscription(world: World, maker: Client) -> None:
    client = world.connect(1)
    world.auto_commit = False
    client.send(client.subscribe(0))
    client.send(client.open_snapshot(reserve=True))
    for number in range(1, 600):
        maker.send(maker.create(number))
        if number % 100 == 0:
            world.commit()
            maker.pull()
    world.commit()
    make_more = world.connect(3)
    for number in range(1_000, 1_600):
        make_more.send(make_more.create(number))
        if number % 100 == 0:
            world.commit()
            make_more.pull()
    world.commit()
    kinds = [type(frame) for frame in client.pull()]
    assert kinds == [fr.Subscribed, fr.SnapshotBegin, fr.SnapshotEnd, fr.Gap, fr.Gap]


@pytest.mark.req("P10-37", "P10-13")
def test_hidden_history_may_leave_the_log_under_a_reader() -> None:
    world = World(policy=Policy(event_count=20))
    reader, maker = world.connect(1, scopes=Scope.WORK_COMMAND), world.connect(2)
    make(maker, 8)
    reader.conn.writable = False
    reader.ask(reader.subscribe(0, 10, 10_000))
    make(maker, 30, 100)
    reader.conn.writable = True
    reader.done(reader.update(1))
    reader.pull()
    assert reader.gaps() == []
    assert [event.event_sequence for event in reader.events()] == [78]


@pytest.mark.req("P10-17", "P3-37")
def test_a_gap_takes_the_reserved_lane_also_when_the_request_id_serves_again(
    world: World, client: Client, maker: Client
) -> None:
    """The reply that named the subscription is out: nothing in the data lane may hold the gap back."""
    begin = client.ask(client.open_snapshot())[0]
    assert isinstance(begin, fr.SnapshotBegin)
    make(maker, 1)
    begin = client.ask(client.open_snapshot())[0]
    assert isinstance(begin, fr.SnapshotBegin)
    first = client.subscribe(2)
    subscription = client.one(first, fr.Subscribed).subscription_id
    client.conn.writable = False
    client.send(client.next_page(begin, begin.first_cursor, request=first.request_id))
    make(maker, 1_025, 100)
    (gap,) = client.pull()
    assert isinstance(gap, fr.Gap)
    assert gap.subscription_id == subscription
