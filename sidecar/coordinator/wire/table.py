"""The table of frames: who may send which type when, how large, and what answers it (P3-04..09, P7-01..04).

``caps_for`` turns it into the 256 caps that the splitter asks before it reserves a byte of a payload.
"""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias

from sidecar.coordinator.wire.enums import FrameType
from sidecar.coordinator.wire.limits import HANDSHAKE_FRAME, Limits

State: TypeAlias = Literal["PRE", "CHAL", "ACT"]
"""PRE: before HELLO (client: before the challenge). CHAL: challenge sent (client: response sent). ACT: active."""
Receiver: TypeAlias = Literal["server", "client"]
Direction: TypeAlias = Literal["c", "s", "both"]
"""Who sends it: the client, the server, or either."""
CapClass: TypeAlias = Literal["H", "F", "P", "T"]
"""Cap on ``length`` once active: H handshake only, F selected frame, P page too, T typed payload too."""

STATES: tuple[State, ...] = ("PRE", "CHAL", "ACT")
TYPES = 256


class FrameRow(NamedTuple):
    """One row of the frame table."""

    direction: Direction
    legal: frozenset[State]
    """States of the receiver in which the frame may arrive."""
    cap: CapClass
    replies: tuple[FrameType, ...] = ()
    """Frames that end the request; COORD_ERROR may, too. Empty: the frame has no reply, or it is one."""


_PRE: frozenset[State] = frozenset({"PRE"})
_CHAL: frozenset[State] = frozenset({"CHAL"})
_ACT: frozenset[State] = frozenset({"ACT"})
_LIVENESS: frozenset[State] = frozenset({"PRE", "ACT"})
_ANY: frozenset[State] = frozenset(STATES)

FRAME_TABLE: dict[FrameType, FrameRow] = {
    FrameType.COORD_HELLO: FrameRow("c", _PRE, "H", (FrameType.WORKLOAD_CHALLENGE,)),
    FrameType.WORKLOAD_RESPONSE: FrameRow("c", _CHAL, "H", (FrameType.COORD_HELLO_OK,)),
    FrameType.COORD_COMMAND: FrameRow("c", _ACT, "T", (FrameType.COORD_COMMAND_RESULT,)),
    FrameType.GET_OPERATION_RESULT: FrameRow("c", _ACT, "F", (FrameType.OPERATION_RESULT,)),
    FrameType.OPEN_SNAPSHOT: FrameRow("c", _ACT, "F", (FrameType.SNAPSHOT_BEGIN, FrameType.SNAPSHOT_END)),
    FrameType.SNAPSHOT_NEXT: FrameRow("c", _ACT, "F", (FrameType.SNAPSHOT_PAGE, FrameType.SNAPSHOT_END)),
    FrameType.SNAPSHOT_APPLIED: FrameRow("c", _ACT, "F", (FrameType.ACK,)),
    FrameType.SUBSCRIBE: FrameRow("c", _ACT, "F", (FrameType.SUBSCRIBED,)),
    FrameType.CREDIT: FrameRow("c", _ACT, "F"),
    FrameType.OPEN_REPLAY: FrameRow("c", _ACT, "F", (FrameType.REPLAY_BEGIN, FrameType.REPLAY_END)),
    FrameType.REPLAY_NEXT: FrameRow("c", _ACT, "F", (FrameType.REPLAY_PAGE, FrameType.REPLAY_END)),
    FrameType.REPLAY_APPLIED: FrameRow("c", _ACT, "F", (FrameType.ACK,)),
    FrameType.COORD_PING: FrameRow("both", _LIVENESS, "F", (FrameType.COORD_PONG,)),
    FrameType.COORD_HELLO_OK: FrameRow("s", _CHAL, "H"),
    FrameType.ACK: FrameRow("s", _ACT, "F"),
    FrameType.COORD_AUTHORITY_RENEWED: FrameRow("s", _ACT, "F"),
    FrameType.WORKLOAD_CHALLENGE: FrameRow("s", _PRE, "H"),
    FrameType.COORD_COMMAND_RESULT: FrameRow("s", _ACT, "F"),
    FrameType.OPERATION_RESULT: FrameRow("s", _ACT, "F"),
    FrameType.SNAPSHOT_BEGIN: FrameRow("s", _ACT, "F"),
    FrameType.SNAPSHOT_PAGE: FrameRow("s", _ACT, "P"),
    FrameType.SNAPSHOT_END: FrameRow("s", _ACT, "F"),
    FrameType.SUBSCRIBED: FrameRow("s", _ACT, "F"),
    FrameType.REPLAY_BEGIN: FrameRow("s", _ACT, "F"),
    FrameType.REPLAY_PAGE: FrameRow("s", _ACT, "P"),
    FrameType.REPLAY_END: FrameRow("s", _ACT, "F"),
    FrameType.COORD_EVENT: FrameRow("s", _ACT, "T"),
    FrameType.GAP: FrameRow("s", _ACT, "F"),
    FrameType.COORD_ERROR: FrameRow("both", _ANY, "F"),
    FrameType.COORD_PONG: FrameRow("both", _LIVENESS, "F"),
}


def cap_of(row: FrameRow, state: State, selected: Limits | None) -> int:
    """Cap on ``length`` of a legal frame: 16 KiB until HELLO_OK, then what was selected (P3-06..08)."""
    if state != "ACT":
        return HANDSHAKE_FRAME
    if selected is None:
        raise ValueError("an active connection has selected limits")
    return min(selected.frame, selected.page_bytes + 1) if row.cap == "P" else selected.frame


def caps_for(state: State, receiver: Receiver, selected: Limits | None = None) -> list[int]:
    """Cap on ``length`` per type byte; 0 refuses the type: unknown, from the wrong side, or in the wrong state."""
    sender = "c" if receiver == "server" else "s"
    caps = [0] * TYPES
    for frame_type, row in FRAME_TABLE.items():
        if row.direction in (sender, "both") and state in row.legal:
            caps[frame_type] = cap_of(row, state, selected)
    return caps
