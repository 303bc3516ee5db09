"""The durables of a member, each read into its inbox for as long as the member lives.

A durable that an operator has deleted, or that the credential does not cover any more, ends its reading. That is said
loudly, and tried again with growing waits: a member that goes on without one would miss messages in silence.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from sidecar.base.clock import Now
from sidecar.ops.logging import Log
from sidecar.ops.metrics import Metrics
from sidecar.rails.connection import PermissionViolation, Stopped
from sidecar.rails.connection.streams import ConsumerGone
from sidecar.rails.messaging.durables import Durable, From
from sidecar.rails.messaging.inbox import Gate, Inbox
from sidecar.rails.messaging.intake import Intake, IntakeClosed, IntakeRefused
from sidecar.rails.messaging.pacing import Backoff

FIRST_RETRY, LONGEST_RETRY = 1.0, 30.0
_REASONS: Final[tuple[tuple[type[Exception], str], ...]] = (
    (ConsumerGone, "gone"),
    (PermissionViolation, "denied"),
    (IntakeRefused, "refused"),
)


class StartableGate(Gate, Protocol):
    """The gate of the roles, with its life."""

    async def start(self) -> None: ...

    async def close(self) -> None: ...


class Sources:
    """One reader for each durable."""

    def __init__(
        self,
        inbox: Inbox,
        gate: StartableGate | None,
        durables: Sequence[Durable],
        intake_of: Callable[[Durable], Intake],
        *,
        clock: Callable[[], Now],
        metrics: Metrics,
        log: Log | None = None,
    ) -> None:
        self.faults: dict[str, str] = {}
        """Durables that are not read at the moment, and why."""
        self._inbox = inbox
        self._gate = gate
        self._durables = durables
        self._intake_of = intake_of
        self._metrics = metrics
        self._log = log
        self._tasks: list[tuple[From, asyncio.Task[None]]] = []
        self._closing = False
        self._stopped_ones: list[Intake] = []

    def start(self) -> None:
        """Begin to read; nothing the second time, and nothing after the end."""
        if self._tasks or self._closing:
            return
        own = [durable for durable in self._durables if durable.source is not From.ROLE]
        roles = [durable for durable in self._durables if durable.source is From.ROLE]
        self._tasks = [(durable.source, asyncio.create_task(self._read(durable))) for durable in own]
        if roles and self._gate is not None:
            self._inbox.gate = self._gate
            self._tasks.append((From.ROLE, asyncio.create_task(self._read_roles(roles, self._gate))))

    async def _read_roles(self, roles: Sequence[Durable], gate: StartableGate) -> None:
        """The gate has to stand before the first copy comes (C8.1-06)."""
        await gate.start()
        await asyncio.gather(*(self._read(durable) for durable in roles))

    async def _read(self, durable: Durable) -> None:
        backoff = Backoff(FIRST_RETRY, LONGEST_RETRY)
        while True:
            intake = self._intake_of(durable)
            intake.found = functools.partial(self.faults.pop, durable.consumer, None)
            try:
                while True:
                    copy = await intake.take()
                    backoff.succeeded()
                    await self._inbox.durable(copy, durable)
            except (Stopped, IntakeClosed) as error:
                self._inbox.fail(error)
                return
            except Exception as error:  # whatever ends a source, the member must hear of it and go on
                self._ended(durable, error)
            finally:
                await self._stopped(intake)
            await asyncio.sleep(backoff.failed())

    async def _stopped(self, intake: Intake) -> None:
        """Its copies may still be settled until everything is closed; one that failed settles nothing."""
        if self._closing:
            await intake.stop()
            self._stopped_ones.append(intake)
        else:
            await intake.close()

    def _ended(self, durable: Durable, error: Exception) -> None:
        reason = next((reason for kind, reason in _REASONS if isinstance(error, kind)), "fault")
        text = str(error) if reason != "fault" else type(error).__name__
        self.faults[durable.consumer] = text
        self._metrics.counter("messaging_source_failures", durable.source.value, reason).inc()
        if self._log is not None:
            self._log.error("messaging_source_failed", source=durable.source.value, reason=reason, text=text)

    async def stop(self, *, but: From | None = None) -> None:
        """Read no more, or only ``but``; what came may still be settled. May be called twice."""
        self._closing = True
        ending = [task for source, task in self._tasks if source is not but]
        for task in ending:
            task.cancel()
        await asyncio.gather(*ending, return_exceptions=True)

    async def close(self) -> None:
        """Stop for good; what was said about copies gets out first."""
        await self.stop()
        if self._gate is not None:
            await self._gate.close()
        while self._stopped_ones:
            await self._stopped_ones.pop().close()
