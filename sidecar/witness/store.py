"""The witness's durable state: its own directory, one writer, SQLite with full sync beside a high-water file.

The directory (0700) holds ``witness.ed25519`` (the signing key, 32-byte seed), ``witness.db`` and ``high-water``. It
belongs on another volume than any coordinator's store, outside its backups (P12-02).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import apsw

from sidecar.base import ed25519, safefile
from sidecar.coordinator.wire.ids import (
    ActivationSequence,
    ActivationWitnessId,
    AuthorityEpoch,
    CoordinatorId,
    IncarnationId,
    activation_witness_id,
    fresh_id,
)
from sidecar.ops.exitcodes import ExitCode
from sidecar.witness import highwater
from sidecar.witness.highwater import HighWater
from sidecar.witness.state import Lease, Record

KEY_FILE: Final = "witness.ed25519"
DATABASE_FILE: Final = "witness.db"
HIGH_WATER_FILE: Final = "high-water"
SCHEMA_VERSION: Final = 1
_APPLICATION_ID: Final = 0x53435754  # "SCWT"
_BUSY_MILLISECONDS: Final = 2_000

# u64 values are stored as eight big-endian bytes: SQLite's integers are signed.
_SCHEMA: Final = """
CREATE TABLE witness (
  only INTEGER PRIMARY KEY CHECK (only = 1),
  witness_id BLOB NOT NULL,
  witness_key_id BLOB NOT NULL,
  generation INTEGER NOT NULL
) STRICT;
CREATE TABLE coordinator (
  coordinator_id BLOB PRIMARY KEY,
  client_key BLOB NOT NULL,
  last_authority_epoch BLOB NOT NULL,
  activation_sequence BLOB NOT NULL,
  incarnation_id BLOB NOT NULL,
  token_sha256 BLOB NOT NULL,
  issued_at INTEGER NOT NULL,
  expires_at INTEGER NOT NULL,
  boot_id BLOB NOT NULL,
  boot_deadline_ns INTEGER NOT NULL,
  spent INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
"""
_UPSERT: Final = "INSERT OR REPLACE INTO coordinator VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"


class WitnessStateError(Exception):
    """The state directory cannot be used; the text says what is wrong and what to do."""

    exit_code = ExitCode.STORE


class StateRolledBack(WitnessStateError):  # noqa: N818 - names what happened
    """The database or the high-water file is an older copy: tokens were granted that it does not know (P12-09)."""


def _no_step(name: str) -> None:
    """Nobody watches."""


@dataclass(frozen=True, slots=True)
class Identity:
    """What a coordinator pins: the witness's id and public key."""

    witness_id: ActivationWitnessId
    public_key: bytes


def init(directory: Path, entropy: Callable[[int], bytes]) -> Identity:
    """Make a witness: its directory, signing key, id and empty state. Never overwrites anything."""
    safefile.ensure_private_dir(directory)
    with safefile.DirLock(directory, seconds=0) as lock:
        leftovers = [name for name in (KEY_FILE, DATABASE_FILE, HIGH_WATER_FILE) if (directory / name).exists()]
        if leftovers:
            raise WitnessStateError(f"{directory} holds {leftovers[0]} already; choose an empty directory")
        seed = ed25519.fresh_seed(entropy)
        key = ed25519.SigningKey(seed)
        witness_id = fresh_id(activation_witness_id, entropy)
        os.close(os.open(directory / DATABASE_FILE, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600))
        with contextlib.closing(_connect(directory, apsw.SQLITE_OPEN_READWRITE)) as database, _transaction(database):
            database.pragma("application_id", _APPLICATION_ID)
            database.pragma("user_version", SCHEMA_VERSION)
            database.execute(_SCHEMA)
            database.execute(
                "INSERT INTO witness VALUES (1, ?, ?, 0)", (witness_id, ed25519.fingerprint(key.public_key))
            )
        safefile.write_private(directory / HIGH_WATER_FILE, HighWater(witness_id, 0).encode(), lock=lock)
        # The key comes last: a directory with a key is complete.
        safefile.write_private(directory / KEY_FILE, seed, lock=lock, replace=False)
        seed.wipe()
    return Identity(witness_id, key.public_key)


class WitnessStore:
    """The open state directory. One process holds it at a time; after a failed commit it must be opened again."""

    def __init__(
        self,
        directory: Path,
        database: apsw.Connection,
        lock: safefile.DirLock,
        key: ed25519.SigningKey,
        level: HighWater,
        resources: contextlib.ExitStack,
        step: Callable[[str], None],
    ) -> None:
        self._directory = directory
        self._database = database
        self._lock = lock
        self._level = level
        self._resources = resources
        self._step = step
        self.key = key
        self.identity = Identity(level.witness_id, key.public_key)

    @classmethod
    def open(cls, directory: Path, *, step: Callable[[str], None] = _no_step) -> WitnessStore:
        """Lock, check and recover the state. Raises :exc:`WitnessStateError`; nothing is served then.

        ``step`` is told of every stage of a commit; tests kill the process there.
        """
        with contextlib.ExitStack() as stack:
            try:
                safefile.check_private_dir(directory)
                lock = stack.enter_context(safefile.DirLock(directory, seconds=0))
                seed = safefile.read_secret(directory / KEY_FILE, ed25519.SEED_BYTES)
                key = ed25519.SigningKey(seed)
                seed.wipe()
                database = _connect(directory, apsw.SQLITE_OPEN_READWRITE)
                stack.callback(database.close)
                _check_database(directory, database)
                level = _recover(directory, database, ed25519.fingerprint(key.public_key))
            except FileNotFoundError as error:
                raise WitnessStateError(
                    f"{error.filename} is missing; run: sidecar witness init --state-dir {directory}"
                ) from None
            except (safefile.UnsafeFile, ed25519.InvalidKey, OSError) as error:
                raise WitnessStateError(str(error)) from error
            except apsw.Error as error:
                raise WitnessStateError(f"{directory / DATABASE_FILE} cannot be used: {error}") from error
            return cls(directory, database, lock, key, level, stack.pop_all(), step)

    def load(self) -> list[Record]:
        """All records."""
        return _load(self._database)

    def commit(self, record: Record) -> None:
        """Make a record durable: high-water first, then the database.

        Any exception leaves the outcome open: close the store and open it again, which settles it.
        """
        level = HighWater(self._level.witness_id, self._level.generation + 1, record)
        self._step("begin")
        safefile.write_private(self._directory / HIGH_WATER_FILE, level.encode(), lock=self._lock, step=self._step)
        _apply(self._database, level, self._step)
        self._step("committed")
        self._level = level

    def close(self) -> None:
        """Give the directory free and forget the key. May be called twice."""
        self.key.wipe()
        self._resources.close()


def inspect(directory: Path) -> tuple[ActivationWitnessId, int, list[Record]]:
    """Witness id, number of commits and all records, read beside a running witness. Raises :exc:`WitnessStateError`."""
    try:
        safefile.check_private_dir(directory)
        with contextlib.closing(_connect(directory, apsw.SQLITE_OPEN_READONLY)) as database:
            _check_schema(directory, database)
            witness_id, _, generation = _identity_row(database)
            return witness_id, generation, _load(database)
    except FileNotFoundError:
        make = f"sidecar witness init --state-dir {directory}"
        raise WitnessStateError(f"there is no witness in {directory}; make one with: {make}") from None
    except safefile.UnsafeFile as error:
        raise WitnessStateError(str(error)) from error
    except apsw.Error as error:
        raise WitnessStateError(f"{directory / DATABASE_FILE} cannot be read: {error}") from error


def _connect(directory: Path, flags: int) -> apsw.Connection:
    path = directory / DATABASE_FILE
    os.stat(path, follow_symlinks=False)  # FileNotFoundError is clearer than SQLite's words
    database = apsw.Connection(str(path), flags=flags | apsw.SQLITE_OPEN_NOFOLLOW)
    database.set_busy_timeout(_BUSY_MILLISECONDS)
    if flags & apsw.SQLITE_OPEN_READWRITE:
        database.pragma("journal_mode", "wal")
        database.pragma("synchronous", "full")
    return database


def _check_schema(directory: Path, database: apsw.Connection) -> None:
    path = directory / DATABASE_FILE
    if database.pragma("application_id") != _APPLICATION_ID:
        raise WitnessStateError(f"{path} is not a witness database")
    version = database.pragma("user_version")
    if version != SCHEMA_VERSION:
        raise WitnessStateError(f"{path} has schema {version}, this program knows {SCHEMA_VERSION}; upgrade it")


def _check_database(directory: Path, database: apsw.Connection) -> None:
    _check_schema(directory, database)
    result = database.pragma("integrity_check")
    if result != "ok":
        raise WitnessStateError(f"{directory / DATABASE_FILE} is damaged: {str(result).splitlines()[0]}")


def _recover(directory: Path, database: apsw.Connection, key_id: bytes) -> HighWater:
    """Bring the database level with the high-water file, or refuse (P12-09)."""
    path = directory / HIGH_WATER_FILE
    try:
        level = HighWater.decode(safefile.read_private(path, highwater.MAX_BYTES))
    except FileNotFoundError:
        raise StateRolledBack(f"{path} is missing: the state's age cannot be told") from None
    except safefile.UnsafeFile:
        raise
    except ValueError as error:
        raise WitnessStateError(f"{path} {error}") from None
    witness_id, stored_key_id, generation = _identity_row(database)
    if witness_id != level.witness_id or stored_key_id != key_id:
        raise WitnessStateError(f"{directory} mixes files of different witnesses")
    if generation == level.generation - 1 and level.pending is not None:
        _apply(database, level, _no_step)
    elif generation != level.generation:
        older = DATABASE_FILE if generation < level.generation else HIGH_WATER_FILE
        raise StateRolledBack(
            f"{directory / older} is an older copy (commit {min(generation, level.generation)} of "
            f"{max(generation, level.generation)}); a witness must never be restored from a backup: put the current "
            "file back, or make a new witness and pin it at the coordinators once the last certificate has expired"
        )
    return level


def _identity_row(database: apsw.Connection) -> tuple[ActivationWitnessId, bytes, int]:
    row = database.execute("SELECT witness_id, witness_key_id, generation FROM witness").fetchone()
    if row is None:
        raise WitnessStateError("the witness database has no identity")
    return ActivationWitnessId(row[0]), row[1], row[2]


@contextlib.contextmanager
def _transaction(database: apsw.Connection) -> Iterator[None]:
    database.execute("BEGIN IMMEDIATE")
    try:
        yield
        database.execute("COMMIT")
    except BaseException:
        if database.in_transaction:
            database.execute("ROLLBACK")
        raise


def _apply(database: apsw.Connection, level: HighWater, step: Callable[[str], None]) -> None:
    assert level.pending is not None
    record, lease = level.pending, level.pending.lease
    with _transaction(database):
        database.execute(
            _UPSERT,
            (
                record.coordinator_id,
                record.client_key,
                record.epoch.to_bytes(8, "big"),
                record.activation_sequence.to_bytes(8, "big"),
                lease.incarnation_id,
                lease.token_sha256,
                lease.issued_at,
                lease.expires_at,
                lease.boot_id,
                lease.boot_deadline_ns,
                int(lease.spent),
            ),
        )
        database.execute("UPDATE witness SET generation = ?", (level.generation,))
        step("before commit")


def _load(database: apsw.Connection) -> list[Record]:
    return [
        Record(
            CoordinatorId(row[0]),
            row[1],
            AuthorityEpoch(int.from_bytes(row[2], "big")),
            ActivationSequence(int.from_bytes(row[3], "big")),
            Lease(IncarnationId(row[4]), row[5], row[6], row[7], row[8], row[9], bool(row[10])),
        )
        for row in database.execute("SELECT * FROM coordinator ORDER BY coordinator_id")
    ]
