"""Pages, cursors, leases and quotas of replays: the rules of P9 on replay frames (P10-29)."""

from __future__ import annotations

import itertools

import pytest

from cext.digest import sha256
from sidecar.coordinator.engine.log import EventLog, LogEntry, replay_event
from sidecar.coordinator.engine.pages import page_frame
from sidecar.coordinator.engine.policy import Policy
from sidecar.coordinator.engine.state import Event, State
from sidecar.coordinator.engine.subscription import SubscriptionState
from sidecar.coordinator.engine.visibility import Visibility
from sidecar.coordinator.machines.subscription import SubscriptionEvent
from sidecar.coordinator.wire import frames as fr
from sidecar.coordinator.wire.enums import Capability, ErrorCode, EventKind, FrameType, ObjectKind, Scope
from sidecar.coordinator.wire.events import IMAGE_HEAD_BYTES
from sidecar.coordinator.wire.ids import ReplayId
from sidecar.coordinator.wire.limits import LEASE_SECONDS, Limits, QuotaCaps
from sidecar.coordinator.wire.records import ReplayEvent
from tests.unit.engine.fakes import FakeAuthority
from tests.unit.engine.harness import SMALL, Client, World, id16, make
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

EVENT_10 = (
    "000000000000000ae1e1e1e1e1e1e1e1e1e1e1e1e1e1e1e10001000122222222222222222222222222222222000000000000000200010000003700"
    "01222222222222222222222222222222220000000000000002000100000017010402000102040b000000077b2274223a317d03040100"
)
EVENT_12 = (
    "000000000000000ce2e2e2e2e2e2e2e2e2e2e2e2e2e2e2e2000c0004777777777777777777777777777777770000000000000002000100000050"
    "77777777777777777777777777777777" + "f1" * 32 + "f2" * 16 + "00000000000000010001000100000000"
)
"""The events of the replay vectors."""
GOLDEN = [
    (9, "dc2eb5847ccf4f643d03434f6624c1d91cdacf42da6c9ef413ee4d1cfae663f8", 0),
    (10, "053d7568008f5e97fe11ec532b573d0873cfded8da34a7455d24005b5af4d576", 1),
    (12, "7710eb0f3fac7873087b1ac410d377e701647628c6282cae272d4690c4b8c954", 2),
]
"""Replay cut, digest and events of RP-0, RP-1 and RP-2."""


@pytest.fixture
def world() -> World:
    return small_world()


@pytest.fixture
def maker(world: World) -> Client:
    return world.connect(2)


@pytest.fixture
def reader(world: World) -> Client:
    """A page of its replays holds three events."""
    return reader_of(world, selected=PAGES_OF_THREE)


def stored(image: str) -> Event:
    """The row of an event that is given as its image."""
    event = ReplayEvent.decode(bytes.fromhex(image))
    return Event(
        event.event_sequence,
        event.event_id,
        event.event_kind,
        event.object.kind,
        event.object.id,
        event.object_revision,
        event.schema,
        event.payload,
        b"",
    )


@pytest.mark.req("P10-30", "P10-31", "P10-26", "P10-27", "P14-11")
@pytest.mark.parametrize(("cut", "digest", "count"), GOLDEN)
def test_the_digests_of_the_replay_vectors(cut: int, digest: str, count: int) -> None:
    hidden = Event(11, id16(11), EventKind.OPERATION_CHANGED, ObjectKind.OPERATION, id16(1), 1, 1, b"x", bytes(32))
    events = [stored(EVENT_10), hidden, stored(EVENT_12)][: cut - 9]
    world = World(state=State.build([], [], events, cut), authority=FakeAuthority(coordinator_id=b"\x11" * 16))
    capabilities = Capability.EVENT_REPLAY | Capability.TERMINAL_BINDINGS
    client = world.connect(scopes=Scope.WORK_READ, capabilities=capabilities)
    world.entropy, usual = lambda size: b"\x44" * size, world.entropy  # type: ignore[method-assign]
    world.engine._runtime._entropy = world.entropy
    subscription = client.live(9, 0, 0)
    world.engine._runtime._entropy = usual
    world.engine._streams.lose(state(client, subscription), SubscriptionEvent.QUEUE_FULL)
    client.pull()
    replay = Replay(client, subscription, 9)
    assert subscription == b"\x44" * 16
    assert (replay.begin.replay_cut, replay.end.canonical_sha256.hex()) == (cut, digest)
    assert [event.encode().hex() for event in replay.events] == [EVENT_10, EVENT_12][:count]


