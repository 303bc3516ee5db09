"""What presence costs 300 peers: a heartbeat each two seconds, and rosters that are read when somebody acts.

All peers live in one process, each on its own connection with its own credential, as they would in 300. Processor time
of that process and of the broker is counted apart, over stretches of one length: connections that do nothing, with
heartbeats, and with heartbeats and reads on demand at a stated rate. Presence is the difference to doing nothing.
"""

from __future__ import annotations

import asyncio
import functools
import os
import random
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import NamedTuple

import pytest
import uvloop

from sidecar.base.clock import system_now
from sidecar.ops.metrics import Metrics
from sidecar.rails.connection import Connection, Credentials
from sidecar.rails.envelopes.presence import Card
from sidecar.rails.envelopes.schema import EndpointKind
from sidecar.rails.messaging.heartbeat import Heartbeat, OwnPresence
from sidecar.rails.messaging.reads import Reading
from sidecar.rails.messaging.reads_raw import RawReads
from sidecar.rails.messaging.runtime import current_process
from sidecar.rails.names.limits import HEARTBEAT_MS
from sidecar.rails.names.principals import Lifecycle, Principal
from sidecar.rails.space.creds import format_creds
from sidecar.rails.space.holder import Form, Holder, Profile
from sidecar.rails.space.trust import new_user
from tests.bench.measure import cpu_seconds, show
from tests.e2e.space_broker import SpaceBroker
from tests.e2e.space_members import SPACE, Space, clock

PEERS = 300
READS_PER_SECOND = (2, 5)
"""Rosters read in the whole space, which nobody has counted in one that works: with 2 every peer acts on another one
each two and a half minutes, with 5 each minute."""
STRETCH = 20.0
AT_ONCE = 16
LIFE = 3_600
GOAL = 10.0


class Spent(NamedTuple):
    """Shares of one core over a stretch, in percent."""

    peers: float
    broker: float


class Room:
    """Three hundred peers of one space."""

    def __init__(self, space: Space) -> None:
        self.space = space
        self.metrics = Metrics()
        self.peers: list[tuple[Connection, Heartbeat]] = []
        assert space.broker.process is not None
        self.broker = space.broker.process.pid

    async def join(self, number: int, stack: AsyncExitStack) -> None:
        """A connection, and the heartbeat that it will have."""
        key = new_user(os.urandom)
        lifecycle = Lifecycle(Principal("local", f"peer{number}"), f"{number:026d}")
        holder = Holder(SPACE, lifecycle, key.public, self.space.form)

        async def mint() -> Credentials:
            token = self.space.trust.issue(Profile.AGENT, holder, key, clock(), LIFE)
            return Credentials(format_creds(token, key), clock() + LIFE)

        connection = await stack.enter_async_context(await Connection.open([self.space.broker.url], mint))
        card = Card(lifecycle.principal.dot, f"Peer {number}", EndpointKind.AGENT, "builder", protocol_version="0.4")
        now = int(system_now().wall * 1000)
        own = OwnPresence.begin(card, lifecycle, current_process().runtime(lifecycle), now).doing(now, activity="build")
        self.peers.append((connection, Heartbeat(connection, SPACE, own, clock=system_now, metrics=self.metrics)))

    async def spent(self, work: Callable[[], Awaitable[None]] | None = None) -> Spent:
        """What one stretch costs, with ``work`` beside it."""
        before = cpu_seconds(os.getpid()), cpu_seconds(self.broker)
        if work is None:
            await asyncio.sleep(STRETCH)
        else:
            await work()
        after = cpu_seconds(os.getpid()), cpu_seconds(self.broker)
        return Spent(*((now - then) / STRETCH * 100 for then, now in zip(before, after, strict=True)))

    async def read(self, rate: int) -> None:
        """Reads at the stated rate for one stretch; every one finds everybody."""
        chance = random.Random(7)
        reading = Reading(system_now, self.metrics)
        loop = asyncio.get_running_loop()
        due = end = loop.time()
        end += STRETCH
        while due < end:
            connection, _ = chance.choice(self.peers)
            roster = await RawReads(connection, SPACE, reading).roster()
            assert len(roster.live) == PEERS
            due += 1 / rate
            await asyncio.sleep(max(0.0, due - loop.time()))


async def measured(directory: Path) -> tuple[Spent, Spent, list[Spent]]:
    """Doing nothing; heartbeats; heartbeats and reads, at each rate."""
    async with SpaceBroker(directory) as broker, AsyncExitStack() as stack:
        space = Space(broker, Form.COMPATIBLE)
        await space.open()
        room = Room(space)
        for first in range(0, PEERS, AT_ONCE):
            await asyncio.gather(*(room.join(n, stack) for n in range(first, min(PEERS, first + AT_ONCE))))
        idle = await room.spent()
        for number, (_, beating) in enumerate(room.peers):
            await beating.start()
            stack.push_async_callback(beating.close)
            # Peers do not begin together: their heartbeats are spread over the interval.
            await asyncio.sleep(HEARTBEAT_MS / 1000 / PEERS if number + 1 < PEERS else 0)
        beating_alone = await room.spent()
        reading_too = [await room.spent(functools.partial(room.read, rate)) for rate in READS_PER_SECOND]
        stored = room.metrics.totals("messaging_heartbeats")
        assert stored.keys() == {("stored",), ("sent",)}, stored
        return idle, beating_alone, reading_too


def test_presence_of_300_peers(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        idle, beating, reading = runner.run(measured(tmp_path))
    heartbeats = Spent(beating.peers - idle.peers, beating.broker - idle.broker)
    rows: dict[str, tuple[float, str]] = {}
    for rate, one in zip(READS_PER_SECOND, reading, strict=True):
        reads = Spent(one.peers - beating.peers, one.broker - beating.broker)
        rows |= {
            f"{rate} rosters a second: peers": (reads.peers, "% of a core"),
            f"{rate} rosters a second: broker": (reads.broker, "% of a core"),
            f"one of {rate} rosters a second, both sides": (sum(reads) / 100 / rate * 1e6, "us"),
            f"presence, all of it, with {rate} rosters a second": (
                sum(heartbeats) + sum(reads),
                f"% of a core (goal {GOAL:.0f} or less)",
            ),
        }
    show(
        capsys,
        f"presence of {PEERS} peers, a heartbeat every {HEARTBEAT_MS} ms",
        {
            "connections that do nothing: peers": (idle.peers, "% of a core"),
            "connections that do nothing: broker": (idle.broker, "% of a core"),
            "heartbeats: peers": (heartbeats.peers, "% of a core"),
            "heartbeats: broker": (heartbeats.broker, "% of a core"),
            "one heartbeat, both sides": (sum(heartbeats) / 100 / (PEERS * 1000 / HEARTBEAT_MS) * 1e6, "us"),
            **rows,
        },
    )
