"""Bounds that an operator lowers in `serve.toml`, at a real server: what is new is refused, what is there goes on."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sidecar.coordinator.client_events import WorkEvent
from sidecar.coordinator.client_trust import Pins
from sidecar.coordinator.client_watch import Broken, Cut, Watched, Why, watch
from sidecar.coordinator.wire import frames as fr
from sidecar.coordinator.wire.enums import Capability, ErrorCode, GapReason, ObjectKind
from sidecar.coordinator.wire.ids import EventCut, SubscriptionId
from sidecar.coordinator.wire.limits import Limits
from tests.e2e.clients import PATIENT, connect
from tests.e2e.cluster import Cluster
from tests.e2e.peer import Peer

EXHAUSTED = ErrorCode.RESOURCE_EXHAUSTED
QUEUE = 6
"""Events that wait for all subscribers of one key together."""
MANY = 20
"""Objectives, more than the small log has room for."""
DOCUMENT = b'{"title":"%s"}' % (b"x" * 1_000)

NARROW = Limits(
    frame=524_288, page_bytes=262_144, page_records=200, typed_payload=131_072, credit_count=2, credit_bytes=4_194_304
)


def lowered(tmp_path: Path, **serve: dict[str, Any]) -> Cluster:
    return Cluster(tmp_path, serve=serve)


def create(peer: Peer, document: bytes = b'{"title":"x"}') -> None:
    """One objective, which makes two events."""
    peer.send(peer.create(document))
    peer.expect(fr.CoordCommandResult)


def refused(peer: Peer, frame: Any) -> None:
    """Refused in its scope, and the connection goes on."""
    peer.send(frame)
    error = peer.expect(fr.CoordErrorFrame)
    assert (error.code, error.request_id) == (EXHAUSTED, frame.request_id)
    peer.ping()


def open_snapshot(peer: Peer) -> fr.OpenSnapshot:
    return fr.OpenSnapshot(
        request_id=peer.request_id(), authority_guard=peer.guard, selector=0, reserve_subscription=False
    )


def subscribe(peer: Peer) -> fr.Subscribe:
    return fr.Subscribe(
        request_id=peer.request_id(),
        authority_guard=peer.guard,
        after_event_sequence=EventCut(0),
        initial_credit_count=1,
        initial_credit_bytes=4_096,
    )


def taken(peer: Peer, begin: fr.SnapshotBegin) -> int:
    """Read a snapshot to its end; how many records it had."""
    cursor = begin.first_cursor
    while cursor is not None:
        peer.send(fr.SnapshotNext(request_id=peer.request_id(), snapshot_id=begin.snapshot_id, cursor=cursor))
        cursor = peer.expect(fr.SnapshotPage).next_cursor
    return peer.expect(fr.SnapshotEnd).record_count


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Cluster]:
    quotas = {
        "connection_quotas": {"subscriptions": 1, "leases": 1},
        "principal_quotas": {
            "connections": 2,
            "queue_frames": QUEUE,
            "pinned_bytes": 4_096,
            "pending_operations": 1,
        },
        "server_quotas": {"connections": 4, "leases": 2},
    }
    with lowered(tmp_path, **quotas) as running:
        yield running


@pytest.mark.req("P3-34", "P3-38", "P3-41", "P3-43", "P3-45", "P3-49")
def test_connections_subscriptions_and_leases(small: Cluster) -> None:
    caps = {name: quota["cap"] for name, quota in small.stats()["quotas"].items()}
    assert (caps["connections"], caps["leases"], caps["subscriptions"]) == (4, 2, 2_048)
    operator, admin = small.key("operator"), small.key("admin")
    with Peer(small.socket) as first, Peer(small.socket) as second, Peer(small.socket) as other:
        first.login(operator)
        second.login(operator)
        with Peer(small.socket) as third:
            third.start()
            third.send(third.response(operator, 0x3F))
            assert third.refusal() == EXHAUSTED
        other.login(admin)
        first.subscribe()
        refused(first, subscribe(first))
        create(second)
        assert [first.expect(fr.CoordEvent).event_sequence for _ in range(2)] == [1, 2]

        first.send(open_snapshot(first))
        held = first.expect(fr.SnapshotBegin)
        refused(first, open_snapshot(first))  # the connection's
        second.send(open_snapshot(second))
        second.expect(fr.SnapshotBegin)
        refused(other, open_snapshot(other))  # the server's
        assert taken(first, held) == 2
        second.close()
        first.send(
            fr.SnapshotApplied(
                request_id=first.request_id(),
                snapshot_id=held.snapshot_id,
                initial_credit_count=0,
                initial_credit_bytes=0,
            )
        )
        first.expect(fr.Ack)
    metrics = small.metrics()
    for name, count in (("connections", 1), ("subscriptions", 1), ("leases", 2)):
        assert metrics[f'sidecar_quota_refusals_total{{resource="{name}"}}'] == count


@pytest.mark.req("P3-44", "P3-46", "P3-47", "P3-49")
def test_pinned_bytes_queues_and_pending_operations(small: Cluster) -> None:
    operator, admin = small.key("operator"), small.key("admin")
    with Peer(small.socket) as writer, Peer(small.socket) as slow, Peer(small.socket) as other:
        writer.login(operator)
        other.login(admin)
        other.subscribe()
        slow.login(operator)
        slow.subscribe(count=0, nbytes=0)
        commands = [writer.create(), writer.create()]
        writer.send(*commands)  # one batch takes both
        frames = [writer.next(), writer.next()]
        (done,) = [frame for frame in frames if isinstance(frame, fr.CoordCommandResult)]
        (error,) = [frame for frame in frames if isinstance(frame, fr.CoordErrorFrame)]
        assert error.code == EXHAUSTED
        assert [done.request_id, error.request_id] == [command.request_id for command in commands]
        create(writer)
        create(writer)  # six events wait for the slow one, as many as may
        slow.ping()
        create(writer)
        assert slow.expect(fr.Gap).reason == GapReason.QUEUE_OVERFLOW
        assert [other.expect(fr.CoordEvent).event_sequence for _ in range(8)] == list(range(1, 9))

        other.send(open_snapshot(other))
        assert taken(other, other.expect(fr.SnapshotBegin)) == 8
        create(writer, b'{"title":"%s"}' % (b"x" * 4_096))
        refused(writer, open_snapshot(writer))
        assert other.expect(fr.CoordEvent).event_sequence == 9


@pytest.fixture
def forgetful(tmp_path: Path) -> Iterator[Cluster]:
    """Its log holds as many payload bytes as about ten objectives have; a subscriber may have six events waiting."""
    bounds = {"storage": {"event_bytes": 12_000}, "principal_quotas": {"queue_frames": QUEUE}}
    with lowered(tmp_path, **bounds) as running:
        yield running


@pytest.mark.req("P10-28", "P10-22", "P10-20")
def test_a_replay_of_lost_history_is_a_gap_and_a_cursor_that_is_not_valid(forgetful: Cluster) -> None:
    with Peer(forgetful.socket) as slow, Peer(forgetful.socket) as writer:
        slow.login(forgetful.key("operator"), offered_capabilities=int(Capability.EVENT_REPLAY))
        writer.login(forgetful.key("admin"))
        sub = SubscriptionId(slow.subscribe(count=0, nbytes=0))
        for _ in range(MANY):
            create(writer, DOCUMENT)
        gap = slow.expect(fr.Gap)
        assert (gap.subscription_id, gap.reason) == (sub, GapReason.QUEUE_OVERFLOW)
        events = forgetful.stats()["events"]
        assert events["retained_from"] > 1
        assert events["retained_bytes"] <= 12_000
        replay = fr.OpenReplay(
            request_id=slow.request_id(),
            authority_guard=slow.guard,
            subscription_id=sub,
            after_event_sequence=EventCut(0),
        )
        slow.send(replay)
        gap = slow.expect(fr.Gap)
        assert (gap.subscription_id, gap.reason) == (sub, GapReason.RETENTION)
        error = slow.expect(fr.CoordErrorFrame)
        assert (error.code, error.request_id) == (ErrorCode.CURSOR_INVALID, replay.request_id)
        slow.ping()
        assert forgetful.metrics()['sidecar_gaps_total{reason="retention"}'] == 1


async def until(stream: Any, wanted: type[Watched]) -> list[Watched]:
    items: list[Watched] = []
    while not items or not isinstance(items[-1], wanted):
        items.append(await anext(stream))
    return items


@pytest.mark.req("P10-28", "P10-36")
@pytest.mark.asyncio
async def test_a_watch_that_lost_history_heals_by_a_snapshot(forgetful: Cluster) -> None:
    pins = Pins()
    async with (
        await connect(forgetful, pins, limits=NARROW) as client,
        await connect(forgetful, pins, "admin") as writer,
    ):
        assert client.welcome.capabilities & Capability.EVENT_REPLAY
        stream = watch(client, policy=PATIENT)
        assert isinstance(await anext(stream), Cut)
        made = [await writer.create_objective(DOCUMENT) for _ in range(MANY)]
        items = await until(stream, Cut)
        assert isinstance(items[-2], Broken)
        cut = items[-1]
        assert isinstance(cut, Cut)
        assert cut.why is Why.HEAL
        objectives = [record for record in cut.snapshot.records if record.kind is ObjectKind.OBJECTIVE]
        assert len(objectives) == len(made)
        await writer.create_objective(os.urandom(4).hex().encode())
        assert isinstance(await anext(stream), WorkEvent)
        await stream.aclose()
