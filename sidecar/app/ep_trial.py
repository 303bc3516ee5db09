"""An endpoint under test, in a space of its own at a real broker: what the test that ``sidecar ep new`` writes runs on.

    with trial("endpoint.py:endpoint", tmp_path) as here:
        assert here.call("hello", {"name": "world"}) == {"text": "Hello, world!"}

Everything is done by the commands that a person would type, in processes of their own.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from sidecar.app.ep_load import load
from sidecar.base.strictjson import JsonValue

SPACE: Final = "main"
ACTOR: Final = "trial"
_SIDECAR: Final = (sys.executable, "-m", "sidecar")
_STOP_SECONDS: Final = 60.0
_COMMAND_SECONDS: Final = 120.0


class TrialFailed(Exception):  # noqa: N818 - what happened
    """A command of the trial did not do what it should; the message has its name and its last lines."""


class Refused(Exception):  # noqa: N818 - the field's word
    """The call was refused, or failed. ``answer`` is the JSON line of ``sidecar ep call``."""

    def __init__(self, answer: dict[str, Any]) -> None:
        super().__init__(f"{self.code_of(answer)}: {answer.get('message', '')}")
        self.answer = answer
        self.code = self.code_of(answer)
        self.outcome = str(answer.get("outcome", ""))

    @staticmethod
    def code_of(answer: dict[str, Any]) -> str:
        return str(answer.get("code") or answer.get("name"))


class Trial:
    """The endpoint as it serves; somebody who holds every command of it calls."""

    def __init__(self, directory: Path, name: str, ready: dict[str, Any]) -> None:
        self.directory, self.name, self.ready = directory, name, ready

    def call(self, command: str, args: dict[str, JsonValue] | None = None, *options: str) -> Any:
        """The data of the answer. Raises Refused, TrialFailed. ``options`` are those of ``sidecar ep call``."""
        words = [self.name, command, *([] if args is None else [json.dumps(args)]), *options]
        done = _run("ep", "call", *words, "--dev", str(self.directory), "--as", ACTOR, "--space", SPACE, "--json")
        try:
            answer = json.loads(done.stdout.splitlines()[-1])
        except (IndexError, ValueError):
            raise TrialFailed(f"sidecar ep call: {done.stderr[-2_000:]}") from None
        if answer.get("type") != "answer":
            raise Refused(answer)
        return answer["data"]

    def refused(self, command: str, args: dict[str, JsonValue] | None = None, *options: str) -> str:
        """The code of the refusal, which is expected. Raises TrialFailed when there is none."""
        try:
            data = self.call(command, args, *options)
        except Refused as refused:
            return refused.code
        raise TrialFailed(f"{command} was not refused: {data}")


@contextlib.contextmanager
def trial(where: str, directory: Path) -> Iterator[Trial]:
    """Start everything for the endpoint in ``FILE.py:NAME``, and stop it. Raises TrialFailed, NotLoaded."""
    name = load(where).name
    dev = directory / "dev"
    with (
        _running(directory / "dev.log", "dev", "--dir", str(dev)),
        _served(where, name, dev, directory / "serve.log") as ready,
    ):
        here = ("--space", SPACE, "--dev", str(dev))
        holds = ("--may", f"{name}:*", "--hear", f"{name}:*")
        _step("principal", "add", "--actor", ACTOR, "--owner", "local", *holds, *here)
        yield Trial(dev, name, ready)


@contextlib.contextmanager
def _served(where: str, name: str, dev: Path, log: Path) -> Iterator[dict[str, Any]]:
    domain = name.rpartition(".")[0] if name.count(".") > 1 else name
    _step("ep", "domain", "claim", domain, "--owner", "local", "--space", SPACE, "--dev", str(dev))
    with _running(log, "ep", "serve", where, "--space", SPACE, "--dev", str(dev)) as ready:
        yield ready


@contextlib.contextmanager
def _running(log: Path, *words: str) -> Iterator[dict[str, Any]]:
    """A process that goes on, from its ready line to its end."""
    with log.open("ab") as errors:
        process = subprocess.Popen([*_SIDECAR, *words], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors)
    assert process.stdout is not None
    with process.stdout as lines:
        try:
            line = lines.readline()
            if not line:
                raise TrialFailed(f"sidecar {words[0]} did not start: {log.read_text()[-2_000:]}")
            yield json.loads(line)
        finally:
            process.terminate()
            try:
                process.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _step(*words: str) -> None:
    done = _run(*words)
    if done.returncode != 0:
        raise TrialFailed(f"sidecar {' '.join(words[:3])}: {done.stderr[-2_000:]}")


def _run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*_SIDECAR, *words],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=_COMMAND_SECONDS,
        check=False,
    )
