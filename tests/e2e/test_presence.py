"""Presence and the channel registry at a real broker: who writes, who reads, who watches."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from sidecar.base.clock import system_now
from sidecar.ops.metrics import Metrics
from sidecar.rails.connection import Connection, PermissionViolation
from sidecar.rails.connection.kv import KeyValue
from sidecar.rails.connection.publishing import store
from sidecar.rails.envelopes.presence import Card, decode_presence
from sidecar.rails.envelopes.schema import Attention, EndpointKind, Status
from sidecar.rails.messaging.heartbeat import Heartbeat, OwnPresence
from sidecar.rails.messaging.reads import Reading
from sidecar.rails.messaging.reads_raw import RawReads
from sidecar.rails.messaging.registry import (
    DEFAULTS_KEY,
    ChannelConfig,
    DeliveryClass,
    InvalidConfig,
    RegistryUnreadable,
    RegistryWriter,
)
from sidecar.rails.messaging.roster import RosterUnreadable
from sidecar.rails.messaging.runtime import current_process
from sidecar.rails.messaging.watcher import Change, PresenceWatch, Transition
from sidecar.rails.names import api, buckets
from sidecar.rails.space.holder import Form, Holder, Profile
from tests.e2e.cluster import eventually
from tests.e2e.space_broker import EVENT_SECONDS, SpaceBroker
from tests.e2e.space_dial import dialled
from tests.e2e.space_members import SPACE, Space

pytestmark = pytest.mark.asyncio(loop_scope="module")

QUICK_MS = 200


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=list(Form), ids=str)
async def space(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Space]:
    async with SpaceBroker(tmp_path_factory.mktemp("presence")) as broker:
        made = Space(broker, request.param)
        await made.open()
        yield made


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def compatible(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Space]:
    async with SpaceBroker(tmp_path_factory.mktemp("raw")) as broker:
        made = Space(broker, Form.COMPATIBLE)
        await made.open()
        yield made


def heartbeat(connection: Connection, holder: Holder, metrics: Metrics | None = None, **more: Any) -> Heartbeat:
    principal = holder.lifecycle.principal
    card = Card(principal.dot, principal.actor.title(), EndpointKind.AGENT, protocol_version="0.4")
    own = OwnPresence.begin(card, holder.lifecycle, current_process().runtime(holder.lifecycle), now_ms())
    return Heartbeat(connection, SPACE, own, clock=system_now, metrics=metrics or Metrics(), **more)


def now_ms() -> int:
    return int(system_now().wall * 1000)


def reading(metrics: Metrics | None = None) -> Reading:
    return Reading(system_now, metrics or Metrics())


@contextlib.contextmanager
def watched(connection: Connection, watcher: str, **more: Any) -> Iterator[PresenceWatch]:
    yield PresenceWatch(connection, SPACE, watcher, clock=system_now, metrics=Metrics(), **more)


async def until(watch: PresenceWatch, actor: str, change: Change) -> Transition:
    """The next such transition; others pass."""
    async with asyncio.timeout(EVENT_SECONDS):
        while True:
            found = await watch.next()
            if (found.principal.actor, found.change) == (actor, change):
                return found


@pytest.mark.req("C2-10", "C2-11", "C6-01", "C6-02", "C6-13", "C6-16", "C6-22", "C6-29", "C6-32")
async def test_an_instance_writes_its_own_key_until_its_last_word(space: Space) -> None:
    metrics = Metrics()
    async with (
        dialled(space, Profile.AGENT, "alice", metrics=metrics) as (connection, holder),
        dialled(space, Profile.OBSERVER, "observer") as (observer, _),
    ):
        watch = KeyValue(observer, buckets.PRESENCE, SPACE).watch("w0")
        beating = heartbeat(connection, holder, metrics, interval_ms=QUICK_MS)
        await beating.start()
        async with asyncio.timeout(EVENT_SECONDS):
            entries = [await watch.next() for _ in range(4)]
        records = [decode_presence(entry.key, entry.value) for entry in entries]
        assert {entry.key for entry in entries} == {"local.alice"} == {one.card.id for one in records}
        assert all(holder.connection.encode() not in entry.value for entry in entries)
        assert {one.lifecycle_uid for one in records} == {holder.lifecycle.uid}
        assert len({one.runtime for one in records}) == len({one.status_since for one in records}) == 1
        assert all(before.ts < after.ts for before, after in itertools.pairwise(records))
        beating.update(lambda own, now: own.doing(now, status=Status.WORKING, activity="tests"))
        beating.update(lambda own, _: own.attending(Attention.DND))
        async with asyncio.timeout(EVENT_SECONDS):
            while (last := decode_presence("local.alice", (await watch.next()).value)).attention is not Attention.DND:
                continue
        assert (last.status, last.attention, last.runtime) == (Status.WORKING, Attention.DND, records[0].runtime)
        await beating.close()
        await beating.close()
        async with asyncio.timeout(EVENT_SECONDS):
            while (last := decode_presence("local.alice", (await watch.next()).value)).status is not Status.OFFLINE:
                continue
        assert (last.status_since, last.attention, last.runtime) == (None, None, records[0].runtime)
        await watch.close()
        told = metrics.totals("messaging_heartbeats")
        assert told.keys() == {("stored",), ("sent",)}
        # The first one and each change ask the broker, and of the others one in three does.
        assert told["stored",] >= 2 + told["sent",] // 2 - 1


@pytest.mark.req("C6-16", "C2-12")
async def test_a_heartbeat_outlives_the_broker(tmp_path: Path) -> None:
    async with SpaceBroker(tmp_path) as broker:
        here = Space(broker, Form.MEDIATED)
        await here.open()
        metrics = Metrics()
        async with dialled(here, Profile.AGENT, "alice", metrics=metrics) as (connection, holder):
            beating = heartbeat(connection, holder, metrics, interval_ms=QUICK_MS)
            await beating.start()
            runtime = beating.own.runtime
            broker.kill()

            async def counted(outcome: str, more: float) -> None:
                def met() -> bool:
                    return metrics.totals("messaging_heartbeats").get((outcome,), 0) >= more

                await asyncio.to_thread(eventually, met)

            await counted("unreachable", 1)
            stored = metrics.totals("messaging_heartbeats")[("stored",)]
            broker.start()
            await counted("stored", stored + 2)
            async with dialled(here, Profile.OBSERVER, "observer") as (observer, _):
                with watched(observer, "w1") as watch:
                    found = await until(watch, "alice", Change.JOINED)
                    assert found.row.presence.runtime == runtime
                    await watch.close()
            await beating.close()


@pytest.mark.req("C6-36", "C2-07")
async def test_nobody_writes_the_key_of_another(space: Space) -> None:
    async with dialled(space, Profile.AGENT, "mallory") as (connection, holder):
        own = heartbeat(connection, holder).own
        own = replace(own, card=own.card._replace(id="local.alice"))
        beating = Heartbeat(connection, SPACE, own, clock=system_now, metrics=Metrics())
        with pytest.raises(PermissionViolation):
            await beating.start()


@pytest.mark.req("C6-30", "C6-33", "C6-34", "C6-48", "C6-12")
async def test_a_watch_sees_who_comes_changes_and_goes_in_every_way(space: Space) -> None:
    async with (
        dialled(space, Profile.AGENT, "bob") as (bob, bobs),
        dialled(space, Profile.AGENT, "carl") as (carl, carls),
        dialled(space, Profile.OBSERVER, "observer") as (observer, _),
    ):
        with watched(observer, "w2", window=QUICK_MS * 5) as watch:
            first = heartbeat(bob, bobs, interval_ms=QUICK_MS)
            await first.start()
            joined = await until(watch, "bob", Change.JOINED)
            assert joined.row.live
            first.update(lambda own, now: own.attending(Attention.FOCUS))
            changed = await until(watch, "bob", Change.CHANGED)
            assert changed.row.presence.attention is Attention.FOCUS
            await first.close()
            gone = await until(watch, "bob", Change.OFFLINE)
            assert gone.row.presence.status_since is None
            again = heartbeat(bob, bobs, interval_ms=QUICK_MS)
            await again.start()
            assert (await until(watch, "bob", Change.JOINED)).row.presence.attention is Attention.OPEN
            await KeyValue(bob, buckets.PRESENCE, SPACE).delete("local.bob")
            await until(watch, "bob", Change.OFFLINE)
            await until(watch, "bob", Change.JOINED)
            silent = heartbeat(carl, carls, interval_ms=60_000)
            await silent.start()
            await until(watch, "carl", Change.JOINED)
            await until(watch, "carl", Change.OFFLINE)
            live = {row.principal.actor: row.live for row in watch.roster}
            assert (live["bob"], live["carl"]) == (True, False)
            await again.close()
            await silent.close()
            await watch.close()


@pytest.mark.req("C6-37", "C6-43", "C6-44", "C6-45", "C6-46")
async def test_a_roster_is_read_on_demand_and_bad_rows_hide_nobody(compatible: Space) -> None:
    metrics = Metrics()
    async with (
        dialled(compatible, Profile.AGENT, "alice") as (alice, alices),
        dialled(compatible, Profile.AGENT, "eve") as (eve, _),
        dialled(compatible, Profile.AGENT, "old") as (old, olds),
    ):
        beating, stale = heartbeat(alice, alices), heartbeat(old, olds)
        await beating.start()
        stale.own = stale.own.doing(now_ms(), activity="left")
        card = {"id": "local.eve", "name": "Eve", "kind": "agent"}
        reads = RawReads(alice, SPACE, reading(metrics))
        info = api.STREAM_INFO.build(stream=buckets.PRESENCE.stream(SPACE))

        async def consumers() -> int:
            return int(json.loads((await alice.request(info)).data)["state"]["consumer_count"])

        before = await consumers()
        key = buckets.PRESENCE.subject(SPACE, buckets.PRESENCE_KEY, owner="local", actor="eve")
        bad = [
            {"card": {**card, "id": "local.alice"}, "status": "idle", "ts": now_ms()},
            {"card": {**card, "name": {}}, "status": "idle", "ts": now_ms()},
            {"card": card, "status": "busy", "ts": now_ms()},
            {"card": card, "status": "idle", "ts": "nope"},
            {"card": card, "status": "idle", "ts": now_ms(), "activity": {"toString": None}},
            {"card": card, "status": "idle", "ts": now_ms(), "condition": {}},
        ]
        for number, value in enumerate(bad):
            await store(eve, key, json.dumps(value).encode())
            roster = await reads.roster()
            assert [row.principal.actor for row in roster] == ["alice"]
            assert [one.key for one in roster.dropped] == ["local.eve"]
            assert metrics.totals("messaging_presence_dropped") == {(): number + 1.0}
        await store(eve, key, os.urandom(64))
        assert (await reads.roster()).dropped
        await store(
            old,
            key.replace("eve", "old"),
            json.dumps(
                {
                    "card": {"id": "local.old", "name": "Old"},
                    "status": "working",
                    "statusSince": 1,
                    "ts": now_ms() - 60_000,
                }
            ).encode(),
        )
        roster = await reads.roster()
        row = roster.rows["local.old"]
        assert (row.live, row.presence.status, row.presence.status_since) == (False, Status.OFFLINE, None)
        assert roster.resolve("Alice") == alices.lifecycle.principal
        assert await consumers() == before
        assert metrics.totals("messaging_reads") == {("roster", "complete"): len(bad) + 2.0}
        await beating.close()


@pytest.mark.req("C6-47", "C9-47")
async def test_a_member_that_may_not_read_learns_nothing_and_is_told_so(space: Space) -> None:
    metrics = Metrics()
    profile = Profile.AGENT if space.form is Form.MEDIATED else Profile.DM_READER
    async with dialled(space, profile, "alice") as (connection, _):
        reads = RawReads(connection, SPACE, reading(metrics))
        with pytest.raises(RosterUnreadable):
            await reads.roster()
        with pytest.raises(RegistryUnreadable):
            await reads.registry()
        assert metrics.totals("messaging_reads") == {("roster", "unreadable"): 1.0, ("registry", "unreadable"): 1.0}


@pytest.mark.req("C7-02", "C7-03", "C7-04", "C7-05", "C7-10", "C7-11")
async def test_what_is_said_of_a_channel_counts_at_the_next_read(compatible: Space) -> None:
    async with (
        dialled(compatible, Profile.PROVISIONER, "provisioner") as (operator, _),
        dialled(compatible, Profile.AGENT, "alice") as (alice, _),
    ):
        writer, reads = RegistryWriter(operator, SPACE), RawReads(alice, SPACE, reading())
        assert (await reads.registry()).effective("team.backend").delivery_class is DeliveryClass.DURABLE
        await writer.set_channel("team.backend", ChannelConfig(delivery_class=DeliveryClass.LIVE, description="x"))
        registry = await reads.registry()
        assert registry.channels["team.backend"].description == "x"
        assert registry.effective("team.backend").delivery_class is DeliveryClass.LIVE
        _, revision = await writer.defaults()
        await writer.set_defaults(ChannelConfig(replay=False, replay_window="2h"), revision)
        assert (await reads.registry()).effective("other") == (False, 7_200, DeliveryClass.DURABLE)
        stored = await KeyValue(operator, buckets.CHANNELS, SPACE).read_all()
        assert set(stored) == {"team.backend", DEFAULTS_KEY}
        for refused in (ChannelConfig(replay_window="24 h"), ChannelConfig(description="d" * 201)):
            with pytest.raises(InvalidConfig):
                await writer.set_channel("team.backend", refused)
        with pytest.raises(PermissionViolation):
            await RegistryWriter(alice, SPACE).set_channel("team.backend", ChannelConfig(replay=True))
        await writer.remove_channel("team.backend")
        assert await writer.channel("team.backend") == (ChannelConfig(), 0)
        assert (await reads.registry()).effective("team.backend").delivery_class is DeliveryClass.DURABLE
