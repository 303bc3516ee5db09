"""Subscriptions: credit, exact deliveries, unsent queues, states (P10)."""

from __future__ import annotations

import pytest

from sidecar.coordinator.engine.commands import record_of
from sidecar.coordinator.engine.state import Event, State
from sidecar.coordinator.engine.subscription import SubscriptionState
from sidecar.coordinator.wire import frames as fr
from sidecar.coordinator.wire import payloads as pl
from sidecar.coordinator.wire.enums import ErrorCode, EventKind, ObjectiveState, ObjectKind, Scope
from sidecar.coordinator.wire.ids import SubscriptionId
from sidecar.coordinator.wire.limits import HARD, Limits
from tests.unit.engine.harness import Client, World, id16, make


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


def size_of_event(client: Client) -> int:
    """Bytes of the whole frame of the last event received."""
    return len(client.events()[-1].encode())


@pytest.mark.req("P10-02", "P10-03", "P10-05", "P14-12")
def test_subscribe_is_live_and_its_credit_is_all_there_is(client: Client, maker: Client) -> None:
    make(maker, 3)
    frame = client.subscribe(0)
    answer = client.one(frame, fr.Subscribed)
    assert (answer.request_id, answer.next_delivery_sequence) == (frame.request_id, 1)
    assert client.pull() == []
    client.send(client.credit(answer.subscription_id, 2, 1_000))
    assert [type(event) for event in client.pull()] == [fr.CoordEvent] * 2


@pytest.mark.req("P10-06", "P10-07", "P14-12")
def test_an_event_costs_one_count_and_its_whole_frame(world: World, client: Client, maker: Client) -> None:
    make(maker, 1)
    client.live(0)
    size = size_of_event(client)
    subscription = client.live(2, 0, 0)
    make(maker, 4, 10)
    client.received.clear()

    def received_for(count: int, nbytes: int) -> int:
        before = len(client.events())
        client.ask(client.credit(subscription, count, nbytes))
        return sum(event.subscription_id == subscription for event in client.events()[before:])

    assert received_for(5, 0) == 0, "count without bytes"
    assert received_for(0, size - 1) == 0, "one byte short"
    assert received_for(0, 1) == 1, "exactly one"
    assert received_for(0, size) == 1
    assert received_for(0, 2 * size + size - 1) == 2
    credit = client.conn.subscriptions[subscription].credit
    assert (credit.count, credit.nbytes) == (1, size - 1)


@pytest.mark.req("P10-07")
def test_bytes_without_count_send_nothing(client: Client, maker: Client, world: World) -> None:
    subscription = client.live(0, 0, 1 << 20)
    make(maker, 3)
    assert client.pull() == []
    assert world.engine.stats().queued_frames == 3
    assert world.observer.count("credit_stall") == 1
    client.ask(client.credit(subscription, 1, 0))
    assert len(client.events()) == 1
    assert world.engine.stats().queued_frames == 2


def test_how_long_a_stall_lasts_is_told_once_it_is_over(client: Client, maker: Client, world: World) -> None:
    def told() -> list[object]:
        return [call[1] for call in world.observer.calls if call[0] == "credit_stall_over"]

    subscription = client.live(0, 0, 1 << 20)
    make(maker, 3)
    client.pull()
    world.advance(0.25)
    client.ask(client.credit(subscription, 1, 0))
    assert told() == [0.25], "the next stall has begun"
    world.advance(0.5)
    client.detach()
    assert told() == [0.25, 0.5], "an end ends it too"


@pytest.mark.req("P10-11", "P10-13", "P10-14")
def test_deliveries_are_exact_next_and_events_the_same_for_everybody(world: World, maker: Client) -> None:
    early, late, owner = world.connect(1), world.connect(3), world.connect(2)
    early.live(0)
    make(maker, 10)
    late.live(0)
    owner.live(0)
    for client in (early, late, owner):
        client.pull()
        assert [event.delivery_sequence for event in client.events()] == list(range(1, len(client.events()) + 1))
        sequences = [event.event_sequence for event in client.events()]
        assert sequences == sorted(set(sequences))
    assert [event.event_id for event in early.events()] == [event.event_id for event in late.events()]
    ids = [event.event_id for event in owner.events()]
    assert len(set(ids)) == len(ids) == 20
    assert bytes(16) not in ids
    bodies = {event.event_id: event.body()[30:] for event in owner.events()}
    assert all(bodies[event.event_id] == event.body()[30:] for event in early.events())


