"""Regular expressions of schemas: how long, how large, and how much one character of a text can cost (C13.7-24)."""

from __future__ import annotations

import re
from typing import Final

from sidecar.rails.endpoint.artifacts import ContractInvalid

MAX_LENGTH: Final = 512
"""Characters of one pattern."""
MAX_STATES: Final = 2_048
"""States of the automaton, by ``states``."""
_WIDE: Final = 8
"""States of what matches most of Unicode: a point, a negated class, a property."""
_COUNT: Final = re.compile(r"\{(\d{1,9})(,(\d{0,9}))?\}")
_ESCAPE: Final = re.compile(
    r"\\(?:[pP]\{[^}]*\}|u\{[^}]*\}|u[0-9A-Fa-f]{4}|x[0-9A-Fa-f]{2}|c[A-Za-z]|k<[^>]*>|.)", re.DOTALL
)
_CLASS: Final = re.compile(r"\[\^?\]?(?:\\.|[^\]\\])*\]", re.DOTALL)
_GROUP: Final = re.compile(r"\((?:\?(?:[:=!]|<[=!]|<[^>]*>|[a-z-]*:))?")


_ATOM: Final = r"(?:\\[^pPbBux0-9k]|\[\^?\]?(?:\\.|[^\]\\])*\]|[^\\\[\](){}*+?|^$])"
_ONE_WAY: Final = re.compile(rf"\^(?:{_ATOM}(?:\{{\d+\}})?)*(?:{_ATOM}(?:[*+?]|\{{\d+,\d*\}}))?\$", re.DOTALL)
"""Both anchors, and nothing but the last atom may stand a number of times that is open: one state at a time."""


def weight(pattern: str, path: str) -> int:
    """How many steps one character of a text costs at most, in evaluations of simple rules. Raises ContractInvalid.

    The automaton is built while a text is read. Where it needs more room than it has, each character costs as many
    steps as there are states; a pattern that is in one state at a time never comes there.
    """
    number = states(pattern, path)
    return number // 16 if _ONE_WAY.fullmatch(pattern) else number


def states(pattern: str, path: str) -> int:
    """About how many states the automaton of a pattern has: atoms, times what counts them. Raises ContractInvalid."""
    if len(pattern) > MAX_LENGTH:
        raise ContractInvalid(path, f"has a pattern of more than {MAX_LENGTH} characters")
    groups: list[tuple[int, int]] = []
    total, last, at = 0, 0, 0
    while at < len(pattern):
        char = pattern[at]
        if char == "(":
            groups.append((total, last))
            total, last = 0, 0
            found = _GROUP.match(pattern, at)
            at = found.end() if found else at + 1
            continue
        if char == ")":
            if not groups:
                raise ContractInvalid(path, "has a pattern whose groups do not close")
            inner = total + last + 1
            total, before = groups.pop()
            total, last = total + before, inner
            at += 1
            continue
        at, last, total = _step(pattern, at, last, total)
        if total + last > MAX_STATES:
            break
    if groups and at >= len(pattern):
        raise ContractInvalid(path, "has a pattern whose groups do not close")
    if total + last > MAX_STATES or sum(map(sum, groups)) + total + last > MAX_STATES:
        raise ContractInvalid(path, f"has a pattern of more than {MAX_STATES} states")
    return total + last


def _step(pattern: str, at: int, last: int, total: int) -> tuple[int, int, int]:
    """One atom or quantifier: (place behind it, states of the last atom, states in front of that)."""
    char = pattern[at]
    if char in "*+?":
        return at + 1, last + 1, total
    if char == "{" and (found := _COUNT.match(pattern, at)):
        least, most = int(found[1]), int(found[3] or 0)
        return found.end(), min(last * max(least, most, 1) + 1, 1 << 30), total
    if char == "\\" and (found := _ESCAPE.match(pattern, at)):
        wide = found[0][1:2] in "pPWDS"
        return found.end(), _WIDE if wide else 1, total + last
    if char == "[" and (found := _CLASS.match(pattern, at)):
        wide = found[0].startswith("[^") or any(one in found[0] for one in (r"\p", r"\P", r"\W", r"\D", r"\S"))
        return found.end(), _WIDE if wide else 1, total + last
    return at + 1, _WIDE if char == "." else 1, total + last
