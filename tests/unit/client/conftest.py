"""A truthful endpoint on a real Unix socket."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio

from tests.oracles.fake_endpoint import FakeEndpoint
from tests.oracles.fake_server import World
from tests.unit.client.rig import WORKLOAD


@pytest_asyncio.fixture
async def endpoint(tmp_path: Path) -> AsyncIterator[FakeEndpoint]:
    world = World()
    world.admit(WORKLOAD)
    async with FakeEndpoint(tmp_path / "coordinator.sock", world) as serving:
        yield serving
