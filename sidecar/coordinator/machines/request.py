"""A request id of one connection: free, or occupied until its terminal reply (P7-09, P7-10, P3-33, P13-08)."""

from __future__ import annotations

from enum import Enum
from typing import Final

from sidecar.coordinator.machines.machine import Cell, Machine, by_rows
from sidecar.coordinator.wire.enums import ErrorCode


class RequestState(Enum):
    """What an id is to its connection. 0 is no id: a frame that carries it is malformed."""

    FREE = "FREE"
    OPEN = "OPEN"


class RequestEvent(Enum):
    """What can happen to it."""

    ARRIVED = "a request with this id, quota free"
    REFUSED = "a request with this id, quota full"
    CONTINUED = "a frame of its answer that more follow is written"
    ANSWERED = "its terminal reply or its scoped COORD_ERROR is written"
    DISCONNECT = "the connection ends"


_S = RequestState
_SAME: Cell[RequestState] = Cell()
_NEVER: Cell[RequestState] = Cell(reply="does not occur")
_TAKEN = Cell(_S.FREE, "the request id is outstanding", ErrorCode.MALFORMED_MESSAGE)
_FULL = Cell(_S.FREE, "the quota of requests is used up", ErrorCode.RESOURCE_EXHAUSTED)

_ROWS: dict[RequestEvent, tuple[Cell[RequestState], ...]] = {
    # FREE, OPEN
    RequestEvent.ARRIVED: (Cell(_S.OPEN), _TAKEN),
    RequestEvent.REFUSED: (_FULL, _TAKEN),
    RequestEvent.CONTINUED: (_NEVER, _SAME),
    RequestEvent.ANSWERED: (_NEVER, Cell(_S.FREE)),
    RequestEvent.DISCONNECT: (_SAME, Cell(_S.FREE, "never answered")),
}

REQUEST: Final = Machine("Request id", RequestState, RequestEvent, by_rows(RequestState, _ROWS))
"""What a connection asks before it occupies an id. An outstanding id that comes again is fatal: it ends with all
others."""
