"""Targets, repeats, correlation and events of an endpoint, and how an instance ends, at a real broker."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from sidecar.base.strictjson import JsonValue
from sidecar.rails.connection import Connection, Credentials, CredentialsRefused, Fault, PermissionViolation
from sidecar.rails.endpoint import serve
from sidecar.rails.endpoint.call import Call
from sidecar.rails.endpoint.codes import Code, Outcome, Refusal
from sidecar.rails.endpoint.contracts import DESCRIBE
from sidecar.rails.endpoint.events import EventInvalid
from sidecar.rails.endpoint.serve import Superseded
from sidecar.rails.endpoint.serve_results import Results
from sidecar.rails.endpoint.view import Mapping
from sidecar.rails.names import planes
from sidecar.rails.names.principals import Lifecycle, Principal
from sidecar.rails.space.claims import Access, Permissions
from sidecar.rails.space.creds import format_creds
from sidecar.rails.space.holder import Form, Holder, Profile, Service
from sidecar.rails.space.trust import new_user
from tests.e2e.endpoints import Room, room, soon, until
from tests.e2e.serving import NAME, ONE, TWO, Lab, peer
from tests.e2e.space_broker import SpaceBroker
from tests.e2e.space_dial import QUICK
from tests.e2e.space_members import SPACE, clock, uid_of

pytestmark = pytest.mark.asyncio(loop_scope="module")
NOT, UNKNOWN, EXECUTED = Outcome.NOT_EXECUTED, Outcome.UNKNOWN, Outcome.EXECUTED
BOB = {"owner": "local", "actor": "bob", "lifecycleUid": uid_of("bob")}
MODES = ("self", "owner", "any", "child", "ledger", "handle", "exact")
TRACE = {
    "traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
    "tracestate": "vendor=1",
    "baggage": "tenant=7",
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def here(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Room]:
    """A space with its streams."""
    async with SpaceBroker(tmp_path_factory.mktemp("serving")) as broker:
        made = Room(broker)
        await made.space.open()
        yield made


# ---- targets ----


class Targeted(Lab):
    """A lab with a command about somebody, in every mode."""

    def __init__(self) -> None:
        super().__init__()
        self.related: Any = True
        self.trusted.lives["local.bob"] = Mapping(uid_of("bob"), 7)
        self.endpoint.command(modes=MODES, authorize=self.relation)(self.stop)

    async def relation(self, call: Call) -> bool:
        if isinstance(self.related, Exception):
            raise self.related
        found: bool = await self.related(call) if callable(self.related) else self.related
        return found

    async def stop(self, call: Call) -> JsonValue:
        self.calls.append(call)
        return None


def at(mode: str, actor: str = "bob", issued: bool = False) -> dict[str, Any]:
    """The target tokens of a mode."""
    named: dict[str, Any] = {"mode": mode, "issued": issued}
    if mode != "self":
        named["to_owner"] = "local"
    if mode in ("handle", "exact"):
        named |= {"to_actor": actor, "to_uid": uid_of(actor)}
    return named


@pytest.mark.req("C13.2-29", "C13.2-39", "C13.3-20", "C13.3-21", "C13.3-22", "C13.2-21")
async def test_a_target_stands_where_its_mode_says(here: Room) -> None:
    lab = Targeted()
    async with lab.serving(here), peer(here, lab) as alice:
        for issued in (False, True):
            assert (await alice.ask("stop", at=at("self", issued=issued)))["ok"]
            call = lab.calls[-1]
            assert (call.mode, call.target and call.target.lifecycle) == ("self", call.caller)
            assert await alice.error("stop", at=at("self", issued=issued), target=BOB) == (Code.TARGET_MISMATCH, NOT)
            assert await alice.error("stop", at={"issued": issued}) == (Code.TARGET_MISMATCH, NOT)
            for mode in MODES[1:]:
                found = await alice.ask("stop", at=at(mode, issued=issued), target=BOB)
                assert found["ok"], found
                target = lab.calls[-1].target
                assert target is not None
                assert target == (Lifecycle(Principal("local", "bob"), uid_of("bob")), 7)
                done = len(lab.calls)
                assert await alice.error("stop", at=at(mode, issued=issued)) == (Code.TARGET_MISMATCH, NOT)
                other = {**BOB, "owner": "u_" + "a" * 26}
                wrong = await alice.error("stop", at=at(mode, issued=issued), target=other)
                assert wrong == (Code.TARGET_MISMATCH, NOT)
                if mode in ("handle", "exact"):
                    for changed in ({"actor": "eve"}, {"lifecycleUid": uid_of("eve")}):
                        wrong = await alice.error("stop", at=at(mode, issued=issued), target={**BOB, **changed})
                        assert wrong == (Code.TARGET_MISMATCH, NOT)
                assert len(lab.calls) == done


@pytest.mark.req("C13.2-38", "C13.2-40", "C13.2-41", "C13.3-23", "C13.3-24", "C13.14-03")
async def test_a_target_is_current_right_before_the_effect_or_there_is_none(here: Room) -> None:
    lab = Targeted()
    lives = lab.trusted.lives
    async with lab.serving(here), peer(here, lab) as alice:
        for mode in MODES[1:]:
            lives["local.bob"] = Mapping(uid_of("bob"), 7)
            assert (await alice.ask("stop", at=at(mode), target={**BOB, "mappingRevision": 7}))["ok"]
            done = len(lab.calls)
            wrong = await alice.error("stop", at=at(mode), target={**BOB, "mappingRevision": 6})
            assert wrong == (Code.EXPIRED, NOT)
            lives["local.bob"] = Mapping(uid_of("eve"), 8)
            assert await alice.error("stop", at=at(mode), target=BOB) == (Code.EXPIRED, NOT)
            del lives["local.bob"]
            found = (await alice.ask("stop", at=at(mode), target=BOB))["error"]
            assert (found["code"], found["outcome"]) == (Code.EXPIRED, NOT)
            assert found["details"] == [{"kind": "ai.cotal.ep.target-unmapped"}]
            lab.trusted.down = True
            assert await alice.error("stop", at=at(mode), target=BOB) == (Code.UNAVAILABLE, NOT)
            lab.trusted.down = False
            assert len(lab.calls) == done
        lives["local.bob"] = Mapping(uid_of("bob"), 7)

        async def retires_meanwhile(call: Call) -> bool:
            del lives["local.bob"]
            return True

        lab.related = retires_meanwhile
        assert await alice.error("stop", at=at("child"), target=BOB) == (Code.EXPIRED, NOT)


@pytest.mark.req("C13.2-34", "C13.2-35", "C13.3-40")
async def test_a_relation_that_does_not_hold_or_cannot_be_read_refuses(here: Room) -> None:
    lab = Targeted()
    async with lab.serving(here, longest=0.2), peer(here, lab) as alice:

        async def hangs(call: Call) -> bool:
            await asyncio.Event().wait()
            return True

        answers: tuple[tuple[Any, Code], ...] = (
            (False, Code.PERMISSION_DENIED),
            ("yes", Code.PERMISSION_DENIED),
            (Refusal(Code.NOT_FOUND, "no ledger"), Code.NOT_FOUND),
            (OSError("down"), Code.UNAVAILABLE),
            (hangs, Code.DEADLINE_EXCEEDED),
        )
        for related, code in answers:
            lab.related = related
            for mode in ("child", "ledger"):
                assert await alice.error("stop", at=at(mode), target=BOB) == (code, NOT)
            assert not lab.calls
        lab.related = False
        assert (await alice.ask("stop", at=at("owner"), target=BOB))["ok"]  # other modes ask nothing of it


# ---- repeats ----


@pytest.mark.req("C13.8-01", "C13.8-05", "C13.8-06", "C13.4-03")
async def test_a_repeat_of_an_idempotent_request_is_answered_with_what_the_first_one_was(here: Room) -> None:
    lab = Lab()
    counted = 0

    @lab.endpoint.command(input={"type": "string"}, output={"type": "integer"}, idempotent=True)
    async def count(call: Call) -> JsonValue:
        nonlocal counted
        counted += 1
        number = counted
        if call.args == "slow":
            await lab.gate.wait()
        if call.args == "before":
            raise call.refuse(Code.FAILED_PRECONDITION, "not yet")
        if call.args == "broken":
            raise ZeroDivisionError
        return number

    async with lab.serving(here), peer(here, lab) as alice, peer(here, lab, "bob") as bob:
        assert (await alice.ask("count", args="a", id="k"))["data"] == 1
        assert (await alice.ask("count", args="a", id="k", at={"issued": True, "route": "inst"}))["data"] == 1
        assert (await alice.ask("count", args="other", id="k"))["data"] == 1  # the id is the whole key
        assert (await bob.ask("count", args="a", id="k"))["data"] == 2
        assert (await alice.ask("count", args="a", id="k2"))["data"] == 3
        assert await alice.error("count", args=7, id="k") == (Code.BAD_REQUEST, NOT)

        nonces = [await alice.send("count", args="slow", id="s") for _ in range(5)]
        await until(lambda: lab.total("endpoint_repeats").get(("running",)) == 4)
        lab.gate.set()
        assert [(await alice.answer(nonce))[1]["data"] for nonce in nonces] == [4] * 5

        await alice.send("count", args="a", id="cast", replyExpected=False)
        await until(lambda: counted == 5)
        assert (await alice.ask("count", args="a", id="cast"))["data"] == 5

        assert await alice.error("count", args="before", id="b") == (Code.FAILED_PRECONDITION, NOT)
        assert (await alice.ask("count", args="a", id="b"))["data"] == 7  # nothing was executed: fresh work
        for _ in range(2):
            assert await alice.error("count", args="broken", id="x") == (Code.INTERNAL, UNKNOWN)
        assert counted == 8
        await alice.ask(id="e")
        await alice.ask(id="e")
        assert len(lab.calls) == 2  # what is not declared idempotent runs each time


@pytest.mark.req("C13.8-08", "C13.8-05")
async def test_behind_what_is_kept_an_id_is_fresh_work(here: Room) -> None:
    lab = Lab()
    runs: list[str] = []

    @lab.endpoint.command(idempotent=True)
    async def once(call: Call) -> JsonValue:
        runs.append(call.id)
        return None

    async with lab.serving(here, results=Results(most=1)), peer(here, lab) as alice:
        for identity in ("a", "a", "b", "a"):
            assert (await alice.ask("once", id=identity))["ok"]
        assert runs == ["a", "b", "a"]


# ---- correlation and events ----


@pytest.mark.req("C13.3-32", "C13.3-54", "C13.4-59", "C13.2-58", "C13.7-07", "C13.4-58")
async def test_an_event_says_who_published_it_and_carries_the_trace_of_its_request(here: Room) -> None:
    lab = Lab(epoch=2)
    counted = lab.endpoint.event("counted", {"type": "object", "required": ["n"]}, cluster="com.acme.lab")
    foreign = Lab().endpoint.event("strange", {"type": "object"})
    sequences: list[int] = []

    @lab.endpoint.command()
    async def count(call: Call) -> JsonValue:
        sequences.append(await call.emit(counted, {"n": len(sequences)}))
        raise call.refuse(Code.CONFLICT, "after an event")

    @lab.endpoint.command()
    async def wrong(call: Call) -> JsonValue:
        with pytest.raises(EventInvalid):
            await call.emit(counted, {"m": 1})
        with pytest.raises(EventInvalid):
            await call.emit(foreign, {})
        return None

    hearing = planes.EVENT.filter(space=SPACE, endpoint="com_acme_lab")
    rows = Permissions(Access(("victim.>",)), Access((hearing,)))
    async with lab.serving(here), peer(here, lab) as alice, here.granted(rows) as connection:
        heard = await connection.subscribe(hearing)
        assert await alice.error("count", correlation=TRACE) == (Code.CONFLICT, UNKNOWN)  # an event is an effect
        assert await alice.error("count") == (Code.CONFLICT, UNKNOWN)
        assert (await alice.ask("wrong"))["ok"]
        sequences.append(await lab.server.emit(counted, {"n": 9}, {"baggage": "own=1"}))
        found = [await soon(heard.next()) for _ in range(3)]
        assert {one.subject for one in found} == {f"cotal.main.epe.com_acme_lab.{ONE}.2.ev.com_acme_lab.counted"}
        values = [json.loads(one.data) for one in found]
        assert [value.pop("data") for value in values] == [{"n": 0}, {"n": 1}, {"n": 9}]
        assert [value.get("correlation") for value in values] == [TRACE, None, {"baggage": "own=1"}]
        for value in values:
            assert (value["v"], value["topic"], type(value["ts"])) == (1, "ev.com_acme_lab.counted", int)
            assert value.keys() <= {"v", "topic", "ts", "correlation"}
        assert sequences == list(range(sequences[0], sequences[0] + 3))  # stored, and in this order
        assert lab.total("endpoint_events") == {("stored",): 3, ("invalid",): 2}
        elsewhere = planes.EVENT.build(
            space=SPACE, endpoint="com_acme_lab", instance=ONE, epoch=1, topic="ev.com_acme_lab.counted"
        )
        with pytest.raises(PermissionViolation):
            await lab.connection.publish(elsewhere, b"{}")


@pytest.mark.req("C13.3-32")
async def test_a_trace_that_is_none_is_refused_and_a_right_one_goes_on(here: Room) -> None:
    lab = Lab()
    asked: list[Any] = []

    class Downstream:
        async def call(self, *named: Any, seconds: float = 0.0, **more: Any) -> JsonValue:
            asked.append((named, seconds, more))
            return None

    @lab.endpoint.command()
    async def through(call: Call) -> JsonValue:
        return await call.ask(Downstream(), "com.acme.next", "do", {"a": 1})

    async with lab.serving(here), peer(here, lab) as alice:
        assert (await alice.ask("through", correlation={**TRACE, "other": 7}, deadlineMs=5_000))["ok"]
        assert (await alice.ask("through"))["ok"]
        (named, seconds, more), (_, _, bare) = asked
        assert named == ("com.acme.next", "do", {"a": 1})
        assert 0 < seconds <= 5
        assert (more, bare) == ({"correlation": TRACE}, {"correlation": None})
        for wrong in (
            7,
            {"traceparent": "00-xyz"},
            {"traceparent": TRACE["traceparent"] + "-more"},
            {"traceparent": "01-" + "x" * 300},
            {"tracestate": "x" * 513},
            {"baggage": "x" * 8_193},
            {"baggage": "a\nb"},
        ):
            assert await alice.error("through", correlation=wrong) == (Code.BAD_REQUEST, NOT), wrong
        assert len(asked) == 2


# ---- the end ----


@pytest.mark.req("C13.14-01", "C13.8-50")
async def test_a_drain_loses_nothing(here: Room) -> None:
    one, two = Lab(ONE), Lab(TWO)
    async with one.serving(here), two.serving(here), peer(here, one) as alice:
        held = await alice.send("hold", at={"route": "inst"})
        await until(lambda: len(one.calls) == 1)
        stop, nonces = asyncio.Event(), []

        async def keeps_asking() -> None:
            while not stop.is_set():
                nonces.append(await alice.send())
                await asyncio.sleep(0)

        asking = asyncio.create_task(keeps_asking())
        await until(lambda: len(one.calls) > 20 < len(two.calls))
        draining = asyncio.create_task(one.server.drain(20))
        await until(lambda: not any(rail.queue for rail in one.server._live))
        refused = await alice.error(at={"route": "inst"})
        assert refused == (Code.FAILED_PRECONDITION, NOT)
        assert (await alice.describe(at={"route": "inst"}))["ok"]
        before = len(two.calls)
        await until(lambda: len(two.calls) > before + 50)
        assert not draining.done()
        one.gate.set()
        await soon(draining)
        assert (await alice.answer(held))[1]["ok"]
        stop.set()
        await asking
        for nonce in nonces:
            assert (await alice.answer(nonce))[1]["ok"]
        assert len(one.calls) + len(two.calls) == len(nonces) + 1
        await soon(one.server.wait())
        assert not one.server.serving
        assert two.server.serving


async def test_a_drain_that_takes_too_long_tells_who_still_waits(here: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve, "CLOSE_SECONDS", 3600.0)  # nothing that runs is waited for a second time
    states: list[str] = []

    async def status(state: str) -> None:
        states.append(state)
        if state == "draining":
            raise OSError("no record")

    lab = Lab()
    async with lab.serving(here, status=status), peer(here, lab) as alice:
        nonce = await alice.send("hold")
        await until(lambda: len(lab.calls) == 1)
        await soon(lab.server.drain(0.05))
        found = (await alice.answer(nonce))[1]["error"]
        assert (found["code"], found["outcome"]) == (Code.UNAVAILABLE, UNKNOWN)
        await lab.server.close()
        assert states == ["ready", "draining", "exited"]


async def test_an_instance_waits_for_a_broker_that_is_away_when_it_starts(tmp_path: Path) -> None:
    async with room(tmp_path) as here:
        lab = Lab()
        service = Service(ONE, 0, tuple(lab.endpoint.handlers), endpoint=NAME)
        impatient = replace(QUICK, call_within=1)
        key = new_user(os.urandom)
        holder = Holder(SPACE, lab.identity.lifecycle, key.public, Form.MEDIATED, service=service)

        async def mint() -> Credentials:
            token = here.space.trust.issue(Profile.ENDPOINT, holder, key, clock(), 300)
            return Credentials(format_creds(token, key), clock() + 300)

        async with (
            await Connection.open([here.broker.url], mint, policy=impatient) as link,
            peer(here, lab) as alice,
            contextlib.AsyncExitStack() as serving,  # what nobody holds is ended by the garbage collector
        ):
            since = alice.connection.interruptions
            here.broker.kill()
            await until(lambda: not link.linked)
            starting = asyncio.create_task(serving.enter_async_context(lab.on(link)))
            await asyncio.wait((starting,), timeout=1.5)
            assert not starting.done()
            here.broker.start()
            await soon(starting)
            await soon(alice.connection.restored(since))
            assert (await alice.ask())["ok"]


@pytest.mark.req("C13.8-50", "C13.7-66")
async def test_who_waits_for_a_description_is_told_of_the_end(here: Room) -> None:
    lab = Lab()
    lab.trusted.gate.clear()
    async with lab.serving(here), peer(here, lab) as alice:
        nonce = await alice.send(DESCRIBE)
        await until(lambda: len(lab.trusted.asked) == 1)
        await soon(lab.server.close(0.05))
        found = (await alice.answer(nonce))[1]["error"]
        assert (found["code"], found["outcome"]) == (Code.UNAVAILABLE, NOT)


@pytest.mark.req("C13.8-50")
async def test_rails_that_cannot_be_left_in_time_are_left_for_good(tmp_path: Path) -> None:
    """A link that is being made just then would bring them back, to an instance that answers nothing any more."""
    async with room(tmp_path) as here:
        one, two = Lab(ONE), Lab(TWO)
        async with two.serving(here), peer(here, two) as alice, one.serving(here):
            left = [tap for rail, tap in one.server._live.items() if rail.queue]
            async with one.connection._subscriptions.placing:
                draining = asyncio.create_task(one.server.drain(0.05))
                await until(lambda: all(tap.error is not None for tap in left))
            await soon(draining)
            links = {each.connection: each.connection.interruptions for each in (alice, one, two)}
            here.broker.kill()
            here.broker.start()
            for link, since in links.items():
                await soon(link.restored(since))
            nonces = [await alice.send() for _ in range(64)]
            for nonce in nonces:
                assert (await alice.answer(nonce))[1]["ok"]
            assert not one.calls


@pytest.mark.req("C13.14-01", "C13.2-58")
async def test_a_superseded_instance_stops_by_itself_and_its_successor_serves(tmp_path: Path) -> None:
    async with SpaceBroker(tmp_path) as broker:
        here = Room(broker)
        await here.open()
        old, new = Lab(epoch=0), Lab(epoch=1)
        key = new_user(os.urandom)
        holder = Holder(SPACE, old.identity.lifecycle, key.public, Form.MEDIATED)
        service = Service(ONE, 0, tuple(old.endpoint.handlers), endpoint=NAME)
        granted = Holder(SPACE, holder.lifecycle, key.public, Form.MEDIATED, service=service)
        minted = 0

        async def mint() -> Credentials:
            nonlocal minted
            minted += 1
            if minted > 1:
                raise CredentialsRefused("superseded")
            token = here.space.trust.issue(Profile.ENDPOINT, granted, key, clock(), 300)
            return Credentials(format_creds(token, key), clock() + 300)

        connecting = await Connection.open([broker.url], mint, policy=QUICK)
        async with connecting as link, peer(here, new) as alice, old.on(link):
            await alice.send("hold")
            await until(lambda: len(old.calls) == 1)
            await broker.push(here.space.trust.revoke(broker.trust, key.public, clock()))
            with pytest.raises(Superseded) as ended:
                await soon(old.server.wait())
            assert ended.value.fault in (Fault.REVOKED, Fault.CREDENTIALS_REFUSED, Fault.AUTHORIZATION)
            assert not old.server.serving
            assert old.total("endpoint_superseded") == {(): 1}
            assert not old.server._dispatcher._tasks  # what ran was cancelled
            async with new.serving(here):
                found = (await alice.answer(await alice.send()))[0]
                assert found.split(".")[5:7] == [ONE, "1"]
            assert len(old.calls) == 1


@pytest.mark.req("C13.8-50")
async def test_ten_thousand_calls_at_once_are_each_answered_in_bounded_memory(here: Room) -> None:
    lab = Lab()
    async with lab.serving(here, at_once=500, per_caller=400), peer(here, lab) as alice, peer(here, lab, "bob") as bob:
        dispatcher, most = lab.server._dispatcher, 0
        nonces = []
        body = json.dumps(alice.body("hold")).encode()
        for number in range(10_000):
            subject = alice.subject("hold")
            nonces.append(subject.rpartition(".")[2])
            await alice.connection.send(subject, body)
            most = max(most, len(dispatcher._tasks))
            if number % 50 == 0:  # the links of this process live in the same loop
                await asyncio.sleep(0)
        await until(lambda: sum(lab.total("endpoint_requests").values()) == 9_600)
        assert len(dispatcher._tasks) == len(lab.calls) == 400
        assert most <= 400
        assert (await bob.ask())["ok"]  # others are served meanwhile
        lab.gate.set()
        replies = [(await alice.answer(nonce))[1] for nonce in nonces]
        assert sum(reply["ok"] for reply in replies) == 400
        refused = [reply["error"] for reply in replies if not reply["ok"]]
        assert {(one["code"], one["outcome"]) for one in refused} == {(Code.RESOURCE_EXHAUSTED, NOT)}
        assert not dispatcher._tasks
        assert lab.total("endpoint_answers_lost") == {}


async def test_an_instance_whose_connection_ends_for_another_reason_says_so(here: Room) -> None:
    lab = Lab()
    async with contextlib.AsyncExitStack() as stack:
        await stack.enter_async_context(lab.serving(here))
        await lab.connection.close()
        with pytest.raises(Exception, match="closed") as ended:
            await soon(lab.server.wait())
        assert not isinstance(ended.value, Superseded)
        assert lab.total("endpoint_superseded") == {}
