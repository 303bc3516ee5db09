"""One connection as a whole: caps in every state, turns, pressure, order; its table has its own exhaustive test."""

from __future__ import annotations

import dataclasses

import pytest

from cext.frame import encode_frame
from sidecar.coordinator.machines.connection import ConnectionState
from sidecar.coordinator.session import FRAMES_PER_TURN
from sidecar.coordinator.wire import frames as fr
from sidecar.coordinator.wire.enums import CommandKind, ErrorCode, FrameType
from sidecar.coordinator.wire.ids import EventCut, ObjectiveId, OperationId, SnapshotId, SubscriptionId
from sidecar.coordinator.wire.limits import HANDSHAKE_FRAME
from sidecar.coordinator.wire.payloads import CreateObjective
from sidecar.coordinator.wire.records import AuthorityGuard
from tests.unit.session.bench import House, Wire, hello
from tests.unit.session.states import LEGAL, OPEN_STATES, in_state, legal_frame


@pytest.mark.req("P3-04", "P3-10", "P14-02", "P7-03")
@pytest.mark.parametrize("state", OPEN_STATES)
def test_a_forbidden_type_with_a_huge_length_is_refused_on_its_header(state: ConnectionState) -> None:
    wire = in_state(state)
    wire.send(b"\x00\x0f\xff\xff\xa1")
    assert wire.refusal()[0] == ErrorCode.PROTOCOL_ERROR


@pytest.mark.req("P3-02", "P3-10", "P13-05")
@pytest.mark.parametrize("state", OPEN_STATES)
@pytest.mark.parametrize("length", [0, 1_048_577, 0xFFFFFFFF])
def test_a_length_out_of_range_is_refused_on_its_header(state: ConnectionState, length: int) -> None:
    wire = in_state(state)
    wire.send(length.to_bytes(4, "big") + bytes([FrameType.COORD_ERROR]))
    assert wire.refusal()[0] == ErrorCode.FRAME_TOO_LARGE


@pytest.mark.req("P3-06")
@pytest.mark.parametrize(("state", "number"), [(s, n) for s, n in LEGAL if s is not ConnectionState.ACT])
def test_handshake_frames_are_capped_at_16_kib(state: ConnectionState, number: FrameType) -> None:
    wire = in_state(state)
    wire.send((HANDSHAKE_FRAME).to_bytes(4, "big") + bytes([number]))
    assert wire.received() == []
    assert not wire.session.closing
    wire = in_state(state)
    wire.send((HANDSHAKE_FRAME + 1).to_bytes(4, "big") + bytes([number]))
    assert wire.refusal()[0] == ErrorCode.FRAME_TOO_LARGE


@pytest.mark.req("P3-07")
def test_after_the_handshake_the_selected_frame_cap_counts() -> None:
    def active() -> Wire:
        return House().login(max_frame_bytes=20_000, max_page_bytes=4_096, max_typed_payload_bytes=4_096)

    wire = active()
    wire.send((20_000).to_bytes(4, "big") + bytes([FrameType.SUBSCRIBE]))
    assert not wire.session.closing
    wire = active()
    wire.send((20_001).to_bytes(4, "big") + bytes([FrameType.SUBSCRIBE]))
    assert wire.refusal()[0] == ErrorCode.FRAME_TOO_LARGE


def test_a_fatal_error_names_its_request_and_finished_replies_go_out_before_it() -> None:
    wire = House().login()
    guard = AuthorityGuard.decode(wire.house.world.authority.guard)
    other = dataclasses.replace(guard, fencing_token_sha256=b"\x02" * 32)
    operation = OperationId(b"\x01" * 16)
    wire.send(
        fr.CoordPing(nonce=1),
        fr.SnapshotNext(request_id=5, snapshot_id=SnapshotId(b"\x09" * 16), cursor=b"x"),
        fr.GetOperationResult(request_id=6, authority_guard=other, operation_id=operation),
    )
    pong, scoped, error = wire.received()
    assert isinstance(pong, fr.CoordPong)
    assert isinstance(scoped, fr.CoordErrorFrame)
    assert (scoped.request_id, scoped.code) == (5, ErrorCode.CURSOR_INVALID)
    assert isinstance(error, fr.CoordErrorFrame)
    assert (error.request_id, error.code) == (6, ErrorCode.STALE_AUTHORITY)
    assert wire.session.state is ConnectionState.CLOSED


@pytest.mark.req("W8-10")
def test_nothing_behind_a_fatal_frame_is_processed() -> None:
    wire = House().open()
    wire.send(encode_frame(0x02, b""), fr.CoordPing(nonce=1), hello())
    assert wire.refusal()[0] == ErrorCode.PROTOCOL_ERROR


def test_one_turn_handles_a_bounded_number_of_frames_and_the_rest_follow() -> None:
    wire = House().open()
    wire.send(*[fr.CoordPing(nonce=n) for n in range(FRAMES_PER_TURN + 10)])
    assert len(wire.received()) == FRAMES_PER_TURN
    assert wire.session.has_input
    wire.session.process(wire.now)
    assert [f.nonce for f in wire.received() if isinstance(f, fr.CoordPong)] == list(
        range(FRAMES_PER_TURN, FRAMES_PER_TURN + 10)
    )
    assert not wire.session.has_input


