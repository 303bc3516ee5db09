"""Whole-authority snapshots, their leases and reserved subscriptions (P9)."""

from __future__ import annotations

import pytest

from cext.digest import sha256
from sidecar.coordinator.engine.pages import page_frame, page_room
from sidecar.coordinator.engine.state import Record, State
from sidecar.coordinator.wire import frames as fr
from sidecar.coordinator.wire.enums import ErrorCode, FrameType, GapReason, ObjectKind, Scope
from sidecar.coordinator.wire.errors import MalformedMessage
from sidecar.coordinator.wire.ids import SnapshotId
from sidecar.coordinator.wire.limits import Limits
from sidecar.coordinator.wire.records import SnapshotRecord
from tests.unit.engine.harness import SMALL, Client, World, id16, no_snapshot

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


@pytest.mark.req("P9-10", "P3-51")
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
    images = [record.encode() for record in records]
    joined = b"".join(images)
    for following in (None, b"n" * 32):
        built, covered = page_frame(FrameType.SNAPSHOT_PAGE, 7, id16(5), b"c" * 32, 4, images, following)
        frame = fr.SnapshotPage(
            request_id=7,
            snapshot_id=SnapshotId(id16(5)),
            cursor=b"c" * 32,
            page_index=4,
            records=records,
            next_cursor=following,
        )
        assert built == frame.encode()
        assert covered == joined, "the digest covers the images and nothing else"
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


@pytest.mark.req("P9-05", "P3-40")
def test_a_snapshot_is_not_applied_after_its_lease_also_before_the_tick(world: World, client: Client) -> None:
    client.done(client.create(1))
    snapshot = client.snapshot(reserve=True)
    world.advance(60, tick=False)
    answers = client.ask(client.applied(snapshot.begin, 1, 1_000))
    assert [type(answer) for answer in answers] == [fr.Gap, fr.CoordErrorFrame]
    assert client.errors()[0].code is ErrorCode.CURSOR_INVALID
    client.done(client.create(2))
    assert client.events() == []


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


@pytest.mark.req("P9-01", "P9-02", "P9-03")
@pytest.mark.parametrize("reserve", [False, True])
def test_there_is_no_selector_but_the_whole_authority(client: Client, reserve: bool) -> None:
    body = client.open_snapshot(reserve).body()
    selector = b"\x03\x04\x01\x00"
    assert body.count(selector) == 1
    for other in (b"\x03\x04\x01\x01", b"\x03\x04\x02\x00\x00"):
        with pytest.raises(MalformedMessage):
            fr.OpenSnapshot.decode(body.replace(selector, other))
    # Nothing else in any request narrows what a subscription or a snapshot holds.
    names = {item.name for shape in (fr.OpenSnapshot, fr.Subscribe, fr.SnapshotApplied) for item in shape.FIELDS}
    assert names == {
        "request_id",
        "authority_guard",
        "selector",
        "reserve_subscription",
        "replace_paused_subscription",
        "after_event_sequence",
        "initial_credit_count",
        "initial_credit_bytes",
        "snapshot_id",
        "subscription_id",
    }


@pytest.mark.req("P9-17")
def test_an_empty_snapshot_needs_no_room_for_a_page() -> None:
    tiny = World().connect(selected=Limits(8_192, 1, 1, 1, 64, 65_536))
    begin, end = tiny.ask(tiny.open_snapshot())
    assert isinstance(begin, fr.SnapshotBegin)
    assert isinstance(end, fr.SnapshotEnd)
    assert (begin.first_cursor, end.page_count, end.record_count) == (None, 0, 0)
