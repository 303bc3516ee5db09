"""The configuration of `sidecar bridge --config FILE`: one JSON object, read strictly.

    {
      "space": "main", "url": "nats://127.0.0.1:4222", "root": "DIR", "owner": "OWNER",
      "coordinator": {
        "socket": "run/coordinator.sock", "key": "file:keys/operator.ed25519", "pins": "bridge/pins.json",
        "witnessId": "HEX", "witnessPublicKey": "HEX", "authority": "sha256:HEX", "artifacts": false
      },
      "metrics": "127.0.0.1:0",
      "log": {"level": "info", "format": "json", "file": ""}
    }

``owner`` owns the domain of the endpoint. ``key`` is the key whose operations can be looked up; it logs in for reading
alone. The witness is needed until the authority is pinned. ``artifacts`` shows manifests and evidence too, to which the
key needs a right of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sidecar.app.json_config import FREE, Reader, Where, read_json
from sidecar.base.ed25519 import parse_digest_text
from sidecar.base.strictjson import JsonValue
from sidecar.coordinator.authority.certificate import WitnessPin
from sidecar.ops.config import DEFAULT_LOG, Address, LogSection, boolean, hex_bytes
from sidecar.ops.config import path as path_of
from sidecar.rails.names import InvalidName
from sidecar.rails.names.tokens import GRAMMARS


@dataclass(frozen=True, slots=True)
class CoordinatorSection:
    """Which coordinator, with whose key. ``authority`` is the only fingerprint to accept."""

    socket: Path
    key: str
    pins: Path
    witness: WitnessPin | None = None
    authority: bytes | None = None
    artifacts: bool = False


@dataclass(frozen=True, slots=True)
class BridgeConfig:
    """All of the file."""

    where: Where
    owner: str
    coordinator: CoordinatorSection
    metrics: Address = FREE
    log: LogSection = DEFAULT_LOG


def load(file: Path) -> BridgeConfig:
    """Read the file. Raises ConfigError."""
    return _read(*read_json(file))


def _read(value: JsonValue, reader: Reader) -> BridgeConfig:
    table = reader.members(value, "", "space", "url", "root", "owner", "coordinator", "metrics", "log")
    where = reader.where(table)
    owner = reader.text(table, "", "owner")
    try:
        GRAMMARS["owner"].check(owner)
    except InvalidName as error:
        raise reader.refuse("owner", error.reason) from None
    coordinator = _coordinator(table.get("coordinator"), reader)
    return BridgeConfig(where, owner, coordinator, reader.metrics(table), reader.log(table))


def _coordinator(value: JsonValue, reader: Reader) -> CoordinatorSection:
    key = "coordinator"
    known = ("socket", "key", "pins", "witnessId", "witnessPublicKey", "authority", "artifacts")
    table = reader.members(value, key, *known)
    socket, source, pins = (reader.text(table, key, name) for name in ("socket", "key", "pins"))
    authority = table.get("authority")
    return CoordinatorSection(
        reader.converted(socket, f"{key}.socket", path_of),
        _key_source(source, reader),
        reader.converted(pins, f"{key}.pins", path_of),
        _witness(table, reader),
        None if authority is None else reader.converted(authority, f"{key}.authority", _fingerprint),
        reader.converted(table.get("artifacts", False), f"{key}.artifacts", boolean),
    )


def _key_source(source: str, reader: Reader) -> str:
    """A file is found from the directory of the configuration, as every other path."""
    kind, separator, name = source.partition(":")
    if separator and kind in ("fd", "credential"):
        return source
    return f"file:{reader.converted(name if kind == 'file' and separator else source, 'coordinator.key', path_of)}"


def _witness(table: Mapping[str, Any], reader: Reader) -> WitnessPin | None:
    names = ("witnessId", "witnessPublicKey")
    if not any(name in table for name in names):
        return None
    identity, public = (
        reader.converted(table.get(name), f"coordinator.{name}", hex_bytes(size))
        for name, size in zip(names, (16, 32), strict=True)
    )
    try:
        return WitnessPin(identity, public)
    except ValueError as error:
        raise reader.refuse("coordinator.witnessPublicKey", str(error)) from None


def _fingerprint(value: object, _base: Path) -> bytes:
    if not isinstance(value, str):
        raise ValueError("must be sha256: and 64 lowercase hexadecimal digits")
    return parse_digest_text(value)
