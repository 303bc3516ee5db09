"""A reader of its own direct messages and of nothing else, on a credential of the `dm-reader` profile (C8-36..39).

    reader = DmReader(RawIntake(connection, Durable.dm(space, lifecycle)))
    async for direct in reader:
        print(direct.received.message)
        await direct.handled()

With a raw intake, everything that it publishes is the look at its durable, pulls of it and acks of it (C8-39): it has
no presence and no registry, and asks nothing about the account. In a mediated space it fetches and settles, and nothing
else. Its durable is made by the provisioner; a missing one is a refusal, with no other way to the messages (C8-37).
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import NamedTuple

from sidecar.ops.logging import Log
from sidecar.ops.metrics import Metrics
from sidecar.rails.envelopes.receive import Received, Rejected
from sidecar.rails.messaging.durables import From, judge
from sidecar.rails.messaging.intake import HeldCopy, Intake, IntakeClosed


class Direct(NamedTuple):
    """One direct message, shown now. It comes again unless it is settled."""

    received: Received
    copy: HeldCopy

    async def handled(self) -> None:
        """It was handled (C8-62)."""
        await self.copy.ack()

    async def later(self, delay: float = 0.0) -> None:
        """Deliver it again, not before ``delay`` seconds (C8-63)."""
        await self.copy.nak(delay)

    async def refuse(self) -> None:
        """It is invalid for good (C8-64)."""
        await self.copy.term()


class DmReader:
    """Direct messages of one lifecycle, each judged before anybody sees it (C8-38)."""

    def __init__(
        self, intake: Intake, *, mediated: bool = False, metrics: Metrics | None = None, log: Log | None = None
    ) -> None:
        """``intake`` reads the durable of direct messages, raw or mediated."""
        if intake.durable.source is not From.DM:
            raise ValueError("a reader of direct messages reads their durable")
        self._intake, self._mediated = intake, mediated
        self._metrics, self._log = metrics, log

    async def next(self) -> Direct:
        """The next message. Raises IntakeClosed, and what ends an intake: ConsumerGone when there is no durable."""
        while True:
            copy = await self._intake.take()
            try:
                received = judge(copy.frame, self._intake.durable, mediated=self._mediated)
            except Rejected as error:
                self._refused(error)
                await copy.term()
                continue
            copy.show()
            return Direct(received, copy)

    def _refused(self, error: Rejected) -> None:
        if self._metrics is not None:
            self._metrics.counter("messaging_copies_refused", "dm", error.reason.value).inc()
        if self._log is not None:
            self._log.warning("message_refused", reason=error.reason.value, way="dm", detail=error.detail)

    async def __aiter__(self) -> AsyncIterator[Direct]:
        """Messages until the owner closes; other endings raise."""
        try:
            while True:
                yield await self.next()
        except IntakeClosed:
            return

    async def close(self) -> None:
        """Stop reading."""
        await self._intake.close()
