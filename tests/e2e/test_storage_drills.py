"""Drills of an operator: a store that is full, and a space that comes back from a backup."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from sidecar.base.safefile import write_private
from sidecar.rails.connection.kv import KeyValue
from sidecar.rails.connection.publishing import StreamFull
from sidecar.rails.messaging.anycast import State
from sidecar.rails.messaging.sending import Sent
from sidecar.rails.names import buckets, streams
from sidecar.rails.planes.delivery.anycast import Record
from sidecar.rails.space.holder import Form, Profile
from sidecar.rails.space.provision import provision
from tests.e2e.delivery_rig import Rig, kept, root
from tests.e2e.durable_reads import Town
from tests.e2e.peers import Society, got, text_of, texts
from tests.e2e.space_broker import SpaceBroker
from tests.e2e.space_members import SPACE, Space

pytestmark = pytest.mark.asyncio

CHAT, TASK = streams.CHAT.stream(SPACE), streams.TASK.stream(SPACE)


@asynccontextmanager
async def society(directory: Path, form: Form, settings: str = "max_memory_store: 64MB") -> AsyncIterator[Society]:
    """Like ``peers.society``, with more settings of JetStream."""
    broker = SpaceBroker(directory)
    text = broker.config.read_text().replace("jetstream { ", f"jetstream {{ {settings}, ")
    write_private(broker.config, text.encode())
    async with broker:
        space = Space(broker, form)
        await space.open()
        yield Society(Town(space))


@pytest.mark.req("C8-11", "C8-10", "C8-16")
async def test_a_store_without_limits_refuses_what_the_disk_does_not_take(tmp_path: Path) -> None:
    async with society(tmp_path, Form.MEDIATED, "max_file_store: 4MB") as here:
        await Rig(here.town).configure(CHAT, max_age=0, max_msgs_per_subject=-1)
        async with here.peer("ann") as ann:
            posts = [ann.post("team.full", "x" * 100_000) for _ in range(60)]
            ends = await asyncio.gather(*posts, return_exceptions=True)
            stored = [one.id for one in ends if isinstance(one, Sent)]
            refused = [one for one in ends if not isinstance(one, Sent)]
            assert len(stored) > 10
            assert {type(one) for one in refused} == {StreamFull}
            found = await kept(Rig(here.town), CHAT, f"cotal.{SPACE}.chat.>")
            assert sorted(one.id for one in found) == sorted(stored), "nothing that was acknowledged is gone"
            assert ann.metrics.totals("messaging_sent")["channel", "refused"] == len(refused)


@pytest.mark.req("C8.1-33", "C8.1-32")
async def test_requests_that_were_acked_behind_a_backup_come_again_behind_the_restore(tmp_path: Path) -> None:
    """The records of takes are not in the backup: any holder takes what is queued again, at its first delivery."""
    async with society(tmp_path, Form.COMPATIBLE) as here:
        broker = here.town.broker
        store, backup = tmp_path / "jetstream", tmp_path / "backup"
        await here.enrol("one", roles=("reviewer",))
        async with here.plane(), here.peer("ann") as ann:
            sent = [await ann.ask_role("reviewer", f"q{number}") for number in range(2)]
        await stop(broker)
        shutil.copytree(store, backup, ignore=shutil.ignore_patterns(buckets.ANYCAST.stream(SPACE)))
        broker.start()
        async with here.plane(), here.peer("one", roles=("reviewer",)) as one, here.peer("ann") as ann:
            assert await texts(one, 2) == ["q0", "q1"]
            for request in sent:
                assert (await ann.anycast_status(request.sequence, request.id)).state is State.TAKEN
        await stop(broker)
        shutil.rmtree(store)
        shutil.copytree(backup, store)
        broker.start()
        async with here.town.space.member(Profile.PROVISIONER, "provisioner") as (user, _):
            assert await provision(user.client, SPACE) == [buckets.ANYCAST.stream(SPACE)]
        async with here.plane(), here.peer("ann") as ann:
            for request in sent:
                assert (await ann.anycast_status(request.sequence, request.id)).state is State.WAITING
            async with here.peer("two", roles=("reviewer",)) as two:
                shown = [await got(two) for _ in sent]
                assert [text_of(work) for work in shown] == ["q0", "q1"]
                async with root(Rig(here.town)) as hand:
                    rows = await KeyValue(hand, buckets.ANYCAST, SPACE).read_all()
                found = [Record.decode(row.value) for row in rows.values()]
                assert {(row.taker.id if row.taker else "", row.count) for row in found} == {("local.two", 1)}
                for work in shown:
                    await work.handled()


async def stop(broker: SpaceBroker) -> None:
    """End the server in order, with everything on disk."""
    assert broker.process is not None
    broker.process.terminate()
    await asyncio.to_thread(broker.process.wait)
