"""What joining, reading and being mentioned means for peers of both forms."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from sidecar.base.clock import Now, system_now
from sidecar.ops.metrics import Metrics
from sidecar.rails.messaging.desk import Via
from sidecar.rails.messaging.membership import State
from sidecar.rails.messaging.peer import Peer
from sidecar.rails.messaging.registry import DeliveryClass
from sidecar.rails.names import api, streams
from sidecar.rails.names.subjects import CHAT
from sidecar.rails.space.holder import Form
from tests.e2e.peers import Society, got, quiet, society, text_of, texts
from tests.e2e.space_members import SPACE
from tests.e2e.wire_tap import tapped

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=list(Form))
async def here(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Society]:
    async with society(tmp_path_factory.mktemp("channels"), request.param) as made:
        yield made


@pytest.mark.req("C7-20", "C7-21", "C8-25", "C8-26", "C0-06")
async def test_the_frontier_is_read_before_the_subscription_and_there_is_no_consumer(here: Society) -> None:
    async with tapped(here.town.broker.port) as wire, here.plane(), here.peer("ann1", url=wire.url) as ann:
        before = len(wire.seen)
        await ann.join("team.order")
        seen = wire.seen[before:]
        subject = CHAT.filter(space=SPACE, channel="team.order")
        asked = api.STREAM_INFO.build(stream=streams.CHAT.stream(SPACE))
        frontier = asked if here.form is Form.COMPATIBLE else ".read-history."
        places = [at for at, (verb, one) in enumerate(seen) if verb != "SUB" and frontier in one]
        assert places[0] < seen.index(("SUB", subject))
        await quiet(ann, 0.2)
        created = [one for verb, one in wire.seen if "CONSUMER.CREATE" in one and "chathist_" not in one]
        assert created == []


@pytest.mark.req("C4-06", "C7-09", "C7-11", "C12-11")
async def test_the_class_of_a_channel_is_what_the_registry_says_when_it_is_joined(here: Society) -> None:
    async with here.plane(), here.peer("ann2") as ann:
        for wanted, state in ((DeliveryClass.LIVE, State.LIVE), (DeliveryClass.DURABLE, State.DURABLE)):
            await here.configure("team.flip", delivery_class=wanted)
            joined = await ann.join("team.flip")
            assert (joined.state, joined.shortfall) == (state, None)
            assert (await ann.leave("team.flip")).closed


@pytest.mark.req("C4-07", "C7-14", "C7-28", "C7-01", "C7-27")
async def test_live_reaches_who_is_there_and_nobody_later(here: Society) -> None:
    await here.configure("team.x.y", delivery_class=DeliveryClass.LIVE, replay=False)
    async with here.plane(), here.peer("ann3") as ann, here.peer("bo3") as bob:
        await ann.post("team.x.y", "too early")
        assert (await bob.join("team.x.y")).state is State.LIVE
        await ann.post("team.x.y", "in time")
        assert await texts(bob, 1) == ["in time"]
        await quiet(bob)
        # Not replayed, and readable all the same: replay is about noise.
        found = [frame async for frame in await bob.history("team.x.y")]
        assert len(found) == 2


@pytest.mark.req("C4-13", "C4-16", "C4-17", "C8-47")
async def test_a_mention_reaches_a_reader_who_has_not_joined(here: Society) -> None:
    for channel in ("team.call", "team.other"):
        await here.configure(channel, delivery_class=DeliveryClass.LIVE)
    async with here.plane(), here.peer("ann4") as ann, here.peer("bo4") as bob:
        assert bob.joined == {}
        assert "team.>" in bob.readable
        await ann.post("team.call", "nobody in particular")
        await ann.post("team.call", "you there", mentions=["bo4"])
        delivered = await got(bob)
        assert (text_of(delivered), delivered.ways) == ("you there", (Via.BACKSTOP,))
        assert (delivered.meta.kind, delivered.meta.target) == ("channel", "team.call")
        await delivered.handled()
        await quiet(bob)
        await bob.join("team.other")
        assert {name: join.state for name, join in bob.joined.items()} == {"team.other": State.LIVE}
        assert "team.>" in bob.readable


@pytest.mark.req("C7-22", "C7-06")
async def test_a_replay_goes_no_further_back_than_its_window(here: Society) -> None:
    await here.configure("team.window", delivery_class=DeliveryClass.LIVE, replay_window="1h")

    def later() -> Now:
        now = system_now()
        return Now(now.wall + 7_200, now.mono)

    async with here.plane(), here.peer("ann5") as ann:
        await ann.post("team.window", "an hour old, for some")
        async with here.peer("bo5") as bob:
            await bob.join("team.window")
            assert await texts(bob, 1) == ["an hour old, for some"]
        await here.enrol("cy5")
        creds = here.creds("cy5", seconds=86_400)
        async with await Peer.connect([here.town.broker.url], creds, name="cy5", clock=later, metrics=Metrics()) as cy:
            await cy.join("team.window")
            await ann.post("team.window", "now")
            assert await texts(cy, 1) == ["now"]


@pytest.mark.req("C7-22", "C7-25")
async def test_nothing_is_missed_between_the_watermark_and_the_subscription(here: Society) -> None:
    """Posts that come while a peer joins: each one once, whichever way it took."""
    await here.configure("team.busy", delivery_class=DeliveryClass.DURABLE)
    async with here.plane(), here.peer("ann6") as ann, here.peer("bo6") as bob:
        for number in range(20):
            await ann.post("team.busy", f"n{number}")
        joining = asyncio.create_task(bob.join("team.busy"))
        for number in range(20, 40):
            await ann.post("team.busy", f"n{number}")
        assert (await joining).durable
        assert sorted(await texts(bob, 40)) == sorted(f"n{number}" for number in range(40))
        await quiet(bob)
