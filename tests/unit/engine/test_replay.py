"""Healing by replay: what a paused subscription missed, and how it goes on (P10-22..36)."""

from __future__ import annotations

import pytest

from sidecar.coordinator.authority.grants import Registry
from sidecar.coordinator.engine.pages import page_room
from sidecar.coordinator.engine.subscription import SubscriptionState
from sidecar.coordinator.wire import frames as fr
from sidecar.coordinator.wire.enums import ErrorCode, EventKind, GapReason, Scope
from sidecar.coordinator.wire.events import IMAGE_HEAD_BYTES
from sidecar.coordinator.wire.limits import HARD, Limits
from tests.unit.engine.harness import Client, World, id16, make
from tests.unit.engine.replays import (
    PAGES_OF_THREE,
    QUEUE,
    REPLAY,
    Replay,
    applied,
    begin_replay,
    next_page,
    open_replay,
    pause,
    pause_by_expiry,
    reader_of,
    small_world,
    state,
)


@pytest.fixture
def world() -> World:
    return small_world()


@pytest.fixture
def maker(world: World) -> Client:
    """Another principal: of the two events of each of its commands ``reader`` sees one."""
    return world.connect(2)


@pytest.fixture
def reader(world: World) -> Client:
    return reader_of(world)


@pytest.mark.req("P10-25", "P10-27", "P10-34", "P10-33", "P10-11", "P10-14", "P14-13", "P10-13")
def test_a_replay_heals_without_loss_and_without_repetition(world: World, reader: Client, maker: Client) -> None:
    subscription = reader.live(0, 3, 1_000)
    watcher = world.connect(3, scopes=Scope.WORK_READ)
    watcher.live(0)
    make(maker, 3)
    reader.pull()
    watcher.pull()
    make(maker, 9, 100)
    reader.pull()
    assert (len(reader.events()), [gap.last_contiguous_event for gap in reader.gaps()]) == (3, [5])
    replay = Replay(reader, subscription, 5)
    assert replay.begin.replay_cut == 24
    assert replay.sequences == [7, 9, 11, 13, 15, 17, 19, 21, 23]
    make(maker, 4, 200)
    assert reader.pull() == [], "nothing before the replay is applied"
    later = replay.apply()
    make(maker, 2, 300)
    later += reader.pull()
    assert [event.delivery_sequence for event in later if isinstance(event, fr.CoordEvent)] == [4, 5, 6, 7, 8, 9]
    assert [event.event_sequence for event in later if isinstance(event, fr.CoordEvent)] == [25, 27, 29, 31, 33, 35]
    # Delivered or replayed, an event is the same, and none is missing.
    assert watcher.gaps() == []
    watcher.pull()
    told = [(event.event_sequence, event.event_id, event.payload) for event in reader.events()]
    told += [(event.event_sequence, event.event_id, event.payload) for event in replay.events]
    assert sorted(told) == [(event.event_sequence, event.event_id, event.payload) for event in watcher.events()]
    assert world.used() == {"connections": 3, "subscriptions": 2}


@pytest.mark.req("P10-23")
def test_only_a_paused_subscription_of_this_connection_is_replayed(world: World, reader: Client, maker: Client) -> None:
    paused = pause(reader, maker)
    twin = reader_of(world)
    live = twin.live()
    reserved = twin.ask(twin.open_snapshot(reserve=True))[0]
    assert isinstance(reserved, fr.SnapshotBegin)
    assert reserved.subscription_id is not None
    # Another connection, also of the same principal, has no such subscription (OPEN P10-d).
    for unknown in (paused, id16(77)):
        twin.refused(open_replay(twin, unknown, 0), ErrorCode.NOT_FOUND)
    for other in (live, reserved.subscription_id):
        twin.refused(open_replay(twin, other, 0), ErrorCode.CURSOR_INVALID)
    begin_replay(reader, paused)
    reader.refused(open_replay(reader, paused, 0), ErrorCode.CURSOR_INVALID)


@pytest.mark.req("P10-24")
@pytest.mark.parametrize("off", [-1, 1])
def test_a_replay_starts_at_the_last_contiguous_event(world: World, reader: Client, maker: Client, off: int) -> None:
    make(maker, 3)
    subscription = pause(reader, maker)
    reader.fatal(open_replay(reader, subscription, 6 + off), ErrorCode.MALFORMED_MESSAGE)
    assert world.used() == {"connections": 1}


