"""The configuration of `sidecar delivery --config FILE`: one JSON object, read strictly.

    {
      "lanes": [{"space": "main", "url": "nats://127.0.0.1:4222", "root": "DIR", "form": "mediated"}],
      "credentialSeconds": 1800,
      "metrics": "127.0.0.1:0",
      "log": {"level": "info", "format": "json", "file": ""}
    }

Only ``lanes`` is required, and of a lane ``form`` is not: it is a check of what the space is. Relative paths start at
the directory of the file. A member that is not listed here is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from sidecar.app.spaces import check_url
from sidecar.base.strictjson import JsonError, JsonValue, parse
from sidecar.ops.config import DEFAULT_LOG, Address, ConfigError, LogSection, choice, integer, loopback, optional_path
from sidecar.ops.config import path as path_of
from sidecar.rails.names.tokens import GRAMMARS
from sidecar.rails.space.holder import Form

MAX_BYTES: Final = 1 << 20
MAX_LANES: Final = 64
SHORTEST_SECONDS: Final = 10
LONGEST_SECONDS: Final = 3_600
DEFAULT_SECONDS: Final = 1_800
_FREE: Final = Address("127.0.0.1", 0)


@dataclass(frozen=True, slots=True)
class LaneConfig:
    """One space that is served: where its broker is and where its keys are. ``form`` None takes what the space is."""

    space: str
    url: str
    root: Path
    form: Form | None = None


@dataclass(frozen=True, slots=True)
class DeliveryConfig:
    """All of the file. ``credential_seconds`` is the life of each credential; fresh ones are made ahead of its end."""

    lanes: tuple[LaneConfig, ...]
    credential_seconds: int = DEFAULT_SECONDS
    metrics: Address = _FREE
    log: LogSection = DEFAULT_LOG


def load(file: Path) -> DeliveryConfig:
    """Read the file. Raises ConfigError."""
    try:
        with file.open("rb") as stream:
            data = stream.read(MAX_BYTES + 1)
    except OSError as error:
        raise ConfigError(str(file), "", f"cannot be read: {error.strerror}") from None
    try:
        value = parse(data, limit=MAX_BYTES)
    except JsonError as error:
        raise ConfigError(str(file), "", f"is no JSON: {error}") from None
    return _read(value, _Source(str(file), file.absolute().parent))


@dataclass(frozen=True, slots=True)
class _Source:
    """Where the values come from."""

    name: str
    base: Path

    def refuse(self, key: str, problem: str) -> ConfigError:
        return ConfigError(self.name, key, problem)

    def members(self, value: JsonValue, key: str, *known: str) -> Mapping[str, Any]:
        if not isinstance(value, Mapping):
            raise self.refuse(key, "must be an object")
        for name in value:
            if name not in known:
                raise self.refuse(f"{key}.{name}" if key else name, f"unknown key; known here: {', '.join(known)}")
        return value

    def converted(self, value: object, key: str, convert: Any) -> Any:
        try:
            return convert(value, self.base)
        except ValueError as error:
            raise self.refuse(key, str(error)) from None


def _read(value: JsonValue, source: _Source) -> DeliveryConfig:
    table = source.members(value, "", "lanes", "credentialSeconds", "metrics", "log")
    listed = table.get("lanes")
    if not isinstance(listed, list) or not 1 <= len(listed) <= MAX_LANES:
        raise source.refuse("lanes", f"must be a list of 1 to {MAX_LANES} lanes")
    lanes = tuple(_lane(one, f"lanes[{at}]", source) for at, one in enumerate(listed))
    if len({(lane.root, lane.space) for lane in lanes}) < len(lanes):
        raise source.refuse("lanes", "one space stands in it twice")
    seconds = table.get("credentialSeconds", DEFAULT_SECONDS)
    return DeliveryConfig(
        lanes,
        source.converted(seconds, "credentialSeconds", integer(SHORTEST_SECONDS, LONGEST_SECONDS)),
        source.converted(table.get("metrics", f"{_FREE.host}:{_FREE.port}"), "metrics", loopback),
        _log(table.get("log", {}), source),
    )


def _lane(value: JsonValue, key: str, source: _Source) -> LaneConfig:
    table = source.members(value, key, "space", "url", "root", "form")
    for name in ("space", "url", "root"):
        if not isinstance(table.get(name), str):
            raise source.refuse(f"{key}.{name}", "this key is required, a string")
    if not GRAMMARS["space"].accepts(table["space"]):
        raise source.refuse(f"{key}.space", "is no name of a space")
    form = table.get("form")
    return LaneConfig(
        table["space"],
        source.converted(table["url"], f"{key}.url", lambda text, _: check_url(text)),
        source.converted(table["root"], f"{key}.root", path_of),
        None if form is None else Form(source.converted(form, f"{key}.form", choice(*(one.value for one in Form)))),
    )


def _log(value: JsonValue, source: _Source) -> LogSection:
    table = source.members(value, "log", "level", "format", "file")
    return LogSection(
        source.converted(table.get("level", "info"), "log.level", choice("debug", "info", "warning", "error")),
        source.converted(table.get("format", "json"), "log.format", choice("json", "console")),
        source.converted(table.get("file", ""), "log.file", optional_path),
    )
