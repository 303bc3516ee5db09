"""Transitions of presence from records, markers and silence."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sidecar.rails.connection.kv import Entry
from sidecar.rails.envelopes.schema import Status
from sidecar.rails.messaging.roster import Dropped, Roster, read_roster
from sidecar.rails.messaging.watcher import Change, Fold, Transition, changes


def beat(ts: int, actor: str = "a", **more: Any) -> Entry:
    value = {"card": {"id": f"local.{actor}", "name": "A", "kind": "agent"}, "status": "idle", "ts": ts, **more}
    return Entry(f"local.{actor}", json.dumps(value).encode(), ts, False, ts)


def marker(actor: str = "a") -> Entry:
    return Entry(f"local.{actor}", b"", 1, True, 1)


def kind(found: Transition | Dropped | None) -> Change | None:
    assert not isinstance(found, Dropped)
    return None if found is None else found.change


@pytest.mark.req("C6-48")
def test_a_peer_joins_changes_and_comes_back() -> None:
    fold = Fold()
    assert kind(fold.take(beat(1_000), 1_000)) is Change.JOINED
    assert kind(fold.take(beat(3_000), 3_000)) is None
    assert kind(fold.take(beat(5_000, activeAt=4_000), 5_000)) is None
    changed = fold.take(beat(5_100, status="working"), 5_100)
    assert isinstance(changed, Transition)
    assert changed.before is not None
    assert (changed.before.presence.status, changed.row.presence.status) == (Status.IDLE, Status.WORKING)
    assert kind(
        fold.take(beat(5_200, status="working", runtime={"id": "n", "startedAt": 1, "source": "x"}), 5_200)
    ) is (Change.CHANGED)
    gone = fold.take(beat(6_000, status="offline"), 6_000)
    assert kind(gone) is Change.OFFLINE
    assert kind(fold.take(beat(6_100, status="offline"), 6_100)) is None
    assert kind(fold.take(beat(7_000), 7_000)) is Change.JOINED


@pytest.mark.req("C6-34")
def test_a_marker_is_offline_once() -> None:
    fold = Fold()
    fold.take(beat(1_000), 1_000)
    gone = fold.take(marker(), 1_500)
    assert isinstance(gone, Transition)
    assert gone.change is Change.OFFLINE
    assert (gone.principal.dot, gone.row.presence.status_since) == ("local.a", None)
    assert fold.take(marker(), 1_600) is None
    assert fold.take(marker("never"), 1_700) is None
    assert [row.live for row in fold.roster(1_700)] == [False]


@pytest.mark.req("C6-30", "C6-33")
def test_silence_is_offline_on_either_clock() -> None:
    fold = Fold()
    fold.take(beat(1_000, "a"), 1_000)
    fold.take(beat(900_000, "ahead"), 1_000)
    assert fold.sweep(7_000) == []
    gone = fold.sweep(7_001)
    assert {one.principal.actor: one.change for one in gone} == {"a": Change.OFFLINE, "ahead": Change.OFFLINE}
    assert fold.sweep(7_002) == []
    fold.take(beat(1, "behind"), 8_000)
    assert [row.live for row in fold.roster(8_000)] == [False, False, False]


def test_a_peer_that_was_never_live_says_nothing() -> None:
    fold = Fold()
    assert fold.take(beat(1_000, status="offline"), 1_000) is None
    assert fold.take(beat(1_000, "old"), 100_000) is None
    assert len(fold.roster(100_000)) == 2


@pytest.mark.req("C6-43")
def test_a_bad_record_is_reported_and_changes_nothing() -> None:
    fold = Fold()
    fold.take(beat(1_000), 1_000)
    assert isinstance(fold.take(beat(1_100, status=3), 1_100), Dropped)
    assert [row.live for row in fold.roster(1_100)] == [True]


def test_the_roster_is_bounded_and_the_longest_offline_go_first() -> None:
    fold = Fold(most=2)
    fold.take(beat(1_000, "a"), 1_000)
    fold.take(beat(1_000, "b"), 1_000)
    assert isinstance(fold.take(beat(1_000, "c"), 1_000), Dropped)
    fold.take(marker("b"), 1_100)
    assert kind(fold.take(beat(1_200, "c"), 1_200)) is Change.JOINED
    assert sorted(fold.roster(1_200).rows) == ["local.a", "local.c"]


@pytest.mark.req("C6-44")
def test_two_reads_tell_what_happened_between_them() -> None:
    def roster(now: int, *entries: Entry) -> Roster:
        return read_roster(((entry.key, entry.value) for entry in entries), now)

    before = roster(1_000, beat(1_000, "same"), beat(1_000, "busy"), beat(1_000, "gone"), beat(1_000, "left"))
    now = roster(
        2_000,
        beat(2_000, "same"),
        beat(2_000, "busy", status="working"),
        beat(2_000, "left", status="offline"),
        beat(2_000, "new"),
    )
    found = {change.principal.actor: change for change in changes(before, now)}
    assert {name: change.change for name, change in found.items()} == {
        "busy": Change.CHANGED,
        "left": Change.OFFLINE,
        "new": Change.JOINED,
        "gone": Change.OFFLINE,
    }
    assert not found["gone"].row.live
    assert changes(now, now) == []
    assert [change.change for change in changes(now, before)] == [
        Change.CHANGED,
        Change.JOINED,
        Change.JOINED,
        Change.OFFLINE,
    ]
