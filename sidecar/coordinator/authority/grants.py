"""The registry as a value: which workload keys may log in, with what ceiling, until when (W2-18..W2-20, W6, W8-07).

Pure: no files, no clock. The file around it is in ``registry``. The format is one JSON document (OPEN W2-a):
``{"version":1,"keys":[{"public_key":hex64,"key_id":"sha256:..","service":..,"scopes":uint,"expires_at":uint,
"revoked_at":uint|null}]}``; anything else makes the whole snapshot malformed.
"""

from __future__ import annotations

import hmac
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final, NoReturn

from sidecar.base.ed25519 import check_public_key, digest_text, fingerprint
from sidecar.base.secret import Confined
from sidecar.coordinator.wire.enums import KNOWN_SCOPES
from sidecar.coordinator.wire.errors import LocalProtocolError
from sidecar.coordinator.wire.ids import U64_MAX
from sidecar.coordinator.wire.limits import SERVICE, check_service

REGISTRY_LIMIT: Final = 4 * 1024 * 1024
"""Bytes of the largest registry document."""

_HEX64: Final = re.compile(r"[0-9a-f]{64}")
_DOCUMENT: Final = frozenset({"version", "keys"})
_MEMBERS: Final = frozenset({"public_key", "key_id", "service", "scopes", "expires_at", "revoked_at"})


class RegistryMalformed(ValueError):  # noqa: N818 - a state of the document, not a mishap
    """The document is not a registry; the message says where. No record of it may be used (W2-20)."""


@dataclass(frozen=True, slots=True)
class KeyRecord:
    """One workload key: ``scopes`` is the ceiling (bits), ``expires_at`` and ``revoked_at`` are Unix seconds."""

    public_key: bytes
    key_id: bytes
    service: str
    scopes: int
    expires_at: int
    revoked_at: int | None = None

    @classmethod
    def of(
        cls,
        public_key: bytes,
        scopes: int,
        expires_at: int,
        *,
        service: str = SERVICE.decode(),
        revoked_at: int | None = None,
    ) -> KeyRecord:
        """A record with the derived key id; ValueError (InvalidKey for the key) when it may not stand in a registry."""
        check_public_key(public_key)
        try:
            check_service(service.encode())
        except LocalProtocolError as error:
            raise ValueError(str(error)) from None
        own = service.encode() == SERVICE
        if not 0 <= scopes <= U64_MAX or (own and scopes & ~int(KNOWN_SCOPES)):
            raise ValueError("the scopes have a bit that this service does not know")
        if not 0 <= expires_at <= U64_MAX or not 0 <= (revoked_at or 0) <= U64_MAX:
            raise ValueError("a time is unsigned Unix seconds")
        return cls(bytes(public_key), fingerprint(public_key), service, scopes, expires_at, revoked_at)

    def live(self, now: float) -> bool:
        """For this service, not revoked, not expired (W6-02, W8-07)."""
        return self.service.encode() == SERVICE and self.revoked_at is None and self.expires_at > now


@dataclass(frozen=True, slots=True)
class Grant(Confined):
    """What one login earned: bound to its connection by the holder, to everything else by these fields (W6-04).

    ``scopes`` are bits, ``expires_at`` Unix seconds, ``generation`` the registry's. ``incarnation_id``, ``binding`` and
    ``authority_fingerprint`` are set once the proof was verified. It is a value of one process: it has no serial form
    and nothing accepts it as a credential (W6-05).
    """

    key_id: bytes
    scopes: int
    expires_at: int
    generation: int
    incarnation_id: bytes = b""
    binding: bytes = b""
    authority_fingerprint: bytes = b""


@dataclass(frozen=True, slots=True)
class Registry:
    """One immutable snapshot. ``generation`` tells snapshots of one process apart; 0 is the empty authority."""

    records: tuple[KeyRecord, ...] = ()
    generation: int = 0
    _by_id: Mapping[bytes, KeyRecord] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_by_id", MappingProxyType({record.key_id: record for record in self.records}))

    def lookup(self, key_id: bytes) -> KeyRecord | None:
        """The record of a key id (32 bytes), whatever its service and state."""
        return self._by_id.get(key_id)

    def grant(self, key_id: bytes, requested_scopes: int, requested_expiry: int, now: float) -> Grant | None:
        """The intersection of request and record (W6-02, W6-03, W6-06, P6-06); None when nothing may be granted.

        ``requested_expiry`` and ``now`` are Unix seconds; both expiries must lie after ``now``. Reasons are not told
        apart (W4-08).
        """
        record = self.lookup(key_id)
        if record is None or not record.live(now) or requested_expiry <= now:
            return None
        scopes = int(requested_scopes & record.scopes & KNOWN_SCOPES)
        if not scopes:
            return None
        return Grant(record.key_id, scopes, min(requested_expiry, record.expires_at), self.generation)

    def still_grants(self, grant: Grant, now: float) -> bool:
        """Whether a grant minted from an older snapshot still holds in this one (W8-07, W8-12).

        The key is present and not revoked, nothing expired, and the ceiling (scopes and expiry) contains the grant.
        A wider ceiling changes nothing.
        """
        record = self.lookup(grant.key_id)
        return (
            record is not None
            and record.live(now)
            and grant.expires_at > now
            and grant.expires_at <= record.expires_at
            and not grant.scopes & ~record.scopes
        )


