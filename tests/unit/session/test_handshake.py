"""COORD_HELLO: order of checks, what is offered and selected, what a refusal costs."""

from __future__ import annotations

from typing import Any

import pytest

from cext.frame import encode_frame
from sidecar.base.ed25519 import fingerprint
from sidecar.coordinator.authority.proof import uds_binding, verify_challenge
from sidecar.coordinator.machines.connection import ConnectionState
from sidecar.coordinator.wire import frames as fr
from sidecar.coordinator.wire.enums import ErrorCode, FrameType
from sidecar.coordinator.wire.limits import HARD, Limits
from tests.unit.session.bench import (
    AUTHORITY_KEY,
    PEER,
    WORKLOAD_KEY,
    House,
    hello,
)
from tests.unit.session.bodies import GENERIC, field, hello_body, refused


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
    assert wire.session.state is ConnectionState.ACT
    assert wire.session.deadline() is None
    assert house.world.observer.named("handshake", "ok") == 1


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
    for offered, negotiated in (((1 << 63) | 0x2 | 0x8, 0x8), (0, 0), (0x1F, 0x19)):
        wire = House(capabilities=0x19).open()
        wire.hello(offered_capabilities=offered)
        wire.respond()
        assert wire.take(fr.CoordHelloOk).negotiated_capabilities == negotiated


@pytest.mark.req("P5-13", "P5-14")
@pytest.mark.parametrize(("offered", "required"), [(0x1, 0x9), (0, 0x1), (0x1F, 0x2), (0x1F, 0x1F), (1 << 63, 1 << 63)])
def test_required_capabilities_that_are_not_met_are_fatal(offered: int, required: int) -> None:
    wire = House(capabilities=0x19).open()
    wire.send(hello(offered_capabilities=offered, required_capabilities=required))
    assert wire.refusal()[0] == ErrorCode.CAPABILITY_REQUIRED
    assert wire.session.state is ConnectionState.CLOSED


@pytest.mark.parametrize(
    "changes",
    [{"max_frame_bytes": 0}, {"max_page_records": 1025}, {"max_frame_bytes": 4096, "max_page_bytes": 3585}],
)
def test_offers_that_cannot_work_are_malformed(changes: dict[str, int]) -> None:
    wire = House().open()
    wire.send(hello(**changes))
    assert wire.refusal()[0] == ErrorCode.MALFORMED_MESSAGE


@pytest.mark.req("P3-20", "P3-53")
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
