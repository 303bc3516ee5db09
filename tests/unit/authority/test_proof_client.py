"""What the client checks: golden bytes, the binding, the challenge in order, the grant."""

from __future__ import annotations

import hashlib
import os
import socket
import struct
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.base.ed25519 import fingerprint
from sidecar.coordinator.authority.proof import (
    ChannelBinding,
    ProofRefused,
    check_grant,
    check_nonce,
    exporter_context,
    grant_record,
    make_challenge,
    uds_binding,
)
from sidecar.coordinator.wire.enums import ChannelBinding as Kind
from sidecar.coordinator.wire.errors import LocalProtocolError, MalformedMessage
from sidecar.coordinator.wire.frames import CoordHello, WorkloadChallenge
from sidecar.coordinator.wire.ids import IncarnationId
from tests.oracles import ed25519 as oracle
from tests.unit.authority.handshake import (
    AUTHORITY,
    BINDING,
    CHALLENGE,
    CHALLENGE_FIELDS,
    CLIENT_NONCE,
    EXPIRY,
    GOLDEN,
    HELLO,
    HELLO_OK,
    INCARNATION,
    NOW,
    OTHER,
    RESPONSE,
    RESPONSE_FIELDS,
    SERVER_NONCE,
    altered_challenge,
    body,
    client_checks,
    golden_body,
    hello_ok,
    server_checks,
)

# ---- golden bytes ----


@pytest.mark.req("W1-01", "W1-03", "W1-08", "W4-01", "W4-02", "W5-06", "W5-08", "W7-01")
def test_the_golden_challenge() -> None:
    assert CHALLENGE.encode().hex() == GOLDEN["WORKLOAD_CHALLENGE"]
    assert CHALLENGE.authority_proof.hex() == GOLDEN["authority_proof"]
    assert bytes(CHALLENGE.raw("profile")) == CHALLENGE_FIELDS[1]
    assert body(CHALLENGE_FIELDS) == golden_body("WORKLOAD_CHALLENGE")


@pytest.mark.req("W4-03", "W4-04", "W7-02", "P6-01")
def test_the_golden_response() -> None:
    assert RESPONSE.encode().hex() == GOLDEN["WORKLOAD_RESPONSE"]
    assert RESPONSE.workload_proof.hex() == GOLDEN["workload_proof"]
    assert RESPONSE.key_id.hex() == GOLDEN["workload key_id"]
    assert body(RESPONSE_FIELDS) == golden_body("WORKLOAD_RESPONSE")


@pytest.mark.req("W4-01", "W4-02", "W5-01")
def test_the_golden_proof_over_tls() -> None:
    exported = bytes.fromhex(GOLDEN["TLS-Exporter over exporter_master_secret c3*32 (SHA-256 suite)"])
    binding = ChannelBinding(Kind.TLS_EXPORTER, exported)
    challenge = make_challenge(HELLO, AUTHORITY, INCARNATION, SERVER_NONCE, binding)
    assert challenge.authority_proof.hex() == GOLDEN["authority_proof (TLS)"]


@pytest.mark.req("W5-03", "W1-07")
def test_the_tls_context() -> None:
    assert exporter_context().hex() == GOLDEN["tls-context"]


@pytest.mark.req("W5-08", "W1-07")
def test_the_uds_binding() -> None:
    preimage = b"phux-workload/v1\0uds-peer\0" + SERVER_NONCE + struct.pack(">QQQ", 1000, 1000, 4242)
    assert BINDING.value == hashlib.sha256(preimage).digest()
    assert BINDING.value.hex() == GOLDEN["uds-peer channel_binding"]
    assert int(BINDING.kind) == 1


@pytest.mark.req("W7-05")
def test_the_golden_grant_record() -> None:
    grant = server_checks()
    record = grant_record(replace(grant, expires_at=1_950_000_000))
    assert record.encode().hex() == GOLDEN["WorkloadGrant image"]


# ---- the binding ----


