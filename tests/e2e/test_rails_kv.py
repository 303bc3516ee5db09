"""Storing and KV buckets at a real nats-server, with the credentials of a provisioned space."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from sidecar.ops.metrics import Metrics
from sidecar.rails.connection import Connection, Fault, PermissionViolation
from sidecar.rails.connection import kv as kv_module
from sidecar.rails.connection.kv import Entry, KeyExists, KeyValue, KeyWatch, Unreadable, WrongRevision
from sidecar.rails.connection.publishing import TooLarge, WrongSequence, store
from sidecar.rails.names import api, buckets, headers, streams, subjects
from sidecar.rails.names.limits import MAX_ANYCAST_VALUE
from sidecar.rails.space.holder import Form, Profile, Service
from tests.e2e.space_broker import EVENT_SECONDS, SpaceBroker
from tests.e2e.space_dial import dialled
from tests.e2e.space_members import INSTANCE, SPACE, Space

pytestmark = pytest.mark.asyncio(loop_scope="module")

SERVICE = Service(INSTANCE, 1, ("durable-join",))
OWN = buckets.PRESENCE_BUCKET.build(space=SPACE)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def space(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Space]:
    async with SpaceBroker(tmp_path_factory.mktemp("kv")) as broker:
        made = Space(broker, Form.COMPATIBLE)
        await made.open()
        yield made


async def following(watch: KeyWatch) -> Entry:
    async with asyncio.timeout(EVENT_SECONDS):
        return await watch.next()


async def consumers_of(connection: Connection, bucket: buckets.Bucket) -> int:
    subject = api.STREAM_INFO.build(stream=bucket.stream(SPACE))
    return int(json.loads((await connection.request(subject)).data)["state"]["consumer_count"])


async def test_a_bucket_compares_and_sets_and_reads_whole(space: Space, monkeypatch: pytest.MonkeyPatch) -> None:
    metrics = Metrics()
    async with dialled(space, Profile.PROVISIONER, "provisioner", metrics=metrics) as (connection, _):
        bucket = KeyValue(connection, buckets.CHANNELS, SPACE)
        assert await bucket.get("team.c1") is None
        assert await bucket.read_all() == {}
        first = await bucket.create("team.c1", b"one")
        with pytest.raises(KeyExists):
            await bucket.create("team.c1", b"again")
        second = await bucket.update("team.c1", b"two", first)
        with pytest.raises(WrongRevision):
            await bucket.update("team.c1", b"late", first)
        with pytest.raises(WrongRevision):
            await bucket.delete("team.c1", first)
        found = await bucket.get("team.c1")
        assert found is not None
        assert found[:4] == ("team.c1", b"two", second, False)
        await bucket.delete("team.c1", second)
        assert await bucket.get("team.c1") is None
        third = await bucket.create("team.c1", b"")
        found = await bucket.get("team.c1")
        assert found is not None
        assert (found.value, found.revision) == (b"", third)
        monkeypatch.setattr(kv_module, "PAGE", 3)
        for n in range(2, 9):
            await bucket.put(f"team.c{n}", str(n).encode())
        await bucket.delete("team.c4")
        whole = await bucket.read_all()
        assert {key: entry.value for key, entry in whole.items()} == {
            "team.c1": b"",
            **{f"team.c{n}": str(n).encode() for n in (2, 3, 5, 6, 7, 8)},
        }
        alone = await bucket.get("team.c8")
        assert alone is not None
        assert whole["team.c8"] == alone
        assert metrics.totals("nats_stores_refused")[("wrong_sequence",)] == 4


@pytest.mark.req("C6-36", "C7-29")
async def test_what_a_stream_or_a_grant_refuses_has_its_own_error(space: Space) -> None:
    metrics = Metrics()
    async with dialled(space, Profile.DELIVERY, "delivery", metrics=metrics, service=SERVICE) as (connection, _):
        anycast = KeyValue(connection, buckets.ANYCAST, SPACE)
        with pytest.raises(TooLarge) as large:
            await anycast.put("r.e.1", b"x" * (MAX_ANYCAST_VALUE + 1))
        assert large.value.code == 10054
        subject = buckets.ANYCAST.subject(SPACE, buckets.ANYCAST_KEY, epoch_token="e", sequence=1)
        with pytest.raises(WrongSequence):
            await store(connection, subject, b"", {headers.EXPECTED_LAST_SEQUENCE: "7"})
        # Its own inbox is the one subject here that no stream takes.
        with pytest.raises(PermissionViolation):
            await store(connection, f"{connection.inbox}.x", b"")
        assert metrics.totals("nats_stores_refused") == {("too_large",): 1.0, ("wrong_sequence",): 1.0}
    async with dialled(space, Profile.AGENT, "alice", allow_publish=("team.a",)) as (connection, _):
        presence = KeyValue(connection, buckets.PRESENCE, SPACE)
        assert await presence.put("local.alice", b"1") > 0
        for bucket, key in ((presence, "local.bob"), (KeyValue(connection, buckets.MEMBERS, SPACE), "team.a/local.x")):
            with pytest.raises(PermissionViolation):
                await bucket.put(key, b"1")
        post = subjects.CHAT.build(space=SPACE, owner="local", actor="alice", channel="team.a")
        first = await store(connection, post, b"hello", {headers.MESSAGE_ID: "m1"})
        again = await store(connection, post, b"hello", {headers.MESSAGE_ID: "m1"})
        assert (first.stream, first.duplicate) == (streams.CHAT.stream(SPACE), False)
        assert (again.sequence, again.duplicate) == (first.sequence, True)
        with pytest.raises(Unreadable) as unreadable:
            await KeyValue(connection, buckets.ACL, SPACE).read_all()
        assert isinstance(unreadable.value.__cause__, PermissionViolation)
        with pytest.raises(Unreadable):
            await presence.get("local.alice")


async def test_no_headers_of_a_value_end_a_read_or_stop_a_watch(space: Space, monkeypatch: pytest.MonkeyPatch) -> None:
    """A member writes what it likes on its own key: headers of the broker's own words among it."""
    metrics = Metrics()
    poison = {
        headers.STATUS: "204",
        "Description": "EOB",
        headers.PENDING: "0",
        headers.SEQUENCE: "1",
        headers.LAST_SEQUENCE: "9999",
        headers.SUBJECT: "elsewhere",
        "Nats-Last-Consumer": "77",
    }
    async with (
        dialled(space, Profile.AGENT, "eve") as (eve, _),
        dialled(space, Profile.AGENT, "bob") as (bob, _),
        dialled(space, Profile.OBSERVER, "observer", metrics=metrics) as (observer, _),
    ):
        own = buckets.PRESENCE.subject(SPACE, buckets.PRESENCE_KEY, owner="local", actor="eve")
        await store(eve, own, b"", poison)
        await KeyValue(bob, buckets.PRESENCE, SPACE).put("local.bob", b"bob")
        for page in (1, 256):
            monkeypatch.setattr(kv_module, "PAGE", page)
            found = await KeyValue(bob, buckets.PRESENCE, SPACE).read_all()
            assert {"local.eve", "local.bob"} <= set(found)
            assert found["local.eve"].value == b""
        watch = KeyValue(observer, buckets.PRESENCE, SPACE).watch("poisoned")
        seen: set[str] = set()
        while not {"local.eve", "local.bob"} <= seen:
            seen.add((await following(watch)).key)
        await store(eve, own, b"", poison)
        assert (await following(watch)).key == "local.eve"
        await watch.close()
        assert (Fault.WATCH_SILENT.value,) not in metrics.totals("nats_faults")


