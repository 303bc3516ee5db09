"""`sidecar delivery`: the delivery planes of one or more spaces in one process, beside the coordinator and not in it.

A coordinator that fences itself must not take deliveries down, so that this is a process of its own. Every space is a
lane that shares nothing with the others (CB-81, CB-82); a lane that cannot serve says so on the health endpoint and in
the log, and goes on trying.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import Sequence

import uvloop

from sidecar.app.delivery_config import DeliveryConfig
from sidecar.app.delivery_lane import DeliveryLane
from sidecar.ops.exitcodes import ExitCode
from sidecar.ops.health import HealthServer
from sidecar.ops.logging import Log, open_log
from sidecar.ops.metrics import Metrics
from sidecar.ops.signals import on_stop


class CannotDeliver(Exception):  # noqa: N818 - the outcome, as a caller reads it
    """The process did not start; `exit_code` is what it ends with."""

    def __init__(self, exit_code: ExitCode, problem: object) -> None:
        super().__init__(str(problem))
        self.exit_code = exit_code


def deliver(config: DeliveryConfig) -> None:
    """Run until SIGTERM or SIGINT; prints one JSON line on stdout when every lane serves, or waits for another holder.

    Returns after a clean stop, in which every lease is given back. Raises CannotDeliver. Runs in the main thread only.
    """
    try:
        log = open_log(config.log.level, config.log.format, config.log.file)
    except OSError as error:
        raise CannotDeliver(ExitCode.CONFIG, f"{config.log.file}: {error.strerror}") from None
    with contextlib.closing(log):
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_run(config, log))
        log.info("stopped", exit_code=int(ExitCode.OK))


async def _run(config: DeliveryConfig, log: Log) -> None:
    metrics = Metrics()
    lanes = [DeliveryLane(lane, config.credential_seconds, metrics, log) for lane in config.lanes]
    health = HealthServer(
        config.metrics.host,
        config.metrics.port,
        metrics.registry,
        healthy=list,  # a lane that cannot serve is tried again here; another process would not do better
        ready=lambda: [reason for lane in lanes for reason in lane.unready()],
    )
    try:
        health.start()
    except OSError as error:
        raise CannotDeliver(ExitCode.CANNOT_BIND, f"the health listener: {error.strerror or error}") from None
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


async def _announce(lanes: Sequence[DeliveryLane], health: HealthServer, log: Log) -> None:
    """The ready line. The planes serve also when nobody can be told."""
    for lane in lanes:
        await lane.settled.wait()
    line = {
        "ready": True,
        "pid": os.getpid(),
        "lanes": [
            {
                "space": lane.config.space,
                "serving": lane.serving,
                "lifecycle": None if lane.state is None else lane.state.lifecycle.dot,
                "instance": None if lane.service is None else lane.service.instance,
                "epoch": None if lane.service is None else lane.service.epoch,
            }
            for lane in lanes
        ],
        "metrics_url": f"{health.url}/metrics",
        "health_url": f"{health.url}/healthz",
        "ready_url": f"{health.url}/readyz",
    }
    try:
        sys.stdout.write(json.dumps(line) + "\n")
        sys.stdout.flush()
    except OSError as error:
        log.error("ready_line_unwritten", problem=error.strerror or type(error).__name__)
