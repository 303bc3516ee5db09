"""Child processes of ``sidecar dev``: started in order, watched, restarted with backoff, stopped in reverse order."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import json
import os
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None, use_errno=True)
_BACKOFF_SECONDS = (0.2, 0.5, 1.0, 2.0, 5.0)
_STABLE_SECONDS = 30.0


class ChildFailed(Exception):  # noqa: N818 - names what happened
    """A child ended or stayed silent before it was ready; the text names its log."""


def die_with_parent(parent: int) -> None:
    """Runs in the child before exec: a killed supervisor takes its children down in order, not as orphans. What the
    child writes is its owner's alone: the broker's store holds every message.

    ``parent`` is the supervisor's pid. Killed before the request reached the kernel it can send no signal any more.
    """
    os.umask(0o077)
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        os._exit(128 + signal.SIGTERM)


@dataclass(slots=True)
class Child:
    """One supervised program.

    ``ready_line`` says that the program prints one JSON line on stdout when it serves; ``probe`` is asked instead
    where a program has no such line. ``stop_seconds`` bounds the wait for a clean exit before SIGKILL.
    """

    name: str
    argv: Sequence[str]
    log: Path
    ready_line: bool = True
    probe: Callable[[], bool] | None = None
    ready_seconds: float = 90.0
    stop_seconds: float = 10.0
    process: asyncio.subprocess.Process | None = None
    ready: dict[str, Any] = field(default_factory=dict)
    restarts: int = 0
    started_at: float = 0.0

    async def start(self) -> dict[str, Any]:
        """Starts the program and waits until it serves; gives its ready line. Raises ChildFailed."""
        fd = os.open(self.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            self.process = await asyncio.create_subprocess_exec(
                *self.argv,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE if self.ready_line else fd,
                stderr=fd,
                start_new_session=True,
                preexec_fn=partial(die_with_parent, os.getpid()),
            )
        except OSError as error:
            raise ChildFailed(f"{self.name} cannot be started: {self.argv[0]}: {error.strerror}") from None
        finally:
            os.close(fd)
        self.started_at = time.monotonic()
        try:
            async with asyncio.timeout(self.ready_seconds):
                self.ready = await (self._read_ready_line() if self.ready_line else self._poll_probe())
        except TimeoutError:
            await self.stop()
            raise ChildFailed(f"{self.name} was not ready in {self.ready_seconds:.0f} s, see {self.log}") from None
        return self.ready

    async def _read_ready_line(self) -> dict[str, Any]:
        assert self.process is not None
        assert self.process.stdout is not None
        line = await self.process.stdout.readline()
        if not line:
            code = await self.process.wait()
            raise ChildFailed(f"{self.name} ended with exit code {code}, see {self.log}")
        try:
            value = json.loads(line)
        except ValueError:
            value = None
        if not isinstance(value, dict):
            raise ChildFailed(f"{self.name} says something else than that it is ready, see {self.log}")
        return value

    async def _poll_probe(self) -> dict[str, Any]:
        assert self.process is not None
        assert self.probe is not None
        while not self.probe():
            if self.process.returncode is not None:
                raise ChildFailed(f"{self.name} ended with exit code {self.process.returncode}, see {self.log}")
            await asyncio.sleep(0.02)
        return {}

    async def stop(self) -> None:
        """SIGTERM, then SIGKILL after ``stop_seconds``; returns when the program is gone."""
        if self.process is None or self.process.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            self.process.terminate()
        try:
            async with asyncio.timeout(self.stop_seconds):
                await self.process.wait()
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                self.process.kill()
            await self.process.wait()


class Supervisor:
    """Keeps children running; ``on_event(text)`` hears of every restart."""

    def __init__(self, on_event: Callable[[str], None]) -> None:
        self._children: list[Child] = []
        self._watchers: list[asyncio.Task[None]] = []
        self._on_event = on_event
        self._stopping = False

    async def start(self, child: Child, on_ready: Callable[[Child], None] | None = None) -> dict[str, Any]:
        """Starts ``child`` and watches it from then on; ``on_ready`` also runs after each restart."""
        self._children.append(child)
        ready = await child.start()
        if on_ready is not None:
            on_ready(child)
        self._watchers.append(asyncio.create_task(self._watch(child, on_ready)))
        return ready

    async def _watch(self, child: Child, on_ready: Callable[[Child], None] | None) -> None:
        failures = 0
        while not self._stopping:
            assert child.process is not None
            code = await child.process.wait()
            if self._stopping:
                return
            failures = 0 if time.monotonic() - child.started_at > _STABLE_SECONDS else failures
            delay = _BACKOFF_SECONDS[min(failures, len(_BACKOFF_SECONDS) - 1)]
            failures += 1
            child.restarts += 1
            self._on_event(f"{child.name} ended with exit code {code}; restarting in {delay} s")
            await asyncio.sleep(delay)
            try:
                await child.start()
                assert child.process is not None
                self._on_event(f"{child.name} is ready again (pid {child.process.pid})")
                if on_ready is not None:
                    on_ready(child)
            except (ChildFailed, OSError, ValueError) as error:
                # Also a full disk, a log directory that is gone, or a file that is open to others: it may pass, and the
                # watch must outlive it.
                self._on_event(str(error))

    async def stop(self) -> None:
        """Stops all children, the last started first."""
        self._stopping = True
        for watcher in self._watchers:
            watcher.cancel()
        for child in reversed(self._children):
            await child.stop()
