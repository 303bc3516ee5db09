"""The two clocks."""

from __future__ import annotations

import time

from sidecar.base.clock import Now, system_now


def test_both_clocks_are_read() -> None:
    wall, mono = time.time(), time.monotonic()
    now = system_now()
    assert wall <= now.wall <= time.time()
    assert mono <= now.mono <= time.monotonic()
    assert system_now().mono >= now.mono
    assert Now(1.0, 2.0) == Now(wall=1.0, mono=2.0)
