"""Peers of both forms when links break, credentials change, brokers die, and others send what they should not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import orjson
import pytest
import pytest_asyncio

from sidecar.rails.messaging.desk import Via
from sidecar.rails.messaging.durables import Durable
from sidecar.rails.messaging.inbox import Delivered
from sidecar.rails.messaging.membership import State
from sidecar.rails.messaging.peer import Peer
from sidecar.rails.messaging.registry import DeliveryClass
from sidecar.rails.names import api
from sidecar.rails.names.subjects import CHAT
from sidecar.rails.space.holder import Form
from tests.e2e.cable import cable
from tests.e2e.delivery_rig import Rig, root
from tests.e2e.durable_reads import document, life
from tests.e2e.peers import Society, got, quiet, society, text_of, texts, until
from tests.e2e.space_members import SPACE

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=list(Form))
async def here(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Society]:
    async with society(tmp_path_factory.mktemp("faults"), request.param) as made:
        yield made


def counted(peer: Peer, name: str) -> dict[tuple[str, ...], float]:
    return peer.metrics.totals(name)


@pytest.mark.req("C4-26", "C7-25", "C12-12", "C4-18")
async def test_what_an_interruption_kept_away_is_read_again_once(here: Society) -> None:
    await here.configure("team.gap", delivery_class=DeliveryClass.LIVE)
    await here.configure("team.lost", delivery_class=DeliveryClass.LIVE, replay=False)
    async with (
        cable(here.town.broker.port) as line,
        here.plane(),
        here.peer("al1") as alice,
        here.peer("bo1", url=line.url) as bob,
    ):
        assert (await bob.join("team.gap")).state is State.LIVE
        await bob.join("team.lost")
        await alice.post("team.gap", "before")
        assert await texts(bob, 1) == ["before"]
        await line.cut()
        await until(lambda: not bob.connection.linked)
        for number in range(3):
            await alice.post("team.gap", f"meanwhile {number}")
        await alice.post("team.lost", "to nobody")
        line.mend()
        await until(lambda: bob.connection.linked)
        seen: list[Delivered] = [await got(bob) for _ in range(3)]
        assert [text_of(one) for one in seen] == [f"meanwhile {number}" for number in range(3)]
        assert {one.ways for one in seen} == {(Via.HISTORY,)}
        assert all(one.meta.historical for one in seen)
        await alice.post("team.gap", "after")
        assert await texts(bob, 1) == ["after"]
        await quiet(bob)
        assert counted(bob, "messaging_gaps")[("lost",)] >= 1


@pytest.mark.req("C7-18", "C7-36", "C2-12", "C12-13")
async def test_a_channel_that_renewed_credentials_do_not_cover_is_dropped_and_its_membership_closed(
    here: Society,
) -> None:
    await here.configure("team.drop", delivery_class=DeliveryClass.DURABLE, replay=False)
    async with here.plane(), here.peer("al2") as alice:
        await here.enrol("bo2")
        creds = here.creds("bo2", seconds=4)
        async with await Peer.connect([here.town.broker.url], creds, name="bo2") as bob:
            assert (await bob.join("team.drop")).durable
            assert (await bob.join("general")).durable
            here.creds("bo2", readable=("general",))
            await until(lambda: "team.drop" not in bob.standings)
            assert bob.joined.keys() == {"general"}
            await alice.post("team.drop", "not for bob any more")
            await alice.post("general", "still here")
            assert await texts(bob, 1) == ["still here"]
            await quiet(bob)


@pytest.mark.req("C8-60", "C4-24", "C12-03")
async def test_a_message_is_stored_once_whatever_becomes_of_its_acknowledgement(here: Society) -> None:
    async with cable(here.town.broker.port) as line, here.plane(), here.peer("al3", url=line.url) as alice:
        first = await alice.post("team.retry", "x", message_id="retry-1")
        again = await alice.post("team.retry", "x", message_id="retry-1")
        assert (again.sequence, again.duplicate) == (first.sequence, True)
        await line.cut()
        await until(lambda: not alice.connection.linked)
        sending = asyncio.create_task(alice.post("team.retry", "across the cut"))
        line.mend()
        sent = await sending
        assert sent.sequence > first.sequence
        async with here.peer("bo3") as bob:
            await bob.join("team.retry")
            assert await texts(bob, 2) == ["x", "across the cut"]
            await quiet(bob)


@pytest.mark.req("C4-27", "C5-14", "C4-25", "C12-05", "C8-64", "C5-21", "C3-09")
async def test_what_others_forge_is_refused_and_counted_and_the_stream_goes_on(here: Society) -> None:
    await here.configure("team.bad", delivery_class=DeliveryClass.LIVE, replay=False)
    async with here.plane(), here.peer("al4") as alice, here.peer("bo4") as bob:
        await bob.join("team.bad")
        async with here.town.member("mal", allow_publish=("team.>",)) as mallory:
            subject = CHAT.build(space=SPACE, owner="local", actor="mal", channel="team.bad")
            link = mallory.connection
            await link.publish(subject, document("al4", "f1", channel="team.bad"))
            await link.publish(subject, b"{not json")
            await link.publish(subject, orjson.dumps({**orjson.loads(document("mal", "f2")), "id": 5}))
            stored = {"Nats-Stream": "DM_main", "Nats-Subject": "x", "Nats-Sequence": "1"}
            await link.publish(subject, document("mal", "f3", channel="team.bad"), headers=stored)
            await link.publish(subject, document("mal", "f4", "elsewhere", channel="team.other"))
            await link.publish(subject, document("mal", "f5", "good", channel="team.bad"))
        wanted = ["good"] if here.form is Form.MEDIATED else ["elsewhere", "good"]
        seen = [await got(bob) for _ in wanted]
        assert [text_of(one) for one in seen] == wanted
        assert [one.meta.mismatched for one in seen] == [text == "elsewhere" for text in wanted]
        assert {one.meta.target for one in seen} == {"team.bad"}
        refused = {reason for way, reason in counted(bob, "messaging_refused") if way == "live"}
        expected = {"sender-mismatch", "malformed-json", "malformed-envelope", "redirected"}
        assert refused == (expected | {"routing-mismatch"} if here.form is Form.MEDIATED else expected)
        await alice.post("team.bad", "on it goes")
        assert await texts(bob, 1) == ["on it goes"]


@pytest.mark.req("C4-21", "C4-22", "C8-58", "CD-15")
async def test_messages_without_an_id_all_come(here: Society) -> None:
    await here.configure("team.void", delivery_class=DeliveryClass.DURABLE, replay=False)
    async with here.plane(), here.peer("bo5") as bob:
        await bob.join("team.void")
        async with here.town.member("mal", allow_publish=("team.>",)) as mallory:
            subject = CHAT.build(space=SPACE, owner="local", actor="mal", channel="team.void")
            for text in ("first", "second"):
                await mallory.stored(subject, document("mal", "", text, channel="team.void"))
        # Each one live and from the backstop: nothing says that the two are one (C4-23).
        seen = [await got(bob) for _ in range(4)]
        assert sorted(text_of(one) for one in seen) == ["first", "first", "second", "second"]
        assert len({one.key for one in seen}) == 4
        for one in seen:
            await one.handled()
        assert bob.in_flight == ()


@pytest.mark.req("C4-26", "C8-62", "C4-09")
async def test_a_broker_that_is_killed_loses_nothing_that_was_acknowledged(here: Society) -> None:
    await here.configure("team.kill", delivery_class=DeliveryClass.DURABLE)
    async with here.plane(), here.peer("al6") as alice, here.peer("bo6") as bob:
        await bob.join("team.kill")
        await alice.post("team.kill", "before")
        assert await texts(bob, 1) == ["before"]
        sends = [asyncio.create_task(alice.post("team.kill", f"k{number}")) for number in range(8)]
        here.town.broker.kill()
        here.town.broker.start()
        await asyncio.gather(*sends)
        found: set[str] = set()
        while len(found) < 8:
            found.update(await texts(bob, 1))
        assert found == {f"k{number}" for number in range(8)}


@pytest.mark.req("C8-31", "C8-37")
async def test_a_durable_that_an_operator_deleted_is_missed_aloud_and_read_again(here: Society) -> None:
    async with here.plane(), here.peer("al7") as alice, here.peer("bo7") as bob:
        waiting = asyncio.create_task(got(bob))
        await alice.tell("local.bo7", "before")
        await (await waiting).handled()
        durable = Durable.dm(SPACE, life("bo7"))
        async with root(Rig(here.town)) as operator:
            subject = api.CONSUMER_DELETE.build(stream=durable.stream, consumer=durable.consumer)
            await operator.request(subject)
        waiting = asyncio.create_task(got(bob))
        await until(lambda: durable.consumer in bob.source_faults)
        assert counted(bob, "messaging_source_failures")[("dm", "gone")] >= 1
        await here.enrol("bo7")
        await until(lambda: bob.source_faults == {})  # there need not be a copy to see that it is there
        await alice.tell("local.bo7", "after")
        assert text_of(await waiting) == "after"
        assert bob.source_faults == {}
