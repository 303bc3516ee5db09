"""Shapes with bounds for the arguments and results of commands: JSON Schema 2020-12 beside the check that it means.

They complete ``sidecar.rails.envelopes.shapes``. One thing is stricter than the schema: a whole number is written
without a fraction, so that a handler never meets ``1.0`` where it counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from sidecar.rails.envelopes.errors import Fault
from sidecar.rails.envelopes.shapes import Schema, Shape, matching
from sidecar.rails.names.limits import MAX_SAFE_INTEGER

VOID: Final = Shape({"type": "null"}, lambda value: None if value is None else Fault("", "is not empty"))
"""Nothing: the payload is absent or null (C13.7-26)."""


def _boolean(value: object) -> Fault | None:
    return None if type(value) is bool else Fault("", "is no boolean")


BOOLEAN: Final = Shape({"type": "boolean"}, _boolean, bool)
TRUE: Final = Shape({"const": True}, lambda value: None if value is True else Fault("", "is not true"))


def text(longest: int, shortest: int = 0) -> Shape:
    """A string within two lengths, in characters."""
    schema: Schema = {"type": "string", "maxLength": longest}
    if shortest:
        schema["minLength"] = shortest

    def check(value: object) -> Fault | None:
        if type(value) is not str:
            return Fault("", "is no string")
        return None if shortest <= len(value) <= longest else Fault("", f"has not {shortest} to {longest} characters")

    return Shape(schema, check)


def spelled(pattern: str, longest: int, why: str) -> Shape:
    """A string of at most so many characters that a pattern with both anchors matches whole."""
    inner = matching(pattern, why)

    def check(value: object) -> Fault | None:
        if type(value) is str and len(value) > longest:
            return Fault("", f"has more than {longest} characters")
        return inner.check(value)

    return Shape({**inner.schema, "maxLength": longest}, check)


def whole(least: int = 0, most: int = MAX_SAFE_INTEGER) -> Shape:
    """A whole number within two bounds, written without a fraction."""

    def check(value: object) -> Fault | None:
        if type(value) is not int:
            return Fault("", "is no whole number")
        return None if least <= value <= most else Fault("", f"is not between {least} and {most}")

    return Shape({"type": "integer", "minimum": least, "maximum": most}, check)


def array(item: Shape, most: int, least: int = 0) -> Shape:
    """An array of ``least`` to ``most`` items."""
    schema: Schema = {"type": "array", "items": item.schema, "maxItems": most}
    if least:
        schema["minItems"] = least
    inner, always = item.check, item.always

    def check(value: object) -> Fault | None:
        if type(value) is not list:
            return Fault("", "is no array")
        if not least <= len(value) <= most:
            return Fault("", f"has not {least} to {most} items")
        for index, one in enumerate(value):
            if type(one) is not always and (fault := inner(one)) is not None:
                return fault.under(f"[{index}]")
        return None

    return Shape(schema, check)


def closed(required: Mapping[str, Shape], optional: Mapping[str, Shape] | None = None) -> Shape:
    """An object with these members and no other."""
    members = {**required, **(optional or {})}
    rows = tuple((name, shape.always, shape.check, name in required) for name, shape in members.items())
    schema: Schema = {
        "type": "object",
        "properties": {name: shape.schema for name, shape in members.items()},
        "additionalProperties": False,
    }
    if required:
        schema["required"] = sorted(required)

    def check(value: object) -> Fault | None:
        if type(value) is not dict:
            return Fault("", "is no object")
        known = 0
        for name, always, inner, needed in rows:
            if name not in value:
                if needed:
                    return Fault(name, "is missing")
                continue
            known += 1
            member = value[name]
            if type(member) is not always and (fault := inner(member)) is not None:
                return fault.under(name)
        return None if known == len(value) else Fault("", "has a member that is not known here")

    return Shape(schema, check)


def texts(most: int, longest: int) -> Shape:
    """An object of at most ``most`` names, each with a string."""
    inner = text(longest)
    schema: Schema = {"type": "object", "maxProperties": most, "additionalProperties": inner.schema}

    def check(value: object) -> Fault | None:
        if type(value) is not dict:
            return Fault("", "is no object")
        if len(value) > most:
            return Fault("", f"has more than {most} members")
        for one in value.values():
            if (fault := inner.check(one)) is not None:
                return Fault("", f"has a member that {fault.why}")
        return None

    return Shape(schema, check)


def nullable(shape: Shape) -> Shape:
    """The shape, or null."""

    def check(value: object) -> Fault | None:
        return None if value is None else shape.check(value)

    return Shape({"anyOf": [shape.schema, {"type": "null"}]}, check)


def mapping(most: int) -> Shape:
    """Any object of at most ``most`` members: its owner has its own rules for what is in it."""

    def check(value: object) -> Fault | None:
        if type(value) is not dict:
            return Fault("", "is no object")
        return None if len(value) <= most else Fault("", f"has more than {most} members")

    return Shape({"type": "object", "maxProperties": most}, check)


def by_word(tag: str, branches: Mapping[str, Shape]) -> Shape:
    """The object of the branch that its tag names; each branch has the tag as a constant."""
    checks = {name: branch.check for name, branch in branches.items()}
    wrong = Fault(tag, f"is none of {', '.join(branches)}")

    def check(value: object) -> Fault | None:
        if type(value) is not dict:
            return Fault("", "is no object")
        word = value.get(tag)
        inner = checks.get(word) if type(word) is str else None
        return wrong if inner is None else inner(value)

    return Shape({"oneOf": [branch.schema for branch in branches.values()]}, check)
