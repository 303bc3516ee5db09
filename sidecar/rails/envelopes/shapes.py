"""Building blocks of document shapes. Each one is two things at once: JSON Schema, and a check that is compiled once.

The two are written beside each other and tested against each other, so that the schema we publish and the code that
judges traffic cannot drift apart (rows C5-20, C5-22, CS-01). A check takes what a JSON reader builds: exact types only.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from sidecar.rails.envelopes.errors import Fault

Check: TypeAlias = Callable[[object], Fault | None]
Schema: TypeAlias = dict[str, Any]

_MISSING: Final = object()


@dataclass(frozen=True, slots=True)
class Shape:
    """``schema`` in draft-07, and ``check``: None if a value has the shape, else its first fault.

    Every value of exactly the type ``always`` has the shape: containers ask that before they call the check.
    """

    schema: Schema
    check: Check
    always: type | None = None


def _text(value: object) -> Fault | None:
    return None if type(value) is str else Fault("", "is no string")


def _number(value: object) -> Fault | None:
    return None if type(value) is int or type(value) is float else Fault("", "is no number")


def _anything(value: object) -> Fault | None:
    return None


TEXT: Final = Shape({"type": "string"}, _text, str)
NUMBER: Final = Shape({"type": "number"}, _number, int)
ANYTHING: Final = Shape({}, _anything)


def words(*allowed: str) -> Shape:
    """One of some strings."""
    known = frozenset(allowed)
    wrong = Fault("", f"is none of {', '.join(allowed)}")

    def check(value: object) -> Fault | None:
        return None if type(value) is str and value in known else wrong

    return Shape({"type": "string", "enum": list(allowed)}, check)


def constant(word: str) -> Shape:
    """Exactly one string."""
    wrong = Fault("", f"is not {word}")
    return Shape({"type": "string", "const": word}, lambda value: None if value == word else wrong)


def matching(pattern: str, why: str) -> Shape:
    """A string that a pattern with both anchors matches whole."""
    # A newline may stand before the end that `$` means in Python; a full match leaves nothing behind.
    found = re.compile(pattern).fullmatch
    wrong = Fault("", why)

    def check(value: object) -> Fault | None:
        return None if type(value) is str and found(value) is not None else wrong

    return Shape({"type": "string", "pattern": pattern}, check)


def _whole(value: object) -> Fault | None:
    if type(value) is float and value.is_integer():
        value = int(value)
    if type(value) is not int:
        return Fault("", "is no whole number")
    return None if value >= 0 else Fault("", "is negative")


WHOLE: Final = Shape({"type": "integer", "minimum": 0}, _whole)
"""A whole number from 0 on, also when it is spelled with a fraction of zero."""


def list_of(item: Shape) -> Shape:
    """An array of any length."""
    inner, always = item.check, item.always

    def check(value: object) -> Fault | None:
        if type(value) is not list:
            return Fault("", "is no array")
        for index, one in enumerate(value):
            if type(one) is not always and (fault := inner(one)) is not None:
                return fault.under(f"[{index}]")
        return None

    return Shape({"type": "array", "items": item.schema}, check)


def map_of(member: Shape) -> Shape:
    """An object of any names, which the fault does not tell."""
    inner = member.check

    def check(value: object) -> Fault | None:
        if type(value) is not dict:
            return Fault("", "is no object")
        for one in value.values():
            if (fault := inner(one)) is not None:
                return Fault("", f"has a member that {fault.why}")
        return None

    return Shape({"type": "object", "additionalProperties": member.schema}, check)


def record(
    required: Mapping[str, Shape], optional: Mapping[str, Shape] | None = None, *, is_open: bool = False
) -> Shape:
    """An object with named members; any other name passes (C5-16). ``is_open`` says so in the schema too."""
    members = {**required, **(optional or {})}
    needed = tuple((name, shape.always, shape.check) for name, shape in required.items())
    others = tuple((name, shape.check) for name, shape in (optional or {}).items())
    apart = frozenset(optional or ()).isdisjoint
    schema: Schema = {
        "type": "object",
        "properties": {name: shape.schema for name, shape in sorted(members.items())},
        "required": sorted(required),
    }
    if is_open:
        schema["additionalProperties"] = {}

    def check(value: object) -> Fault | None:
        if type(value) is not dict:
            return Fault("", "is no object")
        get = value.get
        for name, always, inner in needed:
            member = get(name, _MISSING)
            if type(member) is always:
                continue
            if member is _MISSING:
                return Fault(name, "is missing")
            if (fault := inner(member)) is not None:
                return fault.under(name)
        if apart(value):  # most documents have few of them, or none
            return None
        for name, inner in others:
            if name in value and (fault := inner(value[name])) is not None:
                return fault.under(name)
        return None

    return Shape(schema, check)


def exclusive(common: Mapping[str, Shape], optional: Mapping[str, Shape], choices: Mapping[str, Shape]) -> Shape:
    """An object with exactly one of some members; a second one is refused whatever its value is (C4-01)."""
    branches = {name: record({**common, name: shape}, optional) for name, shape in choices.items()}
    checks = tuple((name, branch.check) for name, branch in branches.items())
    wrong = Fault(", ".join(choices), "must be exactly one member")
    schemas = [
        {**branch.schema, "not": {"anyOf": [{"required": [other]} for other in sorted(choices) if other != name]}}
        for name, branch in branches.items()
    ]

    def check(value: object) -> Fault | None:
        if type(value) is not dict:
            return Fault("", "is no object")
        found = None
        for name, inner in checks:
            if name in value:
                if found is not None:
                    return wrong
                found = inner
        return wrong if found is None else found(value)

    return Shape({"oneOf": schemas}, check)


def tagged(tag: str, branches: Mapping[str, Shape], otherwise: Shape) -> Shape:
    """An object of the branch that its tag names; ``otherwise`` must refuse the tags of all branches."""
    checks = {name: branch.check for name, branch in branches.items()}

    def check(value: object) -> Fault | None:
        if type(value) is not dict:
            return Fault("", "is no object")
        word = value.get(tag)
        return (checks.get(word, otherwise.check) if type(word) is str else otherwise.check)(value)

    return Shape({"oneOf": [*(branch.schema for branch in branches.values()), otherwise.schema]}, check)
