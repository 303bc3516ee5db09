"""The registry file of a state directory: strict reads, locked changes, live snapshots (W2-18..W2-24)."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

from sidecar.base.ed25519 import digest_text
from sidecar.base.safefile import (
    DirLock,
    UnsafeFile,
    check_private_dir,
    ensure_private_dir,
    quoted,
    read_private,
    stat_signature,
    write_private,
)
from sidecar.coordinator.authority.grants import (
    EMPTY,
    REGISTRY_LIMIT,
    Grant,
    KeyRecord,
    Registry,
    RegistryMalformed,
    format_registry,
    parse_registry,
)

__all__ = [
    "EMPTY",
    "REGISTRY_LIMIT",
    "Grant",
    "KeyRecord",
    "Registry",
    "RegistryMalformed",
    "RegistryRefused",
    "RegistryWatcher",
    "add_key",
    "format_registry",
    "load_registry",
    "parse_registry",
    "revoke_key",
]

REGISTRY_NAME: Final = "workload-keys"


class RegistryRefused(ValueError):  # noqa: N818 - an answer, not a mishap
    """A change that the registry does not take; the message says what to do instead."""


def load_registry(state_dir: str | os.PathLike[str], *, generation: int = 1) -> Registry:
    """The snapshot in the file now. RegistryMalformed, :exc:`UnsafeFile` (also when the file is missing) or OSError."""
    path = Path(state_dir) / REGISTRY_NAME
    try:
        check_private_dir(state_dir)
        return _read(path, generation)
    except FileNotFoundError:
        enrol = f"sidecar workload add-key --state-dir {quoted(state_dir)}"
        raise UnsafeFile(path, f"does not exist; enrol a key with: {enrol}") from None


def _read(path: Path, generation: int = 1) -> Registry:
    data = read_private(path, REGISTRY_LIMIT)
    try:
        return parse_registry(data, generation=generation)
    except RegistryMalformed as error:
        raise RegistryMalformed(f"{path} admits nobody until it is repaired: {error}") from None


def add_key(
    state_dir: str | os.PathLike[str],
    public_key: bytes,
    scopes: int,
    expires_at: int,
    *,
    now: float,
    replace_existing: bool = False,
) -> KeyRecord:
    """Enrol a public key, or with ``replace_existing`` give an enrolled one another ceiling and expiry (W2-19, W9-12).

    ``scopes`` are bits, times Unix seconds. Raises InvalidKey, :exc:`RegistryRefused`, RegistryMalformed, UnsafeFile.
    """
    if not scopes:
        raise RegistryRefused("a key without any scope could never log in; name at least one scope")
    if expires_at <= now:
        raise RegistryRefused("the expiry lies in the past; choose a later one")
    record = KeyRecord.of(public_key, scopes, expires_at)
    ensure_private_dir(state_dir)
    with _change(state_dir) as (records, commit):
        known = records.get(record.key_id)
        if known is not None and known.revoked_at is not None:
            raise RegistryRefused(f"{digest_text(record.key_id)} was revoked for good; enrol a fresh key")
        if known is not None and not replace_existing:
            raise RegistryRefused(f"{digest_text(record.key_id)} is enrolled already; use --replace to change it")
        commit({**records, record.key_id: record})
    return record


def revoke_key(state_dir: str | os.PathLike[str], key_id: bytes, *, now: float) -> KeyRecord:
    """Revoke a key for good and return its record; a key that is revoked already keeps its time.

    Raises :exc:`RegistryRefused` for an unknown key, RegistryMalformed, UnsafeFile.
    """
    check_private_dir(state_dir)
    with _change(state_dir) as (records, commit):
        known = records.get(key_id)
        if known is None:
            raise RegistryRefused(f"{digest_text(key_id)} is not enrolled; see: sidecar workload list")
        if known.revoked_at is not None:
            return known
        revoked = replace(known, revoked_at=int(now))
        commit({**records, key_id: revoked})
    return revoked


@contextlib.contextmanager
def _change(
    state_dir: str | os.PathLike[str],
) -> Iterator[tuple[dict[bytes, KeyRecord], Callable[[dict[bytes, KeyRecord]], None]]]:
    """The records by key id and what writes them back, all under the directory's lock."""
    path = Path(state_dir) / REGISTRY_NAME
    check_private_dir(state_dir)
    with DirLock(state_dir) as lock:
        records: dict[bytes, KeyRecord] = {}
        with contextlib.suppress(FileNotFoundError):
            records = {record.key_id: record for record in _read(path).records}

        def commit(changed: dict[bytes, KeyRecord]) -> None:
            document = format_registry(changed.values())
            if len(document) > REGISTRY_LIMIT:
                raise RegistryRefused(f"the registry would be longer than {REGISTRY_LIMIT} bytes")
            write_private(path, document, lock=lock)

        yield records, commit


class RegistryWatcher:
    """Follows the registry file by its stat signature (W2-22, W2-23). Has no thread: call :meth:`poll`.

    A file that is missing, unsafe, malformed or unstable counts as :data:`EMPTY`, never as its last good content.
    """

    def __init__(self, state_dir: str | os.PathLike[str]) -> None:
        """Load strictly, raising what :func:`load_registry` raises: no server starts without a registry (W9-05)."""
        self._state_dir = state_dir
        self._generation = 1
        self._seen = self._signature()
        self.current = load_registry(state_dir, generation=self._generation)
        self.fault: str | None = None

    def poll(self) -> Registry | None:
        """The new snapshot when it changed since the last call, else None; ``fault`` says why it is empty."""
        seen = self._signature()
        if seen == self._seen:
            return None
        before, self.current = self.current, EMPTY
        self._seen = seen
        self._generation += 1
        try:
            self.current = load_registry(self._state_dir, generation=self._generation)
            self.fault = None
        except RegistryMalformed as error:
            self.fault = str(error)
        except Exception as error:  # whatever it was, nobody may go on with the content from before
            self.fault = str(error) or type(error).__name__
            self._seen = None  # may pass without a trace in the signature: look again next time
        return None if self.current is before else self.current

    def _signature(self) -> tuple[tuple[int, ...] | None, tuple[int, ...] | None] | None:
        try:
            directory = stat_signature(self._state_dir)
            # Only what safety depends on: the times of the directory change with every write in it.
            safety = None if directory is None else (directory[0], directory[1], directory[3], directory[4])
            return safety, stat_signature(Path(self._state_dir) / REGISTRY_NAME)
        except OSError:
            return None
