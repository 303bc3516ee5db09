"""The state keeps its counts, and a cut is a reference."""

from __future__ import annotations

import random

import pytest

from sidecar.coordinator.engine.state import EMPTY_STATE, Event, Operation, Record, State
from sidecar.coordinator.wire.enums import ObjectKind


def record(number: int, size: int = 60, kind: int = ObjectKind.OBJECTIVE, revision: int = 1) -> Record:
    return Record(kind, number.to_bytes(16, "big"), revision, bytes(size))


def operation(number: int, principal: bytes = b"p" * 32, size: int = 70) -> Operation:
    return Operation(number.to_bytes(16, "big"), 1, bytes(size), principal, b"d" * 32, 1, b"\x05", 0, 0, b"")


def event(sequence: int) -> Event:
    return Event(sequence, bytes(15) + b"\x01", 1, 1, bytes(16), 1, 1, b"", b"")


def test_counts_bytes_and_largest_follow_every_change() -> None:
    rng = random.Random(5)
    state = EMPTY_STATE
    model: dict[int, int] = {}
    for _ in range(600):
        number, size = rng.randrange(40), rng.randrange(33, 50)
        model[number] = size
        state = state.put(record(number, size))
        family = state.family(ObjectKind.OBJECTIVE)
        assert (family.records, family.nbytes, family.largest) == (len(model), sum(model.values()), max(model.values()))
    rebuilt = State.build([record(*pair) for pair in model.items()], [], [], 0)
    assert list(rebuilt.family(1).entries.items()) == list(state.family(1).entries.items())
    assert rebuilt.family(1).sizes == state.family(1).sizes


def test_operations_stand_in_their_family_and_under_their_principal() -> None:
    state = EMPTY_STATE.put(operation(1)).put(operation(2, b"q" * 32)).put(operation(3))
    assert state.family(ObjectKind.OPERATION).records == 3
    assert [id_[-1] for id_, _ in state.own_operations(b"p" * 32).entries.items()] == [1, 3]
    found = state.operation((2).to_bytes(16, "big"))
    assert found is not None
    dropped = state.drop_operation(found)
    assert dropped.operation(found.id) is None
    assert b"q" * 32 not in dropped.own
    assert state.operation(found.id) is found
    assert dropped.nbytes == 140
    rebuilt = State.build([], [operation(1), operation(3)], [], 0)
    assert rebuilt.family(7).nbytes == rebuilt.own_operations(b"p" * 32).nbytes == 140


def test_recovered_events_run_without_a_hole_up_to_the_cut() -> None:
    assert State.build([], [], [event(4), event(5)], 5).tail == (event(4), event(5))
    for broken in ([event(4)], [event(3), event(5)], [event(5), event(4)]):
        with pytest.raises(ValueError, match="hole"):
            State.build([], [], broken, 5)


def test_an_old_version_is_not_touched() -> None:
    before = EMPTY_STATE.put(record(1))
    after = before.put(record(1, 61, revision=2)).put(record(2)).at(9)
    assert before.get(1, (1).to_bytes(16, "big")) == record(1)
    assert before.last_sequence == 0
    assert before.nbytes == 60
    assert after.nbytes == 121
