"""Many members of one space in this process, each with its own connection and credential, who watch who is here."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from pathlib import Path

import orjson

from sidecar.base.clock import system_now
from sidecar.ops.metrics import Metrics
from sidecar.rails.connection import Connection, Credentials, Policy, Watch
from sidecar.rails.envelopes.presence import Card
from sidecar.rails.messaging.heartbeat import Heartbeat, OwnPresence
from sidecar.rails.messaging.runtime import current_process
from sidecar.rails.messaging.watcher import PresenceWatch
from sidecar.rails.names import Lifecycle, Principal, api, buckets
from sidecar.rails.space.creds import format_creds
from sidecar.rails.space.holder import Form, Holder, Profile
from sidecar.rails.space.trust import new_user
from tests.e2e.delivery_rig import Rig, root
from tests.e2e.durable_reads import Town
from tests.e2e.space_broker import SpaceBroker
from tests.e2e.space_members import SPACE, Space, clock

AT_ONCE = 16
SEE_SECONDS = 60.0
POLICY = Policy(first_wait=0.1, longest_wait=1.0)


class Watcher:
    """One member: its heartbeat, and its watch, which is read all the time."""

    def __init__(self, connection: Connection, lifecycle: Lifecycle, metrics: Metrics) -> None:
        self.connection = connection
        self.watch = PresenceWatch(connection, SPACE, os.urandom(8).hex(), clock=system_now, metrics=metrics)
        card = Card(lifecycle.principal.dot, lifecycle.principal.actor, protocol_version="0.4")
        own = OwnPresence.begin(card, lifecycle, current_process().runtime(lifecycle), clock() * 1000)
        self.heartbeat = Heartbeat(connection, SPACE, own, clock=system_now, metrics=metrics)
        self._reading = asyncio.create_task(self._read())

    async def _read(self) -> None:
        while True:
            await self.watch.next()

    @property
    def live(self) -> set[str]:
        return {row.principal.dot for row in self.watch.roster.live}

    async def close(self) -> None:
        self._reading.cancel()
        await asyncio.gather(self._reading, return_exceptions=True)
        await self.watch.close()
        await self.heartbeat.close()


class Crowd:
    """All of them."""

    def __init__(self, space: Space) -> None:
        self.space, self.broker = space, space.broker
        self.metrics = Metrics()
        self.here: dict[int, Watcher] = {}

    async def join(self, number: int, stack: contextlib.AsyncExitStack, *, beats: bool) -> None:
        key = new_user(os.urandom)
        lifecycle = Lifecycle(Principal("local", f"p{number}"), f"{number:026d}")
        holder = Holder(SPACE, lifecycle, key.public, self.space.form)

        async def mint() -> Credentials:
            token = self.space.trust.issue(Profile.AGENT, holder, key, clock(), 3_600)
            return Credentials(format_creds(token, key), clock() + 3_600)

        opened = await Connection.open([self.broker.url], mint, policy=POLICY, watch=Watch(self.metrics))
        connection = await stack.enter_async_context(opened)
        watcher = self.here[number] = Watcher(connection, lifecycle, self.metrics)
        stack.push_async_callback(watcher.close)
        if beats:
            await watcher.heartbeat.start()

    async def leave(self, number: int) -> None:
        """One says its last word."""
        watcher = self.here.pop(number)
        await watcher.close()

    async def see(self, wanted: set[str]) -> None:
        """Until everyone sees exactly these."""
        try:
            async with asyncio.timeout(SEE_SECONDS):
                for one in self.here.values():
                    while one.live != wanted:  # noqa: ASYNC110 - the watch has no event for it
                        await asyncio.sleep(0.1)
        except TimeoutError:
            wrong = [len(one.live) for one in self.here.values() if one.live != wanted]
            raise AssertionError(f"{len(wrong)} do not see the {len(wanted)} but {wrong[:5]}") from None

    async def steady(self) -> None:
        """Until everyone is connected again and has a watch that is up to date."""
        async with asyncio.timeout(SEE_SECONDS):
            for one in self.here.values():
                while not one.connection.linked:  # noqa: ASYNC110 - many of them
                    await asyncio.sleep(0.02)

    async def consumers(self) -> int:
        """Consumers of the presence bucket at the broker."""
        async with root(Rig(Town(self.space))) as operator:
            subject = api.STREAM_INFO.build(stream=buckets.PRESENCE.stream(SPACE))
            return int(orjson.loads((await operator.request(subject)).data)["state"]["consumer_count"])

    async def consumers_are(self, wanted: int) -> None:
        """Until the broker has so many consumers on the bucket."""
        found = 0
        try:
            async with asyncio.timeout(SEE_SECONDS):
                while (found := await self.consumers()) != wanted:  # noqa: ASYNC110
                    await asyncio.sleep(0.2)
        except TimeoutError:
            raise AssertionError(f"{found} consumers, not {wanted}") from None


@contextlib.asynccontextmanager
async def crowd(directory: Path, members: int, beating: int) -> AsyncIterator[Crowd]:
    """So many members of a compatible space, and so many of them with a heartbeat."""
    async with SpaceBroker(directory) as broker:
        space = Space(broker, Form.COMPATIBLE)
        await space.open()
        made = Crowd(space)
        async with contextlib.AsyncExitStack() as stack:
            for first in range(0, members, AT_ONCE):
                some = range(first, min(members, first + AT_ONCE))
                await asyncio.gather(*(made.join(n, stack, beats=n < beating) for n in some))
            yield made
