"""Copies of posts, from the post to the member's own store, with the credentials of a delivery plane."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import orjson
import pytest
import pytest_asyncio

from sidecar.rails.connection.kv import KeyValue
from sidecar.rails.envelopes.backstop import Why, decode, limit_of
from sidecar.rails.names import buckets, consumers, headers, subjects
from sidecar.rails.planes.delivery.loop import HELD_BYTES, Point
from sidecar.rails.planes.delivery.membership import Writer, joined
from tests.e2e.delivery_rig import CHAT, DLV, INBOX, Daemon, Rig, rig, root, store_of, until
from tests.e2e.durable_reads import document, life
from tests.e2e.space_broker import EVENT_SECONDS
from tests.e2e.space_members import SPACE

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def here(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Rig]:
    async with rig(tmp_path_factory.mktemp("copies")) as made:
        yield made


async def ids(here: Rig, actor: str) -> list[str]:
    return [copy.id for copy in await store_of(here, actor)]


class Gate:
    """Holds a loop where it has read messages and decided nothing."""

    def __init__(self) -> None:
        self.open = asyncio.Event()
        self.open.set()

    async def at(self, point: Point) -> None:
        if point is Point.PULLED:
            await self.open.wait()


async def fanned_out(daemon: Daemon, copies: int) -> None:
    """So many copies wait for the trusted reader."""
    await until(lambda: sum(daemon.count("delivery_copies").values()) >= copies, daemon.task)


@pytest.mark.req("C4-08", "C8-40", "C8-43", "C8-54", "C7-16")
async def test_a_member_has_a_copy_of_what_was_posted_while_it_was_away(here: Rig) -> None:
    async with here.daemon() as daemon, here.author() as alice:
        await here.acl("b1", "team.>")
        await daemon.join("b1", "team.a")
        sequence = await alice.post("team.a", "m1")
        await daemon.idle()
        (copy,) = await store_of(here, "b1")
        found = decode(copy.headers, SPACE)
        subject = subjects.CHAT.build(space=SPACE, owner="local", actor="alice", channel="team.a")
        assert (found.subject, found.sequence, found.why) == (subject, sequence, Why.CHANNEL)
        assert copy.headers[headers.MESSAGE_ID] == f"m1:local.b1:{life('b1').uid}"
        assert limit_of(copy.headers) == 1000
        assert headers.DELIVERY_LIMIT in copy.headers
        assert copy.value == orjson.loads(document("alice", "m1", channel="team.a")) | {"ts": copy.value["ts"]}


@pytest.mark.req("C7-31", "C7-32", "C7-34", "C4-20", "C8-46")
async def test_memberships_hold_what_was_posted_in_them(here: Rig) -> None:
    async with here.daemon() as daemon, here.author() as alice:
        await here.acl("b2", "team.>")
        await alice.post("team.b", "before")
        generation = await daemon.join("b2", "team.b")
        await alice.post("team.b", "inside")
        assert await daemon.leave("b2", "team.b", generation) == {"channel": "team.b"}
        await alice.post("team.b", "gap")
        again = await daemon.join("b2", "team.b")
        assert again > generation
        await alice.post("team.b", "again")
        await daemon.idle()
        assert await ids(here, "b2") == ["inside", "again"]


@pytest.mark.req("C7-30", "C7-33", "C8-42", "C9-42")
async def test_what_waits_is_judged_by_what_its_member_may_read_now(here: Rig) -> None:
    gate = Gate()
    async with here.daemon(reader_at=gate.at) as daemon, here.author() as alice:
        for actor in ("b3", "b4", "b5"):
            await here.acl(actor, "team.>")
        generations = {actor: await daemon.join(actor, "team.c") for actor in ("b3", "b4", "b5")}
        await daemon.idle()
        gate.open.clear()
        await alice.post("team.c", "waits")
        await fanned_out(daemon, 3)
        # One leaves behind the post, one may not read the channel any more, one reads nothing at all.
        await daemon.leave("b3", "team.c", generations["b3"])
        await here.acl("b4", "team.other")
        await here.acl("b5")
        await alice.post("team.c", "late")
        gate.open.set()
        await daemon.idle()
        assert await ids(here, "b3") == ["waits"]
        assert await ids(here, "b4") == []
        assert await ids(here, "b5") == []
        assert daemon.count("delivery_dropped")["reader", "acl"] == 4


@pytest.mark.req("C7-31", "C8-46")
async def test_a_copy_from_behind_the_leave_is_not_handed_off(here: Rig) -> None:
    """A fan-out of another daemon that took the membership for open."""
    async with here.daemon() as daemon, here.author() as alice:
        await here.acl("b6", "team.>")
        generation = await daemon.join("b6", "team.d")
        await daemon.leave("b6", "team.d", generation)
        sequence = await alice.post("team.d", "behind")
        found = {
            headers.COPY_SUBJECT: subjects.CHAT.build(space=SPACE, owner="local", actor="alice", channel="team.d"),
            headers.COPY_SEQUENCE: str(sequence),
            headers.COPY_WHY: "channel",
        }
        inbox = subjects.DINBOX.build(space=SPACE, **life("b6").names)
        send = daemon.member.connection.request
        await send(inbox, document("alice", "behind", channel="team.d"), headers=found)
        # What a read of stored messages was made to put there, and what is no copy.
        mentioned = {**found, headers.COPY_WHY: "mention"}
        await send(inbox, document("alice", "put", channel="team.d"), headers={**mentioned, headers.SEQUENCE: "7"})
        await send(inbox, document("alice", "bare", channel="team.d"))
        await daemon.idle()
        assert await ids(here, "b6") == []
        dropped = {reason: count for (_, reason), count in daemon.count("delivery_dropped").items()}
        assert dropped == {"membership": 1, "redirected": 1, "malformed_copy": 1}


@pytest.mark.req("C7-39", "C7-40", "C7-43", "C8-50", "C7-07", "C4-06")
async def test_a_family_has_copies_of_its_durable_channels_and_one_of_each_post(here: Rig) -> None:
    async with here.daemon() as daemon, here.author() as alice:
        await here.acl("b7", "team.>")
        await here.channel("team.f.live", "live")
        await daemon.join("b7", "team.f.>")
        own = await daemon.join("b7", "team.f.x")
        await alice.post("team.f.x", "both")
        await alice.post("team.f.live", "live")
        await alice.post("team.f.new.deep", "later")
        await alice.post("team.f", "above")
        await daemon.leave("b7", "team.f.x", own)
        await alice.post("team.f.x", "family")
        # A class that was changed before a post counts for it, without a restart.
        await here.channel("team.f.live", "durable")
        await alice.post("team.f.live", "now durable")
        await here.channel("team.f.live", "live")
        await alice.post("team.f.live", "live again")
        await daemon.idle()
        assert await ids(here, "b7") == ["both", "later", "family", "now durable"]
        assert [copy.id for copy in await store_of(here, "b7", subjects.DINBOX)] == [
            "both",
            "later",
            "family",
            "now durable",
        ]


@pytest.mark.req("C4-22", "C8-59")
async def test_posts_with_an_empty_id_are_copies_of_their_own_and_an_author_has_none(here: Rig) -> None:
    async with here.daemon() as daemon, here.author("b8") as author:
        for actor in ("b8", "b9"):
            await here.acl(actor, "team.>")
            await daemon.join(actor, "team.e")
        await author.post("team.e", "", text="one")
        await author.post("team.e", "", text="two")
        await daemon.idle()
        copies = await store_of(here, "b9")
        assert [copy.value["parts"][0]["text"] for copy in copies] == ["one", "two"]
        assert all(headers.MESSAGE_ID not in copy.headers for copy in copies)
        assert await ids(here, "b8") == []


@pytest.mark.req("C8-42", "C7-30")
async def test_a_lifecycle_that_is_not_known_yet_waits_and_loses_nothing(here: Rig) -> None:
    async with here.daemon() as daemon, here.author() as alice:
        await here.acl("b10", "team.>")
        await daemon.join("b10", "team.g")
        await here.no_acl("b10")
        await alice.post("team.g", "waits")
        await until(lambda: daemon.metrics.totals("delivery_deferred") != {}, daemon.task)
        assert await ids(here, "b10") == []
        await here.acl("b10", "team.>")
        await until(lambda: daemon.count("delivery_handed_off") != {}, daemon.task)
        assert await ids(here, "b10") == ["waits"]


@pytest.mark.req("C4-13", "C4-14", "C4-15", "C4-16", "C8-47", "C9-43")
async def test_a_mention_on_a_live_channel_reaches_who_may_read_it(here: Rig) -> None:
    await here.channel("quiet.a", "live")
    for actor, allowed in (
        ("c1", "quiet.>"),
        ("c2", "team.>"),
        ("c3", "quiet.>"),
        ("c4", "quiet.>"),
        ("c5", "quiet.>"),
    ):
        await here.acl(actor, allowed)
    for actor, name in (("c1", "Carol"), ("c2", "dan"), ("c3", "twin"), ("c4", "TWIN"), ("c5", "author")):
        await here.present(actor, name)
    async with here.daemon() as daemon, here.author("c5") as author:
        await author.post("quiet.a", "m1", mentions=["carol", "dan", "twin", "nobody", "author"])
        await here.channel("team.h", "durable")
        await author.post("team.h", "durable", mentions=["carol"])
        await daemon.idle()
        (copy,) = await store_of(here, "c1")
        assert decode(copy.headers, SPACE).why is Why.MENTION
        for actor in ("c2", "c3", "c4", "c5"):
            assert await ids(here, actor) == []
        outcomes = {outcome: count for (outcome,), count in daemon.count("delivery_mentions").items()}
        assert outcomes == {"resolved": 1, "unreadable": 1, "ambiguous": 1, "unknown": 1, "author": 1}
        assert daemon.count("delivery_copies") == {("mention",): 1}


@pytest.mark.req("C4-14", "C8-47")
async def test_a_mention_copy_is_judged_by_the_read_list_of_its_hand_off(here: Rig) -> None:
    await here.channel("quiet.b", "live")
    await here.acl("c6", "quiet.>")
    gate = Gate()
    async with here.daemon(reader_at=gate.at) as daemon, here.author() as alice:
        await here.present("c6", "frank")
        await until(lambda: bool(daemon.backstop.mentions.resolved(["frank"], "quiet.b", "x")), daemon.task)
        gate.open.clear()
        await alice.post("quiet.b", "m1", mentions=["frank"])
        await fanned_out(daemon, 1)
        await here.acl("c6", "team.>")
        gate.open.set()
        await daemon.idle()
        assert await ids(here, "c6") == []
        assert daemon.count("delivery_dropped") == {("reader", "acl"): 1}


@pytest.mark.req("C4-27", "C4-25")
async def test_posts_that_are_none_are_terminated_and_block_nothing(here: Rig) -> None:
    async with here.daemon() as daemon, here.author() as alice:
        await here.acl("d1", "team.>")
        await daemon.join("d1", "team.i")
        await alice.post("team.i", "x", raw=b"{")
        await alice.post("team.i", "x", raw=document("mallory", "forged", channel="team.i"))
        await alice.post("team.i", "x", raw=orjson.dumps({"id": 5, "from": {"id": "local.alice", "name": "a"}}))
        await alice.post("team.i", "x", raw=document("alice", "astray", channel="team.j"))
        await alice.post("team.i", "redirected", headers={headers.SEQUENCE: "7"})
        await alice.post("team.i", "good")
        await daemon.idle()
        assert await ids(here, "d1") == ["good"]
        assert {reason: count for (_, reason), count in daemon.count("delivery_dropped").items()} == {
            "malformed_json": 1,
            "sender_mismatch": 1,
            "malformed_envelope": 1,
            "routing_mismatch": 1,
            "redirected": 1,
        }


async def test_a_post_that_leaves_no_room_for_a_copys_headers_ends_nobodys_connection(here: Rig) -> None:
    async with here.daemon() as daemon, here.author() as alice:
        await here.acl("d2", "team.>")
        await daemon.join("d2", "team.k")
        whole = daemon.member.connection.max_payload
        frame = len(document("alice", "huge", "", channel="team.k"))
        await alice.post("team.k", "huge", text="x" * (whole - frame))
        await alice.post("team.k", "fits", text="x" * (whole - frame - 1024))
        await daemon.idle()
        assert await ids(here, "d2") == ["fits"]
        assert daemon.count("delivery_dropped") == {("fanout", "too_large"): 1}
        assert daemon.count("nats_links") == {("connected",): 1}


async def test_many_large_posts_overrun_nothing(here: Rig) -> None:
    """More of them wait than a loop and its subscription hold; what one drops would come after the ack wait only."""
    gate = Gate()
    async with here.daemon(at=gate.at) as daemon, here.author() as alice:
        await here.acl("d6", "team.>")
        await daemon.join("d6", "team.p")
        await daemon.idle()
        gate.open.clear()
        for number in range(76):
            await alice.post("team.p", f"m{number}", text="x" * 900_000)
        await until(lambda: daemon.backstop.fanout._bytes > HELD_BYTES, daemon.task)
        gate.open.set()
        await daemon.idle()
        assert daemon.count("nats_messages_dropped") == {}
        assert daemon.count("delivery_handed_off") == {("channel",): 76}


class Behind:
    """A mirror whose watch brings nothing until it is let."""

    def __init__(self, mirror: Any) -> None:
        self.mirror, self.open = mirror, asyncio.Event()
        self._take = mirror._take
        mirror._take = self.take

    async def take(self, entry: Any) -> None:
        await self.open.wait()
        await self._take(entry)

    async def asked(self, daemon: Daemon) -> None:
        """Somebody waits until it is current again."""
        before = self.mirror.reads
        await until(lambda: self.mirror.reads > before, daemon.task)


@pytest.mark.req("C4-08", "C7-09", "C4-06")
@pytest.mark.parametrize("late", ["members", "channels"])
async def test_a_fan_out_waits_for_what_was_stored_before_the_post(here: Rig, late: str) -> None:
    """The row of a join, and the class of a channel: a watch that is behind makes nobody miss a copy."""
    actor, channel = f"e{late[0]}", f"team.q{late}"
    await here.acl(actor, "team.>")
    await here.channel(channel, "live" if late == "channels" else "durable")
    async with here.daemon() as daemon, here.author() as alice:
        if late == "channels":
            await daemon.join(actor, channel)
        await daemon.idle()
        behind = Behind(getattr(daemon.backstop, late)._mirror)
        if late == "members":
            row = joined(None, channel, life(actor), 0, Writer("local.other", 1))
            async with root(here) as connection:
                await KeyValue(connection, buckets.MEMBERS, SPACE).create(row.key, row.encode())
        else:
            await here.channel(channel, "durable")
        asked = asyncio.create_task(behind.asked(daemon))
        await asyncio.sleep(0)
        await alice.post(channel, "m1")
        await asked
        behind.open.set()
        await daemon.idle()
        assert await ids(here, actor) == ["m1"]


@pytest.mark.req("C7-30", "C8-42", "C9-42")
@pytest.mark.parametrize("late", ["acl", "members"])
async def test_a_hand_off_waits_for_what_was_stored_before_it(here: Rig, late: str) -> None:
    """A read list that was narrowed, and a row that was removed: a watch that is behind lets nothing through."""
    actor, channel, gate = f"f{late[0]}", f"team.r{late}", Gate()
    await here.acl(actor, "team.>")
    async with here.daemon(reader_at=gate.at) as daemon, here.author() as alice:
        await daemon.join(actor, channel)
        await daemon.idle()
        gate.open.clear()
        await alice.post(channel, "m1")
        await fanned_out(daemon, 1)
        behind = Behind(getattr(daemon.backstop, late)._mirror)
        if late == "acl":
            await here.acl(actor, "team.other")
        else:
            async with root(here) as connection:
                key = buckets.member_key(channel, life(actor))
                await KeyValue(connection, buckets.MEMBERS, SPACE).delete(key)
        asked = asyncio.create_task(behind.asked(daemon))
        await asyncio.sleep(0)
        gate.open.set()
        await asked
        behind.open.set()
        await daemon.idle()
        assert await ids(here, actor) == []


@pytest.mark.req("C7-30", "C8-42")
@pytest.mark.parametrize("how", ["later", "suspended"])
async def test_a_plane_that_stood_still_between_its_decision_and_the_copy_sends_nothing(here: Rig, how: str) -> None:
    """As one does that is stopped (SIGSTOP) or suspended with its machine, while another plane narrows and serves."""
    member = f"still{how}"
    await here.acl(member, "team.>")
    async with here.daemon() as daemon, here.author() as alice:
        await daemon.join(member, f"team.{member}")
        decided, awake = asyncio.Event(), asyncio.Event()
        reader = daemon.backstop.reader
        dressed = reader.dressed

        async def asleep(copy: Any) -> Any:
            decided.set()
            await awake.wait()
            return await dressed(copy)

        setattr(reader, "dressed", asleep)  # noqa: B010 - where the process is stopped
        await alice.post(f"team.{member}", "before")
        async with asyncio.timeout(EVENT_SECONDS):
            await decided.wait()
        await here.acl(member)
        setattr(daemon, how, 3_600.0)
        awake.set()
        await daemon.idle()
        assert await store_of(here, member) == []
        assert daemon.count("delivery_retries")[("reader", "stale")] == 1
        assert daemon.count("delivery_dropped")[("reader", "acl")] == 1


@pytest.mark.req("C8-54")
async def test_a_new_count_of_the_store_is_stamped_within_five_seconds(here: Rig) -> None:
    async with here.daemon() as daemon, here.author() as alice:
        await here.acl("d3", "team.>")
        await daemon.join("d3", "team.l")
        for count, stamp in ((1000, 1000), (77, 77), (-1, None)):
            await here.configure(DLV, max_msgs_per_subject=count)
            daemon.later += 5.0
            await alice.post("team.l", f"m{count}")
            await daemon.idle()
            assert limit_of((await store_of(here, "d3"))[-1].headers) == stamp
        await here.configure(DLV, max_msgs_per_subject=1000)


@pytest.mark.req("C4-08")
async def test_durables_that_an_operator_deletes_are_made_where_they_were(here: Rig) -> None:
    await here.acl("d4", "team.>")
    async with here.daemon() as daemon, here.author() as alice:
        await daemon.join("d4", "team.m")
        await alice.post("team.m", "m1")
        await daemon.idle()
        for stream, consumer in ((CHAT, consumers.FANOUT), (INBOX, consumers.READER)):
            await here.delete_consumer(stream, consumer.build())
        await alice.post("team.m", "m2")
        await daemon.idle()
        assert await ids(here, "d4") == ["m1", "m2"]
        assert daemon.count("delivery_durables_made") == {("fanout",): 1, ("reader",): 1}
    async with here.author() as alice:
        await alice.post("team.m", "m3")
        for stream, consumer in ((CHAT, consumers.FANOUT), (INBOX, consumers.READER)):
            await here.delete_consumer(stream, consumer.build())
        await alice.post("team.m", "m4")
        async with here.daemon() as daemon:
            await until(lambda: daemon.backstop.fanout.bound.is_set(), daemon.task)
            await daemon.idle()
            assert await ids(here, "d4") == ["m1", "m2", "m3", "m4"]


@pytest.mark.req("C4-08")
async def test_a_durable_that_an_operator_deletes_forgets_nothing_that_was_put_off(here: Rig) -> None:
    async with here.daemon() as daemon, here.author() as alice:
        for actor in ("f5", "f6"):
            await here.acl(actor, "team.>")
        await daemon.join("f5", "team.off")
        await daemon.join("f6", "team.on")
        await here.no_acl("f5")
        await alice.post("team.off", "put-off")
        await until(lambda: daemon.metrics.totals("delivery_deferred") != {}, daemon.task)
        await alice.post("team.on", "behind")
        await until(lambda: daemon.count("delivery_handed_off") != {}, daemon.task)
        await here.acl("f5", "team.>")
        await here.delete_consumer(INBOX, consumers.READER.build())
        await until(lambda: daemon.count("delivery_durables_made") != {}, daemon.task)
        await daemon.idle()
        assert (await ids(here, "f5"), await ids(here, "f6")) == (["put-off"], ["behind"])


@pytest.mark.req("C4-08", "C8-44", "C8-45")
async def test_a_full_store_delays_copies_and_loses_none(here: Rig) -> None:
    async with here.daemon() as daemon, here.author() as alice:
        await here.acl("d5", "team.>")
        await daemon.join("d5", "team.n")
        await here.configure(INBOX, max_bytes=1, discard="new")
        await alice.post("team.n", "m1")
        await until(lambda: daemon.count("delivery_retries") != {}, daemon.task)
        assert await ids(here, "d5") == []
        await here.configure(INBOX, max_bytes=-1, discard="old")
        await until(lambda: daemon.count("delivery_handed_off") != {}, daemon.task)
        assert await ids(here, "d5") == ["m1"]
        assert set(daemon.count("delivery_retries")) == {("fanout", "refused")}
