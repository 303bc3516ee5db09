"""Readers of JetStream that outlive links and brokers: a durable bound by name, and an ordered watch.

Both ask for idle heartbeats. A reader that hears nothing for two and a half of them, although the connection may look
well, reports ``watch_silent`` and begins anew: nobody waits on a consumer that is gone.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable
from typing import Any, Final

from nats.aio.msg import Msg
from nats.js.api import Header

from sidecar.rails.connection.connection import Connection
from sidecar.rails.connection.faults import ConnectionFault, Fault, NoResponders, NotConnected, Said
from sidecar.rails.connection.ordered import Ordered
from sidecar.rails.connection.subscription import MAX_BYTES, Subscription
from sidecar.rails.names import InvalidName, api, headers
from sidecar.rails.names.acks import AckTail, is_ack, tail_of

HEARTBEAT: Final = 1.0
PULL_BYTES: Final = MAX_BYTES // 2
_SILENCE: Final = 2.5
_NANO: Final = 10**9
_IDLE, _CONFLICT = "100", "409"
_COMPLETED: Final = "Batch Completed"
_RETRY: Final = 0.2
_LEAVE_SECONDS: Final = 1.0
"""For the deletion of a consumer that nobody listens to any more, which the broker does by itself a little later."""


def _nothing() -> None:
    """Nobody wants to hear it."""


class ConsumerGone(Exception):  # noqa: N818 - a state
    """The durable does not exist; its owner does not create it."""


class ConsumerRefused(Exception):  # noqa: N818 - what the broker said
    """The broker does not create the consumer."""


def status_of(message: Msg, asked: str = "") -> str | None:
    """What the broker says of a consumer itself, or of a pull that was sent to the subject ``asked``; None for a stored
    message, whatever headers its author gave it, also for one that somebody's read had the broker put here."""
    if message.data or is_ack(message.reply):
        return None
    known = message.headers or {}
    if headers.carries_provenance(known) and not headers.says_nobody(known, message.data, asked):
        return None
    status: str | None = known.get(headers.STATUS)
    return status


def _completed(message: Msg) -> bool:
    """Whether the broker only says that a pull with a bound on bytes has had all that it asked for. The reader has
    counted that itself, and may have sent the next pull already."""
    return bool((message.headers or {}).get(Header.DESCRIPTION, "").startswith(_COMPLETED))


class _Reader:
    """A subscription on an inbox of its own, read with a bound on silence."""

    def __init__(self, connection: Connection, stream: str, heartbeat: float) -> None:
        self._connection = connection
        self._stream = stream
        self._heartbeat = heartbeat
        self._subscription: Subscription | None = None

    async def _hear(self, subscription: Subscription, what: str) -> Msg | None:
        """The next frame; None after too long a silence, which is reported."""
        if (message := subscription.poll()) is not None:
            return message
        try:
            async with asyncio.timeout(self._heartbeat * _SILENCE):
                return await subscription.next()
        except TimeoutError:
            self._connection.report(Said(Fault.WATCH_SILENT, f"no heartbeat of {self._stream}", what))
            return None

    async def _ask(self, subject: str, body: Any = None) -> dict[str, Any]:
        """One API request; it is repeated over lost links, and while JetStream is not up."""
        data = b"" if body is None else json.dumps(body).encode()
        while True:
            try:
                answer: dict[str, Any] = json.loads((await self._connection.request(subject, data)).data)
                return answer
            except (NotConnected, NoResponders, TimeoutError):
                await asyncio.sleep(_RETRY)

    async def close(self) -> None:
        """Stop reading."""
        if self._subscription is not None:
            await self._subscription.close()


class BoundConsumer(_Reader):
    """Pulls from a durable that exists. Acks are the reader's: ``connection.send(message.reply, headers.ACK)``."""

    def __init__(
        self,
        connection: Connection,
        stream: str,
        consumer: str,
        *,
        batch: int = 64,
        max_bytes: int = PULL_BYTES,
        heartbeat: float = HEARTBEAT,
        found: Callable[[], object] = _nothing,
    ) -> None:
        """``max_bytes`` of messages are asked for at a time, so that large ones do not overrun the subscription, which
        would drop them until their ack wait is over. ``found`` is called whenever the durable was seen to be there."""
        super().__init__(connection, stream, heartbeat)
        self._consumer = consumer
        self._next = api.CONSUMER_NEXT.build(stream=stream, consumer=consumer)
        self._batch = batch
        self._max_bytes = max_bytes
        self._found = found
        self._asked = 0

    async def next(self) -> Msg:
        """The next message. Raises ConsumerGone, PermissionViolation, Stopped, SubscriptionClosed."""
        if self._subscription is None:
            await self._bound()
            self._subscription = await self._connection.subscribe(self._connection.new_inbox())
        while True:
            if self._asked == 0:
                await self._pull(self._subscription)
            message = await self._hear(self._subscription, self._consumer)
            if message is None:
                self._asked = 0
                continue
            status = status_of(message, self._next)
            if status is None:
                self._asked = max(0, self._asked - 1)
                return message
            if status != _IDLE and not _completed(message):
                self._asked = 0
                if status in (headers.NO_RESPONDERS, _CONFLICT):
                    await self._bound()

    async def _pull(self, subscription: Subscription) -> None:
        expires = self._heartbeat * 30
        body = {
            "batch": self._batch,
            "max_bytes": max(self._max_bytes, 2 * self._connection.max_payload),
            "expires": int(expires * _NANO),
            "idle_heartbeat": int(self._heartbeat * _NANO),
        }
        while True:
            try:
                await self._connection.publish(self._next, json.dumps(body).encode(), reply=subscription.subject)
            except NotConnected:
                await asyncio.sleep(_RETRY)
            else:
                self._asked = self._batch
                return

    async def _bound(self) -> None:
        answer = await self._ask(api.CONSUMER_INFO.build(stream=self._stream, consumer=self._consumer))
        if "error" in answer:
            raise ConsumerGone(f"{self._consumer} on {self._stream}: {answer['error'].get('description', '')}")
        self._found()


