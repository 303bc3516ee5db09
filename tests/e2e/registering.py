"""Endpoint instances of a space at a real broker: small endpoints, and a hand that may look at everything."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

from sidecar.app.domains import claim
from sidecar.app.endpoint_host import Hosted, host
from sidecar.app.space_links import as_profile
from sidecar.app.spaces import create_space
from sidecar.base.strictjson import JsonValue
from sidecar.ops.logging import Log
from sidecar.ops.metrics import Metrics
from sidecar.rails.connection import Connection, Credentials
from sidecar.rails.endpoint.app import Endpoint
from sidecar.rails.names import buckets
from sidecar.rails.names.principals import Lifecycle, Principal
from sidecar.rails.planes.registration.gates import Gate
from sidecar.rails.planes.registration.govern import Head as Governance
from sidecar.rails.planes.registration.naming import Place
from sidecar.rails.planes.registration.record_writer import RecordWriter
from sidecar.rails.space.claims import Access, Permissions
from sidecar.rails.space.creds import format_creds
from sidecar.rails.space.holder import Form, Holder, Profile
from sidecar.rails.space.keys import Kept, read_key
from sidecar.rails.space.trust import SpaceTrust, new_user
from tests.e2e.space_broker import EVENT_SECONDS, SpaceBroker, User
from tests.e2e.space_members import clock

SPACE = "main"
NAME = "com.acme.echo"
OWNER = "u_" + "a" * 26
OTHER_OWNER = "u_" + "b" * 26
ME = "0123456789abcdef0123456789abcdef"
YOU = "fedcba9876543210fedcba9876543210"
TEXT: dict[str, JsonValue] = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
NUMBER: dict[str, JsonValue] = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


def echo(name: str = NAME, *commands: str, schema: dict[str, JsonValue] = TEXT) -> Endpoint:
    """An endpoint that says what it hears, under as many names as are wanted."""
    made = Endpoint(name)
    for command in commands or ("echo",):

        @made.command(command, input=schema, output=schema)
        async def answer(call: Any) -> JsonValue:
            value: JsonValue = call.args
            return value

    return made


class Site:
    """The space, and what stands in it."""

    def __init__(self, broker: SpaceBroker) -> None:
        self.broker = broker
        self.root: Path = broker.directory
        self.metrics, self.written = Metrics(), Metrics()
        self.log = io.StringIO()
        self.account = SpaceTrust.open(self.root / "spaces" / SPACE, SPACE, os.urandom)
        self._open = contextlib.AsyncExitStack()
        self._hand: User | None = None

    async def host(self, endpoint: Endpoint | None = None, **more: Any) -> Hosted:
        more = {"owner": OWNER, "instance": ME, "metrics": self.metrics, **more}
        return await host(self.root, SPACE, self.broker.url, endpoint or echo(), **more)

    @contextlib.asynccontextmanager
    async def hand(self) -> AsyncIterator[User]:
        """Someone who may look at and write everything: the hand of a test, connected once."""
        if self._hand is None or not self._hand.client.is_connected:
            key = new_user(os.urandom)
            inbox = f"_INBOX_{key.public}.>"
            granted = Permissions(Access(("$JS.API.>", "cotal.>", "$KV.>")), Access((inbox, "cotal.>")))
            token = self.account.mint("local-root", granted, key, clock(), 300)
            user = self.broker.user(self.broker.creds(token, key), inbox)
            self._hand = await self._open.enter_async_context(user)
        yield self._hand

    async def close(self) -> None:
        await self._open.aclose()

    def as_(self, profile: Profile) -> Any:
        return as_profile(self.account, Form.MEDIATED, self.broker.url, profile)

    async def kept(self, bucket: Any, subject: str) -> Kept:
        async with self.hand() as hand:
            return await read_key(hand.client, bucket.stream(SPACE), subject)

    async def gate(self, instance: str = ME, name: str = NAME) -> Gate:
        kept = await self.kept(buckets.AUTH, Place(SPACE, name, instance).gate)
        assert kept.value is not None
        return Gate.decode(kept.value)

    async def record(self, half: str, instance: str = ME, name: str = NAME) -> tuple[Any, int]:
        place = Place(SPACE, name, instance)
        kept = await self.kept(buckets.RECORDS, place.spec if half == "spec" else place.status)
        return (None if kept.value is None else json.loads(kept.value)), kept.revision

    @contextlib.asynccontextmanager
    async def recording(self) -> AsyncIterator[Connection]:
        """A connection with the grants of a record writer."""
        key = new_user(os.urandom)
        holder = Holder(SPACE, Lifecycle(Principal("local", "recorder"), "r" * 26), key.public, Form.MEDIATED)

        async def mint() -> Credentials:
            token = self.account.issue(Profile.RECORD_WRITER, holder, key, clock(), 300)
            return Credentials(format_creds(token, key), clock() + 300)

        async with await Connection.open([self.broker.url], mint) as connection:
            yield connection

    @contextlib.asynccontextmanager
    async def record_writer(self) -> AsyncIterator[Callable[[str, str], Awaitable[dict[str, Any]]]]:
        """A record writer that runs; what it gives waits until an instance has a status with a state."""
        async with self.recording() as connection:
            writer = RecordWriter(connection, SPACE, metrics=self.written, log=Log(self.log))
            bound = asyncio.Event()
            running = asyncio.create_task(writer.run(bound))
            try:
                async with asyncio.timeout(EVENT_SECONDS):
                    await bound.wait()
                yield self._has_state
            finally:
                running.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await running

    async def _has_state(self, instance: str, state: str) -> dict[str, Any]:
        async with asyncio.timeout(EVENT_SECONDS):
            while True:
                value, _ = await self.record("status", instance)
                if value is not None and value["state"] == state:
                    found: dict[str, Any] = value
                    return found

    async def governance(self, name: str = NAME) -> Governance:
        kept = await self.kept(buckets.RECORDS, Place(SPACE, name, ME).govern)
        return Governance() if kept.value is None else Governance.decode(kept.value)


@contextlib.asynccontextmanager
async def site(directory: Path) -> AsyncIterator[Site]:
    """A provisioned space, with the domain of the sample endpoint claimed."""
    async with SpaceBroker(directory) as broker:
        await create_space(directory, SPACE, Form.MEDIATED, broker.url)
        claim(directory, SPACE, "com.acme", OWNER)
        made = Site(broker)
        try:
            yield made
        finally:
            await made.close()