@pytest.mark.req("P10-24", "P10-20")
def test_hidden_events_do_not_move_the_place_where_a_replay_starts(world: World, reader: Client) -> None:
    blind = world.connect(1, scopes=Scope.WORK_COMMAND, capabilities=REPLAY)
    maker = world.connect(2)
    subscription = blind.live(0, 100, 60_000)
    make(maker, 3)
    blind.done(blind.create(50))
    make(maker, 3, 100)
    blind.pull()
    (event,) = blind.events()
    blind.conn.writable = False
    for number in range(QUEUE + 1):
        blind.send(blind.create(60 + number))
        world.commit()
    blind.conn.writable = True
    blind.pull()
    (gap,) = blind.gaps()
    assert (gap.last_contiguous_event, event.event_sequence) == (8, 8)
    replay = Replay(blind, subscription, 8)
    assert len(replay.events) == QUEUE + 1
    assert {found.event_kind for found in replay.events} == {EventKind.OPERATION_CHANGED}


@pytest.mark.req("P10-27", "P10-29", "P9-17", "P14-11")
def test_an_empty_replay_ends_on_its_own_open(world: World, reader: Client) -> None:
    subscription = pause_by_expiry(reader)
    (gap,) = reader.gaps()
    assert (gap.reason, gap.last_contiguous_delivery, gap.last_contiguous_event) == (GapReason.CURSOR_INVALID, 0, 0)
    replay = Replay(reader, subscription, 0)
    assert (replay.begin.first_event, replay.begin.first_cursor) == (None, None)
    assert (replay.end.page_count, replay.end.event_count, replay.begin.replay_cut) == (0, 0, 0)
    assert reader.conn.requests == set(), "the request ends at END"
    assert replay.apply(1, 1_000) == []
    maker = world.connect(2)
    make(maker, 1)
    (event,) = reader.pull()
    assert isinstance(event, fr.CoordEvent)
    assert (event.delivery_sequence, event.event_sequence) == (1, 1)


@pytest.mark.req("P10-33", "P10-07", "P10-06", "P14-12")
@pytest.mark.parametrize(("count", "spare", "sent"), [(1, 0, 1), (1, -1, 0), (0, 500, 0), (2, 0, 1), (2, 1_000, 2)])
def test_the_resumed_credit_is_all_the_credit_there_is(
    world: World, reader: Client, maker: Client, count: int, spare: int, sent: int
) -> None:
    subscription = reader.live(0, 1_000, 200)
    make(maker, 1)
    reader.pull()
    make(maker, QUEUE + 1, 50)
    reader.pull()
    assert reader.gaps()[-1].last_contiguous_delivery == 1, "there was credit left, and it is gone"
    replay = Replay(reader, subscription, 1)
    make(maker, 2, 100)
    size = len(reader.events()[0].encode())
    assert len(replay.apply(count, size + spare)) == sent
    reader.ask(reader.credit(subscription, 2, 2 * size))
    assert [event.delivery_sequence for event in reader.events()] == [1, 2, 3]
    assert [event.event_sequence for event in reader.events()] == [1, 21, 23]


@pytest.mark.req("P10-33")
def test_a_resumed_subscription_that_had_stalled_is_woken_by_the_next_event(reader: Client, maker: Client) -> None:
    subscription = reader.live(0, 0, 0)
    make(maker, 1)
    assert reader.pull() == []
    assert state(reader, subscription).stalled
    make(maker, QUEUE, 50)
    reader.pull()
    replay = Replay(reader, subscription, 0)
    assert replay.apply() == []
    before = reader.wakes
    maker.done(maker.create(7))
    assert reader.wakes == before + 1


@pytest.mark.req("P10-33")
@pytest.mark.parametrize("case", ["count", "bytes", "other subscription"])
def test_applied_must_fit_its_replay(world: World, reader: Client, maker: Client, case: str) -> None:
    maker.detach()
    begin = Replay(reader, pause(reader, world.connect(3)), 0).begin
    frame = {
        "count": applied(reader, begin, HARD.credit_count + 1),
        "bytes": applied(reader, begin, 0, HARD.credit_bytes + 1),
        "other subscription": applied(reader, begin, subscription=id16(9)),
    }[case]
    reader.fatal(frame, ErrorCode.MALFORMED_MESSAGE)
    assert world.used() == {"connections": 1}


