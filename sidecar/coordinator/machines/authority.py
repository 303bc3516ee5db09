"""The authority of one server process, from the locked store to the fence (P12-16, P12-17, P12-20, P12-21)."""

from __future__ import annotations

from enum import Enum
from typing import Final

from sidecar.coordinator.machines.machine import Cell, Machine, by_rows
from sidecar.coordinator.wire.enums import ErrorCode


class AuthorityState(Enum):
    """How far this process is the writer."""

    STOPPED = "STOPPED"
    """It is not, and nothing is bound."""
    PROPOSING = "PROPOSING"
    """It has the store and asks the witness."""
    INSTALLED = "INSTALLED"
    """The activation is durable."""
    RECOVERED = "RECOVERED"
    """The state is loaded too."""
    BOUND = "BOUND"
    """Clients can connect."""
    FENCED = "FENCED"
    """It was, and never will be again."""


class AuthorityEvent(Enum):
    """What can happen to it."""

    OPENED = "store locked and checked, incarnation minted"
    REFUSED = "witness refuses or is down, certificate not valid"
    INSTALL = "certificate verified, activation durable"
    RECOVER = "state and operations recovered"
    BIND = "endpoint open"
    RENEWED = "certificate renewed"
    LOST = "renewal refused, certificate expired, lock lost, counter at its end"
    FAILED = "a failure on the way up"
    STOP = "clean stop"


_S = AuthorityState
_SAME: Cell[AuthorityState] = Cell()
_ORDER = Cell(None, "out of order: refused, nothing is done", ErrorCode.INTERNAL)
_LATE: Cell[AuthorityState] = Cell(reply="too late: nothing is held any more")
_UP = Cell(_S.STOPPED, "the token goes back, exit ≠ 0, nothing bound")
_DOWN = Cell(_S.STOPPED, "the token goes back")
_FENCED = Cell(_S.FENCED, "no commit; AUTHORITY_FENCED to all, all closed")
_OVER: Cell[AuthorityState] = Cell(reply="only a new process activates")

_ROWS: dict[AuthorityEvent, tuple[Cell[AuthorityState], ...]] = {
    # STOPPED, PROPOSING, INSTALLED, RECOVERED, BOUND, FENCED
    AuthorityEvent.OPENED: (Cell(_S.PROPOSING), _ORDER, _ORDER, _ORDER, _ORDER, _OVER),
    AuthorityEvent.REFUSED: (_SAME, Cell(_S.STOPPED, "exit ≠ 0, nothing bound"), _ORDER, _ORDER, _ORDER, _OVER),
    AuthorityEvent.INSTALL: (_ORDER, Cell(_S.INSTALLED), _ORDER, _ORDER, _ORDER, _OVER),
    AuthorityEvent.RECOVER: (_ORDER, _ORDER, Cell(_S.RECOVERED), _ORDER, _ORDER, _OVER),
    AuthorityEvent.BIND: (_ORDER, _ORDER, _ORDER, Cell(_S.BOUND), _ORDER, _OVER),
    AuthorityEvent.RENEWED: (_LATE, _ORDER, _ORDER, _ORDER, Cell(reply="COORD_AUTHORITY_RENEWED to all"), _OVER),
    AuthorityEvent.LOST: (_SAME, _UP, _UP, _UP, _FENCED, _OVER),
    AuthorityEvent.FAILED: (_SAME, _UP, _UP, _UP, _FENCED, _OVER),
    AuthorityEvent.STOP: (_SAME, _DOWN, _DOWN, _DOWN, _DOWN, _OVER),
}

AUTHORITY: Final = Machine("Authority", AuthorityState, AuthorityEvent, by_rows(AuthorityState, _ROWS))
"""What an activation asks before each of its steps."""
