"""The witness on a real socket, among peers that behave and peers that do not."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import socket
import stat
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import uvloop

from sidecar.base.unixsocket import SocketFile
from sidecar.base.witnessing import Refusal, WitnessProtocolError, WitnessRefused, WitnessUnavailable
from sidecar.coordinator.authority.certificate import sign_certificate
from sidecar.coordinator.wire.ids import AuthorityEpoch, activation_witness_id
from sidecar.ops.exitcodes import ExitCode
from sidecar.ops.logging import Log
from sidecar.witness.client import WitnessClient
from sidecar.witness.clock import SystemClock
from sidecar.witness.messages import Kind, Last, Report
from sidecar.witness.protocol import ClientExchange
from sidecar.witness.server import CannotListen, WitnessServer, listening
from sidecar.witness.state import SECOND
from tests.unit.witness.rig import COORDINATOR, Clock, LocalWitness, client_key, incarnation

PATIENCE = 20.0
"""Seconds after which a test has failed; nothing is expected to take that long."""
QUICK = 0.2
"""Request deadline of servers whose slow peers are watched."""


def run(main: Coroutine[Any, Any, None]) -> None:
    """On the loop of the witness's process: asyncio's own loses what connects while a server closes."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main)


class Running:
    """A server in a thread of its own."""

    def __init__(self, directory: Path, *, request_seconds: float, max_connections: int, uid: int | None) -> None:
        self.local = LocalWitness(directory / "state", Clock())
        self.path = directory / "run" / "witness.sock"
        self._limits = (request_seconds, max_connections, uid)
        self._ready = threading.Event()
        self._thread = threading.Thread(target=run, args=(self._main(),))
        self._thread.start()
        assert self._ready.wait(PATIENCE)

    async def _main(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        request_seconds, max_connections, uid = self._limits
        server = WitnessServer(
            self.local.service,
            request_seconds=request_seconds,
            max_connections=max_connections,
            entropy=os.urandom,
            log=Log(self.local.log),
            uid=uid,
        )
        with listening(SocketFile(self.path)) as sock:
            self._ready.set()
            await server.serve(sock, self._stop)

    def stop(self) -> None:
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join(PATIENCE)
        assert not self._thread.is_alive()
        self.local.service.close()

    def client(self, key: int = 1, timeout: float = PATIENCE) -> WitnessClient:
        return WitnessClient(self.path, client_key(key), self.local.service.identity.witness_id, timeout=timeout)

    def exchange(self) -> ClientExchange:
        return ClientExchange(client_key(), self.local.service.identity.witness_id, Last(COORDINATOR))

    def connect(self) -> socket.socket:
        sock = socket.socket(socket.AF_UNIX)
        sock.settimeout(PATIENCE)
        sock.connect(str(self.path))
        return sock


Start = Callable[..., Running]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    with contextlib.ExitStack() as stack:

        def run(*, request_seconds: float = PATIENCE, max_connections: int = 8, uid: int | None = None) -> Running:
            running = Running(tmp_path, request_seconds=request_seconds, max_connections=max_connections, uid=uid)
            stack.callback(running.stop)
            return running

        yield run


def read_to_end(sock: socket.socket) -> bytes:
    data = b""
    with contextlib.suppress(ConnectionResetError):
        while chunk := sock.recv(4096):
            data += chunk
    return data


def test_a_client_is_served(start: Start) -> None:
    running = start()
    client = running.client()
    certificate = client.activate(COORDINATOR, AuthorityEpoch(5), incarnation(1))
    assert client.renew(certificate).fencing_token == certificate.fencing_token
    with pytest.raises(WitnessRefused) as caught:
        client.activate(COORDINATOR, AuthorityEpoch(6), incarnation(2))
    assert (caught.value.reason, caught.value.retry_after) == (Refusal.LEASE_ACTIVE, 60.0)
    assert caught.value.last_epoch is None
    with pytest.raises(WitnessRefused) as caught:
        client.activate(COORDINATOR, AuthorityEpoch(5), incarnation(2))
    assert (caught.value.reason, caught.value.last_epoch) == (Refusal.EPOCH_TOO_LOW, 5)
    client.relinquish(COORDINATOR, certificate.activation_sequence, certificate.fencing_token)
    with pytest.raises(WitnessRefused, match="spent"):
        client.relinquish(COORDINATOR, certificate.activation_sequence, certificate.fencing_token)
    assert client.last(COORDINATOR) == (5, 1)


@pytest.mark.req("P12-11")
def test_of_many_concurrent_activations_one_wins(start: Start) -> None:
    running = start(max_connections=32)

    def contend(number: int) -> str:
        try:
            running.client().activate(COORDINATOR, AuthorityEpoch(number), incarnation(number))
        except WitnessRefused as refused:
            return refused.reason
        return "granted"

    with ThreadPoolExecutor(16) as pool:
        outcomes = list(pool.map(contend, range(1, 17)))
    assert outcomes.count("granted") == 1
    assert set(outcomes) <= {"granted", Refusal.LEASE_ACTIVE, Refusal.EPOCH_TOO_LOW}


def test_the_socket_is_owner_only_and_goes_away(start: Start) -> None:
    running = start()
    assert stat.S_IMODE(running.path.stat().st_mode) == 0o600
    assert stat.S_IMODE(running.path.parent.stat().st_mode) == 0o700
    running.stop()
    assert not running.path.exists()


def test_a_peer_of_another_user_is_dropped_without_a_word(start: Start) -> None:
    running = start(uid=os.geteuid() + 1)
    with running.connect() as sock:
        assert read_to_end(sock) == b""
    with pytest.raises(WitnessUnavailable, match="without an answer"):
        running.client().last(COORDINATOR)


def test_a_silent_peer_is_dropped(start: Start) -> None:
    running = start(request_seconds=QUICK)
    with running.connect() as sock:
        challenge = read_to_end(sock)
    assert challenge[4] == Kind.CHALLENGE
    assert running.client().last(COORDINATOR) == (0, 0)


def test_a_peer_that_drips_bytes_is_dropped_however_long_it_goes_on(start: Start) -> None:
    running = start(request_seconds=QUICK)
    with running.connect() as sock:
        challenge = sock.recv(4096)
        request = running.exchange().feed(challenge)
        sock.settimeout(QUICK / 8)
        for byte in request:  # far more bytes than fit into the deadline at this pace
            try:
                sock.send(bytes([byte]))
                if sock.recv(4096) == b"":
                    break
            except TimeoutError:
                continue
            except (BrokenPipeError, ConnectionResetError):
                break
        else:
            pytest.fail("the request was accepted byte by byte")


def test_peers_that_never_read_their_reply_cost_nothing(start: Start) -> None:
    running = start(max_connections=8)
    deaf = [(running.connect(), running.exchange()) for _ in range(5)]
    for sock, exchange in deaf:
        sock.sendall(exchange.feed(sock.recv(4096)))
    assert running.client().last(COORDINATOR) == (0, 0)
    for sock, exchange in deaf:
        exchange.feed(read_to_end(sock))
        assert exchange.reply == Report(0, 0)
        sock.close()


def test_many_silent_sockets_push_out_each_other_and_not_a_real_client(start: Start) -> None:
    running = start(max_connections=4)
    silent = [running.connect() for _ in range(40)]
    assert running.client().last(COORDINATOR) == (0, 0)
    ended = [sock for sock in silent if is_closed(sock)]
    assert len(ended) >= 36
    assert ended == silent[: len(ended)]  # the oldest went first
    for sock in silent:
        sock.close()


def is_closed(sock: socket.socket) -> bool:
    """Whether the server closed the connection, after everything that it sent before."""
    sock.setblocking(False)
    try:
        while sock.recv(4096):
            pass
    except BlockingIOError:
        return False
    except ConnectionResetError:
        pass
    return True


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"\xff" * 5000,
        b"\x00" * 5,
        b"\x00\x00\x00\x02\x10\x00",
        (1 + 96 + 16).to_bytes(4, "big") + b"\x13" + b"\x01" * 112 + b"more",
    ],
)
def test_malformed_input_ends_the_connection_and_nothing_else(data: bytes, start: Start) -> None:
    running = start()
    with running.connect() as sock:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            sock.sendall(data)
        assert len(read_to_end(sock)) in (0, 54)  # the challenge at most
    assert running.client().last(COORDINATOR) == (0, 0)


