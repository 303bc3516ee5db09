"""Durable copies per second of the delivery plane, beside stores of the same messages and nothing else.

The posts are stored before the plane starts, so that it is measured and not their author. In turns: the fan-out alone,
the trusted reader alone with what that left, and both at once, from the posts to the members' own stores. The floor is
raw nats-py in the same process: the same payload and headers to the same stream, as many on their way as the plane
allows itself, every acknowledgement awaited. Times include the start: the watches are read and the durables are bound.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import time
from pathlib import Path
from typing import Any

import pytest
import uvloop

from sidecar.rails.connection.kv import KeyValue
from sidecar.rails.envelopes.backstop import Why, encode
from sidecar.rails.names import buckets, subjects
from sidecar.rails.names.principals import Lifecycle
from sidecar.rails.planes.delivery.loop import together
from sidecar.rails.planes.delivery.membership import Writer, joined
from sidecar.rails.planes.delivery.pipeline import MAX_COPIES
from sidecar.rails.space.acl import AclRow
from sidecar.rails.space.claims import Permissions
from sidecar.rails.space.trust import new_user
from tests.bench.measure import show
from tests.e2e.delivery_rig import ALL, CHAT, INBOX, Author, Rig, last_of, rig, root, until
from tests.e2e.durable_reads import document, life
from tests.e2e.space_members import SPACE, clock

MEMBERS = 20
POSTS = 500
ROUNDS = 5
COPIES = MEMBERS * POSTS
CHANNEL = "team.a"
TEXT = "x" * 256


class Bench:
    """A space with members of one channel."""

    def __init__(self, here: Rig) -> None:
        self.here = here
        self.members = [life(f"m{number}x") for number in range(MEMBERS)]
        self.floors: list[float] = []
        self.rates: dict[str, list[float]] = {"fanout": [], "reader": [], "both": []}
        self.costs: dict[str, list[float]] = {"fanout": [], "reader": [], "both": []}

    async def prepare(self) -> None:
        async with root(self.here) as connection:
            for one in self.members:
                row = joined(None, CHANNEL, one, 0, Writer("local.bench", 1))
                await KeyValue(connection, buckets.MEMBERS, SPACE).create(row.key, row.encode())
                await KeyValue(connection, buckets.ACL, SPACE).put(one.dot, AclRow(("team.>",)).encode())
        async with self.here.daemon() as daemon:  # the durables are there, and begin here
            await until(lambda: daemon.backstop.fanout.bound.is_set() and daemon.backstop.reader.bound.is_set())

    async def posted(self, batch: str) -> None:
        async with self.here.author() as alice:
            for at in range(0, POSTS, 50):
                await asyncio.gather(*(self._post(alice, f"{batch}-{at + number}") for number in range(50)))

    async def _post(self, alice: Author, name: str) -> None:
        await alice.post(CHANNEL, name, text=TEXT)

    async def run(self, what: str, handed: bool, *parts: str) -> None:
        """Until every copy is stored, or with ``handed`` handed off."""
        counter = "delivery_handed_off" if handed else "delivery_copies"
        async with self.here.daemon() as daemon:
            await daemon.end()  # its tasks; the parts are run below
            backstop = daemon.backstop
            chat, inbox = [await last_of(daemon.member.connection, stream) for stream in (CHAT, INBOX)]
            began, busy = time.perf_counter(), time.process_time()
            names = ("members", "acl", "channels", "mentions", *parts)
            task = asyncio.create_task(together(*(getattr(backstop, name).run() for name in names)))
            await until(lambda: sum(daemon.count(counter).values()) >= COPIES, task)
            self.rates[what].append(COPIES / (time.perf_counter() - began))
            self.costs[what].append((time.process_time() - busy) / COPIES)
            for name, last in (("fanout", chat), ("reader", inbox)):
                if name in parts:
                    await until(lambda: getattr(backstop, name).floor >= last, task)  # noqa: B023
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def floor(self, batch: int) -> None:
        """Stores per second of nats-py alone; what it stores is handed to nobody."""
        subject = subjects.CHAT.build(space=SPACE, owner="local", actor="alice", channel=CHANNEL)
        payload = document("alice", f"floor-{batch}-000", TEXT, channel=CHANNEL)
        nobody = [Lifecycle(one.principal, one.uid[::-1]) for one in self.members]
        targets = [(subjects.DLV.build(space=SPACE, **one.names), one) for one in nobody]
        key = new_user(os.urandom)
        token = self.here.town.space.trust.mint("bench", Permissions(ALL, ALL), key, clock(), 300)
        creds, inbox = self.here.town.broker.creds(token, key), f"_INBOX_{key.public}"
        left, room, done = COPIES, asyncio.Semaphore(MAX_COPIES), asyncio.Event()

        async def acknowledged(message: Any) -> None:
            nonlocal left
            assert b'"error"' not in message.data
            room.release()
            left -= 1
            if not left:
                done.set()

        async with self.here.town.broker.user(creds, f"{inbox}.>") as user:
            await user.client.subscribe(f"{inbox}.acks", cb=acknowledged)
            began = time.perf_counter()
            for number in range(POSTS):
                for target, one in targets:
                    await room.acquire()
                    headers = encode(subject, number + 1, Why.CHANNEL, f"floor-{batch}-{number}", one)
                    await user.client.publish(target, payload, reply=f"{inbox}.acks", headers=headers)
            await done.wait()
            self.floors.append(COPIES / (time.perf_counter() - began))


async def measured(directory: Path) -> Bench:
    async with rig(directory) as here:
        bench = Bench(here)
        await bench.prepare()
        for number in range(ROUNDS):
            await bench.floor(number)
            await bench.posted(f"apart-{number}")
            await bench.run("fanout", False, "fanout")
            await bench.run("reader", True, "reader")
            await bench.posted(f"both-{number}")
            await bench.run("both", True, "fanout", "reader")
        return bench


@pytest.mark.timeout(600)
def test_copies(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        bench = runner.run(measured(tmp_path))
    rates = {name: statistics.median(values) for name, values in bench.rates.items()}
    costs = {name: statistics.median(values) for name, values in bench.costs.items()}
    floor = statistics.median(bench.floors)
    show(
        capsys,
        f"durable copies: {POSTS} posts of {len(TEXT)} bytes of text, {MEMBERS} members",
        {
            "fan-out alone": (rates["fanout"], "/s"),
            "trusted reader alone": (rates["reader"], "/s"),
            "both, from the post to the member's store": (rates["both"], "/s"),
            "floor: pipelined stores of nats-py": (floor, "/s"),
            "processor time of the fan-out for a copy": (costs["fanout"] * 1e6, "µs"),
            "processor time of the trusted reader for a copy": (costs["reader"] * 1e6, "µs"),
        },
        f"the fan-out alone has {rates['fanout'] / floor:.2f} of the rate of its floor",
        f"both at once have {rates['both'] / floor:.2f} of it, with two stores for each copy",
    )
