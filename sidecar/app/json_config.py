"""Configuration files of one JSON object, read strictly: a member that is not known is refused.

Relative paths start at the directory of the file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from sidecar.app.spaces import check_url
from sidecar.base.strictjson import JsonError, JsonValue, parse
from sidecar.ops.config import Address, ConfigError, LogSection, choice, integer, loopback, optional_path
from sidecar.ops.config import path as path_of
from sidecar.rails.names.tokens import GRAMMARS

MAX_BYTES: Final = 1 << 20
FREE: Final = Address("127.0.0.1", 0)


def read_json(file: Path) -> tuple[JsonValue, Reader]:
    """The value of the file, and what reads its members. Raises ConfigError."""
    try:
        with file.open("rb") as stream:
            data = stream.read(MAX_BYTES + 1)
    except OSError as error:
        raise ConfigError(str(file), "", f"cannot be read: {error.strerror}") from None
    try:
        value = parse(data, limit=MAX_BYTES)
    except JsonError as error:
        raise ConfigError(str(file), "", f"is no JSON: {error}") from None
    return value, Reader(str(file), file.absolute().parent)


@dataclass(frozen=True, slots=True)
class Where:
    """A space: the directory with its keys, its name, and where its broker is."""

    root: Path
    space: str
    url: str


@dataclass(frozen=True, slots=True)
class Reader:
    """Where the values come from."""

    name: str
    base: Path

    def refuse(self, key: str, problem: str) -> ConfigError:
        """The error to raise about a key."""
        return ConfigError(self.name, key, problem)

    def members(self, value: JsonValue, key: str, *known: str) -> Mapping[str, Any]:
        """The members of an object that has no others than these. Raises ConfigError."""
        if not isinstance(value, Mapping):
            raise self.refuse(key, "must be an object")
        for name in value:
            if name not in known:
                raise self.refuse(f"{key}.{name}" if key else name, f"unknown key; known here: {', '.join(known)}")
        return value

    def converted(self, value: object, key: str, convert: Any) -> Any:
        """The value as ``convert`` reads it. Raises ConfigError."""
        try:
            return convert(value, self.base)
        except ValueError as error:
            raise self.refuse(key, str(error)) from None

    def text(self, table: Mapping[str, Any], key: str, name: str) -> str:
        """A member that must be there, a string. Raises ConfigError."""
        if not isinstance(table.get(name), str):
            raise self.refuse(f"{key}.{name}" if key else name, "this key is required, a string")
        return str(table[name])

    def where(self, table: Mapping[str, Any], key: str = "") -> Where:
        """``space``, ``url`` and ``root`` of a table, all of them required. Raises ConfigError."""
        named = {name: self.text(table, key, name) for name in ("space", "url", "root")}
        at = f"{key}." if key else ""
        if not GRAMMARS["space"].accepts(named["space"]):
            raise self.refuse(f"{at}space", "is no name of a space")
        url = self.converted(named["url"], f"{at}url", lambda text, _: check_url(text))
        return Where(self.converted(named["root"], f"{at}root", path_of), named["space"], url)

    def seconds(self, table: Mapping[str, Any], name: str, default: int, least: int, most: int) -> int:
        """A number of seconds within bounds."""
        found: int = self.converted(table.get(name, default), name, integer(least, most))
        return found

    def metrics(self, table: Mapping[str, Any]) -> Address:
        """``metrics``: where metrics and health are served; a free port of loopback by default."""
        found: Address = self.converted(table.get("metrics", f"{FREE.host}:{FREE.port}"), "metrics", loopback)
        return found

    def log(self, table: Mapping[str, Any]) -> LogSection:
        """``log``: level, format and file."""
        inner = self.members(table.get("log", {}), "log", "level", "format", "file")
        return LogSection(
            self.converted(inner.get("level", "info"), "log.level", choice("debug", "info", "warning", "error")),
            self.converted(inner.get("format", "json"), "log.format", choice("json", "console")),
            self.converted(inner.get("file", ""), "log.file", optional_path),
        )
