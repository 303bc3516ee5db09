"""A desk of anycast records at a real broker, with a sender and holders of a role."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import os
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

from sidecar.base.clock import Now, system_now
from sidecar.base.strictjson import JsonValue
from sidecar.ops.logging import Log
from sidecar.ops.metrics import Metrics
from sidecar.rails.connection import Connection
from sidecar.rails.connection.kv import Entry, KeyValue
from sidecar.rails.endpoint.call import Call
from sidecar.rails.names import api, buckets, headers, streams, subjects
from sidecar.rails.planes.delivery.anycast import Record, key_of
from sidecar.rails.planes.delivery.anycast_desk import AnycastDesk
from sidecar.rails.planes.delivery.plane import Plane
from sidecar.rails.space.holder import Profile
from tests.e2e.delivery_rig import Copy, Rig, kept
from tests.e2e.durable_reads import Member, Town, life
from tests.e2e.space_broker import EVENT_SECONDS
from tests.e2e.space_members import SPACE

ROLE = "reviewer"
TASK = streams.TASK.stream(SPACE)


@dataclass
class Clock:
    """The system's clock, moved on by hand."""

    ahead: float = 0.0

    def __call__(self) -> Now:
        now = system_now()
        return Now(now.wall + self.ahead, now.mono + self.ahead)


@dataclass
class Scene:
    """The desk of one daemon, a sender and holders."""

    here: Town
    member: Member
    desk: AnycastDesk
    clock: Clock
    metrics: Metrics
    tasks: list[asyncio.Task[None]] = field(default_factory=list)

    async def epoch(self) -> str:
        return await self.desk.epoch()

    async def row(self, sequence: int, epoch: str = "") -> Record | None:
        entry = await self.entry(sequence, epoch)
        return None if entry is None else Record.decode(entry.value)

    async def entry(self, sequence: int, epoch: str = "") -> Entry | None:
        bucket = KeyValue(self.member.connection, buckets.ANYCAST, SPACE)
        return await bucket.get(key_of(epoch or await self.epoch(), sequence))

    async def queued(self, sequence: int) -> bool:
        return "message" in await ask(self.member.connection, api.MESSAGE_GET.build(stream=TASK), {"seq": sequence})

    async def ask(self, command: str, actor: str, sequence: int, message_id: str | None = None) -> Any:
        args: dict[str, JsonValue] = {"seq": sequence}
        if message_id is not None:
            args["id"] = message_id
        return await self.desk.handlers[command](Call(life(actor), actor, args, "q"))


async def ask(connection: Connection, subject: str, body: object = None) -> dict[str, Any]:
    data = b"" if body is None else json.dumps(body).encode()
    answer: dict[str, Any] = json.loads((await connection.request(subject, data)).data)
    return answer


@contextlib.asynccontextmanager
async def daemon(here: Town, *, serving: bool = True) -> AsyncIterator[Scene]:
    """A desk on a connection of its own; its loops run when it is ``serving``."""
    async with here.member("delivery", Profile.DELIVERY) as member:
        clock = Clock()
        form, log = here.space.form, Log(io.StringIO())
        plane = Plane(member.connection, SPACE, form, member.lifecycle, member.metrics, log, clock)
        scene = Scene(here, member, AnycastDesk(plane), clock, member.metrics)
        if serving:
            bound = asyncio.Event()
            scene.tasks = [
                asyncio.create_task(scene.desk.serve(bound)),
                asyncio.create_task(scene.desk.tell(asyncio.Event())),
            ]
            await bound.wait()
        try:
            yield scene
        finally:
            for task in scene.tasks:
                task.cancel()
            await asyncio.gather(*scene.tasks, return_exceptions=True)


def take_of(member: Member, sequence: int, message_id: str, count: int, epoch: str, name: str = "") -> dict[str, Any]:
    actor = member.lifecycle.principal.actor
    return {
        "from": {"id": member.lifecycle.principal.dot, "name": name or actor.title()},
        "seq": sequence,
        "id": message_id,
        "count": count,
        "epoch": epoch,
    }


async def take(member: Member, body: object, *, role: str = ROLE, reply: str = "") -> dict[str, Any]:
    """A take as a holder sends it (C8.1-03)."""
    principal = member.lifecycle.principal
    subject = subjects.TAKE.build(space=SPACE, role=role, owner=principal.owner, actor=principal.actor)
    names = {"space": SPACE, "role": role, "owner": principal.owner, "actor": principal.actor}
    target = reply or subjects.TAKE_REPLY.build(**names, nonce=os.urandom(16).hex())
    subscription = await member.connection.subscribe(target)
    try:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        await member.connection.publish(subject, data, reply=target)
        async with asyncio.timeout(EVENT_SECONDS):
            answer: dict[str, Any] = json.loads((await subscription.next()).data)
            return answer
    finally:
        await subscription.close()


async def notices(here: Town, actor: str, sequence: int) -> list[Copy]:
    """Every stored notice to a member about one request."""
    pattern = subjects.INST.subtree(space=SPACE, to_owner="local", to_actor=actor)
    found = await kept(Rig(here), streams.DM.stream(SPACE), pattern)
    return [one for one in found if one.headers[headers.MESSAGE_ID].split(".")[2] == str(sequence)]


async def soon(met: Callable[[], Any]) -> Any:
    """What a condition that is asked for comes to."""
    async with asyncio.timeout(EVENT_SECONDS):
        while not (value := await met()):  # noqa: ASYNC110 - what is waited for is at the broker
            await asyncio.sleep(0.02)
        return value


async def holds(value: bool) -> bool:
    return value


async def nothing_owed(scene: Scene, sequence: int) -> bool:
    row = await scene.row(sequence)
    return row is not None and not row.owed
