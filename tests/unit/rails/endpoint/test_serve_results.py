"""What is kept of idempotent requests: for whom, for how long, and how much."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.rails.endpoint.serve_results import WAITERS, Key, Results, Running
from sidecar.rails.names.principals import Lifecycle, Principal

ALICE = Lifecycle(Principal("local", "alice"), "a1" * 13)
BOB = Lifecycle(Principal("local", "bob"), "b2" * 13)


def key(identity: str, caller: Lifecycle = ALICE, command: str = "do") -> Key:
    return Key(caller, command, identity)


def kept(results: Results, one: Key, answer: bytes = b"x", now: float = 0.0) -> None:
    assert results.find(one, now) is None
    results.begin(one)
    assert results.end(one, answer, now) == []


@pytest.mark.req("C13.8-01", "C13.8-05")
def test_a_request_runs_then_is_kept_and_a_repeat_joins_it() -> None:
    results = Results()
    running = results.begin(key("a"))
    assert results.find(key("a"), 0.0) is running
    assert running.join("reply.1")
    assert running.join(None)
    assert results.end(key("a"), b"answer", 1.0) == ["reply.1"]
    assert results.find(key("a"), 2.0) == b"answer"
    for other in (key("b"), key("a", BOB), key("a", command="else")):
        assert results.find(other, 2.0) is None


@pytest.mark.req("C13.8-08", "C13.3-44")
def test_what_was_not_executed_or_is_too_old_has_no_history() -> None:
    results = Results(seconds=10.0)
    results.begin(key("a"))
    results.end(key("a"), None, 0.0)
    assert results.find(key("a"), 0.0) is None
    kept(results, key("b"), now=5.0)
    assert results.find(key("b"), 15.0) == b"x"
    assert results.find(key("b"), 15.1) is None
    assert (len(results), results.size) == (0, 0)


@pytest.mark.req("C13.8-50")
def test_no_more_wait_or_are_kept_than_the_bounds_say() -> None:
    running = Running()
    assert [running.join(f"r.{at}") for at in range(WAITERS + 2)] == [True] * WAITERS + [False] * 2
    assert running.join(None)

    own = Results(per_caller=2)
    kept(own, key("bob", BOB))
    for name in "abc":
        kept(own, key(name))
    assert [own.find(key(name), 0.0) for name in "abc"] == [None, b"x", b"x"]
    assert own.find(key("bob", BOB), 0.0) == b"x"  # one caller drives out nobody else

    few = Results(most=2)
    for name in "abc":
        kept(few, key(name))
    assert [few.find(key(name), 0.0) is None for name in "abc"] == [True, False, False]

    large = Results(most_bytes=10)
    kept(large, key("a"), b"x" * 6)
    kept(large, key("b"), b"x" * 6)
    assert large.find(key("a"), 0.0) is None
    kept(large, key("c"), b"x" * 11)
    assert (len(large), large.size) == (0, 0)

    aged = Results(seconds=1.0)
    kept(aged, key("a"), now=0.0)
    kept(aged, key("b"), now=2.0)
    assert len(aged) == 1


@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.sampled_from([ALICE, BOB]), st.booleans(), st.integers(0, 9))))
def test_the_books_balance(steps: list[tuple[str, Lifecycle, bool, int]]) -> None:
    results = Results(most=4, per_caller=3, most_bytes=20, seconds=6.0)
    now = 0.0
    for identity, caller, executed, size in steps:
        now += size / 3
        one = key(identity, caller)
        if results.find(one, now) is None:
            results.begin(one)
            results.end(one, b"x" * size if executed else None, now)
        assert len(results) <= 4
        assert results.size == sum(len(found.answer) for found in results._kept.values()) <= 20
        assert {held for own in results._of.values() for held in own} == set(results._kept)
        assert all(own and len(own) <= 3 for own in results._of.values())
