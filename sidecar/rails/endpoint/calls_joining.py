"""Live frames and what is stored, joined without a gap and without anything twice (C13.5-07, C13.8-42). Pure.

A live frame has no sequence, a stored event has one. So what came live is remembered by its content until it is met
again in the stream: there it is not given out a second time, and moves the place up to which everything is known.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from sidecar.base.strictjson import JsonError, JsonValue, NotJson, canonical, parse
from sidecar.rails.endpoint.calls_types import Seen
from sidecar.rails.names.limits import MAX_SAFE_INTEGER

MOST_UNMET: Final = 1_024
"""Live events that may be unmet in the stream; then it is time to read it."""
MOST_EPOCHS: Final = 4_096
MAX_TOPIC: Final = 256
_CORRELATION: Final = ("traceparent", "tracestate", "baggage")


class Stored(NamedTuple):
    """An event as the registry replays it."""

    sequence: int
    instance: str
    epoch: int
    payload: Mapping[str, Any]


def read_event(data: bytes, topic: str) -> Mapping[str, Any] | None:
    """The payload of a live frame on a topic; None for one that is no event of it (C13.3-54)."""
    try:
        value = parse(data)
    except JsonError:
        return None
    return checked_event(value, topic)


def checked_event(value: JsonValue, topic: str) -> Mapping[str, Any] | None:
    """The same, of a value that was read already."""
    if not isinstance(value, Mapping) or value.get("v") != 1 or value.get("v") is True or "data" not in value:
        return None
    ts = value.get("ts")
    if value.get("topic") != topic or len(topic.encode()) > MAX_TOPIC:
        return None
    return value if type(ts) is int and 0 <= ts <= MAX_SAFE_INTEGER else None


class Joint:
    """The state of one watch. ``after`` is the sequence up to which every stored event was given out."""

    def __init__(self, topic: str, after: int) -> None:
        self.topic, self.after = topic, after
        self._unmet: Counter[bytes] = Counter()
        self._aged: Counter[bytes] = Counter()
        self._ahead: Counter[bytes] = Counter()
        self._epochs: dict[str, int] = {}

    @property
    def unmet(self) -> int:
        """Live events that were given out, and not met in the stream yet."""
        return self._unmet.total() + self._aged.total()

    def reading(self) -> None:
        """The stream is read again. What two readings did not meet was never stored, and is not waited for."""
        self._aged, self._unmet = +self._unmet, Counter()
        self._ahead.clear()

    def stored(self, found: Iterable[Stored]) -> list[Seen]:
        """What of the next stored events is to be given out, in their order; the rest came live."""
        fresh = []
        for one in found:
            if one.sequence <= self.after:
                continue
            self.after = one.sequence
            key = _key(one.instance, one.epoch, one.payload)
            if not (_take(self._aged, key) or _take(self._unmet, key)):
                # Its live frame may still be on the way. If it is taken for another event that looks the same, that
                # one is met by the next reading: late, but not lost.
                self._ahead[key] += 1
                fresh.append(self._seen(one.instance, one.epoch, one.payload, one.sequence))
        return fresh

    def live(self, instance: str, epoch: int, payload: Mapping[str, Any]) -> Seen | None:
        """A live event to give out; None when the stream gave it already."""
        key = _key(instance, epoch, payload)
        if _take(self._ahead, key):
            return None
        self._unmet[key] += 1
        return self._seen(instance, epoch, payload, None)

    def _seen(self, instance: str, epoch: int, payload: Mapping[str, Any], sequence: int | None) -> Seen:
        newest = self._epochs.get(instance, epoch)
        if epoch >= newest:
            if instance not in self._epochs and len(self._epochs) >= MOST_EPOCHS:
                self._epochs.pop(next(iter(self._epochs)))
            self._epochs[instance] = epoch
        carried = payload.get("correlation")
        known = {k: v for k, v in carried.items() if k in _CORRELATION} if isinstance(carried, Mapping) else {}
        data: JsonValue = payload["data"]
        return Seen(instance, epoch, self.topic, payload["ts"], data, sequence, known, stale=epoch < newest)


def _take(counted: Counter[bytes], key: bytes) -> bool:
    """Take one of this key out, if there is one."""
    if counted[key] <= 0:
        del counted[key]
        return False
    counted[key] -= 1
    return True


def _key(instance: str, epoch: int, payload: Mapping[str, Any]) -> bytes:
    """What makes an event the same one wherever it is met."""
    try:
        data = canonical(dict(payload))
    except NotJson:
        data = repr(payload).encode()
    return hashlib.blake2b(b"%s.%d." % (instance.encode(), epoch) + data, digest_size=16).digest()
