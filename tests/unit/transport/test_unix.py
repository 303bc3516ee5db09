"""Connections on real sockets: who may connect, limits, back-pressure, timers and goodbyes."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import os
import socket
import struct
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
import uvloop

from sidecar.base.clock import Now
from sidecar.base.unixsocket import SocketFile
from sidecar.coordinator.authority.proof import ChannelBinding, uds_binding
from sidecar.coordinator.session import ServerSession
from sidecar.coordinator.transport.peers import Peer, PeerRefused, peer_of
from sidecar.coordinator.transport.unix import WRITE_HIGH, UnixConnection
from sidecar.coordinator.wire import frames as fr
from sidecar.coordinator.wire.enums import ErrorCode
from sidecar.coordinator.wire.limits import ALPN, SERVICE
from tests.unit.session.bench import House, hello


class Shell:
    """What a connection needs, on the session bench."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.house = House()
        self.uid = os.geteuid()
        self.reason: str | None = None
        self.refusals: list[str] = []
        self.connections: set[UnixConnection] = set()
        self.changed = asyncio.Event()
        self.kicks = 0
        self.clients: list[Client] = []

    def connect(self) -> Client:
        """A client; its socket is closed at the end of the test."""
        client = Client(self.path)
        self.clients.append(client)
        return client

    def now(self) -> Now:
        return self.house.world.now

    def owner(self) -> int:
        return self.uid

    def refuse(self) -> str | None:
        return self.reason

    def opened(self, connection: UnixConnection) -> None:
        self.connections.add(connection)
        self.changed.set()

    def closed(self, connection: UnixConnection) -> None:
        self.connections.discard(connection)
        self.changed.set()

    def refused(self, reason: str) -> None:
        self.refusals.append(reason)
        self.changed.set()

    def session(self, binding: Callable[[bytes], ChannelBinding], wake: Callable[[], None]) -> ServerSession:
        return ServerSession(self.house.env, binding, wake, self.now())

    def kick(self) -> None:
        self.kicks += 1

    async def until(self, check: Callable[[], bool]) -> None:
        async with asyncio.timeout(20):
            while not check():
                self.changed.clear()
                await self.changed.wait()


