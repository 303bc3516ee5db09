"""What an operator does with a space that runs: its history limits, and what a backup of it must hold."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from nats.aio.client import Client

from sidecar.app.space_links import as_profile, told
from sidecar.app.spaces import open_space, space_info
from sidecar.rails.names import api, buckets
from sidecar.rails.space import history_limits
from sidecar.rails.space.asking import ask
from sidecar.rails.space.history_limits import Change, Loss
from sidecar.rails.space.holder import Profile
from sidecar.rails.space.layout import History, Limits, configurations
from sidecar.rails.space.trust import SpaceTrust

RESTORE: Final = (
    "stop every delivery process of the space and wait until each has exited and its connection is closed",
    "put the files back, start the broker with the lines of: sidecar space trust",
    "restore the streams that are listed under keep, with their consumers",
    "run: sidecar space create NAME; it makes what is left out and proves the rest",
    "start the delivery processes again",
)
"""The order of a restore (C8.1-56): a delivery process that outlives the old TASK stream would delete from the new."""


@dataclass(frozen=True, slots=True)
class Held:
    """One stream of a backup, with the sequences that it had at one moment."""

    stream: str
    created: str
    first: int
    last: int
    messages: int
    consumers: int


@dataclass(frozen=True, slots=True)
class Inventory:
    """What a backup holds and what it leaves out, with the reason."""

    files: tuple[Path, ...]
    keep: tuple[Held, ...]
    leave: dict[str, str]


async def limits_of(root: Path, space: str, url: str) -> dict[str, History]:
    """Stream name -> its history limit. Raises SpaceFailed."""
    async with limiter(root, space, url) as client:
        return await history_limits.current(client, space)


async def preview(root: Path, space: str, url: str, changes: list[Change]) -> list[Loss]:
    """What the changes delete, counted now; nothing is changed. Raises SpaceFailed, InvalidLimit."""
    async with limiter(root, space, url) as client:
        at = time.time()
        return [loss for change in changes for loss in await history_limits.preview(client, space, change, at)]


async def set_limits(root: Path, space: str, url: str, changes: list[Change]) -> list[str]:
    """Make the changes; the streams that were changed. Raises SpaceFailed, InvalidLimit."""
    async with limiter(root, space, url) as client:
        return [name for change in changes for name in await history_limits.apply(client, space, change)]


@contextlib.asynccontextmanager
async def limiter(root: Path, space: str, url: str) -> AsyncIterator[Client]:
    """A connection that may look at limits and change them."""
    info = space_info(root, space)
    account = SpaceTrust.open(root / "spaces" / info.name, info.name, os.urandom)
    async with told(), as_profile(account, info.form, url, Profile.LIMITER) as client:
        yield client


async def inventory(root: Path, space: str, url: str) -> Inventory:
    """What a backup of a space must hold now. Raises SpaceFailed."""
    leave = left_out(space)
    keep = []
    async with open_space(root, space, url) as opened:
        for name in configurations(space, Limits()):
            if name not in leave:
                info = await ask(opened.client, api.STREAM_INFO.build(stream=name))
                keep.append(_held(name, info))
    return Inventory((root / "trust", root / "spaces" / space), tuple(keep), leave)


def left_out(space: str) -> dict[str, str]:
    """Streams that no backup holds, with the reason (C8.1-32)."""
    return {
        buckets.ANYCAST.stream(space): "comes back empty: its rows belong to the TASK stream that was",
        buckets.PRESENCE.stream(space): "everybody who is there says so again within seconds",
        buckets.DELIVERY.stream(space): "a lease of a process that does not run any more",
        buckets.MANAGER.stream(space): "a lease of a process that does not run any more",
        buckets.MEMBERSHIP.stream(space): "for display; its writer makes it anew",
    }


def _held(name: str, info: dict[str, Any]) -> Held:
    state = info["state"]
    figures = (int(state[one]) for one in ("first_seq", "last_seq", "messages", "consumer_count"))
    return Held(name, str(info.get("created", "")), *figures)
