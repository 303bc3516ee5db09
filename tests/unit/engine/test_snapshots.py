"""Whole-authority snapshots, their leases and reserved subscriptions (P9)."""

from __future__ import annotations

import pytest

from cext.digest import sha256
from sidecar.coordinator.engine.pages import page_room, snapshot_page
from sidecar.coordinator.engine.state import Record, State
from sidecar.coordinator.wire import frames as fr
from sidecar.coordinator.wire.enums import ErrorCode, GapReason, ObjectKind, Scope
from sidecar.coordinator.wire.ids import SnapshotId, SubscriptionId
from sidecar.coordinator.wire.limits import HARD, Limits
from sidecar.coordinator.wire.records import SnapshotRecord
from tests.unit.engine.harness import Client, World, id16, no_snapshot

SMALL = Limits(8_192, 1_024, 3, 1_024, 1_024, 65_536)
SN_0 = "7f0654c190a977b008caf723729cfb8043464efa50c8ad0edcfe8a325a614d02"
SN_0B = "8333f099cb7ae2f2ae86fe67228b29349d238165362231897b2eab960867b5a0"
SN_1 = "6f2e8ea00111c87eac1e25d8b3bdef9cec63579afa831f46200d661b8dd6a707"
SN_5 = "44a8b5788e7c6228575b3b36702264d1e19158db016c2ebe74ab222b7d997bdf"
GOLDEN = (
    "0001222222222222222222222222222222220000000000000001000100000017010402000102040b000000077b2274223a317d03040100",
    "000233333333333333333333333333333333000000000000000200010000001e01041022222222222222222222222222222222"
    "0204040000000103040101",
    "000366666666666666666666666666666666000000000000000200010000002a01041033333333333333333333333333333333"
    "0204010003041077777777777777777777777777777777",
    "00047777777777777777777777777777777700000000000000010001000000600104597777777777777777777777777777777766666666"
    "666666666666666666666666" + "f1" * 32 + "f2" * 16 + "00000005000000000102040100",
    "0006bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb000000000000000100010000002901041066666666666666666666666666666666"
    "02040200020304010004040a00000006657869742031",
)
"""The five records of the snapshot vectors."""


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def client(world: World) -> Client:
    return world.connect()


def golden_world(images: tuple[str, ...], base: int) -> World:
    records = [SnapshotRecord.decode(bytes.fromhex(image)) for image in images]
    rows = [Record(record.kind, record.id, record.revision, record.encode()) for record in records]
    return World(state=State.build(rows, [], [], base))


def begin_of(client: Client, *, reserve: bool = False) -> fr.SnapshotBegin:
    begin = client.ask(client.open_snapshot(reserve))[0]
    assert isinstance(begin, fr.SnapshotBegin)
    return begin


@pytest.mark.req("P9-14", "P9-15", "P9-17", "P9-21")
@pytest.mark.parametrize(("base", "digest"), [(0, SN_0), (9, SN_0B)])
def test_an_empty_snapshot_ends_on_its_own_open(base: int, digest: str) -> None:
    client = golden_world((), base).connect()
    frame = client.open_snapshot()
    begin, end = client.ask(frame)
    assert isinstance(begin, fr.SnapshotBegin)
    assert isinstance(end, fr.SnapshotEnd)
    assert begin.first_cursor is None
    assert (begin.request_id, end.request_id) == (frame.request_id, frame.request_id)
    assert (end.page_count, end.record_count, end.canonical_sha256.hex()) == (0, 0, digest)
    assert begin.base_event_sequence == base
    assert client.ask(client.applied(begin)) == [fr.Ack(request_id=client.received[-1].fields.u32(1))]
    assert client.conn.leases == {}


