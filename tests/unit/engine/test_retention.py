"""What is kept for how long (P5-10, P5-11, P8-40..42)."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sidecar.coordinator.engine.policy import Policy
from sidecar.coordinator.engine.state import Batch, Event, Operation, State
from sidecar.coordinator.store.sqlite import SqliteStore
from sidecar.coordinator.wire import frames as fr
from sidecar.coordinator.wire.enums import ErrorCode, EventKind, ObjectKind, OperationTag
from sidecar.coordinator.wire.limits import RETENTION_FLOOR
from sidecar.coordinator.wire.payloads import OperationRecord
from sidecar.coordinator.wire.records import OperationResult, Succeeded, Tombstoned, Unknown, encode_operation
from tests.unit.engine.fakes import FakeAuthority, key
from tests.unit.engine.harness import Client, World, id16


def nothing() -> None:
    """A certificate that is always valid."""


def result(client: Client, operation: bytes) -> OperationResult:
    return client.one(client.lookup(operation), fr.OperationResultFrame).operation


@pytest.mark.req("P8-40", "P8-41", "P5-10")
def test_a_body_is_kept_for_its_retention_and_then_a_tombstone() -> None:
    world = World()
    client = world.connect()
    command = client.create(1)
    client.done(command)
    digest = world.disk.operations[command.operation_id].digest
    world.advance(RETENTION_FLOOR - 3_600)
    assert isinstance(result(client, command.operation_id), Succeeded)
    world.advance(3_599)
    assert isinstance(result(client, command.operation_id), Succeeded)
    assert world.engine.next_deadline() == pytest.approx(world.now.mono + 1)
    world.advance(1)
    assert result(client, command.operation_id) == Tombstoned(digest, OperationTag.SUCCEEDED)
    record = next(record for record in client.snapshot() if record.kind is ObjectKind.OPERATION)
    assert record.revision == 2
    assert OperationRecord.decode(record.payload).result == Tombstoned(digest, OperationTag.SUCCEEDED)


@pytest.mark.req("P8-41")
def test_the_tombstone_is_an_event_of_the_operation() -> None:
    world = World()
    client = world.connect()
    command = client.create(1)
    client.done(command)
    client.live(2)
    world.advance(RETENTION_FLOOR)
    (event,) = client.pull()
    assert isinstance(event, fr.CoordEvent)
    assert (event.event_kind, bytes(event.object.id), int(event.object_revision)) == (
        EventKind.OPERATION_CHANGED,
        command.operation_id,
        2,
    )


@pytest.mark.req("P8-40", "P5-10")
def test_a_longer_advertised_retention_holds_also_when_it_is_lowered_later() -> None:
    world = World(policy=Policy(retention_seconds=RETENTION_FLOOR + 1_000))
    client = world.connect()
    command = client.create(1)
    client.done(command)
    world.policy = Policy()
    lowered = world.restart()
    lowered.advance(RETENTION_FLOOR + 999)
    reader = lowered.connect()
    assert isinstance(result(reader, command.operation_id), Succeeded)
    lowered.advance(1)
    assert isinstance(result(reader, command.operation_id), Tombstoned)


@pytest.mark.req("P8-40")
def test_a_raised_retention_holds_for_old_results_too() -> None:
    world = World()
    client = world.connect()
    command = client.create(1)
    client.done(command)
    world.policy = Policy(retention_seconds=RETENTION_FLOOR + 1_000)
    raised = world.restart()
    raised.advance(RETENTION_FLOOR + 999)
    assert isinstance(result(raised.connect(), command.operation_id), Succeeded)


@pytest.mark.req("P8-42")
def test_a_tombstone_stays_while_what_it_created_is_there() -> None:
    world = World()
    client = world.connect()
    create, update, again = client.create(1), client.update(1), client.update(1, b"newer")
    for command in (create, update, again):
        client.done(command)
    for _ in range(4):
        world.advance(RETENTION_FLOOR)
        world.commit()
    # The objective is there, and so is the revision that the last update made; the one before is gone.
    assert isinstance(result(client, create.operation_id), Tombstoned)
    assert isinstance(result(client, again.operation_id), Tombstoned)
    assert result(client, update.operation_id) == Unknown()
    assert {bytes(record.id) for record in client.snapshot() if record.kind is ObjectKind.OPERATION} == {
        create.operation_id,
        again.operation_id,
    }
    client.refused(client.create(1, b"other", operation=create.operation_id), ErrorCode.OPERATION_CONFLICT)
    assert set(world.disk.operations) == {create.operation_id, again.operation_id}
    # Now the id is as new.
    client.done(client.create(5, operation=update.operation_id))


@pytest.mark.req("P8-42", "P8-41")
def test_tombstones_survive_a_restart_and_age_on() -> None:
    world = World()
    client = world.connect()
    create, update = client.create(1), client.update(1)
    client.done(create)
    client.done(update)
    client.done(client.update(1))
    world.advance(RETENTION_FLOOR)
    world.commit()
    restarted = world.restart()
    reader = restarted.connect()
    assert isinstance(result(reader, update.operation_id), Tombstoned)
    restarted.advance(RETENTION_FLOOR)
    assert result(reader, update.operation_id) == Unknown()
    assert isinstance(result(reader, create.operation_id), Tombstoned)


def test_one_tick_prunes_a_bounded_number_and_asks_for_the_next() -> None:
    world = World(policy=Policy(prune_batch=10))
    client = world.connect()
    for number in range(1, 26):
        client.done(client.create(number))
    world.advance(RETENTION_FLOOR, tick=False)
    ticks = 0
    while (deadline := world.engine.next_deadline()) is not None and deadline <= world.now.mono:
        before = world.engine.stats().head_sequence
        world.engine.tick(world.now)
        assert world.engine.stats().head_sequence - before <= 10
        ticks += 1
    assert ticks == 3
    assert world.engine.stats().head_sequence == 50 + 25


@pytest.mark.req("P5-11")
def test_storage_pressure_refuses_new_work_and_keeps_old_results() -> None:
    world = World(policy=Policy(storage_bytes=4_000))
    client = world.connect()
    commands = []
    for number in range(1, 100):
        command = client.create(number, bytes(500))
        answer = client.ask(command)[0]
        if isinstance(answer, fr.CoordErrorFrame):
            assert answer.code is ErrorCode.RESOURCE_EXHAUSTED
            break
        commands.append(command)
    assert 3 <= len(commands) < 10
    assert result(client, command.operation_id) == Unknown()
    for stored in commands:
        assert isinstance(result(client, stored.operation_id), Succeeded)
        assert (
            isinstance(client.done(client.create(1, operation=stored.operation_id)), fr.CoordCommandResult)
            if (stored.payload == client.create(1).payload)
            else True
        )
    world.advance(RETENTION_FLOOR - 1)
    client.refused(client.create(200, bytes(500)), ErrorCode.RESOURCE_EXHAUSTED)
    assert all(isinstance(result(client, stored.operation_id), Succeeded) for stored in commands)


def test_the_event_log_is_bounded_by_bytes_and_count() -> None:
    world = World(policy=Policy(event_bytes=10_000, event_count=50))
    client = world.connect()
    for number in range(1, 6):
        client.done(client.create(number, bytes(3_000)))
    log = world.engine._runtime.log
    assert log.nbytes <= 10_000
    assert log.head == 10
    for number in range(100, 160):
        client.done(client.create(number))
    assert len(log) == 50
    assert world.engine.stats().retained_from == log.head - 49
    client.done(client.create(999))
    assert len(world.disk.events) <= 52, "the store is told what it may delete"


def test_a_recovered_log_is_cut_to_its_bounds() -> None:
    world = World()
    client = world.connect()
    for number in range(1, 11):
        client.done(client.create(number))
    world.policy = Policy(event_count=3)
    restarted = world.restart()
    assert restarted.engine.stats().retained_from == 18
    assert restarted.engine.stats().durable_sequence == 20


@pytest.mark.req("P8-40")
def test_a_pending_row_is_never_pruned() -> None:
    world = World()
    client = world.connect()
    command = client.create(1)
    client.done(command)
    (row,) = world.disk.operations.values()
    pending = row._replace(completed_at=0, result=bytes.fromhex("00" + "0000000000000005" + "0000000000000002"))
    stuck = World(state=State.build(world.disk.records.values(), [pending], world.disk.events, 2))
    stuck.advance(10 * RETENTION_FLOOR)
    assert stuck.engine.stats().head_sequence == 2


@pytest.mark.req("P8-13", "P8-17", "P8-42")
def test_an_id_that_is_sent_again_before_its_forgetting_is_durable_is_one_batch(tmp_path: Path) -> None:
    """The store must then forget first and admit second: what was answered is there after a restart."""
    store = SqliteStore.open(tmp_path / "store", entropy=os.urandom)
    authority = FakeAuthority(coordinator_id=store.coordinator_id)
    store.install(authority.epoch, authority.activation_sequence, bytes(32), authority.incarnation_id)
    operation = Operation(
        id16(5),
        2,
        b"",
        key(1),
        bytes(32),
        1,
        encode_operation(Tombstoned(bytes(32), OperationTag.SUCCEEDED)),
        1,
        1,
        b"",
    )
    event = Event(1, id16(1), EventKind.OPERATION_CHANGED, ObjectKind.OPERATION, id16(5), 2, 1, b"", key(1))
    store.commit(
        Batch(1, authority.epoch, authority.activation_sequence, (), (operation,), (), (event,), 1, 0), nothing
    )
    store.close()
    store = SqliteStore.open(tmp_path / "store", entropy=os.urandom)
    authority = FakeAuthority(coordinator_id=store.coordinator_id, epoch=6, activation_sequence=8)
    store.install(authority.epoch, authority.activation_sequence, bytes(32), authority.incarnation_id)
    world = World(state=store.load(), authority=authority)
    world.auto_commit = False
    client = world.connect()
    world.advance(1)
    client.send(client.create(1, operation=id16(5)))
    batch = world.engine.take_batch(world.now)
    assert batch is not None
    assert (batch.removed_operations, len(batch.operations)) == ((id16(5),), 1)
    store.commit(batch, nothing)
    world.engine.batch_durable(batch, world.now)
    assert [type(frame) for frame in client.pull()] == [fr.CoordCommandResult]
    store.close()
    store = SqliteStore.open(tmp_path / "store", entropy=os.urandom)
    kept = store.load().operation(id16(5))
    store.close()
    assert kept is not None
    assert kept.tag is OperationTag.SUCCEEDED
