"""Lifecycle heads as values: which lifecycle of a principal is current (C13.1-012..020, C13.1-026). Pure.

A head is one closed JSON object at the key of its principal; the revision of the key is that of the mapping, and no
field says it again. ``active`` alone is current. ``retiring`` is bound to one operation and replaced by nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Final

from sidecar.base.strictjson import JsonError, canonical, parse
from sidecar.rails.names import buckets
from sidecar.rails.names.errors import InvalidName
from sidecar.rails.names.principals import Lifecycle, Principal
from sidecar.rails.names.tokens import GRAMMARS

MAX_HEAD_BYTES: Final = 16 * 1024
MAX_ID: Final = 256
RETIREMENT: Final = "retirement"
_NEEDED: Final = frozenset(("owner", "actor", "lifecycleUid", "managerInstance", "processEpoch", "state"))
_MORE: Final = frozenset(("currentCredentialId", "lastTakeoverOpId", "op"))


class InvalidHead(ValueError):  # noqa: N818 - a state of the row
    """A row that is no head of the principal that was asked for; it authorizes nothing."""


class HeadState(StrEnum):
    """Where a lifecycle stands (C13.1-019)."""

    ACTIVE = "active"
    RETIRING = "retiring"
    RETIRED = "retired"


@dataclass(frozen=True, slots=True)
class HeadOp:
    """The operation that a retiring head is bound to."""

    op_id: str
    kind: str = RETIREMENT

    def __post_init__(self) -> None:
        GRAMMARS["id"].check(self.op_id)
        if self.kind != RETIREMENT:
            raise InvalidHead("an operation of a head is a retirement")


@dataclass(frozen=True, slots=True)
class Head:
    """The mapping of one principal.

    ``manager_instance`` is who made it, ``process_epoch`` the epoch of its process, ``current_credential_id`` names the
    credential of its root in public, ``last_takeover_op_id`` the operation that last advanced the epoch (C13.1-014,
    C13.1-015). Raises InvalidHead for an operation in a state without one, and the reverse.
    """

    principal: Principal
    uid: str
    manager_instance: str
    process_epoch: int
    state: HeadState
    current_credential_id: str | None = None
    last_takeover_op_id: str | None = None
    op: HeadOp | None = None

    def __post_init__(self) -> None:
        GRAMMARS["uid"].check(self.uid)
        GRAMMARS["instance"].check(self.manager_instance)
        GRAMMARS["number"].check(self.process_epoch)
        if (self.op is not None) is not (self.state is HeadState.RETIRING):
            raise InvalidHead("an operation is what makes a head retiring (C13.1-016)")

    @property
    def lifecycle(self) -> Lifecycle:
        return Lifecycle(self.principal, self.uid)

    @property
    def current(self) -> bool:
        """Whether it is a mapping at all; a retiring one is none (C13.1-020)."""
        return self.state is HeadState.ACTIVE

    def retiring(self, op_id: str) -> Head:
        """The head of a retirement that has begun. Raises InvalidHead for one that has no life to end."""
        if self.state is not HeadState.ACTIVE:
            raise InvalidHead(f"a head that is {self.state} does not begin to retire")
        return replace(self, state=HeadState.RETIRING, op=HeadOp(op_id))

    def retired(self, op_id: str) -> Head:
        """The head at the end of the operation that it is bound to. Raises InvalidHead."""
        if self.op != HeadOp(op_id):
            raise InvalidHead("a retirement is ended by its own operation")
        return replace(self, state=HeadState.RETIRED, op=None)

    def value(self) -> dict[str, Any]:
        """The JSON object of the row."""
        made: dict[str, Any] = {
            "owner": self.principal.owner,
            "actor": self.principal.actor,
            "lifecycleUid": self.uid,
            "managerInstance": self.manager_instance,
            "processEpoch": self.process_epoch,
            "state": self.state.value,
        }
        if self.current_credential_id is not None:
            made["currentCredentialId"] = self.current_credential_id
        if self.last_takeover_op_id is not None:
            made["lastTakeoverOpId"] = self.last_takeover_op_id
        if self.op is not None:
            made["op"] = {"opId": self.op.op_id, "kind": self.op.kind}
        return made

    def encode(self) -> bytes:
        """The stored bytes, in canonical JSON."""
        return canonical(self.value())

    @classmethod
    def decode(cls, raw: bytes, principal: Principal | None = None) -> Head:
        """The head in stored bytes. With ``principal`` it is that one's, as its key says (C13.1-013). Raises
        InvalidHead."""
        try:
            value = parse(raw, limit=MAX_HEAD_BYTES, safe_integers=True)
        except JsonError as error:
            raise InvalidHead(f"it is no JSON: {error}") from None
        if not isinstance(value, dict) or not value.keys() >= _NEEDED or not value.keys() <= _NEEDED | _MORE:
            raise InvalidHead("it has other members")
        try:
            head = _read(value)
        except (InvalidName, ValueError, TypeError):
            raise InvalidHead("a member is none") from None
        if principal is not None and head.principal != principal:
            raise InvalidHead("it names another principal than its key (C13.1-013)")
        return head


def _read(value: dict[str, Any]) -> Head:
    epoch = value["processEpoch"]
    if type(epoch) is not int:
        raise TypeError
    texts = [value["managerInstance"], value["lifecycleUid"]]
    texts += [value[one] for one in ("currentCredentialId", "lastTakeoverOpId") if one in value]
    if not all(isinstance(one, str) and 0 < len(one) <= MAX_ID for one in texts):
        raise TypeError
    op = None
    if "op" in value:
        told = value["op"]
        if not isinstance(told, dict) or told.keys() != {"opId", "kind"}:
            raise TypeError
        op = HeadOp(told["opId"], told["kind"])
    return Head(
        Principal(value["owner"], value["actor"]),
        value["lifecycleUid"],
        value["managerInstance"],
        epoch,
        HeadState(value["state"]),
        value.get("currentCredentialId"),
        value.get("lastTakeoverOpId"),
        op,
    )


def head_subject(space: str, principal: Principal) -> str:
    """The subject of a principal's head."""
    return buckets.RECORDS.subject(space, buckets.RECORD_LIFECYCLE, owner=principal.owner, actor=principal.actor)


def uid_subject(space: str, uid: str) -> str:
    """The subject of a reservation."""
    return buckets.RECORDS.subject(space, buckets.RECORD_UID, uid=uid)


def reservation(principal: Principal, minted_by: str) -> bytes:
    """The stored bytes of a reservation: audit only, the key is what is reserved (C13.1-004)."""
    return canonical({"owner": principal.owner, "actor": principal.actor, "mintedBy": minted_by})
