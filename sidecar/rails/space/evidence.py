"""Issued authority as values: generations, the listing token, and the rows of both stores (C13.15-01..12, 28..31).

A generation is 32 lowercase hex digits: its horizon in Unix seconds, then 96 bits of the issuer's entropy. Nothing that
is written to a store moves a horizon, and at or after it the generation authorizes nothing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from sidecar.base.strictjson import JsonError, canonical, parse
from sidecar.rails.names import buckets
from sidecar.rails.names.errors import InvalidName
from sidecar.rails.names.grants import LISTING_DOMAIN
from sidecar.rails.names.principals import Lifecycle, Principal
from sidecar.rails.names.tokens import GRAMMARS
from sidecar.rails.space.ceilings import Ceiling, InvalidCeiling, read_ceiling

MARGIN_SECONDS: Final = 60
"""How long the rows of a generation stay after its horizon (C13.15-12)."""
MAX_HORIZON: Final = 0xFFFFFFFF
MAX_ROW_BYTES: Final = 256 * 1024
_ENTROPY_BYTES: Final = 12


class InvalidEvidence(ValueError):  # noqa: N818 - a state of the row
    """A row of an issued store that is none; it authorizes nothing."""


def new_generation(horizon: int, entropy: Callable[[int], bytes]) -> str:
    """A fresh generation that ends at ``horizon`` (C13.15-01). Raises ValueError for a horizon that does not fit."""
    if not 0 < horizon <= MAX_HORIZON:
        raise ValueError("a horizon is 1 to 4294967295 seconds")
    return f"{horizon:08x}{entropy(_ENTROPY_BYTES).hex()}"


def horizon_of(generation: str) -> int:
    """The Unix second at which a generation ends (C13.15-01). Raises InvalidName for what is no generation."""
    return int(GRAMMARS["generation"].check(generation)[:8], 16)


def listing_token(connection: str, horizon: int) -> str:
    """The accepted token of a connection's listing generation (C13.15-30): both sides derive it, nobody sends it."""
    text = f"{LISTING_DOMAIN}\0{connection}\0{horizon}"
    return hashlib.sha256(text.encode()).hexdigest()[:32]


@dataclass(frozen=True, slots=True)
class Reference:
    """What an issuance is about (C13.15-01)."""

    space: str
    lifecycle: Lifecycle
    generation: str

    def __post_init__(self) -> None:
        GRAMMARS["space"].check(self.space)
        GRAMMARS["generation"].check(self.generation)

    @property
    def horizon(self) -> int:
        return horizon_of(self.generation)

    def lives(self, now: float) -> bool:
        """Whether it may authorize anything yet (C13.15-03)."""
        return now < self.horizon

    @property
    def names(self) -> dict[str, str]:
        """The fields of its keys."""
        return {**self.lifecycle.names, "generation": self.generation}

    def value(self) -> dict[str, str]:
        """The JSON object of a reference."""
        return {"space": self.space, **self.names}


@dataclass(frozen=True, slots=True)
class Source:
    """Where an issuance has its authority from: one row, which must still be live when it is used (C13.15-06)."""

    space: str
    bucket: str
    key: str

    @property
    def digest(self) -> str:
        """How its index row names it (C13.15-07)."""
        return hashlib.sha256(canonical([1, self.space, self.bucket, self.key])).hexdigest()

    def value(self) -> dict[str, str]:
        """The JSON object of a source."""
        return {"space": self.space, "bucket": self.bucket, "key": self.key}


@dataclass(frozen=True, slots=True)
class Evidence:
    """What was issued: the recorded permissions are the final ceiling of the credential (C13.15-05, C13.15-06)."""

    ref: Reference
    permissions: Ceiling
    sources: tuple[Source, ...] = ()
    expires_at: int | None = None

    def __post_init__(self) -> None:
        if self.expires_at is None:
            if not self.sources:
                raise InvalidEvidence("an issuance without a source ends at an instant")
        elif not 0 < self.expires_at <= self.ref.horizon:
            raise InvalidEvidence("it ends before its horizon")

    def value(self) -> dict[str, Any]:
        """The JSON object of the row."""
        made: dict[str, Any] = {
            "version": 1,
            "ref": self.ref.value(),
            "sources": [one.value() for one in self.sources],
            "permissions": self.permissions.value(),
        }
        return made if self.expires_at is None else {**made, "expiresAt": self.expires_at}


