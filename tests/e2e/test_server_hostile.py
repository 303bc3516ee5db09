"""Peers that mean harm or are broken: each costs bounded memory and hurts nobody else."""

from __future__ import annotations

import contextlib
import os
import random
import resource
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cext.frame import encode_frame
from sidecar.coordinator.wire import frames as fr
from sidecar.coordinator.wire.enums import ErrorCode, FrameType, GapReason
from sidecar.coordinator.wire.limits import QUOTAS
from tests.e2e.cluster import Cluster, Program, eventually
from tests.e2e.peer import Peer, hello

MIB = 1 << 20
MAX_UNAUTHENTICATED = 300
MAX_SOCKETS = 1100
PRINCIPAL_CONNECTIONS = QUOTAS["connections"].principal or 0


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Any:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 4096), hard))
    limits = {"max_unauthenticated": MAX_SOCKETS, "max_sockets": MAX_SOCKETS}
    with Cluster(tmp_path_factory.mktemp("hostile"), certificate_seconds=30, serve={"coordinator": limits}) as cluster:
        yield cluster
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@contextlib.contextmanager
def bystander(cluster: Cluster) -> Iterator[Peer]:
    """A well-behaved client that must be served before, while and after the attack."""
    with Peer(cluster.socket) as peer:
        peer.login(cluster.key("admin"))
        work(peer)
        yield peer
        work(peer)


def work(peer: Peer) -> None:
    command = peer.create()
    peer.send(command)
    assert peer.expect(fr.CoordCommandResult).request_id == command.request_id


def sockets(cluster: Cluster) -> float:
    seen = cluster.metrics()
    return seen['sidecar_sockets{state="handshake"}'] + seen['sidecar_sockets{state="active"}']


def rss(cluster: Cluster) -> int:
    assert cluster.serve is not None
    return cluster.serve.rss()


@contextlib.contextmanager
def crowd(cluster: Cluster, count: int, image: bytes) -> Iterator[list[socket.socket]]:
    """So many connections, each of which sends `image` and then nothing. At the end they are gone from the server."""
    with contextlib.ExitStack() as stack:
        members = []
        for _ in range(count):
            one = stack.enter_context(socket.socket(socket.AF_UNIX))
            one.connect(str(cluster.socket))  # waits while the backlog is full
            one.settimeout(20)
            with contextlib.suppress(BrokenPipeError):
                one.sendall(image)
            members.append(one)
        yield members
    eventually(lambda: sockets(cluster) <= 1)


def everything(one: socket.socket) -> bytes:
    data = b""
    with contextlib.suppress(ConnectionResetError):
        while part := one.recv(4096):
            data += part
    return data


@pytest.mark.req("P3-03", "P3-05", "P3-10", "P14-02")
def test_a_thousand_connections_that_announce_a_mebibyte_cost_nothing(cluster: Cluster) -> None:
    """1,000 MiB are announced. What is held is a thousand idle connections, whatever they announced."""
    with bystander(cluster) as peer:
        with crowd(cluster, 1000, b""):
            eventually(lambda: sockets(cluster) == 1001)
            quiet = rss(cluster)
        with crowd(cluster, 1000, (MIB).to_bytes(4, "big") + b"\x01") as announced:
            for one in announced:
                assert fr.CoordErrorFrame.decode(everything(one)[5:]).code == ErrorCode.FRAME_TOO_LARGE
            work(peer)
            assert rss(cluster) < quiet + 16 * MIB
        # The most that a handshake may announce, with next to nothing behind it.
        with crowd(cluster, 1000, (16_384).to_bytes(4, "big") + b"\x01" + b"x" * 100):
            eventually(lambda: sockets(cluster) == 1001)
            work(peer)
            assert rss(cluster) < quiet + 48 * MIB


@pytest.mark.req("P3-03", "P3-05")
def test_active_connections_that_announce_a_mebibyte_and_stall_hold_no_memory(cluster: Cluster) -> None:
    with contextlib.ExitStack() as stack:
        peers = [
            stack.enter_context(Peer(cluster.socket)).login(cluster.key("operator"), 1)
            for _ in range(PRINCIPAL_CONNECTIONS)
        ]
        before = rss(cluster)
        for peer in peers:
            peer.send((MIB).to_bytes(4, "big") + bytes([FrameType.COORD_COMMAND]))
        with bystander(cluster):
            assert rss(cluster) < before + 8 * MIB


