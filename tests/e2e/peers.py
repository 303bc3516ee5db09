"""Peers of a real space in either form, and its whole delivery plane in this process.

async with society(directory, form) as here:
    async with here.plane(), here.peer("alice", readable=("team.>",)) as alice: ...
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from sidecar.ops.logging import Log
from sidecar.ops.metrics import Metrics
from sidecar.rails.connection import Connection, Credentials, Policy, Watch
from sidecar.rails.connection.kv import KeyValue
from sidecar.rails.messaging.inbox import Delivered
from sidecar.rails.messaging.peer import Peer
from sidecar.rails.messaging.registry import ChannelConfig, RegistryWriter
from sidecar.rails.names import buckets
from sidecar.rails.names.principals import Lifecycle
from sidecar.rails.planes.delivery.compose import compose, served
from sidecar.rails.planes.delivery.lease import Lease
from sidecar.rails.planes.delivery.plane import Plane
from sidecar.rails.space.acl import AclRow
from sidecar.rails.space.creds import format_creds, write_creds
from sidecar.rails.space.holder import Form, Holder, Profile, Service
from sidecar.rails.space.nkeys import KeyPair
from sidecar.rails.space.trust import new_user
from tests.e2e.durable_reads import QUICK, Town, life, town
from tests.e2e.space_broker import EVENT_SECONDS
from tests.e2e.space_members import SPACE, clock

SECONDS = 3_600
OPEN = ("general", "team.>")


class Society:
    """A space with peers that come and go."""

    def __init__(self, made: Town) -> None:
        self.town = made
        self.said = io.StringIO()
        self._keys: dict[str, KeyPair] = {}
        self._epoch = 0

    @property
    def form(self) -> Form:
        return self.town.space.form

    @contextlib.asynccontextmanager
    async def operator(self) -> AsyncIterator[Connection]:
        async with self.town.member("provisioner", Profile.PROVISIONER) as member:
            yield member.connection

    async def configure(self, channel: str, **config: Any) -> None:
        """An entry of the registry."""
        async with self.operator() as connection:
            await RegistryWriter(connection, SPACE).set_channel(channel, ChannelConfig(**config))

    def holder(
        self, actor: str, readable: tuple[str, ...], postable: tuple[str, ...], roles: tuple[str, ...]
    ) -> Holder:
        key = self._keys.setdefault(actor, new_user(os.urandom))
        return Holder(
            SPACE, life(actor), key.public, self.form, allow_subscribe=readable, allow_publish=postable, roles=roles
        )

    async def enrol(self, actor: str, readable: tuple[str, ...] = OPEN, roles: tuple[str, ...] = ()) -> Lifecycle:
        """A lifecycle with its durables and its read-ACL row."""
        await self.town.activate(actor, roles)
        async with self.operator() as connection:
            row = AclRow(readable, roles, readable, 1, clock() * 1000)
            await KeyValue(connection, buckets.ACL, SPACE).put(life(actor).dot, row.encode())
        return life(actor)

    def key(self, actor: str) -> KeyPair:
        """The user key of an actor, for as long as the space lives."""
        return self._keys.setdefault(actor, new_user(os.urandom))

    def creds(
        self,
        actor: str,
        *,
        readable: tuple[str, ...] = OPEN,
        postable: tuple[str, ...] = OPEN,
        roles: tuple[str, ...] = (),
        seconds: int = SECONDS,
    ) -> Path:
        """A creds file of a lifecycle, always of the same user key."""
        key = self.key(actor)
        holder = Holder(
            SPACE, life(actor), key.public, self.form, allow_subscribe=readable, allow_publish=postable, roles=roles
        )
        directory = self.town.broker.directory / "creds"
        directory.mkdir(mode=0o700, exist_ok=True)
        path = directory / f"{actor}.creds"
        write_creds(path, self.town.space.trust.issue(Profile.AGENT, holder, key, clock(), seconds), key)
        return path

    @contextlib.asynccontextmanager
    async def peer(
        self,
        actor: str,
        *,
        readable: tuple[str, ...] = OPEN,
        postable: tuple[str, ...] = OPEN,
        roles: tuple[str, ...] = (),
        url: str = "",
        policy: Policy = QUICK,
        **more: Any,
    ) -> AsyncIterator[Peer]:
        """A connected peer with everything that belongs to its lifecycle."""
        await self.enrol(actor, readable, roles)
        creds = self.creds(actor, readable=readable, postable=postable, roles=roles)
        more = {"name": actor, "metrics": Metrics(), "log": Log(self.said), "policy": policy, **more}
        async with asyncio.timeout(EVENT_SECONDS):
            peer = await Peer.connect([url or self.town.broker.url], creds, **more)
        try:
            yield peer
        finally:
            await peer.close(drain=0)

    @contextlib.asynccontextmanager
    async def plane(self, url: str = "") -> AsyncIterator[Metrics]:
        """The delivery plane, until the block ends; ``url`` when it does not come to the broker directly."""
        key = new_user(os.urandom)
        self._epoch += 1
        service = Service("d5" * 13, self._epoch, served(self.form))
        holder = Holder(SPACE, life("delivery"), key.public, self.form, service=service)

        async def mint() -> Credentials:
            token = self.town.space.trust.issue(Profile.DELIVERY, holder, key, clock(), SECONDS)
            return Credentials(format_creds(token, key), clock() + SECONDS)

        metrics = Metrics()
        log = Log(self.said)
        urls = [url or self.town.broker.url]
        async with await Connection.open(urls, mint, policy=QUICK, watch=Watch(metrics)) as link:
            plane = Plane(link, SPACE, self.form, life("delivery"), metrics, log)
            made = compose(plane, Lease(plane, os.urandom(16).hex()), service)
            running = asyncio.create_task(made.run())
            try:
                async with asyncio.timeout(EVENT_SECONDS):
                    await made.settle()
                yield metrics
            finally:
                running.cancel()
                await asyncio.gather(running, return_exceptions=True)


@contextlib.asynccontextmanager
async def society(directory: Path, form: Form) -> AsyncIterator[Society]:
    async with town(directory, form) as made:
        yield Society(made)


async def got(peer: Peer) -> Delivered:
    """The next delivery."""
    async with asyncio.timeout(EVENT_SECONDS):
        return await peer.next()


async def texts(peer: Peer, count: int) -> list[str]:
    """The texts of the next deliveries, each one handled."""
    found = []
    for _ in range(count):
        delivered = await got(peer)
        found.append(text_of(delivered))
        await delivered.handled()
    return found


def text_of(delivered: Delivered) -> str:
    return "".join(getattr(part, "text", "") for part in delivered.message.parts)


async def quiet(peer: Peer, seconds: float = 0.5) -> None:
    """Nothing more comes: as far as a bounded wait can tell."""
    try:
        async with asyncio.timeout(seconds):
            delivered = await peer.next()
    except TimeoutError:
        return
    raise AssertionError(f"there came {text_of(delivered)!r}")


async def until(met: Callable[[], bool]) -> None:
    """Wait for a condition that tasks of ours bring about."""
    async with asyncio.timeout(EVENT_SECONDS):
        while not met():  # noqa: ASYNC110 - what is waited for has no event
            await asyncio.sleep(0.01)
