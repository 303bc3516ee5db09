"""What ``top`` and ``quota`` count on in the document of the admin socket; a member that nobody reads is not looked at.

The document is checked once, when it is read. Behind that the views take it as it is.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from sidecar.coordinator.wire.ids import U64_MAX

_LAST_SECOND: Final = 253_402_300_799
"""Of the year 9999, the last one that can be shown."""


class Each(NamedTuple):
    """An object with names of its own and values of one shape; ``needs`` are names that it has in any case."""

    shape: Any
    needs: tuple[str, ...] = ()


class Maybe(NamedTuple):
    """A member that may be missing."""

    shape: Any


def _count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= U64_MAX


def _count_or_null(value: object) -> bool:
    return value is None or _count(value)


def _number(value: object) -> bool:
    real = isinstance(value, int | float) and not isinstance(value, bool)
    return real and math.isfinite(value) and abs(value) <= U64_MAX  # type: ignore[arg-type]


def _instant(value: object) -> bool:
    return _number(value) and 0 <= value <= _LAST_SECOND  # type: ignore[operator]


def _flag(value: object) -> bool:
    return isinstance(value, bool)


def _text(value: object) -> bool:
    """Goes to the terminal as it is, so that it must not hold what steers one."""
    return isinstance(value, str) and value.isprintable()


def _text_or_null(value: object) -> bool:
    return value is None or _text(value)


def _reason(value: object) -> bool:
    """A text of any characters; it is escaped where it is shown."""
    return value is None or isinstance(value, str)


_QUOTA: Final = {"used": _count, "cap": _count_or_null}
_SUBSCRIPTION: Final = {
    "id": _text,
    "state": _text,
    "credit_count": _count,
    "credit_bytes": _count,
    "queue_frames": _count,
    "queue_bytes": _count,
    "lag": _count,
    "stalled": _flag,
    "deliveries": _count,
}
_LEASE: Final = {
    "id": _text,
    "kind": _text,
    "seconds_left": _number,
    "pinned_bytes": _count,
    "pages": _count,
    "ended": _flag,
}
_CONNECTION: Final = {
    "key_id": _text,
    "scopes": [_text],
    "requests": _count,
    "control_frames": _count,
    "writable": _flag,
    "closing": _text_or_null,
    "quotas": Each(_QUOTA),
    "subscriptions": [_SUBSCRIPTION],
    "leases": [_LEASE],
    "pid": Maybe(_count),
    "age_seconds": Maybe(_number),
}
COUNTERS: Final = {
    **dict.fromkeys(
        ("frames_in", "frames_out", "bytes_in", "bytes_out", "events_sent", "event_bytes", "credit_stalls"), _number
    ),
    **dict.fromkeys(("commands", "refusals", "gaps", "quota_refusals", "handshakes", "sockets_refused"), Each(_number)),
}
"""What has happened so far; rates are made of these."""
_DOCUMENT: Final = {
    "time": _instant,
    "pid": _count,
    "stopping": _flag,
    "sockets": {"handshake": _count, "active": _count},
    "queues": {"backlog": _count, "pending_operations": _count, "subscription_frames": _count},
    "authority": {"coordinator_id": _text, "epoch": _count, "fenced": _reason, "lease_seconds": _number},
    "events": {"head": _count, "durable": _count, "retained_from": _count, "retained_bytes": _count},
    "quotas": Each(_QUOTA, ("pinned_bytes",)),
    "principals": [{"key_id": _text, "quotas": Each(_QUOTA, ("pinned_bytes", "queue_bytes"))}],
    "connections": [_CONNECTION],
    "counters": COUNTERS,
}


def fault_of(document: dict[str, Any]) -> str | None:
    """The first member that cannot be used, such as ``connections[2].pid``; None when all can."""
    return _fault(_DOCUMENT, document, "")


def _fault(shape: Any, value: Any, where: str) -> str | None:
    if isinstance(shape, list):
        if not isinstance(value, list):
            return where
        return next(filter(None, (_fault(shape[0], item, f"{where}[{at}]") for at, item in enumerate(value))), None)
    if isinstance(shape, Each):
        named = dict.fromkeys(shape.needs, shape.shape)
        if isinstance(value, dict):
            named |= dict.fromkeys(value, shape.shape)
        shape = named
        if not all(map(_text, named)):
            return where
    if isinstance(shape, dict):
        return _fault_of_members(shape, value, where)
    fits: Callable[[object], bool] = shape
    return None if fits(value) else where


def _fault_of_members(shape: dict[str, Any], value: Any, where: str) -> str | None:
    if not isinstance(value, dict):
        return where
    for name, inner in shape.items():
        path = f"{where}.{name}" if where else name
        if name not in value:
            if not isinstance(inner, Maybe):
                return path
        elif found := _fault(inner.shape if isinstance(inner, Maybe) else inner, value[name], path):
            return found
    return None
