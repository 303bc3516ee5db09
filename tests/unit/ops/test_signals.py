"""Stop requests and exit codes."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest

from sidecar.ops.exitcodes import ExitCode, documentation
from sidecar.ops.signals import on_stop


@pytest.mark.asyncio
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_stop_signals_are_delivered_on_the_loop(number: signal.Signals) -> None:
    loop = asyncio.get_running_loop()
    seen: asyncio.Future[signal.Signals] = loop.create_future()
    before = signal.getsignal(number)
    undo = on_stop(loop, seen.set_result)
    os.kill(os.getpid(), number)
    assert await asyncio.wait_for(seen, 10) is number
    undo()
    assert signal.getsignal(number) in (before, signal.SIG_DFL, signal.default_int_handler)


def test_every_exit_code_is_explained() -> None:
    assert documentation().count("\n") == len(ExitCode) - 1
    assert [code.value for code in ExitCode] == [0, 1, 2, 69, 73, 74, 75, 78]
    assert all(code.help_text for code in ExitCode)
