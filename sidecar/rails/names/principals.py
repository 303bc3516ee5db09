"""Who is on the wire: principal ``(owner, actor)``, its lifecycle, and which owners a delivery may carry (C2).

Grammar and judgement are separate. ``Principal`` holds any two well-formed tokens; whether the owner is one that may
surface content is ``surfaces`` (C3-09), whether it may be minted is ``check_mintable`` (C2-02).
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from sidecar.base.secret import Secret
from sidecar.rails.names.errors import InvalidName, excerpt
from sidecar.rails.names.template import Kind, Template, listed
from sidecar.rails.names.tokens import GRAMMARS

LOCAL_OWNER = "local"
"""Owner of the static and open paths (C2-06, OPEN C2-c)."""

DOT = Template(Kind.SERIAL, "principal, dot-form", "<owner>.<actor>", "C2-09", "card.id, from.id, KV keys")
DASH = Template(Kind.SERIAL, "principal, dash-form", "<owner>-<actor>", "C2-09", "durable names, JWT name")
LIFECYCLE_DOT = Template(
    Kind.SERIAL, "lifecycle, dot-form", "<owner>.<actor>.<uid>", "13.1", "ACL rows, backstop tails, members"
)
LIFECYCLE_DASH = Template(
    Kind.SERIAL, "lifecycle, dash-form", "<owner>-<actor>-<uid>", "C8-34", "durable names of one lifecycle"
)
TAG_OWNER = Template(Kind.SERIAL, "JWT tag owner", "owner:<owner>", "OPEN C2-b", "tag of a user JWT")
TAG_ACTOR = Template(Kind.SERIAL, "JWT tag actor", "actor:<actor>", "OPEN C2-b", "tag of a user JWT")
TAG_PRINCIPAL = Template(
    Kind.SERIAL, "JWT tag principal", "principal:<owner>.<actor>", "OPEN C2-b", "how a static credential names its own"
)
TAG_SPACE = Template(Kind.SERIAL, "JWT tag space", "space:<space>", "OPEN C2-b", "the space of a static credential")
TAG_FORM = Template(Kind.SERIAL, "JWT tag form", "form:<form:word>", "OPEN C2-b", "how agents of that space read")
TAG_LIFECYCLE = Template(
    Kind.SERIAL, "JWT tag lifecycle", "lifecycle:<owner>.<actor>.<uid>", "OPEN C2-b", "which durables are its own"
)
TAG_ROLE = Template(Kind.SERIAL, "JWT tag role", "role:<role>", "OPEN C2-b", "one for each role of the holder")
TAG_ENDPOINT = Template(Kind.SERIAL, "JWT tag endpoint", "endpoint:<endpoint>", "C13.9-019", "which endpoint it serves")
TAG_INSTANCE = Template(Kind.SERIAL, "JWT tag instance", "instance:<instance>", "C13.9-019", "as which instance")
TAG_EPOCH = Template(Kind.SERIAL, "JWT tag epoch", "epoch:<epoch:number>", "C13.9-020", "at which process epoch")
SUPERVISOR_ACTOR = Template(Kind.SERIAL, "supervisor actor", "manager_<instance>", "C6.1-23", "of a remote manager")
SERVING_ACTOR = Template(
    Kind.SERIAL, "serving actor", "manager_serve_<instance>", "13.16", "of a remote manager's service endpoint"
)
CHAT_SESSION_ACTOR = Template(Kind.SERIAL, "chat session actor", "chat_<base32>", "D4", "of one chat session")
APPLIER_ACTOR = Template(Kind.SERIAL, "commit applier actor", "epapl_<hash>", "13.9", "one operation, owner local")
RECONCILER_ACTOR = Template(Kind.SERIAL, "route reconciler actor", "eprec_<hash>", "13.9", "one operation, owner local")
CANCELLER_ACTOR = Template(Kind.SERIAL, "effects canceller actor", "epcan_<hash>", "13.9", "one operation, owner local")
EXECUTOR_ACTOR = Template(
    Kind.SERIAL, "settlement executor actor", "epexe_<hash>", "13.9", "one operation, owner local"
)
ANYCAST_NOTICE_ID = Template(
    Kind.SERIAL, "anycast notice id", "anycast.<epoch_token>.<sequence:number>.<n:number>", "D4", "id of a notice"
)

TEMPLATES = listed(globals())

_DERIVATION = b"cotal-owner-v1:"
_SECRET_SIZE = 32


class OwnerKind(StrEnum):
    """Families of owner tokens; disjoint from each other and from nkeys (C2-05)."""

    LOCAL = "local"
    DERIVED = "derived"
    PLATFORM = "platform"


def owner_kind(owner: object) -> OwnerKind | None:
    """The family of an owner token; None for anything else, however well-formed."""
    if owner == LOCAL_OWNER:
        return OwnerKind.LOCAL
    if GRAMMARS["derived_owner"].accepts(owner):
        return OwnerKind.DERIVED
    return OwnerKind.PLATFORM if GRAMMARS["platform_owner"].accepts(owner) else None


def surfaces(owner: object) -> bool:
    """Whether content of this owner may be shown: ``local`` or derived, never a platform owner (C3-09, OPEN C2-d)."""
    return owner == LOCAL_OWNER or GRAMMARS["derived_owner"].accepts(owner)


def check_mintable(owner: object, *, platform: bool = False) -> str:
    """The owner token, if a credential may carry it (C2-02); ``platform`` admits the platform family too."""
    kind = owner_kind(owner)
    if kind is None or (kind is OwnerKind.PLATFORM and not platform) or not isinstance(owner, str):
        raise InvalidName("owner", f"{excerpt(owner)} is no owner token", "C2-02")
    return owner


def derive_owner(secret: Secret, subject: str) -> str:
    """The owner token of a stable identity: equal for equal identities, under one space secret of at least 32 bytes
    (C2-03). ValueError for a shorter secret or an empty identity."""
    key = secret.reveal()
    if len(key) < _SECRET_SIZE or not subject:
        raise ValueError(f"the derivation needs a secret of {_SECRET_SIZE} bytes and an identity")
    mac = hmac.new(key, _DERIVATION + subject.encode(), hashlib.sha256).digest()
    return "u_" + base64.b32encode(mac[:16]).decode("ascii").rstrip("=").lower()


@dataclass(frozen=True, slots=True, order=True)
class Principal:
    """The wire identity of an instance (C2-01). InvalidName for a token outside its grammar; nothing is rewritten."""

    owner: str
    actor: str

    def __post_init__(self) -> None:
        GRAMMARS["owner"].check(self.owner)
        GRAMMARS["actor"].check(self.actor)

    @property
    def dot(self) -> str:
        """``<owner>.<actor>``: card id, ``from.id``, key."""
        return f"{self.owner}.{self.actor}"

    @property
    def dash(self) -> str:
        """``<owner>-<actor>``: durable names, the ``name`` of a user JWT."""
        return f"{self.owner}-{self.actor}"

    @property
    def tags(self) -> tuple[str, str, str]:
        """The tags of a user JWT that names this principal (OPEN C2-b)."""
        names = {"owner": self.owner, "actor": self.actor}
        return (TAG_OWNER.build(owner=self.owner), TAG_ACTOR.build(actor=self.actor), TAG_PRINCIPAL.build(**names))

    @classmethod
    def from_dot(cls, text: object) -> Principal:
        """Exactly two tokens (C2-09)."""
        return cls(**DOT.parse(text))

    @classmethod
    def from_dash(cls, text: object) -> Principal:
        """Split at the first dash (C2-09); a second one is in no actor, so it is refused."""
        return cls(**DASH.parse(text))

    @classmethod
    def from_tags(cls, tags: Iterable[str]) -> Principal:
        """The principal that a static credential names; InvalidName without exactly one such tag (C2-13)."""
        found = [tag for tag in tags if TAG_PRINCIPAL.fits(tag)]
        if len(found) != 1:
            raise InvalidName("credential", f"{len(found)} tags name a principal", "C2-13")
        return cls(**TAG_PRINCIPAL.split(found[0]))


@dataclass(frozen=True, slots=True, order=True)
class Lifecycle:
    """One life of a principal: what durable state is keyed on (C8-34)."""

    principal: Principal
    uid: str

    def __post_init__(self) -> None:
        GRAMMARS["uid"].check(self.uid)

    @property
    def dot(self) -> str:
        """``<owner>.<actor>.<uid>``."""
        return f"{self.principal.dot}.{self.uid}"

    @property
    def dash(self) -> str:
        """``<owner>-<actor>-<uid>``."""
        return f"{self.principal.dash}-{self.uid}"

    @property
    def names(self) -> dict[str, str]:
        """The fields ``owner``, ``actor`` and ``uid`` of a template."""
        return {"owner": self.principal.owner, "actor": self.principal.actor, "uid": self.uid}

    @classmethod
    def from_dot(cls, text: object) -> Lifecycle:
        found = LIFECYCLE_DOT.parse(text)
        return cls(Principal(found["owner"], found["actor"]), found["uid"])

    @classmethod
    def from_dash(cls, text: object) -> Lifecycle:
        found = LIFECYCLE_DASH.parse(text)
        return cls(Principal(found["owner"], found["actor"]), found["uid"])
