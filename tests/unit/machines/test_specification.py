"""The rows of the specification's state tables, written out once more by hand: the machines say the same."""

from __future__ import annotations

from enum import Enum

import pytest

from sidecar.coordinator.machines.all import MACHINES
from sidecar.coordinator.machines.authority import AUTHORITY, AuthorityEvent, AuthorityState
from sidecar.coordinator.machines.connection import CONNECTION, TIMERS, ConnectionEvent, ConnectionState
from sidecar.coordinator.machines.machine import Machine
from sidecar.coordinator.machines.operation import OPERATION, OperationEvent, OperationState
from sidecar.coordinator.machines.request import REQUEST, RequestEvent, RequestState
from sidecar.coordinator.wire.enums import ErrorCode

C, CE = ConnectionState, ConnectionEvent
O, OE = OperationState, OperationEvent  # noqa: E741 - short names for a table
A, AE = AuthorityState, AuthorityEvent
STORED = (O.PENDING, O.SUCCEEDED, O.REJECTED, O.INDETERMINATE, O.TOMBSTONED)
FINAL = (O.SUCCEEDED, O.REJECTED, O.INDETERMINATE)

CONNECTION_ROWS: list[tuple[ConnectionState, ConnectionEvent, ConnectionState, ErrorCode | None, str]] = [
    (C.PRE, CE.PING, C.PRE, None, "COORD_PONG"),
    (C.PRE, CE.PONG, C.PRE, None, ""),
    (C.PRE, CE.HELLO_VERSION, C.CLOSED, ErrorCode.VERSION_INCOMPATIBLE, ""),
    (C.PRE, CE.HELLO_MALFORMED, C.CLOSED, ErrorCode.MALFORMED_MESSAGE, ""),
    (C.PRE, CE.HELLO_CAPABILITY, C.CLOSED, ErrorCode.CAPABILITY_REQUIRED, ""),
    (C.PRE, CE.HELLO_PROFILE, C.CLOSED, ErrorCode.AUTHENTICATION_FAILED, ""),
    (C.PRE, CE.HELLO, C.CHAL, None, "WORKLOAD_CHALLENGE"),
    (C.PRE, CE.TIMER, C.CLOSED, ErrorCode.PROTOCOL_ERROR, ""),
    (C.CHAL, CE.RESPONSE_MALFORMED, C.CLOSED, ErrorCode.MALFORMED_MESSAGE, ""),
    (C.CHAL, CE.RESPONSE_FAILED, C.CLOSED, ErrorCode.AUTHENTICATION_FAILED, ""),
    (C.CHAL, CE.RESPONSE_QUOTA, C.CLOSED, ErrorCode.RESOURCE_EXHAUSTED, ""),
    (C.CHAL, CE.RESPONSE, C.ACT, None, "COORD_HELLO_OK"),
    (C.CHAL, CE.TIMER, C.CLOSED, ErrorCode.AUTHENTICATION_FAILED, ""),
    (C.ACT, CE.WORK_STALE, C.CLOSED, ErrorCode.STALE_AUTHORITY, ""),
    (C.ACT, CE.WORK, C.ACT, None, "its reply"),
    (C.ACT, CE.PING, C.ACT, None, "COORD_PONG"),
    (C.ACT, CE.PONG, C.ACT, None, ""),
    (C.ACT, CE.RENEWED, C.ACT, None, "COORD_AUTHORITY_RENEWED"),
    (C.ACT, CE.FENCED, C.CLOSED, ErrorCode.AUTHORITY_FENCED, "GAP(EPOCH_CHANGED) for each open subscription"),
    (C.ACT, CE.REVOKED, C.CLOSED, ErrorCode.AUTHENTICATION_FAILED, "GAP(GRANT_REVOKED) for each open subscription"),
    (C.ACT, CE.PEER_ERROR, C.CLOSED, None, ""),
    *((state, CE.EOF, C.CLOSED, None, "everything that it holds is released") for state in (C.PRE, C.CHAL, C.ACT)),
]
BESIDE_THE_TABLE: dict[ConnectionEvent, ErrorCode | None] = {
    CE.OVERSIZE: ErrorCode.FRAME_TOO_LARGE,
    CE.WORK_TOO_LARGE: ErrorCode.FRAME_TOO_LARGE,
    CE.WORK_MALFORMED: ErrorCode.MALFORMED_MESSAGE,
    CE.LIVENESS_MALFORMED: ErrorCode.MALFORMED_MESSAGE,
    CE.PEER_ERROR_MALFORMED: ErrorCode.MALFORMED_MESSAGE,
    CE.PEER_ERROR: None,
    CE.FENCED: ErrorCode.AUTHORITY_FENCED,
    CE.FAULT: ErrorCode.INTERNAL,
}
"""What other rows say of every state in which a frame may come at all: P3-02, P3-09, P3-12, P13-b, P12-17, P13-a."""
UNNOTICED = {(C.PRE, CE.RENEWED), (C.CHAL, CE.RENEWED), (C.PRE, CE.REVOKED), (C.CHAL, CE.REVOKED), (C.ACT, CE.TIMER)}
"""What only a connection with a grant, or one without, is told of."""

