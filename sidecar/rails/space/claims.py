"""NATS JWTs (version 2): operator, account and user claims, and the request that deletes accounts.

A token is ``header.payload.signature``, each base64url without padding. The signature is Ed25519 over the first two
parts with the dot between them; the issuer is an nkey of the payload itself, so a token proves only what its issuer is
trusted for. The clock comes in as an argument; nothing here reads one.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from sidecar.base.ed25519 import InvalidSignature, verify
from sidecar.rails.space.nkeys import ACCOUNT, OPERATOR, USER, InvalidNkey, KeyPair, decode_public

Kind = Literal["operator", "account", "user"]

MAX_TOKEN_BYTES: Final = 65536
"""Longest token that is read: the largest control line that an operator is asked to configure (C13.12-05)."""
MAX_ACCOUNT_BYTES: Final = 640 * 1024
"""Longest token of an account, which no control line holds: about six thousand revocations. A broker takes it in one
message of the system account, whose default bound is a megabyte."""

_HEADER: Final = b'{"typ":"JWT","alg":"ed25519-nkey"}'
_NAME: Final = re.compile(r"[ -~]{1,256}")
_PART: Final = re.compile(r"[A-Za-z0-9_-]+")
_VERSION: Final = 2
# Who signs a claim, and whom it is about.
_ROLES: Final = {"operator": (OPERATOR, OPERATOR), "account": (OPERATOR, ACCOUNT), "user": (ACCOUNT, USER)}
UNLIMITED: Final = -1


class InvalidToken(ValueError):  # noqa: N818 - a state of the token, not a mishap
    """A JWT that is malformed, not signed by its issuer, or not of the kind that was asked for."""


@dataclass(frozen=True, slots=True)
class Access:
    """One direction of a user's grants as the broker takes them: ``allow`` and ``deny`` both empty mean everything."""

    allow: tuple[str, ...] = ()
    deny: tuple[str, ...] = ()

    @property
    def bounded(self) -> bool:
        """False for grants that the broker would read as "everything" (C9-13)."""
        return bool(self.allow) or ">" in self.deny

    def payload(self) -> dict[str, list[str]]:
        """The JSON object of a ``pub`` or ``sub`` member."""
        return {name: list(rows) for name, rows in (("allow", self.allow), ("deny", self.deny)) if rows}


NOTHING: Final = Access(deny=(">",))


@dataclass(frozen=True, slots=True)
class Permissions:
    """What a user may publish and subscribe."""

    publish: Access = NOTHING
    subscribe: Access = NOTHING


@dataclass(frozen=True, slots=True)
class AccountLimits:
    """Limits of one account; -1 is unlimited, 0 JetStream bytes switches JetStream off."""

    connections: int = UNLIMITED
    subscriptions: int = UNLIMITED
    payload_bytes: int = UNLIMITED
    memory_bytes: int = 0
    disk_bytes: int = 0
    streams: int = UNLIMITED
    consumers: int = UNLIMITED


@dataclass(frozen=True, slots=True)
class OperatorClaims:
    """Whom the broker trusts: ``subject`` and ``signing_keys`` may sign accounts."""

    name: str
    subject: str
    system_account: str
    signing_keys: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class AccountClaims:
    """One account. ``revocations`` maps a user key to the second up to which its tokens are void (inclusive)."""

    name: str
    subject: str
    signing_keys: tuple[str, ...] = ()
    limits: AccountLimits = AccountLimits()
    revocations: Mapping[str, int] = field(default_factory=dict)
    default_permissions: Permissions = Permissions()


@dataclass(frozen=True, slots=True)
class UserClaims:
    """One user of an account with exact grants."""

    name: str
    subject: str
    issuer_account: str
    permissions: Permissions
    tags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Token:
    """A decoded token: who signed it, when, until when, and what it claims."""

    issuer: str
    issued_at: int
    expires_at: int | None
    token_id: str
    claims: OperatorClaims | AccountClaims | UserClaims