@pytest.mark.req("P10-26")
def test_an_image_made_of_columns_is_the_image_of_the_record() -> None:
    for image in (EVENT_10, EVENT_12):
        entry = LogEntry(stored(image))
        assert entry.image.hex() == replay_event(entry.event).encode().hex() == image
        assert len(entry.image) == IMAGE_HEAD_BYTES + len(entry.event.payload)


@pytest.mark.req("P10-29", "P9-11")
def test_a_page_built_from_images_is_the_frame_of_the_table() -> None:
    events = tuple(ReplayEvent.decode(bytes.fromhex(image)) for image in (EVENT_10, EVENT_12))
    images = [event.encode() for event in events]
    for following in (None, b"n" * 32):
        built, covered = page_frame(FrameType.REPLAY_PAGE, 7, id16(5), b"c" * 32, 4, images, following)
        frame = fr.ReplayPage(
            request_id=7,
            replay_id=ReplayId(id16(5)),
            cursor=b"c" * 32,
            page_index=4,
            events=events,
            next_cursor=following,
        )
        assert built == frame.encode()
        assert covered == b"".join(images)


@pytest.mark.req("P10-29", "P10-30", "P9-10", "P9-11", "P9-12", "P9-18", "P9-21", "P3-27", "P3-28", "P14-11")
@pytest.mark.parametrize(("records", "nbytes", "pages"), [(1, 4_096, 9), (3, 4_096, 3), (8, 4_096, 2), (9, 4_096, 1)])
def test_pages_hold_as_many_events_as_the_limits_allow(
    world: World, maker: Client, records: int, nbytes: int, pages: int
) -> None:
    reader = reader_of(world, selected=Limits(8_192, nbytes, records, 1_024, 1_024, 65_536))
    replay = Replay(reader, pause(reader, maker), 0)
    assert len(replay.events) == QUEUE + 1
    assert [len(page.events) for page in replay.pages[:-1]] == [records] * (pages - 1)
    assert len(replay.pages) == pages


@pytest.mark.req("P10-29", "P9-10", "P3-27")
def test_pages_stay_below_the_selected_bytes(world: World, maker: Client) -> None:
    reader = reader_of(world, selected=Limits(8_192, 1_024, 512, 1_024, 1_024, 65_536))
    subscription = reader.live(0, 0, 0)
    for number in range(QUEUE + 1):
        maker.done(maker.create(number + 1, bytes(37 * number)))
    reader.pull()
    replay = Replay(reader, subscription, 0)
    sizes = [len(page.body()) for page in replay.pages]
    assert len(replay.events) == QUEUE + 1
    assert len(sizes) == 3
    assert max(sizes) <= 1_024
    for page, following in itertools.pairwise(replay.pages):
        more = len(following.events[0].encode())
        assert len(page.body()) + more > 1_024 - 8, "no page ends sooner than it has to"


@pytest.mark.req("P10-29", "P9-08")
def test_cursors_of_replays_are_random_short_and_new(world: World, reader: Client, maker: Client) -> None:
    subscription = pause(reader, maker)
    cursors: list[bytes] = []
    for _ in range(2):
        replay = Replay(reader, subscription, 0)
        cursors += [replay.begin.first_cursor or b"", *(page.next_cursor or b"" for page in replay.pages[:-1])]
        world.advance(LEASE_SECONDS)
    assert len(set(cursors)) == len(cursors) == 6
    assert {len(cursor) for cursor in cursors} == {32}
    assert set(cursors) <= {sha256(b"entropy" + number.to_bytes(8, "big"))[:32] for number in range(1, 1_000)}


