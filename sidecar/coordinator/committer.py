"""From the engine to the disk and back: group commit without waiting on the loop (P8-13, P8-17, P12-16).

One batch is on its way at a time; what arrives while the disk is busy waits in the engine, where principals take turns,
so that a newcomer waits for that batch and is in the next. The first failure is the end: its outcome may be unknown, so
nothing is ever tried again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from sidecar.base.clock import Now
from sidecar.coordinator.engine.core import Engine
from sidecar.coordinator.engine.observer import Observer
from sidecar.coordinator.engine.runtime import Fenced
from sidecar.coordinator.engine.state import Batch
from sidecar.coordinator.store.errors import StoreStopped
from sidecar.coordinator.store.sqlite import SqliteStore
from sidecar.coordinator.store.writer import StoreWriter

MAX_IN_FLIGHT: Final = 1
"""Batches that the writer holds at most. More would queue in front of it, first come, first served."""


class Committer:
    """Takes a batch whenever `kick` was called, once per turn of the loop: what arrived in one turn shares a batch."""

    def __init__(
        self,
        engine: Engine,
        store: SqliteStore,
        *,
        loop: asyncio.AbstractEventLoop,
        clock: Callable[[], Now],
        observer: Observer,
        failed: Callable[[str], None],
    ) -> None:
        """`failed` is called on the loop, once, with the reason why nothing can be committed any more."""
        self._engine = engine
        self._loop = loop
        self._clock = clock
        self._observer = observer
        self._failed = failed
        self._in_flight = 0
        self._since: float | None = None
        """Monotonic second at which the batch on its way was taken."""
        self._due = False
        self._idle = asyncio.Event()
        self._idle.set()
        self._store = store
        self._writer = StoreWriter(store, self._check)

    def kick(self) -> None:
        """Transactions may wait."""
        if not self._due:
            self._due = True
            self._idle.clear()
            self._loop.call_soon(self._submit)

    async def drain(self) -> None:
        """Wait until everything that the engine has is durable or has failed."""
        self.kick()
        await self._idle.wait()

    def stop(self, patience: float | None = None) -> bool:
        """End the writer thread; blocks until what it holds is written. The store stays open.

        False when that takes longer than ``patience`` seconds: the store must not be touched any more.
        """
        return self._writer.stop(patience)

    def held_up(self, now: Now) -> float:
        """Seconds for which the disk has had the batch on its way; 0 when there is none. May be asked from anywhere."""
        since = self._since
        return 0.0 if since is None else max(0.0, now.mono - since)

    def _check(self) -> None:
        """Right before COMMIT, in the writer's thread: a commit needs a certificate that is valid at that moment."""
        valid = self._engine.authority.valid(self._clock())
        reason = self._engine.fenced
        if reason is None and not valid:
            reason = "the activation certificate expired"
        if reason is not None:
            raise Fenced(reason)

    def _submit(self) -> None:
        self._due = False
        try:
            while self._in_flight < MAX_IN_FLIGHT:
                now = self._clock()
                batch = self._engine.take_batch(now)
                if batch is None:
                    break
                self._writer.submit(batch, self._reporter(batch, now.mono))
                self._in_flight += 1
                self._since = now.mono
        except (Fenced, StoreStopped) as error:
            self._failed(str(error))
        except Exception as error:
            # It ended the connection whose command it was; the others go on.
            self._loop.call_exception_handler({"message": "a command", "exception": error})
        if self._in_flight:
            return
        if self._engine.fenced is not None or not self._engine.waiting:
            self._idle.set()
        elif self._engine.can_take(self._clock()):
            self.kick()

    def _reporter(self, batch: Batch, taken: float) -> Callable[[BaseException | None], None]:
        def done(failure: BaseException | None) -> None:
            self._loop.call_soon_threadsafe(self._done, batch, taken, failure)

        return done

    def _done(self, batch: Batch, taken: float, failure: BaseException | None) -> None:
        self._in_flight -= 1
        self._since = None
        now = self._clock()
        if failure is not None:
            self._failed(f"a commit failed: {failure}")
        # The next batch first: the disk works on it while the replies of this one are written.
        self._submit()
        if failure is None:
            self._observer.batch(len(batch.operations), now.mono - taken)
            self._tell(batch, now)

    def _tell(self, batch: Batch, now: Now) -> None:
        try:
            self._engine.batch_durable(batch, now)
        except Exception as error:
            # It is on disk, but replies and events can not go out in order any more: nobody may wait for them.
            self._failed(f"an internal failure behind a commit ({type(error).__name__})")
            self._loop.call_exception_handler({"message": "a durable batch", "exception": error})
