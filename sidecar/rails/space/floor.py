"""What a broker must be at least, judged by what it says of itself before anybody logs in (C13.12-02, C13.12-06)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from sidecar.rails.names.limits import MIN_BROKER

LARGEST_CONNECT_LINE: Final = 62_768
"""Bytes of the CONNECT line of the largest fixture (C13.9-015); a test holds it to what the fixtures are."""
MIN_CONTROL_LINE: Final = LARGEST_CONNECT_LINE + 2048
"""What a server's ``max_control_line`` must be at least, with a margin for the names of a client (C13.12-04)."""
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


def server_faults(figures: Mapping[str, object]) -> list[str]:
    """Why a server cannot be used, from its own figures (VARZ): also what no client can see (C13.12-04, C13.12-06)."""
    faults = floor_faults(figures.get("version"), figures.get("max_payload"))
    line = figures.get("max_control_line")
    if type(line) is not int or line < MIN_CONTROL_LINE:
        faults.append(f"its max_control_line is {line!r}; the largest login needs {MIN_CONTROL_LINE} bytes")
    return faults
