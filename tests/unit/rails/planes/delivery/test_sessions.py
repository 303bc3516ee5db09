"""Whose copies are given back, and when: the newest process of a member, an older one, and words of either."""

from __future__ import annotations

import pytest

from sidecar.rails.messaging.held import ACK_WAIT
from sidecar.rails.planes.delivery import sessions
from sidecar.rails.planes.delivery.pulls import Durable
from sidecar.rails.planes.delivery.sessions import FORGET_SECONDS, GRACE_SECONDS, MARGIN_SECONDS, Reader, Sessions
from tests.e2e.durable_reads import life

DM = Durable("DM_main", "dm_x")
BOB = Reader(DM, life("bob"))
OLD, NEW = "a" * 32, "b" * 32


@pytest.fixture
def two() -> Sessions:
    """An older session with a copy, and a newer one at second 1."""
    made = Sessions()
    made.spoke(BOB, OLD, 0.0)
    made.handed(BOB, OLD, {7: "1.7.1.0.0"}, 0.0)
    made.spoke(BOB, NEW, 1.0)
    return made


def test_copies_of_a_silent_older_session_are_given_back_once(two: Sessions) -> None:
    assert two.abandoned(1.0 + GRACE_SECONDS - 0.1) == []
    assert two.abandoned(1.0 + GRACE_SECONDS) == [(DM, "1.7.1.0.0")]
    assert two.abandoned(1.0 + 2 * GRACE_SECONDS) == []


def test_an_older_session_that_speaks_keeps_them(two: Sessions) -> None:
    for second in range(2, 40, 3):
        two.spoke(BOB, OLD, float(second))
        assert two.abandoned(second + 2.0) == []


def test_the_newest_session_keeps_what_it_has_however_silent() -> None:
    alone = Sessions()
    alone.spoke(BOB, OLD, 0.0)
    alone.handed(BOB, OLD, {7: "t"}, 0.0)
    assert alone.abandoned(ACK_WAIT - MARGIN_SECONDS - 1) == []
    assert alone.abandoned(ACK_WAIT) == [], "the broker gives it out again by itself"


def test_what_is_settled_or_handed_to_another_is_not_given_back(two: Sessions) -> None:
    two.handed(BOB, OLD, {8: "t8"}, 1.0)
    two.settled(DM, 7, renewed=False, now=2.0)
    two.handed(BOB, NEW, {8: "t8-again"}, 2.0)
    two.settled(DM, 99, renewed=False, now=2.0)
    assert two.abandoned(30.0) == []


def test_a_renewal_begins_the_ack_wait_anew(two: Sessions) -> None:
    two.settled(DM, 7, renewed=True, now=40.0)
    two.spoke(BOB, OLD, 45.0)
    assert two.abandoned(52.0) == []
    assert two.abandoned(60.0) == [(DM, "1.7.1.0.0")]


def test_a_copy_near_the_end_of_its_ack_wait_is_left_to_the_broker() -> None:
    made = Sessions()
    made.spoke(BOB, OLD, 0.0)
    made.handed(BOB, OLD, {7: "t"}, 0.0)
    made.spoke(BOB, NEW, ACK_WAIT - GRACE_SECONDS)
    assert made.abandoned(ACK_WAIT) == []


def test_a_poll_is_superseded_by_a_newer_session_and_by_the_end_of_its_own(two: Sessions) -> None:
    begun = two.spoke(BOB, NEW, 2.0)
    assert not two.superseded(BOB, NEW, begun)
    assert not two.superseded(BOB, OLD, two.spoke(BOB, OLD, 2.0)), "it asked after the newer one had come"
    two.spoke(BOB, "c" * 32, 3.0)
    assert two.superseded(BOB, NEW, begun)
    newest = two.spoke(BOB, "c" * 32, 4.0)
    two.ended(BOB, "c" * 32)
    assert two.superseded(BOB, "c" * 32, newest)
    assert not two.superseded(BOB, "", 0), "a caller without a session is told nothing of"


def test_an_ended_session_has_nothing_any_more(two: Sessions) -> None:
    two.ended(BOB, OLD)
    assert two.abandoned(1.1) == [(DM, "1.7.1.0.0")]


def test_members_do_not_see_each_other(two: Sessions) -> None:
    role = Durable("TASK_main", "svc_r")
    ann, ben = Reader(role, life("ann")), Reader(role, life("ben"))
    two.spoke(ann, OLD, 0.0)
    two.handed(ann, OLD, {1: "t"}, 0.0)
    two.spoke(ben, NEW, 1.0)
    assert [one for one in two.abandoned(20.0) if one[0] is role] == []


def test_nothing_grows(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("MOST_READERS", 2), ("MOST_SESSIONS", 2), ("MOST_COPIES", 2)):
        monkeypatch.setattr(sessions, name, value)
    made = Sessions()
    for n in range(5):
        made.spoke(Reader(DM, life(f"m{n}")), OLD, 0.0)
        made.spoke(BOB, f"{n:032x}", 0.0)
    made.spoke(Reader(DM, life("m0")), OLD, 0.0)
    assert len(made._readings) <= 2
    assert all(len(reading.sessions) <= 2 for reading in made._readings.values())
    made.handed(BOB, OLD, dict.fromkeys(range(9), "t"), 0.0)
    made.handed(BOB, "", {20: "t"}, 0.0)
    assert len(made._copies[DM]) == 2
    made.abandoned(FORGET_SECONDS)
    assert not made._readings
    assert not made._copies
