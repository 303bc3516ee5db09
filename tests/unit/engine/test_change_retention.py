"""CHANGE_RETENTION and what follows it while the server runs and after a restart (OPEN P7-g, P7-l)."""

from __future__ import annotations

import pytest

from sidecar.coordinator.engine.policy import Policy
from sidecar.coordinator.wire import frames as fr
from sidecar.coordinator.wire import payloads as pl
from sidecar.coordinator.wire.enums import (
    AdminKind,
    Capability,
    CommandKind,
    ErrorCode,
    EventKind,
    GapReason,
    ObjectKind,
    Scope,
)
from sidecar.coordinator.wire.ids import ArtifactId, ObjectId
from sidecar.coordinator.wire.limits import RETENTION_FLOOR
from sidecar.coordinator.wire.records import (
    AdminRetention,
    ObjectRef,
    Precondition,
    SnapshotRecord,
    Succeeded,
    Tombstoned,
    Unknown,
)
from tests.unit.engine import families as fam
from tests.unit.engine.fakes import COORDINATOR
from tests.unit.engine.harness import Client, World, id16

ALL = 0x1F
LARGE = 2**64 - 1
DAY = 86_400


def change(
    client: Client, seconds: int = RETENTION_FLOOR, events: int = LARGE, artifacts: int = LARGE, **options: object
) -> fr.CoordCommand:
    payload = pl.ChangeRetention(operation_result_secs=seconds, event_bytes=events, artifact_bytes=artifacts)
    return client.command(CommandKind.CHANGE_RETENTION, payload.body(), **options)  # type: ignore[arg-type]


def stored(world: World) -> tuple[int, AdminRetention]:
    record = SnapshotRecord.decode(world.disk.records[ObjectKind.ADMIN, COORDINATOR].image)
    payload = fam.payload_of(record)
    assert isinstance(payload, pl.AdminRecord)
    assert payload.admin_kind is AdminKind.RETENTION
    values = payload.content()
    assert isinstance(values, AdminRetention)
    return record.revision, values


def result(client: Client, frame: fr.CoordCommand) -> object:
    answers = client.ask(client.lookup(frame.operation_id))
    return next(answer.operation for answer in answers if isinstance(answer, fr.OperationResultFrame))


@pytest.mark.req("P6-16", "P5-17")
@pytest.mark.parametrize(
    ("scopes", "capabilities", "code"),
    [
        (0x3F, ALL & ~Capability.ADMINISTRATION, ErrorCode.CAPABILITY_REQUIRED),
        (0x3F & ~Scope.ADMIN, ALL, ErrorCode.SCOPE_DENIED),
    ],
)
def test_it_needs_administration_and_admin(scopes: int, capabilities: int, code: ErrorCode) -> None:
    world = World()
    client = world.connect(scopes=scopes, capabilities=capabilities)
    client.refused(change(client), code)
    assert world.disk.records == {}
    if code is ErrorCode.SCOPE_DENIED:
        (answer,) = client.ask(change(client))
        assert isinstance(answer, fr.CoordErrorFrame)
        assert "needs the scope ADMIN" in answer.message


@pytest.mark.req("P6-16", "P8-13")
def test_the_record_is_one_durable_row_without_an_event_of_its_own() -> None:
    world = World()
    admin = world.connect(scopes=Scope.ADMIN, capabilities=Capability.ADMINISTRATION)
    admin.live()
    done = admin.done(change(admin, RETENTION_FLOOR + 1, 2, 3)).operation
    assert isinstance(done, Succeeded)
    assert done.content() == ObjectRef(ObjectKind.ADMIN, ObjectId(COORDINATOR))
    assert done.completed_event_sequence == 1
    assert [event.event_kind for event in admin.events()] == [EventKind.OPERATION_CHANGED]
    assert stored(world) == (1, AdminRetention(RETENTION_FLOOR + 1, 2, 3))
    admin.done(change(admin, RETENTION_FLOOR, 0, 0))
    assert stored(world) == (2, AdminRetention(RETENTION_FLOOR, 0, 0))
    assert [bytes(record.id) for record in admin.snapshot() if record.kind is ObjectKind.ADMIN] == [bytes(COORDINATOR)]
    later = world.restart()
    again = later.connect(scopes=Scope.ADMIN, capabilities=Capability.ADMINISTRATION)
    expected = [Precondition(ObjectRef(ObjectKind.ADMIN, ObjectId(COORDINATOR)), 2)]
    again.done(change(again, preconditions=expected, operation=id16(900)))
    assert stored(later)[0] == 3


