"""The delivery plane of one space as a whole: who may act, what runs, and in which order it starts and stops.

An instance waits for the lease, binds its loops, says that it is ready, and serves until it loses the lease or is told
to stop. A loop that dies is started again after a growing wait, counted and logged; with the lease everything stops at
once, and what is under way is left as a crash would leave it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from sidecar.ops.logging import told
from sidecar.rails.connection import ConnectionFault, Stopped
from sidecar.rails.planes.delivery.lease import Lease
from sidecar.rails.planes.delivery.plane import Plane

FIRST_WAIT_SECONDS: Final = 0.5
LONGEST_WAIT_SECONDS: Final = 30.0
STABLE_SECONDS: Final = 60.0
"""A loop that ran for so long begins its waits anew when it dies."""
BIND_SECONDS: Final = 30.0
"""How long a loop may take to bind before the plane says that it is ready without it."""


class Lane(StrEnum):
    """Where the plane of one space is; the values are metric labels."""

    CONNECTING = "connecting"
    WAITING = "waiting"
    BINDING = "binding"
    SERVING = "serving"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class Loop:
    """Something that runs for as long as the lease is held. ``run`` sets the event when it is bound; it returns only
    when it is cancelled, and may be called again after it died. ``name`` is a metric label. One that is not ``awaited``
    is for display: the plane is ready and healthy without it."""

    name: str
    run: Callable[[asyncio.Event], Awaitable[None]]
    awaited: bool = True


@dataclass(slots=True)
class Health:
    """What an operator may know of a lane: where it is, and what died since."""

    lane: Lane = Lane.CONNECTING
    since: float = 0.0
    broken: dict[str, str] = field(default_factory=dict)
    """Loops that wait for their next start, with what ended them."""

    def unready(self) -> list[str]:
        """Why the lane does not serve; empty when it does."""
        reasons = [] if self.lane is Lane.SERVING else [f"the lane is {self.lane}"]
        return reasons + [f"{name} died: {why}" for name, why in sorted(self.broken.items())]


def wait_after(deaths: int) -> float:
    """The wait before the next start of a loop that died so often in a row, in seconds."""
    return min(LONGEST_WAIT_SECONDS, FIRST_WAIT_SECONDS * 2.0 ** min(deaths - 1, 16))


class DeliveryPlane:
    """One lane. ``always`` are the loops that run without the lease (the liveness responder), ``held`` those that run
    only under it, in the order in which they are bound."""

    def __init__(self, plane: Plane, lease: Lease, *, always: Sequence[Loop], held: Sequence[Loop]) -> None:
        self.health = Health(since=plane.clock().mono)
        self._plane, self._lease = plane, lease
        self._always, self._held = tuple(always), tuple(held)
        self._serving = asyncio.Event()
        self._entered(Lane.CONNECTING, first=True)

    async def settle(self) -> None:
        """Return when it serves, or when it has seen that another instance holds the lease."""
        done = [asyncio.create_task(one.wait()) for one in (self._serving, self._lease.elsewhere)]
        try:
            await asyncio.wait(done, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in done:
                task.cancel()

    async def run(self) -> None:
        """Serve until cancelled; raises Stopped when the connection has ended for good."""
        async with asyncio.TaskGroup() as group:
            beside = [group.create_task(self._supervise(loop, asyncio.Event())) for loop in self._always]
            try:
                while True:
                    await self._term()
            finally:
                self._entered(Lane.STOPPED)
                for task in beside:
                    task.cancel()

    async def _term(self) -> None:
        """From waiting for the lease to its loss."""
        self._entered(Lane.WAITING)
        await self._lease.acquire()
        keeping = asyncio.create_task(self._lease.keep())
        working = asyncio.create_task(self._work())
        try:
            await asyncio.wait((keeping, working), return_when=asyncio.FIRST_COMPLETED)
            if working.done():
                working.result()
        finally:
            await _ended(working)
            if not keeping.done():  # a clean stop: nobody has to wait for the end of the lease
                await _ended(keeping)
                await self._lease.release()
        keeping.result()

    async def _work(self) -> None:
        """Bind every loop, say so, and keep them running. Ends only by being cancelled, or with Stopped."""
        self._entered(Lane.BINDING)
        async with asyncio.TaskGroup() as group:
            for loop in self._held:
                bound = asyncio.Event()
                group.create_task(self._supervise(loop, bound))
                if not loop.awaited:
                    continue
                try:
                    async with asyncio.timeout(BIND_SECONDS):
                        await bound.wait()
                except TimeoutError:
                    self._plane.log.error("delivery_loop_unbound", space=self._plane.space, loop=loop.name)
            await self._lease.set_ready()
            self._entered(Lane.SERVING)
            self._serving.set()
            self._plane.log.info("delivery_serving", space=self._plane.space)

    async def _supervise(self, loop: Loop, bound: asyncio.Event) -> None:
        deaths = 0
        while True:
            begun = self._plane.clock().mono
            self.health.broken.pop(loop.name, None)
            try:
                await loop.run(bound)
                why = "it ended"
            except Stopped:
                raise
            except Exception as error:
                why = type(error).__name__ if isinstance(error, ConnectionFault) else told(error)
            deaths = 1 if self._plane.clock().mono - begun >= STABLE_SECONDS else deaths + 1
            if loop.awaited:
                self.health.broken[loop.name] = why
            self._plane.metrics.counter("delivery_restarts", loop.name).inc()
            self._plane.log.error("delivery_loop_died", space=self._plane.space, loop=loop.name, why=why)
            await asyncio.sleep(wait_after(deaths))

    def _entered(self, lane: Lane, *, first: bool = False) -> None:
        gauge = self._plane.metrics.gauge
        if not first:
            gauge("delivery_lanes", self.health.lane.value).dec()
        gauge("delivery_lanes", lane.value).inc()
        self.health.lane, self.health.since = lane, self._plane.clock().mono


async def _ended(task: asyncio.Task[None]) -> None:
    """Cancel, and return when it is over; what it raised is for whoever asks for its result."""
    task.cancel()
    await asyncio.wait((task,))
