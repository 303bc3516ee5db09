"""A soak with the server that it needs."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import uvloop

from tests.e2e import seeding
from tests.e2e.cluster import Cluster
from tests.soak.run import Soak


def soak(directory: Path, *, seconds: float, clients: int, seed: int) -> dict[str, Any]:
    """Start a coordinator with its witness, let the clients at it, and see what is left. Raises Failed."""
    cluster = Cluster(directory, certificate_seconds=30, serve={"log": {"level": "info"}})
    seeding.seed(cluster.layout.store, sets=2)
    with cluster, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(Soak(cluster, seconds=seconds, clients=clients, seed=seed).run())
