"""What an operator says of channels: one entry of the registry changed, with what it was and what it is (C7-02..05)."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from sidecar.app.access import NoBroker
from sidecar.app.space_links import STEP_SECONDS, now
from sidecar.app.spaces import space_info
from sidecar.rails.connection import Connection, Credentials
from sidecar.rails.messaging.registry import ChannelConfig, Effective, Registry, RegistryWriter
from sidecar.rails.names.principals import LOCAL_OWNER, Lifecycle, Principal
from sidecar.rails.space.creds import format_creds
from sidecar.rails.space.holder import Holder, Profile
from sidecar.rails.space.trust import SpaceTrust, new_user

_WRITER: Final = Profile.CHANNEL_WRITER


@dataclass(frozen=True, slots=True)
class Host:
    """Where the keys of a space lie, and its broker."""

    root: Path
    space: str
    url: str


class Changed(NamedTuple):
    """One entry before and after a change, with its revisions; revision 0: there was none."""

    before: ChannelConfig
    after: ChannelConfig
    revision_before: int
    revision: int
    effective: Effective | None


Change = Callable[[ChannelConfig], ChannelConfig]


async def change(host: Host, channel: str | None, make: Change, seconds: float) -> Changed:
    """Change the entry of a channel, or for None the defaults of the space; nobody else's change is overwritten.

    Raises SpaceFailed, InvalidName and InvalidConfig for what may not be written, WrongRevision when somebody was
    faster, NoBroker and what a connection raises.
    """
    async with _writer(host, seconds) as writer:
        before, revision = await (writer.defaults() if channel is None else writer.channel(channel))
        after = make(before)
        if after == before:
            return Changed(before, after, revision, revision, await _effective(writer, channel, after))
        if channel is None:
            written = await writer.set_defaults(after, revision)
        else:
            written = await writer.set_channel(channel, after, revision)
        return Changed(before, after, revision, written, await _effective(writer, channel, after))


async def remove(host: Host, channel: str, seconds: float) -> Changed:
    """Remove the entry of a channel: the defaults of the space count again."""
    async with _writer(host, seconds) as writer:
        before, revision = await writer.channel(channel)
        if revision:
            await writer.remove_channel(channel)
        nothing = ChannelConfig()
        return Changed(before, nothing, revision, 0, await _effective(writer, channel, nothing))


async def _effective(writer: RegistryWriter, channel: str | None, config: ChannelConfig) -> Effective | None:
    if channel is None:
        return None
    defaults, _ = await writer.defaults()
    return Registry(defaults, {channel: config}).effective(channel)


@contextlib.asynccontextmanager
async def _writer(host: Host, seconds: float) -> AsyncIterator[RegistryWriter]:
    """A connection that may write the registry, for minutes, with a key that nothing else ever has (CB-107)."""
    info = space_info(host.root, host.space)
    trust = SpaceTrust.open(host.root / "spaces" / info.name, info.name, os.urandom)
    key = new_user(os.urandom)
    lifecycle = Lifecycle(Principal(LOCAL_OWNER, _WRITER.replace("-", "_")), os.urandom(16).hex())
    holder = Holder(info.name, lifecycle, key.public, info.form)

    async def mint() -> Credentials:
        at = now()
        return Credentials(format_creds(trust.issue(_WRITER, holder, key, at, STEP_SECONDS), key), at + STEP_SECONDS)

    try:
        async with asyncio.timeout(seconds):
            connection = await Connection.open([host.url], mint)
    except TimeoutError:
        raise NoBroker(f"no connection to {host.url} within {seconds:g} s") from None
    try:
        yield RegistryWriter(connection, info.name)
    finally:
        await connection.close()
        key.wipe()
