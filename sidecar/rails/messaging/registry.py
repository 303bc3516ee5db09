"""The channel registry: what an operator says of channels, and the one resolution of what is in force (C7-02..09).

Writing is strict: what does not fit is refused, never clamped. Reading is not: an entry that somebody else broke counts
as far as it can be read, and is reported, so that one bad entry neither hides the others nor decides for them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, NamedTuple

import orjson

from sidecar.base.strictjson import JsonError, JsonValue, parse
from sidecar.rails.connection import Connection
from sidecar.rails.connection.kv import KeyValue
from sidecar.rails.names import InvalidName, buckets
from sidecar.rails.names.limits import MAX_DESCRIPTION, MAX_INSTRUCTIONS
from sidecar.rails.names.tokens import GRAMMARS, REPLAY_WINDOW

MAX_ENTRY: Final = 64 * 1024
"""Bytes of an entry that is read."""
_SECONDS: Final = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}
DEFAULTS_KEY: Final = buckets.CHANNEL_DEFAULTS.build()


class RegistryUnreadable(Exception):  # noqa: N818 - a state
    """The registry was not read to its end: nothing may be said of what is not in it."""


class InvalidConfig(ValueError):  # noqa: N818 - a state of the value
    """An entry that must not be written; the message names the field (C7-04, C7-05)."""


class DeliveryClass(StrEnum):
    """What becomes of posts for members who are not connected."""

    LIVE = "live"
    DURABLE = "durable"


class ChannelConfig(NamedTuple):
    """One channel, or with the first three fields the defaults of the space; None: not said."""

    replay: bool | None = None
    replay_window: str | None = None
    delivery_class: DeliveryClass | None = None
    description: str | None = None
    instructions: str | None = None


NOTHING_SAID: Final = ChannelConfig()


class Effective(NamedTuple):
    """What is in force for one channel. ``window_seconds``: how far back a replay reads, None for all that is kept."""

    replay: bool
    window_seconds: int | None
    delivery_class: DeliveryClass


class Unread(NamedTuple):
    """An entry, or one field of it, that counts as absent because it is not what it should be."""

    key: str
    field: str


@dataclass(frozen=True, slots=True)
class Registry:
    """The registry of one read that completed."""

    defaults: ChannelConfig
    channels: Mapping[str, ChannelConfig]
    unread: tuple[Unread, ...] = ()

    def effective(self, channel: str) -> Effective:
        """What is in force for a concrete channel: its own word, else the space's, else replay of everything and
        durable copies (C7-06, C7-07). Join, fan-out, history and membership all ask here (C7-09)."""
        own, space = self.channels.get(channel, NOTHING_SAID), self.defaults
        window = own.replay_window if own.replay_window is not None else space.replay_window
        return Effective(
            _first(own.replay, space.replay, True),
            None if window is None else window_seconds(window),
            _first(own.delivery_class, space.delivery_class, DeliveryClass.DURABLE),
        )


def _first(own: Any, space: Any, otherwise: Any) -> Any:
    return own if own is not None else space if space is not None else otherwise


def window_seconds(text: str) -> int:
    """Seconds of a replay window. InvalidName (C7-04)."""
    REPLAY_WINDOW.check(text)
    return int(text[:-1]) * _SECONDS[text[-1]]


# ---- writing ----


def encode_config(config: ChannelConfig, *, defaults: bool = False) -> bytes:
    """An entry as it is stored, strictly. Raises InvalidConfig; defaults describe nothing."""
    for name, wanted in (("replay", bool), ("description", str), ("instructions", str)):
        value = getattr(config, name)
        if value is not None and type(value) is not wanted:
            raise InvalidConfig(f"{name} is no {wanted.__name__}")
    if config.replay_window is not None:
        try:
            window_seconds(config.replay_window)
        except InvalidName:
            raise InvalidConfig("replayWindow is no whole number with one of s, m, h and d behind it") from None
    if config.delivery_class is not None and config.delivery_class not in tuple(DeliveryClass):
        raise InvalidConfig(f"deliveryClass is none of {', '.join(DeliveryClass)}")
    for name, text, most in _texts(config):
        if defaults:
            raise InvalidConfig(f"the defaults of a space have no {name}")
        if _units(text) > most:
            raise InvalidConfig(f"{name} has more than {most} characters")
    value = {_NAMES[name]: one for name, one in config._asdict().items() if one is not None}
    try:
        return orjson.dumps(value)
    except orjson.JSONEncodeError:
        raise InvalidConfig("half of a surrogate pair has no encoding") from None


_NAMES: Final = {
    "replay": "replay",
    "replay_window": "replayWindow",
    "delivery_class": "deliveryClass",
    "description": "description",
    "instructions": "instructions",
}


def _texts(config: ChannelConfig) -> Iterable[tuple[str, str, int]]:
    if config.description is not None:
        yield "description", config.description, MAX_DESCRIPTION
    if config.instructions is not None:
        yield "instructions", config.instructions, MAX_INSTRUCTIONS


def _units(text: str) -> int:
    """UTF-16 code units, as the specification counts characters (OPEN C6-a)."""
    return len(text) + sum(character > "\uffff" for character in text)


class RegistryWriter:
    """Changes of the registry, for a credential that may make them. Writes raise what ``store`` raises, and
    WrongRevision where a revision is given and another one stands there."""

    def __init__(self, connection: Connection, space: str) -> None:
        self._bucket = KeyValue(connection, buckets.CHANNELS, space)

    async def channel(self, channel: str) -> tuple[ChannelConfig, int]:
        """The entry of a channel with its revision, 0 for one that has none. Raises Unreadable, InvalidName."""
        return await self._entry(GRAMMARS["channel"].check(channel))

    async def defaults(self) -> tuple[ChannelConfig, int]:
        """The same of the space's defaults."""
        return await self._entry(DEFAULTS_KEY)

    async def set_channel(self, channel: str, config: ChannelConfig, revision: int | None = None) -> int:
        """Write the entry of one concrete channel (C7-02). Raises InvalidConfig, InvalidName."""
        return await self._write(GRAMMARS["channel"].check(channel), encode_config(config), revision)

    async def set_defaults(self, config: ChannelConfig, revision: int | None = None) -> int:
        """Write the defaults of the space under their own key, which is no channel's (C7-03). Raises InvalidConfig."""
        return await self._write(DEFAULTS_KEY, encode_config(config, defaults=True), revision)

    async def remove_channel(self, channel: str) -> None:
        """The space's defaults count again."""
        await self._bucket.delete(GRAMMARS["channel"].check(channel))

    async def _entry(self, key: str) -> tuple[ChannelConfig, int]:
        entry = await self._bucket.get(key)
        return (NOTHING_SAID, 0) if entry is None else (read_config(key, entry.value)[0], entry.revision)

    async def _write(self, key: str, value: bytes, revision: int | None) -> int:
        if revision is None:
            return await self._bucket.put(key, value)
        return await self._bucket.update(key, value, revision)


