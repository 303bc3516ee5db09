"""The authority's secret key in the state directory (W2-10..W2-17). Its fingerprint is what clients pin."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

from sidecar.base.ed25519 import SigningKey
from sidecar.base.keysource import create_seed_file, load_seed_file
from sidecar.base.safefile import DirLock, UnsafeFile, check_private_dir, ensure_private_dir, quoted

KEY_NAME: Final = "workload-authority.ed25519"


def load_authority_key(state_dir: str | os.PathLike[str]) -> SigningKey:
    """The key of an owner-only state directory; :exc:`UnsafeFile` when missing or unsafe. Never creates one (W2-14)."""
    path = Path(state_dir) / KEY_NAME
    try:
        check_private_dir(state_dir)
        return load_seed_file(path)
    except FileNotFoundError:
        make = f"sidecar workload authority --init --state-dir {quoted(state_dir)}"
        raise UnsafeFile(path, f"does not exist; make it once with: {make}") from None


def init_authority_key(state_dir: str | os.PathLike[str], entropy: Callable[[int], bytes]) -> SigningKey:
    """Create the key, and the state directory when it is missing; the only path that does (W9-10).

    An existing key is never overwritten (W9-11): :exc:`UnsafeFile`.
    """
    ensure_private_dir(state_dir)
    path = Path(state_dir) / KEY_NAME
    try:
        with DirLock(state_dir) as lock:
            return create_seed_file(path, entropy, lock=lock)
    except FileExistsError:
        raise UnsafeFile(
            path, "exists already and stays; replacing it would be a new authority that pinned clients refuse"
        ) from None
