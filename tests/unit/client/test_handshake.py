"""What a client verifies before it answers a challenge and before it accepts HELLO_OK."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import pytest

from cext.digest import uds_peer_binding
from sidecar.coordinator import client_events as ev
from sidecar.coordinator.client_connection import ClientState
from sidecar.coordinator.client_errors import AuthorityChanged, CannotConnect, VerificationFailed
from sidecar.coordinator.client_trust import Admission, Pins
from sidecar.coordinator.wire import frames as fr
from sidecar.coordinator.wire.enums import Capability, ErrorCode, Scope
from sidecar.coordinator.wire.errors import AuthenticationFailed, LocalProtocolError
from sidecar.coordinator.wire.records import ActivationCertificate, WorkloadGrant
from tests.oracles.fake_server import SELF, START, World, altered, seed
from tests.unit.client.rig import Rig, changing, rewriting

STATEFUL = (fr.WorkloadResponse, fr.CoordCommand, fr.GetOperationResult, fr.OpenSnapshot, fr.Subscribe)


def refused(rig: Rig) -> VerificationFailed:
    """The client closed on a failed check: nothing was pinned and nothing but HELLO was ever sent."""
    rig.start()
    error = rig.closed
    assert isinstance(error, VerificationFailed)
    assert rig.session.state is ClientState.CLOSED
    assert not rig.of(ev.Ready)
    assert rig.pins.pins == ()
    return error


def unanswered(rig: Rig) -> VerificationFailed:
    error = refused(rig)
    assert [type(frame) for frame in rig.server.received] == [fr.CoordHello]
    return error


@pytest.mark.req("W3-02")
def test_hello_offers_the_profile_and_a_fresh_nonce() -> None:
    nonces = set()
    for number in (1, 2):
        rig = Rig(entropy=lambda size, number=number: bytes([number]) * size)  # type: ignore[misc]
        rig.session.start(START)
        (image,) = rig.session.take_output()
        assert image[4] == 0x01
        offer = fr.CoordHello.decode(image[5:]).raw("workload_offer")
        assert offer[:20] == b"\0\0\0\x10phux-workload/v1"
        assert offer[20:] == bytes([number]) * 32
        nonces.add(offer[20:])
    assert len(nonces) == 2


def test_a_random_source_that_gives_zeroes_is_fatal() -> None:
    with pytest.raises(ValueError, match="nonce"):
        Rig(entropy=bytes)


@pytest.mark.req("W3-01", "P5-22", "P12-19", "W7-07", "W7-06", "P5-08")
@pytest.mark.parametrize("step", [1, 3, None])
def test_the_honest_handshake_in_any_fragments(step: int | None) -> None:
    rig = Rig(step=step).start()
    welcome = rig.one(ev.Ready).welcome
    assert rig.session.state is ClientState.ACTIVE
    assert welcome.standing.epoch == 5
    assert welcome.standing.activation == 7
    assert welcome.fingerprint == rig.world.fingerprint
    assert welcome.scopes == Scope.WORK_READ | Scope.WORK_COMMAND
    assert welcome.admission is Admission.FIRST
    assert [type(frame) for frame in rig.server.received] == [fr.CoordHello, fr.WorkloadResponse]


CHALLENGE_FAULTS: dict[str, tuple[dict[str, Any], str]] = {
    "major": ({"negotiated_major": 1}, "version"),
    "minor": ({"negotiated_minor": 2}, "version"),
    "nonce": ({"client_nonce": b"\x77" * 32}, "nonce"),
    "binding": ({"channel_binding": b"\x77" * 32}, "binding"),
    "binding_kind": ({"channel_binding_kind": 0}, "binding"),
    "authority_key": ({"authority_public_key": b"\x01" + bytes(31)}, "authority_key"),
}


@pytest.mark.req("W3-19", "W3-09", "W5-02", "W10-04")
@pytest.mark.parametrize("signed", [True, False], ids=["proof covers it", "proof does not cover it"])
@pytest.mark.parametrize("fault", CHALLENGE_FAULTS)
def test_one_altered_field_of_the_challenge_and_nothing_is_answered(fault: str, signed: bool) -> None:
    changes, check = CHALLENGE_FAULTS[fault]
    rig = Rig()

    def change(challenge: fr.WorkloadChallenge) -> fr.WorkloadChallenge:
        if signed:
            return rig.server.challenge(**{"client_nonce": challenge.client_nonce, **changes})
        return altered(challenge, **changes)

    rig.server.rewrite = changing(fr.WorkloadChallenge, change)
    assert unanswered(rig).check == check


@pytest.mark.req("W3-19", "W4-10", "W2-06")
@pytest.mark.parametrize("field", ["authority_proof", "server_nonce", "server_incarnation"])
def test_what_only_the_proof_can_find(field: str) -> None:
    def change(challenge: fr.WorkloadChallenge) -> fr.WorkloadChallenge:
        value: bytes = getattr(challenge, field)
        changed: dict[str, Any] = {field: value[:-1] + bytes([value[-1] ^ 1])}
        if field == "server_nonce":
            changed["channel_binding"] = uds_peer_binding(changed["server_nonce"], *SELF)
        return altered(challenge, **changed)

    error = unanswered(Rig(rewrite=changing(fr.WorkloadChallenge, change)))
    assert error.check == "proof"


IMAGE_FAULTS = {
    "profile": (b"phux-workload/v1", b"phux-workload/v2"),
    "service": (b"phux-coordinator", b"phux-terminal/v1"),
    "incarnation": (b"\x07\x04\x10" + b"\x55" * 16, b"\x07\x04\x10" + bytes(16)),
    "binding_kind": (b"\x08\x04\x01\x01", b"\x08\x04\x01\x02"),
    "unknown_field": None,
}


@pytest.mark.req("W3-19", "W5-01", "W3-16", "W10-02", "E-25")
@pytest.mark.parametrize("fault", IMAGE_FAULTS)
def test_an_illegal_challenge_image_is_not_answered(fault: str) -> None:
    def change(challenge: fr.WorkloadChallenge) -> bytes:
        image, replacement = challenge.encode(), IMAGE_FAULTS[fault]
        if replacement is None:
            body = image[5:] + b"\x0c\x04\x01\x00"
            return (len(body) + 1).to_bytes(4, "big") + image[4:5] + body
        assert image.count(replacement[0]) == 1
        return image.replace(*replacement)

    assert unanswered(Rig(rewrite=changing(fr.WorkloadChallenge, change))).check == "handshake"


@pytest.mark.req("W3-19")
@pytest.mark.parametrize(
    ("faults", "check"),
    [
        ({"negotiated_minor": 2, "client_nonce": b"\x77" * 32}, "version"),
        ({"client_nonce": b"\x77" * 32, "channel_binding": b"\x77" * 32}, "nonce"),
        ({"channel_binding": b"\x77" * 32, "authority_public_key": bytes(32)}, "binding"),
        ({"authority_public_key": bytes(32), "authority_proof": bytes(64)}, "authority_key"),
        ({"authority_public_key": seed(0x31).public_key, "authority_proof": bytes(64)}, "expected"),
    ],
)
def test_checks_come_in_the_order_of_the_profile(faults: dict[str, Any], check: str) -> None:
    rig = Rig(authority=World().fingerprint, rewrite=rewriting(fr.WorkloadChallenge, **faults))
    assert unanswered(rig).check == check


@pytest.mark.req("W5-07", "W10-04")
@pytest.mark.parametrize("part", [0, 1, 2], ids=["uid", "gid", "pid"])
def test_each_of_the_three_peer_ids_is_compared_with_the_own_one(part: int) -> None:
    peer = [*SELF]
    peer[part] += 1
    assert unanswered(Rig(peer=(peer[0], peer[1], peer[2]))).check == "binding"


@pytest.mark.req("W3-16", "W10-02")
def test_hello_ok_without_a_challenge_is_a_downgrade() -> None:
    rig = Rig()

    def change(challenge: fr.WorkloadChallenge) -> fr.CoordHelloOk:
        response = fr.WorkloadResponse.build(
            {
                "key_id": b"\x01" * 32,
                "requested_scope_bytes": Scope.WORK_READ,
                "requested_expiry": 2**40,
                "workload_proof": bytes(64),
            }
        )
        return rig.server.hello_ok(response)

    rig.server.rewrite = changing(fr.WorkloadChallenge, change)
    unanswered(rig)


@pytest.mark.req("W3-16")
@pytest.mark.parametrize("field", [b"\x0e\x04\x54", b"\x10\x04"], ids=["no grant", "no certificate"])
def test_hello_ok_without_grant_or_certificate_is_refused(field: bytes) -> None:
    def change(ok: fr.CoordHelloOk) -> bytes:
        image = ok.encode()
        at = image.index(field, 100)
        end = at + 3 + 84 if field[0] == 0x0E else len(image)
        body = image[5:at] + image[end:]
        return (len(body) + 1).to_bytes(4, "big") + image[4:5] + body

    rig = Rig(rewrite=changing(fr.CoordHelloOk, change))
    assert refused(rig).check == "handshake"
    assert not [frame for frame in rig.server.received if isinstance(frame, STATEFUL[1:])]


def regrant(**changes: Any) -> Callable[[fr.CoordHelloOk], fr.CoordHelloOk]:
    def change(ok: fr.CoordHelloOk) -> fr.CoordHelloOk:
        grant = ok.workload_grant
        values = {name: getattr(grant, name) for name, _ in WorkloadGrant.COLUMNS}
        return altered(ok, workload_grant=WorkloadGrant(**{**values, **changes}))

    return change


@pytest.mark.req("W7-07", "P5-22")
@pytest.mark.parametrize(
    "changes",
    [
        {"key_id": b"\x01" * 32},
        {"authority_fingerprint": b"\x01" * 32},
        {"scopes": Scope.WORK_READ | Scope.WORK_COMMAND | Scope.ADMIN},
        {"scopes": Scope(0)},
        {"expires_at": int(START.wall) + 3601},
        {"expires_at": int(START.wall)},
    ],
    ids=["other key", "other authority", "wider scopes", "no scopes", "longer", "expired"],
)
def test_a_grant_that_is_not_what_was_asked_for(changes: dict[str, Any]) -> None:
    rig = Rig(rewrite=changing(fr.CoordHelloOk, regrant(**changes)))
    assert refused(rig).check == "grant"


@pytest.mark.req("W7-06", "P5-08")
@pytest.mark.parametrize("where", ["HELLO_OK", "certificate", "both"])
def test_the_incarnation_is_one_in_challenge_hello_ok_and_certificate(where: str) -> None:
    rig = Rig()

    def change(ok: fr.CoordHelloOk) -> fr.CoordHelloOk:
        other = b"\x56" * 16
        values: dict[str, Any] = {}
        if where != "certificate":
            values["incarnation_id"] = other
        if where != "HELLO_OK":
            values["activation_certificate"] = rig.world.certificate(START, incarnation=other)
        return altered(ok, **values)

    rig.server.rewrite = changing(fr.CoordHelloOk, change)
    assert refused(rig).check == "incarnation"


def recertified(rig: Rig, **changes: Any) -> Callable[[fr.CoordHelloOk], fr.CoordHelloOk]:
    return lambda ok: altered(ok, activation_certificate=rig.world.certificate(START, **changes))


@pytest.mark.req("P12-19", "P12-10", "P12-28", "P5-22")
@pytest.mark.parametrize(
    "changes",
    [
        {"witness_id": b"\xab" * 16},
        {"coordinator_id": b"\x12" * 16},
        {"epoch": 6},
        {"issued_at": int(START.wall) - 1, "expires_at": int(START.wall) + 60},
        {"issued_at": int(START.wall) - 60, "expires_at": int(START.wall)},
        {"issued_at": int(START.wall) + 6, "expires_at": int(START.wall) + 60},
    ],
    ids=["witness", "coordinator", "epoch", "61 s", "expired", "future"],
)
def test_a_certificate_that_is_not_for_this_authority_now(changes: dict[str, Any]) -> None:
    rig = Rig()
    rig.server.rewrite = changing(fr.CoordHelloOk, recertified(rig, **changes))
    assert refused(rig).check == "certificate"


@pytest.mark.req("P12-19", "P12-08")
def test_a_certificate_of_another_witness_key_or_with_one_flipped_bit() -> None:
    stranger = World(witness=seed(0x41))

    def flip(ok: fr.CoordHelloOk) -> fr.CoordHelloOk:
        image = bytearray(ok.activation_certificate.encode())
        image[60] ^= 1
        return altered(ok, activation_certificate=ActivationCertificate.decode(bytes(image)))

    rig = Rig(witness=World().pin)
    rig.server.rewrite = changing(
        fr.CoordHelloOk, lambda ok: altered(ok, activation_certificate=stranger.certificate(START))
    )
    assert refused(rig).check == "certificate"
    # byte 60 is in the incarnation, which the client compares on its own as well
    assert refused(Rig(rewrite=changing(fr.CoordHelloOk, flip))).check in ("certificate", "incarnation")


@pytest.mark.req("P12-08", "P12-19")
def test_without_any_witness_pin_nothing_is_accepted() -> None:
    assert refused(Rig(witness=None)).check == "witness"


@pytest.mark.req("P12-19", "P4-10")
def test_the_guard_is_the_hash_of_the_certified_token() -> None:
    rig = Rig().start()
    assert rig.one(ev.Ready).welcome.standing.token_sha256 == hashlib.sha256(rig.world.token).digest()


@pytest.mark.req("P1-08", "P5-22")
@pytest.mark.parametrize(
    ("changes", "check"),
    [
        ({"negotiated_capabilities": 0}, "capabilities"),
        ({"negotiated_capabilities": 3}, "capabilities"),
        ({"protocol_minor": 2}, "version"),
        ({"max_page_records": 513}, "limits"),
        ({"max_typed_payload_bytes": 131_073}, "limits"),
        ({"max_frame_bytes": 200_000}, "handshake"),
    ],
)
def test_terms_outside_of_what_was_offered(changes: dict[str, Any], check: str) -> None:
    replay = int(Capability.EVENT_REPLAY)
    world = World(capabilities=replay)
    rig = Rig(world, capabilities=replay, required=replay, rewrite=rewriting(fr.CoordHelloOk, **changes))
    assert refused(rig).check == check


@pytest.mark.req("P1-08")
def test_a_required_capability_must_be_offered() -> None:
    with pytest.raises(LocalProtocolError):
        Rig(capabilities=0, required=1)


@pytest.mark.req("W2-09", "P12-27")
def test_another_fingerprint_than_the_expected_one_is_refused_before_answering() -> None:
    error = unanswered(Rig(World(authority=seed(0x31)), authority=World().fingerprint))
    assert isinstance(error, AuthorityChanged)
    assert str(error).startswith("authority_changed: ")


def test_a_refusal_of_the_server_keeps_its_code() -> None:
    rig = Rig()
    rig.world.registry.clear()
    rig.start()
    assert isinstance(rig.closed, AuthenticationFailed)
    assert rig.pins.pins == ()


@pytest.mark.req("W3-14")
@pytest.mark.parametrize("frame", [fr.CoordPing(nonce=1), fr.Ack(request_id=1)], ids=["ping", "ack"])
def test_nothing_may_come_between_response_and_hello_ok(frame: fr.Frame) -> None:
    rig = Rig(rewrite=changing(fr.CoordHelloOk, lambda ok: frame))
    assert refused(rig).check == "handshake"


def test_a_handshake_that_never_ends_is_given_up() -> None:
    rig = Rig(handshake_seconds=2.0, rewrite=changing(fr.WorkloadChallenge, lambda challenge: None)).start()
    assert rig.session.deadline() == START.mono + 2.0
    assert not rig.at(1.9).of(ev.Closed)
    assert isinstance(rig.at(2.0).closed, CannotConnect)


@pytest.mark.parametrize("answers", [0, 1])
def test_a_close_during_the_handshake(answers: int) -> None:
    shape = fr.CoordHelloOk if answers else fr.WorkloadChallenge
    rig = Rig(rewrite=changing(shape, lambda frame: None)).start()
    rig.session.eof(rig.now)
    assert isinstance(rig.go().closed, CannotConnect)
    assert rig.pins.pins == ()


def test_proof_and_token_are_not_in_any_text() -> None:
    rig = Rig().start()
    token = rig.world.token.hex()
    shown = repr(rig.events) + repr(rig.session.welcome) + repr(rig.pins.pins)
    assert token not in shown
    assert repr(rig.world.token)[2:-1] not in shown


def test_the_session_refuses_work_before_the_handshake_and_a_second_start() -> None:
    rig = Rig()
    with pytest.raises(LocalProtocolError):
        rig.session.lookup(b"\x88" * 16)  # type: ignore[arg-type]
    with pytest.raises(LocalProtocolError):
        _ = rig.session.welcome
    rig.start()
    with pytest.raises(LocalProtocolError):
        rig.session.start(START)


def test_pins_are_asked_for_the_fingerprint_that_was_proved() -> None:
    class Asked(Pins):
        seen: list[bytes]

        def check_authority(self, fingerprint: bytes, expected: bytes | None) -> None:
            self.seen = [fingerprint]

    pins = Asked()
    rig = Rig(pins=pins).start()
    assert pins.seen == [rig.world.fingerprint]


def test_error_codes_in_the_handshake_are_fatal_whatever_they_are() -> None:
    error = fr.CoordErrorFrame(code=ErrorCode.NOT_FOUND, message="x")
    rig = Rig(rewrite=changing(fr.WorkloadChallenge, lambda challenge: error)).start()
    assert rig.session.closing
    assert rig.pins.pins == ()
