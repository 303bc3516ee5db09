"""A member that does what it should not, at a whole space in either form: what the broker refuses, what readers refuse,
and what the delivery plane refuses. Everybody else is served meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import orjson
import pytest
import pytest_asyncio

from sidecar.base.strictjson import JsonValue
from sidecar.rails.connection import Connection, ConnectionFault
from sidecar.rails.endpoint.caller import Caller
from sidecar.rails.endpoint.codes import CallError, CallRefused, Code
from sidecar.rails.envelopes.errors import TooLarge
from sidecar.rails.messaging.durables import Durable
from sidecar.rails.messaging.membership import State
from sidecar.rails.messaging.peer import Peer
from sidecar.rails.messaging.registry import DeliveryClass
from sidecar.rails.names import buckets, subjects
from sidecar.rails.space.holder import Form
from tests.e2e.delivery_rig import Rig, root
from tests.e2e.durable_reads import Member, document, life
from tests.e2e.peers import Society, got, quiet, society, text_of, texts, until
from tests.e2e.space_broker import EVENT_SECONDS, User
from tests.e2e.space_members import SPACE, uid_of

pytestmark = pytest.mark.asyncio(loop_scope="module")
P, JS = f"cotal.{SPACE}", "$JS.API"
TEAM: dict[str, Any] = {"allow_publish": ("team.>",), "allow_subscribe": ("team.>",)}


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=list(Form))
async def here(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Society]:
    async with society(tmp_path_factory.mktemp("hostile"), request.param) as made:
        yield made


@contextlib.asynccontextmanager
async def raw(here: Society, actor: str) -> AsyncIterator[User]:
    """A member with a client of another make, which sees every word of the broker."""
    await here.enrol(actor, ("team.>",))
    creds = here.creds(actor, readable=("team.>",), postable=("team.>",))
    async with here.town.broker.user(creds, f"_INBOX_{here.key(actor).public}.>") as user:
        yield user


async def settled(here: Society, durable: Durable) -> None:
    """Nothing is left in a durable, neither pending nor unacked."""
    async with asyncio.timeout(EVENT_SECONDS):
        while True:
            info = await here.town.consumer(durable)
            if not info["num_ack_pending"] and not info["num_pending"]:
                return
            await asyncio.sleep(0.05)


def refused(peer: Peer) -> dict[tuple[str, ...], float]:
    return {key: count for key, count in peer.metrics.totals("messaging_refused").items() if count}


# ---- what the broker refuses ----


@pytest.mark.req("C2-07", "C3-10", "C5-13", "C8-31", "C9-39", "C9-40", "C9-41", "C12-04")
async def test_the_broker_refuses_what_the_credential_does_not_say(here: Society) -> None:
    data = document("ann", "forged", channel="team.a")
    publishes = {
        "another's name in the subject": f"{P}.chat.local.ann.team.a",
        "another's name in a direct message": f"{P}.inst.local.bob.local.ann",
        "another owner": f"{P}.chat.remote.mal1.team.a",
        "the subject without an owner": f"{P}.chat.mal1.team.a",
        "the subject without a sender": f"{P}.chat.team.a",
        "the old shape of a direct message": f"{P}.inst.bob",
        "an unauthorised channel": f"{P}.chat.local.mal1.secret",
        "a backstop copy": f"{P}.dinbox.local.bob.{uid_of('bob')}",
        "a hand-off": f"{P}.dlv.local.bob.{uid_of('bob')}",
        "another's presence": f"$KV.{buckets.PRESENCE.stream(SPACE).removeprefix('KV_')}.local.ann",
    }
    subscribes = {
        "another's direct messages": f"{P}.inst.local.ann.>",
        "the own direct messages, past the durable": f"{P}.inst.local.mal1.>",
        "an unauthorised channel": f"{P}.chat.*.*.secret",
        "everything": f"{P}.>",
        "another's inbox": f"_INBOX_{here.key('ann').public}.>",
        "another's replies": f"{P}.ep.reply.*.*.*.local.ann.{uid_of('ann')}.*",
    }
    name = f"dm_local-ann-{uid_of('ann')}"
    calls = {
        "a pull of another's durable": f"{JS}.CONSUMER.MSG.NEXT.DM_{SPACE}.{name}",
        "what is known of it": f"{JS}.CONSUMER.INFO.DM_{SPACE}.{name}",
        "an ack of another's copy": f"$JS.ACK.DM_{SPACE}.{name}.1.1.1.1.0",
        "a consumer of direct messages": f"{JS}.CONSUMER.CREATE.DM_{SPACE}.x.{P}.inst.>",
        "a durable of direct messages": f"{JS}.CONSUMER.DURABLE.CREATE.DM_{SPACE}.x",
        "a consumer of a channel that it may not read": (
            f"{JS}.CONSUMER.CREATE.CHAT_{SPACE}.chathist_local-mal1-{uid_of('mal1')}.{P}.chat.*.*.secret"
        ),
        "a Direct Get of direct messages": f"{JS}.DIRECT.GET.DM_{SPACE}",
        "a stored message": f"{JS}.STREAM.MSG.GET.CHAT_{SPACE}",
        "an erased message": f"{JS}.STREAM.MSG.DELETE.CHAT_{SPACE}",
    }
    async with here.plane(), here.peer("ann") as ann, here.peer("bob") as bob, raw(here, "mal1") as mal:
        await bob.join("team.>")
        for what, subject in {**publishes, **calls}.items():
            assert not await mal.may_publish(subject, data), what
        for what, subject in subscribes.items():
            assert not await mal.may_subscribe(subject), what
        for subject in (f"{P}.chat.local.mal1.team.>", f"{P}.chat.local.mal1.team.*", f"{P}.chat.local.mal1.>"):
            # A wildcard that is published is a word like any other: the broker takes it, and no reader shows it.
            await mal.may_publish(subject, document("mal1", "wild", "wild"))
        assert await mal.may_publish(f"{P}.chat.local.mal1.team.a", document("mal1", "real", "real", channel="team.a"))
        await ann.post("team.a", "on it goes")
        assert await texts(bob, 2) == ["real", "on it goes"]
        await quiet(bob)
        assert refused(bob) == {("live", "malformed-subject"): 2}


@pytest.mark.req("C4-27")
async def test_a_frame_above_the_broker_s_limit_costs_its_sender_the_connection_and_nobody_else(here: Society) -> None:
    async with here.plane(), here.peer("ann") as ann, here.peer("bob") as bob:
        await bob.join("team.large")
        async with raw(here, "mal2") as mal:
            mal.client._max_payload = 1 << 30
            await mal.client.publish(f"{P}.chat.local.mal2.team.large", b"x" * (2 << 20))
            await asyncio.wait_for(mal.disconnected.wait(), EVENT_SECONDS)
        assert "maximum payload exceeded" in (here.town.broker.directory / "nats-server.log").read_text()
        await ann.post("team.large", "on it goes")
        assert await texts(bob, 1) == ["on it goes"]


@pytest.mark.req("C5-19", "C9-47")
async def test_the_largest_message_that_may_be_sent_is_shown_and_a_larger_one_is_refused(here: Society) -> None:
    async with here.plane(), here.peer("ann") as ann, here.peer("bo11") as bob:
        whole = ann.connection.max_payload
        with pytest.raises(TooLarge) as caught:
            await ann.tell("local.bo11", "x" * whole)
        text = "x" * (whole - caught.value.size + caught.value.limit)
        with pytest.raises(TooLarge):
            await ann.tell("local.bo11", text + "x")
        await ann.tell("local.bo11", text)
        assert [len(one) for one in await texts(bob, 1)] == [len(text)]
        await settled(here, Durable.dm(SPACE, life("bo11")))
        assert not refused(bob)


# ---- what readers refuse ----

Bad = tuple[str, bytes]


def spoilt(**route: str) -> dict[str, Bad]:
    """Frames of mal on her own subject, with the reason that each is refused for."""
    whole = orjson.loads(document("mal", "s", **route))
    surrogate = json.dumps({**whole, "contextId": "\ud800"}).encode()
    deep = b'{"id":' + b"[" * 5_000 + b"]" * 5_000 + b"}"
    return {
        "from another": ("sender-mismatch", document("ann", "s1", **route)),
        "from another owner": (
            "sender-mismatch",
            orjson.dumps({**whole, "from": {"id": "remote.mal", "name": "mal"}}),
        ),
        "from nobody": ("sender-mismatch", orjson.dumps({**whole, "from": None})),
        "no JSON": ("malformed-json", b"{not json"),
        "no UTF-8": ("malformed-json", b'{"id":"\xff"}'),
        "a lone surrogate": ("malformed-json", surrogate),
        "a member twice": ("malformed-json", orjson.dumps(whole)[:-1] + b',"id":"again"}'),
        "a number beyond all": ("malformed-json", orjson.dumps(whole)[:-1] + b',"x":NaN}'),
        "nesting": ("malformed-json", deep),
        "nothing": ("malformed-json", b""),
        "an id that is none": ("malformed-envelope", orjson.dumps({**whole, "id": 5})),
        "parts that are none": ("malformed-envelope", orjson.dumps({**whole, "parts": "x"})),
    }


async def hit(member: Member, subject: str, bad: dict[str, Bad]) -> None:
    for _, data in bad.values():
        await member.stored(subject, data)


def expected(bad: dict[str, Bad], way: str) -> dict[tuple[str, ...], float]:
    counted: dict[tuple[str, ...], float] = {}
    for reason, _ in bad.values():
        counted[way, reason] = counted.get((way, reason), 0) + 1
    return counted


@pytest.mark.req("C4-25", "C4-27", "C5-14", "C5-21", "C8-64", "C12-05")
async def test_what_is_no_message_is_terminated_counted_and_never_shown(here: Society) -> None:
    bad = spoilt(to="local.bo2")
    async with here.plane(), here.peer("bo2") as bob, here.town.member("mal", **TEAM) as mal:
        subject = subjects.INST.build(space=SPACE, to_owner="local", to_actor="bo2", owner="local", actor="mal")
        await hit(mal, subject, bad)
        await mal.stored(subject, document("mal", "good", "good", to="local.bo2"))
        assert await texts(bob, 1) == ["good"]
        await quiet(bob)
        assert refused(bob) == expected(bad, "durable")
        await settled(here, Durable.dm(SPACE, life("bo2")))


@pytest.mark.req("C4-25", "C4-27", "C5-14", "C5-21")
async def test_on_a_channel_it_is_dropped_live_skipped_in_history_and_not_copied(here: Society) -> None:
    bad = spoilt(channel="team.bad")
    await here.configure("team.bad", delivery_class=DeliveryClass.DURABLE)
    async with here.plane() as plane, here.town.member("mal", **TEAM) as mal, here.peer("bo3") as early:
        assert (await early.join("team.bad")).state is State.DURABLE
        subject = subjects.CHAT.build(space=SPACE, owner="local", actor="mal", channel="team.bad")
        await hit(mal, subject, bad)
        await mal.stored(subject, document("mal", "good", "good", channel="team.bad"))
        assert await texts(early, 1) == ["good"]
        await quiet(early)
        assert refused(early) == expected(bad, "live")
        async with here.peer("bo4") as late:
            await late.join("team.bad")
            assert await texts(late, 1) == ["good"]
            await quiet(late)
            assert refused(late) == expected(bad, "history")
        assert sum(plane.totals("delivery_dropped").values()) == len(bad)
        await settled(here, Durable.backstop(SPACE, life("bo3")))


@pytest.mark.req("C4-21", "C4-22", "C4-23", "C5-08", "C5-09")
async def test_ids_that_repeat_and_members_that_nobody_knows(here: Society) -> None:
    async with here.plane(), here.peer("bo5") as bob, here.town.member("mal", **TEAM) as mal:
        async with here.town.member("other") as other:
            for sender in (mal, mal, other):
                await sender.tell("bo5", "same")
        subject = subjects.INST.build(space=SPACE, to_owner="local", to_actor="bo5", owner="local", actor="mal")
        for text in ("void 1", "void 2"):
            await mal.stored(subject, document("mal", "", text, to="local.bo5"))
        await mal.stored(subject, document("mal", "more", "more", to="local.bo5", later={"x": [1]}, __proto__="x"))
        seen = [await got(bob) for _ in range(5)]
        # One id twice of one sender is one message; of two senders it is two. Without an id all are shown.
        assert [(one.meta.sender, text_of(one)) for one in seen] == [
            ("local.mal", "hi"), ("local.other", "hi"), ("local.mal", "void 1"), ("local.mal", "void 2"),
            ("local.mal", "more"),
        ]  # fmt: skip
        for one in seen:
            await one.handled()
        await settled(here, Durable.dm(SPACE, life("bo5")))
        assert not refused(bob)


@pytest.mark.req("C5-14", "C9-47", "C13.3-02")
async def test_nobody_is_shown_what_another_made_the_broker_repeat(here: Society) -> None:
    """The confused deputy: a read whose answer goes where its asker may not publish."""
    victim = f"{P}.inst.local.bo6.local.carol"
    presence = buckets.PRESENCE.stream(SPACE)
    own = f"$KV.{presence.removeprefix('KV_')}.local.eve"
    forged = document("carol", "forged", "forged", to="local.bo6")
    create = f"{JS}.CONSUMER.CREATE.CHAT_{SPACE}.chathist_local-eve-{uid_of('eve')}.{P}.chat.*.*.team.a"
    config = {
        "name": f"chathist_local-eve-{uid_of('eve')}", "deliver_subject": victim, "ack_policy": "none",
        "filter_subject": f"{P}.chat.*.*.team.a", "deliver_policy": "all",
    }  # fmt: skip
    reads = {
        f"{JS}.DIRECT.GET.{presence}": (json.dumps({"last_by_subj": own}), victim),
        f"{JS}.CONSUMER.MSG.NEXT.DM_{SPACE}.dm_local-eve-{uid_of('eve')}": ('{"batch":1,"no_wait":true}', victim),
        create: (json.dumps({"stream_name": f"CHAT_{SPACE}", "config": config}), ""),
    }
    async with here.plane(), here.peer("ann") as ann, here.peer("bo6") as bob, raw(here, "eve") as eve:
        assert await eve.may_publish(own, forged)
        assert await eve.may_publish(f"{P}.chat.local.eve.team.a", forged)
        await ann.tell("local.eve", "for eve alone")
        for subject, (body, reply) in reads.items():
            taken = await eve.may_publish(subject, body.encode(), reply=reply or f"_INBOX_{here.key('eve').public}.1")
            assert taken is (here.form is Form.COMPATIBLE), subject
        await ann.tell("local.bo6", "real")
        assert await texts(bob, 1) == ["real"]
        await quiet(bob)
        await settled(here, Durable.dm(SPACE, life("bo6")))
        dropped = sum(bob.metrics.totals("messaging_frames_dropped").values()) + sum(refused(bob).values())
        assert (dropped > 0) is (here.form is Form.COMPATIBLE)


# ---- what the delivery plane refuses ----


@contextlib.asynccontextmanager
async def calling(member: Member) -> AsyncIterator[Caller]:
    made = Caller(member.connection, SPACE, member.lifecycle, member.lifecycle.principal.actor)
    try:
        yield made
    finally:
        await made.close()


@pytest.mark.req("C7-38", "C7-42", "C9-44", "C9-47", "C6-36")
async def test_the_plane_gives_a_caller_what_is_its_own(here: Society) -> None:
    await here.configure("team.mine", delivery_class=DeliveryClass.DURABLE)
    await here.enrol("mal", ("team.>",))
    async with here.plane(), here.peer("ann") as ann, here.peer("bo7") as bob, here.town.member("mal", **TEAM) as mal:
        await bob.join("team.mine")
        await ann.post("general", "not for mal")
        async with calling(mal) as caller:

            async def ask(command: str, **args: JsonValue) -> Any:
                return await caller.call("delivery", command, args, seconds=10)

            for channel in ("general", "secret", ">", "*", "team.>.x"):
                with contextlib.suppress(CallRefused):
                    assert not (await ask("durable-join", channel=channel, joinCursor=0))["durable"], channel
            assert (await ask("list-memberships"))["memberships"] == []
            left = await ask("durable-leave", channel="team.mine", generation=1)
            assert left.get("alreadyLeft"), "the membership is bob's"
            assert bob.joined["team.mine"].durable
            if here.form is Form.MEDIATED:
                await mediated_reads(here, ann, bob, ask)
        await ann.post("team.mine", "still a member")
        assert await texts(bob, 1) == ["still a member"]


async def mediated_reads(here: Society, ann: Peer, bob: Peer, ask: Any) -> None:
    """Fetch, settle and history, with what is another's."""
    await ann.tell("local.bo7", "for bob")
    delivered = await got(bob)
    info = await here.town.consumer(Durable.dm(SPACE, life("bo7")))
    sequence, serial = info["delivered"]["stream_seq"], info["delivered"]["consumer_seq"]
    items = [{"token": f"1.{sequence}.{serial}.1.0", "how": how} for how in ("ack", "term", "nak", "renew", "hold")]
    for more in ({}, {"session": "0" * 32}, {"session": "0" * 32, "end": True}):
        await ask("settle", source="dm", items=items, **more)
    assert (await here.town.consumer(Durable.dm(SPACE, life("bo7"))))["num_ack_pending"] == 1
    assert (await ask("fetch", source="dm", batch=64, waitMs=0))["frames"] == []
    await delivered.handled()
    for args in ({"channel": "general"}, {"channel": "secret"}, {"channel": "team.*"}, {"channel": ">"}):
        with pytest.raises(CallRefused) as caught:
            await ask("read-history", limit=10, **args)
        assert caught.value.code in (Code.PERMISSION_DENIED, Code.BAD_REQUEST)
    with pytest.raises(CallRefused) as caught:
        await ask("fetch", source="role", role="reviewer", batch=1, waitMs=0)
    assert caught.value.code == Code.PERMISSION_DENIED


