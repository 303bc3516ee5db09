"""Rosters and registries from the pages of the delivery plane: whole, or an error."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Sequence
from typing import Any

import pytest

from sidecar.base.clock import Now
from sidecar.base.strictjson import JsonValue
from sidecar.ops.logging import Log
from sidecar.ops.metrics import Metrics
from sidecar.rails.endpoint.codes import CallFailed, CallRefused, Code, Outcome
from sidecar.rails.messaging import reads_mediated
from sidecar.rails.messaging.reads import Reading
from sidecar.rails.messaging.reads_mediated import MediatedReads
from sidecar.rails.messaging.registry import ChannelConfig, DeliveryClass, RegistryUnreadable
from sidecar.rails.messaging.roster import RosterUnreadable

pytestmark = pytest.mark.asyncio


class Plane:
    """Answers in turn; an exception is raised. What was asked is kept."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.asked: list[tuple[str, str, Any]] = []

    async def call(
        self, endpoint: str, command: str, args: dict[str, JsonValue] | None = None, *, seconds: float = 5.0
    ) -> JsonValue:
        self.asked.append((endpoint, command, args))
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        found: JsonValue = answer
        return found


class Room:
    """The reads of one member over such a plane."""

    def __init__(self, *answers: Any) -> None:
        self.plane = Plane(*answers)
        self.metrics = Metrics()
        self.log = io.StringIO()
        self.reads = MediatedReads(self.plane, Reading(lambda: Now(1_000.0, 5.0), self.metrics, Log(self.log)))


def entries(*actors: str, **more: Any) -> list[dict[str, Any]]:
    def one(actor: str) -> dict[str, Any]:
        value = {"card": {"id": f"local.{actor}", "name": actor}, "status": "idle", "ts": 1_000_000, **more}
        return {"key": f"local.{actor}", "value": base64.b64encode(json.dumps(value).encode()).decode(), "revision": 1}

    return [one(actor) for actor in actors]


@pytest.mark.req("C6-46", "C6-47", "C9-47")
async def test_a_roster_is_every_page_of_it() -> None:
    bad = entries("eve", status="busy")
    here = Room({"entries": entries("a", "b"), "next": "local.b"}, {"entries": [*entries("c"), *bad]})
    roster = await here.reads.roster()
    assert [row.principal.actor for row in roster.live] == ["a", "b", "c"]
    assert [one.key for one in roster.dropped] == ["local.eve"]
    assert here.plane.asked == [
        ("delivery", "read-roster", {}),
        ("delivery", "read-roster", {"after": "local.b"}),
    ]
    assert here.metrics.totals("messaging_presence_dropped") == {(): 1.0}
    assert here.metrics.totals("messaging_reads") == {("roster", "complete"): 1.0}
    assert json.loads(here.log.getvalue())["event"] == "presence_dropped"


FAILURES: Sequence[Any] = (
    CallFailed(Code.DEADLINE_EXCEEDED, "no answer", Outcome.UNKNOWN),
    CallRefused(Code.PERMISSION_DENIED, "not yours", Outcome.NOT_EXECUTED),
    None,
    [],
    {},
    {"entries": 7},
    {"entries": [{}]},
    {"entries": [{"key": "local.c", "value": "!"}]},
    {"entries": [], "next": 7},
    {"entries": [], "next": "local.a"},
    {"entries": [], "next": ""},
)


@pytest.mark.req("C6-47")
@pytest.mark.parametrize("failure", FAILURES, ids=repr)
async def test_a_roster_that_was_not_read_to_its_end_is_none(failure: Any) -> None:
    here = Room({"entries": entries("a"), "next": "local.a"}, failure)
    with pytest.raises(RosterUnreadable):
        await here.reads.roster()
    assert here.metrics.totals("messaging_reads") == {("roster", "unreadable"): 1.0}


async def test_pages_without_an_end_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reads_mediated, "MAX_PAGES", 3)
    here = Room(*({"entries": [], "next": f"k{n}"} for n in range(4)))
    with pytest.raises(RosterUnreadable, match="more than 3 pages"):
        await here.reads.roster()
    assert len(here.plane.asked) == 3


@pytest.mark.req("C7-10", "C9-47")
async def test_a_registry_is_every_page_of_it() -> None:
    first = {"channel": "team.a", "config": {"deliveryClass": "live"}}
    odd = [{"channel": "no/channel", "config": {}}, {"channel": "team.b", "config": {"replay": 1}}]
    here = Room(
        {"defaults": {"replay": False, "description": "x"}, "channels": [first], "next": "team.a"},
        {"defaults": {"replay": False}, "channels": odd},
    )
    registry = await here.reads.registry()
    assert registry.defaults == ChannelConfig(replay=False)
    assert registry.effective("team.a") == (False, None, DeliveryClass.LIVE)
    assert registry.effective("team.b") == (False, None, DeliveryClass.DURABLE)
    assert sorted(registry.channels) == ["team.a", "team.b"]
    assert {one.key for one in registry.unread} == {"no/channel", "team.b"}
    assert here.metrics.totals("messaging_registry_unread") == {(): 2.0}


@pytest.mark.parametrize("failure", [FAILURES[0], {"channels": [{}]}, {"defaults": None}, "x"], ids=repr)
async def test_a_registry_that_was_not_read_to_its_end_is_none(failure: Any) -> None:
    here = Room({"defaults": None, "channels": [], "next": "a"}, failure)
    with pytest.raises(RegistryUnreadable):
        await here.reads.registry()
