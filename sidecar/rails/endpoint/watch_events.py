"""The events of one topic of an endpoint, of all its instances (C13.5-07, C13.2-59, C13.8-42).

    async with caller.watch_events("dev.sidecar.sample", "dev.sidecar.sample", "counted", after=known) as watch:
        async for one in watch:  # Seen, or Missed where events may be missing
            ...

Live frames come at once, on a subscription within the read grant. The registry replays what is stored: at the begin,
after every interruption, when frames were dropped, and from time to time. The two are joined by content (``joining``).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from types import TracebackType
from typing import Any, Final, Self

from nats.aio.msg import Msg

from sidecar.base.strictjson import JsonValue
from sidecar.rails.connection import ConnectionFault, Subscription, SubscriptionClosed
from sidecar.rails.endpoint import calls_repeat as again
from sidecar.rails.endpoint.calls_desk import Desk, named
from sidecar.rails.endpoint.calls_joining import MOST_UNMET, Joint, Stored, checked_event, read_event
from sidecar.rails.endpoint.calls_types import Missed, Seen
from sidecar.rails.endpoint.calls_wire import failure
from sidecar.rails.endpoint.clusters import event_topic
from sidecar.rails.endpoint.codes import CallError, Code, unsent
from sidecar.rails.names import headers, planes
from sidecar.rails.names.errors import InvalidName
from sidecar.rails.names.tokens import GRAMMARS, endpoint_token

PAGE: Final = 64
REPLAY_SECONDS: Final = 15.0
"""Deadline of one page."""
REREAD_SECONDS: Final = 30.0
"""After live events the stream is read again after so long, so that ``after`` moves on."""
_QUEUED, _QUEUED_BYTES = 4_096, 8 * 1024 * 1024


class EventWatch:
    """One watch, for one reader. ``after`` is the sequence to begin behind the next time."""

    def __init__(self, desk: Desk, space: str, endpoint: str, cluster: str, event: str, after: int | None) -> None:
        """CallFailed for names that are none."""
        self._desk, self._endpoint = desk, endpoint
        topic = event_topic(cluster, event)
        try:
            names = {"space": space, "endpoint": endpoint_token(endpoint)}
            leaf = {"cluster": topic.removeprefix("ev.").partition(".")[0], "event": event}
            for one in leaf.values():
                GRAMMARS["word"].check(one)
            self._subject = planes.EVENT_CLUSTER.filter(**names, **leaf)
        except InvalidName as error:
            raise unsent(Code.BAD_REQUEST, str(error)) from None
        self._joint = Joint(topic, after or 0)
        self._from_now = after is None
        self._subscription: Subscription | None = None
        self._marks = (0, 0)
        self._due = True
        self._told = False
        self._failed = 0
        self._next = 0.0

    @property
    def after(self) -> int:
        """The sequence up to which every stored event was given out."""
        return self._joint.after

    async def __aenter__(self) -> Self:
        """The subscription stands, before anything is replayed. Raises CallFailed."""
        try:
            self._subscription = await self._desk.connection.subscribe(
                self._subject, max_messages=_QUEUED, max_bytes=_QUEUED_BYTES
            )
        except ConnectionFault as error:
            raise named(failure(error, sent=False), self._endpoint, "watch", "") from None
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """The watch ends for its reader. May be called twice."""
        if self._subscription is not None:
            await self._subscription.close()

    async def __aiter__(self) -> AsyncIterator[Seen | Missed]:
        subscription = self._subscription
        if subscription is None:
            raise RuntimeError("a watch is entered first")
        loop = asyncio.get_running_loop()
        while True:
            marks = (subscription.interruptions, subscription.dropped)
            if marks != self._marks:
                self._marks, self._due = marks, True
            if (self._due or self._joint.unmet >= MOST_UNMET) and loop.time() >= self._next:
                async for one in self._replayed():
                    yield one
            try:
                message = subscription.poll()
            except SubscriptionClosed:
                return
            except ConnectionFault as error:
                raise named(failure(error, sent=False), self._endpoint, "watch", "") from None
            if message is None:
                await self._rest(subscription)
            elif (seen := self._live(message)) is not None:
                yield seen

    async def _rest(self, subscription: Subscription) -> None:
        """Until something comes, or the stream is to be read again."""
        wait: float | None = None
        if self._due:
            wait = max(0.0, self._next - asyncio.get_running_loop().time())
        elif self._joint.unmet:
            wait = REREAD_SECONDS
        try:
            async with asyncio.timeout(wait):
                await subscription.stirred()
        except TimeoutError:
            self._due = True

    def _live(self, message: Msg) -> Seen | None:
        try:
            names = planes.EVENT_CLUSTER.parse(message.subject)
        except InvalidName:
            names = {}
        payload = read_event(message.data, self._joint.topic)
        if not names or payload is None or headers.carries_provenance(message.headers or ()):
            self._desk.missed("invalid")
            return None
        return self._joint.live(names["instance"], int(names["epoch"]), payload)

    # ---- what is stored ----

    async def _replayed(self) -> AsyncIterator[Seen | Missed]:
        """Everything that is stored behind ``after``, but for what came live. A replay that fails is said once and
        tried again; live events go on meanwhile."""
        joint = self._joint
        joint.reading()
        loop = asyncio.get_running_loop()
        try:
            while True:
                args: dict[str, JsonValue] = {"endpoint": self._endpoint, "topic": joint.topic}
                args |= {"tail": True} if self._from_now else {"after": joint.after, "limit": PAGE}
                found = await self._desk.registry("events", args, loop.time() + REPLAY_SECONDS)
                if self._from_now:
                    self._from_now, joint.after = False, found.get("next", 0)
                    continue  # what was published meanwhile came live, or stands behind that
                oldest = found.get("oldest", 0)
                if joint.after and oldest > joint.after + 1:
                    yield self._missed("retention", "older events are not stored any more")
                before = joint.after
                for one in joint.stored(_stored(found["events"], joint.topic)):
                    yield one
                # Nothing is stored in front of the oldest, so that a gap is said once.
                joint.after = max(joint.after, found.get("next", 0), oldest - 1)
                # A page that does not go on would be asked for again for ever.
                if "next" not in found or joint.after == before:
                    break
        except CallError as error:
            if self._desk.wire.closed:
                raise named(error, self._endpoint, "watch", "") from None
            if not self._told:
                yield self._missed("replay", f"what is stored cannot be read: {error}")
            self._told = True
            self._next = loop.time() + again.pause(self._failed, self._desk.chance)
            self._failed += 1
            return
        self._due = self._told = False
        self._failed = 0

    def _missed(self, kind: str, why: str) -> Missed:
        self._desk.missed(kind)
        return Missed(why, self._joint.after)


def _stored(rows: list[dict[str, Any]], topic: str) -> Iterator[Stored]:
    """The events of a page; what is none of this topic is left out."""
    for row in rows:
        payload = checked_event(row["event"], topic) if row["topic"] == topic else None
        if payload is not None:
            yield Stored(row["sequence"], row["instanceId"], row["epoch"], payload)
