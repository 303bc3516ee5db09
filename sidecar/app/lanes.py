"""Lanes of one or more spaces in one process: what `sidecar delivery` and `sidecar registry` have in common.

Lanes share nothing but the process. One that cannot serve says so on the health endpoint and in the log, and goes on
trying, so that the process ends when it is asked to, and for nothing else.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import uvloop

from sidecar.ops.config import Address, LogSection
from sidecar.ops.exitcodes import ExitCode
from sidecar.ops.health import HealthServer
from sidecar.ops.logging import Log, open_log
from sidecar.ops.metrics import Metrics
from sidecar.ops.signals import on_stop


class Lane(Protocol):
    """What serves one space; ``settled`` is set once it serves, or waits for another holder."""

    settled: asyncio.Event

    def unready(self) -> list[str]: ...

    def ready_line(self) -> dict[str, Any]: ...

    async def run(self) -> None: ...


class CannotStart(Exception):  # noqa: N818 - the outcome, as a caller reads it
    """The process did not start; `exit_code` is what it ends with."""

    def __init__(self, exit_code: ExitCode, problem: object) -> None:
        super().__init__(str(problem))
        self.exit_code = exit_code


def run_lanes(address: Address, section: LogSection, made: Callable[[Metrics, Log], Sequence[Lane]]) -> None:
    """Run until SIGTERM or SIGINT; prints one JSON line on stdout when every lane has settled.

    Returns after a clean stop of every lane. Raises CannotStart. Runs in the main thread only.
    """
    try:
        log = open_log(section.level, section.format, section.file)
    except OSError as error:
        raise CannotStart(ExitCode.CONFIG, f"{section.file}: {error.strerror}") from None
    with contextlib.closing(log):
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_run(made, address, log))
        log.info("stopped", exit_code=int(ExitCode.OK))


async def _run(made: Callable[[Metrics, Log], Sequence[Lane]], address: Address, log: Log) -> None:
    metrics = Metrics()
    lanes = made(metrics, log)
    health = HealthServer(
        address.host,
        address.port,
        metrics.registry,
        healthy=list,  # a lane that cannot serve is tried again here; another process would not do better
        ready=lambda: [reason for lane in lanes for reason in lane.unready()],
    )
    try:
        health.start()
    except OSError as error:
        raise CannotStart(ExitCode.CANNOT_BIND, f"the health listener: {error.strerror or error}") from None
    stop = asyncio.Event()
    undo = on_stop(asyncio.get_running_loop(), lambda _: stop.set())
    running = [asyncio.create_task(lane.run()) for lane in lanes]
    announcing = asyncio.create_task(_announce(lanes, health, log))
    try:
        await stop.wait()
    finally:
        announcing.cancel()
        for task in running:
            task.cancel()
        await asyncio.gather(announcing, *running, return_exceptions=True)
        health.stop()
        undo()


async def _announce(lanes: Sequence[Lane], health: HealthServer, log: Log) -> None:
    for lane in lanes:
        await lane.settled.wait()
    say_ready({"lanes": [lane.ready_line() for lane in lanes]}, health, log)


def say_ready(who: dict[str, Any], health: HealthServer, log: Log) -> None:
    """The ready line, on stdout. What serves, serves also when nobody can be told."""
    line = {
        "ready": True,
        "pid": os.getpid(),
        **who,
        "metrics_url": f"{health.url}/metrics",
        "health_url": f"{health.url}/healthz",
        "ready_url": f"{health.url}/readyz",
    }
    try:
        sys.stdout.write(json.dumps(line) + "\n")
        sys.stdout.flush()
    except OSError as error:
        log.error("ready_line_unwritten", problem=error.strerror or type(error).__name__)
