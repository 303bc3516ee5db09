"""What is typed behind ``sidecar ep call``: arguments, target and bind as values, before anything is connected.

Arguments are one JSON object, or words ``NAME=VALUE``. A word is typed by the input schema of the command: a text where
the schema wants a text, else what JSON makes of it. ``NAME:=JSON`` is JSON whatever the schema says. No I/O here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from sidecar.base.strictjson import JsonError, JsonValue, parse
from sidecar.rails.names.errors import InvalidName
from sidecar.rails.names.limits import MAX_SAFE_INTEGER
from sidecar.rails.names.tokens import GRAMMARS, MODES, Grammar

MAX_ARGUMENT_BYTES: Final = 1 << 20
"""Of one JSON text; the broker's ``max_payload`` is smaller or equal."""
MAX_WORDS: Final = 256
_REFERENCES: Final = 32
"""Steps from reference to reference; a schema that needs more is not compiled anyway."""
_EPOCH: Final = re.compile(r"0|[1-9][0-9]{0,15}")


class BadArguments(ValueError):  # noqa: N818 - it says what they are
    """What was typed is no argument of the command. The message names the member and shows no value of it."""


@dataclass(frozen=True, slots=True)
class Words:
    """Arguments as ``NAME=VALUE``, which wait for a schema. ``raw`` is JSON already."""

    typed: Mapping[str, str]
    raw: Mapping[str, JsonValue]


Given = dict[str, JsonValue] | Words | None
"""Arguments as they were typed: a JSON object, words, or none."""


def read_words(words: Sequence[str]) -> Words:
    """``NAME=VALUE`` and ``NAME:=JSON``, each name once. Raises BadArguments."""
    if len(words) > MAX_WORDS:
        raise BadArguments(f"more than {MAX_WORDS} arguments; write them as one JSON object")
    typed: dict[str, str] = {}
    raw: dict[str, JsonValue] = {}
    for at, word in enumerate(words, 1):
        name, equals, value = word.partition("=")
        is_raw = name.endswith(":")
        name = name.removesuffix(":") if is_raw else name
        if not equals or not name:
            raise BadArguments(f"argument {at} is no NAME=VALUE; a JSON object stands alone, in quotes of the shell")
        if name in typed or name in raw:
            raise BadArguments(f"{name} is given twice")
        if is_raw:
            raw[name] = _json(value, f"{name}: what stands behind := is")
        else:
            typed[name] = value
    return Words(typed, raw)


def read_object(text: bytes, where: str) -> dict[str, JsonValue]:
    """One JSON object. ``where`` says where it was read. Raises BadArguments."""
    value = _json(text, f"the arguments {where} are")
    if type(value) is not dict:
        raise BadArguments(f"the arguments {where} are no JSON object")
    return value


def _json(text: str | bytes, what: str) -> JsonValue:
    data = text.encode("utf-8", "surrogateescape") if isinstance(text, str) else text
    try:
        return parse(data, limit=MAX_ARGUMENT_BYTES)
    except JsonError as error:
        raise BadArguments(f"{what} no JSON: {error}") from None


def arguments(given: Given, schema: Mapping[str, Any] | bool) -> JsonValue:
    """The arguments as the command takes them; None for those of a command without any. Only the types of words are
    judged here, against the root document of the schema. Raises BadArguments."""
    is_void = isinstance(schema, Mapping) and schema.get("type") == "null"
    if not given:
        return None if is_void else {}
    if isinstance(given, dict):
        return given
    if is_void:
        raise BadArguments("the command takes no arguments")
    found: dict[str, JsonValue] = dict(given.raw)
    root = schema if isinstance(schema, Mapping) else {}
    names, is_open = _members(root)
    for name, text in given.typed.items():
        if name not in names and not is_open and names:
            raise BadArguments(_unknown(name, names))
        found[name] = _typed(name, text, _types(names.get(name, True), root))
    return found


def misfit(value: JsonValue, schema: Mapping[str, Any] | bool) -> str | None:
    """What is wrong with the members of arguments, by name: those that are missing, or that nothing admits. None where
    the compiled schema knows better."""
    root = _resolved(schema, schema) if isinstance(schema, Mapping) else schema
    if not isinstance(value, dict) or not isinstance(root, Mapping) or not isinstance(schema, Mapping):
        return None
    needed = root.get("required")
    if isinstance(needed, Sequence) and (missing := [str(name) for name in needed if name not in value]):
        return f"{', '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing"
    names, is_open = _members(schema)
    if not is_open and (unknown := [name for name in value if name not in names]):
        return _unknown(unknown[0], names)
    return None


def _unknown(name: str, names: Mapping[str, Any]) -> str:
    takes = f", which takes {', '.join(sorted(names))}" if names else ""
    return f"{name} is no argument of the command{takes}"


def _members(root: Mapping[str, Any]) -> tuple[dict[str, Any], bool]:
    """The members that a schema of an object names, and whether it admits others."""
    resolved = _resolved(root, root)
    if not isinstance(resolved, Mapping):
        return {}, True
    own = resolved.get("properties")
    names = dict(own) if isinstance(own, Mapping) else {}
    is_open = resolved.get("additionalProperties") is not False or "patternProperties" in resolved
    for word in ("allOf", "anyOf", "oneOf"):
        for branch in resolved.get(word, ()):
            branched = _resolved(branch, root)
            if isinstance(branched, Mapping) and isinstance(branched.get("properties"), Mapping):
                for name, member in branched["properties"].items():
                    names[name] = {"anyOf": [names[name], member]} if name in names else member
    return names, is_open and not _branches_close(resolved, root)


