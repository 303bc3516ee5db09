"""Schemas of commands: JSON Schema 2020-12 in closed bundles, compiled once and judged by a real validator (13.7).

``schema`` makes one out of documents, ``load`` out of artifacts that somebody fetched. Both refuse what is outside of
the profile with ``ContractInvalid``, so that whatever compiles can be run on what a stranger sends.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import orjson
from jsonschema_rs import Draft202012, Draft202012Validator, RegexOptions, Registry, ValidationError

from sidecar.base.strictjson import JsonValue
from sidecar.rails.endpoint import artifacts
from sidecar.rails.endpoint.artifacts import (
    MAX_ARTIFACTS,
    MAX_CLOSURE,
    REFERENCE,
    Closure,
    ContractInvalid,
    Documents,
    MissingArtifact,
    artifact,
    digest_of,
    manifest,
    read_closure,
)
from sidecar.rails.endpoint.schema_cost import work_of
from sidecar.rails.endpoint.schema_walk import DIALECT, Bundle
from sidecar.rails.endpoint.shapes import VOID
from sidecar.rails.envelopes.errors import Fault
from sidecar.rails.envelopes.shapes import Check, Shape

__all__ = [
    "VOID_SCHEMA",
    "ContractInvalid",
    "MissingArtifact",
    "Schema",
    "load",
    "needed",
    "schema",
]

CACHED: Final = 256
"""Compiled closures that are kept, the ones used last (C13.7-24)."""
MAX_WORK: Final = 1 << 24
"""Evaluations times bytes of one value: what is larger is not validated but refused."""
CHEAP: Final = 8
"""Up to so many evaluations of each part of a value, its size is not measured: the message is bounded already."""
EXPLAINED: Final = 1 << 15
"""Evaluations times bytes of one value up to which a fault is explained: to look for the rule that is broken takes a
validator longer than to say that one is."""
MAX_PATH: Final = 160
"""Characters of the path in a fault."""
_PATTERN_BYTES: Final = 128 * 1_024
"""Memory of one compiled pattern, and of its lazy automaton."""
_PATTERNS: Final = RegexOptions(size_limit=_PATTERN_BYTES, dfa_size_limit=4 * _PATTERN_BYTES)
_META: Final = Draft202012Validator({"$ref": DIALECT}, validate_formats=False, offline=True)
"""Whether a document is a schema at all."""


@dataclass(frozen=True, slots=True)
class Schema:
    """A compiled schema. ``closure`` is what a request pins; ``artifacts`` are published: canonical bytes by digest.

    ``work`` bounds how often one part of a value is looked at. ``shape.check`` gives the first fault of a value.
    """

    closure: str
    root: str
    artifacts: Mapping[str, bytes]
    shape: Shape
    work: int = 1


class _Cache:
    """Compiled closures by digest, least recently used out first."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._kept: OrderedDict[str, Schema] = OrderedDict()

    def get(self, closure: str) -> Schema | None:
        found = self._kept.get(closure)
        if found is not None:
            self._kept.move_to_end(closure)
        return found

    def put(self, compiled: Schema) -> Schema:
        self._kept[compiled.closure] = compiled
        self._kept.move_to_end(compiled.closure)
        while len(self._kept) > self._most:
            self._kept.popitem(last=False)
        return compiled

    def __len__(self) -> int:
        return len(self._kept)


COMPILED: Final = _Cache(CACHED)


def schema(document: JsonValue, members: Sequence[JsonValue] = ()) -> Schema:
    """The schema of a root document and of those that it refers to by digest. Raises ContractInvalid.

    ``members`` that the root does not reach are refused: they would be in nobody's closure.
    """
    root = artifact(document)
    documents = {digest_of(root): document}
    data = {digest_of(root): root}
    for member in members:
        own = artifact(member)
        documents[digest_of(own)], data[digest_of(own)] = member, own
    root_digest = digest_of(root)
    listing = manifest(root_digest, documents.keys() - {root_digest})
    closure = digest_of(listing)
    if (found := COMPILED.get(closure)) is not None:
        return found
    if len(documents) > MAX_ARTIFACTS:
        raise ContractInvalid("", f"is a closure of more than {MAX_ARTIFACTS} artifacts")
    if sum(map(len, data.values())) > MAX_CLOSURE:
        raise ContractInvalid("", f"is a closure of more than {MAX_CLOSURE} bytes")
    return COMPILED.put(_compiled(Closure(closure, root_digest, documents, {**data, closure: listing})))


