"""What a join copies before it is answered: the posts between its cursor and a frontier behind its row (OPEN C7-d).

Posts behind that frontier find the row when they are fanned out. Posts up to it may have been fanned out before the row
was there; they are copied here, under the message ids that the fan-out uses, so that one that came both ways is there
once.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from typing import Any, Final

from sidecar.rails.connection.publishing import store
from sidecar.rails.envelopes.backstop import Why
from sidecar.rails.envelopes.receive import Rejected, Source, receive
from sidecar.rails.messaging.frames import Frame
from sidecar.rails.names import api, consumers, streams, subjects
from sidecar.rails.names.acks import parse_tail
from sidecar.rails.names.subjects import delivery_of
from sidecar.rails.planes.delivery.broker import StreamState, Unanswered, ask, create, stream_state
from sidecar.rails.planes.delivery.channels import Channels
from sidecar.rails.planes.delivery.fanout import copies_of, readers
from sidecar.rails.planes.delivery.loop import Outgoing, header_bytes
from sidecar.rails.planes.delivery.membership import Membership
from sidecar.rails.planes.delivery.plane import Plane
from sidecar.rails.planes.delivery.pulls import Durable, Puller

MAX_POSTS: Final = 1_000
"""Posts that one join copies: what a member's store keeps of them by default. A client takes its cursor right before it
subscribes, so that there are few."""
MAX_BYTES: Final = 16 * 1024 * 1024
"""Payload that one join copies: it is held until all of it was read."""
AT_ONCE: Final = 8
"""Joins that copy beside each other; the others wait for their turn, as long as their callers do."""
_BATCH: Final = 64
_PAGE_BYTES: Final = 4 * 1024 * 1024
_INACTIVE_NS: Final = 30 * 1_000_000_000


class Shortfall(Exception):  # noqa: N818 - a state
    """The membership cannot begin at its cursor: the label of a counter, and the reason that its member is told."""

    def __init__(self, outcome: str, reason: str) -> None:
        super().__init__(reason)
        self.outcome, self.reason = outcome, reason


def evicted(before: StreamState, cursor: int, frames: list[Frame]) -> bool:
    """Whether the chat stream may have removed a post of the window before it was copied: its first message is behind
    the begin of the window, or one sender's posts on one channel fill what it keeps of them."""
    if before.first > cursor + 1 and before.last > cursor:
        return True
    counts = Counter(frame.subject for frame in frames)
    return before.keeps is not None and any(count >= before.keeps for count in counts.values())


class CatchUp:
    """Copies the window of one join into the member's store."""

    def __init__(self, plane: Plane, channels: Channels) -> None:
        self._plane, self._channels, self._puller = plane, channels, Puller(plane.connection)
        self._stream = streams.CHAT.stream(plane.space)
        self._turns = asyncio.Semaphore(AT_ONCE)

    async def copy(self, row: Membership) -> None:
        """Return when everything of the window is stored. Raises Shortfall, Unanswered, Behind, StoreRefused,
        ConnectionFault, TimeoutError."""
        cursor = row.interval.join
        state = await stream_state(self._plane.connection, self._stream)
        if state.last <= cursor:
            return
        async with self._turns:
            await self._channels.current()
            frames = await self._read(row, state.last)
            if evicted(state, cursor, frames):
                raise Shortfall("evicted", "posts since the join were removed before they could be copied")
            copies = [(frame, one) for frame in frames for one in self._copies(row, frame)]
            for at in range(0, len(copies), _BATCH):
                await asyncio.gather(*(self._store(frame, one) for frame, one in copies[at : at + _BATCH]))

    async def _read(self, row: Membership, frontier: int) -> list[Frame]:
        name = consumers.CATCH_UP.build(generation=row.generation, **row.lifecycle.names)
        durable = Durable(self._stream, name)
        await self._drop(name)  # of an attempt that a crash ended
        await create(self._plane.connection, self._stream, self._config(name, row))
        found: list[Frame] = []
        read = 0
        try:
            while True:
                page = await self._puller.gather(durable, _BATCH, 0.0, _PAGE_BYTES)
                if [parse_tail(frame.token).serial for frame in page] != list(range(read + 1, read + len(page) + 1)):
                    raise Unanswered(f"{name}: somebody else reads by the same consumer")
                read += len(page)
                found += [frame for frame in page if frame.sequence <= frontier]
                if len(found) > MAX_POSTS:
                    raise Shortfall("too_long", f"more than {MAX_POSTS} posts since the join cursor: take a newer one")
                if sum(len(frame.data) for frame in found) > MAX_BYTES:
                    raise Shortfall("too_long", f"more than {MAX_BYTES} bytes since the join cursor: take a newer one")
                if not page or page[-1].sequence >= frontier or page[-1].pending == 0:
                    return found
        finally:
            with contextlib.suppress(Unanswered):  # the broker forgets it when nobody asks any more
                await self._drop(name)

    async def _drop(self, consumer: str) -> None:
        await ask(self._plane.connection, api.CONSUMER_DELETE.build(stream=self._stream, consumer=consumer))

    def _config(self, name: str, row: Membership) -> dict[str, Any]:
        return {
            "name": name,
            "filter_subject": subjects.CHAT.filter(space=self._plane.space, channel=row.channel),
            "deliver_policy": "by_start_sequence",
            "opt_start_seq": row.interval.join + 1,
            "ack_policy": "none",
            "replay_policy": "instant",
            "mem_storage": True,
            "num_replicas": 1,
            "inactive_threshold": _INACTIVE_NS,
        }

    def _copies(self, row: Membership, frame: Frame) -> list[Outgoing]:
        """The copies of one post: none on a live channel, none of one's own, none of what the fan-out would drop."""
        delivery = delivery_of(frame.subject)
        try:
            received = receive(
                frame.data,
                delivery,
                Source.DURABLE,
                header_names=frame.headers,
                mediated=self._plane.mediated,
                limit=self._plane.connection.max_payload,
            )
        except Rejected:
            return []  # the fan-out counts it
        if delivery is None or not self._channels.durable(delivery.rest):
            return []
        members = readers(delivery.sender, [row.lifecycle])
        message_id = received.message.id
        return copies_of(self._plane.space, frame.subject, frame.sequence, message_id, Why.CHANNEL, members, "catch_up")

    async def _store(self, frame: Frame, copy: Outgoing) -> None:
        if len(frame.data) + header_bytes(copy.headers) > self._plane.connection.max_payload:
            self._plane.metrics.counter("delivery_dropped", "fanout", "too_large").inc()
            return
        stored = await store(self._plane.connection, copy.subject, frame.data, copy.headers)
        if stored.duplicate:
            self._plane.metrics.counter("delivery_duplicates", "fanout").inc()
        else:
            self._plane.metrics.counter("delivery_copies", copy.why).inc()
