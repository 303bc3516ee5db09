"""What is concluded from the answers of the servers: the reasons for which an eviction is not verified."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from nats.aio.client import Client

from sidecar.rails.names.principals import Principal
from sidecar.rails.planes.registration import eviction

pytestmark = pytest.mark.asyncio
WHO = Principal("local", "ep_x")
TOKEN = "token"


def statistics(count: int) -> bytes:
    return json.dumps({"server": {"id": "a"}, "statsz": {"active_servers": count}}).encode()


def page(total: int, *rows: dict[str, Any]) -> bytes:
    listed = [{"cid": cid, **row} for cid, row in enumerate(rows)]
    return json.dumps({"server": {"id": "a"}, "data": {"total": total, "offset": 0, "connections": listed}}).encode()


@pytest.mark.req("C13.1-034", "C13.1-031", "C13.1-051")
@pytest.mark.parametrize(
    ("count", "known", "connections", "why"),
    [
        (1, TOKEN, page(0), ""),
        (1, TOKEN, page(1, {"authorized_user": "UB", "tags": ["x"]}), ""),
        (0, TOKEN, page(0), "how many"),
        (1, "old", page(0), "revocation"),
        (1, TOKEN, page(1), "not complete"),
        (1, TOKEN, b"{}", "not complete"),
        (1, TOKEN, page(1, {"authorized_user": "UA"}), "still connected"),
        (1, TOKEN, page(1, {"authorized_user": "UB", "tags": list(WHO.tags)}), "still connected"),
    ],
)
async def test_only_a_complete_answer_without_the_holders_verifies(
    monkeypatch: pytest.MonkeyPatch, count: int, known: str, connections: bytes, why: str
) -> None:
    """No broker of a test gives an answer that misses something, so these are written down."""
    script: dict[str, Callable[[], bytes]] = {
        "STATSZ": lambda: statistics(count),
        "LOOKUP": lambda: known.encode(),
        "CONNZ": lambda: connections,
    }

    async def answers(_: Client, subject: str, *__: Any) -> list[bytes]:
        return [script[subject.rpartition(".")[2]]()]

    monkeypatch.setattr(eviction, "ask_all", answers)
    found = await eviction._look(Client(), "A" * 56, TOKEN, {"UA"}, {WHO})
    assert (why in found) if why else not found
