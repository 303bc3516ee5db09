"""Watches of event topics and of service records at a real broker, with a registry that the test writes."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from sidecar.rails.endpoint.caller import Caller
from sidecar.rails.endpoint.calls_types import Missed, Recorded
from sidecar.rails.endpoint.codes import CallFailed, Code, Outcome
from sidecar.rails.endpoint.watch_events import EventWatch
from tests.e2e.calling import ECHO, ONE, TWO, Heard, Raw, Registry, calling, raw, registry
from tests.e2e.endpoints import Room, room, soon, until
from tests.e2e.space_members import SPACE

pytestmark = pytest.mark.asyncio
CLUSTER, EVENT = "com.acme.counting", "counted"
TOPIC = f"ev.com_acme_counting.{EVENT}"
GRANT = f"cotal.{SPACE}.epe.com_acme_echo.*.*.{TOPIC}"


class Stream:
    """What is stored of the events, and an instance that publishes them."""

    def __init__(self, one: Raw, lists: Registry) -> None:
        self.one, self.rows, self.page = one, list[dict[str, Any]](), 2
        self.oldest: int | None = None
        self.refuses = ""
        self.asked: list[dict[str, Any]] = []
        lists.answers |= {"events": self.events, "record": lambda heard: heard.no("unavailable")}

    def value(self, data: Any, **more: Any) -> dict[str, Any]:
        return {"v": 1, "topic": TOPIC, "ts": 1000 + len(self.rows), "data": data, **more}

    async def publish(self, data: Any, *, live: bool = True, stored: bool = True, epoch: int = 1, **more: Any) -> None:
        """An event that reaches those who listen, the stream, or both."""
        value = self.value(data, **more)
        if stored:
            sequence = 3 * len(self.rows) + 10
            row = {"sequence": sequence, "instanceId": ONE, "epoch": epoch, "topic": TOPIC, "event": value}
            self.rows.append(row)
        if live:
            subject = f"cotal.{SPACE}.epe.com_acme_echo.{ONE}.{epoch}.{TOPIC}"
            await self.one.connection.publish(subject, json.dumps(value).encode())

    def events(self, heard: Heard) -> Any:
        args = heard.body["args"]
        self.asked.append(args)
        if self.refuses:
            return heard.no(self.refuses)
        if args.get("tail"):
            return heard.ok({"events": [], "next": self.rows[-1]["sequence"] if self.rows else 0})
        rows = [row for row in self.rows if row["sequence"] > args["after"]]
        page = rows[: min(self.page, args["limit"])]
        answer: dict[str, Any] = {"events": page}
        if len(rows) > len(page):
            answer["next"] = page[-1]["sequence"]
        if self.oldest is not None:
            answer["oldest"] = self.oldest
        return heard.ok(answer)


@contextlib.asynccontextmanager
async def scene(here: Room) -> AsyncIterator[tuple[Caller, Stream, Any]]:
    async with (
        raw(here) as one,
        registry(here) as (lists, _),
        calling(here, subscribe=(GRANT,), chance=lambda: 0.01) as (caller, metrics),
    ):
        yield caller, Stream(one, lists), metrics


async def take(watch: AsyncIterator[Any], number: int) -> list[Any]:
    return [await soon(anext(watch)) for _ in range(number)]


def told(found: list[Any]) -> list[tuple[Any, int | None]]:
    return [(one.data, one.sequence) for one in found]


def counted(caller: Caller, after: int | None = None) -> EventWatch:
    return caller.watch_events(ECHO, CLUSTER, EVENT, after)


@pytest.mark.req("C13.5-07", "C13.8-42", "C13.2-59", "C13.3-54")
async def test_what_is_stored_and_what_comes_live_are_one_sequence(tmp_path: Path) -> None:
    async with room(tmp_path) as here, scene(here) as (caller, stream, metrics):
        for number in range(5):
            await stream.publish(number, live=False)
        async with counted(caller, after=10) as watch:
            events = aiter(watch)
            await stream.publish("both", correlation={"traceparent": "00-x", "other": "y"})
            assert told(await take(events, 5)) == [(1, 13), (2, 16), (3, 19), (4, 22), ("both", 25)]
            await stream.publish("live", epoch=2)
            await stream.publish("old", epoch=1)
            newer, older = await take(events, 2)
            assert (newer.data, newer.sequence, newer.stale, newer.epoch) == ("live", None, False, 2)
            assert (older.data, older.stale) == ("old", True)
            assert (newer.instance, newer.topic) == (ONE, TOPIC)
            # A frame that is no event of the topic, and one that is of none of its instances, are not given out.
            root = f"cotal.{SPACE}.epe.com_acme_echo.{ONE}.1.{TOPIC}"
            for wrong in (b"", b"{}", json.dumps(stream.value(1) | {"topic": "ev.x.y"}).encode()):
                await stream.one.connection.publish(root, wrong)
            await stream.publish("end")
            assert told(await take(events, 1)) == [("end", None)]
            assert metrics.totals("endpoint_watch_gaps") == {("invalid",): 3}
            assert watch.after == 25
        with pytest.raises(StopAsyncIteration):
            await soon(anext(events))


@pytest.mark.req("C13.5-07")
async def test_a_watch_from_now_on_gives_nothing_of_before(tmp_path: Path) -> None:
    async with room(tmp_path) as here, scene(here) as (caller, stream, _):
        for number in range(5):
            await stream.publish(number, live=False)
        async with counted(caller) as watch:
            events = aiter(watch)
            first = asyncio.ensure_future(anext(events))
            await until(lambda: len(stream.asked) == 2)
            await stream.publish("now")
            assert (await soon(first)).data == "now"
            assert watch.after == 22
            assert stream.asked[0] == {"endpoint": ECHO, "topic": TOPIC, "tail": True}


@pytest.mark.req("C13.8-42", "C13.5-07")
async def test_what_was_published_while_the_link_was_down_is_read_again(tmp_path: Path) -> None:
    async with room(tmp_path) as here, scene(here) as (caller, stream, _), counted(caller, after=1) as watch:
        events = aiter(watch)
        await stream.publish("before")
        assert [one.data for one in await take(events, 1)] == ["before"]
        waiting = asyncio.ensure_future(anext(events))
        here.broker.kill()
        await until(lambda: not caller._desk.connection.linked)
        await stream.publish("unheard", live=False)
        here.broker.start()
        assert told([await soon(waiting)]) == [("unheard", 13)]
        await until(lambda: stream.one.connection.linked)
        await stream.publish("after")
        assert [one.data for one in await take(events, 1)] == ["after"]


@pytest.mark.req("C13.8-42")
async def test_a_gap_is_said_once_and_closed_when_it_can_be(tmp_path: Path) -> None:
    async with room(tmp_path) as here, scene(here) as (caller, stream, metrics):
        stream.refuses = "permission-denied"
        await stream.publish("stored", live=False)
        async with counted(caller, after=1) as watch:
            events = aiter(watch)
            missed = (await take(events, 1))[0]
            assert isinstance(missed, Missed)
            assert missed.after == 1
            assert "permission-denied" in missed.why
            await stream.publish("live")
            assert [one.data for one in await take(events, 1)] == ["live"]
            waiting = asyncio.ensure_future(anext(events))
            await until(lambda: len(stream.asked) > 4)
            assert not waiting.done()
            stream.refuses = ""
            assert told([await soon(waiting)]) == [("stored", 10)]
            assert metrics.totals("endpoint_watch_gaps") == {("replay",): 1}
        stream.oldest = 40
        await stream.publish("kept", live=False)
        async with counted(caller, after=13) as watch:
            events = aiter(watch)
            gap, kept = await take(events, 2)
            assert isinstance(gap, Missed)
            assert (gap.after, kept.data) == (13, "kept")
            # Read again behind an interruption, the same gap is not said a second time.
            waiting = asyncio.ensure_future(anext(events))
            asked = len(stream.asked)
            here.broker.kill()
            here.broker.start()
            await until(lambda: len(stream.asked) > asked and stream.one.connection.linked)
            stream.oldest = None
            await stream.publish("next", live=False)
            stream.rows[-1]["sequence"] = 50
            here.broker.kill()
            here.broker.start()
            assert told([await soon(waiting)]) == [("next", 50)]


@pytest.mark.req("C13.2-52", "C13.8-50")
async def test_what_a_closed_caller_would_repeat_ends_with_it(tmp_path: Path) -> None:
    async with room(tmp_path) as here, scene(here) as (caller, stream, _):
        stream.refuses = "unavailable"  # such questions are asked again
        async with counted(caller, after=1) as watch:
            events = aiter(watch)
            repeated = asyncio.ensure_future(
                caller.call("registry", "events", {"endpoint": ECHO, "topic": TOPIC}, seconds=3600, repeat=True)
            )
            record = asyncio.ensure_future(anext(aiter(caller.watch_instance(ECHO, ONE))))
            missed = asyncio.ensure_future(anext(events))
            await until(lambda: len(stream.asked) > 4)
            await caller.close()
            for ending in (repeated, record):
                with pytest.raises(CallFailed) as ended:
                    await soon(ending)
                assert ended.value.code == "unavailable"
            with contextlib.suppress(CallFailed):
                await soon(missed)  # the gap, if it was said before
            with pytest.raises((CallFailed, StopAsyncIteration)):
                await soon(anext(events))


@pytest.mark.req("C13.5-07")
async def test_a_topic_that_may_not_be_read_is_refused_by_the_broker(tmp_path: Path) -> None:
    async with room(tmp_path) as here, scene(here) as (caller, _, _):
        with pytest.raises(CallFailed) as error:
            async with caller.watch_events(ECHO, CLUSTER, "other"):
                pass
        assert (error.value.code, error.value.outcome) == (Code.PERMISSION_DENIED, Outcome.NOT_EXECUTED)
        assert "ev.com_acme_counting.other" in error.value.message
        for cluster, event in (("com.acme.*", EVENT), (CLUSTER, ">"), (CLUSTER, "a.b"), ("", EVENT)):
            with pytest.raises(CallFailed) as error:
                caller.watch_events(ECHO, cluster, event)
            assert error.value.code == Code.BAD_REQUEST


class Record:
    """A service record whose halves the test writes."""

    def __init__(self, lists: Registry) -> None:
        self.halves: dict[str, Any] = {}
        self.asked: list[dict[str, Any]] = []
        self.changed = asyncio.Event()
        self.refuses = 0
        lists.answers["record"] = self.answer

    def put(self, half: str, revision: int, **value: Any) -> None:
        self.halves[half] = {"revision": revision, "value": value}
        self.changed.set()

    async def answer(self, heard: Heard) -> Any:
        args = heard.body["args"]
        self.asked.append(args)
        if self.refuses:
            self.refuses -= 1
            return heard.no("unavailable")

        def revisions() -> dict[str, int]:
            return {name: self.halves.get(name, {"revision": 0})["revision"] for name in ("spec", "status")}

        while "after" in args and args["after"] == revisions():
            self.changed.clear()
            await self.changed.wait()
        return heard.ok(dict(self.halves))


@pytest.mark.req("C13.5-07", "C13.8-42")
async def test_a_record_is_given_whole_at_first_and_with_each_change(tmp_path: Path) -> None:
    async with (
        room(tmp_path) as here,
        registry(here) as (lists, _),
        calling(here, chance=lambda: 0.01) as (caller, metrics),
    ):
        record = Record(lists)
        records = aiter(caller.watch_instance(ECHO, TWO))
        assert await soon(anext(records)) == Recorded(None, 0, None, 0)
        waiting = asyncio.ensure_future(anext(records))
        await until(lambda: len(record.asked) == 2)
        record.put("spec", 7, owner="local")
        assert await soon(waiting) == Recorded({"owner": "local"}, 7, None, 0)
        record.put("status", 9, state="ready", observedSpecRevision=7)
        assert (await soon(anext(records))).status == {"state": "ready", "observedSpecRevision": 7}
        assert record.asked[0] == {"endpoint": ECHO, "instanceId": TWO}
        assert record.asked[-1]["after"] == {"spec": 7, "status": 0}

        # The registry is away for a while, and changes meanwhile: the newest is read whole, and said to be so.
        record.refuses = 2
        record.put("spec", 12, owner="other")
        record.put("status", 13, state="exited", observedSpecRevision=12)
        assert await soon(anext(records)) == Recorded(
            {"owner": "other"}, 12, {"state": "exited", "observedSpecRevision": 12}, 13
        )

        # A status of a later spec than was read: read again, and after a bound given out as it is.
        before = len(record.asked)
        record.put("status", 15, state="ready", observedSpecRevision=14)
        torn = await soon(anext(records))
        assert (torn.spec_revision, torn.status_revision, torn.settled) == (12, 15, False)
        assert len(record.asked) == before + 6
        assert all("after" not in args for args in record.asked[before + 1 :])
        waiting = asyncio.ensure_future(anext(records))
        record.put("spec", 14, owner="third")
        whole = await soon(waiting)
        assert (whole.spec, whole.settled) == ({"owner": "third"}, True)
        await records.aclose()  # type: ignore[attr-defined]
        assert metrics.totals("endpoint_watch_gaps") == {}


async def test_a_record_that_may_not_be_read_ends_the_watch(tmp_path: Path) -> None:
    async with room(tmp_path) as here, registry(here) as (lists, _), calling(here) as (caller, _):
        lists.answers["record"] = lambda heard: heard.no("permission-denied")
        with pytest.raises(CallFailed) as error:
            await soon(anext(aiter(caller.watch_instance(ECHO, TWO))))
        assert error.value.code == Code.PERMISSION_DENIED
