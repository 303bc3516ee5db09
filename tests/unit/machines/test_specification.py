"""The rows of the specification's state tables, written out once more by hand: the machines say the same."""

from __future__ import annotations

from enum import Enum

import pytest

from sidecar.coordinator.machines.all import MACHINES
from sidecar.coordinator.machines.authority import AUTHORITY, AuthorityEvent, AuthorityState
from sidecar.coordinator.machines.connection import CONNECTION, TIMERS, ConnectionEvent, ConnectionState
from sidecar.coordinator.machines.lease import LEASE, LeaseEvent, LeaseState
from sidecar.coordinator.machines.machine import Machine
from sidecar.coordinator.machines.operation import OPERATION, OperationEvent, OperationState
from sidecar.coordinator.machines.request import REQUEST, RequestEvent, RequestState
from sidecar.coordinator.machines.subscription import SUBSCRIPTION, SubscriptionEvent, SubscriptionState
from sidecar.coordinator.wire.enums import ErrorCode

C, CE = ConnectionState, ConnectionEvent
O, OE = OperationState, OperationEvent  # noqa: E741 - short names for a table
A, AE = AuthorityState, AuthorityEvent
S, SE = SubscriptionState, SubscriptionEvent
L, LE = LeaseState, LeaseEvent
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
OVERFLOW, LOST = "GAP(QUEUE_OVERFLOW), queue and credit dropped", "GAP(RETENTION), queue and credit dropped"
SUBSCRIPTION_ROWS: list[tuple[SubscriptionState, SubscriptionEvent, SubscriptionState, ErrorCode | None, str]] = [
    (S.NONE, SE.SUBSCRIBE, S.LIVE, None, "SUBSCRIBED"),
    (S.NONE, SE.RESERVE, S.RESERVED_SNAPSHOT, None, "SNAPSHOT_BEGIN"),
    (S.NONE, SE.CREDIT, S.NONE, ErrorCode.PROTOCOL_ERROR, "credit for a subscription that was never issued"),
    (S.NONE, SE.OPEN_REPLAY, S.NONE, ErrorCode.NOT_FOUND, "no such subscription of this connection"),
    (S.RESERVED_SNAPSHOT, SE.EVENT, S.RESERVED_SNAPSHOT, None, "queued"),
    (S.RESERVED_SNAPSHOT, SE.SNAPSHOT_APPLIED, S.LIVE, None, "ACK, then events"),
    (S.RESERVED_SNAPSHOT, SE.QUEUE_FULL, S.PAUSED_GAP, None, OVERFLOW),
    (S.RESERVED_SNAPSHOT, SE.SNAPSHOT_EXPIRED, S.PAUSED_GAP, None, "GAP(CURSOR_INVALID), queue and credit dropped"),
    (S.LIVE, SE.EVENT, S.LIVE, None, "COORD_EVENT and debit, or queued while the credit is short"),
    (S.LIVE, SE.CREDIT, S.LIVE, None, "queued events go out"),
    (S.LIVE, SE.CREDIT_ABOVE, S.CLOSED, ErrorCode.PROTOCOL_ERROR, "credit above the selected maximum"),
    (S.LIVE, SE.QUEUE_FULL, S.PAUSED_GAP, None, OVERFLOW),
    (S.LIVE, SE.EVENT_TOO_LARGE, S.PAUSED_GAP, None, "GAP(INTERNAL), queue and credit dropped"),
    (S.PAUSED_GAP, SE.EVENT, S.PAUSED_GAP, None, ""),
    (S.PAUSED_GAP, SE.QUEUE_FULL, S.PAUSED_GAP, None, ""),
    (S.PAUSED_GAP, SE.OPEN_REPLAY, S.REPLAYING, None, "REPLAY_BEGIN"),
    (S.PAUSED_GAP, SE.OPEN_REPLAY_ELSEWHERE, S.CLOSED, ErrorCode.MALFORMED_MESSAGE,
     "a replay starts at the last contiguous event"),
    (S.PAUSED_GAP, SE.OPEN_REPLAY_LOST, S.PAUSED_GAP, ErrorCode.CURSOR_INVALID,
     "GAP(RETENTION): the events are not retained"),
    (S.PAUSED_GAP, SE.REPLACE, S.CLOSED, None, "SNAPSHOT_BEGIN of the new one"),
    (S.REPLAYING, SE.EVENT, S.REPLAYING, None, "queued"),
    (S.REPLAYING, SE.REPLAY_APPLIED, S.LIVE, None, "ACK, then events; the next delivery is DeliveryCut + 1"),
    (S.REPLAYING, SE.QUEUE_FULL, S.PAUSED_GAP, None, OVERFLOW),
    (S.REPLAYING, SE.REPLAY_EXPIRED, S.PAUSED_GAP, None, "queue dropped, nothing is told (OPEN P10-h)"),
    *((state, SE.EVENTS_LOST, S.PAUSED_GAP, None, LOST) for state in (S.RESERVED_SNAPSHOT, S.LIVE, S.REPLAYING)),
    *((state, event, S.CLOSED, ErrorCode.PROTOCOL_ERROR, "credit is legal only while the subscription is live")
      for state in (S.RESERVED_SNAPSHOT, S.REPLAYING) for event in (SE.CREDIT, SE.CREDIT_ABOVE)),
    *((state, event, state, None, "ignored")
      for state in (S.PAUSED_GAP, S.CLOSED) for event in (SE.CREDIT, SE.CREDIT_ABOVE)),
    *((state, SE.AUTHORITY_LOST, S.CLOSED, None, "GAP(EPOCH_CHANGED or GRANT_REVOKED), the connection closes")
      for state in (S.RESERVED_SNAPSHOT, S.LIVE, S.REPLAYING)),
    (S.PAUSED_GAP, SE.AUTHORITY_LOST, S.CLOSED, None, ""),
    *((state, SE.DISCONNECT, S.CLOSED, None, "")
      for state in (S.RESERVED_SNAPSHOT, S.LIVE, S.PAUSED_GAP, S.REPLAYING)),
]  # fmt: skip
GIVEN_BACK = "everything is given back"
LEASE_ROWS: list[tuple[LeaseState, LeaseEvent, LeaseState, ErrorCode | None, str]] = [
    (L.NONE, LE.OPEN, L.OPEN_CURSOR, None, "BEGIN"),
    (L.NONE, LE.OPEN_EMPTY, L.ENDED, None, "BEGIN, END"),
    (L.NONE, LE.OPEN_REFUSED, L.NONE, ErrorCode.RESOURCE_EXHAUSTED, "nothing is made"),
    (L.OPEN_CURSOR, LE.NEXT, L.PAGE_DUE, None, ""),
    (L.PAGE_DUE, LE.PAGE, L.OPEN_CURSOR, None, "PAGE with the next cursor, the old one is dead"),
    (L.PAGE_DUE, LE.LAST_PAGE, L.ENDED, None, "PAGE without a cursor, END; pinned bytes are given back"),
    *((state, event, state, ErrorCode.CURSOR_INVALID, "the cursor is not the next one")
      for state in (L.OPEN_CURSOR, L.PAGE_DUE, L.ENDED) for event in (LE.NEXT, LE.NEXT_OTHER)
      if (state, event) != (L.OPEN_CURSOR, LE.NEXT)),
    (L.ENDED, LE.APPLIED, L.RELEASED, None, "ACK"),
    *((state, LE.APPLIED, state, ErrorCode.CURSOR_INVALID, "it has not ended")
      for state in (L.OPEN_CURSOR, L.PAGE_DUE)),
    *((state, event, state, ErrorCode.CURSOR_INVALID, "no such snapshot or replay")
      for state in (L.NONE, L.RELEASED, L.EXPIRED) for event in (LE.NEXT, LE.NEXT_OTHER, LE.APPLIED)),
    *((state, LE.EXPIRY, L.EXPIRED, None, GIVEN_BACK) for state in (L.OPEN_CURSOR, L.ENDED)),
    (L.PAGE_DUE, LE.EXPIRY, L.EXPIRED, None, f"{GIVEN_BACK}; the page that is due is refused"),
    *((state, LE.DISCONNECT, L.RELEASED, None, GIVEN_BACK) for state in (L.OPEN_CURSOR, L.PAGE_DUE, L.ENDED)),
    *((state, LE.GUARD_STALE, L.RELEASED, ErrorCode.STALE_AUTHORITY, "the activation certificate is not valid")
      for state in (L.OPEN_CURSOR, L.PAGE_DUE, L.ENDED)),
]  # fmt: skip


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


