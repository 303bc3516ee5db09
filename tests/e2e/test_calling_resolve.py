"""From a name to a call: describe, contracts by digest, and incarnations that the caller binds to."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from sidecar.rails.endpoint import schemas
from sidecar.rails.endpoint.artifacts import digest
from sidecar.rails.endpoint.codes import CallError, CallFailed, CallRefused, Code, Outcome
from sidecar.rails.endpoint.schemas import schema
from sidecar.rails.names import headers
from tests.e2e.calling import (
    ECHO,
    GENERATION,
    ONE,
    SHARED,
    TEXT,
    TWO,
    Heard,
    Registry,
    calling,
    cluster,
    command,
    described,
    documents,
    raw,
    registry,
)
from tests.e2e.endpoints import Room, room, soon
from tests.e2e.test_calling import bound_to

pytestmark = pytest.mark.asyncio(loop_scope="module")
HI = {"text": "hi"}
SHORT = schema({"$ref": f"cotal:{digest(SHARED)}"}, [SHARED])


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def here(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Room]:
    async with room(tmp_path_factory.mktemp("resolve")) as made:
        yield made


@pytest.fixture(autouse=True)
def nothing_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was compiled once in this process needs no artifacts: here every caller is in a process of its own."""
    monkeypatch.setattr(schemas, "COMPILED", schemas._Cache(schemas.CACHED))


def serving(answer: dict[str, Any], handle: Any = None) -> Any:
    """Answers describe with this, and the rest with its arguments."""

    def told(heard: Heard) -> Any:
        if heard.command == "describe":
            return heard.ok(answer)
        return heard.ok(heard.body.get("args")) if handle is None else handle(heard)

    return told


async def failed(work: Any) -> CallError:
    with pytest.raises(CallError) as error:
        await soon(work)
    return error.value


def stocked(lists: Registry, *more: Any) -> None:
    lists.documents |= documents(TEXT, *more)


@pytest.mark.req("C13.7-35", "C13.7-36", "C13.7-70", "C13.3-12", "C13.3-15", "C13.14-11", "C13.14-10")
async def test_a_name_is_described_once_and_its_schemas_are_fetched_by_digest(here: Room) -> None:
    own = cluster(2, command("short", SHORT, SHORT, effect="read"))
    async with (
        raw(here) as one,
        registry(here) as (lists, asked),
        calling(here) as (caller, metrics),
    ):
        one.answer = serving(described(own))
        stocked(lists, SHORT)
        assert await soon(caller.call(ECHO, "echo", HI)) == HI
        assert await soon(caller.call(ECHO, "put", HI)) == HI
        assert await soon(caller.call(ECHO, "short", "12345")) == "12345"
        assert [heard.command for heard in one.heard] == ["describe", "echo", "put", "short"]
        first = one.heard[0].body
        assert first["op"] == {"endpoint": ECHO, "command": "describe"}
        assert {"args", "bind", "target"}.isdisjoint(first)
        assert (first["class"], first["replyExpected"]) == ("ephemeral", True)
        assert one.heard[1].body["op"]["inputDigest"] == TEXT.closure
        long = await failed(caller.call(ECHO, "short", "123456"))
        assert (long.code, long.outcome) == (Code.BAD_REQUEST, Outcome.NOT_EXECUTED)
        assert one.count("short") == 1
        # The manifest names root and members: two questions for each of the two closures.
        assert asked.count("artifacts") == 4
        assert metrics.totals("endpoint_calls") == {("call", "ok"): 3, ("call", "bad-request"): 1}


