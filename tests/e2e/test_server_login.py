"""Logging in to a real coordinator over its socket: the whole handshake and what it never lets through."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from cext.frame import encode_frame
from sidecar.base.ed25519 import SigningKey, digest_text, fingerprint
from sidecar.base.secret import Secret
from sidecar.coordinator.authority.proof import (
    ChannelBinding,
    ProofRefused,
    make_response,
    uds_binding,
    verify_challenge,
)
from sidecar.coordinator.session import GENERIC_FAILURE
from sidecar.coordinator.wire import frames as fr
from sidecar.coordinator.wire.enums import ErrorCode, FrameType
from sidecar.coordinator.wire.limits import PROFILE, SERVICE
from tests.e2e.cluster import Cluster
from tests.e2e.peer import Peer, hello


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with Cluster(tmp_path_factory.mktemp("login"), certificate_seconds=30) as cluster:
        yield cluster


def generic(peer: Peer) -> None:
    """The connection ends with the one failure that tells nothing."""
    (error,) = peer.rest()
    assert error.encode() == fr.CoordErrorFrame(code=ErrorCode.AUTHENTICATION_FAILED, message=GENERIC_FAILURE).encode()


@pytest.mark.req("W3-01", "P5-01", "P5-07", "P5-08", "P5-19", "P2-02", "P2-05", "P14-03", "P5-02")
def test_a_golden_session(cluster: Cluster) -> None:
    with Peer(cluster.socket) as peer:
        peer.ping()
        challenge = peer.start(protocol_patch=9)
        assert (challenge.profile, challenge.service) == (PROFILE, SERVICE)
        key = cluster.key("reader")
        peer.send(peer.response(key, 0x3F, life=100))
        welcome = peer.expect(fr.CoordHelloOk)
        assert welcome.workload_grant.key_id == fingerprint(key.public_key)
        assert welcome.workload_grant.scopes == 0x01
        assert digest_text(fingerprint(challenge.authority_public_key)) == cluster.ready["authority_fingerprint"]
        assert welcome.coordinator_id.hex() == cluster.ready["coordinator_id"]
        assert welcome.authority_epoch == cluster.ready["epoch"]
        assert challenge.server_incarnation == welcome.incarnation_id
        assert welcome.incarnation_id == welcome.activation_certificate.incarnation_id
        assert welcome.incarnation_id.hex() == cluster.ready["incarnation_id"]
        assert welcome.activation_certificate.witness_id == cluster.provisioned.witness_id
        peer.ping()


def _binding_of(ids: list[int], nonce: bytes) -> ChannelBinding:
    return uds_binding(nonce, *ids)


@pytest.mark.req("W5-06", "W5-05", "W10-04")
def test_the_binding_is_of_the_process_that_connected(cluster: Cluster) -> None:
    with Peer(cluster.socket) as peer:
        first = hello()
        peer.send(first)
        challenge = peer.expect(fr.WorkloadChallenge)
        ids = (os.geteuid(), os.getegid(), os.getpid())
        for wrong in range(3):
            others = [value + (place == wrong) for place, value in enumerate(ids)]
            with pytest.raises(ProofRefused) as caught:
                verify_challenge(
                    challenge,
                    client_nonce=first.workload_offer.client_nonce,
                    derive_binding=partial(_binding_of, others),
                    check_pin=lambda _: None,
                )
            assert caught.value.check == "binding"


@pytest.mark.req("W5-06", "W10-04", "W10-03", "P14-04")
def test_a_proof_made_by_another_process_is_worth_nothing(cluster: Cluster) -> None:
    """A helper that holds the key signs for a socket that it did not connect itself, as a relay would."""
    code = (
        "import sys; from pathlib import Path; from sidecar.coordinator.wire import frames as fr\n"
        "from tests.e2e.peer import Peer\n"
        "peer = Peer(Path(sys.argv[1])); peer.start(); print(peer.challenge.body().hex())\n"
        "sys.stdin.readline()\n"
    )
    root = Path(__file__).parents[2]
    with subprocess.Popen(
        [sys.executable, "-c", code, str(cluster.socket)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=root
    ) as relay:
        assert relay.stdout is not None
        challenge = fr.WorkloadChallenge.decode(bytes.fromhex(relay.stdout.readline().decode()))
        response = make_response(challenge, cluster.key("admin"), scopes=1, requested_expiry=int(time.time()) + 600)
        with Peer(cluster.socket) as peer:
            peer.start()
            peer.send(response)
            generic(peer)
        relay.communicate(b"\n")


@pytest.mark.req("W3-10", "W10-03", "P14-04")
def test_a_recorded_response_is_refused_on_every_other_connection(cluster: Cluster) -> None:
    with Peer(cluster.socket) as first, Peer(cluster.socket) as second:
        first.start()
        recorded = first.response(cluster.key("admin"), 1)
        second.start()
        second.send(recorded)
        generic(second)
        first.send(recorded)
        assert first.expect(fr.CoordHelloOk)
    with Peer(cluster.socket) as third:
        third.start()
        third.send(recorded)
        generic(third)


STRANGER = b"\x55" * 32


def test_the_log_names_the_key_of_a_login_that_failed(cluster: Cluster) -> None:
    key = SigningKey(Secret(b"\x56" * 32))
    with Peer(cluster.socket) as peer:
        peer.start()
        peer.send(peer.response(key, 1))
        generic(peer)
    with Peer(cluster.socket) as peer:  # the loop has turned, and with it what the end of the first one left behind
        peer.login(cluster.key("reader"))
        peer.ping()
    assert cluster.serve is not None
    named = [line for line in cluster.serve.lines() if line.get("key_id") == digest_text(fingerprint(key.public_key))]
    assert [(line["event"], line["code"]) for line in named] == [("connection_refused", "AUTHENTICATION_FAILED")]


@pytest.mark.req("W8-02", "P5-05", "W3-15", "W10-09", "P14-04", "P2-03", "W9-07")
@pytest.mark.parametrize("case", ["unknown", "expired key", "expired request", "empty intersection", "broken proof"])
def test_failed_logins_are_byte_equal(cluster: Cluster, case: str) -> None:
    with Peer(cluster.socket) as peer:
        peer.start()
        if case == "unknown":
            response = peer.response(SigningKey(Secret(STRANGER)), 1)
        elif case == "expired key":
            response = peer.response(cluster.key("expired"), 1)
        elif case == "expired request":
            response = peer.response(cluster.key("admin"), 1, life=-10)
        elif case == "empty intersection":
            response = peer.response(cluster.key("reader"), 2)
        else:
            good = peer.response(cluster.key("admin"), 1)
            response = fr.WorkloadResponse(
                key_id=good.key_id,
                requested_scope_bytes=good.requested_scope_bytes,
                requested_expiry=good.requested_expiry,
                workload_proof=bytes(64),
            )
        peer.send(response)
        generic(peer)


@pytest.mark.req("W3-13", "P13-05")
def test_a_client_that_never_answers_is_closed(cluster: Cluster) -> None:
    with Peer(cluster.socket) as peer:
        peer.start()
        generic(peer)


@pytest.mark.req("W3-14", "P5-02", "P7-04", "P13-05")
@pytest.mark.parametrize(
    "frame",
    [fr.CoordPing(nonce=1), hello(), fr.CoordPong(nonce=1), fr.Ack(request_id=1)],
    ids=lambda f: type(f).__name__,
)
def test_nothing_comes_between_challenge_and_response(cluster: Cluster, frame: fr.Frame) -> None:
    with Peer(cluster.socket) as peer:
        peer.start()
        peer.send(frame)
        assert peer.refusal() == ErrorCode.PROTOCOL_ERROR


@pytest.mark.req("P5-03", "W3-03", "W10-01", "P14-03")
def test_another_version_is_told_so_whatever_follows_it(cluster: Cluster) -> None:
    body = bytes.fromhex("01040200000204020002") + b"\x0d\x04\x7fgarbage"
    with Peer(cluster.socket) as peer:
        peer.send(encode_frame(FrameType.COORD_HELLO, body))
        assert peer.refusal() == ErrorCode.VERSION_INCOMPATIBLE


@pytest.mark.req("P7-03", "P13-05")
@pytest.mark.parametrize("number", [n for n in FrameType if n >= 0x80 and n not in (0xC0, 0xFF)])
def test_frames_of_the_server_are_refused_from_a_client(cluster: Cluster, number: FrameType) -> None:
    with Peer(cluster.socket) as peer:
        peer.login(cluster.key("reader"))
        peer.send(encode_frame(number, b""))
        assert peer.refusal() == ErrorCode.PROTOCOL_ERROR


# What a terminal client sends first and later on its own socket: the same framing, another catalogue.
TERMINAL_FRAMES = {
    "hello": encode_frame(0x01, bytes.fromhex("0104020000020402000103040370687504040200500504020018")),
    "attach": encode_frame(0x02, bytes.fromhex("01040400000001")),
    "input": encode_frame(0x12, b"\x01\x04\x03abc"),
    "resize": encode_frame(0x13, b"\x01\x04\x02\x00\x50"),
    "detach": encode_frame(0x03, b""),
    "text": b"GET / HTTP/1.1\r\n\r\n",
}


@pytest.mark.req("P14-01", "W1-06", "P2-05", "P2-11", "P7-02")
@pytest.mark.parametrize("image", TERMINAL_FRAMES.values(), ids=TERMINAL_FRAMES)
def test_terminal_frames_are_judged_as_coordinator_frames(cluster: Cluster, image: bytes) -> None:
    with Peer(cluster.socket) as peer:
        peer.send(image)
        assert peer.refusal() in {
            ErrorCode.MALFORMED_MESSAGE,
            ErrorCode.PROTOCOL_ERROR,
            ErrorCode.FRAME_TOO_LARGE,
            ErrorCode.AUTHENTICATION_FAILED,
        }


@pytest.mark.req("W8-03", "P13-05")
def test_a_request_out_of_scope_is_refused_and_the_connection_stays(cluster: Cluster) -> None:
    with Peer(cluster.socket) as peer:
        peer.login(cluster.key("reader"))
        command = peer.create()
        peer.send(command)
        error = peer.expect(fr.CoordErrorFrame)
        assert (error.request_id, error.code) == (command.request_id, ErrorCode.SCOPE_DENIED)
        peer.ping()
    with Peer(cluster.socket) as admin:
        admin.login(cluster.key("admin"))
        assert type(admin.lookup(command.operation_id).operation).__name__ == "Unknown"


@pytest.mark.req("W1-05")
def test_a_command_kind_that_nobody_classified_is_denied(cluster: Cluster) -> None:
    with Peer(cluster.socket) as peer:
        peer.login(cluster.key("admin"))
        known = peer.create()
        peer.send(
            fr.CoordCommand(
                request_id=peer.request_id(),
                authority_guard=peer.guard,
                operation_id=known.operation_id,
                command_kind=99,
                payload=known.payload,
            )
        )
        assert peer.expect(fr.CoordErrorFrame).code == ErrorCode.CAPABILITY_REQUIRED
        assert type(peer.lookup(known.operation_id).operation).__name__ == "Unknown"


@pytest.mark.req("P13-05")
def test_an_error_from_the_client_ends_the_connection_without_an_answer(cluster: Cluster) -> None:
    with Peer(cluster.socket) as peer:
        peer.login(cluster.key("reader"))
        peer.send(fr.CoordErrorFrame(code=ErrorCode.INTERNAL, message="I am confused"))
        assert peer.rest() == []


def test_metrics_tell_how_handshakes_ended(cluster: Cluster) -> None:
    seen = cluster.metrics()
    assert seen['sidecar_handshakes_total{outcome="ok"}'] > 0
    assert seen['sidecar_handshakes_total{outcome="timeout"}'] > 0
    assert seen['sidecar_handshakes_total{outcome="authentication_failed"}'] > 0
    assert seen['sidecar_handshakes_total{outcome="version_incompatible"}'] == 1
    assert seen['sidecar_refusals_total{code="scope_denied"}'] == 1
    assert seen['sidecar_frames_total{direction="in",type="coord_hello"}'] > 10


def test_all_that_happened_here_added_no_series(cluster: Cluster, tmp_path: Path) -> None:
    with Cluster(tmp_path, certificate_seconds=30) as fresh:
        first = set(fresh.metrics())
    assert set(cluster.metrics()) == first
