"""Anycast records at a real broker: takes, cancels, status, notices, and what a crash between any two steps leaves."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import os
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import pytest_asyncio

from sidecar.base.clock import Now, system_now
from sidecar.base.strictjson import JsonValue
from sidecar.ops.logging import Log
from sidecar.ops.metrics import Metrics
from sidecar.rails.connection import Connection
from sidecar.rails.connection.kv import Entry, KeyValue
from sidecar.rails.endpoint.serve import Called
from sidecar.rails.names import api, buckets, headers, streams, subjects
from sidecar.rails.names.limits import ANYCAST_ROW_SECONDS
from sidecar.rails.planes.delivery.anycast import Code, Record, Removal, key_of
from sidecar.rails.planes.delivery.anycast_desk import AnycastDesk
from sidecar.rails.planes.delivery.plane import Plane
from sidecar.rails.space.holder import Profile
from tests.e2e.delivery_rig import Copy, Rig, kept, root
from tests.e2e.durable_reads import Member, Town, life, town
from tests.e2e.space_broker import EVENT_SECONDS
from tests.e2e.space_members import SPACE

pytestmark = pytest.mark.asyncio(loop_scope="module")
ROLE = "reviewer"
TASK = streams.TASK.stream(SPACE)


@dataclass
class Clock:
    """The system's clock, moved on by hand."""

    ahead: float = 0.0

    def __call__(self) -> Now:
        now = system_now()
        return Now(now.wall + self.ahead, now.mono + self.ahead)


@dataclass
class Scene:
    """The desk of one daemon, a sender and holders."""

    here: Town
    member: Member
    desk: AnycastDesk
    clock: Clock
    metrics: Metrics
    tasks: list[asyncio.Task[None]] = field(default_factory=list)

    async def epoch(self) -> str:
        return await self.desk.epoch()

    async def row(self, sequence: int, epoch: str = "") -> Record | None:
        entry = await self.entry(sequence, epoch)
        return None if entry is None else Record.decode(entry.value)

    async def entry(self, sequence: int, epoch: str = "") -> Entry | None:
        bucket = KeyValue(self.member.connection, buckets.ANYCAST, SPACE)
        return await bucket.get(key_of(epoch or await self.epoch(), sequence))

    async def queued(self, sequence: int) -> bool:
        return "message" in await ask(self.member.connection, api.MESSAGE_GET.build(stream=TASK), {"seq": sequence})

    async def ask(self, command: str, actor: str, sequence: int, message_id: str | None = None) -> Any:
        args: dict[str, JsonValue] = {"seq": sequence}
        if message_id is not None:
            args["id"] = message_id
        return await self.desk.handlers[command](Called(life(actor), actor, args, "q"))


async def ask(connection: Connection, subject: str, body: object = None) -> dict[str, Any]:
    data = b"" if body is None else json.dumps(body).encode()
    answer: dict[str, Any] = json.loads((await connection.request(subject, data)).data)
    return answer


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def here(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Town]:
    async with town(tmp_path_factory.mktemp("anycast")) as made:
        await made.activate("carol", (ROLE,))
        yield made


@contextlib.asynccontextmanager
async def daemon(here: Town, *, serving: bool = True) -> AsyncIterator[Scene]:
    """A desk on a connection of its own; its loops run when it is ``serving``."""
    async with here.member("delivery", Profile.DELIVERY) as member:
        clock = Clock()
        form, log = here.space.form, Log(io.StringIO())
        plane = Plane(member.connection, SPACE, form, member.lifecycle, member.metrics, log, clock)
        scene = Scene(here, member, AnycastDesk(plane), clock, member.metrics)
        if serving:
            bound = asyncio.Event()
            scene.tasks = [
                asyncio.create_task(scene.desk.serve(bound)),
                asyncio.create_task(scene.desk.tell(asyncio.Event())),
            ]
            await bound.wait()
        try:
            yield scene
        finally:
            for task in scene.tasks:
                task.cancel()
            await asyncio.gather(*scene.tasks, return_exceptions=True)


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


def take_of(member: Member, sequence: int, message_id: str, count: int, epoch: str, name: str = "") -> dict[str, Any]:
    actor = member.lifecycle.principal.actor
    return {
        "from": {"id": member.lifecycle.principal.dot, "name": name or actor.title()},
        "seq": sequence,
        "id": message_id,
        "count": count,
        "epoch": epoch,
    }


