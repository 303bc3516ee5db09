"""The witness's process: an owner-only Unix socket, bounded connections with deadlines, one writer thread.

A connection carries one request. The loop never waits for the disk, and the writer thread never waits for a peer.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Final, cast

import uvloop

from sidecar.base.unixsocket import BACKLOG, CannotBind, SocketFile, peer_uid
from sidecar.base.witnessing import WitnessProtocolError
from sidecar.ops import signals
from sidecar.ops.exitcodes import ExitCode
from sidecar.ops.logging import Log
from sidecar.witness.clock import SystemClock
from sidecar.witness.config import WitnessSettings
from sidecar.witness.messages import NONCE_BYTES, Reply
from sidecar.witness.protocol import ServerExchange, SignedRequest, encode_reply
from sidecar.witness.service import WitnessService
from sidecar.witness.store import Identity, WitnessStore

_LOOK_SECONDS: Final = 0.5
"""How often the witness looks whether its socket file still is where clients search for it."""


class CannotListen(Exception):  # noqa: N818 - a state of the path, not a mishap
    """Nothing can be served, or is served any more, at the configured path; one line says why."""

    exit_code = ExitCode.CANNOT_BIND


class _Peer(asyncio.Protocol):
    """One connection. Until its request is whole it is idle and may be dropped."""

    def __init__(self, server: WitnessServer) -> None:
        self._server = server
        self._transport: asyncio.Transport | None = None
        self._exchange: ServerExchange | None = None
        self._deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = opened = cast(asyncio.Transport, transport)  # uvloop's own class is none of asyncio's
        if not self._server.admit(self, opened.get_extra_info("socket")):
            opened.abort()
            return
        self._deadline = self._server.call_later(self._expire)
        self._exchange = self._server.exchange()
        opened.write(self._exchange.opening())

    def data_received(self, data: bytes) -> None:
        assert self._exchange is not None
        try:
            request = self._exchange.feed(data)
        except WitnessProtocolError as error:
            self.drop(str(error))
            return
        if request is not None:
            self._server.submit(self, request)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_clock()
        self._server.forget(self)

    def reply(self, frame: bytes) -> None:
        """Send the reply and close; the deadline starts anew for a peer that does not read it."""
        assert self._transport is not None
        self._transport.write(frame)
        self._transport.close()
        self._deadline = self._server.call_later(self._expire)

    def drop(self, reason: str) -> None:
        """Close at once."""
        assert self._transport is not None
        self._server.dropped(reason)
        self._stop_clock()
        self._transport.abort()

    def busy(self) -> None:
        """The request is whole: from here on the disk decides how long it takes."""
        self._stop_clock()

    def _expire(self) -> None:
        self.drop("too slow")

    def _stop_clock(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


class WitnessServer:
    """Serves a :class:`WitnessService` on a listening socket."""

    def __init__(
        self,
        service: WitnessService,
        *,
        request_seconds: float,
        max_connections: int,
        entropy: Callable[[int], bytes],
        log: Log,
        uid: int | None = None,
    ) -> None:
        """Only peers of the user ``uid`` may speak; by default the user that runs this."""
        self._service = service
        self._uid = os.geteuid() if uid is None else uid
        self._request_seconds = request_seconds
        self._max_connections = max_connections
        self._entropy = entropy
        self._log = log
        self._writer = ThreadPoolExecutor(max_workers=1, thread_name_prefix="witness-writer")
        self._peers: dict[_Peer, bool] = {}  # oldest first; True: its request is being answered
        self._gone = asyncio.Event()

    async def serve(self, sock: socket.socket, stop: asyncio.Event) -> None:
        """Serve until ``stop`` is set, then finish what was asked, and return. The socket is closed."""
        loop = asyncio.get_running_loop()
        server = await loop.create_unix_server(lambda: _Peer(self), sock=sock, backlog=BACKLOG)
        try:
            await stop.wait()
        finally:
            server.close()
            # What was accepted just now is known a turn of the loop later.
            await asyncio.sleep(0)
            for peer, busy in list(self._peers.items()):
                if not busy:
                    peer.drop("stopping")
            # What was asked is answered; a peer that does not read its answer has a deadline.
            while self._peers:
                await self._gone.wait()
                self._gone.clear()
            self._writer.shutdown()

    def admit(self, peer: _Peer, sock: socket.socket) -> bool:
        """Whether a new connection may stay. At the limit the one that has kept silent longest makes room."""
        uid = peer_uid(sock)
        if uid != self._uid:
            self._log.warning("witness_peer_refused", uid=uid)
            return False
        if len(self._peers) >= self._max_connections:
            silent = next((old for old, busy in self._peers.items() if not busy), None)
            if silent is None:
                self.dropped("all connections are busy")
                return False
            del self._peers[silent]
            silent.drop("too many connections")
        self._peers[peer] = False
        return True

    def exchange(self) -> ServerExchange:
        """The protocol state of a new connection."""
        return ServerExchange(self._service.identity.witness_id, self._entropy(NONCE_BYTES))

    def call_later(self, callback: Callable[[], None]) -> asyncio.TimerHandle:
        """Arm the deadline of a connection."""
        return asyncio.get_running_loop().call_later(self._request_seconds, callback)

    def submit(self, peer: _Peer, request: SignedRequest) -> None:
        """Hand a whole request to the writer thread and its reply back to the peer."""
        peer.busy()
        self._peers[peer] = True
        future = asyncio.get_running_loop().run_in_executor(self._writer, self._service.answer, request)

        def deliver(done: asyncio.Future[Reply]) -> None:
            error = done.exception()
            if error is not None and not isinstance(error, WitnessProtocolError):
                self._log.error("witness_request_failed", error=error)
            if peer in self._peers:
                if error is None:
                    peer.reply(encode_reply(request.nonce, done.result()))
                else:
                    peer.drop(str(error))

        future.add_done_callback(deliver)

    def forget(self, peer: _Peer) -> None:
        """A connection is gone."""
        self._peers.pop(peer, None)
        self._gone.set()

    def dropped(self, reason: str) -> None:
        """Tell the log why a connection was closed."""
        self._log.warning("witness_connection_dropped", reason=reason)


@contextlib.contextmanager
def listening(file: SocketFile) -> Iterator[socket.socket]:
    """The listening socket of ``file``, which is removed at the end. Raises :exc:`CannotListen`."""
    try:
        sock = file.open()
    except CannotBind as error:
        raise CannotListen(str(error)) from None
    try:
        with sock:
            yield sock
    finally:
        file.close()


async def _until_lost(file: SocketFile) -> None:
    while True:
        if not file.in_place():
            return
        await asyncio.sleep(_LOOK_SECONDS)


async def serve_file(server: WitnessServer, file: SocketFile, stop: asyncio.Event, ready: Callable[[], None]) -> None:
    """Serve at ``file`` until ``stop`` is set; ``ready`` is called once clients can connect.

    Raises :exc:`CannotListen`, also when clients do not find the file any more: what goes on then serves nobody, and a
    new start does.
    """
    with listening(file) as sock:
        ready()
        looking = asyncio.create_task(_until_lost(file))
        looking.add_done_callback(lambda _: stop.set())
        try:
            await server.serve(sock, stop)
        finally:
            lost = looking.done()
            looking.cancel()
    if lost:
        raise CannotListen(f"{file.path}: the socket file was removed or replaced, clients do not find this witness")


def run(
    settings: WitnessSettings, log: Log, *, entropy: Callable[[int], bytes], ready: Callable[[Identity], None]
) -> None:
    """Serve until SIGTERM or SIGINT. ``ready`` is called once clients can connect.

    Raises WitnessStateError (the state cannot be used) before anything is served, and CannotListen.
    """
    service = WitnessService(
        lambda: WitnessStore.open(settings.state_dir),
        lease_seconds=settings.certificate_seconds,
        clients=settings.clients,
        clock=SystemClock(),
        entropy=entropy,
        log=log,
    )

    async def main() -> None:
        stop = asyncio.Event()
        undo = signals.on_stop(asyncio.get_running_loop(), lambda _: stop.set())
        server = WitnessServer(
            service,
            request_seconds=settings.request_milliseconds / 1000,
            max_connections=settings.max_connections,
            entropy=entropy,
            log=log,
        )
        try:
            await serve_file(server, SocketFile(settings.socket), stop, lambda: ready(service.identity))
        except CannotListen as error:
            log.error("witness_stopped", problem=str(error))
            raise
        finally:
            undo()

    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(main())
    finally:
        service.close()
