"""Copies of posts, from the post to the member's own store, with the credentials of a delivery plane."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from sidecar.rails.envelopes.backstop import Why, decode, limit_of
from sidecar.rails.names import headers, subjects
from tests.e2e.delivery_rig import Rig, rig, store_of
from tests.e2e.durable_reads import life
from tests.e2e.space_members import SPACE

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def here(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Rig]:
    async with rig(tmp_path_factory.mktemp("copies")) as made:
        yield made


@pytest.mark.req("C4-08", "C8-40", "C8-43", "C8-54", "C7-16")
async def test_a_member_has_a_copy_of_what_was_posted_while_it_was_away(here: Rig) -> None:
    async with here.daemon() as daemon, here.author() as alice:
        await here.acl("bob", "team.>")
        await daemon.join("bob", "team.a")
        sequence = await alice.post("team.a", "m1")
        await daemon.idle()
        (copy,) = await store_of(here, "bob")
        found = decode(copy.headers, SPACE)
        subject = subjects.CHAT.build(space=SPACE, owner="local", actor="alice", channel="team.a")
        assert (found.subject, found.sequence, found.why) == (subject, sequence, Why.CHANNEL)
        assert copy.headers[headers.MESSAGE_ID] == f"m1:{life('bob').principal.dot}:{life('bob').uid}"
        assert limit_of(copy.headers) == 1000
        assert headers.DELIVERY_LIMIT in copy.headers
