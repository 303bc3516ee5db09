"""The database file: made whole or not at all, and checked before anything is believed."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import apsw

from sidecar.coordinator.store import schema
from sidecar.coordinator.store.errors import StoreCorrupt, StoreReadOnly, StoreTooNew, opening_error
from sidecar.coordinator.store.lock import check_file

NAME: Final = "coordinator.db"
_NEW: Final = "coordinator.db.new"
_SIDE_FILES: Final = ("-wal", "-shm", "-journal")
_FLAGS: Final = apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_NOFOLLOW | apsw.SQLITE_OPEN_EXRESCODE
LOG_KEPT: Final = 64 << 20
"""Bytes below which SQLite never shrinks the log while it is open: it starts over in place after a checkpoint."""
# EXCLUSIVE keeps SQLite's own lock for the life of the connection: it excludes a second writer even after somebody
# removed the lock file, and the WAL index stays in memory.
_SETTINGS: Final = (
    "PRAGMA locking_mode = EXCLUSIVE",
    "PRAGMA synchronous = FULL",
    "PRAGMA cell_size_check = ON",
    "PRAGMA trusted_schema = OFF",
    "PRAGMA temp_store = MEMORY",
    f"PRAGMA journal_size_limit = {LOG_KEPT}",
)


def open_database(directory: Path, entropy: Callable[[int], bytes]) -> apsw.Connection:
    """Open the checked database of a locked directory; make it, with a fresh CoordinatorId, when there is none.

    Raises StoreCorrupt, StoreTooNew (before anything is written), StoreReadOnly, StoreUnsafe, StoreLocked.
    """
    path = directory / NAME
    if not os.path.lexists(path):
        _create(directory, entropy)
    check_file(path, path.lstat())
    connection = _connect(path)
    with _closed_by_failure(path, connection):
        _check_version(path, connection)
        _check_integrity(path, connection)
        _upgrade(connection)
        if connection.pragma("journal_mode") != "wal":
            raise StoreCorrupt(path, "is not in WAL mode; something else wrote it")
    return connection


def log_of(path: Path) -> Path:
    """The write-ahead log beside a database."""
    return path.with_name(f"{path.name}-wal")


def keep_log(connection: apsw.Connection) -> None:
    """Closing leaves log and database as they are: no checkpoint from a log that somebody shortened."""
    connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)


def _connect(path: Path) -> apsw.Connection:
    try:
        connection = apsw.Connection(str(path), flags=_FLAGS)
    except apsw.Error as error:
        raise opening_error(path, error) from error
    with _closed_by_failure(path, connection):
        for setting in _SETTINGS:
            connection.execute(setting)
        if connection.readonly("main"):
            raise StoreReadOnly(path, "cannot be written; check the volume and its permissions")
    return connection


@contextmanager
def _closed_by_failure(path: Path, connection: apsw.Connection) -> Iterator[None]:
    """Whatever goes wrong closes the connection; an error of SQLite becomes the typed one."""
    try:
        yield
    except apsw.Error as error:
        connection.close()
        raise opening_error(path, error) from error
    except BaseException:
        connection.close()
        raise


def _check_version(path: Path, connection: apsw.Connection) -> None:
    if connection.pragma("application_id") != schema.APPLICATION_ID:
        raise StoreCorrupt(path, "is not a coordinator store")
    version = connection.pragma("user_version")
    if version > schema.VERSION:
        reason = (
            f"has schema {version}, this program knows {schema.VERSION}; run the version that wrote it or a later one"
        )
        raise StoreTooNew(path, reason)
    if version != schema.VERSION and version not in schema.UPGRADES:
        raise StoreCorrupt(path, f"has schema {version}, which never existed")


def _check_integrity(path: Path, connection: apsw.Connection) -> None:
    found = connection.execute("PRAGMA integrity_check(1)").get
    if found != "ok":
        raise StoreCorrupt(path, f"is damaged ({found}); restore a copy or start a new store directory")


def _upgrade(connection: apsw.Connection) -> None:
    """Bring an older store to this schema, version by version, each all or nothing."""
    while (version := connection.pragma("user_version")) != schema.VERSION:
        with connection:
            connection.execute(schema.UPGRADES[version])
            connection.pragma("user_version", version + 1)


def _create(directory: Path, entropy: Callable[[int], bytes]) -> None:
    """Make the database under another name and rename it, so that an empty file is always damage, never a new store."""
    path, new = directory / NAME, directory / _NEW
    for suffix in _SIDE_FILES:
        if os.path.lexists(f"{path}{suffix}"):
            raise StoreCorrupt(path, f"is missing beside its {suffix[1:]} file; restore both")
    try:
        for suffix in ("", *_SIDE_FILES):  # what a killed predecessor left
            Path(f"{new}{suffix}").unlink(missing_ok=True)
        os.close(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        connection = _connect(new)
        try:
            _fill(connection, entropy)
        finally:
            connection.close()
        os.rename(new, path)
        sync_directory(directory)
    except apsw.Error as error:
        raise opening_error(path, error) from error
    except OSError as error:
        raise StoreReadOnly(path, f"cannot be made ({error.strerror})") from error


def _fill(connection: apsw.Connection, entropy: Callable[[int], bytes]) -> None:
    coordinator_id = bytes(16)
    while not any(coordinator_id):  # ids are never all zero (P4-01)
        coordinator_id = entropy(16)
    connection.pragma("journal_mode", "wal")
    with connection:
        connection.pragma("application_id", schema.APPLICATION_ID)
        connection.pragma("user_version", schema.VERSION)
        for table in schema.TABLES:
            connection.execute(table)
        zero = schema.to_column(0)
        connection.execute(
            "INSERT INTO authority VALUES (1, ?, ?, ?, ?, ?, ?, ?)",
            (coordinator_id, zero, zero, bytes(32), bytes(16), zero, zero),
        )


def sync_directory(directory: Path) -> None:
    """Make names in the directory durable."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
