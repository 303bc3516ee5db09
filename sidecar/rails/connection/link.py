"""One login at the broker: a nats-py client that never reconnects by itself, and that says once how it ended.

nats-py gives up for good on errors that it does not know and restores what it likes on a reconnect. So a link lives
exactly as long as one socket; what outlives it (subscriptions, calls, credentials) is the connection's.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import nats.errors
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription as ClientSubscription

from sidecar.rails.connection.client import EASY, LinkClient, OldBroker, Plaintext
from sidecar.rails.connection.faults import ConnectionFault, Fault, Heal, NotConnected, Said, classify
from sidecar.rails.connection.logins import Login
from sidecar.rails.connection.policy import Policy

FLOOR: Final = (2, 12)
"""The oldest nats-server with message schedules (C13.12-01)."""
_TLS_SCHEME: Final = "tls:"
_NEVER: Final = 10**9
"""Seconds: the client's own pings are off, the link has its own."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a connection goes, and under which inbox (C10-08). With ``tls``, never without TLS (C10-06)."""

    urls: Sequence[str]
    inbox: str
    tls: ssl.SSLContext | None = None

    @property
    def needs_tls(self) -> bool:
        """Whether a broker that does not speak TLS is refused."""
        return self.tls is not None or any(url.startswith(_TLS_SCHEME) for url in self.urls)


T = TypeVar("T")


class LinkFault(Exception):  # noqa: N818 - stays inside this package
    """A link could not be made, or has ended."""

    def __init__(self, said: Said) -> None:
        super().__init__(said.text)
        self.said = said


