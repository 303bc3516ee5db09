"""Rows of the messaging plane that only show at a whole space: one resolution for all, what is advisory, what bounds
what, and that a client's view of itself decides nothing."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio

from sidecar.ops.metrics import Metrics
from sidecar.rails.connection import Connection, Credentials, OpenLogin, PermissionViolation
from sidecar.rails.connection.kv import KeyValue
from sidecar.rails.envelopes.presence import Presence
from sidecar.rails.envelopes.schema import Attention, ChannelMode
from sidecar.rails.messaging.membership import UNAVAILABLE, State
from sidecar.rails.messaging.peer import Peer
from sidecar.rails.messaging.registry import ChannelConfig, DeliveryClass, RegistryWriter
from sidecar.rails.names import acks, buckets, streams, subjects
from sidecar.rails.names.inboxes import INBOX
from sidecar.rails.space.creds import format_creds
from sidecar.rails.space.grants import permissions
from sidecar.rails.space.holder import Form, Profile
from sidecar.rails.space.trust import new_user
from tests.e2e.delivery_rig import Rig, root, store_of
from tests.e2e.durable_reads import QUICK, life
from tests.e2e.peers import SECONDS, Society, got, quiet, society, text_of, texts, until
from tests.e2e.plain_broker import plain_broker
from tests.e2e.space_broker import EVENT_SECONDS
from tests.e2e.space_members import SPACE, clock
from tests.e2e.wire_tap import Tap, tapped

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=list(Form))
async def here(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Society]:
    async with society(tmp_path_factory.mktemp("messaging"), request.param) as made:
        yield made


async def copies(here: Society, actor: str, last: str) -> list[str]:
    """The ids in a member's own store, once the last one is there."""
    async with asyncio.timeout(EVENT_SECONDS):
        while last not in (found := [copy.id for copy in await store_of(Rig(here.town), actor)]):
            pass
        return found


@pytest.mark.req("C7-09", "C7-06", "C7-07", "C7-24")
@pytest.mark.parametrize("wanted", DeliveryClass)
@pytest.mark.parametrize("replay", [True, False])
async def test_one_flip_of_the_defaults_turns_join_history_fan_out_and_membership(
    here: Society, wanted: DeliveryClass, replay: bool
) -> None:
    """Join, history, durable copies and what is listed of memberships hang on one resolution of the same entry."""
    durable = wanted is DeliveryClass.DURABLE
    actor, channel = f"m{wanted[0]}{replay:d}", f"team.m{wanted[0]}{replay:d}"
    async with here.plane(), here.operator() as operator, here.peer("ann") as ann, here.peer(actor) as bob:
        writer = RegistryWriter(operator, SPACE)
        opposite = DeliveryClass.LIVE if durable else DeliveryClass.DURABLE
        await writer.set_defaults(ChannelConfig(delivery_class=opposite, replay=not replay))
        await bob.registry()
        await writer.set_defaults(ChannelConfig(delivery_class=wanted, replay=replay))
        await ann.post(channel, "past")
        joined = await bob.join(channel)
        assert joined.state is (State.DURABLE if durable else State.LIVE)
        assert joined.shortfall is None
        listed = await bob._caller.call("delivery", "list-memberships", {})
        assert isinstance(listed, dict)
        assert [one["channel"] for one in listed["memberships"]] == ([channel] if durable else [])
        posted = await ann.post(channel, "now")
        shown = [await got(bob) for _ in range(1 + replay)]
        assert [(text_of(one), one.meta.historical) for one in shown] == [("past", True), ("now", False)][-1 - replay :]
        for one in shown:
            await one.handled()
        # A membership of a family is there whatever the class is: the fan-out resolves it for each channel below.
        assert (await bob.join(f"{channel}.>")).durable
        below = await ann.post(f"{channel}.below", "below")
        assert await texts(bob, 1) == ["below"]
        # A later post of another, durable channel comes behind it through the same writer.
        await writer.set_channel("team.other", ChannelConfig(delivery_class=DeliveryClass.DURABLE))
        assert (await bob.join("team.other")).durable
        mark = await ann.post("team.other", "mark")
        assert await copies(here, actor, mark.id) == ([posted.id, below.id] if durable else []) + [mark.id]
        await writer.set_defaults(ChannelConfig())


@pytest.mark.req("C6-11", "C6-21")
@pytest.mark.parametrize("attention", [Attention.FOCUS, Attention.DND])
async def test_a_peer_that_wants_no_disturbance_gets_everything(here: Society, attention: Attention) -> None:
    async with here.plane(), here.peer("ann") as ann, here.peer("busy", roles=("reviewer",)) as busy:
        channel = f"team.{attention}"
        await busy.join(channel)
        busy.presence.update(lambda own, now: own.attending(attention).tuned(channel, ChannelMode.MUTED))
        await seen(ann, "local.busy", lambda record: record.attention is attention)
        await ann.tell("busy", "direct")
        await ann.post(channel, "post", mentions=["busy"])
        await ann.ask_role("reviewer", "work")
        assert sorted(await texts(busy, 3)) == ["direct", "post", "work"]


