"""PAUSE_RUN, RESUME_RUN and CANCEL_RUN on runs that exist (OPEN P7-c)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sidecar.coordinator.authority.grants import EMPTY, KeyRecord, Registry
from sidecar.coordinator.wire import frames as fr
from sidecar.coordinator.wire import payloads as pl
from sidecar.coordinator.wire.enums import (
    Capability,
    CommandKind,
    ErrorCode,
    EventKind,
    ObjectKind,
    RunState,
    Scope,
    WorkSessionState,
)
from sidecar.coordinator.wire.ids import ObjectId, RunId
from sidecar.coordinator.wire.limits import RETENTION_FLOOR
from sidecar.coordinator.wire.records import ObjectRef, Precondition, SnapshotRecord, Succeeded, Tombstoned, Unknown
from tests.unit.engine import families as fam
from tests.unit.engine.fakes import key
from tests.unit.engine.harness import Client, World, id16

PAUSE, RESUME, CANCEL = CommandKind.PAUSE_RUN, CommandKind.RESUME_RUN, CommandKind.CANCEL_RUN
SHAPES: dict[CommandKind, type[pl.PauseRun | pl.ResumeRun | pl.CancelRun]] = {
    PAUSE: pl.PauseRun,
    RESUME: pl.ResumeRun,
    CANCEL: pl.CancelRun,
}
LEGAL = {
    (PAUSE, RunState.RUNNING): RunState.PAUSED,
    (RESUME, RunState.PAUSED): RunState.RUNNING,
    (CANCEL, RunState.PLANNED): RunState.CANCELLED,
    (CANCEL, RunState.RUNNING): RunState.CANCELLED,
    (CANCEL, RunState.PAUSED): RunState.CANCELLED,
}
"""OPEN P7-c, written down once more."""
RUN, SESSION = 40, 50


def command(client: Client, kind: CommandKind, run: int = RUN, **options: object) -> fr.CoordCommand:
    return client.command(kind, SHAPES[kind](run_id=RunId(id16(run))).body(), **options)  # type: ignore[arg-type]


def stored(world: World, kind: ObjectKind, number: int) -> tuple[int, pl.RecordPayload]:
    record = SnapshotRecord.decode(world.disk.records[kind, id16(number)].image)
    return record.revision, fam.payload_of(record)


@pytest.mark.req("P6-10", "P7-21")
@pytest.mark.parametrize("kind", list(SHAPES))
@pytest.mark.parametrize("state", list(RunState))
def test_every_command_in_every_state(kind: CommandKind, state: RunState) -> None:
    world = World(state=fam.holding(fam.run(RUN, state, outcome=b"o", revision=3), fam.session(SESSION, RUN)))
    client = world.connect()
    client.live()
    frame = command(client, kind)
    target = LEGAL.get((kind, state))
    if target is None:
        client.refused(frame, ErrorCode.REVISION_CONFLICT)
        assert client.one(client.lookup(frame.operation_id), fr.OperationResultFrame).operation == Unknown()
        assert client.events() == []
        return
    result = client.done(frame).operation
    assert isinstance(result, Succeeded)
    assert result.content() == ObjectRef(ObjectKind.RUN, ObjectId(id16(RUN)))
    assert result.completed_event_sequence == world.disk.last_sequence
    revision, run = stored(world, ObjectKind.RUN, RUN)
    assert isinstance(run, pl.RunRecord)
    assert (revision, run.state, run.outcome, run.attempt) == (4, target, b"o", 1)
    told = [(event.event_kind, event.object.kind, int(event.object_revision)) for event in client.events()]
    expected = [(EventKind.RUN_CHANGED, ObjectKind.RUN, 4)]
    if kind is CANCEL:
        expected.append((EventKind.WORK_SESSION_CHANGED, ObjectKind.WORK_SESSION, 2))
    assert told == [*expected, (EventKind.OPERATION_CHANGED, ObjectKind.OPERATION, 1)]
    for event in client.events()[:-1]:
        assert (
            SnapshotRecord.decode(event.payload).encode()
            == world.disk.records[event.object.kind, event.object.id].image
        )


def test_cancelling_ends_the_work_sessions_of_the_run_and_no_other() -> None:
    ended = WorkSessionState.ENDED
    others = [fam.session(60 + number, 100 + number) for number in range(50)]
    own = [fam.session(SESSION, RUN, revision=5), fam.session(SESSION + 1, RUN, ended)]
    world = World(state=fam.holding(fam.run(RUN), *own, *others))
    client = world.connect()
    client.done(command(client, CANCEL))
    revision, session = stored(world, ObjectKind.WORK_SESSION, SESSION)
    assert isinstance(session, pl.WorkSessionRecord)
    assert (revision, session.state, session.run_id) == (6, ended, id16(RUN))
    untouched = {record.id: record for record in [own[1], *others]}
    assert {id_: world.disk.records[ObjectKind.WORK_SESSION, id_] for id_ in untouched} == untouched


@pytest.mark.parametrize("kind", list(SHAPES))
def test_the_right_to_command_suffices_and_tells_nothing(kind: CommandKind) -> None:
    """Table P6-t2: no right to read runs is needed; a precondition still sees nothing (OPEN P8-d)."""
    state = RunState.PAUSED if kind is RESUME else RunState.RUNNING
    world = World(state=fam.holding(fam.run(RUN, state), fam.session(SESSION, RUN)))
    blind = world.connect(scopes=Scope.WORK_COMMAND)
    ref = ObjectRef(ObjectKind.RUN, ObjectId(id16(RUN)))
    blind.refused(command(blind, kind, preconditions=[Precondition(ref, 1)]), ErrorCode.REVISION_CONFLICT)
    blind.live()
    assert isinstance(blind.done(command(blind, kind)).operation, Succeeded)
    assert {event.object.kind for event in blind.events()} == {ObjectKind.OPERATION}
    blind.refused(command(blind, kind, run=RUN + 1), ErrorCode.NOT_FOUND)


@pytest.mark.req("P6-11", "P5-17")
@pytest.mark.parametrize(
    ("scopes", "capabilities", "code"),
    [
        (0x3F, 0, ErrorCode.CAPABILITY_REQUIRED),
        (0x3F, 0x1F & ~Capability.TERMINAL_BINDINGS, ErrorCode.CAPABILITY_REQUIRED),
        (Scope.WORK_COMMAND, 0, ErrorCode.CAPABILITY_REQUIRED),
        (0x3F & ~Scope.WORK_READ, 0x1F, ErrorCode.SCOPE_DENIED),
        (0x3F & ~Scope.TERMINAL_CONTROL, 0x1F, ErrorCode.SCOPE_DENIED),
        (0x3F & ~Scope.WORK_COMMAND, 0x1F, ErrorCode.SCOPE_DENIED),
        (0x3F, 0x1F, ErrorCode.CAPABILITY_REQUIRED),
    ],
)
def test_cancelling_a_run_with_an_active_binding_is_gated(scopes: int, capabilities: int, code: ErrorCode) -> None:
    bound = fam.session(SESSION, RUN, binding=fam.BINDING)
    world = World(state=fam.holding(fam.run(RUN), fam.session(SESSION - 1, RUN), bound))
    client = world.connect(scopes=scopes, capabilities=capabilities)
    frame = command(client, CANCEL)
    client.refused(frame, code)
    assert world.disk.last_sequence == 0
    admin = world.connect(2, scopes=Scope.ADMIN)
    assert admin.one(admin.lookup(frame.operation_id), fr.OperationResultFrame).operation == Unknown()


def test_pausing_a_run_with_an_active_binding_is_not_gated() -> None:
    world = World(state=fam.holding(fam.run(RUN), fam.session(SESSION, RUN, binding=fam.BINDING)))
    client = world.connect()
    client.done(command(client, PAUSE))
    client.done(command(client, RESUME))
    assert stored(world, ObjectKind.RUN, RUN)[0] == 3


@pytest.mark.req("W8-11", "W8-07")
@pytest.mark.parametrize("how", ["removed", "revoked", "expired", "malformed"])
def test_the_end_of_a_grant_touches_no_run_and_no_terminal(how: str) -> None:
    """What a workload started goes on without it; what it still had waiting is not done."""
    bound = [fam.run(RUN), fam.session(SESSION, RUN, binding=fam.BINDING), fam.binding(SESSION)]
    free = [fam.run(RUN + 1, RunState.PLANNED), fam.session(SESSION + 1, RUN + 1), fam.run(RUN + 2)]
    world = World(state=fam.holding(*bound, *free))
    workload = world.connect(1, expires_in=100)
    watcher = world.connect(2, capabilities=0x1F)
    both = tuple(KeyRecord(bytes(32), key(number), "phux-coordinator", 0x3F, 2**40) for number in (1, 2))
    world.engine.set_registry(Registry(both, 1), world.now)
    workload.done(command(workload, PAUSE))
    watcher.live(world.disk.last_sequence)
    world.commit()
    work = {ref: record for ref, record in world.disk.records.items() if ref[0] != ObjectKind.ADMIN}
    written = (dict(world.disk.operations), list(world.disk.events), world.engine.stats().head_sequence)
    workload.send(command(workload, RESUME))
    workload.send(command(workload, CANCEL, run=RUN + 1))
    if how == "expired":
        world.advance(100)
    else:
        gone = (replace(both[0], revoked_at=1),) if how == "revoked" else ()
        changed = EMPTY if how == "malformed" else Registry((*gone, both[1]), 2)
        world.engine.set_registry(changed, world.now)
    assert workload.conn.closing is ErrorCode.AUTHENTICATION_FAILED
    world.commit()
    watcher.pull()
    assert {ref: record for ref, record in world.disk.records.items() if ref[0] != ObjectKind.ADMIN} == work
    assert (world.disk.operations, world.disk.events, world.engine.stats().head_sequence) == written
    assert watcher.events() == []


@pytest.mark.req("P8-42")
def test_the_tombstone_of_a_run_command_stays_while_its_revision_does() -> None:
    world = World(state=fam.holding(fam.run(RUN), fam.session(SESSION, RUN)))
    client = world.connect()
    pause, cancel = command(client, PAUSE), command(client, CANCEL)
    client.done(pause)
    client.done(cancel)
    for _ in range(3):
        world.advance(RETENTION_FLOOR)
        world.commit()
    reader = world.connect()
    assert reader.one(reader.lookup(pause.operation_id), fr.OperationResultFrame).operation == Unknown()
    assert isinstance(reader.one(reader.lookup(cancel.operation_id), fr.OperationResultFrame).operation, Tombstoned)


@pytest.mark.req("P8-14", "P8-09")
def test_a_repeated_command_changes_nothing_also_after_a_restart() -> None:
    world = World(state=fam.holding(fam.run(RUN), fam.session(SESSION, RUN)))
    client = world.connect()
    frame = command(client, CANCEL)
    first = client.done(frame).operation
    assert client.done(command(client, CANCEL, operation=frame.operation_id)).operation == first
    later = world.restart()
    again = later.connect()
    assert again.done(command(again, CANCEL, operation=frame.operation_id)).operation == first
    again.refused(command(again, CANCEL, operation=id16(999)), ErrorCode.REVISION_CONFLICT)
    assert stored(later, ObjectKind.RUN, RUN)[0] == 2
