"""Request ids, the two lanes of output, liveness (P7, P13, P3-33, P3-37)."""

from __future__ import annotations

import random

import pytest

from sidecar.coordinator.wire import frames as fr
from sidecar.coordinator.wire.enums import ErrorCode, Scope
from sidecar.coordinator.wire.errors import ProtocolError, ProtocolViolation
from sidecar.coordinator.wire.ids import EventCut, ReplayId, SubscriptionId
from sidecar.coordinator.wire.limits import CONTROL_BYTES, CONTROL_FRAMES, HARD, Limits
from tests.unit.engine.harness import Client, World, id16, no_snapshot


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def client(world: World) -> Client:
    return world.connect()


def ping(nonce: int) -> fr.CoordPing:
    return fr.CoordPing(nonce=nonce)


@pytest.mark.req("P7-07")
def test_a_ping_is_answered_with_its_nonce_and_a_pong_is_ignored(client: Client) -> None:
    pong = client.one(ping(0x0102030405060708), fr.CoordPong)
    assert pong.nonce == 0x0102030405060708
    assert client.ask(fr.CoordPong(nonce=5)) == []
    assert client.conn.closing is None


@pytest.mark.req("P7-09", "P7-10", "P13-05")
def test_an_outstanding_request_id_is_malformed_and_a_finished_one_is_free(world: World) -> None:
    client = world.connect()
    client.done(client.create(1, request=7))
    client.done(client.create(2, request=7))
    world.auto_commit = False
    client.send(client.create(3, request=7))
    error = client.fatal(client.lookup(id16(1), request=7), ErrorCode.MALFORMED_MESSAGE)
    assert error.request_id == 7


@pytest.mark.req("P7-10", "P8-17")
def test_a_request_is_over_when_its_reply_is_taken_not_when_it_is_made(world: World, client: Client) -> None:
    client.send(client.create(1, request=7))
    world.commit()
    client.fatal(client.lookup(id16(1), request=7), ErrorCode.MALFORMED_MESSAGE)


@pytest.mark.req("P7-11", "P7-09")
def test_which_frames_carry_a_request_id(client: Client) -> None:
    without = {
        frame.TYPE for frame in fr.FRAMES.values() if not any(item.name == "request_id" for item in frame.FIELDS)
    }
    names = {kind.name for kind in without}
    assert names == {
        "CREDIT",
        "COORD_PING",
        "COORD_PONG",
        "GAP",
        "COORD_EVENT",
        "COORD_AUTHORITY_RENEWED",
        "COORD_HELLO",
        "COORD_HELLO_OK",
        "WORKLOAD_CHALLENGE",
        "WORKLOAD_RESPONSE",
    }
    # The server's own: none of them answers or occupies a request.
    client.live()
    client.send(client.create(1, request=50))
    answers = client.ask(ping(1))
    assert [frame for frame in answers if getattr(frame, "request_id", 50) != 50] == []
    body = client.subscribe(0).body()
    assert body[:3] == b"\x01\x04\x04"
    with pytest.raises(ProtocolError):
        fr.Subscribe.decode(body[:3] + bytes(4) + body[7:])


@pytest.mark.req("P13-06", "P13-05")
def test_scoped_errors_leave_the_connection_usable(world: World) -> None:
    client = world.connect(scopes=Scope.WORK_READ | Scope.WORK_COMMAND)
    maker = world.connect(2)
    taken = maker.create(9)
    maker.done(taken)
    client.refused(client.command(12, b""), ErrorCode.CAPABILITY_REQUIRED)
    client.refused(client.create(9, operation=taken.operation_id), ErrorCode.OPERATION_CONFLICT)
    client.refused(client.create(9), ErrorCode.REVISION_CONFLICT)
    client.refused(client.subscribe(100), ErrorCode.CURSOR_INVALID)
    client.refused(client.update(10), ErrorCode.NOT_FOUND)
    client.refused(client.create(3, bytes(HARD.typed_payload - 40)), ErrorCode.RESOURCE_EXHAUSTED)
    reader = world.connect(3, scopes=Scope.WORK_READ)
    reader.refused(reader.create(4), ErrorCode.SCOPE_DENIED)
    client.done(client.create(4))
    assert reader.snapshot().records


def test_a_frame_of_a_server_is_a_fault(client: Client) -> None:
    with pytest.raises(ProtocolError) as caught:
        client.world.engine.handle(client.conn, fr.Ack(request_id=1), client.world.now)
    assert caught.value.code is ErrorCode.PROTOCOL_ERROR


