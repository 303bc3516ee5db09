"""Any sequence of requests and clock moves against the invariants: one living token, counters that only rise."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    MultipleResults,
    RuleBasedStateMachine,
    initialize,
    invariant,
    multiple,
    rule,
    run_state_machine_as_test,
)

from sidecar.coordinator.wire.ids import AuthorityEpoch, CoordinatorId
from sidecar.witness.messages import Activate, Last, Refused, Released, Relinquish, Renew, Report, Request
from sidecar.witness.state import SECOND, Decision, Record, Terms, WitnessCore
from tests.unit.witness.rig import Clock, counting_entropy, incarnation

CLIENTS = (b"\x01" * 32, b"\x02" * 32)
COORDINATORS = tuple(CoordinatorId(bytes([number]) * 16) for number in (1, 2))
SECONDS = 10


@dataclass
class Held:
    """A certificate as its holder sees it: it counts both clocks from when it got it."""

    terms: Terms
    client: bytes
    boot_id: bytes
    boot_deadline_ns: int

    def lives(self, clock: Clock) -> bool:
        at = clock()
        # The holder dies with the boot.
        return self.unexpired(clock) and at.boot_id == self.boot_id and at.boot_ns < self.boot_deadline_ns

    def unexpired(self, clock: Clock) -> bool:
        """What its clients see: the wall clock."""
        return clock().wall_ns < self.terms.expires_at * SECOND


class WitnessModel(RuleBasedStateMachine):
    """A model that knows only certificates, spent tokens and maxima."""

    tokens: Bundle[Held] = Bundle("tokens")

    @initialize(target=tokens)
    def start(self) -> MultipleResults[Held] | Held:
        self.clock = Clock()
        self.entropy = counting_entropy()
        self.core = self.fresh([])
        self.issued: list[Held] = []
        self.spent: set[bytes] = set()
        self.owner: dict[bytes, bytes] = {}
        self.last: dict[bytes, tuple[int, int]] = {}
        return self.try_to_activate(CLIENTS[0], COORDINATORS[0], 1, 1)

    def fresh(self, records: list[Record]) -> WitnessCore:
        return WitnessCore(records, lease_seconds=SECONDS, clients=CLIENTS)

    def ask(self, client: bytes, request: Request) -> Decision:
        decision = self.core.decide(client, request, self.clock(), self.entropy)
        if decision.record is not None:
            self.core.adopt(decision.record)
        if not isinstance(decision.outcome, Refused):
            assert self.owner.get(request.coordinator_id, client) == client
            if isinstance(request, Activate):
                self.owner[request.coordinator_id] = client
        return decision

    def hold(self, terms: Terms, client: bytes) -> Held:
        held = Held(terms, client, self.clock().boot_id, self.clock().boot_ns + SECONDS * SECOND)
        self.issued.append(held)
        return held

    @rule(
        target=tokens,
        client=st.sampled_from(CLIENTS),
        coordinator=st.sampled_from(COORDINATORS),
        step=st.integers(-1, 2),
        number=st.integers(1, 50),
    )
    def activate(
        self, client: bytes, coordinator: CoordinatorId, step: int, number: int
    ) -> MultipleResults[Held] | Held:
        return self.try_to_activate(client, coordinator, step, number)

    @rule(target=tokens, held=tokens)
    def follow(self, held: Held) -> MultipleResults[Held] | Held:
        """The rightful client wants the next activation."""
        return self.try_to_activate(held.client, held.terms.coordinator_id, 1, 1)

    def try_to_activate(
        self, client: bytes, coordinator: CoordinatorId, step: int, number: int
    ) -> MultipleResults[Held] | Held:
        epoch, sequence = self.last.get(coordinator, (0, 0))
        proposed = max(1, epoch + step)
        earlier = [held for held in self.issued if held.terms.coordinator_id == coordinator]
        outcome = self.ask(client, Activate(coordinator, AuthorityEpoch(proposed), incarnation(number))).outcome
        if isinstance(outcome, Refused):
            return multiple()
        assert isinstance(outcome, Terms)
        assert proposed > epoch
        assert (outcome.epoch, outcome.activation_sequence) == (proposed, sequence + 1)
        for held in earlier:
            assert held.terms.token in self.spent or not held.lives(self.clock)
            if held.terms.activation_sequence == sequence:
                assert held.terms.token in self.spent or not held.unexpired(self.clock)
        assert all(held.terms.token != outcome.token for held in self.issued)
        self.last[coordinator] = (proposed, sequence + 1)
        return self.hold(outcome, client)

    @rule(target=tokens, held=tokens)
    def renew(self, held: Held) -> MultipleResults[Held] | Held:
        terms = held.terms
        request = Renew(terms.coordinator_id, terms.activation_sequence, terms.epoch, terms.incarnation_id, terms.token)
        outcome = self.ask(held.client, request).outcome
        if isinstance(outcome, Refused):
            return multiple()
        assert isinstance(outcome, Terms)
        assert (terms.epoch, terms.activation_sequence) == self.last[terms.coordinator_id]
        assert (outcome.token, outcome.incarnation_id) == (terms.token, terms.incarnation_id)
        assert terms.token not in self.spent
        return self.hold(outcome, held.client)

    @rule(held=tokens)
    def relinquish(self, held: Held) -> None:
        terms = held.terms
        request = Relinquish(terms.coordinator_id, terms.activation_sequence, terms.token)
        if isinstance(self.ask(held.client, request).outcome, Released):
            assert terms.token not in self.spent
            self.spent.add(terms.token)

    @rule(client=st.sampled_from(CLIENTS), coordinator=st.sampled_from(COORDINATORS))
    def look(self, client: bytes, coordinator: CoordinatorId) -> None:
        outcome = self.ask(client, Last(coordinator)).outcome
        if isinstance(outcome, Report):
            assert (outcome.epoch, outcome.activation_sequence) == self.last.get(coordinator, (0, 0))

    @rule(seconds=st.sampled_from([0.5, 3.0, 10.0]) | st.floats(0.001, 12))
    def wait(self, seconds: float) -> None:
        self.clock.advance(seconds)

    @rule(seconds=st.sampled_from([-20.0, -5.0, 12.0]) | st.floats(-30, 30))
    def jump(self, seconds: float) -> None:
        self.clock.jump_wall(seconds)

    @rule(reboot=st.sampled_from([False, False, True]))
    def restart(self, reboot: bool) -> None:
        self.core = self.fresh(list(self.core.records.values()))
        if reboot:
            self.clock.reboot()

    @invariant()
    def one_token_lives_per_coordinator(self) -> None:
        for coordinator in COORDINATORS:
            living = {
                held.terms.token
                for held in self.issued
                if held.terms.coordinator_id == coordinator
                and held.terms.token not in self.spent
                and held.lives(self.clock)
            }
            assert len(living) <= 1

    @invariant()
    def counters_only_rise(self) -> None:
        for coordinator, record in self.core.records.items():
            assert (record.epoch, record.activation_sequence) == self.last[coordinator]


@pytest.mark.req("P12-04", "P12-09", "P12-11", "P12-12")
def test_no_history_breaks_the_witness() -> None:
    run_state_machine_as_test(WitnessModel, settings=settings(max_examples=200, stateful_step_count=40, deadline=None))
