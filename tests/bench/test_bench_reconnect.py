"""A reconnect storm: 200 peers whose broker is killed, and how long it takes until everything is as it was.

Every peer is a whole one: a credential of its own, a heartbeat, a channel, its durables, and it reads. Steady again
means: every peer is connected, a post reaches all of them live, a direct message reaches the last of them, and the
broker has exactly the consumers of before. The clock begins when the broker greets again.
"""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

import pytest
import uvloop

from sidecar.ops.metrics import Metrics
from sidecar.rails.messaging.peer import Peer
from sidecar.rails.messaging.registry import DeliveryClass
from sidecar.rails.space.holder import Form
from tests.bench.measure import show
from tests.e2e.peers import Society, society
from tests.fault.messaging_rig import Listener, at_baseline, consumers

PEERS = 200
AT_ONCE = 8
GOAL = 10.0


class Storm:
    """The peers, each with its reader."""

    def __init__(self, here: Society) -> None:
        self.here = here
        self.metrics = Metrics()
        self.heard: list[Listener] = []

    async def join(self, number: int, stack: contextlib.AsyncExitStack) -> None:
        url, creds = self.here.town.broker.url, self.here.creds(f"p{number}")
        peer = await stack.enter_async_context(
            await Peer.connect([url], creds, name=f"p{number}", metrics=self.metrics)
        )
        self.heard.append(await stack.enter_async_context(Listener(peer)))
        await peer.join("team.storm")

    async def hear(self, text: str) -> None:
        """A post for everybody, and a direct message for one."""
        first, last = self.heard[0].peer, self.heard[-1]
        post = await first.post("team.storm", text)
        direct = await first.tell(last.peer.identity.principal, text)
        await asyncio.gather(*(one.has(post.id) for one in self.heard[1:]))
        await last.has(direct.id)


async def measured(directory: Path, form: Form) -> tuple[float, float, float]:
    """Seconds from the broker's greeting until all are connected, hear everything, and the consumers are as before."""
    loop = asyncio.get_running_loop()
    async with society(directory, form) as here, here.plane(), contextlib.AsyncExitStack() as stack:
        await here.configure("team.storm", delivery_class=DeliveryClass.LIVE)
        storm = Storm(here)
        for number in range(PEERS):
            await here.enrol(f"p{number}")
        for first in range(0, PEERS, AT_ONCE):
            await asyncio.gather(*(storm.join(n, stack) for n in range(first, min(PEERS, first + AT_ONCE))))
        await storm.hear("before")
        before = await consumers(here)
        here.town.broker.kill()
        await asyncio.to_thread(here.town.broker.start)
        begun = loop.time()
        for one in storm.heard:
            while not one.peer.connection.linked:  # noqa: ASYNC110 - many of them
                await asyncio.sleep(0.01)
        linked = loop.time() - begun
        await storm.hear("after")
        heard = loop.time() - begun
        await at_baseline(here, before)
        assert not [one for one in storm.heard if one.twice]
        return linked, heard, loop.time() - begun


@pytest.mark.parametrize("form", list(Form))
def test_reconnect_storm(capsys: pytest.CaptureFixture[str], tmp_path: Path, form: Form) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        linked, heard, steady = runner.run(measured(tmp_path, form))
    show(
        capsys,
        f"{PEERS} peers of a {form} space after their broker was killed",
        {
            "all are connected": (linked, "s"),
            "all hear a post, one a direct message": (heard, "s"),
            "the consumers are those of before": (steady, "s"),
        },
        f"steady after {steady:.1f} s, the goal is less than {GOAL:.0f} s",
    )
