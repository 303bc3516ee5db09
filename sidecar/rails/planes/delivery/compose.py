"""What the delivery plane of a space is made of: its loops in the order in which they are bound, and its commands."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Final

from sidecar.base.strictjson import JsonValue
from sidecar.rails.endpoint.app import Endpoint
from sidecar.rails.endpoint.call import Call, Handler
from sidecar.rails.endpoint.codes import Code, Outcome, Refusal
from sidecar.rails.endpoint.contracts import DELIVERY, DELIVERY_ENDPOINT
from sidecar.rails.endpoint.identity import Identity
from sidecar.rails.names.principals import LOCAL_OWNER
from sidecar.rails.planes.delivery.anycast_desk import AnycastDesk
from sidecar.rails.planes.delivery.backstop import Backstop
from sidecar.rails.planes.delivery.daemon import DeliveryPlane, Loop
from sidecar.rails.planes.delivery.lease import Lease
from sidecar.rails.planes.delivery.mediated import Mediated
from sidecar.rails.planes.delivery.plane import Plane
from sidecar.rails.planes.liveness import LivenessResponder
from sidecar.rails.planes.registration.report import report_status
from sidecar.rails.space.holder import Form, Service
from sidecar.rails.space.matrix import DELIVERY_COMMANDS, READ_COMMANDS

INVENTORY: Final = "lifecycle-memberships"
"""What the operator asks of a lifecycle that ends (CB-75)."""
AT_ONCE: Final = 512
"""Commands that work at a time; those that wait are counted apart."""
CLOSE_SECONDS: Final = 0.5
"""How long a stop waits for commands under way: far less than the margin in which a lost lease has to be left."""
STATUS_SECONDS: Final = 0.5
"""How long is waited until a status is stored; nothing of delivery hangs on it."""


def served(form: Form) -> tuple[str, ...]:
    """The commands that the endpoint has in spaces of a form. Members of a compatible space read by themselves."""
    return (*DELIVERY_COMMANDS, INVENTORY, *(READ_COMMANDS if form is Form.MEDIATED else ()))


def compose(
    plane: Plane, lease: Lease, service: Service, *, registered: bool = False, more: Sequence[Loop] = ()
) -> DeliveryPlane:
    """The plane, ready to run. A ``registered`` instance tells its record how it stands. ``more`` are loops under the
    lease that need connections of their own."""
    desk = AnycastDesk(plane)
    copies = _Copies(plane)
    handlers = {**copies.handlers, **desk.handlers}
    reads = Mediated(plane, desk.epoch_or_refusal) if plane.mediated else None
    if reads is not None:
        handlers |= reads.handlers
    held = [
        Loop("backstop", copies.run),
        Loop("takes", desk.serve),
        Loop("notices", desk.tell),
        Loop("sweep", desk.sweep_for_ever),
        Loop("endpoint", _Endpoint(plane, service, handlers, registered).run),
        *([] if reads is None else [Loop("reclaim", reads.reclaim_for_ever)]),
        *more,
    ]
    return DeliveryPlane(plane, lease, always=[Loop("liveness", _Liveness(plane, lease).run)], held=held)


class _Copies:
    """The durable half, made anew for each run: nothing of a run that ended is acted on again."""

    def __init__(self, plane: Plane) -> None:
        self._plane = plane
        self._now: Backstop | None = None

    @property
    def handlers(self) -> dict[str, Handler]:
        """Its commands, answered by the run of the moment."""
        return {command: self._asking(command) for command in Backstop(self._plane).handlers}

    def _asking(self, command: str) -> Handler:
        async def ask(called: Call) -> JsonValue:
            if self._now is None:
                raise Refusal(Code.UNAVAILABLE, "memberships are not served at the moment", Outcome.NOT_EXECUTED)
            return await self._now.handlers[command](called)

        return ask

    async def run(self, bound: asyncio.Event) -> None:
        self._now = backstop = Backstop(self._plane)
        running = asyncio.create_task(backstop.run())
        binding = asyncio.gather(backstop.fanout.bound.wait(), backstop.reader.bound.wait())
        try:
            await asyncio.wait((running, binding), return_when=asyncio.FIRST_COMPLETED)
            if binding.done():
                bound.set()
            await running
        finally:
            self._now = None
            binding.cancel()
            running.cancel()
            await asyncio.gather(binding, running, return_exceptions=True)


def delivery_endpoint(handlers: Mapping[str, Handler]) -> Endpoint:
    """The endpoint of a plane, with what it serves. Everybody may know what it takes: its commands are the baseline of
    every member, so that its descriptor is public. ValueError for a handler without a contract."""
    return Endpoint.of(DELIVERY_ENDPOINT, DELIVERY, handlers, public=True)


class _Endpoint:
    """The command server, made anew for each run."""

    def __init__(self, plane: Plane, service: Service, handlers: Mapping[str, Handler], registered: bool) -> None:
        self._plane, self._endpoint, self._registered = plane, delivery_endpoint(handlers), registered
        self._identity = Identity(
            plane.space, DELIVERY_ENDPOINT, service.instance, service.epoch, plane.lifecycle, LOCAL_OWNER
        )

    async def run(self, bound: asyncio.Event) -> None:
        plane = self._plane
        server = self._endpoint.server(
            plane.connection,
            self._identity,
            metrics=plane.metrics,
            log=plane.log,
            at_once=AT_ONCE,
            status=self._report if self._registered else None,
        )
        await server.start()
        bound.set()
        try:
            await server.wait()
        finally:
            await server.close(CLOSE_SECONDS)

    async def _report(self, state: str) -> None:
        async with asyncio.timeout(STATUS_SECONDS):
            await report_status(self._plane.connection, self._identity, state)


class _Liveness:
    """The responder, which runs with and without the lease."""

    def __init__(self, plane: Plane, lease: Lease) -> None:
        self._plane, self._lease = plane, lease

    async def run(self, bound: asyncio.Event) -> None:
        plane = self._plane
        responder = LivenessResponder(
            plane.connection,
            plane.space,
            DELIVERY_ENDPOINT,
            self._lease.verdict,
            metrics=plane.metrics,
            log=plane.log,
            entropy=plane.entropy,
        )
        await responder.start()
        bound.set()
        try:
            await asyncio.Event().wait()
        finally:
            await responder.close()