@pytest.mark.req("W5-10", "W5-08")
@given(
    first=st.tuples(st.binary(min_size=32, max_size=32).filter(any), *[st.integers(1, 2**32)] * 3),
    second=st.tuples(st.binary(min_size=32, max_size=32).filter(any), *[st.integers(1, 2**32)] * 3),
)
def test_every_input_of_the_uds_binding_counts(
    first: tuple[bytes, int, int, int], second: tuple[bytes, int, int, int]
) -> None:
    assert (uds_binding(*first) == uds_binding(*second)) == (first == second)
    nonce, uid, gid, pid = first
    others = [(nonce, uid + 1, gid, pid), (nonce, uid, gid + 1, pid), (nonce, uid, gid, pid + 1)]
    assert uds_binding(*first) not in [uds_binding(*other) for other in others]


@pytest.mark.req("W5-10", "W5-09", "W3-08")
@pytest.mark.parametrize(
    ("nonce", "uid", "gid", "pid"),
    [
        (SERVER_NONCE, 1000, 1000, 0),
        (SERVER_NONCE, 1000, 1000, -1),
        (SERVER_NONCE, -1, 1000, 1),
        (SERVER_NONCE, 1000, -1, 1),
        (bytes(32), 1000, 1000, 1),
        (b"", 1000, 1000, 1),
        (SERVER_NONCE[:31], 1000, 1000, 1),
    ],
)
def test_a_binding_without_all_credentials_and_a_nonce_does_not_exist(
    nonce: bytes, uid: int, gid: int, pid: int
) -> None:
    with pytest.raises(ValueError, match=r"not all known|nonce"):
        uds_binding(nonce, uid, gid, pid)


@pytest.mark.req("W5-10")
@pytest.mark.parametrize("value", [b"", b"127.0.0.1:4222", bytes(31), bytes(33)])
def test_a_binding_has_32_bytes(value: bytes) -> None:
    with pytest.raises(ValueError, match="32 bytes"):
        ChannelBinding(Kind.UDS_PEER, value)


CONNECT = """
import os, socket, sys
from sidecar.coordinator.authority.proof import uds_binding
with socket.socket(socket.AF_UNIX) as connection:
    connection.connect(sys.argv[1])
    nonce = connection.recv(32)
    connection.sendall(uds_binding(nonce, os.geteuid(), os.getegid(), os.getpid()).value)
"""


