"""Observers and admins at a real broker: history without consumers left behind, and a tap that is not fooled."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from sidecar.ops.metrics import Metrics
from sidecar.rails.connection import (
    Connection,
    Credentials,
    Happening,
    Notice,
    PermissionViolation,
    SubscriptionClosed,
    Watch,
)
from sidecar.rails.connection.streams import OrderedWatch
from sidecar.rails.messaging.readers import HistoryReader, HistoryRefused, HistoryUnreadable, NoFreeName, Tap
from sidecar.rails.names import api, buckets, consumers, streams, subjects
from sidecar.rails.space.claims import Access, Permissions
from sidecar.rails.space.creds import format_creds
from sidecar.rails.space.grants import permissions
from sidecar.rails.space.holder import Form, Holder, Profile
from sidecar.rails.space.trust import new_user
from tests.e2e.durable_reads import soon
from tests.e2e.space_broker import EVENT_SECONDS, SpaceBroker
from tests.e2e.space_dial import QUICK, dialled
from tests.e2e.space_members import SPACE, Space, clock

pytestmark = pytest.mark.asyncio(loop_scope="module")

CHAT = streams.CHAT.stream(SPACE)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def space(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Space]:
    directory: Path = tmp_path_factory.mktemp("readers")
    async with SpaceBroker(directory) as broker:
        made = Space(broker, Form.COMPATIBLE)
        await made.open()
        yield made


def message(sender: str, number: int, **routing: str) -> bytes:
    value: dict[str, Any] = {"id": f"{sender}-{number}", "ts": 1, "space": SPACE, "parts": []}
    return json.dumps({**value, "from": {"id": sender, "name": sender}, **routing}).encode()


async def post(connection: Connection, holder: Holder, channel: str, *numbers: int) -> None:
    principal = holder.lifecycle.principal
    subject = subjects.CHAT.build(space=SPACE, owner=principal.owner, actor=principal.actor, channel=channel)
    for number in numbers:
        answer = await connection.request(subject, message(principal.dot, number, channel=channel))
        assert "error" not in json.loads(answer.data)


async def ask(connection: Connection, subject: str, body: Any = None) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(
        (await connection.request(subject, b"" if body is None else json.dumps(body).encode())).data
    )
    return answer


async def count(connection: Connection, stream: str = CHAT) -> int:
    return int((await ask(connection, api.STREAM_INFO.build(stream=stream)))["state"]["consumer_count"])


async def until(connection: Connection, stream: str, wanted: int) -> None:
    """Each look is a round trip; the broker needs a moment."""
    async with asyncio.timeout(EVENT_SECONDS):
        while await count(connection, stream) != wanted:
            pass


async def read(reader: HistoryReader, channel: str, **more: Any) -> list[str]:
    async with asyncio.timeout(EVENT_SECONDS):
        return [json.loads(frame.data)["id"] async for frame in reader.chat(channel, **more)]


def named(holder: Holder, slot: int) -> str:
    return consumers.HISTORY_READER.build(reader=holder.connection, slot=slot)


async def take_name(connection: Connection, holder: Holder, slot: int, description: str = "mine") -> dict[str, Any]:
    config = {"name": named(holder, slot), "description": description, "ack_policy": "none"}
    subject = api.CONSUMER_CREATE_NAMED.build(stream=CHAT, consumer=named(holder, slot))
    return await ask(connection, subject, {"stream_name": CHAT, "action": "create", "config": config})


@pytest.mark.req("CD-11", "CD-12", "CD-13", "CB-61", "CB-67")
async def test_a_hundred_reads_leave_no_consumer_and_never_need_more_than_the_names(space: Space) -> None:
    async with (
        dialled(space, Profile.AGENT, "ann", allow_publish=("polled",)) as (ann, writer),
        dialled(space, Profile.OBSERVER, "olga") as (olga, holder),
    ):
        await post(ann, writer, "polled", *range(5))
        reader = HistoryReader(olga, SPACE, holder.connection, page=2)
        most = 0
        for _ in range(100):
            assert await read(reader, "polled") == [f"local.ann-{n}" for n in range(5)]
            most = max(most, await count(olga))
        assert most <= 8
        assert await count(olga) == 0


async def test_a_read_begins_and_ends_where_it_is_told(space: Space) -> None:
    async with (
        dialled(space, Profile.AGENT, "bob", allow_publish=("team.>",)) as (bob, writer),
        dialled(space, Profile.OBSERVER, "otto") as (otto, holder),
    ):
        await post(bob, writer, "team.a", 0, 1)
        await post(bob, writer, "team.b", 2, 3)
        reader = HistoryReader(otto, SPACE, holder.connection, page=3)
        frames = [frame async for frame in reader.chat("team.>")]
        assert [json.loads(frame.data)["id"] for frame in frames] == [f"local.bob-{n}" for n in range(4)]
        assert [frame.subject.rpartition(".")[2] for frame in frames] == ["a", "a", "b", "b"]
        assert all(frame.time_ms > 0 for frame in frames)
        assert await read(reader, "team.>", after=frames[1].sequence) == ["local.bob-2", "local.bob-3"]
        assert await read(reader, "team.>", up_to=frames[0].sequence) == ["local.bob-0"]
        assert await read(reader, "team.a", after=frames[1].sequence) == []
        assert await read(reader, "nobody.there") == []


@pytest.mark.req("CD-13", "CB-67")
async def test_a_consumer_that_is_found_under_a_name_is_neither_read_nor_deleted(space: Space) -> None:
    metrics = Metrics()
    async with (
        dialled(space, Profile.AGENT, "carl", allow_publish=("found",)) as (carl, writer),
        dialled(space, Profile.OBSERVER, "oda") as (oda, holder),
    ):
        await post(carl, writer, "found", 0)
        for slot in (0, 2, 3):
            assert "error" not in await take_name(oda, holder, slot)
        reader = HistoryReader(oda, SPACE, holder.connection, metrics=metrics)
        for _ in range(9):
            assert await read(reader, "found") == ["local.carl-0"]
        for slot in (0, 2, 3):
            info = await ask(oda, api.CONSUMER_INFO.build(stream=CHAT, consumer=named(holder, slot)))
            assert info["config"]["description"] == "mine"
            assert info["delivered"]["consumer_seq"] == 0
        assert await count(oda) == 3
        # With every name taken a read says so, and touches none of them.
        for slot in range(8):
            await take_name(oda, holder, slot)
        with pytest.raises(NoFreeName) as none:
            await read(reader, "found")
        assert none.value.seconds > 0
        assert await count(oda) == 8
        for slot in range(8):
            await ask(oda, api.CONSUMER_DELETE.build(stream=CHAT, consumer=named(holder, slot)))
    assert metrics.counter("history_steps", "name_taken")._value.get() >= 3


@pytest.mark.req("CD-13", "CB-67")
async def test_steps_are_taken_one_at_a_time(space: Space) -> None:
    async with (
        dialled(space, Profile.AGENT, "dora", allow_publish=("many",)) as (dora, writer),
        dialled(space, Profile.OBSERVER, "olaf") as (olaf, holder),
    ):
        await post(dora, writer, "many", *range(4))
        creates = await olaf.subscribe(olaf.new_inbox())  # only to have the connection settled
        await creates.close()
        reader = HistoryReader(olaf, SPACE, holder.connection, page=1)
        reads = [asyncio.create_task(read(reader, "many")) for _ in range(6)]
        most = 0
        while not all(one.done() for one in reads):
            most = max(most, await count(olaf))
        assert [one.result() for one in reads] == [[f"local.dora-{n}" for n in range(4)]] * 6
        assert most <= 1


class Cut:
    """A connection whose delete requests get no answer, or that are answered by somebody else."""

    def __init__(self, connection: Connection, answer: bytes | None) -> None:
        self._connection, self._answer = connection, answer
        self.deletes: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    async def request(self, subject: str, data: bytes = b"", **more: Any) -> Any:
        if ".CONSUMER.DELETE." not in subject:
            return await self._connection.request(subject, data, **more)
        self.deletes.append(subject.rpartition("_")[2])
        if self._answer is None:  # the delete has its effect, and nobody learns of it
            await self._connection.request(subject, data, **more)
            raise TimeoutError

        class Answer:
            data = self._answer

        return Answer()


@pytest.mark.req("CD-14", "CB-67")
@pytest.mark.parametrize("answer", [None, b'{"error":{"code":503,"err_code":10008}}'])
async def test_a_name_rests_after_a_delete_whose_outcome_is_not_known(space: Space, answer: bytes | None) -> None:
    now = 1000.0
    async with dialled(space, Profile.OBSERVER, "opal") as (opal, holder):
        cut = Cut(opal, answer)
        reader = HistoryReader(
            cut,  # type: ignore[arg-type]  # a connection that loses answers
            SPACE,
            holder.connection,
            clock=lambda: now,
            threshold=0.5,
        )
        for _ in range(8):
            await read(reader, "quiet")
        assert cut.deletes == [str(n) for n in range(8)]
        with pytest.raises(NoFreeName):
            await read(reader, "quiet")
        assert len(cut.deletes) == 8
        now += 1.0

        await until(opal, CHAT, 0)  # the broker's threshold does what the delete did not
        await read(reader, "quiet")
        assert cut.deletes[8:] == ["0"]


@pytest.mark.req("CD-14")
async def test_a_credential_without_the_rows_fails_its_read_and_says_to_remint(space: Space) -> None:
    key = new_user(os.urandom)
    async with dialled(space, Profile.OBSERVER, "owen") as (_, holder):
        granted = permissions(Profile.OBSERVER, Holder(SPACE, holder.lifecycle, key.public, space.form))
    old = Permissions(
        Access(tuple(row for row in granted.publish.allow if "CONSUMER.DELETE" not in row)), granted.subscribe
    )
    token = space.trust.mint("local-owen", old, key, clock(), 300)

    async def mint() -> Credentials:
        return Credentials(format_creds(token, key), clock() + 300)

    async with await Connection.open([space.broker.url], mint, policy=QUICK) as connection:
        reader = HistoryReader(connection, SPACE, key.public, threshold=0.5)
        with pytest.raises(HistoryRefused, match="mint it again"):
            await read(reader, "quiet")


@pytest.mark.req("CD-11", "CB-68")
async def test_no_other_consumer_can_be_deleted(space: Space) -> None:
    async with (
        dialled(space, Profile.OBSERVER, "oslo") as (oslo, holder),
        dialled(space, Profile.ADMIN, "anna") as (anna, admin),
    ):
        others = [
            (CHAT, named(admin, 0)),
            (CHAT, named(holder, 0)[:-1] + "8"),
            (CHAT, consumers.FANOUT.build()),
            (buckets.PRESENCE.stream(SPACE), consumers.WATCHER.build(watcher="w", serial=1)),
            (streams.DM.stream(SPACE), named(holder, 0)),
        ]
        for stream, consumer in others:
            with pytest.raises(PermissionViolation):
                await oslo.request(api.CONSUMER_DELETE.build(stream=stream, consumer=consumer))
        for connection, mine, own in (
            (oslo, holder, streams.CHAT),
            (anna, admin, streams.CHAT),
            (anna, admin, streams.DM),
        ):
            for slot in range(8):
                answer = await ask(
                    connection, api.CONSUMER_DELETE.build(stream=own.stream(SPACE), consumer=named(mine, slot))
                )
                assert answer["error"]["err_code"] == 10014


@pytest.mark.req("CD-11", "CD-13", "CB-67")
async def test_an_admin_reads_direct_messages_and_an_observer_does_not(space: Space) -> None:
    async with (
        dialled(space, Profile.AGENT, "eve") as (eve, _),
        dialled(space, Profile.ADMIN, "adam") as (adam, admin),
        dialled(space, Profile.OBSERVER, "oren") as (oren, observer),
    ):
        subject = subjects.INST.build(space=SPACE, to_owner="local", to_actor="bob", owner="local", actor="eve")
        await eve.request(subject, message("local.eve", 7, to="local.bob"))
        reader = HistoryReader(adam, SPACE, admin.connection)
        found = [json.loads(frame.data)["id"] async for frame in reader.direct()]
        assert found == ["local.eve-7"]
        assert await count(adam, streams.DM.stream(SPACE)) == 0
        with pytest.raises(HistoryRefused):
            [frame async for frame in HistoryReader(oren, SPACE, observer.connection).direct()]


async def test_a_read_over_a_lost_link_fails_and_the_next_one_succeeds(space: Space) -> None:
    async with (
        dialled(space, Profile.AGENT, "finn", allow_publish=("lost",)) as (finn, writer),
        dialled(space, Profile.OBSERVER, "ossi") as (ossi, holder),
    ):
        await post(finn, writer, "lost", 1)
        reader = HistoryReader(ossi, SPACE, holder.connection)
        space.broker.kill()
        with pytest.raises(HistoryUnreadable):
            await read(reader, "lost")
        space.broker.start()

        async def again() -> list[str]:
            while True:
                with contextlib.suppress(HistoryUnreadable):
                    return await read(reader, "lost")
                await asyncio.sleep(0.05)

        async with asyncio.timeout(EVENT_SECONDS):
            assert await again() == ["local.finn-1"]


@pytest.mark.req("C5-14", "C4-05")
async def test_a_tap_shows_what_is_published_and_refuses_what_pretends_to_be(space: Space) -> None:
    async with (
        dialled(space, Profile.AGENT, "gail", allow_publish=("open",), roles=("reviewer",)) as (gail, _writer),
        dialled(space, Profile.OBSERVER, "odin") as (odin, _),
        dialled(space, Profile.ADMIN, "alma") as (alma, _admin),
    ):
        metrics = Metrics()
        seen = await Tap.open(odin, SPACE, metrics=metrics)
        everything = await Tap.open(alma, SPACE, admin=True)
        chat = subjects.CHAT.build(space=SPACE, owner="local", actor="gail", channel="open")
        inst = subjects.INST.build(space=SPACE, to_owner="local", to_actor="bob", owner="local", actor="gail")
        svc = subjects.SVC.build(space=SPACE, role="reviewer", owner="local", actor="gail")
        await gail.publish(chat, message("local.bob", 0, channel="open"))  # another's name
        await gail.publish(chat, b"{")
        await gail.publish(chat, message("local.gail", 0, channel="open"), headers={"Nats-Sequence": "5"})
        await gail.publish(chat, message("local.gail", 1, channel="open"))
        async with asyncio.timeout(EVENT_SECONDS):
            shown = await seen.next()
            assert (shown.received.message.id, shown.received.meta.kind) == ("local.gail-1", "channel")
            assert not shown.missed
            assert dict(seen.refused) == {"sender-mismatch": 1, "malformed-json": 1, "redirected": 1}
            assert metrics.counter("tap_frames_refused", "redirected")._value.get() == 1
            await gail.publish(inst, message("local.gail", 2, to="local.bob"))
            await gail.publish(svc, message("local.gail", 3, toService="reviewer"))
            kinds = {}
            for _ in range(3):
                found = await everything.next()
                kinds[found.received.message.id] = found.received.meta.kind
            assert kinds == {"local.gail-1": "channel", "local.gail-2": "dm", "local.gail-3": "anycast"}
        # A pull whose answers are aimed at a chat subject: its frames carry an ack subject to reply to.
        config = {"name": "aimed", "ack_policy": "explicit", "filter_subject": chat, "deliver_policy": "last"}
        create = api.CONSUMER_CREATE_FILTERED.build(stream=CHAT, consumer="aimed", filter=chat)
        async with space.member(Profile.DELIVERY, "daemon") as (daemon, _holder):
            reply = await daemon.client.request(create, json.dumps({"stream_name": CHAT, "config": config}).encode())
            assert "error" not in json.loads(reply.data)
            aimed = api.CONSUMER_NEXT.build(stream=CHAT, consumer="aimed")
            coming = asyncio.create_task(seen.next())
            assert await daemon.may_publish(aimed, b'{"batch":1,"no_wait":true}', reply=chat)
            await soon(lambda: seen.refused["redirected"] == 2)  # what the broker sends by itself has no order
            await daemon.client.request(api.CONSUMER_DELETE.build(stream=CHAT, consumer="aimed"), b"")
        await gail.publish(chat, message("local.gail", 9, channel="open"))
        async with asyncio.timeout(EVENT_SECONDS):
            assert (await coming).received.message.id == "local.gail-9"
        assert seen.refused["redirected"] == 2
        waiting = asyncio.create_task(seen.next())
        await asyncio.sleep(0)
        await seen.close()
        with pytest.raises(SubscriptionClosed):
            await waiting
        with pytest.raises(SubscriptionClosed):
            await seen.next()
        await everything.close()
        with pytest.raises(PermissionViolation):
            await Tap.open(odin, SPACE, admin=True)


async def test_a_tap_says_when_something_may_be_missing(space: Space) -> None:
    async with dialled(space, Profile.OBSERVER, "oleg") as (oleg, _):
        tap = await Tap.open(oleg, SPACE)
        space.broker.kill()
        space.broker.start()
        async with dialled(space, Profile.AGENT, "hugo", allow_publish=("gap",)) as (hugo, writer):
            waiting = asyncio.create_task(tap.next())

            async def posted() -> None:
                number = 0
                while not waiting.done():
                    with contextlib.suppress(Exception):
                        await post(hugo, writer, "gap", number)
                    number += 1

            async with asyncio.timeout(EVENT_SECONDS):
                await posted()
                assert (await waiting).missed
                await post(hugo, writer, "gap", 10_000)
                later = await tap.next()
                while later.received.message.id != "local.hugo-10000":
                    later = await tap.next()
                assert not later.missed
        await tap.close()


@pytest.mark.req("C9-15", "CB-68")
async def test_a_refused_delete_of_an_own_watch_is_no_failure(space: Space) -> None:
    told: list[Notice] = []
    async with dialled(space, Profile.AGENT, "iris", watch=Watch(tell=told.append)) as (iris, _):
        presence = buckets.PRESENCE.stream(SPACE)
        watch = OrderedWatch(
            iris,
            presence,
            buckets.PRESENCE.everything(SPACE),
            lambda n: consumers.WATCHER.build(watcher="iris", serial=n),
        )
        waiting = asyncio.create_task(watch.next())
        async with dialled(space, Profile.OBSERVER, "ole") as (ole, _observer):
            await until(ole, presence, 1)
        waiting.cancel()
        await watch.close()
        with pytest.raises(PermissionViolation):
            await iris.request(api.CONSUMER_DELETE.build(stream=presence, consumer="oc_iris_1"))
        assert [notice.happening for notice in told] == [Happening.CONNECTED]