async def take(member: Member, body: object, *, role: str = ROLE, reply: str = "") -> dict[str, Any]:
    """A take as a holder sends it (C8.1-03)."""
    principal = member.lifecycle.principal
    subject = subjects.TAKE.build(space=SPACE, role=role, owner=principal.owner, actor=principal.actor)
    names = {"space": SPACE, "role": role, "owner": principal.owner, "actor": principal.actor}
    target = reply or subjects.TAKE_REPLY.build(**names, nonce=os.urandom(16).hex())
    subscription = await member.connection.subscribe(target)
    try:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        await member.connection.publish(subject, data, reply=target)
        async with asyncio.timeout(EVENT_SECONDS):
            answer: dict[str, Any] = json.loads((await subscription.next()).data)
            return answer
    finally:
        await subscription.close()


async def notices(here: Town, actor: str, sequence: int) -> list[Copy]:
    """Every stored notice to a member about one request."""
    pattern = subjects.INST.subtree(space=SPACE, to_owner="local", to_actor=actor)
    found = await kept(Rig(here), streams.DM.stream(SPACE), pattern)
    return [one for one in found if one.headers[headers.MESSAGE_ID].split(".")[2] == str(sequence)]


async def soon(met: Callable[[], Any]) -> Any:
    """What a condition that is asked for comes to."""
    async with asyncio.timeout(EVENT_SECONDS):
        while not (value := await met()):  # noqa: ASYNC110 - what is waited for is at the broker
            await asyncio.sleep(0.02)
        return value


# ---- takes ----


@pytest.mark.req("C8.1-01", "C8.1-03", "C8.1-23", "C8.1-24", "C8.1-26", "C8.1-36", "C8.1-57")
async def test_a_take_wins_is_kept_and_shows_in_the_status(scene: Scene, alice: Member, carol: Member) -> None:
    sequence, epoch = await alice.request_role(ROLE, "t-1"), await scene.epoch()
    assert await scene.ask("anycast-status", "alice", sequence, "t-1") == {
        "state": "waiting", "seq": sequence, "role": ROLE,
    }  # fmt: skip
    assert await take(carol, take_of(carol, sequence, "t-1", 1, epoch)) == {"ok": True}
    row = await scene.row(sequence)
    assert row is not None
    assert (row.id, row.role, row.sender, row.epoch, row.count) == ("t-1", ROLE, "local.alice", epoch, 1)
    told = await scene.ask("anycast-status", "alice", sequence, "t-1")
    assert (told["state"], told["taker"]) == ("taken", {"id": "local.carol", "name": "Carol"})
    assert set(told) == {"state", "seq", "role", "taker", "at"}


@pytest.mark.req("C8.1-27", "C8.1-28", "C8.1-29")
async def test_the_same_take_wins_without_a_write_and_a_later_one_moves_it(
    scene: Scene, alice: Member, carol: Member, dave: Member
) -> None:
    sequence, epoch = await alice.request_role(ROLE, "t-2"), await scene.epoch()
    assert await take(carol, take_of(carol, sequence, "t-2", 2, epoch)) == {"ok": True}

    async def told() -> bool:
        row = await scene.row(sequence)
        return row is not None and not row.owed

    await soon(told)
    before = await scene.entry(sequence)
    assert await take(carol, take_of(carol, sequence, "t-2", 2, epoch)) == {"ok": True}
    assert await scene.entry(sequence) == before
    for member, count in ((dave, 1), (dave, 2), (carol, 1)):
        assert (await take(member, take_of(member, sequence, "t-2", count, epoch)))["code"] == "taken"
    assert await take(dave, take_of(dave, sequence, "t-2", 3, epoch)) == {"ok": True}
    assert (await scene.ask("anycast-status", "alice", sequence))["previous"] == {"id": "local.carol", "name": "Carol"}


@pytest.mark.req("C8.1-08", "C8.1-10", "C8.1-11")
async def test_each_refusal_has_its_code_and_leaves_no_row(
    scene: Scene, alice: Member, carol: Member, dave: Member
) -> None:
    sequence, epoch = await alice.request_role(ROLE, "t-3"), await scene.epoch()
    right = take_of(carol, sequence, "t-3", 1, epoch)
    wrong: list[object] = [
        {**right, "id": "t-4"},
        {**right, "epoch": "2020-01-01T00:00:00Z"},
        {**right, "from": {"id": "local.dave", "name": "Dave"}},
        {**right, "from": {"id": "local.carol", "name": "a/b"}},
        {**right, "count": 0},
        b"no json",
    ]
    for body in wrong:
        answer = await take(carol, body)
        assert (answer["ok"], answer["code"], set(answer)) == (False, "mismatch", {"ok", "code", "error"})
    assert (await take(carol, {**right, "seq": sequence + 1000}))["code"] == "gone"
    assert await scene.row(sequence) is None
    assert await scene.ask("anycast-cancel", "alice", sequence) == {
        "state": "cancelled", "seq": sequence, "role": ROLE, "removal": "deleted",
    }  # fmt: skip
    assert (await take(carol, right))["code"] == "cancelled"
    other = await alice.request_role("tester", "t-5")
    assert (await take(carol, take_of(carol, other, "t-5", 1, epoch)))["code"] == "mismatch"