class Client:
    def __init__(self, path: Path) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.setblocking(False)
        self.sock.connect(str(path))

    async def send(self, *parts: bytes | fr.Frame) -> None:
        data = b"".join(part if isinstance(part, bytes) else part.encode() for part in parts)
        async with asyncio.timeout(20):
            await asyncio.get_running_loop().sock_sendall(self.sock, data)

    async def frame(self) -> tuple[int, bytes]:
        header = await self.exactly(5)
        length, number = struct.unpack(">IB", header)
        return number, await self.exactly(length - 1)

    async def exactly(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            part = await self.some(size - len(data))
            assert part, f"closed after {data!r}"
            data += part
        return data

    async def some(self, size: int = 65536) -> bytes:
        async with asyncio.timeout(20):
            try:
                return await asyncio.get_running_loop().sock_recv(self.sock, size)
            except ConnectionResetError:
                return b""

    async def everything(self) -> bytes:
        data = b""
        while part := await self.some():
            data += part
        return data


@contextlib.asynccontextmanager
async def serving(path: Path) -> AsyncIterator[Shell]:
    shell = Shell(path)
    file = SocketFile(path)
    loop = asyncio.get_running_loop()
    server = await loop.create_unix_server(lambda: UnixConnection(shell, loop), sock=file.open())
    try:
        yield shell
    finally:
        server.close()
        for client in shell.clients:
            client.sock.close()
        for connection in list(shell.connections):
            connection.abort()
        await shell.until(lambda: not shell.connections)
        file.close()


def served(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run an async test(shell, ...) on the product's own event loop, beside a listening socket."""

    def run(tmp_path: Path, **values: Any) -> None:
        async def body() -> None:
            async with serving(tmp_path / "run" / "c.sock") as shell:
                await test(shell, **values)

        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(body())

    own = [p for name, p in inspect.signature(test).parameters.items() if name != "shell"]
    first = inspect.Parameter("tmp_path", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    run.__signature__ = inspect.Signature([first, *own])  # type: ignore[attr-defined]
    run.__name__, run.__doc__ = test.__name__, test.__doc__
    return run


async def fill(client: Client) -> int:
    """Send pings and read nothing until the server takes no more; the bytes that it took at least."""
    sent = 0
    ping = fr.CoordPing(nonce=1).encode() * 4096
    try:
        while sent < 64 * WRITE_HIGH:
            async with asyncio.timeout(0.5):
                await asyncio.get_running_loop().sock_sendall(client.sock, ping)
            sent += len(ping)
    except TimeoutError:
        return sent
    raise AssertionError("the server takes whatever it is sent")


@pytest.mark.req("W5-06")
def test_the_kernel_names_the_peer() -> None:
    left, right = socket.socketpair(socket.AF_UNIX)
    with left, right:
        assert peer_of(left.fileno()) == Peer(os.getpid(), os.geteuid(), os.getegid())
        left.getsockname()  # still open: only its number was borrowed


@pytest.mark.req("W5-09")
def test_a_descriptor_without_credentials_is_refused() -> None:
    def judge(fileno: int) -> None:
        peer_of(fileno).check(os.geteuid())

    with socket.socket(socket.AF_INET) as other, pytest.raises(PeerRefused) as caught:
        judge(other.fileno())
    assert caught.value.reason == "peer_unknown"


@pytest.mark.req("W5-09", "P2-06", "W5-05")
@pytest.mark.parametrize(
    ("peer", "reason"),
    [(Peer(0, 1000, 1000), "peer_unknown"), (Peer(-1, 1000, 1000), "peer_unknown"), (Peer(7, 1001, 1000), "peer_uid")],
)
def test_a_peer_that_is_not_fully_known_or_not_the_owner_is_refused(peer: Peer, reason: str) -> None:
    with pytest.raises(PeerRefused) as caught:
        peer.check(1000)
    assert caught.value.reason == reason


@pytest.mark.req("W5-05", "W5-06")
def test_the_binding_is_made_of_what_the_kernel_said() -> None:
    nonce = b"\x05" * 32
    assert Peer(7, 1000, 1001).binding(nonce) == uds_binding(nonce, 1000, 1001, 7)
    assert Peer(8, 1000, 1001).binding(nonce) != Peer(7, 1000, 1001).binding(nonce)


@pytest.mark.req("P2-06", "W5-09", "P2-03", "W9-07")
@pytest.mark.parametrize("why", ["limit", "unauthenticated_limit", "stopping", "peer_uid"])
@served
async def test_a_refused_socket_is_closed_before_a_byte_is_read(shell: Shell, why: str) -> None:
    if why == "peer_uid":
        shell.uid = os.geteuid() + 1
    else:
        shell.reason = why
    client = shell.connect()
    await shell.until(lambda: bool(shell.refusals))
    assert await client.everything() == b""
    assert shell.refusals == [why]
    assert shell.connections == set()
    assert shell.house.world.observer.calls == []


@served
async def test_frames_travel_both_ways_whatever_their_fragments(shell: Shell) -> None:
    client = shell.connect()
    image = fr.CoordPing(nonce=5).encode()
    for at in range(len(image)):
        await client.send(image[at : at + 1])
    number, body = await client.frame()
    assert (number, fr.CoordPong.decode(body).nonce) == (0xFF, 5)
    await client.send(hello())
    assert (await client.frame())[0] == 0x84
    assert shell.kicks == 0


@pytest.mark.req("P13-05")
@served
async def test_a_fatal_error_is_written_and_then_the_connection_ends(shell: Shell) -> None:
    client = shell.connect()
    await client.send(b"\x00\x00\x00\x01\x02")
    data = await client.everything()
    error = fr.CoordErrorFrame.decode(data[5:])
    assert error.code == ErrorCode.PROTOCOL_ERROR
    await shell.until(lambda: not shell.connections)


@served
async def test_a_peer_that_leaves_in_the_middle_of_a_frame_leaves_nothing_behind(shell: Shell) -> None:
    client = shell.connect()
    await client.send(hello().encode()[:100])
    client.sock.close()
    await shell.until(lambda: shell.house.world.observer.named("handshake", "closed") == 1)
    assert not shell.connections


@served
async def test_a_peer_that_does_not_read_is_not_read_either(shell: Shell) -> None:
    client = shell.connect()
    sent = await fill(client)
    (connection,) = shell.connections
    transport = connection._transport
    assert transport is not None
    assert transport.get_write_buffer_size() < 2 * WRITE_HIGH
    assert shell.house.world.observer.count("frame_out", 0xFF, 16) < sent // 16
    other = shell.connect()
    await other.send(fr.CoordPing(nonce=9))
    assert (await other.frame())[0] == 0xFF
    # Once it reads again it is served again, and nothing was lost.
    while shell.house.world.observer.count("frame_out", 0xFF, 16) < sent // 16:
        assert await client.some(1 << 20)


@served
async def test_a_long_pipeline_of_one_peer_leaves_room_for_others(shell: Shell) -> None:
    greedy, modest = shell.connect(), shell.connect()
    await greedy.send(fr.CoordPing(nonce=1).encode() * 3000)
    await modest.send(fr.CoordPing(nonce=2))
    assert fr.CoordPong.decode((await modest.frame())[1]).nonce == 2
    got = 0
    while got < 3000 * 16:
        got += len(await greedy.some(1 << 20))
    assert got == 3000 * 16


@pytest.mark.req("W3-13", "P13-05")
@served
async def test_handshake_timers_end_connections(shell: Shell) -> None:
    silent, stalled = shell.connect(), shell.connect()
    await stalled.send(hello())
    assert (await stalled.frame())[0] == 0x84
    await shell.until(lambda: len(shell.connections) == 2)
    shell.house.world.advance(60, tick=False)
    for connection in list(shell.connections):
        connection._on_timer()
    codes = set()
    for client in (silent, stalled):
        data = await client.everything()
        codes.add(fr.CoordErrorFrame.decode(data[5:]).code)
    assert codes == {ErrorCode.PROTOCOL_ERROR, ErrorCode.AUTHENTICATION_FAILED}


@served
async def test_finishing_writes_what_there_is_and_reads_nothing_more(shell: Shell) -> None:
    client = shell.connect()
    await client.send(fr.CoordPing(nonce=1))
    await client.frame()
    (connection,) = shell.connections
    connection.finish()
    await client.send(fr.CoordPing(nonce=2))
    assert await client.everything() == b""
    await shell.until(lambda: not shell.connections)


@served
async def test_a_closing_peer_that_never_reads_is_cut_off(shell: Shell) -> None:
    client = shell.connect()
    await fill(client)
    (connection,) = shell.connections
    connection.finish()
    await shell.until(lambda: not shell.connections)
    client.sock.close()


@pytest.mark.req("P2-01", "P2-02", "P2-11")
def test_the_names_of_the_endpoint_are_its_own() -> None:
    assert ALPN == b"phux-coordinator/1"
    assert len(ALPN) == 18
    assert SERVICE == b"phux-coordinator"
