"""A clean stop leaves nobody to evict: the next start pushes no token and asks no server who is connected."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from sidecar.app import endpoint_host
from sidecar.app.endpoint_host import Hosted, InstanceSuperseded, host
from sidecar.app.endpoint_records import MOST_GIVEN_UP, EndpointRecord, EndpointShelf
from sidecar.base.safefile import DirLock
from sidecar.ops.metrics import Metrics
from sidecar.rails.connection import Watch
from sidecar.rails.names import buckets
from sidecar.rails.planes.registration.gates import CredentialRow, RowState
from sidecar.rails.planes.registration.naming import Place
from sidecar.rails.space.retire import subjects_of
from tests.e2e.registering import ME, NAME, OWNER, SPACE, Site, echo, site
from tests.e2e.registry_town import sample, town
from tests.e2e.wire_tap import Tap, tapped

pytestmark = pytest.mark.asyncio


class Watched:
    """A site whose broker is reached through a tap."""

    def __init__(self, here: Site, tap: Tap) -> None:
        self.here, self.tap = here, tap
        self.metrics = Metrics()

    async def start(self) -> tuple[Hosted, list[str]]:
        """One start, and what it published to the system account."""
        before = len(self.tap.published)
        where = (self.here.root, SPACE, self.tap.url, echo())
        hosted = await host(*where, owner=OWNER, instance=ME, metrics=self.metrics)
        return hosted, [subject for subject in self.tap.published[before:] if subject.startswith("$SYS.")]

    async def serve(self, hosted: Hosted) -> None:
        """A process that connects with the credential and ends."""
        async with hosted.connected(self.tap.url, Watch()) as connection:
            assert connection.linked
        hosted.close()

    async def states(self) -> list[RowState]:
        """The ledger rows of the instance."""
        async with self.here.hand() as hand:
            found = await subjects_of(hand.client, buckets.AUTH.stream(SPACE), Place(SPACE, NAME, ME).credentials)
        rows = [CredentialRow.decode((await self.here.kept(buckets.AUTH, one)).value or b"") for one in found]
        return [row.state for row in rows]

    @property
    def given_up(self) -> dict[tuple[str, ...], float]:
        return self.metrics.totals("registration_given_up")


@pytest_asyncio.fixture
async def here(tmp_path: Path) -> AsyncIterator[Watched]:
    async with site(tmp_path) as made, tapped(made.broker.port) as tap:
        yield Watched(made, tap)


@pytest.mark.req("C13.14-01", "C13.1-043")
async def test_behind_a_clean_stop_the_next_start_evicts_nobody(here: Watched) -> None:
    first, asked = await here.start()
    assert not asked
    for epoch in (1, 2, 3):
        before = first
        await here.serve(before)
        assert set(await here.states()) == {RowState.REVOKED}  # and none of them comes back
        with pytest.raises(InstanceSuperseded):
            await before.minter()
        assert not any(here.metrics.totals("registration_fences").values())  # nobody was asked: there is no key
        first, asked = await here.start()
        assert not asked
        assert (first.identity.epoch, first.registered.evicted, first.registered.first) == (epoch, 0, False)
    assert here.given_up == {("kept",): 3}
    assert not any(here.metrics.totals("registration_evictions").values())


@pytest.mark.req("C13.14-01", "C13.1-033", "C13.1-034")
async def test_behind_any_other_end_it_does(here: Watched) -> None:
    killed, _ = await here.start()
    await killed.minter()
    killed.close()  # nobody was told: as for a process that was killed
    second, asked = await here.start()
    assert asked
    assert second.registered.evicted == 1
    # A link that was lost may still hold something that the broker has not seen.
    async with second.connected(here.tap.url, Watch()) as connection:
        link: Any = connection._link
        before = connection.interruptions
        link._client._transport.close()
        await connection.restored(before)
    second.close()
    assert RowState.ACTIVE in await here.states()
    _, asked = await here.start()
    assert asked


async def test_a_link_on_its_way_out_may_still_hold_something(here: Watched) -> None:
    first, _ = await here.start()
    async with first.connected(here.tap.url, Watch()) as connection:
        assert await connection.settled()
        retiring = asyncio.create_task(asyncio.sleep(60))
        connection._retiring.add(retiring)
        assert not await connection.settled()
        connection._retiring.discard(retiring)
        retiring.cancel()
    assert here.given_up == {("kept",): 1}
    assert not await connection.settled()  # it is closed


@pytest.mark.req("C13.1-033")
async def test_what_is_not_written_down_is_evicted(here: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that dies between the mark and the note has destroyed its key, and nobody can know."""
    first, _ = await here.start()

    def full(shelf: EndpointShelf, record: EndpointRecord, lock: DirLock) -> EndpointRecord:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(EndpointShelf, "write", full)
        await here.serve(first)
    assert await here.states() == [RowState.REVOKED]
    assert here.given_up == {("failed",): 1}
    second, asked = await here.start()
    assert asked
    assert second.registered.evicted == 1


async def test_a_stop_waits_for_nobody_who_takes_over(here: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint_host, "GIVE_UP_SECONDS", 0.05)
    first, _ = await here.start()
    with DirLock(EndpointShelf(here.here.root, SPACE, NAME, ME).directory):
        await here.serve(first)
    assert here.given_up == {("failed",): 1}
    assert (await here.start())[1]


async def test_a_key_is_remembered_for_as_long_as_its_token_could_live_and_no_longer() -> None:
    record = EndpointRecord(NAME, ME, OWNER, "f" * 32)
    for number in range(MOST_GIVEN_UP + 5):
        record = record.gave_up(f"U{number}", 1000 + number, 10)
    assert len(record.given_up) == MOST_GIVEN_UP
    assert f"U{MOST_GIVEN_UP + 4}" in record.given_up
    assert EndpointRecord.of(record.value()) == record
    assert set(record.gave_up("U", 5000, 4000).given_up) == {"U"}
    old = record.value()
    del old["givenUp"]  # as earlier releases wrote it
    assert EndpointRecord.of(old).given_up == {}
    with pytest.raises(TypeError):
        EndpointRecord.of({**record.value(), "givenUp": {"U": -1}})


async def test_an_instance_and_the_registry_give_up_what_they_had(tmp_path: Path) -> None:
    async with town(tmp_path) as made, tapped(made.site.broker.port) as tap:
        made.site.where = replace(made.site.where, url=tap.url)
        for _ in range(2):
            async with made.registry(), made.site.serve(sample(), ME):
                pass
        assert not [subject for subject in tap.published if subject.startswith("$SYS.")]
        assert made.site.metrics.totals("registration_given_up") == {("kept",): 2}
        assert made.metrics.totals("registration_given_up") == {("kept",): 2}
