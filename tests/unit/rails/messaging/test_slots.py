"""Names of history consumers: taken in turns, and left alone while something may stand under them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.rails.messaging.slots import NoFreeName, Slots
from sidecar.rails.names.limits import HISTORY_READER_SLOTS

THRESHOLD = 30.0


@pytest.mark.req("CD-13", "CB-67")
def test_names_are_taken_in_turns() -> None:
    slots = Slots(THRESHOLD)
    assert [slots.take(0.0) for _ in range(10)] == [*range(8), 0, 1]
    assert HISTORY_READER_SLOTS == 8


@pytest.mark.req("CD-14", "CB-67")
def test_a_name_that_was_left_rests_until_the_threshold_has_passed() -> None:
    slots = Slots(THRESHOLD)
    for slot in range(8):
        slots.leave(slot, 100.0 + slot)
    with pytest.raises(NoFreeName) as none:
        slots.take(110.0)
    assert none.value.seconds == 20.0
    assert slots.take(130.0) == 0
    slots.leave(0, 130.0)
    with pytest.raises(NoFreeName):
        slots.take(130.5)
    slots.freed(5)
    assert slots.take(130.5) == 5


@pytest.mark.req("CD-14")
@given(st.lists(st.tuples(st.sampled_from(["take", "leave", "freed"]), st.integers(0, 7), st.integers(0, 20))))
def test_no_name_is_taken_while_it_rests(steps: list[tuple[str, int, int]]) -> None:
    slots, now = Slots(THRESHOLD), 0.0
    resting: dict[int, float] = {}
    for what, slot, passed in steps:
        now += passed
        if what == "leave":
            slots.leave(slot, now)
            resting[slot] = now + THRESHOLD
        elif what == "freed":
            slots.freed(slot)
            resting.pop(slot, None)
        else:
            taken: int | None
            try:
                taken, wait = slots.take(now), 0.0
            except NoFreeName as none:
                taken, wait = None, none.seconds
            if taken is None:
                assert len(resting) == 8
                assert 0 < wait <= THRESHOLD
                assert now < min(resting.values())
            else:
                assert resting.get(taken, 0.0) <= now
                resting.pop(taken, None)
