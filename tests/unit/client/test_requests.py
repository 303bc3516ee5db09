"""Commands, lookups, framing, errors, liveness and the life of the certificate."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from cext.digest import operation_digest
from sidecar.coordinator import client_events as ev
from sidecar.coordinator.client_core import SyncState
from sidecar.coordinator.client_errors import AuthorityExpired, ConnectionLost, PeerFault
from sidecar.coordinator.client_requests import MAX_REQUESTS
from sidecar.coordinator.client_trust import Pins
from sidecar.coordinator.wire import frames as fr
from sidecar.coordinator.wire.enums import CommandKind, ErrorCode, FrameType, ObjectKind, ResultKind
from sidecar.coordinator.wire.errors import ERRORS, FATAL_CODES, AuthorityFenced, LocalProtocolError
from sidecar.coordinator.wire.ids import EventCut, OperationId
from sidecar.coordinator.wire.limits import HARD
from sidecar.coordinator.wire.records import Indeterminate, ObjectRef, Pending, Precondition, Succeeded, Unknown
from tests.oracles.fake_server import START, World, altered, object_id, objective
from tests.unit.client.rig import Rig, changing, create_payload
from tests.unit.client.test_streams import SMALL, following

OP = OperationId(b"\x88" * 16)


def create(rig: Rig, number: int = 1, operation: OperationId = OP, **options: Any) -> int:
    return rig.session.command(operation, CommandKind.CREATE_OBJECTIVE, create_payload(number), **options)


# -- commands and lookups ----------------------------------------------------------------------------------------------


@pytest.mark.req("P8-01", "P8-02", "P7-09")
@pytest.mark.parametrize("step", [1, None])
def test_a_command_and_its_lookup_get_one_reply_each(step: int | None) -> None:
    rig = Rig(step=step).start()
    command = create(rig)
    rig.go()
    lookup = rig.session.lookup(OP)
    absent = rig.session.lookup(OperationId(b"\x89" * 16))
    rig.go()
    replies = rig.of(ev.OperationReply)
    assert [reply.request_id for reply in replies] == [command, lookup, absent]
    assert isinstance(replies[0].result, Succeeded)
    assert replies[1].result == replies[0].result
    assert isinstance(replies[2].result, Unknown)
    assert rig.session.open_requests == 0
    assert len({command, lookup, absent, 0}) == 4


@pytest.mark.req("P4-10")
def test_every_state_rooting_request_carries_the_guard_of_the_certificate() -> None:
    rig = Rig().start()
    guard = rig.world.certificate(START).guard()
    create(rig)
    rig.session.lookup(OP)
    rig.session.open_snapshot()
    rig.session.subscribe(EventCut(0))
    rig.go()
    rooted = (fr.CoordCommand, fr.GetOperationResult, fr.OpenSnapshot, fr.Subscribe)
    frames = [frame for frame in rig.server.received if isinstance(frame, rooted)]
    assert {type(frame) for frame in frames} == set(rooted)
    for frame in frames:
        assert frame.raw("authority_guard") == guard.encode()
        assert len(guard.encode()) == 64
    rig.server.renew(expires_at=int(START.wall) + 60)
    rig.go()
    assert rig.session.lookup(OP)
    rig.go()
    assert rig.server.of(fr.GetOperationResult)[-1].authority_guard == guard


@pytest.mark.req("P8-03")
def test_preconditions_are_sorted_by_kind_and_id() -> None:
    refs = [(3, 1), (1, 9), (2, 5), (1, 2)]
    conditions = [Precondition(ObjectRef(ObjectKind(kind), object_id(number)), 1) for kind, number in refs]
    rig = Rig().start()
    create(rig, preconditions=conditions)
    rig.go()
    (sent,) = rig.server.of(fr.CoordCommand)
    keys = [condition.key() for condition in sent.preconditions]
    assert keys == sorted(keys)
    assert len(keys) == 4
    image = sent.raw("preconditions")
    assert int.from_bytes(image[:2], "big") == 4
    # the digest builder refuses anything that is not strictly ascending
    assert operation_digest(1, sent.payload, image[2:], 4, b"")


@pytest.mark.req("P8-05")
def test_no_preconditions_means_no_field() -> None:
    rig = Rig().start()
    create(rig)
    rig.go()
    (sent,) = rig.server.of(fr.CoordCommand)
    assert not sent.fields.has(6)


def test_what_a_command_may_not_be() -> None:
    rig = Rig(limits=SMALL).start()
    twice = [Precondition(ObjectRef(ObjectKind.RUN, object_id(1)), revision) for revision in (1, 2)]
    many = [Precondition(ObjectRef(ObjectKind.RUN, object_id(number)), 1) for number in range(1, 66)]
    for conditions in (twice, many):
        with pytest.raises(LocalProtocolError):
            create(rig, preconditions=conditions)
    with pytest.raises(LocalProtocolError):
        create(rig, operation=OperationId(bytes(16)))
    assert rig.session.open_requests == 0
    assert rig.session.take_output() == []


@pytest.mark.req("P3-09")
def test_a_payload_above_the_selected_cap_is_not_sent() -> None:
    rig = Rig(limits=SMALL).start()
    room = 512 - len(create_payload(1, b""))
    document = b"x" * room
    while len(create_payload(1, document)) > 512:
        document = document[1:]
    payload = create_payload(1, document)
    assert len(payload) == 512
    rig.session.command(OP, CommandKind.CREATE_OBJECTIVE, payload)
    assert rig.go().of(ev.OperationReply)
    with pytest.raises(LocalProtocolError):
        rig.session.command(OP, CommandKind.CREATE_OBJECTIVE, payload + b"x")


@pytest.mark.req("P3-07")
def test_a_frame_above_the_selected_cap_is_not_sent() -> None:
    tight = Rig(limits=type(SMALL)(1024, 512, 3, 512, 8, 1256)).start()
    many = [Precondition(ObjectRef(ObjectKind.RUN, object_id(number)), 1) for number in range(1, 65)]
    with pytest.raises(LocalProtocolError):
        create(tight, preconditions=many)
    assert tight.session.open_requests == 0


@pytest.mark.req("P7-09")
def test_request_ids_are_bounded_nonzero_and_not_reused_while_open() -> None:
    rig = Rig().start()
    rig.session._next_request = 0xFFFFFFFE
    first = [create(rig, operation=OperationId(number.to_bytes(16, "big"))) for number in range(1, MAX_REQUESTS + 1)]
    assert first[:4] == [0xFFFFFFFE, 0xFFFFFFFF, 1, 2]
    assert len(set(first)) == MAX_REQUESTS == 256
    with pytest.raises(LocalProtocolError):
        rig.session.lookup(OP)
    rig.go()
    assert rig.session.open_requests == 0
    rig.session._next_request = 5
    rig.server.rewrite = lambda frame: None
    held = rig.session.lookup(OP)
    rig.session._next_request = 5
    assert (held, rig.session.lookup(OP)) == (5, 6)


RESULTS: dict[str, bytes] = {
    "NONE": ResultKind.NONE.to_bytes(2, "big") + (1).to_bytes(4, "big") + b"\0",
    "OBJECT_REF": ResultKind.OBJECT_REF.to_bytes(2, "big") + (19).to_bytes(4, "big") + b"\0\x01" + b"\x22" * 16 + b"\0",
    "STARTED": ResultKind.STARTED.to_bytes(2, "big") + (34).to_bytes(4, "big") + b"\x33" * 16 + b"\x66" * 16 + b"\0\0",
    "DOCUMENT": ResultKind.DOCUMENT.to_bytes(2, "big")
    + (8).to_bytes(4, "big")
    + b"\0\x01"
    + (1).to_bytes(4, "big")
    + b"xy",
}


@pytest.mark.req("P7-19")
@pytest.mark.parametrize("shape", [fr.CoordCommandResult, fr.OperationResultFrame])
@pytest.mark.parametrize("kind", RESULTS)
def test_a_trailing_byte_in_a_result_payload_is_refused(kind: str, shape: type[fr.Frame]) -> None:
    def change(reply: Any) -> bytes:
        request_id: int = reply.request_id
        value = b"\x01" + (9).to_bytes(8, "big") + RESULTS[kind]
        body = b"\x01\x04\x04" + request_id.to_bytes(4, "big") + b"\x02\x04" + bytes([len(value)]) + value
        return (len(body) + 1).to_bytes(4, "big") + bytes([shape.TYPE]) + body

    def trimmed(reply: Any) -> bytes:
        image = bytearray(change(reply)[:-1])
        image[3] -= 1
        value = RESULTS[kind]
        at = image.index(value[:6]) + 2
        image[at - 2 - 9 - 1] -= 1
        image[at : at + 4] = (int.from_bytes(value[2:6], "big") - 1).to_bytes(4, "big")
        return bytes(image)

    def ask(rewrite: Callable[[Any], bytes]) -> Rig:
        rig = Rig(rewrite=changing(shape, rewrite)).start()
        _ = create(rig) if shape is fr.CoordCommandResult else rig.session.lookup(OP)
        return rig.go()

    assert isinstance(ask(trimmed).one(ev.OperationReply).result, Succeeded)
    rig = ask(change)
    error = rig.closed
    assert isinstance(error, PeerFault)
    assert error.code is ErrorCode.MALFORMED_MESSAGE
    assert not rig.of(ev.OperationReply)


@pytest.mark.req("P8-39")
@pytest.mark.parametrize(
    "result",
    [Unknown(), Indeterminate.decode(b"\x03\x01\x00"), Pending.decode(b"\0" + (5).to_bytes(8) + (9).to_bytes(8))],
)
def test_an_open_outcome_is_told_and_nothing_is_sent(result: Any) -> None:
    rig = Rig(rewrite=changing(fr.OperationResultFrame, lambda reply: altered(reply, operation=result))).start()
    rig.session.lookup(OP)
    rig.go()
    before = len(rig.server.received)
    assert rig.one(ev.OperationReply).result == result
    assert rig.go().session.take_output() == []
    assert len(rig.server.received) == before


@pytest.mark.req("P8-01", "P8-02")
@pytest.mark.parametrize(
    "change",
    [
        lambda reply: altered(reply, request_id=77),
        lambda reply: fr.OperationResultFrame(request_id=reply.request_id, operation=reply.operation),
        lambda reply: fr.Ack(request_id=reply.request_id),
        lambda reply: reply.encode() + reply.encode(),
    ],
    ids=["other id", "answer of a lookup", "ACK", "twice"],
)
def test_a_reply_that_answers_no_open_request_is_a_breach(change: Callable[[Any], Any]) -> None:
    rig = Rig(rewrite=changing(fr.CoordCommandResult, change)).start()
    create(rig)
    error = rig.go().closed
    assert isinstance(error, PeerFault)
    assert error.code is ErrorCode.PROTOCOL_ERROR


# -- a later activation ------------------------------------------------------------------------------------------------


@pytest.mark.req("P12-31", "P8-38")
def test_a_higher_authority_gets_no_work_before_a_complete_snapshot() -> None:
    pins = Pins()
    Rig(pins=pins).start()
    world = World()
    world.restart()
    world.put(objective(1))
    rig = Rig(world, pins=pins).start()
    assert rig.session.adopting
    assert rig.session.sync is SyncState.SYNCING
    with pytest.raises(LocalProtocolError):
        create(rig)
    with pytest.raises(LocalProtocolError):
        rig.session.subscribe(EventCut(0))
    rig.session.lookup(OP)  # a question changes nothing
    rig.session.open_snapshot(keep=False)
    rig.go()
    assert not rig.session.adopting
    create(rig, 2)
    assert rig.go().of(ev.OperationReply)


# -- framing -----------------------------------------------------------------------------------------------------------


@pytest.mark.req("P3-02", "P3-04")
@pytest.mark.parametrize("length", [0, 1_048_577, 0xFFFFFFFF])
def test_lengths_outside_of_the_range_are_too_large(length: int) -> None:
    rig = Rig().start()
    rig.session.feed(length.to_bytes(4, "big") + b"\x82", rig.now)
    error = rig.go().closed
    assert isinstance(error, PeerFault)
    assert error.code is ErrorCode.FRAME_TOO_LARGE
    (told,) = rig.server.of(fr.CoordErrorFrame)
    assert told.code is ErrorCode.FRAME_TOO_LARGE


@pytest.mark.req("P3-07", "P3-06")
def test_the_selected_frame_cap_holds_after_the_handshake_and_16_kib_before() -> None:
    rig = Rig(limits=SMALL).start()
    rig.session.feed((SMALL.frame + 1).to_bytes(4, "big") + b"\xa0", rig.now)
    error = rig.go().closed
    assert isinstance(error, PeerFault)
    assert error.code is ErrorCode.FRAME_TOO_LARGE
    early = Rig()
    early.session.start(early.now)
    early.session.feed((16_385).to_bytes(4, "big") + b"\x84", early.now)
    early.events += early.session.take_events()
    assert "FRAME_TOO_LARGE" in str(early.closed)


@pytest.mark.req("P7-02", "P7-03", "P7-04")
@pytest.mark.parametrize(
    "frame_type", [0x02, 0x81, 0xB2, FrameType.COORD_HELLO, FrameType.COORD_COMMAND, FrameType.CREDIT, 0x84, 0x80]
)
def test_types_that_are_unknown_or_of_the_wrong_side_or_state_are_refused_by_the_header(frame_type: int) -> None:
    rig = Rig().start()
    rig.session.feed(HARD.frame.to_bytes(4, "big") + bytes([frame_type]), rig.now)
    error = rig.go().closed
    assert isinstance(error, PeerFault)
    assert error.code is ErrorCode.PROTOCOL_ERROR


def test_nothing_after_a_breach_is_looked_at() -> None:
    rig = Rig().start()
    rig.session.feed(b"\0\0\0\x01\x02" + fr.CoordPong(nonce=1).encode(), rig.now)
    rig.session.feed(fr.CoordPong(nonce=2).encode(), rig.now)
    rig.session.eof(rig.now)
    rig.session.close()
    rig.go()
    assert not rig.of(ev.Pong)
    assert isinstance(rig.closed, PeerFault)


# -- errors ------------------------------------------------------------------------------------------------------------


@pytest.mark.req("P13-04", "P13-02")
@pytest.mark.parametrize("code", list(ErrorCode))
@pytest.mark.parametrize("message", ["", "AUTHENTICATION_FAILED: retry with another operation id", "x" * 1024])
def test_only_the_code_decides(code: ErrorCode, message: str) -> None:
    def refuse(reply: fr.CoordCommandResult) -> fr.CoordErrorFrame:
        return fr.CoordErrorFrame(request_id=reply.request_id, code=code, message=message)

    rig = Rig(rewrite=changing(fr.CoordCommandResult, refuse)).start()
    request = create(rig)
    rig.go()
    refusal = rig.one(ev.Refused)
    assert refusal.request_id == request
    assert type(refusal.error) is ERRORS[code]
    fatal = code in FATAL_CODES
    assert rig.session.closing is fatal
    if fatal:
        assert type(rig.closed) is ERRORS[code]


def test_a_scoped_error_leaves_the_connection_and_the_other_requests_alone() -> None:
    def refuse(reply: fr.OperationResultFrame) -> fr.CoordErrorFrame:
        return fr.CoordErrorFrame(request_id=reply.request_id, code=ErrorCode.NOT_FOUND, message="")

    rig = Rig(rewrite=changing(fr.OperationResultFrame, refuse)).start()
    rig.session.lookup(OP)
    create(rig)
    rig.go()
    assert len(rig.of(ev.Refused)) == len(rig.of(ev.OperationReply)) == 1
    assert not rig.session.closing


def test_a_scoped_error_of_no_request_is_a_breach() -> None:
    rig = Rig().start()
    rig.server.error(ErrorCode.NOT_FOUND, 9)
    assert isinstance(rig.go().closed, PeerFault)


def test_an_uncorrelated_scoped_error_changes_nothing() -> None:
    rig = Rig().start()
    rig.server.error(ErrorCode.SCOPE_DENIED)
    assert not rig.go().session.closing


@pytest.mark.req("P13-07", "P13-05")
def test_an_uncorrelated_fatal_error_leaves_every_request_indeterminate() -> None:
    rig = following(rewrite=None)
    rig.server.rewrite = changing(fr.CoordCommandResult, lambda reply: None)
    request = create(rig)
    rig.go()
    rig.server.error(ErrorCode.AUTHORITY_FENCED)
    rig.go()
    assert isinstance(rig.closed, AuthorityFenced)
    assert rig.one(ev.Closed).unfinished == (request,)
    assert not rig.of(ev.Refused)
    assert rig.of(ev.StreamStale)


def test_an_error_code_that_does_not_exist_is_malformed() -> None:
    rig = Rig().start()
    body = b"\x02\x04\x02\x00\x0f\x03\x04\x04\0\0\0\0"
    rig.session.feed((len(body) + 1).to_bytes(4, "big") + b"\xc0" + body, rig.now)
    error = rig.go().closed
    assert isinstance(error, PeerFault)
    assert error.code is ErrorCode.MALFORMED_MESSAGE


# -- liveness ----------------------------------------------------------------------------------------------------------


@pytest.mark.req("P7-07")
def test_pings_go_both_ways_and_say_nothing_of_the_state() -> None:
    rig = Rig().start()
    rig.session.ping(0xDEADBEEF)
    rig.server.send(fr.CoordPing(nonce=7))
    rig.go()
    assert rig.one(ev.Pong).nonce == 0xDEADBEEF
    assert [pong.nonce for pong in rig.server.of(fr.CoordPong)] == [7]
    assert rig.session.sync is SyncState.SYNCING


@pytest.mark.req("P5-02")
def test_a_ping_before_the_challenge_is_answered() -> None:
    rig = Rig()
    rig.server.rewrite = changing(fr.WorkloadChallenge, lambda frame: fr.CoordPing(nonce=7).encode() + frame.encode())
    rig.start()
    assert [pong.nonce for pong in rig.server.of(fr.CoordPong)] == [7]
    assert rig.of(ev.Ready)


# -- certificate -------------------------------------------------------------------------------------------------------


@pytest.mark.req("P12-18")
def test_without_a_renewal_the_client_closes_at_expiry() -> None:
    rig = following()
    assert rig.session.deadline() == START.mono + 60
    assert not rig.at(59.9).of(ev.Closed)
    assert isinstance(rig.at(60).closed, AuthorityExpired)
    assert rig.session.sync is SyncState.STALE
    assert rig.session.deadline() is None


@pytest.mark.req("P12-18")
def test_a_clock_that_is_set_back_does_not_prolong_the_certificate() -> None:
    rig = Rig().start()
    rig.at(10)
    rig.now = type(START)(START.wall - 1000, START.mono + 60)
    rig.session.timeout(rig.now)
    rig.go()
    assert isinstance(rig.closed, AuthorityExpired)


@pytest.mark.req("P12-18")
def test_a_clock_that_is_set_ahead_ends_the_certificate() -> None:
    rig = Rig().start()
    rig.now = type(START)(START.wall + 60, START.mono + 1)
    rig.session.timeout(rig.now)
    rig.go()
    assert isinstance(rig.closed, AuthorityExpired)


@pytest.mark.req("P12-18")
def test_a_valid_renewal_replaces_the_certificate() -> None:
    rig = Rig().start()
    rig.at(30).server.renew()
    rig.go()
    assert rig.one(ev.Renewed).expires_at == int(START.wall) + 90
    assert not rig.at(89).of(ev.Closed)
    rig.session.lookup(OP)
    assert rig.go().of(ev.OperationReply)
    assert isinstance(rig.at(90).closed, AuthorityExpired)


RENEWALS: dict[str, dict[str, Any]] = {
    "token": {"token": b"\xd1" * 32},
    "sequence": {"activation_sequence": 8},
    "epoch": {"epoch": 6},
    "incarnation": {"incarnation": b"\x56" * 16},
    "coordinator": {"coordinator_id": b"\x12" * 16},
    "witness": {"witness_id": b"\xab" * 16},
    "61 s": {"expires_at": int(START.wall) + 91},
    "expired": {"issued_at": int(START.wall) - 40, "expires_at": int(START.wall) + 20},
    "shorter": {"issued_at": int(START.wall) - 1, "expires_at": int(START.wall) + 59},
}


@pytest.mark.req("P12-18", "P12-28")
@pytest.mark.parametrize("fault", RENEWALS)
def test_an_invalid_renewal_changes_nothing_and_the_old_certificate_runs_out(fault: str) -> None:
    rig = Rig().start()
    rig.at(30).server.renew(**RENEWALS[fault])
    rig.go()
    assert rig.of(ev.RenewalRefused)
    assert not rig.of(ev.Renewed)
    assert not rig.session.closing
    assert isinstance(rig.at(60).closed, AuthorityExpired)


@pytest.mark.req("P12-18")
def test_a_renewal_signed_by_somebody_else_is_refused() -> None:
    rig = Rig().start()
    certificate = World(witness=World().authority).certificate(rig.at(30).now)
    rig.server.send(fr.AuthorityRenewed(activation_certificate=certificate))
    assert rig.go().of(ev.RenewalRefused)
    assert isinstance(rig.at(60).closed, AuthorityExpired)


def test_closing_from_this_side() -> None:
    rig = following()
    rig.session.close()
    rig.go()
    assert isinstance(rig.closed, ConnectionLost)
    assert rig.session.closing
    with pytest.raises(LocalProtocolError):
        rig.session.ping(1)
