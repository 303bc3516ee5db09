"""Records come to be by commands alone: nothing of another authority ever enters (P12-32)."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from sidecar.coordinator.store.errors import StaleBatch
from sidecar.coordinator.store.sqlite import SqliteStore
from sidecar.coordinator.wire import frames as fr
from sidecar.coordinator.wire.enums import ErrorCode
from sidecar.coordinator.wire.fields import Frame
from sidecar.coordinator.wire.ids import CoordinatorId, EventCut, SnapshotId
from sidecar.coordinator.wire.payloads import COMMANDS
from sidecar.coordinator.wire.records import Unknown
from tests.unit.engine.fakes import FakeAuthority
from tests.unit.engine.harness import World, id16
from tests.unit.session.bench import House

FOREIGN = FakeAuthority(coordinator_id=b"\x12" * 16)


def foreign_frames() -> list[fr.Frame]:
    """What another coordinator serves: a snapshot with a record, and the event that tells of it."""
    world = World(authority=FOREIGN)
    maker = world.connect()
    subscription = maker.live()
    maker.done(maker.create(77))
    snapshot = maker.snapshot()
    assert maker.events()[0].subscription_id == subscription
    return [snapshot.begin, *snapshot.pages, snapshot.end, maker.events()[0]]


def words(doc: str) -> set[str]:
    return set(re.findall(r"\w+", doc))


def everything(house: House) -> tuple[object, ...]:
    """All that the authority knows, and all that it said."""
    stats, disk = house.world.engine.stats(), house.world.disk
    return stats.head_sequence, dict(disk.records), dict(disk.operations), list(disk.events)


@pytest.mark.req("P12-32")
@pytest.mark.parametrize("index", range(4), ids=["begin", "page", "end", "event"])
def test_records_of_another_coordinator_are_taken_from_nobody(index: int) -> None:
    house = House()
    wire = house.login()
    before = everything(house)
    wire.send(foreign_frames()[index])
    assert wire.refusal()[0] == ErrorCode.PROTOCOL_ERROR
    house.world.commit()
    assert everything(house) == before
    assert house.crashes == []


@pytest.mark.req("P12-32")
def test_no_frame_of_a_client_has_room_for_a_record_or_an_event() -> None:
    carriers: set[type[fr.Frame]] = {fr.SnapshotPage, fr.ReplayPage}
    kinds = {"SnapshotRecord", "ReplayEvent"}
    frames = {shape for shape in fr.FRAMES.values() for item in shape.FIELDS if kinds & words(item.codec.doc)}
    commands = {shape for shape in COMMANDS.values() for item in shape.FIELDS if kinds & words(item.codec.doc)}
    assert frames == carriers
    assert commands == set()
    assert {shape.ROW.direction for shape in carriers | {fr.CoordEvent}} == {"s"}


@pytest.mark.req("P12-32", "P4-12")
@pytest.mark.parametrize("name", ["command", "snapshot", "subscribe"])
def test_a_request_that_means_another_coordinator_does_nothing_here(name: str) -> None:
    world = World()
    client = world.connect()
    client.done(client.create(1))
    kept = dict(world.disk.records)
    guard = replace(client.guard, coordinator_id=CoordinatorId(FOREIGN.coordinator_id))
    frames: dict[str, Frame] = {
        "command": client.create(2, guard=guard),
        "snapshot": client.open_snapshot(guard=guard),
        "subscribe": client.subscribe(EventCut(0), guard=guard),
    }
    client.fatal(frames[name], ErrorCode.STALE_AUTHORITY)
    world.commit()
    assert world.disk.records == kept
    assert world.used() == {}


@pytest.mark.req("P12-32")
def test_ids_of_another_coordinator_open_nothing_here() -> None:
    """Its snapshots and operations do not exist, although ids and digests would be the same."""
    there, here = World(authority=FOREIGN), World()
    stranger = there.connect()
    command = stranger.create(5)
    stranger.done(command)
    begin = stranger.ask(stranger.open_snapshot())[0]
    assert isinstance(begin, fr.SnapshotBegin)
    client = here.connect()
    client.refused(client.next_page(begin, begin.first_cursor), ErrorCode.CURSOR_INVALID)
    client.refused(client.applied(begin, snapshot=SnapshotId(begin.snapshot_id)), ErrorCode.CURSOR_INVALID)
    assert client.one(client.lookup(command.operation_id), fr.OperationResultFrame).operation == Unknown()
    # Sent here, the very same command is a command of this lineage and nothing else.
    again = client.create(5, operation=command.operation_id)
    client.done(again)
    assert next(iter(client.snapshot())).id == id16(5)
    assert here.disk.last_sequence == 2


@pytest.mark.req("P12-32")
def test_a_store_takes_no_batch_that_another_lineage_made(tmp_path: Path) -> None:
    """Two stores, two activations: a batch made under one is refused by the other and leaves nothing."""
    store = SqliteStore.open(tmp_path / "store", entropy=lambda size: b"\x21" * size)
    store.install(6, 8, b"\x01" * 32, b"\x56" * 16)
    world = World(authority=FOREIGN)
    world.auto_commit = False
    maker = world.connect()
    maker.send(maker.create(9))
    batch = world.engine.take_batch(world.now)
    assert batch is not None
    with pytest.raises(StaleBatch):
        store.commit(batch, lambda: None)
    store.close()
    store = SqliteStore.open(tmp_path / "store", entropy=lambda size: b"\x22" * size)
    state = store.load()
    assert store.coordinator_id == b"\x21" * 16
    assert (state.last_sequence, len(state.families), state.tail) == (0, 0, ())
    store.close()
