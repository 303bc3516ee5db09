"""The paired handshake: order of checks, one generic failure, timers, what is granted."""

from __future__ import annotations

from typing import Any

import pytest

from cext.frame import encode_frame
from sidecar.base.ed25519 import SigningKey, fingerprint
from sidecar.coordinator.authority.grants import KeyRecord, Registry
from sidecar.coordinator.authority.proof import make_response, uds_binding, verify_challenge
from sidecar.coordinator.session import GENERIC_FAILURE, State
from sidecar.coordinator.wire import frames as fr
from sidecar.coordinator.wire.enums import ErrorCode, FrameType
from sidecar.coordinator.wire.limits import CHALLENGE_SECONDS, HARD, HELLO_SECONDS, Limits
from tests.unit.session.bench import (
    AUTHORITY_KEY,
    OTHER_KEY,
    PEER,
    STRANGER_KEY,
    WORKLOAD_KEY,
    YEAR,
    House,
    Wire,
    hello,
    offer,
)

GENERIC = fr.CoordErrorFrame(code=ErrorCode.AUTHENTICATION_FAILED, message=GENERIC_FAILURE).encode()


def body_of(frame: fr.Frame) -> bytes:
    return frame.encode()[5:]


def fields_of(body: bytes) -> dict[int, bytes]:
    """Whole field images of a body by id; every length fits one varint byte."""
    found, at = {}, 0
    while at < len(body):
        end = at + 3 + body[at + 2]
        found[body[at]] = body[at:end]
        at = end
    return found


def hello_body(**changes: bytes | None) -> bytes:
    """The body of an accepted HELLO with fields replaced (`f13=...`) or left out (`f13=None`)."""
    fields: dict[int, bytes | None] = {**fields_of(body_of(hello()))}
    fields.update({int(name[1:]): value for name, value in changes.items()})
    return b"".join(fields[number] or b"" for number in sorted(fields))


def field(number: int, value: bytes) -> bytes:
    return bytes([number, 4, len(value)]) + value


def refused(body: bytes) -> tuple[int, House]:
    house = House()
    wire = house.open()
    wire.send(encode_frame(FrameType.COORD_HELLO, body))
    code, _ = wire.refusal()
    return code, house


@pytest.mark.req("W3-01", "P5-01", "P5-07", "P5-08", "P5-19", "W3-15", "P5-04")
def test_a_whole_handshake() -> None:
    house = House()
    wire = house.open()
    challenge = wire.hello(protocol_patch=9)
    derived = verify_challenge(
        challenge,
        client_nonce=b"\x77" * 32,
        derive_binding=lambda nonce: uds_binding(nonce, *PEER),
        check_pin=lambda _: None,
    )
    assert derived == fingerprint(AUTHORITY_KEY.public_key)
    wire.respond(scopes=0x03, life=500)
    welcome = wire.take(fr.CoordHelloOk)
    assert (welcome.protocol_major, welcome.protocol_minor, welcome.protocol_patch) == (0, 1, 0)
    assert welcome.limits() == HARD
    assert welcome.workload_grant.key_id == fingerprint(WORKLOAD_KEY.public_key)
    assert welcome.workload_grant.authority_fingerprint == derived
    assert welcome.workload_grant.scopes == 0x03
    assert welcome.workload_grant.expires_at == int(wire.now.wall) + 500
    assert welcome.operation_result_retention_secs == 2_592_000
    assert challenge.server_incarnation == welcome.incarnation_id == welcome.activation_certificate.incarnation_id
    assert welcome.coordinator_id == house.world.authority.coordinator_id
    assert welcome.authority_epoch == house.world.authority.epoch
    assert wire.session.state is State.ACT
    assert wire.session.deadline() is None
    assert house.world.observer.count("handshake", "ok") == 1


@pytest.mark.req("W3-03", "W10-01", "P5-03", "P14-03", "W3-04")
@pytest.mark.parametrize("version", [(0, 0), (0, 2), (1, 1), (1, 0), (65535, 65535)])
@pytest.mark.parametrize(
    "rest",
    [
        {},
        {"f13": field(13, b"garbage")},
        {"f13": None},
        {"f13": b"\x0d\x04\x7f"},  # a length beyond the body
        {"f4": field(4, b"\xff\xff\xff\xff")},
        {"f7": field(7, b"\x00" * 8)},
    ],
)
def test_the_version_is_judged_before_anything_else(version: tuple[int, int], rest: dict[str, Any]) -> None:
    major, minor = (number.to_bytes(2, "big") for number in version)
    code, house = refused(hello_body(f1=field(1, major), f2=field(2, minor), **rest))
    assert code == ErrorCode.VERSION_INCOMPATIBLE
    assert house.lookups == 0


