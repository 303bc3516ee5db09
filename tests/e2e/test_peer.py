"""Peers of both forms at a real broker with real credentials, and the whole delivery plane beside them."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from sidecar.rails.messaging.membership import State
from sidecar.rails.messaging.registry import DeliveryClass
from sidecar.rails.space.holder import Form
from tests.e2e.peers import Society, got, quiet, society, text_of

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=list(Form))
async def here(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Society]:
    async with society(tmp_path_factory.mktemp("peers"), request.param) as made:
        yield made


@pytest.mark.req("C12-25", "C12-26", "C4-02", "C8-60", "C8-61", "C5-01", "C5-02", "C5-04", "C12-03")
async def test_two_peers_talk_on_a_channel(here: Society) -> None:
    await here.configure("team.backend", delivery_class=DeliveryClass.DURABLE)
    async with here.plane(), here.peer("alice") as alice, here.peer("bob") as bob:
        joined = await bob.join("team.backend")
        assert (joined.state, joined.shortfall) == (State.DURABLE, None)
        sent = await alice.post("team.backend", "Can you review this?", mentions=["Bob"], context_id="ctx-1")
        assert sent.sequence > 0
        assert not sent.duplicate
        delivered = await got(bob)
        assert (delivered.meta.kind, delivered.meta.target, delivered.meta.sender) == (
            "channel",
            "team.backend",
            "local.alice",
        )
        assert delivered.message.id == sent.id
        assert delivered.message.mentions == ("bob",)
        assert delivered.message.context_id == "ctx-1"
        assert text_of(delivered) == "Can you review this?"
        await delivered.handled()
        await quiet(bob)
