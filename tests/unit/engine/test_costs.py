"""What one frame, one batch or one tick may cost at most, counted in looks at events and operations."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from sidecar.coordinator.engine.log import EventLog, LogEntry
from sidecar.coordinator.engine.policy import Policy
from sidecar.coordinator.engine.retention import LOG_STEP
from sidecar.coordinator.engine.state import Entry, State
from sidecar.coordinator.engine.tree import Tree
from sidecar.coordinator.wire import frames as fr
from sidecar.coordinator.wire.enums import Capability, ErrorCode, GapReason, ObjectKind, Scope
from sidecar.coordinator.wire.limits import HARD, QUOTAS, RETENTION_FLOOR
from sidecar.coordinator.wire.records import Succeeded, Tombstoned
from tests.unit.engine.harness import Client, World
from tests.unit.engine.test_change_retention import change, result
from tests.unit.engine.test_log import event
from tests.unit.engine.test_state import record

SUBSCRIPTIONS = 16


class Looks:
    """Counts what is looked up in the log."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        look = EventLog.__getitem__

        def counted(log: EventLog, sequence: int) -> LogEntry:
            self.count += 1
            return look(log, sequence)

        monkeypatch.setattr(EventLog, "__getitem__", counted)


def world_of(events: int, policy: Policy | None = None) -> World:
    """A world whose log holds so many events of objectives."""
    tail = [event(sequence) for sequence in range(1, events + 1)]
    return World(policy=policy, state=State.build([], [], tail, events))


class Size(int):
    """Counts how often it is compared or hashed."""

    looks = 0

    def __lt__(self, other: int) -> bool:
        Size.looks += 1
        return int(self) < other

    def __gt__(self, other: int) -> bool:
        Size.looks += 1
        return int(self) > other

    def __hash__(self) -> int:
        Size.looks += 1
        return int(self)


def admin_of(world: World) -> Client:
    return world.connect(200, capabilities=int(Capability.ADMINISTRATION))


def blind(world: World, after: int = 0) -> Client:
    """Many subscriptions that stand at an old event and see none of what is there; their peer does not read."""
    client = world.connect(1, scopes=Scope.WORK_COMMAND)
    client.conn.writable = False
    for _ in range(SUBSCRIPTIONS):
        client.send(client.subscribe(after))
    assert len([frame for frame in client.pull() if isinstance(frame, fr.Subscribed)]) == SUBSCRIPTIONS
    return client


@pytest.mark.req("P10-17", "P14-12")
def test_what_leaves_the_log_is_looked_at_once_for_all_who_see_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    events = 2_000
    world = world_of(events)
    admin = admin_of(world)
    client = blind(world)
    looks = Looks(monkeypatch)
    admin.done(change(admin, events=0))
    assert world.engine.stats().retained_from == events + 1
    assert client.gaps() == []
    assert looks.count < 3 * events  # what the log itself needs to find and drop them


@pytest.mark.req("P10-17")
def test_change_retention_takes_events_in_steps_and_each_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = 3
    world = world_of(steps * LOG_STEP)
    admin, reader = admin_of(world), world.connect(1, scopes=Scope.WORK_READ)
    early, late = reader.live(0, 0, 0), reader.live(2 * LOG_STEP, 0, 0)
    looks = Looks(monkeypatch)
    admin.done(change(admin, events=0))
    firsts = [world.engine.stats().retained_from]
    assert looks.count <= 6 * LOG_STEP
    reader.pull()
    assert [(gap.subscription_id, gap.reason) for gap in reader.gaps()] == [(early, GapReason.RETENTION)]
    while firsts[-1] <= steps * LOG_STEP:
        world.advance(0.25)
        firsts.append(world.engine.stats().retained_from)
    assert firsts == [1 + LOG_STEP, 1 + 2 * LOG_STEP, 1 + 3 * LOG_STEP]
    reader.pull()
    assert [gap.subscription_id for gap in reader.gaps()] == [early, late]
    world.advance(0.25)
    assert len(world.engine._runtime.log) == 1  # the newest batch stays


