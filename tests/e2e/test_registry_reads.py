"""What the registry reads for callers and for instances, over stores that are filled by hand (13.20, C13.9-049)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sidecar.rails.endpoint.codes import Code
from sidecar.rails.names import buckets, planes
from sidecar.rails.names.principals import Principal
from sidecar.rails.planes.registration.gates import Gate, GateState, Intent, Op
from sidecar.rails.planes.registry import artifacts
from sidecar.rails.planes.registry import registry as module
from sidecar.rails.space.evidence import AttemptState
from tests.e2e.plain_broker import plain_broker
from tests.e2e.registry_scene import (
    ALICE,
    BOB,
    EVERYTHING,
    INSTANCE,
    SECOND,
    SERVING,
    THIRD,
    cluster,
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
        await made.issue(ALICE, None, hears=EVERYTHING)
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


@pytest.mark.req("C13.7-43", "C13.12-17", "C13.7-42")
async def test_a_target_is_the_active_mapping_and_nothing_else(port: int) -> None:
    async with scene(port) as made:
        bob, carol, eve = (Principal("local", name) for name in ("bob", "carol", "eve"))
        revision = await made.head(bob, "b" * 26)
        answer = await made.ask("target", ALICE, {"owner": "local", "actor": "bob"})
        assert answer == {"lifecycleUid": "b" * 26, "mappingRevision": revision}
        for state in ("retiring", "retired"):
            ends = {"op": {"opId": "op-1", "kind": "retirement"}} if state == "retiring" else {}
            await made.head(carol, "c" * 26, state=state, **ends)
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
        assert "holds a marker" in made.log.getvalue()


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


@pytest.mark.req("C13.9-074", "C13.9-075", "C13.7-35", "C13.8-12")
async def test_what_decides_is_read_at_the_leader_and_the_rest_by_direct_get(port: int) -> None:
    async with scene(port) as made:
        one = cluster("echo")
        await made.register(SAMPLE, INSTANCE, [one])
        await made.head(BOB.principal, BOB.uid)
        generation = await made.issue(ALICE, None, hears=EVERYTHING)
        view = {"endpoint": SAMPLE, "owner": "local", "actor": "alice", "uid": ALICE.uid, "generation": generation}
        heard = await made.connection.subscribe("$JS.API.>")
        await made.ask("caller-view", type(ALICE)(SERVING, "c" * 26), view)
        await made.ask("target", ALICE, {"owner": "local", "actor": "bob"})
        await made.ask("record", ALICE, {"endpoint": SAMPLE, "instanceId": INSTANCE}, generation)
        await made.ask("events", ALICE, {"endpoint": SAMPLE, "topic": "ev.dev_sample.counted"}, generation)
        await made.connection.publish("$JS.API.END")
        asked: set[str] = set()
        while (message := await heard.next()).subject != "$JS.API.END":
            asked.add(message.subject.removeprefix("$JS.API.").replace(made.space, "SPACE"))
        await heard.close()
        records, stream = "KV_cotal_records_SPACE", f"{SAMPLE.replace('.', '_')}.{INSTANCE}"
        contracts = {f"DIRECT.GET.EPC_SPACE.cotal.SPACE.epc.{digest[7:]}" for digest in one.artifacts}
        assert asked == contracts | {
            "STREAM.MSG.GET.KV_cotal_auth_SPACE",
            "STREAM.MSG.GET.KV_cotal_issued_SPACE",
            f"STREAM.MSG.GET.{records}",
            f"DIRECT.GET.{records}",
            f"DIRECT.GET.{records}.$KV.cotal_records_SPACE.svc.{stream}.spec",
            f"DIRECT.GET.{records}.$KV.cotal_records_SPACE.svc.{stream}.status",
            "DIRECT.GET.EPE_SPACE",
        }


async def test_what_is_kept_of_contracts_is_bounded(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    async with scene(port) as made:
        monkeypatch.setattr(artifacts, "KEPT_BYTES", 2_000)
        monkeypatch.setattr(artifacts, "KEPT_COMMANDS", 5)
        generation = await made.issue(ALICE, None)
        for number in range(6):
            await made.register(f"dev.e{number}", INSTANCE, [cluster("echo", "add", urn=f"dev.u{number}")])
        for _ in range(2):
            answer = await made.ask("endpoints", ALICE, {}, generation)
            assert [len(one["commands"]) for one in answer["rows"]] == [2] * 6
        totals = made.metrics.totals("registry_artifacts")
        assert totals["read",] == 24  # everything twice: what is asked for again was let go
        large = made.registry._artifacts
        assert sum(len(one.commands) for one in large._clusters.values()) <= 5
        assert sum(map(len, large._kept.values())) <= 2_000
