"""Roster and registry of whoever may only watch: each read is whole, and says so when it is not."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from sidecar.base.clock import system_now
from sidecar.ops.metrics import Metrics
from sidecar.rails.messaging.reads import Reading
from sidecar.rails.messaging.reads_watched import WatchedReads
from sidecar.rails.messaging.registry import DeliveryClass, RegistryUnreadable
from sidecar.rails.messaging.roster import RosterUnreadable
from sidecar.rails.space.holder import Form, Profile
from tests.e2e.peers import Society, society
from tests.e2e.space_members import SPACE

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=list(Form))
async def here(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Society]:
    async with society(tmp_path_factory.mktemp("watched"), request.param) as made:
        yield made


@pytest.mark.req("C6-44", "C6-47")
@pytest.mark.parametrize("profile", [Profile.OBSERVER, Profile.OPERATOR])
async def test_a_watcher_reads_roster_and_registry_whole(here: Society, profile: Profile) -> None:
    async with here.town.member(profile.value, profile) as member:
        reads = WatchedReads(member.connection, SPACE, Reading(system_now, Metrics()), entropy=os.urandom)
        await here.configure(f"team.{profile}", delivery_class=DeliveryClass.LIVE)
        registry = await reads.registry()
        assert registry.effective(f"team.{profile}").delivery_class is DeliveryClass.LIVE
        async with here.peer("ann"), here.peer("bob"):
            roster = await reads.roster()
            assert {row.presence.card.name for row in roster.live} == {"ann", "bob"}
        assert {row.presence.card.name for row in (await reads.roster()).live} == set()
    with pytest.raises(RosterUnreadable):
        await reads.roster()
    with pytest.raises(RegistryUnreadable):
        await reads.registry()


async def test_nothing_is_there_before_anybody_was(tmp_path_factory: pytest.TempPathFactory) -> None:
    async with (
        society(tmp_path_factory.mktemp("empty"), Form.MEDIATED) as empty,
        empty.town.member("observer", Profile.OBSERVER) as member,
    ):
        reads = WatchedReads(member.connection, SPACE, Reading(system_now, Metrics()), entropy=os.urandom)
        assert len(await reads.roster()) == 0
        assert dict((await reads.registry()).channels) == {}
