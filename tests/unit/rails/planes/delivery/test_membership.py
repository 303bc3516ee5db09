"""Rows of durable memberships, and what joins, activations and leaves make of them."""

from __future__ import annotations

import itertools

import orjson
import pytest

from sidecar.rails.names.errors import InvalidName
from sidecar.rails.names.principals import Lifecycle, Principal
from sidecar.rails.planes.delivery.membership import (
    MAX_EARLIER,
    Interval,
    InvalidRow,
    Membership,
    Writer,
    activated,
    check_channel,
    decode,
    families_of,
    join_cursor,
    joined,
    left,
)

BOB = Lifecycle(Principal("local", "bob"), "b" * 26)
AT = Writer("local.delivery", 1_000)
LATER = Writer("local.delivery", 2_000)


def row(channel: str = "team.a", cursor: int = 10) -> Membership:
    return joined(None, channel, BOB, cursor, AT)


def tombstone(found: Membership, frontier: int, writer: Writer = LATER) -> Membership:
    ended = left(found, found.generation, frontier, writer)
    assert ended is not None
    return ended


@pytest.mark.req("C7-32")
@pytest.mark.parametrize(
    ("sequence", "held"), [(0, False), (9, False), (10, False), (11, True), (20, True), (21, False), (2**53, False)]
)
def test_a_membership_holds_what_is_behind_its_join_up_to_its_leave(sequence: int, held: bool) -> None:
    ended = tombstone(row(cursor=10), 20)
    assert ended.holds(sequence) is held
    assert row(cursor=10).holds(sequence) is (sequence > 10)
    assert Interval(10, 10).holds(sequence) is False


def test_every_small_interval_holds_exactly_what_it_should() -> None:
    for join, leave, sequence in itertools.product(range(4), (None, *range(4)), range(6)):
        wanted = sequence > join and (leave is None or sequence <= leave)
        assert Interval(join, leave).holds(sequence) is wanted


@pytest.mark.req("C7-16")
def test_a_join_opens_a_row_that_is_not_activated() -> None:
    made = row()
    assert (made.channel, made.lifecycle, made.interval, made.activated) == ("team.a", BOB, Interval(10), False)
    assert (made.open, made.state, made.writer, made.updated_at) == (True, "live-confirmed", "local.delivery", 1_000)
    active = activated(made, LATER)
    assert (active.activated, active.state, active.updated_at) == (True, "durable-active", 2_000)
    assert active.interval == made.interval
    assert active.generation == made.generation


def test_a_join_of_an_open_membership_changes_nothing() -> None:
    for found in (row(), activated(row(), AT)):
        assert joined(found, "team.a", BOB, 99, LATER) is found


@pytest.mark.req("C7-34", "C7-33")
def test_a_rejoin_takes_a_new_cursor_and_knows_what_it_had_before() -> None:
    first = activated(row(cursor=10), AT)
    ended = tombstone(first, 20)
    again = joined(ended, "team.a", BOB, 30, LATER)
    assert (again.interval, again.earlier, again.activated) == (Interval(30), (Interval(10, 20),), False)
    assert again.generation > first.generation
    assert [number for number in range(40) if again.holds(number)] == [*range(11, 21), *range(31, 40)]


def test_a_row_keeps_its_last_intervals_only() -> None:
    found = row(cursor=0)
    for number in range(1, MAX_EARLIER + 5):
        found = joined(tombstone(found, 10 * number), "team.a", BOB, 10 * number + 5, LATER)
    assert len(found.earlier) == MAX_EARLIER
    assert found.earlier[-1].leave == 10 * (MAX_EARLIER + 4)
    assert decode(found.key, found.encode()) == found


@pytest.mark.parametrize("now_ms", [0, 999, 1_000, 1_001, 5_000])
def test_no_two_joins_of_a_row_have_one_generation(now_ms: int) -> None:
    first = row()
    again = joined(tombstone(first, 20), "team.a", BOB, 30, Writer("x", now_ms))
    assert again.generation > first.generation


@pytest.mark.req("C7-32")
@pytest.mark.parametrize(("asked", "frontier", "cursor"), [(5, 9, 5), (9, 9, 9), (10, 9, 9), (0, 0, 0), (2**53, 3, 3)])
def test_the_cursor_is_never_behind_the_frontier(asked: int, frontier: int, cursor: int) -> None:
    assert join_cursor(asked, frontier) == cursor


