"""One request to every instance: frozen set, classes, and completion, at a real broker."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from sidecar.rails.endpoint.caller import Answer, Caller
from sidecar.rails.endpoint.codes import CallError, CallFailed, CallRefused, Code, Outcome
from tests.e2e.calling import ECHO, ONE, TWO, Heard, Raw, Registry, calling, raw, registry
from tests.e2e.endpoints import Room, room, soon, until
from tests.e2e.test_calling import KNOWN

pytestmark = pytest.mark.asyncio(loop_scope="module")
HI = {"text": "hi"}
THREE = "i3" * 13


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def here(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Room]:
    async with room(tmp_path_factory.mktemp("scatter")) as made:
        yield made


@contextlib.asynccontextmanager
async def three(here: Room) -> AsyncIterator[tuple[Caller, list[Raw], Registry, Raw, Any]]:
    """Three instances at epochs 0, 5 and 1, that the registry lists, and a caller."""
    async with (
        raw(here, ECHO, ONE, 0) as one,
        raw(here, ECHO, TWO, 5) as two,
        raw(here, ECHO, THREE, 1) as third,
        registry(here) as (lists, asked),
        calling(here, contracts=KNOWN, chance=lambda: 0.01) as (caller, metrics),
    ):
        lists.per_page = 2
        for revision, each in enumerate((one, two, third), 11):
            lists.live(each.instance, revision, each.epoch)
        yield caller, [one, two, third], lists, asked, metrics


async def scattered(caller: Caller, seconds: float = 30.0, **more: Any) -> Any:
    return await soon(caller.scatter(ECHO, "put", HI, seconds=seconds, **more))


async def refused(work: Any) -> CallError:
    with pytest.raises(CallError) as error:
        await soon(work)
    return error.value


@pytest.mark.req("C13.5-21", "C13.5-22", "C13.5-24", "C13.3-25", "C13.14-10")
async def test_all_that_the_registry_lists_as_live_are_asked_once_and_it_ends_with_the_last_answer(here: Room) -> None:
    async with three(here) as (caller, made, lists, asked, metrics):
        lists.live("i4" * 13, 20, 3, "exited")
        lists.live("i5" * 13, 21, 3, "escalated")
        lists.instances[0]["state"] = None  # registered, and has not told its state yet
        made[1].answer = lambda heard: heard.no("conflict")
        found = await scattered(caller, id="all-1")
        assert found.complete
        assert found.replies[ONE] == Answer(HI, ONE, 0, "all-1")
        assert found.replies[THREE] == Answer(HI, THREE, 1, "all-1")
        error = found.replies[TWO]
        assert (type(error), error.code, error.id, error.epoch) == (CallRefused, "conflict", "all-1", 5)
        assert (found.missing, found.churn, found.late, found.unexpected, found.duplicate) == ((), (), (), (), ())
        requests = [one.heard[0] for one in made]
        assert {heard.asked.route for heard in requests} == {"all"}
        assert all("bind" not in heard.body and 0 < heard.body["deadlineMs"] <= 30_000 for heard in requests)
        assert len({heard.message.subject for heard in requests}) == 1
        assert asked.count("instances") == 3  # pages of two, and nothing was left to be told apart
        assert metrics.totals("endpoint_scatter_replies") == {("answered",): 3}


@pytest.mark.req("C13.5-22", "C13.5-23", "C13.2-50")
async def test_what_does_not_count_is_told_apart(here: Room) -> None:
    async with three(here) as (caller, made, _, _, metrics):
        one, two, third = made
        answered = asyncio.Event()

        async def noisy(heard: Heard) -> None:
            for epoch in (0, 0, 4):  # the answer, a duplicate, and a later epoch of who has answered
                await heard.reply(heard.ok({"text": str(epoch)}), epoch=epoch)
            await heard.reply(heard.ok(HI), instance="i9" * 13)
            answered.set()

        async def moved(heard: Heard) -> None:
            await answered.wait()
            await heard.reply(heard.ok(HI), epoch=6)

        async def older(heard: Heard) -> None:
            await heard.reply(heard.ok({"text": "old"}), epoch=0)
            await heard.reply({"v": 1, "id": "other", "ok": True}, epoch=1)

        one.answer, two.answer, third.answer = noisy, moved, older
        found = await scattered(caller)
        assert found.replies[ONE].data == {"text": "0"}
        error = found.replies[THREE]
        assert (type(error), error.code, error.outcome) == (CallFailed, Code.INTERNAL, Outcome.EXECUTED)
        assert (found.churn, found.missing, found.complete) == ((TWO,), (), False)
        assert found.duplicate == ((ONE, 0),)
        assert found.unexpected == (("i9" * 13, 0),)
        # The later epoch is known now: a call that the earlier one answers is refused.
        one.answer, two.answer = (lambda heard: None), (lambda heard: heard.ok(HI))
        assert (await refused(caller.call(ECHO, "put", HI, instance=TWO))).code == Code.EXPIRED
        assert metrics.totals("endpoint_scatter_replies")[("churn",)] == 1


@pytest.mark.req("C13.2-50", "C13.5-21")
async def test_an_epoch_that_the_registry_has_named_supersedes_the_one_before(here: Room) -> None:
    """For calls too, and without a reply of the later incarnation."""
    async with three(here) as (caller, made, lists, _, _):
        for each in made:
            each.answer = lambda heard: heard.ok(HI)
        assert (await caller.call(ECHO, "put", HI, instance=TWO)) == HI
        lists.instances[1]["epoch"] = 6
        made[1].answer = lambda heard: None
        assert TWO in (await scattered(caller, 0.5)).missing
        made[1].answer = lambda heard: heard.ok(HI)
        assert (await refused(caller.call(ECHO, "put", HI, instance=TWO))).code == Code.EXPIRED


@pytest.mark.req("C13.5-23", "C13.5-24")
async def test_at_the_deadline_the_registry_tells_who_was_replaced_from_who_is_silent(here: Room) -> None:
    async with three(here) as (caller, made, lists, asked, metrics):
        held: list[Heard] = []
        made[0].answer = made[1].answer = lambda heard: held.append(heard)

        async def moves(heard: Heard) -> Any:
            lists.instances[1]["registrationRevision"] += 1
            return heard.ok(HI)

        made[2].answer = moves
        found = await scattered(caller, 1.0)
        assert (list(found.replies), found.missing, found.churn, found.complete) == ([THREE], (ONE,), (TWO,), False)
        assert metrics.totals("endpoint_scatter_replies") == {("answered",): 1, ("missing",): 1, ("churn",): 1}

        # An answer that comes while the registry is read again is late, and does not count.
        lists.instances[1]["registrationRevision"] = 12
        held.clear()
        made[0].answer = lambda heard: held.append(heard)
        made[1].answer = made[2].answer = lambda heard: heard.ok(HI)
        before = asked.count("instances")

        async def listed(heard: Heard) -> Any:
            if asked.count("instances") <= before + 2:
                return lists.page(heard)
            if held:
                one = held.pop()
                await one.reply(one.ok(HI), instance=ONE, epoch=0)
            return None

        lists.answers["instances"] = listed
        found = await scattered(caller, 1.0)
        assert (sorted(found.replies), found.late, found.missing) == ([TWO, THREE], (ONE,), ())
        assert not found.complete


@pytest.mark.req("C13.5-25", "C13.5-26", "C13.3-47", "C13.4-04")
async def test_without_an_expected_set_nothing_is_sent(here: Room) -> None:
    async with (
        raw(here, ECHO, ONE, 0) as one,
        registry(here) as (lists, _),
        calling(here, contracts=KNOWN) as (caller, _),
    ):
        empty = await refused(caller.scatter(ECHO, "put", HI, seconds=5))
        assert (empty.code, empty.outcome) == (Code.FAILED_PRECONDITION, Outcome.NOT_EXECUTED)
        lists.live(ONE, 1, 0, "exited")
        assert (await refused(caller.scatter(ECHO, "put", HI, seconds=5))).code == Code.FAILED_PRECONDITION
        lists.answers["instances"] = lambda heard: heard.no("permission-denied")
        unreadable = await refused(caller.scatter(ECHO, "put", HI, seconds=5))
        assert (unreadable.code, unreadable.outcome) == (Code.FAILED_PRECONDITION, Outcome.NOT_EXECUTED)
        for seconds in (None, 0, -1, float("inf")):
            none = await refused(caller.scatter(ECHO, "put", HI, seconds=seconds))  # type: ignore[arg-type]
            assert (none.code, none.outcome) == (Code.BAD_REQUEST, Outcome.NOT_EXECUTED)
        with pytest.raises(TypeError):
            await caller.scatter(ECHO, "put", HI)  # type: ignore[call-arg]
        journal = await refused(caller.scatter(ECHO, "log", seconds=5))
        assert journal.code == Code.CLASS_MISMATCH
        wrong = await refused(caller.scatter(ECHO, "put", {"text": 1}, seconds=5))
        assert wrong.code == Code.BAD_REQUEST
        assert not one.heard
    async with calling(here, contracts=KNOWN) as (caller, _):
        nobody = await refused(caller.scatter(ECHO, "put", HI, seconds=0.5))
        assert (nobody.code, nobody.outcome) == (Code.FAILED_PRECONDITION, Outcome.NOT_EXECUTED)
    async with registry(here) as (lists, _), calling(here, contracts=KNOWN) as (caller, _):
        lists.live(ONE, 1, 0)
        gone = await refused(caller.scatter(ECHO, "put", HI, seconds=60))
        assert (gone.code, gone.outcome, gone.endpoint) == (Code.UNAVAILABLE, Outcome.NOT_EXECUTED, ECHO)
    async with registry(here) as (lists, _), calling(here, "registry", contracts=KNOWN) as (caller, _):
        lists.live(ONE, 1, 0)
        denied = await refused(caller.scatter(ECHO, "put", HI, seconds=60))
        assert (denied.code, denied.outcome) == (Code.PERMISSION_DENIED, Outcome.NOT_EXECUTED)
        assert ".ep.all.com_acme_echo.put." in denied.message


async def test_a_hundred_instances_answer_one_request(here: Room) -> None:
    async with (
        raw(here, ECHO, ONE, 0) as one,
        registry(here) as (lists, _),
        calling(here, contracts=KNOWN) as (caller, _),
    ):
        names = [f"{number:026d}" for number in range(100)]
        for revision, name in enumerate(names, 1):
            lists.live(name, revision, 0)

        async def all_of_them(heard: Heard) -> None:
            for name in names:
                await heard.reply(heard.ok({"text": name}), instance=name)

        one.answer = all_of_them
        found = await scattered(caller)
        assert found.complete
        assert {name: reply.data["text"] for name, reply in found.replies.items()} == {name: name for name in names}
        assert json.dumps(sorted(found.replies)) == json.dumps(names)


@pytest.mark.req("C13.3-50", "C13.5-23", "C13.8-50")
async def test_a_scatter_whose_link_ends_says_that_nobody_knows_and_the_next_one_goes_on(tmp_path: Path) -> None:
    async with room(tmp_path) as own, three(own) as (caller, made, _, asked, _):
        for one in made[1:]:
            one.answer = lambda heard: None  # these never answer
        scattering = asyncio.create_task(scattered(caller, 60.0))
        await until(lambda: all(one.count("put") == 1 for one in made))
        links = [each.connection for each in (*made, asked)] + [caller._desk.connection]
        since = {link: link.interruptions for link in links}
        own.broker.kill()
        with pytest.raises(CallFailed) as ended:
            await scattering
        assert (ended.value.code, ended.value.outcome) == (Code.UNAVAILABLE, Outcome.UNKNOWN)
        assert not caller._desk.wire._waiting
        own.broker.start()
        for link, before in since.items():
            await soon(link.restored(before))
        for one in made:
            one.answer = lambda heard: heard.ok(HI)
        assert (await scattered(caller)).complete