@pytest.mark.req("P5-10")
@pytest.mark.parametrize("seconds", [0, RETENTION_FLOOR - 1])
def test_less_than_the_floor_is_malformed(seconds: int) -> None:
    world = World()
    admin = world.connect(capabilities=ALL)
    body = bytearray(change(admin).payload)
    floor = RETENTION_FLOOR.to_bytes(8, "big")
    assert body.count(floor) == 1
    body[body.index(floor) : body.index(floor) + 8] = seconds.to_bytes(8, "big")
    frame = admin.command(CommandKind.CHANGE_RETENTION, bytes(body))
    admin.fatal(frame, ErrorCode.MALFORMED_MESSAGE)
    other = world.connect(2, capabilities=ALL)
    assert result(other, frame) == Unknown()
    assert isinstance(other.done(change(other)).operation, Succeeded)


@pytest.mark.req("P8-40", "P5-10")
def test_a_raised_retention_holds_for_old_and_new_results_at_once() -> None:
    world = World()
    client = world.connect(capabilities=ALL)
    old = client.create(1)
    client.done(old)
    client.done(change(client, RETENTION_FLOOR + DAY))
    new = client.create(2)
    client.done(new)
    world.advance(RETENTION_FLOOR + DAY - 1)
    assert isinstance(result(client, old), Succeeded)
    assert isinstance(result(client, new), Succeeded)
    world.advance(1)
    assert isinstance(result(client, old), Tombstoned)


@pytest.mark.req("P8-40", "P5-10")
def test_a_lowered_retention_never_shortens_what_was_completed_under_the_larger_one() -> None:
    world = World()
    client = world.connect(capabilities=ALL)
    before = client.create(1)
    client.done(before)
    client.done(change(client, RETENTION_FLOOR + DAY))
    under = client.create(2)
    client.done(under)
    client.done(change(client, RETENTION_FLOOR))
    after = client.create(3)
    client.done(after)
    world.advance(RETENTION_FLOOR)
    # The first one was promised the floor, and the floor holds again; the second one keeps its day.
    assert isinstance(result(client, before), Tombstoned)
    assert isinstance(result(client, after), Tombstoned)
    assert isinstance(result(client, under), Succeeded)
    restarted = world.restart()
    reader = restarted.connect()
    restarted.advance(DAY - 1)
    assert isinstance(result(reader, under), Succeeded)
    restarted.advance(1)
    assert isinstance(result(reader, under), Tombstoned)


@pytest.mark.req("P8-40")
def test_a_connection_that_was_told_a_longer_retention_gets_it_after_the_lowering_too() -> None:
    world = World()
    admin = world.connect(2, capabilities=ALL)
    admin.done(change(admin, RETENTION_FLOOR + DAY))
    told = world.connect()
    admin.done(change(admin, RETENTION_FLOOR))
    late = world.connect()
    assert (told.conn.result_seconds, late.conn.result_seconds) == (RETENTION_FLOOR + DAY, RETENTION_FLOOR)
    promised, plain = told.create(1), late.create(2)
    told.done(promised)
    late.done(plain)
    world.advance(RETENTION_FLOOR)
    assert isinstance(result(late, plain), Tombstoned)
    assert isinstance(result(told, promised), Succeeded)


@pytest.mark.req("P5-10", "P8-17")
def test_a_value_is_advertised_once_it_is_durable_and_after_a_restart() -> None:
    world = World()
    world.auto_commit = False
    admin = world.connect(capabilities=ALL)
    admin.send(change(admin, RETENTION_FLOOR + DAY))
    batch = world.engine.take_batch(world.now)
    assert batch is not None
    assert world.connect(3).conn.result_seconds == RETENTION_FLOOR
    world.disk.commit(batch)
    world.engine.batch_durable(batch, world.now)
    assert world.connect(3).conn.result_seconds == RETENTION_FLOOR + DAY
    assert world.restart().connect(3).conn.result_seconds == RETENTION_FLOOR + DAY


@pytest.mark.req("P5-10", "P8-40")
def test_the_configured_bounds_stay() -> None:
    """An administrator makes results stay longer and the log shorter, never the other way round."""
    world = World(policy=Policy(retention_seconds=RETENTION_FLOOR + DAY, event_bytes=10_000))
    client = world.connect(capabilities=ALL)
    client.done(change(client, RETENTION_FLOOR, LARGE, LARGE))
    assert world.connect().conn.result_seconds == RETENTION_FLOOR + DAY
    for number in range(1, 30):
        client.done(client.create(number, bytes(900)))
    assert world.engine._runtime.log.nbytes <= 10_000


