"""The ceiling of a credential: what it may publish and subscribe at most, as evidence records it (C13.15-06).

``allow`` of a rule is None for "everything", which is what the broker reads an absent list as; an empty tuple is
nothing. The JSON form is closed and is compared byte by byte, so the order of the rows is kept as minted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from sidecar.rails.names.grants import covers, overlaps
from sidecar.rails.names.limits import MAX_SUBJECT
from sidecar.rails.names.tokens import TAIL
from sidecar.rails.space.claims import Access, Permissions

MAX_ROWS: Final = 4096


class InvalidCeiling(ValueError):  # noqa: N818 - a state of the value
    """A value that is no ceiling."""


@dataclass(frozen=True, slots=True)
class Rule:
    """One direction: rows of which one must match, and rows of which none may."""

    allow: tuple[str, ...] | None
    deny: tuple[str, ...] = ()

    def permits(self, subject: str, queue: str = "") -> bool:
        """Whether everything that ``subject`` (a subject or pattern) matches is allowed and nothing of it denied.

        A row with a queue group permits that group alone.
        """
        if any(overlaps(deny.partition(" ")[0], subject) for deny in self.deny):
            return False
        if self.allow is None:
            return True
        return any(_within(row, subject, queue) for row in self.allow)

    def value(self) -> dict[str, Any]:
        """The JSON object of a rule."""
        if self.allow is None:
            allow: dict[str, Any] = {"mode": "all"}
        elif not self.allow:
            allow = {"mode": "none"}
        else:
            allow = {"mode": "patterns", "patterns": list(self.allow)}
        return {"allow": allow, "deny": list(self.deny)}


def _within(row: str, subject: str, queue: str) -> bool:
    outer, _, group = row.partition(" ")
    return covers(outer, subject) and (not group or group == queue)


@dataclass(frozen=True, slots=True)
class Ceiling:
    """Both directions."""

    publish: Rule
    subscribe: Rule

    def value(self) -> dict[str, Any]:
        """The JSON object that evidence holds as ``permissions``."""
        return {"publish": self.publish.value(), "subscribe": self.subscribe.value()}


def ceiling_of(granted: Permissions) -> Ceiling:
    """The ceiling of a minted credential, from its rows as the broker takes them."""
    return Ceiling(_rule(granted.publish), _rule(granted.subscribe))


def _rule(access: Access) -> Rule:
    if access.allow:
        return Rule(access.allow, access.deny)
    # An omitted allow list is everything for the broker; a deny of everything then leaves nothing.
    return Rule((), access.deny) if TAIL in access.deny else Rule(None, access.deny)


def read_ceiling(value: object) -> Ceiling:
    """The ceiling in a JSON value; closed. Raises InvalidCeiling."""
    if not isinstance(value, dict) or value.keys() != {"publish", "subscribe"}:
        raise InvalidCeiling("a ceiling has a publish and a subscribe rule")
    return Ceiling(_read_rule(value["publish"]), _read_rule(value["subscribe"]))


def _read_rule(value: object) -> Rule:
    if not isinstance(value, dict) or value.keys() != {"allow", "deny"}:
        raise InvalidCeiling("a rule has allow and deny")
    allow, deny = value["allow"], _rows(value["deny"])
    mode = allow.get("mode") if isinstance(allow, dict) else None
    if mode == "patterns" and allow.keys() == {"mode", "patterns"}:
        rows = _rows(allow["patterns"])
        if not rows:
            raise InvalidCeiling("patterns without one are the mode none")
        return Rule(rows, deny)
    if mode in ("all", "none") and allow.keys() == {"mode"}:
        return Rule(None if mode == "all" else (), deny)
    raise InvalidCeiling("allow is all, none or patterns")


def _rows(value: object) -> tuple[str, ...]:
    if not isinstance(value, list) or len(value) > MAX_ROWS:
        raise InvalidCeiling(f"rows are a list of at most {MAX_ROWS}")
    if not all(isinstance(row, str) and 0 < len(row) <= MAX_SUBJECT for row in value):
        raise InvalidCeiling("a row is a subject")
    return tuple(value)
