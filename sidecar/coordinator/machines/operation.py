"""An operation id of the authority, from its first command until it is forgotten (P8-12..15, P8-40..42)."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Final

from sidecar.coordinator.machines.machine import Cell, Machine, by_rows
from sidecar.coordinator.wire.enums import ErrorCode, OperationTag


class OperationState(Enum):
    """What is stored of an operation id."""

    NONE = "NONE"
    """Nothing: never admitted, or forgotten."""
    PENDING = "PENDING"
    SUCCEEDED = "SUCCEEDED"
    REJECTED = "REJECTED"
    INDETERMINATE = "INDETERMINATE"
    TOMBSTONED = "TOMBSTONED"
    """Digest and final state alone."""


class OperationEvent(Enum):
    """What can happen to it."""

    REFUSED = "a command that fails a check"
    ADMITTED = "a command that passes, without an effect"
    ADMITTED_EFFECT = "a command that passes, with an effect"
    REPEAT = "a command of the same principal and digest"
    REPEAT_HIDDEN = "the same, but its scopes do not show operations any more"
    CONFLICT = "a command of another principal or digest"
    LOOKUP = "a lookup by who may see it"
    LOOKUP_HIDDEN = "a lookup by who may see operations, but not this one"
    LOOKUP_DENIED = "a lookup by who may see no operation"
    TARGET_SUCCEEDED = "the target succeeded"
    TARGET_REJECTED = "the target rejected"
    UNPROVEN = "recovery cannot prove the outcome"
    AGED = "retention passed, something that it made remains"
    AGED_UNUSED = "retention passed, nothing that it made remains"


_S = OperationState
_SAME: Cell[OperationState] = Cell()
_USED: Cell[OperationState] = Cell(reply="it is a repeat or a conflict")
_FIRST: Cell[OperationState] = Cell(reply="it is a first command")
_STORED: Cell[OperationState] = Cell(reply="the stored result")
_UNKNOWN: Cell[OperationState] = Cell(reply="UNKNOWN")
_TAKEN = Cell(None, "the operation id is taken", ErrorCode.OPERATION_CONFLICT)
_HIDDEN = Cell(None, "no such operation", ErrorCode.NOT_FOUND)
_SETTLED = Cell(None, "the operation is not pending", ErrorCode.INTERNAL)
_TOMBSTONE = Cell(_S.TOMBSTONED, "OPERATION_CHANGED")


def _final(state: OperationState) -> tuple[Cell[OperationState], ...]:
    return (_SETTLED, Cell(state, "OPERATION_CHANGED"), *[_SETTLED] * 4)


_ROWS: dict[OperationEvent, tuple[Cell[OperationState], ...]] = {
    # NONE, PENDING, SUCCEEDED, REJECTED, INDETERMINATE, TOMBSTONED
    OperationEvent.REFUSED: (Cell(reply="the error of the check"), *[_USED] * 5),
    OperationEvent.ADMITTED: (Cell(_S.SUCCEEDED, "the result, OPERATION_CHANGED"), *[_USED] * 5),
    OperationEvent.ADMITTED_EFFECT: (Cell(_S.PENDING, "PENDING, OPERATION_CHANGED"), *[_USED] * 5),
    OperationEvent.REPEAT: (_FIRST, *[_STORED] * 5),
    OperationEvent.REPEAT_HIDDEN: (_FIRST, *[_HIDDEN] * 5),
    OperationEvent.CONFLICT: (_FIRST, *[_TAKEN] * 5),
    OperationEvent.LOOKUP: (_UNKNOWN, *[_STORED] * 5),
    OperationEvent.LOOKUP_HIDDEN: (_UNKNOWN,) * 6,
    OperationEvent.LOOKUP_DENIED: (_HIDDEN,) * 6,
    OperationEvent.TARGET_SUCCEEDED: _final(_S.SUCCEEDED),
    OperationEvent.TARGET_REJECTED: _final(_S.REJECTED),
    OperationEvent.UNPROVEN: _final(_S.INDETERMINATE),
    OperationEvent.AGED: (_SAME, _SAME, *[_TOMBSTONE] * 3, _SAME),
    OperationEvent.AGED_UNUSED: (_SAME, _SAME, *[_TOMBSTONE] * 3, Cell(_S.NONE, "forgotten, no event tells of it")),
}

OPERATION: Final = Machine("Operation", OperationState, OperationEvent, by_rows(OperationState, _ROWS))
"""What the engine asks before it answers for a stored operation or changes it."""

STATES: Final[Mapping[OperationTag, OperationState]] = {
    OperationTag.PENDING: _S.PENDING,
    OperationTag.SUCCEEDED: _S.SUCCEEDED,
    OperationTag.REJECTED: _S.REJECTED,
    OperationTag.INDETERMINATE: _S.INDETERMINATE,
    OperationTag.TOMBSTONED: _S.TOMBSTONED,
}
"""State of a stored result by its union tag; no row ever holds UNKNOWN."""

MOVES: Final[Mapping[OperationState, OperationEvent]] = {
    _S.SUCCEEDED: OperationEvent.TARGET_SUCCEEDED,
    _S.REJECTED: OperationEvent.TARGET_REJECTED,
    _S.INDETERMINATE: OperationEvent.UNPROVEN,
    _S.TOMBSTONED: OperationEvent.AGED,
}
"""The event that makes a stored operation move to a state by itself."""