def test_an_error_of_the_client_ends_the_connection_without_a_word(world: World, client: Client) -> None:
    client.live(0, 0, 0)
    client.send(fr.CoordErrorFrame(code=ErrorCode.INTERNAL, message="mine"))
    assert client.conn.closing is ErrorCode.INTERNAL
    assert client.pull() == []
    assert world.used() == {"connections": 1}


@pytest.mark.req("P5-17")
def test_replay_needs_its_capability(client: Client) -> None:
    subscription = SubscriptionId(id16(1))
    open_replay = fr.OpenReplay(
        request_id=70,
        authority_guard=client.guard,
        subscription_id=subscription,
        after_event_sequence=EventCut(0),
    )
    next_page = fr.ReplayNext(request_id=71, replay_id=ReplayId(id16(1)), cursor=b"c")
    applied = fr.ReplayApplied(
        request_id=72,
        replay_id=ReplayId(id16(1)),
        subscription_id=subscription,
        initial_credit_count=0,
        initial_credit_bytes=0,
    )
    for frame in (open_replay, next_page, applied):
        client.refused(frame, ErrorCode.CAPABILITY_REQUIRED)


@pytest.mark.req("P3-33")
def test_requests_beyond_the_quota_are_refused_with_their_id(world: World, client: Client) -> None:
    world.auto_commit = False
    for number in range(1, 257):
        client.send(client.create(number, request=number))
    client.refused(client.create(300, request=300), ErrorCode.RESOURCE_EXHAUSTED)
    assert world.observer.count("quota", "requests") == 1
    assert (world.engine.stats().backlog, world.engine.stats().pending) == (256, 256)
    world.commit()
    assert world.engine.stats().head_sequence == 512
    assert len(client.pull()) == 256
    client.send(client.create(300, request=300))
    world.commit()
    assert [type(answer) for answer in client.pull()] == [fr.CoordCommandResult]


@pytest.mark.req("P3-37", "P10-17", "P7-07")
def test_the_control_lane_is_usable_while_the_data_lane_is_full(world: World, client: Client) -> None:
    client.done(client.create(1))
    stalled = client.live(2, 0, 0)
    begin = client.ask(client.open_snapshot())[0]
    assert isinstance(begin, fr.SnapshotBegin)
    client.send(client.next_page(begin, begin.first_cursor))
    client.conn.writable = False
    for number in range(100):
        client.send(client.create(2 + number))
    client.send(ping(5))
    # The page waits for the transport and everything of the data lane waits behind it.
    answers = client.pull()
    assert [type(answer) for answer in answers] == [fr.CoordPong]
    other = world.connect(2)
    for number in range(500):
        other.send(other.create(1000 + number))
        if number % 100 == 99:
            other.pull()
    other.pull()
    answers = client.pull()
    assert [type(answer) for answer in answers] == [fr.Gap]
    assert client.gaps()[0].subscription_id == stalled
    client.conn.writable = True
    answers = client.pull()
    assert sum(isinstance(answer, fr.CoordCommandResult) for answer in answers) == 100
    assert sum(isinstance(answer, fr.SnapshotPage) for answer in answers) == 1


