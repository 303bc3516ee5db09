"""Readers of JetStream over killed brokers: nothing missed, nothing left behind."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from sidecar.rails.connection import Connection, Fault, Happening, NoResponders
from sidecar.rails.connection.streams import BoundConsumer, ConsumerGone, ConsumerRefused, OrderedWatch
from sidecar.rails.names import api
from tests.e2e.space_broker import EVENT_SECONDS
from tests.e2e.test_rails_connection import Owner, Room, room

pytestmark = pytest.mark.asyncio


async def ask(connection: Connection, subject: str, body: object = None) -> dict[str, object]:
    data = b"" if body is None else json.dumps(body).encode()
    answer: dict[str, object] = json.loads((await connection.request(subject, data)).data)
    assert "error" not in answer, answer
    return answer


async def consumers(connection: Connection) -> int:
    state = (await ask(connection, api.STREAM_INFO.build(stream="S")))["state"]
    assert isinstance(state, dict)
    return int(state["consumer_count"])


async def prepared(here: Room) -> tuple[Owner, Connection]:
    owner = here.owner()
    connection = await owner.connect(here.broker)
    await ask(connection, api.STREAM_CREATE.build(stream="S"), {"name": "S", "subjects": ["js.>"], "num_replicas": 1})
    return owner, connection


async def stored(connection: Connection, *values: str) -> None:
    for value in values:
        while True:
            try:
                answer = await connection.request("js.a", value.encode())
                break
            except NoResponders:  # a broker that has just started listens before its streams do
                continue
        assert "error" not in json.loads(answer.data)


async def read(reader: BoundConsumer | OrderedWatch, count: int) -> list[str]:
    async with asyncio.timeout(EVENT_SECONDS):
        return [(await reader.next()).data.decode() for _ in range(count)]


@pytest.mark.parametrize("deliver", ["all", "new"])
async def test_a_watch_goes_on_behind_a_killed_broker_and_leaves_nothing(tmp_path: Path, deliver: str) -> None:
    async with room(tmp_path) as here:
        owner, connection = await prepared(here)
        async with connection:
            watch = OrderedWatch(connection, "S", "js.>", lambda n: f"oc_x_{n}", deliver=deliver, heartbeat=0.4)
            first = asyncio.create_task(read(watch, 3))
            while await consumers(connection) == 0:
                pass
            await stored(connection, "1", "2", "3")
            assert await first == ["1", "2", "3"]
            waiting = asyncio.create_task(read(watch, 2))
            here.broker.kill()
            here.broker.start()
            await owner.until(lambda: owner.count(Happening.RESTORED) == 1)
            await stored(connection, "4")
            await stored(connection, "5")
            assert await waiting == ["4", "5"]
            assert Fault.WATCH_SILENT in owner.faults()
            assert await consumers(connection) == 1
            await watch.close()
            assert await consumers(connection) == 0


async def test_a_watch_whose_consumer_was_deleted_begins_anew_where_it_was(tmp_path: Path) -> None:
    async with room(tmp_path) as here:
        owner, connection = await prepared(here)
        async with connection:
            watch = OrderedWatch(connection, "S", "js.>", lambda n: f"oc_x_{n}", deliver="all", heartbeat=0.4)
            await stored(connection, "1")
            assert await read(watch, 1) == ["1"]
            await ask(connection, api.CONSUMER_DELETE.build(stream="S", consumer="oc_x_1"))
            await stored(connection, "2")
            assert await read(watch, 1) == ["2"]
            assert owner.faults() == [Fault.WATCH_SILENT]
            assert await consumers(connection) == 1
            wrong = OrderedWatch(connection, "S", "js.>", lambda n: "oc_x_2", deliver="never", heartbeat=0.4)
            with pytest.raises(ConsumerRefused):
                await read(wrong, 1)
            await watch.close()


async def test_a_bound_durable_goes_on_and_is_never_made(tmp_path: Path) -> None:
    async with room(tmp_path) as here:
        owner, connection = await prepared(here)
        async with connection:
            with pytest.raises(ConsumerGone):
                await read(BoundConsumer(connection, "S", "d"), 1)
            config = {"durable_name": "d", "name": "d", "ack_policy": "explicit"}
            body = {"stream_name": "S", "config": config}
            await ask(connection, api.CONSUMER_CREATE_NAMED.build(stream="S", consumer="d"), body)
            bound = BoundConsumer(connection, "S", "d", batch=2, heartbeat=0.4)
            await stored(connection, "1", "2", "3")
            assert await read(bound, 3) == ["1", "2", "3"]

            async def until_4() -> set[str]:
                seen: set[str] = set()
                while "4" not in seen:  # what was not acked before the kill may come again
                    seen.update(await read(bound, 1))
                return seen

            waiting = asyncio.create_task(until_4())
            here.broker.kill()
            here.broker.start()
            await owner.until(lambda: owner.count(Happening.RESTORED) == 1)
            await stored(connection, "4")
            assert await waiting <= {"1", "2", "3", "4"}
            assert await consumers(connection) == 1
            gone = asyncio.create_task(read(bound, 8))  # more than what may still come again
            await ask(connection, api.CONSUMER_DELETE.build(stream="S", consumer="d"))
            with pytest.raises(ConsumerGone):
                await gone
            await bound.close()


async def test_a_stored_message_that_is_dressed_as_a_status_is_a_message(tmp_path: Path) -> None:
    """Else its author would hold an ack slot of the durable for ever, and have every watch begin anew for ever."""
    async with room(tmp_path) as here:
        owner, connection = await prepared(here)
        async with connection:
            config = {"durable_name": "d", "name": "d", "ack_policy": "explicit"}
            body = {"stream_name": "S", "config": config}
            await ask(connection, api.CONSUMER_CREATE_NAMED.build(stream="S", consumer="d"), body)
            for status in ("100", "409", "503"):
                await connection.request("js.a", b"", headers={"Status": status})
            await stored(connection, "1")
            bound = BoundConsumer(connection, "S", "d", heartbeat=0.4)
            assert await read(bound, 4) == ["", "", "", "1"]
            watch = OrderedWatch(connection, "S", "js.>", lambda n: f"oc_x_{n}", deliver="all", heartbeat=0.4)
            assert await read(watch, 4) == ["", "", "", "1"]
            assert owner.faults() == []
            await bound.close()
            await watch.close()


async def test_a_finished_pull_is_not_taken_for_a_lost_one(tmp_path: Path) -> None:
    """The broker says so of every pull with a bound on bytes. Else each would be followed by two."""
    async with room(tmp_path) as here:
        _, connection = await prepared(here)
        async with connection:
            config = {"durable_name": "d", "name": "d", "ack_policy": "explicit"}
            body = {"stream_name": "S", "config": config}
            await ask(connection, api.CONSUMER_CREATE_NAMED.build(stream="S", consumer="d"), body)
            await stored(connection, *map(str, range(8)))
            bound = BoundConsumer(connection, "S", "d", batch=1, heartbeat=0.4)
            assert await read(bound, 4) == ["0", "1", "2", "3"]
            info = await ask(connection, api.CONSUMER_INFO.build(stream="S", consumer="d"))
            assert (info["num_ack_pending"], info["num_waiting"]) == (4, 0)
            await bound.close()


async def test_what_a_read_puts_into_the_inbox_of_a_watch_is_neither_shown_nor_obeyed(tmp_path: Path) -> None:
    """Whoever may read can name any inbox as the place for the answer: the bytes are somebody's, never the broker's."""
    async with room(tmp_path) as here:
        owner, connection = await prepared(here)
        async with connection:
            body = {"name": "S", "subjects": ["js.>"], "num_replicas": 1, "allow_direct": True}
            await ask(connection, api.STREAM_UPDATE.build(stream="S"), body)
            watch = OrderedWatch(connection, "S", "js.a", lambda n: f"oc_x_{n}", deliver="all", heartbeat=0.4)
            await stored(connection, "1")
            assert await read(watch, 1) == ["1"]
            (inbox,) = [one.subject for one in connection._subscriptions.placed if ".s." in one.subject]
            dressed = {"Status": "100", "Nats-Last-Consumer": "9", "Nats-Consumer-Stalled": "js.said"}
            for subject, data, headers in (("js.word", b"", dressed), ("js.forged", b"forged", {})):
                await connection.request(subject, data, headers=headers)
                asked = json.dumps({"last_by_subj": subject}).encode()
                await connection.publish(api.DIRECT_GET.build(stream="S"), asked, reply=inbox)
            config = {"name": "push", "deliver_subject": inbox, "filter_subject": "js.forged", "ack_policy": "none"}
            pushed = {"stream_name": "S", "config": config}
            create = api.CONSUMER_CREATE_FILTERED.build(stream="S", consumer="push", filter="js.forged")
            await ask(connection, create, pushed)
            async with asyncio.timeout(EVENT_SECONDS):
                while owner.metrics.totals("nats_records_redirected").get((), 0) < 3:
                    await asyncio.gather(asyncio.sleep(0.01), stored(connection, "again"), read(watch, 1))
            state = (await ask(connection, api.STREAM_INFO.build(stream="S"), {"subjects_filter": ">"}))["state"]
            assert isinstance(state, dict)
            assert set(state["subjects"]) == {"js.a", "js.word", "js.forged"}, "no word went where the bait said"
            assert (owner.faults(), await consumers(connection)) == ([], 2)
            await watch.close()