@pytest.mark.req("P9-14", "P9-10", "P9-11", "P9-12", "P9-18", "P9-21")
@pytest.mark.parametrize("page_records", [1, 2, 3, 5, 1_024])
def test_the_digest_does_not_depend_on_the_pages(page_records: int) -> None:
    world = golden_world(GOLDEN, 9)
    selected = Limits(8_192, 4_096, page_records, 1_024, 16, 65_536)
    snapshot = world.connect(capabilities=0x1F, selected=selected).snapshot()
    assert snapshot.end.canonical_sha256.hex() == SN_5
    assert all(len(page.records) <= page_records for page in snapshot.pages)
    assert len(snapshot.pages) == -(-5 // page_records)
    assert [page.page_index for page in snapshot.pages] == list(range(len(snapshot.pages)))


@pytest.mark.req("P9-14", "P5-18")
def test_a_gated_family_is_left_out_and_the_digest_matches() -> None:
    world = golden_world((GOLDEN[0], GOLDEN[4]), 9)
    without = world.connect(capabilities=0).snapshot()
    assert without.end.canonical_sha256.hex() == SN_1
    assert without.kinds() == {ObjectKind.OBJECTIVE}
    assert len(world.connect(capabilities=8).snapshot().records) == 2


@pytest.mark.req("P9-10", "P3-28", "P3-27")
def test_pages_stay_below_records_and_bytes(world: World) -> None:
    maker = world.connect()
    for number in range(1, 40):
        maker.done(maker.create(number, b"x" * (number * 13)))
    client = world.connect(2, selected=SMALL, scopes=Scope.WORK_READ)
    client.send(client.open_snapshot())
    raw = client.conn.take(1 << 20, world.now)
    begin = fr.SnapshotBegin.decode(raw[0][5:])
    cursor, sizes = begin.first_cursor, []
    while cursor is not None:
        client.send(client.next_page(begin, cursor))
        raw = client.conn.take(1 << 20, world.now)
        page = fr.SnapshotPage.decode(raw[0][5:])
        assert len(raw[0]) - 5 <= SMALL.page_bytes
        assert 1 <= len(page.records) <= SMALL.page_records
        sizes.append(len(page.records))
        cursor = page.next_cursor
    assert sum(sizes) == 39
    assert {1, 3} <= set(sizes), "some pages are bounded by bytes, some by records"


@pytest.mark.req("P9-10")
def test_a_record_larger_than_the_selected_page_refuses_the_snapshot(world: World) -> None:
    maker = world.connect()
    room = page_room(SMALL.page_bytes, 32)
    maker.done(maker.create(1, b"x" * (room - 49)))
    small = world.connect(2, selected=SMALL, scopes=Scope.WORK_READ)
    assert len(small.snapshot().records) == 1
    maker.done(maker.update(1, b"x" * (room - 48)))
    held = world.used()
    small.refused(small.open_snapshot(reserve=True), ErrorCode.RESOURCE_EXHAUSTED)
    assert world.used() == held


@pytest.mark.req("P9-11")
def test_a_page_built_from_images_is_the_frame_of_the_table() -> None:
    records = tuple(SnapshotRecord.decode(bytes.fromhex(image)) for image in GOLDEN)
    joined = b"".join(record.encode() for record in records)
    for following in (None, b"n" * 32):
        built = snapshot_page(7, id16(5), b"c" * 32, 4, len(records), joined, following)
        frame = fr.SnapshotPage(
            request_id=7,
            snapshot_id=SnapshotId(id16(5)),
            cursor=b"c" * 32,
            page_index=4,
            records=records,
            next_cursor=following,
        )
        assert built == frame.encode()
        assert len(built) - 5 <= page_room(len(joined) + 200, 32) + 200


@pytest.mark.req("P9-13", "P9-12")
def test_the_cut_does_not_move(world: World) -> None:
    client = world.connect(selected=SMALL)
    for number in range(1, 10):
        client.done(client.create(number, b"before"))
    begin = begin_of(client)
    seen: list[SnapshotRecord] = []
    cursor = begin.first_cursor
    while cursor is not None:
        (page, *_) = client.ask(client.next_page(begin, cursor))
        assert isinstance(page, fr.SnapshotPage)
        seen += page.records
        cursor = page.next_cursor
        for number in range(1, 10):
            client.done(client.update(number, b"after"))
        client.done(client.create(100 + len(seen)))
    objectives = [record for record in seen if record.kind is ObjectKind.OBJECTIVE]
    assert len(objectives) == 9
    assert all(b"before" in record.payload and record.revision == 1 for record in objectives)
    assert len(seen) == 18
    assert begin.base_event_sequence == 18
    assert [record.key() for record in seen] == sorted({record.key() for record in seen})


@pytest.mark.req("P9-22", "P9-05")
def test_begin_returns_guard_base_lease_and_a_subscription_iff_reserved(world: World, client: Client) -> None:
    client.done(client.create(1))
    plain, reserved = begin_of(client), begin_of(client, reserve=True)
    assert plain.subscription_id is None
    assert reserved.subscription_id is not None
    assert plain.authority_guard == client.guard
    assert plain.base_event_sequence == reserved.base_event_sequence == 2
    assert plain.lease_expires_at == int(world.now.wall) + 60
    assert plain.snapshot_id != reserved.snapshot_id


@pytest.mark.req("P9-08")
def test_cursors_are_random_short_and_new_every_time(world: World) -> None:
    client = world.connect(selected=SMALL)
    for number in range(1, 20):
        client.done(client.create(number))
    cursors: list[bytes] = []
    for _ in range(3):
        snapshot = client.snapshot()
        cursors += [snapshot.begin.first_cursor or b"", *(page.next_cursor or b"" for page in snapshot.pages[:-1])]
    assert len(set(cursors)) == len(cursors) > 30
    assert {len(cursor) for cursor in cursors} == {32}
    entropy = {sha256(b"entropy" + number.to_bytes(8, "big"))[:32] for number in range(1, 1_000)}
    assert set(cursors) <= entropy, "every byte of a cursor comes from the entropy source"


@pytest.mark.req("P9-09", "P9-08", "P9-05")
@pytest.mark.parametrize(
    "case", ["repeated", "guessed", "foreign", "other principal", "expired", "released", "unknown"]
)
def test_a_cursor_that_is_not_the_next_one_is_refused_and_nothing_is_substituted(world: World, case: str) -> None:
    client = world.connect(selected=SMALL)
    for number in range(1, 6):
        client.done(client.create(number))
    begin = begin_of(client)
    second = client.ask(client.next_page(begin, begin.first_cursor))[0]
    assert isinstance(second, fr.SnapshotPage)
    sender, frame = client, client.next_page(begin, second.next_cursor)
    if case == "repeated":
        frame = client.next_page(begin, begin.first_cursor)
    elif case == "guessed":
        frame = client.next_page(begin, bytes(32))
    elif case == "foreign":
        frame = client.next_page(begin_of(client), second.next_cursor)
    elif case == "other principal":
        sender = world.connect(2)
        frame = sender.next_page(begin, second.next_cursor)
    elif case == "expired":
        world.advance(60)
    elif case == "released":
        last = client.ask(client.next_page(begin, second.next_cursor))
        while not isinstance(last[-1], fr.SnapshotEnd):
            assert isinstance(last[0], fr.SnapshotPage)
            last = client.ask(client.next_page(begin, last[0].next_cursor))
        client.ask(client.applied(begin))
        frame = client.next_page(begin, begin.first_cursor)
    else:
        frame = fr.SnapshotNext(request_id=900, snapshot_id=no_snapshot(), cursor=second.next_cursor or b"")
    before = len(sender.received)
    sender.refused(frame, ErrorCode.CURSOR_INVALID)
    assert not any(isinstance(answer, fr.SnapshotPage) for answer in sender.received[before:])
    if case in ("repeated", "guessed", "foreign", "unknown"):
        # The good cursor is still good.
        assert isinstance(client.ask(client.next_page(begin, second.next_cursor))[0], fr.SnapshotPage)


@pytest.mark.req("P9-09", "P4-13")
def test_a_snapshot_of_another_activation_is_unknown(world: World, client: Client) -> None:
    client.done(client.create(1))
    begin = begin_of(client)
    successor = world.restart().connect()
    successor.refused(successor.next_page(begin, begin.first_cursor), ErrorCode.CURSOR_INVALID)


@pytest.mark.req("P9-07")
def test_one_next_is_outstanding_at_a_time(world: World) -> None:
    client = world.connect(selected=SMALL)
    for number in range(1, 6):
        client.done(client.create(number))
    begin = begin_of(client)
    first, second = client.next_page(begin, begin.first_cursor), client.next_page(begin, begin.first_cursor)
    client.send(first)
    client.send(second)
    page, error = client.pull()
    assert isinstance(page, fr.SnapshotPage)
    assert isinstance(error, fr.CoordErrorFrame)
    assert (page.request_id, error.request_id) == (first.request_id, second.request_id)
    assert error.code is ErrorCode.CURSOR_INVALID
    assert isinstance(client.ask(client.next_page(begin, page.next_cursor))[0], fr.SnapshotPage)


@pytest.mark.req("P9-19", "P9-20", "P7-10")
def test_when_the_request_ids_are_free_again(world: World) -> None:
    client = world.connect(selected=SMALL)
    for number in range(1, 4):
        client.done(client.create(number))
    begin = begin_of(client)
    assert client.conn.requests == set(), "OPEN ends at BEGIN"
    client.send(client.next_page(begin, begin.first_cursor, request=900))
    frames = client.conn.take(1 << 20, world.now)
    assert len(frames) == 1
    assert client.conn.requests == set(), "a NEXT that is not the last ends at PAGE"
    page = fr.SnapshotPage.decode(frames[0][5:])
    client.send(client.next_page(begin, page.next_cursor, request=900))
    last = client.conn.take(1, world.now)
    assert [frame[4] for frame in last] == [fr.SnapshotPage.TYPE]
    assert fr.SnapshotPage.decode(last[0][5:]).next_cursor is None
    assert client.conn.requests == {900}, "the last NEXT ends at END"
    error = client.fatal(client.next_page(begin, b"x", request=900), ErrorCode.MALFORMED_MESSAGE)
    assert error.request_id == 900


@pytest.mark.req("P9-19", "P13-09")
def test_the_end_follows_its_last_page_at_once(client: Client) -> None:
    client.done(client.create(1))
    client.live(0, 0, 0)
    begin = begin_of(client)
    client.send(client.next_page(begin, begin.first_cursor, request=500))
    client.send(client.lookup(id16(1)))
    answers = client.pull()
    assert [type(answer) for answer in answers] == [fr.SnapshotPage, fr.SnapshotEnd, fr.OperationResultFrame]
    assert answers[0].fields.u32(1) == answers[1].fields.u32(1) == 500


@pytest.mark.req("P3-40", "P9-05", "P3-50")
def test_a_lease_lasts_sixty_seconds(world: World) -> None:
    client = world.connect(selected=SMALL)
    for number in range(1, 6):
        client.done(client.create(number))
    begin = begin_of(client)
    world.advance(59.9)
    assert world.engine.next_deadline() == pytest.approx(world.now.mono + 0.1)
    page = client.ask(client.next_page(begin, begin.first_cursor))[0]
    assert isinstance(page, fr.SnapshotPage)
    world.advance(0.1)
    assert world.used() == {"connections": 1}
    client.refused(client.next_page(begin, page.next_cursor), ErrorCode.CURSOR_INVALID)
    client.refused(client.applied(begin), ErrorCode.CURSOR_INVALID)


@pytest.mark.req("P3-40", "P9-09")
@pytest.mark.parametrize("tick", [True, False])
def test_a_page_ordered_in_time_and_taken_too_late_is_refused(world: World, client: Client, tick: bool) -> None:
    client.done(client.create(1))
    begin = begin_of(client)
    world.advance(59)
    client.conn.writable = False
    frame = client.next_page(begin, begin.first_cursor)
    client.send(frame)
    assert client.pull() == []
    world.advance(61, tick=tick)
    client.conn.writable = True
    (error,) = client.pull()
    assert isinstance(error, fr.CoordErrorFrame)
    assert (error.request_id, error.code) == (frame.request_id, ErrorCode.CURSOR_INVALID)


@pytest.mark.req("P9-05", "P4-13")
def test_an_expired_lease_is_refused_also_before_the_tick(world: World, client: Client) -> None:
    client.done(client.create(1))
    begin = begin_of(client, reserve=True)
    world.advance(60, tick=False)
    answers = client.ask(client.next_page(begin, begin.first_cursor))
    assert {type(answer) for answer in answers} == {fr.Gap, fr.CoordErrorFrame}
    assert client.gaps()[0].reason is GapReason.CURSOR_INVALID


@pytest.mark.req("P9-06", "P3-50")
def test_a_disconnect_releases_leases_and_reservations(world: World, client: Client) -> None:
    client.done(client.create(1))
    for _ in range(3):
        begin_of(client, reserve=True)
    assert world.used()["leases"] == 3
    assert world.used()["pinned_bytes"] > 0
    client.detach()
    assert world.used() == {}


@pytest.mark.req("P9-04", "P3-44", "P3-50")
def test_pinned_bytes_are_given_back_at_the_end_and_the_slot_at_applied(world: World, client: Client) -> None:
    client.done(client.create(1))
    snapshot = client.snapshot()
    assert "pinned_bytes" not in world.used()
    assert world.used()["leases"] == 1
    ack = client.ask(client.applied(snapshot.begin))
    assert [type(frame) for frame in ack] == [fr.Ack]
    assert world.used() == {"connections": 1}
    client.refused(client.applied(snapshot.begin), ErrorCode.CURSOR_INVALID)


# ---- reserved subscriptions ----


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
