"""A rail as one caller uses it: one subscription for all its replies, one nonce for each request (C13.2, C13.3).

A request is out from the moment its nonce is expected; the reply subscription stood before that (C13.2-51). What comes
under no nonce that waits is dropped and counted. Deadlines are times of the loop's clock.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator
from math import inf
from typing import Any, Final

from nats.aio.msg import Msg

from sidecar.ops.metrics import Metrics
from sidecar.rails.connection import (
    Connection,
    ConnectionFault,
    Fault,
    NotSent,
    PermissionViolation,
    State,
    Subscription,
)
from sidecar.rails.endpoint.calls_kept import Kept
from sidecar.rails.endpoint.calls_replies import Origin, origin
from sidecar.rails.endpoint.calls_request import Rail
from sidecar.rails.endpoint.codes import CallFailed, Code, Outcome, unsent
from sidecar.rails.names import headers

AT_ONCE: Final = 1_024
"""Calls of one caller that wait for an answer; one more is refused locally."""

GAP_SECONDS: Final = 0.002
"""Between two looks for calls that have expired; each looks at all that are out."""
MOST_ORIGINS: Final = 1_024

Reply = tuple[Origin, bytes]


class Waiting:
    """A request that is out. ``instance`` alone may answer, if it is named."""

    __slots__ = ("answer", "endpoint", "hear", "instance", "request", "sentinel", "until")

    def __init__(
        self,
        endpoint: str,
        instance: str | None,
        request: str,
        sentinel: str,
        hear: Callable[[Origin, bytes], None] | None = None,
    ) -> None:
        self.endpoint, self.instance, self.request, self.sentinel = endpoint, instance, request, sentinel
        self.until = inf
        """The deadline, where no timer of its own keeps it."""
        self.hear = hear
        """Takes every reply, where there is more than one: also those that come when enough have come."""
        self.answer: asyncio.Future[Any]
        """A Reply, or True from one who hears; None for nobody there."""

    def is_told_of_nobody(self, subject: str, message: Msg) -> bool:
        """The one thing that comes on the sentinel, where the broker alone speaks (C13.3-49)."""
        return (
            subject == self.sentinel
            and not self.answer.done()
            and headers.says_nobody(message.headers, message.data, self.request)
        )

    def expire(self) -> None:
        """The deadline."""
        if not self.answer.done():
            self.answer.set_exception(CallFailed(Code.DEADLINE_EXCEEDED, "no answer came in time", Outcome.UNKNOWN))

    def broke(self, broken: asyncio.Future[Any]) -> None:
        """The broker refused the request, or the link ended."""
        if not broken.cancelled() and (error := broken.exception()) is not None and not self.answer.done():
            self.answer.set_exception(error)


class Wire:
    """The requests of one lifecycle on one rail, over one connection."""

    def __init__(self, connection: Connection, rail: Rail, metrics: Metrics | None) -> None:
        self.rail, self._connection, self._metrics = rail, connection, metrics
        self._waiting: dict[str, Waiting] = {}
        self._origins: Kept[str, Origin] = Kept(MOST_ORIGINS)
        self._open = 0
        self._next = inf
        self._timer: asyncio.TimerHandle | None = None
        self._subscribing = asyncio.Lock()
        self._subscription: Subscription | None = None
        self.closed = False

    @property
    def over(self) -> bool:
        """Whether no request will ever go out again: the caller was closed, or its connection has ended for good."""
        return self.closed or self._connection.state in (State.STOPPED, State.CLOSED)

    # ---- requests ----

    async def exchange(
        self, endpoint: str, prefix: str, nonce: str, data: bytes, until: float, instance: str | None = None
    ) -> Reply | None:
        """Publish and wait for one reply; None when nobody is there. Raises CallFailed with the outcome that can be
        proved (C13.3-46..50)."""
        if self._open >= AT_ONCE:
            raise unsent(Code.RESOURCE_EXHAUSTED, f"{AT_ONCE} calls of this caller wait for answers")
        self._check_nonce(nonce)
        waiting = Waiting(endpoint, instance, prefix + nonce, self.rail.sentinel + nonce)
        subscription = self._subscription
        if subscription is None or subscription.error is not None:
            return await self._slowly(waiting, nonce, data, until)
        call = self._connection.begin(waiting.request, data, waiting.sentinel)
        if call is None:
            return await self._slowly(waiting, nonce, data, until)
        waiting.answer, waiting.until = call.answer, until
        self._waiting[nonce] = waiting
        self._open += 1
        if until < self._next:
            self._look_at(until)
        try:
            reply: Reply | None = await call.answer
        except ConnectionFault as error:
            raise failure(error, sent=True) from None
        finally:
            self._open -= 1
            del self._waiting[nonce]
            self._connection.finish(call)
        return reply

    def _look_at(self, when: float) -> None:
        """Look for what has expired at this time. One timer serves all calls: most are answered long before."""
        if self._timer is not None:
            self._timer.cancel()
        self._next, self._timer = when, asyncio.get_running_loop().call_at(when, self._expire)

    def _expire(self) -> None:
        now = asyncio.get_running_loop().time()
        self._next, self._timer = inf, None
        earliest = inf
        for waiting in self._waiting.values():
            if waiting.until <= now:
                waiting.expire()
            elif waiting.until < earliest:
                earliest = waiting.until
        if earliest < inf:
            self._look_at(max(earliest, now + GAP_SECONDS))

    async def _slowly(self, waiting: Waiting, nonce: str, data: bytes, until: float) -> Reply | None:
        """``exchange`` where something has to be waited for first: a link, a subscription, room in the socket."""
        waiting.answer = asyncio.get_running_loop().create_future()
        self._open += 1
        try:
            async with self.out(waiting, nonce, data, until):
                reply: Reply | None = await waiting.answer
        finally:
            self._open -= 1
        return reply

    @contextlib.asynccontextmanager
    async def out(self, waiting: Waiting, nonce: str, data: bytes, until: float) -> AsyncIterator[None]:
        """The request is out for the time of the block, which ends at the deadline. Raises CallFailed."""
        sent = False
        try:
            async with asyncio.timeout_at(until):
                await self._subscribed()
                await self._connection.ready()
                if self._subscription is None or self._subscription.error is not None:
                    # It ended while there was no link: nobody would hear the answer (C13.2-51).
                    raise NotSent(Fault.LOST, "replies cannot be read any more")
                with self._expected(nonce, waiting):
                    sent = True
                    reply = waiting.sentinel
                    async with self._connection.exchange(waiting.request, data, reply=reply) as broken:
                        broken.add_done_callback(waiting.broke)
                        yield
        except TimeoutError:
            if sent:
                raise CallFailed(Code.DEADLINE_EXCEEDED, "no answer came in time", Outcome.UNKNOWN) from None
            raise unsent(Code.DEADLINE_EXCEEDED, "there was no connection in time") from None
        except ConnectionFault as error:
            raise failure(error, sent=sent) from None

    async def cast(self, subject: str, data: bytes, until: float) -> None:
        """Publish; when this returns the broker has taken it. Raises CallFailed: a refused publish is never taken for
        one that was cast (C13.5-06)."""
        sent = False
        try:
            async with asyncio.timeout_at(until):
                await self._connection.ready()
                sent = True
                await self._connection.publish(subject, data)
        except TimeoutError:
            outcome = Outcome.UNKNOWN if sent else Outcome.NOT_EXECUTED
            raise CallFailed(Code.DEADLINE_EXCEEDED, "the broker did not take it in time", outcome) from None
        except ConnectionFault as error:
            raise failure(error, sent=sent) from None

    def _check_nonce(self, nonce: str) -> None:
        if nonce in self._waiting:  # C13.2-18
            raise unsent(Code.INTERNAL, "the nonce is that of a call that waits")

    @contextlib.contextmanager
    def _expected(self, nonce: str, waiting: Waiting) -> Iterator[None]:
        """The call is the only one that waits under its nonce."""
        self._check_nonce(nonce)
        self._waiting[nonce] = waiting
        try:
            yield
        finally:
            del self._waiting[nonce]

    # ---- replies ----

    async def _subscribed(self) -> None:
        """The reply subscription stands, before anything is published (C13.2-51)."""
        async with self._subscribing:
            if self.closed:
                raise NotSent(Fault.LOST, "the caller was closed")
            if self._subscription is None or self._subscription.error is not None:
                await self._unsubscribe()
                self._subscription = await self._connection.tap(self.rail.replies, self._take, self._ended)

    def _ended(self, error: Exception) -> None:
        code = Code.PERMISSION_DENIED if isinstance(error, PermissionViolation) else Code.UNAVAILABLE
        for waiting in self._waiting.values():
            if not waiting.answer.done():
                waiting.answer.set_exception(CallFailed(code, "replies cannot be read any more", Outcome.UNKNOWN))

    def _take(self, message: Msg) -> None:
        """Give a reply to its call, or drop it."""
        subject = message.subject
        nonce = subject[subject.rfind(".") + 1 :]
        waiting = self._waiting.get(nonce)
        carried = message.headers
        if carried:
            if waiting is not None and waiting.is_told_of_nobody(subject, message):
                waiting.answer.set_result(None)
                return
            if headers.carries_provenance(carried):
                self._dropped("redirected")
                return
        if waiting is None or (waiting.hear is None and waiting.answer.done()):
            self._dropped("unasked")
            return
        found = self._origin(subject, nonce)
        if found is None:
            self._dropped("subject")
        elif found.endpoint != waiting.endpoint or waiting.instance not in (None, found.instance):
            self._dropped("elsewhere")
        elif waiting.hear is not None:
            waiting.hear(found, message.data)
        else:
            waiting.answer.set_result((found, message.data))

    def _origin(self, subject: str, nonce: str) -> Origin | None:
        """Who answered; the same incarnations answer most of the time."""
        # All but the nonce is the same for each of them, and the subscription admits no other caller.
        key = subject[: -len(nonce)]
        found = self._origins.get(key)
        if found is None:
            found = origin(subject, self.rail.reply_prefix, self.rail.caller + nonce)
            if found is not None:
                self._origins.put(key, found)
        return found

    def _dropped(self, reason: str) -> None:
        if self._metrics is not None:
            self._metrics.counter("endpoint_replies_dropped", reason).inc()

    async def _unsubscribe(self) -> None:
        subscription, self._subscription = self._subscription, None
        if subscription is not None:
            await subscription.close()

    async def close(self) -> None:
        """Calls that wait end as failed with an unknown outcome; later ones are not sent. May be called twice."""
        self.closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._next, self._timer = inf, None
        async with self._subscribing:
            await self._unsubscribe()


def failure(error: ConnectionFault, *, sent: bool) -> CallFailed:
    """What a fault of the connection means to a request (C13.3-47, -50, C13.5-03)."""
    if isinstance(error, PermissionViolation):
        return unsent(Code.PERMISSION_DENIED, str(error))
    if error.fault is Fault.MAX_PAYLOAD:
        return unsent(Code.RESOURCE_EXHAUSTED, str(error))
    if not sent or isinstance(error, NotSent):
        return unsent(Code.UNAVAILABLE, str(error))
    return CallFailed(Code.UNAVAILABLE, str(error), Outcome.UNKNOWN)
