"""WORKLOAD_RESPONSE: one generic failure, one attempt, one connection."""

from __future__ import annotations

from typing import Any

import pytest

from cext.frame import encode_frame
from sidecar.base.ed25519 import fingerprint
from sidecar.coordinator.authority.grants import KeyRecord
from sidecar.coordinator.authority.proof import make_response, uds_binding
from sidecar.coordinator.wire import frames as fr
from sidecar.coordinator.wire.enums import ErrorCode, FrameType
from tests.unit.session.bench import (
    OTHER_KEY,
    PEER,
    STRANGER_KEY,
    WORKLOAD_KEY,
    YEAR,
    House,
    Wire,
    hello,
)
from tests.unit.session.bodies import body_of, field, fields_of, generic_failure


def with_response(wire: Wire, **changes: Any) -> fr.WorkloadResponse:
    good = wire.response()
    names = ("key_id", "requested_scope_bytes", "requested_expiry", "workload_proof")
    return fr.WorkloadResponse(**{**{name: getattr(good, name) for name in names}, **changes})


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
