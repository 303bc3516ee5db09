"""Configuration files: TOML read strictly into dataclasses.

A configuration is a frozen dataclass of sections, a section a frozen dataclass of keys (`Annotated[type, Key(...)]`).
That is the one table: parsing, refusals and the example are derived from it. A key that is not in the table is
refused, so that a misspelt or unsupported setting (another transport, another policy mode) can never be taken for a
working one (rows W9-01, W9-02, P2-08, P2-09).
"""

import dataclasses
import ipaddress
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar, get_type_hints

MODEL = TypeVar("MODEL")
T = TypeVar("T")


class ConfigError(ValueError):
    """A configuration file that cannot be used; the text is `file:key: what is wrong`."""

    def __init__(self, source: str, key: str, problem: str) -> None:
        super().__init__(f"{source}:{key}: {problem}" if key else f"{source}: {problem}")
        self.source = source
        self.key = key
        self.problem = problem


Convert = Callable[[object, Path], T]
"""Turns one TOML value into a setting. The path is the directory of the file. Raises ValueError with a short reason."""


@dataclasses.dataclass(frozen=True, slots=True)
class Key:
    """One key of a section, as annotation of its field: how it is read and what it means.

    A field without a default is a required key. `example` is the TOML text that the commented example shows for it.
    """

    convert: Convert[object]
    help: str
    example: str = ""


# ---- conversions ----


def path(value: object, base: Path) -> Path:
    """A file system path; a relative one starts at the directory of the configuration file."""
    if not isinstance(value, str) or not value or "\0" in value:
        raise ValueError("must be a path")
    return (base / value).absolute()


def optional_path(value: object, base: Path) -> Path | None:
    """A path, or the empty string for none."""
    return None if value == "" else path(value, base)


def choice(*allowed: str) -> Convert[str]:
    """One of a closed set of words."""

    def convert(value: object, _base: Path) -> str:
        if not isinstance(value, str) or value not in allowed:
            words = " or ".join(f'"{word}"' for word in allowed)
            raise ValueError(f'"{value}" is refused, only {words}' if isinstance(value, str) else f"must be {words}")
        return value

    return convert


def integer(low: int, high: int) -> Convert[int]:
    """A whole number within inclusive bounds."""

    def convert(value: object, _base: Path) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise ValueError(f"must be a whole number from {low} to {high}")
        return value

    return convert


def boolean(value: object, _base: Path) -> bool:
    """`true` or `false`."""
    if not isinstance(value, bool):
        raise ValueError("must be true or false")
    return value


def hex_bytes(size: int) -> Convert[bytes]:
    """Exactly `size` bytes as lowercase hexadecimal text."""

    def convert(value: object, _base: Path) -> bytes:
        if isinstance(value, str) and len(value) == 2 * size and value == value.lower():
            try:
                return bytes.fromhex(value)
            except ValueError:
                pass
        raise ValueError(f"must be {2 * size} lowercase hexadecimal digits")

    return convert


@dataclasses.dataclass(frozen=True, slots=True)
class Address:
    """A TCP address on which only local, unauthenticated HTTP (metrics, health) is served."""

    host: str
    port: int


def loopback(value: object, _base: Path) -> Address:
    """`HOST:PORT` with a loopback host; port 0 takes a free one."""
    host, _, port = value.rpartition(":") if isinstance(value, str) else ("", "", "")
    host = host.removeprefix("[").removesuffix("]")
    try:
        if not ipaddress.ip_address(host).is_loopback or not port.isascii() or not port.isdigit() or int(port) > 65535:
            raise ValueError(value)
    except ValueError:
        raise ValueError('must be a loopback address and port such as "127.0.0.1:9400"') from None
    return Address(host, int(port))


# ---- sections of every process ----