@pytest.mark.req("C8.1-04")
async def test_a_take_that_wants_its_answer_elsewhere_gets_none(scene: Scene, alice: Member, carol: Member) -> None:
    sequence, epoch = await alice.request_role(ROLE, "t-6"), await scene.epoch()
    body = json.dumps(take_of(carol, sequence, "t-6", 1, epoch)).encode()
    subject = subjects.TAKE.build(space=SPACE, role=ROLE, owner="local", actor="carol")
    elsewhere = subjects.TAKE_REPLY.build(space=SPACE, role=ROLE, owner="local", actor="dave", nonce="n" * 22)
    deeper = subjects.TAKE_REPLY.build(space=SPACE, role=ROLE, owner="local", actor="carol", nonce="n" * 22) + ".x"
    for reply in ("", carol.connection.new_inbox(), elsewhere, subject, deeper):
        await carol.connection.publish(subject, body, reply=reply)
    redirected = {headers.SEQUENCE: "1"}
    right = subjects.TAKE_REPLY.build(space=SPACE, role=ROLE, owner="local", actor="carol", nonce="n" * 22)
    await carol.connection.publish(subject, body, reply=right, headers=redirected)
    await soon(lambda: _is(scene.metrics.totals("delivery_takes").get(("dropped",)) == 6))
    assert await scene.row(sequence) is None
    assert await take(carol, take_of(carol, sequence, "t-6", 1, epoch)) == {"ok": True}


async def _is(value: bool) -> bool:
    return value


# ---- cancels ----


@pytest.mark.req("C8.1-34", "C8.1-35", "C8.1-36", "C8.1-37", "C8.1-38")
async def test_a_cancel_takes_the_request_off_the_queue(scene: Scene, alice: Member) -> None:
    sequence = await alice.request_role(ROLE, "c-1")
    unknown = {"state": "unknown", "seq": sequence}
    for actor, message_id in (("mallory", None), ("mallory", "c-1"), ("alice", "c-2")):
        assert await scene.ask("anycast-status", actor, sequence, message_id) == unknown
        assert await scene.ask("anycast-cancel", actor, sequence, message_id) == unknown
    assert await scene.queued(sequence)
    cancelled = {"state": "cancelled", "seq": sequence, "role": ROLE, "removal": "deleted"}
    assert await scene.ask("anycast-cancel", "alice", sequence, "c-1") == cancelled
    assert not await scene.queued(sequence)
    for command in ("anycast-cancel", "anycast-status"):
        assert await scene.ask(command, "alice", sequence) == cancelled
        assert await scene.ask(command, "mallory", sequence) == unknown
    assert (await scene.ask("anycast-status", "alice", sequence + 5000))["state"] == "unknown"


@pytest.mark.req("C8.1-39")
async def test_a_taken_request_is_not_cancelled(scene: Scene, alice: Member, carol: Member) -> None:
    sequence, epoch = await alice.request_role(ROLE, "c-3"), await scene.epoch()
    await take(carol, take_of(carol, sequence, "c-3", 1, epoch))
    told = await scene.ask("anycast-cancel", "alice", sequence, "c-3")
    assert (told["state"], told["taker"]["id"]) == ("taken", "local.carol")
    assert await scene.queued(sequence)


@pytest.mark.req("C8.1-37", "C8.1-40")
async def test_a_removal_that_was_left_pending_is_finished(scene: Scene, alice: Member) -> None:
    """The daemon died after it had written the row (C8.1-40); the second time after it had deleted the request."""
    for message_id, deleted, removal in (("c-4", False, "deleted"), ("c-5", True, "already-gone")):
        sequence, epoch = await alice.request_role(ROLE, message_id), await scene.epoch()
        pending = Record.decode(
            json.dumps(
                {
                    "id": message_id, "role": ROLE, "sender": "local.alice", "epoch": epoch, "seq": sequence,
                    "state": "cancelled", "at": 1, "n": 0, "owed": [], "removal": "pending",
                }
            ).encode()
        )  # fmt: skip
        await KeyValue(scene.member.connection, buckets.ANYCAST, SPACE).create(pending.key, pending.encode())
        if deleted:
            await ask(scene.member.connection, api.MESSAGE_DELETE.build(stream=TASK), {"seq": sequence})
        assert (await scene.ask("anycast-status", "alice", sequence))["removal"] == "pending"
        assert (await scene.ask("anycast-cancel", "alice", sequence))["removal"] == removal
        assert not await scene.queued(sequence)


