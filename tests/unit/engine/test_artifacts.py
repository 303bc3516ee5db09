"""REGISTER_ARTIFACT_MANIFEST (OPEN P7-e, P7-f)."""

from __future__ import annotations

import pytest

from sidecar.coordinator.wire import frames as fr
from sidecar.coordinator.wire import payloads as pl
from sidecar.coordinator.wire.enums import Capability, CommandKind, ErrorCode, EventKind, ObjectKind, Scope
from sidecar.coordinator.wire.ids import ArtifactId, ObjectId
from sidecar.coordinator.wire.limits import RETENTION_FLOOR
from sidecar.coordinator.wire.records import ObjectRef, Precondition, SnapshotRecord, Succeeded, Tombstoned, Unknown
from tests.unit.engine import families as fam
from tests.unit.engine.harness import Client, World, id16

CAPABILITY = Capability.ARTIFACT_MANIFESTS
ARTIFACT, SESSION = 20, 50
ANY_REVISION = 2**64 - 1


def named(number: int = SESSION, revision: int = 1, kind: ObjectKind = ObjectKind.WORK_SESSION) -> Precondition:
    return Precondition(ObjectRef(kind, ObjectId(id16(number))), revision)


def register(
    client: Client, revision: int, *preconditions: Precondition, manifest: bytes = b"{}", **options: object
) -> fr.CoordCommand:
    payload = pl.RegisterArtifactManifest(
        artifact_id=ArtifactId(id16(ARTIFACT)), revision=revision, schema=7, manifest=manifest
    )
    kind = CommandKind.REGISTER_ARTIFACT_MANIFEST
    return client.command(kind, payload.body(), preconditions=preconditions, **options)  # type: ignore[arg-type]


def world_of(*more: object) -> World:
    sessions = [fam.session(SESSION, 40), fam.session(SESSION + 1, 41)]
    return World(state=fam.holding(*sessions, *more))  # type: ignore[arg-type]


@pytest.mark.req("P6-12", "P6-13", "P7-21")
def test_each_revision_is_a_stub_and_a_manifest_with_an_event_each() -> None:
    world = world_of()
    client = world.connect(capabilities=CAPABILITY)
    client.live()
    first = client.done(register(client, 1, named())).operation
    client.done(register(client, 2, manifest=b"second"))
    assert isinstance(first, Succeeded)
    assert first.content() == ObjectRef(ObjectKind.ARTIFACT, ObjectId(id16(ARTIFACT)))
    assert first.completed_event_sequence == 3
    added, events = EventKind.ARTIFACT_REVISION_ADDED, client.events()
    assert [(event.event_kind, event.object.kind, int(event.object_revision)) for event in events] == [
        (added, ObjectKind.ARTIFACT, 1),
        (added, ObjectKind.ARTIFACT_MANIFEST, 1),
        (EventKind.OPERATION_CHANGED, ObjectKind.OPERATION, 1),
        (added, ObjectKind.ARTIFACT, 2),
        (added, ObjectKind.ARTIFACT_MANIFEST, 2),
        (EventKind.OPERATION_CHANGED, ObjectKind.OPERATION, 1),
    ]
    assert {event.object.id for event in events[:2] + events[3:5]} == {id16(ARTIFACT)}
    stub, manifest = (fam.payload_of(SnapshotRecord.decode(event.payload)) for event in events[3:5])
    assert isinstance(stub, pl.ArtifactRecord)
    assert isinstance(manifest, pl.ArtifactManifestRecord)
    assert (stub.work_session_id, stub.latest_revision) == (id16(SESSION), 2)
    assert (manifest.artifact_id, manifest.revision, manifest.schema, manifest.manifest) == (
        id16(ARTIFACT),
        2,
        7,
        b"second",
    )
    kinds = [record.kind for record in client.snapshot()]
    assert (kinds.count(ObjectKind.ARTIFACT), kinds.count(ObjectKind.ARTIFACT_MANIFEST)) == (1, 1)


@pytest.mark.parametrize("revision", [0, 2, 3, ANY_REVISION])
def test_a_first_revision_is_one(revision: int) -> None:
    world = world_of()
    client = world.connect(capabilities=CAPABILITY)
    client.refused(register(client, revision, named()), ErrorCode.REVISION_CONFLICT)
    assert world.disk.last_sequence == 0


@pytest.mark.parametrize("revision", [0, 1, 6, 7, 9, ANY_REVISION])
def test_a_later_revision_follows_the_latest(revision: int) -> None:
    world = world_of(fam.artifact(ARTIFACT, 7), fam.manifest(ARTIFACT, 7))
    client = world.connect(capabilities=CAPABILITY)
    client.refused(register(client, revision), ErrorCode.REVISION_CONFLICT)
    assert isinstance(client.done(register(client, 8)).operation, Succeeded)


