"""`sidecar registry` as a process: its ready line, health and metrics, kills at bad moments, and clean stops."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from sidecar.ops.exitcodes import ExitCode
from sidecar.rails.endpoint.codes import CallError, Code
from sidecar.rails.endpoint.contracts import KNOWN
from sidecar.rails.names import api, buckets
from sidecar.rails.space.holder import Profile
from tests.e2e.cluster import DidNotStart, Program
from tests.e2e.registry_town import ECHO, SAMPLE, Town, sample, town
from tests.e2e.space_broker import EVENT_SECONDS
from tests.e2e.space_members import SPACE

pytestmark = pytest.mark.asyncio


def started(made: Town, name: str = "registry", **more: Any) -> Program:
    where = made.site.where
    lane = {"space": SPACE, "url": where.url, "root": str(where.root)}
    config = where.root / f"{name}.json"
    config.write_text(json.dumps({"lanes": [lane], **more}))
    return Program(where.root / f"{name}.log", "registry", "--config", str(config))


def fetched(url: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


async def listed(made: Town, wanted: list[str]) -> None:
    """A caller is told of exactly these endpoints, within a bound."""
    async with made.caller("alice", ECHO) as alice, asyncio.timeout(2 * EVENT_SECONDS):
        while True:
            with contextlib.suppress(CallError):
                found: list[Any] = list((await alice.caller.endpoints(seconds=2.0)).rows)
                if [row["endpoint"] for row in found] == wanted:
                    return


@pytest.mark.req("C13.20-01")
async def test_a_process_says_that_it_is_ready_answers_and_stops_cleanly(tmp_path: Path) -> None:
    async with town(tmp_path) as made, made.site.serve(sample()):
        program = started(made, credentialSeconds=600)
        try:
            ready = await asyncio.to_thread(program.wait_ready)
            (lane,) = ready["lanes"]
            assert (lane["space"], lane["serving"], lane["epoch"]) == (SPACE, True, 0)
            assert (await asyncio.to_thread(fetched, ready["health_url"]))[0] == 200
            await listed(made, [SAMPLE, "registry"])
            async with asyncio.timeout(EVENT_SECONDS):
                while (await asyncio.to_thread(fetched, ready["ready_url"]))[0] != 200:  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
            metrics = (await asyncio.to_thread(fetched, ready["metrics_url"]))[1].splitlines()
            assert 'sidecar_registry_lanes{state="serving"} 1.0' in metrics
            assert "sidecar_registry_listing_seconds_count 1.0" in metrics
            assert await asyncio.to_thread(program.stop) == ExitCode.OK
            # The instance comes back under its own id at the next epoch, also after a kill.
            for epoch in (1, 2):
                program = started(made, f"registry{epoch}")
                again = (await asyncio.to_thread(program.wait_ready))["lanes"][0]
                assert (again["instance"], again["epoch"]) == (lane["instance"], epoch)
                await listed(made, [SAMPLE, "registry"])
                program.kill()
        finally:
            if program.running:
                program.kill()


@pytest.mark.req("C13.20-15", "C13.7-67")
async def test_a_registry_that_hangs_is_waited_for_no_longer_than_a_call_and_answers_again(tmp_path: Path) -> None:
    known = {**KNOWN, SAMPLE: sample().contracts}
    async with town(tmp_path) as made, made.site.serve(sample()), made.caller("alice", ECHO, contracts=known) as alice:
        program = started(made)
        try:
            await asyncio.to_thread(program.wait_ready)
            await listed(made, [SAMPLE, "registry"])
            program.process.send_signal(signal.SIGSTOP)
            for ask in (
                lambda: alice.caller.endpoints(seconds=1.0),
                lambda: alice.caller.describe(SAMPLE, seconds=1.0),
                lambda: alice.caller.scatter(SAMPLE, "echo", "all", seconds=1.0),
            ):
                with pytest.raises(CallError) as caught:
                    async with asyncio.timeout(EVENT_SECONDS):
                        await ask()
                assert caught.value.code in (Code.UNAVAILABLE, Code.DEADLINE_EXCEEDED, Code.FAILED_PRECONDITION)
            # What is known already is called as before.
            assert await alice.caller.call(SAMPLE, "echo", "hi") == "hi"
            program.process.send_signal(signal.SIGCONT)
            await listed(made, [SAMPLE, "registry"])
            assert (await alice.caller.scatter(SAMPLE, "echo", "all", seconds=10.0)).complete
            assert await asyncio.to_thread(program.stop) == ExitCode.OK
        finally:
            if program.running:
                program.process.send_signal(signal.SIGCONT)
                program.kill()


@pytest.mark.req("C13.12-18")
async def test_a_space_whose_stores_may_lose_rows_is_not_served(tmp_path: Path) -> None:
    async with town(tmp_path) as made:
        stream = buckets.RECORDS.stream(SPACE)
        async with made.profile(Profile.PROVISIONER) as client:
            found = json.loads((await client.request(api.STREAM_INFO.build(stream=stream))).data)["config"]
            update = api.STREAM_UPDATE.build(stream=stream)
            spoilt = json.dumps({**found, "max_bytes": 1 << 30}).encode()
            assert "error" not in json.loads((await client.request(update, spoilt)).data)
            program = started(made)
            try:
                async with asyncio.timeout(2 * EVENT_SECONDS):
                    while not (ends := [one for one in program.lines() if one["event"] == "registry_lane_ended"]):  # noqa: ASYNC110
                        await asyncio.sleep(0.02)
                assert "max_bytes" in ends[0]["problem"]
                assert not any(one["event"] == "registry_serves" for one in program.lines())
                # It is served as soon as the store is right.
                assert "error" not in json.loads((await client.request(update, json.dumps(found).encode())).data)
                await listed(made, ["registry"])
            finally:
                program.kill()


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{", "is no JSON"),
        ("{}", "lanes"),
        ('{"lanes": [{"space": "main", "url": "nats://127.0.0.1:1", "root": ".", "form": "x"}]}', "unknown key"),
        ('{"lanes": [{"space": "no space", "url": "nats://127.0.0.1:1", "root": "."}]}', "no name of a space"),
        ('{"lanes": [{"space": "a", "url": "nats://127.0.0.1:1", "root": "."}], "credentialSeconds": 1}', "10"),
    ],
)
async def test_a_configuration_that_is_not_valid_ends_the_process(tmp_path: Path, text: str, problem: str) -> None:
    config = tmp_path / "registry.json"
    config.write_text(text)
    program = Program(tmp_path / "log", "registry", "--config", str(config))
    with pytest.raises(DidNotStart) as caught:
        await asyncio.to_thread(program.wait_ready)
    assert program.process.returncode == ExitCode.CONFIG
    assert problem in str(caught.value)


async def test_a_space_twice_in_the_configuration_is_refused(tmp_path: Path) -> None:
    lane = {"space": "a", "url": "nats://127.0.0.1:1", "root": "."}
    config = tmp_path / "registry.json"
    config.write_text(json.dumps({"lanes": [lane, lane]}))
    program = Program(tmp_path / "log", "registry", "--config", str(config))
    with pytest.raises(DidNotStart, match="twice"):
        await asyncio.to_thread(program.wait_ready)
