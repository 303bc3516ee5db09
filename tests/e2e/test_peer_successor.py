"""What one process of a member has not handled comes to its next one, however the first one ended (C4-08, C8-62)."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from sidecar.rails.messaging.channel import NO_PAST
from sidecar.rails.messaging.durables import Durable
from sidecar.rails.messaging.registry import DeliveryClass
from sidecar.rails.space.holder import Form
from tests.e2e.durable_reads import life
from tests.e2e.peers import Society, got, quiet, society, text_of, texts
from tests.e2e.space_broker import EVENT_SECONDS
from tests.e2e.space_members import SPACE

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=list(Form))
async def here(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Society]:
    async with society(tmp_path_factory.mktemp("successor"), request.param) as made:
        yield made


@pytest.mark.req("C8-62", "C4-08", "C4-09")
async def test_what_was_not_handled_comes_to_the_next_process(here: Society) -> None:
    await here.enrol("bea")
    async with here.plane(), here.peer("alice") as alice:
        for text in ("one", "two", "three"):
            await alice.tell("local.bea", text)
        async with here.peer("bea") as bea:
            assert text_of(await got(bea)) == "one"
        async with here.peer("bea") as bea:
            assert sorted(await texts(bea, 3)) == ["one", "three", "two"]
        async with here.peer("bea") as bea:
            await quiet(bea)


@pytest.mark.req("C4-19", "C8-62")
async def test_a_post_that_was_handled_live_is_not_shown_to_the_next_process(here: Society) -> None:
    await here.configure("team.done", delivery_class=DeliveryClass.DURABLE)
    async with here.plane(), here.peer("alice") as alice:
        async with here.peer("fay") as fay:
            assert (await fay.join("team.done", NO_PAST)).durable
            reading = asyncio.create_task(got(fay))
            await alice.post("team.done", "seen")
            delivered = await reading
            await delivered.handled()
            await fay.close()
        async with here.peer("fay") as fay:
            await alice.post("team.done", "new")
            assert await texts(fay, 1) == ["new"]
            await quiet(fay)


@pytest.mark.req("C4-19")
async def test_the_end_waits_for_no_copy_that_nobody_makes(here: Society) -> None:
    await here.configure("team.alone", delivery_class=DeliveryClass.DURABLE)
    async with here.peer("alice") as alice, here.peer("gus") as gus:
        async with here.plane():
            assert (await gus.join("team.alone", NO_PAST)).durable
            assert (await alice.join("team.alone", NO_PAST)).durable
        await alice.post("team.alone", "nobody copies this")
        for peer in (alice, gus):
            await (await got(peer)).handled()
        assert await alice.settled(EVENT_SECONDS)  # its own post
        async with asyncio.timeout(EVENT_SECONDS):
            assert not await gus.settled(0.2)
            await gus.close(drain=0.2)


async def child(here: Society, actor: str) -> asyncio.subprocess.Process:
    """A process of a member, which says what it got and handles nothing."""
    await here.enrol(actor)
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.e2e.peer_child", here.town.broker.url, str(here.creds(actor)),
        stdout=asyncio.subprocess.PIPE, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip


async def line(process: asyncio.subprocess.Process) -> str:
    assert process.stdout is not None
    async with asyncio.timeout(EVENT_SECONDS):
        return (await process.stdout.readline()).decode().strip()


async def killed(process: asyncio.subprocess.Process) -> None:
    process.send_signal(signal.SIGKILL)
    await process.wait()


async def pulling(here: Society, actor: str, pulls: int) -> None:
    """Until so many pulls of the member wait at the broker."""
    async with asyncio.timeout(EVENT_SECONDS):
        while (await here.town.consumer(Durable.dm(SPACE, life(actor))))["num_waiting"] < pulls:  # noqa: ASYNC110
            await asyncio.sleep(0.05)


@pytest.mark.req("C4-08", "C8-62")
@pytest.mark.parametrize("here", [Form.MEDIATED], indirect=True)
async def test_a_process_that_was_killed_keeps_no_copy_from_the_next(here: Society) -> None:
    async with here.plane() as metrics, here.peer("alice") as alice:
        process = await child(here, "cid")
        assert await line(process) == "ready"
        await alice.tell("local.cid", "held")
        assert await line(process) == "held"
        await killed(process)
        async with here.peer("cid") as cid:
            assert await texts(cid, 1) == ["held"]
            await quiet(cid)
        assert metrics.totals("delivery_frames_reclaimed")[()] == 1


@pytest.mark.req("C4-08", "C8-62")
@pytest.mark.parametrize("here", [Form.MEDIATED], indirect=True)
async def test_a_poll_of_a_process_that_was_killed_swallows_nothing(here: Society) -> None:
    async with here.plane() as metrics, here.peer("alice") as alice:
        process = await child(here, "dan")
        assert await line(process) == "ready"
        await pulling(here, "dan", 1)
        await killed(process)
        async with here.peer("dan") as dan:
            waiting = asyncio.create_task(got(dan))
            await pulling(here, "dan", 2)
            await alice.tell("local.dan", "new")
            delivered = await waiting
            assert text_of(delivered) == "new"
            await delivered.handled()
            await quiet(dan)
        assert metrics.totals("delivery_frames_superseded")[("dm",)] == 1


@pytest.mark.req("C8-62", "C8-66")
@pytest.mark.parametrize("here", [Form.MEDIATED], indirect=True)
async def test_a_process_that_lives_keeps_what_it_has_beside_a_newer_one(here: Society) -> None:
    async with here.plane() as metrics, here.peer("alice") as alice, here.peer("eva") as first:
        await alice.tell("local.eva", "at work")
        delivered = await got(first)
        async with here.peer("eva") as second:
            await quiet(second, 11.0)
            await alice.tell("local.eva", "for the newer one")
            assert await texts(second, 1) == ["for the newer one"]
        await delivered.handled()
        assert not sum(metrics.totals("delivery_frames_reclaimed").values())
        async with asyncio.timeout(EVENT_SECONDS):  # the word goes out behind the call
            while (await here.town.consumer(Durable.dm(SPACE, life("eva"))))["num_ack_pending"]:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
