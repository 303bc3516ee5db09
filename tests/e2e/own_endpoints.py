"""Our own endpoints at a real broker: instances that are registered and served as a process does it, and callers with
exactly the capabilities that they are given."""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
from collections.abc import AsyncIterator
from pathlib import Path

from sidecar.app.domains import claim
from sidecar.app.instance import Instance
from sidecar.app.json_config import Where
from sidecar.app.spaces import create_space
from sidecar.ops.logging import Log
from sidecar.ops.metrics import Metrics
from sidecar.rails.endpoint.app import Endpoint
from sidecar.rails.endpoint.caller import Caller
from sidecar.rails.endpoint.contracts import KNOWN
from sidecar.rails.names.principals import LOCAL_OWNER
from sidecar.rails.space.holder import Capability, Form, Profile
from sidecar.rails.space.trust import SpaceTrust
from tests.e2e.space_broker import EVENT_SECONDS, SpaceBroker
from tests.e2e.space_dial import dialled
from tests.e2e.space_members import SPACE, Space


class Site:
    """A broker with a space that was created as an operator does it, and the claim of a domain."""

    def __init__(self, broker: SpaceBroker, space: Space) -> None:
        self.broker, self.space = broker, space
        self.where = Where(broker.directory, SPACE, broker.url)
        self.metrics = Metrics()
        self.log = io.StringIO()

    @contextlib.asynccontextmanager
    async def serve(self, endpoint: Endpoint, instance: str | None = None) -> AsyncIterator[Instance]:
        """One instance, served until the end of the context."""
        made = Instance(self.where, endpoint, LOCAL_OWNER, instance=instance, metrics=self.metrics, log=Log(self.log))
        running = asyncio.create_task(made.run())
        settled = asyncio.create_task(made.settled.wait())
        try:
            async with asyncio.timeout(EVENT_SECONDS):
                await asyncio.wait((running, settled), return_when=asyncio.FIRST_COMPLETED)
            if running.done():
                running.result()
            yield made
        finally:
            for task in (running, settled):
                task.cancel()
            await asyncio.wait((running, settled))

    @contextlib.asynccontextmanager
    async def caller(self, endpoint: Endpoint, *may: Capability, actor: str = "alice") -> AsyncIterator[Caller]:
        """A caller that holds these capabilities and knows the contracts of the endpoint."""
        async with dialled(self.space, Profile.AGENT, actor, capabilities=may) as (connection, holder):
            known = {**KNOWN, endpoint.name: endpoint.contracts}
            caller = Caller(connection, SPACE, holder.lifecycle, actor, contracts=known)
            try:
                yield caller
            finally:
                await caller.close()


@contextlib.asynccontextmanager
async def site(directory: Path, domain: str) -> AsyncIterator[Site]:
    """A compatible space whose operator has claimed the domain."""
    async with SpaceBroker(directory) as broker:
        await create_space(directory, SPACE, Form.COMPATIBLE, broker.url)
        claim(directory, SPACE, domain, LOCAL_OWNER)
        space = Space(broker, Form.COMPATIBLE)
        space.trust = SpaceTrust.open(directory / "spaces" / SPACE, SPACE, os.urandom)
        yield Site(broker, space)
