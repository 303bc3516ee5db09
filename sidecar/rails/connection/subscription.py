"""A subscription that outlives the links it is placed on."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Final

from nats.aio.msg import Msg

from sidecar.rails.connection.calls import Call
from sidecar.rails.connection.link import Link
from sidecar.rails.connection.overlap import Overlap

MAX_MESSAGES: Final = 65_536
MAX_BYTES: Final = 32 * 1024 * 1024


class SubscriptionClosed(Exception):  # noqa: N818 - a state
    """The owner closed the subscription."""


class Subscription:
    """Messages of one subject, queued for one reader up to a bound; more are dropped and counted.

    ``next`` raises what ended it: PermissionViolation when the broker refuses it, also later on a reconnect, Stopped
    with the connection, SubscriptionClosed after :meth:`close`. Core subscriptions miss what is published while the
    link is down: ``interruptions`` counts how often that may have been.
    """

    def __init__(
        self,
        subject: str,
        queue: str,
        remove: Callable[[Subscription], Awaitable[None]],
        slow: Callable[[Subscription, bool], None],
        max_messages: int,
        max_bytes: int,
    ) -> None:
        self.subject = subject
        self.queue = queue
        self.dropped = 0
        self.interruptions = 0
        self.placements = 0
        """How many links it was placed on so far."""
        self.settled = False
        self.error: Exception | None = None
        self._remove = remove
        self._slow = slow
        self._max = (max_messages, max_bytes)
        self._messages: deque[Msg] = deque()
        self._bytes = 0
        self._full = False
        self._wake = asyncio.Event()
        self._overlap: tuple[Overlap, Link] | None = None

    @property
    def key(self) -> tuple[str, str]:
        """Subject and queue as the broker's violation names them."""
        return self.subject.lower(), self.queue.lower()

    def merge(self, fresh: Link | None) -> None:
        """From now on two links deliver, the second one being ``fresh``; None: one does again."""
        self._overlap = None if fresh is None else (Overlap(), fresh)

    def take(self, message: Msg, link: Link) -> None:
        """A link delivers."""
        if self._overlap is not None:
            overlap, fresh = self._overlap
            headers = tuple((message.headers or {}).items())
            if not overlap.first((message.subject, message.reply, message.data, headers), fresh=link is fresh):
                return
        self._put(message)

    def _put(self, message: Msg) -> None:
        size = len(message.data)
        if len(self._messages) >= self._max[0] or self._bytes + size > self._max[1]:
            self.dropped += 1
            self._slow(self, not self._full)
            self._full = True
            return
        self._messages.append(message)
        self._bytes += size
        self._wake.set()

    def fail(self, error: Exception) -> None:
        """Nothing more will come; what is queued can still be read."""
        if self.error is None:
            self.error = error
        self._wake.set()

    async def next(self) -> Msg:
        """The next message."""
        while (message := self.poll()) is None:
            await self.stirred()
        return message

    def poll(self) -> Msg | None:
        """The next message, if one is there; raises what ended the subscription when there is none."""
        if not self._messages:
            if self.error is not None:
                raise self.error
            self._wake.clear()
            return None
        message = self._messages.popleft()
        self._bytes -= len(message.data)
        self._full = False
        return message

    async def stirred(self) -> None:
        """Return when something happened since the last ``poll`` that gave nothing: a message, the end, a nudge."""
        await self._wake.wait()

    def nudge(self) -> None:
        """Wake the reader, which has something else to look at."""
        self._wake.set()

    async def __aiter__(self) -> AsyncIterator[Msg]:
        """Messages until the owner closes; other endings raise."""
        try:
            while True:
                yield await self.next()
        except SubscriptionClosed:
            return

    async def close(self) -> None:
        """Unsubscribe. May be called twice, and at any time."""
        self.fail(SubscriptionClosed())
        await self._remove(self)


class Tap(Subscription):
    """A subscription whose messages go to a function as they come, without a queue. ``ended`` hears of its end once;
    neither may raise."""

    def __init__(
        self,
        subject: str,
        remove: Callable[[Subscription], Awaitable[None]],
        give: Callable[[Msg], None],
        ended: Callable[[Exception], None],
        queue: str = "",
    ) -> None:
        super().__init__(subject, queue, remove, lambda *_: None, 1, 0)
        self._give, self._ended = give, ended

    def _put(self, message: Msg) -> None:
        self._give(message)

    def fail(self, error: Exception) -> None:
        first = self.error is None
        super().fail(error)
        if first:
            self._ended(error)


class Mux(Subscription):
    """The subscription of replies: they go to the calls that wait for them."""

    def __init__(self, subject: str, remove: Callable[[Subscription], Awaitable[None]]) -> None:
        super().__init__(subject, "", remove, lambda *_: None, 1, 0)
        self._root = subject.removesuffix("*")
        self._waiting: dict[str, tuple[Callable[[Msg], None], Call]] = {}

    @property
    def ready(self) -> bool:
        """Whether the broker has taken it on the link that there is."""
        return self.settled and self.error is None

    def expect(self, serial: int, take: Callable[[Msg], None], call: Call) -> str:
        """The reply subject of a call until :meth:`forget`; each reply goes to ``take``."""
        inbox = f"{self._root}{serial}"
        self._waiting[inbox] = (take, call)
        return inbox

    def forget(self, inbox: str) -> None:
        """Whatever comes now is of no interest."""
        del self._waiting[inbox]

    def _put(self, message: Msg) -> None:
        waiting = self._waiting.get(message.subject)
        if waiting is not None:
            waiting[0](message)

    def fail(self, error: Exception) -> None:
        """The broker refuses the inbox, or the connection has ended: no reply can come."""
        super().fail(error)
        for _, call in self._waiting.values():
            call.fail(error)