@pytest.mark.req("P10-29", "P9-09", "P9-08", "P9-05")
@pytest.mark.parametrize(
    "case",
    ["repeated", "guessed", "of a snapshot", "other principal", "expired", "released", "unknown", "as a snapshot"],
)
def test_a_cursor_that_is_not_the_next_one_is_refused_and_nothing_is_substituted(
    world: World, reader: Client, maker: Client, case: str
) -> None:
    begin = begin_replay(reader, pause(reader, maker))
    page = reader.ask(next_page(reader, begin.replay_id, begin.first_cursor))[0]
    assert isinstance(page, fr.ReplayPage)
    sender, frame = reader, next_page(reader, begin.replay_id, page.next_cursor)
    wrong: fr.Frame = frame
    if case == "repeated":
        wrong = next_page(reader, begin.replay_id, begin.first_cursor)
    elif case == "guessed":
        wrong = next_page(reader, begin.replay_id, bytes(32))
    elif case == "of a snapshot":
        snapshot = reader.ask(reader.open_snapshot())[0]
        assert isinstance(snapshot, fr.SnapshotBegin)
        wrong = next_page(reader, snapshot.snapshot_id, snapshot.first_cursor)
    elif case == "as a snapshot":
        wrong = fr.SnapshotNext(request_id=800, snapshot_id=begin.replay_id, cursor=page.next_cursor)  # type: ignore[arg-type]
    elif case == "other principal":
        sender = reader_of(world, principal=3)
        wrong = next_page(sender, begin.replay_id, page.next_cursor)
    elif case == "expired":
        world.advance(LEASE_SECONDS)
    elif case == "released":
        reader.ask(frame)
        last = reader.received[-1]
        assert isinstance(last, fr.ReplayPage)
        reader.ask(next_page(reader, begin.replay_id, last.next_cursor))
        reader.ask(applied(reader, begin))
        wrong = next_page(reader, begin.replay_id, last.next_cursor)
    else:
        wrong = next_page(reader, id16(99), page.next_cursor)
    before = len(sender.received)
    sender.refused(wrong, ErrorCode.CURSOR_INVALID)
    assert not any(isinstance(answer, fr.ReplayPage | fr.SnapshotPage) for answer in sender.received[before:])
    if case not in ("expired", "released"):
        assert isinstance(reader.ask(frame)[0], fr.ReplayPage), "the good cursor is still good"


@pytest.mark.req("P10-29", "P9-09", "P4-13")
def test_a_replay_does_not_outlive_its_activation(world: World, reader: Client, maker: Client) -> None:
    begin = begin_replay(reader, pause(reader, maker))
    successor = reader_of(world.restart())
    successor.refused(next_page(successor, begin.replay_id, begin.first_cursor), ErrorCode.CURSOR_INVALID)
    successor.refused(open_replay(successor, begin.subscription_id, 0), ErrorCode.NOT_FOUND)


@pytest.mark.req("P10-29", "P9-07")
def test_one_next_is_outstanding_at_a_time(reader: Client, maker: Client) -> None:
    begin = begin_replay(reader, pause(reader, maker))
    first, second = (next_page(reader, begin.replay_id, begin.first_cursor) for _ in range(2))
    reader.send(first)
    reader.send(second)
    page, error = reader.pull()
    assert isinstance(page, fr.ReplayPage)
    assert isinstance(error, fr.CoordErrorFrame)
    assert (page.request_id, error.request_id) == (first.request_id, second.request_id)
    assert error.code is ErrorCode.CURSOR_INVALID
    assert isinstance(reader.ask(next_page(reader, begin.replay_id, page.next_cursor))[0], fr.ReplayPage)


@pytest.mark.req("P10-29", "P9-19", "P9-20", "P7-10")
def test_when_the_request_ids_are_free_again(world: World, maker: Client) -> None:
    reader = reader_of(world, selected=Limits(8_192, 4_096, 5, 1_024, 1_024, 65_536))
    begin = begin_replay(reader, pause(reader, maker))
    assert reader.conn.requests == set(), "OPEN ends at BEGIN"
    reader.send(next_page(reader, begin.replay_id, begin.first_cursor, request=900))
    (raw,) = reader.conn.take(1 << 20, world.now)
    assert reader.conn.requests == set(), "a NEXT that is not the last ends at PAGE"
    cursor = fr.ReplayPage.decode(raw[5:]).next_cursor
    reader.send(next_page(reader, begin.replay_id, cursor, request=900))
    (raw,) = reader.conn.take(1, world.now)
    assert fr.ReplayPage.decode(raw[5:]).next_cursor is None
    assert reader.conn.requests == {900}, "the last NEXT ends at END"
    error = reader.fatal(next_page(reader, begin.replay_id, b"x", request=900), ErrorCode.MALFORMED_MESSAGE)
    assert error.request_id == 900


