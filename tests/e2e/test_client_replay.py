"""Healing by replay between the client library and a real server: nothing lost, nothing twice, kills included."""

from __future__ import annotations

import asyncio
import math
import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from sidecar.coordinator import client_events as ev
from sidecar.coordinator.client import CoordinatorClient
from sidecar.coordinator.client_errors import ContinuityLost
from sidecar.coordinator.client_handshake import ReplayBound
from sidecar.coordinator.client_link import Subscription
from sidecar.coordinator.client_trust import Pins
from sidecar.coordinator.client_watch import Broken, Cut, Replayed, Restored, watch
from sidecar.coordinator.wire.enums import Capability
from sidecar.coordinator.wire.errors import CursorInvalid
from sidecar.coordinator.wire.ids import EventCut
from sidecar.coordinator.wire.limits import Limits
from tests.e2e.clients import PATIENT, connect
from tests.e2e.cluster import Cluster

OVERFLOWING = 520
"""Commands, of two events each, that a subscriber which takes nothing can not queue (P3-36)."""
NARROW = Limits(
    frame=524_288, page_bytes=262_144, page_records=200, typed_payload=131_072, credit_count=2, credit_bytes=4_194_304
)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(tmp_path, certificate_seconds=5) as running:
        yield running


async def create(writer: CoordinatorClient, count: int) -> None:
    await asyncio.gather(*(writer.create_objective(b'{"n":%d}' % number) for number in range(count)))


async def until_lost(events: Subscription) -> list[ev.Change]:
    taken: list[ev.Change] = []
    with pytest.raises(ContinuityLost):
        await collect(events, taken)
    return taken


async def collect(events: Subscription, into: list[ev.Change], through: float = math.inf) -> None:
    while not into or into[-1].sequence < through:
        into.append(await anext(events))


async def take(events: Subscription, through: int) -> list[ev.Change]:
    taken: list[ev.Change] = []
    await collect(events, taken, through)
    return taken


@pytest.mark.req("P10-14", "P10-25", "P10-32", "P10-33", "P10-34")
@pytest.mark.asyncio
async def test_a_slow_subscriber_is_healed_to_what_a_fast_one_saw(cluster: Cluster) -> None:
    pins = Pins()
    async with (
        await connect(cluster, pins, limits=NARROW) as slow,
        await connect(cluster, pins) as fast,
        await connect(cluster, pins) as writer,
    ):
        assert slow.welcome.capabilities & Capability.EVENT_REPLAY
        lagging = await slow.subscribe(EventCut(0))
        following = await fast.subscribe(EventCut(0))
        reading = asyncio.ensure_future(take(following, 2 * OVERFLOWING + 20))
        await create(writer, OVERFLOWING)
        seen = await until_lost(lagging)
        assert len(seen) == 2
        assert lagging.replayable
        replaying = asyncio.ensure_future(slow.replay(lagging))
        await create(writer, 5)  # while it is replayed
        replay = await replaying
        assert replay.page_count >= 5
        seen += replay.events
        await create(writer, 5)
        seen += await take(lagging, 2 * OVERFLOWING + 20)
        everything = await reading
        assert [event.event_id for event in seen] == [event.event_id for event in everything]
        assert [event.sequence for event in seen] == list(range(1, 2 * OVERFLOWING + 21))
        assert [event.payload for event in seen] == [event.payload for event in everything]
        snapshot = await slow.snapshot()
        assert lagging.projection.records == {record.key(): record for record in snapshot.records}
        assert following.projection.records == lagging.projection.records
        assert slow.down is None


