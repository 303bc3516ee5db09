"""What a handler is given: the honest outcome of a refusal, and the time that is left."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from sidecar.rails.endpoint.call import Call
from sidecar.rails.endpoint.codes import CallFailed, Code, Outcome
from sidecar.rails.endpoint.events import Event, EventInvalid
from sidecar.rails.endpoint.schemas import schema
from sidecar.rails.names import InvalidName
from sidecar.rails.names.principals import Lifecycle, Principal

ALICE = Lifecycle(Principal("local", "alice"), "a1" * 13)


@pytest.mark.req("C13.3-42", "C13.3-44", "C13.3-45")
def test_a_refusal_says_not_executed_until_an_effect_may_have_begun() -> None:
    call = Call(ALICE, "alice", None, "r1")
    before = call.refuse(Code.CONFLICT, "no", ({"kind": "com.acme.why"},))
    assert (before.code, before.outcome, before.details) == (
        Code.CONFLICT,
        Outcome.NOT_EXECUTED,
        ({"kind": "com.acme.why"},),
    )
    call.effect()
    assert call.refuse(Code.CONFLICT, "no").outcome is Outcome.UNKNOWN


@pytest.mark.asyncio
async def test_the_time_that_is_left_is_never_negative() -> None:
    now = asyncio.get_running_loop().time()
    assert Call(ALICE, "alice", None, "r1").seconds_left == float("inf")
    assert 0 < Call(ALICE, "alice", None, "r1", deadline=now + 60).seconds_left <= 60
    assert Call(ALICE, "alice", None, "r1", deadline=now - 1).seconds_left == 0.0


@pytest.mark.asyncio
@pytest.mark.req("C13.3-47", "C13.3-30")
async def test_nothing_is_asked_of_others_without_time_for_it() -> None:
    asked = []

    class Other:
        async def call(self, *args: Any, **more: Any) -> Any:
            asked.append((args, more))

    now = asyncio.get_running_loop().time()
    with pytest.raises(CallFailed) as late:
        await Call(ALICE, "alice", None, "r1", deadline=now - 1).ask(Other(), "com.acme.next", "do")
    assert (late.value.code, late.value.outcome) == (Code.DEADLINE_EXCEEDED, Outcome.NOT_EXECUTED)
    assert not asked
    await Call(ALICE, "alice", None, "r1", deadline=now + 60).ask(Other(), "com.acme.next", "do", seconds=5.0)
    assert asked == [(("com.acme.next", "do", None), {"seconds": 5.0, "correlation": None})]


@pytest.mark.asyncio
@pytest.mark.req("C13.3-45")
async def test_an_event_is_an_effect_whatever_becomes_of_it() -> None:
    event = Event("com.acme.lab", "counted", schema({"type": "integer"}))

    class Broken:
        async def emit(self, *_: Any) -> int:
            raise EventInvalid("no")

    call = Call(ALICE, "alice", None, "r1", emits=Broken())
    with pytest.raises(EventInvalid):
        await call.emit(event, "x")
    assert call.refuse(Code.CONFLICT, "no").outcome is Outcome.UNKNOWN
    alone = Call(ALICE, "alice", None, "r1")
    with pytest.raises(RuntimeError):
        await alone.emit(event, 1)
    assert not alone.begun


@pytest.mark.req("C13.3-54", "C13.7-07")
def test_an_event_holds_what_it_declares_and_what_json_can_hold() -> None:
    event = Event("com.acme-x.lab", "counted", schema({}))
    assert event.encode({"n": 1}, 7, None) == b'{"v":1,"topic":"ev.com_acme-x_lab.counted","ts":7,"data":{"n":1}}'
    assert event.encode(None, 7, {"baggage": "a=1"}).endswith(b'"data":null,"correlation":{"baggage":"a=1"}}')
    for wrong in (2**53, float("nan"), {"a": b"x"}, {1: 2}):
        with pytest.raises(EventInvalid):
            event.encode(wrong, 7, None)  # type: ignore[arg-type]
    with pytest.raises(EventInvalid):
        Event("com.acme.lab", "counted", schema({"type": "integer"})).encode("x", 7, None)
    for cluster, name in (("com.acme", "a.b"), ("com.acme", ""), ("Com", "a"), ("a." * 40 + "b", "a")):
        with pytest.raises(InvalidName):
            Event(cluster, name, schema({}))