# ---- encoding ----


def encode_operator(claims: OperatorClaims, key: KeyPair, issued_at: int) -> str:
    """The operator's own token, signed by itself; ValueError when ``key`` is not the subject's."""
    if key.public != claims.subject:
        raise ValueError("an operator signs its own claims")
    nats: dict[str, Any] = {}
    if claims.signing_keys:
        nats["signing_keys"] = _keys(OPERATOR, claims.signing_keys)
    nats["system_account"] = _key(ACCOUNT, claims.system_account)
    # The identity key can then stay offline: only signing keys sign accounts.
    nats["strict_signing_key_usage"] = bool(claims.signing_keys)
    return _encode("operator", claims.name, _key(OPERATOR, claims.subject), nats, key, issued_at, None)


def encode_account(claims: AccountClaims, key: KeyPair, issued_at: int) -> str:
    """An account's token, signed by an operator key."""
    _role(key, OPERATOR)
    limits = claims.limits
    nats: dict[str, Any] = {
        "limits": {
            "subs": limits.subscriptions,
            "data": UNLIMITED,
            "payload": limits.payload_bytes,
            "imports": 0,
            "exports": 0,
            "wildcards": False,
            "disallow_bearer": True,
            "conn": limits.connections,
            "leaf": 0,
            "mem_storage": limits.memory_bytes,
            "disk_storage": limits.disk_bytes,
            "streams": limits.streams,
            "consumer": limits.consumers,
        }
    }
    if claims.signing_keys:
        nats["signing_keys"] = _keys(ACCOUNT, claims.signing_keys)
    if claims.revocations:
        nats["revocations"] = {_key(USER, user): at for user, at in sorted(claims.revocations.items())}
    nats["default_permissions"] = {
        "pub": claims.default_permissions.publish.payload(),
        "sub": claims.default_permissions.subscribe.payload(),
    }
    return _encode("account", claims.name, _key(ACCOUNT, claims.subject), nats, key, issued_at, None)


def encode_user(claims: UserClaims, key: KeyPair, issued_at: int, expires_at: int) -> str:
    """A user's token, signed by a key of its account; it always ends and its grants never mean "everything" (C9-13)."""
    _role(key, ACCOUNT)
    if expires_at <= issued_at:
        raise ValueError("a user's token ends after it begins")
    for access in (claims.permissions.publish, claims.permissions.subscribe):
        if not access.bounded:
            raise ValueError("a user without limits is never made")
    nats: dict[str, Any] = {
        "pub": claims.permissions.publish.payload(),
        "sub": claims.permissions.subscribe.payload(),
        "subs": UNLIMITED,
        "data": UNLIMITED,
        "payload": UNLIMITED,
        "issuer_account": _key(ACCOUNT, claims.issuer_account),
    }
    if claims.tags:
        nats["tags"] = list(claims.tags)
    return _encode("user", claims.name, _key(USER, claims.subject), nats, key, issued_at, expires_at)


def encode_account_deletion(accounts: Iterable[str], key: KeyPair, issued_at: int) -> str:
    """The request that makes a full resolver forget accounts; only an operator key may sign it."""
    _role(key, OPERATOR)
    nats = {"accounts": _keys(ACCOUNT, accounts)}
    return _encode("generic", "delete", key.public, nats, key, issued_at, None)


def _encode(
    kind: str, name: str, subject: str, nats: Mapping[str, Any], key: KeyPair, issued_at: int, expires_at: int | None
) -> str:
    if not _NAME.fullmatch(name):
        raise ValueError("the name of a claim is 1 to 256 printable ASCII characters")
    registered: dict[str, Any] = {} if expires_at is None else {"exp": expires_at}
    registered |= {"iat": issued_at, "iss": key.public, "name": name, "sub": subject}
    # As nats-io/jwt does: the identifier is the hash of the registered claims, without `nats` and without itself.
    identifier = base64.b32encode(hashlib.new("sha512_256", _json(registered)).digest()).rstrip(b"=").decode("ascii")
    payload = {"jti": identifier} | registered | {"nats": {**nats, "type": kind, "version": _VERSION}}
    signed = f"{_b64(_HEADER)}.{_b64(_json(payload))}"
    return f"{signed}.{_b64(key.sign(signed.encode('ascii')))}"


