"""What the server checks: every altered component, the order of the checks, and one way to fail."""

from __future__ import annotations

import ast
import hashlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from sidecar.base import ed25519
from sidecar.base.ed25519 import SigningKey, fingerprint
from sidecar.base.secret import Secret
from sidecar.coordinator.authority import proof as module
from sidecar.coordinator.authority.grants import EMPTY, Grant, Registry
from sidecar.coordinator.authority.proof import ChannelBinding, make_challenge, make_response, uds_binding
from sidecar.coordinator.wire.enums import ChannelBinding as Kind
from sidecar.coordinator.wire.enums import ErrorCode
from sidecar.coordinator.wire.errors import AuthenticationFailed, MalformedMessage
from sidecar.coordinator.wire.frames import CoordErrorFrame, WorkloadResponse
from tests.oracles import ed25519 as oracle
from tests.unit.authority.handshake import (
    AUTHORITY,
    BINDING,
    CHALLENGE,
    EXPIRY,
    GOLDEN,
    HELLO,
    INCARNATION,
    KEY_ID,
    NOW,
    OTHER,
    RECORD,
    RECORD_EXPIRY,
    REGISTRY,
    RESPONSE,
    RESPONSE_FIELDS,
    SERVER_NONCE,
    WORKLOAD,
    altered_challenge,
    body,
    server_checks,
    signed_over,
)


@pytest.mark.req("W4-05", "W6-03", "W6-04", "P6-06", "W10-08")
def test_a_good_response_earns_a_bound_grant() -> None:
    grant = server_checks()
    assert grant == Grant(
        key_id=KEY_ID,
        scopes=3,
        expires_at=RECORD_EXPIRY,
        generation=3,
        incarnation_id=INCARNATION,
        binding=BINDING.value,
        authority_fingerprint=bytes.fromhex(GOLDEN["authority fingerprint"]),
    )
    over = make_response(CHALLENGE, WORKLOAD, scopes=63, requested_expiry=RECORD_EXPIRY - 9)
    assert server_checks(over).scopes == 7
    assert server_checks(over).expires_at == RECORD_EXPIRY - 9


def response(key: SigningKey = WORKLOAD, scopes: int = 3, expiry: int = EXPIRY) -> WorkloadResponse:
    return make_response(CHALLENGE, key, scopes=scopes, requested_expiry=expiry)


def registered(**changes: Any) -> Registry:
    return Registry((replace(RECORD, **changes),), generation=3)


@dataclass(frozen=True)
class Failure:
    """One way to fail: what differs from the good login."""

    response: WorkloadResponse = RESPONSE
    registry: Registry = REGISTRY
    incarnation: bytes = INCARNATION
    binding: ChannelBinding = BINDING


FAILURES = {
    "unknown key": Failure(response(SigningKey(Secret(b"\xa9" * 32)))),
    "nobody registered": Failure(registry=EMPTY),
    "revoked key": Failure(registry=registered(revoked_at=1)),
    "expired key": Failure(registry=registered(expires_at=int(NOW))),
    "key of another service": Failure(registry=registered(service="phux-terminal")),
    "failed proof": Failure(WorkloadResponse.decode(body({**RESPONSE_FIELDS, 4: bytes(64)}))),
    "proof by another key": Failure(
        WorkloadResponse.decode(body({**RESPONSE_FIELDS, 4: response(OTHER).workload_proof}))
    ),
    "key id of another registered key": Failure(
        WorkloadResponse.decode(body({**RESPONSE_FIELDS, 1: fingerprint(OTHER.public_key)}))
    ),
    "empty intersection": Failure(response(scopes=0x38)),
    "no scope requested": Failure(response(scopes=0)),
    "requested expiry now": Failure(response(expiry=int(NOW))),
    "requested expiry past": Failure(response(expiry=0)),
    "other incarnation": Failure(incarnation=b"\x56" * 16),
    "other connection": Failure(binding=uds_binding(SERVER_NONCE, 1000, 1000, 4243)),
    "other binding kind": Failure(binding=ChannelBinding(Kind.TLS_EXPORTER, BINDING.value)),
    "transcript for phux-terminal": Failure(signed_over(service=b"phux-terminal")),
}