@pytest.mark.req("P10-08")
def test_credit_while_replaying_is_a_fault(reader: Client, maker: Client) -> None:
    subscription = pause(reader, maker)
    reader.ask(reader.credit(subscription, 1, 1))
    begin_replay(reader, subscription)
    reader.fatal(reader.credit(subscription, 1, 1), ErrorCode.PROTOCOL_ERROR)


@pytest.mark.req("P10-28", "P10-36", "P9-26")
def test_what_is_not_retained_is_a_gap_and_leaves_the_snapshot() -> None:
    world = small_world(event_count=30)
    reader, maker = reader_of(world), world.connect(2)
    subscription = pause(reader, maker)
    make(maker, 6, 500)
    assert world.engine.stats().retained_from == 1
    assert len(Replay(reader, subscription, 0).events) == 15
    world.advance(60)
    make(maker, 1, 600)
    assert world.engine.stats().retained_from == 3
    held, gaps = world.used(), len(reader.gaps())
    request = open_replay(reader, subscription, 0)
    gap, error = reader.ask(request)
    assert isinstance(gap, fr.Gap)
    assert (gap.subscription_id, gap.reason, gap.observed_event) == (subscription, GapReason.RETENTION, None)
    assert (gap.last_contiguous_delivery, gap.last_contiguous_event) == (0, 0)
    assert isinstance(error, fr.CoordErrorFrame)
    assert (error.request_id, error.code) == (request.request_id, ErrorCode.CURSOR_INVALID)
    assert (world.used(), len(reader.gaps())) == (held, gaps + 1)
    assert state(reader, subscription).state is SubscriptionState.PAUSED_GAP
    snapshot = reader.snapshot(reserve=True, replace=subscription)
    reader.ask(reader.applied(snapshot.begin, 10, 10_000))
    make(maker, 1, 700)
    assert [event.event_sequence for event in reader.pull() if isinstance(event, fr.CoordEvent)] == [33]


@pytest.mark.req("P10-28")
@pytest.mark.parametrize(("retained", "heals"), [(20, True), (19, False)])
def test_one_missing_event_is_one_too_many(retained: int, heals: bool) -> None:
    world = small_world(event_count=retained)
    reader, maker = reader_of(world), world.connect(2)
    subscription = pause(reader, maker, missed=QUEUE + 1)
    make(maker, 1, 500)
    assert world.engine.stats().durable_sequence == 20
    kinds = [type(frame) for frame in reader.ask(open_replay(reader, subscription, 0))]
    assert kinds == ([fr.ReplayBegin] if heals else [fr.Gap, fr.CoordErrorFrame])


@pytest.mark.req("P10-28")
def test_a_subscription_that_began_outside_the_log_can_only_be_replaced() -> None:
    world = small_world(event_count=4)
    make(world.connect(2), 5)
    reader = reader_of(world)
    subscribed, gap = reader.ask(reader.subscribe(0, 10, 10_000))
    assert isinstance(subscribed, fr.Subscribed)
    assert isinstance(gap, fr.Gap)
    gap, error = reader.ask(open_replay(reader, subscribed.subscription_id, 0))
    assert isinstance(gap, fr.Gap)
    assert gap.reason is GapReason.RETENTION
    assert isinstance(error, fr.CoordErrorFrame)


@pytest.mark.req("P10-28", "P10-13")
def test_hidden_events_need_not_be_retained() -> None:
    """What was stepped over before the pause is known to be hidden, whether or not it is still there."""
    world = small_world(event_count=30)
    blind, maker = world.connect(1, scopes=Scope.WORK_COMMAND, capabilities=REPLAY), world.connect(2)
    subscription = blind.live(0, 0, 0)
    make(maker, 30)
    blind.pull()
    for number in range(QUEUE + 1):
        blind.send(blind.create(500 + number))
        world.commit()
    blind.pull()
    (gap,) = blind.gaps()
    assert (gap.last_contiguous_event, world.engine.stats().retained_from) == (0, 49)
    assert len(Replay(blind, subscription, 0).events) == QUEUE + 1