@pytest.mark.req("P10-32", "P10-35", "P10-36")
@pytest.mark.asyncio
async def test_a_watch_that_falls_behind_again_and_again_is_replayed(cluster: Cluster) -> None:
    pins = Pins()
    async with await connect(cluster, pins, limits=NARROW) as client, await connect(cluster, pins) as writer:
        stream = watch(client, policy=PATIENT)
        start = await anext(stream)
        assert isinstance(start, Cut)
        sequences: list[int] = []
        replays = 0
        for round_ in range(1, 4):
            await create(writer, OVERFLOWING)
            while len(sequences) < 2 * OVERFLOWING * round_:
                item = await anext(stream)
                assert isinstance(item, ev.WorkEvent | Broken | Replayed)
                if isinstance(item, ev.WorkEvent):
                    sequences.append(item.sequence)
                elif isinstance(item, Replayed):
                    sequences += [event.sequence for event in item.events]
                    replays += 1
        assert sequences == list(range(1, 6 * OVERFLOWING + 1))
        assert replays == 3
        await stream.aclose()


@pytest.mark.req("P10-19", "P13-07", "P10-36")
@pytest.mark.asyncio
async def test_a_server_that_is_killed_during_a_replay_is_told_and_a_snapshot_heals(cluster: Cluster) -> None:
    pins = Pins()
    async with await connect(cluster, pins, limits=NARROW) as client, await connect(cluster, pins) as writer:
        stream = watch(client, policy=PATIENT)
        assert isinstance(await anext(stream), Cut)
        await create(writer, OVERFLOWING)
        items = [await anext(stream) for _ in range(3)]
        assert isinstance(items[-1], Broken)
        assert items[-1].connection is None
        assert cluster.serve is not None
        os.kill(cluster.serve.pid, signal.SIGSTOP)
        told = asyncio.ensure_future(anext(stream))
        await asyncio.wait([told], timeout=0.5)
        assert not told.done()
        await asyncio.to_thread(cluster.kill)
        broken = await told
        assert isinstance(broken, Broken)
        assert broken.connection is not None
        assert not broken.loss.healable
        await asyncio.to_thread(cluster.start_serve)
        assert isinstance(await anext(stream), Restored)
        healed = await anext(stream)
        assert isinstance(healed, Cut)
        assert healed.snapshot.record_count == 2 * OVERFLOWING
        assert len(healed.changed) == 2 * OVERFLOWING - 2
        await stream.aclose()


@pytest.mark.asyncio
async def test_a_replay_above_the_clients_bound_is_left_for_a_snapshot(cluster: Cluster) -> None:
    pins = Pins()
    bound = ReplayBound(events=300)
    async with (
        await connect(cluster, pins, limits=NARROW, replay=bound) as client,
        await connect(cluster, pins) as writer,
    ):
        stream = watch(client, policy=PATIENT)
        assert isinstance(await anext(stream), Cut)
        await create(writer, OVERFLOWING)
        items = [type(await anext(stream)) for _ in range(5)]
        assert items == [ev.WorkEvent, ev.WorkEvent, Broken, Restored, Cut]
        await writer.create_objective(b"{}")
        assert isinstance(await anext(stream), ev.WorkEvent)
        await stream.aclose()


@pytest.mark.req("P10-35", "P10-25", "P10-32", "P10-14")
@pytest.mark.asyncio
async def test_replays_that_race_with_overflow_lose_and_repeat_nothing(cluster: Cluster) -> None:
    """Pages of one event make a replay slow enough that the stream may overflow again while it runs."""
    pins = Pins()
    before, meanwhile = 1300, 1100
    total = 2 * (before + meanwhile)
    async with (
        await connect(cluster, pins, limits=replace(NARROW, page_records=1)) as slow,
        await connect(cluster, pins) as fast,
        await connect(cluster, pins) as writer,
    ):
        lagging = await slow.subscribe(EventCut(0))
        following = await fast.subscribe(EventCut(0))
        reading = asyncio.ensure_future(take(following, total))
        await create(writer, before)
        seen = await until_lost(lagging)
        writing = asyncio.ensure_future(create(writer, meanwhile))
        while lagging.projection.cut < total:
            try:
                seen += (await slow.replay(lagging)).events
                await collect(lagging, seen, total)
            except (CursorInvalid, ContinuityLost):
                assert lagging.replayable
        await writing
        everything = await reading
        assert [event.event_id for event in seen] == [event.event_id for event in everything]
        assert lagging.projection.records == following.projection.records
