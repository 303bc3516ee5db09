"""One lane of the registry process: a registered instance of the endpoint `registry`, and the writer of registrations.

A lane has three connections, each with what its work needs and no more: one that reads the stores, one that serves (it
reads nothing), and one that writes what instances report. Lanes share nothing but the process.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Awaitable, Callable, Coroutine
from enum import StrEnum
from typing import Any, Final

from sidecar.app.endpoint_host import Hosted, host
from sidecar.app.json_config import Where
from sidecar.app.spaces import space_info
from sidecar.ops.logging import Log, told
from sidecar.ops.metrics import Metrics
from sidecar.rails.connection import Connection, Credentials, Stopped, Watch
from sidecar.rails.connection.kv import Unreadable
from sidecar.rails.endpoint.identity import Identity
from sidecar.rails.endpoint.registry_contracts import REGISTRY_ENDPOINT
from sidecar.rails.endpoint.serve import EndpointServer
from sidecar.rails.names import Lifecycle, Principal
from sidecar.rails.names.principals import LOCAL_OWNER
from sidecar.rails.planes.delivery.daemon import STABLE_SECONDS, wait_after
from sidecar.rails.planes.registration.record_writer import RecordWriter
from sidecar.rails.planes.registration.report import report_status
from sidecar.rails.planes.registry.compose import registry_endpoint
from sidecar.rails.planes.registry.registry import Registry
from sidecar.rails.space.creds import format_creds
from sidecar.rails.space.holder import Form, Holder, Profile
from sidecar.rails.space.trust import SpaceTrust, new_user

DRAIN_SECONDS: Final = 5.0
LEFT_SECONDS: Final = 1.0
PROOF_SECONDS: Final = 15.0
"""How often it is looked whether the stores are still what may be served from."""


class Stage(StrEnum):
    """Where a lane is."""

    CONNECTING = "connecting"
    BINDING = "binding"
    SERVING = "serving"
    STOPPED = "stopped"


class RegistryLane:
    """One space. ``run`` serves it until cancelled and never gives up."""

    def __init__(self, where: Where, seconds: int, metrics: Metrics, log: Log) -> None:
        """``seconds`` is the life of each credential."""
        self.where = where
        self.identity: Identity | None = None
        self.settled = asyncio.Event()
        """Set once it serves."""
        self._seconds, self._metrics, self._log = seconds, metrics, log
        self._stage: Stage | None = None
        self._server: EndpointServer | None = None
        self._writing = asyncio.Event()
        self._problem = "it has not connected yet"

    @property
    def serving(self) -> bool:
        """Whether requests can reach it at this moment."""
        return self._server is not None and self._server.serving

    def unready(self) -> list[str]:
        """Why it does not serve whole; empty when it does."""
        problems = []
        if not self.serving:
            lost = "the link to the broker is down, or a rail is lost"
            problems.append(self._problem if self._server is None else lost)
        elif not self._writing.is_set():
            problems.append("the record writer does not run")
        return [f"space {self.where.space}: {one}" for one in problems]

    def ready_line(self) -> dict[str, Any]:
        """What the ready line of the process says of it."""
        identity = self.identity
        return {
            "space": self.where.space,
            "serving": self.serving,
            "lifecycle": None if identity is None else identity.lifecycle.dot,
            "instance": None if identity is None else identity.instance,
            "epoch": None if identity is None else identity.epoch,
        }

    async def run(self) -> None:
        """Serve, again after every end, with growing waits."""
        failures = 0
        try:
            while True:
                begun = time.monotonic()
                self._enter(Stage.CONNECTING)
                try:
                    await self._once()
                except Exception as error:
                    self._problem = told(error)
                failures = 1 if time.monotonic() - begun > STABLE_SECONDS else failures + 1
                self._metrics.counter("registry_restarts", "lane").inc()
                self._log.error("registry_lane_ended", space=self.where.space, problem=self._problem)
                await asyncio.sleep(wait_after(failures))
        finally:
            self._enter(Stage.STOPPED)

    def _enter(self, stage: Stage) -> None:
        gauge = self._metrics.gauge
        if self._stage is not None:
            gauge("registry_lanes", self._stage.value).dec()
        gauge("registry_lanes", stage.value).inc()
        self._stage = stage

    async def _once(self) -> None:
        """From the files to the end of the incarnation, which is raised."""
        info = space_info(self.where.root, self.where.space)
        account = SpaceTrust.open(self.where.root / "spaces" / info.name, info.name, os.urandom)
        self._problem = "no connection to the broker yet"
        async with await self._connected(_minter(account, info.form, Profile.REGISTRY, self._seconds)) as reader:
            registry = Registry(reader, info.name, self._metrics, self._log)
            self._enter(Stage.BINDING)
            self._problem = "the stores of the space are not proved yet"
            await registry.records.prove()
            self._problem = "it is not registered yet"
            endpoint = registry_endpoint(registry.handlers)
            where = self.where
            hosted = await host(
                *(where.root, where.space, where.url, endpoint),
                owner=LOCAL_OWNER,
                seconds=self._seconds,
                metrics=self._metrics,
            )
            try:
                self.identity = hosted.identity
                writer = _minter(account, info.form, Profile.RECORD_WRITER, self._seconds)
                await self._together(registry, hosted, self._write(info.name, writer))
            finally:
                self._server = None
                hosted.close()
                await registry.close()

    async def _together(self, registry: Registry, hosted: Hosted, writing: Coroutine[Any, Any, None]) -> None:
        """Everything of one incarnation, until one part of it ends. The writer goes last: it writes that this instance
        has left."""
        writer = asyncio.create_task(writing)
        prover = asyncio.create_task(self._prove(registry))
        server = asyncio.create_task(self._serve(registry, hosted))
        try:
            await asyncio.wait((prover, server), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for one in (prover, server):
                one.cancel()
            await asyncio.wait((prover, server))
            await _left(registry, hosted.identity)
            writer.cancel()
            await asyncio.wait((writer,))
        for one in (prover, server):
            if not one.cancelled():
                one.result()

    async def _connected(self, minter: Callable[[], Awaitable[Credentials]]) -> Connection:
        return await Connection.open([self.where.url], minter, watch=Watch(self._metrics, self._log))

    async def _serve(self, registry: Registry, hosted: Hosted) -> None:
        """The endpoint itself; its end is the end of the lane's turn."""
        identity = hosted.identity
        async with hosted.connected(self.where.url, Watch(self._metrics, self._log)) as connection:

            async def report(state: str) -> None:
                await report_status(connection, identity, state)

            server = registry_endpoint(registry.handlers).server(
                connection, identity, metrics=self._metrics, log=self._log, status=report
            )
            try:
                await server.start()
                self._server = server
                self._enter(Stage.SERVING)
                self._log.info(
                    "registry_serves", space=identity.space, instance=identity.instance, epoch=identity.epoch
                )
                self.settled.set()
                await server.wait()
            finally:
                self._server = None
                await server.drain(DRAIN_SECONDS)
        raise LaneEnded(f"the instance {identity.instance} of {REGISTRY_ENDPOINT} has ended at epoch {identity.epoch}")

    async def _prove(self, registry: Registry) -> None:
        """Look at the stores from time to time: one that may lose rows, or a reader that gets no login any more, ends
        the lane's turn."""
        while True:
            await asyncio.sleep(PROOF_SECONDS)
            try:
                await registry.records.prove()
            except Unreadable as error:
                if isinstance(error.__cause__, Stopped):
                    raise
                self._log.warning("registry_stores_unproved", space=self.where.space, problem=told(error))

    async def _write(self, space: str, minter: Callable[[], Awaitable[Credentials]]) -> None:
        """The writer of registrations, started again with growing waits. The endpoint answers without it too."""
        deaths = 0
        while True:
            begun = time.monotonic()
            why = "it ended"
            try:
                async with await self._connected(minter) as connection:
                    writer = RecordWriter(connection, space, metrics=self._metrics, log=self._log)
                    await writer.run(self._writing)
            except Exception as error:
                why = told(error)
            finally:
                self._writing.clear()
            deaths = 1 if time.monotonic() - begun >= STABLE_SECONDS else deaths + 1
            self._metrics.counter("registry_restarts", "writer").inc()
            self._log.error("registry_writer_ended", space=self.where.space, problem=why)
            await asyncio.sleep(wait_after(deaths))


class LaneEnded(Exception):  # noqa: N818 - what happened
    """The incarnation of a lane serves no more; the next one is registered anew."""


async def _left(registry: Registry, identity: Identity) -> None:
    """Wait a moment until the record says that an instance has left; what does not stand there by then is written by
    whoever runs next, if at all."""
    with contextlib.suppress(TimeoutError, Unreadable):
        async with asyncio.timeout(LEFT_SECONDS):
            while True:
                found = (await registry.records.record(identity.endpoint, identity.instance)).status
                if found is None or found.value.get("state") == "exited":
                    return
                await asyncio.sleep(LEFT_SECONDS / 20)


def _minter(account: SpaceTrust, form: Form, profile: Profile, seconds: int) -> Callable[[], Awaitable[Credentials]]:
    """Credentials of one user key that never leaves the process, a new token each time (CB-92)."""
    key = new_user(os.urandom)
    lifecycle = Lifecycle(Principal(LOCAL_OWNER, profile.replace("-", "_")), os.urandom(16).hex())
    holder = Holder(account.space, lifecycle, key.public, form)

    async def mint() -> Credentials:
        now = int(time.time())
        return Credentials(format_creds(account.issue(profile, holder, key, now, seconds), key), now + seconds)

    return mint
