"""Members of a real space with our own connections, their durables, and what they are sent."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson

from sidecar.ops.metrics import Metrics
from sidecar.rails.connection import Connection, Credentials, Policy, Watch
from sidecar.rails.messaging.durables import Durable
from sidecar.rails.names import Lifecycle, Principal, api, subjects
from sidecar.rails.space.creds import format_creds
from sidecar.rails.space.holder import Form, Holder, Profile, Service
from sidecar.rails.space.provision import activate
from sidecar.rails.space.trust import new_user
from tests.e2e.space_broker import EVENT_SECONDS, SpaceBroker
from tests.e2e.space_members import INSTANCE, SPACE, Space, clock, uid_of

# Where nothing hangs, a machine under load must not take a link for lost.
QUICK = Policy(first_wait=0.05, longest_wait=0.3, ping_every=0.2, ping_within=4)
SECONDS = 3_600


def life(actor: str) -> Lifecycle:
    return Lifecycle(Principal("local", actor), uid_of(actor))


def document(sender: str, message_id: str = "m1", text: str = "hi", **route: Any) -> bytes:
    """A message as a publisher writes it."""
    return orjson.dumps(
        {
            "id": message_id,
            "ts": clock() * 1000,
            "space": SPACE,
            "from": {"id": f"local.{sender}", "name": sender},
            "parts": [{"kind": "text", "text": text}],
            **route,
        }
    )


class Member:
    """One principal with a connection of ours."""

    def __init__(self, holder: Holder, connection: Connection, metrics: Metrics) -> None:
        self.holder, self.connection, self.metrics = holder, connection, metrics
        self.lifecycle = holder.lifecycle

    async def stored(self, subject: str, data: bytes, **headers: str) -> int:
        """Publish into a stream; the sequence."""
        reply = await self.connection.request(subject, data, headers=headers or None, seconds=EVENT_SECONDS)
        answer = json.loads(reply.data)
        assert "error" not in answer, answer
        return int(answer["seq"])

    async def tell(self, actor: str, message_id: str = "m1", *, as_actor: str = "", **more: str) -> int:
        """A direct message."""
        own = self.lifecycle.principal.actor
        subject = subjects.INST.build(space=SPACE, to_owner="local", to_actor=actor, owner="local", actor=own)
        return await self.stored(subject, document(as_actor or own, message_id, to=f"local.{actor}"), **more)

    async def tell_data(self, actor: str, data: Any) -> int:
        """A direct message with a data part."""
        own = self.lifecycle.principal.actor
        subject = subjects.INST.build(space=SPACE, to_owner="local", to_actor=actor, owner="local", actor=own)
        parts = [{"kind": "data", "data": data}]
        return await self.stored(subject, document(own, "data", to=f"local.{actor}", parts=parts))

    async def request_role(self, role: str, message_id: str = "m1", text: str = "do it") -> int:
        """An anycast request."""
        own = self.lifecycle.principal.actor
        subject = subjects.SVC.build(space=SPACE, role=role, owner="local", actor=own)
        return await self.stored(subject, document(own, message_id, text, toService=role))


class Town:
    """The space `main` at a broker, with members that come and go."""

    def __init__(self, space: Space) -> None:
        self.space = space
        self.broker = space.broker

    async def activate(self, actor: str, roles: tuple[str, ...] = ()) -> None:
        async with self.space.member(Profile.PROVISIONER, "provisioner") as (user, _):
            await activate(user.client, SPACE, life(actor), roles)

    @contextlib.asynccontextmanager
    async def member(
        self, actor: str, profile: Profile = Profile.AGENT, *, url: str = "", policy: Policy = QUICK, **more: Any
    ) -> AsyncIterator[Member]:
        """A connected member; ``url`` when it does not come to the broker directly."""
        key = new_user(os.urandom)
        holder = Holder(SPACE, life(actor), key.public, self.space.form)
        if profile is Profile.DELIVERY:
            holder = replace(holder, service=Service(INSTANCE, 1, ("anycast-takes",)))
        holder = replace(holder, **more)
        seconds = 300 if profile is Profile.PROVISIONER else SECONDS

        async def mint() -> Credentials:
            now = clock()
            token = self.space.trust.issue(profile, holder, key, now, seconds)
            return Credentials(format_creds(token, key), now + seconds)

        metrics = Metrics()
        async with asyncio.timeout(EVENT_SECONDS):
            connection = await Connection.open([url or self.broker.url], mint, policy=policy, watch=Watch(metrics))
        async with connection:
            yield Member(holder, connection, metrics)

    async def consumer(self, durable: Durable) -> dict[str, Any]:
        """What the broker says of a durable."""
        async with self.space.member(Profile.PROVISIONER, "provisioner") as (user, _):
            subject = api.CONSUMER_INFO.build(stream=durable.stream, consumer=durable.consumer)
            answer: dict[str, Any] = json.loads((await user.client.request(subject, timeout=EVENT_SECONDS)).data)
            return answer


@contextlib.asynccontextmanager
async def town(directory: Path, form: Form = Form.COMPATIBLE) -> AsyncIterator[Town]:
    async with SpaceBroker(directory) as broker:
        space = Space(broker, form)
        await space.open()
        yield Town(space)


async def soon(met: Callable[[], bool]) -> None:
    """Wait for a condition that our own tasks bring about."""
    async with asyncio.timeout(EVENT_SECONDS):
        while not met():  # noqa: ASYNC110 - what is waited for has no event
            await asyncio.sleep(0.01)
