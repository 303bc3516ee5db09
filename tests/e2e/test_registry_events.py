"""Where the events of a topic end, and from where on they are stored: what a watch begins with, and finds gaps by."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from sidecar.rails.names import api, planes, streams
from sidecar.rails.space.ceilings import Rule
from sidecar.rails.space.evidence import AttemptState
from tests.e2e.plain_broker import plain_broker
from tests.e2e.registry_scene import ALICE, EVERYTHING, INSTANCE, NOTHING, SECOND, cluster, scene

pytestmark = pytest.mark.asyncio(loop_scope="function")
SAMPLE, TOPIC = "dev.sample", "ev.dev_sample.counted"


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    with plain_broker(tmp_path_factory.mktemp("registry_events")) as port:
        yield port


@pytest.mark.req("C13.8-42", "C13.5-07")
async def test_a_page_of_events_tells_what_is_not_stored_any_more_and_the_tail_where_they_end(port: int) -> None:
    async with scene(port) as made:
        await made.issue(ALICE, None, hears=EVERYTHING)
        await made.register(SAMPLE, INSTANCE, [cluster("echo")])
        names: dict[str, str | int] = {"space": made.space, "endpoint": "dev_sample", "instance": INSTANCE, "epoch": 3}
        asked = {"endpoint": SAMPLE, "topic": TOPIC}
        assert await made.ask("events", ALICE, {**asked, "tail": True}) == {"events": [], "next": 0}
        own = [await made.put(planes.EVENT.build(**names, topic=TOPIC), {"n": number}) for number in range(3)]
        other = [await made.put(planes.EVENT.build(**names, topic=f"{TOPIC}.x"), {}) for _ in range(2)]
        assert await made.ask("events", ALICE, {**asked, "tail": True}) == {"events": [], "next": own[-1]}
        assert "oldest" not in await made.ask("events", ALICE, dict(asked))
        page = await made.ask("events", ALICE, {**asked, "after": own[0]})
        assert (page["oldest"], len(page["events"])) == (own[1], 2)
        assert "oldest" not in await made.ask("events", ALICE, {**asked, "after": other[-1]})
        purge = api.STREAM_PURGE.build(stream=streams.EPE.stream(made.space))
        await made.connection.request(purge, json.dumps({"seq": other[0]}).encode())
        page = await made.ask("events", ALICE, {**asked, "after": own[0]})
        assert (page["oldest"], page["events"]) == (other[0], [])


@pytest.mark.req("C13.9-049", "C13.7-07", "C13.5-08")
async def test_stored_events_are_read_with_the_grant_that_admits_them_live(port: int) -> None:
    """To hold a command of an endpoint is not to hear its events, and one event is not the next one."""
    async with scene(port) as made:
        await made.register(SAMPLE, INSTANCE, [cluster("echo")])
        root = f"cotal.{made.space}"
        for topic in (TOPIC, "ev.dev_sample.other"):
            for instance in (INSTANCE, SECOND):
                names: dict[str, str | int] = {"endpoint": "dev_sample", "instance": instance, "epoch": 3}
                await made.put(planes.EVENT.build(space=made.space, **names, topic=topic), {"n": 1})
        asked = {"endpoint": SAMPLE, "topic": TOPIC}
        own = f"{root}.epe.dev_sample.*.*.{TOPIC}"
        for publish, hears, found in (
            (None, NOTHING, 0),
            ((), Rule((f"{root}.epe.dev_sample.*.*.ev.dev_sample.other",)), 0),
            ((), Rule((f"{root}.epe.dev_sample.{INSTANCE}.*.{TOPIC}",)), 0),
            ((), Rule((f"{root}.epe.dev_other.*.*.{TOPIC}", f"{root}.epe.dev_sample.*.*.goal.>")), 0),
            ((), Rule(None, (f"{root}.epe.dev_sample.*.*.ev.>",)), 0),
            ((), Rule((own,)), 2),
            ((), Rule((f"{root}.epe.dev_sample.*.*.ev.dev_sample.*",), (f"{own}.>",)), 2),
            (None, EVERYTHING, 2),
        ):
            generation = await made.issue(ALICE, publish, hears=hears)
            answer = await made.ask("events", ALICE, dict(asked), generation)
            assert len(answer["events"]) == found, hears
            tail = await made.ask("events", ALICE, {**asked, "tail": True}, generation)
            assert ("next" in tail) is bool(found)


@pytest.mark.req("C13.9-049")
async def test_on_the_rail_without_a_generation_the_live_grants_of_the_caller_count(port: int) -> None:
    async with scene(port) as made:
        await made.register(SAMPLE, INSTANCE, [cluster("echo")])
        names: dict[str, str | int] = {"endpoint": "dev_sample", "instance": INSTANCE, "epoch": 3}
        await made.put(planes.EVENT.build(space=made.space, **names, topic=TOPIC), {"n": 1})
        asked = {"endpoint": SAMPLE, "topic": TOPIC}
        assert (await made.ask("events", ALICE, dict(asked)))["events"] == []
        await made.issue(ALICE, None)
        assert (await made.ask("events", ALICE, dict(asked)))["events"] == []
        generation = await made.issue(ALICE, (), hears=EVERYTHING)
        assert len((await made.ask("events", ALICE, dict(asked)))["events"]) == 1
        await made.attempt(made.ref(ALICE, generation), AttemptState.REVOKED)
        assert (await made.ask("events", ALICE, dict(asked)))["events"] == []
