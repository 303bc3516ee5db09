"""`sidecar bridge` as a process: what it refuses to start with, and how its incarnation lives and ends."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from sidecar.app import domains
from sidecar.app.bridge import dial
from sidecar.app.bridge_config import CoordinatorSection
from sidecar.app.endpoint_host import host
from sidecar.bridge.endpoint import NAME, coordinator_endpoint
from sidecar.bridge.source import Source
from sidecar.coordinator.authority.certificate import WitnessPin
from sidecar.coordinator.client import CoordinatorClient
from sidecar.coordinator.client_errors import CannotConnect
from sidecar.coordinator.wire.enums import ErrorCode, Scope
from sidecar.coordinator.wire.errors import ProtocolError
from sidecar.ops.logging import Log
from sidecar.ops.metrics import Metrics
from sidecar.rails.endpoint.app import Endpoint
from sidecar.rails.endpoint.codes import CallRefused, Code, Outcome
from sidecar.rails.names.principals import LOCAL_OWNER
from sidecar.rails.space.holder import Capability
from tests.e2e.cluster import Cluster, Program
from tests.e2e.own_endpoints import Site, site
from tests.e2e.space_broker import EVENT_SECONDS

pytestmark = pytest.mark.asyncio
ALL = Capability(NAME, "*")


def surface(place: Site) -> Endpoint:
    """The endpoint for its contracts; its handlers are those of the process."""

    async def nowhere() -> CoordinatorClient:
        raise CannotConnect("nobody asks here")

    return coordinator_endpoint(Source(nowhere), Metrics(), Log(place.log))


def config_of(place: Site, cluster: Cluster | None, **more: Any) -> dict[str, Any]:
    made: dict[str, Any] = {
        "space": place.where.space,
        "url": place.where.url,
        "root": str(place.where.root),
        "owner": LOCAL_OWNER,
        "coordinator": {
            "socket": str(cluster.socket) if cluster is not None else "nobody.sock",
            "key": str(cluster.key_file("operator")) if cluster is not None else "no.key",
            "pins": "bridge/pins.json",
        },
    }
    if cluster is not None:
        made["coordinator"] |= {
            "witnessId": cluster.provisioned.witness_id.hex(),
            "witnessPublicKey": cluster.provisioned.witness_public_key.hex(),
        }
    return {**made, **more}


def started(place: Site, config: dict[str, Any]) -> Program:
    file = place.where.root / "bridge.json"
    file.write_text(json.dumps(config))
    return Program(place.where.root / "bridge.log", "bridge", "--config", str(file))


@contextlib.asynccontextmanager
async def bridged(place: Site, cluster: Cluster) -> AsyncIterator[Program]:
    program = started(place, config_of(place, cluster))
    try:
        yield program
    finally:
        if program.running:
            program.kill()


@pytest.fixture
def home(tmp_path: Path) -> Path:
    made = tmp_path / "home"
    made.mkdir(mode=0o700)
    return made


@pytest.mark.parametrize("artifacts", [False, True])
async def test_a_bridge_logs_in_for_reading_alone(tmp_path: Path, artifacts: bool) -> None:
    """With the key of somebody who may do nearly everything."""
    with Cluster(tmp_path, certificate_seconds=2) as cluster:
        known = cluster.provisioned
        witness = WitnessPin(known.witness_id, known.witness_public_key)
        pins = tmp_path / "bridge" / "pins.json"
        pins.parent.mkdir(mode=0o700)
        section = CoordinatorSection(cluster.socket, "", pins, witness, artifacts=artifacts)
        async with await dial(section, cluster.key("operator")) as client:
            reading = Scope.WORK_READ | (Scope.ARTIFACT_READ if artifacts else Scope(0))
            assert client.welcome.scopes == reading
            with pytest.raises(ProtocolError) as caught:
                await client.create_objective(b"{}")
            assert caught.value.code is ErrorCode.SCOPE_DENIED


async def test_a_bridge_outlives_its_broker_and_its_coordinator(tmp_path: Path, home: Path) -> None:
    async with site(home, "dev.sidecar") as place:
        with Cluster(tmp_path / "cluster", certificate_seconds=2) as cluster:
            async with bridged(place, cluster) as program, place.caller(surface(place), ALL) as alice:
                ready = await asyncio.to_thread(program.wait_ready)
                assert (ready["endpoint"], ready["epoch"]) == (NAME, 0)

                async def status() -> Any:
                    return await alice.call(NAME, "status", seconds=EVENT_SECONDS, repeat=True)

                first = await status()
                assert first["connected"]
                place.broker.kill()
                place.broker.start()
                assert await status() == first, "the same incarnation, on another link"
                cluster.kill()
                assert not (await status())["connected"]
                with pytest.raises(CallRefused) as caught:
                    await alice.call(NAME, "operation", {"operationId": "ab" * 16}, seconds=EVENT_SECONDS)
                error = caught.value
                assert (error.code, error.outcome) == (Code.UNAVAILABLE, Outcome.NOT_EXECUTED)
                await asyncio.to_thread(cluster.start_serve)
                assert (await status())["at"]["epoch"] == first["at"]["epoch"] + 1
                assert await asyncio.to_thread(program.stop) == 0


async def test_a_bridge_whose_instance_is_taken_over_ends(tmp_path: Path, home: Path) -> None:
    async with site(home, "dev.sidecar") as place:
        with Cluster(tmp_path / "cluster", certificate_seconds=2) as cluster:
            async with bridged(place, cluster) as program:
                ready = await asyncio.to_thread(program.wait_ready)
                where = place.where
                taken = await host(
                    where.root,
                    where.space,
                    where.url,
                    surface(place),
                    owner=LOCAL_OWNER,
                    instance=ready["instance_id"],
                )
                assert taken.identity.epoch == ready["epoch"] + 1
                assert await asyncio.to_thread(program.wait) == 69
                taken.close()


async def test_a_bridge_waits_for_its_broker(tmp_path: Path, home: Path) -> None:
    async with site(home, "dev.sidecar") as place:
        with Cluster(tmp_path / "cluster", certificate_seconds=2) as cluster:
            place.broker.kill()
            async with bridged(place, cluster) as program:
                async with asyncio.timeout(EVENT_SECONDS):
                    while not any(line["event"] == "endpoint_not_registered" for line in program.lines()):  # noqa: ASYNC110 - another process writes them
                        await asyncio.sleep(0.02)
                place.broker.start()
                assert (await asyncio.to_thread(program.wait_ready))["epoch"] == 0
                assert await asyncio.to_thread(program.stop) == 0


async def test_what_cannot_serve_says_so_and_does_not_start(tmp_path: Path, home: Path) -> None:
    async with site(home, "dev.sidecar") as place:
        with Cluster(tmp_path / "cluster", certificate_seconds=2) as cluster:
            whole = config_of(place, cluster)
            wrong = {
                "unknown key": {**whole, "scopes": 63},
                "no.key": {**whole, "coordinator": {**whole["coordinator"], "key": "no.key"}},
            }
            for told, config in wrong.items():
                program = started(place, config)
                assert await asyncio.to_thread(program.wait) == 78
                assert told in program.stderr
            domains.release(place.where.root, place.where.space, "dev.sidecar")
            program = started(place, whole)
            assert await asyncio.to_thread(program.wait) == 78
            assert "no claim covers dev.sidecar.coordinator" in program.stderr
