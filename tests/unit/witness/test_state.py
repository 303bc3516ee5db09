"""What the witness decides, row by row."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import replace
from typing import TypeVar

import pytest

from sidecar.base.witnessing import Refusal
from sidecar.coordinator.wire.ids import U64_MAX, ActivationSequence, AuthorityEpoch
from sidecar.witness.messages import (
    REQUESTS,
    Activate,
    Kind,
    Last,
    Refused,
    Released,
    Relinquish,
    Renew,
    Report,
    Request,
)
from sidecar.witness.state import TRANSITIONS, Act, Decision, Phase, Record, Terms, WitnessCore
from tests.unit.witness.rig import COORDINATOR, LIFE, OTHER, START_WALL, Clock, counting_entropy, incarnation

CLIENT = b"\x01" * 32
RIVAL = b"\x02" * 32
T = TypeVar("T")


class Desk:
    """A core whose records become durable at once."""

    def __init__(self, records: Iterable[Record] = (), *, seconds: int = LIFE, capacity: int = 8) -> None:
        self.core = WitnessCore(records, lease_seconds=seconds, clients=[CLIENT, RIVAL], capacity=capacity)
        self.clock = Clock()
        self.entropy = counting_entropy()

    def ask(self, request: Request, client: bytes = CLIENT) -> Decision:
        decision = self.core.decide(client, request, self.clock(), self.entropy)
        if decision.record is not None:
            self.core.adopt(decision.record)
        return decision

    def activate(self, epoch: int, number: int = 1, client: bytes = CLIENT) -> Terms:
        return expect(Terms, self.ask(Activate(COORDINATOR, AuthorityEpoch(epoch), incarnation(number)), client))

    def record(self) -> Record:
        return self.core.records[COORDINATOR]


def expect(kind: type[T], decision: Decision) -> T:
    assert isinstance(decision.outcome, kind)
    return decision.outcome


def refusal(decision: Decision) -> Refusal:
    assert decision.record is None
    return expect(Refused, decision).reason


def activation(epoch: int, number: int = 9) -> Activate:
    return Activate(COORDINATOR, AuthorityEpoch(epoch), incarnation(number))


def renewal(terms: Terms) -> Renew:
    return Renew(terms.coordinator_id, terms.activation_sequence, terms.epoch, terms.incarnation_id, terms.token)


def release(terms: Terms) -> Relinquish:
    return Relinquish(terms.coordinator_id, terms.activation_sequence, terms.token)


def test_the_table_covers_every_phase_and_request() -> None:
    assert set(TRANSITIONS) == {(phase, kind) for phase in Phase for kind in REQUESTS}
    assert {act for act in TRANSITIONS.values() if isinstance(act, Act)} == set(Act)


def test_first_activation_certifies_what_was_asked() -> None:
    desk = Desk()
    terms = desk.activate(5, 3)
    assert (terms.coordinator_id, terms.epoch, terms.activation_sequence) == (COORDINATOR, 5, 1)
    assert terms.incarnation_id == incarnation(3)
    assert (terms.issued_at, terms.expires_at) == (START_WALL, START_WALL + LIFE)
    assert len(terms.token) == 32
    assert desk.record().lease.token_sha256 == hashlib.sha256(terms.token).digest()


@pytest.mark.req("P12-10")
@pytest.mark.parametrize("seconds", [1, 2, 60])
def test_no_certificate_lasts_longer_than_configured(seconds: int) -> None:
    desk = Desk(seconds=seconds)
    desk.clock.advance(0.75)
    terms = desk.activate(1)
    assert terms.expires_at - terms.issued_at == seconds
    renewed = expect(Terms, desk.ask(renewal(terms)))
    assert renewed.expires_at - renewed.issued_at == seconds


@pytest.mark.req("P12-10")
@pytest.mark.parametrize("seconds", [0, 61, 3600])
def test_other_lives_are_not_possible(seconds: int) -> None:
    with pytest.raises(ValueError, match="1 to 60"):
        Desk(seconds=seconds)


@pytest.mark.req("P12-04")
@pytest.mark.parametrize("epoch", [1, 4, 5])
@pytest.mark.parametrize("state", ["held", "over", "spent"])
def test_an_epoch_that_is_not_above_the_last_is_refused(epoch: int, state: str) -> None:
    desk = Desk()
    terms = desk.activate(5)
    if state == "over":
        desk.clock.advance(LIFE)
    elif state == "spent":
        desk.ask(release(terms))
    outcome = desk.ask(activation(epoch))
    assert refusal(outcome) is Refusal.EPOCH_TOO_LOW
    assert expect(Refused, outcome).last_epoch == 5


@pytest.mark.req("P12-05")
@pytest.mark.parametrize(
    "change",
    [
        {"activation_sequence": ActivationSequence(2)},
        {"epoch": AuthorityEpoch(6)},
        {"epoch": AuthorityEpoch(4)},
        {"incarnation_id": incarnation(2)},
        {"token": b"\x00" * 32},
    ],
)
def test_renewal_needs_the_exact_current_values(change: dict[str, object]) -> None:
    desk = Desk()
    exact = renewal(desk.activate(5))
    assert refusal(desk.ask(replace(exact, **change))) is Refusal.NOT_CURRENT  # type: ignore[arg-type]
    expect(Terms, desk.ask(exact))


@pytest.mark.req("P12-05")
def test_a_predecessor_cannot_renew() -> None:
    desk = Desk()
    first = desk.activate(5)
    desk.clock.advance(LIFE)
    desk.activate(6, 2)
    assert refusal(desk.ask(renewal(first))) is Refusal.NOT_CURRENT


@pytest.mark.req("P12-13")
def test_renewal_moves_the_times_alone() -> None:
    desk = Desk()
    terms = desk.activate(5)
    desk.clock.advance(30.5)
    renewed = expect(Terms, desk.ask(renewal(terms)))
    assert renewed == replace(terms, issued_at=START_WALL + 30, expires_at=START_WALL + 30 + LIFE)
    again = expect(Terms, desk.ask(renewal(terms)))
    assert again.token == terms.token


@pytest.mark.req("P12-11", "P12-12")
def test_the_next_token_waits_for_the_expiry_of_the_last_renewal() -> None:
    desk = Desk()
    terms = desk.activate(5)
    desk.clock.advance(30)
    desk.ask(renewal(terms))
    desk.clock.advance(LIFE - 0.001)
    outcome = desk.ask(activation(6))
    assert refusal(outcome) is Refusal.LEASE_ACTIVE
    assert expect(Refused, outcome).retry_after_ms == 1
    desk.clock.advance(0.001)
    follower = desk.activate(6, 9)
    assert follower.token != terms.token
    assert follower.activation_sequence == 2


@pytest.mark.req("P12-11")
def test_of_two_activations_one_wins() -> None:
    desk = Desk()
    desk.activate(5, 1)
    assert refusal(desk.ask(activation(6, 2))) is Refusal.LEASE_ACTIVE
    assert desk.record().lease.incarnation_id == incarnation(1)


@pytest.mark.req("P12-12")
def test_relinquishment_frees_the_coordinator_at_once_and_only_once() -> None:
    desk = Desk()
    terms = desk.activate(5)
    expect(Released, desk.ask(release(terms)))
    assert refusal(desk.ask(release(terms))) is Refusal.SPENT
    assert refusal(desk.ask(renewal(terms))) is Refusal.SPENT
    follower = desk.activate(6, 2)
    assert follower.activation_sequence == 2
    assert refusal(desk.ask(release(terms))) is Refusal.NOT_CURRENT


@pytest.mark.req("P12-12")
@pytest.mark.parametrize("change", [{"activation_sequence": ActivationSequence(2)}, {"token": b"\x07" * 32}])
def test_relinquishment_needs_that_exact_token(change: dict[str, object]) -> None:
    desk = Desk()
    terms = desk.activate(5)
    assert refusal(desk.ask(replace(release(terms), **change))) is Refusal.NOT_CURRENT  # type: ignore[arg-type]
    assert refusal(desk.ask(activation(6))) is Refusal.LEASE_ACTIVE


@pytest.mark.req("P12-12")
def test_spending_is_in_the_record_that_is_made_durable() -> None:
    desk = Desk()
    terms = desk.activate(5)
    decision = desk.core.decide(CLIENT, release(terms), desk.clock(), desk.entropy)
    assert decision.record is not None
    assert decision.record.lease.spent
    assert not desk.record().lease.spent  # not before the shell says that it is durable


@pytest.mark.parametrize("request_kind", [Kind.ACTIVATE, Kind.RENEW, Kind.RELINQUISH, Kind.LAST])
@pytest.mark.req("P12-12")
def test_a_coordinator_belongs_to_the_key_that_activated_it(request_kind: Kind) -> None:
    desk = Desk()
    terms = desk.activate(5)
    requests: dict[Kind, Request] = {
        Kind.ACTIVATE: activation(6),
        Kind.RENEW: renewal(terms),
        Kind.RELINQUISH: release(terms),
        Kind.LAST: Last(COORDINATOR),
    }
    desk.clock.advance(10)
    for stranger in (RIVAL, b"\x03" * 32):
        assert refusal(desk.ask(requests[request_kind], stranger)) is Refusal.NOT_AUTHORISED
    assert not isinstance(desk.ask(Last(COORDINATOR)).outcome, Refused)


def test_an_unknown_client_learns_nothing_of_free_coordinators() -> None:
    assert refusal(Desk().ask(Last(OTHER), b"\x03" * 32)) is Refusal.NOT_AUTHORISED


def test_last_reports_zeros_before_the_first_activation() -> None:
    desk = Desk()
    assert expect(Report, desk.ask(Last(COORDINATOR))) == Report(0, 0)
    desk.activate(7)
    assert expect(Report, desk.ask(Last(COORDINATOR))) == Report(7, 1)


def test_unknown_coordinators_have_nothing_to_renew_or_give_back() -> None:
    desk = Desk()
    terms = desk.activate(5)
    elsewhere = replace(terms, coordinator_id=OTHER)
    assert refusal(desk.ask(renewal(elsewhere))) is Refusal.UNKNOWN
    assert refusal(desk.ask(release(elsewhere))) is Refusal.UNKNOWN


@pytest.mark.req("P12-11", "P12-12")
def test_a_wall_clock_that_jumps_ahead_does_not_end_a_lease() -> None:
    desk = Desk()
    terms = desk.activate(5)
    desk.clock.jump_wall(3600)
    outcome = desk.ask(activation(6))
    assert refusal(outcome) is Refusal.LEASE_ACTIVE
    assert expect(Refused, outcome).retry_after_ms == LIFE * 1000
    assert refusal(desk.ask(renewal(terms))) is Refusal.NOT_CURRENT  # its certificate is over for everybody
    desk.clock.advance(LIFE)
    desk.activate(6)


@pytest.mark.req("P12-11", "P12-12")
def test_a_wall_clock_that_jumps_back_only_delays() -> None:
    desk = Desk()
    terms = desk.activate(5)
    desk.clock.jump_wall(-20)
    renewed = expect(Terms, desk.ask(renewal(terms)))
    assert renewed.expires_at == START_WALL - 20 + LIFE
    desk.clock.advance(LIFE)
    # The renewal is over, the first certificate is not: by the wall clock it lives for another 20 s.
    outcome = desk.ask(activation(6))
    assert refusal(outcome) is Refusal.LEASE_ACTIVE
    assert expect(Refused, outcome).retry_after_ms == 20_000
    desk.clock.advance(20)
    desk.activate(6)


@pytest.mark.req("P12-11", "P12-12")
def test_after_a_reboot_the_wall_clock_alone_decides() -> None:
    desk = Desk()
    terms = desk.activate(5)
    desk.clock.reboot()
    assert refusal(desk.ask(activation(6))) is Refusal.LEASE_ACTIVE
    desk.clock.advance(10)
    expect(Terms, desk.ask(renewal(terms)))
    desk.clock.reboot()  # the new boot's clock is behind the deadline that the old one counted to
    desk.clock.advance(LIFE)
    desk.activate(6)


@pytest.mark.req("P4-06")
def test_an_exhausted_sequence_refuses_instead_of_wrapping() -> None:
    desk = Desk()
    desk.activate(5)
    full = replace(desk.record(), activation_sequence=ActivationSequence(U64_MAX))
    desk = Desk([full])
    desk.clock.advance(LIFE)
    assert refusal(desk.ask(activation(6))) is Refusal.EXHAUSTED


def test_the_number_of_coordinators_is_bounded() -> None:
    desk = Desk(capacity=1)
    desk.activate(5)
    other = Activate(OTHER, AuthorityEpoch(1), incarnation(1))
    assert refusal(desk.ask(other)) is Refusal.EXHAUSTED
    desk.clock.advance(LIFE)
    desk.activate(6)


@pytest.mark.parametrize("answer", [bytes(32), b"short"])
def test_a_broken_random_source_grants_nothing(answer: bytes) -> None:
    desk = Desk()
    with pytest.raises(ValueError, match="random source"):
        desk.core.decide(CLIENT, activation(1), desk.clock(), lambda size: answer)


@pytest.mark.req("P12-03")
def test_the_core_keeps_no_token() -> None:
    desk = Desk()
    terms = desk.activate(5)
    assert terms.token not in repr(desk.record()).encode()
    assert "token=" not in repr(terms)
    assert {name for name in Record.__slots__} == {  # noqa: C416
        "coordinator_id",
        "client_key",
        "epoch",
        "activation_sequence",
        "lease",
    }
