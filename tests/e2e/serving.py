"""An endpoint of a third party at a real broker, and a peer that asks it in whatever way it likes."""

from __future__ import annotations

import asyncio
import contextlib
import io
import itertools
import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from nats.aio.msg import Msg

from sidecar.base.strictjson import JsonValue
from sidecar.ops.logging import Log
from sidecar.ops.metrics import Metrics
from sidecar.rails.connection import Connection
from sidecar.rails.endpoint.app import Endpoint
from sidecar.rails.endpoint.call import Call
from sidecar.rails.endpoint.contracts import DESCRIBE
from sidecar.rails.endpoint.identity import Identity
from sidecar.rails.endpoint.serve import EndpointServer
from sidecar.rails.endpoint.view import Mapping as Current
from sidecar.rails.endpoint.view import Unavailable
from sidecar.rails.names import endpoint as subjects
from sidecar.rails.names.endpoint import UNTARGETED
from sidecar.rails.names.principals import Lifecycle, Principal
from sidecar.rails.names.tokens import endpoint_token
from sidecar.rails.space.claims import Access, Permissions
from sidecar.rails.space.holder import Profile, Service
from tests.e2e.endpoints import Room
from tests.e2e.space_broker import EVENT_SECONDS
from tests.e2e.space_dial import dialled
from tests.e2e.space_members import SPACE, uid_of

NAME = "com.acme.lab"
ONE, TWO = "a1" * 13, "b2" * 13
GENERATION = "0123456789abcdef" * 2
TEXT: dict[str, Any] = {
    "type": "object",
    "properties": {"text": {"type": "string", "maxLength": 64}},
    "required": ["text"],
    "additionalProperties": False,
}


