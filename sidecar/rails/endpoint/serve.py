"""An instance of an endpoint: it takes requests on its three routes and answers each call once (C13.2, C13.3).

    server = EndpointServer(connection, space, "delivery", instance, epoch, {"durable-join": join}, DELIVERY, ...)
    await server.start()

Frames are judged one after the other (``judge``); handlers run beside each other, so many in all and so many for one
caller. What a request holds, or a handler raises, never ends the serving.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Final, NamedTuple

from nats.aio.msg import Msg

from sidecar.base.strictjson import JsonValue
from sidecar.ops.logging import Log, told
from sidecar.ops.metrics import Metrics
from sidecar.rails.connection import Connection, ConnectionFault, Stopped, Subscription, SubscriptionClosed
from sidecar.rails.connection import Fault as Broken
from sidecar.rails.endpoint.codes import Code, Outcome, Refusal, label
from sidecar.rails.endpoint.contracts import Contracts
from sidecar.rails.endpoint.envelope import encode_data, encode_refusal
from sidecar.rails.endpoint.judge import Accepted, Discard, Refused, Serving
from sidecar.rails.endpoint.slots import Slots
from sidecar.rails.envelopes.errors import EnvelopeError, Fault
from sidecar.rails.names import endpoint as subjects
from sidecar.rails.names.endpoint import UNTARGETED
from sidecar.rails.names.principals import Lifecycle
from sidecar.rails.names.tokens import endpoint_token

WAITING: Final = 4_096
"""Handlers of commands that wait for something to come, in all; they are counted apart from those that work."""
PER_CALLER: Final = 32
"""Handlers of one caller lifecycle, of each kind."""
LONGEST_SECONDS: Final = 60.0
"""A handler that runs for longer is cancelled, and its outcome is unknown."""
CLOSE_SECONDS: Final = 5.0
AGAIN_SECONDS: Final = 5.0
"""Until a rail that the broker does not let us subscribe is tried again."""
_QUEUED, _QUEUED_BYTES = 8_192, 16 * 1024 * 1024
_TURN: Final = 64
"""Frames of one rail in a row before the others have their turn."""


class Called(NamedTuple):
    """What a handler is given. ``lifecycle`` is the authenticated caller; ``args`` keep the contract."""

    lifecycle: Lifecycle
    name: str
    args: JsonValue
    id: str
    deadline_ms: int | None = None


Handler = Callable[[Called], Awaitable[JsonValue]]
"""Gives the data of the answer, or raises Refusal with what it knows of the effect."""


class _Rail(NamedTuple):
    """One subject to serve, with its queue group if it has one."""

    subject: str
    queue: str


class EndpointServer:
    """One instance at one epoch. ``contracts`` may have more commands than ``handlers``; those are not served."""

    def __init__(
        self,
        connection: Connection,
        space: str,
        endpoint: str,
        instance: str,
        epoch: int,
        handlers: Mapping[str, Handler],
        contracts: Contracts,
        *,
        metrics: Metrics,
        log: Log,
        at_once: int = 256,
        waiting: int = WAITING,
        per_caller: int = PER_CALLER,
        longest: float = LONGEST_SECONDS,
        again: float = AGAIN_SECONDS,
    ) -> None:
        """ValueError for a handler without a contract."""
        if unknown := handlers.keys() - contracts.keys():
            raise ValueError(f"no contract for {', '.join(sorted(unknown))}")
        served = {command: contracts[command] for command in handlers}
        self._serving = Serving(space, endpoint, instance, epoch, served)
        self._connection, self._handlers = connection, dict(handlers)
        self._metrics, self._log = metrics, log
        self._slots = {False: Slots(at_once, per_caller), True: Slots(waiting, per_caller)}
        self._longest, self._again = longest, again
        self._live: dict[_Rail, Subscription] = {}
        self._readers: set[asyncio.Task[None]] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._rails = tuple(self._all_rails())
        self._started = False
        self._closing = asyncio.Event()

    @property
    def serving(self) -> bool:
        """Whether requests can reach this instance now: every rail stands, and there is a link to the broker."""
        read = len(self._live) == len(self._rails) and not any(reader.done() for reader in self._readers)
        return self._started and read and self._connection.linked

    def _all_rails(self) -> Iterator[_Rail]:
        """Per command: the class rail by queue group alone (C13.2-15), every instance, and this instance."""
        here = self._serving
        token = endpoint_token(here.endpoint)
        for command in self._handlers:
            names = {"space": here.space, "endpoint": token, "command": command}
            for route, queue in (("one", token), ("all", "")):
                yield _Rail(subjects.REQUESTS[route, UNTARGETED, False].subtree(**names), queue)
            named = subjects.REQUESTS["inst", UNTARGETED, False].subtree(**names, instance=here.instance)
            yield _Rail(named, "")

    async def start(self) -> None:
        """Serve; every rail stands when this returns. Raises PermissionViolation, NotConnected, Stopped."""
        try:
            for rail in self._rails:
                self._live[rail] = await self._subscribe(rail)
        except BaseException:
            await self.close()
            raise
        self._started = True
        self._readers = {asyncio.create_task(self._hear(rail)) for rail in self._rails}

    async def _subscribe(self, rail: _Rail) -> Subscription:
        return await self._connection.subscribe(rail.subject, rail.queue, max_messages=_QUEUED, max_bytes=_QUEUED_BYTES)

    # ---- requests ----

    async def _hear(self, rail: _Rail) -> None:
        """Take what comes on one rail, over every reconnection, until the server or the connection ends."""
        while True:
            subscription = self._live[rail]
            try:
                await self._read(subscription)
            except (SubscriptionClosed, Stopped):
                return
            except ConnectionFault as error:
                # The grants of this login do not have the rail any more.
                self._log.error("endpoint_rail_lost", subject=rail.subject, fault=error.fault.value)
                del self._live[rail]
                with self._lost():
                    if not await self._regain(rail):
                        return

    async def _read(self, subscription: Subscription) -> None:
        while True:
            for _ in range(_TURN):
                await self._take(await subscription.next())
            await asyncio.sleep(0)

    @contextlib.contextmanager
    def _lost(self) -> Iterator[None]:
        gauge = self._metrics.gauge("endpoint_rails_lost")
        gauge.inc()
        try:
            yield
        finally:
            gauge.dec()

    async def _regain(self, rail: _Rail) -> bool:
        """Try until the rail stands again; False when the server or the connection has ended."""
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._closing.wait(), self._again)
                return False
            try:
                self._live[rail] = await self._subscribe(rail)
            except Stopped:
                return False
            except ConnectionFault:
                continue
            self._log.info("endpoint_rail_regained", subject=rail.subject)
            return True

    async def _take(self, message: Msg) -> None:
        verdict = self._serving.judge(message.subject, message.headers or (), message.data)
        if isinstance(verdict, Discard):
            self._metrics.counter("endpoint_discarded", verdict.why.value).inc()
            self._log.warning("endpoint_discarded", reason=verdict.why.value)
            return
        if isinstance(verdict, Accepted):
            slots = self._slots[verdict.contract.waits]
            if slots.take(verdict.caller):
                task = asyncio.create_task(self._run(verdict, slots))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
                return
            refusal = Refusal(Code.RESOURCE_EXHAUSTED, "too many requests run now", Outcome.NOT_EXECUTED)
            verdict = Refused(verdict.request.id, refusal, verdict.reply)
        await self._refuse(verdict)

    async def _refuse(self, refused: Refused) -> None:
        code = label(refused.refusal.code)
        self._metrics.counter("endpoint_requests", code).inc()
        self._log.info("endpoint_refused", code=code)
        await self._answer(refused.reply, refused.id, encode_refusal(refused.id, refused.refusal))

    async def _run(self, accepted: Accepted, slots: Slots) -> None:
        """One handler and its answer, in a place of its own."""
        loop = asyncio.get_running_loop()
        gauge = self._metrics.gauge("endpoint_handlers", "waiting" if accepted.contract.waits else "working")
        begun, identity = loop.time(), accepted.request.id
        gauge.inc()
        try:
            try:
                data = await self._handled(accepted)
            except Refusal as refusal:
                await self._refuse(Refused(identity, refusal, accepted.reply))
            else:
                self._metrics.counter("endpoint_requests", "ok").inc()
                await self._answer(accepted.reply, identity, data)
        finally:
            gauge.dec()
            self._metrics.histogram("endpoint_request_seconds").observe(loop.time() - begun)
            slots.give_back(accepted.caller)

    async def _handled(self, accepted: Accepted) -> bytes:
        """The answer with what the handler gives, within its contract. Raises Refusal for everything else
        (C13.3-40..45)."""
        request = accepted.request
        called = Called(accepted.caller, request.sender.name, request.args, request.id, request.deadline_ms)
        scope = asyncio.timeout(self._longest)
        try:
            async with scope:
                data = await self._handlers[accepted.contract.command](called)
        except Refusal:
            raise
        except asyncio.CancelledError:
            # The server closes: the caller is told that nobody knows.
            raise Refusal(Code.UNAVAILABLE, "the instance stops", Outcome.UNKNOWN) from None
        except Exception as error:
            if scope.expired():
                self._failed("overrun", accepted, error)
                raise Refusal(Code.DEADLINE_EXCEEDED, "the handler ran for too long", Outcome.UNKNOWN) from None
            self._failed("raised", accepted, error)
            raise Refusal(Code.INTERNAL, "the handler failed", Outcome.UNKNOWN) from None
        fault = accepted.contract.output.check(data)
        if fault is None:
            try:
                return encode_data(request.id, data)
            except EnvelopeError as error:
                fault = Fault(error.field, error.why)
        self._failed("result", accepted, f"{fault.field} {fault.why}")
        raise Refusal(Code.INTERNAL, "the result is not what the contract says", Outcome.EXECUTED)

    def _failed(self, kind: str, accepted: Accepted, why: object) -> None:
        self._metrics.counter("endpoint_handler_failures", kind).inc()
        text = told(why) if isinstance(why, Exception) else why
        self._log.error(f"endpoint_handler_{kind}", command=accepted.contract.command, why=text)

    async def _answer(self, reply: str | None, identity: str, data: bytes) -> None:
        """Send an answer; a cast has none, whatever became of it (C13.3-18)."""
        if reply is None:
            return
        try:
            await self._connection.send(reply, data)
        except ConnectionFault as error:
            if error.fault is Broken.MAX_PAYLOAD:
                self._metrics.counter("endpoint_answers_lost", "too_large").inc()
                refusal = Refusal(Code.RESOURCE_EXHAUSTED, "the answer is too large to be sent", Outcome.EXECUTED)
                await self._answer(reply, identity, encode_refusal(identity, refusal))
                return
            self._metrics.counter("endpoint_answers_lost", "not_connected").inc()
            self._log.warning("endpoint_answer_lost", fault=error.fault.value)

    async def close(self, seconds: float = CLOSE_SECONDS) -> None:
        """Take nothing more and wait for running handlers, at most ``seconds``; the rest are cancelled, and their
        callers told that the outcome is unknown. May be called twice."""
        self._started = False
        self._closing.set()
        for subscription in list(self._live.values()):
            await subscription.close()  # what has come is still taken
        if self._readers:
            await asyncio.wait(self._readers, timeout=seconds)
        for reader in self._readers:
            reader.cancel()
        self._readers = set()
        self._live.clear()
        for _ in range(2):  # once by themselves, once when they were told to
            if self._tasks:
                await asyncio.wait(self._tasks, timeout=seconds)
            for task in self._tasks:
                task.cancel()