EMPTY: Final = Registry()
"""The authority that admits nobody: what every malformed, unsafe or missing registry counts as (W2-22)."""


def parse_registry(data: bytes, *, generation: int = 1) -> Registry:
    """The snapshot of a document; :exc:`RegistryMalformed` for anything that is not exactly one (W2-19, W2-20)."""
    if len(data) > REGISTRY_LIMIT:
        raise RegistryMalformed(f"the registry is longer than {REGISTRY_LIMIT} bytes")
    try:
        document = json.loads(
            data.decode("utf-8"),
            object_pairs_hook=_unique_members,
            parse_float=_refuse_number,
            parse_constant=_refuse_number,
        )
    except RegistryMalformed:
        raise
    except (ValueError, RecursionError):
        # The decoder's own message quotes the document; a private key pasted by mistake must not travel in it.
        raise RegistryMalformed("the registry is not a JSON document in UTF-8") from None
    if not isinstance(document, dict) or document.keys() != _DOCUMENT:
        raise RegistryMalformed('the registry is not an object with exactly "version" and "keys"')
    if type(document["version"]) is not int or document["version"] != 1:
        raise RegistryMalformed("the registry has a version that this program does not know")
    if not isinstance(document["keys"], list):
        raise RegistryMalformed('"keys" of the registry is not a list')
    records = tuple(_record(position, entry) for position, entry in enumerate(document["keys"], 1))
    if len({record.key_id for record in records}) != len(records):
        raise RegistryMalformed("the registry names one key id twice")
    return Registry(records, generation)


def format_registry(records: Iterable[KeyRecord]) -> bytes:
    """The canonical document: members in the order of the format, records by key id, no white space."""
    keys = [
        {
            "public_key": record.public_key.hex(),
            "key_id": digest_text(record.key_id),
            "service": record.service,
            "scopes": record.scopes,
            "expires_at": record.expires_at,
            "revoked_at": record.revoked_at,
        }
        for record in sorted(records, key=lambda record: record.key_id)
    ]
    return json.dumps({"version": 1, "keys": keys}, separators=(",", ":")).encode()


def _unique_members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise RegistryMalformed("the registry has a member twice in one object")
    return members


def _refuse_number(_: str) -> NoReturn:
    raise RegistryMalformed("the registry has a number that is not an unsigned integer")


def _record(position: int, entry: object) -> KeyRecord:
    if not isinstance(entry, dict) or entry.keys() != _MEMBERS:
        raise RegistryMalformed(f"key {position} of the registry does not have exactly the members of a key")
    public_key, key_id, service = entry["public_key"], entry["key_id"], entry["service"]
    scopes, expires_at, revoked_at = entry["scopes"], entry["expires_at"], entry["revoked_at"]
    texts = isinstance(public_key, str) and isinstance(key_id, str) and isinstance(service, str)
    # bool is an int for Python, not for JSON.
    numbers = type(scopes) is int and type(expires_at) is int and (revoked_at is None or type(revoked_at) is int)
    if not texts or not numbers:
        raise RegistryMalformed(f"key {position} of the registry has a member of the wrong type")
    if _HEX64.fullmatch(public_key) is None:
        raise RegistryMalformed(f"the public key of key {position} is not 64 lowercase hex digits")
    try:
        record = KeyRecord.of(bytes.fromhex(public_key), scopes, expires_at, service=service, revoked_at=revoked_at)
    except ValueError as error:
        raise RegistryMalformed(f"key {position} of the registry: {error}") from None
    if not hmac.compare_digest(digest_text(record.key_id).encode(), key_id.encode("utf-8", "replace")):
        raise RegistryMalformed(f"the key id of key {position} is not that of its public key")
    return record
