"""The generation with which the listing is asked for: from the accepted row of the very connection, or not at all."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sidecar.base.clock import system_now
from sidecar.rails.connection import Connection, Credentials
from sidecar.rails.connection.kv import Unreadable
from sidecar.rails.connection.logins import OpenLogin
from sidecar.rails.connection.publishing import store
from sidecar.rails.endpoint.login import Login, NoListing, listing_generation
from sidecar.rails.messaging.identity import Identity
from sidecar.rails.names import api, buckets
from sidecar.rails.names.principals import Lifecycle, Principal
from sidecar.rails.space.creds import format_creds
from sidecar.rails.space.evidence import Reference, accepted_subject, accepted_value, listing_token, new_generation
from sidecar.rails.space.holder import Form, Holder, Profile
from sidecar.rails.space.trust import SpaceTrust, new_user
from tests.e2e.plain_broker import plain_broker

pytestmark = pytest.mark.asyncio(loop_scope="function")
ALICE = Lifecycle(Principal("local", "alice"), "a" * 26)
ENDS = int(system_now().wall) + 600
HERE = Identity("main", Form.COMPATIBLE, ALICE, "U" + "A" * 55, (), (), (), ENDS)


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    with plain_broker(tmp_path_factory.mktemp("accepted")) as port:
        yield port


@contextlib.asynccontextmanager
async def accepted(port: int, space: str, row: Any = None) -> AsyncIterator[Connection]:
    """A connection to a space whose accepted store holds one row for it, if any."""

    async def mint() -> OpenLogin:
        return OpenLogin("callers1")

    async with await Connection.open([f"nats://127.0.0.1:{port}"], mint) as connection:
        name = buckets.ACCEPTED.stream(space)
        body = {"name": name, "subjects": [buckets.ACCEPTED.everything(space)], "allow_direct": True}
        await connection.request(api.STREAM_CREATE.build(stream=name), json.dumps(body).encode())
        if row is not None:
            data = row if isinstance(row, bytes) else json.dumps(row).encode()
            await store(connection, accepted_subject(space, listing_token(HERE.connection, ENDS)), data)
        yield connection


def named(space: str, lifecycle: Lifecycle = ALICE, ends: int = ENDS) -> dict[str, Any]:
    return accepted_value(Reference(space, lifecycle, new_generation(ends, os.urandom)))


@pytest.mark.req("C13.15-11", "C13.15-30")
async def test_the_generation_is_that_of_the_row_of_this_connection(port: int) -> None:
    row = named("own")
    async with accepted(port, "own", row) as connection:
        identity = replace(HERE, space="own")
        assert await listing_generation(connection, identity, system_now) == row["ref"]["generation"]
        with pytest.raises(NoListing):  # a renewed credential ends at another instant, and derives another key
            await listing_generation(connection, replace(identity, expires_at=ENDS + 1), system_now)
        with pytest.raises(NoListing):
            await listing_generation(connection, replace(identity, connection="U" + "B" * 55), system_now)


@pytest.mark.req("C13.15-11")
@pytest.mark.parametrize(
    ("space", "lifecycle"),
    [
        ("owner", Lifecycle(Principal("u_" + "a" * 26, "alice"), "a" * 26)),
        ("actor", Lifecycle(Principal("local", "mallory"), "a" * 26)),
        ("uid", Lifecycle(Principal("local", "alice"), "b" * 26)),
    ],
)
async def test_a_row_that_names_somebody_else_is_refused(port: int, space: str, lifecycle: Lifecycle) -> None:
    async with accepted(port, space, named(space, lifecycle)) as connection:
        with pytest.raises(NoListing, match="somebody else's"):
            await listing_generation(connection, replace(HERE, space=space), system_now)


@pytest.mark.req("C13.15-11", "C13.15-03")
async def test_a_row_of_another_space_or_one_that_has_ended_is_refused(port: int) -> None:
    async with accepted(port, "other", named("elsewhere")) as connection:
        with pytest.raises(NoListing):
            await listing_generation(connection, replace(HERE, space="other"), system_now)
    async with accepted(port, "late", named("late")) as connection:

        def later() -> Any:
            return replace(system_now(), wall=ENDS + 1)

        with pytest.raises(NoListing):
            await listing_generation(connection, replace(HERE, space="late"), later)


@pytest.mark.req("C13.15-11")
@pytest.mark.parametrize(
    "row", [b"{", b"null", b'{"version":2,"ref":{}}', json.dumps({"generation": "0" * 32}).encode()]
)
async def test_a_row_that_is_none_is_not_believed(port: int, row: bytes) -> None:
    space = f"bad{len(row)}"
    async with accepted(port, space, row) as connection:
        with pytest.raises(Unreadable):
            await listing_generation(connection, replace(HERE, space=space), system_now)


@pytest.mark.req("C13.15-28")
async def test_without_a_row_there_is_no_listing(port: int) -> None:
    async with accepted(port, "none") as connection:
        with pytest.raises(NoListing):
            await listing_generation(connection, replace(HERE, space="none"), system_now)
        with pytest.raises(Unreadable):  # no store answers
            await listing_generation(connection, replace(HERE, space="missing"), system_now)


@pytest.mark.req("C13.15-11", "C13.15-28")
async def test_a_renewed_credential_asks_by_its_own_generation(port: int, tmp_path: Path) -> None:
    trust, user = SpaceTrust.open(tmp_path / "renewed", "renewed", os.urandom), new_user(os.urandom)
    holder = Holder("renewed", ALICE, user.public, Form.COMPATIBLE)
    ends = iter((ENDS, ENDS, ENDS + 60))

    async def mint() -> Credentials:
        end = next(ends)
        token = trust.issue(Profile.AGENT, holder, user, ENDS - 600, end - ENDS + 600)
        return Credentials(format_creds(token, user), end)

    login = Login(mint, system_now)
    async with accepted(port, "renewed") as connection:
        rows = {}
        for end in (ENDS, ENDS + 60):
            rows[end] = named("renewed", ends=end)["ref"]["generation"]
            data = json.dumps(accepted_value(Reference("renewed", ALICE, rows[end]))).encode()
            await store(connection, accepted_subject("renewed", listing_token(user.public, end)), data)
        assert (await login.read()).expires_at == ENDS
        for end in (ENDS, ENDS, ENDS + 60):
            await login()
            assert await login.generation(connection) == rows[end]
