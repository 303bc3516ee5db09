"""What is still to come for posts that were handled: bounded in number and time."""

from __future__ import annotations

import pytest

from sidecar.rails.messaging.owed import MOST_OWED, OWED_SECONDS, Owed


def every(_: str) -> bool:
    return True


@pytest.mark.req("C4-19", "C8-62")
def test_a_copy_is_expected_until_it_comes() -> None:
    owed = Owed()
    assert owed.until(1.0, every) == 0.0
    owed.expect("one", "general", 1.0)
    owed.expect("two", "team.a", 2.0)
    assert owed.until(2.0, every) == 2.0 + OWED_SECONDS
    assert (owed.came("two"), owed.came("two")) == (True, False)
    assert owed.until(2.0, every) == 1.0 + OWED_SECONDS
    assert owed.came("one")
    assert owed.until(2.0, every) == 0.0


def test_one_that_does_not_come_is_not_expected_for_ever() -> None:
    owed = Owed()
    owed.expect("one", "general", 1.0)
    assert owed.until(1.0 + OWED_SECONDS, every) == 0.0
    assert owed.until(1.5, lambda channel: channel != "general") == 0.0


def test_beyond_the_bound_the_oldest_is_forgotten() -> None:
    owed = Owed()
    for number in range(MOST_OWED + 1):
        owed.expect(str(number), "general", 1.0)
    assert not owed.came("0")
    assert all(owed.came(str(number)) for number in range(1, MOST_OWED + 1))
