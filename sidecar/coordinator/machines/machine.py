"""A state machine as a total table: every pair of state and event has its answer, the illegal ones too.

A machine holds no state. Who owns a state asks ``after`` for the next one and does what the event means; an illegal
event raises the typed error that the table names, and nothing has changed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from typing import Generic, NamedTuple, TypeVar

from sidecar.coordinator.wire.enums import ErrorCode
from sidecar.coordinator.wire.errors import ERRORS

S = TypeVar("S", bound=Enum)
E = TypeVar("E", bound=Enum)


class Step(NamedTuple, Generic[S]):
    """The answer to one event in one state."""

    next: S
    reply: str = ""
    """What goes out, for people; empty when nothing does."""
    error: ErrorCode | None = None
    """The code with which the event is refused."""


class Cell(NamedTuple, Generic[S]):
    """A step in a table of rows: its next state is the one it stands in when ``next`` is ``None``."""

    next: S | None = None
    reply: str = ""
    error: ErrorCode | None = None


def by_rows(states: type[S], rows: Mapping[E, Sequence[Cell[S]]]) -> dict[tuple[S, E], Step[S]]:
    """The steps of a table with one row of cells for each event, one cell for each state in its order."""
    return {
        (state, event): Step(state if cell.next is None else cell.next, cell.reply, cell.error)
        for event, row in rows.items()
        for state, cell in zip(states, row, strict=True)
    }


class Machine(Generic[S, E]):
    """States, events and the step of every pair; ``ValueError`` when a pair has none."""

    def __init__(self, title: str, states: type[S], events: type[E], steps: Mapping[tuple[S, E], Step[S]]) -> None:
        missing = [
            f"{state.name} x {event.name}" for state in states for event in events if (state, event) not in steps
        ]
        if missing:
            raise ValueError(f"{title}: no step for {', '.join(missing)}")
        self.title = title
        self.states = states
        self.events = events
        self._steps = dict(steps)

    def __iter__(self) -> Iterator[tuple[S, E, Step[S]]]:
        """Every pair with its step, states and events in the order of their definition."""
        for state in self.states:
            for event in self.events:
                yield state, event, self._steps[state, event]

    def step(self, state: S, event: E) -> Step[S]:
        """The step of a pair."""
        return self._steps[state, event]

    def after(self, state: S, event: E, *, detail: str = "") -> S:
        """The next state; a refused event raises the typed error of its code, with ``detail``."""
        step = self._steps[state, event]
        if step.error is not None:
            raise ERRORS[step.error](detail or step.reply)
        return step.next
