"""Renewal: when it is due, what a failure means, and that a lost authority stays lost."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sidecar.base.clock import Now
from sidecar.base.witnessing import Refusal, WitnessError, WitnessProtocolError, WitnessRefused, WitnessUnavailable
from sidecar.coordinator.authority.activation import Authority
from sidecar.coordinator.authority.certificate import WitnessPin
from sidecar.coordinator.authority.renewal import TRANSITIONS, Action, Happening, Renewal, Renewer
from sidecar.coordinator.wire.ids import ActivationWitnessId, AuthorityEpoch
from sidecar.coordinator.wire.records import ActivationCertificate
from sidecar.witness.messages import Activate, Refused, Renew
from sidecar.witness.service import issue
from sidecar.witness.state import Terms, WitnessCore
from tests.unit.witness.rig import (
    COORDINATOR,
    LIFE,
    Clock,
    LocalWitness,
    client_key,
    counting_entropy,
    incarnation,
    renewal_of,
)

CLIENT = b"\x01" * 32
WITNESS = ActivationWitnessId(b"\xaa" * 16)


class Holder:
    """An activated coordinator without a server: clock, witness, renewer."""

    def __init__(self, directory: Path, lease_seconds: int = LIFE) -> None:
        self.clock = Clock()
        self.witness = LocalWitness(directory, self.clock, lease_seconds=lease_seconds)
        asked = self.clock.now()
        certificate = self.witness.activate(COORDINATOR, AuthorityEpoch(1), incarnation(1))
        self.renewer = Renewer(Authority.under(certificate, asked), self.witness.pin)

    def poll(self) -> Action:
        return self.renewer.poll(self.clock.now())

    def renew(self) -> Action:
        """What the shell does on RENEW."""
        try:
            certificate = self.witness.renew(self.renewer.authority.certificate)
        except (WitnessRefused, WitnessUnavailable) as error:
            return self.renewer.failed(error, self.clock.now())
        return self.renewer.granted(certificate, self.clock.now())


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[Holder]:
    holder = Holder(tmp_path / "witness")
    yield holder
    holder.witness.service.close()


def test_every_move_starts_from_a_living_state() -> None:
    assert {state for state, _ in TRANSITIONS} == {Renewal.HOLDING, Renewal.ASKING}
    assert {happening for _, happening in TRANSITIONS} == set(Happening)


def test_renewal_is_due_at_half_life_and_every_half_life_again(holder: Holder) -> None:
    for _ in range(5):
        due = holder.renewer.next_deadline()
        assert due == holder.clock.now().mono + LIFE / 2
        holder.clock.advance(LIFE / 2 - 0.01)
        assert holder.poll() is Action.NOTHING
        holder.clock.advance(0.01)
        assert holder.poll() is Action.RENEW
        assert holder.poll() is Action.NOTHING  # one request at a time
        assert holder.renewer.next_deadline() == holder.renewer.authority.deadline_mono
        before = holder.renewer.authority
        assert holder.renew() is Action.NOTHING
        after = holder.renewer.authority
        assert after.guard == before.guard
        assert after.certificate.expires_at == before.certificate.expires_at + LIFE // 2
        assert after.deadline_mono == before.deadline_mono + LIFE / 2


def test_a_wall_clock_that_jumped_ahead_brings_renewal_forward(holder: Holder) -> None:
    holder.clock.jump_wall(LIFE / 2)
    assert holder.poll() is Action.RENEW
    assert holder.renew() is Action.NOTHING
    # However far ahead this clock is of the witness's, the witness is not asked at every turn.
    skewed = Now(holder.clock.now().wall + 40, holder.clock.now().mono)
    assert holder.renewer.poll(skewed) is Action.NOTHING


@pytest.mark.req("P12-17")
def test_an_unreachable_witness_is_asked_again_until_expiry_and_then_the_authority_is_lost(holder: Holder) -> None:
    holder.witness.down = True
    attempts = 0
    while (action := holder.poll()) is not Action.FENCE:
        if action is Action.RENEW:
            attempts += 1
            holder.renew()
        deadline = holder.renewer.next_deadline()
        assert deadline <= holder.renewer.authority.deadline_mono
        holder.clock.advance(max(0.0, deadline - holder.clock.now().mono))
    assert attempts == 30
    assert holder.clock.now().mono == holder.renewer.authority.deadline_mono
    assert not holder.renewer.authority.valid(holder.clock.now())
    assert "expired" in holder.renewer.reason
    holder.witness.down = False
    assert holder.poll() is Action.FENCE
    assert holder.renewer.next_deadline() == float("inf")


@pytest.mark.req("P12-17")
def test_a_witness_that_comes_back_in_time_heals_everything(holder: Holder) -> None:
    holder.clock.advance(LIFE / 2)
    assert holder.poll() is Action.RENEW
    holder.witness.down = True
    assert holder.renew() is Action.NOTHING
    assert holder.poll() is Action.NOTHING
    holder.clock.advance(LIFE / 2 - 1)
    holder.witness.down = False
    assert holder.poll() is Action.RENEW
    assert holder.renew() is Action.NOTHING
    assert holder.renewer.state is Renewal.HOLDING
    assert holder.renewer.authority.valid(Now(holder.clock.now().wall + 30, holder.clock.now().mono + 30))


@pytest.mark.req("P12-17")
@pytest.mark.parametrize("reason", list(Refusal))
def test_a_refusal_is_final(reason: Refusal, holder: Holder) -> None:
    holder.clock.advance(LIFE / 2)
    assert holder.poll() is Action.RENEW
    assert holder.renewer.failed(WitnessRefused(reason), holder.clock.now()) is Action.FENCE
    assert reason in holder.renewer.reason
    assert holder.renew() is Action.FENCE  # even if the witness should change its mind
    assert holder.poll() is Action.FENCE


@pytest.mark.req("P12-17")
def test_a_renewal_that_arrives_after_expiry_is_too_late(holder: Holder) -> None:
    holder.clock.advance(LIFE / 2)
    assert holder.poll() is Action.RENEW
    certificate = holder.witness.renew(holder.renewer.authority.certificate)
    holder.clock.advance(LIFE / 2)
    held = holder.renewer.authority
    assert holder.renewer.granted(certificate, holder.clock.now()) is Action.FENCE
    assert holder.renewer.authority is held
    assert holder.renewer.failed(WitnessUnavailable("x"), holder.clock.now()) is Action.FENCE


@pytest.mark.req("P12-17")
@pytest.mark.parametrize("jump", [LIFE, 10 * LIFE])
def test_a_wall_clock_beyond_expiry_fences(jump: float, holder: Holder) -> None:
    holder.clock.jump_wall(jump)
    assert holder.poll() is Action.FENCE


@pytest.mark.req("P12-17")
def test_a_wall_clock_that_jumped_back_prolongs_nothing(holder: Holder) -> None:
    holder.clock.jump_wall(-3600)
    holder.clock.advance(LIFE)
    assert holder.poll() is Action.FENCE


@pytest.mark.req("P12-13", "P12-17")
@pytest.mark.parametrize("change", ["token", "signature", "witness"])
def test_what_is_no_valid_renewal_counts_as_a_failed_attempt(change: str, holder: Holder) -> None:
    holder.clock.advance(LIFE / 2)
    assert holder.poll() is Action.RENEW
    held = holder.renewer.authority
    certificate = holder.witness.renew(held.certificate)
    if change == "token":
        certificate = replace(certificate, fencing_token=b"\x01" * 32)
    elif change == "signature":
        certificate = replace(certificate, expires_at=certificate.expires_at + 1)
    else:
        holder.renewer._pin = WitnessPin(b"\xab" * 16, holder.witness.pin.public_key)
    assert holder.renewer.granted(certificate, holder.clock.now()) is Action.NOTHING
    assert holder.renewer.authority is held
    assert holder.renewer.state is Renewal.HOLDING


def test_a_renewal_that_nobody_asked_for_changes_nothing(holder: Holder) -> None:
    held = holder.renewer.authority
    certificate = holder.witness.renew(held.certificate)
    assert holder.renewer.granted(certificate, holder.clock.now()) is Action.NOTHING
    assert holder.renewer.failed(WitnessProtocolError("x"), holder.clock.now()) is Action.NOTHING
    assert holder.renewer.authority is held


def test_short_certificates_leave_room_for_several_attempts(tmp_path: Path) -> None:
    holder = Holder(tmp_path / "witness", lease_seconds=2)
    holder.witness.down = True
    holder.clock.advance(1)
    attempts = 0
    while (action := holder.poll()) is not Action.FENCE:
        if action is Action.RENEW:
            attempts += 1
            holder.renew()
        holder.clock.advance(0.01)
    assert attempts >= 8
    holder.witness.service.close()


class MemoryWitness:
    """The witness's core alone: many histories in a short time."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._key = client_key(9)
        self._core = WitnessCore((), lease_seconds=LIFE, clients=[CLIENT])
        self._entropy = counting_entropy()
        self.pin = WitnessPin(WITNESS, self._key.public_key)

    def ask(self, request: Activate | Renew) -> ActivationCertificate:
        decision = self._core.decide(CLIENT, request, self._clock(), self._entropy)
        if isinstance(decision.outcome, Refused):
            raise WitnessRefused(decision.outcome.reason)
        assert isinstance(decision.outcome, Terms)
        assert decision.record is not None
        self._core.adopt(decision.record)
        return issue(decision.outcome, WITNESS, self._key)


@pytest.mark.req("P12-11", "P12-17")
@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["wait", "jump", "down", "up"]), st.floats(-50, 50)), max_size=30))
def test_the_holder_never_believes_longer_than_the_witness(moves: list[tuple[str, float]]) -> None:
    clock = Clock()
    witness = MemoryWitness(clock)
    certificate = witness.ask(Activate(COORDINATOR, AuthorityEpoch(1), incarnation(1)))
    renewer = Renewer(Authority.under(certificate, clock.now()), witness.pin)
    down = False
    for move, size in moves:
        if move == "wait":
            clock.advance(abs(size))
        elif move == "jump":
            clock.jump_wall(size)
        else:
            down = move == "down"
        if renewer.poll(clock.now()) is Action.RENEW:
            try:
                if down:
                    raise WitnessUnavailable("down")
                renewer.granted(witness.ask(renewal_of(renewer.authority.certificate)), clock.now())
            except WitnessError as error:
                renewer.failed(error, clock.now())
        if renewer.poll(clock.now()) is not Action.FENCE:
            with pytest.raises(WitnessRefused, match=Refusal.LEASE_ACTIVE):
                witness.ask(Activate(COORDINATOR, AuthorityEpoch(99), incarnation(2)))
