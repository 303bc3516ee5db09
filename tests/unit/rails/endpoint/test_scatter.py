"""Who of many answered (C13.5-21..24)."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sidecar.rails.endpoint.scatter import MOST_EXTRA, Class, Live, Scatter

A, B, C = Live("a", 1, 0), Live("b", 2, 5), Live("c", 3, 1)


def three() -> Scatter[str]:
    return Scatter([A, B, C])


@pytest.mark.req("C13.5-22", "C13.5-23")
def test_the_first_reply_of_an_incarnation_counts_and_the_second_is_a_duplicate() -> None:
    run = three()
    assert run.hear("a", 0, "one") is Class.ANSWERED
    assert run.hear("a", 0, "two") is Class.DUPLICATE
    assert run.answers == {"a": "one"}
    assert list(run.duplicate) == [("a", 0)]
    assert run.hear("x", 0, "who") is Class.UNEXPECTED
    assert run.hear("x", 0, "who") is Class.UNEXPECTED
    assert list(run.unexpected) == [("x", 0)]
    assert run.counted[Class.UNEXPECTED] == 2
    assert not run.settled


@pytest.mark.req("C13.5-23", "C13.5-24", "C13.2-50")
def test_another_epoch_is_churn_and_only_a_later_one_settles_its_place() -> None:
    run = three()
    assert run.hear("b", 6, "new") is Class.CHURN
    assert run.hear("b", 6, "new") is Class.DUPLICATE
    assert run.hear("b", 5, "superseded") is Class.CHURN
    assert run.hear("c", 0, "old") is Class.CHURN
    assert list(run.churn) == ["b", "c"]
    assert run.hear("c", 1, "expected") is Class.ANSWERED
    assert list(run.churn) == ["b"]
    assert run.hear("a", 0, "x") is Class.ANSWERED
    assert run.settled
    assert run.missing == ()
    assert run.answers == {"c": "expected", "a": "x"}


@pytest.mark.req("C13.5-24", "C13.5-23")
def test_what_is_left_at_the_end_is_churn_where_the_registry_moved_on_and_else_missing() -> None:
    for now, churn, missing in (
        ({"a": A, "b": B}, (), ("a", "b")),
        ({"a": A._replace(revision=9), "b": B}, ("a",), ("b",)),
        ({"a": A._replace(epoch=1), "b": B}, ("a",), ("b",)),
        ({"b": B}, ("a",), ("b",)),
        ({}, ("a", "b"), ()),
    ):
        run = three()
        run.hear("c", 1, "here")
        run.over()
        assert run.open == (A, B)
        run.observe(now)
        assert (run.churn, run.missing) == (churn, missing)


@pytest.mark.req("C13.5-24")
def test_what_answers_behind_the_deadline_is_late_and_does_not_count() -> None:
    run = three()
    run.over()
    assert run.hear("a", 0, "late") is Class.LATE
    assert run.hear("a", 0, "again") is Class.DUPLICATE
    run.observe({})
    assert (run.late, run.answers, run.churn, run.missing) == ({"a": "late"}, {}, ("b", "c"), ())


@pytest.mark.req("C13.5-21")
def test_an_expected_set_has_every_instance_once() -> None:
    for wrong in ([], [A, A._replace(epoch=4)]):
        with pytest.raises(ValueError, match="once"):
            Scatter(wrong)


def test_replies_that_do_not_count_are_told_up_to_a_bound() -> None:
    run = three()
    for number in range(3 * MOST_EXTRA):
        run.hear(f"x{number}", 0, "")
    assert len(run.unexpected) == MOST_EXTRA
    assert run.counted[Class.UNEXPECTED] == 3 * MOST_EXTRA


REPLIES = st.lists(st.tuples(st.sampled_from("abcx"), st.integers(0, 6)), max_size=30)
NOW = st.dictionaries(st.sampled_from("abc"), st.tuples(st.integers(1, 3), st.integers(0, 6)))


@pytest.mark.req("C13.5-22", "C13.5-23", "C13.5-24")
@settings(max_examples=300, deadline=None)
@given(REPLIES, REPLIES, st.none() | NOW)
def test_every_expected_instance_stands_in_one_class(
    early: list[tuple[str, int]], late: list[tuple[str, int]], now: dict[str, tuple[int, int]] | None
) -> None:
    run = three()
    expected = {one.instance: one for one in (A, B, C)}
    for number, (instance, epoch) in enumerate(early):
        run.hear(instance, epoch, f"{number}")
        assert run.settled == (len(run.open) == 0)
    run.over()
    for number, (instance, epoch) in enumerate(late):
        run.hear(instance, epoch, f"late {number}")
    if now is not None:
        run.observe({name: Live(name, *rest) for name, rest in now.items()})
    classes = [set(run.answers), set(run.late), set(run.churn), set(run.missing)]
    assert set().union(*classes) == set(expected)
    assert sum(map(len, classes)) == len(expected)
    assert sum(run.counted.values()) == len(early) + len(late)
    for instance in expected:
        own = [(at, epoch) for at, (name, epoch) in enumerate(early) if name == instance]
        first = next((at for at, epoch in own if epoch == expected[instance].epoch), None)
        superseded = any(epoch > expected[instance].epoch and (first is None or at < first) for at, epoch in own)
        if first is not None and not superseded:
            assert run.answers[instance] == f"{first}"
        else:
            assert instance not in run.answers
