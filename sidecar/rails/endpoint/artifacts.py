"""Content addressing of contracts: artifact and closure digests, and closures verified as they are read (13.7).

An artifact is one JSON document, named by the SHA-256 of its RFC 8785 form. A closure is a root with everything that it
reaches through by-digest references, named by the digest of its manifest ``{v:1, root, members}``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

from sidecar.base.strictjson import JsonError, JsonValue, NotJson, canonical, parse
from sidecar.rails.endpoint.codes import Code
from sidecar.rails.names.tokens import ARTIFACT_DIGEST

MAX_DOCUMENT: Final = 256 * 1_024
"""Canonical bytes of one artifact (C13.7-24)."""
MAX_CLOSURE: Final = 1 << 20
"""Canonical bytes of a root and its members together (C13.7-24)."""
MAX_ARTIFACTS: Final = 64
"""Documents of a closure, the root among them (OPEN C13.7-c)."""
MAX_NESTING: Final = 32
"""Containers within each other in one artifact (C13.7-24)."""
REFERENCE: Final = "cotal:"
"""What a by-digest reference begins with: ``cotal:sha256:<hex>``, and a fragment if it means a part (C13.7-22)."""

Documents: TypeAlias = "Mapping[str, JsonValue | bytes]"
"""Artifacts by digest as somebody gave them: stored bytes, or values that were read strictly already."""


class ContractInvalid(ValueError):  # noqa: N818 - the field's word
    """A contract artifact that breaks a rule. ``path`` is where in the document, ``why`` what; both are bounded."""

    code: Final = Code.CONTRACT_INVALID

    def __init__(self, path: str, why: str) -> None:
        super().__init__(f"{path or 'the document'} {why}")
        self.path, self.why = path, why


class MissingArtifact(LookupError):  # noqa: N818 - it says what is the matter
    """An artifact that a closure needs is not among those that were given."""

    def __init__(self, digest: str) -> None:
        super().__init__(f"no artifact {digest}")
        self.digest = digest


def digest_of(data: bytes) -> str:
    """The digest of bytes that are canonical already."""
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def digest(value: JsonValue) -> str:
    """The artifact digest of one JSON document: SHA-256 of its RFC 8785 form (C13.7-27, -30). Raises NotJson."""
    return digest_of(canonical(value))


def manifest(root: str, members: frozenset[str] | set[str] = frozenset()) -> bytes:
    """The canonical manifest of a closure; members are sorted and stand once (C13.7-28)."""
    return canonical({"v": 1, "root": root, "members": sorted(members)})


def artifact(value: JsonValue) -> bytes:
    """The canonical bytes of one artifact within the bounds of its kind. Raises ContractInvalid (C13.7-24, -27)."""
    try:
        data = canonical(value)
    except NotJson as error:
        raise ContractInvalid(error.path, error.why) from None
    _strict(data, "")
    return data


@dataclass(frozen=True, slots=True)
class Closure:
    """A verified closure: its digest, the digest of its root, and its documents (root and members) by digest.

    ``artifacts`` are the canonical bytes of the documents and of the manifest: what is published.
    """

    digest: str
    root: str
    documents: Mapping[str, JsonValue]
    artifacts: Mapping[str, bytes]

    @property
    def members(self) -> frozenset[str]:
        return frozenset(self.documents) - {self.root}


def single(value: JsonValue) -> Closure:
    """The closure of a document that refers to nothing. Raises ContractInvalid."""
    data = artifact(value)
    root = digest_of(data)
    listing = manifest(root)
    return Closure(digest_of(listing), root, {root: value}, {root: data, digest_of(listing): listing})


def is_digest(value: object) -> bool:
    """Whether a value is ``sha256:`` and 64 lowercase hexadecimal digits (C13.7-30)."""
    return ARTIFACT_DIGEST.accepts(value)


def needed(closure: str, have: Documents) -> list[str]:
    """Digests that are still to be fetched for a closure: its manifest, then its root and members (C13.7-35).

    Raises ContractInvalid for a manifest that is none.
    """
    if closure not in have:
        return [closure]
    root, members = _read_manifest(_verified(closure, have)[0])
    return [one for one in (root, *members) if one not in have]


def read_closure(closure: str, have: Documents) -> Closure:
    """A closure out of artifacts of which none is believed: each is strict JSON whose canonical form has its digest.

    Whether the members are exactly what the root reaches is for who knows where references stand in the document.
    Raises ContractInvalid, and MissingArtifact for what is not there (C13.7-36, OPEN C13.7-d).
    """
    listing, listing_bytes = _verified(closure, have)
    root, members = _read_manifest(listing)
    documents: dict[str, JsonValue] = {}
    artifacts: dict[str, bytes] = {}
    size = 0
    for one in (root, *members):
        documents[one], artifacts[one] = _verified(one, have)
        size += len(artifacts[one])
        if size > MAX_CLOSURE:
            raise ContractInvalid("", f"is a closure of more than {MAX_CLOSURE} bytes")
    artifacts[closure] = listing_bytes
    return Closure(closure, root, documents, artifacts)


def _verified(name: str, have: Documents) -> tuple[JsonValue, bytes]:
    """The value and the canonical bytes of an artifact, verified against its name."""
    if not is_digest(name):
        raise ContractInvalid("", "is named by no digest")
    if name not in have:
        raise MissingArtifact(name)
    found = have[name]
    if isinstance(found, bytes):
        value = _strict(found, name)
        data = canonical(value)
        if len(data) > MAX_DOCUMENT:
            raise ContractInvalid(name, f"is larger than {MAX_DOCUMENT} bytes")
    else:
        value, data = found, artifact(found)
    if digest_of(data) != name:
        raise ContractInvalid(name, "is not the digest of what is stored under it")
    return value, data


def _strict(data: bytes, path: str) -> JsonValue:
    """The value of JSON text: UTF-8, no name twice, no half surrogates, no unsafe integer, within the bounds."""
    if len(data) > MAX_DOCUMENT:
        raise ContractInvalid(path, f"is larger than {MAX_DOCUMENT} bytes")
    try:
        return parse(data, limit=MAX_DOCUMENT, depth=MAX_NESTING, safe_integers=True)
    except JsonError as error:
        raise ContractInvalid(path, f"is no strict JSON of at most {MAX_NESTING} levels: {error}") from None


def _read_manifest(value: JsonValue) -> tuple[str, list[str]]:
    """Root and members of a manifest, which is exactly ``{v:1, root, members}``."""
    if not isinstance(value, dict) or value.keys() != {"v", "root", "members"} or type(value["v"]) is not int:
        raise ContractInvalid("manifest", "is not {v, root, members}")
    root, members = value["root"], value["members"]
    if value["v"] != 1:
        raise ContractInvalid("manifest.v", "is not 1")
    if not isinstance(root, str) or not is_digest(root):
        raise ContractInvalid("manifest.root", "is no digest")
    if not isinstance(members, list) or len(members) >= MAX_ARTIFACTS:
        raise ContractInvalid("manifest.members", f"are not at most {MAX_ARTIFACTS - 1} digests")
    listed: list[str] = []
    for one in members:
        if not isinstance(one, str) or not is_digest(one):
            raise ContractInvalid("manifest.members", "hold what is no digest")
        if listed and one <= listed[-1]:
            raise ContractInvalid("manifest.members", "are not sorted, or one stands twice")
        listed.append(one)
    return root, listed