@pytest.mark.parametrize(
    "latest",
    [ANY_REVISION],
)
def test_nothing_follows_the_last_possible_revision(latest: int) -> None:
    world = world_of(fam.artifact(ARTIFACT, latest))
    client = world.connect(capabilities=CAPABILITY)
    client.refused(register(client, 0), ErrorCode.REVISION_CONFLICT)
    client.refused(register(client, latest), ErrorCode.REVISION_CONFLICT)


@pytest.mark.parametrize(
    ("preconditions", "code"),
    [
        ([], ErrorCode.REVISION_CONFLICT),
        ([named(), named(SESSION + 1)], ErrorCode.REVISION_CONFLICT),
        ([named(ARTIFACT, 0, ObjectKind.ARTIFACT)], ErrorCode.REVISION_CONFLICT),
        ([named(revision=2)], ErrorCode.REVISION_CONFLICT),
        ([named(999, 0)], ErrorCode.NOT_FOUND),
        ([named(999, 1)], ErrorCode.REVISION_CONFLICT),
    ],
)
def test_a_first_registration_names_one_work_session_that_exists(
    preconditions: list[Precondition], code: ErrorCode
) -> None:
    world = world_of()
    client = world.connect(capabilities=CAPABILITY)
    frame = register(client, 1, *preconditions)
    client.refused(frame, code)
    assert client.one(client.lookup(frame.operation_id), fr.OperationResultFrame).operation == Unknown()
    client.done(register(client, 1, named(), named(ARTIFACT, 0, ObjectKind.ARTIFACT)))


def test_a_later_registration_may_name_any_session_and_keeps_its_own() -> None:
    world = world_of(fam.artifact(ARTIFACT, 1, session=SESSION))
    client = world.connect(capabilities=CAPABILITY)
    client.done(register(client, 2, named(SESSION + 1)))
    stub = fam.payload_of(SnapshotRecord.decode(world.disk.records[ObjectKind.ARTIFACT, id16(ARTIFACT)].image))
    assert isinstance(stub, pl.ArtifactRecord)
    assert stub.work_session_id == id16(SESSION)


@pytest.mark.req("P5-17", "P6-13")
def test_it_needs_its_capability_and_the_right_to_command() -> None:
    world = world_of()
    without = world.connect(capabilities=0x1F & ~CAPABILITY)
    without.refused(register(without, 1, named()), ErrorCode.CAPABILITY_REQUIRED)
    reader = world.connect(scopes=0x3F & ~Scope.WORK_COMMAND, capabilities=0x1F)
    reader.refused(register(reader, 1, named()), ErrorCode.SCOPE_DENIED)


def test_a_hidden_work_session_supplies_nothing() -> None:
    world = world_of()
    blind = world.connect(scopes=Scope.WORK_COMMAND, capabilities=CAPABILITY)
    blind.refused(register(blind, 1, named()), ErrorCode.REVISION_CONFLICT)
    blind.refused(register(blind, 1, named(revision=0)), ErrorCode.NOT_FOUND)
    seeing = world.connect(scopes=Scope.WORK_COMMAND | Scope.WORK_READ, capabilities=CAPABILITY)
    seeing.done(register(seeing, 1, named()))
    blind.done(register(blind, 2))


@pytest.mark.req("P6-12", "P6-13")
def test_stub_and_manifest_are_seen_under_their_own_rights() -> None:
    world = world_of()
    writer = world.connect(capabilities=CAPABILITY)
    stubs = world.connect(2, scopes=Scope.WORK_READ, capabilities=CAPABILITY)
    contents = world.connect(3, scopes=Scope.ARTIFACT_READ, capabilities=CAPABILITY)
    for reader in (stubs, contents):
        reader.live()
    writer.done(register(writer, 1, named()))
    for reader, kind in ((stubs, ObjectKind.ARTIFACT), (contents, ObjectKind.ARTIFACT_MANIFEST)):
        reader.pull()
        assert [event.object.kind for event in reader.events()] == [kind]


@pytest.mark.req("P8-42")
def test_the_first_registration_is_remembered_as_long_as_the_artifact() -> None:
    world = world_of()
    client = world.connect(capabilities=CAPABILITY)
    frames = [register(client, 1, named()), register(client, 2), register(client, 3)]
    for frame in frames:
        client.done(frame)
    for _ in range(3):
        world.advance(RETENTION_FLOOR)
        world.commit()
    kept = [type(client.one(client.lookup(frame.operation_id), fr.OperationResultFrame).operation) for frame in frames]
    assert kept == [Tombstoned, Unknown, Tombstoned]


@pytest.mark.req("P3-52")
def test_a_manifest_that_no_event_can_carry_is_refused() -> None:
    world = world_of()
    client = world.connect(capabilities=CAPABILITY)
    limit = world.policy.largest_image
    overhead = len(fam.manifest(ARTIFACT, 1, b"m" * 200_000).image) - 200_000
    frame = register(client, 1, named(), manifest=bytes(limit - overhead + 1))
    client.refused(frame, ErrorCode.RESOURCE_EXHAUSTED)
    client.done(register(client, 1, named(), manifest=bytes(limit - overhead)))
