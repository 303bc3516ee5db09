"""Joins, leaves and inventories at a real broker: who may have a membership, and what a race makes of one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
import pytest_asyncio

from sidecar.rails.connection.kv import KeyValue
from sidecar.rails.endpoint.codes import Code, Outcome, Refusal
from sidecar.rails.names import api, buckets, headers
from sidecar.rails.planes.delivery import catchup, joins
from sidecar.rails.planes.delivery.membership import Membership, decode
from sidecar.rails.space.holder import Profile
from tests.e2e.delivery_rig import CHAT, Daemon, Rig, last_of, rig, root, store_of, until
from tests.e2e.durable_reads import life
from tests.e2e.space_members import SPACE

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def here(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Rig]:
    async with rig(tmp_path_factory.mktemp("joins")) as made:
        yield made


@pytest_asyncio.fixture(loop_scope="module")
async def daemon(here: Rig) -> AsyncIterator[Daemon]:
    async with here.daemon() as made:
        yield made


async def row_of(here: Rig, actor: str, channel: str) -> Membership | None:
    key = buckets.member_key(channel, life(actor))
    async with root(here) as connection:
        entry = await KeyValue(connection, buckets.MEMBERS, SPACE).get(key)
        return None if entry is None else decode(key, entry.value)


async def remove(here: Rig, actor: str, channel: str) -> None:
    async with root(here) as connection:
        await KeyValue(connection, buckets.MEMBERS, SPACE).delete(buckets.member_key(channel, life(actor)))


async def refused(asked: Awaitable[Any]) -> Refusal:
    with pytest.raises(Refusal) as caught:
        await asked
    return caught.value


def behind(call: Callable[..., Awaitable[Any]], count: int, then: Callable[[], Awaitable[None]]) -> Any:
    """The same call, with something else that happens right behind the ``count``-th time."""
    left = count

    async def called(*args: Any) -> Any:
        nonlocal left
        answer = await call(*args)
        left -= 1
        if not left:
            await then()
        return answer

    return called


@pytest.mark.req("C7-16", "C7-29", "CD-01")
async def test_a_join_is_a_row_that_its_member_cannot_write(here: Rig, daemon: Daemon) -> None:
    await here.acl("a1", "team.>")
    generation = await daemon.join("a1", "team.>")
    row = await row_of(here, "a1", "team.>")
    assert row is not None
    assert (row.open, row.activated, row.generation, row.writer) == (True, True, generation, "local.delivery")
    assert row.interval.join == await last_of(daemon.member.connection, CHAT)
    subject = buckets.MEMBERS.subject(
        SPACE, buckets.MEMBER_KEY, channel=buckets.member_channel("team.>"), **life("a1").names
    )
    async with here.town.space.member(Profile.AGENT, "a1", subscribe=("team.>",)) as (agent, _):
        assert not await agent.may_publish(subject, b"{}")


@pytest.mark.req("C7-42", "C7-38", "C7-44")
async def test_a_join_lies_within_one_entry_of_the_read_list(here: Rig, daemon: Daemon) -> None:
    await here.acl("a2", "team.a", "team.b", "deep.>", "star.*")
    for channel in ("team.>", "other", "team", "deep", "star.>", "star.a.b"):
        error = await refused(daemon.ask("a2", "durable-join", channel=channel, joinCursor=0))
        assert (error.code, error.outcome) == (Code.PERMISSION_DENIED, Outcome.NOT_EXECUTED)
        assert await row_of(here, "a2", channel) is None
    generation = await daemon.join("a2", "team.b")
    await daemon.leave("a2", "team.b", generation)
    tombstone = await row_of(here, "a2", "team.b")
    await here.acl("a2", "team.a", "deep.>", "star.*")
    assert (
        await refused(daemon.ask("a2", "durable-join", channel="team.b", joinCursor=0))
    ).outcome is Outcome.NOT_EXECUTED
    assert await row_of(here, "a2", "team.b") == tombstone
    for channel in (">", "team.*", "*.a", "", "team..a"):
        assert (await refused(daemon.ask("a2", "durable-join", channel=channel, joinCursor=0))).code is Code.BAD_REQUEST
    for channel in ("team.a", "deep.x", "deep.>", "deep.x.>", "star.a"):
        await daemon.join("a2", channel)
    assert (await refused(daemon.ask("nobody", "durable-join", channel="x", joinCursor=0))).code is Code.UNAVAILABLE


@pytest.mark.req("CD-05", "CB-79")
@pytest.mark.parametrize("rejoin", [False, True])
async def test_a_read_list_that_is_narrowed_behind_the_write_takes_the_row_with_it(
    here: Rig, daemon: Daemon, rejoin: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    actor = f"a3{int(rejoin)}"
    await here.acl(actor, "team.>")
    if rejoin:
        await daemon.leave(actor, "team.a", await daemon.join(actor, "team.a"))

    async def narrow() -> None:
        await here.acl(actor)

    acl = daemon.backstop.acl
    monkeypatch.setattr(acl, "exact", behind(acl.exact, 1, narrow))
    error = await refused(daemon.ask(actor, "durable-join", channel="team.a", joinCursor=0))
    assert error.code is Code.PERMISSION_DENIED
    assert await row_of(here, actor, "team.a") is None


async def test_a_join_of_a_member_changes_nothing(here: Rig, daemon: Daemon) -> None:
    await here.acl("a4", "team.>")
    async with here.author() as alice:
        first = await daemon.join("a4", "team.b")
        row = await row_of(here, "a4", "team.b")
        await alice.post("team.b", "m1")
        assert await daemon.join("a4", "team.b") == first
        assert await row_of(here, "a4", "team.b") == row
    assert daemon.count("delivery_joins") == {("joined",): 1, ("kept",): 1}


@pytest.mark.req("C7-20", "C7-32")
async def test_what_was_posted_since_the_clients_cursor_is_copied(here: Rig, daemon: Daemon) -> None:
    await here.acl("a5", "team.>")
    await here.channel("team.c.live", "live")
    async with here.author() as alice, here.author("a5") as own:
        await alice.post("team.c.x", "before")
        cursor = await last_of(daemon.member.connection, CHAT)
        await alice.post("team.c.x", "m1")
        await alice.post("team.c.live", "live")
        await alice.post("team.c.y", "", text="no id")
        await own.post("team.c.x", "own")
        await alice.post("team.c.x", "x", raw=b"{")
        await daemon.idle()
        await daemon.join("a5", "team.c.>", cursor)
        await alice.post("team.c.x", "m2")
        await daemon.idle()
    assert [copy.id for copy in await store_of(here, "a5")] == ["m1", "", "m2"]
    async with root(here) as connection:
        info = await connection.request(api.CONSUMER_NAMES.build(stream=CHAT))
        assert b"cu_" not in info.data


@pytest.mark.req("C4-10")
async def test_a_window_that_cannot_be_copied_whole_is_not_reported_as_durable(
    here: Rig, daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    await here.acl("a6", "team.>")
    async with here.author() as alice:
        cursor = await last_of(daemon.member.connection, CHAT)
        for number in range(3):
            await alice.post("team.d", f"d{number}")
        monkeypatch.setattr(catchup, "MAX_POSTS", 2)
        answer = await daemon.ask("a6", "durable-join", channel="team.d", joinCursor=cursor)
        assert answer["durable"] is False
        assert "more than 2 posts" in answer["reason"]
        row = await row_of(here, "a6", "team.d")
        assert row is not None
        assert not row.open
        monkeypatch.undo()
        monkeypatch.setattr(catchup, "MAX_BYTES", 100)
        answer = await daemon.ask("a6", "durable-join", channel="team.d", joinCursor=cursor)
        assert (answer["durable"], "more than 100 bytes" in answer["reason"]) == (False, True)
        monkeypatch.undo()
        await here.configure(CHAT, max_msgs_per_subject=2)
        answer = await daemon.ask("a6", "durable-join", channel="team.d", joinCursor=cursor)
        assert answer == {"durable": False, "reason": "posts since the join were removed before they could be copied"}
        await here.configure(CHAT, max_msgs_per_subject=1000)
        await daemon.join("a6", "team.d")
    assert daemon.count("delivery_joins") == {("too_long",): 2, ("evicted",): 1, ("joined",): 1}


@pytest.mark.req("C7-19", "C7-36")
async def test_a_leave_ends_the_generation_that_it_names(here: Rig, daemon: Daemon) -> None:
    await here.acl("a7", "team.>")
    already = {"channel": "team.e", "alreadyLeft": True}
    assert await daemon.leave("a7", "team.e", 5) == already
    first = await daemon.join("a7", "team.e")
    assert await daemon.leave("a7", "team.e", first) == {"channel": "team.e"}
    assert await daemon.leave("a7", "team.e", first) == already
    second = await daemon.join("a7", "team.e")
    assert await daemon.leave("a7", "team.e", first) == already
    row = await row_of(here, "a7", "team.e")
    assert row is not None
    assert (row.open, row.generation) == (True, second)


@pytest.mark.req("CD-06", "CB-79")
async def test_no_other_write_makes_a_removed_row_again(
    here: Rig, daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    await here.acl("a8", "team.>")
    generation = await daemon.join("a8", "team.f")
    desk: Any = daemon.backstop._desk

    async def removed() -> None:
        await remove(here, "a8", "team.f")

    monkeypatch.setattr(desk._rows, "get", behind(desk._rows.get, 1, removed))
    assert await daemon.leave("a8", "team.f", generation) == {"channel": "team.f", "alreadyLeft": True}
    assert await row_of(here, "a8", "team.f") is None
    # A row that goes while its join copies is not activated.
    monkeypatch.setattr(desk._catch_up, "copy", behind(desk._catch_up.copy, 1, removed))
    error = await refused(daemon.ask("a8", "durable-join", channel="team.f", joinCursor=0))
    assert error.code is Code.CONFLICT
    assert await row_of(here, "a8", "team.f") is None


async def test_many_joins_at_once_copy_a_few_at_a_time_and_each_its_own_channel(
    here: Rig, daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk: Any = daemon.backstop._desk
    running, most = 0, 0
    read = desk._catch_up._read

    async def counted(*args: Any) -> Any:
        nonlocal running, most
        running += 1
        most = max(most, running)
        try:
            return await read(*args)
        finally:
            running -= 1

    monkeypatch.setattr(desk._catch_up, "_read", counted)
    channels = [f"team.many{number}" for number in range(4 * catchup.AT_ONCE)]
    await here.acl("a8", "team.>")
    async with here.author() as alice:
        cursor = await last_of(daemon.member.connection, CHAT)
        for channel in channels:
            await alice.post(channel, f"in-{channel}")
        await asyncio.gather(*(daemon.join("a8", channel, cursor) for channel in channels))
    assert 1 < most <= catchup.AT_ONCE
    await daemon.idle()
    assert sorted(copy.id for copy in await store_of(here, "a8")) == sorted(f"in-{channel}" for channel in channels)


async def test_what_another_plane_reads_by_the_consumer_of_a_join_is_not_missed(
    here: Rig, daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two planes at once, of which one was stopped for longer than its lease."""
    desk: Any = daemon.backstop._desk
    gather = desk._catch_up._puller.gather
    await here.acl("a0", "team.>")

    async def stolen(durable: Any, *args: Any) -> Any:
        monkeypatch.undo()
        await desk._catch_up._puller.pull(durable, 1)
        return await gather(durable, *args)

    monkeypatch.setattr(desk._catch_up._puller, "gather", stolen)
    async with here.author() as alice:
        cursor = await last_of(daemon.member.connection, CHAT)
        for number in range(3):
            await alice.post("team.two", f"two{number}")
        error = await refused(daemon.ask("a0", "durable-join", channel="team.two", joinCursor=cursor))
        assert (error.code, error.outcome) == (Code.UNAVAILABLE, Outcome.UNKNOWN)
        await daemon.join("a0", "team.two", cursor)
    await daemon.idle()
    assert [copy.id for copy in await store_of(here, "a0")] == ["two0", "two1", "two2"]


