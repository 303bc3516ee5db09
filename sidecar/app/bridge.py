"""`sidecar bridge`: a coordinator as the endpoint `dev.sidecar.coordinator` of a space, in a process of its own.

It reads and does nothing else. A coordinator that is away, or has lost its authority, is told to whoever asks, and the
process goes on; the broker is waited for.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Final

import uvloop

from sidecar.app.bridge_config import BridgeConfig, CoordinatorSection
from sidecar.app.instance import Instance, InstanceEnded
from sidecar.app.lanes import CannotStart, say_ready
from sidecar.base.ed25519 import InvalidKey, SigningKey
from sidecar.base.keysource import load_signing_key
from sidecar.base.safefile import UnsafeFile, ensure_private_dir
from sidecar.bridge.endpoint import coordinator_endpoint
from sidecar.bridge.source import READING, READING_ARTIFACTS, Source, Unread
from sidecar.coordinator.client import CoordinatorClient
from sidecar.coordinator.pins import PinFile
from sidecar.coordinator.wire.enums import KNOWN_CAPABILITIES
from sidecar.ops.exitcodes import ExitCode
from sidecar.ops.health import HealthServer
from sidecar.ops.logging import Log, open_log, told
from sidecar.ops.metrics import Metrics
from sidecar.ops.signals import on_stop
from sidecar.rails.planes.registration.faults import RegistrationRefused

PATIENCE_SECONDS: Final = 5.0
"""How long one answer of the coordinator may take."""
LOOK_SECONDS: Final = 5.0
"""How often it is looked whether the coordinator answers, for the metrics."""


class CannotBridge(CannotStart):
    """The process did not start, or its instance has ended."""


def bridge(config: BridgeConfig) -> None:
    """Run until SIGTERM or SIGINT; prints one JSON line on stdout when the instance serves.

    Raises CannotBridge. Runs in the main thread only.
    """
    try:
        log = open_log(config.log.level, config.log.format, config.log.file)
    except OSError as error:
        raise CannotBridge(ExitCode.CONFIG, f"{config.log.file}: {error.strerror}") from None
    with contextlib.closing(log):
        try:
            key = load_signing_key(config.coordinator.key)
            ensure_private_dir(config.coordinator.pins.parent)
        except (UnsafeFile, InvalidKey, OSError) as error:
            raise CannotBridge(ExitCode.CONFIG, error) from None
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_run(config, key, log))
        log.info("stopped", exit_code=int(ExitCode.OK))


async def _run(config: BridgeConfig, key: SigningKey, log: Log) -> None:
    metrics = Metrics()
    source = Source(lambda: dial(config.coordinator, key))
    endpoint = coordinator_endpoint(source, metrics, log)
    instance = Instance(config.where, endpoint, config.owner, metrics=metrics, log=log)
    health = HealthServer(
        config.metrics.host, config.metrics.port, metrics.registry, healthy=list, ready=instance.unready
    )
    try:
        health.start()
    except OSError as error:
        raise CannotBridge(ExitCode.CANNOT_BIND, f"the health listener: {error.strerror or error}") from None
    stop = asyncio.Event()
    undo = on_stop(asyncio.get_running_loop(), lambda _: stop.set())
    running = asyncio.create_task(instance.run())
    beside = [
        asyncio.create_task(stop.wait()),
        asyncio.create_task(_announce(instance, health, log)),
        asyncio.create_task(_look(source, metrics)),
    ]
    try:
        await asyncio.wait((beside[0], running), return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in (*beside, running):
            task.cancel()
        await asyncio.gather(*beside, return_exceptions=True)
        await asyncio.wait((running,))
        await source.close()
        health.stop()
        undo()
    _judge(running, log)


def _judge(running: asyncio.Task[None], log: Log) -> None:
    """What the end of the instance means for the process. Raises CannotBridge."""
    error = None if running.cancelled() else running.exception()
    if error is None:
        return
    log.error("bridge_ended", problem=told(error))
    if isinstance(error, InstanceEnded):
        raise CannotBridge(ExitCode.UNAVAILABLE, error)
    if isinstance(error, RegistrationRefused | UnsafeFile):
        raise CannotBridge(ExitCode.CONFIG, error)
    raise error


async def dial(section: CoordinatorSection, key: SigningKey) -> CoordinatorClient:
    """A login for reading. Pins are read each time: an operator may have decided about an authority meanwhile."""
    return await CoordinatorClient.connect(
        section.socket,
        key,
        pins=PinFile(section.pins),
        witness=section.witness,
        authority=section.authority,
        scopes=READING_ARTIFACTS if section.artifacts else READING,
        capabilities=int(KNOWN_CAPABILITIES),
        client_name="sidecar-bridge",
        patience=PATIENCE_SECONDS,
    )


async def _look(source: Source, metrics: Metrics) -> None:
    """Whether the coordinator answers, for who looks at the metrics, for ever."""
    connected = metrics.gauge("bridge_connected")
    while True:
        with contextlib.suppress(Unread):
            await source.alive()
        connected.set(int(source.connected))
        await asyncio.sleep(LOOK_SECONDS)


async def _announce(instance: Instance, health: HealthServer, log: Log) -> None:
    await instance.settled.wait()
    say_ready(instance.ready_line(), health, log)
