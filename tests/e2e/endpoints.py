"""Callers and instances of the delivery endpoint at a real broker, with the credentials that the matrix gives them."""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

from sidecar.base.strictjson import JsonValue
from sidecar.ops.logging import Log
from sidecar.ops.metrics import Metrics
from sidecar.rails.connection import Connection, Credentials
from sidecar.rails.endpoint.call import Call, Handler
from sidecar.rails.endpoint.caller import Caller
from sidecar.rails.endpoint.contracts import DELIVERY, DELIVERY_ENDPOINT
from sidecar.rails.endpoint.serve import EndpointServer
from sidecar.rails.names import inboxes
from sidecar.rails.space.claims import Access, Permissions
from sidecar.rails.space.creds import format_creds
from sidecar.rails.space.holder import Form, Holder, Profile, Service
from sidecar.rails.space.trust import new_user
from tests.e2e.space_broker import EVENT_SECONDS, SpaceBroker, User
from tests.e2e.space_dial import QUICK, dialled
from tests.e2e.space_members import INSTANCE, SPACE, Space, clock

OTHER = "e5" * 13
COMMANDS = tuple(DELIVERY)


async def until(met: Callable[[], bool]) -> None:
    """Wait, within a bound, for something that other tasks bring about."""
    async with asyncio.timeout(EVENT_SECONDS):
        while not met():  # noqa: ASYNC110 - what is met has no event
            await asyncio.sleep(0.005)


async def soon(work: Awaitable[Any]) -> Any:
    """What the work gives, within a bound."""
    async with asyncio.timeout(EVENT_SECONDS):
        return await work


class Served:
    """One instance and what its handlers were called with."""

    def __init__(self, instance: str) -> None:
        self.instance = instance
        self.called: list[Call] = []
        self.metrics = Metrics()
        self.log = io.StringIO()
        self.server: EndpointServer

    async def join(self, called: Call) -> JsonValue:
        self.called.append(called)
        return {"durable": True, "generation": len(self.called)}


class Room:
    """A space whose members only talk; nothing is stored."""

    def __init__(self, broker: SpaceBroker, form: Form = Form.MEDIATED) -> None:
        self.broker, self.space = broker, Space(broker, form)

    async def open(self) -> None:
        await self.broker.push(self.space.trust.account_token(self.broker.trust, clock()))

    @contextlib.asynccontextmanager
    async def instance(
        self,
        handlers: Mapping[str, Handler] | None = None,
        *,
        instance: str = INSTANCE,
        epoch: int = 1,
        commands: tuple[str, ...] = COMMANDS,
        **more: Any,
    ) -> AsyncIterator[Served]:
        """An instance that serves; without handlers of its own it answers durable-join."""
        made = Served(instance)
        service = Service(instance, epoch, commands)
        actor = f"server{instance[:2]}"
        async with dialled(self.space, Profile.DELIVERY, actor, metrics=made.metrics, service=service) as (
            connection,
            _,
        ):
            made.server = EndpointServer(
                connection,
                SPACE,
                DELIVERY_ENDPOINT,
                instance,
                epoch,
                handlers or {"durable-join": made.join},
                DELIVERY,
                metrics=made.metrics,
                log=Log(made.log),
                **more,
            )
            await made.server.start()
            try:
                yield made
            finally:
                await made.server.close(0.1)

    @contextlib.asynccontextmanager
    async def caller(self, actor: str = "alice", **more: Any) -> AsyncIterator[tuple[Caller, Metrics]]:
        """A caller of its own on a connection of its own."""
        metrics = Metrics()
        async with dialled(self.space, Profile.AGENT, actor, metrics=metrics) as (connection, holder):
            caller = Caller(connection, SPACE, holder.lifecycle, actor, metrics=metrics, **more)
            try:
                yield caller, metrics
            finally:
                await caller.close()

    @contextlib.asynccontextmanager
    async def responder(self) -> AsyncIterator[tuple[User, Holder]]:
        """A foreign client with the credential of an instance."""
        service = Service(INSTANCE, 1, COMMANDS)
        async with self.space.member(Profile.DELIVERY, "foreign", service=service) as one:
            yield one

    @contextlib.asynccontextmanager
    async def granted(self, rows: Permissions) -> AsyncIterator[Connection]:
        """A connection with exactly these grants, for a profile that nothing mints yet."""
        key = new_user(os.urandom)

        async def mint() -> Credentials:
            own = Access((*rows.subscribe.allow, inboxes.INBOX.subtree(connection=key.public)))
            token = self.space.trust.mint("local-manager", Permissions(rows.publish, own), key, clock(), 300)
            return Credentials(format_creds(token, key), clock() + 300)

        async with await Connection.open([self.broker.url], mint, policy=QUICK) as connection:
            yield connection

    @contextlib.asynccontextmanager
    async def dial(self, profile: Profile, actor: str, **more: Any) -> AsyncIterator[tuple[Connection, Holder]]:
        async with dialled(self.space, profile, actor, **more) as one:
            yield one


@contextlib.asynccontextmanager
async def room(directory: Path, form: Form = Form.MEDIATED) -> AsyncIterator[Room]:
    async with SpaceBroker(directory) as broker:
        made = Room(broker, form)
        await made.open()
        yield made