@pytest.mark.req("W4-05", "W4-06", "W4-07", "W4-08", "W6-02", "W1-03", "W10-04", "W10-08", "W10-09")
@pytest.mark.parametrize("failure", FAILURES.values(), ids=FAILURES)
def test_every_failure_is_the_same_failure(failure: Failure) -> None:
    with pytest.raises(AuthenticationFailed) as refused:
        server_checks(
            failure.response,
            registry=failure.registry,
            incarnation=failure.incarnation,
            binding=failure.binding,
        )
    error = refused.value
    assert error.fatal
    sent = CoordErrorFrame(code=error.code, message=error.message).encode()
    assert sent == CoordErrorFrame(code=ErrorCode.AUTHENTICATION_FAILED, message="").encode()
    assert error.__cause__ is None
    assert error.__context__ is None


@pytest.mark.req("W4-09", "W4-06")
@pytest.mark.parametrize("failure", FAILURES.values(), ids=FAILURES)
def test_every_failure_costs_one_verification(failure: Failure, monkeypatch: pytest.MonkeyPatch) -> None:
    """One strict verification over a transcript of full length, whatever failed and whoever is unknown."""
    done: list[tuple[int, int, int]] = []
    real = ed25519.verify

    def counting(public_key: bytes, message: bytes, signature: bytes) -> None:
        done.append((len(public_key), len(message), len(signature)))
        real(public_key, message, signature)

    monkeypatch.setattr(module, "verify", counting)
    with pytest.raises(AuthenticationFailed):
        server_checks(
            failure.response,
            registry=failure.registry,
            incarnation=failure.incarnation,
            binding=failure.binding,
        )
    assert done == [(32, 313, 64)]


