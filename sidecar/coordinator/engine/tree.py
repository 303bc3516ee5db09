"""A persistent ordered map: every version stays whole, so that a snapshot cut is one reference (P9-13).

A B+ tree with path copying. Nodes are never changed once a version that holds them was returned; setting or removing
a key copies the few nodes on its path. Iteration is in key order and can start after any key, which is what lets a page
continue where the last one ended without sorting or copying the cut.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any, Generic, Protocol, TypeVar

_WIDTH = 64
_FILL = 48
"""Entries of a node after a bulk build: room for some growth before the first split."""


class _Ordered(Protocol):
    def __lt__(self, other: Any, /) -> bool: ...


K = TypeVar("K", bound=_Ordered)
V = TypeVar("V")


class _Leaf(Generic[K, V]):
    __slots__ = ("keys", "values")

    def __init__(self, keys: list[K], values: list[V]) -> None:
        self.keys = keys
        self.values = values


class _Branch(Generic[K, V]):
    """``keys[i]`` is at most the smallest key below ``children[i + 1]`` and above every key below ``children[i]``."""

    __slots__ = ("children", "keys")

    def __init__(self, keys: list[K], children: list[_Node[K, V]]) -> None:
        self.keys = keys
        self.children = children


_Node = _Leaf[K, V] | _Branch[K, V]


class Tree(Generic[K, V]):
    """An immutable ordered map; ``set`` and ``remove`` return the next version and leave this one as it is."""

    __slots__ = ("_root", "_size")

    def __init__(self, root: _Node[K, V] | None = None, size: int = 0) -> None:
        self._root: _Node[K, V] = _Leaf([], []) if root is None else root
        self._size = size

    @classmethod
    def build(cls, items: Iterable[tuple[K, V]]) -> Tree[K, V]:
        """A tree of ``items``, which ascend strictly by key; ``ValueError`` otherwise."""
        keys: list[K] = []
        values: list[V] = []
        for key, value in items:
            if keys and not keys[-1] < key:
                raise ValueError("keys do not ascend")
            keys.append(key)
            values.append(value)
        size = len(keys)
        level: list[_Node[K, V]] = [
            _Leaf(keys[at : at + _FILL], values[at : at + _FILL]) for at in range(0, size, _FILL)
        ]
        firsts = keys[::_FILL]
        while len(level) > 1:
            level = [_Branch(firsts[at + 1 : at + _FILL], level[at : at + _FILL]) for at in range(0, len(level), _FILL)]
            firsts = firsts[::_FILL]
        return cls(level[0] if level else None, size)

    def __len__(self) -> int:
        return self._size

    @property
    def last(self) -> K | None:
        """The largest key, or ``None`` when there is none. As much work as the tree is high."""
        node = self._root
        while isinstance(node, _Branch):
            node = node.children[-1]
        return node.keys[-1] if node.keys else None

    def get(self, key: K) -> V | None:
        """The value of ``key``, or ``None``."""
        node = self._root
        while isinstance(node, _Branch):
            node = node.children[bisect_right(node.keys, key)]
        at = bisect_left(node.keys, key)
        if at < len(node.keys) and node.keys[at] == key:
            return node.values[at]
        return None

    def items(self, after: K | None = None) -> Iterator[tuple[K, V]]:
        """Pairs in key order, all of them or those behind ``after``."""
        for leaf, at in self._leaves(after):
            yield from zip(leaf.keys[at:], leaf.values[at:], strict=True)

    def values(self) -> Iterator[V]:
        """All values in key order. A step costs no Python code but once for each leaf."""
        return chain.from_iterable(leaf.values for leaf, _ in self._leaves(None))

    def _leaves(self, after: K | None) -> Iterator[tuple[_Leaf[K, V], int]]:
        """Leaves in order, each with the place of its first entry behind ``after``."""
        stack: list[tuple[_Branch[K, V], int]] = []
        node = self._root
        while isinstance(node, _Branch):
            at = 0 if after is None else bisect_right(node.keys, after)
            stack.append((node, at + 1))
            node = node.children[at]
        at = 0 if after is None else bisect_right(node.keys, after)
        while True:
            yield node, at
            at = 0
            while stack and stack[-1][1] == len(stack[-1][0].children):
                stack.pop()
            if not stack:
                return
            branch, index = stack.pop()
            stack.append((branch, index + 1))
            node = branch.children[index]
            while isinstance(node, _Branch):
                stack.append((node, 1))
                node = node.children[0]

    def set(self, key: K, value: V) -> Tree[K, V]:
        """The next version with ``key`` bound to ``value``."""
        node, split, grew = _set(self._root, key, value)
        if split is not None:
            node = _Branch([split[0]], [node, split[1]])
        return Tree(node, self._size + grew)

    def remove(self, key: K) -> Tree[K, V]:
        """The next version without ``key``; ``KeyError`` when it is not there."""
        node = _remove(self._root, key)
        while isinstance(node, _Branch) and len(node.children) == 1:
            node = node.children[0]
        return Tree(node, self._size - 1)


def _set(node: _Node[K, V], key: K, value: V) -> tuple[_Node[K, V], tuple[K, _Node[K, V]] | None, bool]:
    """New node, (first key, node) split off to its right if it overflowed, and whether an entry was added."""
    if isinstance(node, _Leaf):
        at = bisect_left(node.keys, key)
        values = node.values.copy()
        if at < len(node.keys) and node.keys[at] == key:
            values[at] = value
            return _Leaf(node.keys, values), None, False
        keys = node.keys.copy()
        keys.insert(at, key)
        values.insert(at, value)
        if len(keys) <= _WIDTH:
            return _Leaf(keys, values), None, True
        cut = _cut(at, len(keys))
        return _Leaf(keys[:cut], values[:cut]), (keys[cut], _Leaf(keys[cut:], values[cut:])), True
    at = bisect_right(node.keys, key)
    child, split, grew = _set(node.children[at], key, value)
    children = node.children.copy()
    children[at] = child
    if split is None:
        return _Branch(node.keys, children), None, grew
    keys = node.keys.copy()
    keys.insert(at, split[0])
    children.insert(at + 1, split[1])
    if len(children) <= _WIDTH:
        return _Branch(keys, children), None, grew
    cut = _cut(at, len(children))
    left = _Branch(keys[: cut - 1], children[:cut])
    return left, (keys[cut - 1], _Branch(keys[cut:], children[cut:])), grew


def _cut(at: int, size: int) -> int:
    """Where to split: an append leaves the left node full, anything else splits in the middle."""
    return size - 1 if at >= size - 2 else size // 2


def _remove(node: _Node[K, V], key: K) -> _Node[K, V] | None:
    """The node without ``key``; ``None`` when nothing is left of it.

    Thin nodes are not merged: removals follow the age of operations, whole neighbourhoods go, and a node that becomes
    empty goes with its last key.
    """
    if isinstance(node, _Leaf):
        at = bisect_left(node.keys, key)
        if at == len(node.keys) or node.keys[at] != key:
            raise KeyError(key)
        if len(node.keys) == 1:
            return None
        return _Leaf(node.keys[:at] + node.keys[at + 1 :], node.values[:at] + node.values[at + 1 :])
    at = bisect_right(node.keys, key)
    child = _remove(node.children[at], key)
    if child is not None:
        children = node.children.copy()
        children[at] = child
        return _Branch(node.keys, children)
    if len(node.children) == 1:
        return None
    keys = node.keys.copy()
    del keys[max(at - 1, 0)]
    return _Branch(keys, node.children[:at] + node.children[at + 1 :])
