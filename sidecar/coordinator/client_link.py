"""One connection under asyncio: moves bytes between a transport and a ``ClientSession``, and answers to futures.

The shell decides nothing about the protocol. Writing is held back by the transport's high-water mark (``writable``),
reading by credit: a subscription's queue can not hold more than its credit allows.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar, cast

from sidecar.base.clock import Now
from sidecar.coordinator import client_events as ev
from sidecar.coordinator.client_core import ClientSession
from sidecar.coordinator.client_errors import (
    AuthorityExpired,
    ConnectionLost,
    ContinuityLost,
    PeerFault,
    VerificationFailed,
)
from sidecar.coordinator.client_stream import Projection
from sidecar.coordinator.wire.ids import EventCut, SubscriptionId
from sidecar.coordinator.wire.records import OperationResult

T = TypeVar("T")


class Subscription:
    """Events of one subscription in order, with automatic credit.

    Iterate it (``async for``). Taking an event returns its credit to the server, so an application that stops taking
    stops the stream and nothing piles up. The iteration never just ends: it raises ``ContinuityLost`` at a GAP, at a
    discontinuity, and when the connection closes. After a replay it goes on.
    """

    def __init__(self, link: Link, subscription_id: SubscriptionId, projection: Projection) -> None:
        self.subscription_id = subscription_id
        self.projection = projection
        """The state that the events so far add up to, received ones included."""
        self._link = link
        self._items: deque[ev.WorkEvent] = deque()
        self._failure: ContinuityLost | None = None
        self._wake: asyncio.Future[None] | None = None

    def __aiter__(self) -> Subscription:
        return self

    async def __anext__(self) -> ev.WorkEvent:
        while not self._items:
            if self._failure is not None:
                raise self._failure
            self._wake = asyncio.get_running_loop().create_future()
            await self._wake
        event = self._items.popleft()
        self._link.consumed(event)
        return event

    @property
    def queued(self) -> int:
        """Events that arrived and were not taken yet."""
        return len(self._items)

    @property
    def link(self) -> Link:
        """The connection that this subscription lives and ends with."""
        return self._link

    @property
    def replayable(self) -> bool:
        """Can a replay heal it now? Otherwise only a fresh snapshot does (P10-22, P10-36)."""
        return self._link.session.replayable(self.subscription_id)

    def put(self, event: ev.WorkEvent) -> None:
        """An event arrived (for the link). Nothing follows a loss before the replay that heals it was told."""
        if self._failure is None:
            self._items.append(event)
            self._notify()

    def fail(self, failure: ContinuityLost) -> None:
        """Continuity is lost after the events that are queued (for the link)."""
        if self._failure is None:
            self._failure = failure
            self._notify()

    def resume(self) -> None:
        """A replay told what was missed (for the link)."""
        self._failure = None

    def _notify(self) -> None:
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)


class Link(asyncio.BufferedProtocol):
    """A session on a transport. Every coroutine raises ``ConnectionLost`` when the connection ends under it."""

    def __init__(self, session: ClientSession, clock: Callable[[], Now], notice: Callable[[ev.Event], None]) -> None:
        self.session = session
        loop = asyncio.get_running_loop()
        self.ready: asyncio.Future[ev.Welcome] = loop.create_future()
        self.closed: asyncio.Future[Exception] = loop.create_future()
        """Done with the reason when the connection has ended."""
        self._loop = loop
        self._clock = clock
        self._notice = notice
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_due: float | None = None
        self._writable: asyncio.Future[None] | None = None
        self._replies: dict[int, asyncio.Future[OperationResult]] = {}
        self._snapshots: dict[int, asyncio.Future[ev.Snapshot]] = {}
        self._lives: dict[int, asyncio.Future[Subscription]] = {}
        self._replays: dict[int, asyncio.Future[ev.Replay]] = {}
        self._pongs: dict[int, asyncio.Future[None]] = {}
        self._subscriptions: dict[SubscriptionId, Subscription] = {}

    # -- asyncio.BufferedProtocol -----------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self.session.start(self._clock())
        self._pump()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self.session.get_buffer(sizehint)

    def buffer_updated(self, nbytes: int) -> None:
        self.session.buffer_updated(nbytes, self._clock())
        self._pump()

    def eof_received(self) -> bool:
        self.session.eof(self._clock())
        self._pump()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self.session.eof(self._clock())
        self._transport = None
        self._pump()

    def pause_writing(self) -> None:
        self._writable = self._loop.create_future()

    def resume_writing(self) -> None:
        if self._writable is not None and not self._writable.done():
            self._writable.set_result(None)
        self._writable = None

    # -- what the client asks ---------------------------------------------------------------------------------------

    async def operation(self, ask: Callable[[ClientSession], int]) -> OperationResult:
        """Send a command or a lookup and wait for its terminal reply; a refusal raises its typed ``ProtocolError``."""
        await self._until_usable()
        return await self._reply(self._replies, ask(self.session))

    async def snapshot(self, *, keep: bool = True) -> ev.Snapshot:
        """A complete verified snapshot without a subscription."""
        await self._until_usable()
        return await self._reply(self._snapshots, self.session.open_snapshot(keep=keep))

    async def follow(
        self, replaces: SubscriptionId | None, credit: tuple[int, int] | None
    ) -> tuple[ev.Snapshot, Subscription]:
        """A snapshot and the live subscription that continues it without a hole.

        A subscription of an earlier connection ended with it: there is nothing to replace then.
        """
        await self._until_usable()
        if replaces not in self._subscriptions:
            replaces = None
        handle = self.session.open_snapshot(reserve=True, replaces=replaces, credit=credit)
        live = self._lives[handle] = self._loop.create_future()
        try:
            snapshot = await self._reply(self._snapshots, handle)
            return snapshot, await live
        finally:
            self._lives.pop(handle, None)
            _drop(live)

    async def subscribe(
        self, after: EventCut, credit: tuple[int, int] | None, projection: Projection | None
    ) -> Subscription:
        """A direct subscription from a cut on."""
        await self._until_usable()
        return await self._reply(self._lives, self.session.subscribe(after, credit=credit, projection=projection))

    async def replay(self, subscription: Subscription, credit: tuple[int, int] | None) -> ev.Replay:
        """What a paused subscription missed; it goes on behind that."""
        await self._until_usable()
        handle = self.session.open_replay(subscription.subscription_id, credit=credit)
        return await self._reply(self._replays, handle)

    async def ping(self, nonce: int) -> None:
        """Wait for the PONG with this nonce."""
        await self._until_usable()
        pong: asyncio.Future[None] = self._loop.create_future()
        self.session.ping(nonce)
        self._pongs[nonce] = pong
        self._pump()
        await pong

    def consumed(self, event: ev.WorkEvent) -> None:
        """Give the credit of an event back."""
        self.session.consumed(event)
        self._pump()

    def close(self) -> None:
        """End the connection; idempotent."""
        self.session.close()
        self._pump()

    # -- plumbing ---------------------------------------------------------------------------------------------------

    async def _until_usable(self) -> None:
        """Wait until the transport takes more; raises ``ConnectionLost`` when the connection has ended."""
        while self._writable is not None and not self.session.closing:
            await asyncio.shield(self._writable)
        if self.session.closing:
            raise ConnectionLost("the connection has ended")

    async def _reply(self, table: dict[int, asyncio.Future[T]], request_id: int) -> T:
        future: asyncio.Future[T] = self._loop.create_future()
        table[request_id] = future
        self._pump()
        return await future

    def _pump(self) -> None:
        """Write what the session has to say, tell what happened, keep its timer, close when it is done."""
        output = self.session.take_output()
        if output and self._transport is not None:
            self._transport.writelines(output)
        for event in self.session.take_events():
            self._dispatch(event)
        self._keep_timer()
        if self.session.closing and self._transport is not None:
            transport, self._transport = self._transport, None
            transport.close()

    def _keep_timer(self) -> None:
        due = self.session.deadline()
        if due == self._timer_due:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_due = due
        self._timer = None if due is None else self._loop.call_later(max(0.0, due - self._clock().mono), self._tick)

    def _tick(self) -> None:
        self._timer_due = None
        self.session.timeout(self._clock())
        self._pump()

    def _dispatch(self, event: ev.Event) -> None:
        match event:
            case ev.OperationReply(request_id, result):
                _resolve(self._replies.pop(request_id, None), result)
            case ev.WorkEvent():
                self._with(event.subscription_id, lambda subscription: subscription.put(event))
            case ev.ReplayReady(request_id, replay):
                self._replay_ready(request_id, replay)
            case ev.SnapshotReady(request_id, snapshot):
                self._snapshot_ready(request_id, snapshot)
            case ev.StreamLive(request_id, subscription_id):
                subscription = self._subscriptions.get(subscription_id) or self._subscribe(subscription_id)
                _resolve(self._lives.pop(request_id, None), subscription)
            case ev.StreamGap() | ev.StreamStale():
                self._with(event.subscription_id, lambda subscription: subscription.fail(_lost(event)))
            case ev.Refused(request_id, error):
                for table in self._tables()[:4]:
                    _reject(table.pop(request_id, None), error)
            case ev.Ready(welcome):
                _resolve(self.ready, welcome)
            case ev.Pong(nonce):
                _resolve(self._pongs.pop(nonce, None), None)
            case ev.Closed(error, _):
                self._closed(error)
        self._notice(event)

    def _tables(self) -> tuple[dict[int, asyncio.Future[Any]], ...]:
        return cast(
            tuple[dict[int, asyncio.Future[Any]], ...],
            (self._replies, self._snapshots, self._lives, self._replays, self._pongs),
        )

    def _snapshot_ready(self, request_id: int, snapshot: ev.Snapshot) -> None:
        if snapshot.subscription_id is not None:
            self._subscribe(snapshot.subscription_id)
        _resolve(self._snapshots.pop(request_id, None), snapshot)

    def _replay_ready(self, request_id: int, replay: ev.Replay) -> None:
        waiting = self._replays.pop(request_id, None)
        if waiting is not None and not waiting.done():  # else nobody saw the replay: the subscription stays broken
            self._with(replay.subscription_id, Subscription.resume)
        _resolve(waiting, replay)

    def _subscribe(self, subscription_id: SubscriptionId) -> Subscription:
        subscription = Subscription(self, subscription_id, self.session.projection(subscription_id))
        self._subscriptions[subscription_id] = subscription
        return subscription

    def _with(self, subscription_id: SubscriptionId, act: Callable[[Subscription], None]) -> None:
        subscription = self._subscriptions.get(subscription_id)
        if subscription is not None:
            act(subscription)

    def _closed(self, error: Exception) -> None:
        _reject(self.ready, error)
        _resolve(self.closed, error)
        for table in self._tables():
            for future in table.values():
                _reject(future, self._end_of(table, error))
            table.clear()
        self.resume_writing()

    def _end_of(self, table: object, error: Exception) -> Exception:
        """What an unfinished call raises. A lie is told to who asked a question; for a command all that counts is that
        its reply is lost (P13-07)."""
        lie = isinstance(error, PeerFault | VerificationFailed) and not isinstance(error, AuthorityExpired)
        if lie and table is not self._replies:
            return error
        lost = ConnectionLost(str(error))
        lost.__cause__ = error
        return lost


def _lost(event: ev.StreamGap | ev.StreamStale) -> ContinuityLost:
    if isinstance(event, ev.StreamGap):
        detail = f"GAP {event.reason.name} after delivery {event.last_delivery}, event {event.last_event}"
    else:
        detail = event.detail
    return ContinuityLost(
        detail,
        last_delivery=event.last_delivery,
        last_event=event.last_event,
        healable=isinstance(event, ev.StreamGap) or event.healable,
        reason=event.reason if isinstance(event, ev.StreamGap) else None,
    )


def _resolve(future: asyncio.Future[T] | None, value: T) -> None:
    if future is not None and not future.done():
        future.set_result(value)


def _reject(future: asyncio.Future[Any] | None, error: Exception) -> None:
    if future is not None and not future.done():
        future.set_exception(error)


def _drop(future: asyncio.Future[Any]) -> None:
    """Nobody waits for this any more; a failure that is in it already was told by another way."""
    if not future.cancel() and not future.cancelled():
        future.exception()
