"""A member's standing on a channel, every state with every event, and what an interruption makes it read again."""

from __future__ import annotations

import itertools

import pytest

from sidecar.rails.messaging.membership import (
    SHOWN,
    STEPS,
    UNCLOSED,
    Event,
    Join,
    Marks,
    NotPossible,
    Scope,
    Standing,
    State,
    after,
    scope_of,
    wants_membership,
    within,
)


def walked(*events: Event, start: Standing | None = None) -> Standing:
    standing = start or Standing()
    for event in events:
        standing = after(standing, event)
    return standing


JOINED = (Event.JOIN, Event.CONFIRMED)
DURABLE = (*JOINED, Event.ASKED, Event.WRITTEN)


@pytest.mark.req("C7-18", "C7-35")
@pytest.mark.parametrize(("state", "event", "owed"), list(itertools.product(State, Event, (False, True))))
def test_every_state_with_every_event(state: State, event: Event, owed: bool) -> None:
    standing = Standing(state, owed)
    if (state, event) not in STEPS:
        with pytest.raises(NotPossible):
            after(standing, event)
        return
    moved = after(standing, event)
    # Nobody is joined but by the broker's word, and nobody durably but by the delivery plane's.
    assert not moved.joined or standing.joined or event is Event.CONFIRMED
    assert moved.state is not State.DURABLE or standing.state is State.DURABLE or event is Event.WRITTEN
    # What may be open stays owed until somebody has said that it is not.
    assert moved.owed or not owed or event in (Event.NOT_WRITTEN, Event.CLOSED)
    assert moved.shown in SHOWN


@pytest.mark.req("C7-18", "C12-13")
def test_a_subscription_that_is_refused_is_no_join() -> None:
    assert walked(Event.JOIN).joined is False
    assert walked(Event.JOIN, Event.REFUSED) == Standing()
    assert walked(*JOINED).joined


@pytest.mark.req("C7-35", "C7-37")
def test_durable_needs_both_the_subscription_and_the_membership() -> None:
    assert walked(*JOINED).state is State.LIVE
    assert walked(*JOINED, Event.ASKED).state is State.LIVE
    assert walked(*JOINED, Event.ASKED, Event.NOT_WRITTEN) == Standing(State.LIVE, False)
    assert walked(*DURABLE) == Standing(State.DURABLE, True)
    assert Join("x", State.DURABLE).durable
    assert not Join("x", State.LIVE, "why").durable


@pytest.mark.req("C7-18", "C7-36")
def test_a_late_refusal_drops_the_channel_and_owes_the_end_of_its_membership() -> None:
    dropped = walked(*DURABLE, Event.DROPPED)
    assert (dropped.joined, dropped.shown) == (False, UNCLOSED)
    assert after(dropped, Event.CLOSED) == Standing()
    assert walked(*JOINED, Event.DROPPED) == Standing()
    assert walked(*JOINED, Event.ASKED, Event.DROPPED).shown == UNCLOSED


@pytest.mark.req("C7-19", "C7-36")
def test_a_leave_is_over_when_nothing_is_open() -> None:
    left = walked(*DURABLE, Event.LEAVE)
    assert left.joined is False
    assert walked(Event.CLOSED, start=left) == Standing()
    unclosed = walked(Event.GONE, start=left)
    assert unclosed.shown == UNCLOSED
    assert walked(*JOINED, start=unclosed) == Standing(State.LIVE, True)
    assert walked(Event.JOIN, Event.REFUSED, start=unclosed) == unclosed
    assert walked(Event.LEAVE) == Standing(State.LEAVING, True)


@pytest.mark.req("C7-16", "C7-38", "C7-44")
@pytest.mark.parametrize(
    ("channel", "scope", "live", "durable"),
    [
        ("general", Scope.CONCRETE, False, True),
        ("team.backend", Scope.CONCRETE, False, True),
        ("team.>", Scope.FAMILY, True, True),
        ("a.b.>", Scope.FAMILY, True, True),
        (">", Scope.PATTERN, False, False),
        ("*", Scope.PATTERN, False, False),
        ("team.*", Scope.PATTERN, False, False),
        ("*.x.>", Scope.PATTERN, False, False),
    ],
)
def test_what_a_durable_membership_may_name(channel: str, scope: Scope, live: bool, durable: bool) -> None:
    assert scope_of(channel) is scope
    assert wants_membership(channel, "live") is live
    assert wants_membership(channel, "durable") is durable


@pytest.mark.req("C7-45", "C7-39")
def test_a_pattern_matches_whole_tokens() -> None:
    channels = ["team", "team.a", "team.a.b", "teams.a"]
    assert within("team.>", channels) == ["team.a", "team.a.b"]
    assert within("team.*", channels) == ["team.a"]
    assert within(">", channels) == channels


def test_a_mark_counts_when_the_next_one_is_there() -> None:
    marks = Marks()
    marks.interrupted()
    assert not marks.known
    assert marks.gap is None
    marks.begin(10)
    assert marks.known
    marks.mark(20)
    marks.interrupted()
    assert marks.gap == 10
    marks.mark(30)
    marks.interrupted()
    assert marks.gap == 10
    marks.read_up_to(40)
    assert marks.gap is None
    marks.mark(50)
    marks.mark(60)
    marks.interrupted()
    assert marks.gap == 50
    assert marks.watermark == 10


def test_a_stream_that_ends_before_the_last_mark_is_another_one() -> None:
    marks = Marks()
    marks.begin(100)
    marks.mark(120)
    marks.mark(7)
    marks.interrupted()
    assert marks.gap == 7


@pytest.mark.req("C7-22", "C7-24")
def test_what_is_missing_at_a_join_ends_where_the_subscription_stood() -> None:
    marks = Marks()
    marks.begin(7)
    marks.interrupted()
    marks.ends(9)
    assert (marks.gap, marks.end) == (7, 9)
    marks.interrupted()  # another break: nobody knows any more where it ends
    assert (marks.gap, marks.end) == (7, None)
    marks.ends(9)
    marks.read_up_to(9)
    assert (marks.gap, marks.end) == (None, None)
    marks.interrupted()
    assert marks.gap == 9
    quiet = Marks()
    quiet.begin(7)
    quiet.interrupted()
    quiet.ends(7)
    assert (quiet.gap, quiet.end) == (None, None), "nothing came in between"
