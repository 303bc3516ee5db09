"""The writer of the own record: one encoding for every change, and a heartbeat that moves the time alone."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg

from sidecar.base.clock import Now
from sidecar.ops.metrics import Metrics
from sidecar.rails.envelopes.errors import EnvelopeError
from sidecar.rails.envelopes.presence import Card, Runtime, decode_presence, encode_presence
from sidecar.rails.envelopes.schema import EndpointKind, Status
from sidecar.rails.messaging.heartbeat import ASKED_EVERY, Heartbeat, OwnPresence
from sidecar.rails.names import InvalidName, Lifecycle, Principal

ALICE = Lifecycle(Principal("local", "alice"), "a" * 26)
CARD = Card("local.alice", 'Alice "ts":7', EndpointKind.AGENT)


class Desk:
    """A heartbeat that was not started, and its clock."""

    def __init__(self, **more: Any) -> None:
        self.wall = 1.0
        own = OwnPresence.begin(CARD, ALICE, Runtime("r", 5), 1_000)
        connection: Any = None  # nothing is written here
        self.beating = Heartbeat(
            connection, "main", replace(own, **more), clock=lambda: Now(self.wall, 0.0), metrics=Metrics()
        )


@pytest.mark.req("C6-07", "C6-22")
def test_a_heartbeat_is_the_record_of_its_moment() -> None:
    desk = Desk(activity='","ts":1}', environment='{"ts":2}')
    for wall in (1.0, 3.0, 5.5, 1_700_000_000.123):
        desk.wall = wall
        written = desk.beating._record()
        assert written == encode_presence(desk.beating.own.record(desk.beating.now_ms))
        assert decode_presence("local.alice", written).ts == int(wall * 1000)
    desk.beating.update(lambda own, now: own.doing(now, status=Status.WORKING))
    assert decode_presence("local.alice", desk.beating._record()).status is Status.WORKING
    desk.beating.update(lambda own, now: own.worked(now))
    assert decode_presence("local.alice", desk.beating._record()).active_at == desk.beating.now_ms


@pytest.mark.req("C6-10")
def test_progress_alone_waits_for_the_next_heartbeat() -> None:
    desk = Desk()
    desk.beating.update(lambda own, now: own.worked(now))
    assert not desk.beating._changed, "a token that came is no reason for a put"
    desk.beating.update(lambda own, now: own.worked(now + 1).doing(now, status=Status.WORKING))
    assert desk.beating._changed


@pytest.mark.req("C6-31")
def test_a_change_that_may_not_be_published_changes_nothing() -> None:
    desk = Desk()
    before = desk.beating.own
    with pytest.raises(EnvelopeError):
        desk.beating.update(lambda own, _: replace(own, activity="\ud800"))
    with pytest.raises(ValueError, match="never offline"):
        desk.beating.update(lambda own, now: own.doing(now, status=Status.OFFLINE))
    with pytest.raises(InvalidName):
        desk.beating.update(lambda own, _: own.tuned("a.>", None))
    assert desk.beating.own is before
    desk.beating.update(lambda own, _: own)
    assert desk.beating.own is before


class Broker:
    """What a heartbeat sees of its connection: a link that may be down, and answers."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.up = True
        self.answer = b'{"stream":"S","seq":1}'

    def offer(self, subject: str, data: bytes) -> bool:
        if self.up:
            self.log.append("sent")
        return self.up

    async def request(self, subject: str, data: bytes, **_: object) -> Any:
        self.log.append("asked")
        return Msg(_client=Client(), subject="", data=self.answer)

    def store_refused(self, kind: str) -> None:
        self.log.append(kind)


def test_a_record_that_says_nothing_new_asks_the_broker_once_in_a_liveness_window() -> None:
    desk, broker = Desk(), Broker()
    desk.beating._connection = broker  # type: ignore[assignment]

    async def beats(count: int) -> list[str]:
        broker.log.clear()
        for _ in range(count):
            assert await desk.beating._beat()
        return list(broker.log)

    async def run() -> None:
        assert ASKED_EVERY == 3
        assert await beats(7) == ["asked", "sent", "sent", "asked", "sent", "sent", "asked"]
        desk.beating.update(lambda own, now: own.doing(now, activity="tests"))
        assert await beats(2) == ["asked", "sent"], "a change asks at once"
        broker.up = False
        assert await beats(2) == ["asked", "asked"], "who is not linked asks, and waits for no longer than an interval"
        broker.up, broker.answer = True, b'{"error":{"err_code":10077}}'
        assert await beats(4) == ["sent", "sent", "asked", "full", "asked", "full"], "what failed is asked for again"
        broker.answer = b'{"stream":"S","seq":1}'
        assert await beats(2) == ["asked", "sent"]

    asyncio.run(run())
