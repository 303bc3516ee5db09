"""A subscription: where it stands and what each event means to it (P10-01, spec: Subscription)."""

from __future__ import annotations

from enum import Enum

from sidecar.coordinator.machines.machine import Cell, Machine, Step, by_rows
from sidecar.coordinator.wire.enums import ErrorCode


class SubscriptionState(Enum):
    """What an id is to its connection."""

    NONE = "NONE"
    """Never issued here."""
    RESERVED_SNAPSHOT = "RESERVED_SNAPSHOT"
    """Made with a snapshot that is not applied yet."""
    LIVE = "LIVE"
    PAUSED_GAP = "PAUSED_GAP"
    """Lost continuity and said so."""
    REPLAYING = "REPLAYING"
    """Heals by a replay that is not applied yet."""
    CLOSED = "CLOSED"
    """Late frames of a peer may still name it (OPEN P10-b)."""


class SubscriptionEvent(Enum):
    """What can happen to it."""

    SUBSCRIBE = "SUBSCRIBE is accepted"
    RESERVE = "OPEN_SNAPSHOT(reserve) is accepted"
    EVENT = "a visible event becomes durable"
    CREDIT = "CREDIT within the maxima"
    CREDIT_ABOVE = "CREDIT above the maxima"
    SNAPSHOT_APPLIED = "SNAPSHOT_APPLIED of its ended snapshot"
    SNAPSHOT_EXPIRED = "the lease of its snapshot expires"
    QUEUE_FULL = "its unsent queue is full"
    EVENTS_LOST = "an event that it waits for leaves the log"
    EVENT_TOO_LARGE = "an event exceeds the peer's selected limits"
    REPLACE = "OPEN_SNAPSHOT(replace = it) is accepted"
    OPEN_REPLAY = "OPEN_REPLAY, cut equal, retained"
    OPEN_REPLAY_ELSEWHERE = "OPEN_REPLAY, cut differs"
    OPEN_REPLAY_LOST = "OPEN_REPLAY, cut equal, not retained"
    REPLAY_APPLIED = "REPLAY_APPLIED of its ended replay"
    REPLAY_EXPIRED = "the lease of its replay expires"
    AUTHORITY_LOST = "the authority or the grant is lost"
    DISCONNECT = "the connection ends"


_S = SubscriptionState
_SAME: Cell[SubscriptionState] = Cell()
_NEVER: Cell[SubscriptionState] = Cell(reply="does not occur")
_GAP = "GAP({}), queue and credit dropped"
_OTHER: Cell[SubscriptionState] = Cell(reply="another subscription is made")
_UNKNOWN = Cell(None, "no such subscription of this connection", ErrorCode.NOT_FOUND)
_NOT_PAUSED = Cell(None, "the subscription is not paused", ErrorCode.CURSOR_INVALID)
_NOT_REPLACED = Cell(None, "no paused subscription of this connection has that id", ErrorCode.NOT_FOUND)
_NO_REPLAY = Cell(None, "no such replay", ErrorCode.CURSOR_INVALID)
_LOST = Cell(None, "the reserved subscription lost continuity", ErrorCode.CURSOR_INVALID)
_NOT_ISSUED = Cell(None, "credit for a subscription that was never issued", ErrorCode.PROTOCOL_ERROR)
_NOT_LIVE = Cell(_S.CLOSED, "credit is legal only while the subscription is live", ErrorCode.PROTOCOL_ERROR)
_ABOVE = Cell(_S.CLOSED, "credit above the selected maximum", ErrorCode.PROTOCOL_ERROR)
_RACE = Cell(reply="ignored")
_QUEUED = Cell(reply="queued")
_FULL = Cell(_S.PAUSED_GAP, _GAP.format("QUEUE_OVERFLOW"))
_GONE = Cell(_S.PAUSED_GAP, _GAP.format("RETENTION"))
_ENDED = Cell(_S.CLOSED, "GAP(EPOCH_CHANGED or GRANT_REVOKED), the connection closes")
_CLOSED = Cell(_S.CLOSED)

