"""The configuration of `sidecar registry --config FILE`: one JSON object, read strictly.

    {
      "lanes": [{"space": "main", "url": "nats://127.0.0.1:4222", "root": "DIR"}],
      "credentialSeconds": 1800,
      "metrics": "127.0.0.1:0",
      "log": {"level": "info", "format": "json", "file": ""}
    }

Only ``lanes`` is required. Relative paths start at the directory of the file. A member that is not listed here is
refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sidecar.app.json_config import FREE, Reader, Where, read_json
from sidecar.base.strictjson import JsonValue
from sidecar.ops.config import DEFAULT_LOG, Address, LogSection

MAX_LANES: Final = 64
SHORTEST_SECONDS: Final = 10
LONGEST_SECONDS: Final = 3_600
DEFAULT_SECONDS: Final = 1_800


@dataclass(frozen=True, slots=True)
class RegistryConfig:
    """All of the file. ``credential_seconds`` is the life of each credential; fresh ones are made ahead of its end."""

    lanes: tuple[Where, ...]
    credential_seconds: int = DEFAULT_SECONDS
    metrics: Address = FREE
    log: LogSection = DEFAULT_LOG


def load(file: Path) -> RegistryConfig:
    """Read the file. Raises ConfigError."""
    return _read(*read_json(file))


def _read(value: JsonValue, reader: Reader) -> RegistryConfig:
    table = reader.members(value, "", "lanes", "credentialSeconds", "metrics", "log")
    listed = table.get("lanes")
    if not isinstance(listed, list) or not 1 <= len(listed) <= MAX_LANES:
        raise reader.refuse("lanes", f"must be a list of 1 to {MAX_LANES} lanes")
    lanes = []
    for at, one in enumerate(listed):
        key = f"lanes[{at}]"
        lanes.append(reader.where(reader.members(one, key, "space", "url", "root"), key))
    if len({(lane.root, lane.space) for lane in lanes}) < len(lanes):
        raise reader.refuse("lanes", "one space stands in it twice")
    seconds = reader.seconds(table, "credentialSeconds", DEFAULT_SECONDS, SHORTEST_SECONDS, LONGEST_SECONDS)
    return RegistryConfig(tuple(lanes), seconds, reader.metrics(table), reader.log(table))
