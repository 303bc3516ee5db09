"""Becoming the writer when another one was there, or when the witness is gone, late, lying or not the pinned one."""

from __future__ import annotations

import shutil

import pytest

from sidecar.base.ed25519 import SigningKey
from sidecar.base.secret import Secret
from sidecar.base.witnessing import Refusal, WitnessProtocolError, WitnessRefused, WitnessUnavailable
from sidecar.coordinator.authority.activation import ActivationRefused, Step
from sidecar.coordinator.authority.certificate import CertificateInvalid, WitnessPin
from sidecar.coordinator.machines.authority import AuthorityState
from sidecar.coordinator.store.errors import StoreError
from sidecar.coordinator.wire.ids import (
    AuthorityEpoch,
    CoordinatorId,
    IncarnationId,
)
from sidecar.coordinator.wire.records import ActivationCertificate
from sidecar.witness.messages import Activate, Relinquish
from tests.unit.authority.house import House
from tests.unit.witness.rig import LIFE, LocalWitness, client_key


@pytest.mark.req("P12-24", "P12-21", "P12-33")
def test_no_witness_no_coordinator(house: House) -> None:
    store = house.open()
    house.witness.down = True
    with pytest.raises(WitnessUnavailable):
        house.ascend(store)
    assert store.installed().epoch == 0
    assert not house.socket.exists()


@pytest.mark.req("P12-23")
def test_a_copied_store_without_the_witness_client_key_cannot_activate(house: House) -> None:
    store = house.open()
    house.activate(store).relinquish()
    store.close()
    shutil.copytree(house.root / "store", house.root / "copy")
    house.witness.key = client_key(7)  # all that the thief has are keys of its own
    with pytest.raises(WitnessRefused) as caught:
        house.ascend(house.open("copy"))
    assert caught.value.reason is Refusal.NOT_AUTHORISED
    assert not house.socket.exists()


@pytest.mark.req("P12-22", "P14-05")
def test_a_copied_store_beside_the_running_one_waits_for_expiry(house: House) -> None:
    store = house.open()
    running = house.activate(store)
    shutil.copytree(house.root / "store", house.root / "copy")
    copy = house.open("copy")
    with pytest.raises(WitnessRefused) as caught:
        house.ascend(copy)
    assert caught.value.reason is Refusal.LEASE_ACTIVE
    assert copy.installed() == store.installed()
    assert not house.socket.exists()
    # The original dies without a word; the copy waits exactly until no certificate of it can be in force.
    successor = house.activate(copy, wait=2 * LIFE)
    assert house.slept == [LIFE]
    assert not running.authority.valid(house.clock.now())
    assert successor.authority.epoch > running.authority.epoch
    assert successor.authority.activation_sequence > running.authority.activation_sequence
    # The original's own store cannot be written under the old activation's renewal any more.
    with pytest.raises(WitnessRefused):
        house.witness.renew(running.authority.certificate)


@pytest.mark.req("P12-22")
def test_a_copied_store_activates_at_once_after_confirmed_relinquishment(house: House) -> None:
    store = house.open()
    running = house.activate(store)
    running.relinquish()
    shutil.copytree(house.root / "store", house.root / "copy")
    assert house.activate(house.open("copy")).authority.epoch == running.authority.epoch + 1
    assert house.slept == []


@pytest.mark.req("P12-22", "P14-05")
def test_a_restored_older_store_comes_back_above_the_witness(house: House) -> None:
    store = house.open()
    house.activate(store).relinquish()
    store.close()
    shutil.copytree(house.root / "store", house.root / "backup")
    for _ in range(3):
        store = house.open()
        house.activate(store).relinquish()
        store.close()
    assert house.activate(house.open("backup")).authority.epoch == 5


def test_the_wait_ends_at_the_callers_limit(house: House) -> None:
    store = house.open()
    house.activate(store)
    with pytest.raises(WitnessRefused, match="lease_active"):
        house.activate(store, wait=20.0)
    assert house.slept == [20.0]
    assert [authority.epoch for authority in [store.installed()]] == [1]


@pytest.mark.req("P12-14", "P12-20")
def test_a_rival_that_got_in_between_costs_another_proposal(house: House) -> None:
    store = house.open()
    rivals = iter((4, 7))
    last = house.witness.last

    def racing(coordinator_id: CoordinatorId) -> tuple[int, int]:
        seen = last(coordinator_id)
        if (epoch := next(rivals, None)) is not None:
            granted = house.witness.activate(coordinator_id, AuthorityEpoch(epoch), IncarnationId(b"\x01" * 16))
            house.witness.relinquish(coordinator_id, granted.activation_sequence, granted.fencing_token)
        return seen

    house.witness.last = racing  # type: ignore[method-assign]
    assert house.activate(store).authority.epoch == 8
    proposed = [call.epoch for call in house.witness.calls if isinstance(call, Activate)]
    assert proposed == [4, 1, 7, 5, 8]


