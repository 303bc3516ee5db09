"""Which process an instance runs in: a token for each process and lifecycle, and when the process began (C6-15..20)."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from sidecar.rails.envelopes.presence import Runtime
from sidecar.rails.names import Lifecycle

_TOKEN_BYTES: Final = 16
_STARTED: Final = 19
"""Place of the start, in clock ticks since the boot, behind the name of the command in ``/proc/self/stat``."""


class Process:
    """One process: the same token for a lifecycle however often it is asked for, another one for every other lifecycle.

    It keeps one token for each lifecycle that it ever served, as none may come twice.
    """

    def __init__(self, started_ms: int, entropy: Callable[[int], bytes]) -> None:
        self._started_ms = started_ms
        self._entropy = entropy
        self._tokens: dict[str, str] = {}

    def runtime(self, lifecycle: Lifecycle) -> Runtime:
        """What the presence record of a lifecycle says of this process."""
        token = self._tokens.get(lifecycle.uid)
        if token is None:
            token = self._tokens[lifecycle.uid] = self._entropy(_TOKEN_BYTES).hex()
        return Runtime(token, self._started_ms)


def started_ms(proc: Path = Path("/proc")) -> int | None:
    """When this process began, in milliseconds since 1970; None where the system does not say it."""
    try:
        ticks = int((proc / "self/stat").read_text("ascii", "replace").rpartition(")")[2].split()[_STARTED])
        boot = next(line for line in (proc / "stat").read_text("ascii").splitlines() if line.startswith("btime "))
        return int(boot.split()[1]) * 1000 + ticks * 1000 // os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError, StopIteration):
        return None


_loaded_ms: Final = int(time.time() * 1000)
_current: tuple[int, Process] | None = None


def current_process(entropy: Callable[[int], bytes] = os.urandom) -> Process:
    """The process that calls: a child of a fork is another one."""
    global _current
    if _current is None or _current[0] != os.getpid():
        began = started_ms()
        _current = os.getpid(), Process(_loaded_ms if began is None else began, entropy)
    return _current[1]
