"""A real nats-server in operator mode with a full resolver, and clients that remember what it refused.

async with SpaceBroker(tmp_path) as broker:
    await broker.push(token)
    async with broker.user(creds_path, inbox) as user: await user.publish_refused("x")
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import AsyncIterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from nats.aio.client import Client

from sidecar.app.broker import free_port
from sidecar.app.layout import find_nats_server
from sidecar.base.safefile import write_private
from sidecar.rails.space.broker_config import trust_section
from sidecar.rails.space.creds import write_creds
from sidecar.rails.space.nkeys import KeyPair
from sidecar.rails.space.resolver import delete_account, push_account, push_permissions
from sidecar.rails.space.trust import BrokerTrust, new_user
from tests.e2e.cluster import eventually

EVENT_SECONDS = 20.0


class User:
    """A connection that keeps the broker's errors, in order."""

    def __init__(self) -> None:
        self.client = Client()
        self.errors: list[str] = []
        self.disconnected = asyncio.Event()
        self.closed = asyncio.Event()

    async def connect(self, url: str, creds: Path | None, inbox: str) -> None:
        async def failed(error: Exception) -> None:
            self.errors.append(str(error).lower())

        async def gone() -> None:
            self.disconnected.set()

        async def ended() -> None:
            self.closed.set()

        try:
            await self.client.connect(
                url,
                user_credentials=None if creds is None else str(creds),
                inbox_prefix=inbox.removesuffix(".>").encode(),
                error_cb=failed,
                disconnected_cb=gone,
                closed_cb=ended,
                allow_reconnect=False,
                connect_timeout=5,
            )
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """End the connection, also one that was refused; its socket is closed when this returns."""
        transport: Any = self.client._transport
        await self.client.close()
        if transport is not None:
            transport.close()
            with contextlib.suppress(OSError):
                await transport.wait_closed()

    async def violations(self) -> list[str]:
        """What the broker refused since the last call; round trips make sure that it has answered everything."""
        # The client writes a PING in front of what it has buffered: only the second one is behind it.
        await self.client.flush(10)
        await self.client.flush(10)
        found, self.errors = self.errors, []
        return found

    async def may_publish(self, subject: str, data: bytes = b"", **more: Any) -> bool:
        """Publish; True when the broker took it."""
        await self.client.publish(subject, data, **more)
        return not await self.violations()

    async def may_subscribe(self, subject: str, queue: str = "") -> bool:
        """Subscribe; True when the broker took it. The subscription ends again."""
        subscription = await self.client.subscribe(subject, queue=queue)
        found = await self.violations()
        await subscription.unsubscribe()
        return not found


def run_broker(config: Path, log: Path) -> subprocess.Popen[bytes]:
    """A nats-server with this configuration; what it says is appended to the log."""
    command = [str(find_nats_server()), "--config", str(config)]
    with log.open("ab") as said:
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=said, stderr=said)


def greets(port: int) -> bool:
    """True when a nats-server on loopback greets."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=0.5) as peer:
            return peer.recv(5) == b"INFO "
    except OSError:
        return False


class SpaceBroker:
    """The broker with its trust; `push` and `delete` go over the system account."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.trust = BrokerTrust.open(directory / "trust", os.urandom)
        self.port = free_port("127.0.0.1")
        self.url = f"nats://127.0.0.1:{self.port}"
        self.process: subprocess.Popen[bytes] | None = None
        self._system: User | None = None
        self._stack = contextlib.AsyncExitStack()
        now = int(time.time())
        section = trust_section(
            self.trust.operator_token(now),
            self.trust.system_account,
            self.trust.system_account_token(now),
            directory / "accounts",
        )
        text = (
            f'listen: "127.0.0.1:{self.port}"\nserver_name: "space-test"\n'
            f'jetstream {{ store_dir: "{directory / "jetstream"}" }}\n{section}'
        )
        self.config = directory / "nats-server.conf"
        write_private(self.config, text.encode())

    def start(self) -> None:
        """Start the server and wait for its greeting."""
        log = self.directory / "nats-server.log"
        self.process = process = run_broker(self.config, log)

        def answers() -> bool:
            assert process.poll() is None, log.read_text()
            return greets(self.port)

        eventually(answers)

    def kill(self) -> None:
        """SIGKILL."""
        assert self.process is not None
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(EVENT_SECONDS)

    async def push(self, token: str) -> None:
        await push_account((await self.system()).client, token)

    async def delete(self, account: str) -> None:
        request = self.trust.sign_deletion(account, int(time.time()))
        await delete_account((await self.system()).client, request)

    async def system(self) -> User:
        """The connection that may push and delete, and nothing else."""
        if self._system is None:
            key = new_user(os.urandom)
            inbox = f"_INBOX_{key.public}.>"
            token = self.trust.system_user("pusher", push_permissions(inbox), key, int(time.time()), 300)
            self._system = await self._stack.enter_async_context(self.user(self.creds(token, key), inbox))
        return self._system

    def creds(self, token: str, key: KeyPair) -> Path:
        """A creds file."""
        directory = self.directory / "creds"
        directory.mkdir(mode=0o700, exist_ok=True)
        path = directory / f"{key.public}.creds"
        write_creds(path, token, key)
        return path

    @contextlib.asynccontextmanager
    async def user(self, creds: Path | None, inbox: str) -> AsyncIterator[User]:
        """A connected user."""
        user = User()
        await user.connect(self.url, creds, inbox)
        try:
            yield user
        finally:
            await user.close()

    async def __aenter__(self) -> Self:
        self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self._stack.aclose()
        finally:
            assert self.process is not None
            if self.process.poll() is None:
                self.process.terminate()
                self.process.wait(EVENT_SECONDS)
