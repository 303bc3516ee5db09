"""Answers to liveness probes, for the two planes that give them (C6.1).

A responder grades only itself, says nothing of itself but the verdict, and names each binding with a token that is
derived from nothing. What is wrong with a probe is counted and logged, and ends nothing (C6.1-08, -09).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections.abc import Awaitable, Callable
from typing import Final

from nats.aio.msg import Msg

from sidecar.ops.logging import Log
from sidecar.ops.metrics import Metrics
from sidecar.rails.connection import Connection, ConnectionFault, Stopped, Subscription, SubscriptionClosed
from sidecar.rails.messaging.liveness import Verdict
from sidecar.rails.names import InvalidName, headers, subjects

VERDICT_SECONDS: Final = 1.0
"""Longest wait for the own state; behind it the verdict is ``unknown``, in time for the probe's own bound."""
AGAIN_SECONDS: Final = 5.0
_QUEUED, _QUEUED_BYTES = 1_024, 1 << 20

Judge = Callable[[], Awaitable[str]]
"""The word of a verdict of a plane about itself; whatever it raises, and any other word, is ``unknown`` (C6.1-16)."""


class LivenessResponder:
    """The responder of one plane on one connection."""

    def __init__(
        self,
        connection: Connection,
        space: str,
        plane: str,
        judge: Judge,
        *,
        metrics: Metrics,
        log: Log,
        entropy: Callable[[int], bytes] = os.urandom,
        again: float = AGAIN_SECONDS,
    ) -> None:
        """InvalidName for a plane that is not one."""
        self._connection, self._space, self._plane, self._judge = connection, space, plane, judge
        self._metrics, self._log, self._entropy, self._again = metrics, log, entropy, again
        self._filter = subjects.LIVE.filter(space=space, plane=plane)
        self._queue = subjects.LIVE_QUEUE.build(plane=plane)
        self._subscription: Subscription | None = None
        self._placed = 0
        self._instance = ""
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Bind the serve filter. Raises PermissionViolation, NotConnected, Stopped."""
        self._subscription = await self._bind()
        self._task = asyncio.create_task(self._serve(self._subscription))

    async def close(self) -> None:
        """Answer nothing more. May be called twice."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self._subscription is not None:
            await self._subscription.close()

    async def _bind(self) -> Subscription:
        subscription = await self._connection.subscribe(
            self._filter, self._queue, max_messages=_QUEUED, max_bytes=_QUEUED_BYTES
        )
        self._placed = 0
        return subscription

    async def _serve(self, subscription: Subscription) -> None:
        while True:
            try:
                while True:
                    await self._answer(await subscription.next(), subscription)
            except (SubscriptionClosed, Stopped):
                return
            except ConnectionFault as error:
                self._log.error("liveness_unbound", plane=self._plane, fault=error.fault.value)
            subscription = await self._rebind()
            self._subscription = subscription

    async def _rebind(self) -> Subscription:
        """Try until the broker lets us subscribe again. Raises Stopped."""
        while True:
            await asyncio.sleep(self._again)
            try:
                return await self._bind()
            except Stopped:
                raise
            except ConnectionFault:
                continue

    async def _answer(self, message: Msg, subscription: Subscription) -> None:
        if not self._may_answer(message):
            self._metrics.counter("liveness_dropped", self._plane).inc()
            self._log.warning("liveness_probe_dropped", plane=self._plane)
            return
        verdict = await self._verdict()
        if subscription.placements != self._placed:
            # Another link carries the filter now: another binding (C6.1-12, -17).
            self._placed, self._instance = subscription.placements, self._entropy(16).hex()
        answer = {"plane": self._plane, "responder": verdict.value, "instance": self._instance}
        with contextlib.suppress(ConnectionFault):  # no link: the probe finds out by itself
            await self._connection.send(message.reply, json.dumps(answer).encode())
            self._metrics.counter("liveness_answers", self._plane, verdict.value).inc()

    def _may_answer(self, message: Msg) -> bool:
        """A live request whose reply target is directly below it (C6.1-07)."""
        if headers.carries_provenance(message.headers or ()):
            return False
        try:
            asked = subjects.LIVE.parse(message.subject)
            target = subjects.LIVE_REPLY.parse(message.reply)
        except InvalidName:
            return False
        return {**asked, "nonce": target["nonce"]} == target

    async def _verdict(self) -> Verdict:
        try:
            async with asyncio.timeout(VERDICT_SECONDS):
                return Verdict(await self._judge())
        except Exception as error:
            self._log.warning("liveness_unknown", plane=self._plane, error=type(error).__name__)
            return Verdict.UNKNOWN


def manager_responder(
    connection: Connection, space: str, serving: Callable[[], bool], *, metrics: Metrics, log: Log
) -> LivenessResponder:
    """The manager plane's responder: ``bound`` while its service endpoint serves, else ``unbound`` (C6.1-14).

    ``serving`` is ``EndpointServer.serving`` of the service connection, which may be another one than this.
    """

    async def judge() -> Verdict:
        return Verdict.BOUND if serving() else Verdict.UNBOUND

    return LivenessResponder(connection, space, "manager", judge, metrics=metrics, log=log)
