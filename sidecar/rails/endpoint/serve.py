"""An instance of an endpoint: it takes requests on its three routes and answers each call once (C13.2, C13.3, C13.14).

    server = EndpointServer(connection, space, "delivery", instance, epoch, {"durable-join": join}, DELIVERY, ...)
    await server.start()
    await server.wait()      # raises Superseded when another process is the instance now

Here are the rails and the life of the server; what is done with a request is in ``serve_run``.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from sidecar.base.clock import Now, system_now
from sidecar.base.strictjson import JsonValue
from sidecar.ops.logging import Log, told
from sidecar.ops.metrics import Metrics
from sidecar.rails.connection import (
    Connection,
    ConnectionFault,
    NotConnected,
    Stopped,
    Subscription,
    SubscriptionClosed,
)
from sidecar.rails.connection import Fault as Broken
from sidecar.rails.endpoint.call import Authorize, Handler
from sidecar.rails.endpoint.contracts import DESCRIBE, Contracts
from sidecar.rails.endpoint.events import Emitter, Event
from sidecar.rails.endpoint.judge import Serving
from sidecar.rails.endpoint.serve_answers import Answers
from sidecar.rails.endpoint.serve_describe import Described
from sidecar.rails.endpoint.serve_results import Results
from sidecar.rails.endpoint.serve_run import Dispatcher, Limits, Parts
from sidecar.rails.endpoint.serve_targets import Targets
from sidecar.rails.endpoint.view import Mappings
from sidecar.rails.names import endpoint as subjects
from sidecar.rails.names.endpoint import UNTARGETED
from sidecar.rails.names.tokens import endpoint_token

WAITING: Final = 4_096
"""Handlers of commands that wait for something to come, in all; they are counted apart from those that work."""
PER_CALLER: Final = 64
"""Handlers of one caller lifecycle, of each kind: as many as one that keeps a busy connection has in flight."""
LONGEST_SECONDS: Final = 60.0
"""A handler that runs for longer is cancelled, and its outcome is unknown."""
CLOSE_SECONDS: Final = 5.0
DRAIN_SECONDS: Final = 30.0
AGAIN_SECONDS: Final = 5.0
"""Until a rail that the broker does not let us subscribe is tried again."""
_TAKEN_AWAY: Final = frozenset((Broken.REVOKED, Broken.CREDENTIALS_REFUSED, Broken.AUTHORIZATION, Broken.EXPIRED))
"""Ends of a connection after which its holder has no right to serve any more."""

Status = Callable[[str], Awaitable[None]]
"""Told ``ready``, ``draining`` and ``exited``: the states of the instance's record (C13.7-61)."""