@pytest.mark.req("P5-03")
def test_versions_are_found_wherever_they_stand() -> None:
    swapped = field(2, b"\x00\x02") + field(1, b"\x00\x00")
    assert refused(swapped)[0] == ErrorCode.VERSION_INCOMPATIBLE
    assert refused(field(100, b"x" * 9) + swapped)[0] == ErrorCode.VERSION_INCOMPATIBLE


@pytest.mark.req("P5-03", "P5-06")
@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\x01",
        b"\x01\x04",
        field(1, b"\x00\x00"),
        field(2, b"\x00\x01"),
        field(1, b"\x00\x00") + field(1, b"\x00\x00"),
        field(1, b"\x00\x00") + field(1, b"\x00\x01") + field(2, b"\x00\x01"),
        field(1, b"\x00\x00") + b"\x02\x04\x02\x07",
        field(1, b"\x00\x00\x00") + field(2, b"\x00\x01"),
        b"\x01\x02\x02\x00\x00" + field(2, b"\x00\x01"),
        b"\x81\x00\x04\x02\x00\x00" + field(2, b"\x00\x01"),
        b"\x01\x04\x80\x80\x80\x80\x80\x20",
        b"\xff" * 11,
    ],
)
def test_a_body_that_breaks_before_its_version_is_malformed(body: bytes) -> None:
    assert refused(body)[0] == ErrorCode.MALFORMED_MESSAGE


@pytest.mark.req("P5-06")
@pytest.mark.parametrize("number", range(3, 13))
def test_every_other_field_of_hello_is_required(number: int) -> None:
    assert refused(hello_body(**{f"f{number}": None}))[0] == ErrorCode.MALFORMED_MESSAGE


@pytest.mark.req("W3-17", "W10-02", "P5-05")
@pytest.mark.parametrize(
    "changed", [None, field(13, b"\x00\x00\x00\x10phux-workload/v2" + b"\x77" * 32)], ids=["absent", "other profile"]
)
def test_a_hello_without_this_profile_is_an_authentication_failure(changed: bytes | None) -> None:
    wire = House().open()
    wire.send(encode_frame(FrameType.COORD_HELLO, hello_body(f13=changed)))
    assert wire.session.take_output(wire.now) == [GENERIC]
    assert wire.session.closing


@pytest.mark.req("W3-17", "W8-01")
@pytest.mark.parametrize(
    "image",
    [
        b"",
        b"\x00\x00\x00\x10phux-workload/v1" + b"\x77" * 31,
        b"\x00\x00\x00\x10phux-workload/v1" + b"\x77" * 33,
        b"\x00\x00\x00\x11phux-workload/v1x" + b"\x77" * 31,
        b"\x00\x00\x00\x10phux-workload/v1" + bytes(32),
    ],
)
def test_an_offer_that_is_no_image_is_malformed(image: bytes) -> None:
    assert refused(hello_body(f13=field(13, image)))[0] == ErrorCode.MALFORMED_MESSAGE


@pytest.mark.req("P5-12")
def test_capabilities_are_what_both_sides_have() -> None:
    wire = House().open()
    wire.hello(offered_capabilities=(1 << 63) | 0x1 | 0x8)
    wire.respond()
    assert wire.take(fr.CoordHelloOk).negotiated_capabilities == 0x1


@pytest.mark.req("P5-13", "P5-14")
@pytest.mark.parametrize(("offered", "required"), [(0x1, 0x3), (0x1F, 0x2), (0x1F, 0x1F), (1 << 63, 1 << 63)])
def test_required_capabilities_that_are_not_met_are_fatal(offered: int, required: int) -> None:
    wire = House().open()
    wire.send(hello(offered_capabilities=offered, required_capabilities=required))
    assert wire.refusal()[0] == ErrorCode.CAPABILITY_REQUIRED
    assert wire.session.state is State.CLOSED


@pytest.mark.parametrize(
    "changes",
    [{"max_frame_bytes": 0}, {"max_page_records": 1025}, {"max_frame_bytes": 4096, "max_page_bytes": 3585}],
)
def test_offers_that_cannot_work_are_malformed(changes: dict[str, int]) -> None:
    wire = House().open()
    wire.send(hello(**changes))
    assert wire.refusal()[0] == ErrorCode.MALFORMED_MESSAGE


