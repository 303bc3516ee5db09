"""Pulls from durables that exist, one request each, with a bound on bytes (C9-47).

A pull that waits asks for one message: it costs one request and one answer however long it waits, and nothing is left
open behind it. What else is there by then comes with a second pull that does not wait.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from enum import Enum
from typing import Any, Final, NamedTuple

from nats.aio.msg import Msg

from sidecar.rails.connection import Connection, ConnectionFault, NoResponders, Subscription
from sidecar.rails.messaging.frames import Frame, frame_of
from sidecar.rails.names import api, headers
from sidecar.rails.names.acks import is_ack
from sidecar.rails.names.tokens import WILDCARD

SLACK_SECONDS: Final = 2.0
"""How much longer than the broker's own end of a pull its answer is waited for."""
MAX_FREE: Final = 1024
"""Inboxes that are kept for the next pulls."""
_QUEUED: Final = 1024
_NANO: Final = 10**9
_TOO_LARGE: Final = "exceeds maxbytes"
_CONFLICT: Final = "409"
_DESCRIPTION: Final = "Description"


class End(Enum):
    """How a pull ended."""

    FULL = "every message that was asked for"
    EMPTY = "no more messages"
    BYTES = "the next message does not fit"
    REFUSED = "the broker refuses the pull"


class Pulled(NamedTuple):
    """What a pull gave."""

    frames: list[Frame]
    end: End


class Durable(NamedTuple):
    """A consumer on its stream."""

    stream: str
    consumer: str


def size_of(frame: Frame) -> int:
    """Bytes that the broker counts for a message, without its reply subject."""
    named = sum(len(name) + len(value) + 4 for name, value in frame.headers.items())
    return len(frame.subject) + len(frame.data) + named


class Puller:
    """Pulls over inboxes that are kept: a stored message comes under its own subject, so that each pull that is under
    way needs a subscription to itself. One whose pull did not come to its end is not used again."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._free: list[Subscription] = []
        self._serial = 0

    async def gather(self, durable: Durable, batch: int, seconds: float, max_bytes: int) -> list[Frame]:
        """Up to ``batch`` messages of at most about ``max_bytes``, the first of them within ``seconds``; a single one
        may be larger. Raises what ``pull`` raises, when nothing was delivered before."""
        if seconds > 0.0:
            found = (await self.pull(durable, 1, seconds=seconds)).frames
            if not found or batch == 1 or found[0].pending == 0:
                return found
            batch, max_bytes = min(batch - 1, found[0].pending), max_bytes - size_of(found[0])
            if max_bytes <= 0:
                return found
            try:
                return found + (await self.pull(durable, batch, max_bytes=max_bytes)).frames
            except (ConnectionFault, TimeoutError):
                return found
        found, end = await self.pull(durable, batch, max_bytes=max_bytes)
        if not found and end is End.BYTES:
            found = (await self.pull(durable, 1)).frames
        return found

    async def pull(self, durable: Durable, batch: int, *, seconds: float = 0.0, max_bytes: int = 0) -> Pulled:
        """One pull; with ``seconds`` it waits for so long. Raises NoResponders without such a consumer, NotConnected,
        PermissionViolation, Stopped, TimeoutError."""
        body: dict[str, Any] = {"batch": batch}
        if seconds > 0.0:
            body["expires"] = int(seconds * _NANO)
        else:
            body["no_wait"] = True
        if max_bytes:
            body["max_bytes"] = max_bytes
        subject = api.CONSUMER_NEXT.build(stream=durable.stream, consumer=durable.consumer)
        data = json.dumps(body).encode()
        self._serial += 1
        async with self._inbox() as inbox:
            reply = f"{inbox.subject.removesuffix(WILDCARD)}{self._serial}"
            async with self._connection.exchange(subject, data, reply=reply) as failed:
                messages, last = await _until(inbox, reply, batch, failed, seconds + SLACK_SECONDS)
        if last is not None and (last.headers or {}).get(headers.STATUS) == headers.NO_RESPONDERS:
            raise NoResponders(subject)
        frames = [frame_of(one, durable.stream, durable.consumer) for one in messages]
        return Pulled(frames, End.FULL if last is None else _ended(last))

    @contextlib.asynccontextmanager
    async def _inbox(self) -> AsyncIterator[Subscription]:
        """A subscription of its own for one pull."""
        while self._free and self._free[-1].error is not None:
            self._free.pop()
        if self._free:
            inbox = self._free.pop()
        else:
            everything = f"{self._connection.new_inbox()}.{WILDCARD}"
            inbox = await self._connection.subscribe(everything, max_messages=_QUEUED)
        try:
            yield inbox
        except BaseException:
            await inbox.close()
            raise
        if len(self._free) < MAX_FREE:
            self._free.append(inbox)
        else:
            await inbox.close()


async def _until(
    inbox: Subscription, reply: str, batch: int, failed: asyncio.Future[Any], seconds: float
) -> tuple[list[Msg], Msg | None]:
    """The messages of a pull, and the broker's word that ended it; None when all came that were asked for. Behind those
    it may still say that the batch is completed, which the next pull over the same inbox passes by."""
    found: list[Msg] = []

    async def read() -> Msg | None:
        while len(found) < batch:
            message = await inbox.next()
            if is_ack(message.reply):
                found.append(message)
            elif message.subject == reply:
                return message
        return None

    reading = asyncio.create_task(read())
    try:
        await asyncio.wait((reading, failed), timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        if reading.done():
            return found, reading.result()
        if failed.done():
            failed.result()
        raise TimeoutError
    finally:
        reading.cancel()


def _ended(message: Msg) -> End:
    said = message.headers or {}
    if said.get(headers.STATUS) != _CONFLICT:
        return End.EMPTY
    return End.BYTES if _TOO_LARGE in said.get(_DESCRIPTION, "").lower() else End.REFUSED
