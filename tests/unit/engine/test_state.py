"""The state keeps its counts, and a cut is a reference."""

from __future__ import annotations

import random

import pytest

from sidecar.coordinator.engine.commands import record_of
from sidecar.coordinator.engine.state import EMPTY_STATE, Event, Operation, Record, State
from sidecar.coordinator.wire.enums import ObjectKind, WorkSessionState
from sidecar.coordinator.wire.ids import RunId
from sidecar.coordinator.wire.payloads import WorkSessionRecord


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
    assert list(rebuilt.family(1).sizes.items()) == list(state.family(1).sizes.items())


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


def session(number: int, run: int, revision: int = 1) -> Record:
    payload = WorkSessionRecord(run_id=RunId(run.to_bytes(16, "big")), state=WorkSessionState.ACTIVE)
    return record_of(ObjectKind.WORK_SESSION, number.to_bytes(16, "big"), revision, payload)


def test_the_work_sessions_of_a_run_are_found_also_after_recovery() -> None:
    sessions = [session(1, 7), session(2, 8), session(3, 7), session(1, 7, revision=2)]
    state = EMPTY_STATE
    for made in sessions:
        state = state.put(made)
    state = state.put(record(7)).at(3)
    recovered = State.build(sessions[1:], [], [], 0)
    for found in (state, recovered):
        assert sorted(found.sessions_of((7).to_bytes(16, "big"))) == [sessions[0].id, sessions[2].id]
        assert found.sessions_of((8).to_bytes(16, "big")) == (sessions[1].id,)
        assert found.sessions_of((9).to_bytes(16, "big")) == ()


def test_a_work_session_that_cannot_be_read_is_damage() -> None:
    with pytest.raises(ValueError, match="work session"):
        State.build([record(1, kind=ObjectKind.WORK_SESSION)], [], [], 0)


def test_an_admin_record_can_be_dropped_and_no_other() -> None:
    admin = record(1, kind=ObjectKind.ADMIN)
    state = EMPTY_STATE.put(admin).put(record(2))
    assert state.drop_admin(admin).nbytes == 60
    with pytest.raises(AssertionError):
        state.drop_admin(record(2))