@pytest.mark.req("C13.7-18", "C13.7-20", "C13.14-12")
@pytest.mark.parametrize("version", [0, 3, 2**40])
async def test_nothing_is_called_by_a_descriptor_of_another_protocol(here: Room, version: int) -> None:
    async with raw(here) as one, calling(here) as (caller, _):
        one.answer = serving(described(cluster(), version))
        error = await failed(caller.call(ECHO, "echo", HI))
        assert (type(error), error.code, error.outcome) == (CallFailed, Code.UNSUPPORTED_VERSION, Outcome.NOT_EXECUTED)
        assert (error.endpoint, error.command) == (ECHO, "echo")
        cast = await failed(caller.cast(ECHO, "echo", HI))
        assert cast.code == Code.UNSUPPORTED_VERSION
        error = await failed(caller.describe(ECHO))
        assert error.code == Code.UNSUPPORTED_VERSION
        assert {heard.command for heard in one.heard} == {"describe"}


@pytest.mark.req("C13.7-36", "C13.7-27", "C13.7-28")
@pytest.mark.parametrize("poisoned", ["manifest", "root", "member"])
async def test_a_poisoned_artifact_is_found_out_and_nothing_is_sent(here: Room, poisoned: str) -> None:
    place = {"manifest": SHORT.closure, "root": SHORT.root, "member": digest(SHARED)}[poisoned]
    async with raw(here) as one, registry(here) as (lists, _), calling(here) as (caller, _):
        one.answer = serving(described(cluster(2, command("short", SHORT, SHORT, effect="read"))))
        stocked(lists, SHORT)
        lists.documents[place] = (
            {"type": "string"} if poisoned != "manifest" else {"v": 1, "root": TEXT.root, "members": []}
        )
        error = await failed(caller.call(ECHO, "short", "x"))
        assert (error.code, error.outcome) == (Code.CONTRACT_INVALID, Outcome.NOT_EXECUTED)
        del lists.documents[place]
        error = await failed(caller.call(ECHO, "short", "x"))
        assert (error.code, error.outcome) == (Code.CONTRACT_INVALID, Outcome.NOT_EXECUTED)
        assert not one.count("short")


@pytest.mark.req("C13.7-35", "C13.7-36", "C13.7-69")
async def test_a_cluster_that_is_told_by_digest_alone_is_fetched_and_only_what_is_told_is_called(here: Room) -> None:
    own = cluster()
    partial = described(own, inline=False)
    partial["descriptor"]["clusters"][0]["commands"] = ["echo"]
    async with raw(here) as one, registry(here) as (lists, _), calling(here) as (caller, _):
        one.answer = serving(partial)
        stocked(lists, own)
        assert await soon(caller.call(ECHO, "echo", HI)) == HI
        error = await failed(caller.call(ECHO, "put", HI))
        assert (error.code, error.outcome) == (Code.UNIMPLEMENTED, Outcome.NOT_EXECUTED)
        assert (await soon(caller.describe(ECHO))).descriptor.clusters[0].document is None
    lying = described(own)
    lying["descriptor"]["clusters"][0]["document"]["revision"] = 9
    async with raw(here) as one, calling(here) as (caller, _):
        one.answer = serving(lying)
        error = await failed(caller.call(ECHO, "echo", HI))
        assert (error.code, error.outcome) == (Code.INTERNAL, Outcome.NOT_EXECUTED)


@pytest.mark.req("C13.7-10", "C13.7-11", "C13.7-13", "C13.7-09")
async def test_an_effect_counts_under_version_two_alone(here: Room) -> None:
    for protocol, sent in ((2, 2), (1, 1)):
        document = cluster(2)
        async with raw(here) as one, registry(here) as (lists, _), calling(here, chance=lambda: 0.01) as (caller, _):
            stocked(lists)

            def handle(heard: Heard, one: Any = one) -> Any:
                return heard.no("unavailable", "unknown") if one.count("echo") < 2 else heard.ok(HI)

            one.answer = serving(described(document, protocol), handle)
            work = caller.call(ECHO, "echo", HI, repeat=True)
            if protocol == 2:
                assert await soon(work) == HI
            else:
                assert (await failed(work)).outcome is Outcome.UNKNOWN
            assert one.count("echo") == sent


