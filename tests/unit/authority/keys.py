"""Keys, records and documents for the tests of the registry."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from sidecar.base.ed25519 import SigningKey, digest_text, fingerprint
from sidecar.base.secret import Secret
from sidecar.coordinator.authority.registry import REGISTRY_NAME, KeyRecord, Registry, add_key
from sidecar.coordinator.wire.enums import Scope

NOW = 1_900_000_000.0
LATER = int(NOW) + 1000
KEYS = [SigningKey(Secret(bytes([number]) * 32)).public_key for number in range(1, 12)]
IDS = [fingerprint(key) for key in KEYS]
SMALL_KEY = bytes(32)
OFF_CURVE = (2).to_bytes(32, "little")
BOTH = int(Scope.WORK_READ | Scope.WORK_COMMAND)


def entry(number: int = 0, **changes: object) -> dict[str, Any]:
    """One valid member of "keys", with changes; a change to ``...`` leaves the member out."""
    members: dict[str, Any] = {
        "public_key": KEYS[number].hex(),
        "key_id": digest_text(IDS[number]),
        "service": "phux-coordinator",
        "scopes": 3,
        "expires_at": LATER,
        "revoked_at": None,
    }
    members.update(changes)
    return {name: value for name, value in members.items() if value is not ...}


def document(*entries: object, version: object = 1) -> bytes:
    return json.dumps({"version": version, "keys": list(entries)}).encode()


def enrol(state: Path, number: int = 0, scopes: int = BOTH, expires_at: int = LATER, **options: Any) -> KeyRecord:
    return add_key(state, KEYS[number], scopes, expires_at, now=NOW, **options)


def put(state: Path, data: bytes) -> None:
    """Replace the file as an editor would, without the product's help."""
    fresh = state / "fresh"
    fresh.write_bytes(data)
    fresh.chmod(0o600)
    fresh.rename(state / REGISTRY_NAME)


SMALL_ORDER_ENTRY = entry(public_key=SMALL_KEY.hex(), key_id=digest_text(fingerprint(SMALL_KEY)))

RECORD = KeyRecord.of(KEYS[0], BOTH, LATER)

RECORDS = st.builds(
    lambda number, scopes, expires_at, revoked_at: KeyRecord.of(
        KEYS[number], scopes, expires_at, revoked_at=revoked_at
    ),
    st.integers(0, len(KEYS) - 1),
    st.integers(0, 63),
    st.integers(0, 2**64 - 1),
    st.none() | st.integers(0, 2**64 - 1),
)


def registry(*records: KeyRecord) -> Registry:
    return Registry(records, generation=7)
