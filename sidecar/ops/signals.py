"""Stop requests of the operating system: before an event loop runs, and delivered on one."""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import signal
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Self

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class StopRequested(Exception):  # noqa: N818 - what happened
    """SIGTERM or SIGINT came."""


class StopRequest:
    """Notes SIGTERM and SIGINT while no event loop runs, instead of dying; as a context manager, in the main thread.

    What is under way goes on until it asks, so that nothing is lost half done.
    """

    def __init__(self) -> None:
        self.requested = False

    def check(self) -> None:
        """Raises StopRequested when a stop was requested."""
        if self.requested:
            raise StopRequested

    def sleep(self, seconds: float) -> None:
        """Wait so long, or until a stop is requested: then raises StopRequested at once."""
        select.select([self._reader], [], [], seconds)
        self.check()

    def __enter__(self) -> Self:
        self._reader, self._writer = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._before = {number: signal.signal(number, self._note) for number in STOP_SIGNALS}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        os.close(self._reader)
        os.close(self._writer)

    def _note(self, _number: int, _frame: FrameType | None) -> None:
        self.requested = True
        with contextlib.suppress(BlockingIOError):  # full: whoever sleeps is woken already
            os.write(self._writer, b"\0")


def on_stop(loop: asyncio.AbstractEventLoop, callback: Callable[[signal.Signals], None]) -> Callable[[], None]:
    """Call `callback` on the loop for SIGTERM and SIGINT instead of dying. The returned function undoes it."""
    before = {number: signal.getsignal(number) for number in STOP_SIGNALS}
    for number in STOP_SIGNALS:
        loop.add_signal_handler(number, callback, number)

    def undo() -> None:
        for number, handler in before.items():
            loop.remove_signal_handler(number)
            if handler is not None:  # one that is not Python's cannot be put back
                signal.signal(number, handler)

    return undo
