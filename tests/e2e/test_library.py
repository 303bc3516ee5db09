"""Endpoints and callers as a program of somebody else has them: an address, a creds file, and `sidecar.rails`."""

from __future__ import annotations

import asyncio
import contextlib
import io
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from sidecar.app.endpoint_host import deregister, register
from sidecar.app.principal_records import Wanted
from sidecar.app.principals import add, local
from sidecar.app.spaces import open_space
from sidecar.base.safefile import UnsafeFile
from sidecar.ops.logging import Log
from sidecar.ops.metrics import Metrics
from sidecar.rails import Caller, Endpoint
from sidecar.rails.endpoint.codes import CallFailed, Code, Outcome
from sidecar.rails.endpoint.serve import Superseded
from sidecar.rails.names.principals import LOCAL_OWNER
from sidecar.rails.space.creds import InvalidCreds
from sidecar.rails.space.holder import Capability, Profile
from tests.e2e.registry_town import ECHO, SAMPLE, Town, sample, town
from tests.e2e.space_broker import EVENT_SECONDS
from tests.e2e.space_members import SPACE

pytestmark = pytest.mark.asyncio
ROOT = Path(__file__).resolve().parents[2]


@pytest_asyncio.fixture
async def here(tmp_path: Path) -> AsyncIterator[Town]:
    async with town(tmp_path) as made, made.registry():
        yield made


async def principal(here: Town, actor: str, *may: Capability, profile: Profile = Profile.AGENT) -> Path:
    """The creds file of a new principal."""
    where = here.site.where
    async with open_space(where.root, SPACE, where.url) as space:
        wanted = Wanted(local(actor), profile, 3600, capabilities=may)
        return (await add(space, wanted)).creds


async def registered(here: Town, endpoint: Endpoint, out: Path, instance: str | None = None) -> str:
    where = here.site.where
    done = await register(where.root, SPACE, where.url, endpoint, owner=LOCAL_OWNER, out=out, instance=instance)
    return done.instance


@contextlib.asynccontextmanager
async def served(here: Town, endpoint: Endpoint, creds: Path) -> AsyncIterator[Metrics]:
    metrics = Metrics()
    async with endpoint.serve(here.site.where.url, creds, metrics=metrics, log=Log(io.StringIO())):
        yield metrics


async def row_of(caller: Caller) -> Any:
    """What the listing says of the sample."""
    return next(row for row in (await caller.endpoints()).rows if row["endpoint"] == SAMPLE)


@pytest.mark.req("C13.14-01", "C13.15-11", "C13.15-28", "C13.20-03")
async def test_two_creds_files_are_all_that_a_server_and_a_caller_need(here: Town, tmp_path: Path) -> None:
    endpoint, creds = sample(), tmp_path / "serve.creds"
    alice = await principal(here, "alice", ECHO)
    instance = await registered(here, endpoint, creds)
    url = here.site.where.url
    async with served(here, endpoint, creds) as metrics:
        for given in (alice, alice.read_bytes()):
            async with Caller.connect([url], given) as caller:
                # What it takes was asked for: this caller knew no contract of it.
                answer = await caller.invoke(SAMPLE, "echo", "hi")
                assert (answer.data, answer.instance, answer.epoch) == ("hi", instance, 0)
                for _ in range(2):
                    row = await row_of(caller)
                    assert [one["name"] for one in row["commands"]] == ["echo"]
                    assert [one["state"] for one in row["instances"]] == ["ready"]
        assert metrics.totals("endpoint_requests") == {("ok",): 4}  # two descriptions, two calls


@pytest.mark.req("C13.15-28", "C13.20-15")
async def test_what_keeps_a_caller_from_an_answer_is_said(here: Town) -> None:
    watcher = await principal(here, "watcher", profile=Profile.OBSERVER)
    async with Caller.connect(here.site.where.url, watcher, name="somebody") as caller:
        with pytest.raises(CallFailed, match="its operator grants it") as caught:
            await caller.endpoints()
        assert (caught.value.code, caught.value.outcome) == (Code.PERMISSION_DENIED, Outcome.NOT_EXECUTED)
    missing = watcher.parent / "none.creds"
    wrong: tuple[tuple[Path | bytes, type[Exception]], ...] = ((b"nothing", InvalidCreds), (missing, UnsafeFile))
    for broken, error in wrong:
        with pytest.raises(error):
            async with Caller.connect(here.site.where.url, broken):
                pass


async def test_creds_of_another_endpoint_or_of_a_caller_serve_nothing(here: Town, tmp_path: Path) -> None:
    creds = tmp_path / "serve.creds"
    await registered(here, sample(), creds)
    other = Endpoint("dev.sidecar.other")
    with pytest.raises(ValueError, match=f"serves {SAMPLE}, not dev.sidecar.other"):
        async with served(here, other, creds):
            pass
    with pytest.raises(InvalidCreds):
        async with served(here, sample(), await principal(here, "alice", ECHO)):
            pass


@pytest.mark.req("C13.14-01", "C13.1-029")
async def test_an_instance_that_is_ended_elsewhere_stops(here: Town, tmp_path: Path) -> None:
    creds, where, endpoint = tmp_path / "serve.creds", here.site.where, sample()
    instance = await registered(here, endpoint, creds)
    async with endpoint.serve(where.url, creds.read_bytes(), log=Log(io.StringIO())) as server:
        assert server.serving
        assert await deregister(where.root, SPACE, where.url, SAMPLE, instance)
        with pytest.raises(Superseded):
            async with asyncio.timeout(EVENT_SECONDS):
                await server.wait()


PROGRAM = """
import sys
from sidecar.rails import Call, Endpoint

endpoint = Endpoint("dev.sidecar.sample", protocol=2)
text = {"type": "string", "maxLength": 64}

@endpoint.command(input=text, output=text, effect="read")
async def echo(call: Call):
    return call.args

@endpoint.command(input=text, output=text, effect="read")
async def add(call: Call):
    return call.args

endpoint.run(sys.argv[1], sys.argv[2])
"""


@pytest.mark.req("C13.14-01")
async def test_a_program_of_ten_lines_serves_until_it_is_told_to_stop(here: Town, tmp_path: Path) -> None:
    creds, url = tmp_path / "serve.creds", here.site.where.url
    await registered(here, sample(), creds)
    alice = await principal(here, "alice", ECHO)
    command = [sys.executable, "-c", PROGRAM, url, str(creds)]
    process = await asyncio.create_subprocess_exec(*command, cwd=ROOT, stderr=subprocess.PIPE)
    try:
        assert process.stderr is not None
        async with asyncio.timeout(EVENT_SECONDS):
            while b"endpoint_serves" not in (line := await process.stderr.readline()):
                assert line
        async with Caller.connect(url, alice) as caller:
            assert await caller.call(SAMPLE, "echo", "hi") == "hi"
            process.send_signal(signal.SIGTERM)
            assert await asyncio.wait_for(process.wait(), EVENT_SECONDS) == 0
            assert [one["state"] for one in (await row_of(caller))["instances"]] == ["exited"]
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()