@dataclass
class Trusted:
    """What the trusted side says: who may call what, and which lifecycle a principal has. ``down``: nothing."""

    held_by: dict[str, frozenset[str]] = field(default_factory=dict)
    lives: dict[str, Current] = field(default_factory=dict)
    down: bool = False
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    """Views wait for it."""
    asked: list[tuple[str, str | None]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.gate.set()

    async def held(self, caller: Lifecycle, generation: str | None) -> frozenset[str]:
        self.asked.append((caller.dot, generation))
        await self.gate.wait()
        if self.down:
            raise Unavailable("down")
        return self.held_by.get(caller.principal.dot, frozenset())

    async def current(self, principal: Principal) -> Current | None:
        if self.down:
            raise Unavailable("down")
        return self.lives.get(principal.dot)


class Lab:
    """The endpoint of one process, and what its handlers were called with."""

    def __init__(self, instance: str = ONE, epoch: int = 0, **more: Any) -> None:
        self.instance, self.epoch = instance, epoch
        self.endpoint = Endpoint(NAME, **more)
        self.calls: list[Call] = []
        self.gate = asyncio.Event()
        self.trusted = Trusted()
        self.metrics = Metrics()
        self.log = io.StringIO()
        self.server: EndpointServer
        self.connection: Connection
        self.endpoint.command(input=TEXT, output=TEXT, effect="read")(self.echo)
        self.endpoint.command()(self.hold)

    async def echo(self, call: Call) -> JsonValue:
        self.calls.append(call)
        return call.args

    async def hold(self, call: Call) -> JsonValue:
        """Runs until the gate opens."""
        self.calls.append(call)
        await self.gate.wait()
        return None

    @property
    def identity(self) -> Identity:
        actor = f"ep{self.instance[:20]}"
        life = Lifecycle(Principal("local", actor), uid_of(actor))
        return Identity(SPACE, NAME, self.instance, self.epoch, life, "local")

    def total(self, name: str) -> dict[tuple[str, ...], float]:
        return self.metrics.totals(name)

    @contextlib.asynccontextmanager
    async def serving(self, here: Room, **limits: Any) -> AsyncIterator[Lab]:
        """Serve with the credential of the profile."""
        service = Service(self.instance, self.epoch, tuple(self.endpoint.handlers), endpoint=NAME)
        actor = f"ep{self.instance[:20]}"
        dialling = dialled(here.space, Profile.ENDPOINT, actor, metrics=self.metrics, service=service)
        async with dialling as (link, _), self.on(link, **limits):
            yield self

    @contextlib.asynccontextmanager
    async def on(self, connection: Connection, **limits: Any) -> AsyncIterator[Lab]:
        """Serve on a connection."""
        self.connection = connection
        self.server = self.endpoint.server(
            connection,
            self.identity,
            view=self.trusted,
            mappings=self.trusted,
            metrics=self.metrics,
            log=Log(self.log),
            **limits,
        )
        await self.server.start()
        try:
            yield self
        finally:
            await self.server.close(0.1)


class Peer:
    """A client of another make: each of its requests is written by hand."""

    def __init__(self, connection: Connection, lab: Lab, actor: str) -> None:
        self.connection, self.lab, self.actor = connection, lab, actor
        self.uid = uid_of(actor)
        self.answers: dict[str, asyncio.Queue[tuple[str, dict[str, Any]]]] = {}
        self._numbers = itertools.count(1)

    async def listen(self, rails: tuple[bool, ...] = (False, True)) -> None:
        for issued in rails:
            named = {"owner": "local", "actor": self.actor, "uid": self.uid}
            named |= {"generation": GENERATION} if issued else {}
            await self.connection.tap(
                subjects.REPLIES[issued].filter(space=SPACE, **named), self._heard, lambda error: None
            )

    def _heard(self, message: Msg) -> None:
        nonce = message.subject.rpartition(".")[2]
        self.answers.setdefault(nonce, asyncio.Queue()).put_nowait((message.subject, json.loads(message.data)))

    def body(self, command: str = "echo", **changes: Any) -> dict[str, Any]:
        """A request that is right, changed; None leaves a member out."""
        op: dict[str, Any] = {"endpoint": NAME, "command": command}
        contract = self.lab.endpoint.contracts.get(command)
        if contract is not None:
            op |= {"inputDigest": contract.input_digest, "outputDigest": contract.output_digest}
        whole = {
            "v": 1,
            "id": f"r{next(self._numbers)}",
            "op": op,
            "class": "ephemeral",
            "replyExpected": True,
            "args": {"text": "hi"} if command == "echo" else None,
            "from": {"id": f"local.{self.actor}", "name": self.actor},
            "deadlineMs": 20_000,
        }
        return {name: value for name, value in {**whole, **changes}.items() if value is not None}

    def subject(
        self, command: str = "echo", route: str = "one", issued: bool = False, mode: str = UNTARGETED, **more: str
    ) -> str:
        names: dict[str, Any] = {"space": SPACE, "endpoint": endpoint_token(NAME), "command": command}
        names |= {"owner": "local", "actor": self.actor, "uid": self.uid, "nonce": f"n{next(self._numbers):031}"}
        if issued:
            names["generation"] = GENERATION
        if route == "inst":
            names["instance"] = self.lab.instance
        return subjects.REQUESTS[route, mode, issued].build(**{**names, **more})

    async def send(
        self, command: str = "echo", *, headers: Mapping[str, str] | None = None, reply: str = "", **more: Any
    ) -> str:
        """Publish one request; the nonce. ``at`` are changes of the subject, the rest of the body."""
        at = more.pop("at", {})
        subject = self.subject(command, **at)
        data = json.dumps(more.pop("raw", None) or self.body(command, **more)).encode()
        await self.connection.publish(subject, data, headers=headers, reply=reply)
        return subject.rpartition(".")[2]

    async def answer(self, nonce: str) -> tuple[str, dict[str, Any]]:
        """The next answer under a nonce: its subject and the reply."""
        async with asyncio.timeout(EVENT_SECONDS):
            return await self.answers.setdefault(nonce, asyncio.Queue()).get()

    async def ask(self, command: str = "echo", **more: Any) -> dict[str, Any]:
        """One request and its answer."""
        return (await self.answer(await self.send(command, **more)))[1]

    async def error(self, command: str = "echo", **more: Any) -> tuple[str, str]:
        """Code and outcome of the refusal of one request."""
        found = await self.ask(command, **more)
        assert not found["ok"], found
        return found["error"]["code"], found["error"]["outcome"]

    async def describe(self, **more: Any) -> dict[str, Any]:
        return await self.ask(DESCRIBE, **more)


@contextlib.asynccontextmanager
async def peer(here: Room, lab: Lab, actor: str = "alice") -> AsyncIterator[Peer]:
    """A peer that may publish on every rail: the broker is no help to the instance."""
    mine = tuple(
        subjects.REPLIES[issued].filter(space=SPACE, owner="local", actor=actor, uid=uid_of(actor))
        for issued in (False, True)
    )
    rows = Permissions(
        Access((f"{subjects.ENDPOINT_RAIL.build(space=SPACE)}.>", "victim.>")), Access((*mine, "victim.>"))
    )
    async with here.granted(rows) as connection:
        made = Peer(connection, lab, actor)
        await made.listen()
        yield made