@pytest.mark.req("P10-09", "P10-16")
@pytest.mark.parametrize(("count", "nbytes"), [(HARD.credit_count - 4, 0), (0, HARD.credit_bytes - 99), (1 << 31, 0)])
def test_credit_above_the_maximum_is_a_fault(client: Client, count: int, nbytes: int) -> None:
    subscription = client.live(0, 5, 100)
    client.fatal(client.credit(subscription, count, nbytes), ErrorCode.PROTOCOL_ERROR)


@pytest.mark.req("P10-09", "P10-16", "P3-35")
def test_credit_up_to_the_selected_maximum_is_legal(world: World, maker: Client) -> None:
    selected = Limits(8_192, 4_096, 16, 1_024, 7, 5_000)
    client = world.connect(1, selected=selected)
    subscription = client.live(0, 0, 0)
    client.ask(client.credit(subscription, 7, 5_000))
    client.ask(client.credit(subscription, 0, 0))
    client.fatal(client.credit(subscription, 1, 0), ErrorCode.PROTOCOL_ERROR)
    assert world.used() == {"connections": 1}


@pytest.mark.req("P10-08")
def test_credit_for_an_id_that_was_never_issued_is_a_fault(client: Client) -> None:
    client.fatal(client.credit(id16(5), 1, 1), ErrorCode.PROTOCOL_ERROR)


@pytest.mark.req("P10-02")
def test_initial_credit_above_the_maximum_is_malformed(world: World, client: Client) -> None:
    client.fatal(client.subscribe(0, HARD.credit_count + 1, 0), ErrorCode.MALFORMED_MESSAGE)
    other = world.connect(1)
    other.fatal(other.subscribe(0, 0, HARD.credit_bytes + 1), ErrorCode.MALFORMED_MESSAGE)
    assert world.used() == {}


@pytest.mark.req("P10-13", "P10-02")
def test_history_comes_under_credit_and_then_the_live_events(world: World, client: Client, maker: Client) -> None:
    make(maker, 1_500)
    subscription = client.live(400, 5, 10_000)
    assert client.gaps() == [], "history is no unsent queue"
    assert [event.event_sequence for event in client.events()] == [401, 403, 405, 407, 409]
    make(maker, 3, 2_000)
    while len(client.events()) < 1_303:
        assert client.gaps() == []
        client.ask(client.credit(subscription, 100, 100_000))
    client.pull()
    assert [event.event_sequence for event in client.events()] == list(range(401, 3_006, 2))
    assert world.engine.stats().queued_frames == 0


@pytest.mark.req("P10-02")
def test_a_cut_in_the_future_is_refused(world: World, client: Client, maker: Client) -> None:
    make(maker, 1)
    client.refused(client.subscribe(3), ErrorCode.CURSOR_INVALID)
    world.auto_commit = False
    maker.send(maker.create(50))
    client.refused(client.subscribe(3), ErrorCode.CURSOR_INVALID)
    assert "subscriptions" not in world.used()


@pytest.mark.req("P8-17", "P15-06")
def test_no_event_of_what_is_not_durable(world: World, client: Client, maker: Client) -> None:
    client.live(0)
    world.auto_commit = False
    maker.send(maker.create(1))
    batch = world.engine.take_batch(world.now)
    assert batch is not None
    assert client.pull() == []
    world.engine.batch_durable(batch, world.now)
    assert len(client.pull()) == 1


@pytest.mark.req("P10-37", "P3-49")
def test_a_subscription_that_flows_is_never_charged_and_never_loses(
    world: World, client: Client, maker: Client
) -> None:
    subscription = client.live(0)
    healthy = 0
    for round_ in range(12):
        make(maker, 200, 1 + 200 * round_)
        healthy += 200
        client.pull()
        client.ask(client.credit(subscription, 200, 200 * size_of_event(client)))
    assert [event.event_sequence for event in client.events()] == list(range(1, 4_801, 2))
    assert client.gaps() == []
    assert world.engine.stats().queued_frames == 0


@pytest.mark.req("P10-01", "P10-04")
def test_the_states_of_a_subscription(world: World, client: Client, maker: Client) -> None:
    direct = client.live(0, 0, 0)
    snapshot = client.snapshot(reserve=True)
    reserved = snapshot.begin.subscription_id
    assert reserved is not None

    def state(subscription: bytes) -> SubscriptionState:
        return client.conn.subscriptions[SubscriptionId(subscription)].state

    assert state(direct) is SubscriptionState.LIVE
    assert state(reserved) is SubscriptionState.RESERVED_SNAPSHOT
    client.ask(client.applied(snapshot.begin))
    assert state(reserved) is SubscriptionState.LIVE
    make(maker, 1_025)
    client.pull()
    assert state(direct) is state(reserved) is SubscriptionState.PAUSED_GAP
    objects = list(client.conn.subscriptions.values())
    client.detach()
    assert {sub.state for sub in objects} == {SubscriptionState.CLOSED}