@pytest.mark.req("P10-29", "P9-19", "P13-09")
def test_the_end_follows_its_last_page_at_once(world: World, maker: Client) -> None:
    reader = reader_of(world)
    begin = begin_replay(reader, pause(reader, maker))
    reader.send(next_page(reader, begin.replay_id, begin.first_cursor, request=500))
    reader.send(reader.open_snapshot())
    answers = reader.pull()
    assert [type(answer) for answer in answers] == [fr.ReplayPage, fr.ReplayEnd, fr.SnapshotBegin]
    assert answers[0].fields.u32(1) == answers[1].fields.u32(1) == 500


@pytest.mark.req("P10-29", "P9-23", "P10-33")
def test_applied_before_the_end_is_refused_and_changes_nothing(reader: Client, maker: Client) -> None:
    subscription = pause(reader, maker)
    begin = begin_replay(reader, subscription)
    for _ in range(2):
        reader.refused(applied(reader, begin, 1, 1_000), ErrorCode.CURSOR_INVALID)
    assert state(reader, subscription).state is SubscriptionState.REPLAYING
    assert isinstance(reader.ask(next_page(reader, begin.replay_id, begin.first_cursor))[0], fr.ReplayPage)
    reader.refused(reader.applied(reader.snapshot().begin, snapshot=begin.replay_id), ErrorCode.CURSOR_INVALID)


@pytest.mark.req("P10-29", "P3-40", "P9-05", "P3-50")
def test_a_replay_lasts_sixty_seconds(world: World, reader: Client, maker: Client) -> None:
    subscription = pause(reader, maker)
    begin = begin_replay(reader, subscription)
    assert begin.lease_expires_at == int(world.now.wall) + 60
    world.advance(59.9)
    assert world.engine.next_deadline() == pytest.approx(world.now.mono + 0.1)
    page = reader.ask(next_page(reader, begin.replay_id, begin.first_cursor))[0]
    assert isinstance(page, fr.ReplayPage)
    world.advance(0.1)
    assert world.used() == {"connections": 2, "subscriptions": 1}
    reader.refused(next_page(reader, begin.replay_id, page.next_cursor), ErrorCode.CURSOR_INVALID)
    assert state(reader, subscription).state is SubscriptionState.PAUSED_GAP


@pytest.mark.req("P10-29", "P3-40")
def test_a_replay_is_not_applied_after_its_lease_also_before_the_tick(
    world: World, reader: Client, maker: Client
) -> None:
    subscription = pause(reader, maker)
    replay = Replay(reader, subscription, state(reader, subscription).last_event)
    world.advance(LEASE_SECONDS, tick=False)
    reader.refused(applied(reader, replay.begin, 1, 1_000), ErrorCode.CURSOR_INVALID)
    assert state(reader, subscription).state is SubscriptionState.PAUSED_GAP
    make(maker, 1, 500)
    reader.pull()
    assert reader.events() == []


@pytest.mark.req("P10-29", "P3-40", "P9-09")
@pytest.mark.parametrize("tick", [True, False])
def test_a_page_ordered_in_time_and_taken_too_late_is_refused(
    world: World, reader: Client, maker: Client, tick: bool
) -> None:
    subscription = pause(reader, maker)
    begin = begin_replay(reader, subscription)
    reader.conn.writable = False
    frame = next_page(reader, begin.replay_id, begin.first_cursor)
    reader.send(frame)
    world.advance(LEASE_SECONDS, tick=tick)
    reader.conn.writable = True
    (error,) = reader.pull()
    assert isinstance(error, fr.CoordErrorFrame)
    assert (error.request_id, error.code) == (frame.request_id, ErrorCode.CURSOR_INVALID)
    assert state(reader, subscription).state is SubscriptionState.PAUSED_GAP


