"""Answers on their way to the broker: at once where the socket takes them, else so many that wait for it."""

from __future__ import annotations

import asyncio
from typing import Final

from sidecar.ops.logging import Log
from sidecar.ops.metrics import Metrics
from sidecar.rails.connection import Connection, ConnectionFault
from sidecar.rails.connection import Fault as Broken
from sidecar.rails.endpoint.codes import Code, Outcome, Refusal
from sidecar.rails.endpoint.envelope import encode_refusal

WAITING: Final = 4_096
"""Answers that wait for a link or for a socket that is full; more are lost, and counted."""
WAITING_BYTES: Final = 64 << 20
"""Bytes of those answers, in all."""


class Answers:
    """The answers of one instance. An answer that cannot be sent is counted; its caller's deadline tells the caller."""

    def __init__(
        self, connection: Connection, metrics: Metrics, log: Log, most: int = WAITING, most_bytes: int = WAITING_BYTES
    ) -> None:
        self._connection, self._log, self._most, self._most_bytes = connection, log, most, most_bytes
        self._lost = {why: metrics.counter("endpoint_answers_lost", why) for why in _WHY}
        self._sending: set[asyncio.Task[None]] = set()
        self._size = 0

    @property
    def limit(self) -> int:
        """Bytes of an answer."""
        return self._connection.max_payload

    def give(self, reply: str | None, identity: str, data: bytes) -> None:
        """Send an answer; a cast has none, whatever became of it (C13.3-18)."""
        if reply is None:
            return
        if len(data) > self._connection.max_payload:
            self._lost["too_large"].inc()
            refusal = Refusal(Code.RESOURCE_EXHAUSTED, "the answer is too large to be sent", Outcome.EXECUTED)
            data = encode_refusal(identity, refusal)
        if self._connection.offer(reply, data):
            return
        if len(self._sending) >= self._most or self._size + len(data) > self._most_bytes:
            self._lost["overflow"].inc()
            self._log.warning("endpoint_answer_lost", fault="overflow")
            return
        task = asyncio.create_task(self._send(reply, data))
        self._sending.add(task)
        self._size += len(data)
        task.add_done_callback(lambda _: self._over(task, len(data)))

    def _over(self, task: asyncio.Task[None], size: int) -> None:
        self._sending.discard(task)
        self._size -= size

    async def _send(self, reply: str, data: bytes) -> None:
        try:
            await self._connection.send(reply, data)
        except ConnectionFault as error:
            self._lost["too_large" if error.fault is Broken.MAX_PAYLOAD else "not_connected"].inc()
            self._log.warning("endpoint_answer_lost", fault=error.fault.value)

    async def settle(self, seconds: float) -> None:
        """Wait for those that wait, at most so long; the rest are given up."""
        if self._sending:
            await asyncio.wait(self._sending, timeout=seconds)
        for task in self._sending:
            task.cancel()
        await asyncio.gather(*self._sending, return_exceptions=True)


_WHY: Final = ("not_connected", "too_large", "overflow")
