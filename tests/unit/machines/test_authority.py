"""The authority machine against real activations, with a real store and a real witness."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sidecar.base.witnessing import WitnessUnavailable
from sidecar.coordinator.authority.activation import Activation, ActivationRefused, Authority
from sidecar.coordinator.authority.renewal import Action, Renewer
from sidecar.coordinator.machines.authority import AUTHORITY, AuthorityEvent, AuthorityState
from sidecar.coordinator.store.errors import StoreLocked
from sidecar.coordinator.wire.ids import AuthorityEpoch, CoordinatorId, IncarnationId
from sidecar.witness.messages import Relinquish
from tests.unit.authority.house import House
from tests.unit.witness.rig import LIFE

E, S = AuthorityEvent, AuthorityState


class Process:
    """One process on its way: a store, a witness and an activation."""

    def __init__(self, root: Path) -> None:
        self.house = House(root)
        self.store = self.house.open()
        certificate = self.house.witness.activate(
            CoordinatorId(self.store.coordinator_id), AuthorityEpoch(1), IncarnationId(b"\x41" * 16)
        )
        now = self.house.clock.now
        self.activation = Activation(Authority.under(certificate, now()), self.house.witness, now, self.house.step)

    def install(self) -> None:
        self.activation.install(self.store)

    def recover(self) -> None:
        self.activation.recover(self.store.load)

    def bind(self) -> None:
        self.activation.bind(self.house.socket.touch)

    def open_again(self) -> None:
        self.house.open()

    def renew(self) -> None:
        """A renewal as the witness grants it."""
        held = self.activation.authority
        self.house.clock.advance(LIFE / 2)
        renewer = Renewer(held, self.house.witness.pin)
        assert renewer.poll(self.house.clock.now()) is Action.RENEW
        renewer.granted(self.house.witness.renew(held.certificate), self.house.clock.now())
        self.activation.renewed(renewer.authority)

    def renewed_late(self) -> None:
        held = self.activation.authority
        self.activation.renewed(dataclasses.replace(held, deadline_mono=held.deadline_mono + LIFE))

    def fail(self) -> None:
        with pytest.raises(OSError, match="disk"), self.activation.stopped_by_failure():
            raise OSError("disk")

    @property
    def given_back(self) -> int:
        return sum(isinstance(call, Relinquish) for call in self.house.witness.calls)


PATHS: dict[AuthorityState, list[Callable[[Process], None]]] = {
    S.STOPPED: [lambda p: p.activation.relinquish()],
    S.PROPOSING: [],
    S.INSTALLED: [Process.install],
    S.RECOVERED: [Process.install, Process.recover],
    S.BOUND: [Process.install, Process.recover, Process.bind],
    S.FENCED: [Process.install, Process.recover, Process.bind, lambda p: p.activation.lose()],
}
EVENTS: dict[AuthorityEvent, Callable[[Process], None]] = {
    E.INSTALL: Process.install,
    E.RECOVER: Process.recover,
    E.BIND: Process.bind,
    E.LOST: lambda p: p.activation.lose(),
    E.FAILED: Process.fail,
    E.STOP: lambda p: p.activation.relinquish(),
}
"""OPENED and REFUSED come before there is an activation, RENEWED differs by state: they have tests of their own."""


@pytest.fixture
def process(tmp_path: Path) -> Iterator[Process]:
    process = Process(tmp_path)
    with process.house.stack:
        yield process
    process.house.witness.service.close()


def bring(process: Process, state: AuthorityState) -> None:
    for step in PATHS[state]:
        step(process)
    assert process.activation.stage is state


@pytest.mark.req("P12-20", "P12-17", "P12-12", "P12-21")
@pytest.mark.parametrize("event", EVENTS)
@pytest.mark.parametrize("state", S)
def test_every_event_in_every_state(process: Process, state: AuthorityState, event: AuthorityEvent) -> None:
    bring(process, state)
    step = AUTHORITY.step(state, event)
    before = process.given_back, process.store.installed().epoch, process.house.socket.exists()
    taken = event in (E.INSTALL, E.RECOVER, E.BIND)
    if taken and step.next is state:
        with pytest.raises(ActivationRefused, match=f"the activation is {state.name.lower()}"):
            EVENTS[event](process)
        assert (process.given_back, process.store.installed().epoch, process.house.socket.exists()) == before
    else:
        EVENTS[event](process)
    assert process.activation.stage is step.next
    assert process.given_back - before[0] == step.reply.startswith("the token goes back")
    assert (process.store.installed().epoch == 1) is (before[1] == 1 or step.next is S.INSTALLED)
    assert process.house.socket.exists() is (before[2] or step.next is S.BOUND)


@pytest.mark.req("P12-13", "P12-15", "P12-17")
@pytest.mark.parametrize("state", S)
def test_a_renewal_counts_while_bound_and_never_later(process: Process, state: AuthorityState) -> None:
    bring(process, state)
    held, step = process.activation.authority, AUTHORITY.step(state, E.RENEWED)
    if state is S.BOUND:
        process.renew()
        assert process.activation.authority.certificate.expires_at > held.certificate.expires_at
        assert process.activation.authority.guard == held.guard
    elif step.error is None:
        process.renewed_late()
        assert process.activation.authority is held
    assert process.activation.stage is step.next is state
    assert step.error is None or state in (S.PROPOSING, S.INSTALLED, S.RECOVERED)


@pytest.mark.req("P12-01", "P12-20", "P14-05")
@pytest.mark.parametrize("state", S)
def test_a_process_opens_its_store_once(process: Process, state: AuthorityState) -> None:
    bring(process, state)
    asked = len(process.house.witness.calls)
    with pytest.raises(StoreLocked):
        process.open_again()
    assert len(process.house.witness.calls) == asked
    assert process.activation.stage is state
    # The only way in is from a stop: with the lock given up a new activation begins as PROPOSING.
    assert [s for s in S if AUTHORITY.step(s, E.OPENED).next is not s] == [S.STOPPED]


@pytest.mark.req("P12-21", "P12-24")
def test_a_refusal_ends_the_proposal_with_nothing_installed_or_bound(process: Process) -> None:
    assert AUTHORITY.step(S.PROPOSING, E.REFUSED).next is S.STOPPED
    process.activation.relinquish()
    process.house.witness.down = True
    with pytest.raises(WitnessUnavailable):
        process.house.ascend(process.store)
    assert process.store.installed().epoch == 0
    assert not process.house.socket.exists()


@pytest.mark.req("P12-17", "P12-22")
def test_a_fenced_process_keeps_its_token_and_cannot_rise_again(process: Process) -> None:
    bring(process, S.FENCED)
    for act in (process.activation.relinquish, process.activation.lose):
        act()
    for step in (process.install, process.recover, process.bind):
        with pytest.raises(ActivationRefused, match="fenced"):
            step()
    assert process.activation.stage is S.FENCED
    assert process.given_back == 0