def test_an_endless_rivalry_ends(house: House) -> None:
    house.witness.last = lambda coordinator_id: (0, 0)  # type: ignore[method-assign]
    store = house.open()
    house.activate(store).relinquish()
    store.close()
    (house.root / "store").rename(house.root / "away")
    fresh = house.open("fresh")
    coordinator = CoordinatorId(fresh.coordinator_id)
    granted = house.witness.activate(coordinator, AuthorityEpoch(99), IncarnationId(b"\x01" * 16))
    house.witness.relinquish(coordinator, granted.activation_sequence, granted.fencing_token)
    with pytest.raises(WitnessRefused) as caught:
        house.activate(fresh)
    assert (caught.value.reason, caught.value.last_epoch) == (Refusal.EPOCH_TOO_LOW, 99)


@pytest.mark.req("P12-08", "P12-20")
@pytest.mark.parametrize("wrong", ["id", "key"])
def test_a_certificate_of_another_witness_than_the_pinned_one_installs_nothing(wrong: str, house: House) -> None:
    store = house.open()
    pin = house.witness.pin
    stranger = SigningKey(Secret(b"\x09" * 32)).public_key
    wrong_pin = WitnessPin(b"\xab" * 16, pin.public_key) if wrong == "id" else WitnessPin(pin.witness_id, stranger)
    with pytest.raises(CertificateInvalid):
        house.activate(store, pin=wrong_pin)
    assert store.installed().epoch == 0
    assert Step.INSTALL not in house.trace
    # The token went back: with the right pin nobody waits for the end of a lease.
    house.activate(store)
    assert house.slept == []


class GrantsAndFails(LocalWitness):
    """Cannot be reached any more after a grant."""

    def activate(
        self, coordinator_id: CoordinatorId, epoch: AuthorityEpoch, incarnation_id: IncarnationId
    ) -> ActivationCertificate:
        certificate = super().activate(coordinator_id, epoch, incarnation_id)
        self.down = True
        return certificate


@pytest.mark.req("P12-08", "P12-20")
def test_an_unusable_certificate_is_told_also_when_its_token_cannot_go_back(house: House) -> None:
    house.witness.service.close()
    house.witness = GrantsAndFails(house.root / "witness", house.clock)
    store = house.open()
    with pytest.raises(CertificateInvalid):
        house.activate(store, pin=WitnessPin(b"\xab" * 16, house.witness.pin.public_key))
    assert isinstance(house.witness.calls[-1], Relinquish)


class LyingWitness(LocalWitness):
    """Certifies something else than what was asked for."""

    def activate(
        self, coordinator_id: CoordinatorId, epoch: AuthorityEpoch, incarnation_id: IncarnationId
    ) -> ActivationCertificate:
        return super().activate(coordinator_id, AuthorityEpoch(epoch + 1), incarnation_id)


@pytest.mark.req("P12-20")
def test_a_certificate_for_another_epoch_installs_nothing(house: House) -> None:
    house.witness.service.close()
    house.witness = LyingWitness(house.root / "witness", house.clock)
    store = house.open()
    with pytest.raises(CertificateInvalid, match="epoch"):
        house.activate(store)
    assert store.installed().epoch == 0


@pytest.mark.req("P12-09", "P14-05")
def test_a_witness_that_lost_activations_is_not_trusted(house: House) -> None:
    store = house.open()
    store.install(1, 40, b"\x01" * 32, b"\x01" * 16)
    with pytest.raises(ActivationRefused, match="lost activations"):
        house.activate(store)
    assert store.installed().activation_sequence == 40
    assert isinstance(house.witness.calls[-1], Relinquish)


@pytest.mark.req("P12-21")
def test_a_store_that_cannot_install_gives_the_token_back(house: House) -> None:
    store = house.open()

    class Full:
        coordinator_id = store.coordinator_id
        lock_held = store.lock_held
        installed = store.installed

        def install(self, *values: object) -> None:
            raise StoreError(house.root, "is full")

    with pytest.raises(StoreError, match="is full"):
        house.activate(Full())
    house.activate(store)
    assert house.slept == []


@pytest.mark.req("P12-21")
def test_the_first_failure_is_what_is_told_when_the_token_cannot_go_back(house: House) -> None:
    store = house.open()
    activation = house.activate(store)

    def fail() -> None:
        house.witness.down = True
        raise StoreError(house.root, "is damaged")

    with pytest.raises(StoreError, match="is damaged"):
        activation.recover(fail)
    assert activation.stage is AuthorityState.STOPPED


def test_a_witness_that_is_no_witness_stops_the_start(house: House) -> None:
    def garbage(coordinator_id: CoordinatorId) -> tuple[int, int]:
        raise WitnessProtocolError("something else answered")

    house.witness.last = garbage  # type: ignore[method-assign]
    with pytest.raises(WitnessProtocolError):
        house.activate(house.open())
