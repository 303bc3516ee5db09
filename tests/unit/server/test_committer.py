"""From the engine to a real store and back: order, group commit, the last check before COMMIT, the first failure."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sidecar.base.clock import Now
from sidecar.coordinator.committer import MAX_IN_FLIGHT, Committer
from sidecar.coordinator.engine.state import Batch
from sidecar.coordinator.store.sqlite import SqliteStore
from sidecar.coordinator.wire import frames as fr
from sidecar.coordinator.wire.enums import ErrorCode
from tests.unit.engine.fakes import START, FakeAuthority, key
from tests.unit.engine.harness import Client, World, id16


class Stage:
    """An engine, its store on disk, and the committer between them."""

    def __init__(self, directory: Path) -> None:
        self.store = SqliteStore.open(directory, entropy=os.urandom)
        authority = FakeAuthority(coordinator_id=self.store.coordinator_id)
        self.store.install(authority.epoch, authority.activation_sequence, b"\x01" * 32, authority.incarnation_id)
        self.world = World(authority=authority, state=self.store.load())
        self.failures: list[str] = []
        self.now: Now = START
        self.late: Now | None = None
        """What the clocks say in the writer's thread, when it is something else."""
        self.gate: threading.Event | None = None
        self.at_the_gate = threading.Event()
        self.committer = Committer(
            self.world.engine,
            self.store,
            loop=asyncio.get_running_loop(),
            clock=self.clock,
            observer=self.world.observer,
            failed=self.failures.append,
        )

    def clock(self) -> Now:
        if self.gate is not None and threading.current_thread() is not threading.main_thread():
            self.at_the_gate.set()
            assert self.gate.wait(20)
            return self.late or self.now
        return self.now

    async def stopped_before_commit(self) -> None:
        """The writer thread stands right before COMMIT and waits for the gate."""
        assert await asyncio.to_thread(self.at_the_gate.wait, 20)

    def close(self) -> None:
        self.committer.stop()
        self.store.close()

    def create(self, client: Client, objective: int) -> None:
        client.send(client.create(objective))


def results(client: Client) -> list[fr.Frame]:
    return [frame for frame in client.pull() if isinstance(frame, fr.CoordCommandResult)]


def staged(test: Callable[[Stage], Any]) -> Callable[[Path], None]:
    def run(tmp_path: Path) -> None:
        async def body() -> None:
            stage = Stage(tmp_path / "store")
            try:
                await test(stage)
            finally:
                stage.close()

        asyncio.run(body())

    run.__name__, run.__doc__ = test.__name__, test.__doc__
    return run


@staged
async def test_a_reply_waits_until_its_batch_is_on_disk(stage: Stage) -> None:
    client = stage.world.connect()
    stage.gate = threading.Event()
    stage.create(client, 1)
    stage.committer.kick()
    await stage.stopped_before_commit()
    assert results(client) == []
    assert stage.store.last_sequence == 0
    stage.gate.set()
    await stage.committer.drain()
    assert len(results(client)) == 1
    assert stage.store.last_sequence > 0


@staged
async def test_what_arrives_while_the_disk_is_busy_is_gathered(stage: Stage) -> None:
    client = stage.world.connect()
    stage.gate = threading.Event()
    for number in range(1, 101):
        stage.create(client, number)
        stage.committer.kick()
        await asyncio.sleep(0)
    assert stage.committer._in_flight == MAX_IN_FLIGHT
    stage.gate.set()
    await stage.committer.drain()
    assert len(results(client)) == 100
    sizes = [call[1] for call in stage.world.observer.calls if call[0] == "batch"]
    assert sum(sizes) == 100
    assert max(sizes) > 50


@pytest.mark.req("P12-16", "P12-17")
@staged
async def test_a_certificate_that_expires_on_the_way_to_the_disk_stops_the_commit(stage: Stage) -> None:
    client = stage.world.connect()
    stage.gate = threading.Event()
    stage.create(client, 1)
    stage.committer.kick()
    await stage.stopped_before_commit()
    # The loop has not seen the expiry yet, so that nothing but the check before COMMIT can stop it.
    stage.late = Now(START.wall + 10**10, START.mono + 10**10)
    stage.gate.set()
    await stage.committer.drain()
    assert stage.store.last_sequence == 0
    assert results(client) == []
    assert stage.failures[0] == "a commit failed: the activation certificate expired"


@pytest.mark.req("P12-17")
@staged
async def test_nothing_is_committed_once_the_engine_is_fenced(stage: Stage) -> None:
    client = stage.world.connect()
    stage.gate = threading.Event()
    stage.create(client, 1)
    stage.committer.kick()
    await stage.stopped_before_commit()
    stage.world.engine.fence("the store lock was lost")
    stage.gate.set()
    await stage.committer.drain()
    assert stage.store.last_sequence == 0
    assert results(client) == []


