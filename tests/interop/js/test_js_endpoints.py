"""Endpoints in two languages: a JavaScript caller at our sample endpoint, and our callers at a JavaScript instance.

The JavaScript side was written from the contract alone. Everything runs at a `sidecar dev`, with the credentials that
it gives; the instance in JavaScript has the serve credential that our registration mints.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from sidecar.app import domains, endpoint_host
from sidecar.app.access import Access
from sidecar.app.ep_access import calling
from sidecar.app.spaces import open_space
from sidecar.base.strictjson import JsonValue
from sidecar.rails.endpoint.app import Endpoint
from sidecar.rails.endpoint.call import Call
from sidecar.rails.endpoint.caller import Caller
from sidecar.rails.endpoint.calls_types import Answer, Probe, To
from sidecar.rails.endpoint.codes import CallFailed, CallRefused, Code, Outcome
from sidecar.rails.endpoint.envelope import Bind
from sidecar.rails.messaging.identity import Identity
from sidecar.rails.names import headers
from sidecar.rails.names.principals import LOCAL_OWNER, Lifecycle, Principal
from sidecar.rails.planes.registration.register import Registered
from sidecar.rails.space.ceilings import ceiling_of
from sidecar.rails.space.creds import write_creds
from sidecar.rails.space.grants import permissions
from sidecar.rails.space.holder import Capability, Form, Holder, Profile
from sidecar.rails.space.issuance import issue, new_generation
from sidecar.rails.space.trust import new_user
from tests.e2e.devset import DevSet, dev_set
from tests.interop.js.driver import JsFailed, JsProgram

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(300)]

SAMPLE, FOREIGN, SPACE = "dev.sidecar.sample", "com.example.foreign", "main"
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with dev_set(tmp_path_factory.mktemp("js") / "dev") as made:
        yield made


def options(running: DevSet, creds: Path) -> dict[str, Any]:
    """How a JavaScript program connects with a creds file."""
    identity = Identity.from_creds(creds.read_bytes())
    return {"url": running.ready["nats"]["url"], "space": SPACE, "creds": str(creds), **identity.lifecycle.names}


def alices(running: DevSet) -> Path:
    return Path(running.ready["nats"]["principals"]["alice"]["creds"])


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def alice(running: DevSet) -> AsyncIterator[JsProgram]:
    async with JsProgram("caller.mjs", options(running, alices(running))) as program:
        yield program


def samples(running: DevSet) -> dict[str, int]:
    """Instances of the sample and their epochs."""
    (found,) = [one for one in running.ready["nats"]["endpoints"] if one["name"] == SAMPLE]
    return {one["instance_id"]: one["epoch"] for one in found["instances"]}


# ---- a JavaScript caller ----


@pytest.mark.req("C13-01", "C13.7-65", "C13.7-36", "C13.2-49")
async def test_javascript_describes_the_sample_and_checks_every_digest(alice: JsProgram, running: DevSet) -> None:
    told = await alice.do("describe", endpoint=SAMPLE)
    assert told["descriptor"]["protocol"] == {"v": 2}
    assert set(told["commands"]) == {"echo", "add", "sleep", "fail", "count", "whoami"}
    assert told["commands"]["add"]["effect"] == "read"
    assert told["commands"]["whoami"]["modes"] == ["self"]
    assert (told["reply"]["instance"], told["reply"]["epoch"]) in samples(running).items()


@pytest.mark.req("C13.5-01", "C13.2-15", "C13.3-12")
async def test_javascript_calls_the_sample(alice: JsProgram, running: DevSet) -> None:
    echo = await alice.do("call", endpoint=SAMPLE, command="echo", args={"text": "gr\u00fc\u00df \U0001f600"})
    assert echo["reply"]["data"] == {"text": "gr\u00fc\u00df \U0001f600"}
    assert (await alice.do("call", endpoint=SAMPLE, command="add", args={"a": 2, "b": -5}))["reply"]["data"] == {
        "sum": -3
    }
    for instance, epoch in samples(running).items():
        named = await alice.do("call", endpoint=SAMPLE, command="echo", args={"text": "x"}, instance=instance)
        assert (named["reply"]["instance"], named["reply"]["epoch"]) == (instance, epoch)


@pytest.mark.req("C13.2-20", "C13.2-29", "C13.3-20")
async def test_javascript_is_told_who_it_is(alice: JsProgram, running: DevSet) -> None:
    told = await alice.do("call", endpoint=SAMPLE, command="whoami", to={"mode": "self"})
    mine = running.ready["nats"]["principals"]["alice"]
    assert told["reply"]["data"] == {"owner": mine["owner"], "actor": mine["actor"], "uid": mine["lifecycle_uid"]}
    target = {"owner": mine["owner"], "actor": mine["actor"], "lifecycleUid": mine["lifecycle_uid"]}
    refused = await alice.do("call", endpoint=SAMPLE, command="whoami", to={"mode": "self"}, target=target)
    assert (refused["reply"]["code"], refused["reply"]["outcome"]) == ("target-mismatch", "not-executed")


@pytest.mark.req("C13.3-39", "C13.3-41", "C13.3-44", "C13.3-45")
@pytest.mark.parametrize(("after", "outcome"), [(False, "not-executed"), (True, "executed")])
async def test_javascript_sees_each_outcome(alice: JsProgram, after: bool, outcome: str) -> None:
    args = {"code": "failed-precondition", "after": after}
    reply = (await alice.do("call", endpoint=SAMPLE, command="fail", args=args))["reply"]
    assert (reply["ok"], reply["code"], reply["outcome"]) == (False, "failed-precondition", outcome)


@pytest.mark.req("C13.3-09", "C13.3-11", "C13.3-13", "C13.3-14", "C13.3-16", "C13.3-28", "C13.3-29", "C13.2-54")
@pytest.mark.parametrize(
    ("over", "code"),
    [
        ({"v": 2}, "unsupported-version"),
        ({"id": "a.b"}, "bad-request"),
        ({"op": {"endpoint": SAMPLE, "command": "add"}}, "op-mismatch"),
        ({"op": {"endpoint": SAMPLE, "command": "echo"}}, "contract-mismatch"),
        ({"class": "journal"}, "class-mismatch"),
        ({"args": {"text": 7}}, "bad-request"),
        ({"args": {"text": "x", "more": 1}}, "bad-request"),
        ({"from": {"id": "local.mallory", "name": "m"}}, "sender-mismatch"),
        ({"bind": {"instanceId": "0" * 26, "epoch": 0}}, "failed-precondition"),
        ({"deadlineMs": 0}, "bad-request"),
        ({"goalId": "g"}, "bad-request"),
    ],
)
async def test_what_javascript_may_get_wrong_has_its_code(alice: JsProgram, over: dict[str, Any], code: str) -> None:
    found = await alice.do("call", endpoint=SAMPLE, command="echo", args={"text": "x"}, over=over)
    if over.get("id"):  # the answer to an id that is none is not under it
        assert found["reply"]["invalid"] == "id is invalid"
        return
    assert (found["reply"]["code"], found["reply"]["outcome"]) == (code, "not-executed")


@pytest.mark.req("C13.3-49", "C13.5-02")
async def test_javascript_is_told_by_the_broker_that_nobody_is_there(running: DevSet, alice: JsProgram) -> None:
    gone = "f" * 26
    found = await alice.do("call", endpoint=SAMPLE, command="echo", args={"text": "x"}, instance=gone)
    assert (found["nobody"], found["replies"]) == (True, [])


@pytest.mark.req("C13.3-50")
async def test_a_deadline_in_javascript_leaves_it_open_what_happened(alice: JsProgram) -> None:
    # The instance may go on: at the caller's own deadline it would say so too, and race with its end.
    found = await alice.do("call", endpoint=SAMPLE, command="sleep", args={"ms": 3_000}, ms=300, deadlineMs=5_000)
    assert (found["replies"], found["nobody"], found["refused"]) == ([], False, None)


@pytest.mark.req("C13.5-04", "C13.3-18", "C13.2-16")
async def test_a_cast_from_javascript_is_executed_once_and_never_answered(alice: JsProgram) -> None:
    async def count() -> int:
        """Counts on in both instances: the sum of what they say."""
        found = await alice.do("scatter", endpoint=SAMPLE, command="count", enough=2)
        return sum(one["data"]["count"] for one in found["replies"])

    before = await count()
    assert (await alice.do("cast", endpoint=SAMPLE, command="count"))["refused"] is None
    async with asyncio.timeout(20):
        for asked in itertools.count(1):
            now = await count()
            if now == before + 2 * asked + 1:
                break
            assert now == before + 2 * asked
    assert await count() == now + 2


@pytest.mark.req("C13.5-22", "C13.2-14")
async def test_javascript_hears_every_instance_once(alice: JsProgram, running: DevSet) -> None:
    found = await alice.do("scatter", endpoint=SAMPLE, command="echo", args={"text": "all"}, enough=2)
    assert {(one["instance"], one["epoch"]) for one in found["replies"]} == set(samples(running).items())


@pytest.mark.req("C13.2-15", "C13.2-26", "C13.2-47")
async def test_the_broker_keeps_javascript_to_its_own_rows(alice: JsProgram, running: DevSet) -> None:
    mine = options(running, alices(running))
    triple = f"{mine['owner']}.{mine['actor']}.{mine['uid']}"
    for subject in (
        f"cotal.{SPACE}.ep.one.dev_sidecar_sample.echo.>",
        f"cotal.{SPACE}.ep.reply.>",
        f"cotal.{SPACE}.ep.v1.reply.*.*.*.{triple}.{'0' * 32}.*",
    ):
        assert (await alice.do("subscribed", subject=subject))["refused"], subject
    assert (await alice.do("subscribed", subject=f"cotal.{SPACE}.ep.reply.*.*.*.{triple}.*"))["refused"] is None


@pytest.mark.req("C13.5-03", "C13.5-06")
async def test_an_observer_in_javascript_is_refused_by_the_broker(running: DevSet, alice: JsProgram) -> None:
    creds = Path(running.ready["nats"]["principals"]["bob"]["creds"])
    stolen = {**options(running, creds), "actor": options(running, alices(running))["actor"]}
    async with JsProgram("caller.mjs", stolen) as bob:
        with pytest.raises(JsFailed, match="shows no command"):
            await bob.do("call", endpoint=SAMPLE, command="echo", args={"text": "x"}, ms=2_000)
        described = await bob.do("describe", endpoint=SAMPLE, ms=2_000)
        assert described["replies"] == []
        assert described["refused"]


@pytest.mark.req("C13.15-11", "C13.15-28", "C13.15-29", "C13.15-30", "C13.20-03", "C13.20-11")
async def test_javascript_lists_with_the_generation_of_its_accepted_row(alice: JsProgram, running: DevSet) -> None:
    told = await alice.do("listing", limit=100)
    assert told["reply"]["data"]["source"] == "recorded-ceiling"
    rows = {row["endpoint"]: row for row in told["reply"]["data"]["rows"]}
    assert {one["name"] for one in rows[SAMPLE]["commands"]} >= {"echo", "whoami"}
    page = (await alice.do("listing", limit=1))["reply"]["data"]
    assert [row["endpoint"] for row in page["rows"]] == [page["next"]] == sorted(rows)[:1]
    expires = Identity.from_creds(alices(running).read_bytes()).expires_at
    assert int(told["generation"][:8], 16) == expires
    other = Path(running.ready["nats"]["principals"]["observer"]["creds"])
    async with JsProgram("caller.mjs", options(running, other)) as observer:
        with pytest.raises(JsFailed):
            await observer.do("listing")


@contextlib.asynccontextmanager
async def issued(running: DevSet, directory: Path) -> AsyncIterator[JsProgram]:
    """A JavaScript caller with a credential of the issued rail, recorded before it is handed out."""
    nats, at = running.ready["nats"], int(time.time())
    lifecycle, key, ends = Lifecycle(Principal(LOCAL_OWNER, "ivy"), "i" * 26), new_user(os.urandom), at + 600
    generation, creds = new_generation(ends, os.urandom), directory / "ivy.creds"
    may = (Capability(SAMPLE, "echo"), Capability(SAMPLE, "whoami", "self"))
    holder = Holder(SPACE, lifecycle, key.public, Form.COMPATIBLE, capabilities=may, generation=generation)
    async with open_space(Path(nats["root"]), SPACE, nats["url"]) as space:
        token = space.account.issue(Profile.AGENT, holder, key, at, 600)
        ceiling = ceiling_of(permissions(Profile.AGENT, holder))
        issuer = await space.as_(Profile.ISSUER)
        await issue(issuer, SPACE, lifecycle, generation, ceiling, ends, os.urandom(16).hex(), now=at)
    write_creds(creds, token, key)
    async with JsProgram("caller.mjs", {**options(running, creds), "generation": generation}) as program:
        yield program


@pytest.mark.req("C13.2-25", "C13.2-26", "C13.2-27", "C13.2-28", "C13.15-04", "C13.7-66")
async def test_javascript_rides_the_issued_rail_and_sees_what_it_holds(running: DevSet, tmp_path: Path) -> None:
    os.chmod(tmp_path, 0o700)
    async with issued(running, tmp_path) as ivy:
        told = await ivy.do("describe", endpoint=SAMPLE)
        assert ".ep.v1.one." in told["subject"]
        assert set(told["commands"]) == {"echo", "whoami"}  # a part of a cluster comes by digest, from the registry
        (cluster,) = told["descriptor"]["clusters"]
        assert "document" not in cluster
        echo = await ivy.do("call", endpoint=SAMPLE, command="echo", args={"text": "v1"})
        assert echo["reply"]["data"] == {"text": "v1"}
        who = await ivy.do("call", endpoint=SAMPLE, command="whoami", to={"mode": "self"})
        assert (who["reply"]["data"]["actor"], who["reply"]["data"]["uid"]) == ("ivy", "i" * 26)
        refused = await ivy.do("cast", endpoint=SAMPLE, command="echo", args={"text": "x"}, to={"mode": "self"})
        assert refused["refused"]
        gone = await ivy.do("call", endpoint=SAMPLE, command="echo", args={"text": "x"}, instance="f" * 26)
        assert gone["refused"] or gone["nobody"]


# ---- an instance in JavaScript ----

TEXT: dict[str, JsonValue] = {
    "type": "object",
    "properties": {"text": {"type": "string"}},
    "required": ["text"],
    "additionalProperties": False,
}
WHO: dict[str, JsonValue] = {"type": "object", "properties": {"owner": {"type": "string"}, "actor": {"type": "string"}}}
COUNT: dict[str, JsonValue] = {"type": "object", "properties": {"count": {"type": "integer"}}, "required": ["count"]}


def foreign() -> Endpoint:
    """The contract that both sides keep; who handles it is written in JavaScript."""
    made = Endpoint(FOREIGN, protocol=2, public=True)

    async def elsewhere(call: Call) -> JsonValue:
        raise AssertionError("this is served by another program")

    made.command("echo", input=TEXT, output=TEXT, effect="read")(elsewhere)
    made.command("wrong", output=TEXT, effect="read")(elsewhere)
    made.command("whoami", output=WHO, effect="read", modes=("self",))(elsewhere)
    made.command("about", output=WHO, effect="read", modes=("any",))(elsewhere)
    made.command("count", output=COUNT)(elsewhere)
    made.command("hang")(elsewhere)
    made.command("fail", input={"type": "object"})(elsewhere)
    return made


class Foreign:
    """One instance in JavaScript."""

    def __init__(self, program: JsProgram, registered: Registered) -> None:
        self.program, self.registered = program, registered

    @property
    def bind(self) -> Bind:
        return Bind(self.registered.instance, self.registered.epoch)


@contextlib.asynccontextmanager
async def instance(running: DevSet, directory: Path, name: str) -> AsyncIterator[Foreign]:
    """Register an instance and let JavaScript serve it."""
    nats = running.ready["nats"]
    root, endpoint, creds = Path(nats["root"]), foreign(), directory / f"{name}.creds"
    domains.claim(root, SPACE, "com.example", LOCAL_OWNER)
    registered = await endpoint_host.register(
        root, SPACE, nats["url"], endpoint, owner=LOCAL_OWNER, out=creds, instance=(name * 26)[:26]
    )
    descriptor = {
        "endpoint": FOREIGN,
        "owner": LOCAL_OWNER,
        "protocol": {"v": 2},
        "clusters": [
            {"digest": one.closure, "commands": [each.name for each in one.commands], "document": one.value()}
            for one in endpoint.surface.clusters
        ],
    }
    (cluster,) = [json.loads(json.dumps(one.value())) for one in endpoint.surface.clusters]
    commands = {one["name"]: one for one in cluster["commands"]}
    async with JsProgram("responder.mjs", options(running, creds)) as program:
        serving = {"instance": registered.instance, "epoch": registered.epoch}
        await program.do("serve", space=SPACE, descriptor=descriptor, commands=commands, **serving)
        await program.do("status", space=SPACE, state="ready", observedSpecRevision=registered.registration_revision)
        yield Foreign(program, registered)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def two(running: DevSet, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[tuple[Foreign, Foreign]]:
    directory = tmp_path_factory.mktemp("foreign")
    os.chmod(directory, 0o700)
    async with instance(running, directory, "one") as first, instance(running, directory, "two") as second:
        yield first, second


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def carol(running: DevSet, two: tuple[Foreign, Foreign]) -> AsyncIterator[Caller]:
    """A caller of ours that holds every command of the foreign endpoint."""
    may = ("--may", f"{FOREIGN}:*")
    done = running.cli("principal", "add", "--actor", "carol", "--owner", "local", "--space", SPACE, *may, "--json")
    assert done.returncode == 0, done.stderr
    creds = Path(json.loads(done.stdout)["creds"])
    async with calling(Access.of(running.ready["nats"]["url"], creds), 20) as caller:
        yield caller


@pytest.mark.req("C13-01", "C13-02", "C13.7-36", "C13.5-01")
async def test_our_caller_resolves_and_calls_javascript(carol: Caller, two: tuple[Foreign, Foreign]) -> None:
    described = await carol.describe(FOREIGN)
    assert (described.descriptor.public, described.descriptor.protocol) == (True, 2)
    answer = await carol.invoke(FOREIGN, "echo", {"text": "hi"}, correlation={"traceparent": TRACE})
    assert answer.data == {"text": "hi"}
    assert Bind(answer.instance, answer.epoch) in [one.bind for one in two]
    handled = [one for each in two for one in await each.program.do("handled") if one["command"] == "echo"]
    assert [one["args"] for one in handled] == [{"text": "hi"}]
    assert handled[0]["correlation"]["traceparent"].split("-")[1] == TRACE.split("-")[1]


@pytest.mark.req("C13.2-49", "C13.2-53", "C13.2-54", "C13.2-55")
async def test_our_bind_is_kept_and_refused_by_javascript(carol: Caller, two: tuple[Foreign, Foreign]) -> None:
    first, _ = two
    for one in two:
        answer = await carol.invoke(FOREIGN, "echo", {"text": "x"}, instance=one.bind.instance, bind=one.bind)
        assert Bind(answer.instance, answer.epoch) == one.bind
    with pytest.raises(CallRefused) as caught:
        await carol.invoke(
            FOREIGN, "count", instance=first.bind.instance, bind=Bind(first.bind.instance, first.bind.epoch + 1)
        )
    assert (caught.value.code, caught.value.outcome) == (Code.EXPIRED, Outcome.NOT_EXECUTED)
    assert caught.value.has(headers.DETAIL_BIND_REFUSED)
    for one in two:
        assert "count" not in [each["command"] for each in await one.program.do("handled")]


@pytest.mark.req("C13.2-20", "C13.2-37", "C13.3-21")
async def test_our_targets_reach_javascript(carol: Caller, two: tuple[Foreign, Foreign], running: DevSet) -> None:
    who = await carol.call(FOREIGN, "whoami", target=To("self"))
    assert isinstance(who, dict)
    assert who["actor"] == "carol"
    with pytest.raises(CallFailed) as caught:  # nobody mints the mode any for an agent
        await carol.call(FOREIGN, "about", target=To("any", LOCAL_OWNER, "carol", "c" * 26))
    assert (caught.value.code, caught.value.outcome) == (Code.PERMISSION_DENIED, Outcome.NOT_EXECUTED)


@pytest.mark.req("C13.5-21", "C13.5-22", "C13.5-24")
async def test_our_scatter_hears_both_in_javascript(carol: Caller, two: tuple[Foreign, Foreign]) -> None:
    found = await carol.scatter(FOREIGN, "echo", {"text": "all"}, seconds=20)
    assert found.complete
    assert set(found.replies) == {one.bind.instance for one in two}
    assert all(isinstance(one, Answer) and one.data == {"text": "all"} for one in found.replies.values())


@pytest.mark.req("C13.3-39", "C13.3-48")
@pytest.mark.parametrize("outcome", list(Outcome))
async def test_our_caller_adopts_the_outcome_that_javascript_says(carol: Caller, outcome: Outcome) -> None:
    with pytest.raises(CallRefused) as caught:
        await carol.call(FOREIGN, "fail", {"code": "com.example.broken", "outcome": outcome.value})
    assert (caught.value.code, caught.value.outcome) == ("com.example.broken", outcome)


@pytest.mark.req("C13.3-50", "C13.7-13")
async def test_silence_of_javascript_is_unknown_and_never_repeated(carol: Caller, two: tuple[Foreign, Foreign]) -> None:
    for one in two:
        await one.program.do("handled")
    with pytest.raises(CallFailed) as caught:
        await carol.call(FOREIGN, "hang", seconds=1)
    assert (caught.value.code, caught.value.outcome) == (Code.DEADLINE_EXCEEDED, Outcome.UNKNOWN)
    handled = [one["command"] for each in two for one in await each.program.do("handled")]
    assert handled.count("hang") == 1


@pytest.mark.req("C13.3-36", "C13.3-48")
async def test_a_result_outside_of_the_contract_is_no_answer(carol: Caller) -> None:
    with pytest.raises(CallFailed) as caught:
        await carol.call(FOREIGN, "wrong")
    assert caught.value.outcome is Outcome.EXECUTED


@pytest.mark.req("C13.5-04", "C13.3-18")
async def test_our_cast_reaches_javascript_once(carol: Caller, two: tuple[Foreign, Foreign]) -> None:
    await carol.contract(FOREIGN, "count")  # it describes an instance when nobody has before
    for one in two:
        await one.program.do("handled")
    await carol.cast(FOREIGN, "count")
    handled: list[dict[str, Any]] = []
    async with asyncio.timeout(20):
        while not handled:
            handled += [one for each in two for one in await each.program.do("handled")]
    assert [(one["command"], one["cast"]) for one in handled] == [("count", True)]


@pytest.mark.req("C13.5-27", "C13.5-28", "C13.7-61")
async def test_the_record_of_javascript_says_ready_and_a_gone_one_is_gone(
    running: DevSet, carol: Caller, two: tuple[Foreign, Foreign], tmp_path: Path
) -> None:
    first, _ = two
    async with asyncio.timeout(20):
        async for record in carol.watch_instance(FOREIGN, first.bind.instance):
            if record.status is not None and record.status["state"] == "ready":
                assert record.status["epoch"] == first.bind.epoch
                break
    assert await carol.probe(FOREIGN, first.bind.instance) is Probe.ANSWERED
    assert await carol.probe(FOREIGN, "f" * 26) is Probe.GONE


@pytest.mark.req("C13.1-029", "C13.14-01")
async def test_a_taken_over_javascript_instance_serves_no_more(running: DevSet, carol: Caller, tmp_path: Path) -> None:
    os.chmod(tmp_path, 0o700)
    async with instance(running, tmp_path, "six") as old:
        alone = old.bind.instance
        assert (await carol.invoke(FOREIGN, "echo", {"text": "a"}, instance=alone)).epoch == old.bind.epoch
        async with instance(running, tmp_path, "six") as new:
            assert new.bind.epoch == old.bind.epoch + 1
            answer = await carol.invoke(FOREIGN, "echo", {"text": "b"}, instance=alone)
            assert Bind(answer.instance, answer.epoch) == new.bind
            found = await carol.scatter(FOREIGN, "echo", {"text": "c"}, seconds=20)
            told = found.replies[alone]
            assert isinstance(told, Answer)
            assert told.epoch == new.bind.epoch
            assert not found.duplicate
            assert not found.unexpected