class AttemptState(StrEnum):
    """How far an issuance came (C13.15-07)."""

    PREPARED = "prepared"
    ACTIVE = "active"
    ABORTED = "aborted"
    REVOKED = "revoked"


def attempt_value(ref: Reference, state: AttemptState) -> dict[str, Any]:
    """The JSON object of an attempt row."""
    return {"version": 1, "ref": ref.value(), "state": state.value}


def accepted_value(ref: Reference) -> dict[str, Any]:
    """The JSON object of an accepted row: it names the reference (C13.15-10)."""
    return {"version": 1, "ref": ref.value()}


# ---- keys ----


def evidence_subject(ref: Reference) -> str:
    return buckets.ISSUED.subject(ref.space, buckets.ISSUED_KEY, **ref.names)


def attempt_subject(ref: Reference) -> str:
    return buckets.ISSUED.subject(ref.space, buckets.ISSUED_ATTEMPT, **ref.names)


def source_subject(ref: Reference, source: Source) -> str:
    return buckets.ISSUED.subject(ref.space, buckets.ISSUED_BY_SOURCE, digest=source.digest, **ref.names)


def accepted_subject(space: str, token: str) -> str:
    return buckets.ACCEPTED.subject(space, buckets.ACCEPTED_KEY, token=token)


# ---- rows that were read ----


def read_evidence(ref: Reference, raw: bytes) -> Evidence:
    """The evidence row of a reference. Raises InvalidEvidence for anything else, also for another reference's row."""
    value = _row(raw, {"version", "ref", "sources", "permissions"}, {"expiresAt"})
    _same(ref, value["ref"])
    sources = value["sources"]
    if not isinstance(sources, list):
        raise InvalidEvidence("its sources are no list")
    try:
        ceiling = read_ceiling(value["permissions"])
    except InvalidCeiling as error:
        raise InvalidEvidence(f"its permissions: {error}") from None
    ends = value.get("expiresAt")
    if "expiresAt" in value and type(ends) is not int:
        raise InvalidEvidence("its end is no instant")
    return Evidence(ref, ceiling, tuple(_source(one) for one in sources), ends)


def read_attempt(ref: Reference, raw: bytes) -> AttemptState:
    """The state in an attempt row. Raises InvalidEvidence."""
    value = _row(raw, {"version", "ref", "state"}, set())
    _same(ref, value["ref"])
    try:
        return AttemptState(value["state"])
    except ValueError:
        raise InvalidEvidence("its state is none") from None


def read_accepted(raw: bytes) -> Reference:
    """The reference that an accepted row names. Raises InvalidEvidence."""
    return _reference(_row(raw, {"version", "ref"}, set())["ref"])


def _row(raw: bytes, needed: set[str], more: set[str]) -> dict[str, Any]:
    if len(raw) > MAX_ROW_BYTES:
        raise InvalidEvidence("it is too long")
    try:
        value = parse(raw)
    except JsonError:
        raise InvalidEvidence("it is not JSON") from None
    if not isinstance(value, dict) or not needed <= value.keys() <= needed | more or value["version"] != 1:
        raise InvalidEvidence("it has other members")
    return value


def _reference(value: object) -> Reference:
    if not isinstance(value, dict) or value.keys() != {"space", "owner", "actor", "uid", "generation"}:
        raise InvalidEvidence("it names no reference")
    try:
        lifecycle = Lifecycle(Principal(value["owner"], value["actor"]), value["uid"])
        return Reference(value["space"], lifecycle, value["generation"])
    except InvalidName:
        raise InvalidEvidence("it names no reference") from None


def _same(ref: Reference, value: object) -> None:
    if _reference(value) != ref:
        raise InvalidEvidence("it is about another reference")


def _source(value: object) -> Source:
    if not isinstance(value, dict) or value.keys() != {"space", "bucket", "key"}:
        raise InvalidEvidence("a source is none")
    if not all(isinstance(one, str) for one in value.values()):
        raise InvalidEvidence("a source is none")
    return Source(**value)