@pytest.mark.req("C13.3-01", "C13.2-46")
async def test_requests_in_another_s_name_never_reach_the_plane(here: Society) -> None:
    async with here.plane() as plane, raw(here, "mal3") as mal:
        before = dict(plane.totals("endpoint_requests"))
        for command in ("durable-join", "durable-leave", "settle", "fetch", "read-history", "lifecycle-memberships"):
            for tail in (life("ann").dot, f"local.mal3.{uid_of('ann')}"):
                assert not await mal.may_publish(f"{P}.ep.one.delivery.{command}.{tail}.{'n' * 32}"), command
        assert dict(plane.totals("endpoint_requests")) == before


@pytest.mark.req("C13.3-05")
async def test_a_flood_of_requests_is_bounded_and_others_are_served(here: Society) -> None:
    await here.enrol("mal", ("team.>",))
    await here.configure("team.flood", delivery_class=DeliveryClass.DURABLE)
    async with here.plane() as plane, here.town.member("mal", **TEAM) as mal, calling(mal) as caller:
        large = "x" * 900_000

        async def one(number: int) -> str:
            args: dict[str, JsonValue] = {"channel": "team.flood", "generation": number}
            try:
                await caller.call("delivery", "durable-leave", args, seconds=15)
            except CallError as error:
                return str(error.code)
            return "ok"

        flood = asyncio.gather(*(one(number) for number in range(200)))
        subject = f"{P}.ep.one.delivery.durable-join.local.mal.{uid_of('mal')}."
        for number in range(8):
            await mal.connection.send(f"{subject}{number:032x}", large.encode())
        async with here.peer("ann") as ann, here.peer("bo8") as bob:
            assert (await bob.join("team.flood")).durable
            await ann.post("team.flood", "through")
            assert await texts(bob, 1) == ["through"]
        codes = set(await flood)
        assert codes <= {"ok", str(Code.RESOURCE_EXHAUSTED), str(Code.NOT_FOUND)}
        await until(lambda: plane.totals("endpoint_requests").get((str(Code.BAD_REQUEST),), 0) >= 8)


