"""The durable half of a delivery plane at a real broker, with members who post, join and look into their stores."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import io
import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import orjson

from sidecar.base.clock import Now, system_now
from sidecar.base.strictjson import JsonValue
from sidecar.ops.logging import Log
from sidecar.rails.connection import Connection, Credentials
from sidecar.rails.connection.kv import KeyValue
from sidecar.rails.endpoint.call import Call
from sidecar.rails.envelopes.presence import Card, Presence, encode_presence
from sidecar.rails.envelopes.schema import Status
from sidecar.rails.messaging.registry import ChannelConfig, DeliveryClass, RegistryWriter
from sidecar.rails.names import api, buckets, consumers, streams, subjects
from sidecar.rails.planes.delivery.backstop import Backstop
from sidecar.rails.planes.delivery.broker import Unanswered, consumer_info
from sidecar.rails.planes.delivery.floors import Floors
from sidecar.rails.planes.delivery.loop import At
from sidecar.rails.planes.delivery.plane import Plane
from sidecar.rails.space.acl import AclRow
from sidecar.rails.space.claims import Access, Permissions
from sidecar.rails.space.creds import format_creds
from sidecar.rails.space.holder import Form, Profile
from sidecar.rails.space.trust import new_user
from tests.e2e.durable_reads import QUICK, Member, Town, document, life, town
from tests.e2e.space_broker import EVENT_SECONDS
from tests.e2e.space_members import SPACE, clock

ALL = Access((">",))
CHAT, INBOX, DLV = (one.stream(SPACE) for one in (streams.CHAT, streams.INBOX, streams.DLV))


class Copy:
    """A message as a stream keeps it."""

    def __init__(self, found: dict[str, Any]) -> None:
        lines = base64.b64decode(found.get("hdrs", "")).decode().split("\r\n")[1:]
        self.headers = {name: value for name, _, value in (line.partition(": ") for line in lines if line)}
        self.sequence: int = found["seq"]
        self.value: dict[str, Any] = orjson.loads(base64.b64decode(found["data"]))
        self.id: str = self.value["id"]


class Daemon:
    """One run of the plane: its own connection, and the tasks that a crash ends."""

    def __init__(self, member: Member, *, at: At | None, reader_at: At | None, floors: Floors | None) -> None:
        self.member, self.metrics = member, member.metrics
        self.later = 0.0
        """Seconds by which the plane's clock is ahead."""
        self.suspended = 0.0
        """Seconds that the wall clock went on alone."""
        self.said = io.StringIO()
        self.plane = Plane(
            member.connection,
            SPACE,
            member.holder.form,
            member.lifecycle,
            metrics=member.metrics,
            log=Log(self.said),
            clock=self._clock,
            floors=floors or Floors(),
        )
        self.backstop = Backstop(self.plane, at=at, reader_at=reader_at)
        self.task = asyncio.create_task(self.backstop.run())

    def _clock(self) -> Now:
        now = system_now()
        return Now(now.wall + self.later + self.suspended, now.mono + self.later)

    async def ask(self, actor: str, command: str, **args: JsonValue) -> Any:
        """A command, as its handler has it from the endpoint."""
        async with asyncio.timeout(EVENT_SECONDS):
            return await self.backstop.handlers[command](Call(life(actor), command, args, "r1"))

    async def join(self, actor: str, channel: str, cursor: int = 2**40) -> int:
        answer = await self.ask(actor, "durable-join", channel=channel, joinCursor=cursor)
        assert answer["durable"], answer
        return int(answer["generation"])

    async def leave(self, actor: str, channel: str, generation: int) -> Any:
        return await self.ask(actor, "durable-leave", channel=channel, generation=generation)

    async def idle(self) -> None:
        """Everything that was posted and copied so far has gone through both loops, also through those of earlier
        daemons, and is settled at the broker."""
        for stream, consumer in ((CHAT, consumers.FANOUT.build()), (INBOX, consumers.READER.build())):
            async with asyncio.timeout(EVENT_SECONDS):
                while await self._left(stream, consumer):
                    if self.task.done():
                        self.task.result()
                        raise AssertionError("the plane ended")
                    await asyncio.sleep(0.01)

    async def _left(self, stream: str, consumer: str) -> int:
        try:
            info = await consumer_info(self.member.connection, stream, consumer)
        except Unanswered:  # the broker has just been killed
            return 1
        return 1 if info is None else int(info["num_pending"]) + int(info["num_ack_pending"])

    def count(self, name: str) -> dict[tuple[str, ...], float]:
        return self.metrics.totals(name)

    async def end(self) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


