"""A bucket's rows in memory, as current as a read of the bucket itself.

A watch feeds the mirror. It may be a moment behind, so whoever decides by it first calls :meth:`Mirror.current`: that
asks the stream's leader for its newest row and waits until the watch has come so far. What was stored before the call
is then in memory, whoever stored it. One question of some bytes serves everybody who came before it was sent (CD-10).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Final

from sidecar.rails.connection.kv import Entry, KeyValue
from sidecar.rails.connection.streams import ConsumerRefused
from sidecar.rails.names.buckets import Bucket
from sidecar.rails.planes.delivery.broker import Unanswered, newest
from sidecar.rails.planes.delivery.plane import Plane

BEHIND_SECONDS: Final = 10.0
"""How long a caller waits for a watch that is behind."""
_AGAIN_SECONDS: Final = 1.0
"""Wait before a watch that the broker refused is tried again."""
_ID_BYTES: Final = 8


class Behind(Exception):  # noqa: N818 - a state
    """The mirror is not current: the broker does not answer, or the watch does not get so far in time."""


class Mirror:
    """One bucket. ``apply`` takes each newest entry of a key, markers too; it must not raise."""

    def __init__(self, plane: Plane, bucket: Bucket, label: str, apply: Callable[[Entry], None]) -> None:
        self.position = 0
        """The stream sequence up to which rows have been applied."""
        self._plane, self._label, self._apply = plane, label, apply
        self._stream, self._pattern = bucket.stream(plane.space), bucket.everything(plane.space)
        self._values = KeyValue(plane.connection, bucket, plane.space)
        self._moved = asyncio.Condition()
        self._reading: asyncio.Task[int] | None = None
        self._next: asyncio.Task[int] | None = None
        self.reads = 0

    async def run(self) -> None:
        """Feed the mirror until cancelled. Raises Stopped, PermissionViolation."""
        while True:
            watch = self._values.watch(self._plane.entropy(_ID_BYTES).hex())
            try:
                while True:
                    entry = await watch.next()
                    await self._take(entry)
            except ConsumerRefused as error:
                self._plane.log.error("delivery_watch_refused", bucket=self._label, error=error)
                await asyncio.sleep(_AGAIN_SECONDS)
            finally:
                with contextlib.suppress(Exception):  # the end of the connection comes as the error of its readers
                    await watch.close()

    async def _take(self, entry: Entry) -> None:
        self._apply(entry)
        async with self._moved:
            self.position = max(self.position, entry.revision)
            self._moved.notify_all()

    async def current(self) -> None:
        """Return when everything that was stored before the call has been applied. Raises Behind."""
        began = self._plane.clock().mono
        try:
            async with asyncio.timeout(BEHIND_SECONDS):
                target = await self._newest()
                if self.position < target:
                    async with self._moved:
                        await self._moved.wait_for(lambda: self.position >= target)
        except (TimeoutError, Unanswered) as error:
            self._plane.metrics.counter("delivery_index_behind", self._label).inc()
            raise Behind(f"{self._label}: {error or 'the watch is behind'}") from error
        self._plane.metrics.histogram("delivery_index_wait_seconds").observe(self._plane.clock().mono - began)

    async def _newest(self) -> int:
        """The newest row's sequence, by a read that begins after the call. Callers share it."""
        if self._next is None:
            self._next = asyncio.create_task(self._read_behind(self._reading))
            self._next.add_done_callback(lambda task: task.cancelled() or task.exception())
        return await asyncio.shield(self._next)

    async def _read_behind(self, before: asyncio.Task[int] | None) -> int:
        if before is not None:
            await asyncio.wait((before,))
        self._reading, self._next = self._next, None
        self.reads += 1
        return await newest(self._plane.connection, self._stream, self._pattern)
