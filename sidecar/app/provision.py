"""What ``sidecar dev`` makes once: authority key, witness, workload keys and the configuration of each process.

Every step looks at what is there first, so that a run that was killed half-way is completed by the next one.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sidecar.app.layout import Layout
from sidecar.base.ed25519 import SigningKey, digest_text, fingerprint
from sidecar.base.keysource import create_seed_file, load_seed_file
from sidecar.base.safefile import write_private
from sidecar.coordinator.authority.keyfile import KEY_NAME, init_authority_key, load_authority_key
from sidecar.coordinator.authority.registry import REGISTRY_NAME, add_key, load_registry
from sidecar.coordinator.wire.enums import Scope
from sidecar.witness import store as witness_store

_YEAR = 366 * 86_400
ALL_SCOPES = int(sum(Scope))
# Name -> (scope ceiling, life in seconds from now; None = long expired).
WORKLOADS: dict[str, tuple[int, int | None]] = {
    "admin": (ALL_SCOPES, _YEAR),
    "operator": (ALL_SCOPES & ~int(Scope.ADMIN), _YEAR),
    "reader": (int(Scope.WORK_READ), _YEAR),
    "commander": (int(Scope.WORK_COMMAND), _YEAR),
    "expired": (int(Scope.WORK_READ | Scope.WORK_COMMAND), None),
}
_LONG_AGO = 1


@dataclass(frozen=True, slots=True)
class Provisioned:
    """What the ready line says of the parts, and the configuration files to start them with."""

    witness_id: bytes
    witness_public_key: bytes
    workloads: dict[str, dict[str, Any]]
    witness_config: Path
    serve_config: Path


def provision(layout: Layout, *, certificate_seconds: int, entropy: Callable[[int], bytes] = os.urandom) -> Provisioned:
    """Makes what is missing in the directories of ``layout`` and writes the configuration files.

    Raises UnsafeFile, WitnessStateError, RegistryMalformed and OSError.
    """
    if not (layout.authority / KEY_NAME).exists():
        init_authority_key(layout.authority, entropy)
    load_authority_key(layout.authority)
    witness_client = _seed(layout.keys / "witness-client.ed25519", entropy)
    witness_id, witness_key = _witness(layout.witness, entropy)
    workloads = {name: _workload(layout, name, entropy) for name in WORKLOADS}
    witness_config = layout.conf / "witness.toml"
    _write_toml(
        witness_config,
        {
            "witness": {
                "state_dir": str(layout.witness),
                "socket": str(layout.run / "witness.sock"),
                "clients": [witness_client.public_key.hex()],
                "certificate_seconds": certificate_seconds,
            }
        },
    )
    serve_config = layout.conf / "serve.toml"
    _write_toml(
        serve_config,
        {
            "coordinator": {
                "mode": "paired",
                "state_dir": str(layout.authority),
                "store_dir": str(layout.store),
                "socket": str(layout.run / "coordinator.sock"),
            },
            "witness": {
                "socket": str(layout.run / "witness.sock"),
                "witness_id": witness_id.hex(),
                "public_key": witness_key.hex(),
                "client_key_file": str(layout.keys / "witness-client.ed25519"),
            },
        },
    )
    return Provisioned(witness_id, witness_key, workloads, witness_config, serve_config)


def keep_metrics_address(serve_config: Path, address: str) -> None:
    """Completes the configuration with the address that the first start took, so that a restart listens there too."""
    write_private(serve_config, serve_config.read_bytes() + f'[metrics]\nlisten = "{address}"\n'.encode())


def _seed(path: Path, entropy: Callable[[int], bytes]) -> SigningKey:
    return load_seed_file(path) if path.exists() else create_seed_file(path, entropy)


def _witness(directory: Path, entropy: Callable[[int], bytes]) -> tuple[bytes, bytes]:
    key_file = directory / witness_store.KEY_FILE
    if not key_file.exists():
        # The key is written last: without it nothing was ever granted, and the rest is a start that was cut off.
        for name in (witness_store.DATABASE_FILE, witness_store.HIGH_WATER_FILE):
            (directory / name).unlink(missing_ok=True)
        identity = witness_store.init(directory, entropy)
        return identity.witness_id, identity.public_key
    witness_id, _, _ = witness_store.inspect(directory)
    return witness_id, load_seed_file(key_file).public_key


def _workload(layout: Layout, name: str, entropy: Callable[[int], bytes]) -> dict[str, Any]:
    scopes, life = WORKLOADS[name]
    path = layout.keys / f"{name}.ed25519"
    key = _seed(path, entropy)
    key_id = fingerprint(key.public_key)
    now = time.time()
    enrolled = (layout.authority / REGISTRY_NAME).exists() and load_registry(layout.authority).lookup(key_id)
    if not enrolled:
        expires_at = int(now) + life if life is not None else _LONG_AGO
        # An expired record is what the `expired` example is for; the clock argument lets exactly this one pass.
        add_key(layout.authority, key.public_key, scopes, expires_at, now=now if life is not None else 0)
    return {"key_file": str(path), "scopes": scopes, "key_id": digest_text(key_id)}


def _write_toml(path: Path, sections: dict[str, dict[str, Any]]) -> None:
    lines = ["# Written by `sidecar dev` at every start; `sidecar config example` explains every key."]
    for section, keys in sections.items():
        # JSON strings, numbers and lists of strings are TOML values too.
        lines += [f"[{section}]", *(f"{key} = {json.dumps(value)}" for key, value in keys.items())]
    write_private(path, ("\n".join(lines) + "\n").encode())
