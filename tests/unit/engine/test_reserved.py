"""Reserved subscriptions: nothing between the cut and the live stream is lost (P9-23..27)."""

from __future__ import annotations

import pytest

from sidecar.coordinator.wire import frames as fr
from sidecar.coordinator.wire.enums import ErrorCode, GapReason
from sidecar.coordinator.wire.ids import SubscriptionId
from sidecar.coordinator.wire.limits import HARD
from tests.unit.engine.harness import SMALL, Client, World, id16


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def client(world: World) -> Client:
    return world.connect()


def begin_of(client: Client, *, reserve: bool = False) -> fr.SnapshotBegin:
    begin = client.ask(client.open_snapshot(reserve))[0]
    assert isinstance(begin, fr.SnapshotBegin)
    return begin


@pytest.mark.req("P9-23", "P9-24", "P9-25", "P10-04", "P10-11", "P14-12", "P15-06")
def test_events_after_the_cut_come_after_the_ack_all_of_them_once(world: World) -> None:
    client = world.connect(selected=SMALL)
    for number in range(1, 10):
        client.done(client.create(number))
    begin = begin_of(client, reserve=True)
    cursor, made = begin.first_cursor, 0
    while cursor is not None:
        page = client.ask(client.next_page(begin, cursor))[0]
        assert isinstance(page, fr.SnapshotPage)
        cursor, made = page.next_cursor, made + 1
        client.done(client.create(100 + made))
    assert client.events() == [], "no event before SNAPSHOT_APPLIED"
    applied = client.applied(begin, 3, 1_000)
    ack, *events = client.ask(applied)
    assert ack == fr.Ack(request_id=applied.request_id)
    assert len(events) == 3, "the credit of SNAPSHOT_APPLIED is all the credit there is"
    assert begin.subscription_id is not None
    client.ask(client.credit(begin.subscription_id, 500, 60_000))
    client.done(client.create(200))
    sequences = [event.event_sequence for event in client.events()]
    assert sequences == list(range(begin.base_event_sequence + 1, begin.base_event_sequence + 1 + len(sequences)))
    assert len(sequences) == 2 * (made + 1)
    assert [event.delivery_sequence for event in client.events()] == list(range(1, len(sequences) + 1))


@pytest.mark.req("P9-23", "P10-08")
def test_credit_before_applied_is_a_fault(client: Client) -> None:
    begin = begin_of(client, reserve=True)
    assert begin.subscription_id is not None
    client.fatal(client.credit(begin.subscription_id, 1, 1_000), ErrorCode.PROTOCOL_ERROR)


@pytest.mark.req("P9-23")
@pytest.mark.parametrize("case", ["other subscription", "no subscription", "credit without one", "too much", "bytes"])
def test_applied_must_fit_its_snapshot(world: World, client: Client, case: str) -> None:
    plain, reserved = begin_of(client), begin_of(client, reserve=True)
    frame = {
        "other subscription": client.applied(reserved, 1, 1, subscription=SubscriptionId(id16(9))),
        "no subscription": client.applied(reserved, 0, 0, subscription=None),
        "credit without one": client.applied(plain, 1, 0),
        "too much": client.applied(reserved, HARD.credit_count + 1, 0),
        "bytes": client.applied(reserved, 0, HARD.credit_bytes + 1),
    }[case]
    client.fatal(frame, ErrorCode.MALFORMED_MESSAGE)
    assert world.used() == {}


@pytest.mark.req("P9-23")
def test_applied_before_the_end_is_refused(client: Client) -> None:
    client.done(client.create(1))
    begin = begin_of(client, reserve=True)
    client.refused(client.applied(begin, 1, 1_000), ErrorCode.CURSOR_INVALID)
    client.ask(client.next_page(begin, begin.first_cursor))
    assert [type(frame) for frame in client.ask(client.applied(begin, 1, 1_000))] == [fr.Ack]


