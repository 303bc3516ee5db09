"""What a broker must be at least, judged by what it says of itself before anybody logs in (C13.12-02, C13.12-06)."""

from __future__ import annotations

import re
from typing import Final

from sidecar.rails.names.limits import MIN_BROKER

MIN_PAYLOAD: Final = 256 * 1024 + 16 * 1024
"""Bytes of the largest body, and a margin for its envelope."""
_VERSION: Final = re.compile(r"([0-9]{1,6})\.([0-9]{1,6})\.[0-9]")


def floor_faults(version: object, max_payload: object) -> list[str]:
    """Why a broker cannot be used; empty when it can. The values are those of its INFO, absent ones None."""
    faults = []
    match = _VERSION.match(version) if isinstance(version, str) else None
    wanted = ".".join(map(str, MIN_BROKER))
    if match is None:
        faults.append(f"it does not say its version; {wanted} or newer is needed")
    elif (int(match[1]), int(match[2])) < MIN_BROKER:
        faults.append(f"it is version {match[1]}.{match[2]}; {wanted} or newer is needed")
    if not isinstance(max_payload, int) or max_payload < MIN_PAYLOAD:
        faults.append(f"its max_payload is below {MIN_PAYLOAD} bytes")
    return faults
