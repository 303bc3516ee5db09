"""A registry over stores that a test fills by hand, at a broker without a permission system: every row there can be
written as a broken issuer or registrar would. Each scene is a space of its own.

    async with scene(port) as made:
        await made.register("dev.sample", INSTANCE, [ECHO])
        generation = await made.issue(ALICE, publish=("cotal.>",))
        answer = await made.ask("endpoints", ALICE, {}, generation)
"""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import os
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from sidecar.base.clock import Now, system_now
from sidecar.base.strictjson import JsonValue
from sidecar.ops.logging import Log
from sidecar.ops.metrics import Metrics
from sidecar.rails.connection import Connection
from sidecar.rails.connection.logins import OpenLogin
from sidecar.rails.connection.publishing import store
from sidecar.rails.endpoint.call import Call
from sidecar.rails.endpoint.clusters import Cluster, Command
from sidecar.rails.endpoint.codes import Code, Outcome, Refusal
from sidecar.rails.endpoint.schemas import VOID_SCHEMA
from sidecar.rails.names import api, buckets, headers, planes, streams
from sidecar.rails.names.principals import Lifecycle, Principal
from sidecar.rails.names.tokens import endpoint_token
from sidecar.rails.planes.registration.gates import Gate, GateState
from sidecar.rails.planes.registry.registry import Registry
from sidecar.rails.space.ceilings import Ceiling, Rule
from sidecar.rails.space.evidence import (
    AttemptState,
    Evidence,
    Reference,
    Source,
    attempt_subject,
    attempt_value,
    evidence_subject,
    new_generation,
)

INSTANCE, SECOND, THIRD = "1" * 32, "2" * 32, "3" * 32
ALICE = Lifecycle(Principal("local", "alice"), "a" * 26)
BOB = Lifecycle(Principal("local", "bob"), "b" * 26)
SERVING = Principal("local", f"ep_{INSTANCE[:20]}")
"""The serving principal of ``INSTANCE``."""
NOTHING, EVERYTHING = Rule(()), Rule(None)
_SPACES = itertools.count(1)
_KEPT = {"num_replicas": 1, "storage": "file", "retention": "limits", "max_consumers": -1, "max_age": 0}
_BUCKET = {**_KEPT, "max_msgs_per_subject": 1, "allow_direct": True, "deny_delete": True, "discard": "new"}
_ISSUED = {**_KEPT, "allow_direct": False, "allow_msg_ttl": True, "deny_delete": True, "deny_purge": True}


def command(name: str, *modes: str, journal: bool = False) -> dict[str, JsonValue]:
    """One command of a cluster document."""
    found: dict[str, JsonValue] = {
        "name": name,
        "class": "journal" if journal else "ephemeral",
        "targeted": bool(modes),
        "capability": f"sample.{name}",
        "inputDigest": VOID_SCHEMA.closure,
        "outputDigest": VOID_SCHEMA.closure,
    }
    if modes:
        found["modes"] = list(modes)
    if journal:
        found["admissionCeiling"] = {"maxBytes": 1024, "maxDepth": 4, "maxItems": 16}
    return found


def cluster(*names: str, urn: str = "dev.sample", revision: int = 1) -> Cluster:
    """A cluster of untargeted ephemeral commands."""
    void = VOID_SCHEMA.closure
    commands = tuple(
        Command(name=name, capability=f"sample.{name}", input_digest=void, output_digest=void) for name in names
    )
    return Cluster(urn, revision, commands)


