"""Frames without a reply channel: out of scope they do and close nothing (W8-04); credit acknowledges nothing."""

from __future__ import annotations

import pytest

from sidecar.coordinator.authority.grants import EMPTY
from sidecar.coordinator.wire import frames as fr
from sidecar.coordinator.wire.enums import ErrorCode, FrameType, GapReason, ObjectKind, Scope
from tests.unit.engine.harness import ALL_SCOPES, Client, World, make

VISIBLE = {Scope.WORK_READ: [ObjectKind.OBJECTIVE], Scope.ADMIN: [ObjectKind.OPERATION]}
"""What each scope alone shows of a command of another principal."""


@pytest.mark.req("W8-04")
def test_which_frames_of_an_active_client_have_no_reply_channel() -> None:
    frames = {
        shape.TYPE
        for shape in fr.FRAMES.values()
        if shape.ROW.direction in ("c", "both") and "ACT" in shape.ROW.legal
        if not any(item.name == "request_id" for item in shape.FIELDS)
    }
    assert frames == {FrameType.CREDIT, FrameType.COORD_PING, FrameType.COORD_PONG}


@pytest.mark.req("W8-04")
@pytest.mark.parametrize("scope", list(Scope))
def test_outside_of_its_scopes_credit_has_no_effect_and_closes_nothing(scope: Scope) -> None:
    world = World()
    client, maker = world.connect(1, scopes=scope), world.connect(2)
    subscription = client.live(0, 0, 0)
    make(maker, 1)
    client.ask(client.credit(subscription, 10, 10_000))
    assert [event.object.kind for event in client.events()] == VISIBLE.get(scope, [])
    assert [type(frame) for frame in client.ask(fr.CoordPong(nonce=1))] == []
    assert client.one(fr.CoordPing(nonce=2), fr.CoordPong).nonce == 2
    assert client.errors() == []
    assert client.gaps() == []
    assert client.conn.closing is None


@pytest.mark.req("W8-04", "W8-07")
@pytest.mark.parametrize("how", ["expired", "removed"])
def test_credit_under_a_grant_that_is_gone_is_dropped_before_its_effect(how: str) -> None:
    world = World()
    client, maker = world.connect(1, expires_in=10), world.connect(2)
    subscription = client.live(0, 0, 0)
    make(maker, 1)
    if how == "expired":
        world.advance(10, tick=False)
    else:
        # The engine learns of it with the frame itself.
        world.engine._runtime.registry = EMPTY
    client.send(client.credit(subscription, 10, 10_000))
    assert client.conn.closing is ErrorCode.AUTHENTICATION_FAILED
    tail = client.pull()
    assert [type(frame) for frame in tail] == [fr.Gap, fr.CoordErrorFrame]
    assert client.gaps()[0].reason is GapReason.GRANT_REVOKED
    assert client.errors()[0].code is ErrorCode.AUTHENTICATION_FAILED
    assert client.events() == []


def retained(world: World, client: Client) -> tuple[int, list[int]]:
    """First retained event, and what one more subscription from the beginning is given."""
    before = len(client.events())
    client.ask(client.subscribe(0, 1_000, 1 << 20))
    return world.engine.stats().retained_from, [event.event_sequence for event in client.events()[before:]]


@pytest.mark.req("P10-10")
def test_credit_acknowledges_nothing_what_was_sent_is_kept_all_the_same() -> None:
    found = []
    for credit in (0, 1, 1_000):
        world = World()
        client = world.connect(scopes=ALL_SCOPES)
        subscription = client.live(0, 0, 0)
        make(client, 5)
        for _ in range(3):
            client.ask(client.credit(subscription, credit, 300 * credit))
        operations = dict(world.disk.operations)
        found.append((*retained(world, world.connect(1)), len(operations), len(world.disk.events)))
    assert found[0] == found[1] == found[2] == (1, list(range(1, 11)), 5, 10)