@pytest.mark.req("C7-19", "C7-31")
def test_a_leave_makes_a_tombstone_once() -> None:
    first = activated(row(cursor=10), AT)
    ended = tombstone(first, 20)
    assert (ended.open, ended.interval, ended.updated_at) == (False, Interval(10, 20), 2_000)
    assert left(ended, first.generation, 30, LATER) is None
    assert left(None, first.generation, 30, LATER) is None


def test_a_leave_of_an_earlier_join_does_not_end_a_later_one() -> None:
    first = row()
    again = joined(tombstone(first, 20), "team.a", BOB, 30, LATER)
    assert left(again, first.generation, 40, LATER) is None
    assert left(again, again.generation, 40, LATER) is not None


def test_a_leave_never_ends_before_its_join() -> None:
    assert tombstone(row(cursor=10), 3).interval == Interval(10, 10)


@pytest.mark.req("CD-01")
def test_a_family_is_kept_under_an_exact_key() -> None:
    made = row("team.>")
    assert made.key == f"team.=/local.bob.{BOB.uid}"
    assert orjson.loads(made.encode())["channel"] == "team.>"
    assert decode(made.key, made.encode()) == made


def test_a_row_is_what_others_read_too() -> None:
    ended = tombstone(activated(row(), AT), 20)
    assert orjson.loads(ended.encode()) == {
        "channel": "team.a",
        "owner": "local.bob",
        "lifecycleUid": BOB.uid,
        "state": "durable-active",
        "joinCursor": 10,
        "leaveCursor": 20,
        "activated": True,
        "generation": 1_000,
        "writerIdentity": "local.delivery",
        "updatedAt": 2_000,
    }
    for found in (row(), activated(row(), AT), ended, joined(ended, "team.a", BOB, 30, LATER)):
        assert decode(found.key, found.encode()) == found


@pytest.mark.parametrize("key", ["team.a", "team.a/local.bob", "team.*/local.bob." + "b" * 26, "", "/x", "a/b/c"])
def test_a_key_of_another_form_is_no_membership(key: str) -> None:
    with pytest.raises(InvalidRow):
        decode(key, row().encode())


@pytest.mark.parametrize(
    "change",
    [
        {"joinCursor": None},
        {"joinCursor": -1},
        {"joinCursor": 1.5},
        {"joinCursor": True},
        {"joinCursor": "1"},
        {"leaveCursor": "x"},
        {"leaveCursor": -1},
        {"generation": None},
        {"updatedAt": []},
        {"earlier": {}},
        {"earlier": [[1]]},
        {"earlier": [[1, None]]},
        {"earlier": [1]},
        {"earlier": [[1, 2]] * (MAX_EARLIER + 1)},
    ],
)
def test_a_value_of_another_form_is_no_membership(change: dict[str, object]) -> None:
    value = {**orjson.loads(row().encode()), **change}
    with pytest.raises(InvalidRow):
        decode(row().key, orjson.dumps(value))


@pytest.mark.parametrize("data", [b"", b"[]", b"{", b"null", b'{"a":1,"a":2}', b"{" + b" " * 20_000 + b"}"])
def test_what_is_no_object_is_no_membership(data: bytes) -> None:
    with pytest.raises(InvalidRow):
        decode(row().key, data)


def test_the_key_alone_says_whose_row_it_is() -> None:
    value = {**orjson.loads(row().encode()), "owner": "local.eve", "channel": "secret", "lifecycleUid": "e" * 26}
    found = decode(row().key, orjson.dumps(value))
    assert (found.channel, found.lifecycle) == ("team.a", BOB)


@pytest.mark.req("C7-38", "C7-44")
def test_a_membership_names_a_channel_or_a_family() -> None:
    for channel in ("general", "team.a", "team.>", "team.a.>"):
        assert check_channel(channel) == channel
    for other in (">", "*", "team.*", "*.x.>", "team.>.a", "team.", ".>", "", "team a", "team.=", None, 5, "a" * 5_000):
        with pytest.raises(InvalidName):
            check_channel(other)


@pytest.mark.req("C7-39", "C7-45")
@pytest.mark.parametrize(
    ("channel", "families"),
    [("team", []), ("team.a", ["team.>"]), ("team.a.b", ["team.>", "team.a.>"])],
)
def test_the_families_of_a_channel(channel: str, families: list[str]) -> None:
    assert list(families_of(channel)) == families
