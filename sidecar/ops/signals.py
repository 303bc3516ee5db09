"""Stop requests of the operating system, delivered on the event loop."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)


def on_stop(loop: asyncio.AbstractEventLoop, callback: Callable[[signal.Signals], None]) -> Callable[[], None]:
    """Call `callback` on the loop for SIGTERM and SIGINT instead of dying. The returned function undoes it."""
    for number in STOP_SIGNALS:
        loop.add_signal_handler(number, callback, number)

    def undo() -> None:
        for number in STOP_SIGNALS:
            loop.remove_signal_handler(number)

    return undo
