"""The short form of `make soak`: a minute of everything at once against one real server."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.e2e.cluster import short_directory
from tests.soak.memory import NOISE, PER_LIFE, PER_OPERATION, Sample, check_caps, check_growth, held
from tests.soak.truth import Failed
from tests.soak.whole import soak

SECONDS = 60
CLIENTS = 64
SEED = int(os.environ.get("SIDECAR_SOAK_SEED", "1"))

REACHED = (
    "CoordEvent",
    "SnapshotEnd",
    "ReplayBegin",
    "gap QUEUE_OVERFLOW",
    "gap RETENTION",
    "gap GRANT_REVOKED",
    "healed by replay",
    "error RESOURCE_EXHAUSTED",
    "error STALE_AUTHORITY",
    "error OPERATION_CONFLICT",
    "registry revoke",
    "end _in_order",
    "end _half_closed",
    "end _unread",
)
"""What has to occur, or the soak proves little."""


@pytest.mark.req(
    "P3-50", "P6-17", "P8-14", "P8-17", "P9-06", "P10-06", "P10-11", "P10-14", "P10-18", "P13-05", "P13-08", "W8-08"
)
def test_a_minute_of_everything_at_once() -> None:
    with short_directory() as directory:
        report = soak(Path(directory), seconds=SECONDS, clients=CLIENTS, seed=SEED)
    assert {name for name in REACHED if not report["seen"].get(name)} == set()
    assert report["connections"] > 1_000
    assert report["deliveries_verified"] > 5_000


def samples(per_life: float, lives: int = 3_000, *, per_operation: float = 0.0) -> list[Sample]:
    """A server that grows by so much with each connection and operation, after a warm-up that tells nothing."""
    warm = [Sample(float(at), at * 50, at * 20, at * 1_000_000) for at in range(30)]
    each = lives // 30
    late = [
        Sample(30.0 + at, 1_500 + at * each, 600 + at, int(5e7 + at * (each * per_life + per_operation)))
        for at in range(31)
    ]
    return warm + late


@pytest.mark.parametrize(("per_life", "lives"), [(0.0, 3_000), (PER_LIFE - 1, 30_000), (NOISE / 3_000 - 10, 3_000)])
def test_memory_that_does_not_grow_with_connections_is_no_leak(per_life: float, lives: int) -> None:
    check_growth(samples(per_life, lives, per_operation=PER_OPERATION))


@pytest.mark.parametrize(("per_life", "lives"), [(2_048.0, 1_500), (1_024.0, 3_000), (PER_LIFE + 10, 30_000)])
def test_a_kibibyte_for_each_connection_is_a_leak(per_life: float, lives: int) -> None:
    with pytest.raises(Failed):
        check_growth(samples(per_life, lives))


def test_a_counter_above_its_cap_or_above_zero_is_seen() -> None:
    row = {"used": 3, "cap": 3}
    quiet = {"queues": {"backlog": 0}, "sockets": {"active": 0}, "principals": [], "connections": []}
    document = {**quiet, "quotas": {"leases": row}}
    check_caps(document)
    assert held(document) == {"leases": 3}
    full = {**document, "principals": [{"key_id": "k", "quotas": {"leases": {"used": 4, "cap": 3}}}]}
    with pytest.raises(Failed):
        check_caps(full)
    assert held({**quiet, "quotas": {}}) == {}
