"""The messaging plane with real credentials while brokers and processes die, disks fill and credentials end."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from sidecar.ops.metrics import Metrics
from sidecar.rails.connection.publishing import StoreRefused
from sidecar.rails.messaging.durables import Durable
from sidecar.rails.messaging.peer import Peer
from sidecar.rails.messaging.registry import DeliveryClass
from sidecar.rails.messaging.sending import Sent, Unconfirmed
from sidecar.rails.names import consumers, streams
from sidecar.rails.space.holder import Form
from tests.e2e.delivery_rig import Rig, root
from tests.e2e.durable_reads import life
from tests.e2e.peers import Society, society, until
from tests.e2e.space_broker import SpaceBroker
from tests.e2e.space_members import SPACE
from tests.e2e.test_delivery_process import Place
from tests.fault.crowd import crowd
from tests.fault.messaging_rig import LONG_SECONDS, Listener, at_baseline, limited
from tests.fault.messaging_rig import consumers as all_consumers

pytestmark = pytest.mark.asyncio(loop_scope="module")
FORMS = pytest.mark.parametrize("form", list(Form))


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=list(Form))
async def here(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Society]:
    async with society(tmp_path_factory.mktemp("faults"), request.param) as made:
        yield made


async def restarted(here: Society, times: int, pause: float) -> None:
    """The broker is killed and started again, while the others work."""
    for _ in range(times):
        await asyncio.sleep(pause)
        here.town.broker.kill()
        await asyncio.to_thread(here.town.broker.start)


async def sent_all(*sending: Any) -> list[str]:
    """The ids of what was acknowledged; what was not is not claimed."""
    found = await asyncio.gather(*sending, return_exceptions=True)
    wrong = [one for one in found if not isinstance(one, Sent | Unconfirmed | StoreRefused)]
    assert not wrong, wrong
    return [one.id for one in found if isinstance(one, Sent)]


# ---- (a) the broker dies under load ----


@pytest.mark.req("C4-08", "C4-26", "C8-45", "C8-60", "C8-62", "C12-12")
async def test_a_broker_that_is_killed_under_load_loses_and_doubles_nothing(here: Society) -> None:
    await here.configure("team.load", delivery_class=DeliveryClass.DURABLE)
    async with contextlib.AsyncExitStack() as stack:
        await stack.enter_async_context(here.plane())
        alice = await stack.enter_async_context(here.peer("alice"))
        bob = await stack.enter_async_context(here.peer("bob"))
        rev = await stack.enter_async_context(here.peer("rev", roles=("load",)))
        assert (await bob.join("team.load")).durable
        heard, worked = Listener(bob), Listener(rev)
        for one in (heard, worked):
            await stack.enter_async_context(one)
        first = await alice.post("team.load", "first")
        work = await alice.ask_role("load", "first work")
        await heard.has(first.id)
        await worked.has(work.id)
        before = await all_consumers(here)

        async def load() -> tuple[list[str], list[str], list[str]]:
            posts, direct, asked = [], [], []
            for number in range(60):
                posts.append(asyncio.create_task(alice.post("team.load", f"p{number}")))
                direct.append(asyncio.create_task(alice.tell("local.bob", f"d{number}")))
                asked.append(asyncio.create_task(alice.ask_role("load", f"r{number}")))
                await asyncio.sleep(0.05)
            return await sent_all(*posts), await sent_all(*direct), await sent_all(*asked)

        loading = asyncio.create_task(load())
        await restarted(here, 2, 0.8)
        posts, direct, asked = await loading
        assert len(posts) + len(direct) + len(asked) > 100
        await heard.has(*posts, *direct)
        await worked.has(*asked)
        assert heard.twice == []
        assert worked.twice == []
        await at_baseline(here, before)
        assert bob.source_faults == {}


# ---- (b) the store is full ----


async def filled(alice: Peer) -> StoreRefused:
    """Post until the broker takes no more."""
    for _ in range(64):
        try:
            await alice.post("general", "x" * 400_000)
        except StoreRefused as error:
            return error
    raise AssertionError("the store has no end")


@FORMS
@pytest.mark.req("C4-08", "C8-45", "C8-60")
async def test_a_full_store_is_told_and_goes_on_when_there_is_room(tmp_path: Path, form: Form) -> None:
    async with limited(tmp_path, form, "6MB") as here, here.plane(), here.peer("alice") as alice:
        await here.configure("team.full", delivery_class=DeliveryClass.DURABLE)
        async with here.peer("bob") as bob, Listener(bob) as heard:
            assert (await bob.join("team.full")).durable
            kept = [(await alice.post("team.full", "small")).id, (await alice.tell("local.bob", "small")).id]
            await heard.has(*kept)
            refusal = await filled(alice)
            assert refusal.code
            with pytest.raises(StoreRefused):
                await alice.tell("local.bob", "y" * 400_000)
            assert alice.metrics.totals("messaging_sent")[("dm", "refused")] == 1
            async with root(Rig(here.town)) as operator:
                subject = f"$JS.API.STREAM.PURGE.{streams.CHAT.stream(SPACE)}"
                filtered = json.dumps({"filter": f"cotal.{SPACE}.chat.*.*.general"}).encode()
                assert json.loads((await operator.request(subject, filtered)).data)["success"]
            again = [(await alice.post("team.full", "room")).id, (await alice.tell("local.bob", "room")).id]
            await heard.has(*again)
            assert heard.twice == []


# ---- (c) an operator deletes consumers ----


@pytest.mark.req("C4-08", "C8-31", "C8-37", "C8-43")
async def test_durables_that_an_operator_deletes_under_traffic_lose_nothing(here: Society) -> None:
    await here.configure("team.gone", delivery_class=DeliveryClass.DURABLE)
    rig = Rig(here.town)
    own = [Durable.dm(SPACE, life("bo2")), Durable.backstop(SPACE, life("bo2"))]
    planes = [
        (streams.CHAT.stream(SPACE), consumers.FANOUT.build()),
        (streams.INBOX.stream(SPACE), consumers.READER.build()),
    ]
    async with here.plane() as plane, here.peer("al2") as alice:
        async with here.peer("bo2") as bob:
            assert (await bob.join("team.gone")).durable
        sent: list[str] = []
        for number, (stream, consumer) in enumerate(planes * 2):
            # Some are copied, some are on their way, when the durable goes.
            sent += await sent_all(*(alice.post("team.gone", f"g{number}.{n}") for n in range(40)))
            await rig.delete_consumer(stream, consumer)
            sent += await sent_all(*(alice.post("team.gone", f"h{number}.{n}") for n in range(40)))
        await until(lambda: sum(plane.totals("delivery_durables_made").values()) >= 4)
        async with here.peer("bo2") as bob, Listener(bob) as heard:
            await heard.has(*sent)
            assert heard.twice == []
            for durable in own:
                await rig.delete_consumer(durable.stream, durable.consumer)
            await until(lambda: bob.source_faults.keys() == {durable.consumer for durable in own})
            lost = bob.metrics.totals("messaging_source_failures")
            assert lost[("dm", "gone")] >= 1
            assert lost[("backstop", "gone")] >= 1
            later = await sent_all(alice.post("team.gone", "later"))
            await here.enrol("bo2")
            later += await sent_all(alice.tell("local.bo2", "later"))
            await heard.has(*later)
            assert heard.twice == []
            assert bob.source_faults == {}


# ---- (e) credentials that end ----


@FORMS
@pytest.mark.req("C2-12", "C12-02", "C4-08")
async def test_credentials_of_ten_seconds_under_traffic(tmp_path: Path, form: Form) -> None:
    async with society(tmp_path, form) as here, here.plane():
        await here.configure("team.short", delivery_class=DeliveryClass.DURABLE)
        for actor in ("ann", "ben"):
            await here.enrol(actor)
        async with contextlib.AsyncExitStack() as stack:
            peers = []
            for actor in ("ann", "ben"):
                creds = here.creds(actor, seconds=10)
                made = await Peer.connect([here.town.broker.url], creds, name=actor, metrics=Metrics())
                peers.append(await stack.enter_async_context(made))
            ann, ben = peers
            assert (await ben.join("team.short")).durable
            heard = await stack.enter_async_context(Listener(ben))
            first = [(await ann.post("team.short", "first")).id, (await ann.tell("local.ben", "first")).id]
            await heard.has(*first)
            before = await all_consumers(here)
            subscribed = len(ben.connection._subscriptions.placed)

            def renewals(peer: Peer) -> float:
                return peer.metrics.totals("nats_links").get(("renewed",), 0)

            sent: list[str] = []
            async with asyncio.timeout(LONG_SECONDS):
                while min(renewals(ann), renewals(ben)) < 3:
                    for actor in ("ann", "ben"):
                        here.creds(actor, seconds=10)
                    for number in range(10):
                        sent += await sent_all(ann.post("team.short", "x"), ann.tell("local.ben", f"{number}"))
                    await asyncio.sleep(0.2)
            await heard.has(*first, *sent)
            assert heard.twice == []
            await at_baseline(here, before)
            assert len(ben.connection._subscriptions.placed) <= subscribed + 1
            assert ben.joined["team.short"].durable


# ---- (d) the delivery process is down ----


@FORMS
@pytest.mark.req("C4-08", "C8-43", "C8-44", "C8-45")
async def test_posts_of_the_time_without_a_delivery_process_arrive_once(tmp_path: Path, form: Form) -> None:
    async with SpaceBroker(tmp_path) as broker:
        place = Place(broker)
        try:
            here = Society(await place.town(form))
            process = await place.started()
            await here.configure("team.down", delivery_class=DeliveryClass.DURABLE)
            await here.enrol("cid")
            async with here.peer("alice") as alice, here.peer("bob") as bob, Listener(bob) as heard:
                assert (await bob.join("team.down")).durable
                first = await alice.post("team.down", "first")
                await heard.has(first.id)
                before = await all_consumers(here)
                under_way = asyncio.gather(*(alice.post("team.down", f"u{n}") for n in range(50)))
                process.program.kill()
                sent = [one.id for one in await under_way]
                await alice.ask_role("nobody", "is served meanwhile")
                async with here.peer("cid") as cid:
                    joined = await cid.join("team.down")
                    assert not joined.durable
                    assert joined.shortfall
                # Away: nothing but the durable copies can bring these.
                await bob.close()
            for start in range(0, 300, 50):
                async with here.peer("alice") as alice:
                    sent += [one.id for one in await asyncio.gather(
                        *(alice.post("team.down", f"d{start + n}") for n in range(50)),
                        *(alice.tell("local.bob", f"t{start + n}") for n in range(5)),
                    )]  # fmt: skip
            await place.started()
            async with here.peer("bob") as bob, Listener(bob) as late:
                await late.has(*(one for one in sent if not heard.shown[one]))
                assert late.twice == []
                assert heard.twice == []
            await at_baseline(here, before)
        finally:
            place.end()


# ---- (f) many watch who is here ----

WATCHERS, BEATING = 300, 12
"""All of them watch, and some say that they are here: in one process more records than that are more than a core
takes in. What presence costs as it is meant to be read, on demand, is measured in tests/bench."""


@pytest.mark.req("C6-30", "C6-34", "C6-48")
async def test_three_hundred_watch_presence_over_the_death_of_the_broker(tmp_path: Path) -> None:
    async with crowd(tmp_path, WATCHERS, BEATING) as room:
        everybody = {f"local.p{number}" for number in range(BEATING)}
        await room.see(everybody)
        assert await room.consumers() == WATCHERS
        room.broker.kill()
        await asyncio.to_thread(room.broker.start)
        await room.steady()
        await room.see(everybody)
        # Each watch is made anew, and none is left behind.
        await room.consumers_are(WATCHERS)
        await room.leave(7)
        await room.see(everybody - {"local.p7"})
