"""Calls on their way: the broker's word finds them, and two spellings of a subject are never under way at once."""

from __future__ import annotations

import asyncio

import pytest

from sidecar.rails.connection.calls import Calls
from sidecar.rails.connection.faults import Fault, NotConnected, PermissionViolation

pytestmark = pytest.mark.asyncio


async def test_another_spelling_waits_for_the_calls_before_it() -> None:
    calls = Calls()
    first, second = calls.begin("a.B"), calls.begin("a.B")
    assert first is not None
    assert second is not None
    assert calls.begin("a.b") is None
    entered = asyncio.Event()

    async def other() -> None:
        async with calls.under_way("a.b"):
            entered.set()

    waiting = asyncio.create_task(other())
    await asyncio.sleep(0)
    calls.end(first)
    await asyncio.sleep(0)
    assert not entered.is_set()
    calls.end(second)
    await waiting
    assert entered.is_set()
    assert calls.denied("a.b") is False


async def test_a_refusal_and_a_lost_link_reach_every_call_once() -> None:
    calls = Calls()
    refused, lost, answered = calls.begin("x.Y"), calls.begin("z"), calls.begin("w")
    assert refused is not None
    assert lost is not None
    assert answered is not None
    answered.take(b"1")
    answered.take(b"2")
    assert calls.denied("x.y") is True
    calls.fail_all(NotConnected(Fault.LOST, "gone"))
    with pytest.raises(PermissionViolation, match=r"x\.Y"):
        await refused.answer
    with pytest.raises(NotConnected):
        await lost.answer
    assert await answered.answer == b"1"
