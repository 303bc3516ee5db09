"""How work at a terminal ends when it is asked to."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest

from sidecar.cli.main import INTERRUPTED
from sidecar.cli.messaging_target import run


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_work_that_waits_for_an_answer_ends_at_once(number: signal.Signals) -> None:
    async def work(_: asyncio.Event) -> None:
        os.kill(os.getpid(), number)
        await asyncio.Event().wait()

    assert run(work) == INTERRUPTED


def test_work_that_follows_ends_by_itself() -> None:
    async def work(stop: asyncio.Event) -> int:
        os.kill(os.getpid(), signal.SIGINT)
        await stop.wait()
        return 3

    assert run(work, follows=True) == 3


def test_who_asks_twice_does_not_wait() -> None:
    async def work(stop: asyncio.Event) -> None:
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGINT)
            await stop.wait()
        await asyncio.Event().wait()

    assert run(work, follows=True) == INTERRUPTED