@pytest.mark.req("P3-07", "P3-10", "P3-02", "P3-04")
@pytest.mark.parametrize(
    ("image", "code"),
    [
        (b"\x00\x00\x00\x00\x10", ErrorCode.FRAME_TOO_LARGE),
        (b"\xff\xff\xff\xff\x10", ErrorCode.FRAME_TOO_LARGE),
        (b"\x00\x10\x00\x01\x10", ErrorCode.FRAME_TOO_LARGE),
        (b"\x00\x00\xff\xff\xa1", ErrorCode.PROTOCOL_ERROR),
        (b"\x00\x00\x00\x01\x02", ErrorCode.PROTOCOL_ERROR),
        (b"\x00\x00\x00\x05\x10\x01\x04\x04\x00", ErrorCode.MALFORMED_MESSAGE),
    ],
)
def test_bad_lengths_and_types_are_refused_on_their_header(cluster: Cluster, image: bytes, code: ErrorCode) -> None:
    with Peer(cluster.socket) as peer:
        peer.login(cluster.key("reader"))
        peer.send(image)
        assert peer.refusal() == code


@pytest.mark.req("P3-07")
def test_the_selected_frame_cap_holds(cluster: Cluster) -> None:
    with Peer(cluster.socket) as peer:
        peer.login(cluster.key("reader"), max_frame_bytes=8192, max_page_bytes=4096, max_typed_payload_bytes=4096)
        peer.send((8193).to_bytes(4, "big") + bytes([FrameType.COORD_COMMAND]))
        assert peer.refusal() == ErrorCode.FRAME_TOO_LARGE


@pytest.mark.req("P3-06", "P13-05")
def test_one_byte_at_a_time_is_served_or_ended_by_the_clock(cluster: Cluster) -> None:
    with Peer(cluster.socket) as slow, bystander(cluster):
        for at, byte in enumerate(fr.CoordPing(nonce=9).encode()):
            slow.send(bytes([byte]))
            assert at == 15 or slow.quiet(0.01)
        assert slow.expect(fr.CoordPong).nonce == 9
        image = hello().encode()
        with contextlib.suppress(BrokenPipeError):
            for byte in image[:-1]:
                slow.send(bytes([byte]))
                if not slow.quiet(0.2):
                    break
        assert slow.refusal() == ErrorCode.PROTOCOL_ERROR


def test_peers_that_die_in_the_middle_of_a_frame_leave_nothing(cluster: Cluster) -> None:
    serve = cluster.serve
    assert serve is not None
    image = hello().encode()
    with bystander(cluster):
        before = serve.descriptors()
        for at in range(1, len(image), 7):
            with Peer(cluster.socket) as peer:
                peer.send(image[:at])
        for _ in range(10):
            with Peer(cluster.socket) as peer:
                peer.login(cluster.key("operator"), 1)
                peer.subscribe()
                peer.send(encode_frame(FrameType.COORD_COMMAND, bytes(50))[:-3])
                peer.reset()
        eventually(lambda: sockets(cluster) <= 1)
        # The last question for the metrics holds a descriptor for a moment longer than its answer takes.
        eventually(lambda: serve.descriptors() <= before)
        # Their principal has its whole share of connections again.
        with contextlib.ExitStack() as stack:
            for _ in range(PRINCIPAL_CONNECTIONS):
                stack.enter_context(Peer(cluster.socket)).login(cluster.key("operator"), 1).ping()


@pytest.mark.req("P14-02", "P13-05")
def test_random_bytes_never_break_the_server(cluster: Cluster) -> None:
    dice = random.Random(20260903)
    with bystander(cluster) as peer:
        for round_ in range(150):
            noise = dice.randbytes(dice.randrange(1, 400))
            with Peer(cluster.socket) as one, contextlib.suppress(BrokenPipeError, ConnectionResetError):
                if round_ % 3 == 0:
                    one.login(cluster.key("operator"), 1)
                    noise = encode_frame(dice.choice([0x10, 0x11, 0x20, 0x23, 0x24, 0x25]), noise)
                one.send(noise)
                one.sock.shutdown(socket.SHUT_WR)
                for frame in one.rest():
                    assert isinstance(frame, fr.CoordErrorFrame | fr.AuthorityRenewed)
            if round_ % 30 == 0:
                work(peer)
    assert cluster.serve is not None
    assert not [line for line in cluster.serve.lines() if line["event"] == "internal_failure"]


