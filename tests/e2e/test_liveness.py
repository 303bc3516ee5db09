"""Probes of the two planes at a real broker, with the credentials that the matrix gives both sides (C6.1)."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from nats.aio.msg import Msg

from sidecar.ops.logging import Log
from sidecar.ops.metrics import Metrics
from sidecar.rails.connection import Connection
from sidecar.rails.messaging.liveness import Liveness, Verdict, Why, probe
from sidecar.rails.names import InvalidName, headers, subjects
from sidecar.rails.names.principals import Principal
from sidecar.rails.names.tokens import PLANES
from sidecar.rails.planes.liveness import LivenessResponder, manager_responder
from sidecar.rails.space.claims import Access, Permissions
from sidecar.rails.space.grants import permissions
from sidecar.rails.space.holder import Form, Profile
from tests.e2e.endpoints import Room, room, soon, until
from tests.e2e.space_broker import EVENT_SECONDS
from tests.e2e.space_members import SPACE

pytestmark = pytest.mark.asyncio(loop_scope="module")
ALICE = Principal("local", "alice")
REQUEST = subjects.LIVE.build(space=SPACE, plane="delivery", owner="local", actor="alice")


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=list(Form))
async def here(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> AsyncIterator[Room]:
    async with room(tmp_path_factory.mktemp("liveness"), request.param) as made:
        yield made


class Plane:
    """The delivery plane's responder and what it says."""

    def __init__(self) -> None:
        self.verdict: str | Exception = Verdict.BOUND
        self.asked = 0
        self.metrics, self.log = Metrics(), io.StringIO()

    async def judge(self) -> str:
        self.asked += 1
        if isinstance(self.verdict, Exception):
            raise self.verdict
        return self.verdict


@contextlib.asynccontextmanager
async def plane(here: Room, actor: str = "daemon") -> AsyncIterator[Plane]:
    made = Plane()
    async with here.dial(Profile.DELIVERY, actor) as (connection, _):
        responder = LivenessResponder(
            connection, SPACE, "delivery", made.judge, metrics=made.metrics, log=Log(made.log), again=0.05
        )
        await responder.start()
        try:
            yield made
        finally:
            await responder.close()


async def asked(connection: Connection, name: str = "delivery", **more: Any) -> Liveness:
    found: Liveness = await soon(probe(connection, SPACE, ALICE, name, **more))
    return found


@pytest.mark.req("C6.1-01", "C6.1-06", "C6.1-10", "C6.1-15", "C6.1-16", "C6.1-18", "C6.1-21")
async def test_a_plain_agent_is_told_what_the_plane_says_of_itself(here: Room) -> None:
    metrics = Metrics()
    async with plane(here) as made, here.dial(Profile.AGENT, "alice") as (alice, _):
        instances = set()
        for word in Verdict:
            made.verdict = word
            found = await asked(alice, metrics=metrics)
            assert (found.verdict, found.why) == (word, Why.ANSWERED)
            instances.add(found.instance)
        assert len(instances) == 1
        for odd in (RuntimeError("the bucket"), "nonsense"):
            made.verdict = odd
            assert (await asked(alice, metrics=metrics)).verdict is Verdict.UNKNOWN
        assert metrics.totals("liveness_probes")[("delivery", "unknown")] == 3
        assert made.metrics.totals("liveness_answers")[("delivery", "unknown")] == 3
        names = {"space": SPACE, "owner": "local", "actor": "alice", "plane": "delivery"}
        reply = subjects.LIVE_REPLY.build(**names, nonce="n" * 22)
        answers = await alice.subscribe(reply)
        await alice.publish(subjects.LIVE.build(**names), reply=reply)
        async with asyncio.timeout(EVENT_SECONDS):
            assert set(json.loads((await answers.next()).data)) == {"plane", "responder", "instance"}
        await answers.close()
        manager = await asked(alice, "manager")
        assert (manager.verdict, manager.why, manager.instance) == (Verdict.UNBOUND, Why.NOBODY, None)


@pytest.mark.req("C6.1-02")
async def test_no_other_plane_is_asked(here: Room) -> None:
    async with here.dial(Profile.AGENT, "alice") as (alice, _):
        for name in ("auth", "registry", "*", "", "Delivery"):
            with pytest.raises(InvalidName):
                await asked(alice, name)


