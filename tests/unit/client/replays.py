"""A stream that the server paused, and the replay that heals it."""

from __future__ import annotations

from typing import Any

from sidecar.coordinator import client_events as ev
from sidecar.coordinator.wire import frames as fr
from sidecar.coordinator.wire.enums import Capability, GapReason
from sidecar.coordinator.wire.ids import SubscriptionId
from sidecar.coordinator.wire.records import SnapshotRecord
from tests.oracles.fake_replay import FakeStream
from tests.oracles.fake_server import World, objective
from tests.unit.client.rig import Rig, changing


def replaying_world(page_size: int = 2) -> World:
    return World(page_size=page_size, capabilities=int(Capability.EVENT_REPLAY))


def paused(*missed: SnapshotRecord, world: World | None = None, **options: Any) -> Rig:
    """A stream with one delivered event (objective 1), a GAP behind it, and then what it missed."""
    rig = Rig(replaying_world() if world is None else world, **options).start()
    rig.session.open_snapshot(reserve=True)
    rig.go()
    pumped(rig, objective(1))
    rig.server.gap(stream_of(rig))
    for record in missed:
        rig.world.put(record)
    return rig.go()


def stream_of(rig: Rig) -> FakeStream:
    (stream,) = rig.server.streams.values()
    return stream


def pumped(rig: Rig, *records: SnapshotRecord) -> Rig:
    for record in records:
        rig.world.put(record)
    rig.server.pump()
    return rig.go()


def subscription_of(rig: Rig) -> SubscriptionId:
    return rig.of(ev.StreamLive)[0].subscription_id


def replayed(rig: Rig, **options: Any) -> Rig:
    rig.session.open_replay(subscription_of(rig), **options)
    return rig.go()


def known(rig: Rig) -> dict[bytes, SnapshotRecord]:
    return dict(rig.session.projection(subscription_of(rig)).records)


def spoil(rig: Rig, how: str) -> None:
    """After its END the replay is void: by a GAP of the stream, or because its lease ran out."""

    def behind(end: fr.ReplayEnd) -> bytes:
        rig.server.rewrite = None
        if how == "expire":
            rig.server.replays.expire()
            return end.encode()
        stream = stream_of(rig)
        gap = fr.Gap.build(
            {
                "subscription_id": stream.subscription_id,
                "last_contiguous_delivery": stream.delivery,
                "last_contiguous_event": stream.last,
                "reason": GapReason.QUEUE_OVERFLOW,
            }
        )
        rig.server.replays.end(stream)
        return end.encode() + gap.encode()

    rig.server.rewrite = changing(fr.ReplayEnd, behind)
