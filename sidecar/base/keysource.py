"""Where private keys come from: an owner-only file, an inherited descriptor, or the system's credential store (W9-14).

A source is named by text that is safe on a command line or in a variable, because it only points at the key (W9-15,
W9-16): ``PATH`` or ``file:PATH``, ``fd:N``, ``credential:NAME``. Key bytes themselves are never accepted as text.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from sidecar.base.ed25519 import SEED_BYTES, SigningKey, fresh_seed
from sidecar.base.safefile import DirLock, UnsafeFile, read_secret, write_private
from sidecar.base.secret import Secret

CREDENTIALS_VARIABLE: Final = "CREDENTIALS_DIRECTORY"
"""Set by the service manager: the directory with the credentials of this service (systemd's LoadCredential)."""

_SIZE_REASON: Final = f"does not hold exactly the {SEED_BYTES} bytes of an Ed25519 seed"


def load_signing_key(source: str, environ: Mapping[str, str] = os.environ) -> SigningKey:
    """The key that ``source`` names. Raises :exc:`UnsafeFile` or OSError with a text that never shows key bytes."""
    kind, separator, name = source.partition(":")
    if separator and kind == "fd":
        if not (name.isascii() and name.isdigit()):
            raise UnsafeFile(source, "is not a descriptor; write fd:N with the number of an inherited descriptor")
        return load_seed_descriptor(int(name))
    if separator and kind == "credential":
        return _load_credential(name, environ)
    return load_seed_file(name if separator and kind == "file" else source)


def load_seed_file(path: str | os.PathLike[str]) -> SigningKey:
    """The key of an owner-only file with exactly 32 raw bytes (W2-10, W2-12)."""
    return _key_of(path, read_secret(path, SEED_BYTES))


def load_seed_descriptor(descriptor: int) -> SigningKey:
    """The key that an inherited descriptor (a pipe, an open file) delivers: exactly 32 bytes, then end of file.

    The descriptor is closed, so that no later child inherits it.
    """
    name = f"fd:{descriptor}"
    try:
        os.set_inheritable(descriptor, False)
        try:
            seed = _read_seed(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise UnsafeFile(name, f"cannot be read: {error.strerror}") from None
    return _key_of(name, seed)


def create_seed_file(
    path: str | os.PathLike[str], entropy: Callable[[int], bytes], *, lock: DirLock | None = None
) -> SigningKey:
    """Write a fresh seed as a new owner-only file; FileExistsError when there is one already (W2-13, W2-16, W9-11).

    The public key is derived and checked strictly before anything is written (W2-17).
    """
    seed = fresh_seed(entropy)
    key = SigningKey(seed)
    write_private(path, seed, lock=lock, replace=False)
    seed.wipe()
    return key


def _load_credential(name: str, environ: Mapping[str, str]) -> SigningKey:
    directory = environ.get(CREDENTIALS_VARIABLE)
    if not directory:
        raise UnsafeFile(f"credential:{name}", f"needs {CREDENTIALS_VARIABLE}, which the service manager sets")
    if name in ("", ".", "..") or "/" in name:
        raise UnsafeFile(f"credential:{name}", "is not the plain name of a credential")
    path = Path(directory) / name
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    try:
        info = os.fstat(descriptor)
        # The manager owns the file (root) or gives it to the service; an access list shows up as group read.
        if not stat.S_ISREG(info.st_mode) or info.st_uid not in (0, os.geteuid()) or info.st_mode & 0o037:
            raise UnsafeFile(path, "is not a credential that only this service can read")
        seed = _read_seed(descriptor)
    finally:
        os.close(descriptor)
    return _key_of(path, seed)


def _read_seed(descriptor: int) -> Secret:
    # One byte more than a seed, so that a longer source is noticed.
    data = bytearray(SEED_BYTES + 1)
    view = memoryview(data)
    filled = 0
    while filled < len(data) and (got := os.readv(descriptor, [view[filled:]])):
        filled += got
    view.release()
    del data[filled:]
    return Secret.adopt(data)


def _key_of(path: str | os.PathLike[str], seed: Secret) -> SigningKey:
    try:
        if len(seed) != SEED_BYTES:
            raise UnsafeFile(path, _SIZE_REASON)
        return SigningKey(seed)
    finally:
        seed.wipe()
