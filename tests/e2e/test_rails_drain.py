"""What the broker has sent to a member of a queue group comes in, whether the member drains or logs in again."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest
from nats.aio.msg import Msg

from sidecar.rails.connection import Connection, Credentials
from sidecar.rails.space.claims import Access, Permissions
from sidecar.rails.space.creds import format_creds
from sidecar.rails.space.trust import new_user
from tests.e2e.endpoints import room, soon, until
from tests.e2e.space_dial import QUICK
from tests.e2e.space_members import clock

pytestmark = pytest.mark.asyncio
SUBJECT, GROUP = "work.done", "group"
ROWS = Permissions(Access(("work.>",)), Access(("work.>",)))


class Work:
    """Numbered messages of one publisher, and who has taken which."""

    def __init__(self) -> None:
        self.sent = 0
        self.taken: list[int] = []
        self._stop = asyncio.Event()

    def take(self, message: Msg) -> None:
        self.taken.append(int(message.data))

    async def publish(self, connection: Connection) -> None:
        while not self._stop.is_set():
            for _ in range(8):
                await connection.send(SUBJECT, b"%d" % self.sent)
                self.sent += 1
            await asyncio.sleep(0)

    async def end(self, publishing: asyncio.Task[None]) -> None:
        """Nothing more is sent; each message was taken once."""
        self._stop.set()
        await publishing
        await until(lambda: len(self.taken) >= self.sent)
        assert sorted(self.taken) == list(range(self.sent))


def ended(error: Exception) -> None:
    """Nothing hangs on the end of a tap here."""


async def test_a_member_that_drains_takes_what_it_was_sent(tmp_path: Path) -> None:
    async with (
        room(tmp_path) as here,
        here.granted(ROWS) as one,
        here.granted(ROWS) as two,
        here.granted(ROWS) as source,
    ):
        work = Work()
        await one.taps([(SUBJECT, GROUP, ended)], work.take)
        publishing = asyncio.create_task(work.publish(source))
        for _ in range(60):
            mine = len(work.taken)
            taps = await two.taps([(SUBJECT, GROUP, ended)], work.take)
            await until(lambda mine=mine: len(work.taken) > mine)  # type: ignore[misc]
            await soon(two.drain(taps))
        await work.end(publishing)


async def test_a_member_that_logs_in_again_takes_what_its_old_link_was_sent(tmp_path: Path) -> None:
    key, minted = new_user(os.urandom), 0

    async with room(tmp_path) as here, here.granted(ROWS) as source:

        async def mint() -> Credentials:
            nonlocal minted
            minted += 1
            token = here.space.trust.mint("local-member", ROWS, key, clock(), 300)
            return Credentials(format_creds(token, key), clock() + 1)  # replaced before a second is over

        async with await Connection.open([here.broker.url], mint, policy=QUICK) as member:
            work = Work()
            await member.taps([(SUBJECT, GROUP, ended)], work.take)
            publishing = asyncio.create_task(work.publish(source))
            await until(lambda: minted >= 8)
            await work.end(publishing)
            assert member.interruptions == 0
