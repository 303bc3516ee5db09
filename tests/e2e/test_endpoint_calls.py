"""Calls of the delivery endpoint at a real broker: what a caller is told, and what a server answers."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
import pytest_asyncio
from nats.aio.msg import Msg

from sidecar.base.strictjson import JsonValue
from sidecar.rails.connection import PermissionViolation
from sidecar.rails.endpoint.call import Call
from sidecar.rails.endpoint.caller import Caller
from sidecar.rails.endpoint.codes import CallFailed, CallRefused, Code, Outcome, Refusal
from sidecar.rails.endpoint.contracts import DELIVERY_ENDPOINT
from sidecar.rails.names import endpoint, headers
from sidecar.rails.names.endpoint import UNTARGETED
from sidecar.rails.space.claims import Access, Permissions
from tests.e2e.endpoints import OTHER, Room, room, soon, until
from tests.e2e.space_members import INSTANCE, SPACE

pytestmark = pytest.mark.asyncio(loop_scope="module")
JOIN: dict[str, Any] = {"channel": "general", "joinCursor": 7}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def here(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Room]:
    async with room(tmp_path_factory.mktemp("endpoint")) as made:
        yield made


async def join(caller: Caller, **more: Any) -> Any:
    return await soon(caller.call(DELIVERY_ENDPOINT, "durable-join", dict(JOIN), **more))


async def failed(caller: Caller, command: str = "durable-join", args: Any = None, **more: Any) -> CallFailed:
    with pytest.raises(CallFailed) as error:
        await soon(caller.call(DELIVERY_ENDPOINT, command, dict(JOIN) if args is None else args, **more))
    return error.value


@pytest.mark.req("C13.2-14", "C13.2-15", "C13.2-16", "C13.2-45", "C13.2-51", "C13.3-17", "C13.3-34")
async def test_each_call_has_one_answer_of_one_instance(here: Room) -> None:
    async with (
        here.instance() as one,
        here.instance(instance=OTHER) as other,
        here.caller() as (alice, metrics),
        here.caller("bob") as (bob, _),
    ):
        answers = await asyncio.gather(*(join(caller) for caller in (alice, bob) for _ in range(40)))
        assert all(answer["durable"] for answer in answers)
        assert len(one.called) + len(other.called) == 80
        assert one.called
        assert other.called
        assert {called.caller.principal.dot for called in one.called} == {"local.alice", "local.bob"}
        assert {called.id for called in one.called}.isdisjoint({called.id for called in other.called})
        assert metrics.totals("endpoint_calls") == {("call", "ok"): 40}
        assert metrics.totals("endpoint_replies_dropped") == {}
        assert one.server.serving
        assert other.server.serving


@pytest.mark.req("C13.2-15")
async def test_no_credential_subscribes_the_class_rail_plainly(here: Room) -> None:
    subject = endpoint.REQUESTS["one", UNTARGETED, False].subtree(
        space=SPACE, endpoint=DELIVERY_ENDPOINT, command="durable-join"
    )
    async with here.responder() as (user, _):
        assert not await user.may_subscribe(subject)
        assert not await user.may_subscribe(subject, "another")
        assert await user.may_subscribe(subject, DELIVERY_ENDPOINT)


@pytest.mark.req("C13.3-40", "C13.3-41", "C13.3-42", "C13.3-44", "C13.3-36", "C13.3-37", "C13.3-39", "C13.3-51")
async def test_a_caller_is_told_what_is_known_of_the_effect(here: Room) -> None:
    async def refuses(called: Call) -> JsonValue:
        raise Refusal("com.acme.full", "no room", Outcome.NOT_EXECUTED, ({"kind": "com.acme.room", "left": 0},))

    async def crashes(called: Call) -> JsonValue:
        raise ZeroDivisionError("secret")

    async def wrong(called: Call) -> JsonValue:
        return {"takes": 1}

    async def hangs(called: Call) -> JsonValue:
        await asyncio.Event().wait()
        return None

    handlers = {
        "durable-join": refuses,
        "list-memberships": crashes,
        "anycast-takes": wrong,
        "anycast-status": hangs,
    }
    async with here.instance(handlers, longest=0.05) as served, here.caller() as (caller, _):
        with pytest.raises(CallRefused) as refused:
            await join(caller)
        assert (refused.value.code, refused.value.outcome) == ("com.acme.full", Outcome.NOT_EXECUTED)
        assert refused.value.details == ({"kind": "com.acme.room", "left": 0},)
        assert (refused.value.instance, refused.value.epoch) == (INSTANCE, 1)
        for command, args, code, outcome in (
            ("list-memberships", None, Code.INTERNAL, Outcome.UNKNOWN),
            ("anycast-takes", None, Code.INTERNAL, Outcome.EXECUTED),
            ("anycast-status", {"seq": 1}, Code.DEADLINE_EXCEEDED, Outcome.UNKNOWN),
        ):
            with pytest.raises(CallRefused) as refused:
                await soon(caller.call(DELIVERY_ENDPOINT, command, args))
            assert (refused.value.code, refused.value.outcome) == (code, outcome)
            assert "secret" not in refused.value.message
        assert served.metrics.totals("endpoint_handler_failures") == {("raised",): 1, ("result",): 1, ("overrun",): 1}
        assert "secret" not in served.log.getvalue()


@pytest.mark.req("C13.3-47", "C13.3-49", "C13.3-30", "C13.3-12", "C13.2-18", "C13.3-46")
async def test_a_call_that_reached_nobody_was_not_executed(here: Room) -> None:
    async with here.caller() as (caller, metrics):
        nobody = await failed(caller)
        assert (nobody.code, nobody.outcome) == (Code.UNAVAILABLE, Outcome.NOT_EXECUTED)
        assert not isinstance(nobody, CallRefused)
        denied = await failed(caller, "lifecycle-memberships", {"lifecycle": "local.x.y"})
        assert (denied.code, denied.outcome) == (Code.PERMISSION_DENIED, Outcome.NOT_EXECUTED)
        waits: list[dict[str, Any]] = [{"seconds": one} for one in (0.0, 1e9, math.inf, math.nan)]
        for more in ({"args": {"channel": "general"}}, {"args": {**JOIN, "x": 1}}, *waits):
            local = await failed(caller, **more)
            assert (local.code, local.outcome) == (Code.BAD_REQUEST, Outcome.NOT_EXECUTED)
        unknown = await failed(caller, "no-such-command")
        assert (unknown.code, unknown.outcome) == (Code.UNIMPLEMENTED, Outcome.NOT_EXECUTED)
        assert metrics.totals("endpoint_calls")[("call", "bad-request")] == 6
    assert (await failed(caller)).outcome is Outcome.NOT_EXECUTED  # a closed caller sends nothing
    async with here.responder() as (user, _), here.caller(entropy=bytes) as (same, _):
        await user.client.subscribe(one_rail(), queue=DELIVERY_ENDPOINT)
        assert not await user.violations()
        first = asyncio.create_task(failed(same, seconds=0.3))
        await asyncio.sleep(0)
        second = await failed(same)
        assert (second.code, second.outcome) == (Code.INTERNAL, Outcome.NOT_EXECUTED)
        assert (await first).outcome is Outcome.UNKNOWN


def one_rail() -> str:
    names = {"space": SPACE, "endpoint": DELIVERY_ENDPOINT, "command": "durable-join"}
    return endpoint.REQUESTS["one", UNTARGETED, False].subtree(**names)


@contextlib.asynccontextmanager
async def answering(here: Room, answer: Callable[[Any, Msg, str, str], Awaitable[None]]) -> AsyncIterator[None]:
    """A foreign instance that answers each durable-join in its own way."""
    async with here.responder() as (user, _):

        async def handle(message: Msg) -> None:
            reply = endpoint.parse_request(message.subject).reply(INSTANCE, 1)
            await answer(user.client, message, reply, json.loads(message.data)["id"])

        await user.client.subscribe(one_rail(), queue=DELIVERY_ENDPOINT, cb=handle)
        assert not await user.violations()
        yield
        assert not await user.violations()


@pytest.mark.req("C13.3-43", "C13.3-48", "C13.3-49", "C13.3-50", "C13.3-35", "C13.3-34", "C13.3-58", "C13.2-49")
@pytest.mark.parametrize(
    ("body", "more", "code", "outcome"),
    [
        (None, {}, Code.DEADLINE_EXCEEDED, Outcome.UNKNOWN),
        (b"", {"headers": {headers.STATUS: headers.NO_RESPONDERS}}, Code.INTERNAL, Outcome.UNKNOWN),
        (b"not json", {}, Code.INTERNAL, Outcome.UNKNOWN),
        ({"ok": True, "id": "other", "data": {"durable": True}}, {}, Code.INTERNAL, Outcome.EXECUTED),
        ({"ok": True, "data": {"durable": 1}}, {}, Code.INTERNAL, Outcome.EXECUTED),
        ({"ok": True, "data": {"durable": True}, "error": {}}, {}, Code.INTERNAL, Outcome.UNKNOWN),
        (
            {"ok": False, "id": "other", "error": {"code": "conflict", "message": "", "outcome": "not-executed"}},
            {},
            Code.INTERNAL,
            Outcome.NOT_EXECUTED,
        ),
        ({"ok": False, "error": {"code": "foo", "message": ""}}, {}, Code.INTERNAL, Outcome.UNKNOWN),
    ],
)
async def test_a_reply_that_is_none_is_told_from_a_refusal(
    here: Room, body: Any, more: dict[str, Any], code: Code, outcome: Outcome
) -> None:
    async def answer(client: Any, message: Msg, reply: str, identity: str) -> None:
        if body is not None:
            data = body if isinstance(body, bytes) else json.dumps({"v": 1, "id": identity, **body}).encode()
            await client.publish(reply, data, **more)

    async with answering(here, answer), here.caller() as (caller, _):
        error = await failed(caller, seconds=0.3 if body is None else 10)
        assert (error.code, error.outcome) == (code, outcome)


@pytest.mark.req("C13.3-43", "C13.3-48", "C13.3-38")
async def test_a_refusal_keeps_its_outcome_and_a_missing_one_is_unknown(here: Room) -> None:
    said: dict[str, Any] = {"code": "conflict", "message": "lost"}

    async def answer(client: Any, message: Msg, reply: str, identity: str) -> None:
        await client.publish(
            reply, json.dumps({"v": 1, "id": identity, "ok": False, "error": said, "receipt": "r"}).encode()
        )

    async with answering(here, answer), here.caller() as (caller, _):
        for outcome in (None, *Outcome):
            said.pop("outcome", None)
            said |= {} if outcome is None else {"outcome": outcome.value}
            with pytest.raises(CallRefused) as refused:
                await join(caller)
            assert refused.value.outcome is (outcome or Outcome.UNKNOWN)


@pytest.mark.req("C13.2-49", "C13.3-10", "C13.2-17")
async def test_what_is_no_reply_to_a_call_is_dropped(here: Room) -> None:
    requests: list[Msg] = []

    async def answer(client: Any, message: Msg, reply: str, identity: str) -> None:
        requests.append(message)
        good = json.dumps({"v": 1, "id": identity, "ok": True, "data": {"durable": True}}).encode()
        await client.publish(reply, good, headers=dict.fromkeys((headers.STREAM, headers.SUBJECT), "1"))
        await client.publish(reply[:-1] + ("0" if reply[-1] != "0" else "1"), good)
        await client.publish(reply, good)
        await client.publish(reply, good)

    async with answering(here, answer), here.caller() as (caller, metrics):
        assert await join(caller) == {"durable": True}
        dropped = {("redirected",): 1, ("unasked",): 2}
        await until(lambda: metrics.totals("endpoint_replies_dropped") == dropped)
        await join(caller)
    assert [message.headers for message in requests] == [None, None]
    nonces = [endpoint.parse_request(message.subject).values["nonce"] for message in requests]
    assert nonces[0] != nonces[1]
    assert {len(bytes.fromhex(nonce)) for nonce in nonces} == {16}


@pytest.mark.req("C13.3-49", "C13.2-49")
async def test_not_even_a_peer_that_may_publish_every_reply_answers_for_another(here: Room) -> None:
    """With grants that nothing mints: replies on every subject, words on the sentinel, an epoch that is none."""
    replies = f"{endpoint.ENDPOINT_RAIL.build(space=SPACE)}.reply.>"
    grants = Permissions(Access((replies,)), Access((f"{one_rail()} {DELIVERY_ENDPOINT}",)))
    async with here.granted(grants) as peer, here.caller() as (caller, metrics):
        rail = await peer.subscribe(one_rail(), DELIVERY_ENDPOINT)
        call = asyncio.create_task(join(caller))
        asked = await soon(rail.next())
        reply = endpoint.parse_request(asked.subject).reply(INSTANCE, 1)
        good = json.dumps({"v": 1, "id": json.loads(asked.data)["id"], "ok": True, "data": {"durable": True}}).encode()
        nobody = {headers.STATUS: headers.NO_RESPONDERS}
        stored = {headers.SUBJECT: asked.subject, headers.SEQUENCE: "7", headers.STREAM: "x"}
        for subject, data, found in (
            (reply.replace(f".{DELIVERY_ENDPOINT}.", ".manager."), good, None),
            (reply.replace(f".{INSTANCE}.1.", f".{INSTANCE}.01."), good, None),
            (reply.replace(INSTANCE, "short"), good, None),
            (asked.reply, good, None),
            (asked.reply, b"", nobody | stored),
            (asked.reply, b"", {headers.STATUS: headers.NO_RESPONDERS, headers.SUBJECT: "another"}),
            (reply, good, None),
        ):
            await peer.publish(subject, data, headers=found)
        assert await call == {"durable": True}
        dropped = {("elsewhere",): 1, ("subject",): 3, ("redirected",): 2}
        assert metrics.totals("endpoint_replies_dropped") == dropped


async def test_an_answer_that_is_too_large_becomes_a_refusal(here: Room) -> None:
    async def large(called: Call) -> JsonValue:
        frame: dict[str, Any] = {"subject": "x", "data": "A" * (1 << 20), "headers": {}}
        frame |= dict.fromkeys(("sequence", "delivered", "pending", "timeMs"), 1)
        return {"frames": [frame]}

    async with here.instance({"fetch": large}) as served, here.caller() as (caller, _):
        with pytest.raises(CallRefused) as refused:
            await soon(caller.call(DELIVERY_ENDPOINT, "fetch", {"source": "dm", "batch": 1, "waitMs": 0}))
        assert (refused.value.code, refused.value.outcome) == (Code.RESOURCE_EXHAUSTED, Outcome.EXECUTED)
        assert served.metrics.totals("endpoint_answers_lost") == {("too_large",): 1}


async def test_one_caller_does_not_take_every_place(here: Room) -> None:
    gate = asyncio.Event()

    async def waits(called: Call) -> JsonValue:
        await gate.wait()
        return {"durable": True}

    async def polls(called: Call) -> JsonValue:
        return {"frames": []}

    handlers = {"durable-join": waits, "fetch": polls}
    async with (
        here.instance(handlers, at_once=3, per_caller=2) as served,
        here.caller() as (alice, _),
        here.caller("bob") as (bob, _),
    ):
        held = [asyncio.create_task(join(alice)) for _ in range(2)]
        gauge = served.metrics.gauge("endpoint_handlers", "working")
        await until(lambda: gauge._value.get() == 2)
        with pytest.raises(CallRefused) as refused:
            await join(alice)
        assert (refused.value.code, refused.value.outcome) == (Code.RESOURCE_EXHAUSTED, Outcome.NOT_EXECUTED)
        fetched = await soon(alice.call(DELIVERY_ENDPOINT, "fetch", {"source": "dm", "batch": 1, "waitMs": 0}))
        assert fetched == {"frames": []}  # those that wait have places of their own
        held.append(asyncio.create_task(join(bob)))
        await until(lambda: gauge._value.get() == 3)
        with pytest.raises(CallRefused):
            await join(bob)
        gate.set()
        assert await asyncio.gather(*held) == [{"durable": True}] * 3
        assert await join(alice) == {"durable": True}


async def test_a_server_that_closes_waits_for_its_handlers_and_tells_the_rest(here: Room) -> None:
    begun: list[str] = []
    gate = asyncio.Event()

    async def waits(called: Call) -> JsonValue:
        begun.append(called.id)
        await (gate if called.args["channel"] == "general" else asyncio.Event()).wait()  # type: ignore[index, call-overload]
        return {"durable": True}

    async with here.instance({"durable-join": waits}) as served, here.caller() as (caller, _):
        short = asyncio.create_task(join(caller))
        long = asyncio.create_task(caller.call(DELIVERY_ENDPOINT, "durable-join", {**JOIN, "channel": "never"}))
        await until(lambda: len(begun) == 2)
        closing = asyncio.create_task(served.server.close(0.2))
        gate.set()
        await soon(closing)
        assert await short == {"durable": True}
        with pytest.raises(CallRefused) as refused:
            await long
        assert (refused.value.code, refused.value.outcome) == (Code.UNAVAILABLE, Outcome.UNKNOWN)
        assert not served.server.serving
        assert (await failed(caller)).code == Code.UNAVAILABLE


@pytest.mark.req("C13.2-52", "C13.3-50")
async def test_a_caller_that_closes_ends_its_calls_with_an_unknown_outcome(here: Room) -> None:
    async with here.responder() as (user, _), here.caller() as (caller, _):
        seen = await user.client.subscribe(one_rail(), queue=DELIVERY_ENDPOINT)
        assert not await user.violations()
        call = asyncio.create_task(failed(caller))
        await seen.next_msg(10)
        await caller.close()
        error = await call
        assert (error.code, error.outcome) == (Code.UNAVAILABLE, Outcome.UNKNOWN)


async def test_a_server_needs_a_contract_for_each_handler_and_the_grants_for_each_rail(here: Room) -> None:
    async def handler(called: Call) -> JsonValue:
        return None

    with pytest.raises(ValueError, match="no contract for dig"):
        async with here.instance({"dig": handler}):
            pass
    with pytest.raises(PermissionViolation):
        async with here.instance({"durable-join": handler, "fetch": handler}, commands=("durable-join",)):
            pass
