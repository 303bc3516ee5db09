"""The two clocks as one value, so that cores receive time instead of reading it."""

from __future__ import annotations

import time
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Now:
    """One reading of both clocks: ``wall`` in Unix seconds, ``mono`` in seconds of the monotonic clock.

    Policy times (expiry, retention) are compared with ``wall``; durations and local deadlines with ``mono``.
    """

    wall: float
    mono: float


def system_now() -> Now:
    """Read the system's clocks."""
    return Now(time.time(), time.monotonic())
