"""Aggregate quotas: charged before acting, given back exactly, no principal harms another (P3-33..50, P14-14)."""

from __future__ import annotations

import pytest

from sidecar.coordinator.engine.policy import Policy
from sidecar.coordinator.engine.quota import Quotas, Resource
from sidecar.coordinator.wire import frames as fr
from sidecar.coordinator.wire.enums import ErrorCode, GapReason, Scope
from sidecar.coordinator.wire.errors import MalformedMessage, ResourceExhausted
from sidecar.coordinator.wire.limits import QUOTAS, Limits, QuotaCaps
from tests.unit.engine.fakes import key
from tests.unit.engine.harness import Client, World

WIDE = QuotaCaps(None, None, None)


def caps(**rows: tuple[int | None, int | None, int | None]) -> Policy:
    return Policy(quotas={name: QuotaCaps(*row) for name, row in rows.items()})


@pytest.mark.req("P3-41", "P14-14")
def test_connections_of_one_principal_and_of_the_server() -> None:
    world = World()
    mine = [world.connect(1) for _ in range(16)]
    with pytest.raises(ResourceExhausted) as caught:
        world.connect(1)
    assert caught.value.fatal
    for principal in range(2, 17):
        for _ in range(16):
            world.connect(principal)
    assert world.engine.stats().connections == 256
    with pytest.raises(ResourceExhausted):
        world.connect(99)
    mine[0].detach()
    world.connect(1)
    assert world.observer.count("quota", "connections") == 2