async def test_joins_of_one_row_have_their_turns_also_when_they_come_as_one_ends(here: Rig, daemon: Daemon) -> None:
    desk: Any = daemon.backstop._desk
    inside, most = 0, 0

    async def one(followed: bool) -> None:
        nonlocal inside, most
        async with desk._one_at_a_time("key"):
            inside += 1
            most = max(most, inside)
            await asyncio.sleep(0)
            inside -= 1
        if followed:  # comes when the lock is free and the one that waited has not taken it yet
            async with desk._one_at_a_time("key"):
                inside += 1
                most = max(most, inside)
                await asyncio.sleep(0)
                inside -= 1

    tasks = [asyncio.create_task(one(True)), asyncio.create_task(one(False)), asyncio.create_task(one(True))]
    await asyncio.gather(*tasks)
    assert most == 1
    assert desk._turns == {}


async def test_a_lifecycle_has_a_bounded_number_of_memberships(
    here: Rig, daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    await here.acl("a9", "team.>")
    monkeypatch.setattr(joins, "MAX_ROWS", 2)
    for channel in ("team.g", "team.h"):
        generation = await daemon.join("a9", channel)
    await daemon.leave("a9", "team.h", generation)
    error = await refused(daemon.ask("a9", "durable-join", channel="team.i", joinCursor=0))
    assert error.code is Code.RESOURCE_EXHAUSTED
    await daemon.join("a9", "team.h")


async def test_a_member_lists_its_own_memberships(here: Rig, daemon: Daemon) -> None:
    await here.acl("b1", "team.>")
    generations = {channel: await daemon.join("b1", channel) for channel in ("team.j", "team.k", "team.>")}
    await daemon.leave("b1", "team.k", generations["team.k"])
    answer = await daemon.ask("b1", "list-memberships")
    assert answer == {
        "memberships": [
            {"channel": channel, "generation": generations[channel], "activated": True}
            for channel in ("team.>", "team.j")
        ]
    }
    assert await daemon.ask("b2", "list-memberships") == {"memberships": []}


@pytest.mark.req("CD-07", "CD-08", "CD-09", "CB-77", "CB-80")
async def test_an_inventory_waits_for_what_runs_and_fences_what_comes(
    here: Rig, daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    await here.acl("c1", "team.>")
    await here.acl("c2", "team.>")
    left = await daemon.join("c1", "team.m")
    await daemon.leave("c1", "team.m", left)
    go, reached = asyncio.Event(), asyncio.Event()

    async def held() -> None:
        reached.set()
        await go.wait()

    desk: Any = daemon.backstop._desk
    monkeypatch.setattr(desk._catch_up, "copy", behind(desk._catch_up.copy, 1, held))
    joining = asyncio.create_task(daemon.join("c1", "team.l"))
    await reached.wait()
    asked = [
        asyncio.create_task(daemon.ask("op", "lifecycle-memberships", lifecycle=life("c1").dot)) for _ in range(50)
    ]
    await until(lambda: life("c1") in desk._fenced)
    # Others are served meanwhile: joins, and the inventory of a lifecycle that does nothing.
    await daemon.join("c2", "team.l")
    assert len((await daemon.ask("op", "lifecycle-memberships", lifecycle=life("c2").dot))["memberships"]) == 1
    for command, number in (("durable-join", "joinCursor"), ("durable-leave", "generation")):
        error = await refused(daemon.ask("c1", command, channel="team.n", **{number: 0}))
        assert (error.code, error.outcome) == (Code.FAILED_PRECONDITION, Outcome.NOT_EXECUTED)
    assert not any(one.done() for one in asked)
    go.set()
    generation = await joining
    for answer in await asyncio.gather(*asked):
        running, ended = answer["memberships"]
        assert (running["channel"], running["generation"], running["state"]) == ("team.l", generation, "durable-active")
        assert (ended["channel"], ended["leaveCursor"]) == ("team.m", ended["joinCursor"])
    assert (await refused(daemon.ask("op", "lifecycle-memberships", lifecycle="x"))).code is Code.BAD_REQUEST


@pytest.mark.req("CD-10", "CB-78")
async def test_inventories_that_arrive_together_share_a_read(here: Rig, daemon: Daemon) -> None:
    await until(lambda: daemon.backstop.fanout.bound.is_set(), daemon.task)
    await daemon.backstop.members.current()
    before = daemon.backstop.members.reads
    asked = [daemon.ask("op", "lifecycle-memberships", lifecycle=life(f"d{number}").dot) for number in range(50)]
    await asyncio.gather(*asked)
    assert daemon.backstop.members.reads - before <= 2


@pytest.mark.req("C7-32", "C4-08")
async def test_joins_beside_a_stream_of_posts_miss_none_and_have_none_twice(here: Rig, daemon: Daemon) -> None:
    """What is posted behind the join cursor is in the member's store, however the join and the fan-out interleave."""
    actors = [f"e{number}" for number in range(6)]
    for actor in actors:
        await here.acl(actor, "team.>")
    posted: list[tuple[int, str]] = []
    async with here.author() as alice:

        async def talk() -> None:
            for number in range(400):
                posted.append((await alice.post("team.o", f"o{number}"), f"o{number}"))

        talking = asyncio.create_task(talk())
        for at, actor in enumerate(actors):
            await until(lambda: len(posted) >= 40 * (at + 1))  # noqa: B023
            await daemon.join(actor, "team.o" if at % 2 else "team.>")
        await talking
    await daemon.idle()
    for at, actor in enumerate(actors):
        row = await row_of(here, actor, "team.o" if at % 2 else "team.>")
        assert row is not None
        wanted = {name for sequence, name in posted if sequence > row.interval.join}
        found = [copy.id for copy in await store_of(here, actor)]
        assert len(found) == len(set(found))
        assert set(found) == wanted
        assert all(headers.DELIVERY_LIMIT in copy.headers for copy in await store_of(here, actor))
