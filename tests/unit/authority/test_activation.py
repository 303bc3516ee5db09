"""Becoming the writer: the order of the steps, a fault at each, restarts, a clean stop. Store and witness are real."""

from __future__ import annotations

import pytest

from sidecar.base.clock import Now
from sidecar.base.witnessing import WitnessUnavailable
from sidecar.coordinator.authority import activation as subject
from sidecar.coordinator.authority.activation import ActivationRefused, Authority, Step
from sidecar.coordinator.engine.state import Batch
from sidecar.coordinator.machines.authority import AuthorityState
from sidecar.coordinator.store.errors import StaleBatch, StoreLocked
from sidecar.coordinator.wire.ids import (
    U64_MAX,
    AuthorityEpoch,
    CoordinatorId,
    CounterWrap,
    IncarnationId,
)
from sidecar.coordinator.wire.records import ActivationCertificate, AuthorityGuard
from sidecar.witness.messages import Activate, Relinquish
from tests.unit.authority.house import House
from tests.unit.witness.rig import LIFE


def empty_batch(authority: Authority) -> Batch:
    return Batch(1, authority.epoch, authority.activation_sequence, (), (), (), (), 0, 0)


@pytest.mark.req("P12-20", "P4-09")
def test_the_steps_come_in_the_order_of_the_specification(house: House) -> None:
    store = house.open()
    activation = house.activate(store)
    assert activation.stage is AuthorityState.INSTALLED
    assert not house.socket.exists()
    assert store.installed().epoch == activation.authority.epoch == 1
    activation.recover(store.load)
    activation.bind(house.socket.touch)
    assert house.trace == [
        Step.LOCK,
        Step.INCARNATION,
        Step.EPOCH,
        Step.CERTIFICATE,
        Step.INSTALL,
        Step.RECOVER,
        Step.BIND,
    ]
    assert house.trace == list(Step)
    assert house.socket.exists()


@pytest.mark.req("P12-20", "P12-21")
@pytest.mark.parametrize("step", list(Step))
def test_a_fault_at_any_step_binds_nothing_and_the_next_start_succeeds(step: Step, house: House) -> None:
    store = house.open()
    house.fault = step
    with pytest.raises(OSError, match=f"fault at {step}"):
        house.ascend(store)
    assert not house.socket.exists()
    assert house.trace[-1] is step
    installed = store.installed()
    assert (installed.epoch > 0) is (step in (Step.RECOVER, Step.BIND))
    store.close()
    # Nothing waits for an expiry either: what was granted went back.
    house.fault = None
    again = house.ascend(house.open())
    assert house.socket.exists()
    assert again.authority.epoch > installed.epoch
    assert house.slept == []


@pytest.mark.req("P12-20")
def test_recovery_and_bind_cannot_be_taken_out_of_order(house: House) -> None:
    store = house.open()
    activation = house.activate(store)
    with pytest.raises(ActivationRefused, match="bind is not possible"):
        activation.bind(house.socket.touch)
    activation.recover(store.load)
    with pytest.raises(ActivationRefused, match="recover is not possible"):
        activation.recover(store.load)
    activation.bind(house.socket.touch)
    activation.relinquish()
    with pytest.raises(ActivationRefused, match="stopped"):
        activation.bind(house.socket.touch)


@pytest.mark.req("P12-21")
def test_a_recovery_that_outlives_the_certificate_binds_nothing(house: House) -> None:
    activation = house.activate(house.open())
    activation.recover(lambda: house.clock.advance(LIFE))
    with pytest.raises(ActivationRefused, match="expired"):
        activation.bind(house.socket.touch)
    assert not house.socket.exists()


@pytest.mark.req("P12-16", "P12-20", "P12-21")
def test_a_certificate_that_ran_out_on_the_way_is_not_installed(house: House) -> None:
    store = house.open()

    def step(step: Step) -> None:
        if step is Step.INSTALL:
            house.clock.advance(LIFE)

    house.step = step  # type: ignore[method-assign]
    with pytest.raises(ActivationRefused, match="expired"):
        house.activate(store)
    assert store.installed().epoch == 0


class Lockless:
    """A store whose lock was lost."""

    coordinator_id = b"\x11" * 16

    def lock_held(self) -> bool:
        return False

    def installed(self) -> subject.InstalledActivation:
        raise AssertionError

    def install(self, epoch: int, activation_sequence: int, token_sha256: bytes, incarnation_id: bytes) -> None:
        raise AssertionError


@pytest.mark.req("P12-20", "P14-05")
def test_without_the_store_lock_the_witness_is_not_even_asked(house: House) -> None:
    with pytest.raises(ActivationRefused, match="lock"):
        house.activate(Lockless())
    assert house.witness.calls == []


@pytest.mark.req("P12-01", "P12-20", "P14-05")
def test_a_second_process_on_the_same_store_does_not_get_as_far_as_the_witness(house: House) -> None:
    house.activate(house.open())
    calls = len(house.witness.calls)
    with pytest.raises(StoreLocked):
        house.open()
    assert len(house.witness.calls) == calls


@pytest.mark.req("P12-20", "P4-09", "P4-11")
def test_the_certificate_is_for_exactly_what_was_proposed_and_is_installed(house: House) -> None:
    store = house.open()
    authority = house.activate(store).authority
    (asked,) = [call for call in house.witness.calls if isinstance(call, Activate)]
    assert (asked.coordinator_id, asked.epoch, asked.incarnation_id) == (
        store.coordinator_id,
        authority.epoch,
        authority.incarnation_id,
    )
    installed = store.installed()
    assert installed.epoch == authority.certificate.authority_epoch
    assert installed.activation_sequence == authority.certificate.activation_sequence
    assert installed.incarnation_id == authority.incarnation_id
    guard = AuthorityGuard.decode(authority.guard)
    assert guard == authority.certificate.guard()
    assert guard.fencing_token_sha256 == installed.token_sha256 == authority.token_sha256


