"""The trusted reader: a copy is judged again, by what its member may read now, before it is handed off (C7-30, C8-42).

A copy is acked when the member's own store has acknowledged it (OPEN C8-d). What the member may not have any more is
dropped. What nobody knows whether it may have it waits, for a bounded number of times.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

from sidecar.rails.envelopes.backstop import Copy, MalformedCopy, Why, decode, handed_off
from sidecar.rails.names import consumers, streams, subjects
from sidecar.rails.names.errors import InvalidName
from sidecar.rails.names.headers import carries_provenance
from sidecar.rails.names.limits import STAMP_AGE_SECONDS
from sidecar.rails.names.principals import Lifecycle, Principal
from sidecar.rails.planes.delivery.acl import Acl
from sidecar.rails.planes.delivery.broker import stream_state
from sidecar.rails.planes.delivery.loop import At, CopyLoop, Defer, Drop, Held, Outgoing, Send, Verdict
from sidecar.rails.planes.delivery.members import Members
from sidecar.rails.planes.delivery.plane import Plane
from sidecar.rails.space.acl import AclRow

FIRST_WAIT: Final = 2.0
LONGEST_WAIT: Final = 60.0
MOST_TRIES: Final = 20
"""Deliveries of a copy whose lifecycle has no readable row; about a quarter of an hour."""
_STAMP_SECONDS: Final = STAMP_AGE_SECONDS - 2.0
"""Age at which the count is read anew: well before it is too old to be written."""


def judged(row: AclRow | None, member: bool, copy: Copy, delivered: int) -> Drop | Defer | None:
    """Why a copy is not handed off now; None when it is. ``member``: a covering membership holds its sequence, which
    counts for channel copies alone (C8-42, C8-47). ``delivered``: how often it came, 1 first."""
    if row is None:
        if delivered >= MOST_TRIES:
            return Drop("unknown_lifecycle")
        return Defer(min(FIRST_WAIT * 2.0 ** (delivered - 1), LONGEST_WAIT))
    if not reads(row, copy.channel):
        return Drop("acl")
    if copy.why is Why.CHANNEL and not member:
        return Drop("membership")
    return None


@lru_cache(maxsize=65_536)
def reads(row: AclRow, channel: str) -> bool:
    """Whether a row allows a channel; many copies ask the same."""
    return row.reads(channel)


@lru_cache(maxsize=65_536)
def member_of(subject: str) -> Lifecycle | None:
    """Whose copy a subject holds."""
    try:
        found = subjects.DINBOX.parse(subject)
    except InvalidName:
        return None
    return Lifecycle(Principal(found["owner"], found["actor"]), found["uid"])


@lru_cache(maxsize=65_536)
def store_of(space: str, member: Lifecycle) -> str:
    """The subject of a lifecycle's own store."""
    return subjects.DLV.build(space=space, **member.names)


class Count:
    """How many copies a member's store keeps, read at most five seconds before it is written (C8-54)."""

    def __init__(self, plane: Plane) -> None:
        self._plane, self._stream = plane, streams.DLV.stream(plane.space)
        self._count: int | None = None
        self._read_at: float | None = None

    async def current(self) -> int | None:
        """The count; None when there is no limit. Raises Unanswered."""
        now = self._plane.clock().mono
        if self._read_at is None or now - self._read_at > _STAMP_SECONDS:
            self._count = (await stream_state(self._plane.connection, self._stream)).keeps
            self._read_at = now  # it is as old as the question
        return self._count


class Reader(CopyLoop):
    """The durable ``reader`` on INBOX."""

    counter = "delivery_handed_off"
    fresh = True

    def __init__(self, plane: Plane, members: Members, acl: Acl, *, at: At | None = None) -> None:
        pattern = subjects.DINBOX.subtree(space=plane.space)
        super().__init__(plane, "reader", streams.INBOX.stream(plane.space), consumers.READER.build(), pattern, at)
        self._members, self._acl, self._count = members, acl, Count(plane)
        self._handoff = plane.metrics.histogram("delivery_handoff_seconds")

    async def start(self) -> dict[str, Any]:
        """Everything that is kept: what was handed off before is a duplicate, and nothing is missing."""
        return {"deliver_policy": "all"}

    async def ready(self) -> None:
        await asyncio.gather(self._members.current(), self._acl.current())

    def judge(self, held: Held) -> Verdict:
        entry = held.message
        found = entry.headers or {}
        member = member_of(entry.subject)
        if carries_provenance(found):
            return Drop("redirected")
        try:
            copy = decode(found, self.plane.space)
        except MalformedCopy:
            return Drop("malformed_copy")
        if member is None:
            return Drop("malformed_copy")
        holds = copy.why is Why.CHANNEL and self._members.holds(member, copy.channel, copy.sequence)
        refused = judged(self._acl.row(member), holds, copy, held.tail.delivered)
        if refused is None:
            return Send([Outgoing(store_of(self.plane.space, member), found, copy.why.value)])
        if isinstance(refused, Defer):
            self.plane.metrics.counter("delivery_deferred").inc()
        return refused

    async def dressed(self, copy: Outgoing) -> Mapping[str, str]:
        return handed_off(copy.headers, await self._count.current())

    def stored(self, held: Held) -> None:
        self._handoff.observe(max(0.0, self.plane.clock().wall - held.tail.time_ns / 1e9))