@pytest.mark.req("C13.14-10", "C13.7-70")
async def test_a_contract_that_changed_is_described_again_once(here: Room) -> None:
    old, new = cluster(2), cluster(2, command("more", effect="read"))
    async with raw(here) as one, registry(here) as (lists, _), calling(here) as (caller, metrics):
        stocked(lists)
        told = [described(old), described(new)]

        def answers(heard: Heard) -> Any:
            if heard.command == "describe":
                return heard.ok(told[min(one.count("describe"), 2) - 1])
            return heard.no("contract-mismatch") if one.count("describe") < 2 else heard.ok(HI)

        one.answer = answers
        assert await soon(caller.call(ECHO, "put", HI, id="i")) == HI
        assert [heard.command for heard in one.heard] == ["describe", "put", "describe", "put"]
        assert {heard.body["id"] for heard in one.heard if heard.command == "put"} == {"i"}
        one.answer = lambda heard: heard.ok(told[1]) if heard.command == "describe" else heard.no("contract-mismatch")
        one.heard.clear()
        error = await failed(caller.call(ECHO, "put", HI))
        assert (type(error), error.code) == (CallRefused, Code.CONTRACT_MISMATCH)
        assert one.count("put") == 2
        assert metrics.totals("endpoint_call_repeats") == {("contract",): 2}


@pytest.mark.req("C13.2-55", "C13.2-53", "C13.3-25", "C13.14-10")
async def test_a_caller_that_binds_to_who_describes_itself_asks_again_after_a_bind_refusal(here: Room) -> None:
    async with (
        raw(here) as one,
        registry(here) as (lists, _),
        calling(here, chance=lambda: 0.01) as (caller, metrics),
    ):
        stocked(lists)
        own = described(cluster())

        async def answers(heard: Heard) -> None:
            # The first two times another instance of the class has the call than the one that was described.
            if heard.command == "describe":
                await heard.reply(heard.ok(own))
            elif one.count("put") < 3:
                await heard.reply(bound_to(heard, TWO, 4), instance=TWO, epoch=4)
            else:
                await heard.reply(heard.ok(HI))

        one.answer = answers
        got = await soon(caller.invoke(ECHO, "put", HI, bind=True, id="once"))
        assert (got.instance, got.epoch, got.id) == (ONE, 1, "once")
        puts = [heard for heard in one.heard if heard.command == "put"]
        assert [heard.body["bind"] for heard in puts] == [{"instanceId": ONE, "epoch": 1}] * 3
        assert len({heard.asked.values["nonce"] for heard in puts}) == 3
        assert one.count("describe") == 3
        assert all("bind" not in heard.body for heard in one.heard if heard.command == "describe")
        assert metrics.totals("endpoint_call_repeats") == {("bind",): 2}

        async def foreign(heard: Heard) -> None:
            await heard.reply(heard.ok(HI), instance=TWO, epoch=4)

        # A responder that does not know the fence executes: the caller says so, and does not call again (C13.2-57).
        one.heard.clear()
        one.epoch, one.answer = 2, foreign
        error = await failed(caller.call(ECHO, "put", HI, bind=True))
        assert (type(error), error.code, error.outcome) == (CallFailed, Code.FAILED_PRECONDITION, Outcome.EXECUTED)
        assert one.count("put") == 1


@pytest.mark.req("C13.2-55")
async def test_bind_repairs_end_after_a_bounded_number(here: Room) -> None:
    async with raw(here) as one, registry(here) as (lists, _), calling(here, chance=lambda: 0.0) as (caller, _):
        stocked(lists)
        own = described(cluster())

        async def answers(heard: Heard) -> None:
            if heard.command == "describe":
                await heard.reply(heard.ok(own))
            else:
                await heard.reply(bound_to(heard, TWO, 4), instance=TWO, epoch=4)

        one.answer = answers
        error = await failed(caller.call(ECHO, "put", HI, bind=True))
        assert (type(error), error.outcome) == (CallRefused, Outcome.NOT_EXECUTED)
        assert error.has(headers.DETAIL_BIND_REFUSED)
        assert one.count("put") == 17


