"""Frames in readable form, for people: every field with its offset, and for bad bytes the first fault with its row.

A walk in plain Python over the tables of ``wire``. It accepts exactly what ``decode_frame`` accepts, and holds the
payload of a command to its kind as well; unlike them it says where a fault is and what was read before it. It raises
for no bytes, and shows proofs, nonces, cursors and the fencing token only as the beginning of their digest.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, Literal

from sidecar.coordinator.explain_image import Fault, Item, Stop, Walk, plural
from sidecar.coordinator.wire.enums import FrameType
from sidecar.coordinator.wire.frames import FRAMES, LENGTH_BYTES
from sidecar.coordinator.wire.limits import HANDSHAKE_FRAME, HARD
from sidecar.coordinator.wire.table import FRAME_TABLE, STATES, FrameRow, State

Sender = Literal["client", "server"]

_HEADER: Final = LENGTH_BYTES + 1
_SENDERS: Final = {"c": "client", "s": "server", "both": "client or server"}
_THEN: Final[dict[FrameType, State]] = {
    FrameType.COORD_HELLO: "CHAL",
    FrameType.WORKLOAD_CHALLENGE: "CHAL",
    FrameType.WORKLOAD_RESPONSE: "ACT",
    FrameType.COORD_HELLO_OK: "ACT",
}
"""State of whoever receives the frame, behind it."""


@dataclass(frozen=True, slots=True)
class Explained:
    """One frame, or the bytes that are none. ``items`` go as far as the walk came."""

    offset: int
    length: int
    """Bytes of the whole message as far as they are there."""
    name: str
    type: int | None
    sender: str
    states: tuple[State, ...]
    """States of the receiver in which it is legal."""
    replies: tuple[str, ...]
    items: tuple[Item, ...]
    fault: Fault | None

    def as_json(self) -> dict[str, Any]:
        """One JSON object."""
        return {
            "offset": self.offset,
            "length": self.length,
            "frame": self.name,
            "type": self.type,
            "sender": self.sender,
            "states": list(self.states),
            "replies": list(self.replies),
            "fields": [item._asdict() for item in self.items],
            "fault": None if self.fault is None else self.fault._asdict(),
        }


def explain(data: bytes, *, sent_by: Sender | None = None, state: State | None = None) -> Iterator[Explained]:
    """Every message of a capture, one after the other.

    ``sent_by`` says who sent all of them, ``state`` in what state the receivers were before the first; without them
    direction and state are told and not judged. A fault inside of a body does not end the capture, one of a length
    does.
    """
    at = 0
    receivers: dict[str, State | None] = {"client": state, "server": state}
    while at < len(data):
        found = _message(data, at, sent_by, receivers)
        yield found
        if found.fault is not None and found.length == len(data) - at:
            return
        at += found.length


def _message(data: bytes, at: int, sent_by: Sender | None, receivers: dict[str, State | None]) -> Explained:
    left = len(data) - at
    length = int.from_bytes(data[at : at + LENGTH_BYTES], "big")
    if left < _HEADER and (left < LENGTH_BYTES or 1 <= length <= HARD.frame):
        return _nothing(at, left, Fault(at, "P3-01", f"{plural(left)} at the end are no whole header of {_HEADER}"))
    if not 1 <= length <= HARD.frame:
        return _nothing(at, left, Fault(at, "P3-02", f"length {length} is outside 1..{HARD.frame}"))
    number = data[at + LENGTH_BYTES]
    here = min(left, LENGTH_BYTES + length)
    if number not in FrameType._value2member_map_:
        unknown = Fault(at + LENGTH_BYTES, "P7-02", f"frame type 0x{number:02x} is not known")
        return Explained(at, here, "?", number, "?", (), (), (), unknown)
    kind = FrameType(number)
    row = FRAME_TABLE[kind]
    walk = Walk(data[at : at + here], at)
    fault = _before_body(kind, row, length, at, sent_by, receivers)
    if fault is None and here < LENGTH_BYTES + length:
        missing = LENGTH_BYTES + length - here
        fault = Fault(at, "P3-01", f"length {length} goes {plural(missing)} beyond the end of what is given")
    if fault is None:
        try:
            walk.frame(FRAMES[kind], _HEADER)
        except Stop as stop:
            fault = stop.fault
    _advance(kind, row, receivers)
    return Explained(
        at,
        here,
        kind.name,
        number,
        _SENDERS[row.direction],
        tuple(legal for legal in STATES if legal in row.legal),
        tuple(reply.name for reply in row.replies),
        tuple(walk.items),
        fault,
    )


def _nothing(at: int, length: int, fault: Fault) -> Explained:
    return Explained(at, length, "?", None, "?", (), (), (), fault)


def _before_body(
    kind: FrameType,
    row: FrameRow,
    length: int,
    at: int,
    sent_by: Sender | None,
    receivers: dict[str, State | None],
) -> Fault | None:
    """What is wrong with a message before its body is looked at, as far as sender and state are known."""
    if sent_by is not None and row.direction not in (sent_by[0], "both"):
        return Fault(at + LENGTH_BYTES, "P7-03", f"{kind.name} is sent by the {_SENDERS[row.direction]} only")
    state = _state(row, sent_by, receivers)
    if state is not None and state not in row.legal:
        return Fault(at + LENGTH_BYTES, "P7-04", f"{kind.name} is not legal in state {state}")
    handshake = row.cap == "H" or state in ("PRE", "CHAL")
    if handshake and length > HANDSHAKE_FRAME:
        return Fault(at, "P3-06", f"length {length} is above {HANDSHAKE_FRAME}, the cap of the handshake")
    return None


def _state(row: FrameRow, sent_by: Sender | None, receivers: dict[str, State | None]) -> State | None:
    """State of the receiver; None where it is not known."""
    if sent_by is None:
        if row.direction == "both":
            return None
        sent_by = "client" if row.direction == "c" else "server"
    return receivers["server" if sent_by == "client" else "client"]


def _advance(kind: FrameType, row: FrameRow, receivers: dict[str, State | None]) -> None:
    receiver = "server" if row.direction == "c" else "client"
    if kind in _THEN and receivers[receiver] is not None:
        receivers[receiver] = _THEN[kind]


# ---- text ----


def text_of(found: Explained) -> Iterator[str]:
    """The lines for one message."""
    head = f"0x{found.offset:04x}  {found.name}"
    if found.type is not None:
        head += f" 0x{found.type:02x}"
    head += f"  {plural(found.length)}"
    if found.states:
        states = "any state" if len(found.states) == len(STATES) else " or ".join(found.states)
        head += f"  from {found.sender}  legal in {states}"
    if found.replies:
        head += f"  answered by {' or '.join(found.replies)}"
    yield head
    for item in found.items:
        id_ = "" if item.id is None else f"{item.id} "
        value = f" = {item.value}" if item.value else ""
        yield f"  0x{item.offset:04x} {'  ' * item.depth}{id_}{item.name}: {item.type}{value}"
    if found.fault is not None:
        yield f"  FAULT at 0x{found.fault.offset:04x}, {found.fault.row}: {found.fault.problem}"
