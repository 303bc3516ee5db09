"""The bridge's view of a real coordinator: under one activation each time, and never from memory alone."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from sidecar.base.clock import Now, system_now
from sidecar.bridge.pages import page
from sidecar.bridge.source import KEPT_CUTS, KEPT_SECONDS, READING, CutGone, Source, Unread, Why
from sidecar.coordinator.client import CoordinatorClient, ReconnectPolicy
from sidecar.coordinator.client_trust import Pins
from sidecar.coordinator.wire.ids import OperationId
from sidecar.coordinator.wire.records import Succeeded, Unknown
from tests.e2e.clients import connect
from tests.e2e.cluster import Cluster


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(tmp_path, certificate_seconds=2) as running:
        yield running


class Clock:
    """The system's clock, which can be set forward."""

    ahead = 0.0

    def __call__(self) -> Now:
        now = system_now()
        return Now(now.wall, now.mono + self.ahead)


def source(cluster: Cluster, clock: Clock | None = None, patience: float = 10.0) -> Source:
    pins = Pins()

    async def dial() -> CoordinatorClient:
        return await connect(cluster, pins, scopes=READING, reconnect=ReconnectPolicy(), patience=patience)

    return Source(dial, clock=clock or system_now)


async def why(read: object) -> Why:
    with pytest.raises(Unread) as caught:
        await read  # type: ignore[misc]
    return caught.value.why


@pytest.mark.asyncio
async def test_pages_go_on_in_the_very_cut_that_they_began_in(cluster: Cluster) -> None:
    bridge = source(cluster)
    async with await connect(cluster, Pins()) as writer:
        for number in range(4):
            await writer.create_objective(b'{"n":%d}' % number)
        first = await bridge.cut()
        rows, after = page(first.value, None, None, 3)
        assert after is not None
        await writer.create_objective(b'{"n":"later"}')
        rest = page((await bridge.again(after)).value, None, after, 100).rows
        documents = [row["content"]["document"] for row in (*rows, *rest) if row["kind"] == "OBJECTIVE"]
        assert sorted(documents) == ['{"n":0}', '{"n":1}', '{"n":2}', '{"n":3}']
        fresh = await bridge.cut()
        assert fresh.value.record_count > first.value.record_count
    await bridge.close()


@pytest.mark.asyncio
async def test_a_cut_that_is_not_kept_any_more_is_read_again_or_gone(cluster: Cluster) -> None:
    clock = Clock()
    bridge = source(cluster, clock)
    async with await connect(cluster, Pins()) as writer:
        for number in range(4):
            await writer.create_objective(b'{"n":%d}' % number)
        _, after = page((await bridge.cut()).value, None, None, 2)
        assert after is not None
        clock.ahead += KEPT_SECONDS + 1
        await bridge.cut()
        assert (await bridge.again(after)).value.digest == after.digest, "nothing has changed: the same cut"
        await writer.create_objective(b"{}")
        clock.ahead += KEPT_SECONDS + 1
        await bridge.cut()
        assert bridge.kept == 1
        with pytest.raises(CutGone):
            await bridge.again(after)
        for _ in range(KEPT_CUTS + 2):
            await writer.create_objective(b"{}")
            await bridge.cut()
        assert bridge.kept == KEPT_CUTS
    await bridge.close()


@pytest.mark.asyncio
async def test_many_that_ask_at_once_share_a_snapshot_that_began_after_they_asked(cluster: Cluster) -> None:
    bridge = source(cluster)
    reads = await asyncio.gather(*(bridge.cut() for _ in range(50)))
    assert len({id(read.value) for read in reads}) <= 2
    async with await connect(cluster, Pins()) as writer:
        made = await writer.create_objective(b"{}")
        assert isinstance(made.result, Succeeded)
        assert (await bridge.cut()).value.base >= made.result.completed_event_sequence
    await bridge.close()


