"""One connection of the server (`## State machines`; rows W3, P5-01, P5-02, P7-02..04, P13-05, P12-17, W8-07..10).

A frame is an event twice over: its type decides whether it may come at all, before a byte of its body is reserved, and
what is found in it decides what follows. ``OUTCOMES`` names the events that a frame of each class can turn out to be.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Final

from sidecar.coordinator.machines.machine import Machine, Step
from sidecar.coordinator.wire.enums import ErrorCode, FrameType, GapReason
from sidecar.coordinator.wire.limits import CHALLENGE_SECONDS, HELLO_SECONDS
from sidecar.coordinator.wire.table import FRAME_TABLE, TYPES


class ConnectionState(Enum):
    """Where a connection stands."""

    PRE = "PRE"
    """Before a complete COORD_HELLO."""
    CHAL = "CHAL"
    """Challenge sent, its one response awaited."""
    ACT = "ACT"
    """Authenticated."""
    CLOSED = "CLOSED"
    """Nothing more is read; the output that is left is the last."""


class ConnectionEvent(Enum):
    """What happens to a connection: a frame as it was found to be, or something from outside."""

    HELLO = "COORD_HELLO, acceptable"
    HELLO_VERSION = "COORD_HELLO, major.minor is another"
    HELLO_MALFORMED = "COORD_HELLO, malformed or with offers that cannot work"
    HELLO_PROFILE = "COORD_HELLO, no offer of this profile"
    HELLO_CAPABILITY = "COORD_HELLO, a required capability is not there"
    RESPONSE = "WORKLOAD_RESPONSE, all checks hold"
    RESPONSE_MALFORMED = "WORKLOAD_RESPONSE, malformed or with a bad scope image"
    RESPONSE_FAILED = "WORKLOAD_RESPONSE, a check fails"
    RESPONSE_QUOTA = "WORKLOAD_RESPONSE, all checks hold, connection quota full"
    WORK = "request or CREDIT, served or refused in its scope"
    WORK_STALE = "request or CREDIT, guard bad or certificate expired"
    WORK_MALFORMED = "request or CREDIT, malformed"
    WORK_TOO_LARGE = "request, payload above the selected cap"
    WORK_VIOLATION = "request or CREDIT, legal image at an illegal time"
    PING = "COORD_PING"
    PONG = "COORD_PONG"
    LIVENESS_MALFORMED = "COORD_PING or COORD_PONG, malformed"
    PEER_ERROR = "COORD_ERROR"
    PEER_ERROR_MALFORMED = "COORD_ERROR, malformed"
    SERVER_FRAME = "a frame of the server"
    UNKNOWN_FRAME = "a frame of an unknown type"
    OVERSIZE = "a length of 0 or above the cap of its type"
    TIMER = "the timer of the state"
    RENEWED = "certificate renewed"
    FENCED = "authority lost: renewal failed, lock lost, counter at its end"
    REVOKED = "grant revoked, expired or reduced, registry unusable"
    FAULT = "internal failure"
    EOF = "end of the transport"


class FrameClass(Enum):
    """Frame types that the machine does not tell apart."""

    HELLO = "hello"
    RESPONSE = "response"
    WORK = "work"
    """Every request, and CREDIT."""
    PING = "ping"
    PONG = "pong"
    PEER_ERROR = "peer_error"
    SERVER = "server"
    UNKNOWN = "unknown"


_E = ConnectionEvent
_S = ConnectionState

OUTCOMES: Final[Mapping[FrameClass, Mapping[ErrorCode | None, ConnectionEvent]]] = {
    FrameClass.HELLO: {
        None: _E.HELLO,
        ErrorCode.VERSION_INCOMPATIBLE: _E.HELLO_VERSION,
        ErrorCode.MALFORMED_MESSAGE: _E.HELLO_MALFORMED,
        ErrorCode.AUTHENTICATION_FAILED: _E.HELLO_PROFILE,
        ErrorCode.CAPABILITY_REQUIRED: _E.HELLO_CAPABILITY,
    },
    FrameClass.RESPONSE: {
        None: _E.RESPONSE,
        ErrorCode.MALFORMED_MESSAGE: _E.RESPONSE_MALFORMED,
        ErrorCode.AUTHENTICATION_FAILED: _E.RESPONSE_FAILED,
        ErrorCode.RESOURCE_EXHAUSTED: _E.RESPONSE_QUOTA,
        ErrorCode.AUTHORITY_FENCED: _E.FENCED,
    },
    FrameClass.WORK: {
        None: _E.WORK,
        ErrorCode.STALE_AUTHORITY: _E.WORK_STALE,
        ErrorCode.MALFORMED_MESSAGE: _E.WORK_MALFORMED,
        ErrorCode.FRAME_TOO_LARGE: _E.WORK_TOO_LARGE,
        ErrorCode.PROTOCOL_ERROR: _E.WORK_VIOLATION,
    },
    FrameClass.PING: {None: _E.PING, ErrorCode.MALFORMED_MESSAGE: _E.LIVENESS_MALFORMED},
    FrameClass.PONG: {None: _E.PONG, ErrorCode.MALFORMED_MESSAGE: _E.LIVENESS_MALFORMED},
    FrameClass.PEER_ERROR: {None: _E.PEER_ERROR, ErrorCode.MALFORMED_MESSAGE: _E.PEER_ERROR_MALFORMED},
    FrameClass.SERVER: {None: _E.SERVER_FRAME},
    FrameClass.UNKNOWN: {None: _E.UNKNOWN_FRAME},
}
"""Class of a frame -> what its handling found (``None``: nothing wrong) -> the event. A code that is not here is no
fault of the peer: it is FAULT."""

_OWN_CLASS: Final[Mapping[FrameType, FrameClass]] = {
    FrameType.COORD_HELLO: FrameClass.HELLO,
    FrameType.WORKLOAD_RESPONSE: FrameClass.RESPONSE,
    FrameType.COORD_PING: FrameClass.PING,
    FrameType.COORD_PONG: FrameClass.PONG,
    FrameType.COORD_ERROR: FrameClass.PEER_ERROR,
}


def _class_of(number: int) -> FrameClass:
    if number not in FRAME_TABLE:
        return FrameClass.UNKNOWN
    frame_type = FrameType(number)
    if FRAME_TABLE[frame_type].direction == "s":
        return FrameClass.SERVER
    return _OWN_CLASS.get(frame_type, FrameClass.WORK)


CLASSES: Final = tuple(_class_of(number) for number in range(TYPES))
"""Class of each type byte."""

TIMERS: Final[Mapping[ConnectionState, float]] = {_S.PRE: HELLO_SECONDS, _S.CHAL: CHALLENGE_SECONDS}
"""Seconds from entering a state to its TIMER; a state that is not here has none (W3-13, OPEN P5-b)."""

LOSSES: Final[Mapping[ConnectionEvent, GapReason]] = {
    _E.FENCED: GapReason.EPOCH_CHANGED,
    _E.REVOKED: GapReason.GRANT_REVOKED,
}
"""Why every open subscription has a GAP in front of the error of these events."""


def _ends(error: ErrorCode, reply: str = "") -> Step[ConnectionState]:
    return Step(_S.CLOSED, reply, error)


_BROKEN: Final[Mapping[ConnectionEvent, Step[ConnectionState]]] = {
    _E.OVERSIZE: _ends(ErrorCode.FRAME_TOO_LARGE),
    _E.FENCED: _ends(ErrorCode.AUTHORITY_FENCED),
    _E.FAULT: _ends(ErrorCode.INTERNAL),
    _E.EOF: Step(_S.CLOSED, "everything that it holds is released"),
}
"""The same in every open state."""

_LISTED: Final[Mapping[ConnectionState, Mapping[ConnectionEvent, Step[ConnectionState]]]] = {
    _S.PRE: {
        _E.HELLO: Step(_S.CHAL, "WORKLOAD_CHALLENGE"),
        _E.HELLO_VERSION: _ends(ErrorCode.VERSION_INCOMPATIBLE),
        _E.HELLO_MALFORMED: _ends(ErrorCode.MALFORMED_MESSAGE),
        _E.HELLO_PROFILE: _ends(ErrorCode.AUTHENTICATION_FAILED),
        _E.HELLO_CAPABILITY: _ends(ErrorCode.CAPABILITY_REQUIRED),
        _E.PING: Step(_S.PRE, "COORD_PONG"),
        _E.PONG: Step(_S.PRE),
        _E.LIVENESS_MALFORMED: _ends(ErrorCode.MALFORMED_MESSAGE),
        _E.PEER_ERROR: Step(_S.CLOSED),
        _E.PEER_ERROR_MALFORMED: _ends(ErrorCode.MALFORMED_MESSAGE),
        _E.TIMER: _ends(ErrorCode.PROTOCOL_ERROR),
        _E.RENEWED: Step(_S.PRE),
        _E.REVOKED: Step(_S.PRE),
    },
    _S.CHAL: {
        _E.RESPONSE: Step(_S.ACT, "COORD_HELLO_OK"),
        _E.RESPONSE_MALFORMED: _ends(ErrorCode.MALFORMED_MESSAGE),
        _E.RESPONSE_FAILED: _ends(ErrorCode.AUTHENTICATION_FAILED),
        _E.RESPONSE_QUOTA: _ends(ErrorCode.RESOURCE_EXHAUSTED),
        _E.PEER_ERROR: Step(_S.CLOSED),
        _E.PEER_ERROR_MALFORMED: _ends(ErrorCode.MALFORMED_MESSAGE),
        _E.TIMER: _ends(ErrorCode.AUTHENTICATION_FAILED),
        _E.RENEWED: Step(_S.CHAL),
        _E.REVOKED: Step(_S.CHAL),
    },
    _S.ACT: {
        _E.WORK: Step(_S.ACT, "its reply"),
        _E.WORK_STALE: _ends(ErrorCode.STALE_AUTHORITY),
        _E.WORK_MALFORMED: _ends(ErrorCode.MALFORMED_MESSAGE),
        _E.WORK_TOO_LARGE: _ends(ErrorCode.FRAME_TOO_LARGE),
        _E.PING: Step(_S.ACT, "COORD_PONG"),
        _E.PONG: Step(_S.ACT),
        _E.LIVENESS_MALFORMED: _ends(ErrorCode.MALFORMED_MESSAGE),
        _E.PEER_ERROR: Step(_S.CLOSED),
        _E.PEER_ERROR_MALFORMED: _ends(ErrorCode.MALFORMED_MESSAGE),
        _E.TIMER: Step(_S.ACT),
        _E.RENEWED: Step(_S.ACT, "COORD_AUTHORITY_RENEWED"),
        _E.FENCED: _ends(ErrorCode.AUTHORITY_FENCED, "GAP(EPOCH_CHANGED) for each open subscription"),
        _E.REVOKED: _ends(ErrorCode.AUTHENTICATION_FAILED, "GAP(GRANT_REVOKED) for each open subscription"),
    },
}


def _steps() -> dict[tuple[ConnectionState, ConnectionEvent], Step[ConnectionState]]:
    """Every cell that is not listed is a fatal PROTOCOL_ERROR; a closed connection takes no notice of anything."""
    steps = {(_S.CLOSED, event): Step(_S.CLOSED) for event in _E}
    for state, listed in _LISTED.items():
        for event in _E:
            steps[state, event] = listed.get(event) or _BROKEN.get(event) or _ends(ErrorCode.PROTOCOL_ERROR)
    return steps


CONNECTION: Final = Machine("Connection (server)", _S, _E, _steps())


def _stays(state: ConnectionState, number: int) -> bool:
    step = CONNECTION.step(state, OUTCOMES[CLASSES[number]][None])
    return step.error is None and step.next is state


STAYING: Final[Mapping[ConnectionState, tuple[bool, ...]]] = {
    state: tuple(_stays(state, number) for number in range(TYPES)) for state in _S
}
"""For each type byte whether a frame of it in which nothing is wrong leaves the state as it is: nearly all do, and
need no further look at the table."""