def _json(value: Mapping[str, Any]) -> bytes:
    """JSON as Go writes it: no spaces, and the three letters that HTML cares about escaped."""
    text = json.dumps(value, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026").encode("ascii")


def _b64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode("ascii")


def _key(role: int, text: str) -> str:
    decode_public(role, text)
    return text


def _keys(role: int, texts: Iterable[str]) -> list[str]:
    return [_key(role, text) for text in texts]


def _role(key: KeyPair, role: int) -> None:
    if key.role != role:
        raise ValueError("this key may not sign such a claim")


# ---- decoding ----


def decode(text: str, kind: Kind) -> Token:
    """The checked content of a token of ``kind``. Raises InvalidToken.

    Form, signature and the roles of issuer and subject are checked; whether the issuer is trusted is the question of
    :func:`trusted_user`, and whether the token has ended that of its reader's clock.
    """
    body = _verified_payload(text, MAX_ACCOUNT_BYTES if kind == "account" else MAX_TOKEN_BYTES)
    nats = _object(body.get("nats"), "nats")
    if nats.get("type") != kind or nats.get("version") != _VERSION:
        raise InvalidToken(f"it is not a version 2 token of kind {kind}")
    issuer_role, subject_role = {
        "operator": (OPERATOR, OPERATOR),
        "account": (OPERATOR, ACCOUNT),
        "user": (ACCOUNT, USER),
    }[kind]
    issuer = _public(issuer_role, body.get("iss"), "iss")
    name, subject = _text(body.get("name", ""), "name"), _public(subject_role, body.get("sub"), "sub")
    claims: OperatorClaims | AccountClaims | UserClaims
    if kind == "operator":
        claims = OperatorClaims(
            name, subject, _public(ACCOUNT, nats.get("system_account"), "system_account"), _signing_keys(OPERATOR, nats)
        )
        if issuer != subject:
            raise InvalidToken("an operator signs its own claims")
    elif kind == "account":
        claims = _account(name, subject, nats)
    else:
        permissions = Permissions(_access(nats.get("pub")), _access(nats.get("sub")))
        # Absent when the account's own key signed.
        account = _public(ACCOUNT, nats.get("issuer_account", issuer), "issuer_account")
        claims = UserClaims(name, subject, account, permissions, _texts(nats.get("tags"), "tags"))
    expires = body.get("exp")
    return Token(
        issuer,
        _number(body.get("iat"), "iat"),
        None if expires is None else _number(expires, "exp"),
        _text(body.get("jti"), "jti"),
        claims,
    )


def trusted_user(user: Token, account: Token, operator: Token) -> bool:
    """True when a signing key of ``account`` made ``user`` and a key of ``operator`` made ``account`` (C9-02)."""
    if not isinstance(user.claims, UserClaims) or not isinstance(account.claims, AccountClaims):
        return False
    if not isinstance(operator.claims, OperatorClaims):
        return False
    return (
        user.claims.issuer_account == account.claims.subject
        and user.issuer in account.claims.signing_keys
        and account.issuer in (operator.claims.signing_keys or (operator.claims.subject,))
    )


def _verified_payload(text: str, most: int) -> dict[str, Any]:
    if len(text) > most:
        raise InvalidToken(f"a token has at most {most} bytes")
    parts = text.split(".")
    if len(parts) != 3:
        raise InvalidToken("a token has three parts")
    header, payload, signature = (_unb64(part) for part in parts)
    if _parse(header) != {"typ": "JWT", "alg": "ed25519-nkey"}:
        raise InvalidToken("the header is not that of a NATS token")
    body = _parse(payload)
    issuer = body.get("iss")
    role = OPERATOR if isinstance(issuer, str) and issuer.startswith("O") else ACCOUNT
    try:
        verify(decode_public(role, _text(issuer, "iss")), f"{parts[0]}.{parts[1]}".encode("ascii"), signature)
    except (InvalidNkey, InvalidSignature):
        raise InvalidToken("the token is not signed by its issuer") from None
    return body


def _unb64(part: str) -> bytes:
    if not _PART.fullmatch(part):
        raise InvalidToken("a part of the token is not base64url")
    try:
        data = base64.urlsafe_b64decode(part + "=" * (-len(part) % 4))
    except binascii.Error:
        raise InvalidToken("a part of the token is not base64url") from None
    if _b64(data) != part:
        raise InvalidToken("a part of the token has another spelling")
    return data


def _parse(data: bytes) -> dict[str, Any]:
    try:
        value = json.loads(data.decode("utf-8"), object_pairs_hook=_once, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        raise InvalidToken("a part of the token is not the JSON that it should be") from None
    return _object(value, "payload")


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        raise ValueError("a name occurs twice")
    return value


def _no_constant(name: str) -> None:
    raise ValueError(name)


def _account(name: str, subject: str, nats: Mapping[str, Any]) -> AccountClaims:
    limits = _object(nats.get("limits"), "limits")
    defaults = _object(nats.get("default_permissions", {}), "default_permissions")
    revocations = _object(nats.get("revocations", {}), "revocations")
    return AccountClaims(
        name,
        subject,
        _signing_keys(ACCOUNT, nats),
        AccountLimits(
            connections=_number(limits.get("conn", UNLIMITED), "conn"),
            subscriptions=_number(limits.get("subs", UNLIMITED), "subs"),
            payload_bytes=_number(limits.get("payload", UNLIMITED), "payload"),
            memory_bytes=_number(limits.get("mem_storage", 0), "mem_storage"),
            disk_bytes=_number(limits.get("disk_storage", 0), "disk_storage"),
            streams=_number(limits.get("streams", 0), "streams"),
            consumers=_number(limits.get("consumer", 0), "consumer"),
        ),
        {_public(USER, user, "revocations"): _number(at, "revocations") for user, at in revocations.items()},
        Permissions(_access(defaults.get("pub")), _access(defaults.get("sub"))),
    )


def _access(value: Any) -> Access:
    access = _object({} if value is None else value, "permissions")
    return Access(_texts(access.get("allow"), "allow"), _texts(access.get("deny"), "deny"))


def _signing_keys(role: int, nats: Mapping[str, Any]) -> tuple[str, ...]:
    # A scoped key is an object; this product never makes one, because the grants stand in the user's own token.
    return tuple(_public(role, key, "signing_keys") for key in _list(nats.get("signing_keys"), "signing_keys"))


def _public(role: int, value: Any, name: str) -> str:
    try:
        return _key(role, _text(value, name))
    except InvalidNkey as error:
        raise InvalidToken(f"{name}: {error}") from None


def _object(value: Any, name: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InvalidToken(f"{name} is not an object")
    return value


def _list(value: Any, name: str) -> list[Any]:
    if value is None:
        return []
    if not isinstance(value, list):
        raise InvalidToken(f"{name} is not a list")
    return value


def _texts(value: Any, name: str) -> tuple[str, ...]:
    return tuple(_text(item, name) for item in _list(value, name))


def _text(value: Any, name: str) -> str:
    if not isinstance(value, str):
        raise InvalidToken(f"{name} is not a text")
    return value


def _number(value: Any, name: str) -> int:
    if type(value) is not int:
        raise InvalidToken(f"{name} is not a whole number")
    return value
