"""The commands of messaging as processes of their own, at a running ``sidecar dev``."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from tests.e2e.devset import SIDECAR, DevSet

PATIENCE = 90.0


class Terminal:
    """One space of a dev set, as somebody at a terminal sees it."""

    def __init__(self, running: DevSet, space: str) -> None:
        self.running, self.space = running, space

    def words(self, who: str, *arguments: str) -> list[str]:
        return [*arguments, "--dev", str(self.running.directory), "--as", who, "--space", self.space]

    def run(self, who: str, *arguments: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
        """One command to its end."""
        return sidecar(*self.words(who, *arguments), stdin=stdin)

    def done(self, who: str, *arguments: str, stdin: str | None = None) -> list[dict[str, Any]]:
        """The JSON lines of a command that succeeds."""
        found = self.run(who, *arguments, "--json", stdin=stdin)
        assert found.returncode == 0, (found.stdout, found.stderr)
        return [json.loads(line) for line in found.stdout.splitlines()]

    def follow(self, who: str, *arguments: str) -> Follower:
        """A command that goes on."""
        return Follower(self.words(who, *arguments, "--json"))

    def principal(self, who: str) -> str:
        member = self.running.ready["nats"]["spaces"][self.space]["principals"][who]
        return f"{member['owner']}.{member['actor']}"


def sidecar(*arguments: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*SIDECAR, *arguments], capture_output=True, text=True, input=stdin, timeout=PATIENCE, check=False
    )


class Follower:
    """A command that goes on, and the JSON lines that it has printed."""

    def __init__(self, words: list[str]) -> None:
        self.process = subprocess.Popen(
            [*SIDECAR, *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )
        self.seen: list[dict[str, Any]] = []
        self._lines: queue.Queue[str] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line)
        self._lines.put("")

    def until(self, wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """The next line that is it; those before it are in ``seen``."""
        end = time.monotonic() + PATIENCE
        while True:
            line = self._lines.get(timeout=max(0.1, end - time.monotonic()))
            if not line:
                assert self.process.stderr is not None
                raise AssertionError((self.seen, self.process.stderr.read()))
            document: dict[str, Any] = json.loads(line)
            self.seen.append(document)
            if wanted(document):
                return document

    def notice(self, event: str) -> dict[str, Any]:
        return self.until(lambda line: line.get("event") == event)

    def message(self, text: str) -> dict[str, Any]:
        return self.until(lambda line: line["type"] == "message" and text_of(line) == text)

    @property
    def texts(self) -> list[str]:
        """What was said so far."""
        return [text_of(line) for line in self.seen if line["type"] == "message"]

    def stop(self, number: signal.Signals = signal.SIGINT) -> int:
        """Ctrl-C; what it still prints is in ``seen``."""
        self.process.send_signal(number)
        return self.ended()

    def ended(self) -> int:
        code = self.process.wait(PATIENCE)
        self._reader.join(PATIENCE)
        while line := self._lines.get(timeout=PATIENCE):
            self.seen.append(json.loads(line))
        return code

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(PATIENCE)
        self._reader.join(PATIENCE)
        for stream in (self.process.stdout, self.process.stderr):
            assert stream is not None
            stream.close()


def text_of(line: dict[str, Any]) -> str:
    return "".join(part.get("text", "") for part in line["parts"])
