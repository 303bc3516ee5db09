"""A space with a served registry and endpoints, and callers whose recorded ceilings are those of their credentials.

async with town(tmp_path) as made:
    async with made.registry(), made.site.serve(sample()), made.caller("alice", ECHO) as alice:
        listing = await alice.caller.endpoints()
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import os
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sidecar.app.registry_lane import RegistryLane
from sidecar.app.space_links import as_profile
from sidecar.base.strictjson import JsonValue, canonical
from sidecar.ops.logging import Log
from sidecar.ops.metrics import Metrics
from sidecar.rails.connection import Connection, Credentials
from sidecar.rails.endpoint.app import Endpoint
from sidecar.rails.endpoint.call import Call
from sidecar.rails.endpoint.caller import Caller
from sidecar.rails.endpoint.contracts import KNOWN, Contracts
from sidecar.rails.names import buckets
from sidecar.rails.names.principals import Lifecycle, Principal
from sidecar.rails.names.tokens import endpoint_token
from sidecar.rails.space.ceilings import ceiling_of
from sidecar.rails.space.creds import format_creds
from sidecar.rails.space.evidence import AttemptState, Reference, attempt_subject, attempt_value
from sidecar.rails.space.grants import permissions
from sidecar.rails.space.holder import Capability, Form, Holder, Profile
from sidecar.rails.space.issuance import issue, listing_token, new_generation
from sidecar.rails.space.keys import read_key, write_key
from sidecar.rails.space.trust import new_user
from tests.e2e.own_endpoints import Site, site
from tests.e2e.space_broker import EVENT_SECONDS
from tests.e2e.space_dial import QUICK
from tests.e2e.space_members import SPACE, clock, uid_of

SAMPLE = "dev.sidecar.sample"
ECHO, ADD = Capability(SAMPLE, "echo"), Capability(SAMPLE, "add")
SECONDS = 300


def sample(name: str = SAMPLE) -> Endpoint:
    """Two commands that read."""
    made = Endpoint(name, protocol=2)
    text: dict[str, JsonValue] = {"type": "string", "maxLength": 64}

    @made.command(input=text, output=text, effect="read")
    async def echo(call: Call) -> JsonValue:
        return call.args

    @made.command(input=text, output=text, effect="read")
    async def add(call: Call) -> JsonValue:
        return call.args

    return made


@dataclass
class Listed:
    """A caller, and the generation that its ceiling is recorded under."""

    caller: Caller
    connection: Connection
    lifecycle: Lifecycle
    generation: str


class Town:
    """A site with its registries."""

    def __init__(self, made: Site) -> None:
        self.site = made
        self.metrics = Metrics()
        self.log = io.StringIO()

    @contextlib.asynccontextmanager
    async def registry(self) -> AsyncIterator[RegistryLane]:
        """A registry that serves until the end of the context."""
        lane = RegistryLane(self.site.where, SECONDS, self.metrics, Log(self.log))
        running = asyncio.create_task(lane.run())
        try:
            async with asyncio.timeout(EVENT_SECONDS):
                await lane.settled.wait()
                while lane.unready():  # noqa: ASYNC110 - another task brings it about
                    await asyncio.sleep(0.01)
            yield lane
        finally:
            running.cancel()
            await asyncio.wait((running,))

    @contextlib.asynccontextmanager
    async def caller(
        self,
        actor: str,
        *may: Capability,
        issued: bool = False,
        record: bool = True,
        bound: bool = True,
        contracts: Mapping[str, Contracts] = KNOWN,
    ) -> AsyncIterator[Listed]:
        """An agent with these capabilities. ``issued``: on the rail with a generation; ``record`` False: nothing is
        recorded of it; ``bound`` False: it has no listing rows."""
        key = new_user(os.urandom)
        horizon = clock() + SECONDS
        generation = new_generation(horizon, os.urandom)
        lifecycle = Lifecycle(Principal("local", actor), uid_of(actor))
        more: dict[str, Any] = {"generation": generation} if issued else {"listing": generation} if bound else {}
        form = Form.COMPATIBLE
        holder = Holder(SPACE, lifecycle, key.public, form, capabilities=may, **more)
        if record:
            ceiling = ceiling_of(permissions(Profile.AGENT, holder))
            token = listing_token(key.public, horizon)
            async with self.profile(Profile.ISSUER) as client:
                await issue(client, SPACE, lifecycle, generation, ceiling, horizon, token, now=clock())

        async def mint() -> Credentials:
            made = self.site.space.trust.issue(Profile.AGENT, holder, key, clock(), SECONDS)
            return Credentials(format_creds(made, key), clock() + SECONDS)

        async with await Connection.open([self.site.broker.url], mint, policy=QUICK) as connection:
            caller = Caller(connection, SPACE, lifecycle, actor, contracts=contracts, **more)
            try:
                yield Listed(caller, connection, lifecycle, generation)
            finally:
                await caller.close()

    @contextlib.asynccontextmanager
    async def profile(self, profile: Profile) -> AsyncIterator[Any]:
        """A client with the grants of one task."""
        trust = self.site.space.trust
        async with as_profile(trust, Form.COMPATIBLE, self.site.broker.url, profile) as client:
            yield client

    async def state(self, endpoint: str, instance: str) -> str:
        """What the record of an instance says of it, whoever is there to ask."""
        names = {"endpoint": endpoint_token(endpoint), "instance": instance, "half": "status"}
        subject = buckets.RECORDS.subject(SPACE, buckets.RECORD_SERVICE, **names)
        async with self.profile(Profile.REGISTRAR) as client:
            kept = await read_key(client, buckets.RECORDS.stream(SPACE), subject)
        return str(json.loads(kept.value or b"{}").get("state"))

    async def revoke(self, listed: Listed) -> None:
        """End the generation of a caller; its credential still logs in."""
        ref = Reference(SPACE, listed.lifecycle, listed.generation)
        async with self.profile(Profile.ISSUER) as client:
            kept = await read_key(client, buckets.ISSUED.stream(SPACE), attempt_subject(ref))
            value = canonical(attempt_value(ref, AttemptState.REVOKED))
            await write_key(client, attempt_subject(ref), value, kept.revision, seconds_to_live=SECONDS)


@contextlib.asynccontextmanager
async def town(directory: Path) -> AsyncIterator[Town]:
    async with site(directory, "dev.sidecar") as made:
        yield Town(made)
