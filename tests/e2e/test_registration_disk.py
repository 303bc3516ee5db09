"""A registration on a disk that is full: each write of it fails once, and the next run finishes."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest

from sidecar.app import endpoint_records
from sidecar.app.endpoint_host import InstanceSuperseded, instances
from sidecar.base.safefile import write_private
from sidecar.rails.planes.registration.gates import GateState
from sidecar.rails.planes.registration.naming import Place
from sidecar.rails.space import trust
from tests.e2e.registering import SPACE, Site, echo, site

pytestmark = pytest.mark.asyncio


class Disk:
    """Full at the write of this number, counted from 0; whole again after it."""

    def __init__(self, full_at: int) -> None:
        self.left = full_at

    def write(self, *args: Any, **more: Any) -> Any:
        self.left -= 1
        if self.left == -1:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write_private(*args, **more)


async def registered_on(here: Site, monkeypatch: pytest.MonkeyPatch, place: Place, full_at: int) -> bool:
    """False when the disk was full."""
    disk = Disk(full_at)
    with monkeypatch.context() as patched:
        for module in (endpoint_records, trust):
            patched.setattr(module, "write_private", disk.write)
        try:
            hosted = await here.host(echo(place.endpoint), instance=place.instance)
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            return False
    hosted.close()
    return True


@pytest.mark.req("C13.1-048", "C13.1-033")
@pytest.mark.parametrize("takeover", [False, True])
async def test_a_registration_on_a_full_disk_is_finished_by_the_next_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, takeover: bool
) -> None:
    async with site(tmp_path) as here:
        full_at, whole = 0, False
        while not whole:
            place = Place(SPACE, f"com.acme.echo{full_at}", f"{full_at:04x}" * 8)
            if takeover:
                before = await here.host(echo(place.endpoint), instance=place.instance)
                await before.minter()
                before.close()
            whole = await registered_on(here, monkeypatch, place, full_at)
            hosted = await here.host(echo(place.endpoint), instance=place.instance)
            await hosted.minter()
            if takeover:
                with pytest.raises(InstanceSuperseded):
                    await before.minter()
            gate = await here.gate(place.instance, place.endpoint)
            _, revision = await here.record("spec", place.instance, place.endpoint)
            told = (gate.state, gate.process_epoch, gate.registration_revision)
            assert told == (GateState.OPEN, hosted.identity.epoch, revision)
            (record,) = (one for one in instances(here.root, SPACE) if one.endpoint == place.endpoint)
            assert (record.registered, record.progress, record.epoch) == (True, None, gate.process_epoch)
            assert not (await here.governance(place.endpoint)).holds
            hosted.close()
            full_at += 1
        assert full_at > (6 if takeover else 4)
