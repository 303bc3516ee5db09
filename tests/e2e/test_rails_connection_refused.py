"""Brokers that will not do: too old, without a version, or hanging up on the login."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from sidecar.rails.connection import Connection, Credentials, Fault, Policy, Stopped
from sidecar.rails.connection.policy import CONTROL_LINE_HINT
from sidecar.rails.space.claims import Access, Permissions
from sidecar.rails.space.creds import format_creds
from sidecar.rails.space.trust import SpaceTrust, new_user

pytestmark = pytest.mark.asyncio

QUICK = Policy(first_wait=0.01, longest_wait=0.02, drops=3)


@contextlib.asynccontextmanager
async def greeter(**info: Any) -> AsyncIterator[tuple[str, list[bytes]]]:
    """Greets with this INFO and hangs up after the first line that comes; gives its URL and those lines."""
    lines: list[bytes] = []

    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"INFO " + json.dumps({"auth_required": True, "nonce": "n", **info}).encode() + b"\r\n")
        with contextlib.suppress(ConnectionError):
            lines.append(await reader.readline())
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()

    server = await asyncio.start_server(greet, "127.0.0.1", 0)
    async with server:
        yield f"nats://127.0.0.1:{server.sockets[0].getsockname()[1]}", lines


async def refused(directory: Path, url: str) -> Stopped:
    trust = SpaceTrust.open(directory / "main", "main", os.urandom)
    key = new_user(os.urandom)
    permissions = Permissions(Access(("a",)), Access(("a",)))

    async def mint() -> Credentials:
        now = int(time.time())
        return Credentials(format_creds(trust.mint("local-alice", permissions, key, now, 300), key), now + 300)

    with pytest.raises(Stopped) as stopped:
        async with asyncio.timeout(20):
            await Connection.open([url], mint, policy=QUICK)
    return stopped.value


@pytest.mark.req("C13.12-01", "C13.12-02")
@pytest.mark.parametrize("info", [{"version": "2.11.9"}, {"version": "1.99.0"}, {}])
async def test_a_broker_below_the_floor_gets_nothing_of_the_login(tmp_path: Path, info: dict[str, Any]) -> None:
    async with greeter(**info) as (url, lines):
        stopped = await refused(tmp_path, url)
    assert stopped.fault is Fault.OLD_BROKER
    assert "2.12" in str(stopped)
    assert b"".join(lines) == b""


@pytest.mark.req("C13.12-03")
async def test_a_broker_that_hangs_up_on_the_login_names_the_control_line(tmp_path: Path) -> None:
    async with greeter(version="2.12.0") as (url, lines):
        stopped = await refused(tmp_path, url)
    assert (stopped.fault, str(stopped)) == (Fault.MAX_CONTROL_LINE, CONTROL_LINE_HINT)
    assert [line[:8] for line in lines] == [b"CONNECT "] * QUICK.drops
