"""Ten thousand connections live and end, and nothing of them is left; a failure names the seed that replays it."""

from __future__ import annotations

from collections import Counter
from functools import lru_cache
from typing import Any

import pytest

from sidecar.coordinator.engine.quota import Resource
from sidecar.coordinator.wire.enums import CommandKind, FrameType, GapReason
from sidecar.coordinator.wire.table import FRAME_TABLE
from tests.sim.lifecycle import Street
from tests.unit.session.speaker import REQUESTS

SEEDS = range(10)
LIVES = 1_000
"""Connections of each seed."""


@lru_cache
def lived(seed: int) -> Counter[Any]:
    """Let the connections of a seed live, end them all, find nothing left; what happened meanwhile."""
    street = Street(seed)
    try:
        street.run(LIVES)
        end(street, seed % 3)
        nothing_is_held(street)
    except BaseException as error:
        raise AssertionError(f"seed {seed} fails after {street.begun} connections: {error!r}") from error
    street.note()
    return street.seen


def end(street: Street, way: int) -> None:
    """What was admitted becomes durable before everybody leaves, or after that, or never: the authority is lost."""
    if way == 0:
        street.settle()
    elif way == 1:
        street.world.engine.fence("the store failed")
    else:
        street.act_together()
    street.leave()
    street.settle()


def nothing_is_held(street: Street) -> None:
    """Every counter at zero, no principal remembered, nothing queued, no object alive."""
    engine = street.world.engine
    assert street.world.used() == {}
    assert engine._runtime.quotas.principals == 0
    assert engine.connections == []
    assert len(engine._backlog) == 0
    assert not engine.waiting
    assert not engine._transactions.groups
    assert street.house.crashes == []
    assert street.most > 8, "the search for living objects does not find them while they live"
    assert street.alive() == []


@pytest.mark.req(
    "P3-41", "P3-42", "P3-43", "P3-44", "P3-45", "P3-46", "P3-47", "P3-48", "P3-49", "P3-50", "W8-08", "P9-06", "P14-14"
)
@pytest.mark.parametrize("seed", SEEDS)
def test_a_thousand_connections_leave_nothing_behind(seed: int) -> None:
    lived(seed)


def test_the_connections_do_everything_that_could_leave_something_behind() -> None:
    seen: Counter[Any] = Counter()
    for seed in SEEDS:
        seen += lived(seed)
    reached = set(seen)
    unused = {GapReason.SOURCE_GAP, GapReason.REVISION_MISMATCH}
    assert {("gap", reason) for reason in set(GapReason) - unused} <= reached
    assert {("quota", resource.label) for resource in Resource if resource is not Resource.QUEUE_BYTES} <= reached
    assert ("lease_expired", "snapshot") in reached
    assert {("handshake", outcome) for outcome in ("ok", "closed", "timeout", "peer_error", "resource_exhausted")} <= (
        reached
    )
    for kind in set(CommandKind) - {CommandKind.START_RUN, CommandKind.END_BINDING}:
        assert ("command", kind, "succeeded") in reached
        assert ("command", kind, "scope_denied") in reached
    assert ("command", CommandKind.UPDATE_OBJECTIVE, "repeated") in reached
    endings = {(kind, reply) for kind in REQUESTS for reply in (*FRAME_TABLE[kind].replies, FrameType.COORD_ERROR)}
    assert endings <= reached
