"""Schema documents as a graph: which positions hold schemas, and where each reference leads (C13.7-22..24).

Only what is reached in this graph is ever run, and a reference that leads to anything but a schema position of the
bundle is refused, so that what is bounded here is what the validator does.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import unquote

from sidecar.base.strictjson import JsonValue
from sidecar.rails.endpoint.artifacts import REFERENCE, ContractInvalid
from sidecar.rails.endpoint.schema_patterns import weight

DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
MAX_CHAIN: Final = 32
"""References behind each other that are followed for one and the same value (C13.7-24)."""
MAX_SCHEMAS: Final = 4_096
"""Schema positions of a bundle."""
MAX_PATTERNS: Final = 256
"""Different patterns of a bundle."""

_SINGLE: Final = (
    *("additionalProperties", "propertyNames", "items", "contains", "not", "if", "then", "else"),
    *("unevaluatedItems", "unevaluatedProperties", "contentSchema"),
)
_LISTED: Final = ("prefixItems", "allOf", "anyOf", "oneOf")
_MAPPED: Final = ("properties", "patternProperties", "dependentSchemas", "$defs", "definitions")
_IN_PLACE: Final = frozenset(("allOf", "anyOf", "oneOf", "not", "if", "then", "else", "dependentSchemas"))
_REFUSED: Final = frozenset(("$recursiveRef", "$recursiveAnchor", "dependencies"))
"""Keywords of older dialects that validators of this one do not agree on."""

_LABEL: Final = r"[A-Za-z0-9_-][A-Za-z0-9._-]*"
_BY_DIGEST: Final = re.compile(rf"{REFERENCE}(sha256:[0-9a-f]{{64}})")
_ABSOLUTE: Final = re.compile(rf"https?://[a-z0-9-]+(?:\.[a-z0-9-]+)*(?:/{_LABEL})*|urn:[a-z0-9-]+(?::{_LABEL})+")
_RELATIVE: Final = re.compile(_LABEL)
_MAX_NAME: Final = 512


@dataclass(eq=False, slots=True)
class Node:
    """One schema position. ``here`` is applied to the same value, everything else to its parts.

    ``named`` are of members by name, ``patterned`` of those whose name matches, ``other`` of those that neither takes;
    ``placed`` of the first items, ``item`` of those behind. ``names`` is applied to names of members.
    ``each_member`` and ``each_item`` go to every one, whatever else does. ``referred``: where references lead, for the
    same value. ``again``: what is here may be run twice, to learn what it has seen.
    """

    path: str
    here: list[Node] = field(default_factory=list)
    referred: list[Node] = field(default_factory=list)
    named: dict[str, Node] = field(default_factory=dict)
    patterned: list[Node] = field(default_factory=list)
    other: Node | None = None
    placed: list[Node] = field(default_factory=list)
    item: Node | None = None
    each_member: list[Node] = field(default_factory=list)
    each_item: list[Node] = field(default_factory=list)
    names: Node | None = None
    again: bool = False
    weight: int = 1
    name_weight: int = 0


@dataclass(eq=False, slots=True)
class _Resource:
    """A document, or a part of it with an ``$id``: what its references are relative to."""

    digest: str
    base: str
    pointer: str
    anchors: dict[str, Node] = field(default_factory=dict)


class Bundle:
    """A closed bundle, walked whole. Raises ContractInvalid for what is outside of the profile.

    ``root`` is the node of the root schema, ``nodes`` are those of all documents, ``reached`` the digests of the
    documents that the root reaches, ``patterns`` all patterns with their weights.
    """

    def __init__(self, root: str, documents: Mapping[str, JsonValue]) -> None:
        self.nodes: list[Node] = []
        self.patterns: dict[str, int] = {}
        self._roots: dict[str, _Resource] = {}
        self._at: dict[tuple[str, str], Node] = {}
        self._ids: dict[str, _Resource] = {}
        self._dynamic: dict[str, list[Node]] = {}
        self._references: list[tuple[Node, _Resource, Any, bool]] = []
        self._leads: dict[str, set[str]] = {digest: set() for digest in documents}
        for digest, document in documents.items():
            self._take(document, "", _Resource(digest, "", ""))
        for node, resource, reference, dynamic in self._references:
            node.referred = self._targets(node, resource, reference, dynamic)
        self.root = self._at[root, ""]
        self.reached = frozenset(self._reached(root))

    # ---- positions ----

    def _take(self, value: Any, pointer: str, resource: _Resource) -> Node:
        """The node of a schema position and of all below it. Nesting is bounded by that of the document."""
        path = f"{pointer or '/'}"[:160]
        if not isinstance(value, Mapping):
            if type(value) is not bool:
                raise ContractInvalid(path, "is no schema")
            if not pointer:
                self._roots[resource.digest] = resource
            return self._add(Node(path, weight=0), resource, pointer)
        if _REFUSED.intersection(value):
            raise ContractInvalid(path, "has a keyword of another dialect")
        if value.get("$schema", DIALECT) != DIALECT:
            raise ContractInvalid(path, "is of another dialect than JSON Schema 2020-12")
        if "$id" in value:
            resource = self._identified(value["$id"], pointer, resource, path)
        if not pointer:
            self._roots[resource.digest] = resource
        node = self._add(Node(path), resource, pointer)
        self._anchor(node, value, resource)
        self._weigh(node, value)
        for keyword, dynamic in (("$ref", False), ("$dynamicRef", True)):
            if keyword in value:
                self._references.append((node, resource, value[keyword], dynamic))
        for keyword in _SINGLE:
            if keyword in value:
                self._place(node, keyword, self._take(value[keyword], f"{pointer}/{keyword}", resource))
        for keyword in _LISTED:
            for index, one in enumerate(_typed(value, keyword, list, path)):
                self._place(node, keyword, self._take(one, f"{pointer}/{keyword}/{index}", resource))
        for keyword in _MAPPED:
            for name, one in _typed(value, keyword, dict, path).items():
                step = name.replace("~", "~0").replace("/", "~1")
                child = self._take(one, f"{pointer}/{keyword}/{step}", resource)
                if keyword == "properties":
                    node.named[name] = child
                else:
                    self._place(node, keyword, child)
        return node

    def _add(self, node: Node, resource: _Resource, pointer: str) -> Node:
        self.nodes.append(node)
        if len(self.nodes) > MAX_SCHEMAS:
            raise ContractInvalid("", f"has more than {MAX_SCHEMAS} schemas")
        self._at[resource.digest, pointer] = node
        return node

    def _place(self, node: Node, keyword: str, child: Node) -> None:
        if keyword in _IN_PLACE:
            node.here.append(child)
        elif keyword == "patternProperties":
            node.patterned.append(child)
        elif keyword == "additionalProperties":
            node.other = child
        elif keyword == "prefixItems":
            node.placed.append(child)
        elif keyword == "items":
            node.item = child
        elif keyword == "propertyNames":
            node.names = child
        elif keyword in ("contains", "unevaluatedItems"):
            node.each_item.append(child)
        elif keyword == "unevaluatedProperties":
            node.each_member.append(child)

    def _weigh(self, node: Node, value: Mapping[str, Any]) -> None:
        """What the keywords of one schema cost beside those below it."""
        node.again = "unevaluatedItems" in value or "unevaluatedProperties" in value
        if isinstance(pattern := value.get("pattern"), str):
            node.weight += self._pattern(pattern, node.path)
        for pattern in _typed(value, "patternProperties", dict, node.path):
            node.name_weight += self._pattern(pattern, node.path)
        if isinstance(listed := value.get("enum"), list):
            node.weight += len(listed) // 16

    def _pattern(self, pattern: str, path: str) -> int:
        """The weight of a pattern that the bundle has."""
        if pattern not in self.patterns:
            self.patterns[pattern] = weight(pattern, path)
            if len(self.patterns) > MAX_PATTERNS:
                raise ContractInvalid(path, f"is one of more than {MAX_PATTERNS} patterns")
        return self.patterns[pattern]

    # ---- identifiers and references ----

    def _identified(self, name: Any, pointer: str, resource: _Resource, path: str) -> _Resource:
        """The resource that an ``$id`` begins. The name is never looked up anywhere (C13.7-23)."""
        base = self._absolute(name, resource.base)
        if base is None or "://json-schema.org" in base:
            raise ContractInvalid(path, "has an $id that is no plain http or urn name, or relative to none")
        if base in self._ids:
            raise ContractInvalid(path, "has an $id that stands twice")
        self._ids[base] = made = _Resource(resource.digest, base, pointer)
        return made

    def _absolute(self, name: Any, base: str) -> str | None:
        """A name as it is, or beside an http base; None for one that readers could take for different things."""
        if not isinstance(name, str) or len(name) > _MAX_NAME:
            return None
        if _ABSOLUTE.fullmatch(name):
            return name
        if not base.startswith("http") or _RELATIVE.fullmatch(name) is None:
            return None
        scheme, _, rest = base.partition("://")
        host, slash, place = rest.partition("/")
        return f"{scheme}://{host}/{place.rpartition('/')[0] + '/' if slash and '/' in place else ''}{name}"

    def _anchor(self, node: Node, value: Mapping[str, Any], resource: _Resource) -> None:
        for keyword in ("$anchor", "$dynamicAnchor"):
            name = value.get(keyword)
            if name is None:
                continue
            if not isinstance(name, str) or name in resource.anchors:
                raise ContractInvalid(node.path, f"has an {keyword} that is no name, or stands twice")
            resource.anchors[name] = node
            if keyword == "$dynamicAnchor":
                self._dynamic.setdefault(name, []).append(node)

    def _targets(self, node: Node, resource: _Resource, reference: Any, dynamic: bool) -> list[Node]:
        """Where a reference leads; a dynamic one to each place that it may mean."""
        if not isinstance(reference, str):
            raise ContractInvalid(node.path, "has a reference that is no text")
        name, _, fragment = reference.partition("#")
        target = self._resource(name, resource)
        found = None
        if target is not None:
            found = self._in_resource(target, fragment)
        if target is None or found is None:
            raise ContractInvalid(node.path, "refers to what is no schema of the bundle")
        if target.digest != resource.digest:
            self._leads[resource.digest].add(target.digest)
        several = self._dynamic.get(fragment, ()) if dynamic else ()
        return list(several) if found in several else [found]

    def _resource(self, name: str, resource: _Resource) -> _Resource | None:
        if not name:
            return resource
        if by_digest := _BY_DIGEST.fullmatch(name):
            return self._roots.get(by_digest[1])
        found = self._ids.get(self._absolute(name, resource.base) or "")
        return found if found is not None and found.digest == resource.digest else None

    def _in_resource(self, resource: _Resource, fragment: str) -> Node | None:
        """The schema position that a fragment means: a pointer from the resource's own root, or an anchor."""
        if fragment and not fragment.startswith("/"):
            return resource.anchors.get(fragment)
        if re.search("%(?:2[fF]|7[eE])", fragment):
            return None  # readers do not agree whether they decode before they split
        return self._at.get((resource.digest, resource.pointer + unquote(fragment)))

    def _reached(self, root: str) -> Iterable[str]:
        found, left = {root}, [root]
        while left:
            for one in self._leads[left.pop()] - found:
                found.add(one)
                left.append(one)
        return found


def _typed(value: Mapping[str, Any], keyword: str, kind: type, path: str) -> Any:
    """The value of a keyword, empty if it is absent."""
    found = value.get(keyword)
    if found is None and keyword not in value:
        return kind()
    if not isinstance(found, kind):
        raise ContractInvalid(path, f"has another {keyword} than JSON Schema 2020-12 knows")
    return found
