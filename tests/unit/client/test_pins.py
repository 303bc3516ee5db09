"""How a client judges an authority by what it pinned, in memory and in the file."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any

import orjson
import pytest

from sidecar.base.ed25519 import digest_text
from sidecar.base.safefile import UnsafeFile
from sidecar.coordinator import client_events as ev
from sidecar.coordinator.client_errors import AuthorityChanged, AuthorityConflict, VerificationFailed
from sidecar.coordinator.client_trust import Admission, Pins, Standing
from sidecar.coordinator.pins import PinFile
from sidecar.coordinator.wire import frames as fr
from sidecar.coordinator.wire.enums import ErrorCode
from tests.oracles.fake_server import World, objective, seed
from tests.unit.client.rig import Rig, changing, rewriting


@pytest.fixture(params=["memory", "file"])
def pins(request: pytest.FixtureRequest, tmp_path: Path) -> Pins:
    return Pins() if request.param == "memory" else PinFile(tmp_path / "state" / "pins.json")


def login(pins: Pins, world: World | None = None, **config: Any) -> Rig:
    return Rig(world, pins=pins, **config).start()


def rejected(pins: Pins, world: World, **config: Any) -> VerificationFailed:
    before = pins.pins
    rig = login(pins, world, **config)
    assert not rig.of(ev.Ready)
    error = rig.closed
    assert isinstance(error, VerificationFailed)
    if not isinstance(error, AuthorityConflict):
        assert pins.pins == before
    return error


@pytest.mark.req("W2-07", "W2-08", "P5-09")
def test_a_restart_with_a_new_incarnation_is_the_same_authority(pins: Pins) -> None:
    world = World()
    assert login(pins, world).one(ev.Ready).welcome.admission is Admission.FIRST
    assert login(pins, world).one(ev.Ready).welcome.admission is Admission.SAME
    world.restart()
    assert login(pins, world).one(ev.Ready).welcome.admission is Admission.HIGHER
    assert [pin.fingerprint for pin in pins.pins] == [world.fingerprint]


@pytest.mark.req("W2-09", "P12-27", "P5-09")
def test_a_rotated_authority_key_is_refused_and_stays_refused(pins: Pins) -> None:
    login(pins)
    for _ in range(2):
        error = rejected(pins, World(authority=seed(0x31)))
        assert isinstance(error, AuthorityChanged)
        assert error.check == "fingerprint"
        assert "authority_changed" in str(error)


@pytest.mark.req("P12-27")
def test_an_operator_may_approve_another_authority(pins: Pins) -> None:
    login(pins)
    other = World(authority=seed(0x31), coordinator_id=b"\x12" * 16)
    pins.approve(other.fingerprint)
    assert login(pins, other).one(ev.Ready).welcome.admission is Admission.FIRST
    assert len(pins.pins) == 2
    assert pins.approved == frozenset()


@pytest.mark.req("P5-09", "P12-26")
@pytest.mark.parametrize(
    ("changes", "check"),
    [
        ({"coordinator_id": b"\x12" * 16}, "coordinator_id"),
        ({"witness_id": b"\xab" * 16}, "witness_id"),
        ({"witness": seed(0x41)}, "witness_key"),
    ],
)
def test_each_pin_is_independent_of_the_others(pins: Pins, changes: dict[str, Any], check: str) -> None:
    login(pins)
    world = World(**changes)
    world.restart()
    assert rejected(pins, world).check == check


@pytest.mark.req("P12-08", "P12-26")
@pytest.mark.parametrize("changes", [{"witness_id": b"\xab" * 16}, {"witness": seed(0x41)}])
def test_the_pinned_witness_counts_when_none_is_given(pins: Pins, changes: dict[str, Any]) -> None:
    login(pins)
    assert login(pins, World(), witness=None).one(ev.Ready).welcome.admission is Admission.SAME
    assert rejected(pins, World(**changes), witness=None).check == "certificate"


@pytest.mark.req("P12-25")
@pytest.mark.parametrize(("epoch", "activation"), [(4, 8), (5, 6), (4, 6), (6, 6), (4, 7)])
def test_lower_counters_are_refused(pins: Pins, epoch: int, activation: int) -> None:
    login(pins)
    world = World(epoch=epoch, activation=activation, incarnation=b"\x66" * 16, token=b"\xd1" * 32)
    error = rejected(pins, world)
    assert error.check == "rollback"
    assert login(pins).one(ev.Ready).welcome.admission is Admission.SAME


@pytest.mark.req("P12-25", "P12-31")
def test_a_higher_authority_is_a_floor_at_once_and_current_only_after_a_snapshot(pins: Pins) -> None:
    login(pins)
    world = World()
    world.restart()
    rig = login(pins, world)
    assert rejected(pins, World()).check == "rollback"
    pin = pins.get(world.fingerprint)
    assert pin is not None
    assert (pin.seen.epoch, pin.current.epoch) == (6, 5)
    rig.session.open_snapshot()
    rig.go()
    assert rig.of(ev.SnapshotReady)
    pin = pins.get(world.fingerprint)
    assert pin is not None
    assert (pin.seen.epoch, pin.current.epoch) == (6, 6)


@pytest.mark.req("P12-31")
def test_a_snapshot_that_fails_leaves_the_old_state_current(pins: Pins) -> None:
    login(pins)
    world = World()
    world.restart()
    world.put(objective(1))
    rig = login(pins, world, rewrite=rewriting(fr.SnapshotEnd, canonical_sha256=bytes(32)))
    rig.session.open_snapshot()
    rig.go()
    assert not rig.of(ev.SnapshotReady)
    pin = pins.get(world.fingerprint)
    assert pin is not None
    assert pin.current.epoch == 5


SPLITS = [{"incarnation": b"\x66" * 16}, {"token": b"\xd1" * 32}, {"activation": 8}, {"epoch": 6}]


@pytest.mark.req("P12-29", "P12-30", "P5-09")
@pytest.mark.parametrize("changes", SPLITS, ids=lambda changes: next(iter(changes)))
def test_two_holders_of_one_activation_are_both_refused_until_an_operator_decides(
    pins: Pins, changes: dict[str, Any]
) -> None:
    login(pins)
    error = rejected(pins, World(**changes))
    assert isinstance(error, AuthorityConflict)
    assert "authority_conflict" in str(error)
    # neither side is picked by being met again, by being first, or by a later activation
    later = World()
    later.restart()
    later.restart()
    for world in (World(), World(**changes), later):
        assert isinstance(rejected(pins, world), AuthorityConflict)
    pin = pins.get(World().fingerprint)
    assert pin is not None
    assert pin.quarantine is not None
    assert (pin.quarantine.held, pin.quarantine.offered) == (error.held, error.offered)
    assert pins.forget(World().fingerprint)
    assert login(pins).one(ev.Ready).welcome.admission is Admission.FIRST


@pytest.mark.req("P12-29")
def test_a_quarantined_authority_is_refused_before_the_client_proves_itself(pins: Pins) -> None:
    login(pins)
    rejected(pins, World(token=b"\xd1" * 32))
    rig = login(pins)
    assert [type(frame) for frame in rig.server.received] == [fr.CoordHello]


@pytest.mark.req("P12-28")
def test_a_token_that_its_holder_gave_up_is_revoked(pins: Pins) -> None:
    rig = login(pins)
    rig.server.error(ErrorCode.AUTHORITY_FENCED)
    rig.go()
    assert rejected(pins, World()).check == "token"
    world = World()
    world.restart()
    for _ in range(2):  # the next activation is not tainted by it
        assert login(pins, world).one(ev.Ready).welcome.admission is Admission.HIGHER


@pytest.mark.req("W2-06")
@pytest.mark.parametrize(
    "rewrite",
    [
        rewriting(fr.WorkloadChallenge, authority_proof=bytes(64)),
        rewriting(fr.CoordHelloOk, coordinator_id=b"\x12" * 16),
        changing(fr.CoordHelloOk, lambda ok: None),
    ],
    ids=["proof", "certificate", "no HELLO_OK"],
)
def test_nothing_is_written_before_everything_is_verified(tmp_path: Path, rewrite: Any) -> None:
    path = tmp_path / "state" / "pins.json"
    login(PinFile(path), rewrite=rewrite)
    assert not path.exists()
    login(PinFile(path))
    before = (path.read_bytes(), path.stat().st_mtime_ns)
    login(PinFile(path), rewrite=rewrite)
    assert (path.read_bytes(), path.stat().st_mtime_ns) == before


@pytest.mark.req("W2-07", "P5-09")
def test_the_file_is_keyed_by_the_fingerprint_and_holds_no_token_and_no_place(tmp_path: Path) -> None:
    path = tmp_path / "state" / "pins.json"
    world = World()
    login(PinFile(path), world)
    document = orjson.loads(path.read_bytes())
    assert list(document["authorities"]) == [digest_text(world.fingerprint)]
    (pin,) = document["authorities"].values()
    assert set(pin) == {"coordinator_id", "witness_id", "witness_key", "seen", "current", "fenced", "quarantine"}
    assert world.token.hex() not in path.read_text()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_two_processes_share_one_file(tmp_path: Path) -> None:
    path = tmp_path / "state" / "pins.json"
    first, second = PinFile(path), PinFile(path)
    login(first)
    world = World()
    world.restart()
    login(second, world)
    # `first` did not see the restart itself
    error = login(first, World()).closed
    assert isinstance(error, AuthorityChanged)
    assert error.check == "rollback"


@pytest.mark.req("W2-09")
def test_first_use_is_decided_by_what_the_file_holds_now(tmp_path: Path) -> None:
    path = tmp_path / "state" / "pins.json"
    late = PinFile(path)
    login(PinFile(path))
    error = login(late, World(authority=seed(0x31))).closed
    assert isinstance(error, AuthorityChanged)
    assert [pin.fingerprint for pin in PinFile(path).pins] == [World().fingerprint]


def test_a_pin_survives_the_file(tmp_path: Path) -> None:
    path = tmp_path / "state" / "pins.json"
    pins = PinFile(path)
    login(pins)
    rejected(pins, World(token=b"\xd1" * 32))
    pins.approve(b"\x07" * 32)
    again = PinFile(path)
    assert again.pins[0].quarantine is not None
    assert again.pins == pins.pins
    assert again.approved == {b"\x07" * 32}
    assert again.path == path


@pytest.mark.parametrize("mode", [0o644, 0o660])
def test_a_file_that_others_may_touch_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "state" / "pins.json"
    login(PinFile(path))
    path.chmod(mode)
    with pytest.raises(UnsafeFile):
        PinFile(path)


def test_a_directory_that_others_may_touch_ends_the_login(tmp_path: Path) -> None:
    directory = tmp_path / "state"
    directory.mkdir(mode=0o755)
    directory.chmod(0o755)
    rig = login(PinFile(directory / "pins.json"))
    error = rig.closed
    assert isinstance(error, VerificationFailed)
    assert error.check == "pins"
    assert os.listdir(directory) == []


def damaged(change: str) -> bytes:
    standing = {"epoch": 5, "activation": 7, "incarnation": "55" * 16, "token_sha256": "sha256:" + "00" * 32}
    pin = {
        "coordinator_id": "11" * 16,
        "witness_id": "aa" * 16,
        "witness_key": "01" * 32,
        "seen": standing,
        "current": standing,
        "fenced": False,
        "quarantine": None,
    }
    document = {"version": 1, "authorities": {"sha256:" + "02" * 32: pin}, "approved": []}
    text = orjson.dumps(document).decode()
    before, after = change.split(" -> ")
    assert before in text
    return text.replace(before, after).encode()


@pytest.mark.parametrize(
    "change",
    [
        '"version":1 -> "version":2',
        '"epoch":5 -> "epoch":0',
        '"epoch":5 -> "epoch":"5"',
        '"fenced":false -> "fenced":0',
        '"approved":[] -> "approved":[],"more":1',
        '"sha256:0202 -> "sha256:02',
        '"aaaa -> "AAAA',
        '"aaaa -> "aa',
        "} -> ",
        '"approved" -> "approve"',
    ],
)
def test_a_damaged_file_is_refused_and_never_overwritten(tmp_path: Path, change: str) -> None:
    directory = tmp_path / "state"
    directory.mkdir(mode=0o700)
    path = directory / "pins.json"
    pins = PinFile(path)
    data = damaged(change)
    path.write_bytes(data)
    path.chmod(0o600)
    with pytest.raises(UnsafeFile, match="pin file"):
        PinFile(path)
    with pytest.raises(UnsafeFile, match="pin file"):
        pins.approve(b"\x07" * 32)
    assert path.read_bytes() == data


def test_marks_for_another_activation_change_nothing() -> None:
    pins = Pins()
    login(pins)
    before = pins.pins
    (pin,) = before
    other = Standing(9, 9, b"\x01" * 16, b"\x02" * 32)
    pins.mark_current(pin.fingerprint, other)
    pins.mark_fenced(pin.fingerprint, other)
    pins.mark_fenced(b"\x09" * 32, other)
    pins.approve(pin.fingerprint)
    assert pins.pins == before
    assert pins.approved == frozenset()
    assert not pins.forget(b"\x09" * 32)
