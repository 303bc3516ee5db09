"""Which request forms of an endpoint's commands a recorded ceiling covers (13.20, C13.20-06..10). Pure.

A *form* is one shape of request subject of a command: rail, route and authorization mode. It has parameter positions
(``POSITIONS``); the caller's triple and generation are those of the ceiling's holder. At a position all values that no
pattern names fare alike, so that one of them stands for all: a form has as many *combinations* as there are choices
of a named literal or ``null`` at each of its positions.

The patterns of a ceiling are kept as a tree of their tokens. For one form the tree gives the patterns that can match
it, cut down to its positions; a combination is then decided by a few look-ups, however many patterns there are.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import cache
from typing import Final, Protocol

from sidecar.base.strictjson import JsonValue
from sidecar.rails.names import endpoint as subjects
from sidecar.rails.names.endpoint import ROUTES, UNTARGETED
from sidecar.rails.names.principals import Lifecycle
from sidecar.rails.names.template import Template
from sidecar.rails.names.tokens import GRAMMARS, TAIL, WILDCARD, endpoint_token

MAX_COMBINATIONS: Final = 4_096
"""A form with more is not projected (C13.20-08)."""
POSITIONS: Final[Mapping[str, str]] = {
    "instance": "instanceId",
    "to_owner": "targetOwner",
    "to_actor": "targetActor",
    "to_uid": "targetUid",
    "nonce": "nonce",
}
"""Field of a request template -> the parameter position that it is (C13.20-07)."""
EVERY: Final = "*"
"""Every value of a position."""

Choice = str | None
"""At one position: a literal, or None for any value that no pattern names."""
Combination = tuple[Choice, ...]


class Rule(Protocol):
    """What may be published: ``allow`` None is everything."""

    @property
    def allow(self) -> Sequence[str] | None: ...
    @property
    def deny(self) -> Sequence[str]: ...


@dataclass(frozen=True, slots=True)
class Declared:
    """One declaration of a command, and the ids of the instances that make it. ``modes`` is empty for an untargeted
    command."""

    name: str
    journal: bool
    modes: tuple[str, ...]
    instances: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Form:
    """A covered form. ``covered`` has a value for each position: a literal, None or ``EVERY``."""

    rail: str
    route: str
    mode: str
    literals: Mapping[str, tuple[str, ...]]
    covered: tuple[Mapping[str, Choice], ...]

    def value(self) -> dict[str, JsonValue]:
        """``{rail, route?, mode?, literals, covered}``."""
        found: dict[str, JsonValue] = {"rail": self.rail}
        if self.route:
            found["route"] = self.route
        if self.mode:
            found["mode"] = self.mode
        found["literals"] = {position: list(named) for position, named in self.literals.items()}
        found["covered"] = [dict(one) for one in self.covered]
        return found


@dataclass(frozen=True, slots=True)
class Projection:
    """What a ceiling covers of one endpoint: declarations with their covered forms, and the names of commands that are
    too large to be listed. A command is in at most one of the two."""

    commands: tuple[tuple[Declared, tuple[Form, ...]], ...] = ()
    unprojected: tuple[str, ...] = ()


class _Large(Enum):
    """The one value that says: too many combinations to be listed."""

    LARGE = 0


_LARGE: Final = _Large.LARGE
_INSTANCE: Final = "instance"


class _Node:
    """Patterns by their tokens: ``next`` has literals and the wildcard, ``tail`` says that one goes on from here."""

    __slots__ = ("end", "next", "tail")

    def __init__(self) -> None:
        self.next: dict[str, _Node] = {}
        self.end = self.tail = False


def _tree(patterns: Iterable[str]) -> _Node:
    root = _Node()
    for pattern in patterns:
        node = root
        *tokens, last = pattern.split(".")
        for token in tokens if last == TAIL else (*tokens, last):
            node = node.next.setdefault(token, _Node())
        if last == TAIL:
            node.tail = True
        else:
            node.end = True
    return root


@dataclass(frozen=True, slots=True)
class _Shape:
    """A form of one command before a ceiling is put on it. ``tokens`` are literals, or the number of a position."""

    rail: str
    route: str
    mode: str
    tokens: tuple[str | int, ...]
    positions: tuple[str, ...]
    """Names of the template's fields."""
    grammars: tuple[str, ...]