@pytest.mark.req("P3-37")
def test_a_peer_that_pings_and_never_reads_is_closed_at_the_bound(world: World, client: Client) -> None:
    client.live()
    other = world.connect(2)
    other.done(other.create(1))
    for nonce in range(CONTROL_FRAMES // 2):
        assert not client.conn.congested
        client.send(ping(nonce))
    assert client.conn.congested
    for nonce in range(CONTROL_FRAMES):
        client.send(ping(nonce))
    assert client.conn.closing is ErrorCode.RESOURCE_EXHAUSTED
    frames = client.conn.take(1 << 20, world.now)
    assert len(frames) == CONTROL_FRAMES + 1, "the pongs and the goodbye, but not the event that waits"
    assert sum(map(len, frames)) <= CONTROL_BYTES
    last = fr.decode_frame(frames[-1][4], frames[-1][5:])
    assert isinstance(last, fr.CoordErrorFrame)


@pytest.mark.req("W8-10", "P13-05")
def test_what_comes_behind_the_end_of_a_connection_is_not_processed(world: World, client: Client) -> None:
    client.done(client.create(1))
    subscription, held = client.live(2, 0, 0), world.used()
    client.conn.close(ProtocolViolation("over"))
    for frame in (client.open_snapshot(reserve=True), client.subscribe(0), client.create(2), client.lookup(id16(1))):
        client.send(frame)
    client.send(client.credit(subscription, 1 << 31, 0))
    assert (world.used(), world.engine.stats().backlog) == (held, 0)
    assert [type(frame) for frame in client.pull()] == [fr.CoordErrorFrame]


def test_a_peer_that_reads_may_ping_without_end(client: Client) -> None:
    for nonce in range(5 * CONTROL_FRAMES):
        client.one(ping(nonce), fr.CoordPong)
    assert not client.conn.congested


def test_output_is_taken_in_small_pieces_and_wakes_once(world: World, client: Client) -> None:
    world.auto_commit = False
    for number in range(1, 21):
        client.send(client.create(number))
    wakes = client.wakes
    world.commit()
    assert client.wakes == wakes + 1
    taken = 0
    while frames := client.conn.take(1, world.now):
        assert len(frames) == 1
        taken += 1
    assert taken == 20


@pytest.mark.req("W8-08")
def test_a_transport_that_was_woken_and_took_nothing_hears_of_the_end(world: World, client: Client) -> None:
    client.live(0)
    client.conn.writable = False
    client.send(client.create(1))
    world.commit()
    wakes = client.wakes
    client.send(client.create(2))
    world.commit()
    assert client.wakes == wakes
    world.engine.fence("it was lost")
    assert client.wakes == wakes + 1


def test_an_unwritable_connection_gets_replies_but_no_page_and_no_event(world: World, client: Client) -> None:
    client.done(client.create(1))
    client.live(0)
    client.received.clear()
    client.conn.writable = False
    client.done(client.create(2))
    assert client.events() == []
    client.conn.writable = True
    client.pull()
    assert len(client.events()) == 2


@pytest.mark.req("P13-08", "P13-09")
@pytest.mark.parametrize("seed", range(8))
def test_every_request_gets_exactly_one_terminal_reply(seed: int) -> None:
    rng = random.Random(seed)
    world = World()
    small = Limits(8_192, 1_024, 3, 1_024, 16, 65_536)
    clients = [world.connect(1, selected=small), world.connect(2), world.connect(2, scopes=Scope.WORK_READ)]
    sent: dict[tuple[int, int], type[fr.Frame]] = {}
    begins: list[list[fr.SnapshotBegin]] = [[], [], []]
    cursors: dict[bytes, bytes] = {}
    terminal: dict[tuple[int, int], int] = {}

    def collect() -> None:
        for at, client in enumerate(clients):
            frames = client.pull()
            for place, frame in enumerate(frames):
                request = getattr(frame, "request_id", None)
                if request is None:
                    continue
                ends = not (
                    (isinstance(frame, fr.SnapshotBegin) and frame.first_cursor is None)
                    or (isinstance(frame, fr.SnapshotPage) and frame.next_cursor is None)
                )
                if not ends:
                    following = frames[place + 1]
                    assert isinstance(following, fr.SnapshotEnd)
                    assert following.request_id == request
                if isinstance(frame, fr.SnapshotBegin):
                    begins[at].append(frame)
                    if frame.first_cursor is not None:
                        cursors[frame.snapshot_id] = frame.first_cursor
                if isinstance(frame, fr.SnapshotPage) and frame.next_cursor is not None:
                    cursors[frame.snapshot_id] = frame.next_cursor
                if ends:
                    terminal[at, request] = terminal.get((at, request), 0) + 1

    for _ in range(120):
        at = rng.randrange(3)
        client = clients[at]
        choice = rng.randrange(7)
        if choice == 0:
            frame: fr.Frame = client.create(rng.randrange(1, 30))
        elif choice == 1:
            frame = client.update(rng.randrange(1, 30))
        elif choice == 2:
            frame = client.lookup(id16(rng.randrange(1, 9)))
        elif choice == 3:
            frame = client.open_snapshot(rng.random() < 0.5)
        elif choice == 4 and begins[at]:
            begin = rng.choice(begins[at])
            frame = client.next_page(begin, cursors.get(begin.snapshot_id) if rng.random() < 0.9 else b"wrong")
        elif choice == 5 and begins[at]:
            frame = client.applied(rng.choice(begins[at]))
            if frame.subscription_id is not None and rng.random() < 0.2:
                continue
        else:
            frame = client.subscribe(rng.randrange(40), 1, 1000)
        client.send(frame)
        sent[at, frame.fields.u32(1)] = type(frame)
        if rng.random() < 0.5:
            collect()
    collect()
    assert terminal == dict.fromkeys(sent, 1)
    for client in clients:
        assert client.conn.requests == set()
        client.detach()
    assert world.used() == {}


def test_a_lookup_without_any_lease_is_invalid(client: Client) -> None:
    frame = fr.SnapshotNext(request_id=3, snapshot_id=no_snapshot(), cursor=b"c")
    client.refused(frame, ErrorCode.CURSOR_INVALID)
