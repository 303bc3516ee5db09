"""A replay is published complete and verified on the subscription that it heals."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sidecar.coordinator import client_events as ev
from sidecar.coordinator.client_core import SyncState
from sidecar.coordinator.wire import frames as fr
from sidecar.coordinator.wire.enums import EventKind, ObjectKind
from sidecar.coordinator.wire.records import ObjectRef, SourceGap
from tests.oracles.fake_server import objective
from tests.unit.client.replays import (
    known,
    paused,
    pumped,
    replayed,
    replaying_world,
    spoil,
    stream_of,
    subscription_of,
)
from tests.unit.client.rig import Rig

# -- a replay that works -----------------------------------------------------------------------------------------------


@pytest.mark.req("P10-32", "P10-34", "P10-24", "P14-11")
@pytest.mark.parametrize("step", [1, None])
@pytest.mark.parametrize(("count", "pages"), [(1, 1), (2, 1), (3, 2), (5, 3)])
def test_what_was_missed_is_published_and_the_stream_goes_on(count: int, pages: int, step: int | None) -> None:
    rig = paused(*(objective(number) for number in range(2, 2 + count)), step=step)
    assert rig.session.sync is SyncState.STALE
    handle = rig.session.open_replay(subscription_of(rig))
    rig.go()
    ready = rig.one(ev.ReplayReady)
    assert ready.request_id == handle
    replay = ready.replay
    assert [event.sequence for event in replay.events] == list(range(2, 2 + count))
    assert [event.record for event in replay.events] == [objective(number) for number in range(2, 2 + count)]
    assert [event.event_id for event in replay.events] == [event["event_id"] for event in rig.world.events[1:]]
    assert (replay.after, replay.through, replay.event_count, replay.page_count) == (1, 1 + count, count, pages)
    assert rig.of(ev.StreamLive)[1].request_id == handle
    assert (known(rig), rig.session.sync) == (rig.world.records, SyncState.CURRENT)
    assert rig.session.projection(subscription_of(rig)).cut == 1 + count
    assert rig.session.open_requests == 0
    pumped(rig, objective(1, 2))
    after = rig.of(ev.WorkEvent)[-1]
    assert (after.delivery, after.sequence) == (2, 2 + count)
    assert known(rig) == rig.world.records
    (asked,) = rig.server.of(fr.OpenReplay)
    assert (asked.subscription_id, asked.after_event_sequence) == (subscription_of(rig), 1)


@pytest.mark.req("P10-31")
def test_an_empty_replay_only_resumes() -> None:
    rig = replayed(paused())
    assert rig.one(ev.ReplayReady).replay.events == ()
    assert (rig.one(ev.ReplayReady).replay.through, rig.session.sync) == (1, SyncState.CURRENT)
    assert not rig.server.of(fr.ReplayNext)
    assert pumped(rig, objective(2)).of(ev.WorkEvent)[-1].delivery == 2


@pytest.mark.req("P10-32", "P10-15")
def test_revisions_go_on_within_a_replay() -> None:
    rig = replayed(paused(objective(2), objective(2, 2), objective(1, 2), objective(2, 3)))
    assert [event.revision for event in rig.one(ev.ReplayReady).replay.events] == [1, 2, 2, 3]
    assert known(rig) == rig.world.records


@pytest.mark.req("P10-32")
def test_hidden_events_end_in_the_cut() -> None:
    rig = paused(objective(2))
    rig.world.events += [{}, {}]
    replayed(rig)
    replay = rig.one(ev.ReplayReady).replay
    assert ([event.sequence for event in replay.events], replay.through) == ([2], 4)
    assert rig.session.projection(subscription_of(rig)).cut == 4
    assert pumped(rig, objective(3)).of(ev.WorkEvent)[-1].sequence == 5
    rig.server.gap(stream_of(rig))
    rig.world.put(objective(4))
    replayed(rig.go())
    assert known(rig) == rig.world.records


@pytest.mark.req("P10-32")
def test_a_source_gap_in_a_replay_counts_as_a_revision() -> None:
    gap = SourceGap.decode(b"\x77" * 16 + (2).to_bytes(8, "big") + (5).to_bytes(8, "big") + b"\0")
    rig = paused()
    rig.session.projection(subscription_of(rig)).apply(
        ev.Change(1, b"\xe0" * 16, EventKind.SOURCE_GAP, ObjectRef(ObjectKind.BINDING, b"\x77" * 16), 1, b"", None)  # type: ignore[arg-type]
    )
    rig.world.events.append(
        {
            "event_sequence": 2,
            "event_id": b"\xe2" * 16,
            "event_kind": EventKind.SOURCE_GAP,
            "object": ObjectRef(ObjectKind.BINDING, b"\x77" * 16),  # type: ignore[arg-type]
            "object_revision": 2,
            "schema": 1,
            "payload": gap.encode(),
        }
    )
    (event,) = replayed(rig).one(ev.ReplayReady).replay.events
    assert (event.record, event.revision, event.payload) == (None, 2, gap.encode())


@settings(max_examples=60, deadline=None)
@given(
    history=st.lists(st.one_of(st.integers(1, 6), st.sampled_from(["gap", "void", "expire", "hidden"])), max_size=40),
    page_size=st.integers(1, 4),
)
@pytest.mark.req("P10-32", "P10-35")
def test_a_projection_after_gaps_and_replays_is_the_one_of_a_fresh_snapshot(history: list[Any], page_size: int) -> None:
    rig = Rig(replaying_world(page_size)).start()
    rig.session.open_snapshot(reserve=True)
    rig.go()
    told: list[ev.Change] = []
    for action in [*history, "gap"]:
        stream = stream_of(rig)
        if isinstance(action, int):
            old = rig.world.records.get(objective(action).key())
            rig.world.put(objective(action, 1 if old is None else old.revision + 1, b'"%d"' % len(rig.world.events)))
        elif action == "hidden":
            rig.world.events.append({})
        elif stream.paused:
            rig.session.open_replay(subscription_of(rig))
            if action != "gap":  # the replay is lost behind its END, before the server took REPLAY_APPLIED
                spoil(rig, action)
            rig.go()
        else:
            rig.server.gap(stream)
        rig.server.pump()
        rig.go()
    if stream_of(rig).paused:
        replayed(rig)
    for event in rig.events:
        if isinstance(event, ev.WorkEvent):
            told.append(event)
        elif isinstance(event, ev.ReplayReady):
            told += event.replay.events
    assert [event.sequence for event in told] == [at for at, event in enumerate(rig.world.events, 1) if event]
    rig.session.open_snapshot()
    fresh = rig.go().of(ev.SnapshotReady)[-1].snapshot
    assert known(rig) == {record.key(): record for record in fresh.records}
    assert not rig.session.closing