@pytest.mark.req("W4-06", "W4-07")
def test_the_live_values_are_compared_before_the_signature(monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    real_matches, real_verify, real_check = ChannelBinding.matches, ed25519.verify, ed25519.check_public_key

    def matches(self: ChannelBinding, kind: int, value: bytes) -> bool:
        order.append("binding")
        return real_matches(self, kind, value)

    def check(key: bytes) -> None:
        order.append("strict key")
        real_check(key)

    def verify(public_key: bytes, message: bytes, signature: bytes) -> None:
        order.append("verify")
        real_verify(public_key, message, signature)

    monkeypatch.setattr(ChannelBinding, "matches", matches)
    monkeypatch.setattr(module, "check_public_key", check)
    monkeypatch.setattr(module, "verify", verify)
    server_checks()
    assert order == ["binding", "strict key", "verify"]


@pytest.mark.req("W4-09")
def test_knowing_the_dummy_key_buys_nothing() -> None:
    """The seed of the stand-in is public; a proof by it names an unknown key like any other."""
    dummy = SigningKey(Secret(hashlib.sha256(b"sidecar: stands in for an unknown workload key").digest()))
    with pytest.raises(AuthenticationFailed):
        server_checks(response(dummy))


@pytest.mark.req("W4-07", "W10-05")
def test_a_weak_key_in_a_snapshot_is_refused_at_login_too() -> None:
    """Such a record cannot come from a file; the check at login does not rely on that."""
    for point in oracle.small_points():
        weak = oracle.encode(point)
        record = replace(RECORD, public_key=weak, key_id=fingerprint(weak))
        fields = {**RESPONSE_FIELDS, 1: record.key_id, 4: oracle.encode(oracle.IDENTITY) + bytes(32)}
        with pytest.raises(AuthenticationFailed):
            server_checks(WorkloadResponse.decode(body(fields)), registry=Registry((record,), 3))


@pytest.mark.req("W4-07")
def test_the_key_id_is_derived_from_the_key_and_not_believed() -> None:
    """A snapshot that files a key under a foreign id: the signature is good, the id is not that of the key."""
    foreign = fingerprint(OTHER.public_key)
    proof = signed_over(key_id=foreign).workload_proof
    claim = WorkloadResponse.decode(body({**RESPONSE_FIELDS, 1: foreign, 4: proof}))
    with pytest.raises(AuthenticationFailed):
        server_checks(claim, registry=Registry((replace(RECORD, key_id=foreign),), 3))


@pytest.mark.req("W4-10", "W4-04", "W10-04", "W10-05")
def test_no_bit_of_a_response_can_change() -> None:
    for number, value in RESPONSE_FIELDS.items():
        for bit in range(8 * len(value)):
            changed = (int.from_bytes(value, "big") ^ 1 << bit).to_bytes(len(value), "big")
            with pytest.raises((MalformedMessage, AuthenticationFailed)):
                server_checks(WorkloadResponse.decode(body({**RESPONSE_FIELDS, number: changed})))


@pytest.mark.req("W4-10", "W4-03", "W4-05", "W10-04")
@pytest.mark.parametrize(
    "changes",
    [
        {"service": b"phux-terminal"},
        {"service": b"Phux-coordinator"},
        {"major": 1},
        {"minor": 2},
        {"client_nonce": b"\xc1" * 32},
        {"server_nonce": b"\xc2" * 32},
        {"incarnation": b"\x56" * 16},
        {"binding_kind": 0},
        {"binding": b"\xc3" * 32},
        {"authority_key": OTHER.public_key},
        {"authority_proof": bytes(64)},
        {"key_id": fingerprint(OTHER.public_key)},
        {"requested_expiry": EXPIRY - 1},
        {"scope": (1).to_bytes(8, "big")},
        {"scope": b"\3"},
    ],
    ids=repr,
)
def test_the_workloads_proof_covers_each_component(changes: dict[str, Any]) -> None:
    assert server_checks(signed_over()).key_id == KEY_ID
    with pytest.raises(AuthenticationFailed):
        server_checks(signed_over(**changes))


@pytest.mark.req("W4-05", "W10-04")
@pytest.mark.parametrize(
    "changes",
    [
        {"client_nonce": b"\xc1" * 32},
        {"server_nonce": b"\xc2" * 32},
        {"server_incarnation": b"\x56" * 16},
        {"channel_binding": b"\xc3" * 32},
        {"channel_binding_kind": Kind.TLS_EXPORTER},
        {"authority_public_key": OTHER.public_key},
        {"authority_proof": bytes(64)},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_the_transcript_is_rebuilt_from_the_retained_challenge(changes: dict[str, Any]) -> None:
    """The response answers another challenge than the retained one: relayed, replayed or for another authority."""
    retained = altered_challenge(**changes)
    with pytest.raises(AuthenticationFailed):
        server_checks(
            RESPONSE,
            retained,
            incarnation=retained.server_incarnation,
            binding=ChannelBinding(retained.channel_binding_kind, retained.channel_binding),
        )


@pytest.mark.req("W3-05", "W3-06", "W3-07", "P6-01", "P6-02", "P6-03", "W10-07")
@pytest.mark.parametrize(
    "image",
    [
        b"",
        b"\0\0\0\0",
        b"\0\0\0\x07" + bytes(7),
        b"\0\0\0\x09" + bytes(9),
        b"\0\0\0\x08" + bytes(7),
        b"\0\0\0\x08" + bytes(7) + b"\3\0",
        b"\0\0\x80\0" + bytes(32_768),
        b"\0\0\x80\x01" + bytes(32_769),
        b"\0\0\0\x08" + (0x40).to_bytes(8, "big"),
        b"\0\0\0\x08" + (1 << 63 | 3).to_bytes(8, "big"),
        (3).to_bytes(8, "big"),
        b"\0\0\0\x12terminal:read,writ",
    ],
    ids=lambda image: f"{len(image)} bytes {image[:4].hex()}",
)
def test_scope_images_outside_the_schema_never_reach_the_proof(image: bytes) -> None:
    with pytest.raises(MalformedMessage) as refused:
        WorkloadResponse.decode(body({**RESPONSE_FIELDS, 2: image, 4: bytes(64)}))
    assert refused.value.fatal


@pytest.mark.req("W6-04", "W10-03")
def test_a_response_serves_one_challenge_only() -> None:
    fresh = make_challenge(HELLO, AUTHORITY, INCARNATION, b"\xc2" * 32, uds_binding(b"\xc2" * 32, 1000, 1000, 4242))
    with pytest.raises(AuthenticationFailed):
        server_checks(RESPONSE, fresh, binding=uds_binding(b"\xc2" * 32, 1000, 1000, 4242))


@pytest.mark.req("W2-05")
@pytest.mark.parametrize("name", ["proof", "grants", "registry", "keyfile"])
def test_digests_and_bindings_are_compared_in_constant_time_only(name: str) -> None:
    """No == or != in these modules has a digest, nonce, binding or proof on either side."""
    tree = ast.parse(Path(f"sidecar/coordinator/authority/{name}.py").read_text(encoding="utf-8"))
    judged = {"key_id", "fingerprint", "authority_fingerprint", "client_nonce", "channel_binding", "authority_proof"}
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare) and any(isinstance(operator, ast.Eq | ast.NotEq) for operator in node.ops):
            compared = [part for part in (node.left, *node.comparators) if not ast.unparse(part).startswith("len(")]
            sides = [side for part in compared for side in ast.walk(part)]
            names = {getattr(side, "attr", getattr(side, "id", "")) for side in sides}
            assert not names & judged, f"{name}.py:{node.lineno}"
