"""Calls through a real broker beside bare nats-py: the round trip, the rate of 64 in flight, a scatter, and memory.

Requester and responder are two processes, the same two for both ways, on one broker, with credentials of one matrix.
Ours is the whole path: ``Caller`` to ``EndpointServer`` with an ``echo``. The other way is ``Client.request`` to a
plain subscriber of nats-py, which answers; requests and answers are the same bytes. Both take turns in one run.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import uvloop
from nats.aio.client import Client
from nats.aio.msg import Msg

from sidecar.ops.metrics import Metrics
from sidecar.rails.connection import Connection
from sidecar.rails.endpoint.caller import Caller
from sidecar.rails.endpoint.calls_request import Plan, Rail
from sidecar.rails.endpoint.contracts import KNOWN
from sidecar.rails.endpoint.envelope import Sender, encode_data
from sidecar.rails.names import endpoint as subjects
from sidecar.rails.names.endpoint import UNTARGETED
from sidecar.rails.names.principals import Lifecycle, Principal
from sidecar.rails.space.claims import Access, Permissions
from sidecar.rails.space.grants import permissions
from sidecar.rails.space.holder import Capability, Form, Holder, Profile, Service
from sidecar.rails.space.trust import new_user
from tests.bench.endpoint_child import NAME, REGISTRY, STEP, actor_of, endpoint
from tests.bench.measure import cpu_seconds, resident, show
from tests.e2e.endpoints import Room, room
from tests.e2e.space_dial import dialled
from tests.e2e.space_members import SPACE, clock, uid_of

PAIRS = 500
ROUNDS = 9
IN_FLIGHT = 64
CALLS = 2_000
INSTANCES = 100
SCATTERS = 12
CALLERS, EACH = 10, 1_000
ARGS = {"text": "Can you review this? " * 8}
RAW = "dev.sidecar.plain"
SECONDS = 3_000
GOALS = {"round trip": 1.35, "rate": 0.7, "scatter": 1.5}


def holder(actor: str, key: str, **more: Any) -> Holder:
    made = Holder(SPACE, Lifecycle(Principal("local", actor), uid_of(actor)), key, Form.MEDIATED)
    return replace(made, **more)


@dataclass
class Site:
    """A broker, and the credentials of everybody in it."""

    here: Room
    pids: list[int]

    def creds(self, profile: Profile, actor: str, publish: tuple[str, ...] = (), **more: Any) -> tuple[Path, str]:
        """A credential with the rows of its profile, and some more to publish; its path and its key."""
        key = new_user(os.urandom)
        rows = permissions(profile, holder(actor, key.public, **more))
        rows = Permissions(Access((*rows.publish.allow, *publish), rows.publish.deny), rows.subscribe)
        token = self.here.space.trust.mint(actor, rows, key, clock(), SECONDS)
        return self.here.broker.creds(token, key), key.public

    def instance(self, number: int) -> dict[str, Any]:
        """One instance of our endpoint."""
        name = f"{number:03}{'a' * 23}"
        service = Service(name, 0, tuple(endpoint().handlers), endpoint=NAME)
        path, _ = self.creds(Profile.ENDPOINT, actor_of(name), service=service)
        return {"instance": name, "creds": str(path)}

    def registry(self, names: list[str]) -> dict[str, Any]:
        """A registry that lists them."""
        own = "r0" * 13
        service = Service(own, 0, ("instances",), endpoint=REGISTRY)
        path, _ = self.creds(Profile.ENDPOINT, actor_of(own), service=service)
        rows = [
            {
                "instanceId": one,
                "owner": "local",
                "registrationRevision": 7,
                "epoch": 0,
                "state": "ready",
                "clusterDigests": [f"sha256:{'0' * 64}"],
                "protocol": 2,
            }
            for one in names
        ]
        return {"instance": own, "creds": str(path), "rows": rows}

    @contextlib.asynccontextmanager
    async def child(self, **told: Any) -> AsyncIterator[int]:
        """The process that answers, for the time of the block."""
        command = [sys.executable, "-m", "tests.bench.endpoint_child"]
        process = subprocess.Popen(  # noqa: ASYNC220 - nothing else runs yet
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(json.dumps({"url": self.here.broker.url, **told}) + "\n")
            process.stdin.flush()
            async with asyncio.timeout(60):
                line = await asyncio.to_thread(process.stdout.readline)
            assert line == "ready\n", line
            yield process.pid
        finally:
            process.stdin.close()
            process.stdout.close()
            await asyncio.to_thread(process.wait, 30)

    @contextlib.asynccontextmanager
    async def caller(self, actor: str) -> AsyncIterator[tuple[Caller, Connection]]:
        """One that may call our endpoint, as it comes from the matrix, with metrics."""
        metrics = Metrics()
        may = (Capability(NAME, "*"),)
        async with dialled(self.here.space, Profile.AGENT, actor, metrics=metrics, capabilities=may) as (link, own):
            known = {**KNOWN, NAME: endpoint().contracts}
            caller = Caller(link, SPACE, own.lifecycle, actor, metrics=metrics, contracts=known)
            try:
                yield caller, link
            finally:
                await caller.close()


@contextlib.asynccontextmanager
async def site(directory: Path) -> AsyncIterator[Site]:
    async with room(directory) as here:
        assert here.broker.process is not None
        yield Site(here, [here.broker.process.pid])


def request_of(actor: str, route: str = "one", name: str = NAME) -> tuple[str, bytes]:
    """Subject (but for its nonce) and bytes of what our caller sends."""
    life = Lifecycle(Principal("local", actor), uid_of(actor))
    contract = endpoint().contracts["echo"]
    plan = Plan(Rail(SPACE, life, None), Sender(life.principal.dot, actor), name, contract, route=route)
    trace = {"traceparent": f"00-{'1' * 32}-{'2' * 16}-01"}
    return plan.prefix, plan.body("3" * 32, ARGS, 15_000, trace)


@contextlib.asynccontextmanager
async def pair(directory: Path) -> AsyncIterator[tuple[Caller, Callable[[], Awaitable[object]], int]]:
    """Our caller, the same request by nats-py, and the process that answers both."""
    async with site(directory) as here:
        asker, key = here.creds(Profile.AGENT, "bob", capabilities=(Capability(RAW, "*"),))
        service = Service("b1" * 13, 0, ("echo",), endpoint=RAW)
        answers, _ = here.creds(Profile.ENDPOINT, "plain", (f"_INBOX_{key}.>",), service=service)
        token = RAW.replace(".", "_")
        plain = {
            "creds": str(answers),
            "subject": subjects.REQUESTS["one", UNTARGETED, False].subtree(space=SPACE, endpoint=token, command="echo"),
            "queue": token,
            "reply": encode_data("3" * 32, ARGS).decode(),
        }
        async with here.child(serve=[here.instance(0)], plain=[plain]) as pid, here.caller("alice") as (caller, _):
            client = Client()
            inbox = f"_INBOX_{key}".encode()
            await client.connect(here.here.broker.url, user_credentials=str(asker), inbox_prefix=inbox)
            subject, data = request_of("bob", name=RAW)
            subject += "4" * 32
            try:
                yield caller, lambda: client.request(subject, data, timeout=15), pid
            finally:
                await client.close()


def spread(ratios: list[float]) -> str:
    return f"ratios of the rounds: {', '.join(f'{one:.2f}' for one in sorted(ratios))}"


def test_round_trip(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    async def run() -> list[tuple[float, float]]:
        found = []
        async with pair(tmp_path) as (caller, bare, _):
            clock = time.perf_counter
            for number in range(ROUNDS + 1):
                own, raw = [], []
                for _ in range(PAIRS if number else PAIRS // 4):
                    begun = clock()
                    await caller.call(NAME, "echo", ARGS)
                    middle = clock()
                    await bare()
                    own.append(middle - begun)
                    raw.append(clock() - middle)
                found.append((statistics.median(own), statistics.median(raw)))
        return found[1:]

    found = uvloop.run(run())
    ratios = [own / raw for own, raw in found]
    show(
        capsys,
        f"endpoint: one call at a time, p50, requests of {len(request_of('bob')[1])} bytes",
        {
            "call": (statistics.median(own for own, _ in found) * 1e6, "us"),
            "nats-py": (statistics.median(raw for _, raw in found) * 1e6, "us"),
            "call, of nats-py": (statistics.median(ratios), f"(aim: at most {GOALS['round trip']})"),
        },
        spread(ratios),
    )


class Rate:
    """Calls a second, and microseconds of processor time of both processes for one."""

    def __init__(self, work: Callable[[], Awaitable[object]], answers: int) -> None:
        self.work, self.pids = work, (os.getpid(), answers)
        self.rates: list[float] = []
        self.costs: tuple[list[float], list[float]] = ([], [])

    async def round(self, count: int) -> None:
        left = iter(range(count))

        async def one() -> None:
            for _ in left:
                await self.work()

        before, begun = [cpu_seconds(pid) for pid in self.pids], time.perf_counter()
        await asyncio.gather(*(one() for _ in range(IN_FLIGHT)))
        self.rates.append(count / (time.perf_counter() - begun))
        for costs, pid, spent in zip(self.costs, self.pids, before, strict=True):
            costs.append((cpu_seconds(pid) - spent) / count * 1e6)


def test_rate(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    async def run() -> tuple[Rate, Rate]:
        async with pair(tmp_path) as (caller, bare, pid):
            ways = Rate(lambda: caller.call(NAME, "echo", ARGS), pid), Rate(bare, pid)
            for way in ways:
                await way.round(CALLS // 4)
                way.rates.clear()
                for costs in way.costs:
                    costs.clear()
            for _ in range(ROUNDS):
                for way in ways:
                    await way.round(CALLS)
        return ways

    own, raw = uvloop.run(run())
    ratios = [one / other for one, other in zip(own.rates, raw.rates, strict=True)]
    rows = {
        "calls": (statistics.median(own.rates), "/s"),
        "nats-py": (statistics.median(raw.rates), "/s"),
        "calls, of nats-py": (statistics.median(ratios), f"(aim: at least {GOALS['rate']})"),
    }
    for name, way in (("calls", own), ("nats-py", raw)):
        for side, costs in zip(("caller", "responder"), way.costs, strict=True):
            rows[f"{name}: processor, {side}"] = (statistics.median(costs), "us each")
    show(capsys, f"endpoint: {IN_FLIGHT} calls in flight", rows, spread(ratios))


class Bare:
    """A client of nats-py that asks every instance and waits for the last reply."""

    def __init__(self, client: Client, actor: str) -> None:
        self.client = client
        self.prefix, self.data = request_of(actor, "all")
        self.seen, self.all_seen = 0, asyncio.Event()

    async def listen(self, actor: str) -> None:
        names = Lifecycle(Principal("local", actor), uid_of(actor)).names
        await self.client.subscribe(subjects.REPLIES[False].filter(space=SPACE, **names), cb=self._take)
        await self.client.flush()

    async def _take(self, _: Msg) -> None:
        self.seen += 1
        if self.seen == INSTANCES:
            self.all_seen.set()

    async def ask(self) -> None:
        self.seen = 0
        self.all_seen.clear()
        await self.client.publish(self.prefix + os.urandom(16).hex(), self.data)
        await self.all_seen.wait()


def test_scatter(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """The slowest reply is what nats-py alone waits for, when it sends the same request to the same instances."""

    async def run() -> list[tuple[float, float]]:
        found = []
        async with site(tmp_path) as here:
            served = [here.instance(number) for number in range(INSTANCES)]
            asker, key = here.creds(Profile.AGENT, "bob", capabilities=(Capability(NAME, "*"),))
            listed = [here.registry([one["instance"] for one in served])]
            async with here.child(serve=served, list=listed), here.caller("alice") as (caller, _):
                client = Client()
                inbox = f"_INBOX_{key}".encode()
                await client.connect(here.here.broker.url, user_credentials=str(asker), inbox_prefix=inbox)
                bare = Bare(client, "bob")
                await bare.listen("bob")
                for _ in range(SCATTERS):
                    begun = time.perf_counter()
                    got = await caller.scatter(NAME, "echo", ARGS, seconds=15)
                    middle = time.perf_counter()
                    await bare.ask()
                    found.append((middle - begun, time.perf_counter() - middle))
                    assert got.complete
                    assert len(got.replies) == INSTANCES
                await client.close()
        return found[2:]

    found = uvloop.run(run())
    ratios = [own / raw for own, raw in found]
    show(
        capsys,
        f"endpoint: a scatter to {INSTANCES} instances of one process",
        {
            "scatter, with the registry's list": (statistics.median(own for own, _ in found) * 1e3, "ms"),
            "the slowest reply": (statistics.median(raw for _, raw in found) * 1e3, "ms"),
            "scatter, of the slowest reply": (statistics.median(ratios), f"(aim: at most {GOALS['scatter']})"),
        },
        spread(ratios),
    )


def test_memory_of_calls_that_wait(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Resident bytes of both processes for one more call that waits for its answer."""

    async def run() -> list[float]:
        async with contextlib.AsyncExitStack() as stack:
            here = await stack.enter_async_context(site(tmp_path))
            answers = await stack.enter_async_context(here.child(serve=[here.instance(0)]))
            callers = [
                (await stack.enter_async_context(here.caller(f"caller{number}")))[0] for number in range(CALLERS)
            ]

            async def held(each: int) -> tuple[list[asyncio.Task[Any]], list[int]]:
                """So many calls of each caller wait; the tasks, and what both processes have now."""
                tasks = [
                    asyncio.create_task(caller.call(NAME, "hold", ARGS, seconds=300))
                    for caller in callers
                    for _ in range(each)
                ]
                await callers[0].call(NAME, "echo", ARGS)  # behind all others on its connection
                for caller in callers[1:]:
                    await caller.call(NAME, "echo", ARGS)
                gc.collect()
                return tasks, [resident(os.getpid()), resident(answers)]

            async def ended(tasks: list[asyncio.Task[Any]]) -> None:
                for _ in range(0, len(tasks), STEP):
                    await callers[0].call(NAME, "go", ARGS)
                await asyncio.gather(*tasks)

            few, before = await held(4)
            await ended(few)
            few, before = await held(4)
            many, after = await held(EACH - 8)
            await ended([*few, *many])
            return [(one - other) / len(many) for one, other in zip(after, before, strict=True)]

    own, other = uvloop.run(run())
    show(
        capsys,
        f"endpoint: memory of a call that waits, of {CALLERS * (EACH - 8):,} of {CALLERS} callers",
        {"caller": (own / 1024, "KiB"), "responder": (other / 1024, "KiB")},
    )
