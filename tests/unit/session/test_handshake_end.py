"""How a handshake ends otherwise: timers, quotas, a fence, frames out of place; and what no refusal tells."""

from __future__ import annotations

import pytest

from cext.frame import encode_frame
from sidecar.base.ed25519 import SigningKey, fingerprint
from sidecar.coordinator.authority.grants import Registry
from sidecar.coordinator.machines.connection import ConnectionState
from sidecar.coordinator.wire import frames as fr
from sidecar.coordinator.wire.enums import ErrorCode, FrameType
from sidecar.coordinator.wire.limits import CHALLENGE_SECONDS, HELLO_SECONDS
from tests.unit.session.bench import (
    AUTHORITY_KEY,
    OTHER_KEY,
    STRANGER_KEY,
    WORKLOAD_KEY,
    House,
    Wire,
    hello,
    offer,
)
from tests.unit.session.bodies import GENERIC, body_of, field, generic_failure, hello_body


def later(wire: Wire, seconds: float) -> None:
    wire.house.world.advance(seconds, tick=False)
    wire.session.timeout(wire.now)


@pytest.mark.req("W3-13")
def test_the_response_is_awaited_for_five_seconds() -> None:
    wire = House().open()
    later(wire, 3.0)
    wire.hello()
    assert wire.session.deadline() == wire.now.mono + CHALLENGE_SECONDS
    later(wire, 4.999)
    assert not wire.session.closing
    later(wire, 0.001)
    assert wire.session.take_output(wire.now) == [GENERIC]
    assert wire.session.closing
    assert wire.house.world.observer.named("handshake", "timeout") == 1


def test_hello_is_awaited_for_ten_seconds_and_pings_do_not_extend_it() -> None:
    wire = House().open()
    due = wire.session.deadline()
    assert due == wire.now.mono + HELLO_SECONDS
    for nonce in range(9):
        later(wire, 1.0)
        wire.send(fr.CoordPing(nonce=nonce))
        assert wire.take(fr.CoordPong).nonce == nonce
        assert wire.session.deadline() == due
    wire.send(hello().encode()[:-1])
    later(wire, 1.0)
    assert wire.refusal()[0] == ErrorCode.PROTOCOL_ERROR
    assert wire.house.world.observer.named("handshake", "timeout") == 1


def test_every_handshake_is_timed_from_the_first_moment_to_its_end() -> None:
    house = House()
    good, slow, gone, told = [house.open() for _ in range(4)]
    good.hello()
    slow.hello()
    later(good, 2.5)
    good.respond()
    assert good.take(fr.CoordHelloOk)
    later(slow, 2.5)
    gone.session.eof(gone.now)
    told.send(fr.CoordErrorFrame(code=ErrorCode.INTERNAL, message="bye"))
    timed = [call[1:] for call in house.world.observer.calls if call[0] == "handshake"]
    assert timed == [("ok", 2.5), ("timeout", 5.0), ("closed", 5.0), ("peer_error", 5.0)]


def test_an_active_connection_has_no_handshake_timer() -> None:
    wire = House().login()
    later(wire, 100.0)
    assert not wire.session.closing


def test_a_full_connection_quota_is_told_after_the_proof() -> None:
    house = House()
    for _ in range(16):
        house.login()
    wire = house.open()
    wire.hello()
    wire.respond()
    assert wire.refusal()[0] == ErrorCode.RESOURCE_EXHAUSTED
    assert house.login(OTHER_KEY, scopes=0x01).session.state is ConnectionState.ACT


@pytest.mark.req("P5-05", "P14-04", "W3-18", "P2-03")
def test_no_frame_but_the_proof_opens_a_connection() -> None:
    wire = House().open()
    wire.hello()
    wire.send(fr.CoordPing(nonce=1))
    assert wire.refusal()[0] == ErrorCode.PROTOCOL_ERROR


@pytest.mark.req("W3-14", "P7-04")
def test_a_second_hello_is_fatal_wherever_it_comes() -> None:
    wire = House().open()
    wire.hello()
    wire.send(hello())
    assert wire.refusal()[0] == ErrorCode.PROTOCOL_ERROR
    active = House().login()
    active.send(hello())
    assert active.refusal()[0] == ErrorCode.PROTOCOL_ERROR


def test_a_handshake_that_is_answered_while_fenced_is_told_so() -> None:
    house = House()
    wire = house.open()
    wire.hello()
    house.world.engine.fence("test")
    wire.respond()
    assert wire.refusal()[0] == ErrorCode.AUTHORITY_FENCED


def test_an_empty_registry_admits_nobody() -> None:
    house = House()
    house.registry = Registry()
    wire = house.open()
    wire.hello()
    generic_failure(wire, wire.response())


@pytest.mark.req("P13-03", "P2-13")
def test_no_refusal_repeats_what_the_peer_sent() -> None:
    canary = b"canary-secret-canary-secret-0123"
    bodies: list[tuple[int, bytes]] = [
        (FrameType.COORD_HELLO, hello_body(f4=field(4, canary + b"\xff"))),
        (
            FrameType.COORD_HELLO,
            body_of(hello(client_name=canary.decode(), offered_capabilities=0, required_capabilities=2)),
        ),
        (FrameType.COORD_HELLO, hello_body(f13=field(13, canary))),
        (0x02, canary),
        (FrameType.COORD_COMMAND, canary),
        (FrameType.COORD_HELLO, body_of(hello(workload_offer=offer(canary)))[:-1]),
    ]
    for number, body in bodies:
        wire = House().open()
        wire.send(encode_frame(number, body))
        image = b"".join(wire.session.take_output(wire.now))
        assert wire.session.closing
        assert b"canary" not in image


def key_ids(*keys: SigningKey) -> set[bytes]:
    return {fingerprint(key.public_key) for key in keys}


def test_the_bench_has_four_different_keys() -> None:
    assert len(key_ids(AUTHORITY_KEY, WORKLOAD_KEY, OTHER_KEY, STRANGER_KEY)) == 4
