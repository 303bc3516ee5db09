"""``watch`` where the stream is lost: healed in the open, over a real Unix socket."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from sidecar.coordinator.client import CoordinatorClient, ReconnectPolicy
from sidecar.coordinator.client_errors import ConnectionLost, ContinuityLost, VerificationFailed
from sidecar.coordinator.client_events import WorkEvent
from sidecar.coordinator.client_handshake import ReplayBound
from sidecar.coordinator.client_trust import Pins
from sidecar.coordinator.client_watch import Broken, Cut, Replayed, Restored, Why, watch
from sidecar.coordinator.wire import frames as fr
from sidecar.coordinator.wire.enums import Capability, ErrorCode, GapReason
from sidecar.coordinator.wire.errors import CursorInvalid
from sidecar.coordinator.wire.records import SnapshotRecord
from tests.oracles.fake_endpoint import FakeEndpoint
from tests.oracles.fake_server import Rewrite, altered, objective
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


async def watching(endpoint: FakeEndpoint, **options: Any) -> CoordinatorClient:
    endpoint.world.capabilities = int(Capability.EVENT_REPLAY)
    return await CoordinatorClient.connect(
        endpoint.path, WORKLOAD, pins=Pins(), witness=endpoint.world.pin, reconnect=THRICE, **options
    )


def gap(endpoint: FakeEndpoint, *missed: SnapshotRecord) -> None:
    """The newest stream has a GAP and misses these."""
    server = endpoint.servers[-1]
    (stream,) = server.streams.values()
    server.gap(stream)
    for record in missed:
        endpoint.world.put(record)
    endpoint.flush()


def add(endpoint: FakeEndpoint, record: SnapshotRecord) -> None:
    endpoint.world.put(record)
    endpoint.flush()


@pytest.mark.req("P10-32", "P10-34", "P10-36")
@pytest.mark.asyncio
async def test_a_gap_is_healed_by_what_was_missed_on_the_same_subscription(endpoint: FakeEndpoint) -> None:
    async with await watching(endpoint) as client:
        watched = watch(client, policy=THRICE)
        await anext(watched)
        add(endpoint, objective(1))
        first = await anext(watched)
        assert isinstance(first, WorkEvent)
        for round_ in range(1, 3 + THRICE.attempts):  # progress keeps the policy fresh
            gap(endpoint, objective(10 * round_), objective(10 * round_ + 1))
            broken, healed = await anext(watched), await anext(watched)
            assert isinstance(broken, Broken)
            assert (broken.connection, broken.loss.healable) == (None, True)
            assert isinstance(healed, Replayed)
            assert [event.record for event in healed.events] == [objective(10 * round_), objective(10 * round_ + 1)]
            assert healed.through == 1 + 2 * round_
        add(endpoint, objective(1, 2))
        event = await anext(watched)
        assert isinstance(event, WorkEvent)
        assert (event.subscription_id, event.delivery) == (first.subscription_id, 2)
        await watched.aclose()
    assert len(endpoint.servers) == 1
    assert endpoint.world.snapshots == 1


@pytest.mark.req("P10-28", "P10-36", "P9-26")
@pytest.mark.asyncio
async def test_a_replay_that_is_refused_becomes_a_snapshot_on_the_same_connection(endpoint: FakeEndpoint) -> None:
    async with await watching(endpoint) as client:
        watched = watch(client, policy=THRICE)
        await anext(watched)
        endpoint.world.first_retained = 2
        gap(endpoint, objective(1))
        assert isinstance(await anext(watched), Broken)
        healed = await anext(watched)
        assert isinstance(healed, Cut)
        assert (healed.why, healed.changed) == (Why.HEAL, (objective(1),))
        add(endpoint, objective(2))
        assert isinstance(await anext(watched), WorkEvent)
        await watched.aclose()
    (server,) = endpoint.servers
    assert server.of(fr.OpenReplay)
    assert server.of(fr.OpenSnapshot)[-1].replace_paused_subscription is not None


@pytest.mark.req("P10-36")
@pytest.mark.asyncio
async def test_without_event_replay_a_snapshot_heals_at_once(endpoint: FakeEndpoint) -> None:
    async with await watching(endpoint, capabilities=0) as client:
        watched = watch(client, policy=THRICE)
        await anext(watched)
        gap(endpoint, objective(1))
        assert [type(await anext(watched)) for _ in range(2)] == [Broken, Cut]
        await watched.aclose()
    assert not endpoint.servers[0].of(fr.OpenReplay)


@pytest.mark.asyncio
async def test_a_replay_above_the_bound_becomes_a_snapshot_on_a_new_connection(endpoint: FakeEndpoint) -> None:
    async with await watching(endpoint, replay=ReplayBound(events=1)) as client:
        watched = watch(client, policy=THRICE)
        await anext(watched)
        gap(endpoint, objective(1), objective(2))
        assert [type(await anext(watched)) for _ in range(3)] == [Broken, Restored, Cut]
        await watched.aclose()
    assert len(endpoint.servers) == 2


@pytest.mark.req("P10-32", "P10-19", "P13-07")
@pytest.mark.asyncio
@pytest.mark.parametrize("how", ["lie", "close"])
async def test_a_replay_that_ends_the_connection_is_told_and_nothing_of_it(endpoint: FakeEndpoint, how: str) -> None:
    def behave(number: int) -> Rewrite | None:
        return changing(fr.ReplayEnd, spoil) if number == 1 else None

    def spoil(end: fr.ReplayEnd) -> fr.Frame | None:
        if how == "close":
            endpoint.servers[-1].closed = True
            return None
        return altered(end, canonical_sha256=bytes(32))

    endpoint.behave = behave
    async with await watching(endpoint) as client:
        watched = watch(client, policy=THRICE)
        await anext(watched)
        gap(endpoint, objective(1))
        first, second, restored, healed = [await anext(watched) for _ in range(4)]
        assert isinstance(first, Broken)
        assert first.connection is None
        assert isinstance(second, Broken)
        assert isinstance(second.connection, VerificationFailed if how == "lie" else ConnectionLost)
        assert not second.loss.healable
        assert isinstance(restored, Restored)
        assert isinstance(healed, Cut)
        assert healed.changed == (objective(1),)
        await watched.aclose()


@pytest.mark.req("P10-35")
@pytest.mark.asyncio
async def test_a_stream_that_always_overflows_is_replayed_as_often_as_the_policy_allows(endpoint: FakeEndpoint) -> None:
    """Each replay is empty and the stream pauses again in front of its ACK."""

    def again(ack: fr.Ack) -> bytes:
        (server,) = endpoint.servers
        (stream,) = server.streams.values()
        if not server.of(fr.OpenReplay):
            return ack.encode()
        frame = fr.Gap.build(
            {
                "subscription_id": stream.subscription_id,
                "last_contiguous_delivery": 0,
                "last_contiguous_event": 0,
                "reason": GapReason.QUEUE_OVERFLOW,
            }
        )
        stream.paused = True
        return frame.encode() + ack.encode()

    endpoint.behave = lambda number: changing(fr.Ack, again)
    async with await watching(endpoint) as client:
        watched = watch(client, policy=THRICE)
        await anext(watched)
        gap(endpoint)
        for _ in range(THRICE.attempts):
            assert [type(await anext(watched)) for _ in range(2)] == [Broken, Replayed]
        assert isinstance(await anext(watched), Broken)
        with pytest.raises(ContinuityLost) as caught:
            await anext(watched)
        assert caught.value.healable


@pytest.mark.asyncio
async def test_no_heal_asks_for_no_replay(endpoint: FakeEndpoint) -> None:
    async with await watching(endpoint) as client:
        watched = watch(client, heal=False, policy=THRICE)
        await anext(watched)
        gap(endpoint, objective(1))
        assert isinstance(await anext(watched), Broken)
        with pytest.raises(ContinuityLost):
            await anext(watched)
    assert not endpoint.servers[0].of(fr.OpenReplay)


@pytest.mark.asyncio
async def test_a_caller_that_is_cancelled_during_its_replay_gets_no_hole(endpoint: FakeEndpoint) -> None:
    held: list[fr.ReplayEnd] = []
    endpoint.behave = lambda number: changing(fr.ReplayEnd, held.append)
    async with await watching(endpoint) as client:
        _, events = await client.follow()
        gap(endpoint, objective(1))
        with pytest.raises(ContinuityLost):
            await anext(events)
        assert events.replayable
        asked = asyncio.ensure_future(client.replay(events))
        await endpoint.received(fr.ReplayNext)
        asked.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asked
        server = endpoint.servers[-1]
        server.rewrite = None
        server.send(held[0])
        endpoint.flush()
        await endpoint.received(fr.ReplayApplied)
        add(endpoint, objective(2))
        assert await client.ping() >= 0
        with pytest.raises(ContinuityLost):
            await anext(events)
