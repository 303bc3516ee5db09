"""The ack discipline of one held copy: every state with every wish, and nothing said too late."""

from __future__ import annotations

import itertools

import pytest

from sidecar.base.clock import Now
from sidecar.rails.messaging.held import ACK_WAIT, STEPS, Copy, Held, NotShown, Wish, Word

START = Now(1_000.0, 50.0)


def after(seconds: float, *, wall: float | None = None) -> Now:
    return Now(START.wall + (seconds if wall is None else wall), START.mono + seconds)


def held(state: Copy) -> Held:
    copy = Held(START)
    copy.state = state
    return copy


@pytest.mark.req("C8-62", "C8-63", "C8-64", "C8-66", "C12-07")
@pytest.mark.parametrize(("state", "wish"), list(itertools.product(Copy, Wish)))
def test_every_state_with_every_wish(state: Copy, wish: Wish) -> None:
    copy = held(state)
    if (state, wish) == (Copy.HELD, Wish.ACK):
        with pytest.raises(NotShown):
            copy.wish(wish, START)
        assert copy.state is Copy.HELD
        return
    said = copy.wish(wish, START)
    assert (copy.state, said) == STEPS[state, wish]
    words = {Wish.ACK: Word.ACK, Wish.NAK: Word.NAK, Wish.TERM: Word.TERM, Wish.RENEW: Word.RENEW}
    assert said is (None if state is Copy.SETTLED else words.get(wish))


@pytest.mark.parametrize("wish", [Wish.ACK, Wish.NAK, Wish.TERM, Wish.FORGET])
def test_a_copy_is_settled_once(wish: Wish) -> None:
    copy = held(Copy.SHOWN)
    copy.wish(wish, START)
    assert [copy.wish(again, START) for again in Wish] == [None] * len(Wish)


def test_the_words_are_those_of_the_broker() -> None:
    assert {word.body for word in Word} == {b"+ACK", b"-NAK", b"+TERM", b"+WPI"}


@pytest.mark.req("C8-67")
@pytest.mark.parametrize("late", [after(ACK_WAIT), after(1.0, wall=ACK_WAIT), after(ACK_WAIT, wall=-5.0)])
@pytest.mark.parametrize("wish", [Wish.RENEW, Wish.NAK])
def test_a_process_that_slept_says_nothing_of_a_copy_that_others_may_have(wish: Wish, late: Now) -> None:
    assert held(Copy.SHOWN).wish(wish, late) is None
    assert held(Copy.HELD).wish(wish, late) is None


@pytest.mark.req("C8-66", "C8-67")
def test_each_renewal_that_got_through_begins_the_wait_anew() -> None:
    copy = held(Copy.SHOWN)
    for turn in range(1, 6):
        at = after(turn * (ACK_WAIT - 1))
        assert copy.wish(Wish.RENEW, at) is Word.RENEW
        copy.renewed(at)
    assert copy.fresh(after(5 * (ACK_WAIT - 1) + ACK_WAIT - 0.1))
    assert copy.wish(Wish.RENEW, after(5 * (ACK_WAIT - 1) + ACK_WAIT - 0.1)) is Word.RENEW, "and gets lost"
    late = after(5 * (ACK_WAIT - 1) + ACK_WAIT)
    assert not copy.fresh(late)
    assert copy.wish(Wish.RENEW, late) is None


@pytest.mark.parametrize(("wish", "word"), [(Wish.ACK, Word.ACK), (Wish.TERM, Word.TERM)])
def test_what_was_handled_or_is_invalid_is_settled_however_late(wish: Wish, word: Word) -> None:
    assert held(Copy.SHOWN).wish(wish, after(10 * ACK_WAIT)) is word


def test_renewals_are_due_three_times_in_one_wait() -> None:
    copy = held(Copy.SHOWN)
    assert copy.renew_in(START) == ACK_WAIT / 3
    assert copy.renew_in(after(ACK_WAIT / 3 - 1)) == pytest.approx(1.0)
    assert copy.renew_in(after(ACK_WAIT)) == 0.0
