"""Many stores at once: copies go out without waiting for each other, and every one is answered for.

A copy is stored when its acknowledgement came. It failed when the broker refused it, when the acknowledgement is late,
or when the link ended behind it; then its owner carries it again, as a new copy under the same message id. Nothing is
sent twice in here: what a copy says may have to be decided anew (C8-54).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Final

from nats.aio.msg import Msg

from sidecar.rails.connection import ConnectionFault, NotConnected, Subscription
from sidecar.rails.connection.publishing import StoreRefused, read_ack
from sidecar.rails.planes.delivery.plane import Plane

MAX_COPIES: Final = 2_048
MAX_BYTES: Final = 16 * 1024 * 1024
"""Copies that are on their way at a time; with one of the two reached the next one waits."""
LATE_SECONDS: Final = 10.0
_LOOK_SECONDS: Final = 1.0


class Ending(StrEnum):
    """How a copy ended; the values but the first two are metric labels of a retry."""

    STORED = "stored"
    DUPLICATE = "duplicate"
    REFUSED = "refused"
    TIMEOUT = "timeout"
    LINK = "link"
    STALE = "stale"
    """It was not sent: what allowed it was decided too long ago."""


Told = Callable[[Ending], None]


class _Sent:
    __slots__ = ("at", "size", "told")

    def __init__(self, told: Told, size: int, at: float) -> None:
        self.told, self.size, self.at = told, size, at


class Pipeline:
    """The copies of one loop. ``run`` reads the acknowledgements; without it nothing is ever answered for."""

    def __init__(self, plane: Plane, loop: str, *, copies: int = MAX_COPIES, nbytes: int = MAX_BYTES) -> None:
        self._plane, self._loop = plane, loop
        self._bounds = (copies, nbytes)
        self._sent: dict[str, _Sent] = {}
        self._bytes = 0
        self._serial = 0
        self._room = asyncio.Event()
        self._subscription: Subscription | None = None
        self._interruptions = 0
        self._looked = 0.0
        self._gauge = plane.metrics.gauge("delivery_in_flight", loop)
        self._seconds = plane.metrics.histogram("delivery_store_seconds")

    def __len__(self) -> int:
        return len(self._sent)

    async def open(self) -> None:
        """Listen for acknowledgements. Raises NotConnected, PermissionViolation, Stopped."""
        self._subscription = await self._plane.connection.subscribe(f"{self._plane.connection.new_inbox()}.*")
        self._prefix = self._subscription.subject.removesuffix("*")
        self._interruptions = self._subscription.interruptions

    async def run(self) -> None:
        """Read the acknowledgements until cancelled. Raises what the subscription raises."""
        assert self._subscription is not None
        try:
            while True:
                self._look()
                try:
                    async with asyncio.timeout(_LOOK_SECONDS):
                        message = await self._subscription.next()
                except TimeoutError:
                    continue
                now = self._plane.clock().mono
                self._acknowledged(message, now)
                while (another := self._subscription.poll()) is not None:
                    self._acknowledged(another, now)
                self._gauge.set(len(self._sent))
        finally:
            self._gauge.set(0)
            await self._subscription.close()

    async def room(self, size: int) -> None:
        """Return when a copy of this size may be sent; one that is larger than the bound goes alone."""
        copies, nbytes = self._bounds
        while self._sent and (len(self._sent) >= copies or self._bytes + size > nbytes):
            self._room.clear()
            await self._room.wait()

    async def send(self, subject: str, data: bytes, headers: Mapping[str, str], told: Told) -> None:
        """Send one copy; ``told`` is called once, when its end is known. Raises Stopped."""
        self._serial += 1
        inbox = f"{self._prefix}{self._serial}"
        size = len(data) + len(subject)
        self._sent[inbox] = _Sent(told, size, self._plane.clock().mono)
        self._bytes += size
        try:
            await self._plane.connection.send(subject, data, reply=inbox, headers=headers)
        except NotConnected:
            self._end(inbox, Ending.LINK)
        except ConnectionFault:
            self._end(inbox, Ending.REFUSED)
            raise

    def _acknowledged(self, message: Msg, now: float) -> None:
        sent = self._sent.get(message.subject)
        if sent is None:  # it was late, and its owner has been told
            return
        try:
            ending = Ending.DUPLICATE if read_ack(message.data).duplicate else Ending.STORED
        except StoreRefused as error:
            self._plane.connection.store_refused(error.refusal)
            self._plane.log.warning("delivery_store_refused", loop=self._loop, error=error)
            ending = Ending.REFUSED
        self._seconds.observe(now - sent.at)
        self._end(message.subject, ending)

    def _look(self) -> None:
        """Give up on what can get no acknowledgement any more."""
        assert self._subscription is not None
        if self._subscription.interruptions != self._interruptions:
            self._interruptions = self._subscription.interruptions
            for inbox in list(self._sent):
                self._end(inbox, Ending.LINK)
        now = self._plane.clock().mono
        if now - self._looked < _LOOK_SECONDS:
            return
        self._looked = now
        for inbox, sent in list(self._sent.items()):
            if sent.at > now - LATE_SECONDS:
                break
            self._end(inbox, Ending.TIMEOUT)

    def _end(self, inbox: str, ending: Ending) -> None:
        sent = self._sent.pop(inbox, None)
        if sent is None:
            return
        self._bytes -= sent.size
        self._room.set()
        sent.told(ending)