async def test_a_describe_that_is_not_answered_is_asked_again_inside_its_time(here: Room) -> None:
    async with raw(here) as one, calling(here) as (caller, metrics):
        one.answer = lambda heard: None if len(one.heard) == 1 else heard.ok(described(cluster()))
        found = await soon(caller.describe(ECHO))
        assert (found.instance, found.epoch, found.descriptor.protocol) == (ONE, 1, 2)
        assert len(one.heard) == 2
        assert one.heard[0].body["id"] == one.heard[1].body["id"]
        assert one.heard[0].body["deadlineMs"] <= 250
        assert metrics.totals("endpoint_call_repeats") == {("unanswered",): 1}
        for wrong in (b"[]", described(cluster(), endpoint="com.acme.other"), {"public": True}, None):
            one.answer = lambda heard, wrong=wrong: heard.ok(wrong) if not isinstance(wrong, bytes) else wrong  # type: ignore[misc]
            error = await failed(caller.describe(ECHO))
            assert (error.code, error.command) == (Code.INTERNAL, "describe")
    async with calling(here) as (caller, _):
        gone = await failed(caller.call(ECHO, "echo", HI))
        assert (gone.code, gone.outcome) == (Code.UNAVAILABLE, Outcome.NOT_EXECUTED)


async def test_many_that_want_the_same_contract_ask_once(here: Room) -> None:
    async with raw(here) as one, registry(here) as (lists, _), calling(here) as (caller, _):
        stocked(lists)
        one.answer = serving(described(cluster()))
        calls = [caller.call(ECHO, "echo", {"text": f"{n}"}) for n in range(50)]
        assert await soon(asyncio.gather(*calls)) == [{"text": f"{n}"} for n in range(50)]
        assert one.count("describe") == 1
        assert not caller._desk.resolver._asking._locks


@pytest.mark.req("C13.20-15", "C13.20-16", "C13.15-33")
async def test_a_listing_is_the_registrys_or_none_and_drops_what_was_described(here: Room) -> None:
    row = {"endpoint": ECHO, "instances": [], "commands": []}
    async with (
        raw(here) as one,
        registry(here) as (lists, asked),
        calling(here, listing=GENERATION) as (caller, metrics),
    ):
        stocked(lists)
        one.answer = serving(described(cluster()))
        lists.answers["endpoints"] = lambda heard: heard.ok({"rows": [row], "source": "recorded-ceiling", "next": ECHO})
        assert await soon(caller.call(ECHO, "echo", HI)) == HI
        page = await soon(caller.endpoints(1, "com.aaa"))
        assert (page.rows, page.next, page.source) == ((row,), ECHO, "recorded-ceiling")
        question = asked.heard[-1]
        assert (question.asked.issued, question.asked.values["generation"]) == (True, GENERATION)
        assert question.body["args"] == {"limit": 1, "after": "com.aaa"}
        assert await soon(caller.call(ECHO, "echo", HI)) == HI
        assert one.count("describe") == 2
        assert not one.heard[-1].asked.issued
        assert metrics.totals("endpoint_calls")[("endpoints", "ok")] == 1
        for limit in (0, 101):
            assert (await failed(caller.endpoints(limit))).code == Code.BAD_REQUEST
    async with raw(here) as one, calling(here, listing=GENERATION) as (caller, _):
        one.answer = serving(described(cluster()))
        await soon(caller.describe(ECHO))
        gone = await failed(caller.endpoints())
        assert (gone.code, gone.endpoint, gone.command) == (Code.UNAVAILABLE, "registry", "endpoints")
    async with calling(here, ECHO, listing=GENERATION) as (caller, _):
        denied = await failed(caller.endpoints(seconds=600))
        assert denied.code == Code.PERMISSION_DENIED
        assert "no listing binding" in denied.message
