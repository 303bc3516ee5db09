"""ACTIVATION and CREDENTIAL records of the ADMIN family (OPEN P7-f, P7-g)."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cext.digest import sha256
from sidecar.coordinator.authority.grants import EMPTY, KeyRecord, Registry
from sidecar.coordinator.engine.administration import ACTIVATIONS_KEPT, CREDENTIALS_STEP
from sidecar.coordinator.engine.runtime import Fenced
from sidecar.coordinator.store.sqlite import SqliteStore
from sidecar.coordinator.wire import payloads as pl
from sidecar.coordinator.wire.enums import Capability, CommandKind, ObjectKind, Scope
from sidecar.coordinator.wire.ids import KeyId
from sidecar.coordinator.wire.limits import RETENTION_FLOOR
from sidecar.coordinator.wire.records import AdminActivation, AdminCredential, AdminPayload, SnapshotRecord
from tests.unit.engine import families as fam
from tests.unit.engine.fakes import COORDINATOR, LIFE, START, TOKEN, FakeAuthority, key
from tests.unit.engine.harness import World, id16

EXPIRY = int(START.wall) + LIFE
SERVICE = "phux-coordinator"


def key_record(
    key_id: bytes, scopes: int = 0x3, expires_at: int = EXPIRY, revoked_at: int | None = None, service: str = SERVICE
) -> KeyRecord:
    return KeyRecord(bytes(32), key_id, service, scopes, expires_at, revoked_at)


def registry(generation: int, *records: KeyRecord) -> Registry:
    return Registry(records, generation)


def admin(world: World) -> dict[bytes, tuple[int, AdminPayload]]:
    """Revision and values of every durable ADMIN record."""
    world.commit()
    found: dict[bytes, tuple[int, AdminPayload]] = {}
    for (kind, id_), record in world.disk.records.items():
        if kind == ObjectKind.ADMIN:
            image = SnapshotRecord.decode(record.image)
            payload = fam.payload_of(image)
            assert isinstance(payload, pl.AdminRecord)
            assert (image.id, image.revision) == (id_, record.revision)
            found[id_] = image.revision, payload.content()
    return found


def credentials(world: World) -> dict[bytes, tuple[int, AdminPayload]]:
    return {id_: row for id_, row in admin(world).items() if isinstance(row[1], AdminCredential)}


def activated(number: int, world: World | None = None) -> World:
    """A world of the ``number``-th activation on the disk of ``world``."""
    authority = FakeAuthority(epoch=number, activation_sequence=100 + number, incarnation_id=id16(5_000 + number))
    made = World(authority=authority) if world is None else World(authority=authority, disk=world.disk, now=world.now)
    made.engine.activated(made.now)
    made.commit()
    return made


@pytest.mark.req("P6-16", "P1-02")
def test_every_activation_is_a_record_without_an_event() -> None:
    world = activated(1)
    issued = world.authority.certificate.issued_at
    assert admin(world) == {id16(5_001): (1, AdminActivation(1, 101, id16(5_001), sha256(TOKEN), issued))}  # type: ignore[arg-type]
    assert (world.disk.last_sequence, world.disk.events) == (0, [])
    later = activated(2, world)
    assert set(admin(later)) == {id16(5_001), id16(5_002)}
    reader = later.connect(scopes=Scope.ADMIN, capabilities=Capability.ADMINISTRATION)
    assert [record.id for record in reader.snapshot()] == [id16(5_001), id16(5_002)]
    hidden = later.connect(scopes=0x3F & ~Scope.ADMIN, capabilities=0x1F)
    assert list(hidden.snapshot()) == []


def test_the_newest_activations_are_kept() -> None:
    world = None
    for number in range(1, ACTIVATIONS_KEPT + 4):
        world = activated(number, world)
        assert len(admin(world)) == min(number, ACTIVATIONS_KEPT)
    assert world is not None
    newest = range(4, ACTIVATIONS_KEPT + 4)
    assert set(admin(world)) == {id16(5_000 + number) for number in newest}


@pytest.mark.req("P12-16", "P12-17")
def test_nothing_is_noted_once_fenced_or_without_a_valid_certificate() -> None:
    world = World()
    world.engine.fence("lost")
    world.engine.activated(world.now)
    world.engine.set_registry(registry(1, key_record(key(1))), world.now)
    assert world.engine.stats().pending == 0
    with pytest.raises(Fenced):
        world.engine.take_batch(world.now)
    expired = World(authority=FakeAuthority(wall_expiry=START.wall + 5))
    expired.engine.activated(expired.now)
    expired.engine.set_registry(registry(1, key_record(key(1))), expired.now)
    expired.advance(5, tick=False)
    with pytest.raises(Fenced):
        expired.engine.take_batch(expired.now)
    assert world.disk.records == expired.disk.records == {}


@pytest.mark.req("P6-16")
def test_the_credentials_follow_the_registry() -> None:
    world = World()
    one, two, three = (key_record(key(number)) for number in (1, 2, 3))
    world.engine.set_registry(registry(1, one, two), world.now)
    assert credentials(world) == {
        key(1)[:16]: (1, AdminCredential(key(1), Scope(3), EXPIRY, None)),
        key(2)[:16]: (1, AdminCredential(key(2), Scope(3), EXPIRY, None)),
    }
    batches = world.commit()
    world.engine.set_registry(registry(2, one, two), world.now)
    assert (batches, world.commit()) == (0, 0), "the same keys are no change"
    revoked = key_record(key(1), revoked_at=1_900_000_007)
    wider = key_record(key(2), scopes=0x3F, expires_at=EXPIRY - 1)
    world.engine.set_registry(registry(3, revoked, wider, three), world.now)
    assert credentials(world) == {
        key(1)[:16]: (2, AdminCredential(key(1), Scope(3), EXPIRY, 1_900_000_007)),
        key(2)[:16]: (2, AdminCredential(key(2), Scope(0x3F), EXPIRY - 1, None)),
        key(3)[:16]: (1, AdminCredential(key(3), Scope(3), EXPIRY, None)),
    }
    world.engine.set_registry(registry(4, wider), world.now)
    assert set(credentials(world)) == {key(2)[:16]}
    world.engine.set_registry(registry(5), world.now)
    assert credentials(world) == {}, "a registry without keys has no records"
    assert world.disk.last_sequence == 0


def test_a_registry_that_cannot_be_used_changes_no_record() -> None:
    world = World()
    world.engine.set_registry(registry(1, key_record(key(1))), world.now)
    before = admin(world)
    world.engine.set_registry(EMPTY, world.now)
    assert world.commit() == 0
    assert admin(world) == before
    world.engine.set_registry(registry(2, key_record(key(2))), world.now)
    assert set(credentials(world)) == {key(2)[:16]}


def test_a_restart_knows_its_records_and_repairs_what_changed_meanwhile() -> None:
    world = World()
    world.engine.set_registry(registry(1, key_record(key(1)), key_record(key(2))), world.now)
    world.commit()
    later = world.restart()
    later.engine.set_registry(registry(1, key_record(key(1)), key_record(key(2))), later.now)
    assert later.commit() == 0
    again = later.restart()
    again.engine.set_registry(registry(1, key_record(key(1), scopes=1), key_record(key(3))), again.now)
    assert {id_: row[0] for id_, row in credentials(again).items()} == {key(1)[:16]: 2, key(3)[:16]: 1}


def test_keys_of_another_service_are_no_credentials_here() -> None:
    world = World()
    foreign = key_record(key(1), scopes=1 << 40, service="other")
    world.engine.set_registry(registry(1, foreign, key_record(key(2))), world.now)
    assert set(credentials(world)) == {key(2)[:16]}


@pytest.mark.parametrize("order", [1, -1])
def test_of_keys_that_share_a_record_id_the_lowest_one_has_the_record(order: int) -> None:
    world = World()
    low, high = (key_record(bytes(15) + b"\x07" + bytes([last]) * 16) for last in (1, 2))
    world.engine.set_registry(registry(1, *[low, high][::order]), world.now)
    assert credentials(world) == {low.key_id[:16]: (1, AdminCredential(low.key_id, Scope(3), EXPIRY, None))}  # type: ignore[arg-type]
    world.engine.set_registry(registry(2, high), world.now)
    assert credentials(world) == {high.key_id[:16]: (2, AdminCredential(high.key_id, Scope(3), EXPIRY, None))}  # type: ignore[arg-type]


def test_a_credential_never_replaces_a_record_of_another_kind() -> None:
    world = activated(1)
    like_retention = key_record(COORDINATOR + bytes(16))
    like_activation = key_record(id16(5_001) + bytes(16))
    client = world.connect(capabilities=0x1F)
    world.engine.set_registry(registry(1, like_retention, like_activation, key_record(key(1), scopes=0x3F)), world.now)
    change = pl.ChangeRetention(operation_result_secs=RETENTION_FLOOR, event_bytes=1, artifact_bytes=1)
    client.done(client.command(CommandKind.CHANGE_RETENTION, change.body()))
    kinds = {id_: type(values) for id_, (_, values) in admin(world).items()}
    assert set(credentials(world)) == {key(1)[:16]}
    assert kinds[id16(5_001)] is AdminActivation
    assert COORDINATOR in kinds


def test_a_key_that_leaves_and_returns_in_one_batch_stays(tmp_path: Path) -> None:
    """The store drops first and puts second; what it then holds is what the engine has."""
    store = SqliteStore.open(tmp_path / "store", entropy=os.urandom)
    authority = FakeAuthority(coordinator_id=store.coordinator_id)
    store.install(authority.epoch, authority.activation_sequence, bytes(32), authority.incarnation_id)
    world = World(authority=authority)
    engine, seen = world.engine, registry(1, key_record(key(1)), key_record(key(2)))
    for generation in (seen, registry(2, key_record(key(2))), registry(3, *seen.records), registry(4, seen.records[0])):
        engine.set_registry(generation, world.now)
    batch = engine.take_batch(world.now)
    assert batch is not None
    store.commit(batch, lambda: None)
    engine.batch_durable(batch, world.now)
    assert engine.take_batch(world.now) is None
    stored = store.load().family(ObjectKind.ADMIN)
    store.close()
    assert [id_ for id_, _ in stored.entries.items()] == [key(1)[:16]]
    assert engine._runtime.durable.get(ObjectKind.ADMIN, key(1)[:16]) == stored.entries.get(key(1)[:16])


@pytest.mark.req("P6-16", "P14-12")
def test_many_keys_that_change_at_once_take_several_ticks() -> None:
    world = activated(1)
    many = 2 * CREDENTIALS_STEP + 1
    keys = [sha256(number.to_bytes(8, "big")) for number in range(many)]
    world.engine.set_registry(registry(2, *map(key_record, keys)), world.now)
    counts = [len(credentials(world))]
    while counts[-1] < many:
        world.advance(0.25)
        counts.append(len(credentials(world)))
    assert counts == [CREDENTIALS_STEP, 2 * CREDENTIALS_STEP, many]
    world.advance(0.25)
    assert world.engine.take_batch(world.now) is None


@pytest.mark.req("P6-16")
def test_a_registry_that_changes_while_records_are_due_is_what_they_tell_in_the_end() -> None:
    world = activated(1)
    keys = sorted(sha256(number.to_bytes(8, "big")) for number in range(3 * CREDENTIALS_STEP))
    world.engine.set_registry(registry(2, *map(key_record, keys)), world.now)
    world.advance(0.25)
    left = keys[CREDENTIALS_STEP // 2 :]
    world.engine.set_registry(registry(3, *(key_record(key_id, 0x1) for key_id in left)), world.now)
    for _ in range(4):
        world.advance(0.25)
    told = {id_: values for id_, (_, values) in credentials(world).items()}
    assert told == {key_id[:16]: AdminCredential(KeyId(key_id), Scope(0x1), EXPIRY, None) for key_id in left}
    restarted = activated(2, world)
    restarted.engine.set_registry(registry(1, *(key_record(key_id, 0x1) for key_id in left)), restarted.now)
    assert credentials(restarted).keys() == told.keys()
