"""The trace of a call: W3C Trace Context, made by the caller or carried on from what it was called with (C13.3-32).

Pure: entropy comes in. Trace ids are 16 bytes, span ids 8, neither all zeroes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

TRACE_BYTES: Final = 16
SPAN_BYTES: Final = 8
ENTROPY_BYTES: Final = TRACE_BYTES + SPAN_BYTES
_PARENT: Final = re.compile(
    r"(?!ff)[0-9a-f]{2}-(?P<trace>[0-9a-f]{32})-(?P<span>[0-9a-f]{16})-(?P<flags>[0-9a-f]{2})(?:-.*)?"
)
_CARRIED: Final = {"tracestate": 512, "baggage": 8_192}
"""What goes along, and its most bytes; longer ones and those with control characters are dropped, as W3C wants."""
_ZERO: Final = "0" * 2 * TRACE_BYTES
"""Of hexadecimal texts up to its length those that are all zeroes are not above it, and only those."""
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")


def begun(entropy: str) -> str:
    """The traceparent of a new trace, from 48 hexadecimal characters."""
    return f"00-{_unlike_zero(entropy[:32])}-{_unlike_zero(entropy[32:48])}-01"


def child(traceparent: str | None, entropy: str) -> str:
    """The traceparent of a call below another one: its trace and flags, a span of its own. A parent that is none begins
    a new trace, as W3C says. ``entropy`` is 48 hexadecimal characters."""
    found = _PARENT.fullmatch(traceparent or "")
    if found is None or not int(found["trace"], 16) or not int(found["span"], 16):
        return begun(entropy)
    # A later version may have more fields, which nobody here can carry on: what is written is version 00.
    return f"00-{found['trace']}-{_unlike_zero(entropy[32:48])}-{int(found['flags'], 16) & 1:02x}"


def carried_on(correlation: Mapping[str, str] | None, entropy: str) -> Mapping[str, str]:
    """The correlation of a downstream call: a child span, tracestate and baggage as they are (C13.3-32)."""
    if not correlation:
        return {"traceparent": begun(entropy)}
    known = _PARENT.fullmatch(correlation.get("traceparent", "")) is not None
    # A tracestate belongs to its traceparent; without one it says nothing.
    kept = {
        name: correlation[name]
        for name, most in _CARRIED.items()
        if name in correlation and (known or name == "baggage") and _may_go_along(correlation[name], most)
    }
    return {"traceparent": child(correlation.get("traceparent"), entropy), **kept}


def _may_go_along(text: str, most: int) -> bool:
    return len(text.encode("utf-8", "replace")) <= most and _CONTROL.search(text) is None


def _unlike_zero(text: str) -> str:
    """An id is never all zeroes."""
    return text if text > _ZERO else f"{text[:-1]}1"