class OrderedWatch(_Reader):
    """Every message of a filter in stream order, over as many ephemeral consumers as it takes, one at a time.

    ``name`` gives the name of the n-th consumer. ``deliver`` is the broker's deliver policy of the first: ``all``,
    ``last_per_subject`` for the current values of a bucket, or ``new``.
    """

    def __init__(
        self,
        connection: Connection,
        stream: str,
        filter_subject: str,
        name: Callable[[int], str],
        *,
        deliver: str = "last_per_subject",
        heartbeat: float = HEARTBEAT,
    ) -> None:
        super().__init__(connection, stream, heartbeat)
        self._filter = filter_subject
        self._name = name
        self._deliver = deliver
        self._ordered = Ordered()
        self.caught_up = asyncio.Event()
        """Set when everything that was stored at the begin has been handed out."""
        self._serial = 0
        self._consumer = ""

    async def next(self) -> Msg:
        """The next message. Raises ConsumerRefused, PermissionViolation, Stopped, SubscriptionClosed."""
        while True:
            subscription = self._subscription or await self._begin()
            message = await self._hear(subscription, self._filter)
            if message is None:
                await self._leave()
            elif status_of(message) is not None:
                if not await self._nothing_missed(message):
                    await self._leave()
            elif (tail := self._own(message)) is not None:
                if self._ordered.take(tail.sequence, tail.serial):
                    if tail.pending == 0:
                        self.caught_up.set()
                    return message
                await self._leave()

    def _own(self, message: Msg) -> AckTail | None:
        """The numbers of a delivery of this watch; None for stored bytes that somebody's read had the broker put here,
        which neither are shown nor count in the order."""
        try:
            return tail_of(message.reply, self._stream, self._consumer)
        except InvalidName:
            self._connection.record_redirected()
            return None

    async def _nothing_missed(self, message: Msg) -> bool:
        """Whether what the broker says of the consumer agrees with what has come."""
        known = message.headers or {}
        flow = f"{api.FLOW_STREAM.build(stream=self._stream)}."
        for reply in (message.reply, known.get(Header.CONSUMER_STALLED)):
            if reply and reply.startswith(flow):  # the broker waits for a word; an ack would be one about a message
                with contextlib.suppress(NotConnected):
                    await self._connection.send(reply)
        delivered = known.get(Header.LAST_CONSUMER)
        return delivered is None or self._ordered.idle(int(delivered))

    async def _begin(self) -> Subscription:
        while True:
            try:
                subscription = await self._connection.subscribe(self._connection.new_inbox())
                break
            except NotConnected:
                await asyncio.sleep(_RETRY)
        self._subscription = subscription
        self._serial += 1
        self._consumer = self._name(self._serial)
        self._ordered.restarted()
        last = self._ordered.last
        start = {"deliver_policy": "by_start_sequence", "opt_start_seq": last + 1} if last else {}
        config = {
            "name": self._consumer,
            "deliver_subject": subscription.subject,
            "deliver_policy": self._deliver,
            "filter_subject": self._filter,
            "ack_policy": "none",
            "max_deliver": 1,
            "idle_heartbeat": int(self._heartbeat * _NANO),
            "flow_control": True,
            "mem_storage": True,
            "num_replicas": 1,
            "inactive_threshold": int(self._heartbeat * 10 * _NANO),
            **start,
        }
        subject = api.CONSUMER_CREATE_FILTERED.build(stream=self._stream, consumer=self._consumer, filter=self._filter)
        answer = await self._ask(subject, {"stream_name": self._stream, "config": config})
        if "error" in answer:
            await subscription.close()
            self._subscription = None
            raise ConsumerRefused(f"{self._consumer} on {self._stream}: {answer['error'].get('description', '')}")
        if not answer.get("num_pending"):
            self.caught_up.set()
        if self._deliver == "new" and not last:
            # What comes between this consumer and the next one is not to be missed.
            self._ordered.last = int(answer["delivered"]["stream_seq"])
        return subscription

    async def _leave(self) -> None:
        """Drop the consumer; the broker forgets one that cannot be deleted when nobody listens any more."""
        subscription, self._subscription = self._subscription, None
        if subscription is None:
            return
        await subscription.close()
        with contextlib.suppress(ConnectionFault, TimeoutError):
            subject = api.CONSUMER_DELETE.build(stream=self._stream, consumer=self._consumer)
            await self._connection.request(subject, seconds=_LEAVE_SECONDS)

    async def close(self) -> None:
        """Stop watching; the consumer is deleted."""
        await self._leave()
