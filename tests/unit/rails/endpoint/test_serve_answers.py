"""Answers that cannot go out at once: so many wait, and what is lost is counted."""

from __future__ import annotations

import asyncio
import io
from typing import Any

import pytest

from sidecar.ops.logging import Log
from sidecar.ops.metrics import Metrics
from sidecar.rails.connection import Fault, NotConnected
from sidecar.rails.endpoint.envelope import decode_reply
from sidecar.rails.endpoint.serve_answers import Answers


class Clogged:
    """A link that takes nothing until it is told to."""

    max_payload = 256

    def __init__(self) -> None:
        self.opened, self.broken = asyncio.Event(), False
        self.sent: list[bytes] = []

    def offer(self, subject: str, data: bytes) -> bool:
        return False

    async def send(self, subject: str, data: bytes) -> None:
        await self.opened.wait()
        if self.broken:
            raise NotConnected(Fault.LOST, "gone")
        self.sent.append(data)


@pytest.mark.asyncio
@pytest.mark.req("C13.8-50", "C13.3-18")
async def test_so_many_answers_wait_and_the_rest_are_counted() -> None:
    link, metrics, log = Clogged(), Metrics(), io.StringIO()
    connection: Any = link
    answers = Answers(connection, metrics, Log(log), most=2)
    answers.give(None, "cast", b"never")
    for number in range(5):
        answers.give("reply", f"r{number}", b"%d" % number)
    await asyncio.sleep(0)
    assert metrics.totals("endpoint_answers_lost") == {("overflow",): 3}
    link.opened.set()
    await answers.settle(5)
    assert link.sent == [b"0", b"1"]
    link.broken = True
    answers.give("reply", "r5", b"5")
    await answers.settle(5)
    assert metrics.totals("endpoint_answers_lost") == {("overflow",): 3, ("not_connected",): 1}
    link.broken = False
    answers.give("reply", "r6", b"x" * 257)
    await answers.settle(5)
    refused = decode_reply(link.sent[-1])
    assert refused.id == "r6"
    assert refused.error is not None
    assert (refused.error.code, refused.error.outcome) == ("resource-exhausted", "executed")


@pytest.mark.asyncio
@pytest.mark.req("C13.8-50")
async def test_so_many_bytes_of_answers_wait() -> None:
    link, metrics = Clogged(), Metrics()
    connection: Any = link
    answers = Answers(connection, metrics, Log(io.StringIO()), most_bytes=500)
    for number in range(3):
        answers.give("reply", f"r{number}", b"x" * 200)
    await asyncio.sleep(0)
    assert metrics.totals("endpoint_answers_lost") == {("overflow",): 1}
    link.opened.set()
    await answers.settle(5)
    answers.give("reply", "r4", b"y" * 200)
    await answers.settle(5)
    assert len(link.sent) == 3
    assert metrics.totals("endpoint_answers_lost") == {("overflow",): 1}


@pytest.mark.asyncio
async def test_answers_that_never_go_out_are_given_up() -> None:
    connection: Any = Clogged()
    answers = Answers(connection, Metrics(), Log(io.StringIO()))
    answers.give("reply", "r1", b"1")
    await answers.settle(0.01)
    assert all(task.cancelled() for task in answers._sending)
