"""The process that answers: instances of an endpoint of ours, and plain subscribers of nats-py beside them.

``python -m tests.bench.endpoint_child`` reads one line of JSON, says ``ready``, and ends with its standard input.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import time
from pathlib import Path
from typing import Any, Final

import uvloop
from nats.aio.client import Client
from nats.aio.msg import Msg

from sidecar.base.secret import Secret
from sidecar.base.strictjson import JsonValue
from sidecar.ops.logging import Level, Log
from sidecar.ops.metrics import Metrics
from sidecar.rails.connection import Connection, Credentials, Watch
from sidecar.rails.endpoint.app import Endpoint
from sidecar.rails.endpoint.call import Call
from sidecar.rails.endpoint.contracts import KNOWN
from sidecar.rails.endpoint.identity import Identity
from sidecar.rails.endpoint.serve import EndpointServer
from sidecar.rails.names.principals import Lifecycle, Principal
from tests.e2e.space_members import SPACE, uid_of

NAME: Final = "dev.sidecar.bench"
REGISTRY: Final = "registry"
TEXT: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {"text": {"type": "string", "maxLength": 65_536}},
    "required": ["text"],
    "additionalProperties": False,
}
LIMITS: Final[dict[str, Any]] = {"at_once": 4_096, "waiting": 16_384, "per_caller": 2_048}
STEP: Final = 500
"""So many of those that are held are let go at once: answers that wait for the socket are bounded."""
gate: asyncio.Semaphore


async def echo(call: Call) -> JsonValue:
    return call.args


async def hold(call: Call) -> JsonValue:
    """Waits for its turn."""
    await gate.acquire()
    return call.args


async def go(call: Call) -> JsonValue:
    """Ends ``STEP`` of those that are held."""
    for _ in range(STEP):
        gate.release()
    return call.args


def endpoint() -> Endpoint:
    made = Endpoint(NAME, protocol=2, public=True)
    made.command(input=TEXT, output=TEXT, effect="read")(echo)
    made.command(input=TEXT, output=TEXT, effect="read", waits=True)(hold)
    made.command(input=TEXT, output=TEXT, effect="read")(go)
    return made


def actor_of(instance: str) -> str:
    return f"ep{instance[:20]}"


class Child:
    """What answers in this process, until ``stack`` is closed."""

    def __init__(self, url: str, stack: contextlib.AsyncExitStack) -> None:
        self.url, self.stack, self.metrics, self.log = url, stack, Metrics(), Log(sys.stderr, level=Level.WARNING)

    async def connection(self, creds: str) -> Connection:
        text = Secret(Path(creds).read_bytes())  # noqa: ASYNC240 - nothing else runs yet

        async def mint() -> Credentials:
            return Credentials(text, int(time.time()) + 3_600)

        opened = Connection.open([self.url], mint, watch=Watch(self.metrics, self.log))
        return await self.stack.enter_async_context(await opened)

    async def serve(self, instance: str, creds: str) -> None:
        life = Lifecycle(Principal("local", actor_of(instance)), uid_of(actor_of(instance)))
        identity = Identity(SPACE, NAME, instance, 0, life, "local")
        connection = await self.connection(creds)
        server = endpoint().server(connection, identity, metrics=self.metrics, log=self.log, **LIMITS)
        await self.start(server)

    async def list(self, instance: str, creds: str, rows: list[JsonValue]) -> None:
        """A registry that knows these instances."""

        async def instances(_: Call) -> JsonValue:
            return {"rows": rows}

        server = EndpointServer(
            await self.connection(creds),
            SPACE,
            REGISTRY,
            instance,
            0,
            {"instances": instances},
            KNOWN[REGISTRY],
            metrics=self.metrics,
            log=self.log,
        )
        await self.start(server)

    async def start(self, server: EndpointServer) -> None:
        await server.start()
        self.stack.push_async_callback(server.close, 1.0)

    async def plain(self, creds: str, subject: str, queue: str, reply: str) -> None:
        """A subscriber of nats-py that answers each request with the same bytes."""
        data, client = reply.encode(), Client()

        async def take(message: Msg) -> None:
            await message.respond(data)

        await client.connect(self.url, user_credentials=creds)
        self.stack.push_async_callback(client.close)
        await client.subscribe(subject, queue=queue, cb=take)
        await client.flush()


async def main() -> None:
    global gate
    gate = asyncio.Semaphore(0)
    loop = asyncio.get_running_loop()
    told = json.loads(await loop.run_in_executor(None, sys.stdin.readline))
    async with contextlib.AsyncExitStack() as stack:
        child = Child(told["url"], stack)
        for one in told["serve"]:
            await child.serve(one["instance"], one["creds"])
        for one in told.get("list", ()):
            await child.list(one["instance"], one["creds"], one["rows"])
        for one in told.get("plain", ()):
            await child.plain(**one)
        print("ready", flush=True)
        await loop.run_in_executor(None, sys.stdin.read)


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())
