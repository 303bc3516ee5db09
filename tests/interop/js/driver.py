"""A JavaScript program as a process: commands as JSON lines, events in the order in which it surfaced them."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from sidecar.rails.names.principals import Lifecycle

HERE = Path(__file__).parent
SECONDS = 20.0
_LINE = 4 * 1024 * 1024


class JsFailed(Exception):  # noqa: N818 - what happened
    """The program raised; the text is its error."""


class JsProgram:
    """One script of this directory, in its own process. Its first command is ``connect`` with ``options``, if any."""

    def __init__(self, script: str, options: dict[str, Any] | None = None) -> None:
        self._script, self._options = script, options
        self.events: list[dict[str, Any]] = []
        self._answers: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._changed = asyncio.Event()
        self._process: asyncio.subprocess.Process | None = None
        self._reading: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._process = await asyncio.create_subprocess_exec(
            "node",
            str(HERE / self._script),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            limit=_LINE,
        )
        self._reading = asyncio.create_task(self._read(self._process))
        try:
            if self._options is not None:
                await self.do("connect", **self._options)
        except BaseException:
            await self._end()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._end()

    async def _end(self) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        assert self._reading is not None
        self._process.stdin.close()
        try:
            async with asyncio.timeout(SECONDS):
                await self._process.wait()
        except TimeoutError:
            self._process.kill()
            await self._process.wait()
            raise
        finally:
            self._reading.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._reading

    async def _read(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        while line := await process.stdout.readline():
            said = json.loads(line)
            if "done" in said:
                self._answers.put_nowait(said)
            else:
                self.events.append(said)
                self._changed.set()

    async def do(self, action: str, **arguments: Any) -> Any:
        """One command and its answer. Raises JsFailed, TimeoutError."""
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"do": action, **arguments}).encode() + b"\n")
        async with asyncio.timeout(SECONDS):
            await self._process.stdin.drain()
            answer = await self._answers.get()
        assert answer["done"] == action
        if "error" in answer:
            raise JsFailed(answer["error"])
        return answer["result"]

    async def until(self, met: Callable[[list[dict[str, Any]]], bool]) -> None:
        """Wait until the events meet a condition."""
        async with asyncio.timeout(SECONDS):
            while not met(self.events):
                self._changed.clear()
                await self._changed.wait()


class JsPeer(JsProgram):
    """One member of a space."""

    def __init__(self, url: str, space: str, creds: Path, lifecycle: Lifecycle) -> None:
        super().__init__("peer.mjs", {"url": url, "space": space, "creds": str(creds), **lifecycle.names})
        self.id = lifecycle.principal.dot

    def messages(self, kind: str) -> list[dict[str, Any]]:
        """What it surfaced of one kind."""
        return [one for one in self.events if one["event"] == "message" and one["kind"] == kind]

    async def surfaced(self, kind: str, count: int = 1) -> list[dict[str, Any]]:
        """The messages of one kind, when there are so many."""
        await self.until(lambda _: len(self.messages(kind)) >= count)
        return self.messages(kind)


@contextlib.asynccontextmanager
async def js_peers(*peers: JsPeer) -> AsyncIterator[tuple[JsPeer, ...]]:
    """Several of them."""
    async with contextlib.AsyncExitStack() as stack:
        for peer in peers:
            await stack.enter_async_context(peer)
        yield peers