@pytest.mark.req("P10-29", "P9-04", "P3-44", "P3-48", "P3-50", "P9-06")
def test_what_a_replay_pins_is_charged_before_and_given_back_at_its_end(
    world: World, reader: Client, maker: Client
) -> None:
    subscription = pause(reader, maker)
    before = world.used()
    begin = begin_replay(reader, subscription)
    images = sum(len(world.engine._runtime.log[sequence].image) for sequence in range(1, 18, 2))
    assert world.used() == before | {"leases": 1, "pinned_bytes": images}
    cursor = begin.first_cursor
    while cursor is not None:
        assert world.used()["pinned_bytes"] == images
        page = reader.ask(next_page(reader, begin.replay_id, cursor))[0]
        assert isinstance(page, fr.ReplayPage)
        cursor = page.next_cursor
    assert world.used() == before | {"leases": 1}
    reader.ask(applied(reader, begin))
    assert world.used() == before
    second = pause(reader, maker)
    begin_replay(reader, second)
    reader.detach()
    maker.detach()
    assert world.used() == {}


@pytest.mark.req("P10-29", "P3-44", "P3-48", "P3-49", "P9-04")
@pytest.mark.parametrize("spare", [0, -1])
def test_a_replay_that_can_not_be_pinned_is_refused_and_leaves_the_pause(spare: int) -> None:
    world = small_world()
    probe = reader_of(world)
    subscription = pause(probe, world.connect(2))
    begin_replay(probe, subscription)
    pinned = world.used()["pinned_bytes"]
    quotas = {"queue_frames": QuotaCaps(None, QUEUE, 60), "pinned_bytes": QuotaCaps(None, pinned + spare, pinned)}
    world.policy = type(world.policy)(quotas=quotas)
    fresh = World(policy=world.policy)
    reader = reader_of(fresh)
    subscription = pause(reader, fresh.connect(2))
    held = fresh.used()
    if spare == 0:
        begin_replay(reader, subscription)
        return
    reader.refused(open_replay(reader, subscription, 0), ErrorCode.RESOURCE_EXHAUSTED)
    assert fresh.used() == held
    assert state(reader, subscription).state is SubscriptionState.PAUSED_GAP
    assert fresh.observer.count("quota", "pinned_bytes") == 1


