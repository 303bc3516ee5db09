"""One handshake with fixed inputs (those of the golden vectors), and ways to alter it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from cext.digest import client_transcript
from sidecar.base.ed25519 import SigningKey, fingerprint
from sidecar.base.secret import Secret
from sidecar.coordinator.authority.grants import Grant, KeyRecord, Registry
from sidecar.coordinator.authority.proof import (
    ChannelBinding,
    make_challenge,
    make_response,
    uds_binding,
    verify_challenge,
    verify_response,
)
from sidecar.coordinator.wire.fields import Field, Frame
from sidecar.coordinator.wire.frames import CoordHello, CoordHelloOk, WorkloadChallenge, WorkloadResponse

GOLDEN = dict(
    line.split("\t")
    for line in (Path(__file__).parents[2] / "vectors" / "coordinator.tsv").read_text(encoding="utf-8").splitlines()
    if "\t" in line
)
AUTHORITY = SigningKey(Secret(b"\xa1" * 32))
WORKLOAD = SigningKey(Secret(b"\xa2" * 32))
OTHER = SigningKey(Secret(b"\xa3" * 32))
KEY_ID = fingerprint(WORKLOAD.public_key)
INCARNATION, CLIENT_NONCE, SERVER_NONCE = b"\x55" * 16, b"\xb1" * 32, b"\xb2" * 32
EXPIRY = 2_000_000_000
RECORD_EXPIRY = 1_950_000_000
NOW = 1_900_000_000.0
BINDING = uds_binding(SERVER_NONCE, 1000, 1000, 4242)
RECORD = KeyRecord.of(WORKLOAD.public_key, 7, RECORD_EXPIRY)
REGISTRY = Registry((RECORD, KeyRecord.of(OTHER.public_key, 7, RECORD_EXPIRY)), generation=3)


def golden_body(name: str) -> bytes:
    return bytes.fromhex(GOLDEN[name])[5:]


HELLO = CoordHello.decode(golden_body("COORD_HELLO (reference offers, caps 1f/01)"))
HELLO_OK = CoordHelloOk.decode(golden_body("COORD_HELLO_OK"))
CHALLENGE = make_challenge(HELLO, AUTHORITY, INCARNATION, SERVER_NONCE, BINDING)
RESPONSE = make_response(CHALLENGE, WORKLOAD, scopes=3, requested_expiry=EXPIRY)
CHALLENGE_FIELDS = {
    1: b"\0\0\0\x10phux-workload/v1",
    2: b"\0\0\0\x10phux-coordinator",
    3: b"\0\0",
    4: b"\0\1",
    5: CLIENT_NONCE,
    6: SERVER_NONCE,
    7: INCARNATION,
    8: b"\1",
    9: BINDING.value,
    10: AUTHORITY.public_key,
    11: CHALLENGE.authority_proof,
}
RESPONSE_FIELDS = {
    1: KEY_ID,
    2: b"\0\0\0\x08" + (3).to_bytes(8, "big"),
    3: EXPIRY.to_bytes(8, "big"),
    4: RESPONSE.workload_proof,
}


def body(fields: dict[int, bytes]) -> bytes:
    """A TLV body written by hand, so that it can hold what the encoder refuses."""

    def varint(value: int) -> bytes:
        return bytes([value]) if value < 128 else bytes([value & 127 | 128]) + varint(value >> 7)

    return b"".join(varint(number) + b"\x04" + varint(len(value)) + value for number, value in fields.items())


def names_of(frame: type[Frame]) -> list[str]:
    """Field names of a frame."""
    return [name for name, value in vars(frame).items() if isinstance(value, Field)]


def altered_challenge(**changes: Any) -> WorkloadChallenge:
    names = {name: getattr(CHALLENGE, name) for name in names_of(WorkloadChallenge)}
    return WorkloadChallenge(**{**names, **changes})


def no_pin(_: bytes) -> None:
    """Trust whatever is shown."""


def client_checks(
    challenge: WorkloadChallenge,
    *,
    client_nonce: bytes = CLIENT_NONCE,
    derive: Callable[[bytes], ChannelBinding] = lambda nonce: uds_binding(nonce, 1000, 1000, 4242),
    check_pin: Callable[[bytes], None] = no_pin,
) -> bytes:
    return verify_challenge(challenge, client_nonce=client_nonce, derive_binding=derive, check_pin=check_pin)


def server_checks(
    response: WorkloadResponse = RESPONSE,
    challenge: WorkloadChallenge = CHALLENGE,
    *,
    incarnation: bytes = INCARNATION,
    binding: ChannelBinding = BINDING,
    registry: Registry = REGISTRY,
    now: float = NOW,
) -> Grant:
    return verify_response(
        challenge,
        response,
        live_incarnation=incarnation,
        live_binding=binding,
        registry=lambda: registry,
        now=now,
    )


def signed_over(**changes: Any) -> WorkloadResponse:
    """A response whose proof was made over a transcript with something else in it; the response itself is unchanged."""
    parts: dict[str, Any] = {
        "service": b"phux-coordinator",
        "major": 0,
        "minor": 1,
        "client_nonce": CLIENT_NONCE,
        "server_nonce": SERVER_NONCE,
        "incarnation": INCARNATION,
        "binding_kind": 1,
        "binding": BINDING.value,
        "authority_key": AUTHORITY.public_key,
        "authority_proof": CHALLENGE.authority_proof,
        "key_id": KEY_ID,
        "requested_expiry": EXPIRY,
        "scope": (3).to_bytes(8, "big"),
    }
    signature = WORKLOAD.sign(client_transcript(**{**parts, **changes}))
    return WorkloadResponse.decode(body({**RESPONSE_FIELDS, 4: signature}))


def hello_ok(**changes: Any) -> CoordHelloOk:
    names = {name: getattr(HELLO_OK, name) for name in names_of(CoordHelloOk)}
    return CoordHelloOk(**{**names, **changes})