@pytest.mark.req("P10-01", "P10-04", "P10-08", "P10-09", "P10-17", "P10-18", "P10-23", "P10-24", "P10-28", "P10-34")
@pytest.mark.req("P10-35", "P10-36", "P9-26", "P9-27")
def test_the_subscription() -> None:
    for state, event, after, error, reply in SUBSCRIPTION_ROWS:
        assert SUBSCRIPTION.step(state, event) == (after, reply, error), (state, event)
    moves = {(state, event, step.next) for state, event, step in SUBSCRIPTION if step.next is not state}
    assert moves == {(state, event, after) for state, event, after, _, _ in SUBSCRIPTION_ROWS if after is not state}
    told = {step.reply for _, event, step in SUBSCRIPTION if step.reply.startswith("GAP(")}
    assert told == {row[-1] for row in SUBSCRIPTION_ROWS if row[-1].startswith("GAP(")}


@pytest.mark.req("P3-40", "P9-05", "P9-06", "P9-07", "P9-08", "P9-09", "P9-17", "P9-19", "P9-23", "P10-29")
def test_the_lease() -> None:
    for state, event, after, error, reply in LEASE_ROWS:
        assert LEASE.step(state, event) == (after, reply, error), (state, event)
    moves = {(state, event, step.next) for state, event, step in LEASE if step.next is not state}
    # An APPLIED that does not fit is fatal (OPEN P9-b), a replay is over with its subscription's continuity (P10-35).
    beside = {(L.ENDED, LE.APPLIED_UNFIT, L.RELEASED)}
    beside |= {(state, LE.INVALIDATED, L.RELEASED) for state in (L.OPEN_CURSOR, L.PAGE_DUE, L.ENDED)}
    assert moves - beside == {(state, event, after) for state, event, after, _, _ in LEASE_ROWS if after is not state}
    assert beside <= moves
    assert LEASE.step(L.ENDED, LE.APPLIED_UNFIT).error is ErrorCode.MALFORMED_MESSAGE


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