# ---- a writer that is trusted, and wrong ----

JUNK = (b"", b"\xff\xfe", b"null", b"[]", b"{}", b'"x"', b"7", b"[" * 3_000, b'{"id":"\\ud800"}', b'{"v":1,"v":2}')


async def scribble(connection: Connection, target: str) -> None:
    for data in JUNK:
        with contextlib.suppress(ConnectionFault):
            await connection.request(target, data)


@pytest.mark.req("C4-27", "C8-42", "C7-30", "C6-37")
async def test_no_record_whatever_is_in_it_ends_a_loop(here: Society) -> None:
    await here.configure("team.junk", delivery_class=DeliveryClass.DURABLE)
    async with here.plane() as plane, here.peer("ann") as ann, here.peer("bo9", roles=("junk",)) as bob:
        assert (await bob.join("team.junk")).durable
        names = life("bo9").names
        stranger = life("stranger")
        targets = [
            subjects.DINBOX.build(space=SPACE, **names),
            subjects.DLV.build(space=SPACE, **names),
            subjects.SVC.build(space=SPACE, role="junk", owner="local", actor="ann"),
            subjects.INST.build(space=SPACE, to_owner="local", to_actor="bo9", owner="local", actor="ann"),
            subjects.CHAT.build(space=SPACE, owner="local", actor="ann", channel="team.junk"),
        ]
        records = [
            (buckets.ACL, stranger.dot), (buckets.ACL, "x"), (buckets.CHANNELS, "team.other"),
            (buckets.MEMBERS, buckets.member_key("team.junk", stranger)), (buckets.MEMBERS, "x"),
            (buckets.PRESENCE, "local.stranger"), (buckets.PRESENCE, "x.y.z"), (buckets.MEMBERSHIP, "x"),
        ]  # fmt: skip
        targets += [one.everything(SPACE).replace(">", key) for one, key in records]
        async with root(Rig(here.town)) as operator:
            for target in targets:
                await scribble(operator, target)
        await ann.post("team.junk", "after the junk")
        await ann.tell("local.bo9", "direct")
        await ann.ask_role("junk", "work")
        assert sorted(await texts(bob, 3)) == ["after the junk", "direct", "work"]
        await quiet(bob)
        assert {"local.ann", "local.bo9"} <= (await ann.roster()).rows.keys()
        await settled(here, Durable.backstop(SPACE, life("bo9")))
        await settled(here, Durable.dm(SPACE, life("bo9")))
        assert not any(plane.totals("delivery_restarts").values())