@pytest.mark.req("C8.1-37", "C8.1-54")
async def test_a_request_that_an_older_holder_acked_is_unknown(scene: Scene, alice: Member, here: Town) -> None:
    sequence = await alice.request_role(ROLE, "c-6")
    async with root(Rig(here)) as operator:
        await ask(operator, api.MESSAGE_DELETE.build(stream=TASK), {"seq": sequence})
    for command in ("anycast-status", "anycast-cancel"):
        assert (await scene.ask(command, "alice", sequence, "c-6")) == {"state": "unknown", "seq": sequence}


@pytest.mark.req("C8.1-25")
async def test_of_a_take_and_a_cancel_exactly_one_wins(scene: Scene, here: Town, alice: Member, carol: Member) -> None:
    """Two daemons at the same rows: the second one's decisions race with the first one's."""
    epoch = await scene.epoch()
    async with daemon(here, serving=False) as other:

        async def race(at: int) -> str:
            message_id = f"race-{at}"
            sequence = await alice.request_role(ROLE, message_id)
            body = json.dumps(take_of(carol, sequence, message_id, 1, epoch)).encode()
            taking = scene.desk.take({"role": ROLE, "owner": "local", "actor": "carol"}, body)
            cancelling = other.ask("anycast-cancel", "alice", sequence, message_id)
            if at % 2:
                (code, _), told = await asyncio.gather(taking, cancelling)
            else:
                told, (code, _) = await asyncio.gather(cancelling, taking)
            row = await scene.row(sequence)
            assert row is not None
            if code is None:
                assert (told["state"], row.state.value) == ("taken", "taken")
                assert await scene.queued(sequence)
                return "take"
            assert code is Code.CANCELLED
            assert (told["state"], told["removal"], row.state.value) == ("cancelled", "deleted", "cancelled")
            assert not await scene.queued(sequence)
            return "cancel"

        won: list[str] = []
        for block in range(40):
            won += await asyncio.gather(*(race(block * 25 + at) for at in range(25)))
        assert len(won) == 1000
        assert set(won) == {"take", "cancel"}, "the race was none"


@pytest.mark.req("C8.1-41")
async def test_the_daemon_says_that_it_takes(scene: Scene) -> None:
    assert await scene.desk.handlers["anycast-takes"](Called(life("carol"), "carol", None, "q")) == {"takes": True}


# ---- notices ----


@pytest.mark.req("C8.1-43", "C8.1-44", "C8.1-45")
async def test_the_sender_is_told_once_of_each_transition(
    scene: Scene, alice: Member, carol: Member, dave: Member, here: Town
) -> None:
    sequence, epoch = await alice.request_role(ROLE, "n-1"), await scene.epoch()
    for member, count in ((carol, 1), (carol, 1), (carol, 2), (dave, 3), (dave, 3)):
        assert await take(member, take_of(member, sequence, "n-1", count, epoch)) == {"ok": True}
    await soon(lambda: _nothing_owed(scene, sequence))
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


async def _nothing_owed(scene: Scene, sequence: int) -> bool:
    row = await scene.row(sequence)
    return row is not None and not row.owed


@pytest.mark.req("C8.1-45", "C8.1-46")
@pytest.mark.parametrize("published", [False, True])
async def test_a_notice_that_was_owed_at_a_crash_is_sent_once(
    scene: Scene, alice: Member, carol: Member, here: Town, published: bool
) -> None:
    """The daemon died before it published the notice, or after that and before it noted it."""
    message_id = f"n-crash-{published}"
    sequence, epoch = await alice.request_role(ROLE, message_id), await scene.epoch()
    await take(carol, take_of(carol, sequence, message_id, 1, epoch))
    await soon(lambda: _nothing_owed(scene, sequence))
    entry, row = await scene.entry(sequence), await scene.row(sequence)
    assert entry is not None
    assert row is not None
    key = row.key
    value = json.loads(entry.value)
    value["owed"] = [{"n": 1 if published else 7, "event": "taken", "taker": value["taker"]}]
    await KeyValue(scene.member.connection, buckets.ANYCAST, SPACE).put(key, json.dumps(value).encode())
    async with daemon(here, serving=False) as next_one:
        await next_one.desk.sweep()
        assert await _nothing_owed(next_one, sequence)
    assert len(await notices(here, "alice", sequence)) == (1 if published else 2)


# ---- the sweep ----


@pytest.mark.req("C8.1-30")
async def test_a_row_goes_a_day_after_its_request_left_and_not_before(
    scene: Scene, alice: Member, carol: Member
) -> None:
    sequence, epoch = await alice.request_role(ROLE, "s-1"), await scene.epoch()
    await take(carol, take_of(carol, sequence, "s-1", 1, epoch))
    await soon(lambda: _nothing_owed(scene, sequence))
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
    await soon(lambda: _is(len(slept) >= 3))
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
