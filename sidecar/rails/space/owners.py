"""Owner tokens from stable identities: the derivation is an adapter, the format is fixed (C2-03, C2-04, C10-16)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from sidecar.base.secret import Secret
from sidecar.rails.names.errors import InvalidName
from sidecar.rails.names.principals import OwnerKind, derive_owner, owner_kind

Derivation = Callable[[str], str]
"""Gives one owner token for one identity, always the same one."""
MAX_IDENTITY: Final = 512
"""Characters of an identity, such as the subject that a login provider names."""


def keyed(secret: Secret) -> Derivation:
    """The derivation of this product: HMAC-SHA256 under a secret of the space."""
    return lambda identity: derive_owner(secret, identity)


def owner_of(identity: str, derivation: Derivation) -> str:
    """The owner token of an identity. Raises InvalidName for an identity that is none, and for an adapter whose token
    is not of the derived family (C2-02): no adapter can name a local, platform or nkey owner."""
    if not identity or identity != identity.strip() or len(identity) > MAX_IDENTITY or not identity.isprintable():
        raise InvalidName("identity", f"it is 1 to {MAX_IDENTITY} printable characters without space around", "C2-03")
    owner = derivation(identity)
    if owner_kind(owner) is not OwnerKind.DERIVED:
        raise InvalidName("owner", "the derivation gave no derived owner token", "C2-02")
    return owner
