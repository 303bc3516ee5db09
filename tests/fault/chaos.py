"""Real processes that serve an endpoint, callers that keep books, and the books held against what was done."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, Final

from sidecar.rails.endpoint.caller import Answer, Caller
from sidecar.rails.endpoint.codes import CallError, Outcome
from sidecar.rails.names.principals import LOCAL_OWNER
from tests.e2e.own_endpoints import Site
from tests.e2e.space_broker import EVENT_SECONDS
from tests.e2e.space_members import SPACE
from tests.fault.chaos_endpoint import BEGAN, EFFECT, LEDGER, NAME

OK: Final = "ok"
_ROOT: Final = Path(__file__).parents[2]


class Ledger:
    """How each call ended, by its id, beside the effects that processes have written into the file."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.file.touch()
        self.ended: dict[str, str] = {}
        self.answers: list[tuple[Caller, Answer]] = []
        self.codes: Counter[str] = Counter()
        self.sent = 0

    async def call(self, caller: Caller, command: str, args: Any = None, **more: Any) -> Answer | CallError:
        """One call under an id of its own, which ends in exactly one way."""
        self.sent += 1
        identity = more.setdefault("id", os.urandom(16).hex())
        found: Answer | CallError
        try:
            found = await caller.invoke(NAME, command, args, **more)
        except CallError as error:
            found = error
            outcome = str(error.outcome)
            self.codes[str(error.code)] += 1
        else:
            self.answers.append((caller, found))
            outcome = OK
        assert found.id == identity
        assert identity not in self.ended
        self.ended[identity] = outcome
        return found

    def many(self, caller: Caller, command: str, number: int, **more: Any) -> list[asyncio.Task[Answer | CallError]]:
        return [asyncio.create_task(self.call(caller, command, **more)) for _ in range(number)]

    def epochs(self, caller: Caller) -> list[int]:
        """Of those who answered a caller, in the order of the answers."""
        return [answer.epoch for asked, answer in self.answers if asked is caller]

    def lines(self, what: str) -> list[tuple[str, int]]:
        """Id and process of each line of a kind."""
        found = [line.split(" ") for line in self.file.read_text().splitlines()]
        return [(one[1], int(one[2])) for one in found if one[0] == what]

    def began(self) -> int:
        """Handlers that were entered and hang."""
        return len(self.lines(BEGAN)) + len(self.lines(EFFECT))

    def check(self) -> Counter[str]:
        """Every call ended once, no effect was doubled, none is there that its caller takes for not executed, and each
        that its caller takes for executed is there. How many calls ended in each way."""
        assert len(self.ended) == self.sent
        effects = Counter(identity for identity, _ in self.lines(EFFECT))
        assert effects.keys() <= self.ended.keys()
        wrong = {identity for identity, number in effects.items() if number != 1}
        assert not wrong, "effects that happened twice"
        for identity, outcome in self.ended.items():
            if outcome == Outcome.NOT_EXECUTED:
                assert identity not in effects, "executed, although its caller was told that it was not"
            elif outcome in (OK, Outcome.EXECUTED):
                assert identity in effects, "not executed, although its caller was told that it was"
        told = Counter(self.ended.values())
        assert told[OK] <= len(effects) <= len(self.ended) - told[Outcome.NOT_EXECUTED]
        return told


class Child:
    """A process that serves one instance."""

    def __init__(self, process: asyncio.subprocess.Process, ready: dict[str, Any]) -> None:
        self.process, self.pid = process, process.pid
        self.instance, self.epoch = str(ready["instance_id"]), int(ready["epoch"])

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    async def kill(self) -> None:
        """SIGKILL."""
        self.signal(signal.SIGKILL)
        await self.ended()

    async def ended(self) -> int:
        async with asyncio.timeout(EVENT_SECONDS):
            return await self.process.wait()

    def resident(self) -> int:
        """Bytes of memory that are in use."""
        lines = Path(f"/proc/{self.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS:")) * 1024


@contextlib.asynccontextmanager
async def served(place: Site, ledger: Ledger, instance: str | None = None) -> AsyncIterator[Child]:
    """One instance, registered and served by a process of its own, until the end of the context."""
    words = ["ep", "serve", "tests.fault.chaos_endpoint:endpoint", "--root", str(place.where.root), "--space", SPACE]
    words += ["--server", place.where.url, "--owner", LOCAL_OWNER]
    words += [] if instance is None else ["--instance", instance]
    log = place.broker.directory / "serve.log"
    with log.open("ab") as errors:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "sidecar",
            *words,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=errors,
            cwd=_ROOT,
            env={**os.environ, LEDGER: str(ledger.file)},
        )
    assert process.stdout is not None
    try:
        async with asyncio.timeout(EVENT_SECONDS):
            line = await process.stdout.readline()
        assert line, log.read_text()
        yield Child(process, json.loads(line))
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGCONT)
            process.terminate()
            await process.wait()


async def until(met: Callable[[], bool]) -> None:
    """Wait, within a bound, for what other processes bring about."""
    async with asyncio.timeout(EVENT_SECONDS):
        while not met():  # noqa: ASYNC110 - what is met has no event
            await asyncio.sleep(0.01)
