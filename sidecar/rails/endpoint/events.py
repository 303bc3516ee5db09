"""Events of an endpoint: published by the instance itself, under its epoch, into the stream of events (C13.4-58, -59).

An event tells that something happened; nothing is accepted by it. The subject says which incarnation published it, the
payload is ``{v, topic, ts, data, correlation?}`` (C13.3-54).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

import orjson

from sidecar.base.clock import Now, system_now
from sidecar.base.strictjson import JsonValue, NotJson, check_value
from sidecar.ops.metrics import Metrics
from sidecar.rails.connection import Connection, ConnectionFault
from sidecar.rails.connection.publishing import StoreRefused, store
from sidecar.rails.endpoint.schemas import Schema
from sidecar.rails.names import planes
from sidecar.rails.names.tokens import GRAMMARS, endpoint_token

VERSION: Final = 1


class EventInvalid(ValueError):  # noqa: N818 - it says what the event is
    """The data is not what the event declares; nothing was published."""


@dataclass(frozen=True, slots=True)
class Event:
    """A declared event: the URN of its cluster, its name, and what its data is. Raises InvalidName."""

    cluster: str
    name: str
    schema: Schema
    topic: str = field(init=False)

    def __post_init__(self) -> None:
        GRAMMARS["command"].check(self.name)
        object.__setattr__(self, "topic", f"ev.{endpoint_token(self.cluster)}.{self.name}")

    def encode(self, data: JsonValue, ts: int, correlation: Mapping[str, str] | None) -> bytes:
        """The payload. ``ts`` are Unix milliseconds. Raises EventInvalid."""
        if (fault := self.schema.shape.check(data)) is not None:
            raise EventInvalid(f"{self.topic}: data {fault.field} {fault.why}")
        try:
            check_value(data)
        except NotJson as error:
            raise EventInvalid(f"{self.topic}: data {error.path} {error.why}") from None
        value: dict[str, object] = {"v": VERSION, "topic": self.topic, "ts": ts, "data": data}
        if correlation:
            value["correlation"] = dict(correlation)
        return orjson.dumps(value)


class Emitter:
    """Publishes the events of one incarnation."""

    def __init__(
        self,
        connection: Connection,
        names: Mapping[str, str | int],
        events: Iterable[Event],
        *,
        metrics: Metrics,
        clock: Callable[[], Now] = system_now,
    ) -> None:
        """``names`` are space, endpoint token, instance and epoch; ``events`` all that the endpoint declares."""
        self._connection, self._clock, self._names = connection, clock, dict(names)
        self._events = frozenset(one.topic for one in events)
        self._emitted = {how: metrics.counter("endpoint_events", how) for how in ("stored", "invalid", "failed")}

    async def emit(self, event: Event, data: JsonValue, correlation: Mapping[str, str] | None = None) -> int:
        """Publish; the sequence under which it is stored. Raises EventInvalid before anything is sent, and
        StoreRefused, ConnectionFault or TimeoutError (after the last two it may have been stored)."""
        try:
            if event.topic not in self._events:
                raise EventInvalid(f"{event.topic} is no event of this endpoint")
            payload = event.encode(data, int(self._clock().wall * 1000), correlation)
        except EventInvalid:
            self._emitted["invalid"].inc()
            raise
        try:
            stored = await store(self._connection, planes.EVENT.build(**self._names, topic=event.topic), payload)
        except (StoreRefused, ConnectionFault, TimeoutError):
            self._emitted["failed"].inc()
            raise
        self._emitted["stored"].inc()
        return stored.sequence