def test_the_selected_limits_are_the_smaller_ones() -> None:
    house = House(limits=Limits(600_000, 300_000, 7, 65_536, 100, 1_000_000))
    wire = house.open()
    wire.hello(max_page_records=1000, max_event_credit_count=50)
    wire.respond()
    assert wire.take(fr.CoordHelloOk).limits() == Limits(600_000, 300_000, 7, 65_536, 50, 1_000_000)


@pytest.mark.req("P5-01", "W8-01")
def test_a_bad_hello_costs_no_signature_and_no_lookup() -> None:
    for body in (hello_body(f5=None), hello_body(f13=None), hello_body(f1=field(1, b"\x00\x01"))):
        wire = House().open()
        wire.send(encode_frame(FrameType.COORD_HELLO, body))
        assert [type(f) for f in wire.received()] == [fr.CoordErrorFrame]
        assert wire.house.lookups == 0


def with_response(wire: Wire, **changes: Any) -> fr.WorkloadResponse:
    good = wire.response()
    names = ("key_id", "requested_scope_bytes", "requested_expiry", "workload_proof")
    return fr.WorkloadResponse(**{**{name: getattr(good, name) for name in names}, **changes})


def generic_failure(wire: Wire, *parts: bytes | fr.Frame) -> None:
    held = wire.house.world.used()
    wire.send(*parts)
    assert wire.session.take_output(wire.now) == [GENERIC]
    assert wire.session.state is State.CLOSED
    assert wire.house.world.used() == held


FAILURES = {
    "unknown key": lambda wire: wire.response(STRANGER_KEY),
    "broken proof": lambda wire: with_response(wire, workload_proof=b"\x01" * 64),
    "zero proof": lambda wire: with_response(wire, workload_proof=bytes(64)),
    "key id of another key": lambda wire: with_response(wire, key_id=fingerprint(OTHER_KEY.public_key)),
    "altered expiry": lambda wire: with_response(wire, requested_expiry=int(wire.now.wall) + 1),
    "altered scopes": lambda wire: with_response(wire, requested_scope_bytes=0x01),
    "expired request": lambda wire: wire.response(life=0),
    "empty intersection": lambda wire: wire.response(OTHER_KEY, scopes=0x02),
    "no scopes": lambda wire: wire.response(scopes=0),
}


@pytest.mark.req("W8-02", "P5-05", "W3-15", "W10-04", "P14-04", "P13-03")
@pytest.mark.parametrize("make", FAILURES.values(), ids=FAILURES)
def test_every_failed_login_looks_the_same(make: Any) -> None:
    wire = House().open()
    wire.hello()
    generic_failure(wire, make(wire))


@pytest.mark.req("W8-02", "W10-09")
@pytest.mark.parametrize("state", ["revoked", "expired", "removed"])
def test_a_key_that_is_no_longer_good_fails_like_the_others(state: str) -> None:
    house = House()
    now = int(house.world.now.wall)
    revoked = KeyRecord.of(WORKLOAD_KEY.public_key, 0x3F, now + YEAR, revoked_at=now - 5)
    expired = KeyRecord.of(WORKLOAD_KEY.public_key, 0x3F, now)
    house.enrol(*{"revoked": [revoked], "expired": [expired], "removed": []}[state])
    wire = house.open()
    wire.hello()
    generic_failure(wire, wire.response())


@pytest.mark.req("W3-10", "W10-03", "P14-04", "P5-05")
def test_a_response_is_worth_nothing_on_another_connection() -> None:
    house = House()
    first, second = house.open(), house.open()
    first.hello()
    recorded = first.response().encode()
    second.hello()
    generic_failure(second, recorded)
    first.send(recorded)
    assert first.take(fr.CoordHelloOk)


@pytest.mark.req("W10-03", "W3-12")
def test_a_recorded_login_cannot_be_replayed() -> None:
    house = House()
    wire = house.open()
    wire.hello()
    recorded = wire.response().encode()
    wire.send(recorded)
    assert wire.take(fr.CoordHelloOk)
    again = house.open()
    again.hello()
    generic_failure(again, recorded)