# ---- reading ----


def read_registry(entries: Iterable[tuple[str, bytes]]) -> Registry:
    """The registry of a read that completed, from keys with their values."""
    channels: dict[str, ChannelConfig] = {}
    defaults, unread = NOTHING_SAID, []
    for key, value in entries:
        config, faults = read_config(key, value)
        unread += faults
        if key == DEFAULTS_KEY:
            defaults = config._replace(description=None, instructions=None)
        elif GRAMMARS["channel"].accepts(key):
            channels[key] = config
        else:
            unread.append(Unread(key, ""))
    return Registry(defaults, channels, tuple(unread))


def read_config(key: str, data: bytes) -> tuple[ChannelConfig, list[Unread]]:
    """An entry as far as it can be read, and what cannot."""
    try:
        value: JsonValue = parse(data, limit=MAX_ENTRY)
    except JsonError:
        value = None
    return config_of(key, value)


def config_of(key: str, value: JsonValue) -> tuple[ChannelConfig, list[Unread]]:
    """Like ``read_config`` from a parsed value. Members that nobody here knows are left alone."""
    if type(value) is not dict:
        return NOTHING_SAID, [Unread(key, "")]
    found, faults = {}, []
    for name, spelled in _NAMES.items():
        if spelled not in value:
            continue
        if _fits(name, value[spelled]):
            found[name] = value[spelled]
        else:
            faults.append(Unread(key, spelled))
    config: dict[str, Any] = found
    if "delivery_class" in config:
        config["delivery_class"] = DeliveryClass(config["delivery_class"])
    return ChannelConfig(**config), faults


def _fits(name: str, value: JsonValue) -> bool:
    if name == "replay":
        return type(value) is bool
    if name == "replay_window":
        return REPLAY_WINDOW.accepts(value)
    if name == "delivery_class":
        return type(value) is str and value in tuple(DeliveryClass)
    most = MAX_DESCRIPTION if name == "description" else MAX_INSTRUCTIONS
    return type(value) is str and _units(value) <= most