@dataclasses.dataclass(frozen=True, slots=True)
class LogSection:
    """Log lines. Secrets, payloads, nonces and proofs are never among them."""

    level: Annotated[str, Key(choice("debug", "info", "warning", "error"), "Least severe lines to write.")] = "info"
    format: Annotated[str, Key(choice("json", "console"), "One JSON object per line, or text for people.")] = "json"
    file: Annotated[
        Path | None, Key(optional_path, "File to append to (created 0600); empty writes to standard error.", '""')
    ] = None


DEFAULT_LOG = LogSection()
"""The log section when a file has none."""


# ---- reading ----


MAX_BYTES: Final = 1_048_576
"""Longest configuration file that is read."""


def load(file: Path, model: type[MODEL]) -> MODEL:
    """Read one TOML file into `model` (a dataclass of sections). Raises ConfigError; nothing unknown is ignored."""
    try:
        with file.open("rb") as stream:
            image = stream.read(MAX_BYTES + 1)
        if len(image) > MAX_BYTES:
            raise ConfigError(str(file), "", f"is longer than {MAX_BYTES} bytes")
        text = image.decode()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
        raise ConfigError(str(file), "", f"cannot be read: {reason}") from None
    return parse(text, model, source=str(file), base=file.absolute().parent)


def parse(text: str, model: type[MODEL], *, source: str, base: Path) -> MODEL:
    """Read TOML text into `model`; relative paths start at `base`. Raises ConfigError."""
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(source, "", str(error)) from None
    values: dict[str, object] = {}
    fields = _fields(model)
    _refuse_unknown(document, fields, source, "")
    for name, (field, hint) in fields.items():
        if name in document:
            table = document[name]
            if not isinstance(table, dict):
                raise ConfigError(source, name, "must be a section")
            values[name] = _read_section(table, hint, source, name, base)
        elif field.default is dataclasses.MISSING:
            raise ConfigError(source, name, "this section is required")
    return model(**values)


def _read_section(table: Mapping[str, object], model: type[Any], source: str, prefix: str, base: Path) -> object:
    fields = _fields(model)
    _refuse_unknown(table, fields, source, f"{prefix}.")
    values: dict[str, object] = {}
    for name, (field, hint) in fields.items():
        if name in table:
            try:
                values[name] = _key(hint).convert(table[name], base)
            except ValueError as error:
                raise ConfigError(source, f"{prefix}.{name}", str(error)) from None
        elif field.default is dataclasses.MISSING:
            raise ConfigError(source, f"{prefix}.{name}", "this key is required")
    return model(**values)


def _fields(model: type[Any]) -> dict[str, tuple[dataclasses.Field[Any], Any]]:
    hints = get_type_hints(model, include_extras=True)
    return {field.name: (field, hints[field.name]) for field in dataclasses.fields(model)}


def _key(hint: Any) -> Key:
    found = hint.__metadata__[0]
    assert isinstance(found, Key)
    return found


def _refuse_unknown(table: Mapping[str, object], known: Mapping[str, object], source: str, prefix: str) -> None:
    for name in table:
        if name not in known:
            raise ConfigError(source, f"{prefix}{name}", f"unknown key; known here: {', '.join(known)}")


# ---- the example ----


def example(model: type[Any]) -> str:
    """A complete configuration file with every key explained. Keys that have a default are shown commented out."""
    lines = _comment(model.__doc__ or "")
    for section, (_, inner) in _fields(model).items():
        lines += ["", *_comment(inner.__doc__ or ""), f"[{section}]"]
        for name, (field, hint) in _fields(inner).items():
            optional = field.default is not dataclasses.MISSING
            key = _key(hint)
            lines += _comment(key.help)
            lines.append(f"{'# ' if optional else ''}{name} = {key.example or _toml(field.default)}")
    return "\n".join(lines) + "\n"


def _comment(text: str) -> list[str]:
    return [f"# {line.strip()}".rstrip() for line in text.strip().splitlines()]


def _toml(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return f'"{value}"' if isinstance(value, str) else str(value)
