"""A broker that is killed in the middle of a registration, behind any of its answers: the next run finishes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from nats.aio.client import Client
from nats.aio.subscription import Subscription

from sidecar.app.endpoint_host import Hosted, InstanceSuperseded
from sidecar.app.space_links import SpaceFailed
from sidecar.rails.planes.registration.faults import Unverified
from sidecar.rails.planes.registration.gates import GateState
from sidecar.rails.planes.registration.naming import Place
from tests.e2e.registering import SPACE, Site, echo, site

pytestmark = pytest.mark.asyncio
STRIDE = 6
"""Every answer was tried once; each try waits for a dead broker."""


@contextlib.contextmanager
def killed_behind(here: Site, answers: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The broker is killed when this many answers have come."""
    left = answers
    request, heard = Client.request, Subscription.next_msg

    async def answered(call: Any, *args: Any, **more: Any) -> Any:
        nonlocal left
        answer = await call(*args, **more)
        left -= 1
        if left == 0:
            await asyncio.to_thread(here.broker.kill)
        return answer

    async def requested(self: Client, *args: Any, **more: Any) -> Any:
        return await answered(request, self, *args, **more)

    async def hears(self: Subscription, *args: Any, **more: Any) -> Any:
        return await answered(heard, self, *args, **more)

    with monkeypatch.context() as patched:
        patched.setattr(Client, "request", requested)
        patched.setattr(Subscription, "next_msg", hears)
        yield


async def interrupted(here: Site, place: Place) -> Hosted | None:
    """What a registration comes to; None when it failed as one does whose broker is gone."""
    with contextlib.suppress(SpaceFailed, Unverified):
        return await here.host(echo(place.endpoint), instance=place.instance)
    return None


@pytest.mark.req("C13.1-048", "C13.1-034", "C13.8-11")
async def test_a_takeover_whose_broker_is_killed_anywhere_is_finished_by_the_next_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with site(tmp_path) as here:
        answers, hosted = 1, None
        while hosted is None:
            place = Place(SPACE, f"com.acme.echo{answers}", f"{answers:04x}" * 8)
            before = await here.host(echo(place.endpoint), instance=place.instance)
            await before.minter()
            before.close()
            with killed_behind(here, answers, monkeypatch):
                hosted = await interrupted(here, place)
            assert here.broker.process is not None
            if here.broker.process.poll() is not None:
                await asyncio.to_thread(here.broker.start)
            again = await here.host(echo(place.endpoint), instance=place.instance)
            await again.minter()
            with pytest.raises(InstanceSuperseded):
                await before.minter()
            gate = await here.gate(place.instance, place.endpoint)
            _, revision = await here.record("spec", place.instance, place.endpoint)
            told = (gate.state, gate.process_epoch, gate.registration_revision)
            assert told == (GateState.OPEN, again.identity.epoch, revision)
            assert not (await here.governance(place.endpoint)).holds
            again.close()
            answers += STRIDE
        assert answers > 25
        hosted.close()
