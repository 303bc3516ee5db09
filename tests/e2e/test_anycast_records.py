"""Anycast records at a real broker: notices, sweeps, what a crash between two steps leaves, streams made anew."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from sidecar.rails.connection.kv import KeyValue
from sidecar.rails.names import api, buckets, headers
from sidecar.rails.names.limits import ANYCAST_ROW_SECONDS
from sidecar.rails.planes.delivery.anycast import Removal, key_of
from sidecar.rails.planes.delivery.anycast_desk import AnycastDesk
from tests.e2e.anycast_scene import ROLE, TASK, Scene, ask, daemon, holds, nothing_owed, notices, soon, take, take_of
from tests.e2e.delivery_rig import Rig, root
from tests.e2e.durable_reads import Member, Town, town
from tests.e2e.space_members import SPACE

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def here(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Town]:
    async with town(tmp_path_factory.mktemp("anycast")) as made:
        await made.activate("carol", (ROLE,))
        yield made


@pytest_asyncio.fixture(loop_scope="module")
async def scene(here: Town) -> AsyncIterator[Scene]:
    async with daemon(here) as made:
        yield made


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def alice(here: Town) -> AsyncIterator[Member]:
    async with here.member("alice") as member:
        yield member


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def carol(here: Town) -> AsyncIterator[Member]:
    async with here.member("carol", roles=(ROLE,)) as member:
        yield member


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def dave(here: Town) -> AsyncIterator[Member]:
    async with here.member("dave", roles=(ROLE,)) as member:
        yield member


# ---- notices ----


@pytest.mark.req("C8.1-43", "C8.1-44", "C8.1-45")
async def test_the_sender_is_told_once_of_each_transition(
    scene: Scene, alice: Member, carol: Member, dave: Member, here: Town
) -> None:
    sequence, epoch = await alice.request_role(ROLE, "n-1"), await scene.epoch()
    for member, count in ((carol, 1), (carol, 1), (carol, 2), (dave, 3), (dave, 3)):
        assert await take(member, take_of(member, sequence, "n-1", count, epoch)) == {"ok": True}
    await soon(lambda: nothing_owed(scene, sequence))
    told = await notices(here, "alice", sequence)
    token = key_of(epoch, sequence).split(".")[1]
    assert [one.headers[headers.MESSAGE_ID] for one in told] == [f"anycast.{token}.{sequence}.{n}" for n in (1, 2)]
    for one, event in zip(told, ("taken", "redelivered"), strict=True):
        assert one.id == one.headers[headers.MESSAGE_ID]
        assert one.value["from"]["id"] == "local.delivery"
        text, data = one.value["parts"]
        assert (text["kind"], data["kind"]) == ("text", "data")
        assert data["data"][headers.ANYCAST_NOTICE]["event"] == event
    assert told[1].value["parts"][1]["data"][headers.ANYCAST_NOTICE] == {
        "seq": sequence, "role": ROLE, "event": "redelivered",
        "taker": {"id": "local.dave", "name": "Dave"}, "previous": {"id": "local.carol", "name": "Carol"},
    }  # fmt: skip


@pytest.mark.req("C8.1-45", "C8.1-46")
@pytest.mark.parametrize("published", [False, True])
async def test_a_notice_that_was_owed_at_a_crash_is_sent_once(
    scene: Scene, alice: Member, carol: Member, here: Town, published: bool
) -> None:
    """The daemon died before it published the notice, or after that and before it noted it."""
    message_id = f"n-crash-{published}"
    sequence, epoch = await alice.request_role(ROLE, message_id), await scene.epoch()
    await take(carol, take_of(carol, sequence, message_id, 1, epoch))
    await soon(lambda: nothing_owed(scene, sequence))
    entry, row = await scene.entry(sequence), await scene.row(sequence)
    assert entry is not None
    assert row is not None
    key = row.key
    value = json.loads(entry.value)
    value["owed"] = [{"n": 1 if published else 7, "event": "taken", "taker": value["taker"]}]
    await KeyValue(scene.member.connection, buckets.ANYCAST, SPACE).put(key, json.dumps(value).encode())
    async with daemon(here, serving=False) as next_one:
        await next_one.desk.sweep()
        assert await nothing_owed(next_one, sequence)
    assert len(await notices(here, "alice", sequence)) == (1 if published else 2)


# ---- the sweep ----


@pytest.mark.req("C8.1-30")
async def test_a_row_goes_a_day_after_its_request_left_and_not_before(
    scene: Scene, alice: Member, carol: Member
) -> None:
    sequence, epoch = await alice.request_role(ROLE, "s-1"), await scene.epoch()
    await take(carol, take_of(carol, sequence, "s-1", 1, epoch))
    await soon(lambda: nothing_owed(scene, sequence))
    scene.clock.ahead += 10 * ANYCAST_ROW_SECONDS
    await scene.desk.sweep()
    row = await scene.row(sequence)
    assert row is not None
    assert row.off_queue_since is None, "it is on the queue"
    await ask(scene.member.connection, api.MESSAGE_DELETE.build(stream=TASK), {"seq": sequence})
    await scene.desk.sweep()
    row = await scene.row(sequence)
    assert row is not None
    assert row.off_queue_since is not None
    scene.clock.ahead += ANYCAST_ROW_SECONDS - 60
    await scene.desk.sweep()
    assert await scene.row(sequence) is not None
    scene.clock.ahead += 61
    await scene.desk.sweep()
    assert await scene.row(sequence) is None


@pytest.mark.req("C8.1-40")
async def test_a_sweep_finishes_what_a_crash_left_and_passes_what_it_cannot_read(scene: Scene, alice: Member) -> None:
    bucket = KeyValue(scene.member.connection, buckets.ANYCAST, SPACE)
    sequence, epoch = await alice.request_role(ROLE, "s-2"), await scene.epoch()
    await bucket.put(key_of(epoch, 999_999), b"no record")
    value = {
        "id": "s-2", "role": ROLE, "sender": "local.alice", "epoch": epoch, "seq": sequence, "state": "cancelled",
        "at": 1, "n": 0, "owed": [], "removal": "pending",
    }  # fmt: skip
    await bucket.create(key_of(epoch, sequence), json.dumps(value).encode())
    await scene.desk.sweep()
    row = await scene.row(sequence)
    assert row is not None
    assert row.removal is Removal.DELETED
    assert not await scene.queued(sequence)
    entry = await bucket.get(key_of(epoch, 999_999))
    assert entry is not None
    assert entry.value == b"no record"
    await bucket.delete(entry.key)


@pytest.mark.req("C8.1-31")
async def test_every_row_is_looked_at_now_and_every_ten_minutes(scene: Scene) -> None:
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        assert scene.metrics.totals("delivery_sweeps") == {("done",): float(len(slept))}
        await asyncio.sleep(0)

    desk = AnycastDesk(scene.desk._plane, sleep=sleep)
    sweeping = asyncio.create_task(desk.sweep_for_ever(asyncio.Event()))
    await soon(lambda: holds(len(slept) >= 3))
    sweeping.cancel()
    assert set(slept) == {600}


# ---- a stream that is made anew ----


@pytest.mark.req("C8.1-09")
async def test_a_stream_made_anew_between_two_reads_is_read_again(scene: Scene, alice: Member, carol: Member) -> None:
    """The first creation time is that of an older stream: what was read behind it is not believed."""
    sequence, epoch = await alice.request_role(ROLE, "between"), await scene.epoch()
    seen: list[str] = []

    class Moving(AnycastDesk):
        async def epoch(self) -> str:
            seen.append(await super().epoch() if seen else "2020-01-01T00:00:00Z")
            return seen[-1]

    values = {"role": ROLE, "owner": "local", "actor": "carol"}
    body = json.dumps(take_of(carol, sequence, "between", 1, epoch)).encode()
    code, record = await Moving(scene.desk._plane).take(values, body)
    assert code is None
    assert record is not None
    assert record.epoch == epoch
    assert len(seen) == 3


@pytest.mark.req("C8.1-09", "C8.1-10", "C8.1-37")
async def test_no_row_of_an_older_stream_says_anything_of_a_newer_one(
    scene: Scene, here: Town, alice: Member, carol: Member
) -> None:
    """Last in this file: the task stream is deleted and made again, as after a restore."""
    old = await scene.epoch()
    sequence = await alice.request_role(ROLE, "e-1")
    await take(carol, take_of(carol, sequence, "e-1", 1, old))
    pending = json.dumps(
        {
            "id": "e-2", "role": ROLE, "sender": "local.alice", "epoch": old, "seq": 1, "state": "cancelled",
            "at": 1, "n": 0, "owed": [], "removal": "pending",
        }
    ).encode()  # fmt: skip
    await KeyValue(scene.member.connection, buckets.ANYCAST, SPACE).put(key_of(old, 1), pending)
    async with root(Rig(here)) as operator:
        config = (await ask(operator, api.STREAM_INFO.build(stream=TASK)))["config"]
        await ask(operator, api.STREAM_DELETE.build(stream=TASK))
        config["first_seq"] = sequence
        await ask(operator, api.STREAM_CREATE.build(stream=TASK), config)
    assert await alice.request_role(ROLE, "e-1") == sequence
    fresh = await scene.epoch()
    assert fresh != old
    assert (await scene.ask("anycast-status", "alice", sequence))["state"] == "waiting"
    assert (await take(carol, take_of(carol, sequence, "e-1", 2, old)))["code"] == "mismatch"
    assert await scene.row(sequence, fresh) is None
    assert await take(carol, take_of(carol, sequence, "e-1", 1, fresh)) == {"ok": True}
    await scene.desk.sweep()
    row = await scene.row(1, old)
    assert row is not None
    assert row.removal is Removal.ALREADY_GONE