_ROWS: dict[SubscriptionEvent, tuple[Cell[SubscriptionState], ...]] = {
    # NONE, RESERVED_SNAPSHOT, LIVE, PAUSED_GAP, REPLAYING, CLOSED
    SubscriptionEvent.SUBSCRIBE: (Cell(_S.LIVE, "SUBSCRIBED"), _OTHER, _OTHER, _OTHER, _OTHER, _OTHER),
    SubscriptionEvent.RESERVE: (Cell(_S.RESERVED_SNAPSHOT, "SNAPSHOT_BEGIN"), *[_OTHER] * 5),
    SubscriptionEvent.EVENT: (
        _SAME,
        _QUEUED,
        Cell(reply="COORD_EVENT and debit, or queued while the credit is short"),
        _SAME,
        _QUEUED,
        _SAME,
    ),
    SubscriptionEvent.CREDIT: (_NOT_ISSUED, _NOT_LIVE, Cell(reply="queued events go out"), _RACE, _NOT_LIVE, _RACE),
    SubscriptionEvent.CREDIT_ABOVE: (_NOT_ISSUED, _NOT_LIVE, _ABOVE, _RACE, _NOT_LIVE, _RACE),
    SubscriptionEvent.SNAPSHOT_APPLIED: (
        _NEVER,
        Cell(_S.LIVE, "ACK, then events"),
        _LOST,
        _LOST,
        _LOST,
        _LOST,
    ),
    SubscriptionEvent.SNAPSHOT_EXPIRED: (
        _NEVER,
        Cell(_S.PAUSED_GAP, _GAP.format("CURSOR_INVALID")),
        _SAME,
        _SAME,
        _SAME,
        _SAME,
    ),
    SubscriptionEvent.QUEUE_FULL: (_SAME, _FULL, _FULL, _SAME, _FULL, _SAME),
    SubscriptionEvent.EVENTS_LOST: (_SAME, _GONE, _GONE, _SAME, _GONE, _SAME),
    SubscriptionEvent.EVENT_TOO_LARGE: (
        _SAME,
        _SAME,
        Cell(_S.PAUSED_GAP, _GAP.format("INTERNAL")),
        _SAME,
        _SAME,
        _SAME,
    ),
    SubscriptionEvent.REPLACE: (
        _NOT_REPLACED,
        _NOT_REPLACED,
        _NOT_REPLACED,
        Cell(_S.CLOSED, "SNAPSHOT_BEGIN of the new one"),
        _NOT_REPLACED,
        _NOT_REPLACED,
    ),
    SubscriptionEvent.OPEN_REPLAY: (
        _UNKNOWN,
        _NOT_PAUSED,
        _NOT_PAUSED,
        Cell(_S.REPLAYING, "REPLAY_BEGIN"),
        _NOT_PAUSED,
        _UNKNOWN,
    ),
    SubscriptionEvent.OPEN_REPLAY_ELSEWHERE: (
        _UNKNOWN,
        _NOT_PAUSED,
        _NOT_PAUSED,
        Cell(_S.CLOSED, "a replay starts at the last contiguous event", ErrorCode.MALFORMED_MESSAGE),
        _NOT_PAUSED,
        _UNKNOWN,
    ),
    SubscriptionEvent.OPEN_REPLAY_LOST: (
        _UNKNOWN,
        _NOT_PAUSED,
        _NOT_PAUSED,
        Cell(None, "GAP(RETENTION): the events are not retained", ErrorCode.CURSOR_INVALID),
        _NOT_PAUSED,
        _UNKNOWN,
    ),
    SubscriptionEvent.REPLAY_APPLIED: (
        _NO_REPLAY,
        _NO_REPLAY,
        _NO_REPLAY,
        _NO_REPLAY,
        Cell(_S.LIVE, "ACK, then events; the next delivery is DeliveryCut + 1"),
        _NO_REPLAY,
    ),
    SubscriptionEvent.REPLAY_EXPIRED: (
        _NEVER,
        _NEVER,
        _NEVER,
        _NEVER,
        Cell(_S.PAUSED_GAP, "queue dropped, nothing is told (OPEN P10-h)"),
        _NEVER,
    ),
    SubscriptionEvent.AUTHORITY_LOST: (_SAME, _ENDED, _ENDED, _CLOSED, _ENDED, _SAME),
    SubscriptionEvent.DISCONNECT: (_SAME, _CLOSED, _CLOSED, _CLOSED, _CLOSED, _SAME),
}

SUBSCRIPTION: Machine[SubscriptionState, SubscriptionEvent] = Machine(
    "Subscription",
    SubscriptionState,
    SubscriptionEvent,
    by_rows(SubscriptionState, _ROWS),
)
"""What the engine asks before it changes a subscription."""

FOLLOWING = tuple(
    state for state in SubscriptionState if SUBSCRIPTION.step(state, SubscriptionEvent.EVENT) != Step(state)
)
"""States in which visible events are kept or sent. A tuple, because the engine asks for each subscription of each batch
and members are found by identity there."""