def test_a_peer_that_dies_in_the_middle_of_a_frame_is_forgotten(start: Start) -> None:
    running = start(max_connections=1)
    for _ in range(20):
        with running.connect() as sock:
            sock.send(b"\x00\x00\x00\x71\x13partial")
    assert running.client().last(COORDINATOR) == (0, 0)


def test_what_was_asked_is_answered_before_the_server_stops(start: Start) -> None:
    running = start(request_seconds=PATIENCE)
    entered, leave = threading.Event(), threading.Event()

    def slow_disk(name: str) -> None:
        if name == "begin":
            entered.set()
            assert leave.wait(PATIENCE)

    running.local.step = slow_disk
    idle = running.connect()
    with ThreadPoolExecutor(2) as pool:
        certificate = pool.submit(running.client().activate, COORDINATOR, AuthorityEpoch(5), incarnation(1))
        assert entered.wait(PATIENCE)
        stopping = pool.submit(running.stop)
        assert read_to_end(idle)[4] == Kind.CHALLENGE  # idle peers go at once
        leave.set()
        assert certificate.result(PATIENCE).authority_epoch == 5
        stopping.result(PATIENCE)
    idle.close()


def test_a_peer_too_many_is_told_at_once_while_the_disk_is_slow(start: Start) -> None:
    running = start(max_connections=1)
    entered, leave = threading.Event(), threading.Event()

    def slow_disk(name: str) -> None:
        entered.set()
        assert leave.wait(PATIENCE)

    running.local.step = slow_disk
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(running.client().activate, COORDINATOR, AuthorityEpoch(5), incarnation(1))
        assert entered.wait(PATIENCE)
        with running.connect() as sock:
            assert read_to_end(sock) == b""
        leave.set()
        assert first.result(PATIENCE).authority_epoch == 5