@pytest.mark.req("P10-24")
def test_a_look_through_the_log_ends_the_turn() -> None:
    wire = in_state(ConnectionState.ACT)
    replays = [
        fr.OpenReplay(
            request_id=number,
            authority_guard=AuthorityGuard.decode(wire.house.world.authority.guard),
            subscription_id=SubscriptionId(bytes([number]) * 16),
            after_event_sequence=EventCut(0),
        )
        for number in (1, 2)
    ]
    wire.send(*replays, fr.CoordPing(nonce=3))
    assert [frame.request_id for frame in wire.received() if isinstance(frame, fr.CoordErrorFrame)] == [1]
    assert wire.session.has_input
    wire.session.process(wire.now)
    assert [frame.request_id for frame in wire.received() if isinstance(frame, fr.CoordErrorFrame)] == [2]
    wire.session.process(wire.now)
    assert wire.received() == [fr.CoordPong(nonce=3)]
    assert not wire.session.has_input


@pytest.mark.parametrize("state", [ConnectionState.PRE, ConnectionState.ACT])
def test_a_peer_that_does_not_read_is_not_served(state: ConnectionState) -> None:
    wire = in_state(state)
    wire.session.set_writable(False)
    wire.send(*[fr.CoordPing(nonce=n) for n in range(500)])
    assert wire.received() == []
    assert not wire.session.has_input
    wire.session.set_writable(True)
    seen: list[fr.Frame] = []
    while wire.session.has_input:
        wire.session.process(wire.now)
        seen += wire.received()
    assert len(seen) == 500


def test_a_peer_whose_commands_fill_a_batch_is_read_on_when_they_had_their_turn() -> None:
    wire = House().login()
    guard = AuthorityGuard.decode(wire.house.world.authority.guard)
    commands = [
        fr.CoordCommand(
            request_id=number,
            authority_guard=guard,
            operation_id=OperationId(number.to_bytes(16, "big")),
            command_kind=CommandKind.CREATE_OBJECTIVE,
            payload=CreateObjective(
                objective_id=ObjectiveId(number.to_bytes(16, "big")), schema=1, document=bytes(200_000)
            ).body(),
        )
        for number in range(1, 9)
    ]
    wire.send(*commands, fr.CoordPing(nonce=1))
    assert wire.received() == []
    assert wire.session.connection is not None
    assert len(wire.session.connection.requests) == 6, "the first that make a mebibyte"
    # Nothing is to be read and nothing to be tried again until somebody wakes the transport.
    assert wire.session.behind
    assert not wire.session.has_input
    wakes = wire.wakes
    wire.house.world.commit()
    assert wire.wakes > wakes
    assert wire.session.has_input
    assert len(wire.received()) == 6
    wire.session.process(wire.now)
    assert not wire.session.behind
    wire.house.world.commit()
    pong, *results = wire.received()
    assert isinstance(pong, fr.CoordPong)
    assert [getattr(result, "request_id") for result in results] == [7, 8]  # noqa: B009


def test_a_ping_flood_within_one_turn_never_overflows_the_control_lane() -> None:
    wire = in_state(ConnectionState.ACT)
    wire.send(*[fr.CoordPing(nonce=n) for n in range(1000)])
    seen = wire.received()
    while wire.session.has_input:
        wire.session.process(wire.now)
        seen += wire.received()
    assert [f.nonce for f in seen if isinstance(f, fr.CoordPong)] == list(range(1000))


def test_fragments_of_every_size_give_the_same_session() -> None:
    for size in (1, 2, 3, 5, 7, 64):
        wire = House().open()
        image = fr.CoordPing(nonce=1).encode() + hello().encode()
        for at in range(0, len(image), size):
            wire.send(image[at : at + size])
        assert [type(f) for f in wire.received()] == [fr.CoordPong, fr.WorkloadChallenge]


def test_the_transport_may_fill_the_buffer_itself() -> None:
    wire = House().open()
    image = fr.CoordPing(nonce=3).encode()
    view = wire.session.get_buffer(-1)
    view[: len(image)] = image
    wire.session.buffer_updated(len(image), wire.now)
    assert wire.take(fr.CoordPong).nonce == 3


def test_end_of_input_releases_everything() -> None:
    house = House()
    wire = house.login()
    assert house.world.used()["connections"] == 1
    wire.session.eof(wire.now)
    assert not any(house.world.used().values())
    assert wire.session.closing
    assert wire.session.deadline() is None
    early = house.open()
    early.session.eof(early.now)
    assert house.world.observer.named("handshake", "closed") == 1


def test_frames_are_observed_by_type_and_size_in_both_directions() -> None:
    wire = House().open()
    wire.send(fr.CoordPing(nonce=1))
    wire.received()
    observer = wire.house.world.observer
    assert observer.count("frame_in", FrameType.COORD_PING, 16) == 1
    assert observer.count("frame_out", FrameType.COORD_PONG, 16) == 1


def test_what_should_not_happen_closes_the_one_connection_that_met_it() -> None:
    house = House()
    first, second = house.login(), house.login()

    def broken(*_: object) -> None:
        raise KeyError("canary")

    house.world.engine._requests[fr.Subscribe] = broken
    first.send(legal_frame(first, FrameType.SUBSCRIBE))
    code, message = first.refusal()
    assert code == ErrorCode.INTERNAL
    assert "canary" not in message
    assert [type(error) for error in house.crashes] == [KeyError]
    second.send(fr.CoordPing(nonce=1))
    assert second.take(fr.CoordPong).nonce == 1