def load(closure: str, fetch: Documents) -> Schema:
    """The schema of a closure out of artifacts by digest, of which none is believed (C13.7-36).

    Raises ContractInvalid, and MissingArtifact for what is not there. A closure that is compiled already needs none.
    """
    return COMPILED.get(closure) or COMPILED.put(_compiled(read_closure(closure, fetch)))


def needed(closure: str, have: Documents) -> list[str]:
    """Digests that are still to be fetched before ``load``: the manifest, then root and members (C13.7-35)."""
    return [] if COMPILED.get(closure) is not None else artifacts.needed(closure, have)


def _compiled(closure: Closure) -> Schema:
    """Judge a closure by the profile and compile it."""
    bundle = Bundle(closure.root, closure.documents)
    if unused := closure.members - bundle.reached:
        raise ContractInvalid("manifest.members", f"holds {len(unused)} that the root does not reach")
    work = work_of(bundle)
    root = closure.documents[closure.root]
    document: dict[str, Any] = dict(root) if isinstance(root, Mapping) else {}
    if document == VOID.schema:
        return Schema(closure.digest, closure.root, closure.artifacts, VOID)
    others = [(f"{REFERENCE}{name}", value) for name, value in closure.documents.items() if name != closure.root]
    try:
        for value in closure.documents.values():
            _META.validate(value)
        for pattern in bundle.patterns:
            Draft202012Validator({"pattern": pattern}, pattern_options=_PATTERNS, offline=True)
        validator = Draft202012Validator(
            root,  # type: ignore[arg-type]
            registry=Registry(others, draft=Draft202012),  # type: ignore[arg-type]
            pattern_options=_PATTERNS,
            validate_formats=False,
            offline=True,
        )
    except (ValidationError, ValueError) as error:
        raise ContractInvalid(*_refused(error)) from None
    shape = Shape(document, _check(validator, work))
    return Schema(closure.digest, closure.root, closure.artifacts, shape, work)


def _refused(error: Exception) -> tuple[str, str]:
    """Why the validator takes no schema of this: where, and the rule of the meta-schema that it breaks."""
    if not isinstance(error, ValidationError):
        return "", "cannot be compiled"
    path = path_text(error.instance_path)
    if error.kind.name == "format":
        return path, "is no regular expression of the profile, or compiles to too much"
    return path, f"breaks the rule {error.kind.name} of JSON Schema 2020-12"


def _check(validator: Draft202012Validator, work: int) -> Check:
    """The check of a compiled schema. A value that cannot be JSON has a fault like any other."""
    is_valid, validate = validator.is_valid, validator.validate
    most, explained = MAX_WORK // work if work > CHEAP else 0, EXPLAINED // work

    def check(value: object) -> Fault | None:
        try:
            if most and len(orjson.dumps(value)) > most:
                return Fault("", f"is larger than the {most} bytes that this schema is run on")
            if is_valid(value):
                return None
            if len(orjson.dumps(value)) > explained:
                return Fault("", "does not fit the schema")
            validate(value)
        except ValidationError as error:
            return fault_of(error)
        except (ValueError, TypeError, OverflowError, RecursionError):
            pass
        return Fault("", "is no JSON value")

    return check


def fault_of(error: ValidationError) -> Fault:
    """Field and rule of what the validator found; nothing of the value but names on the way to the field."""
    keyword = error.kind.name
    if keyword == "type":
        return Fault(path_text(error.instance_path), "is of another type than the schema wants")
    if keyword == "required":
        return Fault(path_text(error.instance_path), "lacks a member that the schema requires")
    if keyword in ("additionalProperties", "unevaluatedProperties"):
        return Fault(path_text(error.instance_path), "has a member that the schema does not know")
    return Fault(path_text(error.instance_path), f"breaks the rule {keyword} of the schema")


def path_text(steps: Sequence[str | int]) -> str:
    """The way to a part as code writes it. A name that is no plain word is not told: it may be content."""
    text = ""
    for step in steps:
        if isinstance(step, int):
            text += f"[{step}]"
        else:
            name = step if step.isascii() and step.replace("-", "_").isidentifier() and len(step) <= 64 else "?"
            text += f".{name}" if text else name
        if len(text) > MAX_PATH:
            return f"{text[: MAX_PATH - 3]}..."
    return text


VOID_SCHEMA: Final = schema({"type": "null"})
"""Nothing: the payload is absent or null (C13.7-26)."""
