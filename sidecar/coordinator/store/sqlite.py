"""The embedded store: one SQLite database in WAL mode, one writer, nothing reported before it is on disk.

A store is open for one activation of one process. Its first failure ends it: from then on it refuses everything, and
only opening it again, which reads what is durable, tells what became of a commit with an unknown end.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import apsw

from sidecar.base.safefile import UnsafeFile, ensure_private_dir
from sidecar.coordinator.engine.state import Batch, State
from sidecar.coordinator.store import database, schema
from sidecar.coordinator.store.errors import (
    CounterExhausted,
    StaleBatch,
    StoreCorrupt,
    StoreError,
    StoreLost,
    StoreReadOnly,
    StoreStopped,
    StoreUnsafe,
    commit_error,
    opening_error,
)
from sidecar.coordinator.store.lock import StoreLock, same_file


class Installed(NamedTuple):
    """The activation that the store belongs to; epoch and sequence 0 before the first one."""

    epoch: int
    activation_sequence: int
    token_sha256: bytes
    incarnation_id: bytes


class SqliteStore:
    """Durable home of one coordinator. Every method may be called from any thread; they take turns."""

    def __init__(self, directory: Path, lock: StoreLock, connection: apsw.Connection) -> None:
        self._directory = directory
        self._path = directory / database.NAME
        self._lock = lock
        self._connection = connection
        self._turn = threading.Lock()
        self._failed: BaseException | None = None
        self._closed = False
        self._number = 0
        coordinator_id, epoch, activation, token, incarnation, last, pruned = self._authority_row()
        # Reading opened the log. Removed or cut under the writer, what is committed to it is gone with the process.
        self._log = database.log_of(self._path)
        self._files = {path: os.lstat(path) for path in (self._path, self._log)}
        self._log_size = 0
        self._note_log_size()
        self._coordinator_id: bytes = coordinator_id
        self._installed = Installed(schema.from_column(epoch), schema.from_column(activation), token, incarnation)
        self._last_sequence = schema.from_column(last)
        self._pruned_through = schema.from_column(pruned)

    @classmethod
    def open(cls, directory: Path, *, entropy: Callable[[int], bytes]) -> SqliteStore:
        """Lock, check and open the store of ``directory`` (P12-20, first steps); made when it does not exist.

        ``entropy`` gives the CoordinatorId of a new store. Raises StoreLocked (P12-01), StoreCorrupt, StoreTooNew
        (P12-33), StoreReadOnly or StoreUnsafe; then nothing was changed and nothing stays locked.
        """
        try:
            ensure_private_dir(directory)
        except UnsafeFile as error:
            raise StoreUnsafe(directory, error.reason) from error
        except OSError as error:
            raise StoreReadOnly(directory, f"cannot be used ({error.strerror})") from error
        lock = StoreLock.acquire(directory)
        try:
            connection = database.open_database(directory, entropy)
        except BaseException:
            lock.release()
            raise
        try:
            return cls(directory, lock, connection)
        except BaseException:
            connection.close()
            lock.release()
            raise

    @property
    def coordinator_id(self) -> bytes:
        """CoordinatorId, 16 bytes, the same for the life of the store (P4-07)."""
        return self._coordinator_id

    @property
    def path(self) -> Path:
        """The database file, for messages."""
        return self._path

    @property
    def last_sequence(self) -> int:
        """EventCut of what is durable."""
        return self._last_sequence

    def installed(self) -> Installed:
        """The activation that was installed last."""
        return self._installed

    def lock_held(self) -> bool:
        """Whether lock file, database and its log still are the files that this store opened (P14-05), and nobody cut
        the log."""
        if self._closed or not self._lock.held():
            return False
        return all(same_file(path, info) for path, info in self._files.items()) and not self._log_cut()

    def install(self, epoch: int, activation_sequence: int, token_sha256: bytes, incarnation_id: bytes) -> None:
        """Durably install an activation, before it serves anybody (P12-20, P4-09).

        Epoch and activation sequence must both be greater than what is installed, else StaleBatch. Batches are then
        numbered from 1 again.
        """
        with self._turn:
            self._check_running()
            if epoch <= self._installed.epoch or activation_sequence <= self._installed.activation_sequence:
                raise StaleBatch(self._path, "a later activation is installed already")
            fresh = Installed(epoch, activation_sequence, token_sha256, incarnation_id)

            def write() -> None:
                row = (schema.to_column(epoch), schema.to_column(activation_sequence), token_sha256, incarnation_id)
                self._connection.execute(schema.INSTALL, row)

            self._transact(write, _nothing_to_check)
            self._installed = fresh
            self._number = 0

    def load(self) -> State:
        """The whole state that is durable. StoreCorrupt when the rows do not fit together."""
        with self._turn:
            self._check_running()
            execute = self._connection.execute
            try:
                state = State.build(
                    schema.read_records(execute(schema.GET_RECORDS)),
                    schema.read_operations(execute(schema.GET_OPERATIONS)),
                    schema.read_events(execute(schema.GET_EVENTS)),
                    self._last_sequence,
                )
            except apsw.Error as error:
                raise opening_error(self._path, error) from error
            except ValueError as error:
                raise StoreCorrupt(self._path, f"is damaged ({error}); restore a copy") from error
            if len(state.tail) != self._last_sequence - self._pruned_through:
                raise StoreCorrupt(self._path, "is damaged (events are missing); restore a copy")
            return state

    def commit(self, batch: Batch, check: Callable[[], None]) -> None:
        """Write one batch: when this returns all of it is durable (P8-13, P8-17). See :meth:`commit_all`."""
        self.commit_all((batch,), check)

    def commit_all(self, batches: Sequence[Batch], check: Callable[[], None]) -> None:
        """Write several batches in one transaction, all or none.

        ``check`` runs right before COMMIT, after every row is written, and raises to abort (P12-16). Whatever is raised
        here, by it or by the store, is the end of this store: StaleBatch, CounterExhausted, StoreLost and
        CommitFailed are raised once, everything afterwards gets StoreStopped.
        """
        with self._turn:
            self._check_running()
            try:
                number, last, pruned = self._number, self._last_sequence, self._pruned_through
                for batch in batches:
                    self._check_batch(batch, number, last, pruned)
                    number, last, pruned = batch.number, batch.last_sequence, batch.pruned_through
            except StoreError as error:
                self._failed = error
                raise

            def write() -> None:
                for batch in batches:
                    self._write(batch)
                self._connection.execute(schema.ADVANCE, (schema.to_column(last), schema.to_column(pruned)))

            self._transact(write, check)
            self._number, self._last_sequence, self._pruned_through = number, last, pruned

    def close(self) -> None:
        """Fold the log into the database and give the store up; safe to call twice and after a failure."""
        with self._turn:
            if self._closed:
                return
            self._closed = True
            try:
                # A failed checkpoint loses nothing: the log stays and the next opening reads it. When the names belong
                # to another store by now SQLite notices and leaves that store's log alone.
                with contextlib.suppress(apsw.Error):
                    if self._log_cut():
                        database.keep_log(self._connection)
                    else:
                        self._connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
                self._connection.close()
            finally:
                self._lock.release()

    def _log_cut(self) -> bool:
        """Whether this store's own log is shorter than SQLite ever makes it."""
        try:
            size = os.lstat(self._log).st_size
        except OSError:
            return False
        return size < self._log_size and same_file(self._log, self._files[self._log])

    def _note_log_size(self) -> None:
        with contextlib.suppress(OSError):
            self._log_size = max(self._log_size, min(os.lstat(self._log).st_size, database.LOG_KEPT))

    def _check_files(self) -> None:
        if not self.lock_held():
            reason = "a file of the store was removed, replaced or cut; restart on the right store"
            raise StoreLost(self._path, reason)

    def _authority_row(self) -> tuple[bytes, int, int, bytes, bytes, int, int]:
        try:
            row = self._connection.execute(schema.GET_AUTHORITY).get
        except apsw.Error as error:
            raise opening_error(self._path, error) from error
        if row is None:
            raise StoreCorrupt(self._path, "has no authority row; restore a copy")
        coordinator_id, epoch, activation, token, incarnation, last, pruned = row
        return coordinator_id, epoch, activation, token, incarnation, last, pruned

    def _check_running(self) -> None:
        if self._closed:
            raise StoreStopped(self._path, "is closed")
        if self._failed is not None:
            raise StoreStopped(self._path, f"stopped after: {self._failed}") from self._failed

    def _check_batch(self, batch: Batch, number: int, last: int, pruned: int) -> None:
        if (batch.epoch, batch.activation_sequence) != self._installed[:2]:
            raise StaleBatch(self._path, "the batch belongs to another activation")
        if batch.number != number + 1:
            raise StaleBatch(self._path, f"batch {batch.number} came after batch {number}")
        expected = range(last + 1, last + 1 + len(batch.events))
        if any(event.sequence != sequence for event, sequence in zip(batch.events, expected, strict=True)):
            raise StaleBatch(self._path, f"the events do not continue sequence {last}")
        if batch.last_sequence != last + len(batch.events):
            raise StaleBatch(self._path, f"the batch ends at {batch.last_sequence}, its events do not")
        if not pruned <= batch.pruned_through <= batch.last_sequence:
            raise StaleBatch(self._path, f"pruning moved from {pruned} to {batch.pruned_through}")

    def _write(self, batch: Batch) -> None:
        many = self._connection.executemany
        # First, as the batch says: an id that was forgotten may be admitted again in the same batch.
        many(schema.DROP_OPERATION, ((id_,) for id_ in batch.removed_operations))
        many(schema.DROP_RECORD, batch.removed_records)
        many(schema.PUT_RECORD, map(schema.record_row, batch.records))
        many(schema.PUT_OPERATION, map(schema.operation_row, batch.operations))
        many(schema.ADD_EVENT, map(schema.event_row, batch.events))
        if batch.pruned_through > self._pruned_through:
            self._connection.execute(schema.PRUNE_EVENTS, (schema.to_column(batch.pruned_through),))

    def _transact(self, write: Callable[[], None], check: Callable[[], None]) -> None:
        """One transaction. Any failure stops the store; what ``check`` raises passes as it is."""
        committing = False
        try:
            self._check_files()  # a large transaction writes to the log before COMMIT, and would make a cut one long
            self._connection.execute("BEGIN IMMEDIATE")
            write()
            self._check_files()
            check()
            committing = True
            self._connection.execute("COMMIT")
            self._note_log_size()
        except BaseException as error:
            with contextlib.suppress(apsw.Error):
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
            self._failed = error
            if isinstance(error, apsw.Error):
                # Only COMMIT can fail after the bytes reached the disk.
                self._failed = commit_error(self._path, error, durable=None if committing else False)
            elif isinstance(error, OverflowError):
                self._failed = CounterExhausted(self._path, "a counter is exhausted; this authority cannot go on")
            if self._failed is error:
                raise
            raise self._failed from error


def _nothing_to_check() -> None:
    """An installation is what makes the first certificate usable: there is none to check yet."""