@pytest.mark.req("W3-11", "W3-14")
def test_a_challenge_serves_one_attempt() -> None:
    wire = House().open()
    wire.hello()
    generic_failure(wire, with_response(wire, workload_proof=b"\x01" * 64), wire.response())
    wire.send(wire.response())
    assert wire.session.take_output(wire.now) == []


@pytest.mark.req("W5-06", "W10-04", "W5-05")
@pytest.mark.parametrize("claimed", [(1001, 1000, 4242), (1000, 1001, 4242), (1000, 1000, 4243)])
def test_the_binding_is_that_of_the_connection(claimed: tuple[int, int, int]) -> None:
    wire = House().open(peer=PEER)
    challenge = wire.hello()
    other = uds_binding(challenge.server_nonce, *claimed)
    names = [
        "profile", "service", "negotiated_major", "negotiated_minor", "client_nonce", "server_nonce",
        "server_incarnation", "channel_binding_kind", "authority_public_key", "authority_proof",
    ]  # fmt: skip
    forged = fr.WorkloadChallenge(**{n: getattr(challenge, n) for n in names}, channel_binding=other.value)
    generic_failure(wire, make_response(forged, WORKLOAD_KEY, scopes=1, requested_expiry=int(wire.now.wall) + 60))


@pytest.mark.req("W3-12")
def test_server_nonces_differ() -> None:
    house = House()
    assert len({bytes(house.open().hello().server_nonce) for _ in range(20)}) == 20


def test_a_broken_random_source_ends_the_handshake_without_a_challenge() -> None:
    house = House()
    house.env.entropy = bytes
    wire = house.open()
    wire.send(hello())
    assert wire.refusal()[0] == ErrorCode.INTERNAL
    assert house.crashes == []


@pytest.mark.req("W5-06", "W10-04")
def test_the_binding_is_derived_anew_for_the_response() -> None:
    peers = [PEER]
    house = House()
    wire = house.open()
    wire.session._binding = lambda nonce: uds_binding(nonce, *peers[0])
    wire.hello()
    peers[0] = (1000, 1000, 9999)
    generic_failure(wire, wire.response())


def raw_response(wire: Wire, **changes: bytes | None) -> bytes:
    fields: dict[int, bytes | None] = {**fields_of(body_of(wire.response()))}
    fields.update({int(name[1:]): value for name, value in changes.items()})
    return encode_frame(FrameType.WORKLOAD_RESPONSE, b"".join(fields[n] or b"" for n in sorted(fields)))


@pytest.mark.req("P6-02", "P6-03", "W8-01", "P14-04")
@pytest.mark.parametrize(
    "image",
    [
        b"\x00\x00\x00\x08" + (0x40).to_bytes(8, "big"),
        b"\x00\x00\x00\x08" + (1 << 63).to_bytes(8, "big"),
        b"\x00\x00\x00\x07" + bytes(7),
        b"\x00\x00\x00\x09" + bytes(9),
        b"\x00\x00\x00\x08" + bytes(7) + b"\x01" + b"\x00",
        b"\x00\x00\x00\x00",
        bytes(7) + b"\x01",
    ],
)
def test_a_bad_scope_image_is_malformed_before_any_lookup(image: bytes) -> None:
    wire = House().open()
    wire.hello()
    wire.send(raw_response(wire, f2=field(2, image), f4=field(4, b"\x01" * 64)))
    assert wire.refusal()[0] == ErrorCode.MALFORMED_MESSAGE
    assert wire.house.lookups == 0


@pytest.mark.req("W8-01", "W3-14")
@pytest.mark.parametrize(
    "changes",
    [
        {"f1": None},
        {"f4": None},
        {"f4": field(4, b"\x01" * 63)},
        {"f5": field(5, b"x")},
        {"f1": field(1, bytes(31))},
        {"f3": field(3, bytes(8)) * 2},
        {"f1": field(3, bytes(8)), "f3": field(1, bytes(32))},
    ],
)
def test_a_malformed_response_is_fatal_and_counts_as_the_attempt(changes: dict[str, bytes | None]) -> None:
    wire = House().open()
    wire.hello()
    wire.send(raw_response(wire, **changes), wire.response())
    assert wire.refusal()[0] == ErrorCode.MALFORMED_MESSAGE


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
    assert wire.house.world.observer.count("handshake", "timeout") == 1


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
    assert wire.house.world.observer.count("handshake", "timeout") == 1


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
    assert house.login(OTHER_KEY, scopes=0x01).session.state is State.ACT


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
