"""The writer of the own record: one encoding for every change, and a heartbeat that moves the time alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from sidecar.base.clock import Now
from sidecar.ops.metrics import Metrics
from sidecar.rails.envelopes.errors import EnvelopeError
from sidecar.rails.envelopes.presence import Card, Runtime, decode_presence, encode_presence
from sidecar.rails.envelopes.schema import EndpointKind, Status
from sidecar.rails.messaging.heartbeat import Heartbeat, OwnPresence
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
