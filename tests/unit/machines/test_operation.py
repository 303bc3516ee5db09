"""Operation ids against a real engine: every state with every event. Rows that no command makes yet are seeded."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from sidecar.coordinator.engine.commands import record_of
from sidecar.coordinator.engine.handlers import COMMANDS
from sidecar.coordinator.engine.state import Operation, State
from sidecar.coordinator.machines.operation import MOVES, OPERATION, STATES, OperationEvent, OperationState
from sidecar.coordinator.wire import frames as fr
from sidecar.coordinator.wire.enums import (
    CommandKind,
    ErrorCode,
    EventKind,
    IndeterminateReason,
    ObjectKind,
    OperationTag,
    ResultKind,
    Scope,
)
from sidecar.coordinator.wire.errors import InternalError
from sidecar.coordinator.wire.ids import AuthorityEpoch, EventSequence, KeyId
from sidecar.coordinator.wire.limits import RETENTION_FLOOR
from sidecar.coordinator.wire.payloads import OperationRecord
from sidecar.coordinator.wire.records import OperationResult, Tombstoned, Unknown, decode_operation, encode_operation
from sidecar.coordinator.wire.results import Indeterminate, Pending, Rejected, Succeeded
from tests.unit.engine.harness import Client, World, id16, objective

E, S = OperationEvent, OperationState
ID = id16(77)
SEQUENCE = EventSequence(2)


def result_in(state: OperationState, digest: bytes) -> OperationResult:
    """A stored result of each state."""
    results: dict[OperationState, OperationResult] = {
        S.PENDING: Pending(AuthorityEpoch(5), SEQUENCE),
        S.SUCCEEDED: Succeeded(SEQUENCE, ResultKind.NONE, b""),
        S.REJECTED: Rejected(SEQUENCE, ErrorCode.NOT_FOUND, "gone"),
        S.INDETERMINATE: Indeterminate(IndeterminateReason.TARGET_DEDUPE_UNAVAILABLE, None),
        S.TOMBSTONED: Tombstoned(digest, OperationTag.SUCCEEDED),
    }
    return results[state]


class Place:
    """A world in which one operation id stands in one state, as far as its principal can make out."""

    def __init__(self, state: OperationState, *, used: bool = True) -> None:
        made = World()
        maker = made.connect()
        maker.done(maker.create(1, operation=ID))
        (row,) = made.disk.operations.values()
        if state is S.NONE:
            self.world = World()
        else:
            held = made.disk
            seeded = State.build(held.records.values(), [self._row(row, state, used)], held.events, held.last_sequence)
            self.world = World(state=seeded)
        self.seeded = self.stored
        self.client = self.world.connect()
        self.observer = self.world.connect(9, scopes=Scope.ADMIN)
        self.stream = self.observer.live(self.world.disk.last_sequence)

    @staticmethod
    def _row(row: Operation, state: OperationState, used: bool) -> Operation:
        result = result_in(state, row.digest)
        payload = OperationRecord(principal_key_id=KeyId(row.principal), result=result)
        return row._replace(
            image=record_of(ObjectKind.OPERATION, row.id, row.revision, payload).image,
            result=encode_operation(result),
            completed_at=0 if state is S.PENDING else row.completed_at,
            created=row.created if used else b"",
        )

    @property
    def stored(self) -> Operation | None:
        return self.world.engine._transactions.head.operation(ID)

    @property
    def state(self) -> OperationState:
        stored = self.stored
        return S.NONE if stored is None else STATES[stored.tag]

    def answers(self, frame: fr.Frame, client: Client | None = None) -> list[object]:
        """What comes back: results as values, errors as codes."""
        found: list[object] = []
        for answer in (client or self.client).ask(frame):
            if isinstance(answer, fr.CoordErrorFrame):
                found.append(answer.code)
            else:
                assert isinstance(answer, fr.CoordCommandResult | fr.OperationResultFrame)
                found.append(answer.operation)
        return found

    def told(self) -> list[EventKind]:
        """Kinds of the events of the operation itself."""
        self.observer.pull()
        return [event.event_kind for event in self.observer.events() if event.object.id == ID]


def same_command(place: Place, client: Client | None = None) -> list[object]:
    sender = client or place.client
    return place.answers(sender.create(1, operation=ID), sender)


def failing(place: Place) -> list[object]:
    return place.answers(place.client.create(1, operation=ID, preconditions=[objective(1, 99)]))


def hidden_repeat(place: Place) -> list[object]:
    return same_command(place, place.world.connect(scopes=Scope.ARTIFACT_READ))


def other_digest(place: Place) -> list[object]:
    return place.answers(place.client.create(1, b"other", operation=ID))


def lookup_by(principal: int, scopes: int) -> Callable[[Place], list[object]]:
    def look(place: Place) -> list[object]:
        client = place.world.connect(principal, scopes=scopes)
        return place.answers(client.lookup(ID), client)

    return look


def aged(place: Place) -> list[object]:
    place.world.advance(RETENTION_FLOOR + place.world.policy.tombstone_seconds)
    place.world.commit()
    return []


COMMANDED: dict[OperationEvent, Callable[[Place], list[object]]] = {
    E.REFUSED: failing,
    E.ADMITTED: same_command,
    E.REPEAT: same_command,
    E.REPEAT_HIDDEN: hidden_repeat,
    E.CONFLICT: other_digest,
    E.LOOKUP: lookup_by(1, Scope.WORK_READ),
    E.LOOKUP_HIDDEN: lookup_by(2, Scope.WORK_READ),
    E.LOOKUP_DENIED: lookup_by(1, Scope.ARTIFACT_READ),
    E.AGED: aged,
    E.AGED_UNUSED: aged,
}


def expected(place: Place, event: OperationEvent, reply: str, error: ErrorCode | None) -> list[object]:
    """The answer that a cell of the table stands for."""
    stored = place.seeded
    if error is not None:
        return [error]
    if event in (E.AGED, E.AGED_UNUSED):
        return []
    if reply == "UNKNOWN":
        return [Unknown()]
    if reply == "it is a repeat or a conflict":
        assert stored is not None
        return [decode_operation(stored.result) if event is E.ADMITTED else ErrorCode.OPERATION_CONFLICT]
    if reply == "the error of the check":
        return [ErrorCode.REVISION_CONFLICT]
    assert stored is not None
    assert reply == "the stored result"
    return [decode_operation(stored.result)]


@pytest.mark.req("P8-12", "P8-13", "P8-14", "P8-15", "P8-16", "P8-40", "P8-41", "P8-42", "P6-18", "P13-06")
@pytest.mark.parametrize("event", COMMANDED)
@pytest.mark.parametrize("state", S)
def test_every_event_in_every_state(state: OperationState, event: OperationEvent) -> None:
    step = OPERATION.step(state, event)
    place = Place(state, used=event is not E.AGED_UNUSED)
    assert place.state is state
    answers = COMMANDED[event](place)
    if step.reply == "it is a first command":
        first = OPERATION.step(S.NONE, E.ADMITTED)
        assert state is S.NONE
        assert place.state is (S.NONE if event is E.REPEAT_HIDDEN else first.next)
        return
    if event is E.ADMITTED and state is S.NONE:
        (result,) = answers
        assert place.stored is not None
        assert result == decode_operation(place.stored.result)
    else:
        assert answers == expected(place, event, step.reply, step.error)
    assert place.state is step.next
    assert place.told() == [EventKind.OPERATION_CHANGED] * ("OPERATION_CHANGED" in step.reply)
    if step.next is state:
        assert place.stored == place.seeded


@pytest.mark.req("P8-41", "P8-42", "P8-40")
@pytest.mark.parametrize("target", STATES.values())
@pytest.mark.parametrize("state", STATES.values())
def test_a_stored_operation_makes_the_moves_of_the_table_and_no_other(
    state: OperationState, target: OperationState
) -> None:
    """What recovery and targets will report, through the one way in which a stored operation moves by itself."""
    place = Place(state)
    assert place.seeded is not None
    result = result_in(target, place.seeded.digest)
    allowed = target in MOVES and OPERATION.step(state, MOVES[target]).next is target and state is not target
    move = place.world.engine._transactions.change_operation
    if allowed:
        move(place.seeded, result)
        place.world.commit()
    else:
        with pytest.raises(InternalError):
            move(place.seeded, result)
        assert place.stored == place.seeded
        assert not place.world.engine._transactions.waiting
    assert place.state is (target if allowed else state)
    assert place.told() == [EventKind.OPERATION_CHANGED] * allowed


@pytest.mark.req("P8-15", "P13-03")
@pytest.mark.parametrize("state", STATES.values())
@pytest.mark.parametrize("frame", ["other principal", "other kind", "unknown kind", "same digest, other principal"])
def test_a_conflict_tells_nothing_of_what_is_stored(state: OperationState, frame: str) -> None:
    place = Place(state)
    other = place.world.connect(2)
    sent = {
        "other principal": (other, other.create(5, b"x", operation=ID)),
        "same digest, other principal": (other, other.create(1, operation=ID)),
        "other kind": (place.client, place.client.update(1, operation=ID)),
        "unknown kind": (place.client, place.client.command(99, b"", operation=ID)),
    }
    sender, request = sent[frame]
    (error,) = sender.ask(request)
    assert isinstance(error, fr.CoordErrorFrame)
    assert (error.code, error.message) == (ErrorCode.OPERATION_CONFLICT, "the operation id is taken")
    assert place.stored == place.seeded


def test_no_command_with_an_effect_is_served_yet() -> None:
    """ADMITTED_EFFECT has no real stimulus as long as this holds; then it needs one above."""
    assert COMMANDS[CommandKind.START_RUN].run is None
    assert set(E) - set(COMMANDED) - set(MOVES.values()) == {E.ADMITTED_EFFECT}
