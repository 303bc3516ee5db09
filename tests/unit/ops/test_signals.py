"""Stop requests and exit codes."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest

from sidecar.ops.exitcodes import ExitCode, documentation
from sidecar.ops.signals import StopRequest, StopRequested, on_stop


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


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_without_a_loop_a_stop_is_noted_and_ends_a_wait(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with StopRequest() as stop:
        stop.check()
        for _ in range(3):
            os.kill(os.getpid(), number)
        assert stop.requested
        with pytest.raises(StopRequested):
            stop.sleep(3600)
        with pytest.raises(StopRequested):
            stop.check()
    assert signal.getsignal(number) is before


@pytest.mark.asyncio
async def test_a_stop_request_is_noted_again_when_the_loop_gives_the_signals_back() -> None:
    with StopRequest() as stop:
        on_stop(asyncio.get_running_loop(), lambda _: None)()
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.requested


def test_every_exit_code_is_explained() -> None:
    assert documentation().count("\n") == len(ExitCode) - 1
    assert [code.value for code in ExitCode] == [0, 1, 2, 69, 73, 74, 75, 78]
    assert all(code.help_text for code in ExitCode)