class _Patterns:
    """The patterns that can match one form, each as its literals by position; by which positions they name."""

    def __init__(self, root: _Node, shape: _Shape) -> None:
        self.rows: dict[Combination, None] = {}
        """A pattern's literal at each position; None where it takes any."""
        self._masks: dict[tuple[int, ...], set[Combination]] = {}
        for row in _matching(root, shape, 0, ()):
            if row not in self.rows:
                self.rows[row] = None
                mask = tuple(at for at, token in enumerate(row) if token is not None)
                self._masks.setdefault(mask, set()).add(tuple(row[at] for at in mask))

    def match(self, choice: Combination) -> bool:
        """Whether one of them matches the representative of a combination. None is a value that none of them names."""
        return any(tuple(choice[at] for at in mask) in rows for mask, rows in self._masks.items())


def _matching(node: _Node, shape: _Shape, at: int, row: Combination) -> Iterator[Combination]:
    """The rows of the patterns below a node. A literal that no subject of the form can have there matches nothing."""
    if at == len(shape.tokens):
        if node.end:
            yield row
        return
    if node.tail:
        yield row + (None,) * (len(shape.positions) - len(row))
    token = shape.tokens[at]
    if isinstance(token, str):
        for name in (token, WILDCARD):
            if (below := node.next.get(name)) is not None:
                yield from _matching(below, shape, at + 1, row)
        return
    grammar = GRAMMARS[shape.grammars[token]]
    for name, below in node.next.items():
        if name == WILDCARD:
            yield from _matching(below, shape, at + 1, (*row, None))
        elif grammar.accepts(name):
            yield from _matching(below, shape, at + 1, (*row, name))


@dataclass(frozen=True, slots=True)
class Coverage:
    """A ceiling's publish rule, ready to be asked about the endpoints of a space.

    ``lifecycle`` and ``generation`` are the holder's: its triple stands literally in every subject, the generation in
    those of the issued rail. Without a generation that rail is not looked at."""

    rule: Rule
    space: str
    lifecycle: Lifecycle
    generation: str | None = None
    _allow: _Node = field(init=False, repr=False, compare=False)
    _deny: _Node = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        allow = (TAIL,) if self.rule.allow is None else self.rule.allow
        object.__setattr__(self, "_allow", _tree(allow))
        object.__setattr__(self, "_deny", _tree(self.rule.deny))

    def project(self, endpoint: str, declared: Sequence[Declared]) -> Projection:
        """What the ceiling covers of an endpoint (dotted name). The order of ``declared`` is kept."""
        found, large = [], set()
        for one in declared:
            forms = []
            for shape in self._shapes(endpoint, one):
                form = self._form(shape, one)
                if form is _LARGE:
                    large.add(one.name)
                elif isinstance(form, Form):
                    forms.append(form)
            if forms:
                found.append((one, tuple(forms)))
        return Projection(tuple((one, forms) for one, forms in found if one.name not in large), tuple(sorted(large)))

    def held(self, endpoint: str, declared: Sequence[Declared]) -> frozenset[str]:
        """Names of the commands with at least one permitted request, by the rules of ``project``."""
        return frozenset(
            one.name for one in declared if any(self._permitted(shape, one) for shape in self._shapes(endpoint, one))
        )

    def _shapes(self, endpoint: str, declared: Declared) -> Iterator[_Shape]:
        """The forms of a command, in a fixed order: an ephemeral command has those of the request rails, a journal
        command those of the submission rail."""
        given = {"space": self.space, "endpoint": endpoint_token(endpoint), "command": declared.name}
        owner, actor, uid = self.lifecycle.principal.owner, self.lifecycle.principal.actor, self.lifecycle.uid
        given |= {"owner": owner, "actor": actor, "uid": uid}
        modes = declared.modes or (UNTARGETED,)
        if declared.journal:
            for mode in modes:
                yield _shape("epj", "", mode, subjects.SUBMISSIONS[mode], given)
            return
        rails = [("ep", False, given)]
        if self.generation is not None:
            rails.append(("ep.v1", True, {**given, "generation": self.generation}))
        for rail, issued, values in rails:
            for route, mode in itertools.product(ROUTES, modes):
                yield _shape(rail, route, mode, subjects.REQUESTS[route, mode, issued], values)

    def _form(self, shape: _Shape, declared: Declared) -> Form | _Large | None:
        """The form; None when nothing of it is permitted, ``_LARGE`` when something is and it cannot be listed."""
        choices = self._choices(shape, declared)
        if choices is None:
            return None
        if choices.size > MAX_COMBINATIONS:
            return _LARGE if choices.some() else None
        covered = [one for one in itertools.product(*choices.domains) if choices.permits(one)]
        if not covered:
            return None
        names = [POSITIONS[position] for position in shape.positions]
        rows = (dict(zip(names, row, strict=True)) for row in choices.spread(_folded(covered, choices.domains)))
        return Form(shape.rail, shape.route, shape.mode, dict(zip(names, choices.literals(), strict=True)), tuple(rows))

    def _permitted(self, shape: _Shape, declared: Declared) -> bool:
        choices = self._choices(shape, declared)
        if choices is None:
            return False
        if choices.some():
            return True
        if choices.size > MAX_COMBINATIONS:
            return False
        return any(map(choices.permits, itertools.product(*choices.domains)))

    def _choices(self, shape: _Shape, declared: Declared) -> _Choices | None:
        """None when no allow pattern can match the form, which is most of the time."""
        allow = _Patterns(self._allow, shape)
        return _Choices(shape, declared.instances, allow, _Patterns(self._deny, shape)) if allow.rows else None