@pytest.mark.req("W5-06", "W5-08")
def test_both_ends_of_a_real_socket_derive_the_same_binding(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "s"))
        listener.listen()
        with subprocess.Popen([sys.executable, "-c", CONNECT, str(tmp_path / "s")]) as peer:
            connection, _ = listener.accept()
            with connection:
                pid, uid, gid = struct.unpack("iII", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
                assert pid == peer.pid
                connection.sendall(SERVER_NONCE)
                assert connection.recv(32) == uds_binding(SERVER_NONCE, uid, gid, pid).value
            assert peer.wait() == 0


# ---- the server's challenge ----


@pytest.mark.req("W3-08")
def test_zero_nonces_and_incarnations_cannot_be_sent() -> None:
    for incarnation, nonce in [(bytes(16), SERVER_NONCE), (INCARNATION, bytes(32))]:
        with pytest.raises(LocalProtocolError):
            make_challenge(HELLO, AUTHORITY, incarnation, nonce, BINDING)
    for bad in (bytes(32), b"", b"x" * 31):
        with pytest.raises(ValueError, match="nonce"):
            check_nonce(bad)
    check_nonce(os.urandom(32))


@pytest.mark.req("W3-08", "W10-07")
def test_a_zero_client_nonce_is_refused() -> None:
    data = golden_body("COORD_HELLO (reference offers, caps 1f/01)")
    assert CLIENT_NONCE in data
    with pytest.raises(MalformedMessage):
        CoordHello.decode(data.replace(CLIENT_NONCE, bytes(32)))


# ---- the client's checks ----


@pytest.mark.req("W3-19", "W3-09", "W2-01")
def test_a_good_challenge_gives_the_fingerprint() -> None:
    seen: list[bytes] = []
    assert client_checks(CHALLENGE, check_pin=seen.append).hex() == GOLDEN["authority fingerprint"]
    assert [digest.hex() for digest in seen] == [GOLDEN["authority fingerprint"]]


@pytest.mark.req("W1-01", "W1-03", "W5-01", "W3-19", "W10-02", "W10-07")
@pytest.mark.parametrize(
    "changes",
    [
        {1: b"\0\0\0\x10phux-workload/v2"},
        {1: b"\0\0\0\x10PHUX-workload/v1"},
        {2: b"\0\0\0\x0dphux-terminal"},
        {2: b"\0\0\0\x10Phux-coordinator"},
        {2: b"\0\0\0\x00"},
        {2: b"\0\0\0\x10phux-coordinato\0"},
        {5: bytes(32)},
        {6: bytes(32)},
        {7: bytes(16)},
        {8: b"\2"},
        {8: b"\xff"},
        {9: b""},
        {9: BINDING.value[:31]},
        {10: AUTHORITY.public_key + b"\0"},
        {12: b"\0"},
    ],
    ids=repr,
)
def test_a_challenge_outside_the_schema_is_never_looked_at(changes: dict[int, bytes]) -> None:
    assert WorkloadChallenge.decode(body(CHALLENGE_FIELDS)).encode() == CHALLENGE.encode()
    with pytest.raises(MalformedMessage):
        WorkloadChallenge.decode(body({**CHALLENGE_FIELDS, **changes}))


@pytest.mark.req("W3-19", "W3-09", "W5-02", "W5-07", "W10-04", "W10-05")
def test_the_clients_checks_come_in_order() -> None:
    """Everything is wrong at once; repairing one thing after another brings up the next check of the list."""
    weak = bytes(32)

    def refuse_pin(_: bytes) -> None:
        raise PermissionError

    wrong: dict[str, Any] = {
        "negotiated_minor": 2,
        "client_nonce": b"\xc1" * 32,
        "channel_binding_kind": Kind.TLS_EXPORTER,
        "channel_binding": bytes(32),
        "authority_public_key": weak,
        "authority_proof": bytes(64),
    }
    steps: list[tuple[str, list[str]]] = [
        ("version", ["negotiated_minor"]),
        ("nonce", ["client_nonce"]),
        ("binding", ["channel_binding"]),  # value right, kind still wrong
        ("binding", ["channel_binding_kind"]),
        ("authority_key", ["authority_public_key"]),
    ]
    for check, repair in steps:
        with pytest.raises(ProofRefused) as refused:
            client_checks(altered_challenge(**wrong), check_pin=refuse_pin)
        assert refused.value.check == check
        for name in repair:
            del wrong[name]
    assert list(wrong) == ["authority_proof"]
    with pytest.raises(PermissionError):
        client_checks(altered_challenge(**wrong), check_pin=refuse_pin)
    with pytest.raises(ProofRefused) as refused:
        client_checks(altered_challenge(**wrong))
    assert refused.value.check == "proof"
    client_checks(altered_challenge())


@pytest.mark.req("W3-19", "W10-04")
@pytest.mark.parametrize(("major", "minor"), [(1, 1), (0, 0), (0, 2)])
def test_another_version_is_refused(major: int, minor: int) -> None:
    with pytest.raises(ProofRefused) as refused:
        client_checks(altered_challenge(negotiated_major=major, negotiated_minor=minor))
    assert refused.value.check == "version"


@pytest.mark.req("W5-07", "W10-04")
@pytest.mark.parametrize("ids", [(1001, 1000, 4242), (1000, 1001, 4242), (1000, 1000, 4243)])
def test_a_server_that_saw_other_credentials_is_refused(ids: tuple[int, int, int]) -> None:
    with pytest.raises(ProofRefused) as refused:
        client_checks(CHALLENGE, derive=lambda nonce: uds_binding(nonce, *ids))
    assert refused.value.check == "binding"


@pytest.mark.req("W5-09", "W5-10")
def test_a_client_without_a_binding_of_its_own_refuses() -> None:
    with pytest.raises(ProofRefused) as refused:
        client_checks(CHALLENGE, derive=lambda nonce: uds_binding(nonce, 1000, 1000, 0))
    assert refused.value.check == "binding"


@pytest.mark.req("W10-05", "W3-19")
@pytest.mark.parametrize("key", [oracle.encode(point) for point in oracle.small_points()] + [b"\xff" * 32])
def test_a_weak_authority_key_is_refused_before_the_pin(key: bytes) -> None:
    def never(_: bytes) -> None:
        pytest.fail("the pin was asked")

    with pytest.raises(ProofRefused) as refused:
        client_checks(altered_challenge(authority_public_key=key), check_pin=never)
    assert refused.value.check == "authority_key"


@pytest.mark.req("W4-10", "W4-02", "W3-19", "W10-04")
def test_no_bit_of_a_challenge_can_change() -> None:
    """Every bit of every value: outside the schema, or refused by a check. The client's inputs stay what they are."""
    for number, value in CHALLENGE_FIELDS.items():
        for bit in range(8 * len(value)):
            changed = (int.from_bytes(value, "big") ^ 1 << bit).to_bytes(len(value), "big")
            with pytest.raises((MalformedMessage, ProofRefused)):
                client_checks(WorkloadChallenge.decode(body({**CHALLENGE_FIELDS, number: changed})))


@pytest.mark.req("W4-10", "W4-01")
@pytest.mark.parametrize(
    "changes",
    [
        {"client_nonce": b"\xc1" * 32},
        {"server_nonce": b"\xc2" * 32},
        {"server_incarnation": b"\x56" * 16},
        {"channel_binding": b"\xc3" * 32},
        {"channel_binding_kind": Kind.TLS_EXPORTER},
        {"authority_public_key": OTHER.public_key},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_the_authoritys_proof_covers_each_component(changes: dict[str, Any]) -> None:
    """A client whose own inputs agree with the altered value still sees a proof that does not fit."""
    challenge = altered_challenge(**changes)
    with pytest.raises(ProofRefused) as refused:
        client_checks(
            challenge,
            client_nonce=challenge.client_nonce,
            derive=lambda _: ChannelBinding(challenge.channel_binding_kind, challenge.channel_binding),
        )
    assert refused.value.check == "proof"


# ---- the client's checks of its grant ----


@pytest.mark.req("W7-06", "W7-07")
def test_the_golden_grant_is_accepted() -> None:
    check_grant(CHALLENGE, HELLO_OK, RESPONSE, now=NOW)


@pytest.mark.req("W7-07")
@pytest.mark.parametrize(
    "changes",
    [
        {"key_id": fingerprint(OTHER.public_key)},
        {"authority_fingerprint": fingerprint(OTHER.public_key)},
        {"scopes": 0},
        {"scopes": 7},
        {"scopes": 0x23},
        {"expires_at": EXPIRY + 1},
        {"expires_at": int(NOW)},
        {"expires_at": 0},
    ],
    ids=repr,
)
def test_a_grant_beyond_the_request_is_refused(changes: dict[str, Any]) -> None:
    grant = replace(HELLO_OK.workload_grant, **changes)
    with pytest.raises(ProofRefused) as refused:
        check_grant(CHALLENGE, hello_ok(workload_grant=grant), RESPONSE, now=NOW)
    assert refused.value.check == "grant"


@pytest.mark.req("W7-07")
def test_a_narrower_grant_is_accepted() -> None:
    grant = replace(HELLO_OK.workload_grant, scopes=HELLO_OK.workload_grant.scopes.WORK_READ, expires_at=int(NOW) + 1)
    check_grant(CHALLENGE, hello_ok(workload_grant=grant), RESPONSE, now=NOW)


@pytest.mark.req("W7-06")
def test_another_incarnation_in_hello_ok_or_certificate_is_refused() -> None:
    certificate = replace(HELLO_OK.activation_certificate, incarnation_id=IncarnationId(b"\x56" * 16))
    changes: list[dict[str, Any]] = [{"incarnation_id": b"\x56" * 16}, {"activation_certificate": certificate}]
    for change in [*changes, changes[0] | changes[1]]:
        with pytest.raises(ProofRefused) as refused:
            check_grant(CHALLENGE, hello_ok(**change), RESPONSE, now=NOW)
        assert refused.value.check == "incarnation"
