"""Every copy that is sent is answered for: stored, known already, refused, late, or lost with its link."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from sidecar.base.clock import Now, system_now
from sidecar.rails.names import headers, subjects
from sidecar.rails.planes.delivery.pipeline import LATE_SECONDS, Ending, Pipeline
from sidecar.rails.planes.delivery.plane import Plane
from sidecar.rails.space.holder import Form
from tests.e2e.delivery_rig import Rig, rig, root, until
from tests.e2e.durable_reads import life
from tests.e2e.space_broker import EVENT_SECONDS
from tests.e2e.space_members import SPACE

pytestmark = pytest.mark.asyncio(loop_scope="module")

STORE = subjects.DLV.build(space=SPACE, **life("bob").names)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def here(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Rig]:
    async with rig(tmp_path_factory.mktemp("pipeline")) as made:
        yield made


async def test_each_copy_has_one_end(here: Rig) -> None:
    later = 0.0

    def clock() -> Now:
        now = system_now()
        return Now(now.wall + later, now.mono + later)

    async with root(here) as connection:
        plane = Plane(connection, SPACE, Form.MEDIATED, life("delivery"), clock=clock)
        pipeline = Pipeline(plane, "reader", copies=2)
        await pipeline.open()
        running = asyncio.create_task(pipeline.run())
        ends: list[Ending] = []

        async def sent(subject: str, message_id: str) -> None:
            await pipeline.send(subject, b"{}", {headers.MESSAGE_ID: message_id}, ends.append)

        for wanted in (Ending.STORED, Ending.DUPLICATE):
            await sent(STORE, "m1")
            await until(lambda: ends[-1:] == [wanted], running)  # noqa: B023
        await sent("nobody.listens", "m2")
        await until(lambda: ends[-1] is Ending.REFUSED, running)
        mute = await connection.subscribe("mute.>")
        await sent("mute.a", "m3")
        await sent("mute.b", "m4")
        full = asyncio.create_task(pipeline.room(1))
        await mute.next()
        assert not full.done()
        assert len(pipeline) == 2
        later = LATE_SECONDS + 1.0
        await until(lambda: ends[-2:] == [Ending.TIMEOUT] * 2, running)
        async with asyncio.timeout(EVENT_SECONDS):
            await full
        await sent("mute.c", "m5")
        here.town.broker.kill()
        here.town.broker.start()
        await until(lambda: ends[-1] is Ending.LINK, running)
        await until(lambda: connection.linked, running)
        await sent(STORE, "m6")
        await until(lambda: ends[-1] is Ending.STORED, running)
        assert len(ends) == 7
        assert len(pipeline) == 0
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