async def seen(peer: Peer, principal: str, met: Callable[[Presence], bool]) -> None:
    """Until a peer's roster shows it."""
    async with asyncio.timeout(EVENT_SECONDS):
        while True:
            row = (await peer.roster()).rows.get(principal)
            if row is not None and met(row.presence):
                return


@pytest.mark.req("C6-14", "C4-15", "C9-12")
async def test_a_lifecycle_that_presence_claims_is_believed_by_nobody(here: Society) -> None:
    """Reads, memberships and mention copies go by the credential and the read-list row, whatever a record says."""
    await here.configure("team.claims", delivery_class=DeliveryClass.LIVE)
    await here.configure("team.rows", delivery_class=DeliveryClass.DURABLE)
    await here.enrol("zed")
    async with here.plane(), here.peer("ann") as ann, here.peer("liar") as liar:
        liar.presence.update(lambda own, now: replace(own, lifecycle_uid=life("zed").uid))
        await seen(ann, "local.liar", lambda record: record.lifecycle_uid == life("zed").uid)
        assert (await liar.join("team.rows")).durable
        async with root(Rig(here.town)) as hand:
            keys = await KeyValue(hand, buckets.MEMBERS, SPACE).read_all()
        assert buckets.member_key("team.rows", life("liar")) in keys
        assert not [key for key in keys if life("zed").uid in key]
        posted = await ann.post("team.claims", "you there", mentions=["liar"])
        assert posted.id in await copies(here, "liar", posted.id)
        assert await store_of(Rig(here.town), "zed") == []
        assert await texts(liar, 1) == ["you there"]


@pytest.mark.req("C8-17", "C4-10")
async def test_copies_outlive_what_the_channel_keeps(here: Society) -> None:
    await here.configure("team.short", delivery_class=DeliveryClass.DURABLE, replay=False)
    chat = streams.CHAT.stream(SPACE)
    await Rig(here.town).configure(chat, max_msgs_per_subject=1)
    async with here.plane(), here.peer("ann") as ann:
        async with here.peer("away") as away:
            assert (await away.join("team.short")).durable
        for number in range(3):
            sent = await ann.post("team.short", f"n{number}")
            await copies(here, "away", sent.id)
        assert len([one async for one in await ann.history("team.short")]) == 1
        async with here.peer("away") as away:
            assert await texts(away, 3) == ["n0", "n1", "n2"]
    await Rig(here.town).configure(chat, max_msgs_per_subject=1000)


@pytest.mark.req("C9-38", "C8-43")
async def test_durable_copies_travel_on_the_member_s_own_consumer(here: Society) -> None:
    """The plane puts no copy into an inbox: it stores it, and the member's own consumer hands it out."""
    await here.configure("team.rail", delivery_class=DeliveryClass.DURABLE)
    async with (
        tapped(here.town.broker.port) as daemon,
        tapped(here.town.broker.port) as member,
        here.plane(url=daemon.url),
        here.peer("ann") as ann,
    ):
        async with here.peer("bea") as bea:
            assert (await bea.join("team.rail")).durable
        sent = await ann.post("team.rail", "while you were away")
        await copies(here, "bea", sent.id)
        async with here.peer("bea", url=member.url) as bea:
            assert await texts(bea, 1) == ["while you were away"]
        own = subjects.DLV.build(space=SPACE, **life("bea").names)
        inbox = INBOX.build(connection=here.key("bea").public)
        assert daemon.published.count(own) == 1
        assert not [one for one in daemon.published if one.startswith(inbox)]
        acked = daemon if here.form is Form.MEDIATED else member
        stem = acks.ack_subject(streams.DLV.stream(SPACE), f"dlv_local-bea-{life('bea').uid}", "1.1.1.1.0")[:-9]
        assert [one for one in acked.published if one.startswith(stem)]


def pulled(wire: Tap) -> set[str]:
    """The consumers that a client has pulled from."""
    return {one.split(".")[-1] for one in wire.published if ".CONSUMER.MSG.NEXT." in one}


