"""Members by channel and family, against a scan of all rows."""

from __future__ import annotations

import itertools
import random

import pytest

from sidecar.rails.names.grants import covers
from sidecar.rails.names.principals import Lifecycle, Principal
from sidecar.rails.planes.delivery.index import MemberIndex
from sidecar.rails.planes.delivery.membership import Interval, Membership

PEOPLE = [Lifecycle(Principal("local", name), name[0] * 26) for name in ("alice", "bob", "carol")]
ALICE, BOB, CAROL = PEOPLE
CHANNELS = ["team", "team.a", "team.a.b", "team.b", "other.a"]
NAMED = [*CHANNELS, "team.>", "team.a.>", "other.>"]


def member(channel: str, lifecycle: Lifecycle, join: int = 0, leave: int | None = None) -> Membership:
    return Membership(channel, lifecycle, Interval(join, leave), 1)


def members(index: MemberIndex, channel: str, sequence: int = 5) -> list[Lifecycle]:
    return list(index.members(channel, sequence))


@pytest.mark.req("C7-39", "C7-43")
def test_a_family_covers_what_is_below_it_and_each_member_comes_once() -> None:
    index = MemberIndex()
    for row in (member("team.>", ALICE), member("team.a", ALICE), member("team.a", BOB), member("team.a.>", CAROL)):
        index.put(row)
    assert set(members(index, "team.a")) == {ALICE, BOB}
    assert len(members(index, "team.a")) == 2
    assert members(index, "team") == []
    assert members(index, "team.z") == [ALICE]
    assert set(members(index, "team.a.b")) == {ALICE, CAROL}
    assert len(index) == 4


@pytest.mark.req("C7-43", "C7-41")
def test_any_covering_row_that_holds_the_post_counts() -> None:
    index = MemberIndex()
    index.put(member("team.a", ALICE, 0, 3))
    index.put(member("team.>", ALICE, 4))
    assert [number for number in range(8) if index.holds(ALICE, "team.a", number)] == [1, 2, 3, 5, 6, 7]
    assert not index.holds(BOB, "team.a", 1)
    assert not index.holds(ALICE, "team", 5)


def test_a_row_is_replaced_and_removed() -> None:
    index = MemberIndex()
    index.put(member("team.a", ALICE))
    index.put(member("team.a", ALICE, 0, 3))
    assert members(index, "team.a") == []
    assert len(index) == 1
    assert [row.open for row in index.of(ALICE)] == [False]
    index.remove("team.a", BOB)
    index.remove("team.b", ALICE)
    assert len(index) == 1
    index.remove("team.a", ALICE)
    index.remove("team.a", ALICE)
    assert len(index) == 0
    assert index.of(ALICE) == []


def test_the_oldest_membership_is_one_that_is_open() -> None:
    index = MemberIndex()
    assert index.oldest() is None
    index.put(member("team.a", ALICE, 3, 9))
    assert index.oldest() is None
    index.put(member("team.a", BOB, 7))
    index.put(member("team.>", BOB, 5))
    assert index.oldest() == 5


def test_the_index_finds_what_a_scan_finds() -> None:
    seeded = random.Random(7)
    index, rows = MemberIndex(), dict[tuple[str, Lifecycle], Membership]()
    for _ in range(600):
        channel, who = seeded.choice(NAMED), seeded.choice(PEOPLE)
        if seeded.random() < 0.3:
            rows.pop((channel, who), None)
            index.remove(channel, who)
        else:
            join = seeded.randrange(6)
            row = member(channel, who, join, seeded.choice([None, join, join + 2]))
            rows[channel, who] = row
            index.put(row)
        for channel, sequence in itertools.product(CHANNELS, range(0, 9, 2)):
            wanted = {row.lifecycle for row in rows.values() if covers(row.channel, channel) and row.holds(sequence)}
            found = members(index, channel, sequence)
            assert set(found) == wanted
            assert len(found) == len(wanted)
            assert {who for who in PEOPLE if index.holds(who, channel, sequence)} == wanted
        assert len(index) == len(rows)
    assert [row.channel for row in index.of(BOB)] == sorted(channel for channel, who in rows if who == BOB)