@pytest.mark.req("P9-27", "P10-17", "P10-20")
def test_overflow_before_applied_is_a_gap_and_the_snapshot_stays_a_cut(world: World) -> None:
    client = world.connect(selected=SMALL)
    maker = world.connect(2)
    for number in range(1, 6):
        client.done(client.create(number))
    base = 10
    begin = begin_of(client, reserve=True)
    page = client.ask(client.next_page(begin, begin.first_cursor))[0]
    assert isinstance(page, fr.SnapshotPage)
    for number in range(100, 613):
        maker.send(maker.create(number))
        maker.pull()
    (gap,) = [frame for frame in client.pull() if isinstance(frame, fr.Gap)]
    assert gap.subscription_id == begin.subscription_id
    assert (gap.reason, gap.last_contiguous_delivery, gap.last_contiguous_event) == (
        GapReason.QUEUE_OVERFLOW,
        0,
        base,
    )
    assert gap.observed_event == base + 1
    records = list(page.records)
    cursor = page.next_cursor
    while cursor is not None:
        page = client.ask(client.next_page(begin, cursor))[0]
        assert isinstance(page, fr.SnapshotPage)
        records += page.records
        cursor = page.next_cursor
    assert len(records) == 10
    client.refused(client.applied(begin, 10, 10_000), ErrorCode.CURSOR_INVALID)
    assert client.events() == []
    assert world.used()["subscriptions"] == 1


@pytest.mark.req("P9-25", "P10-20")
def test_an_expired_reservation_is_a_gap(world: World, client: Client) -> None:
    client.done(client.create(1))
    begin = begin_of(client, reserve=True)
    client.done(client.create(2))
    world.advance(60)
    (gap,) = client.pull()
    assert isinstance(gap, fr.Gap)
    assert (gap.subscription_id, gap.reason) == (begin.subscription_id, GapReason.CURSOR_INVALID)
    assert (gap.last_contiguous_delivery, gap.last_contiguous_event, gap.observed_event) == (0, 2, 3)
    assert "queue_frames" not in world.used()


def paused(world: World, client: Client) -> bytes:
    """A subscription of ``client`` that overflowed."""
    subscription = client.live(world.disk.last_sequence, 0, 0)
    maker = world.connect(2)
    for number in range(1, 514):
        maker.send(maker.create(10_000 + world.disk.last_sequence + number))
        maker.pull()
    client.pull()
    assert client.gaps()[-1].subscription_id == subscription
    maker.detach()
    return subscription


@pytest.mark.req("P9-26", "P3-34")
def test_a_paused_subscription_is_replaced_in_the_step_of_begin(world: World, client: Client) -> None:
    first = paused(world, client)
    for _ in range(31):
        client.live(0, 0, 0)
    assert world.used()["subscriptions"] == 32
    snapshot = client.snapshot(reserve=True, replace=first)
    assert world.used()["subscriptions"] == 32, "the new one took over the slot"
    assert first not in client.conn.subscriptions
    # Late credit for the closed one is no fault, and the old id can not be replaced again.
    client.ask(client.credit(first, 1, 1))
    client.refused(client.open_snapshot(reserve=True, replace=first), ErrorCode.NOT_FOUND)
    (ack,) = client.ask(client.applied(snapshot.begin, 10, 10_000))
    assert isinstance(ack, fr.Ack)
    client.done(client.create(1))
    new = [event for event in client.events() if event.subscription_id == snapshot.begin.subscription_id]
    assert [event.delivery_sequence for event in new] == [1, 2]


@pytest.mark.req("P9-26")
def test_a_refused_replacement_leaves_the_old_one_paused(world: World, client: Client) -> None:
    first = paused(world, client)
    for _ in range(8):
        client.ask(client.open_snapshot())
    client.refused(client.open_snapshot(reserve=True, replace=first), ErrorCode.RESOURCE_EXHAUSTED)
    world.advance(60)
    snapshot = client.snapshot(reserve=True, replace=first)
    assert snapshot.begin.subscription_id != first


@pytest.mark.req("P9-26")
def test_only_a_paused_subscription_of_this_connection_is_replaced(world: World, client: Client) -> None:
    live = client.live()
    other = world.connect()
    foreign = other.live(0, 0, 0)
    for wanted in (live, foreign, id16(77)):
        client.refused(client.open_snapshot(reserve=True, replace=wanted), ErrorCode.NOT_FOUND)
    client.fatal(client.open_snapshot(reserve=False, replace=live), ErrorCode.MALFORMED_MESSAGE)