@pytest.mark.req("P3-37")
def test_a_stalled_subscription_still_gets_pong_gap_and_error(cluster: Cluster) -> None:
    """Its queue is full for want of credit; the reserved lane is not."""
    with bystander(cluster) as busy, Peer(cluster.socket) as stalled:
        stalled.login(cluster.key("operator"), 1)
        subscription = stalled.subscribe(after=0, count=0, nbytes=0)
        gap: fr.Gap | None = None
        while gap is None:
            busy.send(*[busy.create() for _ in range(64)])
            for _ in range(64):
                busy.expect(fr.CoordCommandResult)
            stalled.send(fr.CoordPing(nonce=5))
            frame = stalled.next()
            while not isinstance(frame, fr.CoordPong):
                assert isinstance(frame, fr.Gap | fr.AuthorityRenewed)
                gap = frame if isinstance(frame, fr.Gap) else gap
                frame = stalled.next()
        assert (gap.subscription_id, gap.reason) == (subscription, GapReason.QUEUE_OVERFLOW)
        stalled.send(encode_frame(FrameType.COORD_EVENT, b""))
        assert stalled.refusal() == ErrorCode.PROTOCOL_ERROR


def test_a_peer_that_stops_reading_costs_bounded_memory(cluster: Cluster) -> None:
    """It asks for pings and events without end and reads none of them."""
    with bystander(cluster) as busy, Peer(cluster.socket) as deaf:
        deaf.login(cluster.key("operator"), 1)
        deaf.subscribe(count=4096, nbytes=8 * MIB)
        document = b'{"x":"' + b"y" * 60_000 + b'"}'
        before = rss(cluster)
        deaf.sock.settimeout(0.3)
        pings = fr.CoordPing(nonce=1).encode() * 1000
        taken = 0
        with contextlib.suppress(TimeoutError):
            while taken < 64 * MIB:
                deaf.sock.sendall(pings)
                taken += len(pings)
        assert taken < 8 * MIB, "it is read although it does not read"
        started = time.monotonic()
        for _ in range(100):
            busy.send(busy.create(document))
            busy.expect(fr.CoordCommandResult)
        assert time.monotonic() - started < 60
        # 6 MB of documents are state and log of the authority; the deaf peer may add its buffers and queue alone.
        assert rss(cluster) < before + 64 * MIB
        # It reads again: everything that was kept for it comes, in order, or a gap says that it did not.
        deaf.sock.settimeout(20)
        seen = 0
        while seen < 100:
            frame = deaf.next()
            if isinstance(frame, fr.CoordEvent):
                seen += 1
            elif isinstance(frame, fr.Gap):
                break
            else:
                assert isinstance(frame, fr.CoordPong | fr.AuthorityRenewed)


@pytest.mark.req("P2-06", "W8-05")
def test_many_sockets_of_one_user_stop_at_the_limit(tmp_path: Path) -> None:
    limits = {"max_unauthenticated": MAX_UNAUTHENTICATED, "max_sockets": MAX_UNAUTHENTICATED + 50}
    with (
        Cluster(tmp_path, certificate_seconds=30, serve={"coordinator": limits}) as cluster,
        bystander(cluster) as peer,
    ):
        with crowd(cluster, 500, b"") as many:
            ends = [everything(one) for one in many[MAX_UNAUTHENTICATED:]]
            assert ends == [b""] * (500 - MAX_UNAUTHENTICATED)
            work(peer)
            assert cluster.metrics()['sidecar_sockets_refused_total{reason="unauthenticated_limit"}'] == len(ends)
        with Peer(cluster.socket) as late:
            late.login(cluster.key("reader")).ping()


def test_the_log_of_an_attack_is_bounded(cluster: Cluster) -> None:
    assert cluster.serve is not None
    assert len(cluster.serve.stderr) < 256 * 1024
    assert os.path.exists(cluster.socket)


@pytest.mark.req("P2-06", "P12-15")
def test_where_descriptors_are_few_peers_never_take_those_of_the_renewal(tmp_path: Path) -> None:
    """The process may open 200; 128 are kept for itself, and of the rest strangers get half."""
    with Cluster(tmp_path, certificate_seconds=3) as cluster:
        cluster.stop()
        cluster.serve = few = Program(
            tmp_path / "few.log", "serve", "--config", str(cluster.serve_config), descriptors=200
        )
        cluster.ready = few.wait_ready()
        with crowd(cluster, 100, b"") as many:
            assert [everything(one) for one in many[36:]] == [b""] * 64
            assert few.descriptors() < 128
            eventually(lambda: cluster.metrics().get('sidecar_authority_renewals_total{outcome="ok"}'))
        assert not [line for line in few.lines() if line["event"] == "renewal_failed"]
        assert cluster.stop() == 0
