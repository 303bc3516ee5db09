"""The witness's configuration file, read strictly by the one reader of configuration files."""

import dataclasses
from pathlib import Path
from typing import Annotated, Final

from sidecar.base import ed25519
from sidecar.ops import config
from sidecar.ops.config import Key, LogSection

MAX_SOCKET_PATH_BYTES: Final = 107
"""What fits into a Unix socket address besides its closing NUL."""


def socket_path(value: object, base: Path) -> Path:
    """A path that fits into a Unix socket address."""
    path = config.path(value, base)
    if len(str(path).encode()) > MAX_SOCKET_PATH_BYTES:
        raise ValueError(f"is longer than the {MAX_SOCKET_PATH_BYTES} bytes of a socket address: {path}")
    return path


def public_keys(value: object, base: Path) -> frozenset[bytes]:
    """A list of Ed25519 public keys in hexadecimal, at least one."""
    if not isinstance(value, list) or not value:
        raise ValueError("must be a list of at least one public key")
    keys = frozenset(config.hex_bytes(ed25519.PUBLIC_KEY_BYTES)(item, base) for item in value)
    for public_key in keys:
        ed25519.check_public_key(public_key)
    return keys


@dataclasses.dataclass(frozen=True, slots=True)
class WitnessSettings:
    """Keep the witness on another volume than the coordinators' stores, and out of their backups (P12-02)."""

    state_dir: Annotated[
        Path,
        Key(
            config.path,
            "Directory (0700) of the signing key and the monotonic state. Make it with `sidecar witness init`.\n"
            "Never restore it from a backup: a database that is older than its high-water file is refused.",
            '"witness/state"',
        ),
    ]
    socket: Annotated[
        Path,
        Key(
            socket_path,
            "Unix socket of the witness. It is created 0600; its directory must be, or is created, 0700.",
            '"run/witness.sock"',
        ),
    ]
    clients: Annotated[
        frozenset[bytes],
        Key(
            public_keys,
            "Public keys that may ask, one for each coordinator; `sidecar workload keygen FILE` makes one.\n"
            "A coordinator belongs to the key that activated it first.",
            f'["{"d7" * 32}"]',
        ),
    ]
    certificate_seconds: Annotated[
        int,
        Key(
            config.integer(2, 60),
            "Life of a certificate. A coordinator renews at half of it; after kill -9 the next one waits for the rest.",
        ),
    ] = 60
    request_milliseconds: Annotated[
        int, Key(config.integer(10, 60_000), "A connection that has not sent its whole request by then is dropped.")
    ] = 2_000
    max_connections: Annotated[
        int,
        Key(config.integer(1, 1024), "Open connections at most; one more drops the one that kept silent longest."),
    ] = 64


@dataclasses.dataclass(frozen=True, slots=True)
class WitnessConfig:
    """`sidecar witness serve --config FILE`: one activation witness."""

    witness: WitnessSettings
    log: LogSection = LogSection()  # noqa: RUF009 - it is frozen


EXAMPLE: Final = config.example(WitnessConfig)
"""A complete configuration file with every key explained."""
