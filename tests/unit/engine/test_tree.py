"""The persistent ordered map against a plain dictionary."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sidecar.coordinator.engine.tree import Tree

STEPS = st.lists(st.tuples(st.booleans(), st.integers(0, 400), st.integers(0, 9)), max_size=600)


@settings(max_examples=60, deadline=None)
@given(initial=st.sets(st.integers(0, 400), max_size=300), steps=STEPS)
def test_behaves_as_a_sorted_dictionary_and_old_versions_stay(
    initial: set[int], steps: list[tuple[bool, int, int]]
) -> None:
    model = dict.fromkeys(initial, -1)
    tree: Tree[int, int] = Tree.build(sorted(model.items()))
    versions = [(tree, sorted(model.items()))]
    for remove, key, value in steps:
        if remove:
            if key in model:
                del model[key]
                tree = tree.remove(key)
            else:
                with pytest.raises(KeyError):
                    tree.remove(key)
        else:
            model[key] = value
            tree = tree.set(key, value)
        assert tree.get(key) == model.get(key)
        assert tree.last == max(model, default=None)
    versions.append((tree, sorted(model.items())))
    for version, expected in versions:
        assert list(version.items()) == expected
        assert list(version.values()) == [value for _, value in expected]
        assert len(version) == len(expected)
        for after in (-1, 0, 77, 200, 400):
            assert list(version.items(after)) == [pair for pair in expected if pair[0] > after]


@pytest.mark.parametrize("order", ["ascending", "descending", "mixed"])
def test_many_keys_in_any_order_and_all_removed(order: str) -> None:
    keys = list(range(5000))
    if order == "descending":
        keys.reverse()
    elif order == "mixed":
        keys.sort(key=lambda key: key * 7919 % 5000)
    tree: Tree[int, int] = Tree()
    for key in keys:
        tree = tree.set(key, -key)
    assert list(tree.items()) == [(key, -key) for key in range(5000)]
    full = tree
    for key in keys:
        tree = tree.remove(key)
    assert len(tree) == 0
    assert list(tree.items()) == []
    assert len(full) == 5000


def test_a_build_wants_ascending_keys() -> None:
    with pytest.raises(ValueError, match="ascend"):
        Tree.build([(1, 1), (1, 2)])
    large: Tree[int, int] = Tree.build((key, key) for key in range(10_000))
    assert [key for key, _ in large.items(4_999)] == list(range(5_000, 10_000))
    assert large.get(7_777) == 7_777
