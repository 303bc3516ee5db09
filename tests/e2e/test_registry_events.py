"""Where the events of a topic end, and from where on they are stored: what a watch begins with, and finds gaps by."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from sidecar.rails.names import api, planes, streams
from tests.e2e.plain_broker import plain_broker
from tests.e2e.registry_scene import ALICE, INSTANCE, cluster, scene

pytestmark = pytest.mark.asyncio(loop_scope="function")
SAMPLE, TOPIC = "dev.sample", "ev.dev_sample.counted"


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    with plain_broker(tmp_path_factory.mktemp("registry_events")) as port:
        yield port


@pytest.mark.req("C13.8-42", "C13.5-07")
async def test_a_page_of_events_tells_what_is_not_stored_any_more_and_the_tail_where_they_end(port: int) -> None:
    async with scene(port) as made:
        await made.issue(ALICE, None)
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