@pytest.mark.req("C6-45", "C7-10")
async def test_a_read_of_everything_binds_no_consumer(space: Space) -> None:
    async with dialled(space, Profile.AGENT, "reader") as (connection, _):
        for bucket in (buckets.PRESENCE, buckets.CHANNELS):
            before = await consumers_of(connection, bucket)
            reads = [KeyValue(connection, bucket, SPACE).read_all() for _ in range(8)]
            counts = asyncio.gather(*(consumers_of(connection, bucket) for _ in range(8)))
            await asyncio.gather(*reads)
            assert set(await counts) == {before}
            assert await consumers_of(connection, bucket) == before


async def test_a_watch_says_when_it_has_everything_and_then_every_change(space: Space) -> None:
    async with (
        dialled(space, Profile.PROVISIONER, "provisioner") as (connection, _),
        dialled(space, Profile.OBSERVER, "observer") as (watching, _),
    ):
        bucket = KeyValue(connection, buckets.CHANNELS, SPACE)
        await bucket.put("seen.before", b"1")
        present = await bucket.read_all()
        watch = KeyValue(watching, buckets.CHANNELS, SPACE).watch("w1")
        found = {}
        while not watch.primed.is_set():
            entry = await following(watch)
            found[entry.key] = entry
        assert {key: entry for key, entry in found.items() if not entry.deleted} == present
        revision = await bucket.put("seen.after", b"2")
        assert (await following(watch))[:4] == ("seen.after", b"2", revision, False)
        await bucket.delete("seen.after")
        marker = await following(watch)
        assert (marker.key, marker.deleted) == ("seen.after", True)
        await watch.close()
        empty = KeyValue(watching, buckets.MEMBERSHIP, SPACE).watch("w2")
        waiting = asyncio.create_task(empty.next())
        async with asyncio.timeout(EVENT_SECONDS):
            await empty.primed.wait()
        waiting.cancel()
        await empty.close()


@pytest.mark.req("C6-47")
async def test_a_read_that_is_cut_gives_nothing_but_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with SpaceBroker(tmp_path) as broker:
        space = Space(broker, Form.COMPATIBLE)
        await space.open()
        async with dialled(space, Profile.PROVISIONER, "provisioner") as (connection, _):
            bucket = KeyValue(connection, buckets.CHANNELS, SPACE)
            for n in range(3):
                await bucket.put(f"c{n}", b"")
            monkeypatch.setattr(kv_module, "PAGE", 1)
            monkeypatch.setattr(kv_module, "READ_SECONDS", 0.5)
            whole, pages = KeyValue._page, 0

            async def page(one: KeyValue, sequence: int) -> tuple[list[Entry], bool]:
                nonlocal pages
                pages += 1
                if pages == 2:
                    broker.kill()
                return await whole(one, sequence)

            monkeypatch.setattr(KeyValue, "_page", page)
            with pytest.raises(Unreadable):
                await bucket.read_all()
            assert pages == 2
            with pytest.raises(Unreadable):
                await bucket.get("c0")
            broker.start()
            async with asyncio.timeout(EVENT_SECONDS):
                while True:
                    try:
                        assert set(await bucket.read_all()) == {"c0", "c1", "c2"}
                        break
                    except Unreadable:  # the broker's streams come after its greeting
                        continue
