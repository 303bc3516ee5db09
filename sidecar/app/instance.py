"""One instance of an endpoint in a process: registered, connected, served, until its incarnation ends.

A broker that is away is waited for. An incarnation ends for good when a later registration has taken over, or when its
credentials are not taken any more: then the process is to end, and whoever watches it starts another one.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

from sidecar.app.endpoint_host import Hosted, host
from sidecar.app.json_config import Where
from sidecar.app.space_links import SpaceFailed
from sidecar.ops.logging import Log, told
from sidecar.ops.metrics import Metrics
from sidecar.rails.connection import Connection, ConnectionFault, Watch
from sidecar.rails.endpoint.app import Endpoint
from sidecar.rails.endpoint.identity import Identity
from sidecar.rails.endpoint.running import running
from sidecar.rails.endpoint.serve import EndpointServer
from sidecar.rails.planes.delivery.daemon import wait_after
from sidecar.rails.planes.registration.faults import Conflict, Unverified

CONFLICTS: Final = 6
"""Registrations in a row that lost against another one, after which it is said instead of tried again."""


class InstanceEnded(Exception):  # noqa: N818 - what happened
    """The incarnation serves no more; the text says why."""


class Instance:
    """``run`` serves until cancelled; ``settled`` is set once it serves."""

    def __init__(
        self, where: Where, endpoint: Endpoint, owner: str, *, instance: str | None = None, metrics: Metrics, log: Log
    ) -> None:
        """``owner`` owns the endpoint's domain; ``instance`` is the one to register, a kept or new one by default."""
        self._where, self._endpoint, self._owner, self._wanted = where, endpoint, owner, instance
        self._metrics, self._log = metrics, log
        self._server: EndpointServer | None = None
        self._problem = "it is not registered yet"
        self.identity: Identity | None = None
        self.settled = asyncio.Event()

    @property
    def serving(self) -> bool:
        """Whether requests can reach it at this moment."""
        return self._server is not None and self._server.serving

    def unready(self) -> list[str]:
        """Why it does not serve; empty when it does."""
        if self.serving:
            return []
        why = self._problem if self._server is None else "the link to the broker is down, or a rail is lost"
        return [f"{self._endpoint.name}: {why}"]

    def ready_line(self) -> dict[str, Any]:
        """Who serves: what the ready line of a process says of it."""
        identity = self.identity
        return {
            "endpoint": self._endpoint.name,
            "space": self._where.space,
            "instance_id": None if identity is None else identity.instance,
            "epoch": None if identity is None else identity.epoch,
        }

    async def run(self) -> None:
        """Serve. Raises InstanceEnded; RegistrationRefused, UnsafeFile, OSError when it cannot be registered."""
        hosted = await self._registered()
        self.identity = hosted.identity
        try:
            watch = Watch(self._metrics, self._log)
            async with hosted.connected(self._where.url, watch) as connection:
                await self._serve(connection, hosted)
        except ConnectionFault as error:
            raise InstanceEnded(f"{self._endpoint.name} instance {hosted.identity.instance}: {error}") from None
        finally:
            self._server = None
            hosted.close()

    async def _registered(self) -> Hosted:
        """Register, as often as it takes while the broker is away or cannot show that the predecessor is gone. Others
        that register at the same time are given way to for a while."""
        failures = conflicts = 0
        while True:
            try:
                return await host(
                    self._where.root,
                    self._where.space,
                    self._where.url,
                    self._endpoint,
                    owner=self._owner,
                    instance=self._wanted,
                    metrics=self._metrics,
                )
            except (SpaceFailed, Unverified, Conflict) as error:
                failures += 1
                conflicts = conflicts + 1 if isinstance(error, Conflict) else 0
                if conflicts >= CONFLICTS:
                    raise
                self._problem = told(error)
                self._log.warning("endpoint_not_registered", endpoint=self._endpoint.name, problem=self._problem)
                await asyncio.sleep(wait_after(failures))

    async def _serve(self, connection: Connection, hosted: Hosted) -> None:
        """Until the incarnation ends, which is raised."""
        async with running(self._endpoint, connection, hosted.identity, metrics=self._metrics, log=self._log) as server:
            self._server = server
            self.settled.set()
            await server.wait()