@pytest.mark.req("P3-42", "P14-14", "P3-48")
def test_requests_of_one_principal_spread_over_connections() -> None:
    world = World()
    world.auto_commit = False
    clients = [world.connect(1) for _ in range(3)]
    for client in clients[:2]:
        for number in range(256):
            client.send(client.lookup(bytes([number // 2 + 1]) * 16))
    clients[2].refused(clients[2].lookup(bytes([1]) * 16), ErrorCode.RESOURCE_EXHAUSTED)
    other = world.connect(2)
    other.send(other.lookup(bytes([1]) * 16))
    world.engine.take_batch(world.now)
    assert [type(answer) for answer in other.pull()] == [fr.OperationResultFrame]
    clients[0].pull()
    world.auto_commit = True
    clients[2].one(clients[2].lookup(bytes([1]) * 16), fr.OperationResultFrame)
    for client in (*clients, other):
        client.detach()
    assert world.used() == {}


@pytest.mark.req("P3-38", "P3-43", "P3-48", "P3-49", "P3-50")
def test_leases_of_a_connection_a_principal_and_the_server() -> None:
    world = World()
    clients = [world.connect(1) for _ in range(3)]
    clients[0].done(clients[0].create(1))
    for _ in range(8):
        assert isinstance(clients[0].ask(clients[0].open_snapshot())[0], fr.SnapshotBegin)
    held = world.used()
    clients[0].refused(clients[0].open_snapshot(reserve=True), ErrorCode.RESOURCE_EXHAUSTED)
    assert world.used() == held, "a refusal leaves neither lease nor pinned bytes nor subscription"
    for _ in range(6):
        clients[1].ask(clients[1].open_snapshot())
    for _ in range(2):
        clients[2].ask(clients[2].open_snapshot())
    for _ in range(2):
        clients[2].refused(clients[2].open_snapshot(), ErrorCode.RESOURCE_EXHAUSTED)
    assert world.observer.count("quota", "leases") == 3
    other = world.connect(2)
    assert isinstance(other.ask(other.open_snapshot())[0], fr.SnapshotBegin)
    assert world.used()["leases"] == 17
    world.advance(60)
    assert "leases" not in world.used()
    assert "pinned_bytes" not in world.used()


@pytest.mark.req("P3-43")
def test_leases_of_the_whole_server() -> None:
    world = World(policy=caps(leases=(8, 16, 20)))
    clients = [world.connect(principal) for principal in (1, 2, 3)]
    for client in clients[:2]:
        for _ in range(8):
            client.ask(client.open_snapshot())
    for _ in range(4):
        clients[2].ask(clients[2].open_snapshot())
    clients[2].refused(clients[2].open_snapshot(), ErrorCode.RESOURCE_EXHAUSTED)


@pytest.mark.req("P3-44", "P9-04", "P3-48")
def test_bytes_pinned_by_cuts() -> None:
    world = World(policy=caps(pinned_bytes=(None, 20_000, 30_000)))
    maker = world.connect(9)
    maker.done(maker.create(1, bytes(12_000)))
    first, second = world.connect(1, scopes=Scope.WORK_READ), world.connect(1, scopes=Scope.WORK_READ)
    begin = first.ask(first.open_snapshot())[0]
    assert isinstance(begin, fr.SnapshotBegin)
    held = world.used()
    second.refused(second.open_snapshot(), ErrorCode.RESOURCE_EXHAUSTED)
    assert world.used() == held
    assert world.observer.count("quota", "pinned_bytes") == 1
    other = world.connect(2, scopes=Scope.WORK_READ)
    assert isinstance(other.ask(other.open_snapshot())[0], fr.SnapshotBegin)
    third = world.connect(3, scopes=Scope.WORK_READ)
    third.refused(third.open_snapshot(), ErrorCode.RESOURCE_EXHAUSTED)
    # The cut of the first is given back with its END, and the second goes on.
    first.ask(first.next_page(begin, begin.first_cursor))
    assert isinstance(second.ask(second.open_snapshot())[0], fr.SnapshotBegin)


@pytest.mark.req("P3-34", "P3-45", "P3-48", "P3-49")
def test_subscriptions_of_a_connection_a_principal_and_the_server() -> None:
    world = World(policy=caps(subscriptions=(32, 64, 70)))
    clients = [world.connect(1) for _ in range(3)]
    for client in clients[:2]:
        for _ in range(32):
            client.live(0)
        client.refused(client.subscribe(0), ErrorCode.RESOURCE_EXHAUSTED)
        assert len(client.conn.subscriptions) == 32, "a refusal leaves none"
    clients[2].refused(clients[2].subscribe(0), ErrorCode.RESOURCE_EXHAUSTED)
    clients[2].refused(clients[2].open_snapshot(reserve=True), ErrorCode.RESOURCE_EXHAUSTED)
    assert (clients[2].conn.subscriptions, clients[2].conn.leases) == ({}, {})
    other = world.connect(2)
    for _ in range(6):
        other.live(0)
    other.refused(other.subscribe(0), ErrorCode.RESOURCE_EXHAUSTED)
    other.done(other.create(1))
    assert len(clients[0].pull()) == 64, "whoever is subscribed keeps flowing"
    clients[1].detach()
    clients[2].live(0)


@pytest.mark.req("P3-46", "P14-14", "P3-49", "P10-17")
def test_unsent_queues_of_one_principal_and_isolation_of_the_others() -> None:
    world = World(policy=caps(queue_frames=(None, 100, 1_000)))
    stalled = world.connect(1, scopes=Scope.WORK_READ)
    subscriptions = [stalled.live(0, 0, 0) for _ in range(5)]
    healthy, other = world.connect(2, scopes=Scope.WORK_READ), world.connect(3, scopes=Scope.WORK_READ)
    healthy.live(0)
    other.live(0, 0, 0)
    maker = world.connect(9)
    for number in range(1, 21):
        maker.done(maker.create(number))
    assert stalled.pull() == []
    assert world.engine.stats().queued_frames == 120
    maker.done(maker.create(21))
    stalled.pull()
    (gap,) = stalled.gaps()
    assert gap.reason is GapReason.QUEUE_OVERFLOW
    assert gap.subscription_id in subscriptions
    healthy.pull()
    assert len(healthy.events()) == 21
    assert other.pull() == []
    assert world.engine.stats().queued_frames == 4 * 21 + 21


@pytest.mark.req("P3-46")
def test_unsent_queues_of_the_whole_server_and_by_bytes() -> None:
    world = World(policy=caps(queue_bytes=(None, 10_000, 15_000)))
    clients = [world.connect(principal, scopes=Scope.WORK_READ) for principal in (1, 2)]
    for client in clients:
        client.live(0, 0, 0)
    maker = world.connect(9)
    maker.done(maker.create(1, bytes(7_000)))
    maker.done(maker.create(2, bytes(700)))
    gaps = [len(client.pull()) for client in clients]
    assert sum(gaps) == 1, "the one that crosses the server's bound"
    maker.done(maker.create(3, bytes(2_500)))
    assert sum(len(client.pull()) for client in clients) == 1, "and then the one that crosses its principal's"


@pytest.mark.req("P3-47", "P3-48", "P8-16", "P3-50")
def test_pending_operations_of_one_principal_and_of_the_server() -> None:
    world = World(policy=caps(pending_operations=(None, 5, 8)))
    world.auto_commit = False
    first, second = world.connect(1), world.connect(2)
    for number in range(1, 6):
        first.send(first.create(number))
    first.send(first.create(6))
    batches = [world.engine.take_batch(world.now)]
    assert world.engine.stats().head_sequence == 10
    for number in range(11, 14):
        second.send(second.create(number))
    second.send(second.create(14))
    batches.append(world.engine.take_batch(world.now))
    assert world.engine.stats().head_sequence == 16
    # Pending work outlives its connection, and so does its charge.
    first.detach()
    assert world.used()["pending_operations"] == 8
    for batch in batches:
        assert batch is not None
        world.disk.commit(batch)
        world.engine.batch_durable(batch, world.now)
    assert "pending_operations" not in world.used()
    assert [type(answer) for answer in second.pull()] == [fr.CoordCommandResult] * 3 + [fr.CoordErrorFrame]
    assert second.errors()[0].code is ErrorCode.RESOURCE_EXHAUSTED
    again = world.connect(1)
    again.send(again.create(6))
    world.commit()
    assert [type(answer) for answer in again.pull()] == [fr.CoordCommandResult]


@pytest.mark.req("P14-14", "P3-41")
def test_a_reconnect_finds_the_counters_as_they_are() -> None:
    world = World(policy=caps(leases=(8, 10, 256)))
    first = world.connect(1)
    for _ in range(6):
        first.ask(first.open_snapshot())
    second = world.connect(1)
    for _ in range(4):
        second.ask(second.open_snapshot())
    third = world.connect(1)
    third.refused(third.open_snapshot(), ErrorCode.RESOURCE_EXHAUSTED)


@pytest.mark.req("P3-50")
def test_everything_is_given_back_and_past_principals_cost_nothing() -> None:
    world = World()
    selected = Limits(8_192, 1_024, 3, 1_024, 16, 65_536)
    for principal in range(1, 20):
        client = world.connect(principal, selected=selected)
        client.done(client.create(principal))
        client.live(0, 1, 500)
        begin = client.ask(client.open_snapshot(reserve=True))[0]
        assert isinstance(begin, fr.SnapshotBegin)
        client.send(client.next_page(begin, begin.first_cursor))
        client.send(client.lookup(bytes([7]) * 16))
        client.detach()
        client.detach()
    assert world.used() == {}
    assert world.engine._runtime.quotas.principals == 0


def test_no_quota_above_its_hard_cap() -> None:
    for name, row in QUOTAS.items():
        wider = QuotaCaps(*(None if value is None else value + 1 for value in row))
        with pytest.raises(ValueError, match=name):
            Quotas({name: wider})
    Quotas({"leases": QuotaCaps(1, 1, 1)})


def test_the_resources_are_those_of_the_limits_table() -> None:
    assert {resource.label for resource in Resource} == set(QUOTAS)


def test_a_policy_stays_within_the_protocol() -> None:
    with pytest.raises(ValueError, match="2592000"):
        Policy(retention_seconds=2_591_999)
    with pytest.raises(ValueError, match="bound"):
        Policy(event_count=0)
    with pytest.raises(MalformedMessage):
        Policy(limits=Limits(1 << 21, 4_096, 16, 1_024, 16, 65_536))


def test_principals_are_told_apart_by_their_key_alone() -> None:
    quotas = Quotas()
    assert quotas.principal(key(1)) is quotas.principal(key(1))
    assert quotas.principal(key(1)) is not quotas.principal(key(2))
    quotas.forget_idle(key(1))
    assert quotas.principals == 1
    assert isinstance(World().connect(3), Client)
