"""The floors of a broker, at real ones: the largest logins, servers with short limits, servers that say nothing
(C13.12-01..06, C13.9-015, C13.14-08)."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from sidecar.app.broker import free_port
from sidecar.app.diagnosis import Finding, Level
from sidecar.app.doctor import Question, examine
from sidecar.base.safefile import write_private
from sidecar.rails.connection import Connection, ConnectionFault, Credentials, Policy, Stopped
from sidecar.rails.connection.policy import CONTROL_LINE_HINT
from sidecar.rails.space.broker_config import MAX_CONTROL_LINE, MAX_MINTED_JWT_BYTES, trust_section
from sidecar.rails.space.creds import format_creds
from sidecar.rails.space.fixtures import connect_line, fixture_holder
from sidecar.rails.space.floor import MIN_CONTROL_LINE
from sidecar.rails.space.grants import permissions
from sidecar.rails.space.holder import Form, Profile
from sidecar.rails.space.trust import new_user
from tests.e2e.cluster import eventually
from tests.e2e.space_broker import EVENT_SECONDS, SpaceBroker, greets, run_broker
from tests.e2e.space_members import SPACE, Space, clock

pytestmark = pytest.mark.asyncio
QUICK = Policy(first_wait=0.01, longest_wait=0.02, drops=3)


@contextlib.asynccontextmanager
async def account(directory: Path, line: int = MAX_CONTROL_LINE, payload: int = 1 << 20) -> AsyncIterator[Space]:
    broker = SpaceBroker(directory)
    text = broker.config.read_text().replace(f"max_control_line: {MAX_CONTROL_LINE}", f"max_control_line: {line}")
    write_private(broker.config, text.replace("max_payload: 1048576", f"max_payload: {payload}").encode())
    async with broker:
        space = Space(broker, Form.COMPATIBLE)
        await broker.push(space.trust.account_token(broker.trust, clock()))
        yield space


def minted(space: Space, profile: Profile) -> Credentials:
    """The credential of a fixture in this space, for now."""
    key = new_user(os.urandom)
    holder = fixture_holder(profile, key.public, SPACE)
    granted = permissions(profile, holder, MAX_MINTED_JWT_BYTES)
    token = space.trust.mint(holder.lifecycle.principal.dash, granted, key, clock(), 300, holder.tags)
    return Credentials(format_creds(token, key), clock() + 300)


@pytest.mark.req("C13.9-015", "C13.14-08", "C13.12-05", "C13.12-01")
@pytest.mark.parametrize("profile", [Profile.AGENT, Profile.ENDPOINT])
async def test_the_largest_credentials_log_in(tmp_path: Path, profile: Profile) -> None:
    async with account(tmp_path) as space:

        async def mint() -> Credentials:
            return minted(space, profile)

        async with await Connection.open([space.broker.url], mint, policy=QUICK) as connection:
            subscription = await connection.subscribe(f"{connection.inbox}.x")
            assert connection.linked
            await subscription.close()


@pytest.mark.req("C13.12-03", "C13.14-07", "C13.12-01")
async def test_a_short_line_is_named_after_bounded_attempts(tmp_path: Path) -> None:
    async with account(tmp_path, line=16 * 1024) as space:
        made = 0

        async def mint() -> Credentials:
            nonlocal made
            made += 1
            return minted(space, Profile.AGENT)

        with pytest.raises(ConnectionFault) as caught:
            async with asyncio.timeout(EVENT_SECONDS):
                await Connection.open([space.broker.url], mint, policy=QUICK)
        assert isinstance(caught.value, Stopped)
        assert CONTROL_LINE_HINT in str(caught.value)
        assert made <= QUICK.drops


async def looked(space: Space) -> list[Finding]:
    found = await examine(Question(space.broker.directory, space.broker.url))
    return [one for one in found if one.check == "servers"]


@pytest.mark.req("C13.12-04", "C13.12-06")
async def test_the_doctor_reads_the_limits_that_no_client_can_see(tmp_path: Path) -> None:
    async with account(tmp_path / "a") as space:
        (good,) = await looked(space)
        assert good.level is Level.OK
    async with account(tmp_path / "b", line=MIN_CONTROL_LINE - 1) as space:
        (short,) = await looked(space)
        assert (short.level, "max_control_line" in short.what) == (Level.FAIL, True)
    async with account(tmp_path / "c", payload=256 * 1024) as space:
        found = await examine(Question(space.broker.directory, space.broker.url))
        assert [one for one in found if one.level is Level.FAIL and "max_payload" in one.what]


@contextlib.contextmanager
def second(space: Space, line: int) -> Iterator[subprocess.Popen[bytes]]:
    """Another server of the same trust, in a cluster with the first one."""
    broker = space.broker
    port, now = free_port("127.0.0.1"), clock()
    directory = broker.directory / "second"
    directory.mkdir(mode=0o700)
    section = trust_section(
        broker.trust.operator_token(now),
        broker.trust.system_account,
        broker.trust.system_account_token(now),
        directory / "accounts",
    ).replace(f"max_control_line: {MAX_CONTROL_LINE}", f"max_control_line: {line}")
    route = broker.config.read_text().partition("# route ")[2].split("\n")[0]
    text = f'listen: "127.0.0.1:{port}"\nserver_name: "second"\n{section}'
    text += (
        f'cluster {{ name: c, listen: "127.0.0.1:{free_port("127.0.0.1")}", routes: ["nats://127.0.0.1:{route}"] }}\n'
    )
    config = directory / "nats-server.conf"
    write_private(config, text.encode())
    process = run_broker(config, directory / "log")
    try:
        eventually(lambda: greets(port))
        yield process
    finally:
        process.send_signal(signal.SIGCONT)
        process.terminate()
        process.wait(EVENT_SECONDS)


@contextlib.asynccontextmanager
async def clustered(directory: Path) -> AsyncIterator[Space]:
    """A space whose server takes routes; nothing is stored."""
    broker = SpaceBroker(directory)
    route = free_port("127.0.0.1")
    lines = [line for line in broker.config.read_text().split("\n") if not line.startswith("jetstream {")]
    text = "\n".join([*lines, f'cluster {{ name: c, listen: "127.0.0.1:{route}" }}', f"# route {route}", ""])
    write_private(broker.config, text.encode())
    async with broker:
        space = Space(broker, Form.COMPATIBLE)
        await broker.push(space.trust.account_token(broker.trust, clock()))
        yield space


async def until(space: Space, met: str, level: Level) -> None:
    async with asyncio.timeout(EVENT_SECONDS):
        while True:
            found = await looked(space)
            if any(one.level is level and met in one.what for one in found):
                return


@pytest.mark.req("C13.12-04")
async def test_every_server_is_asked_and_a_silent_one_is_a_failure(tmp_path: Path) -> None:
    async with clustered(tmp_path) as space:
        with second(space, 4096) as process:
            await until(space, "second: its max_control_line is 4096", Level.FAIL)
            process.send_signal(signal.SIGSTOP)
            await until(space, "1 of 2 servers told", Level.FAIL)


@pytest.mark.req("C13.12-05")
async def test_the_line_of_a_fixture_is_what_a_client_sends_at_most(tmp_path: Path) -> None:
    """The envelope that the bounds reckon with holds what our own client puts around a token."""
    lines: list[bytes] = []

    async def greeted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(
            b'INFO {"version":"2.15.1","max_payload":1048576,"headers":true,"auth_required":true,'
            b'"nonce":"abcdefghijklmno"}\r\n'
        )
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            lines.append(await reader.readuntil(b"\r\n"))
        writer.close()

    async with account(tmp_path) as space:
        server = await asyncio.start_server(greeted, "127.0.0.1", 0, limit=1 << 20)
        port = server.sockets[0].getsockname()[1]
        told = minted(space, Profile.AGENT)

        async def mint() -> Credentials:
            return told

        with pytest.raises(ConnectionFault):
            async with asyncio.timeout(EVENT_SECONDS):
                await Connection.open([f"nats://127.0.0.1:{port}"], mint, policy=QUICK)
        server.close()
        token = told.text.reveal().split(b"-----")[2].strip().decode()
        assert lines
        assert all(len(token) < len(line) <= len(connect_line(token)) for line in lines)
