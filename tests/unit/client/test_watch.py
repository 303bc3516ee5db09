"""``watch`` where the stream is lost before its snapshot is applied, over a real Unix socket."""

from __future__ import annotations

import pytest

from sidecar.coordinator.client import CoordinatorClient, ReconnectPolicy
from sidecar.coordinator.client_trust import Pins
from sidecar.coordinator.client_watch import Cut, Why, watch
from sidecar.coordinator.wire import frames as fr
from sidecar.coordinator.wire.enums import ErrorCode
from sidecar.coordinator.wire.errors import CursorInvalid
from tests.oracles.fake_endpoint import FakeEndpoint
from tests.oracles.fake_server import Rewrite, objective
from tests.unit.client.rig import WORKLOAD, changing

THRICE = ReconnectPolicy(attempts=3, first_delay=0.001)


def overflowing(endpoint: FakeEndpoint, connections: int) -> None:
    """On the first connections the reserved stream overflows while the snapshot is still being read (P9-27)."""

    def refuse(ack: fr.Ack) -> fr.Frame:
        return fr.CoordErrorFrame(request_id=ack.request_id, code=ErrorCode.CURSOR_INVALID, message="gone")

    def behave(number: int) -> Rewrite | None:
        return changing(fr.Ack, refuse) if number <= connections else None

    endpoint.behave = behave


@pytest.mark.asyncio
async def test_a_stream_that_overflows_before_its_snapshot_is_applied_is_taken_again(endpoint: FakeEndpoint) -> None:
    endpoint.world.put(objective(1))
    overflowing(endpoint, 2)
    client = await CoordinatorClient.connect(
        endpoint.path, WORKLOAD, pins=Pins(), witness=endpoint.world.pin, reconnect=THRICE
    )
    async with client:
        watched = watch(client, policy=THRICE)
        first = await anext(watched)
        assert isinstance(first, Cut)
        assert first.why is Why.START
        assert first.snapshot.record_count == 1
        await watched.aclose()
    assert len(endpoint.servers) == 3


@pytest.mark.asyncio
async def test_it_is_taken_again_as_often_as_the_policy_allows(endpoint: FakeEndpoint) -> None:
    overflowing(endpoint, 100)
    client = await CoordinatorClient.connect(
        endpoint.path, WORKLOAD, pins=Pins(), witness=endpoint.world.pin, reconnect=THRICE
    )
    async with client:
        with pytest.raises(CursorInvalid):
            await anext(watch(client, policy=THRICE))
    assert len(endpoint.servers) == 1 + THRICE.attempts
