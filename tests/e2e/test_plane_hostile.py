"""A hostile member of a compatible space has stored bytes put into the buckets that the delivery plane decides by."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from sidecar.rails.names import api, buckets
from sidecar.rails.space.holder import Form
from tests.e2e.delivery_rig import Rig, rig, store_of
from tests.e2e.durable_reads import Member, life
from tests.e2e.space_members import SPACE

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def here(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Rig]:
    async with rig(tmp_path_factory.mktemp("plane"), Form.COMPATIBLE) as made:
        yield made


async def redirect(eve: Member, target: str) -> None:
    """Her own presence record, as the answer to a Direct Get, on a subject that she may not publish on."""
    own = buckets.PRESENCE.subject(SPACE, buckets.PRESENCE_KEY, owner="local", actor="eve")
    await eve.stored(own, b"{}")
    subject = api.DIRECT_GET.build(stream=buckets.PRESENCE.stream(SPACE))
    await eve.connection.publish(subject, json.dumps({"last_by_subj": own}).encode(), reply=target)


@pytest.mark.req("C13.3-02", "C7-30")
async def test_no_redirected_record_holds_up_the_plane(here: Rig) -> None:
    await here.acl("ann", "team.>")
    keys = (
        buckets.MEMBERS.everything(SPACE).replace(">", buckets.member_key("team.x", life("bob"))),
        buckets.ACL.everything(SPACE).replace(">", life("bob").dot),
        buckets.CHANNELS.everything(SPACE).replace(">", "elsewhere"),
    )
    async with here.daemon() as daemon, here.town.member("eve") as eve, here.author("sam") as sam:
        await daemon.join("ann", "team.a")
        for key in keys:
            await redirect(eve, key)
        await sam.post("team.a", "real")
        await daemon.idle()
        assert [one.id for one in await store_of(here, "ann")] == ["real"]
