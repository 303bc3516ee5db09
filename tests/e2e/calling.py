"""Responders that speak raw envelopes, and callers with exactly the grants that they need."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

from nats.aio.msg import Msg

from sidecar.base.strictjson import JsonValue
from sidecar.ops.metrics import Metrics
from sidecar.rails.connection import Connection, Subscription
from sidecar.rails.endpoint.caller import Caller
from sidecar.rails.endpoint.clusters import AdmissionCeiling, Cluster, Command
from sidecar.rails.endpoint.schemas import VOID_SCHEMA, Schema, schema
from sidecar.rails.names import endpoint as subjects
from sidecar.rails.names.endpoint import Request
from sidecar.rails.names.principals import Lifecycle, Principal
from sidecar.rails.space.claims import Access, Permissions
from tests.e2e.endpoints import Room
from tests.e2e.space_members import SPACE, uid_of

ECHO = "com.acme.echo"
ONE, TWO = "i1" * 13, "i2" * 13
GENERATION = "0f" * 16
TEXT = schema(
    {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"], "additionalProperties": False}
)
SHARED: JsonValue = {"type": "string", "maxLength": 5}


def command(name: str, given: Schema = TEXT, gives: Schema = TEXT, **more: Any) -> Command:
    return Command(name=name, input_digest=given.closure, output_digest=gives.closure, capability="echo.use", **more)


def cluster(protocol: int = 2, *extra: Command, urn: str = ECHO) -> Cluster:
    """The cluster of the endpoint: a read, a write, a targeted command and a journaled one."""

    def effect(word: str) -> dict[str, Any]:
        return {"effect": word} if protocol == 2 else {}

    journal: dict[str, Any] = {"contract_class": "journal", **effect("write")}
    return Cluster(
        urn,
        1,
        (
            command("echo", **effect("read")),
            command("put", **effect("write")),
            command("stop", VOID_SCHEMA, VOID_SCHEMA, modes=("self", "owner"), **effect("write")),
            command("log", ceiling=AdmissionCeiling(1000, 10, 100), **journal),
            *extra,
        ),
    )


def described(own: Cluster, protocol: int = 2, *, inline: bool = True, **changes: Any) -> dict[str, Any]:
    """The answer to describe."""
    names = [one.name for one in own.commands]
    told: dict[str, Any] = {"digest": own.closure, "commands": names}
    if inline:
        told["document"] = own.value()
    descriptor = {"endpoint": ECHO, "owner": "local", "protocol": {"v": protocol}, "clusters": [told]}
    return {"public": True, "descriptor": {**descriptor, **changes}}


def documents(*made: Schema | Cluster) -> dict[str, JsonValue]:
    """Every artifact of some closures, by digest."""
    return {name: json.loads(data) for one in made for name, data in one.artifacts.items()}


class Heard:
    """One request that came, with the ways to answer it."""

    def __init__(self, raw: Raw, asked: Request, body: dict[str, Any], message: Msg) -> None:
        self.raw, self.asked, self.body, self.message = raw, asked, body, message

    @property
    def command(self) -> str:
        return self.asked.values["command"]

    async def reply(self, value: Any, *, instance: str = "", epoch: int | None = None, **more: Any) -> None:
        """Publish a reply, as another incarnation if one is named."""
        data = value if isinstance(value, bytes) else json.dumps(value).encode()
        epoch = self.raw.epoch if epoch is None else epoch
        await self.raw.connection.send(self.asked.reply(instance or self.raw.instance, epoch), data, **more)

    def ok(self, data: Any = None) -> dict[str, Any]:
        return {"v": 1, "id": self.body["id"], "ok": True, "data": data}

    def no(self, code: str, outcome: str = "not-executed", *details: Any) -> dict[str, Any]:
        error = {"code": code, "message": "no", "outcome": outcome, "details": list(details)}
        return {"v": 1, "id": self.body["id"], "ok": False, "error": error}


class Raw:
    """One instance. ``answer`` gives an envelope to reply with, bytes, or None for silence."""

    def __init__(self, connection: Connection, endpoint: str, instance: str, epoch: int) -> None:
        self.connection, self.endpoint, self.instance, self.epoch = connection, endpoint, instance, epoch
        self.heard: list[Heard] = []
        self.answer: Callable[[Heard], Any] = lambda heard: heard.ok(heard.body.get("args"))
        self.tasks: set[asyncio.Task[None]] = set()

    async def serve(self) -> None:
        token = self.endpoint.replace(".", "_")
        for root in (f"cotal.{SPACE}.ep", f"cotal.{SPACE}.ep.v1"):
            for tail, queue in ((f"one.{token}", token), (f"all.{token}", ""), (f"inst.{token}.{self.instance}", "")):
                self._keep(self._read(await self.connection.subscribe(f"{root}.{tail}.>", queue)))

    async def _read(self, subscription: Subscription) -> None:
        async for message in subscription:
            self._take(message)

    def _take(self, message: Msg) -> None:
        heard = Heard(self, subjects.parse_request(message.subject), json.loads(message.data), message)
        self.heard.append(heard)
        self._keep(self._answered(heard))

    def _keep(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def _answered(self, heard: Heard) -> None:
        told = self.answer(heard)
        if asyncio.iscoroutine(told):
            told = await told
        if told is not None and heard.body["replyExpected"]:
            await heard.reply(told)

    def count(self, command: str) -> int:
        return sum(one.command == command for one in self.heard)


@contextlib.asynccontextmanager
async def raw(here: Room, endpoint: str = ECHO, instance: str = ONE, epoch: int = 1) -> AsyncIterator[Raw]:
    """A responder that may answer as any incarnation of its endpoint, and nobody else."""
    token = endpoint.replace(".", "_")
    roots = (f"cotal.{SPACE}.ep", f"cotal.{SPACE}.ep.v1")
    listen = tuple(f"{root}.{route}.{token}.>" for root in roots for route in ("one", "all", "inst"))
    say = tuple(f"{root}.reply.{token}.>" for root in roots)
    rows = Permissions(Access((*say, f"cotal.{SPACE}.epe.{token}.>")), Access(listen))
    async with here.granted(rows) as connection:
        made = Raw(connection, endpoint, instance, epoch)
        await made.serve()
        try:
            yield made
        finally:
            for task in list(made.tasks):
                task.cancel()


@contextlib.asynccontextmanager
async def calling(
    here: Room,
    *endpoints: str,
    actor: str = "alice",
    publish: tuple[str, ...] | None = None,
    subscribe: tuple[str, ...] = (),
    **more: Any,
) -> AsyncIterator[tuple[Caller, Metrics]]:
    """A caller that may ask some endpoints anything, on every route and both rails."""
    lifecycle = Lifecycle(Principal("local", actor), uid_of(actor))
    tokens = [name.replace(".", "_") for name in endpoints or (ECHO, "registry")]
    roots = (f"cotal.{SPACE}.ep", f"cotal.{SPACE}.ep.v1")
    if publish is None:
        publish = tuple(
            f"{root}.{route}.{token}.>" for root in roots for route in ("one", "all", "inst") for token in tokens
        )
    names = {"space": SPACE, **lifecycle.names}
    replies = (subjects.REPLIES[False].filter(**names), subjects.REPLIES[True].filter(**names))
    metrics = Metrics()
    async with here.granted(Permissions(Access(publish), Access((*replies, *subscribe)))) as connection:
        caller = Caller(connection, SPACE, lifecycle, actor, metrics=metrics, **more)
        try:
            yield caller, metrics
        finally:
            await caller.close()


class Registry:
    """The answers of a registry that a test writes."""

    def __init__(self) -> None:
        self.documents: dict[str, JsonValue] = {}
        self.instances: list[dict[str, Any]] = []
        self.per_page = 100
        self.answers: dict[str, Callable[[Heard], Any]] = {}

    def live(self, instance: str, revision: int, epoch: int, state: str | None = "ready") -> None:
        """One more row of the listing of instances."""
        row = {"instanceId": instance, "owner": "local", "registrationRevision": revision, "epoch": epoch}
        self.instances.append({**row, "state": state, "clusterDigests": [], "protocol": 2})

    def __call__(self, heard: Heard) -> Any:
        args = heard.body.get("args") or {}
        if heard.command in self.answers:
            return self.answers[heard.command](heard)
        if heard.command == "artifacts":
            found = [
                {"digest": one, "document": self.documents[one]} for one in args["digests"] if one in self.documents
            ]
            return heard.ok({"documents": found})
        return self.page(heard) if heard.command == "instances" else heard.no("unimplemented")

    def page(self, heard: Heard) -> Any:
        rows = [one for one in self.instances if one["instanceId"] > heard.body["args"].get("after", "")]
        page = rows[: self.per_page]
        more = {"next": page[-1]["instanceId"]} if len(rows) > len(page) else {}
        return heard.ok({"rows": page, **more})


@contextlib.asynccontextmanager
async def registry(here: Room) -> AsyncIterator[tuple[Registry, Raw]]:
    async with raw(here, "registry", "r0" * 13, 0) as one:
        made = Registry()
        one.answer = made
        yield made, one