@pytest.mark.req("P10-35", "P10-17", "P10-18", "P10-20")
def test_overflow_while_replaying_is_a_gap_that_ends_the_replay(world: World, reader: Client, maker: Client) -> None:
    subscription = pause(reader, maker)
    held = world.used()
    begin = begin_replay(reader, subscription)
    asked = next_page(reader, begin.replay_id, begin.first_cursor)
    reader.conn.writable = False
    reader.send(asked)
    make(maker, QUEUE, 500)
    assert reader.pull() == []
    make(maker, 1, 600)
    (gap,) = reader.pull()
    assert isinstance(gap, fr.Gap)
    assert (gap.subscription_id, gap.reason) == (subscription, GapReason.QUEUE_OVERFLOW)
    # Nothing of the replay counts: the subscription stands where it stood.
    assert (gap.last_contiguous_delivery, gap.last_contiguous_event, gap.observed_event) == (0, 0, 1)
    assert world.used() == held | {"requests": 1}
    reader.conn.writable = True
    (error,) = reader.pull()
    assert isinstance(error, fr.CoordErrorFrame)
    assert (error.request_id, error.code) == (asked.request_id, ErrorCode.CURSOR_INVALID)
    reader.refused(next_page(reader, begin.replay_id, begin.first_cursor), ErrorCode.CURSOR_INVALID)
    reader.refused(applied(reader, begin), ErrorCode.CURSOR_INVALID)
    again = Replay(reader, subscription, 0)
    assert len(again.events) == 2 * QUEUE + 2
    assert again.apply() == []


@pytest.mark.req("P10-35")
def test_overflow_behind_the_end_makes_applied_come_too_late(world: World, reader: Client, maker: Client) -> None:
    subscription = pause(reader, maker)
    begin = Replay(reader, subscription, 0).begin
    make(maker, QUEUE + 1, 500)
    assert [type(frame) for frame in reader.pull()] == [fr.Gap]
    reader.refused(applied(reader, begin, 5, 5_000), ErrorCode.CURSOR_INVALID)
    assert state(reader, subscription).state is SubscriptionState.PAUSED_GAP
    assert reader.events() == []


@pytest.mark.req("P10-17", "P10-35", "P10-20", "P10-28")
def test_a_queued_event_that_leaves_the_log_while_replaying_is_a_gap() -> None:
    world = small_world(event_count=8)
    reader, maker = reader_of(world), world.connect(2)
    subscription = pause_by_expiry(reader)
    make(maker, 1)
    begin = begin_replay(reader, subscription)
    make(maker, 4, 500)
    assert (world.engine.stats().retained_from, reader.pull()) == (3, [])
    make(maker, 1, 600)
    assert world.engine.stats().retained_from == 5
    (gap,) = reader.pull()
    assert isinstance(gap, fr.Gap)
    assert (gap.reason, gap.last_contiguous_event, gap.observed_event) == (GapReason.RETENTION, 0, None)
    reader.refused(next_page(reader, begin.replay_id, begin.first_cursor), ErrorCode.CURSOR_INVALID)
    assert [type(frame) for frame in reader.ask(open_replay(reader, subscription, 0))] == [fr.Gap, fr.CoordErrorFrame]


@pytest.mark.req("P10-29", "P10-35")
def test_a_replay_keeps_its_events_when_the_log_loses_them(world: World) -> None:
    world = small_world(event_count=20)
    reader, maker = reader_of(world, selected=PAGES_OF_THREE), world.connect(2)
    subscription = pause(reader, maker)
    begin = begin_replay(reader, subscription)
    make(maker, 7, 500)
    assert world.engine.stats().retained_from == 13
    seen: list[int] = []
    cursor = begin.first_cursor
    while cursor is not None:
        page = reader.ask(next_page(reader, begin.replay_id, cursor))[0]
        assert isinstance(page, fr.ReplayPage)
        seen += [int(event.event_sequence) for event in page.events]
        cursor = page.next_cursor
    assert seen == [1, 3, 5, 7, 9, 11, 13, 15, 17]
    reader.ask(applied(reader, begin, 100, 60_000))
    assert [event.event_sequence for event in reader.events()] == [19, 21, 23, 25, 27, 29, 31]


@pytest.mark.req("P10-18", "P3-40", "P3-50")
@pytest.mark.parametrize("ended", [False, True])
def test_a_replay_that_expires_pauses_again_without_a_word(
    world: World, reader: Client, maker: Client, ended: bool
) -> None:
    """OPEN P10-h."""
    subscription = pause(reader, maker)
    paused = world.used()
    begin = Replay(reader, subscription, 0).begin if ended else begin_replay(reader, subscription)
    make(maker, 3, 500)
    assert world.used()["queue_frames"] == 3
    world.advance(60)
    assert reader.pull() == []
    assert world.used() == paused
    assert world.observer.count("lease_expired", "replay") == 1
    reader.refused(applied(reader, begin), ErrorCode.CURSOR_INVALID)
    reader.ask(reader.credit(subscription, 1, 1))
    again = Replay(reader, subscription, 0)
    assert len(again.events) == QUEUE + 4
    assert again.apply() == []