@pytest.mark.req("P12-09")
def test_a_full_disk_is_unavailable_and_heals(start: Start) -> None:
    running = start()

    def full(name: str) -> None:
        if name == "created":
            raise OSError(28, "No space left on device")

    running.local.step = full
    with pytest.raises(WitnessUnavailable, match="cannot write"):
        running.client().activate(COORDINATOR, AuthorityEpoch(5), incarnation(1))
    running.local.step = lambda name: None
    assert running.client().activate(COORDINATOR, AuthorityEpoch(5), incarnation(1)).activation_sequence == 1


def test_an_internal_failure_is_logged_and_ends_one_connection(start: Start) -> None:
    running = start()
    running.local.service._entropy = bytes  # yields zeros: no token is made from them
    with pytest.raises(WitnessUnavailable, match="without an answer"):
        running.client().activate(COORDINATOR, AuthorityEpoch(5), incarnation(1))
    assert running.client().last(COORDINATOR) == (0, 0)
    assert "witness_request_failed" in running.local.log.getvalue()


def test_a_dead_servers_socket_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "run" / "witness.sock"
    path.parent.mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))
    with listening(SocketFile(path)) as sock:
        assert sock.getsockname() == str(path)
    assert not path.exists()


def test_a_live_socket_and_other_files_are_not_touched(tmp_path: Path) -> None:
    path = tmp_path / "run" / "witness.sock"
    with (
        listening(SocketFile(path)),
        pytest.raises(CannotListen, match="served by another") as caught,
        listening(SocketFile(path)),
    ):
        pass
    assert caught.value.exit_code == ExitCode.CANNOT_BIND
    path.write_text("mine")
    with pytest.raises(CannotListen, match="not a socket"), listening(SocketFile(path)):
        pass
    assert path.read_text() == "mine"
    path.unlink()
    path.parent.chmod(0o755)
    with pytest.raises(CannotListen, match="chmod 700"), listening(SocketFile(path)):
        pass


def test_a_path_that_no_address_can_hold_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CannotListen, match="too long"), listening(SocketFile(tmp_path / ("x" * 150))):
        pass


def test_a_socket_that_somebody_put_in_our_place_stays(tmp_path: Path) -> None:
    path = tmp_path / "run" / "witness.sock"
    with listening(SocketFile(path)):
        path.rename(tmp_path / "ours")  # keeps the inode in use
        path.write_text("theirs")
    assert path.read_text() == "theirs"
    with listening(SocketFile(tmp_path / "run" / "second.sock")):
        (tmp_path / "run" / "second.sock").unlink()


def test_the_system_clock_reads_both_clocks() -> None:
    clock = SystemClock()
    first, second = clock(), clock()
    assert second.boot_ns >= first.boot_ns
    assert len(first.boot_id) == 16
    assert first.boot_id == SystemClock()().boot_id
    assert first.wall_ns > 1_700_000_000 * SECOND


