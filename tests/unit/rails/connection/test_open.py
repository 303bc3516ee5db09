"""Opening a connection: what is refused before anything is tried."""

from __future__ import annotations

import asyncio
from typing import NoReturn

import pytest

from sidecar.rails.connection import Connection


async def never() -> NoReturn:
    raise AssertionError("nobody is asked for credentials")


def test_an_address_that_is_no_list_is_refused_at_once() -> None:
    with pytest.raises(TypeError, match="list of texts"):
        asyncio.run(Connection.open("nats://127.0.0.1:4222", never))
