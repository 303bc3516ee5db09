"""The connection that everything on the NATS rails uses.

    async with await Connection.open(["nats://127.0.0.1:4222"], credentials, watch=Watch(metrics, log)) as connection:
        subscription = await connection.subscribe("cotal.main.chat.>")
        await connection.publish("cotal.main.chat.x", b"...")     # PermissionViolation, if the broker refuses
        reply = await connection.request("service.x", b"...")     # at once also when refused or nobody listens

It heals what can be healed and says what happened; `docs/architecture.md` tells the whole of it.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import random
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Final, Self

from nats.aio.msg import Msg

from sidecar.base.clock import Now, system_now
from sidecar.rails.connection.calls import Call, Calls
from sidecar.rails.connection.credentials import Credentials, Wallet
from sidecar.rails.connection.faults import (
    ConnectionFault,
    Fault,
    NoResponders,
    NotConnected,
    NotSent,
    Said,
    Stopped,
)
from sidecar.rails.connection.link import Endpoint, Link, LinkFault
from sidecar.rails.connection.logins import OpenLogin
from sidecar.rails.connection.placements import Placements
from sidecar.rails.connection.policy import Again, Event, Policy, Recovery, State, after
from sidecar.rails.connection.subscription import MAX_BYTES, MAX_MESSAGES, Mux, Subscription, Tap
from sidecar.rails.connection.watch import Happening, Notice, Watch
from sidecar.rails.names import headers as names
from sidecar.rails.names import inboxes

DEFAULT_POLICY: Final = Policy()
MAX_PAYLOAD: Final = 1 << 20
"""Bytes; what an untouched broker says."""
Minter = Callable[[], Awaitable[Credentials | OpenLogin]]


class Connection:
    """One principal's connection, over as many links as it takes. Made by :meth:`open`."""

    def __init__(
        self,
        urls: Sequence[str],
        minter: Minter,
        policy: Policy,
        watch: Watch,
        tls: ssl.SSLContext | None,
        clock: Callable[[], Now],
        chance: Callable[[], float],
    ) -> None:
        self.state = State.CONNECTING
        self.inbox = ""
        """The prefix of everything that is sent to this connection alone (C10-08)."""
        self._urls, self._tls = urls, tls
        self._wallet = Wallet(minter, policy.call_within)
        self._policy, self._watch, self._clock, self._chance = policy, watch, clock, chance
        self._recovery = Recovery(policy)
        self._calls = Calls()
        self._subscriptions = Placements(self._now, watch)
        self._mux: Mux | None = None
        self._serial = 0
        self._max_payload = MAX_PAYLOAD
        self._link: Link | None = None
        self._links: set[Link] = set()
        self._was_up = False
        self._kept = 0
        self._change = asyncio.Condition()
        self.interruptions = 0
        """How often the link was lost or could not be made; equal counts with a link at both times: the same link, or
        one that took over without a gap."""
        self._ending: ConnectionFault | None = None
        self._fresh = True
        self._again = Again(0.0, True)
        self._retiring: set[asyncio.Task[None]] = set()
        self._closing = False
        self._runner: asyncio.Task[None] | None = None
        watch.entered(None, self.state)

    @classmethod
    async def open(
        cls,
        urls: Sequence[str],
        minter: Minter,
        *,
        policy: Policy = DEFAULT_POLICY,
        watch: Watch | None = None,
        tls: ssl.SSLContext | None = None,
        clock: Callable[[], Now] = system_now,
        chance: Callable[[], float] = random.random,
    ) -> Connection:
        """Connect, however long that takes; bound it with ``asyncio.timeout``. Raises Stopped.

        ``minter`` is asked for credentials at the start, ahead of their end and after the broker refused them; all of
        them are of one user key, which names the inbox. TypeError for ``urls`` that is one text: each letter of it
        would be taken for an address.
        """
        if isinstance(urls, str):
            raise TypeError("the addresses of brokers are a list of texts, not one text")
        connection = cls(urls, minter, policy, watch or Watch(), tls, clock, chance)
        connection._runner = asyncio.create_task(connection._run())
        try:
            await connection._ready()
        except BaseException:
            await connection.close()
            raise
        return connection

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    # ---- calls ----

    @property
    def max_payload(self) -> int:
        """Bytes that the broker takes in one message, headers included, as it said at the last login."""
        return self._max_payload

    async def publish(
        self, subject: str, data: bytes = b"", *, reply: str = "", headers: Mapping[str, str] | None = None
    ) -> None:
        """Publish; when this returns the broker has taken the message. Raises PermissionViolation, NotConnected (it may
        have been taken), Stopped, ConnectionFault for one that is too large."""
        await self._bounded(self._ready())
        async with self._calls.under_way(subject) as call:
            with self._now().used() as link:
                await link.publish(subject, data, reply, headers)
                await link.settle()
            if call.answer.done():
                call.answer.result()

    async def send(
        self, subject: str, data: bytes = b"", *, reply: str = "", headers: Mapping[str, str] | None = None
    ) -> None:
        """Publish without waiting for the broker: acks, answers to it, and what it acknowledges elsewhere. A refusal is
        only counted and noticed. Raises NotConnected, Stopped, ConnectionFault for a message that is too large."""
        if self.offer(subject, data, reply=reply, headers=headers):
            return
        if not self.linked:
            await self._bounded(self._ready())
        with self._now().used() as link:
            await link.publish(subject, data, reply, headers)

    def offer(
        self, subject: str, data: bytes = b"", *, reply: str = "", headers: Mapping[str, str] | None = None
    ) -> bool:
        """What :meth:`send` does, if that needs no waiting; False: nothing was done, and it is to be asked."""
        link = self._link
        return link is not None and link.offer(subject, data, reply, headers)

    @contextlib.asynccontextmanager
    async def exchange(
        self, subject: str, data: bytes = b"", *, reply: str = "", headers: Mapping[str, str] | None = None
    ) -> AsyncIterator[asyncio.Future[Any]]:
        """Publish, and keep the call open for the block: for callers that read the replies themselves.

        The future fails with PermissionViolation, NotConnected or Stopped when the broker refuses the message or the
        link ends. Raises NotSent when there is no link right now (:meth:`ready` waits for one), NotConnected when the
        message may have been sent, ConnectionFault for one that is too large.
        """
        async with self._calls.under_way(subject) as call:
            try:
                now = self._now()
            except ConnectionFault as error:
                raise NotSent(error.fault, str(error)) from None
            with now.used() as link:
                await link.publish(subject, data, reply, headers)
                yield call.answer

    def begin(self, subject: str, data: bytes, reply: str) -> Call | None:
        """What :meth:`exchange` does, if that needs no waiting; the call is open until :meth:`finish`. None: nothing
        was done, and it is to be asked."""
        call = self._calls.begin(subject)
        if call is not None and not self.offer(subject, data, reply=reply):
            self._calls.end(call)
            return None
        return call

    def finish(self, call: Call) -> None:
        """The end of a call that was begun."""
        self._calls.end(call)

    async def ready(self) -> None:
        """Wait for a link. Raises NotSent when there is none for as long as a call may wait, or never again."""
        if not self.linked:
            try:
                await self._bounded(self._ready())
            except ConnectionFault as error:
                raise NotSent(error.fault, str(error)) from None

    async def request(
        self, subject: str, data: bytes = b"", *, seconds: float = 5.0, headers: Mapping[str, str] | None = None
    ) -> Msg:
        """The first reply. Raises PermissionViolation, NoResponders, NotConnected, Stopped, TimeoutError."""
        mux, link = self._mux, self._link
        call = None
        # Where everything stands ready, as under load, nothing needs to be waited for but the answer.
        if mux is not None and mux.ready and link is not None and link.easy:
            call = self._calls.begin(subject)
        if call is None or mux is None or link is None:
            message = await self._ask(subject, data, headers, Call.take, seconds)
        else:
            inbox = mux.expect(self._number(), call.take, call)
            timer = call.answer.get_loop().call_later(seconds, call.fail, TimeoutError())
            try:
                await link.publish(subject, data, inbox, headers)
                message = await call.answer
            finally:
                timer.cancel()
                mux.forget(inbox)
                self._calls.end(call)
        self._check_responders(subject, message)
        return message

    async def request_until(
        self, subject: str, data: bytes, last: Callable[[Msg], bool], *, at_most: int, seconds: float = 5.0
    ) -> list[Msg]:
        """All replies up to the first one that is ``last``, which is the last of the list; more than ``at_most`` are a
        ConnectionFault. Raises what :meth:`request` raises; TimeoutError also when only some replies came."""
        found: list[Msg] = []

        def take(call: Call, message: Msg) -> None:
            found.append(message)
            if last(message):
                call.take(message)
            elif len(found) >= at_most:
                call.fail(ConnectionFault(Fault.PROTOCOL, f"more than {at_most} replies"))

        self._check_responders(subject, await self._ask(subject, data, None, take, seconds))
        return found

    async def _ask(
        self,
        subject: str,
        data: bytes,
        headers: Mapping[str, str] | None,
        take: Callable[[Call, Msg], None],
        seconds: float,
    ) -> Msg:
        """What ``take`` makes of the replies the answer of the call."""
        async with asyncio.timeout(seconds):
            mux = await self._replies()
            async with self._calls.under_way(subject) as call:
                inbox = mux.expect(self._number(), functools.partial(take, call), call)
                try:
                    with self._now().used() as link:
                        await link.publish(subject, data, inbox, headers)
                    message: Msg = await call.answer
                finally:
                    mux.forget(inbox)
        return message

    def _check_responders(self, subject: str, message: Msg) -> None:
        if not message.data and names.says_nobody(message.headers, message.data, subject):
            self._watch.fault(Said(Fault.NO_RESPONDERS, subject=subject))
            raise NoResponders(subject)

    async def _replies(self) -> Mux:
        """The subscription for replies, made by the first request."""
        while True:
            await self._ready()
            if self._mux is None or self._mux.error is not None:
                self._mux = mux = Mux(f"{self.inbox}.r.*", self._subscriptions.remove)
                try:
                    await self._place(mux)
                except BaseException as error:
                    # Also one that was cancelled before its turn to be placed: nobody else would ever place it.
                    mux.fail(error if isinstance(error, ConnectionFault) else NotConnected(Fault.LOST, "not placed"))
                    raise
            elif not self._mux.settled:
                mux = self._mux
                async with self._subscriptions.placing:
                    if not mux.settled:  # whoever was placing it gave up
                        mux.fail(NotConnected(Fault.LOST, "the inbox is placed no more"))
            else:
                return self._mux

    # ---- subscriptions ----

    async def subscribe(
        self, subject: str, queue: str = "", *, max_messages: int = MAX_MESSAGES, max_bytes: int = MAX_BYTES
    ) -> Subscription:
        """Subscribe; when this returns the broker has taken it. Raises PermissionViolation, NotConnected, Stopped."""
        owner = self._subscriptions
        subscription = Subscription(subject, queue, owner.remove, owner.slow, max_messages, max_bytes)
        await self._place(subscription)
        return subscription

    async def tap(self, subject: str, give: Callable[[Msg], None], ended: Callable[[Exception], None]) -> Subscription:
        """Subscribe for a function that is given each message as it comes, and told once what ended the subscription.
        Raises as :meth:`subscribe` does."""
        (tap,) = await self.taps([(subject, "", ended)], give)
        return tap

    async def taps(
        self, wanted: Iterable[tuple[str, str, Callable[[Exception], None]]], give: Callable[[Msg], None]
    ) -> list[Subscription]:
        """As :meth:`tap` for several at once, in two round trips for all: subject, queue group, and who hears of the
        end of each. None of them stands when this raises."""
        taps = [Tap(subject, self._subscriptions.remove, give, ended, queue) for subject, queue, ended in wanted]
        await self._place(*taps)
        return list(taps)

    async def drain(self, subscriptions: Sequence[Subscription]) -> None:
        """End some subscriptions; what the broker had sent on them has come in when this returns."""
        await self._subscriptions.drain(subscriptions)

    @property
    def linked(self) -> bool:
        """Whether there is a link at this moment."""
        return self._link is not None and not self._link.ended.done()

    async def settled(self) -> bool:
        """Whether the broker has taken all that this connection has ever sent, so that nothing of it can come later: it
        never lost a link, which might still hold something, and the broker has answered behind the last message."""
        if self._retiring or not self.linked:
            return False
        try:
            await self._now().settle()
        except ConnectionFault:
            return False
        return self.linked and not self.interruptions

    async def interrupted(self, since: int) -> None:
        """Return when the count of interruptions is not ``since``. Raises Stopped."""
        async with self._change:
            while self.interruptions == since:
                if self._ending is not None:
                    raise self._ending
                await self._change.wait()

    async def restored(self, since: int) -> int:
        """The count of interruptions, when there is a link and the count is not ``since``. Raises Stopped."""
        async with self._change:
            while self.interruptions == since or not self.linked:
                if self._ending is not None:
                    raise self._ending
                await self._change.wait()
            return self.interruptions

    def new_inbox(self) -> str:
        """A subject below the connection's own inbox that was not given out before."""
        return f"{self.inbox}.s.{self._number()}"

    def _number(self) -> int:
        self._serial += 1
        return self._serial

    def record_redirected(self) -> None:
        """Count somebody's redirected read in the place of a record, or in the inbox of a watch."""
        self._watch.record_redirected()

    def store_refused(self, kind: str) -> None:
        """Count a message that a stream did not take."""
        self._watch.store_refused(kind)

    def report(self, said: Said) -> None:
        """Count, log and notice a fault that a reader above this connection found."""
        self._watch.fault(said)

    async def _place(self, *subscriptions: Subscription) -> None:
        await self._bounded(self._ready())
        await self._subscriptions.place(*subscriptions)

    # ---- what the links say ----

    def _reported(self, said: Said) -> None:
        """A fault that does not end the link: to the call or subscription that it is about."""
        known = False
        if said.fault is Fault.PUBLISH_DENIED and said.subject is not None:
            known = self._calls.denied(said.subject)
        elif said.fault is Fault.SUBSCRIBE_DENIED and said.subject is not None:
            known = self._subscriptions.denied(said)
        self._watch.fault(said, noticed=not known)

    # ---- the life of the connection ----

    async def _bounded(self, work: Coroutine[Any, Any, Link]) -> Link:
        try:
            async with asyncio.timeout(self._policy.call_within):
                return await work
        except TimeoutError:
            raise NotConnected(Fault.LOST, "there is no link to the broker") from None

    async def _ready(self) -> Link:
        """The link, when there is one."""
        async with self._change:
            while self._link is None or self._link.ended.done():
                if self._ending is not None:
                    raise self._ending
                await self._change.wait()
            return self._link

    def _now(self) -> Link:
        """The link at this moment. Raises NotConnected, Stopped."""
        if self._link is None or self._link.ended.done():
            raise self._ending or NotConnected(Fault.LOST, "the link ended")
        return self._link

    async def _moved(self, event: Event) -> None:
        before, self.state = self.state, after(self.state, event)
        self._watch.entered(before, self.state)
        async with self._change:
            self._change.notify_all()

    async def _run(self) -> None:
        try:
            # What a login waits for may swallow a cancellation (`wait_for` of Python 3.11 does when both come at once).
            while self.state is not State.STOPPED and not self._closing:
                if self.state is State.WAITING:
                    await asyncio.sleep(self._again.wait)
                    await self._moved(Event.RETRY)
                elif self.state is State.CONNECTING:
                    await self._connect()
                else:
                    await self._stay()
        except Exception as error:  # a fault of ours must not leave callers waiting
            await self._stop(Said(Fault.UNKNOWN, type(error).__name__))
            raise

    async def _connect(self) -> None:
        try:
            await self._refill()
            await self._login()
        except LinkFault as error:
            await self._down(error.said)
            return
        self._recovery.up(self._clock().mono)
        await self._moved(Event.UP)
        self._watch.notice(Notice(Happening.RESTORED if self._was_up else Happening.CONNECTED))
        self._was_up = True

    async def _refill(self) -> None:
        """Fresh credentials, when the old ones were refused or are about to end."""
        if self._again.fresh:
            await self._wallet.refill()
        elif self._wallet.due(self._clock().wall, self._policy):
            try:
                await self._wallet.refill()
            except LinkFault as error:  # the old ones may still do
                self._watch.fault(error.said)

    async def _login(self) -> None:
        """A link with every subscription on it is the one to use. Raises LinkFault."""
        self.inbox = inboxes.INBOX.build(connection=self._wallet.login.connection)
        endpoint = Endpoint(self._urls, self.inbox, self._tls)
        link = await Link.make(endpoint, self._wallet.login, self._policy, self._reported)
        self._links.add(link)
        try:
            async with self._subscriptions.placing:
                if self._link is not None:
                    self._subscriptions.overlap(link)
                await self._subscriptions.restore(link)
                self._link, self._max_payload = link, link.max_payload
        except ConnectionFault as error:
            said = link.ended.result() if link.ended.done() else Said(error.fault)
            await self._forget(link)
            raise LinkFault(said) from None
        except BaseException:
            await self._forget(link)
            raise

    async def _stay(self) -> None:
        """Until the link ends or the credentials have to be replaced."""
        link = self._link
        assert link is not None
        due = self._wallet.renew_in(self._clock().wall, self._policy)
        await asyncio.wait((link.ended,), timeout=due)
        if not link.ended.done():
            await self._moved(Event.DUE)
            await self._renew(link)
        if link.ended.done() and self._link is link:
            said = link.ended.result()
            self._link = None
            await self._forget(link)
            await self._down(said)

    async def _renew(self, old: Link) -> None:
        """Fresh credentials on a second link, then the first one goes: nothing is lost between the two."""
        try:
            if self._retiring:  # never three at a time
                await asyncio.wait(self._retiring)
            await self._wallet.refill()
            await self._login()
        except LinkFault as error:
            self._watch.fault(error.said)
            await self._moved(Event.KEPT)
            self._kept += 1
            self._wallet.later(self._clock().wall, self._policy.wait(self._kept, self._chance()))
            return
        self._kept = 0
        await self._moved(Event.UP)
        self._watch.notice(Notice(Happening.RENEWED))
        task = asyncio.create_task(self._retire(old, self._now()))
        self._retiring.add(task)
        task.add_done_callback(self._retiring.discard)

    async def _retire(self, old: Link, new: Link) -> None:
        await old.retire()
        with contextlib.suppress(ConnectionFault):
            await new.settle()
        await self._forget(old)

    async def _forget(self, link: Link) -> None:
        """Close a link; no subscription knows it any more."""
        self._subscriptions.forget(link)
        self._links.discard(link)
        await link.close()

    async def _down(self, said: Said) -> None:
        """The link ended or there is none: what now?"""
        self.interruptions += 1
        self._subscriptions.interrupted()
        self._watch.fault(said)
        self._calls.fail_all(NotConnected(said.fault, "the link ended; what was under way may have had its effect"))
        decision = self._recovery.down(said, self._clock().mono, self._chance())
        if isinstance(decision, Said):
            await self._stop(decision)
            return
        self._again = decision
        await self._moved(Event.DOWN)

    async def _stop(self, said: Said) -> None:
        await self._end(Stopped(said.fault, said.text or said.fault.value), Event.GIVE_UP)
        self._watch.notice(Notice(Happening.STOPPED, said))

    async def _end(self, error: ConnectionFault, event: Event) -> None:
        self._ending = self._ending or error
        self._link = None
        self._calls.fail_all(error)
        self._subscriptions.fail(error)
        if self.state is not State.CLOSED:
            await self._moved(event)
        for link in list(self._links):
            await self._forget(link)

    async def close(self) -> None:
        """End it. Calls and subscriptions fail with Stopped; may be called twice."""
        self._closing = True
        tasks = [*self._retiring, *([self._runner] if self._runner is not None else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._end(Stopped(Fault.LOST, "the connection was closed"), Event.CLOSE)
