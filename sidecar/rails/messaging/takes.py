"""A holder of a role takes each request before it shows it (C4-12, C8.1): the shell around ``take_steps``.

    gate = TakeGate(connection, identity..., epoch=RawEpoch(connection, space), caller=caller, offer=inbox_offer)
    await gate.start()                       # before the role's queue is read (C8.1-06)
    if await gate.admit(copy, message): ...  # show it now, without another await in between
    else: ...                                # the gate has it: it is offered again, put back, or forgotten

``admit`` is called by the host's read of bodies and by nothing else: counting, waking and previews take nothing
(C8.1-13). ``offer`` gets a copy back that may be read now; it belongs in front of what came after it (C8.1-21).
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, Protocol

from nats.aio.msg import Msg

from sidecar.base.clock import Now, system_now
from sidecar.base.strictjson import JsonError, JsonValue, parse
from sidecar.ops.logging import Log
from sidecar.ops.metrics import Metrics
from sidecar.rails.connection import Connection, ConnectionFault, PermissionViolation, Stopped, Subscription
from sidecar.rails.connection.subscription import SubscriptionClosed
from sidecar.rails.endpoint.caller import Calls
from sidecar.rails.endpoint.calls_types import DELIVERY_SECONDS
from sidecar.rails.endpoint.codes import CallError, CallFailed, CallRefused, Code
from sidecar.rails.endpoint.contracts import DELIVERY_ENDPOINT
from sidecar.rails.envelopes.message import Message
from sidecar.rails.messaging.intake import HeldCopy
from sidecar.rails.messaging.pacing import Backoff
from sidecar.rails.messaging.take_steps import (
    ADVICE,
    FIRST_RETRY,
    LONGEST_RETRY,
    Came,
    Do,
    Event,
    Place,
    after,
    check_name,
    read_answer,
    take_body,
)
from sidecar.rails.names import Lifecycle, api, headers, streams, subjects
from sidecar.rails.names.acks import is_ack
from sidecar.rails.names.subjects import delivery_of

TAKE_SECONDS: Final = 5.0
PROBE_SECONDS: Final = 2.0
AT_ONCE: Final = 16
"""Requests that are held and not shown. One more is put back, for another holder or for later."""
_NONCE: Final = 24
_MAX_INFO: Final = 1 << 20


class EpochUnread(Exception):  # noqa: N818 - a state
    """The creation time of the task stream could not be read."""


class Epoch(Protocol):
    """Reads the creation time of the task stream, verbatim (C8.1-06, OPEN C8.1-d)."""

    async def __call__(self) -> str:
        """Raises EpochUnread."""


class RawEpoch:
    """Asks the broker (compatible spaces)."""

    def __init__(self, connection: Connection, space: str) -> None:
        self._connection = connection
        self._subject = api.STREAM_INFO.build(stream=streams.TASK.stream(space))

    async def __call__(self) -> str:
        try:
            answer = parse((await self._connection.request(self._subject)).data, limit=_MAX_INFO)
        except (ConnectionFault, TimeoutError, JsonError) as error:
            raise EpochUnread(type(error).__name__) from None
        return _text(answer, "created")


class MediatedEpoch:
    """Asks the delivery plane (mediated spaces)."""

    def __init__(self, caller: Calls) -> None:
        self._caller = caller

    async def __call__(self) -> str:
        try:
            answer = await self._caller.call(DELIVERY_ENDPOINT, "task-epoch", seconds=DELIVERY_SECONDS)
        except CallError as error:
            raise EpochUnread(error.code) from None
        return _text(answer, "epoch")


def _text(answer: JsonValue, name: str) -> str:
    found = answer.get(name) if isinstance(answer, dict) else None
    if not isinstance(found, str) or not found:
        raise EpochUnread(f"the answer has no {name}")
    return found


def _nobody(message: Msg) -> bool:
    """Whether the broker says that nobody serves the take. It decides nothing, so that a forged one does no harm."""
    return not message.data and (message.headers or {}).get(headers.STATUS) == headers.NO_RESPONDERS


@dataclass(slots=True)
class _Request:
    """One held request. ``epoch`` is what the holder had read when the copy came."""

    copy: HeldCopy
    role: str
    message_id: str
    epoch: str
    place: Place = Place.OFFERED


class TakeGate:
    """Decides right before a request is shown, and keeps those that could not be taken."""

    def __init__(
        self,
        connection: Connection,
        space: str,
        lifecycle: Lifecycle,
        name: str,
        *,
        epoch: Epoch,
        caller: Calls,
        offer: Callable[[HeldCopy], Awaitable[None]],
        entropy: Callable[[int], bytes],
        clock: Callable[[], Now] = system_now,
        first_retry: float = FIRST_RETRY,
        take_seconds: float = TAKE_SECONDS,
        at_once: int = AT_ONCE,
        metrics: Metrics | None = None,
        log: Log | None = None,
    ) -> None:
        """BadTakerName for a name that a take cannot carry (C8.1-07)."""
        self._connection, self._space, self._lifecycle = connection, space, lifecycle
        self._name = check_name(name)
        self._read_epoch, self._caller, self._offer = epoch, caller, offer
        self._entropy, self._clock = entropy, clock
        self._take_seconds, self._at_once = take_seconds, at_once
        self._metrics, self._log = metrics, log
        self._epoch = ""
        self._requests: dict[tuple[str, int], _Request] = {}
        self._counted = 0
        self._answers: dict[str, asyncio.Future[Msg]] = {}
        self._replies: dict[str, tuple[Subscription, asyncio.Task[None]]] = {}
        self._backoff = Backoff(first_retry, LONGEST_RETRY)
        self._retry_at: float | None = None
        """When the next take may be sent after one that decided nothing, on the monotonic clock."""
        self._later = asyncio.Event()
        self._told: Came | None = None
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Read the creation time once, and watch the link. Called before the queue of a role is read."""
        with contextlib.suppress(EpochUnread):  # then the first copy is put back when it has been read
            self._epoch = await self._read_epoch()
        self._tasks = [asyncio.create_task(self._watch_link()), asyncio.create_task(self._watch_due())]

    @property
    def held(self) -> int:
        """Requests that are held and not shown."""
        return len(self._requests)

    # ---- the decision ----

    async def admit(self, copy: HeldCopy, message: Message) -> bool:
        """Whether this copy is shown now: True only behind an ``ok`` for just this copy, on the link on which it was
        asked for, within its ack wait (C8.1-12, C8.1-17)."""
        request = self._request(copy, message)
        if request is None or not self._epoch:
            await self._put_back(copy)
            return False
        if request.place is not Place.OFFERED:
            return False  # it will be offered
        try:
            return await self._step(request, self._what_now(copy))
        except BaseException:  # whoever wanted to show it waits no more, and may offer it again
            self._drop(request)
            raise

    def _what_now(self, copy: HeldCopy) -> Event:
        """What happens to a copy that the host is about to show."""
        if not copy.fresh:
            return Event.STALE
        if not self._connection.linked:
            return Event.LOST
        if self._retry_at is not None and self._clock().mono < self._retry_at:
            return Event.PUT_OFF
        return Event.READ

    def _request(self, copy: HeldCopy, message: Message) -> _Request | None:
        """The books of a copy, new ones for a newer copy; None when too many are held, or it is for no role."""
        delivery = delivery_of(copy.frame.subject)
        if delivery is None:
            return None
        key = (delivery.rest, copy.frame.sequence)
        known = self._requests.get(key)
        if known is not None and known.copy is copy:
            return known
        if known is None and len(self._requests) >= self._at_once:
            return None
        if known is not None:
            known.copy.forget()
        request = self._requests[key] = _Request(copy, delivery.rest, message.id, self._epoch)
        self._count_held()
        return request

    async def _put_back(self, copy: HeldCopy) -> None:
        """For another holder, or for later: at once when the copy only came before the creation time was read."""
        self._requests = {key: one for key, one in self._requests.items() if one.copy is not copy}
        delay = FIRST_RETRY
        if not self._epoch:
            with contextlib.suppress(EpochUnread):
                self._epoch = await self._read_epoch()
                delay = 0.0
        await copy.nak(delay)

    async def _step(self, request: _Request, event: Event) -> bool:
        """Take the steps that follow from an event, until something has to be waited for; True when it is shown."""
        following: Event | None = event
        while following is not None:
            request.place, do = after(request.place, following)
            if do is Do.SHOW:
                self._drop(request)
                return True
            following = await self._do(request, do)
        return False

    async def _do(self, request: _Request, do: Do) -> Event | None:
        if do is Do.ASK:
            return await self._ask(request)
        if do is Do.REREAD:
            return await self._reread(request)
        if do is Do.NAK:
            self._drop(request)
            await request.copy.nak()
        elif do is Do.FORGET:
            self._drop(request)
            request.copy.forget()
        elif do is Do.WAIT:
            self._retry_at = self._clock().mono + self._backoff.failed()
            self._later.set()
        elif do is Do.OFFER:
            await self._offer(request.copy)
        elif request.place in (Place.LATER, Place.DOWN):
            self._later.set()
        return None

    def _drop(self, request: _Request) -> None:
        self._requests = {key: one for key, one in self._requests.items() if one is not request}
        self._count_held()

    def _count_held(self) -> None:
        if self._metrics is not None:  # several members of a process share the gauge
            self._metrics.gauge("messaging_requests_held").inc(len(self._requests) - self._counted)
        self._counted = len(self._requests)

    async def _reread(self, request: _Request) -> Event:
        try:
            self._epoch = await self._read_epoch()
        except EpochUnread:
            return Event.UNREAD if self._connection.linked else Event.LOST
        return Event.SAME if self._epoch == request.epoch else Event.MOVED

    # ---- a take ----

    async def _ask(self, request: _Request) -> Event:
        since = self._connection.interruptions
        if not await request.copy.renew() and not request.copy.fresh:
            return Event.STALE
        begun = self._clock().mono
        came = await self._take(request, since)
        if came is Came.OK and not (self._connection.linked and self._connection.interruptions == since):
            came = Came.INTERRUPTED
        self._told_of(came, self._clock().mono - begun)
        if came is Came.OK and not request.copy.fresh:
            return Event.STALE
        return came.event

    def _told_of(self, came: Came, seconds: float) -> None:
        if self._metrics is not None:
            self._metrics.counter("messaging_takes", came.value).inc()
            self._metrics.histogram("messaging_take_seconds").observe(seconds)
        if came.event not in (Event.UNDECIDED, Event.LOST):
            self._backoff.succeeded()
            self._told = None
            if self._retry_at is not None:
                self._retry_at = None
                self._later.set()  # the others that wait may be read as well
        elif self._log is not None and came is not self._told and came is not Came.INTERRUPTED:
            self._told = came
            advice = ADVICE.get(came, "the delivery daemon gave no decision; the request is kept and asked for again")
            self._log.warning("anycast_take_failed", cause=came.value, advice=advice)

    async def _take(self, request: _Request, since: int) -> Came:
        names = self._lifecycle.names
        subject = subjects.TAKE.build(space=self._space, role=request.role, owner=names["owner"], actor=names["actor"])
        nonce = base64.urlsafe_b64encode(self._entropy(_NONCE)).decode("ascii")
        reply = subjects.TAKE_REPLY.build(**subjects.TAKE.parse(subject), nonce=nonce)
        frame = request.copy.frame
        body = take_body(
            self._lifecycle.principal, self._name, frame.sequence, request.message_id, frame.delivered, request.epoch
        )
        answer = self._answers[reply] = asyncio.get_running_loop().create_future()
        lost = asyncio.create_task(self._connection.interrupted(since))
        try:
            await self._listen(request.role)
            await self._connection.publish(subject, body, reply=reply)
            await asyncio.wait((answer, lost), timeout=self._take_seconds, return_when=asyncio.FIRST_COMPLETED)
        except PermissionViolation:
            return Came.DENIED
        except ConnectionFault:
            return Came.INTERRUPTED
        finally:
            del self._answers[reply]
            lost.cancel()
            await asyncio.gather(lost, return_exceptions=True)
        if not answer.done():
            return Came.INTERRUPTED if self._connection.interruptions != since else Came.SILENT
        message = answer.result()
        return await self._who() if _nobody(message) else read_answer(message.data)

    async def _who(self) -> Came:
        """Nobody serves takes: an older daemon, one that is starting, or none (C8.1-42)."""
        for command in ("anycast-takes", "list-memberships"):
            try:
                await self._caller.call(DELIVERY_ENDPOINT, command, seconds=PROBE_SECONDS)
            except CallRefused:
                return Came.OLD_DAEMON
            except CallFailed as error:
                if error.code != Code.UNAVAILABLE:
                    return Came.DENIED if error.code == Code.PERMISSION_DENIED else Came.SILENT
                continue  # nobody serves this command either
            return Came.SILENT if command == "anycast-takes" else Came.OLD_DAEMON
        return Came.NO_DAEMON

    async def _listen(self, role: str) -> None:
        """The one subscription for answers to takes of a role. Raises PermissionViolation, NotConnected, Stopped."""
        known = self._replies.get(role)
        if known is not None and known[0].error is None:
            return
        names = self._lifecycle.names
        pattern = subjects.TAKE.subtree(space=self._space, role=role, owner=names["owner"], actor=names["actor"])
        subscription = await self._connection.subscribe(pattern)
        self._replies[role] = (subscription, asyncio.create_task(self._hear(subscription)))

    async def _hear(self, subscription: Subscription) -> None:
        with contextlib.suppress(SubscriptionClosed, ConnectionFault):
            while True:
                message = await subscription.next()
                stored = is_ack(message.reply) or headers.carries_provenance(message.headers or {})
                if stored and not _nobody(message):  # the broker names the subject that nobody listens on
                    continue  # somebody had these bytes delivered here
                answer = self._answers.get(message.subject)
                if answer is not None and not answer.done():
                    answer.set_result(message)

    # ---- what is kept ----

    async def _watch_link(self) -> None:
        """No takes while the link is down; every request is offered again when there is one (C8.1-18..20)."""
        since = self._connection.interruptions
        with contextlib.suppress(Stopped):
            while True:
                await self._connection.interrupted(since)
                await self._each(Event.LOST, Place.OFFERED, Place.LATER, Place.DOWN)
                since = await self._connection.restored(since)
                self._backoff.succeeded()
                self._retry_at = None
                await self._each(Event.BACK, Place.DOWN)

    async def _watch_due(self) -> None:
        """One request is offered when the wait is over; the others when a take has decided something."""
        while True:
            await self._later.wait()
            self._later.clear()
            if self._connection.linked:  # the link may have come back before a take on the old one ended
                await self._each(Event.BACK, Place.DOWN)
            if self._retry_at is None:
                await self._each(Event.DUE, Place.LATER)
                continue
            delay = self._retry_at - self._clock().mono
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, delay)):
                    await self._later.wait()
            if self._retry_at is not None and self._clock().mono >= self._retry_at:
                self._later.clear()
                await self._each(Event.DUE, Place.LATER, most=1)

    async def _each(self, event: Event, *places: Place, most: int = AT_ONCE) -> None:
        """Let an event happen to the requests in these places, the oldest first; stale ones are forgotten."""
        for request in list(self._requests.values()):
            if request.place not in places:
                continue
            if event is not Event.LOST and not request.copy.fresh:
                await self._step(request, Event.STALE)
            elif most > 0:
                most -= 1
                await self._step(request, event)

    async def close(self) -> None:
        """Stop. What is held comes again, to whoever reads next, when its ack wait is over."""
        heard = [task for _, task in self._replies.values()]
        for task in (*self._tasks, *heard):
            task.cancel()
        await asyncio.gather(*self._tasks, *heard, return_exceptions=True)
        for subscription, _ in self._replies.values():
            await subscription.close()
        for request in self._requests.values():
            request.copy.forget()
        self._requests = {}
        self._count_held()
