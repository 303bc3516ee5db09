"""Join links at real brokers: a token, a user and password, TLS that is required, and no fall-back to plaintext."""

from __future__ import annotations

import asyncio
import json
import ssl
from pathlib import Path

import pytest

from sidecar.rails.connection import Connection, ConnectionFault, Fault, OpenLogin, Policy, Stopped
from sidecar.rails.messaging.joinlink import JoinLink, parse_link
from tests.e2e.plain_broker import plain_broker, self_signed
from tests.e2e.space_broker import EVENT_SECONDS
from tests.e2e.test_rails_connection_refused import greeter

pytestmark = pytest.mark.asyncio

QUICK = Policy(first_wait=0.01, longest_wait=0.02, refusals=2, attempts=2, ping_within=1)
NONCE = "nonce_0123456789"


async def dialled(link: JoinLink, context: ssl.SSLContext | None = None) -> Connection:
    target = link.target(NONCE, context=lambda: context or ssl.create_default_context())
    login = target.login
    assert login is not None

    async def mint() -> OpenLogin:
        return login

    async with asyncio.timeout(EVENT_SECONDS):
        return await Connection.open(target.urls, mint, policy=QUICK, tls=target.tls)


async def answered(connection: Connection) -> bool:
    """A request and its reply come and go over the inbox of the nonce."""
    async with connection:
        subscription = await connection.subscribe("ask")
        request = asyncio.create_task(connection.request("ask", b"?"))
        question = await subscription.next()
        assert question.reply.startswith(f"_INBOX_{NONCE}.")
        await connection.publish(question.reply, b"!")
        return (await request).data == b"!"


@pytest.mark.req("C2-16", "C10-04", "C10-05", "C10-08")
@pytest.mark.parametrize(
    ("section", "right", "wrong"),
    [
        ('authorization { token: "to ken" }', "to%20ken@", "token@"),
        ('authorization { user: "ann", password: "pass:word" }', "ann:pass%3Aword@", "ann:pass@"),
    ],
)
async def test_the_login_of_a_link_opens_the_broker_and_no_other_does(
    tmp_path: Path, section: str, right: str, wrong: str
) -> None:
    with plain_broker(tmp_path, section) as port:
        assert await answered(await dialled(parse_link(f"cotal://{right}127.0.0.1:{port}/main")))
        for userinfo in (wrong, ""):
            with pytest.raises(Stopped) as stopped:
                await dialled(parse_link(f"cotal://{userinfo}127.0.0.1:{port}/main"))
            assert stopped.value.fault is Fault.AUTHORIZATION
            assert "word" not in str(stopped.value)


@pytest.mark.req("C2-16")
async def test_an_open_broker_needs_no_login(tmp_path: Path) -> None:
    with plain_broker(tmp_path) as port:
        assert await answered(await dialled(parse_link(f"cotal://127.0.0.1:{port}/main")))


@pytest.mark.req("C10-06")
async def test_a_secure_link_speaks_tls_and_checks_who_answers(tmp_path: Path) -> None:
    made = self_signed(tmp_path)
    with plain_broker(tmp_path, made.section + 'authorization { token: "token" }') as port:
        link = parse_link(f"cotals://token@127.0.0.1:{port}/main")
        assert await answered(await dialled(link, ssl.create_default_context(cafile=made.certificate)))
        with pytest.raises(ConnectionFault):
            await dialled(link)


@pytest.mark.req("C10-06")
async def test_a_secure_link_takes_tls_also_where_a_broker_only_offers_it(tmp_path: Path) -> None:
    made = self_signed(tmp_path)
    with plain_broker(tmp_path, made.section + "allow_non_tls: true\n") as port:
        link = parse_link(f"cotals://127.0.0.1:{port}/main")
        assert await answered(await dialled(link, ssl.create_default_context(cafile=made.certificate)))
        with pytest.raises(ConnectionFault):
            await dialled(link)


@pytest.mark.req("C10-06")
async def test_a_secure_link_refuses_a_plaintext_broker(tmp_path: Path) -> None:
    with plain_broker(tmp_path, 'authorization { token: "token" }') as port:
        with pytest.raises(Stopped) as stopped:
            await dialled(parse_link(f"cotals://token@127.0.0.1:{port}/main"))
        assert stopped.value.fault is Fault.PLAINTEXT


@pytest.mark.req("C10-06")
@pytest.mark.parametrize("claims", [{}, {"tls_required": False, "tls_available": False}, {"tls_required": True}])
async def test_nothing_of_the_login_reaches_a_server_that_speaks_no_tls(claims: dict[str, bool]) -> None:
    async with greeter(version="2.12.0", **claims) as (url, lines):
        port = url.rpartition(":")[2]
        with pytest.raises(Stopped):
            await dialled(parse_link(f"cotals://s3cret@127.0.0.1:{port}/main"))
    assert b"s3cret" not in b"".join(lines)
    assert b"CONNECT" not in b"".join(lines)


@pytest.mark.req("C10-06", "C13.12-02")
async def test_a_token_is_shown_to_no_broker_below_the_floor() -> None:
    async with greeter(version="2.11.9") as (url, lines):
        port = url.rpartition(":")[2]
        with pytest.raises(Stopped) as stopped:
            await dialled(parse_link(f"cotal://s3cret@127.0.0.1:{port}/main"))
    assert stopped.value.fault is Fault.OLD_BROKER
    assert b"".join(lines) == b""


@pytest.mark.req("C10-08")
async def test_the_first_subscription_is_the_inbox() -> None:
    seen: asyncio.Queue[bytes] = asyncio.Queue()

    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"INFO " + json.dumps({"version": "2.12.0", "headers": True}).encode() + b"\r\n")
        while line := await reader.readline():
            if line.startswith(b"PING"):
                writer.write(b"PONG\r\n")
            elif not line.startswith(b"CONNECT"):
                seen.put_nowait(line)
        writer.close()

    server = await asyncio.start_server(greet, "127.0.0.1", 0)
    async with server:
        link = parse_link(f"cotal://127.0.0.1:{server.sockets[0].getsockname()[1]}/main")
        async with await dialled(link) as connection:
            asking = asyncio.create_task(connection.request("ask", b""))
            async with asyncio.timeout(EVENT_SECONDS):
                assert (await seen.get()).startswith(f"SUB _INBOX_{NONCE}.".encode())
            asking.cancel()
