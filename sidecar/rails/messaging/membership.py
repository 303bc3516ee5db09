"""One member's standing on one channel: the states, what moves them, and what a join is (C7-12..45). Pure.

A join is effective when the broker has taken the subscription; durable, when the membership was written too (C7-35).
What may still be open at the delivery plane after the channel was left is ``owed``: it is closed until that is done
(C7-36), and shown as ``unclosed``.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum, StrEnum
from typing import Final, NamedTuple

from sidecar.rails.names.grants import covers
from sidecar.rails.names.tokens import GRAMMARS


class State(StrEnum):
    """Where a member stands on a channel; the values are metric labels."""

    APART = "apart"
    """Not joined."""
    JOINING = "joining"
    """The broker has not answered the subscription yet: not joined (C7-18)."""
    LIVE = "live"
    """Subscribed; no durable membership, or none that is known to be written (C7-37)."""
    DURABLE = "durable"
    """Subscribed, and the membership is written (C7-35)."""
    LEAVING = "leaving"
    """Not subscribed any more; the membership is being closed."""


class Event(Enum):
    """What happens."""

    JOIN = "the member wants in"
    CONFIRMED = "the broker took the subscription"
    REFUSED = "it did not, or nobody knows"
    ASKED = "a membership is being requested: from here on it may exist"
    WRITTEN = "the membership is written"
    NOT_WRITTEN = "the delivery plane says that there is none"
    DROPPED = "the broker refuses the subscription later, or it ended"
    LEAVE = "the member wants out"
    GONE = "nothing more is tried for now to close the membership"
    CLOSED = "there is no open membership"


class Standing(NamedTuple):
    """``owed``: a durable membership may be open at the delivery plane."""

    state: State = State.APART
    owed: bool = False

    @property
    def joined(self) -> bool:
        """Whether posts come in live."""
        return self.state in (State.LIVE, State.DURABLE)

    @property
    def shown(self) -> str:
        """The state for a person, and as a label."""
        return UNCLOSED if self.state is State.APART and self.owed else self.state.value


UNCLOSED: Final = "unclosed"
"""Left or dropped, with a membership that could not be closed yet."""
SHOWN: Final = (*(state.value for state in State), UNCLOSED)

KEEP: Final = None
STEPS: Final[dict[tuple[State, Event], tuple[State, bool | None]]] = {
    # (state, event) -> (state, owed; KEEP leaves it)
    (State.APART, Event.JOIN): (State.JOINING, KEEP),
    (State.APART, Event.LEAVE): (State.LEAVING, True),  # one of an earlier process may be open
    (State.APART, Event.CLOSED): (State.APART, False),
    (State.JOINING, Event.CONFIRMED): (State.LIVE, KEEP),
    (State.JOINING, Event.REFUSED): (State.APART, KEEP),
    (State.LIVE, Event.ASKED): (State.LIVE, True),
    (State.LIVE, Event.WRITTEN): (State.DURABLE, True),
    (State.LIVE, Event.NOT_WRITTEN): (State.LIVE, False),
    (State.LIVE, Event.DROPPED): (State.APART, KEEP),
    (State.LIVE, Event.LEAVE): (State.LEAVING, KEEP),
    (State.DURABLE, Event.ASKED): (State.DURABLE, True),
    (State.DURABLE, Event.WRITTEN): (State.DURABLE, True),
    (State.DURABLE, Event.NOT_WRITTEN): (State.LIVE, False),
    (State.DURABLE, Event.DROPPED): (State.APART, True),
    (State.DURABLE, Event.LEAVE): (State.LEAVING, True),
    (State.LEAVING, Event.CLOSED): (State.APART, False),
    (State.LEAVING, Event.GONE): (State.APART, True),  # nobody knows that there is none
}


class NotPossible(Exception):  # noqa: N818 - a state
    """The event cannot happen to a member that stands like this: it has joined already, or a change is under way."""

    def __init__(self, standing: Standing, event: Event) -> None:
        super().__init__(f"the channel is {standing.shown}: {event.value}")
        self.standing = standing


def after(standing: Standing, event: Event) -> Standing:
    """The next standing. Raises NotPossible."""
    step = STEPS.get((standing.state, event))
    if step is None:
        raise NotPossible(standing, event)
    return Standing(step[0], standing.owed if step[1] is KEEP else step[1])


# ---- what a membership may name ----

DURABLE_CLASS: Final = "durable"
LIVE_ONLY: Final = "live only: a pattern with '*', and '>' alone, take no durable membership"
UNAVAILABLE: Final = "durable backstop unavailable"


class Scope(StrEnum):
    """What a channel that is joined names."""

    CONCRETE = "concrete"
    FAMILY = "family"
    PATTERN = "pattern"


def scope_of(channel: str) -> Scope:
    """One channel, everything below one (C7-38), or another pattern (C7-44)."""
    if GRAMMARS["channel"].accepts(channel):
        return Scope.CONCRETE
    return Scope.FAMILY if GRAMMARS["family"].accepts(channel) else Scope.PATTERN


def wants_membership(channel: str, delivery_class: str) -> bool:
    """Whether a join asks for a durable membership: on a durable channel, and for any family (C7-16, OPEN C7-e).

    ``delivery_class`` is that of the channel; it does not matter for a pattern.
    """
    scope = scope_of(channel)
    return scope is Scope.FAMILY or (scope is Scope.CONCRETE and delivery_class == DURABLE_CLASS)


def within(pattern: str, channels: Iterable[str]) -> list[str]:
    """The concrete channels that a pattern matches (C7-45)."""
    return [channel for channel in channels if covers(pattern, channel)]


class Join(NamedTuple):
    """How a join ended. ``durable``: the membership is written too. ``shortfall`` says what there is not (C7-37)."""

    channel: str
    state: State
    shortfall: str | None = None

    @property
    def durable(self) -> bool:
        return self.state is State.DURABLE


# ---- where to read again from ----

MARK_SECONDS: Final = 30.0
MARK_MESSAGES: Final = 2_048
"""Live messages, or seconds with at least one, after which the frontier is marked anew: what an interruption makes a
member read again stays far below what it remembers having shown."""


class Marks:
    """Up to where one channel is known to have come in, in sequences of CHAT.

    Live messages carry no sequence. A frontier that was read while the subscription stood is taken as passed only when
    the next one is read: what was stored before the first has long come in by then.
    """

    __slots__ = ("_latest", "_safe", "end", "gap", "watermark")

    def __init__(self) -> None:
        self.watermark: int | None = None
        """The frontier of the join."""
        self._safe: int | None = None
        self._latest: int | None = None
        self.gap: int | None = None
        """Everything behind this sequence is to be read again; None: nothing is missing."""
        self.end: int | None = None
        """Up to where that is, where it is known: everything later came live."""

    @property
    def known(self) -> bool:
        """Whether any frontier was read yet."""
        return self._safe is not None

    def begin(self, watermark: int) -> None:
        """The frontier before the subscription was there."""
        self.watermark = self._safe = self._latest = watermark

    def mark(self, frontier: int) -> None:
        """A frontier that was read with the subscription in place, before and after."""
        if self.gap is None and self._latest is not None:
            # A stream that ends before the last mark is another one, with sequences of its own.
            self._safe = self._latest if frontier >= self._latest else frontier
            self._latest = frontier

    def interrupted(self) -> None:
        """Something may have been missed since the last mark that is safe, and nobody knows yet up to where."""
        self.end = None
        if self.gap is None:
            self.gap = self._safe

    def ends(self, frontier: int) -> None:
        """A frontier that was read with the subscription in place: what is missing ends there."""
        if self.gap is not None and frontier == self.gap:
            self.read_up_to(frontier)
        else:
            self.end = frontier

    def read_up_to(self, frontier: int) -> None:
        """What was missing is read."""
        self.gap = self.end = None
        self._safe = self._latest = frontier
