"""Messages through a stream to one subscriber, 64 in flight: ours beside the client library's own.

One member stores on a channel and reads the same channel on its own connection, once with ``store`` and a
``Subscription``, once with ``js.publish`` and a callback of nats-py, with equal bytes, headers and credentials. Both
take turns. Processor time of this process is shown as well, which the noise of the machine moves less than the rate.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import uvloop
from nats.aio.client import Client

from sidecar.rails.connection import Connection
from sidecar.rails.connection.publishing import store
from sidecar.rails.names import headers, subjects
from sidecar.rails.space.holder import Form, Profile
from tests.bench.measure import cpu_seconds, show
from tests.e2e.space_broker import SpaceBroker
from tests.e2e.space_dial import dialled
from tests.e2e.space_members import SPACE, Space

MESSAGES = 4_000
IN_FLIGHT = 64
ROUNDS = 7
DATA = b"x" * 400
CHANNEL = "team.bench"
GOAL = 0.8

Send = Callable[[str], Awaitable[object]]


class Rate:
    """Messages a second, and microseconds of processor time for one."""

    def __init__(self) -> None:
        self.rates: list[float] = []
        self.costs: list[float] = []

    async def round(self, send: Send, received: Awaitable[None]) -> None:
        """Send every message, ``IN_FLIGHT`` at a time, until the subscriber has them all."""
        numbers = iter(range(MESSAGES))
        begun, spent = time.perf_counter(), cpu_seconds(os.getpid())
        mark = os.urandom(8).hex()

        async def work() -> None:
            for number in numbers:
                await send(f"{mark}.{number}")

        await asyncio.gather(received, *(work() for _ in range(IN_FLIGHT)))
        self.rates.append(MESSAGES / (time.perf_counter() - begun))
        self.costs.append((cpu_seconds(os.getpid()) - spent) / MESSAGES * 1e6)


async def of_ours(rate: Rate, connection: Connection, subject: str) -> None:
    """One round with our connection."""
    subscription = await connection.subscribe(subject)

    async def received() -> None:
        for _ in range(MESSAGES):
            await subscription.next()

    await rate.round(lambda mark: store(connection, subject, DATA, {headers.MESSAGE_ID: mark}), received())
    await subscription.close()


async def of_nats(rate: Rate, client: Client, subject: str) -> None:
    """One round with the library."""
    stream, seen, all_seen = client.jetstream(), 0, asyncio.Event()

    async def take(_: object) -> None:
        nonlocal seen
        seen += 1
        if seen == MESSAGES:
            all_seen.set()

    async def received() -> None:
        await all_seen.wait()

    subscription = await client.subscribe(subject, cb=take)
    await rate.round(lambda mark: stream.publish(subject, DATA, headers={headers.MESSAGE_ID: mark}), received())
    await subscription.unsubscribe()


async def measured(directory: Path) -> tuple[Rate, Rate]:
    """Ours and the library's."""
    ours, theirs = Rate(), Rate()
    lists: dict[str, Any] = {"subscribe": (CHANNEL,), "allow_publish": (CHANNEL,)}
    async with SpaceBroker(directory) as broker:
        space = Space(broker, Form.MEDIATED)
        await space.open()
        async with (
            dialled(space, Profile.AGENT, "ours", **lists) as (connection, _),
            space.member(Profile.AGENT, "theirs", **lists) as (user, _),
        ):
            for number in range(ROUNDS + 1):
                if number == 1:  # the first round of each warms up
                    ours, theirs = Rate(), Rate()
                await of_ours(ours, connection, subject_of("ours"))
                await of_nats(theirs, user.client, subject_of("theirs"))
    return ours, theirs


def subject_of(actor: str) -> str:
    return subjects.CHAT.build(space=SPACE, owner="local", actor=actor, channel=CHANNEL)


def test_store_and_subscribe(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        ours, theirs = runner.run(measured(tmp_path))
    rate, floor = statistics.median(ours.rates), statistics.median(theirs.rates)
    show(
        capsys,
        f"stored and received, {IN_FLIGHT} in flight, {len(DATA)} bytes",
        {
            "store and Subscription": (rate, "/s"),
            "nats-py: js.publish and a callback": (floor, "/s"),
            "store and Subscription: processor": (statistics.median(ours.costs), "us each"),
            "nats-py: processor": (statistics.median(theirs.costs), "us each"),
        },
        f"ours has {rate / floor:.2f} of the rate of nats-py, the goal is at least {GOAL}",
    )