class _Choices:
    """The combinations of one form under one ceiling. ``domains`` has for each position what patterns name there, and
    None for all the rest; instances that no pattern names fare as the rest does and are put in at the end."""

    def __init__(self, shape: _Shape, instances: Iterable[str], allow: _Patterns, deny: _Patterns) -> None:
        self._allow, self._deny = allow, deny
        self.domains: list[tuple[Choice, ...]] = []
        self._unnamed: list[tuple[str, ...]] = []
        for at, position in enumerate(shape.positions):
            named = {row[at] for patterns in (allow, deny) for row in patterns.rows} - {None}
            more = set(instances) - named if position == _INSTANCE else set()
            self.domains.append((*sorted(filter(None, named)), None))
            self._unnamed.append(tuple(sorted(more)))
        self.size = math.prod(len(one) + len(more) for one, more in zip(self.domains, self._unnamed, strict=True))

    def permits(self, choice: Combination) -> bool:
        """Allow, then deny, of the one subject that stands for a combination."""
        return self._allow.match(choice) and not self._deny.match(choice)

    def some(self) -> bool:
        """Whether one of the subjects that the allow patterns give is permitted: a pattern's literals, and a value that
        no pattern names everywhere else (C13.20-09)."""
        return any(not self._deny.match(row) for row in self._allow.rows)

    def literals(self) -> Iterator[tuple[str, ...]]:
        """What is named at each position, in order."""
        for domain, more in zip(self.domains, self._unnamed, strict=True):
            yield tuple(sorted((*filter(None, domain), *more)))

    def spread(self, rows: Iterable[Combination]) -> Iterator[Combination]:
        """The rows, with one more for each instance that no pattern names where the rest is covered."""
        for row in rows:
            wide = [
                (*more, None) if choice is None else (choice,) for choice, more in zip(row, self._unnamed, strict=True)
            ]
            yield from itertools.product(*wide)


def _folded(covered: Sequence[Combination], domains: Sequence[Sequence[Choice]]) -> list[Combination]:
    """The same combinations with ``EVERY`` where every choice of a position stands beside the same others."""
    rows = list(covered)
    for at, domain in enumerate(domains):
        groups: dict[Combination, list[Choice]] = {}
        for row in rows:
            groups.setdefault((*row[:at], *row[at + 1 :]), []).append(row[at])
        rows = []
        for rest, choices in groups.items():
            here: Sequence[Choice] = (EVERY,) if len(choices) == len(domain) else choices
            rows.extend((*rest[:at], choice, *rest[at:]) for choice in here)
    return rows


class _Given(str):
    """The name of a field whose value stands in every subject of a form."""

    __slots__ = ()


@cache
def _outline(template: Template) -> tuple[tuple[str | int, ...], tuple[str, ...], tuple[str, ...]]:
    """A template as literals, numbers of positions and given fields; its positions and their grammars."""
    tokens: list[str | int] = []
    positions: list[str] = []
    grammars: list[str] = []
    for part in template.parts:
        if not part.fields:
            tokens.append(part.literals[0])
            continue
        (one,) = part.fields
        if one.name in POSITIONS:
            tokens.append(len(positions))
            positions.append(one.name)
            grammars.append(one.grammar.name)
        else:
            tokens.append(_Given(one.name))
    return tuple(tokens), tuple(positions), tuple(grammars)


def _shape(rail: str, route: str, mode: str, template: Template, given: Mapping[str, str]) -> _Shape:
    outline, positions, grammars = _outline(template)
    tokens = tuple(given[token] if isinstance(token, _Given) else token for token in outline)
    return _Shape(rail, route, mode, tokens, positions, grammars)


def parts(declared: Sequence[Declared], size: int = 32) -> Iterator[list[Declared]]:
    """The declarations in pieces of about ``size``, those of one name together: a projection of each piece by itself is
    that of all. ``declared`` is in order of names."""
    piece: list[Declared] = []
    for _, same in itertools.groupby(declared, key=lambda one: one.name):
        piece += same
        if len(piece) >= size:
            yield piece
            piece = []
    if piece:
        yield piece
