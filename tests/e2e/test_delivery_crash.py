"""A delivery plane that dies at any step, or whose broker does: nothing is lost, and nothing comes twice.

The ack wait of the durables is short here: what a dead plane had in its hands comes again after it.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from sidecar.rails.names import headers, subjects
from sidecar.rails.planes.delivery import broker
from sidecar.rails.planes.delivery.loop import Point
from sidecar.rails.space.holder import Holder, Profile
from sidecar.rails.space.trust import new_user
from tests.e2e.delivery_rig import Daemon, Rig, rig, store_of
from tests.e2e.durable_reads import life
from tests.e2e.space_broker import EVENT_SECONDS
from tests.e2e.space_members import SPACE, clock

pytestmark = pytest.mark.asyncio(loop_scope="module")

ACK_WAIT_MS = 1_000
POSTS = 40


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def here(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Rig]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(broker, "ACK_WAIT_MS", ACK_WAIT_MS)
        async with rig(tmp_path_factory.mktemp("crash")) as made:
            yield made


class Crashed(Exception):  # noqa: N818 - an event
    """The plane ends here."""


class Crash:
    """Ends a loop at the ``count``-th time that it comes to a point, and lets it do nothing behind that."""

    def __init__(self, point: Point, count: int) -> None:
        self.point, self.left = point, count

    async def at(self, point: Point) -> None:
        if self.left <= 0:
            raise Crashed
        if point is self.point:
            self.left -= 1
            if not self.left:
                raise Crashed


async def members(here: Rig, daemon: Daemon, channel: str, *actors: str) -> None:
    for actor in actors:
        await here.acl(actor, "team.>")
        await daemon.join(actor, channel)


async def posted(here: Rig, channel: str, count: int, begin: int = 0) -> list[str]:
    names = [f"{channel}-{number}" for number in range(begin, begin + count)]
    async with here.author() as alice:
        for name in names:
            await alice.post(channel, name)
    return names


async def check(here: Rig, wanted: list[str], *actors: str) -> None:
    """Each member has each post exactly once, in its store and in the one before it."""
    for actor in actors:
        for template in (subjects.DLV, subjects.DINBOX):
            found = [copy.id for copy in await store_of(here, actor, template)]
            assert sorted(found) == sorted(wanted)


@pytest.mark.req("C4-08", "C8-43", "C8-44", "C8-45", "C8-50")
@pytest.mark.parametrize("loop", ["fanout", "reader"])
@pytest.mark.parametrize("point", list(Point))
async def test_a_plane_that_dies_at_a_step_goes_on_from_there(here: Rig, loop: str, point: Point) -> None:
    channel = f"team.{loop}{point.name.lower()}"
    actors = (f"{loop}{point.name.lower()}1", f"{loop}{point.name.lower()}2")
    crash = Crash(point, 1 if point is Point.PULLED else POSTS // 2)
    async with here.daemon() as daemon:
        await members(here, daemon, channel, *actors)
        await daemon.idle()
    wanted = await posted(here, channel, POSTS)
    at, reader_at = (crash.at, None) if loop == "fanout" else (None, crash.at)
    async with here.daemon(at=at, reader_at=reader_at) as dying:
        with pytest.raises(Crashed):
            async with asyncio.timeout(EVENT_SECONDS):
                await dying.task
    async with here.daemon() as daemon:
        await daemon.idle()
        assert daemon.count("delivery_dropped") == {}
    await check(here, wanted, *actors)


@pytest.mark.req("C4-08", "C8-44")
async def test_a_plane_that_is_killed_again_and_again_loses_nothing(here: Rig) -> None:
    async with here.daemon() as daemon:
        await members(here, daemon, "team.kill", "kill1", "kill2", "kill3")
        await daemon.idle()
    chance = random.Random(11)
    wanted: list[str] = []
    for _ in range(4):
        child = started(here)
        posting = asyncio.create_task(posted(here, "team.kill", 150, len(wanted)))
        # Somewhere in the middle of its work, which is where the next one begins.
        target = len(await store_of(here, "kill1")) + chance.randrange(1, 100)
        async with asyncio.timeout(20):
            while len(await store_of(here, "kill1")) < target:
                assert child.poll() is None
        child.send_signal(signal.SIGKILL)
        child.wait(20)
        wanted += await posting
    async with here.daemon() as daemon:
        await daemon.idle()
    await check(here, wanted, "kill1", "kill2", "kill3")


def started(here: Rig) -> subprocess.Popen[bytes]:
    """A plane in a process of its own."""
    space, key = here.town.space, new_user(os.urandom)
    holder = Holder(SPACE, life("delivery"), key.public, space.form)
    creds = here.town.broker.creds(space.trust.issue(Profile.DELIVERY, holder, key, clock(), 300), key)
    command = [sys.executable, "-m", "tests.e2e.delivery_child", here.town.broker.url, str(creds), str(ACK_WAIT_MS)]
    return subprocess.Popen(command, cwd=Path(__file__).parents[2])


@pytest.mark.req("C4-08")
async def test_a_broker_that_is_killed_under_load_costs_no_copy(here: Rig) -> None:
    async with here.daemon() as daemon:
        await members(here, daemon, "team.storm", "storm1", "storm2")
        wanted = await posted(here, "team.storm", 300)
        here.town.broker.kill()
        here.town.broker.start()
        wanted += await posted(here, "team.storm", 50, 300)
        await daemon.idle()
        assert not daemon.task.done()
        assert headers.DELIVERY_LIMIT in (await store_of(here, "storm1"))[0].headers
    await check(here, wanted, "storm1", "storm2")
