"""Following the authority for a long time: a stream that heals in the open (P10-19, P10-36, P12-31).

Whatever breaks continuity is told first, then it is healed and that is told too: by a replay with the events that were
missed, where the server still has them, else by a fresh snapshot with what it changed. Nothing is filled in silently.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum

from sidecar.coordinator.client import CoordinatorClient, ReconnectPolicy
from sidecar.coordinator.client_errors import ClientError, ContinuityLost, ReplayTooLarge
from sidecar.coordinator.client_events import Change, Replay, Snapshot, Welcome, WorkEvent
from sidecar.coordinator.client_link import Subscription
from sidecar.coordinator.wire.errors import CursorInvalid, ProtocolError
from sidecar.coordinator.wire.ids import EventCut, SubscriptionId
from sidecar.coordinator.wire.records import SnapshotRecord


class Why(Enum):
    """What a snapshot in a watch is for."""

    START = "start"
    HEAL = "heal"


@dataclass(frozen=True, slots=True)
class Cut:
    """A verified snapshot from which the events go on.

    ``changed`` holds the records that differ from what was known before, ``gone`` the keys that are not there any more.
    """

    why: Why
    snapshot: Snapshot
    changed: tuple[SnapshotRecord, ...]
    gone: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Broken:
    """Continuity is lost. ``connection`` is why the connection ended, None when it is still up."""

    loss: ContinuityLost
    connection: Exception | None


@dataclass(frozen=True, slots=True)
class Replayed:
    """The events that were missed, in order; the same subscription goes on behind the cut ``through`` (P10-32..34)."""

    events: tuple[Change, ...]
    through: EventCut


@dataclass(frozen=True, slots=True)
class Restored:
    """Connected again, maybe to a later activation."""

    welcome: Welcome


Watched = Cut | WorkEvent | Broken | Replayed | Restored


async def watch(
    client: CoordinatorClient, *, after: EventCut | None = None, heal: bool = True, policy: ReconnectPolicy
) -> AsyncGenerator[Watched, None]:
    """Follow from a fresh snapshot on, or directly from the cut ``after``; endless unless something can not be healed.

    With ``heal=False`` the first loss is told with ``Broken`` and then raised. ``policy`` bounds how often a stream
    that breaks again without a single event in between is healed; then its ``ContinuityLost`` is raised.
    """
    known: Mapping[bytes, SnapshotRecord] = {}
    delays = policy.delays()
    if after is None:
        snapshot, events = await _follow(client, None, delays)
        yield _cut(Why.START, snapshot, known)
    else:
        events = await client.subscribe(after)
    while True:
        try:
            async for event in events:
                delays = policy.delays()
                yield event
        except ContinuityLost as loss:
            yield Broken(loss, client.down)
            delay = next(delays, None) if heal else None
            if delay is None:
                raise
            healed = await _replay(client, events, loss)
            if isinstance(healed, Replay):
                if healed.events:
                    delays = policy.delays()
                yield Replayed(healed.events, healed.through)
                continue
            if healed is not None:
                yield healed
            known = events.projection.records
            before = client.welcome
            snapshot, events = await _heal(client, events, loss, delay, delays)
            if client.welcome is not before:
                yield Restored(client.welcome)
            yield _cut(Why.HEAL, snapshot, known)


async def _replay(client: CoordinatorClient, broken: Subscription, loss: ContinuityLost) -> Replay | Broken | None:
    """Heal on the same subscription. None: only a snapshot does. ``Broken``: the connection ended by trying."""
    if not loss.healable or client.down is not None or not broken.replayable:
        return None
    try:
        return await client.replay(broken)
    except ReplayTooLarge:
        client.disconnect()  # the server holds the subscription for this replay; a connection without it is at hand
    except (ClientError, ProtocolError) as error:
        if client.down is not None:
            return Broken(_ended(loss, error), client.down)
    return None


def _ended(loss: ContinuityLost, error: Exception) -> ContinuityLost:
    return ContinuityLost(
        f"the replay failed: {error}", last_delivery=loss.last_delivery, last_event=loss.last_event, healable=False
    )


async def _heal(
    client: CoordinatorClient, broken: Subscription, loss: ContinuityLost, delay: float, delays: Iterator[float]
) -> tuple[Snapshot, Subscription]:
    replaces: SubscriptionId | None = None
    if client.down is None:
        if loss.healable:
            replaces = broken.subscription_id
        else:  # this side found the fault: the connection is not believed any more
            client.disconnect()
    if replaces is None:
        await asyncio.sleep(delay)
    return await _follow(client, replaces, delays)


async def _follow(
    client: CoordinatorClient, replaces: SubscriptionId | None, delays: Iterator[float]
) -> tuple[Snapshot, Subscription]:
    """A snapshot and its stream; taken again when the stream overflowed before the snapshot was applied (P9-27).

    The overflowed stream stays with its connection, so that the next try is made on a new one.
    """
    while True:
        try:
            return await client.follow(replaces=replaces)
        except CursorInvalid:
            delay = next(delays, None)
            if delay is None:
                raise
            client.disconnect()
            replaces = None
            await asyncio.sleep(delay)


def _cut(why: Why, snapshot: Snapshot, known: Mapping[bytes, SnapshotRecord]) -> Cut:
    records = {record.key(): record for record in snapshot.records}
    changed = tuple(record for key, record in records.items() if known.get(key) != record)
    return Cut(why, snapshot, changed, tuple(sorted(known.keys() - records.keys())))
