"""What holds for every state machine, whatever it is about."""

from __future__ import annotations

from enum import Enum

import pytest

from sidecar.coordinator.machines.all import MACHINES
from sidecar.coordinator.machines.authority import AuthorityState
from sidecar.coordinator.machines.connection import ConnectionState
from sidecar.coordinator.machines.lease import LeaseState
from sidecar.coordinator.machines.machine import Cell, Machine, Step, by_rows
from sidecar.coordinator.machines.operation import MOVES, STATES, OperationState
from sidecar.coordinator.machines.request import RequestState
from sidecar.coordinator.machines.subscription import SubscriptionState
from sidecar.coordinator.wire.enums import ErrorCode, OperationTag
from sidecar.coordinator.wire.errors import ERRORS, ProtocolError, ProtocolViolation

ENDS: dict[str, set[Enum]] = {
    "Connection (server)": {ConnectionState.CLOSED},
    "Request id": set(),
    "Subscription": {SubscriptionState.CLOSED},
    "Snapshot and replay lease": {LeaseState.RELEASED, LeaseState.EXPIRED},
    "Operation": set(),
    "Authority": {AuthorityState.FENCED},
}
"""States that nothing leaves. Request ids, operation ids and processes can be used again."""

AnyMachine = Machine[Enum, Enum]


def first_state(machine: AnyMachine) -> Enum:
    return next(iter(machine.states))


each = pytest.mark.parametrize("machine", MACHINES, ids=lambda machine: machine.title)


def test_all_machines_are_there() -> None:
    assert [machine.title for machine in MACHINES] == list(ENDS)
    firsts = [first_state(machine) for machine in MACHINES]
    assert firsts == [
        ConnectionState.PRE,
        RequestState.FREE,
        SubscriptionState.NONE,
        LeaseState.NONE,
        OperationState.NONE,
        AuthorityState.STOPPED,
    ]


@each
def test_every_pair_has_its_step(machine: AnyMachine) -> None:
    rows = list(machine)
    assert len(rows) == len({(state, event) for state, event, _ in rows}) == len(machine.states) * len(machine.events)
    for state, event, step in rows:
        assert machine.step(state, event) is step
        assert step.next in machine.states


@each
@pytest.mark.req("P13-02", "P13-03")
def test_every_refusal_names_a_code_and_a_safe_text(machine: AnyMachine) -> None:
    for state, event, step in machine:
        if step.error is None:
            assert machine.after(state, event) is step.next
            continue
        assert step.error in ERRORS
        with pytest.raises(ProtocolError) as caught:
            machine.after(state, event)
        assert caught.value.code is step.error
        assert caught.value.message == step.reply
        with pytest.raises(ProtocolError, match="more"):
            machine.after(state, event, detail="more")


@each
def test_every_state_is_reached_from_the_first_one(machine: AnyMachine) -> None:
    first = first_state(machine)
    reached, due = {first}, [first]
    while due:
        state = due.pop()
        for event in machine.events:
            found = machine.step(state, event).next
            if found not in reached:
                reached.add(found)
                due.append(found)
    assert reached == set(machine.states)


@each
def test_what_has_ended_stays_so_and_everything_else_can_be_left(machine: AnyMachine) -> None:
    ends = {state for state in machine.states if all(machine.step(state, e).next is state for e in machine.events)}
    assert ends == ENDS[machine.title]


@each
def test_every_event_means_something_somewhere(machine: AnyMachine) -> None:
    for event in machine.events:
        steps = [(state, machine.step(state, event)) for state in machine.states]
        assert any(step.error or step.reply or step.next is not state for state, step in steps), event


class Lamp(Enum):
    OFF = "OFF"
    ON = "ON"


class Hand(Enum):
    PRESS = "press"


def test_a_table_with_a_hole_is_no_machine() -> None:
    with pytest.raises(ValueError, match="Lamp: no step for ON x PRESS"):
        Machine("Lamp", Lamp, Hand, {(Lamp.OFF, Hand.PRESS): Step(Lamp.ON)})
    with pytest.raises(ValueError, match="zip"):
        by_rows(Lamp, {Hand.PRESS: (Cell(Lamp.ON),)})


def test_a_row_stands_for_the_state_that_it_is_in() -> None:
    refused: Cell[Lamp] = Cell(None, "stuck", ErrorCode.PROTOCOL_ERROR)
    machine = Machine("Lamp", Lamp, Hand, by_rows(Lamp, {Hand.PRESS: (Cell(Lamp.ON, "light"), refused)}))
    assert machine.after(Lamp.OFF, Hand.PRESS) is Lamp.ON
    assert machine.step(Lamp.ON, Hand.PRESS) == Step(Lamp.ON, "stuck", ErrorCode.PROTOCOL_ERROR)
    with pytest.raises(ProtocolViolation, match="stuck"):
        machine.after(Lamp.ON, Hand.PRESS)


def test_every_stored_result_has_its_state_and_every_own_move_its_event() -> None:
    assert set(STATES) == set(OperationTag) - {OperationTag.UNKNOWN}
    assert {tag.name for tag in STATES} == {state.name for state in STATES.values()}
    assert set(MOVES) == set(STATES.values()) - {OperationState.PENDING}
