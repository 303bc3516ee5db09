"""The witness's clocks: Unix time, and time since boot, which no operator and no NTP step can move."""

from __future__ import annotations

import time
import uuid
from pathlib import Path
from typing import Final

from sidecar.witness.state import Instant

_BOOT_ID_FILE: Final = Path("/proc/sys/kernel/random/boot_id")


def read_boot_id() -> bytes:
    """The 16 bytes that name this boot of the kernel; OSError or ValueError when the kernel does not tell."""
    return uuid.UUID(_BOOT_ID_FILE.read_text(encoding="ascii").strip()).bytes


class SystemClock:
    """Reads both clocks; the boot's name is read once."""

    def __init__(self) -> None:
        self._boot_id = read_boot_id()

    def __call__(self) -> Instant:
        return Instant(time.time_ns(), time.clock_gettime_ns(time.CLOCK_BOOTTIME), self._boot_id)
