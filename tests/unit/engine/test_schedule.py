"""The queue in which principals take turns: order, fairness, nothing lost."""

from __future__ import annotations

from collections import defaultdict, deque
from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sidecar.coordinator.engine.schedule import FairQueue

FLOWS = [bytes([number]) for number in range(4)]


def everything(queue: FairQueue[str]) -> list[str]:
    found = []
    while (entry := queue.pop()) is not None:
        found.append(entry[0])
    return found


def test_an_empty_queue_gives_nothing() -> None:
    queue: FairQueue[str] = FairQueue(1)
    assert (queue.pop(), len(queue)) == (None, 0)
    queue.push(b"a", "a1", 1)
    assert (queue.pop(), len(queue)) == (("a1", 1), 0)
    assert queue.pop() is None


def test_flows_take_turns_item_by_item() -> None:
    queue: FairQueue[str] = FairQueue(1)
    for item in ("a1", "a2", "a3", "b1", "c1", "c2"):
        queue.push(item[:1].encode(), item, 1)
    assert everything(queue) == ["a1", "b1", "c1", "a2", "c2", "a3"]


def test_a_large_item_is_paid_with_the_next_turns() -> None:
    queue: FairQueue[str] = FairQueue(2)
    for number in range(1, 7):
        queue.push(b"small", f"s{number}", 2)
    queue.push(b"large", "L1", 6)
    queue.push(b"large", "L2", 6)
    assert everything(queue) == ["s1", "L1", "s2", "s3", "s4", "L2", "s5", "s6"]


def test_a_debt_is_not_forgotten_when_the_flow_runs_empty_among_others() -> None:
    queue: FairQueue[str] = FairQueue(1)
    for number in range(1, 7):
        queue.push(b"small", f"s{number}", 1)
    queue.push(b"large", "L1", 4)
    assert [queue.pop(), queue.pop(), queue.pop()] == [("s1", 1), ("L1", 4), ("s2", 1)]
    queue.push(b"large", "L2", 4)
    assert everything(queue) == ["s3", "s4", "s5", "L2", "s6"]


def test_a_debt_ends_with_the_last_item_of_all() -> None:
    queue: FairQueue[str] = FairQueue(1)
    queue.push(b"large", "L1", 1_000)
    assert everything(queue) == ["L1"]
    queue.push(b"large", "L2", 1)
    queue.push(b"small", "s1", 1)
    assert everything(queue) == ["L2", "s1"]


@pytest.mark.parametrize("cost", [1, 4_096, 266_240])
def test_a_newcomer_is_next_behind_ten_thousand_items(cost: int) -> None:
    queue: FairQueue[int | str] = FairQueue(4_096)
    for number in range(10_000):
        queue.push(b"a", number, 4_096)
    assert [queue.pop() for _ in range(3)] == [(number, 4_096) for number in range(3)]
    queue.push(b"b", "newcomer", cost)
    assert "newcomer" in {found[0] for found in (queue.pop(), queue.pop()) if found is not None}
    assert len(queue) == 9_997 - 1


def test_dropping_one_owner_leaves_the_order_of_the_others() -> None:
    queue: FairQueue[str] = FairQueue(1)
    for item in ("a1", "ax", "a2", "b1", "ax"):
        queue.push(item[:1].encode(), item, 1)
    queue.discard(b"a", lambda item: item == "ax")
    queue.discard(b"nobody", lambda item: True)
    assert len(queue) == 3
    assert everything(queue) == ["a1", "b1", "a2"]
    queue.push(b"a", "a3", 1)
    queue.discard(b"a", lambda item: True)
    assert (len(queue), queue.pop()) == (0, None)


@pytest.mark.parametrize("bad", [0, -1])
def test_what_costs_nothing_would_never_end_a_turn(bad: int) -> None:
    with pytest.raises(ValueError, match="quantum"):
        FairQueue(bad)
    queue: FairQueue[str] = FairQueue(1)
    with pytest.raises(ValueError, match="cost"):
        queue.push(b"a", "a1", bad)
    assert len(queue) == 0


@given(
    quantum=st.integers(1, 50),
    costs=st.lists(st.lists(st.integers(1, 200), min_size=1, max_size=40), min_size=2, max_size=5),
)
@settings(max_examples=200, deadline=None)
def test_what_backlogged_flows_were_served_differs_by_a_turn_and_an_item(quantum: int, costs: list[list[int]]) -> None:
    queue: FairQueue[bytes] = FairQueue(quantum)
    flows = {bytes([number]): deque(own) for number, own in enumerate(costs)}
    for key, own in flows.items():
        for cost in own:
            queue.push(key, key, cost)
    largest = max(max(own) for own in costs)
    served = dict.fromkeys(flows, 0)
    while all(flows.values()):
        found = queue.pop()
        assert found is not None
        key, cost = found
        assert flows[key].popleft() == cost
        served[key] += cost
        assert max(served.values()) - min(served.values()) < quantum + largest


@given(number=st.integers(2, 8), each=st.integers(1, 30))
@settings(max_examples=50, deadline=None)
def test_equal_items_of_backlogged_flows_differ_by_one_quantum(number: int, each: int) -> None:
    queue: FairQueue[bytes] = FairQueue(7)
    for key in range(number):
        for _ in range(each):
            queue.push(bytes([key]), bytes([key]), 7)
    served = dict.fromkeys([bytes([key]) for key in range(number)], 0)
    while (found := queue.pop()) is not None:
        served[found[0]] += 7
        assert max(served.values()) - min(served.values()) <= 7


@given(
    st.lists(
        st.tuples(st.just("push"), st.sampled_from(FLOWS), st.integers(1, 30))
        | st.tuples(st.just("pop"), st.just(b""), st.integers(1, 5))
        | st.tuples(st.just("discard"), st.sampled_from(FLOWS), st.integers(0, 1)),
        max_size=120,
    )
)
@settings(max_examples=300, deadline=None)
def test_every_flow_is_first_in_first_out_and_nothing_is_lost(calls: list[tuple[str, bytes, int]]) -> None:
    queue: FairQueue[tuple[bytes, int]] = FairQueue(10)
    model: defaultdict[bytes, deque[tuple[bytes, int]]] = defaultdict(deque)
    numbers = count()
    for name, key, value in calls:
        if name == "push":
            item = (key, next(numbers))
            queue.push(key, item, value)
            model[key].append(item)
        elif name == "discard":
            queue.discard(key, lambda item, odd=value: item[1] % 2 == odd)  # type: ignore[misc]
            model[key] = deque(item for item in model[key] if item[1] % 2 != value)
        else:
            for _ in range(value):
                found = queue.pop()
                if found is None:
                    assert not any(model.values())
                else:
                    assert model[found[0][0]].popleft() == found[0]
        assert len(queue) == sum(map(len, model.values()))
    while (found := queue.pop()) is not None:
        assert model[found[0][0]].popleft() == found[0]
    assert not any(model.values())
