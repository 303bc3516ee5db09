"""Every verb of a caller, cancelled at each of its steps: nothing of it is left, and the next call goes on."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
import pytest_asyncio

from sidecar.rails.connection import Connection
from sidecar.rails.endpoint.caller import Caller
from sidecar.rails.endpoint.codes import CallError
from sidecar.rails.names.principals import Lifecycle, Principal
from tests.e2e.calling import ECHO, ONE, TEXT, Heard, calling, cluster, described, documents, raw, registry
from tests.e2e.endpoints import Room, room, soon, until
from tests.e2e.space_members import SPACE, uid_of

pytestmark = pytest.mark.asyncio(loop_scope="module")
HI = {"text": "hi"}
GRANT = f"cotal.{SPACE}.epe.com_acme_echo.*.*.ev.com_acme_echo.counted"
STEPS = [*range(40), 60, 100]
"""Turns of the loop before the cancellation: all that nobody has to wait for, and some more."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def here(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Room]:
    async with room(tmp_path_factory.mktemp("cancel")) as made:
        yield made


async def events(caller: Caller) -> None:
    async with caller.watch_events(ECHO, ECHO, "counted", after=1) as watch:
        async for _ in watch:
            pass


async def records(caller: Caller) -> None:
    async for _ in caller.watch_instance(ECHO, ONE):
        pass


VERBS: dict[str, Callable[[Caller], Awaitable[Any]]] = {
    "call": lambda caller: caller.call(ECHO, "echo", HI),
    "bound call": lambda caller: caller.call(ECHO, "echo", HI, bind=True),
    "cast": lambda caller: caller.cast(ECHO, "put", HI),
    "scatter": lambda caller: caller.scatter(ECHO, "echo", HI, seconds=1.0),
    "describe": lambda caller: caller.describe(ECHO),
    "probe": lambda caller: caller.probe(ECHO, ONE),
    "events": events,
    "records": records,
}


@pytest.mark.req("C13.2-52", "C13.8-50")
@pytest.mark.parametrize("verb", list(VERBS))
async def test_a_verb_that_is_cancelled_at_any_step_leaves_nothing(here: Room, verb: str) -> None:
    async with (
        raw(here) as one,
        registry(here) as (lists, _),
        calling(here, subscribe=(GRANT,)) as (owner, _),
    ):
        own = described(cluster())
        one.answer = lambda heard: heard.ok(own if heard.command == "describe" else heard.body.get("args"))
        lists.documents |= documents(TEXT)
        lists.live(ONE, 1, 1)
        lists.answers |= {"events": _no_events, "record": lambda heard: heard.ok({})}
        connection = owner._desk.connection
        before = at_the_broker(connection)
        lifecycle = Lifecycle(Principal("local", "alice"), uid_of("alice"))
        for steps in STEPS:
            caller = Caller(connection, SPACE, lifecycle, "alice")
            task = asyncio.ensure_future(VERBS[verb](caller))
            for _ in range(steps):
                await asyncio.sleep(0)
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError, CallError):
                await task
            wire = caller._desk.wire
            assert not wire._waiting, steps
            assert wire._open == 0, steps
            assert not caller._desk.resolver._asking._locks, steps
            assert await soon(caller.call(ECHO, "echo", HI)) == HI
            await caller.close()
            assert not connection._calls._calls, steps
            assert not connection._subscriptions.placed, steps
            await until(lambda: at_the_broker(connection) == before)


def _no_events(heard: Heard) -> Any:
    return heard.ok({"events": []})


def at_the_broker(connection: Connection) -> int:
    """The subscriptions that the broker has of the link."""
    assert connection._link is not None
    return len(connection._link._client._subs)