@pytest.mark.asyncio
async def test_nothing_is_told_of_an_activation_that_has_ended(cluster: Cluster) -> None:
    bridge = source(cluster)
    async with await connect(cluster, Pins()) as writer:
        made = [await writer.create_objective(b'{"n":%d}' % number) for number in range(4)]
    read = await bridge.cut()
    assert read.welcome.standing.epoch == 1
    _, after = page(read.value, None, None, 2)
    assert after is not None
    cluster.kill()
    assert await why(bridge.again(after)) is Why.UNREACHABLE
    assert await why(bridge.cut()) is Why.UNREACHABLE
    assert await why(bridge.operation(made[0].operation_id)) is Why.UNREACHABLE
    assert not bridge.connected
    await asyncio.to_thread(cluster.start_serve)
    found = await bridge.operation(made[0].operation_id)
    assert found.value == made[0].result
    assert found.welcome.standing.epoch == 2
    assert bridge.kept == 0
    with pytest.raises(CutGone):
        await bridge.again(after)
    await bridge.close()


@pytest.mark.asyncio
async def test_a_coordinator_that_stands_still_is_not_believed_in(cluster: Cluster) -> None:
    bridge = source(cluster, patience=0.5)
    await bridge.cut()
    assert cluster.serve is not None
    os.kill(cluster.serve.pid, signal.SIGSTOP)
    try:
        assert await why(bridge.cut()) is Why.UNREACHABLE
        assert await why(bridge.operation(OperationId(b"\x01" * 16))) is Why.UNREACHABLE
    finally:
        os.kill(cluster.serve.pid, signal.SIGCONT)
    await bridge.close()


@pytest.mark.asyncio
async def test_who_waits_behind_a_coordinator_that_hangs_does_not_wait_for_it_in_turn(cluster: Cluster) -> None:
    dialled = 0
    pins = Pins()

    async def dial() -> CoordinatorClient:
        nonlocal dialled
        dialled += 1
        return await connect(cluster, pins, scopes=READING, reconnect=ReconnectPolicy(), patience=0.5)

    bridge = Source(dial)
    await bridge.cut()
    assert cluster.serve is not None
    os.kill(cluster.serve.pid, signal.SIGSTOP)
    try:
        for ask in (bridge.cut, bridge.alive, lambda: bridge.operation(OperationId(b"\x01" * 16)), bridge.cut):
            dialled = 0
            assert set(await asyncio.gather(*(why(ask()) for _ in range(20)))) == {Why.UNREACHABLE}
            assert dialled <= 2  # the first one's, and one for all who came while that was under way
    finally:
        os.kill(cluster.serve.pid, signal.SIGCONT)
    await bridge.close()


@pytest.mark.asyncio
async def test_operations_are_those_of_the_key_and_no_other(cluster: Cluster) -> None:
    bridge = source(cluster)
    async with await connect(cluster, Pins()) as own, await connect(cluster, Pins(), name="admin") as other:
        mine = await own.create_objective(b"{}")
        theirs = await other.create_objective(b"{}")
    assert (await bridge.operation(mine.operation_id)).value == mine.result
    assert isinstance((await bridge.operation(theirs.operation_id)).value, Unknown)
    await bridge.close()


@pytest.mark.asyncio
async def test_a_key_that_may_not_log_in_is_refused_and_the_reason_is_kept_for_the_log(cluster: Cluster) -> None:
    async def dial() -> CoordinatorClient:
        return await connect(cluster, Pins(), name="expired", scopes=READING, reconnect=ReconnectPolicy())

    bridge = Source(dial)
    with pytest.raises(Unread) as caught:
        await bridge.cut()
    assert caught.value.why is Why.REFUSED
    assert caught.value.cause is not None
    await bridge.close()


@pytest.mark.asyncio
async def test_a_coordinator_that_lost_its_authority_is_not_read(cluster: Cluster) -> None:
    bridge = source(cluster)
    await bridge.cut()
    await asyncio.to_thread(cluster.stop_witness)
    assert cluster.serve is not None
    await asyncio.to_thread(cluster.serve.wait)  # it cannot renew, and ends itself
    assert await why(bridge.cut()) in (Why.FENCED, Why.UNREACHABLE)
    await bridge.close()
