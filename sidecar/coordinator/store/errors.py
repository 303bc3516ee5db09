"""What can be wrong with a store, each in one line that says what to do."""

# ruff: noqa: N818 - the classes name the state of the store

from __future__ import annotations

from pathlib import Path

import apsw


class StoreError(Exception):
    """The store cannot be used or has stopped; ``path`` is the directory or file concerned."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path
        self.reason = reason


class StoreLocked(StoreError):
    """Another writer holds this store (P12-01)."""


class StoreCorrupt(StoreError):
    """The content is damaged, or is not a coordinator store."""


class StoreTooNew(StoreError):
    """A later version of the program wrote it; there is no downgrade (P12-33)."""


class StoreReadOnly(StoreError):
    """The directory, a file or the volume cannot be written."""


class StoreUnsafe(StoreError):
    """Owner or mode let others in, or a name is not a plain file."""


class StoreLost(StoreError):
    """The lock file, the database or its log was removed, replaced or cut under the running store (P14-05)."""


class StaleBatch(StoreError):
    """A batch of another activation, out of order, or with a hole in its events; nothing of it was written."""


class CounterExhausted(StoreError):
    """A counter would pass 2**64 - 1; it never wraps (P4-06)."""


class StoreStopped(StoreError):
    """An earlier failure or ``close`` ended all writing; only opening the store again helps."""


class CommitFailed(StoreError):
    """SQLite refused a commit. ``durable`` is False when nothing was written for certain, None when nobody knows."""

    def __init__(self, path: Path, reason: str, *, durable: bool | None) -> None:
        super().__init__(path, reason)
        self.durable = durable


def opening_error(path: Path, error: apsw.Error) -> StoreError:
    """The typed error for what SQLite said while the store was opened or read."""
    match error:
        case apsw.BusyError() | apsw.LockedError():
            return StoreLocked(path, "another process uses the database; stop it first")
        case apsw.ReadOnlyError() | apsw.CantOpenError() | apsw.PermissionsError():
            return StoreReadOnly(path, f"cannot be written ({error}); check the volume and its permissions")
        case apsw.FullError():
            return StoreReadOnly(path, "the disk is full; free some space")
        case _:
            return StoreCorrupt(path, f"cannot be read ({error}); restore a copy or start a new store directory")


def commit_error(path: Path, error: apsw.Error, *, durable: bool | None) -> CommitFailed:
    """The typed error for what SQLite said while a batch was written. That a start must follow is told by who ends."""
    if isinstance(error, apsw.FullError):
        return CommitFailed(path, "the disk is full, free some space first", durable=durable)
    return CommitFailed(path, f"{error}, check the volume and its free space first", durable=durable)
