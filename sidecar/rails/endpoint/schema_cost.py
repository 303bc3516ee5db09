"""How much work a schema can make for one part of a value: found by a walk over what is applied together (C13.7-24).

A validator applies to a part of a value all schemas that its containers send there, each as often as there are ways
to it. Ladders of unions multiply the ways, and so do schemas that come back to themselves twice for one part. The walk
follows every combination that can come together, from level to level; it ends where nothing new comes, and refuses
what grows beyond the bound, or what has too many combinations to be followed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final, TypeAlias

from sidecar.base.strictjson import MAX_DEPTH
from sidecar.rails.endpoint.artifacts import ContractInvalid
from sidecar.rails.endpoint.schema_walk import MAX_CHAIN, Bundle, Node

MAX_EVALUATIONS: Final = 1_024
"""How often schemas may be applied to one part of a value, weighted."""
MAX_STEPS: Final = 100_000
"""Steps of the walk: a tenth of a second, about."""

Applied: TypeAlias = "dict[Node, int]"
"""Schemas that are applied to one part of a value, with how often."""


def work_of(bundle: Bundle) -> int:
    """Weighted evaluations of one part of a value, at most ``MAX_EVALUATIONS``. Raises ContractInvalid."""
    return _Walk(bundle).work()


class _Walk:
    def __init__(self, bundle: Bundle) -> None:
        self._bundle = bundle
        self._steps = 0
        _check_order(bundle)
        self._expanded: dict[Node, Applied] = {}

    def work(self) -> int:
        """Level by level: a value has no more levels than a strict text of JSON can have."""
        most = 1
        level = [self._expand(self._bundle.root)]
        seen: set[frozenset[tuple[Node, int]]] = set()
        for _ in range(MAX_DEPTH + 1):
            below: list[Applied] = []
            for applied in level:
                for names, part in self._parts(applied):
                    most = max(most, self._weight(part, names))
                    key = frozenset(part.items())
                    if key not in seen:
                        seen.add(key)
                        below.append(part)
            if not below:
                break
            level = below
        return max(most, self._weight(self._expand(self._bundle.root), 0))

    def _weight(self, applied: Applied, names: int) -> int:
        weight = names + sum(count * node.weight for node, count in applied.items())
        if weight > MAX_EVALUATIONS:
            raise ContractInvalid("", f"makes more than {MAX_EVALUATIONS} evaluations of one part of a value")
        return weight

    def _expand(self, node: Node) -> Applied:
        """A schema with all that it applies to the same value."""
        found = self._expanded.get(node)
        if found is not None:
            return found
        applied: Applied = {node: 1} if node.weight else {}
        factor = 2 if node.again else 1
        for one in (*node.here, *node.referred):
            self._add(applied, self._expand(one), factor)
        self._weight(applied, 0)
        self._expanded[node] = applied
        return applied

    def _add(self, applied: Applied, more: Mapping[Node, int], factor: int = 1) -> None:
        self._steps += len(more) + 1
        if self._steps > MAX_STEPS:
            raise ContractInvalid("", "has more combinations of schemas than can be followed")
        for node, count in more.items():
            applied[node] = applied.get(node, 0) + count * factor

    def _parts(self, applied: Applied) -> Iterator[tuple[int, Applied]]:
        """What comes together at each kind of part, with the weight of the patterns that names are matched with."""
        named = [(node, count) for node, count in applied.items() if node.named]
        rest: Applied = {}
        names = 0
        for node, count in applied.items():
            names += count * node.name_weight
            for one in (*node.patterned, *node.each_member, *((node.other,) if node.other else ())):
                self._add(rest, self._expand(one), count)
        yield names, rest
        for name in {name for node, _ in named for name in node.named}:
            part = dict(rest)
            self._add(part, {})
            for node, count in named:
                if (one := node.named.get(name)) is not None:
                    self._add(part, self._expand(one), count)
                    if node.other is not None:
                        self._take_away(part, self._expand(node.other), count)
            yield names, part
        if any(node.names for node in applied):
            part = {}
            for node, count in applied.items():
                if node.names is not None:
                    self._add(part, self._expand(node.names), count)
            yield 0, part
        yield from ((0, part) for part in self._items(applied))

    def _take_away(self, part: Applied, less: Mapping[Node, int], factor: int) -> None:
        """What goes to members that are not named is not applied to one that is."""
        for node, count in less.items():
            part[node] -= count * factor
            if not part[node]:
                del part[node]

    def _items(self, applied: Applied) -> Iterator[Applied]:
        """What comes together at each of the first items, and at those behind."""
        longest = max((len(node.placed) for node in applied), default=0)
        if not longest and not any(node.item or node.each_item for node in applied):
            return
        for index in range(longest + 1):
            part: Applied = {}
            for node, count in applied.items():
                own = node.placed[index] if index < len(node.placed) else node.item
                for one in (*node.each_item, *((own,) if own else ())):
                    self._add(part, self._expand(one), count)
            yield part


def _check_order(bundle: Bundle) -> None:
    """Refuse a schema that applies itself to the same value, and chains of references that are too long.

    What a schema applies comes in front of it: an order exists exactly if there is no cycle.
    """
    waiting = {node: len(node.here) + len(node.referred) for node in bundle.nodes}
    users: dict[Node, list[tuple[Node, int]]] = {}
    for node in bundle.nodes:
        for one in node.here:
            users.setdefault(one, []).append((node, 0))
        for one in node.referred:
            users.setdefault(one, []).append((node, 1))
    chain = dict.fromkeys(bundle.nodes, 0)
    ready = [node for node, count in waiting.items() if not count]
    done = 0
    while ready:
        node = ready.pop()
        done += 1
        for user, hop in users.get(node, ()):
            chain[user] = max(chain[user], chain[node] + hop)
            if chain[user] > MAX_CHAIN:
                raise ContractInvalid(user.path, f"begins a chain of more than {MAX_CHAIN} references")
            waiting[user] -= 1
            if not waiting[user]:
                ready.append(user)
    if done != len(bundle.nodes):
        path = next(node.path for node, count in waiting.items() if count)
        raise ContractInvalid(path, "applies itself to the same value, or is applied by what does")
