"""What a member is told beside messages: what became of its anycast request, and that copies may have been evicted.

A notice about a request is a direct message from the principal that holds the space's delivery lease; from anybody else
the same words are an ordinary direct message (C8.1-47). It needs no answer (C8.1-48).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from enum import StrEnum
from typing import Final, NamedTuple

from sidecar.base.clock import Now, system_now
from sidecar.base.strictjson import JsonError, JsonValue, parse
from sidecar.ops.metrics import Metrics
from sidecar.rails.connection import Connection
from sidecar.rails.connection.kv import KeyValue, Unreadable
from sidecar.rails.endpoint.caller import Calls
from sidecar.rails.endpoint.calls_types import DELIVERY_SECONDS
from sidecar.rails.endpoint.codes import CallError
from sidecar.rails.endpoint.contracts import DELIVERY_ENDPOINT
from sidecar.rails.envelopes import backstop
from sidecar.rails.envelopes.message import DataPart, EndpointRef
from sidecar.rails.envelopes.receive import Received
from sidecar.rails.messaging.frames import Frame
from sidecar.rails.names import buckets, headers

LEASE_SECONDS: Final = 5.0
"""How long an answer about the lease is used: notices come in bursts."""
UNREAD_SECONDS: Final = 5.0
"""How long it is not asked again after it could not be read: each attempt may take as long as a call, and anybody can
send what looks like a notice."""
_MAX_LEASE: Final = 4096
_DM: Final = "dm"


class Turn(StrEnum):
    """What happened to a request."""

    TAKEN = "taken"
    REDELIVERED = "redelivered"


class AnycastNotice(NamedTuple):
    """A holder's connector was about to show the request; nothing is said of reading or finishing it (C8.1-52).

    ``previous``: who had taken it before, when it went to another holder.
    """

    sequence: int
    role: str
    turn: Turn
    taker: EndpointRef
    previous: EndpointRef | None


class Eviction(NamedTuple):
    """Older copies of the member may have been removed unread: look into the history of the channels (C8-56).

    ``pending`` copies come behind the one that showed it, ``limit`` is how many the store keeps.
    """

    pending: int
    limit: int


def notice_of(received: Received) -> AnycastNotice | None:
    """The notice that a direct message claims to be; None for any other message. Whose it is has still to be asked."""
    if received.meta.kind != _DM:
        return None
    for part in received.message.parts:
        if isinstance(part, DataPart) and isinstance(part.data, dict) and headers.ANYCAST_NOTICE in part.data:
            return _notice(part.data[headers.ANYCAST_NOTICE])
    return None


def _notice(value: JsonValue) -> AnycastNotice | None:
    if not isinstance(value, dict):
        return None
    sequence, role, event = value.get("seq"), value.get("role"), value.get("event")
    taker, previous = ref_of(value.get("taker")), ref_of(value.get("previous"))
    if type(sequence) is not int or sequence < 1 or not isinstance(role, str) or taker is None:
        return None
    if event not in tuple(Turn) or (previous is None and "previous" in value):
        return None
    return AnycastNotice(sequence, role, Turn(event), taker, previous)


def ref_of(value: JsonValue) -> EndpointRef | None:
    """A principal and what it calls itself, from an answer or a part of a message; None for any other shape."""
    if not isinstance(value, dict):
        return None
    holder, name = value.get("id"), value.get("name")
    return EndpointRef(holder, name) if isinstance(holder, str) and isinstance(name, str) else None


def eviction_of(frame: Frame) -> Eviction | None:
    """Whether a backstop copy tells that older ones may be gone: as many pending behind it as the store keeps beside
    it (C8-56). A copy without a readable stamp counts as 1000 (C8-55); ``none`` never tells (C8-56)."""
    limit = backstop.limit_of(frame.headers)
    return Eviction(frame.pending, limit) if limit is not None and frame.pending >= limit - 1 else None


class LeaseUnread(Exception):  # noqa: N818 - a state
    """Who holds the delivery lease could not be read."""


Lease = Callable[[], Awaitable[str | None]]
"""Reads which principal holds the delivery lease, in dot-form; None for nobody. Raises LeaseUnread."""


def raw_lease(connection: Connection, space: str) -> Lease:
    """Asks the bucket, served by its leader (compatible spaces; OPEN C8.1-f)."""
    bucket = KeyValue(connection, buckets.DELIVERY, space)

    async def read() -> str | None:
        try:
            entry = await bucket.get(buckets.DELIVERY_LEASE.build(shard=0))
            return None if entry is None else _holder(parse(entry.value, limit=_MAX_LEASE))
        except (Unreadable, JsonError) as error:
            raise LeaseUnread(type(error).__name__) from None

    return read


def mediated_lease(caller: Calls) -> Lease:
    """Asks the delivery plane (mediated spaces)."""

    async def read() -> str | None:
        try:
            return _holder(await caller.call(DELIVERY_ENDPOINT, "lease-holder", seconds=DELIVERY_SECONDS))
        except CallError as error:
            raise LeaseUnread(error.code) from None

    return read


def _holder(value: JsonValue) -> str | None:
    found = value.get("holder") if isinstance(value, dict) else None
    return found if isinstance(found, str) else None


class Notices:
    """Tells notices from messages."""

    def __init__(self, lease: Lease, *, clock: Callable[[], Now] = system_now, metrics: Metrics | None = None) -> None:
        self._lease, self._clock, self._metrics = lease, clock, metrics
        self._known: tuple[float, str | None] | None = None  # until when, and who

    async def of(self, received: Received) -> AnycastNotice | None:
        """The notice that a message is. None: it is an ordinary message, also when nobody holds the lease or that
        cannot be read."""
        notice = notice_of(received)
        if notice is None or received.meta.sender != await self._holder():
            return None
        self._told("anycast")
        return notice

    def eviction(self, frame: Frame) -> Eviction | None:
        """The notice that a backstop copy gives rise to."""
        eviction = eviction_of(frame)
        if eviction is not None:
            self._told("eviction")
        return eviction

    def _told(self, kind: str) -> None:
        if self._metrics is not None:
            self._metrics.counter("messaging_notices", kind).inc()

    async def _holder(self) -> str | None:
        now = self._clock().mono
        if self._known is None or now >= self._known[0]:
            try:
                self._known = (now + LEASE_SECONDS, await self._lease())
            except LeaseUnread:
                self._known = (self._clock().mono + UNREAD_SECONDS, None)
        return self._known[1]