@pytest.mark.req("P10-20")
def test_fewer_event_bytes_drop_events_at_once_and_who_waits_for_them_has_a_gap() -> None:
    world = World()
    maker, admin = world.connect(), world.connect(2, capabilities=ALL)
    waiting, reading = world.connect(3), world.connect(4)
    slow = waiting.live(0, 0, 0)
    reading.live()
    for number in range(1, 21):
        maker.done(maker.create(number, bytes(900)))
    reading.pull()
    assert world.engine.stats().retained_from == 1
    admin.done(change(admin, events=5_000))
    log = world.engine._runtime.log
    assert 0 < log.nbytes <= 5_000
    assert world.observer.calls.count(("events_dropped", log.first - 1)) == 1
    (gap,) = [frame for frame in waiting.pull() if isinstance(frame, fr.Gap)]
    assert (gap.subscription_id, gap.reason, gap.last_contiguous_event) == (slow, GapReason.RETENTION, 0)
    reading.pull()
    assert reading.gaps() == []
    late = world.connect(5)
    late.live(log.first - 2)
    assert [gap.reason for gap in late.gaps()] == [GapReason.RETENTION]
    maker.done(maker.create(30, bytes(900)))
    reading.pull()
    assert reading.gaps() == []
    assert log.nbytes <= 5_000
    restarted = world.restart()
    assert restarted.engine._runtime.log.nbytes <= 5_000


@pytest.mark.req("P10-17")
def test_no_event_bytes_at_all_still_reach_who_is_there() -> None:
    """Events of the newest batch stay until the next one: a live subscriber with credit loses nothing."""
    world = World()
    admin, reader = world.connect(2, capabilities=ALL), world.connect(3)
    admin.done(change(admin, events=0))
    reader.live(world.disk.last_sequence)
    for number in range(1, 10):
        admin.done(admin.create(number))
        reader.pull()
    assert reader.gaps() == []
    assert len(reader.events()) == 18
    assert len(world.engine._runtime.log) == 2
    assert len(world.restart().engine._runtime.log) == 0


def register(client: Client, artifact: int, revision: int, size: int) -> fr.CoordCommand:
    payload = pl.RegisterArtifactManifest(
        artifact_id=ArtifactId(id16(artifact)), revision=revision, schema=1, manifest=bytes(size)
    )
    session = Precondition(ObjectRef(ObjectKind.WORK_SESSION, ObjectId(id16(50))), 1)
    kind = CommandKind.REGISTER_ARTIFACT_MANIFEST
    return client.command(kind, payload.body(), preconditions=[session])


def test_manifests_above_artifact_bytes_are_refused_and_none_is_given_up() -> None:
    world = World(state=fam.holding(fam.session(50, 40)))
    client = world.connect(capabilities=ALL)
    one = len(fam.manifest(1, 1, bytes(100)).image)
    client.done(change(client, artifacts=2 * one))
    client.done(register(client, 1, 1, 100))
    client.refused(register(client, 2, 1, 101), ErrorCode.RESOURCE_EXHAUSTED)
    assert world.observer.count("quota", "artifact_bytes") == 1
    client.done(register(client, 2, 1, 100))
    client.refused(register(client, 3, 1, 1), ErrorCode.RESOURCE_EXHAUSTED)
    client.refused(register(client, 1, 2, 101), ErrorCode.RESOURCE_EXHAUSTED)
    client.done(register(client, 1, 2, 100))
    client.done(change(client, artifacts=0))
    manifests = [record for record in client.snapshot() if record.kind is ObjectKind.ARTIFACT_MANIFEST]
    assert [len(record.payload) for record in manifests] == [len(manifests[0].payload)] * 2
    # What makes the whole smaller is welcome above the bound, too.
    client.done(register(client, 1, 3, 50))
    client.refused(register(client, 1, 4, 51), ErrorCode.RESOURCE_EXHAUSTED)
    restarted = world.restart()
    again = restarted.connect(capabilities=ALL)
    frame = register(again, 1, 4, 51)
    again.refused(frame, ErrorCode.RESOURCE_EXHAUSTED)
    again.done(again.create(1))


@pytest.mark.req("P8-42")
def test_the_change_in_force_is_remembered_and_older_ones_are_forgotten() -> None:
    world = World()
    client = world.connect(capabilities=ALL)
    first, second = change(client), change(client)
    client.done(first)
    client.done(second)
    for _ in range(3):
        world.advance(RETENTION_FLOOR)
        world.commit()
    assert set(world.disk.operations) == {second.operation_id}


def test_retention_that_outlives_every_clock_is_kept_and_does_no_harm() -> None:
    world = World()
    client = world.connect(capabilities=ALL)
    client.done(change(client, LARGE))
    frame = client.create(1)
    client.done(frame)
    world.advance(300 * RETENTION_FLOOR)
    assert isinstance(result(world.restart().connect(), frame), Succeeded)