@pytest.mark.req("C2-01", "C2-10", "C2-11", "C8-61")
async def test_one_principal_stands_in_all_places_and_the_key_in_the_inbox_alone(here: Society) -> None:
    await here.configure("team.places", delivery_class=DeliveryClass.DURABLE)
    kinds = ("dm", "dlv") if here.form is Form.COMPATIBLE else ()
    wanted = {f"{kind}_local-pat-{life('pat').uid}" for kind in kinds}
    async with tapped(here.town.broker.port) as wire, here.plane(), here.peer("ann"):
        async with here.peer("pat", url=wire.url) as pat:
            await pat.join("team.places")
            await pat.post("team.places", "post")
            await pat.tell("ann", "direct")
            assert await texts(pat, 1) == ["post"]
            await until(lambda: wanted <= pulled(wire))
            card, key = pat.card.id, pat.identity.connection
        said = [body.rpartition(b"\r\n\r\n")[2] for body in wire.bodies]
        documents = [json.loads(body) for body in said if body.startswith(b"{")]
        async with root(Rig(here.town)) as hand:
            members = await KeyValue(hand, buckets.MEMBERS, SPACE).read_all()
    assert card == "local.pat"
    assert {one["card"]["id"] for one in documents if "card" in one} == {card}
    assert {one["from"]["id"] for one in documents if "parts" in one} == {card}
    sent = [one.split(".") for one in wire.published]
    # One publish of each, whoever gets it and how.
    assert [one[3:5] for one in sent if one[2:3] == ["chat"]] == [["local", "pat"]]
    assert [one[5:7] for one in sent if one[2:3] == ["inst"]] == [["local", "pat"]]
    presence = buckets.PRESENCE.subject(SPACE, buckets.PRESENCE_KEY, owner="local", actor="pat")
    assert {one for one in wire.published if one.startswith("$KV.")} == {presence}
    assert buckets.member_key("team.places", life("pat")) in members
    assert pulled(wire) - {f"chathist_local-pat-{life('pat').uid}"} == wanted
    stem = INBOX.build(connection=key)
    assert not [one for one in wire.published if key in one]
    assert all(one.startswith(stem) for one in wire.subscribed if key in one)


@pytest.mark.req("CB-96", "C9-11", "C7-12", "C7-37")
async def test_live_needs_no_host(here: Society) -> None:
    """Neither the delivery plane nor anything else of ours runs."""
    async with here.peer("ann") as ann, here.peer("bea2") as bea:
        joined = await bea.join("team.alone")
        assert joined.state is State.LIVE
        assert joined.shortfall is not None
        assert joined.shortfall.startswith(UNAVAILABLE)
        await ann.post("team.alone", "hello")
        assert text_of(await got(bea)) == "hello"
        await bea.leave("team.alone")
        await ann.post("team.alone", "gone")
        await quiet(bea, 0.3)


@pytest.mark.req("C2-15", "C2-07")
async def test_who_reads_itself_wrongly_is_stopped_by_the_broker(here: Society) -> None:
    """Tags that name somebody else than the rows do: the client speaks as the tags say, and the broker refuses."""
    key = new_user(os.urandom)
    ann = replace(here.holder("ann", ("team.>",), ("team.>",), ()), connection=key.public)
    tags = here.holder("bob", ("team.>",), ("team.>",), ()).tags
    granted = permissions(Profile.AGENT, ann)
    trust = here.town.space.trust

    async def mint() -> Credentials:
        token = trust.mint("local-bob", granted, key, clock(), SECONDS, tags)
        return Credentials(format_creds(token, key), clock() + SECONDS)

    async with tapped(here.town.broker.port) as wire:
        with pytest.raises(PermissionViolation):
            await Peer.connect([wire.url], mint, name="bob", policy=QUICK, metrics=Metrics())
        assert {one.split(".")[-1] for one in wire.published if one.startswith("$KV.")} == {"bob"}
    async with await Connection.open([here.town.broker.url], mint, policy=QUICK) as link:
        for subject in (
            subjects.CHAT.build(space=SPACE, owner="local", actor="bob", channel="team.x"),
            subjects.INST.build(space=SPACE, to_owner="local", to_actor="ann", owner="local", actor="bob"),
        ):
            with pytest.raises(PermissionViolation):
                await link.request(subject, b"{}")


@pytest.mark.req("C2-15", "C10-08")
async def test_a_client_picks_the_nonce_of_its_inbox_before_it_connects(tmp_path: Path) -> None:
    login = OpenLogin("nonce-1234")

    async def mint() -> OpenLogin:
        return login

    with plain_broker(tmp_path) as port:
        async with tapped(port) as wire, await Connection.open([wire.url], mint, policy=QUICK) as link:
            inbox = INBOX.build(connection=login.connection)
            assert link.new_inbox().startswith(f"{inbox}.")
            subscription = await link.subscribe(f"{link.new_inbox()}.*")
            assert all(one.startswith(f"{inbox}.") for one in wire.subscribed)
            await subscription.close()
