"""An instance under frames that are no requests, and over the loss of its broker."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import os
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sidecar.ops.logging import Log
from sidecar.ops.metrics import Metrics
from sidecar.rails.connection import Connection, Credentials
from sidecar.rails.endpoint.call import Call
from sidecar.rails.endpoint.codes import CallFailed, Code, Outcome
from sidecar.rails.endpoint.contracts import DELIVERY, DELIVERY_ENDPOINT
from sidecar.rails.endpoint.serve import EndpointServer
from sidecar.rails.names import endpoint, headers
from sidecar.rails.names.endpoint import UNTARGETED
from sidecar.rails.names.principals import Lifecycle, Principal
from sidecar.rails.space.creds import format_creds
from sidecar.rails.space.holder import Capability, Form, Holder, Profile, Service
from sidecar.rails.space.trust import new_user
from tests.e2e.endpoints import COMMANDS, OTHER, Room, room, soon, until
from tests.e2e.space_broker import User
from tests.e2e.space_dial import QUICK
from tests.e2e.space_members import INSTANCE, SPACE, clock, uid_of

pytestmark = pytest.mark.asyncio
JOIN: dict[str, Any] = {"channel": "general", "joinCursor": 7}
JOINS = DELIVERY["durable-join"]
NONCE = "n" * 32


def body(**changes: Any) -> dict[str, Any]:
    """A request of alice that is right, changed."""
    op = {"endpoint": DELIVERY_ENDPOINT, "command": "durable-join"}
    op |= {"inputDigest": JOINS.input_digest, "outputDigest": JOINS.output_digest}
    whole = {
        "v": 1,
        "id": "r1",
        "op": op,
        "class": "ephemeral",
        "replyExpected": True,
        "args": JOIN,
        "from": {"id": "local.alice", "name": "alice"},
        "deadlineMs": 5000,
    }
    return {**whole, **changes}


class Foreign:
    """Alice with a client of another make: what she is answered, in order."""

    def __init__(self, user: User, holder: Holder) -> None:
        self.user, self.names = user, {"space": SPACE, **holder.lifecycle.names}
        self.answers: list[dict[str, Any]] = []

    async def listen(self) -> None:
        async def heard(message: Any) -> None:
            self.answers.append(json.loads(message.data))

        await self.user.client.subscribe(endpoint.REPLIES[False].filter(**self.names), cb=heard)
        assert not await self.user.violations()

    async def send(self, data: Any, route: str = "one", **more: Any) -> None:
        names = {**self.names, "endpoint": DELIVERY_ENDPOINT, "command": "durable-join", "nonce": NONCE}
        named = {**names, "instance": INSTANCE} if route == "inst" else names
        subject = endpoint.REQUESTS[route, UNTARGETED, False].build(**named)
        payload = data if isinstance(data, bytes) else json.dumps(data).encode()
        await self.user.client.publish(subject, payload, **more)
        assert not await self.user.violations()


@contextlib.asynccontextmanager
async def foreign(here: Room) -> AsyncIterator[Foreign]:
    able = (Capability(DELIVERY_ENDPOINT, "durable-join"),)
    async with here.space.member(Profile.AGENT, "alice", capabilities=able) as (user, holder):
        made = Foreign(user, holder)
        await made.listen()
        yield made


@pytest.mark.req("C13.3-01", "C13.3-02", "C13.3-03", "C13.3-04", "C13.3-05", "C13.3-18", "C13.2-44", "C13.2-46")
@pytest.mark.parametrize("form", list(Form))
async def test_nothing_that_is_sent_ends_the_serving(tmp_path: Path, form: Form) -> None:
    async with room(tmp_path, form) as here, here.instance() as served, foreign(here) as alice:
        for route in endpoint.ROUTES:
            for name in (headers.STREAM, headers.SUBJECT.lower(), headers.SEQUENCE.upper(), headers.TIMESTAMP):
                await alice.send(body(), route, headers={name: ""})
        await until(lambda: served.metrics.totals("endpoint_discarded") == {("redirected",): 12})
        assert not served.called
        assert not alice.answers

        for data in (b"", b"\xff\xfe", b"[]", b"{}" * 9, b'{"v":1,"v":1}', b"[" * 5_000, b"7"):
            await alice.send(data)
        await alice.send(body(v=2))
        await alice.send({"op": "durableJoin", "args": JOIN})
        await alice.send(body(**{"from": {"id": "local.bob", "name": "bob"}}))
        await alice.send(body(args={**JOIN, "channel": 7}))
        await until(lambda: len(alice.answers) == 11)
        codes = [answer["error"]["code"] for answer in alice.answers]
        assert codes == ["bad-request"] * 7 + ["unsupported-version"] * 2 + ["sender-mismatch", "bad-request"]
        assert all(answer["error"]["outcome"] == "not-executed" for answer in alice.answers)
        assert [answer["id"] for answer in alice.answers] == ["invalid"] * 7 + ["r1", "invalid", "r1", "r1"]

        for cast in (body(replyExpected=False, args={}), body(replyExpected=False, v=9), body(replyExpected=False)):
            await alice.send(cast)
        await until(lambda: len(served.called) == 1)
        victim = f"_INBOX_{'x' * 20}.1"
        await alice.send(body(), reply=victim, headers={"X-Foo": "1"})
        await alice.send(body(), "inst")
        await alice.send(body(), "all")
        await until(lambda: len(alice.answers) == 14)
        assert [answer["ok"] for answer in alice.answers[11:]] == [True] * 3
        assert len(served.called) == 4
        assert {called.caller.principal.dot for called in served.called} == {"local.alice"}


@pytest.mark.req("C13.2-14", "C13.2-45")
async def test_every_instance_hears_the_rail_of_all_and_one_alone_its_own(tmp_path: Path) -> None:
    async with (
        room(tmp_path) as here,
        here.instance() as one,
        here.instance(instance=OTHER) as other,
        foreign(here) as alice,
    ):
        await alice.send(body(), "all")
        await until(lambda: len(alice.answers) == 2)
        assert (len(one.called), len(other.called)) == (1, 1)
        await alice.send(body(), "inst")
        await until(lambda: len(alice.answers) == 3)
        assert (len(one.called), len(other.called)) == (2, 1)


@pytest.mark.req("C13.3-50", "C13.3-47")
async def test_a_call_under_way_when_the_broker_dies_has_an_unknown_outcome_at_once(tmp_path: Path) -> None:
    begun = asyncio.Event()

    async def waits(called: Call) -> Any:
        if begun.is_set():
            return {"durable": True}
        begun.set()
        return await asyncio.Event().wait()

    async with (
        room(tmp_path) as here,
        here.instance({"durable-join": waits}) as served,
        here.caller() as (caller, _),
    ):
        call = asyncio.create_task(caller.call(DELIVERY_ENDPOINT, "durable-join", dict(JOIN), seconds=60))
        await soon(begun.wait())
        here.broker.kill()
        with pytest.raises(CallFailed) as error:
            await soon(call)
        assert (error.value.code, error.value.outcome) == (Code.UNAVAILABLE, Outcome.UNKNOWN)
        await until(lambda: not served.server.serving)
        with pytest.raises(CallFailed) as error:
            await soon(caller.call(DELIVERY_ENDPOINT, "durable-join", dict(JOIN), seconds=0.05))
        assert (error.value.code, error.value.outcome) == (Code.DEADLINE_EXCEEDED, Outcome.NOT_EXECUTED)
        here.broker.start()
        await until(lambda: served.server.serving)
        assert await soon(caller.call(DELIVERY_ENDPOINT, "durable-join", dict(JOIN))) == {"durable": True}


async def test_a_rail_that_the_broker_takes_away_is_tried_again(tmp_path: Path) -> None:
    """The first login after the start has no grant for the rails, the next one has them again."""
    async with room(tmp_path) as here:
        key, metrics, log = new_user(os.urandom), Metrics(), io.StringIO()
        full = Holder(SPACE, Lifecycle(Principal("local", "dd"), uid_of("dd")), key.public, Form.MEDIATED)
        full = replace(full, service=Service(INSTANCE, 1, COMMANDS))
        started, later, lost = False, 0, metrics.gauge("endpoint_rails_lost")

        async def mint() -> Credentials:
            nonlocal later
            later += started
            holder = replace(full, service=None) if later == 1 else full
            token = here.space.trust.issue(Profile.DELIVERY, holder, key, clock(), 300)
            # Renewed at once until the rails are back.
            return Credentials(format_creds(token, key), clock() + (300 if later > 1 else 2))

        async def join(called: Call) -> Any:
            return {"durable": True}

        async with await Connection.open([here.broker.url], mint, policy=QUICK) as connection, here.caller() as one:
            server = EndpointServer(
                connection,
                SPACE,
                DELIVERY_ENDPOINT,
                INSTANCE,
                1,
                {"durable-join": join},
                DELIVERY,
                metrics=metrics,
                log=Log(log),
                again=0.05,
            )
            await server.start()
            started = True
            await until(lambda: lost._value.get() == 6)
            assert not server.serving
            await until(lambda: server.serving)
            assert lost._value.get() == 0
            assert later >= 2
            assert await soon(one[0].call(DELIVERY_ENDPOINT, "durable-join", dict(JOIN))) == {"durable": True}
            await server.close()
            assert {"endpoint_rail_lost", "endpoint_rail_regained"} <= {
                json.loads(line)["event"] for line in log.getvalue().splitlines()
            }
