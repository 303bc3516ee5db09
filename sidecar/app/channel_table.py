"""The channels of a space as one credential has them: what is in force, and what it may do there (C4-17). Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from sidecar.rails.messaging.identity import Identity
from sidecar.rails.messaging.registry import ChannelConfig, Effective, Registry
from sidecar.rails.names.tokens import GRAMMARS


class ChannelRow(NamedTuple):
    """One channel, or a pattern of a list. ``effective`` is None for a pattern: each channel below it has its own.

    ``member``: a durable membership of this holder is open, None when that could not be found out. ``readable`` and
    ``postable`` say what the holder may, joined or not.
    """

    name: str
    effective: Effective | None
    config: ChannelConfig
    member: bool | None
    readable: bool
    postable: bool


def rows(identity: Identity, registry: Registry, members: Iterable[str] | None) -> list[ChannelRow]:
    """Every channel that the registry, a list of the holder or a membership names, by name."""
    joined = None if members is None else set(members)
    names = {*registry.channels, *identity.readable, *identity.postable, *(joined or ())}
    return [row_of(name, identity, registry, joined) for name in sorted(names)]


def row_of(name: str, identity: Identity, registry: Registry, joined: set[str] | None) -> ChannelRow:
    """One of them."""
    concrete = GRAMMARS["channel"].accepts(name)
    return ChannelRow(
        name,
        registry.effective(name) if concrete else None,
        registry.channels.get(name, ChannelConfig()),
        None if joined is None else name in joined,
        identity.may_read(name),
        identity.may_post(name),
    )


def effective_text(effective: Effective) -> Mapping[str, str]:
    """What is in force, in words."""
    seconds = effective.window_seconds
    window = "all that is kept" if seconds is None else f"{seconds} s"
    return {
        "class": effective.delivery_class.value,
        "replay": "on" if effective.replay else "off",
        "window": window if effective.replay else "-",
    }
