"""Calls on the endpoint rails: one subscription for the replies of a lifecycle, one nonce for each call (C13.2, C13.3).

    caller = Caller(connection, space, lifecycle, "alice")
    data = await caller.call("delivery", "durable-join", {"channel": "general", "joinCursor": 7})

A call ends in one of three ways: with the data of the answer, with ``CallRefused`` (the endpoint's own words), or with
``CallFailed`` (what happened on the way). Both errors say in ``outcome`` whether the command may have had its effect.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

from nats.aio.msg import Msg

from sidecar.base.strictjson import JsonValue
from sidecar.ops.metrics import Metrics
from sidecar.rails.connection import (
    Connection,
    ConnectionFault,
    Fault,
    NotSent,
    PermissionViolation,
    Subscription,
    SubscriptionClosed,
)
from sidecar.rails.endpoint.codes import CallError, CallFailed, CallRefused, Code, Outcome, label
from sidecar.rails.endpoint.contracts import KNOWN, Contract, Contracts
from sidecar.rails.endpoint.envelope import (
    MAX_DEADLINE_MS,
    NO_ID,
    VERSION,
    EndpointRequest,
    Op,
    Sender,
    decode_reply,
)
from sidecar.rails.endpoint.shapes import VOID
from sidecar.rails.envelopes.errors import EnvelopeError
from sidecar.rails.names import endpoint as subjects
from sidecar.rails.names import headers
from sidecar.rails.names.endpoint import UNTARGETED
from sidecar.rails.names.errors import InvalidName
from sidecar.rails.names.principals import Lifecycle
from sidecar.rails.names.tokens import endpoint_token

AT_ONCE: Final = 1_024
"""Calls of one caller that wait for an answer; one more is refused locally."""
_NONCE_BYTES: Final = 16
"""128 bits (C13.2-17), written in hexadecimal: no two nonces differ in case alone."""


@dataclass(frozen=True, slots=True)
class _Waiting:
    """A call that is out."""

    endpoint: str
    request: str
    sentinel: str
    answer: asyncio.Future[tuple[Msg, Mapping[str, str]] | None]
    """The reply with its subject taken apart; None for nobody there."""

    def is_told_of_nobody(self, message: Msg) -> bool:
        """The one thing that comes on the sentinel, where the broker alone speaks (C13.3-49)."""
        return (
            message.subject == self.sentinel
            and not self.answer.done()
            and headers.says_nobody(message.headers, message.data, self.request)
        )


class Calls(Protocol):
    """What those need who only call."""

    async def call(
        self, endpoint: str, command: str, args: dict[str, JsonValue] | None = None, *, seconds: float = 5.0
    ) -> JsonValue:
        """The data of the answer; CallError without one."""


class Caller:
    """One lifecycle's calls over one connection. ``name`` is what it calls itself; safe for any number of tasks.

    It lives in memory alone: no nonce is kept, and calls end with it (C13.2-52).
    """

    def __init__(
        self,
        connection: Connection,
        space: str,
        lifecycle: Lifecycle,
        name: str,
        *,
        entropy: Callable[[int], bytes] = os.urandom,
        metrics: Metrics | None = None,
        contracts: Mapping[str, Contracts] = KNOWN,
    ) -> None:
        self._connection, self._entropy, self._metrics = connection, entropy, metrics
        self._contracts = contracts
        self._values = {"space": space, **lifecycle.names}
        self._sender = Sender(lifecycle.principal.dot, name)
        self._open = 0
        self._waiting: dict[str, _Waiting] = {}
        self._subscribing = asyncio.Lock()
        self._subscription: Subscription | None = None
        self._reader: asyncio.Task[None] | None = None
        self._closed = False

    async def call(
        self, endpoint: str, command: str, args: dict[str, JsonValue] | None = None, *, seconds: float = 5.0
    ) -> JsonValue:
        """The data of the answer, by any one instance. Raises CallRefused, CallFailed; nothing is ever repeated.

        ``seconds`` bounds the whole call, at most an hour. A command without arguments takes None or ``{}``.
        """
        loop = asyncio.get_running_loop()
        begun, outcome = loop.time(), "ok"
        try:
            return await self._call(endpoint, command, args, seconds)
        except CallError as error:
            outcome = label(error.code)
            raise
        except asyncio.CancelledError:
            outcome = label(Code.CANCELLED)
            raise
        finally:
            if self._metrics is not None:
                self._metrics.counter("endpoint_calls", outcome).inc()
                self._metrics.histogram("endpoint_call_seconds").observe(loop.time() - begun)

    async def _call(self, endpoint: str, command: str, args: JsonValue, seconds: float) -> JsonValue:
        contract = self._contracts.get(endpoint, {}).get(command)
        if contract is None:
            raise _unsent(Code.UNIMPLEMENTED, f"no contract of {endpoint} has this command")
        nonce, request = self._request(endpoint, contract, args, seconds)
        token = endpoint_token(endpoint)
        names = {**self._values, "nonce": nonce}
        try:
            subject = subjects.REQUESTS["one", UNTARGETED, False].build(endpoint=token, command=command, **names)
            waiting = _Waiting(
                token, subject, subjects.SENTINELS[False].build(**names), asyncio.get_running_loop().create_future()
            )
        except InvalidName as error:
            raise _unsent(Code.BAD_REQUEST, str(error)) from None
        if self._open >= AT_ONCE:
            raise _unsent(Code.RESOURCE_EXHAUSTED, f"{AT_ONCE} calls of this caller wait for answers")
        self._open += 1
        try:
            answer = await self._exchange(nonce, waiting, _encoded(request), seconds)
        finally:
            self._open -= 1
        if answer is None:
            raise _unsent(Code.UNAVAILABLE, f"nobody serves {endpoint}")
        return _data(contract, request.id, *answer)

    def _request(
        self, endpoint: str, contract: Contract, args: JsonValue, seconds: float
    ) -> tuple[str, EndpointRequest]:
        """A nonce and the request. Raises CallFailed for what must not be sent."""
        deadline = int(min(seconds * 1000, MAX_DEADLINE_MS + 1)) if seconds > 0 else 0
        if not 0 < deadline <= MAX_DEADLINE_MS:
            raise _unsent(Code.BAD_REQUEST, "a call waits for a bounded time of at least a millisecond")
        args = None if contract.input is VOID and args == {} else args
        if (fault := contract.input.check(args)) is not None:
            raise _unsent(Code.BAD_REQUEST, f"args {fault.field} {fault.why}")
        drawn = self._entropy(2 * _NONCE_BYTES).hex()
        request = EndpointRequest(
            id=drawn[2 * _NONCE_BYTES :],
            op=Op(endpoint, contract.command, contract.input_digest, contract.output_digest),
            contract_class=contract.contract_class,
            reply_expected=True,
            sender=self._sender,
            args=args,
            deadline_ms=deadline,
        )
        return drawn[: 2 * _NONCE_BYTES], request

    async def _exchange(
        self, nonce: str, waiting: _Waiting, data: bytes, seconds: float
    ) -> tuple[Msg, Mapping[str, str]] | None:
        """Publish and wait. Raises CallFailed with the outcome that can be proved (C13.3-46..50)."""
        sent = False
        try:
            async with asyncio.timeout(seconds):
                await self._subscribed()
                await self._connection.ready()
                with self._expected(nonce, waiting):
                    sent = True
                    async with self._connection.exchange(waiting.request, data, reply=waiting.sentinel) as broken:
                        broken.add_done_callback(lambda done: _fail(waiting, done))
                        return await waiting.answer
        except TimeoutError:
            if sent:
                raise CallFailed(Code.DEADLINE_EXCEEDED, "no answer came in time", Outcome.UNKNOWN) from None
            raise _unsent(Code.DEADLINE_EXCEEDED, "there was no connection in time") from None
        except NotSent as error:
            raise _unsent(Code.UNAVAILABLE, str(error)) from None
        except PermissionViolation as error:
            raise _unsent(Code.PERMISSION_DENIED, str(error)) from None
        except ConnectionFault as error:
            if error.fault is Fault.MAX_PAYLOAD:
                raise _unsent(Code.RESOURCE_EXHAUSTED, str(error)) from None
            if not sent:
                raise _unsent(Code.UNAVAILABLE, str(error)) from None
            raise CallFailed(Code.UNAVAILABLE, str(error), Outcome.UNKNOWN) from None

    @contextlib.contextmanager
    def _expected(self, nonce: str, waiting: _Waiting) -> Iterator[None]:
        """The call is the only one that waits under its nonce (C13.2-18)."""
        if nonce in self._waiting:
            raise _unsent(Code.INTERNAL, "the nonce is that of a call that waits")
        self._waiting[nonce] = waiting
        try:
            yield
        finally:
            del self._waiting[nonce]

    # ---- replies ----

    async def _subscribed(self) -> None:
        """The reply subscription stands, before anything is published (C13.2-51)."""
        async with self._subscribing:
            if self._closed:
                raise NotSent(Fault.LOST, "the caller was closed")
            if self._subscription is None or self._subscription.error is not None:
                await self._unsubscribe()
                self._subscription = await self._connection.subscribe(subjects.REPLIES[False].filter(**self._values))
                self._reader = asyncio.create_task(self._read(self._subscription))

    async def _read(self, subscription: Subscription) -> None:
        try:
            while True:
                self._take(await subscription.next())
        except (ConnectionFault, SubscriptionClosed) as error:
            code = Code.PERMISSION_DENIED if isinstance(error, PermissionViolation) else Code.UNAVAILABLE
            for waiting in self._waiting.values():
                if not waiting.answer.done():
                    waiting.answer.set_exception(CallFailed(code, "replies cannot be read any more", Outcome.UNKNOWN))

    def _take(self, message: Msg) -> None:
        """Give a reply to its call, or drop it."""
        waiting = self._waiting.get(message.subject.rpartition(".")[2])
        if waiting is not None and waiting.is_told_of_nobody(message):
            waiting.answer.set_result(None)
            return
        if headers.carries_provenance(message.headers or ()):
            self._dropped("redirected")
            return
        if waiting is None or waiting.answer.done():
            self._dropped("unasked")
            return
        try:
            found = subjects.REPLIES[False].parse(message.subject)
        except InvalidName:
            self._dropped("subject")
            return
        if found["endpoint"] != waiting.endpoint:
            self._dropped("elsewhere")
            return
        waiting.answer.set_result((message, found))

    def _dropped(self, reason: str) -> None:
        if self._metrics is not None:
            self._metrics.counter("endpoint_replies_dropped", reason).inc()

    async def _unsubscribe(self) -> None:
        if self._subscription is not None:
            await self._subscription.close()
            self._subscription = None
        if self._reader is not None:
            await asyncio.wait((self._reader,))  # whoever is cancelled here cancels nobody else
            self._reader = None

    async def close(self) -> None:
        """Calls that wait end as failed with an unknown outcome; later ones are not sent. May be called twice."""
        self._closed = True
        async with self._subscribing:
            await self._unsubscribe()


def _unsent(code: Code, message: str) -> CallFailed:
    """Refused before publication: nothing was executed (C13.3-47)."""
    return CallFailed(code, message, Outcome.NOT_EXECUTED)


def _encoded(request: EndpointRequest) -> bytes:
    try:
        return request.encode()
    except EnvelopeError as error:
        raise _unsent(Code.BAD_REQUEST, str(error)) from None


def _fail(waiting: _Waiting, broken: asyncio.Future[Any]) -> None:
    """The broker refused the request, or the link ended."""
    if not broken.cancelled() and (error := broken.exception()) is not None and not waiting.answer.done():
        waiting.answer.set_exception(error)


def _data(contract: Contract, identity: str, message: Msg, names: Mapping[str, str]) -> JsonValue:
    """The data of a reply. Raises CallRefused for a refusal, CallFailed for what is no reply to this request.

    Who answered is read from the subject, never from the payload (C13.2-49).
    """
    try:
        reply = decode_reply(message.data)
    except EnvelopeError as error:
        raise CallFailed(Code.INTERNAL, f"the reply is none of version {VERSION}: {error}", Outcome.UNKNOWN) from None
    why = reply.error
    if reply.id != identity and (why is None or reply.id != NO_ID):
        outcome = Outcome.EXECUTED if why is None else why.outcome
        raise CallFailed(Code.INTERNAL, "the reply is to another request", outcome)
    if why is not None:
        raise CallRefused(why.code, why.message, why.outcome, why.details, names["instance"], int(names["epoch"]))
    if (fault := contract.output.check(reply.data)) is not None:
        raise CallFailed(Code.INTERNAL, f"the data {fault.field} {fault.why}", Outcome.EXECUTED)
    return reply.data
