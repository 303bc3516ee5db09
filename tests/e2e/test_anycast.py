"""Takes, cancels and status of anycast requests at a real broker."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from sidecar.rails.connection.kv import KeyValue
from sidecar.rails.endpoint.call import Call
from sidecar.rails.names import api, buckets, headers, subjects
from sidecar.rails.planes.delivery.anycast import Code, Record
from tests.e2e.anycast_scene import ROLE, TASK, Scene, ask, daemon, holds, soon, take, take_of
from tests.e2e.delivery_rig import Rig, root
from tests.e2e.durable_reads import Member, Town, life, town
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
    await soon(lambda: holds(scene.metrics.totals("delivery_takes").get(("dropped",)) == 6))
    assert await scene.row(sequence) is None
    assert await take(carol, take_of(carol, sequence, "t-6", 1, epoch)) == {"ok": True}


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
    assert await scene.desk.handlers["anycast-takes"](Call(life("carol"), "carol", None, "q")) == {"takes": True}
