"""What a tool needs that acts for a member beside the member's own process, in both forms of a space."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from sidecar.rails.connection.policy import State
from sidecar.rails.messaging.channel import NO_PAST, Past
from sidecar.rails.messaging.desk import Via
from sidecar.rails.messaging.durables import From
from sidecar.rails.space.holder import Form
from tests.e2e.peers import Society, got, quiet, society, text_of, texts

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=list(Form))
async def here(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Society]:
    async with society(tmp_path_factory.mktemp("tools"), request.param) as made:
        yield made


@pytest.mark.req("C7-27")
async def test_a_join_brings_the_past_that_was_asked_for(here: Society) -> None:
    await here.configure("team.past", replay=False)
    async with here.plane(), here.peer("ann") as ann:
        await ann.post("team.past", "first")
        since = int(time.time() * 1000) + 1
        while time.time() * 1000 <= since:  # noqa: ASYNC110 - a stored message has whole milliseconds
            await asyncio.sleep(0.001)
        await ann.post("team.past", "second")
        for number, (past, expected) in enumerate(
            (
                (None, []),
                (NO_PAST, []),
                (Past(), ["first", "second", "live 0", "live 1"]),
                (Past(since), ["second", "live 0", "live 1", "live 2"]),
            )
        ):
            async with here.peer(f"late{number}") as late:
                await late.join("team.past", past)
                await ann.post("team.past", f"live {number}")
                assert await texts(late, len(expected) + 1) == [*expected, f"live {number}"]
                await quiet(late, 0.2)


async def test_what_a_tool_does_not_read_stays_for_the_next(here: Society) -> None:
    async with here.plane(), here.peer("ann") as ann:
        async with here.peer("bob", sources={From.BACKSTOP}) as bob:
            assert (await bob.join("team.parts")).durable
            await ann.tell(bob.identity.principal, "direct")
            await ann.post("team.parts", "posted")
            delivered = await got(bob)
            assert text_of(delivered) == "posted"
            await delivered.handled()
            await quiet(bob, 0.3)
        async with here.peer("bob") as bob:
            delivered = await got(bob)
            assert (text_of(delivered), delivered.ways) == ("direct", (Via.DURABLE,))
            await delivered.handled()


async def test_who_is_not_present_is_not_in_the_roster(here: Society) -> None:
    async with here.plane(), here.peer("ann") as ann, here.peer("tool", present=False) as tool:
        assert (await ann.roster()).get(tool.identity.principal) is None
        await tool.post("general", "said by a tool")


async def test_the_memberships_of_earlier_processes_are_told(here: Society) -> None:
    async with here.plane():
        async with here.peer("cat") as cat:
            assert await cat.memberships() == {}
            assert (await cat.join("team.kept")).durable
        async with here.peer("cat") as cat:
            assert await cat.memberships() == {"team.kept": True}
            await cat.leave("team.kept")
            assert await cat.memberships() == {}


async def test_an_end_that_is_cancelled_is_an_end(here: Society) -> None:
    """Else the member's heartbeat goes on, and the roster shows one that reads nothing."""
    async with here.plane(), here.peer("ann") as ann, here.peer("gus") as gus:
        await ann.tell(gus.identity.principal, "not handled")
        await got(gus)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3):
                await gus.close()
        assert gus.connection.state is State.CLOSED
        row = (await ann.roster()).get(gus.identity.principal)
        assert row is not None
        assert not row.live
