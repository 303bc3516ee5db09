"""A cable to a broker that can be cut and mended: what is on it when it is cut is lost."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator


class Cable:
    """Every connection through it; none while it is cut."""

    def __init__(self, port: int) -> None:
        self.url = ""
        self.cut_off = False
        self._port = port
        self._ends: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.cut_off:
            writer.close()
            return
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._port)
        self._ends |= {writer, far_writer}
        for ends in ((reader, far_writer), (far_reader, writer)):
            self._tasks.add(asyncio.create_task(self._carry(*ends)))

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65_536):
                writer.write(data)
                await writer.drain()
        writer.close()

    async def cut(self) -> None:
        """Both ends see the loss at once."""
        self.cut_off = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for end in self._ends:
            end.transport.abort()
        self._ends.clear()
        self._tasks.clear()

    def mend(self) -> None:
        self.cut_off = False


@contextlib.asynccontextmanager
async def cable(port: int) -> AsyncIterator[Cable]:
    """A cable to the broker on this port."""
    made = Cable(port)
    server = await asyncio.start_server(made.accept, "127.0.0.1", 0)
    made.url = f"nats://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield made
    finally:
        server.close()
        await made.cut()
