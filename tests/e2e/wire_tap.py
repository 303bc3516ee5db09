"""A proxy in front of a broker that keeps what its clients publish and subscribe to."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any


class Tap:
    """What went by, in order: the verb and the subject of every PUB, HPUB and SUB."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, str]] = []
        self.bodies: list[bytes] = []
        self.port = 0
        self.stop_at: Callable[[str], bool] = lambda subject: False
        """A publish to such a subject, and everything behind it, never reaches the broker."""
        self.stopped = asyncio.Event()

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self.port}"

    @property
    def published(self) -> list[str]:
        return [subject for verb, subject in self.seen if verb in ("PUB", "HPUB")]

    @property
    def subscribed(self) -> list[str]:
        return [subject for verb, subject in self.seen if verb == "SUB"]

    async def upward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """From a client to the broker, one command at a time."""
        while line := await reader.readline():
            words = line.split()
            verb = words[0].decode().upper() if words else ""
            body = b""
            if verb in ("PUB", "HPUB"):
                body = await reader.readexactly(int(words[-1]) + 2)
                self.bodies.append(body[:-2])
            if verb in ("PUB", "HPUB", "SUB"):
                self.seen.append((verb, words[1].decode()))
            if verb in ("PUB", "HPUB") and self.stop_at(words[1].decode()):
                self.stopped.set()
                await asyncio.Event().wait()
            writer.write(line + body)
            await writer.drain()


@contextlib.asynccontextmanager
async def tapped(port: int) -> AsyncIterator[Tap]:
    """A tap in front of the broker on this port."""
    tap = Tap()
    links: set[asyncio.Task[None]] = set()
    writers: list[asyncio.StreamWriter] = []

    async def down(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()

    async def until_it_ends(work: Coroutine[Any, Any, None], writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            await work
        writer.close()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        up_reader, up_writer = await asyncio.open_connection("127.0.0.1", port)
        writers.extend((writer, up_writer))
        links.add(asyncio.create_task(until_it_ends(tap.upward(reader, up_writer), up_writer)))
        links.add(asyncio.create_task(until_it_ends(down(up_reader, writer), writer)))

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    tap.port = server.sockets[0].getsockname()[1]
    try:
        yield tap
    finally:
        server.close()
        for task in links:
            task.cancel()
        await asyncio.gather(*links, return_exceptions=True)
        for writer in writers:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()
