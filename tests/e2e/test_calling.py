"""Calls to responders that speak raw envelopes: what is sent, what is believed, what is done again."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from sidecar.rails.endpoint.caller import Bind, Caller, Probe, To
from sidecar.rails.endpoint.codes import CallError, CallFailed, CallRefused, Code, Outcome
from sidecar.rails.endpoint.contracts import Contract
from sidecar.rails.endpoint.registry_contracts import REGISTRY
from sidecar.rails.endpoint.schemas import VOID_SCHEMA
from sidecar.rails.names import headers
from tests.e2e.calling import ECHO, GENERATION, ONE, TEXT, TWO, Heard, calling, raw, registry
from tests.e2e.endpoints import Room, room, soon, until
from tests.e2e.space_members import SPACE, uid_of

pytestmark = pytest.mark.asyncio(loop_scope="module")
HI = {"text": "hi"}
KNOWN = {
    ECHO: {
        "echo": Contract(
            "echo", TEXT.shape, TEXT.shape, effect="read", input_digest=TEXT.closure, output_digest=TEXT.closure
        ),
        "put": Contract("put", TEXT.shape, TEXT.shape, input_digest=TEXT.closure, output_digest=TEXT.closure),
        "stop": Contract("stop", VOID_SCHEMA.shape, VOID_SCHEMA.shape, modes=("self", "owner", "exact")),
        "log": Contract("log", VOID_SCHEMA.shape, VOID_SCHEMA.shape, contract_class="journal"),
    },
    "registry": REGISTRY,
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def here(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Room]:
    async with room(tmp_path_factory.mktemp("calling")) as made:
        yield made


async def refused(caller: Caller, command: str = "put", args: Any = HI, **more: Any) -> CallError:
    with pytest.raises(CallError) as error:
        await soon(caller.call(ECHO, command, args, **{"seconds": 5.0, **more}))
    return error.value


@pytest.mark.req("C13.3-10", "C13.3-12", "C13.3-17", "C13.3-32", "C13.5-01", "C13.2-16", "C13.2-17", "C13.14-09")
async def test_a_call_is_one_request_with_everything_that_it_must_say(here: Room) -> None:
    async with raw(here) as one, calling(here, contracts=KNOWN) as (caller, _):
        got = await soon(caller.invoke(ECHO, "put", HI, id="mine-1", seconds=3.0))
        assert got == (HI, ONE, 1, "mine-1", None)
        parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00"
        await soon(caller.call(ECHO, "put", HI, instance=ONE, correlation={"traceparent": parent, "baggage": "k=v"}))
        first, second = one.heard
        body = dict(first.body)
        assert 0 < body.pop("deadlineMs") <= 3000
        trace = body.pop("correlation")["traceparent"]
        assert trace.startswith("00-")
        assert len(trace) == 55
        assert body == {
            "v": 1,
            "id": "mine-1",
            "op": {"endpoint": ECHO, "command": "put", "inputDigest": TEXT.closure, "outputDigest": TEXT.closure},
            "class": "ephemeral",
            "replyExpected": True,
            "from": {"id": "local.alice", "name": "alice"},
            "args": HI,
        }
        assert (first.asked.route, second.asked.route) == ("one", "inst")
        below = second.body["correlation"]
        assert below["baggage"] == "k=v"
        assert below["traceparent"][:36] == parent[:36]
        assert below["traceparent"] != parent
        assert second.body["deadlineMs"] > 14_000  # the default is fifteen seconds
        assert first.asked.values["nonce"] != second.asked.values["nonce"]
        for wrong in ("", "a.b"):
            none = await refused(caller, id=wrong)
            assert (none.code, none.outcome) == (Code.BAD_REQUEST, Outcome.NOT_EXECUTED)
        assert not first.message.headers


@pytest.mark.req("C13.2-25", "C13.2-28", "C13.5-01", "C13.3-49")
async def test_an_issued_caller_rides_the_versioned_rail_and_no_other(here: Room) -> None:
    async with raw(here) as one, calling(here, contracts=KNOWN, generation=GENERATION) as (caller, _):
        assert await soon(caller.call(ECHO, "put", HI)) == HI
        assert [heard.asked.values["generation"] for heard in one.heard] == [GENERATION]
        assert ".ep.v1." in one.heard[0].message.subject
    async with calling(here, contracts=KNOWN, generation=GENERATION) as (caller, _):
        gone = await refused(caller)
        assert (gone.code, gone.outcome) == (Code.UNAVAILABLE, Outcome.NOT_EXECUTED)


@pytest.mark.req("C13.5-02", "C13.4-04", "C13.5-03", "C13.3-47", "C13.5-06", "C13.5-27")
async def test_a_request_that_the_broker_refuses_or_that_nobody_hears_says_so_at_once(here: Room) -> None:
    mine = f"cotal.{SPACE}.ep.one.com_acme_echo.put.>"
    async with calling(here, publish=(mine,), contracts=KNOWN) as (caller, metrics):
        for work, subject in (
            (caller.call(ECHO, "echo", HI, seconds=600), "ep.one.com_acme_echo.echo.local.alice."),
            (caller.cast(ECHO, "echo", HI, seconds=600), "ep.one.com_acme_echo.echo.local.alice."),
            (caller.probe(ECHO, ONE, seconds=600), f"ep.inst.com_acme_echo.{ONE}.describe.local.alice."),
        ):
            with pytest.raises(CallFailed) as error:
                await soon(work)
            assert (error.value.code, error.value.outcome) == (Code.PERMISSION_DENIED, Outcome.NOT_EXECUTED)
            assert subject in error.value.message
        nobody = await refused(caller, seconds=600.0)
        assert (nobody.code, nobody.outcome) == (Code.UNAVAILABLE, Outcome.NOT_EXECUTED)
        assert (nobody.endpoint, nobody.command, len(nobody.id)) == (ECHO, "put", 32)
        assert metrics.totals("endpoint_calls") == {
            ("call", "permission-denied"): 1,
            ("cast", "permission-denied"): 1,
            ("probe", "permission-denied"): 1,
            ("call", "unavailable"): 1,
        }


@pytest.mark.req("C13.5-04", "C13.5-05", "C13.2-16", "C13.3-17")
async def test_a_cast_is_sent_and_never_read(here: Room) -> None:
    async with raw(here) as one, calling(here, contracts=KNOWN) as (caller, metrics):

        async def answers(heard: Heard) -> None:
            await heard.reply(heard.ok(HI))  # a responder that answers a cast is not heard

        one.answer = answers
        identity = await soon(caller.cast(ECHO, "put", HI, id="c-1"))
        await soon(caller.cast(ECHO, "stop", target=To("self")))
        await until(lambda: len(one.heard) == 2)
        assert identity == "c-1"
        body = one.heard[0].body
        assert (body["replyExpected"], body["id"], "deadlineMs" in body) == (False, "c-1", False)
        assert len(one.heard[0].asked.values["nonce"]) == 32
        assert one.heard[0].message.reply == ""
        assert one.heard[1].asked.mode == "self"
        assert "target" not in one.heard[1].body
        assert caller._desk.wire._subscription is None
        with pytest.raises(CallFailed) as error:
            await soon(caller.cast(ECHO, "log"))
        assert (error.value.code, error.value.outcome) == (Code.CLASS_MISMATCH, Outcome.NOT_EXECUTED)
        submitted = await refused(caller, "log", None)
        assert (submitted.code, submitted.outcome) == (Code.UNIMPLEMENTED, Outcome.NOT_EXECUTED)
        assert len(one.heard) == 2
        assert metrics.totals("endpoint_calls")[("cast", "ok")] == 2


@pytest.mark.req("C13.2-50", "C13.3-48", "C13.2-49")
async def test_a_reply_of_a_superseded_epoch_is_refused(here: Room) -> None:
    async with raw(here) as one, calling(here, contracts=KNOWN) as (caller, _):
        epochs = iter((7, 6, 7, 8))

        async def answers(heard: Heard) -> None:
            await heard.reply({**heard.ok(HI), "instanceId": TWO, "epoch": 99}, epoch=next(epochs))

        one.answer = answers
        assert (await soon(caller.invoke(ECHO, "put", HI)))[1:3] == (ONE, 7)
        stale = await refused(caller)
        assert (stale.code, stale.outcome, stale.id) == (Code.EXPIRED, Outcome.EXECUTED, one.heard[1].body["id"])
        assert (await soon(caller.invoke(ECHO, "put", HI)))[1:3] == (ONE, 7)
        assert (await soon(caller.invoke(ECHO, "put", HI)))[1:3] == (ONE, 8)


@pytest.mark.req("C13.2-50", "C13.3-49", "C13.3-05", "C13.2-52")
async def test_what_a_hostile_responder_sends_beside_the_reply_changes_nothing(here: Room) -> None:
    """Foreign nonces, another instance on its own rail, the broker's 503 forged on the reply subject, duplicates, late
    replies and frames that a read redirected."""
    async with raw(here) as one, calling(here, contracts=KNOWN) as (caller, metrics):

        async def answers(heard: Heard) -> None:
            reply = heard.asked.reply(ONE, 1)
            elsewhere = reply[: -len(heard.asked.values["nonce"])]
            send = one.connection.send
            await send(elsewhere + "n" * 32, json.dumps(heard.ok({"text": "other"})).encode())
            await heard.reply(heard.ok({"text": "forged"}), instance=TWO)
            await heard.reply(heard.ok({"text": "stored"}), headers={headers.STREAM: "X"})
            await heard.reply(heard.ok(HI))
            await heard.reply(heard.ok({"text": "again"}))

        one.answer = answers
        assert await soon(caller.call(ECHO, "put", HI, instance=ONE)) == HI
        await until(lambda: sum(metrics.totals("endpoint_replies_dropped").values()) == 4)
        assert metrics.totals("endpoint_replies_dropped") == {("unasked",): 2, ("elsewhere",): 1, ("redirected",): 1}

        async def forges(heard: Heard) -> None:
            await heard.reply(b"", headers={headers.STATUS: headers.NO_RESPONDERS})

        one.answer = forges
        bad = await refused(caller)
        assert (bad.code, bad.outcome) == (Code.INTERNAL, Outcome.UNKNOWN)

        late: list[Heard] = []
        one.answer = late.append
        silent = await refused(caller, seconds=0.1)
        assert (silent.code, silent.outcome) == (Code.DEADLINE_EXCEEDED, Outcome.UNKNOWN)
        await late[0].reply(late[0].ok(HI))
        await until(lambda: metrics.totals("endpoint_replies_dropped")[("unasked",)] == 3)


@pytest.mark.req("C13.7-13", "C13.7-14", "C13.8-39", "C13.14-12", "C13.3-51", "C13.7-11")
async def test_only_what_may_be_repeated_is(here: Room) -> None:
    async with raw(here) as one, calling(here, contracts=KNOWN, chance=lambda: 0.01) as (caller, metrics):
        one.answer = lambda heard: heard.no("unavailable", "unknown") if len(one.heard) < 3 else heard.ok(HI)
        write = await refused(caller, "put", repeat=True, id="same")
        assert (type(write), write.outcome, len(one.heard)) == (CallRefused, Outcome.UNKNOWN, 1)
        assert await soon(caller.call(ECHO, "echo", HI, repeat=True, id="again")) == HI
        assert [heard.body["id"] for heard in one.heard] == ["same", "again", "again"]
        assert len({heard.asked.values["nonce"] for heard in one.heard}) == 3
        one.heard.clear()
        one.answer = lambda heard: heard.no("resource-exhausted") if len(one.heard) < 4 else heard.ok(HI)
        assert await soon(caller.call(ECHO, "put", HI, repeat=True)) == HI
        assert len(one.heard) == 4
        one.heard.clear()
        assert (await refused(caller, "put")).outcome is Outcome.NOT_EXECUTED
        assert len(one.heard) == 1
        one.heard.clear()
        one.answer = lambda heard: None
        assert (await refused(caller, "put", repeat=True, seconds=0.2)).outcome is Outcome.UNKNOWN
        assert len(one.heard) == 1
        assert metrics.totals("endpoint_call_repeats") == {("read",): 1, ("not_executed",): 3}
    async with calling(here, contracts=KNOWN, chance=lambda: 0.01) as (caller, metrics):
        gone = await refused(caller, "put", repeat=True, seconds=0.3)
        assert (gone.code, gone.outcome) == (Code.UNAVAILABLE, Outcome.NOT_EXECUTED)
        assert metrics.totals("endpoint_call_repeats")[("not_executed",)] > 1


def bound_to(heard: Heard, instance: str, epoch: int) -> Any:
    """The refusal of an incarnation that is not the bound one; None if it is."""
    bind = heard.body.get("bind")
    if bind in (None, {"instanceId": instance, "epoch": epoch}):
        return None
    code = "expired" if bind["instanceId"] == instance else "failed-precondition"
    served = {"instanceId": instance, "epoch": epoch}
    detail = {"kind": headers.DETAIL_BIND_REFUSED, "endpoint": ECHO, "command": heard.command}
    return heard.no(code, "not-executed", {**detail, "boundTo": bind, "servedBy": served})


@pytest.mark.req("C13.3-26", "C13.3-25", "C13.2-56", "C13.2-57", "C13.2-55")
async def test_a_bind_that_the_caller_gives_is_sent_and_checked_and_never_repaired(here: Room) -> None:
    async with raw(here) as one, calling(here, contracts=KNOWN) as (caller, _):
        assert await soon(caller.call(ECHO, "put", HI, bind=Bind(ONE, 1))) == HI
        assert one.heard[0].body["bind"] == {"instanceId": ONE, "epoch": 1}
        wrong = await refused(caller, bind=Bind(TWO, 1), instance=ONE)
        assert (wrong.code, wrong.outcome) == (Code.BAD_REQUEST, Outcome.NOT_EXECUTED)
        foreign = await refused(caller, bind=Bind(TWO, 1))
        assert (type(foreign), foreign.code, foreign.outcome) == (
            CallFailed,
            Code.FAILED_PRECONDITION,
            Outcome.EXECUTED,
        )
        assert foreign.has(headers.DETAIL_UNBOUND_RESPONDER)
        one.answer = lambda heard: bound_to(heard, ONE, 1)
        fence = await refused(caller, bind=Bind(ONE, 0))
        assert (type(fence), fence.code, fence.outcome) == (CallRefused, Code.EXPIRED, Outcome.NOT_EXECUTED)
        marker = {"kind": headers.DETAIL_BIND_REFUSED}
        one.answer = lambda heard: heard.no("expired", "not-executed", marker)
        liar = await refused(caller, bind=Bind(ONE, 1))
        assert (type(liar), liar.code) == (CallFailed, Code.INTERNAL)
        assert len(one.heard) == 4


@pytest.mark.req("C13.2-42", "C13.2-43", "C13.3-21", "C13.3-23")
async def test_a_target_that_an_instance_does_not_host_is_asked_for_again_on_the_class_rail_alone(here: Room) -> None:
    bob = uid_of("bob")
    async with raw(here) as one, registry(here) as (lists, asked), calling(here, contracts=KNOWN) as (caller, metrics):
        lists.answers["target"] = lambda heard: heard.ok({"lifecycleUid": bob, "mappingRevision": len(asked.heard)})
        unmapped = {"kind": headers.DETAIL_UNMAPPED}
        one.answer = lambda heard: heard.no("expired", "not-executed", unmapped) if len(one.heard) < 3 else heard.ok()
        target = To("owner", "local", "bob")
        assert await soon(caller.call(ECHO, "stop", target=target, id="t")) is None
        assert [heard.body["target"]["mappingRevision"] for heard in one.heard] == [1, 2, 3]
        assert {heard.body["id"] for heard in one.heard} == {"t"}
        assert one.heard[0].asked.target == {"to_owner": "local"}
        one.heard.clear()
        final = await refused(caller, "stop", None, target=target, instance=ONE)
        assert (final.code, len(one.heard)) == (Code.EXPIRED, 1)
        one.answer = lambda heard: heard.no("expired", "not-executed", unmapped)
        one.heard.clear()
        assert (await refused(caller, "stop", None, target=To("exact", "local", "bob", bob))).code == Code.EXPIRED
        assert len(one.heard) == 4
        assert one.heard[0].body["target"] == {"owner": "local", "actor": "bob", "lifecycleUid": bob}
        lists.answers["target"] = lambda heard: heard.ok({})
        one.heard.clear()
        gone = await refused(caller, "stop", None, target=target)
        assert (type(gone), gone.code, gone.outcome) == (CallFailed, Code.EXPIRED, Outcome.NOT_EXECUTED)
        assert not one.heard
        assert metrics.totals("endpoint_call_repeats")[("unmapped",)] == 5


@pytest.mark.req("C13.2-19", "C13.2-52")
async def test_a_nonce_that_is_used_again_belongs_to_the_newer_call(here: Room) -> None:
    async with raw(here) as one, calling(here, contracts=KNOWN, entropy=bytes) as (caller, _):
        one.answer = lambda heard: None
        first = await refused(caller, seconds=0.1, id="first")
        again = asyncio.create_task(caller.invoke(ECHO, "put", HI, id="second"))
        await until(lambda: len(one.heard) == 2)
        earlier, later = one.heard
        assert earlier.asked.values["nonce"] == later.asked.values["nonce"]
        await later.reply(later.ok(HI))
        assert (await soon(again)).id == "second"
        assert (first.code, first.id) == (Code.DEADLINE_EXCEEDED, "first")


@pytest.mark.req("C13.8-05", "C13.8-08", "C13.3-10")
async def test_an_id_asks_for_convergence_and_promises_none(here: Room) -> None:
    """A responder that remembers what it answered to an id, until it forgets: the caller takes either answer."""
    async with raw(here) as one, calling(here, contracts=KNOWN) as (caller, _):
        remembered: dict[str, dict[str, str]] = {}
        done = 0

        def answers(heard: Heard) -> Any:
            nonlocal done
            if heard.body["id"] not in remembered:
                done += 1
                remembered[heard.body["id"]] = {"text": str(done)}
            return heard.ok(remembered[heard.body["id"]])

        one.answer = answers
        assert [await soon(caller.call(ECHO, "put", HI, id="mine")) for _ in range(2)] == [{"text": "1"}] * 2
        remembered.clear()
        assert await soon(caller.call(ECHO, "put", HI, id="mine")) == {"text": "2"}
        assert done == 2


@pytest.mark.req("C13.5-27", "C13.5-28")
async def test_only_the_broker_says_that_an_instance_is_gone(here: Room) -> None:
    async with raw(here) as one, calling(here) as (caller, _):
        assert await soon(caller.probe(ECHO, TWO)) is Probe.GONE
        assert await soon(caller.probe(ECHO, ONE)) is Probe.ANSWERED
        one.answer = lambda heard: heard.no("unavailable", "unknown")
        assert await soon(caller.probe(ECHO, ONE)) is Probe.ANSWERED
        one.answer = lambda heard: None
        assert await soon(caller.probe(ECHO, ONE, seconds=0.3)) is Probe.SILENT
        assert {heard.asked.route for heard in one.heard} == {"inst"}
        assert all("inputDigest" not in heard.body["op"] for heard in one.heard)


@pytest.mark.req("C13.2-51", "C13.2-52", "C13.3-47")
async def test_a_call_that_waits_for_a_link_is_not_sent_behind_the_end_of_its_caller(tmp_path: Path) -> None:
    async with room(tmp_path) as here, raw(here) as one, calling(here, contracts=KNOWN) as (caller, _):
        await soon(caller.call(ECHO, "put", {"text": "first"}))
        connection = caller._desk.connection
        since = connection.interruptions
        here.broker.kill()
        await until(lambda: not connection.linked)
        late = asyncio.create_task(caller.call(ECHO, "put", {"text": "late"}))
        await until(lambda: caller._desk.wire._open == 1)
        await caller.close()
        here.broker.start()
        await soon(connection.restored(since))
        with pytest.raises(CallFailed) as ended:
            await soon(late)
        assert (ended.value.code, ended.value.outcome) == (Code.UNAVAILABLE, Outcome.NOT_EXECUTED)
        assert one.count("put") == 1


async def test_each_of_many_calls_ends_at_its_own_deadline(here: Room) -> None:
    async with raw(here) as one, calling(here, contracts=KNOWN) as (caller, _):
        assert await soon(caller.call(ECHO, "put", HI)) == HI  # the subscription stands
        one.answer = lambda heard: None
        ended: list[float] = []

        async def silent(seconds: float) -> None:
            error = await refused(caller, seconds=seconds)
            assert (error.code, error.outcome) == (Code.DEADLINE_EXCEEDED, Outcome.UNKNOWN)
            ended.append(seconds)

        await soon(asyncio.gather(*(silent(seconds) for seconds in (0.9, 0.3, 0.6))))
        assert ended == [0.3, 0.6, 0.9]
        long = asyncio.create_task(refused(caller, seconds=600.0))
        await until(lambda: len(one.heard) == 5)
        await silent(0.1)
        assert not long.done()
        await caller.close()
        assert (await soon(long)).code == Code.UNAVAILABLE


async def test_many_calls_at_once_each_get_their_own_answer_and_one_too_many_is_refused(here: Room) -> None:
    async with raw(here) as one, calling(here, contracts=KNOWN) as (caller, _):
        gate = asyncio.Event()

        async def answers(heard: Heard) -> Any:
            await gate.wait()
            return heard.ok(heard.body["args"])

        one.answer = answers
        out = [asyncio.create_task(caller.call(ECHO, "put", {"text": str(n)}, seconds=60)) for n in range(1_024)]
        await until(lambda: len(one.heard) == 1_024)
        full = await refused(caller)
        assert (full.code, full.outcome) == (Code.RESOURCE_EXHAUSTED, Outcome.NOT_EXECUTED)
        gate.set()
        assert await soon(asyncio.gather(*out)) == [{"text": str(n)} for n in range(1_024)]
        assert not caller._desk.wire._waiting
