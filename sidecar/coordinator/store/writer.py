"""One thread that makes batches durable, several in one commit when they wait."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from typing import Final

from sidecar.coordinator.engine.state import Batch
from sidecar.coordinator.store.errors import StoreStopped
from sidecar.coordinator.store.sqlite import SqliteStore

Done = Callable[[BaseException | None], None]

MAX_WAITING: Final = 1024
"""Batches that may wait. The engine closes a batch only when the one before it is durable, so this is far away."""
MAX_GROUP: Final = 64
"""Batches written by one commit."""

_log = logging.getLogger(__name__)


class StoreWriter:
    """The only caller of ``commit`` while a coordinator runs.

    ``check`` is called right before every COMMIT, in the writer's thread, and raises when the certificate is no longer
    valid (P12-16). The first failure is reported to the batches that it hit and ends the writer: every batch that
    waits behind it or comes later gets StoreStopped, so nothing is ever written after a commit with an unknown end.
    """

    def __init__(self, store: SqliteStore, check: Callable[[], None]) -> None:
        self._store = store
        self._check = check
        self._waiting: deque[tuple[Batch, Done]] = deque()
        self._changed = threading.Condition()
        self._stopping = False
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="store-writer")
        self._thread.start()

    @property
    def failure(self) -> BaseException | None:
        """What ended the writer, None while it works or after an orderly stop."""
        return self._failure

    def submit(self, batch: Batch, done: Done) -> None:
        """Queue ``batch``. ``done`` is called exactly once, in the writer's thread, in the order of submission:
        with None when the batch is durable, else with what happened. It must be quick and must not raise.

        StoreStopped when the writer has ended or 1,024 batches wait; ``done`` is then never called.
        """
        with self._changed:
            if self._failure is not None or self._stopping:
                raise StoreStopped(self._store.path, "the writer has ended") from self._failure
            if len(self._waiting) >= MAX_WAITING:
                raise StoreStopped(self._store.path, "too many batches wait for the disk")
            self._waiting.append((batch, done))
            self._changed.notify()

    def stop(self, patience: float | None = None) -> bool:
        """Write what waits, then end the thread; the store stays open. Safe to call twice.

        False when the thread is still held up by the disk after ``patience`` seconds; without them it is waited for.
        """
        with self._changed:
            self._stopping = True
            self._changed.notify()
        self._thread.join(patience)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while group := self._next_group():
            failure = self._commit([batch for batch, _ in group])
            rest: list[tuple[Batch, Done]] = []
            if failure is not None:
                with self._changed:
                    self._failure = failure
                    rest.extend(self._waiting)
                    self._waiting.clear()
            for _, done in group:
                self._report(done, failure)
            for _, done in rest:
                self._report(done, StoreStopped(self._store.path, "the writer has ended"))

    def _next_group(self) -> list[tuple[Batch, Done]]:
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._stopping)
            return [self._waiting.popleft() for _ in range(min(MAX_GROUP, len(self._waiting)))]

    def _commit(self, batches: list[Batch]) -> BaseException | None:
        try:
            self._store.commit_all(batches, self._check)
        except BaseException as failure:  # the thread has no caller: whatever happened goes to the batches
            return failure
        return None

    @staticmethod
    def _report(done: Done, failure: BaseException | None) -> None:
        try:
            done(failure)
        except Exception:
            _log.exception("a completion callback of the store writer failed")
