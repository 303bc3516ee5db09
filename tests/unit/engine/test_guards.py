"""Guards, certificates, grants: rechecked before anything happens, and what a lost one does (P4, P6, P12, W8)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sidecar.coordinator.authority.grants import EMPTY, KeyRecord, Registry
from sidecar.coordinator.engine.runtime import Fenced
from sidecar.coordinator.engine.state import State
from sidecar.coordinator.wire import frames as fr
from sidecar.coordinator.wire.enums import ErrorCode, GapReason
from sidecar.coordinator.wire.errors import AuthorityFenced
from sidecar.coordinator.wire.ids import U64_MAX, DeliveryCut, EventCut, SubscriptionId
from sidecar.coordinator.wire.records import AuthorityGuard
from tests.unit.engine.fakes import START, FakeAuthority, key
from tests.unit.engine.harness import Client, World, id16

GUARDED = ["command", "lookup", "open", "subscribe", "replay"]


def guarded(client: Client, name: str, guard: AuthorityGuard) -> fr.Frame:
    """A state-rooting request."""
    if name == "command":
        return client.create(1, guard=guard)
    if name == "lookup":
        return client.lookup(id16(1), guard=guard)
    if name == "open":
        return client.open_snapshot(reserve=True, guard=guard)
    if name == "subscribe":
        return client.subscribe(0, guard=guard)
    return fr.OpenReplay(
        request_id=1,
        authority_guard=guard,
        subscription_id=SubscriptionId(id16(1)),
        after_event_sequence=EventCut(0),
    )


@pytest.mark.req("P4-11", "P4-12", "P13-05")
@pytest.mark.parametrize("name", GUARDED)
@pytest.mark.parametrize(
    ("part", "value"),
    [
        ("coordinator_id", b"\x12" * 16),
        ("authority_epoch", 6),
        ("activation_sequence", 8),
        ("fencing_token_sha256", FakeAuthority().guard[-32:-1] + b"\x00"),
    ],
)
def test_each_part_of_the_guard_must_match(name: str, part: str, value: object) -> None:
    world = World()
    client = world.connect()
    wrong: AuthorityGuard = replace(client.guard, **{part: value})  # type: ignore[arg-type]
    client.fatal(guarded(client, name, wrong), ErrorCode.STALE_AUTHORITY)
    assert world.engine.stats().head_sequence == 0
    assert world.used() == {}


@pytest.mark.req("P4-12", "P4-11")
@pytest.mark.parametrize("name", GUARDED)
@pytest.mark.parametrize("clock", ["wall", "mono"])
def test_an_expired_certificate_is_stale_before_anything_happens(name: str, clock: str) -> None:
    expiring = FakeAuthority(wall_expiry=START.wall + 60) if clock == "wall" else FakeAuthority(deadline_mono=5_060.0)
    world = World(authority=expiring)
    client = world.connect()
    world.advance(60, tick=False)
    client.fatal(guarded(client, name, client.guard), ErrorCode.STALE_AUTHORITY)
    assert world.engine.stats().head_sequence == 0
    assert world.used() == {}


@pytest.mark.req("P4-13")
@pytest.mark.parametrize("name", ["next", "applied", "credit"])
def test_continuations_recheck_the_certificate(name: str) -> None:
    world = World(authority=FakeAuthority(wall_expiry=START.wall + 30))
    client = world.connect()
    client.done(client.create(1))
    subscription = client.live(2, 1, 1000)
    begin = client.ask(client.open_snapshot())[0]
    assert isinstance(begin, fr.SnapshotBegin)
    world.advance(30, tick=False)
    frame: fr.Frame = client.credit(subscription, 1, 1)
    if name == "next":
        frame = client.next_page(begin, begin.first_cursor)
    elif name == "applied":
        frame = client.applied(begin)
    client.fatal(frame, ErrorCode.STALE_AUTHORITY)
    assert world.observer.count("snapshot_page", 2, 1) == 0


@pytest.mark.req("P4-13", "P6-08")
def test_a_page_ordered_before_expiry_is_not_built_after_it() -> None:
    world = World(authority=FakeAuthority(wall_expiry=START.wall + 30))
    client = world.connect()
    client.done(client.create(1))
    begin = client.ask(client.open_snapshot())[0]
    assert isinstance(begin, fr.SnapshotBegin)
    client.send(client.next_page(begin, begin.first_cursor))
    world.auto_commit = False
    world.advance(30, tick=False)
    answers = client.pull()
    assert [type(answer) for answer in answers] == [fr.CoordErrorFrame]
    assert client.errors()[0].code is ErrorCode.AUTHORITY_FENCED


@pytest.mark.req("P12-16")
def test_no_batch_without_an_unexpired_certificate() -> None:
    world = World(authority=FakeAuthority(wall_expiry=START.wall + 30))
    world.auto_commit = False
    client = world.connect()
    client.send(client.create(1))
    world.advance(30, tick=False)
    with pytest.raises(Fenced):
        world.engine.take_batch(world.now)
    with pytest.raises(Fenced):
        world.engine.take_batch(world.now)
    assert [frame.code for frame in client.pull() if isinstance(frame, fr.CoordErrorFrame)] == [
        ErrorCode.AUTHORITY_FENCED
    ]
    assert world.disk.last_sequence == 0


@pytest.mark.req("P12-17", "P13-05")
def test_fencing_tells_everybody_and_commits_nothing_more() -> None:
    world = World()
    live, paused, idle = world.connect(1), world.connect(2), world.connect(3)
    first, second = live.live(0, 0, 0), live.live(0, 0, 0)
    reserved = live.ask(live.open_snapshot(reserve=True))[0]
    assert isinstance(reserved, fr.SnapshotBegin)
    assert reserved.subscription_id is not None
    world.auto_commit = False
    live.send(live.create(1))
    inflight = world.engine.take_batch(world.now)
    assert inflight is not None
    live.send(live.create(2))
    world.engine.fence("the commit failed")
    tail = live.pull()
    gaps = {frame.subscription_id: frame.reason for frame in tail if isinstance(frame, fr.Gap)}
    assert gaps == dict.fromkeys([first, second, reserved.subscription_id], GapReason.EPOCH_CHANGED)
    assert isinstance(tail[-1], fr.CoordErrorFrame)
    assert len(tail) == 4
    for client in (live, paused, idle):
        client.pull()
        assert [error.code for error in client.errors()] == [ErrorCode.AUTHORITY_FENCED]
        assert client.conn.closing is ErrorCode.AUTHORITY_FENCED
    # Whatever the store says now, nobody is told that it was done.
    world.engine.batch_durable(inflight, world.now)
    assert live.pull() == []
    with pytest.raises(Fenced, match="the commit failed"):
        world.engine.take_batch(world.now)
    with pytest.raises(AuthorityFenced):
        world.connect(4)
    for client in (live, paused, idle):
        client.detach()
    assert world.used() == {}
    assert world.engine.next_deadline() is None


@pytest.mark.req("P10-17", "P12-17")
def test_a_fence_gaps_neither_what_is_paused_nor_what_was_never_named() -> None:
    world = World()
    client, maker = world.connect(1), world.connect(2)
    client.live(0, 0, 0)
    for number in range(1, 514):
        maker.send(maker.create(number))
        maker.pull()
    client.pull()
    assert [gap.reason for gap in client.gaps()] == [GapReason.QUEUE_OVERFLOW]
    client.send(client.subscribe(0))
    world.engine.fence("test")
    assert [type(frame) for frame in client.pull()] == [fr.CoordErrorFrame]


@pytest.mark.req("P12-17", "P12-15", "P12-13")
def test_the_tick_fences_when_the_renewal_did_not_come_and_a_renewal_prevents_it() -> None:
    world = World(authority=FakeAuthority(wall_expiry=START.wall + 60, deadline_mono=START.mono + 60))
    client = world.connect()
    world.advance(30)
    assert world.engine.next_deadline() == START.mono + 60
    renewed = replace(world.authority, wall_expiry=START.wall + 90, deadline_mono=START.mono + 90)
    world.engine.renew(renewed)
    world.engine.renew(renewed)
    (frame,) = client.pull()
    assert isinstance(frame, fr.AuthorityRenewed)
    assert frame.activation_certificate == renewed.certificate
    world.advance(59)
    assert world.engine.fenced is None
    client.done(client.create(1))
    world.advance(1)
    assert world.engine.fenced is not None
    with pytest.raises(ValueError, match="renewal"):
        world.engine.renew(FakeAuthority(epoch=6))


@pytest.mark.req("P4-06")
@pytest.mark.parametrize("counter", ["event", "revision", "operation revision"])
def test_a_counter_at_its_end_fences_instead_of_wrapping(counter: str) -> None:
    first = World()
    maker = first.connect()
    maker.done(maker.create(1))
    records = list(first.disk.records.values())
    operations = list(first.disk.operations.values())
    last = first.disk.last_sequence
    if counter == "event":
        last = U64_MAX - 1
    elif counter == "revision":
        records = [record._replace(revision=U64_MAX) for record in records]
    else:
        operations = [operation._replace(revision=U64_MAX) for operation in operations]
    world = World(state=State.build(records, operations, [], last))
    client = world.connect()
    if counter == "operation revision":
        world.advance(world.policy.retention_seconds)
    else:
        client.send(client.update(1, operation=id16(500)))
        with pytest.raises(Fenced):
            world.commit()
    assert world.engine.fenced is not None
    client.pull()
    assert [error.code for error in client.errors()] == [ErrorCode.AUTHORITY_FENCED]
    assert world.engine.stats().head_sequence == last


@pytest.mark.req("P4-06")
@pytest.mark.parametrize(("left", "fenced"), [(0, True), (1, True), (2, False)])
def test_a_delivery_counter_at_its_end_fences(left: int, fenced: bool) -> None:
    world = World()
    client = world.connect()
    subscription = client.live()
    client.conn.subscriptions[subscription].delivery = DeliveryCut(U64_MAX - left)
    client.send(client.create(1))
    client.pull()
    assert (world.engine.fenced is not None) == fenced
    assert [event.delivery_sequence for event in client.events()] == ([] if fenced else [U64_MAX - 1, U64_MAX])


# ---- grants ----


def registry(principal: int, generation: int, **changes: object) -> Registry:
    record = KeyRecord(bytes(32), key(principal), "phux-coordinator", 0x3F, 2**40)
    return Registry((replace(record, **changes),), generation)  # type: ignore[arg-type]


@pytest.mark.req("P6-07", "P6-20", "P3-50")
def test_an_expired_grant_ends_the_connection_before_the_command_acts() -> None:
    world = World()
    client = world.connect(expires_in=10)
    subscription = client.live(0, 0, 0)
    world.advance(10, tick=False)
    client.send(client.create(1))
    tail = client.pull()
    assert [type(frame) for frame in tail] == [fr.Gap, fr.CoordErrorFrame]
    assert (client.gaps()[0].subscription_id, client.gaps()[0].reason) == (subscription, GapReason.GRANT_REVOKED)
    assert client.errors()[0].code is ErrorCode.AUTHENTICATION_FAILED
    assert world.engine.stats().head_sequence == 0
    client.send(client.lookup(id16(1)))
    assert client.pull() == []


@pytest.mark.req("W8-06", "P6-20", "W8-09")
def test_an_idle_connection_ends_when_its_grant_expires() -> None:
    world = World()
    client, other = world.connect(1, expires_in=10), world.connect(2, expires_in=20)
    subscription = client.live(0, 0, 0)
    world.advance(9.5)
    assert [conn.closing for conn in world.engine.connections] == [None, None]
    assert world.engine.next_deadline() == pytest.approx(world.now.mono + 0.5)
    woken = client.wakes
    world.advance(0.5)
    assert client.conn.closing is ErrorCode.AUTHENTICATION_FAILED
    assert other.conn.closing is None
    assert client.wakes > woken
    assert [type(frame) for frame in client.pull()] == [fr.Gap, fr.CoordErrorFrame]
    assert (client.gaps()[0].subscription_id, client.gaps()[0].reason) == (subscription, GapReason.GRANT_REVOKED)


@pytest.mark.req("P6-20", "P6-07", "P3-50", "P9-06", "W8-06", "W8-07", "W8-08", "W8-09")
@pytest.mark.parametrize("how", ["removed", "revoked", "expired", "ceiling", "malformed"])
def test_a_lost_grant_releases_everything_and_says_goodbye(how: str) -> None:
    world = World()
    client, other = world.connect(1, expires_in=100), world.connect(2, expires_in=100)
    client.done(client.create(1))
    live = client.live(0, 1, 0)
    begin = client.ask(client.open_snapshot(reserve=True))[0]
    assert isinstance(begin, fr.SnapshotBegin)
    client.send(client.next_page(begin, begin.first_cursor))
    both = Registry((*registry(1, 1).records, *registry(2, 1).records), 1)
    world.engine.set_registry(both, world.now)
    assert client.conn.closing is None
    changed = {
        "removed": Registry(registry(2, 2).records, 2),
        "revoked": Registry((*registry(1, 2, revoked_at=1).records, *registry(2, 2).records), 2),
        "expired": Registry((*registry(1, 2, expires_at=int(world.now.wall)).records, *registry(2, 2).records), 2),
        "ceiling": Registry((*registry(1, 2, scopes=1).records, *registry(2, 2).records), 2),
        "malformed": EMPTY,
    }[how]
    world.engine.set_registry(changed, world.now)
    assert world.used().keys() <= {"connections"}
    tail = client.pull()
    assert {frame.subscription_id for frame in tail if isinstance(frame, fr.Gap)} == {live, begin.subscription_id}
    assert {frame.reason for frame in tail if isinstance(frame, fr.Gap)} == {GapReason.GRANT_REVOKED}
    assert isinstance(tail[-1], fr.CoordErrorFrame)
    assert tail[-1].code is ErrorCode.AUTHENTICATION_FAILED
    assert len(tail) == 3, "no page, no event, no reply"
    assert not client.conn.out, "what is never sent is not kept either"
    assert (other.conn.closing is None) == (how != "malformed")


@pytest.mark.req("P6-08")
def test_nothing_is_serialized_once_the_grant_expired() -> None:
    world = World()
    client = world.connect(expires_in=10)
    client.live()
    client.done(client.create(1))
    begin = client.ask(client.open_snapshot())[0]
    assert isinstance(begin, fr.SnapshotBegin)
    world.auto_commit = False
    client.send(client.update(1))
    client.send(client.next_page(begin, begin.first_cursor))
    world.commit()
    world.advance(10, tick=False)
    assert [type(frame) for frame in client.pull()] == [fr.Gap, fr.CoordErrorFrame]


@pytest.mark.req("P6-08")
def test_a_result_that_becomes_durable_after_the_revocation_is_not_sent() -> None:
    world = World()
    world.auto_commit = False
    client = world.connect()
    client.send(client.create(1))
    batch = world.engine.take_batch(world.now)
    assert batch is not None
    world.engine.set_registry(EMPTY, world.now)
    world.engine.batch_durable(batch, world.now)
    assert [type(frame) for frame in client.pull()] == [fr.CoordErrorFrame]
    assert len(batch.events) == 2


@pytest.mark.req("P6-19", "P6-20")
def test_a_wider_ceiling_changes_nothing() -> None:
    world = World()
    client = world.connect(1, scopes=0x10, expires_in=100)
    begin = client.ask(client.open_snapshot(reserve=True))[0]
    assert isinstance(begin, fr.SnapshotBegin)
    maker = world.connect(2, expires_in=100)
    wider = Registry((*registry(1, 2).records, *registry(2, 2).records), 2)
    world.engine.set_registry(wider, world.now)
    assert client.conn.closing is None
    client.ask(client.applied(begin, 100, 100_000))
    maker.done(maker.create(1))
    client.pull()
    assert client.events() == []


def test_the_tick_finds_expired_grants_of_idle_connections() -> None:
    world = World()
    client = world.connect(expires_in=10)
    world.engine.tick(world.now)
    deadline = world.engine.next_deadline()
    assert deadline == world.now.mono + 10
    world.advance(10)
    assert client.conn.closing is ErrorCode.AUTHENTICATION_FAILED


@pytest.mark.req("P10-17", "P12-17", "P6-20")
@pytest.mark.parametrize("how", ["fenced", "revoked"])
def test_a_request_id_that_serves_again_hides_no_last_gap(how: str) -> None:
    world = World()
    client = world.connect()
    first = client.subscribe(0)
    subscription = client.one(first, fr.Subscribed).subscription_id
    world.auto_commit = False
    client.send(client.create(1, request=first.request_id))
    if how == "fenced":
        world.engine.fence("test")
    else:
        world.engine.set_registry(EMPTY, world.now)
    tail = client.pull()
    assert [type(frame) for frame in tail] == [fr.Gap, fr.CoordErrorFrame]
    assert client.gaps()[0].subscription_id == subscription


@pytest.mark.req("P10-17", "P12-17")
def test_a_reservation_that_went_live_has_its_last_gap_also_when_its_ack_was_not_taken() -> None:
    world = World()
    client = world.connect()
    begin = client.ask(client.open_snapshot(reserve=True))[0]
    assert isinstance(begin, fr.SnapshotBegin)
    client.send(client.applied(begin, 1, 1_000))
    world.engine.fence("test")
    tail = client.pull()
    assert [type(frame) for frame in tail] == [fr.Gap, fr.CoordErrorFrame]
    assert client.gaps()[0].subscription_id == begin.subscription_id


@pytest.mark.req("P12-16", "P4-11")
@pytest.mark.parametrize("clock", ["wall", "mono"])
def test_nobody_is_welcomed_under_an_expired_certificate(clock: str) -> None:
    expiring = FakeAuthority(wall_expiry=START.wall + 60) if clock == "wall" else FakeAuthority(deadline_mono=5_060.0)
    world = World(authority=expiring)
    world.advance(60, tick=False)
    with pytest.raises(AuthorityFenced):
        world.connect()
    assert world.engine.fenced is not None
    assert world.used() == {}
