"""Connections brought to a state, and a legal frame of every type for them."""

from __future__ import annotations

from typing import Any

from sidecar.coordinator.machines.connection import CLASSES, CONNECTION, OUTCOMES, ConnectionState
from sidecar.coordinator.wire import frames as fr
from sidecar.coordinator.wire.enums import ErrorCode, FrameType
from sidecar.coordinator.wire.records import AuthorityGuard
from tests.unit.session.bench import House, Wire, hello

SMALL_PAYLOAD = 4_096
"""Selected typed payload of every active connection here, so that more than it can be encoded."""
OPEN_STATES = (ConnectionState.PRE, ConnectionState.CHAL, ConnectionState.ACT)
LEGAL = [
    (state, frame_type)
    for state in OPEN_STATES
    for frame_type in FrameType
    if CONNECTION.step(state, OUTCOMES[CLASSES[frame_type]][None]).error is None
]
"""Pairs of state and frame type that the machine takes."""


def in_state(state: ConnectionState) -> Wire:
    """A connection in this state; a closed one was closed by its peer."""
    house = House()
    if state is ConnectionState.ACT:
        return house.login(max_typed_payload_bytes=SMALL_PAYLOAD)
    wire = house.open()
    if state is ConnectionState.CHAL:
        wire.hello()
    if state is ConnectionState.CLOSED:
        wire.session.eof(wire.now)
    return wire


def values_of(wire: Wire) -> dict[FrameType, dict[str, Any]]:
    """Fields of a legal frame of every work and liveness type."""
    one = {"request_id": 1}
    rooted = {**one, "authority_guard": AuthorityGuard.decode(wire.house.world.authority.guard)}
    credit = {"initial_credit_count": 0, "initial_credit_bytes": 0}
    ident = b"\x09" * 16
    return {
        FrameType.COORD_COMMAND: {**rooted, "operation_id": ident, "command_kind": 99, "payload": b""},
        FrameType.GET_OPERATION_RESULT: {**rooted, "operation_id": ident},
        FrameType.OPEN_SNAPSHOT: {**rooted, "selector": 0, "reserve_subscription": False},
        FrameType.SNAPSHOT_NEXT: {**one, "snapshot_id": ident, "cursor": b"x"},
        FrameType.SNAPSHOT_APPLIED: {**one, "snapshot_id": ident, **credit},
        FrameType.SUBSCRIBE: {**rooted, "after_event_sequence": 0, **credit},
        FrameType.CREDIT: {"subscription_id": ident, "add_count": 1, "add_bytes": 1},
        FrameType.OPEN_REPLAY: {**rooted, "subscription_id": ident, "after_event_sequence": 0},
        FrameType.REPLAY_NEXT: {**one, "replay_id": ident, "cursor": b"x"},
        FrameType.REPLAY_APPLIED: {**one, "replay_id": ident, "subscription_id": ident, **credit},
        FrameType.COORD_PING: {"nonce": 7},
        FrameType.COORD_PONG: {"nonce": 7},
        FrameType.COORD_ERROR: {"code": ErrorCode.INTERNAL, "message": "bye"},
    }


def legal_frame(wire: Wire, frame_type: FrameType) -> fr.Frame:
    """A frame of this type that its state accepts."""
    if frame_type is FrameType.COORD_HELLO:
        return hello()
    if frame_type is FrameType.WORKLOAD_RESPONSE:
        return wire.response()
    values = values_of(wire)
    if frame_type is FrameType.CREDIT:
        wire.send(fr.FRAMES[FrameType.SUBSCRIBE](**values[FrameType.SUBSCRIBE]))
        values[FrameType.CREDIT]["subscription_id"] = wire.take(fr.Subscribed).subscription_id
    return fr.FRAMES[frame_type](**values[frame_type])