OPERATION_ROWS: list[tuple[OperationState, OperationEvent, OperationState, ErrorCode | None]] = [
    (O.NONE, OE.REFUSED, O.NONE, None),
    (O.NONE, OE.ADMITTED, O.SUCCEEDED, None),
    (O.NONE, OE.ADMITTED_EFFECT, O.PENDING, None),
    (O.PENDING, OE.TARGET_SUCCEEDED, O.SUCCEEDED, None),
    (O.PENDING, OE.TARGET_REJECTED, O.REJECTED, None),
    (O.PENDING, OE.UNPROVEN, O.INDETERMINATE, None),
    *((state, OE.REPEAT, state, None) for state in STORED),
    *((state, OE.CONFLICT, state, ErrorCode.OPERATION_CONFLICT) for state in STORED),
    *((state, event, O.TOMBSTONED, None) for state in FINAL for event in (OE.AGED, OE.AGED_UNUSED)),
    *((state, event, state, ErrorCode.INTERNAL) for state in (*FINAL, O.TOMBSTONED)
      for event in (OE.TARGET_SUCCEEDED, OE.TARGET_REJECTED, OE.UNPROVEN)),
    (O.TOMBSTONED, OE.AGED, O.TOMBSTONED, None),
    (O.TOMBSTONED, OE.AGED_UNUSED, O.NONE, None),
    (O.NONE, OE.LOOKUP, O.NONE, None),
]  # fmt: skip
AUTHORITY_ROWS: list[tuple[AuthorityState, AuthorityEvent, AuthorityState]] = [
    (A.STOPPED, AE.OPENED, A.PROPOSING),
    (A.PROPOSING, AE.INSTALL, A.INSTALLED),
    (A.PROPOSING, AE.REFUSED, A.STOPPED),
    (A.INSTALLED, AE.RECOVER, A.RECOVERED),
    (A.RECOVERED, AE.BIND, A.BOUND),
    (A.BOUND, AE.RENEWED, A.BOUND),
    (A.BOUND, AE.LOST, A.FENCED),
    (A.BOUND, AE.STOP, A.STOPPED),
]
REQUEST_ROWS: list[tuple[RequestState, RequestEvent, RequestState, ErrorCode | None]] = [
    (RequestState.FREE, RequestEvent.ARRIVED, RequestState.OPEN, None),
    (RequestState.FREE, RequestEvent.REFUSED, RequestState.FREE, ErrorCode.RESOURCE_EXHAUSTED),
    (RequestState.OPEN, RequestEvent.ARRIVED, RequestState.FREE, ErrorCode.MALFORMED_MESSAGE),
    (RequestState.OPEN, RequestEvent.REFUSED, RequestState.FREE, ErrorCode.MALFORMED_MESSAGE),
    (RequestState.OPEN, RequestEvent.ANSWERED, RequestState.FREE, None),
]


@pytest.mark.req("P5-01", "P5-02", "P7-03", "P7-04", "P13-05", "P12-15", "P12-17", "W3-13", "W3-14", "W8-07")
def test_the_connection() -> None:
    listed = {(state, event): (after, error, reply) for state, event, after, error, reply in CONNECTION_ROWS}
    for state, event, step in CONNECTION:
        if state is C.CLOSED:
            assert step == (C.CLOSED, "", None)
        elif (state, event) in listed:
            assert (step.next, step.error, step.reply) == listed[state, event]
        elif (state, event) in UNNOTICED:
            assert (step.next, step.error) == (state, None)
        else:
            assert step.next is C.CLOSED
            assert step.error in {ErrorCode.PROTOCOL_ERROR, BESIDE_THE_TABLE.get(event, ErrorCode.PROTOCOL_ERROR)}
    for event in (CE.OVERSIZE, CE.FENCED, CE.FAULT, CE.PEER_ERROR, CE.PEER_ERROR_MALFORMED):
        errors = {CONNECTION.step(state, event).error for state in (C.PRE, C.CHAL, C.ACT)}
        assert errors == {BESIDE_THE_TABLE[event]}
    assert CONNECTION.step(C.ACT, CE.WORK_MALFORMED).error is ErrorCode.MALFORMED_MESSAGE
    assert TIMERS == {C.PRE: 10, C.CHAL: 5}


@pytest.mark.req("P7-09", "P7-10", "P3-33")
def test_the_request_id() -> None:
    for state, event, after, error in REQUEST_ROWS:
        step = REQUEST.step(state, event)
        assert (step.next, step.error) == (after, error)


@pytest.mark.req("P8-14", "P8-15", "P8-41", "P8-42")
def test_the_operation() -> None:
    for state, event, after, error in OPERATION_ROWS:
        step = OPERATION.step(state, event)
        assert (step.next, step.error) == (after, error)


@pytest.mark.req("P12-17", "P12-20")
def test_the_authority() -> None:
    for state, event, after in AUTHORITY_ROWS:
        assert AUTHORITY.step(state, event).next is after
    moves = {(state, event) for state, event, step in AUTHORITY if step.next is not state}
    up = {(state, event) for state, event, _ in AUTHORITY_ROWS if (state, event) != (A.BOUND, AE.RENEWED)}
    rising = (A.PROPOSING, A.INSTALLED, A.RECOVERED)
    assert moves - up == {(s, e) for s in rising for e in (AE.LOST, AE.FAILED, AE.STOP)} | {(A.BOUND, AE.FAILED)}


def test_only_named_states_change_by_what_is_refused() -> None:
    """A refusal leaves everything as it was, unless it ends the connection with everything on it."""
    changing: set[tuple[str, Enum]] = set()
    for machine in MACHINES:
        typed: Machine[Enum, Enum] = machine
        changing |= {(typed.title, step.next) for state, _, step in typed if step.error and step.next is not state}
    assert {(title, state.name) for title, state in changing} == {
        ("Connection (server)", "CLOSED"),
        ("Request id", "FREE"),
        ("Subscription", "CLOSED"),
        ("Snapshot and replay lease", "RELEASED"),
    }