def _branches_close(resolved: Mapping[str, Any], root: Mapping[str, Any]) -> bool:
    branches = [_resolved(one, root) for word in ("anyOf", "oneOf") for one in resolved.get(word, ())]
    return bool(branches) and all(
        isinstance(one, Mapping) and one.get("additionalProperties") is False for one in branches
    )


def _resolved(schema: Any, root: Mapping[str, Any]) -> Any:
    """The schema behind references within the document. One that leads elsewhere admits anything here: the compiled
    schema judges the value."""
    for _ in range(_REFERENCES):
        if not isinstance(schema, Mapping) or not isinstance(schema.get("$ref"), str):
            return schema
        reference: str = schema["$ref"]
        if not reference.startswith("#"):
            return True
        schema = _pointed(root, reference[1:])
    return True


def _pointed(root: Mapping[str, Any], pointer: str) -> Any:
    at: Any = root
    for step in pointer.split("/")[1:]:
        step = step.replace("~1", "/").replace("~0", "~")
        if isinstance(at, Mapping) and step in at:
            at = at[step]
        else:
            return True
    return at


_EVERY: Final = frozenset({"string", "integer", "number", "boolean", "null", "object", "array"})


def _types(schema: Any, root: Mapping[str, Any]) -> frozenset[str]:
    """The JSON types that a schema of one member may admit."""
    resolved = _resolved(schema, root)
    if not isinstance(resolved, Mapping):
        return _EVERY
    found = _EVERY
    kind = resolved.get("type")
    if isinstance(kind, str | Sequence):
        named = {kind} if isinstance(kind, str) else set(kind)
        found = frozenset(named | ({"integer"} if "number" in named else set()))
    if isinstance(resolved.get("enum"), Sequence):
        found &= frozenset(name for one in resolved["enum"] for name in _names_of(one))
    if "const" in resolved:
        found &= _names_of(resolved["const"])
    for word in ("anyOf", "oneOf"):
        branches = resolved.get(word)
        if isinstance(branches, Sequence) and branches:
            found &= frozenset().union(*(_types(one, root) for one in branches))
    return found


def _names_of(value: object) -> frozenset[str]:
    """The types of JSON Schema that a value has."""
    match value:
        case None:
            return frozenset({"null"})
        case bool():
            return frozenset({"boolean"})
        case int():
            return frozenset({"integer", "number"})
        case float():
            return frozenset({"number", "integer"} if value.is_integer() else {"number"})
        case str():
            return frozenset({"string"})
        case Mapping():
            return frozenset({"object"})
        case _:
            return frozenset({"array"})


def _typed(name: str, text: str, types: frozenset[str]) -> JsonValue:
    """A word as the schema wants it: JSON of another type than a string goes first, so that 7 is a number where both
    are admitted, and a text stays a text where nothing else is."""
    if types != {"string"}:
        try:
            value = parse(text.encode("utf-8", "surrogateescape"), limit=MAX_ARGUMENT_BYTES)
        except JsonError:
            value = text
        if type(value) is not str and _names_of(value) & types:
            return value
    if "string" in types:
        if not text.isascii() and any("\ud800" <= one <= "\udfff" for one in text):
            raise BadArguments(f"{name} is no text of UTF-8")
        return text
    raise BadArguments(f"{name} is no {' and no '.join(sorted(types)) or 'value that the schema admits'}")


# ---- where to ----


class Aim(NamedTuple):
    """``--target``: authorization mode, and whom it names. ``uid`` None: the present lifecycle of ``owner.actor``."""

    mode: str
    owner: str | None = None
    actor: str | None = None
    uid: str | None = None
    revision: int | None = None


def read_target(text: str) -> Aim:
    """``self``, or ``MODE=OWNER.ACTOR[.UID[@REVISION]]``. Raises BadArguments."""
    mode, equals, whom = text.partition("=")
    if mode not in MODES:
        raise BadArguments(f"a target is one of {', '.join(MODES)}, with =OWNER.ACTOR[.UID] behind all but self")
    if mode == "self":
        if equals:
            raise BadArguments("the target self names nobody else")
        return Aim(mode)
    name, at, revision = whom.partition("@")
    tokens = name.split(".")
    if not equals or len(tokens) not in (2, 3) or (at and len(tokens) == 2):
        raise BadArguments(f"the target {mode} is {mode}=OWNER.ACTOR[.UID[@REVISION]]")
    for grammar, token in zip(("owner", "actor", "uid"), tokens, strict=False):
        checked(GRAMMARS[grammar], token)
    if at and (_EPOCH.fullmatch(revision) is None or int(revision) > MAX_SAFE_INTEGER):
        raise BadArguments("a mapping revision is a whole number up to 2**53 - 1")
    return Aim(mode, tokens[0], tokens[1], tokens[2] if len(tokens) == 3 else None, int(revision) if at else None)


def read_bind(text: str) -> tuple[str, int]:
    """``INSTANCE@EPOCH``: the incarnation that is to answer, and no other. Raises BadArguments."""
    instance, at, epoch = text.partition("@")
    checked(GRAMMARS["instance"], instance)
    if not at or _EPOCH.fullmatch(epoch) is None or int(epoch) > MAX_SAFE_INTEGER:
        raise BadArguments("a bind is INSTANCE@EPOCH, with an epoch that is a whole number up to 2**53 - 1")
    return instance, int(epoch)


_LIKE: Final = {
    "endpoint name": "; one is like com.acme.greeter: lower case, digits and - between dots",
    "command": "; one is like add-note: lower case, digits and -",
    "instance": "; one is as ep describe shows it",
}


def checked(grammar: Grammar, text: str) -> str:
    """What a person typed as a value of one grammar. Raises BadArguments."""
    try:
        return grammar.check(text)
    except InvalidName as error:
        raise BadArguments(f"this is no {grammar.name}: {error.reason}{_LIKE.get(grammar.name, '')}") from None