@pytest.mark.req("P10-36", "P9-26")
def test_a_replaying_subscription_is_not_replaced_and_a_paused_one_is(
    world: World, reader: Client, maker: Client
) -> None:
    subscription = pause(reader, maker)
    begin_replay(reader, subscription)
    reader.refused(reader.open_snapshot(reserve=True, replace=subscription), ErrorCode.NOT_FOUND)
    world.advance(60)
    assert reader.snapshot(reserve=True, replace=subscription).begin.subscription_id != subscription
    reader.refused(open_replay(reader, subscription, 0), ErrorCode.NOT_FOUND)


@pytest.mark.req("P10-29", "P3-51")
@pytest.mark.parametrize("limit", ["typed payload", "page"])
def test_an_event_that_the_peer_can_not_take_refuses_the_replay(world: World, maker: Client, limit: str) -> None:
    """OPEN P3-g: at the limit it is served; one byte above it is refused, and nothing is held."""
    record = 49
    document, selected = 300 - record, Limits(8_192, 4_096, 16, 300, 4_096, 65_536)
    if limit == "page":
        document = page_room(1_024, 32) - IMAGE_HEAD_BYTES - record
        selected = Limits(8_192, 1_024, 16, 4_096, 4_096, 65_536)
    reader = reader_of(world, selected=selected)
    fits = pause(reader, maker, missed=1 + QUEUE, document=bytes(document))
    replay = Replay(reader, fits, 0)
    assert len(replay.events) == 1 + QUEUE
    if limit == "typed payload":
        assert {len(event.payload) for event in replay.events} == {300}
    else:
        assert all(1_020 <= len(page.body()) <= 1_024 for page in replay.pages[:-1])
    replay.apply()
    world.advance(1)
    second = reader_of(world, selected=selected)
    above = pause(second, maker, document=bytes(document + 1))
    held = world.used()
    second.refused(open_replay(second, above, state(second, above).last_event), ErrorCode.RESOURCE_EXHAUSTED)
    assert world.used() == held
    assert state(second, above).state is SubscriptionState.PAUSED_GAP


@pytest.mark.req("P10-17", "P12-17", "W8-09")
@pytest.mark.parametrize("reason", [GapReason.GRANT_REVOKED, GapReason.EPOCH_CHANGED])
def test_the_end_of_the_authority_is_a_gap_for_a_replaying_subscription(
    world: World, reader: Client, maker: Client, reason: GapReason
) -> None:
    subscription = pause(reader, maker)
    begin_replay(reader, subscription)
    if reason is GapReason.EPOCH_CHANGED:
        world.engine.fence("the disk is gone")
    else:
        world.engine.set_registry(Registry((), 2), world.now)
    gap, error = reader.pull()
    assert isinstance(gap, fr.Gap)
    assert (gap.subscription_id, gap.reason, gap.last_contiguous_event) == (subscription, reason, 0)
    assert isinstance(error, fr.CoordErrorFrame)
    assert world.used().keys() <= {"connections"}


@pytest.mark.req("P10-25", "P10-17")
def test_a_gap_never_overtakes_the_begin_of_its_replay(world: World, reader: Client, maker: Client) -> None:
    subscription = pause(reader, maker)
    reader.send(open_replay(reader, subscription, 0))
    make(maker, QUEUE + 1, 500)
    assert [type(frame) for frame in reader.pull()] == [fr.ReplayBegin, fr.Gap]


@pytest.mark.req("P10-34", "P10-20")
def test_a_gap_behind_a_replay_counts_from_its_cut(world: World, reader: Client, maker: Client) -> None:
    subscription = pause(reader, maker)
    replay = Replay(reader, subscription, 0)
    replay.apply(0, 0)
    make(maker, QUEUE + 1, 500)
    (gap,) = reader.pull()
    assert isinstance(gap, fr.Gap)
    assert (gap.last_contiguous_delivery, gap.last_contiguous_event) == (0, replay.begin.replay_cut)
    assert gap.observed_event == replay.begin.replay_cut + 1
    again = Replay(reader, subscription, replay.begin.replay_cut)
    assert again.sequences == [int(gap.observed_event) + 2 * at for at in range(QUEUE + 1)]
    assert again.apply() == []