@pytest.mark.req("W8-09")
def test_at_a_fence_the_log_is_looked_at_once_for_all_who_stand_at_one_place(monkeypatch: pytest.MonkeyPatch) -> None:
    events = 2_000
    world = world_of(events)
    client = blind(world)
    looks = Looks(monkeypatch)
    world.engine.fence("it was lost")
    client.pull()
    assert [gap.observed_event for gap in client.gaps()] == [None] * SUBSCRIPTIONS
    assert looks.count <= 2 * events


@pytest.mark.req("P8-40", "P6-16")
def test_change_retention_does_not_look_at_every_operation(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    admin = admin_of(world)
    first = admin.create(1)
    admin.done(first)
    for number in range(2, 200):
        admin.done(admin.create(number))
    walks: list[int] = []
    items = Tree.items

    def counted(tree: Tree[bytes, Entry], after: bytes | None = None) -> Iterator[tuple[bytes, Entry]]:
        walks.append(len(tree))
        return items(tree, after)

    monkeypatch.setattr(Tree, "items", counted)
    admin.done(change(admin, RETENTION_FLOOR + 1_000))
    admin.done(change(admin, RETENTION_FLOOR + 500))
    assert walks == []
    monkeypatch.undo()
    world.advance(RETENTION_FLOOR + 499)
    assert isinstance(result(admin, first), Succeeded)
    assert world.engine.next_deadline() == pytest.approx(world.now.mono + 1)
    world.advance(1)
    assert isinstance(result(admin, first), Tombstoned)


def test_a_jump_over_many_promises_is_worked_off_in_bounded_ticks() -> None:
    world = World(policy=Policy(prune_batch=10))
    admin = admin_of(world)
    for number in range(1, 31):
        admin.done(admin.create(number))
    admin.done(change(admin, RETENTION_FLOOR + 1_000))
    world.advance(RETENTION_FLOOR)
    for _ in range(4):
        assert world.engine.stats().head_sequence == 61  # nothing is due yet, whatever was promised
        world.advance(0.25)
    assert world.engine.next_deadline() == pytest.approx(world.now.mono + 999)


@pytest.mark.req("P10-14", "P14-12")
def test_history_that_is_hidden_is_stepped_over_without_a_look_at_its_events(monkeypatch: pytest.MonkeyPatch) -> None:
    events = 10_000
    world = world_of(events)
    client = world.connect(1, scopes=Scope.WORK_COMMAND)
    looks = Looks(monkeypatch)
    for after in range(0, 8_000, 500):
        client.send(client.subscribe(after, 10, 10_000))
    while client.wakes:
        client.wakes = 0
        client.pull()
    assert [sub.cursor for sub in client.conn.subscriptions.values()] == [events] * SUBSCRIPTIONS
    assert looks.count == 0
    own = client.create(1)
    client.done(own)
    assert [bytes(event.object.id) for event in client.events()] == [own.operation_id] * SUBSCRIPTIONS


@pytest.mark.req("P3-48", "P14-12")
@pytest.mark.parametrize("page", [HARD.page_bytes, 2_000])
def test_a_snapshot_that_is_refused_does_not_look_at_every_size(page: int) -> None:
    """Refused for the quota of leases, or because the selected page does not hold the largest record."""
    sizes, tries = 2_000, 50
    world = World(state=State.build([record(number, 40 + number) for number in range(sizes)], [], [], 0))
    state = world.engine._runtime.durable
    family = state.family(ObjectKind.OBJECTIVE)
    assert len(family.sizes) == sizes
    counted = family._replace(sizes=Tree.build((Size(size), count) for size, count in family.sizes.items()))
    world.engine._runtime.durable = state._replace(families=state.families.set(int(ObjectKind.OBJECTIVE), counted))
    client = world.connect(1, scopes=Scope.WORK_READ, selected=replace(HARD, page_bytes=page))
    opened = [client.ask(client.open_snapshot())[0] for _ in range(QUOTAS["leases"].connection or 0)]
    assert all(isinstance(frame, fr.SnapshotBegin) for frame in opened) == (page == HARD.page_bytes)
    Size.looks = 0
    for _ in range(tries):
        client.refused(client.open_snapshot(), ErrorCode.RESOURCE_EXHAUSTED)
    assert Size.looks <= tries * len(ObjectKind)
