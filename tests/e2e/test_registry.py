"""The registry's question and its reads, over stores that are filled by hand, at a real broker (13.20)."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from sidecar.base.strictjson import JsonValue
from sidecar.rails.connection.kv import Unreadable
from sidecar.rails.endpoint.clusters import read_cluster
from sidecar.rails.endpoint.codes import Code, Outcome, Refusal
from sidecar.rails.names import api, buckets, headers, planes
from sidecar.rails.names.principals import Principal
from sidecar.rails.planes.registration.gates import Gate, GateState, Intent, Op
from sidecar.rails.planes.registry import reads
from sidecar.rails.planes.registry import registry as module
from sidecar.rails.planes.registry.reads import Misshapen
from sidecar.rails.space.evidence import AttemptState, attempt_subject, evidence_subject
from tests.e2e.plain_broker import plain_broker
from tests.e2e.registry_scene import (
    ALICE,
    BOB,
    INSTANCE,
    SECOND,
    SERVING,
    THIRD,
    cluster,
    command,
    later,
    scene,
)

pytestmark = pytest.mark.asyncio(loop_scope="function")
SAMPLE = "dev.sample"


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    with plain_broker(tmp_path_factory.mktemp("registry")) as port:
        yield port


@contextlib.asynccontextmanager
async def refused(code: Code, message: str) -> AsyncIterator[None]:
    """The block is refused with this code and this fixed message, before any effect."""
    with pytest.raises(Refusal) as caught:
        yield
    assert (caught.value.code, caught.value.message, caught.value.outcome) == (code, message, Outcome.NOT_EXECUTED)


def names(answer: dict[str, Any]) -> list[str]:
    return [one["endpoint"] for one in answer["rows"]]


# ---- the list ----


@pytest.mark.req("C13.20-03", "C13.20-04", "C13.20-10", "C13.20-11")
async def test_a_caller_is_told_of_the_endpoints_that_its_ceiling_covers(port: int) -> None:
    async with scene(port) as made:
        await made.register("dev.zeta", INSTANCE, [cluster("echo", "add")])
        await made.register(SAMPLE, INSTANCE, [cluster("echo", "add")])
        await made.register("dev.hidden", INSTANCE, [cluster("echo")])
        rows = (*made.endpoint_rows(ALICE, SAMPLE, "echo"), *made.endpoint_rows(ALICE, "dev.zeta", "add"))
        generation = await made.issue(ALICE, rows)
        answer = await made.ask("endpoints", ALICE, {}, generation)
        assert answer["source"] == "recorded-ceiling"
        assert "next" not in answer
        assert names(answer) == [SAMPLE, "dev.zeta"]
        every = {"literals": {"nonce": []}, "covered": [{"nonce": "*"}]}
        assert answer["rows"][0] == {
            "endpoint": SAMPLE,
            "instances": [{"instanceId": INSTANCE, "state": "ready", "artifacts": "verified"}],
            "commands": [
                {
                    "name": "echo",
                    "class": "ephemeral",
                    "forms": [
                        {"rail": "ep", "route": "one", **every},
                        {"rail": "ep.v1", "route": "one", **every},
                    ],
                }
            ],
        }
        assert "hidden" not in json.dumps(answer)


@pytest.mark.req("C13.20-10", "C13.20-03")
async def test_a_caller_without_anything_is_told_of_nothing(port: int) -> None:
    async with scene(port) as made:
        await made.register(SAMPLE, INSTANCE, [cluster("echo")])
        await made.register("dev.broken", INSTANCE, ["sha256:" + "0" * 64])
        # Describe is held by everybody on every endpoint, and is no declared command.
        generation = await made.issue(BOB, made.endpoint_rows(BOB, SAMPLE, "describe"))
        assert await made.ask("endpoints", BOB, {}, generation) == {"rows": [], "source": "recorded-ceiling"}


@pytest.mark.req("C13.20-05", "C13.20-13", "C13.7-19")
async def test_every_registered_instance_is_shown_with_what_became_of_its_artifacts(port: int) -> None:
    async with scene(port) as made:
        good, lost, poisoned = cluster("echo"), cluster("lost", urn="dev.lost"), cluster("spoilt", urn="dev.spoilt")
        again = cluster("echo", urn="dev.again")
        ids = [f"{number:032x}" for number in range(8)]
        await made.register(SAMPLE, ids[0], [good])
        await made.register(SAMPLE, ids[1], [good, lost], publish=False)
        await made.register(SAMPLE, ids[2], [good, poisoned], publish=False, state="starting")
        for digest in poisoned.artifacts:
            await made.put(made.artifact(digest), {"v": 1})
        await made.register(SAMPLE, ids[3], [good, again])
        await made.register(SAMPLE, ids[4], [good], state=None)
        await made.register(SAMPLE, ids[5], [good], protocol=3)
        await made.put(made.service(SAMPLE, ids[6], "spec"), b"no json")
        await made.register(SAMPLE, ids[7], [good])
        await made.delete(made.service(SAMPLE, ids[7], "spec"))
        generation = await made.issue(ALICE, None)
        (row,) = (await made.ask("endpoints", ALICE, {}, generation))["rows"]
        assert [(one["instanceId"], one["state"], one["artifacts"]) for one in row["instances"]] == [
            (ids[0], "ready", "verified"),
            (ids[1], "ready", "missing"),
            (ids[2], "starting", "invalid"),
            (ids[3], "ready", "invalid"),  # two clusters declare echo
            (ids[4], None, "verified"),
            (ids[5], "ready", "invalid"),
            (ids[6], None, "invalid"),
        ]
        assert [(one["name"], one["instances"]) for one in row["commands"]] == [("echo", [ids[0], ids[4]])]
        assert "protocol.v" in made.log.getvalue()
        # It is said once, and again when it is another reason.
        said = made.log.getvalue()
        await made.ask("endpoints", ALICE, {}, generation)
        assert made.log.getvalue() == said
        await made.register(SAMPLE, ids[6], [lost], publish=False)
        await made.ask("endpoints", ALICE, {}, generation)
        assert made.log.getvalue().count(ids[6]) == 2


@pytest.mark.req("C13.20-05")
async def test_a_state_that_is_none_is_null_and_a_spec_of_another_endpoint_declares_nothing(port: int) -> None:
    async with scene(port) as made:
        await made.register(SAMPLE, INSTANCE, [cluster("echo")], state=None)
        await made.put(made.service(SAMPLE, INSTANCE, "status"), {"state": 1})
        spec = {"endpoint": "dev.other", "owner": "local", "clusterDigests": [cluster("echo").closure]}
        await made.put(made.service(SAMPLE, SECOND, "spec"), {**spec, "protocol": {"v": 1}})
        (row,) = (await made.ask("endpoints", ALICE, {}, await made.issue(ALICE, None)))["rows"]
        shown = [(one["state"], one["artifacts"]) for one in row["instances"]]
        assert shown == [(None, "verified"), (None, "invalid")]


@pytest.mark.req("C13.20-06")
async def test_instances_that_differ_give_one_entry_for_each_declaration(port: int) -> None:
    async with scene(port) as made:
        await made.register(SAMPLE, INSTANCE, [cluster("echo", "add")])
        other: dict[str, JsonValue] = {"urn": "dev.sample", "revision": 2, "attributes": [], "events": []}
        targeted = read_cluster({**other, "commands": [command("echo", "self", "owner"), command("add")]}, 1)
        journal = read_cluster({**other, "commands": [command("echo", journal=True), command("add")]}, 1)
        swapped = read_cluster({**other, "commands": [command("echo", "owner", "self"), command("add")]}, 1)
        await made.register(SAMPLE, SECOND, [targeted])
        await made.register(SAMPLE, THIRD, [journal])
        await made.register(SAMPLE, "4" * 32, [swapped])
        (row,) = (await made.ask("endpoints", ALICE, {}, await made.issue(ALICE, None)))["rows"]
        entries = [(one["name"], one["class"], one.get("instances")) for one in row["commands"]]
        assert entries == [
            ("add", "ephemeral", None),
            ("echo", "ephemeral", [INSTANCE]),
            ("echo", "ephemeral", [SECOND, "4" * 32]),
            ("echo", "journal", [THIRD]),
        ]
        inst = [form for form in row["commands"][2]["forms"] if form.get("route") == "inst"]
        assert {form["mode"] for form in inst} == {"self", "owner"}
        assert all(form["literals"]["instanceId"] == [SECOND, "4" * 32] for form in inst)


@pytest.mark.req("C13.20-08")
async def test_a_command_with_too_many_combinations_is_named_and_not_listed(port: int) -> None:
    async with scene(port) as made:
        await made.register(SAMPLE, INSTANCE, [cluster("echo", "add")])
        nonces = [f"*.*.ep.one.*.echo.*.*.*.{number:022d}" for number in range(4_096)]
        extra = f"cotal.{made.space}.ep.one.dev_sample.add.>"
        generation = await made.issue(ALICE, (*nonces[:4_095], extra))
        (row,) = (await made.ask("endpoints", ALICE, {}, generation))["rows"]
        assert [one["name"] for one in row["commands"]] == ["add", "echo"]
        (row,) = (await made.ask("endpoints", ALICE, {}, await made.issue(ALICE, tuple(nonces))))["rows"]
        assert (row["commands"], row["unprojected"]) == ([], ["echo"])


@pytest.mark.req("C13.20-14", "C13.20-04", "C13.20-03")
async def test_pages_are_in_order_and_end_where_the_last_one_says(port: int) -> None:
    async with scene(port) as made:
        listed = sorted(f"dev.e{number}" for number in range(7))
        for name in reversed(listed):
            await made.register(name, INSTANCE, [cluster("echo")])
        generation = await made.issue(ALICE, None)
        found: list[str] = []
        after: dict[str, str] = {}
        for size in (3, 3, 1):
            answer = await made.ask("endpoints", ALICE, {"limit": 3, **after}, generation)
            assert len(answer["rows"]) == size
            found += names(answer)
            if size == 3:
                assert answer["next"] == names(answer)[-1]
                after = {"after": answer["next"]}
        assert "next" not in answer
        assert found == listed
        # What the ceiling does not cover is no reason for a next page.
        only = await made.issue(ALICE, made.endpoint_rows(ALICE, "dev.e0", "echo"))
        assert "next" not in await made.ask("endpoints", ALICE, {"limit": 1}, only)


@pytest.mark.req("C13.20-14", "C13.20-13")
async def test_a_page_fits_into_one_message_and_a_row_that_does_not_is_refused(
    tmp_path: Path,
) -> None:
    with plain_broker(tmp_path, "max_payload: 16384\n") as port:
        async with scene(port) as made:
            for number in range(6):
                for instance in range(40):
                    await made.register(f"dev.e{number}", f"{instance:032x}", [cluster("echo")])
            generation = await made.issue(ALICE, (f"cotal.{made.space}.ep.one.>",))
            found: list[str] = []
            args: dict[str, str] = {}
            pages = 0
            while True:
                answer = await made.ask("endpoints", ALICE, args, generation)
                assert len(json.dumps(answer, separators=(",", ":"))) < 16_384 - 1_024
                found += names(answer)
                pages += 1
                if "next" not in answer:
                    break
                args = {"after": answer["next"]}
            assert found == [f"dev.e{number}" for number in range(6)]
            assert pages > 1
            for instance in range(40, 200):
                await made.register("dev.e9", f"{instance:032x}", [cluster("echo")])
            async with refused(Code.RESOURCE_EXHAUSTED, module.TOO_LARGE):
                await made.ask("endpoints", ALICE, {"after": "dev.e8"}, generation)


@pytest.mark.req("C13.20-12")
async def test_without_a_permission_system_everything_is_listed_with_empty_forms(port: int) -> None:
    async with scene(port, permissions=False) as made:
        await made.register(SAMPLE, INSTANCE, [cluster("echo")])
        await made.register("dev.broken", INSTANCE, ["sha256:" + "0" * 64])
        answer = await made.ask("endpoints", ALICE, {})
        assert answer["source"] == "no-permission-system"
        assert [(one["endpoint"], one["commands"]) for one in answer["rows"]] == [
            ("dev.broken", []),
            (SAMPLE, [{"name": "echo", "class": "ephemeral", "forms": []}]),
        ]


# ---- the ceiling (C13.20-11, -13) ----


@pytest.mark.req("C13.20-11", "C13.20-13")
async def test_the_legacy_rail_is_bound_to_no_ceiling(port: int) -> None:
    async with scene(port) as made:
        await made.issue(ALICE, None)
        with pytest.raises(Refusal) as caught:
            await made.ask("endpoints", ALICE, {})
        assert (caught.value.code, caught.value.message) == (Code.PERMISSION_DENIED, module.UNBOUND)
        assert caught.value.details == ({"kind": headers.DETAIL_UNBOUND_AUTHORITY},)
        assert made.refused("unbound") == 1


@pytest.mark.req("C13.20-11", "C13.20-13", "C13.15-03")
async def test_a_generation_that_is_not_live_is_refused_with_one_message(port: int) -> None:
    async with scene(port) as made:
        dead = [
            await made.issue(ALICE, None, seconds=-1),
            await made.issue(ALICE, None, state=None),
            await made.issue(ALICE, None, state=AttemptState.PREPARED),
            await made.issue(ALICE, None, state=AttemptState.ABORTED),
            await made.issue(ALICE, None, state=AttemptState.REVOKED),
            await made.issue(ALICE, None, expires=int(later(-5)().wall)),
            await made.issue(BOB, None),  # of another triple
            "f" * 32,
        ]
        for generation in dead:
            async with refused(Code.PERMISSION_DENIED, module.NOT_LIVE):
                await made.ask("endpoints", ALICE, {}, generation)
        assert made.refused("not_live") == len(dead)
        assert not any(one in module.NOT_LIVE for one in dead)


@pytest.mark.req("C13.20-11", "C13.15-13")
async def test_a_horizon_that_passes_during_the_read_is_looked_at_again(port: int) -> None:
    async with scene(port) as made:
        generation = await made.issue(ALICE, None, seconds=30)
        assert await made.ask("endpoints", ALICE, {}, generation)
        looks = iter([0.0, 0.0, 100.0])
        made.registry._ceilings._clock = lambda: later(next(looks))()
        async with refused(Code.PERMISSION_DENIED, module.NOT_LIVE):
            await made.ask("endpoints", ALICE, {}, generation)
        assert next(looks, None) is None


@pytest.mark.req("C13.20-11", "C13.20-13")
@pytest.mark.parametrize(
    ("state", "code", "message"),
    [
        (AttemptState.REVOKED, Code.PERMISSION_DENIED, module.NOT_LIVE),
        (AttemptState.ACTIVE, Code.UNAVAILABLE, module.NO_CEILING),
    ],
)
async def test_an_attempt_row_that_moves_between_its_two_reads_is_refused(
    port: int, monkeypatch: pytest.MonkeyPatch, state: AttemptState, code: Code, message: str
) -> None:
    async with scene(port) as made:
        generation = await made.issue(ALICE, None)
        ref = made.ref(ALICE, generation)
        reader = made.registry.records.reader
        read = reader.last
        reads = 0

        async def last(stream: str, subject: str) -> Any:
            nonlocal reads
            found = await read(stream, subject)
            if subject == attempt_subject(ref):
                reads += 1
                if reads == 1:
                    await made.attempt(ref, state)
            return found

        monkeypatch.setattr(reader, "last", last)
        async with refused(code, message):
            await made.ask("endpoints", ALICE, {}, generation)
        assert reads == 2


@pytest.mark.req("C13.15-08")
async def test_evidence_is_the_first_message_of_its_key(port: int) -> None:
    async with scene(port) as made:
        await made.register(SAMPLE, INSTANCE, [cluster("echo")])
        await made.register("dev.other", INSTANCE, [cluster("echo")])
        generation = await made.issue(ALICE, made.endpoint_rows(ALICE, SAMPLE, "echo"))
        wide = await made.issue(ALICE, None)
        row = await made.registry.records.reader.last(
            buckets.ISSUED.stream(made.space), evidence_subject(made.ref(ALICE, wide))
        )
        assert row is not None
        forged = json.loads(row.data)
        forged["ref"]["generation"] = generation
        await made.put(evidence_subject(made.ref(ALICE, generation)), forged)
        assert names(await made.ask("endpoints", ALICE, {}, generation)) == [SAMPLE]


@pytest.mark.req("C13.20-13")
async def test_a_ceiling_that_cannot_be_read_is_unavailable_and_names_nothing(port: int) -> None:
    async with scene(port) as made:
        generation = await made.issue(ALICE, None)
        broken = made.ref(ALICE, "f" * 32)
        await made.put(evidence_subject(broken), b"no evidence")
        await made.attempt(broken, AttemptState.ACTIVE)
        async with refused(Code.UNAVAILABLE, module.NO_CEILING):
            await made.ask("endpoints", ALICE, {}, broken.generation)
        await made.connection.request(api.STREAM_DELETE.build(stream=buckets.ISSUED.stream(made.space)))
        async with refused(Code.UNAVAILABLE, module.NO_CEILING):
            await made.ask("endpoints", ALICE, {}, generation)
        assert made.refused("ceiling") == 2
        assert "evidence is none" in made.log.getvalue()


@pytest.mark.req("C13.20-13")
async def test_records_that_cannot_be_read_are_unavailable(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reads, "SECONDS", 0.3)  # a broker answers nothing about a stream that it does not have
    async with scene(port) as made:
        generation = await made.issue(ALICE, None)
        await made.connection.request(api.STREAM_DELETE.build(stream=buckets.RECORDS.stream(made.space)))
        for name, args in {
            "endpoints": {},
            "instances": {"endpoint": SAMPLE},
            "record": {"endpoint": SAMPLE, "instanceId": INSTANCE},
            "target": {"owner": "local", "actor": "bob"},
        }.items():
            async with refused(Code.UNAVAILABLE, module.NO_RECORDS):
                await made.ask(name, ALICE, dict(args), generation)
        assert made.refused("records") == 4


# ---- stores that are not served from ----


@pytest.mark.req("C13.12-18", "C13.15-09", "C13.12-21")
@pytest.mark.parametrize(
    "changed",
    [
        {"records": {"max_bytes": 1 << 20}},
        {"records": {"max_msgs": 1_000_000}},
        {"records": {"max_age": 10**18}},
        {"auth": {"allow_direct": True}},
        {"auth": {"max_age": 10**18}},
        {"issued": {"allow_msg_ttl": False}},
        {"issued": {"allow_direct": True}},
        {"issued": {"deny_delete": False}},
        {"issued": {"deny_purge": False}},
        {"issued": {"deny_purge": False, "allow_rollup_hdrs": True}},
        {"artifacts": {"deny_purge": False}},
        {"artifacts": {"max_age": 10**18}},
    ],
    ids=str,
)
async def test_a_store_that_may_lose_rows_is_not_served_from(port: int, changed: dict[str, Any]) -> None:
    async with scene(port, **changed) as made:
        with pytest.raises(Misshapen):
            await made.registry.records.prove()


async def test_stores_of_the_right_shape_are_served_from_and_missing_ones_are_not(port: int) -> None:
    async with scene(port) as made:
        await made.registry.records.prove()
        await made.connection.request(api.STREAM_DELETE.build(stream=buckets.AUTH.stream(made.space)))
        with pytest.raises(Unreadable):
            await made.registry.records.prove()


# ---- reads for callers ----


async def test_instances_have_the_epoch_of_their_gate_and_retired_ones_are_left_out(port: int) -> None:
    async with scene(port) as made:
        first, fourth = cluster("echo"), "4" * 32
        revision = await made.register(SAMPLE, INSTANCE, [first], epoch=7)
        await made.register(SAMPLE, SECOND, [first], state="exited", epoch=2, protocol=2, publish=False)
        await made.register(SAMPLE, THIRD, [first])
        op = Op("0" * 32, Intent.RETIREMENT)
        gate = Gate(GateState.OPEN, 1, 1, 1, 0, SERVING).frozen(op).retired(op)
        await made.put(made.gate_subject(SAMPLE, THIRD), gate.encode())
        await made.register(SAMPLE, fourth, [first])
        await made.put(made.gate_subject(SAMPLE, fourth), b"no gate")
        await made.issue(ALICE, made.endpoint_rows(ALICE, SAMPLE, "echo"))
        answer = await made.ask("instances", ALICE, {"endpoint": SAMPLE})
        assert answer["rows"][0] == {
            "instanceId": INSTANCE,
            "owner": "local",
            "registrationRevision": revision,
            "epoch": 7,
            "state": "ready",
            "clusterDigests": [first.closure],
            "protocol": 1,
        }
        assert [(one["instanceId"], one["state"]) for one in answer["rows"]] == [
            (INSTANCE, "ready"),
            (SECOND, "exited"),
        ]
        assert "next" not in answer
        assert fourth in made.log.getvalue()


@pytest.mark.req("C13.9-049", "C13.20-10")
async def test_an_endpoint_that_a_caller_does_not_hold_is_as_if_it_were_not_there(port: int) -> None:
    async with scene(port) as made:
        await made.register(SAMPLE, INSTANCE, [cluster("echo")])
        await made.register("delivery", INSTANCE, [cluster("fetch", urn="ai.cotal.delivery")])
        await made.issue(BOB, made.endpoint_rows(BOB, SAMPLE, "describe"))
        reads: dict[str, dict[str, Any]] = {
            "instances": {"endpoint": SAMPLE},
            "record": {"endpoint": SAMPLE, "instanceId": INSTANCE},
            "events": {"endpoint": SAMPLE, "topic": "ev.dev_sample.counted"},
        }
        for name, args in reads.items():
            shown = await made.ask(name, BOB, dict(args))
            assert shown == await made.ask(name, BOB, {**args, "endpoint": "dev.nothing"})
            assert not any(shown.values())
        # The triple is that of the subject: evidence of somebody else opens nothing.
        await made.issue(ALICE, None)
        assert not (await made.ask("instances", BOB, {"endpoint": SAMPLE}))["rows"]
        # What is of the space itself everybody may know, and who serves an endpoint may know of it.
        assert len((await made.ask("instances", BOB, {"endpoint": "delivery"}))["rows"]) == 1
        own = type(BOB)(SERVING, "c" * 26)
        assert len((await made.ask("instances", own, {"endpoint": SAMPLE}))["rows"]) == 1


@pytest.mark.req("C13.9-049")
async def test_a_revoked_generation_reads_nothing_any_more(port: int) -> None:
    async with scene(port) as made:
        await made.register(SAMPLE, INSTANCE, [cluster("echo")])
        generation = await made.issue(ALICE, made.endpoint_rows(ALICE, SAMPLE, "echo"))
        for asked in (None, generation):
            assert (await made.ask("instances", ALICE, {"endpoint": SAMPLE}, asked))["rows"]
        await made.attempt(made.ref(ALICE, generation), AttemptState.REVOKED)
        for asked in (None, generation):
            assert not (await made.ask("instances", ALICE, {"endpoint": SAMPLE}, asked))["rows"]


@pytest.mark.req("C13.20-06", "C13.20-14")
async def test_a_thousand_instances_are_one_row_and_are_listed_page_by_page(port: int) -> None:
    async with scene(port) as made:
        ids = [f"{number:032x}" for number in range(1_000)]
        one = cluster("echo", "add")
        await made.publish(one)

        async def register(some: list[str]) -> None:
            for instance in some:
                await made.register(SAMPLE, instance, [one], publish=False)

        await asyncio.gather(*(register(ids[at::20]) for at in range(20)))
        rows = (f"cotal.{made.space}.ep.*.dev_sample.>", f"cotal.{made.space}.ep.inst.dev_sample.*.echo.>")
        generation = await made.issue(ALICE, rows)
        (row,) = (await made.ask("endpoints", ALICE, {}, generation))["rows"]
        assert [one["instanceId"] for one in row["instances"]] == ids
        inst = next(form for form in row["commands"][1]["forms"] if form["route"] == "inst")
        assert inst["literals"]["instanceId"] == ids
        assert inst["covered"] == [{"instanceId": "*", "nonce": "*"}]
        found: list[str] = []
        args: dict[str, Any] = {"endpoint": SAMPLE}
        while True:
            answer = await made.ask("instances", ALICE, args)
            found += [one["instanceId"] for one in answer["rows"]]
            if "next" not in answer:
                break
            args = {**args, "after": answer["next"]}
        assert found == ids


@pytest.mark.req("C13.7-35", "C13.7-36")
async def test_artifacts_come_in_the_asked_order_and_poisoned_ones_do_not(port: int) -> None:
    async with scene(port) as made:
        one, poisoned = cluster("echo"), cluster("spoilt", urn="dev.spoilt")
        await made.publish(one)
        for digest in poisoned.artifacts:
            await made.put(made.artifact(digest), {"v": 1})
        asked = [*reversed(list(one.artifacts)), "sha256:" + "0" * 64, *poisoned.artifacts]
        answer = await made.ask("artifacts", BOB, {"digests": list(asked)})
        assert [found["digest"] for found in answer["documents"]] == asked[: len(one.artifacts)]
        assert one.value() in [found["document"] for found in answer["documents"]]
        assert "more" not in answer
        # What was read is kept, what was missing is not.
        missing = cluster("late", urn="dev.late")
        late = list(missing.artifacts)
        assert (await made.ask("artifacts", BOB, {"digests": late}))["documents"] == []
        await made.publish(missing)
        assert len((await made.ask("artifacts", BOB, {"digests": [*late, *asked]}))["documents"]) == 4


@pytest.mark.req("C13.7-35")
async def test_artifacts_that_do_not_fit_are_left_for_the_next_question(tmp_path: Path) -> None:
    with plain_broker(tmp_path, "max_payload: 16384\n") as port:
        async with scene(port) as made:
            large = [cluster(*(f"c{number}x{at}" for at in range(30)), urn=f"dev.u{number}") for number in range(3)]
            for one in large:
                await made.publish(one)
            digests = [digest for one in large for digest, data in one.artifacts.items() if len(data) > 1_000]
            found: list[str] = []
            while len(found) < len(digests):
                answer = await made.ask("artifacts", BOB, {"digests": digests[len(found) :]})
                assert answer["documents"]
                found += [one["digest"] for one in answer["documents"]]
                assert answer.get("more", False) is (len(found) < len(digests))
            assert found == digests


@pytest.mark.req("C13.4-08", "C13.4-09")
async def test_a_record_is_both_halves_with_their_revisions(port: int) -> None:
    async with scene(port) as made:
        await made.issue(ALICE, None)
        revision = await made.register(SAMPLE, INSTANCE, [cluster("echo")])
        asked = {"endpoint": SAMPLE, "instanceId": INSTANCE}
        answer = await made.ask("record", ALICE, dict(asked))
        assert answer["spec"]["revision"] == revision == answer["observed"]
        assert answer["status"]["value"]["state"] == "ready"
        assert answer["spec"]["value"]["endpoint"] == SAMPLE
        # A status that is behind its spec is told as it is.
        newer = await made.put(made.service(SAMPLE, INSTANCE, "spec"), answer["spec"]["value"])
        answer = await made.ask("record", ALICE, dict(asked))
        assert (answer["spec"]["revision"], answer["observed"]) == (newer, revision)
        await made.delete(made.service(SAMPLE, INSTANCE, "spec"))
        assert await made.ask("record", ALICE, dict(asked)) == {}


@pytest.mark.req("C13.4-10")
async def test_a_spec_that_is_behind_what_the_status_has_observed_is_read_again(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with scene(port) as made:
        await made.issue(ALICE, None)
        revision = await made.register(SAMPLE, INSTANCE, [cluster("echo")])
        reader = made.registry.records.reader
        read, stale = reader.direct, [True, True]

        async def direct(stream: str, subject: str) -> Any:
            found = await read(stream, subject)
            if found is not None and subject.endswith(".spec") and stale:
                stale.pop()
                return found._replace(revision=found.revision - 1)  # a replica that lags
            return found

        monkeypatch.setattr(reader, "direct", direct)
        answer = await made.ask("record", ALICE, {"endpoint": SAMPLE, "instanceId": INSTANCE})
        assert (answer["spec"]["revision"], stale) == (revision, [])


@pytest.mark.req("C13.5-07")
async def test_a_record_is_waited_for_until_it_changes(port: int) -> None:
    async with scene(port) as made:
        await made.issue(ALICE, None)
        await made.register(SAMPLE, INSTANCE, [cluster("echo")])
        asked = {"endpoint": SAMPLE, "instanceId": INSTANCE}
        answer = await made.ask("record", ALICE, dict(asked))
        known = {name: answer[name]["revision"] for name in ("spec", "status")}
        waiting = [
            asyncio.create_task(made.ask("record", ALICE, {**asked, "after": known, "waitMs": 20_000}))
            for _ in range(5)
        ]
        gauge = made.metrics.registry.get_sample_value
        async with asyncio.timeout(10):
            while gauge("sidecar_registry_polls") != 5:  # noqa: ASYNC110 - a gauge has no event
                await asyncio.sleep(0.005)
        status = {**answer["status"]["value"], "state": "exited"}
        await made.put(made.service(SAMPLE, INSTANCE, "status"), status)
        async with asyncio.timeout(10):
            for found in await asyncio.gather(*waiting):
                assert found["status"]["value"]["state"] == "exited"
        assert gauge("sidecar_registry_polls") == 0
        # Who knows an older state is answered at once, and a wait that sees nothing ends.
        assert await made.ask("record", ALICE, {**asked, "after": known, "waitMs": 20_000})
        known = {name: found[name]["revision"] for name in ("spec", "status")}
        assert await made.ask("record", ALICE, {**asked, "after": known, "waitMs": 1}) == found


@pytest.mark.req("C13.9-049")
async def test_a_wait_that_outlives_the_grants_gives_nothing(port: int) -> None:
    async with scene(port) as made:
        generation = await made.issue(ALICE, None)
        await made.register(SAMPLE, INSTANCE, [cluster("echo")])
        asked = {"endpoint": SAMPLE, "instanceId": INSTANCE}
        answer = await made.ask("record", ALICE, dict(asked))
        known = {name: answer[name]["revision"] for name in ("spec", "status")}
        waiting = asyncio.create_task(made.ask("record", ALICE, {**asked, "after": known, "waitMs": 20_000}))
        async with asyncio.timeout(10):
            while made.metrics.registry.get_sample_value("sidecar_registry_polls") != 1:  # noqa: ASYNC110
                await asyncio.sleep(0.005)
            await made.attempt(made.ref(ALICE, generation), AttemptState.REVOKED)
            await made.put(made.service(SAMPLE, INSTANCE, "status"), answer["status"]["value"])
            assert await waiting == {}


@pytest.mark.req("C13.5-07")
async def test_events_are_replayed_by_one_topic_of_one_endpoint(port: int) -> None:
    async with scene(port) as made:
        await made.issue(ALICE, None)
        await made.register(SAMPLE, INSTANCE, [cluster("echo")])

        def subject(endpoint: str, instance: str, topic: str) -> str:
            return planes.EVENT.build(space=made.space, endpoint=endpoint, instance=instance, epoch=3, topic=topic)

        sequences = []
        for number in range(5):
            instance = INSTANCE if number % 2 else SECOND
            sequences.append(await made.put(subject("dev_sample", instance, "ev.dev_sample.counted"), {"n": number}))
            await made.put(subject("dev_sample", instance, "ev.dev_sample.other"), {"n": number})
            await made.put(subject("dev_other", instance, "ev.dev_sample.counted"), {"n": number})
        await made.put(subject("dev_sample", INSTANCE, "ev.dev_sample.counted"), b"no json")
        asked: dict[str, Any] = {"endpoint": SAMPLE, "topic": "ev.dev_sample.counted", "limit": 2}
        answer = await made.ask("events", ALICE, dict(asked))
        assert answer == {
            "events": [
                {
                    "sequence": sequence,
                    "instanceId": instance,
                    "epoch": 3,
                    "topic": "ev.dev_sample.counted",
                    "event": {"n": number},
                }
                for number, (sequence, instance) in enumerate(zip(sequences, (SECOND, INSTANCE), strict=False))
            ],
            "next": sequences[1],
        }
        rest = await made.ask("events", ALICE, {**asked, "limit": 64, "after": answer["next"]})
        assert [one["event"]["n"] for one in rest["events"]] == [2, 3, 4]
        assert "next" not in rest
        assert made.metrics.registry.get_sample_value("sidecar_registry_events_skipped_total") == 1


@pytest.mark.req("C13.7-43", "C13.12-17")
async def test_a_target_is_the_active_mapping_and_nothing_else(port: int) -> None:
    async with scene(port) as made:
        bob, carol, eve = (Principal("local", name) for name in ("bob", "carol", "eve"))
        revision = await made.head(bob, "b" * 26)
        answer = await made.ask("target", ALICE, {"owner": "local", "actor": "bob"})
        assert answer == {"lifecycleUid": "b" * 26, "mappingRevision": revision}
        await made.head(carol, "c" * 26, state="retired")
        assert await made.ask("target", ALICE, {"owner": "local", "actor": "carol"}) == {}
        assert await made.ask("target", ALICE, {"owner": "local", "actor": "nobody"}) == {}
        # A head of somebody else, one with a member too many, and a marker authorize nothing.
        for spoilt in ({"actor": "bob"}, {"more": 1}):
            await made.head(eve, "e" * 26, **spoilt)
            async with refused(Code.UNAVAILABLE, module.NO_RECORDS):
                await made.ask("target", ALICE, {"owner": "local", "actor": "eve"})
        await made.delete(buckets.RECORDS.subject(made.space, buckets.RECORD_LIFECYCLE, owner="local", actor="bob"))
        async with refused(Code.UNAVAILABLE, module.NO_RECORDS):
            await made.ask("target", ALICE, {"owner": "local", "actor": "bob"})


# ---- the view of a serving instance ----


@pytest.mark.req("C13.7-66")
async def test_a_view_is_for_who_serves_the_endpoint_and_says_what_a_caller_holds(port: int) -> None:
    async with scene(port) as made:
        await made.register(SAMPLE, INSTANCE, [cluster("echo", "add")])
        serving = type(ALICE)(SERVING, "c" * 26)
        generation = await made.issue(ALICE, made.endpoint_rows(ALICE, SAMPLE, "echo"))
        asked = {"endpoint": SAMPLE, "owner": "local", "actor": "alice", "uid": ALICE.uid}
        before = int(later(0)().wall * 1000)
        answer = await made.ask("caller-view", serving, dict(asked))
        assert answer["commands"] == ["echo"]
        assert before <= answer["asOfMs"] <= int(later(0)().wall * 1000)
        # The union of what is live on the rail without a generation; one generation alone on the other.
        other = await made.issue(ALICE, made.endpoint_rows(ALICE, SAMPLE, "add"))
        assert (await made.ask("caller-view", serving, dict(asked)))["commands"] == ["add", "echo"]
        for one, commands in ((generation, ["echo"]), (other, ["add"]), ("f" * 32, [])):
            assert (await made.ask("caller-view", serving, {**asked, "generation": one}))["commands"] == commands
        for caller in (ALICE, type(ALICE)(Principal("local", "ep_x"), "c" * 26)):
            async with refused(Code.PERMISSION_DENIED, module.NOT_SERVING):
                await made.ask("caller-view", caller, dict(asked))
        async with refused(Code.PERMISSION_DENIED, module.NOT_SERVING):
            await made.ask("caller-view", serving, {**asked, "endpoint": "dev.other"})
        async with refused(Code.BAD_REQUEST, module.BAD_NAME):
            await made.ask("caller-view", serving, {**asked, "uid": "no uid"})


@pytest.mark.req("C13.7-67")
async def test_a_view_without_anything_recorded_is_unavailable(port: int) -> None:
    async with scene(port) as made:
        await made.register(SAMPLE, INSTANCE, [cluster("echo")])
        serving = type(ALICE)(SERVING, "c" * 26)
        asked = {"endpoint": SAMPLE, "owner": "local", "actor": "alice", "uid": ALICE.uid}
        async with refused(Code.UNAVAILABLE, module.NO_VIEW):
            await made.ask("caller-view", serving, dict(asked))
        await made.issue(ALICE, None, state=AttemptState.REVOKED)
        async with refused(Code.UNAVAILABLE, module.NO_VIEW):
            await made.ask("caller-view", serving, dict(asked))


@pytest.mark.req("C13.7-66")
async def test_a_retired_instance_and_one_under_another_name_are_judged_by_their_gates(port: int) -> None:
    async with scene(port) as made:
        named = Principal("local", "delivery")
        await made.register(SAMPLE, INSTANCE, [cluster("echo")], principal=named)
        await made.issue(ALICE, None)
        asked = {"endpoint": SAMPLE, "owner": "local", "actor": "alice", "uid": ALICE.uid}
        assert await made.ask("caller-view", type(ALICE)(named, "c" * 26), dict(asked))
        async with refused(Code.PERMISSION_DENIED, module.NOT_SERVING):
            await made.ask("caller-view", type(ALICE)(SERVING, "c" * 26), dict(asked))
        op = Op("0" * 32, Intent.RETIREMENT)
        gate = Gate(GateState.OPEN, 1, 1, 1, 0, named).frozen(op).retired(op)
        await made.put(made.gate_subject(SAMPLE, INSTANCE), gate.encode())
        async with refused(Code.PERMISSION_DENIED, module.NOT_SERVING):
            await made.ask("caller-view", type(ALICE)(named, "c" * 26), dict(asked))