class Rig:
    """A town with an operator's hands."""

    def __init__(self, town: Town) -> None:
        self.town = town

    @contextlib.asynccontextmanager
    async def daemon(
        self, *, at: At | None = None, reader_at: At | None = None, floors: Floors | None = None
    ) -> AsyncIterator[Daemon]:
        async with self.town.member("delivery", Profile.DELIVERY) as member:
            made = Daemon(member, at=at, reader_at=reader_at, floors=floors)
            try:
                yield made
            finally:
                await made.end()

    @contextlib.asynccontextmanager
    async def operator(self) -> AsyncIterator[Connection]:
        async with self.town.member("provisioner", Profile.PROVISIONER) as member:
            yield member.connection

    async def acl(self, actor: str, *readable: str, roles: tuple[str, ...] = ()) -> None:
        """What a member may read from now on."""
        async with self.operator() as connection:
            row = AclRow(readable, roles, readable, 1, clock() * 1000)
            await KeyValue(connection, buckets.ACL, SPACE).put(life(actor).dot, row.encode())

    async def no_acl(self, actor: str) -> None:
        async with self.operator() as connection:
            await KeyValue(connection, buckets.ACL, SPACE).delete(life(actor).dot)

    async def present(self, actor: str, name: str) -> None:
        """A heartbeat of a peer that is here."""
        async with root(self) as connection:
            card = Card(life(actor).principal.dot, name)
            record = encode_presence(Presence(card, Status.IDLE, clock() * 1000))
            await KeyValue(connection, buckets.PRESENCE, SPACE).put(life(actor).principal.dot, record)

    async def configure(self, stream: str, **fields: Any) -> None:
        """An operator changes a stream."""
        async with root(self) as connection:
            config = (await asked(connection, api.STREAM_INFO.build(stream=stream)))["config"]
            body = orjson.dumps({**config, **fields})
            changed = await asked(connection, api.STREAM_UPDATE.build(stream=stream), body)
            assert "error" not in changed, changed

    async def delete_consumer(self, stream: str, consumer: str) -> None:
        async with root(self) as connection:
            subject = api.CONSUMER_DELETE.build(stream=stream, consumer=consumer)
            assert (await asked(connection, subject))["success"]

    async def channel(self, channel: str, delivery_class: str) -> None:
        async with self.operator() as connection:
            config = ChannelConfig(delivery_class=DeliveryClass(delivery_class))
            await RegistryWriter(connection, SPACE).set_channel(channel, config)

    @contextlib.asynccontextmanager
    async def author(self, actor: str = "alice") -> AsyncIterator[Author]:
        async with self.town.member(actor, allow_publish=("team.>", "general", "quiet.>")) as member:
            yield Author(member)


class Author:
    """A member who posts."""

    def __init__(self, member: Member) -> None:
        self.member = member
        self.name = member.lifecycle.principal.actor

    async def post(self, channel: str, message_id: str, **more: Any) -> int:
        headers = more.pop("headers", {})
        raw = more.pop("raw", None)
        data = document(self.name, message_id, channel=channel, **more) if raw is None else raw
        subject = subjects.CHAT.build(space=SPACE, owner="local", actor=self.name, channel=channel)
        return await self.member.stored(subject, data, **headers)


@contextlib.asynccontextmanager
async def rig(directory: Path, form: Form = Form.MEDIATED) -> AsyncIterator[Rig]:
    async with town(directory, form) as made:
        yield Rig(made)


@contextlib.asynccontextmanager
async def root(rig: Rig) -> AsyncIterator[Connection]:
    """A connection that may do anything in the account: the broker's operator, not a member."""
    key = new_user(os.urandom)

    async def mint() -> Credentials:
        token = rig.town.space.trust.mint("root", Permissions(ALL, ALL), key, clock(), 300)
        return Credentials(format_creds(token, key), clock() + 300)

    async with asyncio.timeout(EVENT_SECONDS):
        connection = await Connection.open([rig.town.broker.url], mint, policy=QUICK)
    async with connection:
        yield connection


async def asked(connection: Connection, subject: str, body: bytes = b"") -> dict[str, Any]:
    """The answer of the broker's API."""
    answer: dict[str, Any] = orjson.loads((await connection.request(subject, body, seconds=EVENT_SECONDS)).data)
    return answer


async def last_of(connection: Connection, stream: str) -> int:
    return int((await asked(connection, api.STREAM_INFO.build(stream=stream)))["state"]["last_seq"])


async def until(met: Callable[[], bool], task: asyncio.Task[Any] | None = None) -> None:
    """Wait for a condition, and not longer than the task runs that brings it about."""
    async with asyncio.timeout(EVENT_SECONDS):
        while not met():
            if task is not None and task.done():
                task.result()
                raise AssertionError("the plane ended")
            await asyncio.sleep(0.01)


async def store_of(rig: Rig, actor: str, template: Any = subjects.DLV) -> list[Copy]:
    """What stands in a member's store, or with DINBOX in front of it, oldest first."""
    stream = DLV if template is subjects.DLV else INBOX
    return await kept(rig, stream, template.build(space=SPACE, **life(actor).names))


async def kept(rig: Rig, stream: str, pattern: str) -> list[Copy]:
    """Every message of a pattern that a stream keeps."""
    async with root(rig) as connection:
        found: list[Copy] = []
        sequence = 0
        while True:
            body = {"seq": sequence + 1, "next_by_subj": pattern}
            answer = await asked(connection, api.MESSAGE_GET.build(stream=stream), orjson.dumps(body))
            if "error" in answer:
                assert answer["error"]["err_code"] == 10037, answer
                return found
            sequence = answer["message"]["seq"]
            found.append(Copy(answer["message"]))