@pytest.mark.req("P4-08", "P4-09", "P12-14", "P14-06")
def test_every_restart_is_a_new_incarnation_with_a_higher_epoch_and_activation(house: House) -> None:
    seen: list[Authority] = []
    for _ in range(5):
        store = house.open()
        activation = house.activate(store)
        seen.append(activation.authority)
        activation.relinquish()
        store.close()
    assert len({authority.incarnation_id for authority in seen}) == 5
    assert len({authority.token_sha256 for authority in seen}) == 5
    assert len({authority.coordinator_id for authority in seen}) == 1
    assert [authority.epoch for authority in seen] == [1, 2, 3, 4, 5]
    assert [authority.activation_sequence for authority in seen] == [1, 2, 3, 4, 5]


@pytest.mark.req("P4-08")
def test_an_incarnation_that_repeats_the_last_one_is_refused(house: House) -> None:
    store = house.open()
    first = house.activate(store)
    first.relinquish()
    house.entropy = lambda size: first.authority.incarnation_id
    with pytest.raises(ActivationRefused, match="repeated"):
        house.activate(store)


@pytest.mark.req("P12-14")
@pytest.mark.parametrize(("in_store", "at_witness"), [(9, 3), (3, 9)])
def test_the_epoch_is_above_both_store_and_witness(in_store: int, at_witness: int, house: House) -> None:
    store = house.open()
    granted = house.witness.activate(
        CoordinatorId(store.coordinator_id), AuthorityEpoch(at_witness), IncarnationId(b"\x01" * 16)
    )
    house.witness.relinquish(granted.coordinator_id, granted.activation_sequence, granted.fencing_token)
    store.install(in_store, 1, b"\x01" * 32, b"\x01" * 16)
    authority = house.activate(store).authority
    assert (authority.epoch, authority.activation_sequence) == (10, 2)


@pytest.mark.req("P4-06", "P12-14")
def test_an_epoch_never_wraps(house: House) -> None:
    store = house.open()
    store.install(U64_MAX, 1, b"\x01" * 32, b"\x01" * 16)
    with pytest.raises(CounterWrap):
        house.activate(store)


@pytest.mark.req("P12-12")
def test_a_clean_stop_relinquishes_once(house: House) -> None:
    activation = house.ascend(house.open())
    activation.relinquish()
    activation.relinquish()
    assert [type(call) for call in house.witness.calls].count(Relinquish) == 1
    assert activation.stage is AuthorityState.STOPPED


def test_a_stop_that_the_witness_did_not_confirm_is_told(house: House) -> None:
    activation = house.ascend(house.open())
    house.witness.down = True
    with pytest.raises(WitnessUnavailable):
        activation.relinquish()


def test_the_certificate_is_valid_by_both_clocks_or_not_at_all(house: House) -> None:
    authority = house.activate(house.open()).authority
    now = house.clock.now()
    assert authority.valid(Now(now.wall + LIFE - 0.001, now.mono + LIFE - 0.001))
    assert not authority.valid(Now(now.wall + LIFE, now.mono))
    assert not authority.valid(Now(now.wall, now.mono + LIFE))
    assert not authority.valid(Now(now.wall - 1e6, now.mono + LIFE))


def test_life_counts_from_the_moment_of_asking(house: House) -> None:
    activate = house.witness.activate

    def slow(
        coordinator_id: CoordinatorId, epoch: AuthorityEpoch, incarnation_id: IncarnationId
    ) -> ActivationCertificate:
        house.clock.advance(3)
        granted = activate(coordinator_id, epoch, incarnation_id)
        house.clock.advance(2)
        return granted

    house.witness.activate = slow  # type: ignore[method-assign]
    asked = house.clock.now().mono
    authority = house.activate(house.open()).authority
    assert authority.deadline_mono == asked + LIFE


@pytest.mark.req("P12-02")
def test_the_store_holds_nothing_of_the_witness(house: House) -> None:
    store = house.open()
    activation = house.activate(store)
    store.commit(empty_batch(activation.authority), lambda: None)
    seed = (house.root / "witness" / "witness.ed25519").read_bytes()
    files = [path for path in (house.root / "store").rglob("*") if path.is_file()]
    assert files
    for path in files:
        content = path.read_bytes()
        assert seed not in content
        assert activation.authority.certificate.fencing_token not in content
        assert house.witness.pin.public_key not in content
    assert not {path.name for path in files} & {path.name for path in (house.root / "witness").iterdir()}


@pytest.mark.req("P14-05", "P12-14")
def test_a_store_refuses_batches_and_activations_of_the_past(house: House) -> None:
    store = house.open()
    old = house.activate(store)
    old.relinquish()
    house.activate(store)
    with pytest.raises(StaleBatch):
        store.install(old.authority.epoch, 9, b"\x01" * 32, b"\x01" * 16)
    with pytest.raises(StaleBatch):
        store.commit(empty_batch(old.authority), lambda: None)


def test_an_authority_shows_no_token(house: House) -> None:
    authority = house.activate(house.open()).authority
    token = authority.certificate.fencing_token
    shown = repr(authority)
    for secret in (token, authority.token_sha256, authority.guard):
        assert repr(secret) not in shown
        assert secret.hex() not in shown
