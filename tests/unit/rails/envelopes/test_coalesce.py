"""Copies of one message."""

from __future__ import annotations

import pytest

from sidecar.rails.envelopes.coalesce import Coalescer


@pytest.mark.req("C4-18", "C7-25", "C12-12")
def test_a_message_is_shown_once_over_all_its_copies() -> None:
    seen = Coalescer()
    assert [seen.first(copy) for copy in ("m-1", "m-2", "m-1", "m-1", "m-2", "m-3")] == [
        *(True, True, False),
        *(False, False, True),
    ]


@pytest.mark.req("C4-21", "C4-22", "C4-23")
def test_the_empty_id_is_no_key() -> None:
    seen = Coalescer()
    assert [seen.first("") for _ in range(3)] == [True, True, True]
    assert len(seen) == 0


def test_what_was_not_shown_is_shown_by_the_next_copy() -> None:
    seen = Coalescer()
    assert seen.first("m-1")
    seen.forget("m-1")
    seen.forget("never seen")
    assert seen.first("m-1")


def test_the_memory_is_bounded_and_forgets_the_oldest() -> None:
    seen = Coalescer(3)
    for number in range(3):
        assert seen.first(str(number))
    assert not seen.first("0")
    assert seen.first("3")
    assert len(seen) == 3
    assert seen.first("0")
    assert not seen.first("2")
    with pytest.raises(ValueError):
        Coalescer(0)