class Superseded(ConnectionFault):
    """The credential of this incarnation is good no more: it was revoked, or there is none after it. The instance has
    stopped (C13.14-01); whether another process serves instead of it is for the registry to say."""


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
        described: Described | None = None,
        mappings: Mappings | None = None,
        authorize: Mapping[str, Authorize] | None = None,
        events: Sequence[Event] = (),
        status: Status | None = None,
        results: Results | None = None,
        clock: Callable[[], Now] = system_now,
        at_once: int = 256,
        waiting: int = WAITING,
        per_caller: int = PER_CALLER,
        longest: float = LONGEST_SECONDS,
        again: float = AGAIN_SECONDS,
    ) -> None:
        """``described`` makes it answer describe. ValueError for a handler without a contract."""
        if unknown := handlers.keys() - contracts.keys():
            raise ValueError(f"no contract for {', '.join(sorted(unknown))}")
        served = {command: contracts[command] for command in handlers}
        self._serving = Serving(space, endpoint, instance, epoch, served, described is not None)
        names: dict[str, str | int] = {"space": space, "endpoint": endpoint_token(endpoint)}
        self._emitter = Emitter(
            connection, {**names, "instance": instance, "epoch": epoch}, events, metrics=metrics, clock=clock
        )
        self._answers = Answers(connection, metrics, log)
        self._dispatcher = Dispatcher(
            self._serving,
            handlers,
            self._answers,
            Limits(at_once=at_once, waiting=waiting, per_caller=per_caller, longest=longest),
            Parts(
                targets=Targets(mappings, authorize or {}, log),
                described=described,
                emits=self._emitter,
                results=Results() if results is None else results,
            ),
            metrics,
            log,
        )
        self._connection, self._status, self._again = connection, status, again
        self._log, self._metrics, self._lost = log, metrics, metrics.gauge("endpoint_rails_lost")
        commands = [*handlers, *([DESCRIBE] if described is not None else [])]
        self._rails = tuple(self._all_rails(commands))
        self._live: dict[_Rail, Subscription] = {}
        self._regaining: set[asyncio.Task[None]] = set()
        self._stopping: asyncio.Task[None] | None = None
        self._over = asyncio.Event()
        self._why: ConnectionFault | None = None
        self._started = False

    @property
    def serving(self) -> bool:
        """Whether requests can reach this instance now: every rail stands, and there is a link to the broker."""
        return self._started and len(self._live) == len(self._rails) and self._connection.linked

    def _all_rails(self, commands: Sequence[str]) -> Iterator[_Rail]:
        """Per command, for callers of either rail (C13.2-27): the class rail by queue group alone (C13.2-15), every
        instance, and this instance."""
        here = self._serving
        token = endpoint_token(here.endpoint)
        for command in commands:
            names = {"space": here.space, "endpoint": token, "command": command}
            for rail in (False, True):
                for route, queue in (("one", token), ("all", "")):
                    yield _Rail(subjects.REQUESTS[route, UNTARGETED, rail].subtree(**names), queue)
                named = subjects.REQUESTS["inst", UNTARGETED, rail].subtree(**names, instance=here.instance)
                yield _Rail(named, "")

    async def start(self) -> None:
        """Serve; every rail stands when this returns. A broker that is away is waited for, also one that goes away
        meanwhile. Raises PermissionViolation, Stopped."""
        while not self._live:
            with contextlib.suppress(NotConnected):
                self._live = await self._subscribed(self._rails)
        self._started = True
        await self._report("ready")

    async def _subscribed(self, rails: Sequence[_Rail]) -> dict[_Rail, Subscription]:
        wanted = [(rail.subject, rail.queue, functools.partial(self._ended, rail)) for rail in rails]
        taps = await self._connection.taps(wanted, self._dispatcher.take)
        return dict(zip(rails, taps, strict=True))

    async def emit(self, event: Event, data: JsonValue, correlation: Mapping[str, str] | None = None) -> int:
        """Publish an event of this endpoint; the sequence under which it is stored. Raises EventInvalid, and what
        ``store`` raises."""
        return await self._emitter.emit(event, data, correlation)

    # ---- what happens to the rails ----

    def _ended(self, rail: _Rail, error: Exception) -> None:
        """A rail has ended, for whatever reason."""
        known = self._live.pop(rail, None)
        if known is None or isinstance(error, SubscriptionClosed):
            return
        if isinstance(error, Stopped):
            self._stopped(error)
            return
        # The grants of this login do not have the rail any more.
        fault = error.fault.value if isinstance(error, ConnectionFault) else Broken.UNKNOWN.value
        self._log.error("endpoint_rail_lost", subject=rail.subject, fault=fault)
        task = asyncio.create_task(self._regain(rail))
        self._regaining.add(task)
        task.add_done_callback(self._regaining.discard)

    async def _regain(self, rail: _Rail) -> None:
        """Try until the rail stands again, or the connection has ended."""
        self._lost.inc()
        try:
            while True:
                await asyncio.sleep(self._again)
                try:
                    self._live |= await self._subscribed((rail,))
                except Stopped as error:
                    self._stopped(error)
                    return
                except ConnectionFault:
                    continue
                self._log.info("endpoint_rail_regained", subject=rail.subject)
                return
        finally:
            self._lost.dec()

    def _stopped(self, error: Stopped) -> None:
        if self._stopping is None:
            self._stopping = asyncio.create_task(self._stop(error))

    async def _stop(self, error: Stopped) -> None:
        """The connection has ended: what runs is cancelled, because nothing can be answered and, superseded, nothing
        may be done any more."""
        taken_away = error.fault in _TAKEN_AWAY
        self._why = (
            Superseded(error.fault, f"this incarnation may not serve any more: {error}") if taken_away else error
        )
        if taken_away:
            self._metrics.counter("endpoint_superseded").inc()
        self._log.error("endpoint_superseded" if taken_away else "endpoint_stopped", fault=error.fault.value)
        self._started, self._dispatcher.closed = False, True
        self._forget_rails()
        await self._dispatcher.stop(CLOSE_SECONDS)
        self._over.set()

    def _forget_rails(self) -> None:
        self._live.clear()
        for task in self._regaining:
            task.cancel()

    async def _give_up_rails(self) -> None:
        """Rails that are lost are not tried again: one that stood again behind the end would be heard by nobody."""
        tasks = list(self._regaining)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # ---- the end ----

    async def wait(self) -> None:
        """Return when the server was drained or closed. Raises Superseded when the credential was taken away, Stopped
        when the connection ended for another reason."""
        await self._over.wait()
        if self._why is not None:
            raise self._why

    async def drain(self, seconds: float = DRAIN_SECONDS) -> None:
        """End without a loss: no more of the class rail, so that others take what comes; what this instance has been
        given is finished within ``seconds``; requests to it by name are refused meanwhile; then the rest ends."""
        self._dispatcher.draining = True
        await self._give_up_rails()
        await self._report("draining")
        clock = asyncio.get_running_loop().time
        end = clock() + seconds
        await self._leave([rail for rail in self._live if rail.queue], seconds)
        await self._dispatcher.settle(max(0.0, end - clock()))
        await self._finish(CLOSE_SECONDS, max(0.0, end - clock()))

    async def _leave(self, rails: Sequence[_Rail], seconds: float) -> None:
        """End some rails; what the broker has sent on them is still taken."""
        left = [self._live.pop(rail) for rail in rails]
        if not left:
            return
        try:
            async with asyncio.timeout(seconds):
                await self._connection.drain(left)
        except TimeoutError:
            # A link that comes back would be given them again, and what comes on them then be answered by nobody.
            await asyncio.wait([asyncio.ensure_future(one.close()) for one in left], timeout=CLOSE_SECONDS)

    async def close(self, seconds: float = CLOSE_SECONDS) -> None:
        """Take nothing more and wait for running handlers, at most ``seconds``; the rest are cancelled, and their
        callers told that the outcome is unknown. May be called twice."""
        await self._finish(seconds, seconds)

    async def _finish(self, seconds: float, patience: float) -> None:
        """``close``, with the seconds for which running handlers are waited for."""
        self._started = False
        await self._give_up_rails()
        await self._leave(list(self._live), seconds)
        self._dispatcher.closed = True
        self._forget_rails()
        await self._dispatcher.settle(patience)
        await self._dispatcher.stop(seconds)
        await self._answers.settle(seconds)
        if not self._over.is_set():
            await self._report("exited")
            self._over.set()

    async def _report(self, state: str) -> None:
        """Tell the record of this instance; nothing hangs on it here."""
        if self._status is None:
            return
        try:
            await self._status(state)
        except Exception as error:
            self._log.warning("endpoint_status_untold", state=state, why=told(error))