@pytest.mark.req("C6.1-03", "C6.1-05", "C6.1-06", "C6.1-18", "C6.1-19", "C6.1-11", "C6.1-25", "C6.1-20", "C6.1-21")
@pytest.mark.parametrize(
    ("answer", "more", "why"),
    [
        (None, {}, Why.TIMEOUT),
        (b"", {"headers": {headers.STATUS: "404"}}, Why.UNREADABLE),
        (b"[]", {}, Why.UNREADABLE),
        ({"plane": "manager", "responder": "bound"}, {}, Why.UNREADABLE),
        ({"plane": "delivery", "responder": "bound", "instance": ""}, {}, Why.UNREADABLE),
        ({"plane": "delivery", "responder": "bound"}, {"headers": {headers.STREAM: "x"}}, Why.TIMEOUT),
    ],
)
async def test_what_is_no_answer_is_unknown(here: Room, answer: Any, more: dict[str, Any], why: Why) -> None:
    requests: list[Msg] = []
    async with (
        here.space.member(Profile.DELIVERY, "foreign") as (user, _),
        here.dial(Profile.AGENT, "alice") as (alice, _),
    ):

        async def handle(message: Msg) -> None:
            requests.append(message)
            if answer is not None:
                data = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
                await user.client.publish(message.reply, data, **more)

        await user.client.subscribe(
            subjects.LIVE.filter(space=SPACE, plane="delivery"),
            queue=subjects.LIVE_QUEUE.build(plane="delivery"),
            cb=handle,
        )
        assert not await user.violations()
        seconds = 0.3 if why is Why.TIMEOUT else 5.0
        for _ in range(2):
            found = await asked(alice, seconds=seconds)
            assert (found.verdict, found.why, found.instance) == (Verdict.UNKNOWN, why, None)
        assert not await user.violations()
        assert [(one.subject, one.data) for one in requests] == [(REQUEST, b"")] * 2
        nonces = [subjects.LIVE_REPLY.parse(one.reply)["nonce"] for one in requests]
        assert nonces[0] != nonces[1]


@pytest.mark.req("C6.1-18", "C6.1-19")
async def test_what_the_broker_refuses_is_unknown(here: Room) -> None:
    async with here.dial(Profile.AGENT, "alice") as (alice, _), here.dial(Profile.AGENT, "bob") as (bob, _):
        found = await asked(bob)  # under the principal of another
        assert (found.verdict, found.why) == (Verdict.UNKNOWN, Why.DENIED)
        await alice.close()
        found = await asked(alice)
        assert (found.verdict, found.why) == (Verdict.UNKNOWN, Why.DISCONNECTED)


@pytest.mark.req("C6.1-07", "C6.1-08", "C6.1-09")
async def test_a_probe_with_a_strange_reply_target_is_dropped_and_the_next_one_answered(here: Room) -> None:
    async with plane(here) as made, here.space.member(Profile.AGENT, "alice") as (user, _):
        inbox = user.client.new_inbox()
        heard = await user.client.subscribe(inbox)
        deeper = await user.client.subscribe(f"{REQUEST}.reply.>")
        good = f"{REQUEST}.reply.abc"
        bob = subjects.LIVE_REPLY.build(space=SPACE, plane="delivery", owner="local", actor="bob", nonce="abc")
        for reply in ("", inbox, REQUEST, bob, f"{good}.more", good.replace("delivery", "manager")):
            await user.client.publish(REQUEST, b"", reply=reply)
        await user.client.publish(REQUEST, b"", reply=good, headers={headers.SUBJECT: "x"})
        await user.client.publish(REQUEST, b"\xff any body", reply=good)
        answer = json.loads((await deeper.next_msg(10)).data)
        assert set(answer) == {"plane", "responder", "instance"}
        assert made.metrics.totals("liveness_dropped") == {("delivery",): 7}
        assert (deeper.pending_msgs, heard.pending_msgs, made.asked) == (0, 0, 1)
        assert "liveness_probe_dropped" in made.log.getvalue()


@pytest.mark.req("C6.1-12", "C6.1-13")
async def test_one_responder_answers_each_probe_and_each_binding_has_its_own_name(here: Room) -> None:
    async with here.dial(Profile.AGENT, "alice") as (alice, _):
        async with plane(here, "one") as one, plane(here, "two") as two:
            two.verdict = Verdict.STALE
            found = [await asked(alice) for _ in range(24)]
            assert one.asked + two.asked == 24
            names = {(answer.verdict, answer.instance) for answer in found}
            assert len(names) == 2
            assert len({instance for _, instance in names}) == 2
        async with plane(here, "one"):
            again = (await asked(alice)).instance
        assert again not in {instance for _, instance in names}
        for secret in ("one", "two", "local", SPACE):
            assert secret not in (again or "")