class Link:
    """A login that is up, until ``ended`` says why not any more. ``report`` hears of faults that do not end it."""

    def __init__(self, policy: Policy, report: Callable[[Said], None]) -> None:
        self.ended: asyncio.Future[Said] = asyncio.get_running_loop().create_future()
        self._client = LinkClient()
        self._client.said = self._told
        self._policy = policy
        self._report = report
        self._users = 0
        self._unused = asyncio.Event()
        self._under_way = False
        self._window: asyncio.Task[None] | None = None
        self._making: set[asyncio.Task[Any]] = set()
        self._pinger: asyncio.Task[None] | None = None

    @classmethod
    async def make(cls, endpoint: Endpoint, login: Login, policy: Policy, report: Callable[[Said], None]) -> Link:
        """Log in. Raises LinkFault."""
        link = cls(policy, report)
        try:
            async with asyncio.timeout(policy.connect_within):
                await link._login(endpoint, login)
        except (OldBroker, Plaintext) as error:
            await link.close()
            fault = Fault.OLD_BROKER if isinstance(error, OldBroker) else Fault.PLAINTEXT
            raise LinkFault(Said(fault, str(error))) from None
        except (OSError, nats.errors.Error, TimeoutError) as error:
            await link.close()
            raise LinkFault(link._unmade(error)) from None
        except BaseException:
            await link.close()
            raise
        link._pinger = asyncio.create_task(link._ping())
        return link

    async def _login(self, endpoint: Endpoint, login: Login) -> None:
        self._client.needs_tls = endpoint.needs_tls
        await self._client.connect(
            list(endpoint.urls),
            # The broker's INFO is known at the check and nothing was sent yet (C13.12-02).
            **login.options(self._check_version),
            error_cb=self._failed,
            closed_cb=self._closed,
            allow_reconnect=False,
            max_reconnect_attempts=1,
            reconnect_time_wait=0,
            ping_interval=_NEVER,
            connect_timeout=self._policy.connect_within,
            inbox_prefix=endpoint.inbox.encode(),
            tls=endpoint.tls,
        )
        self._check_version()
        if not self._client.is_connected:
            # A broker that hangs up on CONNECT leaves nats-py "connecting" without an error.
            raise nats.errors.UnexpectedEOF

    def _check_version(self) -> None:
        version = self._client.connected_server_version
        if (version.major, version.minor) < FLOOR:
            found = f"{version.major}.{version.minor}.{version.patch}"
            raise OldBroker(f"the broker is nats-server {found}; {FLOOR[0]}.{FLOOR[1]} is the oldest that will do")

    def _unmade(self, error: Exception) -> Said:
        """Why there is no link, from the error of the attempt."""
        if isinstance(error, TimeoutError):
            return Said(Fault.UNREACHABLE, "the broker does not answer")
        if isinstance(error, nats.errors.NoServersError):
            return Said(Fault.UNREACHABLE, "no broker answers there")
        if isinstance(error, OSError):
            return Said(Fault.UNREACHABLE, error.strerror or type(error).__name__)
        said = classify(str(error))
        return Said(Fault.DROPPED, said.text) if said.fault is Fault.LOST else said

    async def _failed(self, error: Exception) -> None:
        """nats-py's error callback. What the broker says comes by :meth:`_told`; here come faults of the client."""
        if isinstance(error, nats.errors.SlowConsumerError):
            self._report(Said(Fault.SLOW_CONSUMER, "the client's own queue is full", error.subject))

    def _told(self, text: str) -> None:
        """The broker reports an error. Some it says to one call; after all others nothing more can be expected."""
        said = classify(text)
        if said.fault.heal is Heal.CALL:
            self._report(said)
        else:
            self.end(said)

    async def _closed(self) -> None:
        self.end(Said(Fault.LOST))

    def end(self, said: Said) -> None:
        """The link is over; the first reason counts."""
        if not self.ended.done():
            self.ended.set_result(said)

    async def _ping(self) -> None:
        while not self.ended.done():
            await asyncio.sleep(self._policy.ping_every)
            try:
                await self._client.rtt(self._policy.ping_within)
            except nats.errors.TimeoutError:
                self.end(Said(Fault.STALE, "no answer to a ping"))
            except (nats.errors.Error, OSError):
                self.end(Said(Fault.LOST))

    async def _guarded(self, work: Awaitable[T]) -> T:
        """Await ``work``, and not longer than the link lives. Raises NotConnected."""
        task = asyncio.ensure_future(work)
        try:
            await asyncio.wait((task, self.ended), return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                raise NotConnected(self.ended.result().fault, "the link ended")
            return task.result()
        except (nats.errors.ConnectionClosedError, nats.errors.ConnectionDrainingError, OSError):
            self.end(Said(Fault.LOST))
            raise NotConnected(Fault.LOST, "the link ended") from None
        except nats.errors.FlushTimeoutError:
            self.end(Said(Fault.STALE, "no answer to a ping"))
            raise NotConnected(Fault.STALE, "the broker does not answer") from None
        finally:
            if not task.done():
                task.cancel()

    @property
    def max_payload(self) -> int:
        """Bytes of one message, headers included, as the broker said."""
        return self._client.max_payload

    @property
    def easy(self) -> bool:
        """Whether the link is up and takes a publish without waiting for the socket."""
        return not self.ended.done() and self._client.pending_data_size < EASY

    def offer(self, subject: str, data: bytes, reply: str, headers: Mapping[str, str] | None) -> bool:
        """Hand one message to the socket if that needs no waiting; False where :meth:`publish` is to do it."""
        return not self.ended.done() and self._client.offer(subject, data, reply, headers)

    async def publish(self, subject: str, data: bytes, reply: str, headers: Mapping[str, str] | None) -> None:
        """Hand one message to the socket. Raises NotConnected, ConnectionFault for a payload that is too large."""
        if self.offer(subject, data, reply, headers):
            return
        work = self._client.publish(subject, data, reply=reply, headers=None if headers is None else dict(headers))
        try:
            if self._client.pending_data_size < EASY:
                await work  # it only buffers
            else:
                await self._guarded(work)
        except (nats.errors.ConnectionClosedError, nats.errors.ConnectionDrainingError):
            self.end(Said(Fault.LOST))
            raise NotConnected(Fault.LOST, "the link ended") from None
        except nats.errors.MaxPayloadError:
            raise ConnectionFault(Fault.MAX_PAYLOAD, "the message is larger than the broker takes") from None

    async def subscribe(self, subject: str, queue: str, take: Callable[[Msg], None]) -> ClientSubscription:
        """Subscribe; the broker's refusal, if any, is reported before the next :meth:`settle` returns."""

        async def taken(message: Msg) -> None:
            take(message)

        # The library knows a subscription, and may have told the broker of it, before it hands it out: one that was
        # begun is made whole in any case, and ended again if nobody wants it any more.
        making = asyncio.ensure_future(self._client.subscribe(subject, queue=queue, cb=taken))
        self._making.add(making)
        making.add_done_callback(self._making.discard)
        try:
            placed = await self._guarded(asyncio.shield(making))
        except BaseException:
            making.add_done_callback(self._unwanted)
            raise
        self._client.deliver(placed._id, take)
        return placed

    def _unwanted(self, making: asyncio.Task[ClientSubscription]) -> None:
        """Whoever subscribed was cancelled meanwhile."""
        if making.cancelled() or making.exception() is not None or self.ended.done():
            return
        ending = asyncio.ensure_future(making.result().unsubscribe())
        self._making.add(ending)
        ending.add_done_callback(self._making.discard)
        ending.add_done_callback(lambda task: task.cancelled() or task.exception())

    async def drained(self, placed: ClientSubscription) -> None:
        """Unsubscribe; what the broker had sent before has been taken when this returns. Raises NotConnected."""
        # The library's own drain waits for one round only, which may pass the broker in front of the unsubscription.
        await self._guarded(self._client.leave(placed._id))
        await self.settle()
        await self._guarded(placed.unsubscribe())

    async def settle(self) -> None:
        """Return when the broker has answered everything that was sent before; callers share round trips."""
        while self._under_way and self._window is not None and not self._window.done():
            # What the caller sent may be behind this round's pings: the next round is for it.
            await asyncio.wait((self._window,))
        if self._window is None or self._window.done():
            self._window = asyncio.create_task(self._round())
            self._window.add_done_callback(lambda task: task.cancelled() or task.exception())
        await asyncio.shield(self._window)

    async def _round(self) -> None:
        self._under_way = True
        try:
            # The client writes a PING in front of what it has buffered: only the second one is behind it.
            for _ in range(2):
                await self._guarded(self._client.flush(self._policy.call_within))
        finally:
            self._under_way = False

    @contextlib.contextmanager
    def used(self) -> Iterator[Link]:
        """The link for one call; :meth:`retire` waits for the calls."""
        self._users += 1
        try:
            yield self
        finally:
            self._users -= 1
            if not self._users:
                self._unused.set()

    async def retire(self) -> None:
        """Let the calls finish and the messages on their way come in, for a bounded time; then close."""
        with contextlib.suppress(TimeoutError, OSError, nats.errors.Error, NotConnected):
            async with asyncio.timeout(self._policy.call_within):
                while self._users:
                    self._unused.clear()
                    await self._unused.wait()
                # Not the library's drain: its one round may pass the broker in front of the unsubscriptions.
                await self._client.leave_all()
                await self.settle()
        await self.close()

    async def close(self) -> None:
        """End the link; its socket is closed when this returns."""
        self.end(Said(Fault.LOST, "closed"))
        if self._pinger is not None:
            self._pinger.cancel()
        rest: list[asyncio.Task[Any]] = [task for task in (self._pinger, self._window) if task is not None]
        for task in self._making:
            task.cancel()
            rest.append(task)
        # The round that is under way ends by itself, with NotConnected for everyone who waits for it.
        await asyncio.gather(*rest, return_exceptions=True)
        transport: Any = self._client._transport
        with contextlib.suppress(OSError, nats.errors.Error, TimeoutError, AttributeError):
            async with asyncio.timeout(self._policy.ping_within):
                await self._client.close()
        if transport:
            # The client does not close the socket of a login that was refused.
            transport.close()
            # Behind a TLS handshake that failed it raises CancelledError, although nobody cancels this task.
            closing = asyncio.ensure_future(transport.wait_closed())
            closing.add_done_callback(lambda task: task.cancelled() or task.exception())
            await asyncio.wait((closing,), timeout=self._policy.ping_within)
            closing.cancel()