class FakeWitness:
    """A socket that answers one connection with given bytes, then closes or stays silent."""

    def __init__(self, path: Path, answer: bytes, *, silent: bool = False) -> None:
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen()
        self._answer = answer
        self._silent = silent
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._serve)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join(PATIENCE)
        self._listener.close()

    def _serve(self) -> None:
        peer, _ = self._listener.accept()
        with peer:
            peer.sendall(self._answer)
            if self._silent:
                self._done.wait(PATIENCE)


def lone_client(path: Path, timeout: float = PATIENCE) -> WitnessClient:
    return WitnessClient(path, client_key(), activation_witness_id(b"\xaa" * 16), timeout=timeout)


@pytest.mark.req("P12-24")
def test_no_witness_is_unavailable(tmp_path: Path) -> None:
    with pytest.raises(WitnessUnavailable, match="cannot be reached"):
        lone_client(tmp_path / "witness.sock").last(COORDINATOR)
    with pytest.raises(WitnessUnavailable, match="cannot be reached"):
        lone_client(tmp_path / ("x" * 200)).last(COORDINATOR)


@pytest.mark.req("P12-24")
@pytest.mark.parametrize("answer", [b"", b"\x00\x00\x00\x32"])
def test_a_silent_witness_is_unavailable(answer: bytes, tmp_path: Path) -> None:
    path = tmp_path / "witness.sock"
    with (
        FakeWitness(path, answer, silent=True),
        pytest.raises(WitnessUnavailable, match=r"did not answer in 0\.1 s"),
    ):
        lone_client(path, timeout=0.1).last(COORDINATOR)
    path.unlink()
    with FakeWitness(path, answer), pytest.raises(WitnessUnavailable, match="without an answer"):
        lone_client(path).last(COORDINATOR)


@pytest.mark.req("P12-17")
@pytest.mark.parametrize(("life", "timeout", "seconds"), [(1, 5, "0.125"), (2, 0.2, "0.2"), (0, 5, "0.1")])
def test_a_renewal_never_waits_for_most_of_the_certificates_life(
    life: int, timeout: float, seconds: str, tmp_path: Path
) -> None:
    issued_at = 1_900_000_000
    certificate = sign_certificate(
        client_key(),
        witness_id=b"\xaa" * 16,
        coordinator_id=COORDINATOR,
        activation_sequence=1,
        epoch=1,
        incarnation=incarnation(1),
        token=b"\xdd" * 32,
        issued_at=issued_at,
        expires_at=issued_at + life,
    )
    with (
        FakeWitness(tmp_path / "witness.sock", b"", silent=True),
        pytest.raises(WitnessUnavailable, match=rf"did not answer in {re.escape(seconds)} s"),
    ):
        lone_client(tmp_path / "witness.sock", timeout=timeout).renew(certificate)


@pytest.mark.parametrize("turns", range(8))
def test_a_stop_closes_what_connects_at_that_moment(tmp_path: Path, turns: int) -> None:
    """Whichever turn of the loop the stop comes in, the peer is not left with a connection that nobody serves."""
    local = LocalWitness(tmp_path / "state", Clock())
    path = tmp_path / "run" / "witness.sock"

    async def serve_and_stop() -> None:
        server = WitnessServer(
            local.service, request_seconds=PATIENCE, max_connections=8, entropy=os.urandom, log=Log(local.log)
        )
        stop = asyncio.Event()
        with listening(SocketFile(path)) as sock, socket.socket(socket.AF_UNIX) as peer:
            peer.settimeout(PATIENCE)
            peer.connect(str(path))
            serving = asyncio.create_task(server.serve(sock, stop))
            for _ in range(turns):
                await asyncio.sleep(0)
            stop.set()
            await serving
            sock.close()
            read_to_end(peer)

    try:
        run(serve_and_stop())
    finally:
        local.service.close()


def test_a_witness_of_another_user_is_not_talked_to(start: Start) -> None:
    running = start()
    witness_id = running.local.service.identity.witness_id
    with pytest.raises(WitnessProtocolError, match="another user"):
        WitnessClient(running.path, client_key(), witness_id, uid=os.geteuid() + 1).last(COORDINATOR)


def test_a_call_without_time_is_unavailable(start: Start) -> None:
    with pytest.raises(WitnessUnavailable, match="did not answer in 0 s"):
        start().client(timeout=0).last(COORDINATOR)


def test_something_else_on_the_socket_is_a_protocol_error(tmp_path: Path) -> None:
    path = tmp_path / "witness.sock"
    with FakeWitness(path, b"220 mail.example ESMTP\r\n"), pytest.raises(WitnessProtocolError):
        lone_client(path).last(COORDINATOR)