@pytest.mark.req("C6.1-22", "C6.1-23", "C6.1-24", "C9-13")
async def test_the_broker_holds_both_sides_to_their_subjects(here: Room) -> None:
    served = {name: subjects.LIVE.filter(space=SPACE, plane=name) for name in PLANES}
    queue = subjects.LIVE_QUEUE.build(plane="delivery")
    async with here.space.member(Profile.AGENT, "alice") as (user, _):
        for name in PLANES:
            own = subjects.LIVE.build(space=SPACE, plane=name, owner="local", actor="alice")
            assert await user.may_publish(own)
            assert await user.may_subscribe(f"{own}.>")
            assert not await user.may_subscribe(served[name])
            assert not await user.may_subscribe(served[name], subjects.LIVE_QUEUE.build(plane=name))
            foreign = subjects.LIVE.build(space=SPACE, plane=name, owner="local", actor="bob")
            assert not await user.may_publish(foreign)
            assert not await user.may_subscribe(f"{foreign}.>")
            assert not await user.may_publish(f"{own}.reply.abc")
    async with here.space.member(Profile.DELIVERY, "daemon") as (user, holder):
        assert await user.may_subscribe(served["delivery"], queue)
        assert not await user.may_subscribe(served["delivery"])
        assert not await user.may_subscribe(served["manager"], subjects.LIVE_QUEUE.build(plane="manager"))
        assert await user.may_publish(f"{REQUEST}.reply.abc")
        assert not await user.may_publish(REQUEST)
        assert not await user.may_publish(f"{REQUEST}.reply.abc".replace("delivery", "manager"))
        rows = [row for row in permissions(Profile.DELIVERY, holder).publish.allow if ".live." in row]
        assert rows == [subjects.LIVE_REPLY.filter(space=SPACE, plane="delivery")]


@pytest.mark.req("C6.1-17", "C6.1-12")
async def test_a_responder_binds_anew_behind_a_lost_broker(tmp_path: Path) -> None:
    async with room(tmp_path) as here, plane(here), here.dial(Profile.AGENT, "alice") as (alice, _):
        before = await asked(alice)
        here.broker.kill()
        lost = await asked(alice, seconds=0.1)
        assert (lost.verdict, lost.instance) == (Verdict.UNKNOWN, None)
        here.broker.start()
        async with asyncio.timeout(20):
            while (after := await asked(alice, seconds=0.5)).verdict is not Verdict.BOUND:
                pass
        assert after.instance
        assert after.instance != before.instance


@contextlib.asynccontextmanager
async def supervisor(here: Room) -> AsyncIterator[Callable[[], Awaitable[Connection]]]:
    """Opens connections that hold the manager plane's pair, and nothing else."""
    rows = subjects.LIVE.filter(space=SPACE, plane="manager"), subjects.LIVE_QUEUE.build(plane="manager")
    replies = subjects.LIVE_REPLY.filter(space=SPACE, plane="manager")
    pair = Permissions(Access((replies,)), Access((" ".join(rows),)))
    async with contextlib.AsyncExitStack() as stack:

        async def open_one() -> Connection:
            return await stack.enter_async_context(here.granted(pair))

        yield open_one


@pytest.mark.req("C6.1-14")
async def test_a_manager_is_bound_while_its_service_connection_serves(here: Room) -> None:
    async with (
        supervisor(here) as dial,
        here.instance() as service,
        here.dial(Profile.AGENT, "alice") as (alice, _),
    ):
        responder = manager_responder(
            await dial(), SPACE, lambda: service.server.serving, metrics=Metrics(), log=Log(io.StringIO())
        )
        await responder.start()
        assert (await asked(alice, "manager")).verdict is Verdict.BOUND
        link = service.server._connection._link
        assert link is not None
        await link.close()
        await until(lambda: not service.server._connection.linked or service.server._connection._link is not link)
        await until(lambda: service.server.serving)
        assert (await asked(alice, "manager")).verdict is Verdict.BOUND
        await service.server._connection.close()
        assert (await asked(alice, "manager")).verdict is Verdict.UNBOUND
        await responder.close()