class Scene:
    """A space, its stores, and the registry over them."""

    def __init__(self, connection: Connection, space: str, *, permissions: bool, clock: Callable[[], Now]) -> None:
        self.connection, self.space = connection, space
        self.metrics, self.log = Metrics(), io.StringIO()
        self.registry = Registry(connection, space, self.metrics, Log(self.log), permissions=permissions, clock=clock)

    async def make(self, **changed: dict[str, Any]) -> None:
        """The stores, each with the given fields changed."""
        wanted = {
            buckets.RECORDS.stream(self.space): ([buckets.RECORDS.everything(self.space)], _BUCKET, "records"),
            buckets.AUTH.stream(self.space): (
                [buckets.AUTH.everything(self.space)],
                {**_BUCKET, "allow_direct": False},
                "auth",
            ),
            buckets.ISSUED.stream(self.space): ([buckets.ISSUED.everything(self.space)], _ISSUED, "issued"),
            streams.EPC.stream(self.space): (
                streams.EPC.subjects(self.space),
                {**_KEPT, "allow_direct": True, "deny_delete": True, "deny_purge": True},
                "artifacts",
            ),
            streams.EPE.stream(self.space): (
                streams.EPE.subjects(self.space),
                {**_KEPT, "allow_direct": True},
                "events",
            ),
        }
        for name, (subjects, config, short) in wanted.items():
            body = {**config, "name": name, "subjects": subjects, **changed.get(short, {})}
            answer = await self.connection.request(api.STREAM_CREATE.build(stream=name), json.dumps(body).encode())
            assert "error" not in json.loads(answer.data), answer.data

    # ---- what stands there ----

    async def put(self, subject: str, value: object, **more: str) -> int:
        """Store anything; its sequence."""
        data = value if isinstance(value, bytes) else json.dumps(value).encode()
        return (await store(self.connection, subject, data, more or None)).sequence

    def service(self, endpoint: str, instance: str, half: str) -> str:
        names = {"endpoint": endpoint_token(endpoint), "instance": instance, "half": half}
        return buckets.RECORDS.subject(self.space, buckets.RECORD_SERVICE, **names)

    def gate_subject(self, endpoint: str, instance: str) -> str:
        names = {"endpoint": endpoint_token(endpoint), "instance": instance}
        return buckets.AUTH.subject(self.space, buckets.AUTH_ENDPOINT_GATE, **names)

    async def register(
        self,
        endpoint: str,
        instance: str,
        clusters: Iterable[Cluster | str],
        *,
        state: str | None = "ready",
        protocol: int = 1,
        epoch: int = 1,
        principal: Principal | None = None,
        publish: bool = True,
    ) -> int:
        """Records, artifacts and gate of an instance; the revision of its spec."""
        digests = []
        for one in clusters:
            digests.append(one if isinstance(one, str) else one.closure)
            if publish and isinstance(one, Cluster):
                await self.publish(one)
        spec = {"endpoint": endpoint, "owner": "local", "clusterDigests": digests, "protocol": {"v": protocol}}
        revision = await self.put(self.service(endpoint, instance, "spec"), spec)
        if state is not None:
            status = {"epoch": epoch, "state": state, "observedSpecRevision": revision}
            await self.put(self.service(endpoint, instance, "status"), status)
        gate = Gate(GateState.OPEN, 1, epoch, revision, 0, principal or Principal("local", f"ep_{instance[:20]}"))
        await self.put(self.gate_subject(endpoint, instance), gate.encode())
        return revision

    async def publish(self, one: Cluster) -> None:
        """The artifacts of a cluster, once."""
        for digest, data in one.artifacts.items():
            subject = self.artifact(digest)
            with contextlib.suppress(Exception):
                await self.put(subject, data, **{headers.EXPECTED_LAST_SEQUENCE: "0"})

    def artifact(self, digest: str) -> str:
        return planes.CONTRACT.build(space=self.space, digest=digest.removeprefix("sha256:"))

    async def delete(self, subject: str) -> None:
        await self.put(subject, b"", **{headers.KV_OPERATION: headers.KV_DELETE})

    async def issue(
        self,
        lifecycle: Lifecycle,
        publish: tuple[str, ...] | None,
        *deny: str,
        state: AttemptState | None = AttemptState.ACTIVE,
        seconds: int = 600,
        expires: int | None = None,
        hears: Rule = NOTHING,
    ) -> str:
        """Evidence and attempt of a new generation, which ends in ``seconds``; ``hears`` is what it may subscribe."""
        horizon = int(system_now().wall) + seconds
        ref = Reference(self.space, lifecycle, new_generation(horizon, os.urandom))
        ceiling = Ceiling(Rule(publish, deny), hears)
        source = Source(self.space, "b", "k")
        await self.put(evidence_subject(ref), Evidence(ref, ceiling, (source,), expires or horizon).value())
        if state is not None:
            await self.attempt(ref, state)
        return ref.generation

    def ref(self, lifecycle: Lifecycle, generation: str) -> Reference:
        return Reference(self.space, lifecycle, generation)

    async def attempt(self, ref: Reference, state: AttemptState) -> None:
        await self.put(attempt_subject(ref), attempt_value(ref, state))

    async def head(self, principal: Principal, uid: str, state: str = "active", **more: Any) -> int:
        """The lifecycle head of a principal; its revision."""
        names = {"owner": principal.owner, "actor": principal.actor}
        value = {**names, "lifecycleUid": uid, "managerInstance": INSTANCE, "processEpoch": 1, "state": state, **more}
        return await self.put(buckets.RECORDS.subject(self.space, buckets.RECORD_LIFECYCLE, **names), value)

    # ---- asking ----

    async def ask(
        self, name: str, caller: Lifecycle, args: Mapping[str, Any], generation: str | None = None
    ) -> dict[str, Any]:
        """What a handler answers. Raises Refusal."""
        call = Call(caller, caller.principal.actor, dict(args), "id-1", generation=generation)
        answer = await self.registry.handlers[name](call)
        assert isinstance(answer, dict)
        return answer

    def endpoint_rows(self, caller: Lifecycle, endpoint: str, *commands: str, generation: str = "*") -> tuple[str, ...]:
        """Allow patterns for the class rail of both rails."""
        own = f"{caller.principal.owner}.{caller.principal.actor}.{caller.uid}"
        token = endpoint_token(endpoint)
        legacy = [f"cotal.{self.space}.ep.one.{token}.{one}.{own}.*" for one in commands]
        issued = [f"cotal.{self.space}.ep.v1.one.{token}.{one}.{own}.{generation}.*" for one in commands]
        return (*legacy, *issued)

    def refused(self, kind: str) -> float:
        """How often the registry refused for a reason."""
        value = self.metrics.registry.get_sample_value("sidecar_registry_refused_total", {"kind": kind})
        return value or 0.0


@contextlib.asynccontextmanager
async def scene(
    port: int, *, permissions: bool = True, clock: Callable[[], Now] = system_now, **changed: dict[str, Any]
) -> AsyncIterator[Scene]:
    async def mint() -> OpenLogin:
        return login

    login = OpenLogin(f"registry{next(_SPACES)}")
    async with await Connection.open([f"nats://127.0.0.1:{port}"], mint) as connection:
        made = Scene(connection, f"s{next(_SPACES)}", permissions=permissions, clock=clock)
        await made.make(**changed)
        try:
            yield made
        finally:
            await made.registry.close()


def later(seconds: float) -> Callable[[], Now]:
    """A clock that is ahead of that of the broker."""
    return lambda: replace(system_now(), wall=system_now().wall + seconds)


@contextlib.asynccontextmanager
async def refused(code: Code, message: str) -> AsyncIterator[None]:
    """The block is refused with this code and this fixed message, before any effect."""
    with pytest.raises(Refusal) as caught:
        yield
    assert (caught.value.code, caught.value.message, caught.value.outcome) == (code, message, Outcome.NOT_EXECUTED)
