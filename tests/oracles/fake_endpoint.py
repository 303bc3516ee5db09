"""``FakeServer`` behind a real Unix socket: what a client library meets when replies are lost and servers restart."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable
from pathlib import Path

from sidecar.base.clock import system_now
from sidecar.coordinator.wire.fields import Frame
from tests.oracles.fake_server import FakeServer, Rewrite, World

Behave = Callable[[int], Rewrite | None]


def truthful(number: int) -> Rewrite | None:
    """No connection lies."""
    return None


class FakeEndpoint:
    """Serves ``world`` on ``path``. ``behave`` gives the rewrite of each connection, counted from 1.

    A ``FakeServer`` whose ``closed`` is set loses its connection after what it said.
    """

    def __init__(self, path: Path, world: World, behave: Behave = truthful) -> None:
        self.path = path
        self.world = world
        self.behave = behave
        self.servers: list[FakeServer] = []
        self._progress = asyncio.Event()
        self._writers: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> FakeEndpoint:
        self.path.unlink(missing_ok=True)
        self._server = await asyncio.start_unix_server(self._serve, str(self.path))
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def stop(self) -> None:
        """No listener and no connection any more."""
        if self._server is not None:
            self._server.close()
            self.drop()
            await self._server.wait_closed()
            self._server = None
            self.path.unlink(missing_ok=True)

    def drop(self) -> None:
        """Close every connection."""
        for writer in list(self._writers):
            writer.close()

    def flush(self) -> None:
        """Send what the test made the newest server say."""
        server = self.servers[-1]
        server.pump()
        for writer in self._writers:
            writer.write(server.take())

    async def received(self, shape: type[Frame]) -> None:
        """Wait until the newest server received a frame of this type."""
        while not self.servers or not self.servers[-1].of(shape):
            await self._progress.wait()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        credentials = writer.get_extra_info("socket").getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        pid, uid, gid = struct.unpack("3i", credentials)
        server = FakeServer(self.world, system_now(), (uid, gid, pid), self.behave(len(self.servers) + 1))
        self.servers.append(server)
        self._writers.add(writer)
        try:
            while not server.closed and (data := await reader.read(65_536)):
                server.now = system_now()
                server.feed(data)
                self._progress.set()
                self._progress.clear()
                writer.write(server.take())
                await writer.drain()
        except OSError:
            pass
        finally:
            self._writers.discard(writer)
            writer.close()