@pytest.mark.req("P3-44", "P3-48", "P10-29")
@pytest.mark.parametrize("case", ["pinned bytes", "leases", "too large"])
def test_a_refused_replay_that_is_asked_for_again_costs_no_look_through_the_log(
    monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    pinned = 2_000 if case == "pinned bytes" else 1 << 20
    caps = {"queue_frames": QuotaCaps(None, QUEUE, 60), "pinned_bytes": QuotaCaps(None, pinned, 1 << 20)}
    world = World(policy=Policy(quotas=caps))
    reader, maker = reader_of(world, selected=Limits(8_192, 4_096, 3, 300, 1_024, 65_536)), world.connect(2)
    subscription = pause(reader, maker, document=bytes(300 if case == "too large" else 200))
    if case == "leases":
        for _ in range(8):
            reader.ask(reader.open_snapshot())
    looks: list[int] = []
    seen_behind = EventLog.seen_behind

    def counted(log: EventLog, sequence: int, visibility: Visibility) -> tuple[list[LogEntry], list[int]]:
        looks.append(sequence)
        return seen_behind(log, sequence, visibility)

    monkeypatch.setattr(EventLog, "seen_behind", counted)
    held = world.used()
    for _ in range(20):
        reader.refused(open_replay(reader, subscription, 0), ErrorCode.RESOURCE_EXHAUSTED)
    assert len(looks) == (0 if case == "leases" else 1)
    assert world.used() == held
    assert state(reader, subscription).state is SubscriptionState.PAUSED_GAP


@pytest.mark.req("P3-44", "P3-48", "P10-29")
def test_what_did_not_fit_is_replayed_once_there_is_room() -> None:
    caps = {"queue_frames": QuotaCaps(None, QUEUE, 60), "pinned_bytes": QuotaCaps(None, 3_000, 1 << 20)}
    world = World(policy=Policy(quotas=caps))
    reader, maker = reader_of(world), world.connect(2)
    subscription = pause(reader, maker, document=bytes(100))
    snapshot = reader.ask(reader.open_snapshot())[0]
    assert isinstance(snapshot, fr.SnapshotBegin)
    for _ in range(2):
        reader.refused(open_replay(reader, subscription, 0), ErrorCode.RESOURCE_EXHAUSTED)
    world.advance(LEASE_SECONDS)
    make(maker, 1, 500)
    before = world.used()
    begin = begin_replay(reader, subscription)
    log = world.engine._runtime.log
    needed = sum(len(log[sequence].image) for sequence in range(1, begin.replay_cut, 2))
    assert world.used() == before | {"leases": 1, "pinned_bytes": needed}


@pytest.mark.req("P3-38", "P3-43", "P3-48", "P3-49", "P10-29")
def test_replays_and_snapshots_share_their_leases() -> None:
    world = World()
    readers = [reader_of(world) for _ in range(3)]
    paused = [pause_by_expiry(readers[0]) for _ in range(9)]
    for subscription in paused[:5]:
        readers[0].ask(open_replay(readers[0], subscription, 0))
    for _ in range(3):
        readers[0].ask(readers[0].open_snapshot())
    held = world.used()
    assert held["leases"] == 8
    readers[0].refused(open_replay(readers[0], paused[8], 0), ErrorCode.RESOURCE_EXHAUSTED)
    readers[0].refused(readers[0].open_snapshot(), ErrorCode.RESOURCE_EXHAUSTED)
    assert world.used() == held
    assert state(readers[0], paused[8]).state is SubscriptionState.PAUSED_GAP
    # Sixteen for the principal, whatever they are leases of.
    more = readers[1].ask(readers[1].open_snapshot(reserve=True))[0]
    assert isinstance(more, fr.SnapshotBegin)
    for _ in range(5):
        readers[1].ask(readers[1].open_snapshot())
    for _ in range(2):
        readers[2].ask(readers[2].open_snapshot())
    assert world.used()["leases"] == 16
    readers[2].refused(readers[2].open_snapshot(), ErrorCode.RESOURCE_EXHAUSTED)
    world.advance(LEASE_SECONDS)
    assert "leases" not in world.used()
    assert world.observer.count("lease_expired", "replay") == 5
    readers[1].pull()
    replay = Replay(readers[1], more.subscription_id or b"", 0)
    assert replay.apply() == []


@pytest.mark.req("P4-13", "P10-29")
@pytest.mark.parametrize("name", ["next", "applied"])
def test_continuations_recheck_the_certificate(name: str) -> None:
    world = small_world()
    reader = reader_of(world)
    begin = begin_replay(reader, pause(reader, world.connect(2)))
    world.authority = FakeAuthority(wall_expiry=world.now.wall + 30, deadline_mono=world.now.mono + 30)
    world.engine.renew(world.authority)
    world.advance(30, tick=False)
    frame: fr.Frame = applied(reader, begin)
    if name == "next":
        frame = next_page(reader, begin.replay_id, begin.first_cursor)
    reader.fatal(frame, ErrorCode.STALE_AUTHORITY)


@pytest.mark.req("P10-29")
def test_pages_are_counted(world: World, reader: Client, maker: Client) -> None:
    replay = Replay(reader, pause(reader, maker), 0)
    sizes = [(len(page.events), len(page.encode())) for page in replay.pages]
    assert [call[1:] for call in world.observer.calls if call[0] == "replay_page"] == sizes


@pytest.mark.req("P5-17", "P10-22")
def test_without_the_capability_a_paused_subscription_is_not_replayed(world: World, maker: Client) -> None:
    without = world.connect(1, scopes=Scope.WORK_READ, capabilities=0x1F & ~REPLAY)
    subscription = pause(without, maker)
    begin = fr.ReplayBegin.build(
        {"request_id": 1, "replay_id": id16(9), "subscription_id": subscription, "replay_cut": 0, "lease_expires_at": 1}
    )
    following = (next_page(without, id16(9), None), applied(without, begin))
    for frame in (open_replay(without, subscription, 0), *following):
        without.refused(frame, ErrorCode.CAPABILITY_REQUIRED)
    assert state(without, subscription).state is SubscriptionState.PAUSED_GAP


@pytest.mark.req("P10-29", "P3-48")
def test_a_small_page_that_holds_nothing_is_no_hindrance_for_an_empty_replay() -> None:
    world = World()
    tiny = reader_of(world, selected=SMALL)
    assert Replay(tiny, pause_by_expiry(tiny), 0).pages == []