@pytest.mark.req("P14-14")
@staged
async def test_a_newcomer_is_in_the_next_batch_behind_the_one_on_its_way(stage: Stage) -> None:
    crowd, newcomer = stage.world.connect(1), stage.world.connect(2)
    stage.gate = threading.Event()
    for number in range(1, 257):
        stage.create(crowd, number)
    stage.committer.kick()
    await stage.stopped_before_commit()
    stage.create(newcomer, 1_000)
    stage.committer.kick()
    await asyncio.sleep(0)
    order: list[list[bytes]] = []
    commit = stage.store.commit_all

    def recorded(batches: list[Batch], check: Callable[[], None]) -> None:
        order.append([operation.principal for batch in batches for operation in batch.operations])
        commit(batches, check)

    stage.store.commit_all = recorded  # type: ignore[assignment,method-assign]
    stage.gate.set()
    await stage.committer.drain()
    assert key(2) in order[0], "the commit that follows the one that stood at the gate"
    assert len(order[0]) <= stage.world.policy.batch_events // 2, "one batch, not all that waits"
    assert len(results(crowd)) == 256
    assert len(results(newcomer)) == 1


@pytest.mark.req("P12-16")
@staged
async def test_draining_waits_for_the_renewal_when_the_certificate_is_about_to_expire(stage: Stage) -> None:
    client = stage.world.connect()
    stage.create(client, 1)
    authority = stage.world.authority
    stage.now = Now(START.wall, authority.deadline_mono - 0.5)
    draining = asyncio.create_task(stage.committer.drain())
    for _ in range(10):
        await asyncio.sleep(0)
    assert not draining.done()
    assert stage.world.engine.stats().backlog == 1
    stage.world.engine.renew(dataclasses.replace(authority, deadline_mono=authority.deadline_mono + 60))
    stage.committer.kick()
    await draining
    assert len(results(client)) == 1
    assert stage.failures == []


@pytest.mark.req("P12-17")
@staged
async def test_draining_ends_when_the_renewal_never_came(stage: Stage) -> None:
    client = stage.world.connect()
    stage.create(client, 1)
    stage.now = Now(START.wall, stage.world.authority.deadline_mono - 0.5)
    draining = asyncio.create_task(stage.committer.drain())
    await asyncio.sleep(0)
    stage.now = Now(START.wall, stage.world.authority.deadline_mono)
    stage.committer.kick()
    async with asyncio.timeout(20):
        await draining
    assert stage.failures == ["the activation certificate expired"]
    assert stage.store.last_sequence == 0


@staged
async def test_lookups_alone_are_drained_in_several_turns(stage: Stage) -> None:
    clients = [stage.world.connect(), stage.world.connect()]
    for client in clients:
        for _ in range(200):
            client.send(client.lookup(id16(1)))
    async with asyncio.timeout(20):
        await stage.committer.drain()
    assert stage.world.engine.stats().backlog == 0
    assert [len(client.pull()) for client in clients] == [200, 200]


@pytest.mark.req("P13-08")
@staged
async def test_a_bug_in_one_command_is_told_and_the_others_go_on(stage: Stage) -> None:
    client, other = stage.world.connect(1), stage.world.connect(2)
    seen: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: seen.append(context))
    transactions = stage.world.engine._transactions
    run = transactions.command

    def broken(conn: Any, command: Any) -> Any:
        if conn is client.conn:
            raise RuntimeError
        return run(conn, command)

    transactions.command = broken  # type: ignore[assignment,method-assign]
    stage.create(client, 1)
    stage.create(other, 2)
    async with asyncio.timeout(20):
        await stage.committer.drain()
    assert [type(context["exception"]) for context in seen] == [RuntimeError]
    assert stage.failures == []
    assert client.conn.closing is ErrorCode.INTERNAL
    assert len(results(other)) == 1


@staged
async def test_draining_an_idle_committer_returns(stage: Stage) -> None:
    await stage.committer.drain()
    assert stage.failures == []


@pytest.mark.req("P13-08")
@staged
async def test_a_failure_behind_a_commit_is_told_and_nobody_waits_for_ever(stage: Stage) -> None:
    client = stage.world.connect()
    seen: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: seen.append(context))

    def broken(batch: Batch, now: Now) -> None:
        raise RuntimeError

    stage.world.engine.batch_durable = broken  # type: ignore[method-assign]
    stage.create(client, 1)
    async with asyncio.timeout(20):
        await stage.committer.drain()
    assert stage.failures == ["an internal failure behind a commit (RuntimeError)"]
    assert [type(context["exception"]) for context in seen] == [RuntimeError]
