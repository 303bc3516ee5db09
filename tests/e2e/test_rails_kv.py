"""Storing and KV buckets at a real nats-server, with the credentials of a provisioned space."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
import pytest_asyncio

from sidecar.ops.metrics import Metrics
from sidecar.rails.connection import Connection, Credentials, Policy, Watch
from sidecar.rails.connection import kv as kv_module
from sidecar.rails.connection.kv import KeyExists, KeyValue, WrongRevision
from sidecar.rails.names import buckets
from sidecar.rails.names.principals import Lifecycle, Principal
from sidecar.rails.space.creds import format_creds
from sidecar.rails.space.holder import Form, Holder, Profile, Service
from sidecar.rails.space.trust import new_user
from tests.e2e.space_broker import EVENT_SECONDS, SpaceBroker
from tests.e2e.space_members import INSTANCE, SPACE, Space, clock, uid_of

pytestmark = pytest.mark.asyncio(loop_scope="module")

QUICK = Policy(first_wait=0.05, longest_wait=0.4, ping_every=0.5, ping_within=1)


@contextlib.asynccontextmanager
async def connected(
    space: Space, profile: Profile, actor: str, **more: Any
) -> AsyncIterator[tuple[Connection, Metrics]]:
    """A connection of ours with the credentials of a member."""
    key = new_user(os.urandom)
    holder = Holder(SPACE, Lifecycle(Principal("local", actor), uid_of(actor)), key.public, space.form)
    if profile is Profile.DELIVERY:
        holder = replace(holder, service=Service(INSTANCE, 1, ("durable-join",)))
    holder = replace(holder, **more)

    async def mint() -> Credentials:
        now = clock()
        return Credentials(format_creds(space.trust.issue(profile, holder, key, now, 300), key), now + 300)

    metrics = Metrics()
    async with asyncio.timeout(EVENT_SECONDS):
        connection = await Connection.open([space.broker.url], mint, policy=QUICK, watch=Watch(metrics))
    async with connection:
        yield connection, metrics


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def space(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Space]:
    async with SpaceBroker(tmp_path_factory.mktemp("kv")) as broker:
        made = Space(broker, Form.COMPATIBLE)
        await made.open()
        yield made


async def test_a_bucket_compares_and_sets_and_reads_whole(space: Space, monkeypatch: pytest.MonkeyPatch) -> None:
    async with connected(space, Profile.PROVISIONER, "provisioner") as (connection, metrics):
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
        assert abs(found.time_ms - clock() * 1000) < EVENT_SECONDS * 1000
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
        assert metrics.totals("nats_stores_refused")[("wrong_sequence",)] == 4
