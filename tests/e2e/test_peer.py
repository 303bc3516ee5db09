"""Peers of both forms at a real broker with real credentials, and the whole delivery plane beside them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from sidecar.rails.connection import PermissionViolation
from sidecar.rails.envelopes.errors import EnvelopeError
from sidecar.rails.messaging.anycast import State as RequestState
from sidecar.rails.messaging.desk import Via
from sidecar.rails.messaging.durables import Durable
from sidecar.rails.messaging.identity import OtherPrincipal
from sidecar.rails.messaging.membership import LIVE_ONLY, UNCLOSED, State
from sidecar.rails.messaging.peer import Peer
from sidecar.rails.messaging.registry import DeliveryClass
from sidecar.rails.messaging.roster import NoSuchPeer
from sidecar.rails.names import InvalidName, Principal
from sidecar.rails.space.holder import Form
from tests.e2e.durable_reads import life
from tests.e2e.peers import Society, got, quiet, society, text_of, texts, until
from tests.e2e.space_broker import EVENT_SECONDS
from tests.e2e.space_members import SPACE

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=list(Form))
async def here(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Society]:
    async with society(tmp_path_factory.mktemp("peers"), request.param) as made:
        yield made


@pytest.mark.req("C12-25", "C12-26", "C4-02", "C7-16", "C8-60", "C8-61", "C5-01", "C5-02", "C5-04", "C12-03")
async def test_two_peers_talk_on_a_channel(here: Society) -> None:
    await here.configure("team.backend", delivery_class=DeliveryClass.DURABLE)
    async with here.plane(), here.peer("alice") as alice, here.peer("bob") as bob:
        joined = await bob.join("team.backend")
        assert (joined.state, joined.shortfall) == (State.DURABLE, None)
        sent = await alice.post("team.backend", "Can you review this?", mentions=["Bob"], context_id="ctx-1")
        assert sent.sequence > 0
        assert not sent.duplicate
        delivered = await got(bob)
        assert (delivered.meta.kind, delivered.meta.target, delivered.meta.sender) == (
            "channel",
            "team.backend",
            "local.alice",
        )
        assert delivered.message.id == sent.id
        assert delivered.message.mentions == ("bob",)
        assert delivered.message.context_id == "ctx-1"
        assert text_of(delivered) == "Can you review this?"
        await delivered.handled()
        await quiet(bob)


@pytest.mark.req("C4-03", "C4-11", "C4-05", "C12-06", "C4-04", "C4-12", "C8-62", "C8.1-47")
async def test_direct_messages_and_work_for_a_role(here: Society) -> None:
    async with here.plane():
        await here.enrol("bob2")
        async with here.peer("alice") as alice, here.peer("rev", roles=("reviewer",)) as reviewer:
            direct = await alice.tell("local.bob2", "while you were out")
            asked = await alice.ask_role("reviewer", "please review")
            delivered = await got(reviewer)
            assert (delivered.meta.kind, delivered.meta.target) == ("anycast", "reviewer")
            assert delivered.message.id == asked.id
            await delivered.handled()
            status = await alice.anycast_status(asked.sequence, asked.id)
            assert (status.state, status.role) == (RequestState.TAKEN, "reviewer")
            assert status.taker is not None
            assert status.taker.id == "local.rev"
            told = await got(alice)
            assert told.notice is not None
            assert (told.notice.sequence, told.notice.taker.id) == (asked.sequence, "local.rev")
        async with here.peer("bob2") as bob:
            delivered = await got(bob)
            assert (delivered.meta.kind, delivered.meta.sender) == ("dm", "local.alice")
            assert (delivered.message.id, delivered.durable) == (direct.id, True)
            assert bob.in_flight == (delivered.key,)
            await delivered.later()
            again = await got(bob)
            assert text_of(again) == "while you were out"
            assert again.key != delivered.key
            assert bob.in_flight == (again.key,)


@pytest.mark.req("C6-44", "C6-47", "C4-15")
async def test_a_name_is_looked_up_when_it_is_used(here: Society) -> None:
    async with here.plane(), here.peer("alice") as alice, here.peer("bob3", name="Bobby") as bob:
        await alice.tell("Bobby", "by name")
        assert await texts(bob, 1) == ["by name"]
        assert {name: len(who) for name, who in (await alice.mentioned(["bobby", "nobody"])).items()} == {
            "bobby": 1,
            "nobody": 0,
        }
        with pytest.raises(NoSuchPeer):
            await alice.tell("Nobody", "x")


@pytest.mark.req("C4-18", "C4-19", "C7-20", "C7-21", "C7-22", "C7-23", "C7-24", "C7-25", "C12-12", "C8-65")
async def test_past_present_and_backstop_are_one_stream(here: Society) -> None:
    await here.configure("team.one", delivery_class=DeliveryClass.DURABLE)
    async with here.plane(), here.peer("alice") as alice, here.peer("bob4") as bob:
        for number in range(3):
            await alice.post("team.one", f"before {number}")
        assert (await bob.join("team.one")).durable
        await alice.post("team.one", "after")
        seen = [await got(bob) for _ in range(4)]
        assert [text_of(one) for one in seen] == ["before 0", "before 1", "before 2", "after"]
        assert [one.meta.historical for one in seen] == [True, True, True, False]
        for one in seen:
            await one.handled()
        await quiet(bob)
        # The backstop's copy of the last one is acked, though it was never shown (C4-19).
        await eventually_acked(here, "bob4")
        await bob.join("team.one")


async def eventually_acked(here: Society, actor: str) -> None:
    durable = Durable.backstop(SPACE, life(actor))
    async with asyncio.timeout(EVENT_SECONDS):
        while True:
            info = await here.town.consumer(durable)
            if info["ack_floor"]["consumer_seq"] and not (info["num_ack_pending"] or info["num_pending"]):
                return
            await asyncio.sleep(0.05)


@pytest.mark.req("C4-08", "C4-26", "C7-26", "C4-20", "C7-19", "C7-31")
async def test_a_member_that_is_away_gets_what_was_posted_and_nothing_after_it_left(here: Society) -> None:
    await here.configure("team.two", delivery_class=DeliveryClass.DURABLE, replay=False)
    async with here.plane(), here.peer("alice") as alice:
        async with here.peer("bob5") as bob:
            await bob.join("team.two")
        await alice.post("team.two", "missed")
        async with here.peer("bob5") as bob:
            delivered = await got(bob)
            assert (text_of(delivered), delivered.ways) == ("missed", (Via.BACKSTOP,))
            assert delivered.meta.kind == "channel"
            await delivered.handled()
            assert bob.joined == {}
            assert (await bob.leave("team.two")).closed
            assert bob.standings == {}
        await alice.post("team.two", "not for bob")
        async with here.peer("bob5") as bob:
            await quiet(bob)


@pytest.mark.req("C7-12", "C7-17", "C7-37", "C7-44", "C12-13", "C7-36")
async def test_a_join_does_not_wait_for_the_plane_and_says_what_is_missing(here: Society) -> None:
    crew: dict[str, Any] = {"readable": ("crew.>",), "postable": ("crew.>",)}
    await here.configure("crew.three", delivery_class=DeliveryClass.DURABLE)
    async with here.peer("alice", **crew) as alice, here.peer("cy", **crew) as bob:
        joined = await bob.join("crew.three")
        assert joined.state is State.LIVE
        assert joined.shortfall is not None
        assert joined.shortfall.startswith("durable backstop unavailable")
        await alice.post("crew.three", "live without the plane")
        assert await texts(bob, 1) == ["live without the plane"]
        assert (await bob.join("crew.*")).shortfall == LIVE_ONLY
        await bob.leave("crew.*")
        async with here.plane():
            await until(lambda: bob.joined["crew.three"].durable)
            assert bob.joined["crew.three"].shortfall is None
            assert (await bob.join("crew.>")).durable
        left = await bob.leave("crew.three")
        assert not left.closed
        assert bob.standings["crew.three"].shown == UNCLOSED
        await alice.post("crew.three", "still heard below the family")
        assert await texts(bob, 1) == ["still heard below the family"]
        async with here.plane():
            await until(lambda: "crew.three" not in bob.standings)


@pytest.mark.req("C7-13", "C7-18", "C7-15")
async def test_the_broker_decides_who_joins(here: Society) -> None:
    async with here.plane(), here.peer("bob7", readable=("general",)) as bob:
        with pytest.raises(PermissionViolation):
            await bob.join("team.secret")
        assert bob.standings == {}
        assert (await bob.join("general")).state in (State.LIVE, State.DURABLE)
        assert (await bob.leave("general")).closed
        assert bob.joined == {}
        with pytest.raises(InvalidName):
            await bob.join("team.>.x")


@pytest.mark.req("C2-13", "C2-14", "C12-01", "C2-10")
async def test_another_name_than_the_credential_s_never_gets_on_the_wire(here: Society) -> None:
    await here.enrol("eve")
    creds = here.creds("eve")
    for other in ({"principal": Principal("local", "alice")}, {"space": "other"}):
        with pytest.raises(OtherPrincipal):
            await Peer.connect(["nats://127.0.0.1:1"], creds, name="eve", **other)
    with pytest.raises(EnvelopeError):
        await Peer.connect([here.town.broker.url], creds, name="e" * 129)
    async with here.plane(), here.peer("alice") as alice:
        assert (await alice.roster()).get(life("eve").principal) is None
