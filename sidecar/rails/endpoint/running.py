"""An endpoint that serves: over a connection with the serve credential of an incarnation, until it is over (C13.14)."""

from __future__ import annotations

import asyncio
import contextlib
import os
import ssl
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from sidecar.base.clock import system_now
from sidecar.base.secret import Secret
from sidecar.ops.logging import Log
from sidecar.ops.metrics import Metrics
from sidecar.ops.signals import on_stop
from sidecar.rails.connection import Connection, Credentials, Notice, Watch
from sidecar.rails.endpoint.caller import Caller
from sidecar.rails.endpoint.identity import Identity, identity_of
from sidecar.rails.endpoint.serve import EndpointServer
from sidecar.rails.endpoint.view import RegistryMappings, RegistryView
from sidecar.rails.messaging.credsfile import Source, source
from sidecar.rails.planes.registration.report import report_status

if TYPE_CHECKING:
    from sidecar.rails.endpoint.app import Endpoint

STOP_SECONDS: Final = 5.0
"""How long what has begun may take when an instance ends."""
Creds = str | os.PathLike[str] | Secret | bytes | Source


@contextlib.asynccontextmanager
async def running(
    endpoint: Endpoint, connection: Connection, identity: Identity, *, metrics: Metrics, log: Log, **limits: Any
) -> AsyncIterator[EndpointServer]:
    """Serve on a connection for the block, with the registry's view of callers and targets; the record of the instance
    says so. At the end what has begun is finished. Raises what ``EndpointServer.start`` raises."""

    async def report(state: str) -> None:
        await report_status(connection, identity, state)

    life = identity.lifecycle
    caller = Caller(connection, identity.space, life, life.principal.actor, metrics=metrics)
    server = endpoint.server(
        connection,
        identity,
        view=RegistryView(caller, endpoint.name),
        mappings=RegistryMappings(caller),
        metrics=metrics,
        log=log,
        status=report,
        **limits,
    )
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(caller.close)
        await server.start()
        stack.push_async_callback(server.drain, STOP_SECONDS)
        log.info("endpoint_serves", endpoint=identity.endpoint, instance=identity.instance, epoch=identity.epoch)
        yield server


@contextlib.asynccontextmanager
async def serving(
    endpoint: Endpoint,
    servers: str | Sequence[str],
    creds: Creds,
    *,
    tls: ssl.SSLContext | None = None,
    watch: Callable[[Notice], None] | None = None,
    metrics: Metrics | None = None,
    log: Log | None = None,
    **limits: Any,
) -> AsyncIterator[EndpointServer]:
    """``Endpoint.serve``."""
    mint = source(creds, system_now)
    first = [await mint()]
    identity = identity_of(first[0].text)
    if identity.endpoint != endpoint.name:  # before anybody connects
        raise ValueError(f"the credential serves {identity.endpoint}, not {endpoint.name}")

    async def next_credentials() -> Credentials:
        return first.pop() if first else await mint()

    metrics, log = metrics or Metrics(), log or Log(sys.stderr, form="text")
    urls = [servers] if isinstance(servers, str) else servers
    async with (
        await Connection.open(urls, next_credentials, watch=Watch(metrics, log, watch), tls=tls) as connection,
        running(endpoint, connection, identity, metrics=metrics, log=log, **limits) as server,
    ):
        yield server


async def until_stopped(endpoint: Endpoint, servers: str | Sequence[str], creds: Creds, **more: Any) -> None:
    """Serve until SIGINT or SIGTERM, and end as ``serving`` does. Raises what ``EndpointServer.wait`` raises. Runs in
    the main thread only."""
    stop = asyncio.Event()
    undo = on_stop(asyncio.get_running_loop(), lambda _: stop.set())
    stopping = asyncio.create_task(stop.wait())
    task = asyncio.create_task(_served(endpoint, servers, creds, more))
    try:
        await asyncio.wait((task, stopping), return_when=asyncio.FIRST_COMPLETED)
    finally:
        stopping.cancel()
        task.cancel()
        await asyncio.wait((task, stopping))
        undo()
    if not task.cancelled():
        task.result()


async def _served(endpoint: Endpoint, servers: str | Sequence[str], creds: Creds, more: dict[str, Any]) -> None:
    async with serving(endpoint, servers, creds, **more) as server:
        await server.wait()
