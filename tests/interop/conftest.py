"""One server for each file of tests; every test logs in anew."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.interop.phux.client import Client
from tests.interop.server import Server, running


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with running() as started:
        yield started


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    """A client that may read and command, with every capability that the server has."""
    with server.client(capabilities=0x1F) as connected:
        yield connected


@pytest.fixture
def writer(server: Server) -> Iterator[Client]:
    """Another connection of the same principal."""
    with server.client() as connected:
        yield connected
