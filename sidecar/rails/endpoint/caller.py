"""Calls on the endpoint rails: call, cast, scatter, describe, probe, watch and the registry's listing (C13.5).

    async with Caller.connect("nats://127.0.0.1:4222", "alice.creds") as caller:
        data = await caller.call("dev.sidecar.sample", "echo", {"text": "hi"})
        found = await caller.scatter("dev.sidecar.sample", "echo", {"text": "hi"}, seconds=2.0)

A call ends in one of three ways: with the data of the answer, with ``CallRefused`` (the endpoint's own words), or with
``CallFailed`` (what happened on the way). Both errors say in ``outcome`` whether the command may have had its effect,
and name ``endpoint``, ``command`` and ``id``.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import ssl
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from typing import Any, Final, Protocol, Self, cast

from sidecar.base.clock import Now, system_now
from sidecar.base.secret import Secret
from sidecar.base.strictjson import JsonValue
from sidecar.ops.logging import Log
from sidecar.ops.metrics import Metrics
from sidecar.rails.connection import Connection, Notice, Watch
from sidecar.rails.connection.kv import Unreadable
from sidecar.rails.endpoint.calls_desk import REGISTRY, Desk, Job, named
from sidecar.rails.endpoint.calls_request import Rail, check_bind, check_seconds, checked_args
from sidecar.rails.endpoint.calls_scatter import scatter
from sidecar.rails.endpoint.calls_types import CALL_SECONDS as CALL_SECONDS
from sidecar.rails.endpoint.calls_types import Answer as Answer
from sidecar.rails.endpoint.calls_types import Described as Described
from sidecar.rails.endpoint.calls_types import Listing as Listing
from sidecar.rails.endpoint.calls_types import Probe as Probe
from sidecar.rails.endpoint.calls_types import Scattered as Scattered
from sidecar.rails.endpoint.calls_types import To as To
from sidecar.rails.endpoint.calls_wire import AT_ONCE as AT_ONCE
from sidecar.rails.endpoint.codes import CallError, CallFailed, CallRefused, Code, Outcome, label, unsent
from sidecar.rails.endpoint.contracts import DESCRIBE, JOURNAL, KNOWN, Contract, Contracts
from sidecar.rails.endpoint.envelope import Bind as Bind
from sidecar.rails.endpoint.envelope import Sender
from sidecar.rails.endpoint.login import Login, NoListing
from sidecar.rails.endpoint.watch_events import EventWatch
from sidecar.rails.endpoint.watch_instance import InstanceWatch
from sidecar.rails.messaging.credsfile import Source
from sidecar.rails.names.principals import Lifecycle

ENDPOINTS: Final = "endpoints"
PROBE_SECONDS: Final = 2.0


class Calls(Protocol):
    """What those need who only call."""

    async def call(
        self, endpoint: str, command: str, args: dict[str, JsonValue] | None = None, *, seconds: float = CALL_SECONDS
    ) -> JsonValue:
        """The data of the answer; CallError without one."""


class Caller:
    """One lifecycle's calls over one connection; safe for any number of tasks. :meth:`connect` makes one from creds;
    the constructor is for who has a connection already. ``name`` is what it calls itself.

    With ``generation`` it rides the versioned rail; ``listing`` is the generation of the three listing rows that a
    legacy credential may carry (C13.15-28). It lives in memory alone: no nonce is kept, and calls end with it
    (C13.2-52).
    """

    def __init__(
        self,
        connection: Connection,
        space: str,
        lifecycle: Lifecycle,
        name: str,
        *,
        entropy: Callable[[int], bytes] = os.urandom,
        chance: Callable[[], float] = random.random,
        metrics: Metrics | None = None,
        contracts: Mapping[str, Contracts] = KNOWN,
        generation: str | None = None,
        listing: str | None = None,
    ) -> None:
        sender = Sender(lifecycle.principal.dot, name)

        def desk(generation: str | None) -> Desk:
            rail = Rail(space, lifecycle, generation)
            return Desk(connection, rail, sender, contracts, entropy, chance, metrics)

        self._new_desk, self._desk = desk, desk(generation)
        self._listing = self._desk if generation is not None or listing is None else desk(listing)
        self._connection, self._space, self._metrics = connection, space, metrics
        self._seconds = None if metrics is None else metrics.histogram("endpoint_call_seconds")
        self._login: Login | None = None
        self._listed_by = listing

    @classmethod
    @contextlib.asynccontextmanager
    async def connect(
        cls,
        servers: str | Sequence[str],
        creds: str | os.PathLike[str] | Secret | bytes | Source,
        *,
        name: str | None = None,
        tls: ssl.SSLContext | None = None,
        watch: Callable[[Notice], None] | None = None,
        metrics: Metrics | None = None,
        log: Log | None = None,
        contracts: Mapping[str, Contracts] = KNOWN,
        clock: Callable[[], Now] = system_now,
    ) -> AsyncIterator[Self]:
        """A caller on a connection of its own, for the block.

        ``servers`` are the addresses of brokers of the space. ``creds`` is the path of a creds file, which is read
        again when it was replaced, or the content of one as bytes; who it calls as stands in it, and ``name`` is by
        default the actor of that. ``watch`` is told what happens to the connection. To connect takes as long as there
        is no broker: bound it with ``asyncio.timeout``. Raises InvalidCreds, UnsafeFile, Stopped.
        """
        login = Login(creds, clock)
        identity = await login.read()
        metrics = metrics or Metrics()
        urls = [servers] if isinstance(servers, str) else servers
        async with await Connection.open(
            urls, login, watch=Watch(metrics, log, watch), tls=tls, clock=clock
        ) as connection:
            name = identity.principal.actor if name is None else name
            caller = cls(connection, identity.space, identity.lifecycle, name, metrics=metrics, contracts=contracts)
            caller._login = login
            try:
                yield caller
            finally:
                await caller.close()

    # ---- call ----

    async def call(
        self,
        endpoint: str,
        command: str,
        args: JsonValue = None,
        *,
        seconds: float = CALL_SECONDS,
        instance: str | None = None,
        target: To | None = None,
        bind: Bind | bool | None = None,
        id: str | None = None,
        correlation: Mapping[str, str] | None = None,
        repeat: bool = False,
    ) -> JsonValue:
        """The data of the answer, by any one instance or by ``instance``. Raises CallRefused, CallFailed.

        ``seconds`` bounds the whole call, at most an hour. A command without arguments takes None or ``{}``. ``bind``
        is the incarnation that alone may execute it, or True for the one that describes itself now. ``correlation`` is
        that of the request that this call is a part of. ``repeat``: call again within the deadline where that can do
        no harm (C13.7-13): after an outcome of not-executed that may pass, and commands that only read.
        """
        found = await self.invoke(
            endpoint,
            command,
            args,
            seconds=seconds,
            instance=instance,
            target=target,
            bind=bind,
            id=id,
            correlation=correlation,
            repeat=repeat,
        )
        return found.data

    async def invoke(
        self,
        endpoint: str,
        command: str,
        args: JsonValue = None,
        *,
        seconds: float = CALL_SECONDS,
        instance: str | None = None,
        target: To | None = None,
        bind: Bind | bool | None = None,
        id: str | None = None,
        correlation: Mapping[str, str] | None = None,
        repeat: bool = False,
    ) -> Answer:
        """``call``, with who answered and under which id."""
        loop = asyncio.get_running_loop()
        begun, outcome, used = loop.time(), "ok", ""
        try:
            until = begun + check_seconds(seconds)
            job = Job(endpoint, command, args, until, instance, target, bind, repeat)
            check_bind(job.bind, job.route, command, instance)
            self._desk.draw(job, id, correlation)
            used = job.id
            return await self._desk.run(job)
        except CallError as error:
            outcome = label(error.code)
            named(error, endpoint, command, used)
            raise
        except asyncio.CancelledError:
            outcome = label(Code.CANCELLED)
            raise
        finally:
            self._count("call", outcome, loop.time() - begun)

    # ---- the other verbs ----

    async def cast(
        self,
        endpoint: str,
        command: str,
        args: JsonValue = None,
        *,
        seconds: float = CALL_SECONDS,
        instance: str | None = None,
        target: To | None = None,
        bind: Bind | None = None,
        id: str | None = None,
        correlation: Mapping[str, str] | None = None,
    ) -> str:
        """Send a command that nobody answers; its id. When this returns the broker has taken it, which says nothing of
        an effect (C13.5-04..06). Raises CallFailed: permission-denied when the broker refuses it."""
        with self._telling("cast", endpoint, command) as told:
            job = Job(
                endpoint, command, args, told.begun + check_seconds(seconds), instance, target, bind, repeat=False
            )
            check_bind(bind, job.route, command, instance)
            self._desk.draw(job, id, correlation)
            told.id = job.id
            contract = await self._desk.contract(endpoint, command, job.until)
            if contract.action or contract.contract_class == JOURNAL:
                raise unsent(Code.CLASS_MISMATCH, f"{command} is submitted to a journal, and is not cast")
            await self._desk.aim(job)
            plan = self._desk.plan(endpoint, contract, job.route, instance, job.to)
            data = plan.body(job.id, checked_args(contract, args), None, job.correlation, bind)
            await self._desk.wire.cast(plan.prefix + job.nonce, data, job.until)
            return job.id

    async def scatter(
        self,
        endpoint: str,
        command: str,
        args: JsonValue = None,
        *,
        seconds: float,
        target: To | None = None,
        id: str | None = None,
        correlation: Mapping[str, str] | None = None,
    ) -> Scattered:
        """Ask every instance that the registry lists as live; returns as soon as all have answered, else ``seconds``
        after the begin and at most two seconds later (C13.5-21..26). Raises CallFailed: failed-precondition when it is
        not known who is there."""
        with self._telling("scatter", endpoint, command) as told:
            job = Job(endpoint, command, args, told.begun + check_seconds(seconds), None, target, None, repeat=False)
            self._desk.draw(job, id, correlation)
            told.id = job.id
            contract = await self._desk.contract(endpoint, command, job.until)
            await self._desk.aim(job)
            return await scatter(self._desk, job, contract)

    async def describe(self, endpoint: str, *, instance: str | None = None, seconds: float = CALL_SECONDS) -> Described:
        """What an instance says of its endpoint to this caller, asked now. Raises CallRefused, CallFailed:
        unsupported-version for a descriptor that nothing may be called by (C13.7-18)."""
        with self._telling("describe", endpoint, DESCRIBE) as told:
            described = await self._desk.ask_description(endpoint, told.begun + check_seconds(seconds), instance)
            self._desk.resolver.learn(endpoint, described, asyncio.get_running_loop().time())
            return described

    async def contract(self, endpoint: str, command: str, *, seconds: float = CALL_SECONDS) -> Contract:
        """The contract by which a command is called: compiled in, or described, fetched and verified. Raises
        CallFailed."""
        with self._telling("describe", endpoint, command) as told:
            return await self._desk.contract(endpoint, command, told.begun + check_seconds(seconds))

    async def probe(self, endpoint: str, instance: str, *, seconds: float = PROBE_SECONDS) -> Probe:
        """Whether one instance is there (C13.5-27, -28). Only the broker says that it is gone; an instance that is
        silent may be slow. Raises CallFailed when the probe could not be sent."""
        with self._telling("probe", endpoint, DESCRIBE) as told:
            until = told.begun + check_seconds(seconds)
            try:
                await self._desk.ask_description(endpoint, until, instance)
            except CallRefused:
                return Probe.ANSWERED
            except CallFailed as error:
                if error.outcome is Outcome.EXECUTED:
                    return Probe.ANSWERED  # by something that is no description
                if error.code == Code.DEADLINE_EXCEEDED and error.outcome is Outcome.UNKNOWN:
                    return Probe.SILENT
                if error.nobody:
                    return Probe.GONE
                raise
            return Probe.ANSWERED

    async def endpoints(
        self, limit: int | None = None, after: str | None = None, *, seconds: float = CALL_SECONDS
    ) -> Listing:
        """One page of the endpoints that this caller holds a command on, as the registry projects them (C13.20-03).

        Raises CallFailed and CallRefused: without an answer there is no listing, and none is made of anything else
        (C13.20-15). What was known of each listed endpoint is forgotten (C13.20-16).
        """
        with self._telling("endpoints", REGISTRY, ENDPOINTS) as told:
            given: dict[str, JsonValue] = {"limit": limit, "after": after}
            args = {name: value for name, value in given.items() if value is not None}
            job = Job(REGISTRY, ENDPOINTS, args, told.begun + check_seconds(seconds), None, None, None, repeat=False)
            await self._bind_listing(seconds)
            self._listing.draw(job, None, None)
            told.id = job.id
            try:
                found = cast("dict[str, Any]", (await self._listing.run(job)).data)
            except CallFailed as error:
                if error.code == Code.PERMISSION_DENIED:
                    raise unsent(
                        Code.PERMISSION_DENIED, f"this credential has no listing binding: {error.message}"
                    ) from None
                raise
            for row in found["rows"]:
                self._desk.resolver.forget(row["endpoint"])
            return Listing(tuple(found["rows"]), found.get("next"), found["source"])

    async def _bind_listing(self, seconds: float) -> None:
        """Take the listing generation of the credentials that this caller was connected with. Raises CallFailed."""
        if self._login is None:
            return
        try:
            async with asyncio.timeout(seconds):
                generation = await self._login.generation(self._connection)
        except NoListing as error:
            raise unsent(Code.PERMISSION_DENIED, str(error)) from None
        except (Unreadable, TimeoutError) as error:
            raise unsent(Code.UNAVAILABLE, str(error) or "the accepted row could not be read in time") from None
        if generation == self._listed_by:
            return
        before, self._listing, self._listed_by = self._listing, self._new_desk(generation), generation
        if before is not self._desk:
            await before.wire.close()

    def watch_events(self, endpoint: str, cluster: str, event: str, after: int | None = None) -> EventWatch:
        """The events of an endpoint from now on, or behind sequence ``after`` (C13.5-07); ``async with`` it."""
        return EventWatch(self._desk, self._space, endpoint, cluster, event, after)

    def watch_instance(self, endpoint: str, instance: str) -> InstanceWatch:
        """The service record of an instance: as it is, and then as it changes (C13.5-07); ``async for`` it."""
        return InstanceWatch(self._desk, endpoint, instance)

    @contextlib.contextmanager
    def _telling(self, verb: str, endpoint: str, command: str) -> Iterator[_Told]:
        """Names the error of a verb, and counts how it ended."""
        loop = asyncio.get_running_loop()
        told, outcome = _Told(loop.time()), "ok"
        try:
            yield told
        except CallError as error:
            outcome = label(error.code)
            named(error, endpoint, command, told.id)
            raise
        except asyncio.CancelledError:
            outcome = label(Code.CANCELLED)
            raise
        finally:
            self._count(verb, outcome, loop.time() - told.begun)

    def _count(self, verb: str, outcome: str, seconds: float) -> None:
        if self._metrics is not None and self._seconds is not None:
            self._metrics.counter("endpoint_calls", verb, outcome).inc()
            self._seconds.observe(seconds)

    async def close(self) -> None:
        """Calls that wait end as failed with an unknown outcome; later ones are not sent. May be called twice."""
        await self._desk.wire.close()
        await self._listing.wire.close()


class _Told:
    """When a verb began, and the id of its request once there is one."""

    __slots__ = ("begun", "id")

    def __init__(self, begun: float) -> None:
        self.begun, self.id = begun, ""
