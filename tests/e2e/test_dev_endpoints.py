"""The endpoints of ``sidecar dev``: who serves, who may call, and that the ready line stays true."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from sidecar.app.access import Access
from sidecar.app.ep_access import calling
from sidecar.rails.endpoint.caller import Caller
from sidecar.rails.endpoint.calls_types import Answer, To
from sidecar.rails.endpoint.codes import CallError, CallRefused, Code, Outcome
from tests.e2e.cluster import eventually
from tests.e2e.devset import DevSet, dev_set

pytestmark = pytest.mark.asyncio(loop_scope="module")

SAMPLE = "dev.sidecar.sample"
COORDINATOR = "dev.sidecar.coordinator"
NAMES = [SAMPLE, "registry", COORDINATOR, "delivery"]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[DevSet]:
    with dev_set(tmp_path_factory.mktemp("endpoints") / "dev") as found:
        yield found


@contextlib.asynccontextmanager
async def caller_of(running: DevSet, name: str = "alice") -> AsyncIterator[Caller]:
    nats = running.ready["nats"]
    async with calling(Access.of(nats["url"], Path(nats["principals"][name]["creds"])), 20.0) as caller:
        yield caller


def told(running: DevSet) -> dict[str, dict[str, int]]:
    """What the ready file says now: the epoch of each instance, by endpoint."""
    ready = json.loads((running.directory / "ready.json").read_bytes())
    return {
        one["name"]: {each["instance_id"]: each["epoch"] for each in one["instances"]}
        for one in ready["nats"]["endpoints"]
    }


def serving(running: DevSet, what: str) -> list[int]:
    """The processes of the set that have this word in their command line."""
    lines = {pid: Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0") for pid in running.children()}
    return [pid for pid, line in lines.items() if what.encode() in line]


async def test_the_ready_line_says_who_serves_what(running: DevSet) -> None:
    endpoints = running.ready["nats"]["endpoints"]
    assert [one["name"] for one in endpoints] == NAMES
    assert [len(one["instances"]) for one in endpoints] == [2, 1, 1, 1]
    for member in running.ready["nats"]["principals"].values():
        assert {"owner", "actor", "lifecycle_uid", "creds", "inbox_prefix"} <= member.keys()
    async with caller_of(running) as alice:
        for name, instances in told(running).items():
            for instance, epoch in instances.items():
                described = await alice.describe(name, instance=instance)
                assert (described.instance, described.epoch) == (instance, epoch)


@pytest.mark.parametrize("name", ["alice", "bob"])
async def test_alice_and_bob_hold_every_command(running: DevSet, name: str) -> None:
    me = running.ready["nats"]["principals"][name]
    async with caller_of(running, name) as caller:
        assert await caller.call(SAMPLE, "add", {"a": 2, "b": 40}) == {"sum": 42}
        who = await caller.call(SAMPLE, "whoami", target=To("self"))
        assert who == {"owner": me["owner"], "actor": me["actor"], "uid": me["lifecycle_uid"]}
        everyone = await caller.scatter(SAMPLE, "echo", {"text": "all"}, seconds=10.0)
        assert everyone.complete
        assert everyone.replies.keys() == told(running)[SAMPLE].keys()
        assert all(isinstance(one, Answer) and one.data == {"text": "all"} for one in everyone.replies.values())
        described = await caller.describe(SAMPLE)
        (cluster,) = described.descriptor.clusters
        assert set(cluster.commands) == {"echo", "add", "sleep", "fail", "count", "whoami"}


@pytest.mark.req("C13.7-66")
async def test_who_holds_one_command_is_told_of_one(running: DevSet) -> None:
    added = running.cli(
        *("principal", "add", "--actor", "carol", "--owner", "local", "--space", "main", "--may", f"{SAMPLE}:echo"),
        "--json",
    )
    assert added.returncode == 0, added.stderr
    nats = running.ready["nats"]
    async with calling(Access.of(nats["url"], Path(json.loads(added.stdout)["creds"])), 20.0) as carol:
        (cluster,) = (await carol.describe(SAMPLE)).descriptor.clusters
        assert cluster.commands == ("echo",)
        assert await carol.call(SAMPLE, "echo", {"text": "x"}) == {"text": "x"}
        assert (await carol.describe(COORDINATOR)).descriptor.clusters == ()


@pytest.mark.req("C13.7-67", "C13.7-68")
async def test_without_the_registry_only_what_is_public_is_described_and_calls_go_on(running: DevSet) -> None:
    async with caller_of(running) as alice:
        contract = await alice.contract(SAMPLE, "add")
        assert contract.command == "add"
        (registry,) = serving(running, "registry")
        os.kill(registry, signal.SIGSTOP)
        try:
            with pytest.raises(CallRefused) as caught:
                await alice.describe(SAMPLE, seconds=20.0)
            assert (caught.value.code, caught.value.outcome) == (Code.UNAVAILABLE, Outcome.NOT_EXECUTED)
            assert (await alice.describe("delivery")).descriptor.public
            assert await alice.call(SAMPLE, "add", {"a": 1, "b": 1}) == {"sum": 2}
        finally:
            os.kill(registry, signal.SIGCONT)


async def test_the_observer_holds_none(running: DevSet) -> None:
    nats = running.ready["nats"]
    async with calling(Access.of(nats["url"], Path(nats["principals"]["observer"]["creds"])), 20.0) as observer:
        for command in ("describe", "add"):
            with pytest.raises(CallError) as caught:
                await (observer.describe(SAMPLE) if command == "describe" else observer.contract(SAMPLE, command))
            assert (caught.value.code, caught.value.outcome) == (Code.PERMISSION_DENIED, Outcome.NOT_EXECUTED)


async def test_a_killed_instance_is_started_again_and_the_ready_line_says_its_epoch(running: DevSet) -> None:
    before = told(running)
    first, _ = serving(running, "sidecar.app.sample:endpoint")
    os.kill(first, signal.SIGKILL)
    after = eventually(lambda: (now := told(running)) != before and now)
    assert after[SAMPLE].keys() == before[SAMPLE].keys()
    assert sorted(after[SAMPLE][one] - before[SAMPLE][one] for one in before[SAMPLE]) == [0, 1]
    async with caller_of(running) as alice:
        for instance, epoch in after[SAMPLE].items():
            answer = await alice.invoke(SAMPLE, "echo", {"text": "again"}, instance=instance)
            assert answer.epoch == epoch


async def test_the_coordinator_is_read_on_the_rails(running: DevSet) -> None:
    made = []
    for number in range(5):
        done = running.cli("coordinator", "objective", "create", "--json", json.dumps({"n": number}))
        assert done.returncode == 0, done.stderr
        made.append(json.loads(done.stdout))
    coordinator = running.ready["coordinator"]
    at = {
        "coordinatorId": coordinator["coordinator_id"],
        "epoch": coordinator["epoch"],
        "incarnationId": coordinator["incarnation_id"],
    }
    async with caller_of(running) as alice:

        async def ask(command: str, args: dict[str, Any] | None = None) -> Any:
            return await alice.call(COORDINATOR, command, args, seconds=20.0)

        status = await ask("status")
        assert status["connected"]
        assert status["at"] == at
        assert status["authority"] == coordinator["authority_fingerprint"]
        rows: list[Any] = []
        page = await ask("objects", {"kind": "OBJECTIVE", "limit": 2})
        while True:
            assert page["at"] == at
            assert (page["cut"], page["digest"]) == (status["cut"], status["digest"])
            rows += page["rows"]
            if "next" not in page:
                break
            page = await ask("objects", {"kind": "OBJECTIVE", "limit": 2, "after": page["next"]})
        assert sorted(json.loads(row["content"]["document"])["n"] for row in rows) == list(range(5))
        for one in made:
            answer = await ask("operation", {"operationId": one["operation_id"]})
            assert answer["result"] == one["result"]
            assert answer["at"] == at
        unknown = await ask("operation", {"operationId": "ab" * 16})
        assert unknown["result"] == {"state": "UNKNOWN"}


async def refused(alice: Caller, command: str, args: dict[str, Any] | None = None) -> CallRefused:
    with pytest.raises(CallRefused) as caught:
        await alice.call(COORDINATOR, command, args, seconds=20.0)
    assert caught.value.outcome is Outcome.NOT_EXECUTED
    return caught.value


async def test_a_coordinator_that_is_gone_is_said_to_be_and_pages_of_its_epoch_end(running: DevSet) -> None:
    for number in range(3):
        assert running.cli("coordinator", "objective", "create", json.dumps({"m": number})).returncode == 0
    async with caller_of(running) as alice:
        page: Any = await alice.call(COORDINATOR, "objects", {"limit": 1}, seconds=20.0)
        for text, code in (("nonsense", Code.BAD_REQUEST), (page["next"].replace(".", "1.", 1), Code.EXPIRED)):
            assert (await refused(alice, "objects", {"after": text})).code == code
        assert (await refused(alice, "operation", {"operationId": "00" * 16})).code == Code.BAD_REQUEST
        os.kill(running.ready["coordinator"]["pid"], signal.SIGKILL)
        gone: Any = await alice.call(COORDINATOR, "status", seconds=20.0)
        assert (gone["connected"], gone["at"], gone["cut"]) == (False, None, None)
        error = await refused(alice, "objects", {})
        assert error.code == Code.UNAVAILABLE
        assert error.details[0]["why"] == "unreachable"
        back = running.cli("coordinator", "hello", "--json", "--wait", "60")
        assert back.returncode == 0, back.stderr
        status: Any = await alice.call(COORDINATOR, "status", seconds=20.0)
        assert status["at"]["epoch"] == json.loads(back.stdout)["epoch"] > page["at"]["epoch"]
        assert (await refused(alice, "objects", {"after": page["next"]})).code == Code.EXPIRED


async def test_who_only_talks_needs_none_of_it(tmp_path: Path) -> None:
    with dev_set(tmp_path / "dev", "--without-endpoints") as talking:
        assert [one["name"] for one in talking.ready["nats"]["endpoints"]] == ["delivery"]
        assert len(talking.children()) == 4
        said = talking.cli("channel", "send", "general", "hello", "--as", "alice", "--space", "main")
        assert said.returncode == 0, said.stderr
