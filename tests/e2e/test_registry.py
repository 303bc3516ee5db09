"""The question of the registry, over stores that are filled by hand, at a real broker (13.20)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sidecar.base.strictjson import JsonValue
from sidecar.rails.connection.kv import Unreadable
from sidecar.rails.endpoint.clusters import read_cluster
from sidecar.rails.endpoint.codes import Code, Refusal
from sidecar.rails.names import api, buckets, headers
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
    THIRD,
    cluster,
    command,
    later,
    refused,
    scene,
)

pytestmark = pytest.mark.asyncio(loop_scope="function")
SAMPLE = "dev.sample"


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    with plain_broker(tmp_path_factory.mktemp("registry")) as port:
        yield port


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


@pytest.mark.req("C13.20-03", "C13.20-14")
async def test_a_page_has_a_hundred_rows_when_nobody_says_how_many(port: int) -> None:
    async with scene(port) as made:
        one = cluster("echo")
        for number in range(101):
            await made.register(f"dev.e{number:03d}", INSTANCE, [one], publish=not number)
        generation = await made.issue(ALICE, None)
        answer = await made.ask("endpoints", ALICE, {}, generation)
        assert (len(answer["rows"]), answer["next"]) == (100, "dev.e099")
        assert names(await made.ask("endpoints", ALICE, {"after": "dev.e099"}, generation)) == ["dev.e100"]


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
