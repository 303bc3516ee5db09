"""Who may register which endpoint names: claims of domains, on disk beside the space that they hold for (C13.2-03).

A claim says that one owner registers every endpoint whose name is the domain or lies below it. The longest claim
decides, so that a part of a domain can be somebody else's. Names of one label are the operator's and never claimed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sidecar.app.endpoint_records import EndpointRecord, Stage, shelves
from sidecar.app.space_links import SpaceFailed
from sidecar.app.spaces import space_info
from sidecar.base.safefile import DirLock, UnsafeFile, ensure_private_dir, read_private, write_private
from sidecar.base.strictjson import SAFE_INTEGER, JsonError, JsonValue, canonical, parse
from sidecar.rails.names.principals import LOCAL_OWNER, check_mintable
from sidecar.rails.names.tokens import endpoint_token
from sidecar.rails.planes.registration.faults import Denied

_FILE: Final = "domains.json"
_MAX_BYTES: Final = 1024 * 1024
MAX_CLAIMS: Final = 4_096
OPERATOR_AUTHORITY: Final = 0
"""The authority revision behind names of one label: no claim is, the operator is."""


@dataclass(frozen=True, slots=True)
class Claim:
    """A domain and who registers below it. ``revision`` counts the claims of a space; one that was released and made
    again has another one."""

    domain: str
    owner: str
    revision: int


@dataclass(frozen=True, slots=True)
class _Book:
    claims: Mapping[str, Claim]
    revision: int


def claims(root: Path, space: str) -> list[Claim]:
    """Every claim of a space, by domain. Raises SpaceFailed, UnsafeFile."""
    found = _read(_path(root, space)).claims
    return [found[domain] for domain in sorted(found)]


def claim(root: Path, space: str, domain: str, owner: str) -> Claim:
    """Let an owner register below a domain of at least two labels; a claim of its own stays as it is.

    Raises Denied for the claim of somebody else, SpaceFailed while an instance of somebody else is registered below it
    (a name has one owner, C13.2-23), InvalidName, UnsafeFile.
    """
    _check_domain(domain)
    check_mintable(owner)
    path = _path(root, space)
    with DirLock(path.parent) as lock:
        book = _read(path)
        kept = book.claims.get(domain)
        if kept is not None:
            if kept.owner != owner:
                raise Denied(f"{domain} is claimed by {kept.owner}; release it first")
            return kept
        if len(book.claims) >= MAX_CLAIMS:
            raise SpaceFailed(f"a space has at most {MAX_CLAIMS} claims; release some")
        made = Claim(domain, owner, book.revision + 1)
        after = {**book.claims, domain: made}
        others = [one for one in _registered(root, space, after, made) if one.owner != owner]
        if others:
            raise SpaceFailed(f"{domain} is in use by {_named(others)} of another owner; deregister these first")
        _write(path, _Book(after, made.revision), lock)
    return made


def release(root: Path, space: str, domain: str) -> Claim:
    """Give a domain up. Raises SpaceFailed while instances are registered by the claim, or when there is none."""
    path = _path(root, space)
    with DirLock(path.parent) as lock:
        book = _read(path)
        kept = book.claims.get(domain)
        if kept is None:
            raise SpaceFailed(f"{domain} is not claimed in {space}")
        left = {name: one for name, one in book.claims.items() if name != domain}
        users = _registered(root, space, book.claims, kept)
        if users:
            raise SpaceFailed(f"{domain} is in use by {_named(users)}; deregister these first")
        _write(path, _Book(left, book.revision), lock)
    return kept


def _registered(root: Path, space: str, known: Mapping[str, Claim], by: Claim) -> list[EndpointRecord]:
    """The instances of this host that are registered, or on their way, and fall under one claim among those known."""
    found = (shelf.read() for shelf in shelves(root, space))
    return [
        record
        for record in found
        if record is not None
        and record.stage is not Stage.RETIRED
        and (record.registered or record.progress is not None)
        and longest(known, record.endpoint) == by
    ]


def _named(records: Iterable[EndpointRecord]) -> str:
    return ", ".join(sorted(f"{record.endpoint} ({record.instance})" for record in records)[:3])


def authority(root: Path, space: str, endpoint: str, owner: str) -> int:
    """The revision of the claim by which an owner may register an endpoint (C13.2-02, C13.2-03).

    Raises Denied: a name of one label belongs to the operator, a name without a claim to nobody.
    """
    endpoint_token(endpoint)
    if "." not in endpoint:
        if owner != LOCAL_OWNER:
            raise Denied(f"{endpoint} has one label; such names are kept for the operator of the space")
        return OPERATOR_AUTHORITY
    found = longest(_read(_path(root, space)).claims, endpoint)
    if found is None:
        raise Denied(f"no claim covers {endpoint}; make one with: sidecar ep domain claim")
    if found.owner != owner:
        raise Denied(f"{endpoint} lies below {found.domain}, which another owner has claimed")
    return found.revision


def confirm(root: Path, space: str, endpoint: str, owner: str, revision: int) -> None:
    """That the authority of a registration still stands once its record is on disk: whoever gives the domain up from
    here on sees that record, and whoever has done so before is seen. Raises Denied, UnsafeFile."""
    path = _path(root, space)
    with DirLock(path.parent):
        if authority(root, space, endpoint, owner) != revision:
            raise Denied(f"the claim that covers {endpoint} was changed; run it again")


def longest(known: Mapping[str, Claim], endpoint: str) -> Claim | None:
    """The claim with the most labels that covers a name, label by label: ``com.acme`` covers ``com.acme.x`` and itself,
    and not ``com.acmex``."""
    labels = endpoint.split(".")
    for length in range(len(labels), 1, -1):
        found = known.get(".".join(labels[:length]))
        if found is not None:
            return found
    return None


def _check_domain(domain: str) -> None:
    endpoint_token(domain)
    if "." not in domain:
        raise SpaceFailed(f"a domain has two labels or more, as in com.{domain}")


def _path(root: Path, space: str) -> Path:
    directory = root / "spaces" / space_info(root, space).name / "endpoints"
    ensure_private_dir(directory)
    return directory / _FILE


def _read(path: Path) -> _Book:
    try:
        value = parse(read_private(path, _MAX_BYTES), safe_integers=True)
    except FileNotFoundError:
        return _Book({}, 0)
    except JsonError:
        raise UnsafeFile(path, "holds no claims of domains") from None
    try:
        return _book(value)
    except (KeyError, TypeError, ValueError, AttributeError):
        raise UnsafeFile(path, "holds no claims of domains") from None


def _book(value: JsonValue) -> _Book:
    if not isinstance(value, Mapping) or not isinstance(value["claims"], list):
        raise TypeError
    found = [_claim(one) for one in value["claims"]]
    return _Book({one.domain: one for one in found}, _count(value["revision"]))


def _claim(value: JsonValue) -> Claim:
    if not isinstance(value, Mapping):
        raise TypeError
    domain, owner = str(value["domain"]), check_mintable(value["owner"])
    endpoint_token(domain)
    return Claim(domain, owner, _count(value["revision"]))


def _count(value: JsonValue) -> int:
    if type(value) is not int or not 0 <= value <= SAFE_INTEGER:
        raise TypeError
    return value


def _write(path: Path, book: _Book, lock: DirLock) -> None:
    rows: Iterable[Claim] = (book.claims[domain] for domain in sorted(book.claims))
    listed: list[JsonValue] = [{"domain": one.domain, "owner": one.owner, "revision": one.revision} for one in rows]
    write_private(path, canonical({"claims": listed, "revision": book.revision}), lock=lock)
