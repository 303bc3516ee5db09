"""Eviction in a cluster of two brokers: done when every one of them says so, and never before."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from nats.aio.client import Client

from sidecar.app.broker import free_port
from sidecar.base.safefile import write_private
from sidecar.rails.names.principals import Principal
from sidecar.rails.planes.registration import eviction
from sidecar.rails.planes.registration.eviction import evict
from sidecar.rails.planes.registration.faults import Unverified
from sidecar.rails.space.broker_config import trust_section
from sidecar.rails.space.claims import Access, Permissions
from sidecar.rails.space.creds import write_creds
from sidecar.rails.space.nkeys import KeyPair
from sidecar.rails.space.resolver import push_account
from sidecar.rails.space.system import barrier_permissions
from sidecar.rails.space.trust import BrokerTrust, SpaceTrust, new_user
from tests.e2e.cluster import eventually
from tests.e2e.space_broker import EVENT_SECONDS, User, greets, run_broker
from tests.e2e.space_members import clock

pytestmark = pytest.mark.asyncio
WHO = Principal("local", "ep_x")
OTHER = Principal("local", "ep_y")


class Pair:
    """Two brokers that route to each other, and one account."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.trust = BrokerTrust.open(directory / "trust", os.urandom)
        self.account = SpaceTrust.open(directory / "main", "main", os.urandom)
        self.ports = [free_port("127.0.0.1") for _ in range(2)]
        self.routes = [free_port("127.0.0.1") for _ in range(2)]
        self.processes: list[subprocess.Popen[bytes]] = []

    def url(self, which: int) -> str:
        return f"nats://127.0.0.1:{self.ports[which]}"

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        try:
            for which in range(2):
                self._start(which)
            yield
        finally:
            for process in self.processes:
                process.send_signal(signal.SIGCONT)
                process.kill()
                process.wait(EVENT_SECONDS)

    def _start(self, which: int) -> None:
        now = clock()
        accounts = self.directory / f"accounts{which}"
        section = trust_section(
            self.trust.operator_token(now), self.trust.system_account, self.trust.system_account_token(now), accounts
        )
        own, other = self.routes[which], self.routes[1 - which]
        peers = f'routes: ["nats://127.0.0.1:{other}"]'
        routes = f'cluster {{ name: "pair", listen: "127.0.0.1:{own}", {peers} }}'
        config = self.directory / f"broker{which}.conf"
        text = f'listen: "127.0.0.1:{self.ports[which]}"\nserver_name: "broker{which}"\n{routes}\n{section}'
        write_private(config, text.encode())
        self.processes.append(run_broker(config, self.directory / f"broker{which}.log"))
        eventually(lambda: greets(self.ports[which]))

    @contextlib.asynccontextmanager
    async def connected(self, which: int, token: str, key: KeyPair) -> AsyncIterator[User]:
        path = self.directory / f"{key.public}.creds"
        write_creds(path, token, key)
        user = User()
        await user.connect(self.url(which), path, f"_INBOX_{key.public}.>")
        try:
            yield user
        finally:
            await user.close()

    @contextlib.asynccontextmanager
    async def barrier(self) -> AsyncIterator[Client]:
        """The executor of an eviction, at the first broker."""
        key = new_user(os.urandom)
        granted = barrier_permissions(self.account.account, f"_INBOX_{key.public}.>")
        token = self.trust.system_user("barrier", granted, key, clock(), 300)
        async with self.connected(0, token, key) as user:
            yield user.client

    @contextlib.asynccontextmanager
    async def holder(self, which: int, principal: Principal, key: KeyPair) -> AsyncIterator[User]:
        granted = Permissions(Access(("cotal.main.x",)), Access((f"_INBOX_{key.public}.>",)))
        token = self.account.mint(principal.dash, granted, key, clock(), 300, principal.tags)
        async with self.connected(which, token, key) as user:
            yield user


@pytest.mark.req("C13.1-031", "C13.1-034", "C13.1-035", "C13.1-051", "C13.14-01")
async def test_an_eviction_is_verified_on_every_server_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = Pair(tmp_path)
    with pair.running():
        async with pair.barrier() as system:
            await both(system)
            await push_account(system, pair.account.account_token(pair.trust, clock()))
            victim, again, bystander = (new_user(os.urandom) for _ in range(3))
            async with pair.holder(1, WHO, victim) as gone, pair.holder(1, OTHER, bystander) as stays:
                token = pair.account.revoke(pair.trust, victim.public, clock())
                await evict(system, pair.account.account, token, [victim.public], [WHO])
                async with asyncio.timeout(EVENT_SECONDS):
                    await gone.closed.wait()
                assert stays.client.is_connected
            # Another key of the same principal: it is by principal that somebody is gone.
            async with pair.holder(1, WHO, again):
                with pytest.raises(Unverified, match="still connected"):
                    await evict(system, pair.account.account, token, [victim.public], [WHO], seconds=0.2)
            pair.processes[1].send_signal(signal.SIGSTOP)
            monkeypatch.setattr(eviction, "_ANSWER_SECONDS", 0.3)
            token = pair.account.revoke(pair.trust, again.public, clock())
            with pytest.raises(Unverified, match="could not be"):
                await evict(system, pair.account.account, token, [again.public], [WHO], seconds=0.2)
            pair.processes[1].send_signal(signal.SIGCONT)
            monkeypatch.undo()
            await evict(system, pair.account.account, token, [again.public], [WHO])


async def both(system: Client) -> None:
    """Wait until the brokers know each other."""
    async with asyncio.timeout(EVENT_SECONDS):
        while True:
            answer = await system.request("$SYS.REQ.SERVER.PING.STATSZ", b"")
            if b'"active_servers":2' in answer.data:
                return
            await asyncio.sleep(0.02)
