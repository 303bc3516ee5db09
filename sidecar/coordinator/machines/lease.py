"""The lease of a snapshot or a replay: which page is next and when it is over (P9-05..09, P10-29, spec: Lease)."""

from __future__ import annotations

from enum import Enum

from sidecar.coordinator.machines.machine import Cell, Machine, by_rows
from sidecar.coordinator.wire.enums import ErrorCode


class LeaseState(Enum):
    """What an id is to its connection. A lease that is over is forgotten: its frames are answered as for NONE."""

    NONE = "NONE"
    OPEN_CURSOR = "OPEN_CURSOR"
    """A page can be asked for."""
    PAGE_DUE = "PAGE_DUE"
    """A page was asked for and is not built yet (P9-07)."""
    ENDED = "ENDED"
    """The END was built, nothing is pinned any more."""
    RELEASED = "RELEASED"
    EXPIRED = "EXPIRED"


class LeaseEvent(Enum):
    """What can happen to it."""

    OPEN = "OPEN is accepted"
    OPEN_EMPTY = "OPEN is accepted, nothing to send"
    OPEN_REFUSED = "OPEN, a quota is full"
    NEXT = "NEXT with the current cursor"
    NEXT_OTHER = "NEXT with any other cursor"
    PAGE = "there is room for the page, more follow"
    LAST_PAGE = "there is room for the page, it is the last"
    APPLIED = "APPLIED"
    APPLIED_UNFIT = "APPLIED with another subscription or too much credit"
    EXPIRY = "60 s since BEGIN"
    INVALIDATED = "the replaying subscription lost continuity"
    GUARD_STALE = "a frame after the certificate expired"
    DISCONNECT = "the connection or its grant ends"


_S = LeaseState
_SAME: Cell[LeaseState] = Cell()
_NEVER: Cell[LeaseState] = Cell(reply="does not occur")
_OTHER: Cell[LeaseState] = Cell(reply="another lease is made")
_FULL = Cell(None, "nothing is made", ErrorCode.RESOURCE_EXHAUSTED)
_GONE = Cell(None, "no such snapshot or replay", ErrorCode.CURSOR_INVALID)
_CURSOR = Cell(None, "the cursor is not the next one", ErrorCode.CURSOR_INVALID)
_OPEN = Cell(None, "it has not ended", ErrorCode.CURSOR_INVALID)
_EXPIRED = Cell(_S.EXPIRED, "everything is given back")
_RELEASED = Cell(_S.RELEASED, "everything is given back")
_DUE = "everything is given back; the page that is due is refused"
_STALE = Cell(_S.RELEASED, "the activation certificate is not valid", ErrorCode.STALE_AUTHORITY)

_ROWS: dict[LeaseEvent, tuple[Cell[LeaseState], ...]] = {
    # NONE, OPEN_CURSOR, PAGE_DUE, ENDED, RELEASED, EXPIRED
    LeaseEvent.OPEN: (Cell(_S.OPEN_CURSOR, "BEGIN"), _OTHER, _OTHER, _OTHER, _OTHER, _OTHER),
    LeaseEvent.OPEN_EMPTY: (Cell(_S.ENDED, "BEGIN, END"), _OTHER, _OTHER, _OTHER, _OTHER, _OTHER),
    LeaseEvent.OPEN_REFUSED: (_FULL, _FULL, _FULL, _FULL, _FULL, _FULL),
    LeaseEvent.NEXT: (_GONE, Cell(_S.PAGE_DUE), _CURSOR, _CURSOR, _GONE, _GONE),
    LeaseEvent.NEXT_OTHER: (_GONE, _CURSOR, _CURSOR, _CURSOR, _GONE, _GONE),
    LeaseEvent.PAGE: (
        _NEVER,
        _NEVER,
        Cell(_S.OPEN_CURSOR, "PAGE with the next cursor, the old one is dead"),
        _NEVER,
        _GONE,
        _GONE,
    ),
    LeaseEvent.LAST_PAGE: (
        _NEVER,
        _NEVER,
        Cell(_S.ENDED, "PAGE without a cursor, END; pinned bytes are given back"),
        _NEVER,
        _GONE,
        _GONE,
    ),
    LeaseEvent.APPLIED: (_GONE, _OPEN, _OPEN, Cell(_S.RELEASED, "ACK"), _GONE, _GONE),
    LeaseEvent.APPLIED_UNFIT: (
        _GONE,
        _OPEN,
        _OPEN,
        Cell(_S.RELEASED, "it does not fit its lease", ErrorCode.MALFORMED_MESSAGE),
        _GONE,
        _GONE,
    ),
    LeaseEvent.EXPIRY: (_SAME, _EXPIRED, _EXPIRED._replace(reply=_DUE), _EXPIRED, _SAME, _SAME),
    LeaseEvent.INVALIDATED: (_SAME, _RELEASED, _RELEASED._replace(reply=_DUE), _RELEASED, _SAME, _SAME),
    LeaseEvent.GUARD_STALE: (Cell(None, _STALE.reply, _STALE.error), *[_STALE] * 3, *[_STALE._replace(next=None)] * 2),
    LeaseEvent.DISCONNECT: (_SAME, _RELEASED, _RELEASED, _RELEASED, _SAME, _SAME),
}

LEASE: Machine[LeaseState, LeaseEvent] = Machine(
    "Snapshot and replay lease",
    LeaseState,
    LeaseEvent,
    by_rows(LeaseState, _ROWS),
)
"""What the engine asks before it changes a lease."""