@pytest.mark.req("P3-50")
def test_a_disconnect_closes_its_subscriptions_and_their_queues(world: World, client: Client, maker: Client) -> None:
    client.live(0, 0, 0)
    client.live(0, 0, 0)
    make(maker, 10)
    assert world.engine.stats().queued_frames == 20
    client.detach()
    assert world.engine.stats().queued_frames == 0
    again = world.connect(1)
    again.fatal(again.credit(next(iter(client.conn.closed_subscriptions)), 1, 1), ErrorCode.PROTOCOL_ERROR)


@pytest.mark.req("P3-36", "P3-46")
@pytest.mark.parametrize(
    ("count", "nbytes", "queued"), [(9, 10, 2), (1, 9_000, 1), (2, 9_000, 0), (0, 0, 2), (0, 9_000, 2)]
)
def test_what_the_credit_does_not_cover_is_queued(
    world: World, client: Client, maker: Client, count: int, nbytes: int, queued: int
) -> None:
    client.live(0, count, nbytes)
    world.auto_commit = False
    for number in (1, 2):
        maker.send(maker.create(number))
    world.commit()
    assert world.engine.stats().queued_frames == queued, "charged when they become durable, not when they are taken"
    client.pull()
    assert len(client.events()) == (2 - queued if nbytes > 10 else 0)


@pytest.mark.req("P10-37", "P3-36")
def test_a_burst_that_the_credit_covers_is_no_overflow(world: World, client: Client, maker: Client) -> None:
    client.live(0, 1_024, 1 << 22)
    make(maker, 2_048)
    assert world.engine.stats().queued_frames == 1_024
    client.pull()
    assert (len(client.events()), client.gaps()) == (1_024, [])


@pytest.mark.req("P3-36")
def test_live_events_behind_unread_history_are_queued(world: World, client: Client, maker: Client) -> None:
    make(maker, 20)
    client.live(0, 5, 5_000)
    assert len(client.events()) == 5
    subscription = client.events()[0].subscription_id
    client.conn.writable = False
    client.ask(client.credit(subscription, 6, 6_000))
    client.conn.writable = True
    maker.send(maker.create(100))
    world.commit()
    assert world.engine.stats().queued_frames == 1


def test_two_live_subscriptions_take_turns(world: World, client: Client, maker: Client) -> None:
    first, second = client.live(0, 4_096, 1 << 23), client.live(0, 4_096, 1 << 23)
    make(maker, 200, document=bytes(5_000))
    client.received.clear()
    raw = client.conn.take(300_000, world.now)
    owners = [fr.CoordEvent.decode(frame[5:]).subscription_id for frame in raw]
    assert 290_000 < sum(map(len, raw)) < 310_000
    assert abs(owners.count(SubscriptionId(first)) - owners.count(SubscriptionId(second))) <= 14


def test_one_turn_steps_over_a_bounded_number_of_hidden_events() -> None:
    """A long run of hidden history is read in several turns, and the connection asks for them itself."""
    payload = pl.ObjectiveRecord(document_schema=1, document=b"d", state=ObjectiveState.ACTIVE)
    record = record_of(ObjectKind.OBJECTIVE, id16(1), 1, payload)
    hidden = [
        Event(sequence, id16(sequence), EventKind.OBJECTIVE_CHANGED, 1, id16(1), 1, 1, record.image, b"")
        for sequence in range(1, 10_001)
    ]
    world = World(state=State.build([record], [], hidden, 10_000))
    client = world.connect(1, scopes=Scope.SIGNAL_ACK | Scope.WORK_COMMAND)
    client.send(client.subscribe(0, 10, 10_000))
    (sub,) = client.conn.subscriptions.values()
    cursors = [0]
    while client.wakes:
        client.wakes = 0
        client.conn.take(1 << 20, world.now)
        cursors.append(sub.cursor)
    assert cursors == [0, 4_096, 8_192, 10_000]
    client.done(client.update(1))
    assert [event.event_kind for event in client.events()] == [EventKind.OPERATION_CHANGED]
