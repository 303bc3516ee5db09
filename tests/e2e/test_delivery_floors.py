"""What a lane keeps of its durables: read of the broker, written down, and where their successors begin."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from sidecar.app.delivery_lane import KeptFloors, LaneState, read_state
from sidecar.base.safefile import DirLock, ensure_private_dir
from sidecar.rails.names import consumers
from sidecar.rails.planes.delivery.floors import Floors
from tests.e2e.delivery_rig import CHAT, INBOX, Rig, last_of, rig, root, store_of, until

pytestmark = pytest.mark.asyncio(loop_scope="module")
FANOUT, READER = consumers.FANOUT.build(), consumers.READER.build()
STATE = LaneState("u" * 32, "i" * 32, 1)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def here(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Rig]:
    async with rig(tmp_path_factory.mktemp("floors")) as made:
        yield made


@pytest.mark.req("C4-08")
async def test_what_the_broker_says_is_written_down_and_a_disk_that_refuses_is_told(here: Rig, tmp_path: Path) -> None:
    directory = tmp_path / "lane"
    ensure_private_dir(directory)
    async with here.daemon() as daemon, here.author() as alice:
        await here.acl("b1", "team.>")
        await daemon.join("b1", "team.a")
        await alice.post("team.a", "m1")
        await daemon.idle()
        with DirLock(directory) as lock:
            kept = KeptFloors(STATE, directory, lock)
            await kept.last(daemon.plane)
            async with root(here) as operator:
                ends = {FANOUT: await last_of(operator, CHAT), READER: await last_of(operator, INBOX)}
            assert {name: floor.sequence for name, floor in read_state(directory).floors.items()} == ends
            await kept.last(daemon.plane)
            assert daemon.count("delivery_floors") == {("kept",): 1}, "nothing has changed"
            await here.delete_consumer(INBOX, READER)
            file = directory / "lane.json"
            file.unlink()
            (file / "in the way").mkdir(parents=True)
            await alice.post("team.a", "m2")
            await until(lambda: daemon.count("delivery_durables_made").get(("reader",)) == 2, daemon.task)
            await daemon.idle()
            await kept.last(daemon.plane)
            assert daemon.count("delivery_floors") == {("kept",): 1, ("failed",): 1}
            said = [json.loads(line)["event"] for line in daemon.said.getvalue().splitlines()]
            assert said.count("delivery_floors_unkept") == 1
        assert [copy.id for copy in await store_of(here, "b1")] == ["m1", "m2"]


@pytest.mark.req("C4-08")
async def test_what_an_earlier_run_put_off_is_in_front_of_the_floor(here: Rig) -> None:
    """The next process knows nothing of it, and has settled what came later when the durable goes."""
    floors = Floors()
    async with here.daemon() as daemon, here.author() as alice:
        for actor in ("b2", "b3"):
            await here.acl(actor, "team.>")
        await daemon.join("b2", "team.off")
        await daemon.join("b3", "team.on")
        await here.no_acl("b2")
        await alice.post("team.off", "put-off")
        await until(lambda: daemon.count("delivery_deferred") != {}, daemon.task)
    async with here.daemon(floors=floors) as daemon, here.author() as alice:
        await alice.post("team.on", "later")
        await until(lambda: daemon.count("delivery_handed_off") != {}, daemon.task)
        await floors.look(daemon.plane)
        await here.acl("b2", "team.>")
        await here.delete_consumer(INBOX, READER)
        await until(lambda: daemon.count("delivery_durables_made") != {}, daemon.task)
        await daemon.idle()
        for actor, ids in (("b2", ["put-off"]), ("b3", ["later"])):
            assert [copy.id for copy in await store_of(here, actor)] == ids
