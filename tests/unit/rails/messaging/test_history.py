"""Reads of history through the delivery plane: bounded beside each other, and judged page by page."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from sidecar.rails.messaging.history import READS_AT_ONCE, MediatedHistory
from sidecar.rails.messaging.identity import Identity
from sidecar.rails.names import Lifecycle, Principal
from sidecar.rails.space.holder import Form

pytestmark = pytest.mark.asyncio

BOB = Identity("main", Form.MEDIATED, Lifecycle(Principal("local", "bob"), "b" * 26), "U", (), (">",), (), 2**31)


class Plane:
    """Counts the calls that it works on."""

    def __init__(self) -> None:
        self.now = self.most = 0

    async def call(self, endpoint: str, command: str, args: Any = None, *, seconds: float = 5.0) -> Any:
        self.now += 1
        self.most = max(self.most, self.now)
        for _ in range(3):
            await asyncio.sleep(0)
        self.now -= 1
        return {"frames": [], "frontier": 7, "complete": True}


async def test_a_thousand_channels_ask_for_no_more_than_the_plane_works_on() -> None:
    """What is beyond it is refused, and all channels would try again at the same moment, a few seconds later."""
    plane = Plane()
    history = MediatedHistory(plane, BOB)

    async def read(number: int) -> list[Any]:
        return [frame async for frame in history.read(f"x{number}", up_to=7)]

    found = await asyncio.gather(*map(read, range(1_000)))
    assert (found.count([]), plane.most) == (1_000, READS_AT_ONCE)
