"""The gate of an endpoint instance and the rows of its credentials: closed values and the table of transitions.

A credential is only released under an ``open`` gate, and every change of the gate is a compare-and-set: a freeze and a
release contend on one key, so that a release that won is always in what a freeze enumerates (C13.1-066..C13.1-075).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final, TypeVar

from sidecar.base.strictjson import SAFE_INTEGER, JsonError, JsonValue, canonical, parse
from sidecar.rails.names.errors import InvalidName
from sidecar.rails.names.principals import Principal
from sidecar.rails.names.tokens import GRAMMARS

MAX_ROW_BYTES: Final = 16 * 1024


class InvalidGate(ValueError):  # noqa: N818 - a state of the value
    """Bytes that are no gate, no ledger row, or a transition that does not exist; the message says why."""


class GateState(StrEnum):
    """Where a gate stands."""

    OPEN = "open"
    FROZEN = "frozen"
    RETIRED = "retired"


class Intent(StrEnum):
    """What a durable operation wants (C13.1-056)."""

    ACTIVATION = "activation"
    TAKEOVER = "takeover"
    REGISTRATION = "registration"
    RETIREMENT = "retirement"


_FREEZE: Final = frozenset((Intent.TAKEOVER, Intent.REGISTRATION, Intent.RETIREMENT))
_REOPEN: Final = frozenset((Intent.ACTIVATION, Intent.TAKEOVER, Intent.REGISTRATION))
_RETIRE: Final = frozenset((Intent.ACTIVATION, Intent.RETIREMENT))
"""Which intent may do what (C13.1-058)."""


@dataclass(frozen=True, slots=True)
class Op:
    """The durable intent behind a freeze. ``id`` names the operation and grants nothing (C13.1-057)."""

    id: str
    kind: Intent
    successor: str | None = None

    def __post_init__(self) -> None:
        if not GRAMMARS["uid"].accepts(self.id):
            raise InvalidGate("opId is no id of an operation")
        if self.successor is not None and self.kind in (Intent.ACTIVATION, Intent.RETIREMENT):
            raise InvalidGate(f"an intent of kind {self.kind} names no successor")

    def value(self) -> dict[str, JsonValue]:
        value: dict[str, JsonValue] = {"opId": self.id, "kind": self.kind.value}
        return value if self.successor is None else {**value, "successor": self.successor}


@dataclass(frozen=True, slots=True)
class Gate:
    """One gate. ``process_epoch`` is the epoch of the process that may serve, ``registration_revision`` the revision of
    the service record of the last completed registration (0: there was none), ``principal`` the connection principal of
    the instance."""

    state: GateState
    generation: int
    process_epoch: int
    registration_revision: int
    name_authority_revision: int
    principal: Principal
    op: Op | None = None

    def __post_init__(self) -> None:
        if (self.op is None) is not (self.state is GateState.OPEN):
            raise InvalidGate("an operation stands at a frozen or retired gate, and at no open one")
        if self.op is not None and self.state is GateState.RETIRED and self.op.kind not in _RETIRE:
            raise InvalidGate(f"no gate is retired by a {self.op.kind}")

    @classmethod
    def virgin(cls, principal: Principal, name_authority_revision: int) -> Gate:
        """The gate of an instance that was never registered. No credential is released under it (OPEN C13.1-i)."""
        return cls(GateState.OPEN, 0, 0, 0, name_authority_revision, principal)

    @property
    def registered(self) -> bool:
        """Whether a registration was ever completed (C13.7-63)."""
        return self.registration_revision > 0

    @property
    def mintable(self) -> bool:
        """Whether a credential may be released under it (C13.1-061)."""
        return self.state is GateState.OPEN and self.registered

    def frozen(self, op: Op) -> Gate:
        """Frozen at its generation by an operation. Raises InvalidGate."""
        if self.state is not GateState.OPEN or op.kind not in _FREEZE:
            raise InvalidGate(f"a {self.state} gate is not frozen by a {op.kind}")
        return replace(self, state=GateState.FROZEN, op=op)

    def reopened(
        self, op: Op, *, epoch: int | None = None, revision: int | None = None, authority: int | None = None
    ) -> Gate:
        """Open at the next generation: completed with the coordinates that are given, or aborted with those that it
        has. Raises InvalidGate, above all for the operation of somebody else."""
        self._own(op, _REOPEN)
        return replace(
            self,
            state=GateState.OPEN,
            op=None,
            generation=self.generation + 1,
            process_epoch=self.process_epoch if epoch is None else epoch,
            registration_revision=self.registration_revision if revision is None else revision,
            name_authority_revision=self.name_authority_revision if authority is None else authority,
        )

    def retired(self, op: Op) -> Gate:
        """Retired for good; keeps the operation (C13.1-060). Raises InvalidGate."""
        self._own(op, _RETIRE)
        return replace(self, state=GateState.RETIRED)

    def next_epoch(self) -> int:
        """The epoch of the next registration: 0 for the first, the next number for each later one (C13.7-63)."""
        return self.process_epoch + 1 if self.registered else 0

    def _own(self, op: Op, kinds: frozenset[Intent]) -> None:
        if self.state is not GateState.FROZEN or self.op != op or op.kind not in kinds:
            raise InvalidGate(f"a {self.state} gate is not moved by this {op.kind}")

    def encode(self) -> bytes:
        """The stored bytes, in canonical JSON."""
        value: dict[str, JsonValue] = {
            "state": self.state.value,
            "generation": self.generation,
            "processEpoch": self.process_epoch,
            "registrationRevision": self.registration_revision,
            "nameAuthorityRevision": self.name_authority_revision,
            "principal": self.principal.dot,
        }
        return canonical(value if self.op is None else {**value, "op": self.op.value()})

    @classmethod
    def decode(cls, data: bytes) -> Gate:
        """The gate in stored bytes. Raises InvalidGate for anything else: an unknown member too, and the families of
        service custody, whose gates are not ours to move (C13.1-099)."""
        value = _object(data, _GATE, {"op"})
        return cls(
            _word(GateState, value["state"], "state"),
            _count(value["generation"], "generation"),
            _count(value["processEpoch"], "processEpoch"),
            _count(value["registrationRevision"], "registrationRevision"),
            _count(value["nameAuthorityRevision"], "nameAuthorityRevision"),
            _principal(value["principal"], "principal"),
            _op(value["op"]) if "op" in value else None,
        )


_GATE: Final = {
    "state",
    "generation",
    "processEpoch",
    "registrationRevision",
    "nameAuthorityRevision",
    "principal",
}


class RowState(StrEnum):
    """Whether a credential is good; ``revoked`` never returns (C13.1-043)."""

    ACTIVE = "active"
    REVOKED = "revoked"


ROOT_CHAIN: Final = ("root",)


@dataclass(frozen=True, slots=True)
class CredentialRow:
    """One row of an instance's credentials (C13.1-042, C13.1-067). ``credential_id`` is the public user key that the
    credential proves, so that a revocation of the account names exactly it; ``expires`` is its Unix end in seconds."""

    endpoint: str
    credential_id: str
    holder: Principal
    uid: str
    state: RowState
    expires: int
    chain: tuple[str, ...] = ROOT_CHAIN

    def left(self, now: int) -> int:
        """Seconds for which the row has to be kept: as long as its credential lives (C13.12-20)."""
        return max(1, self.expires - now)

    def revoked(self) -> CredentialRow:
        return replace(self, state=RowState.REVOKED)

    def encode(self) -> bytes:
        """The stored bytes, in canonical JSON."""
        return canonical(
            {
                "endpoint": self.endpoint,
                "credentialId": self.credential_id,
                "holderPrincipal": self.holder.dot,
                "lifecycleUid": self.uid,
                "sourceChain": list(self.chain),
                "state": self.state.value,
                "exp": self.expires,
            }
        )

    @classmethod
    def decode(cls, data: bytes) -> CredentialRow:
        """The row in stored bytes. Raises InvalidGate for anything else."""
        value = _object(data, _ROW, set())
        chain = value["sourceChain"]
        if not isinstance(chain, list) or not chain or not all(isinstance(one, str) for one in chain):
            raise InvalidGate("sourceChain is no lineage")
        return cls(
            _text(value["endpoint"], "endpoint"),
            _text(value["credentialId"], "credentialId"),
            _principal(value["holderPrincipal"], "holderPrincipal"),
            _text(value["lifecycleUid"], "lifecycleUid"),
            _word(RowState, value["state"], "state"),
            _count(value["exp"], "exp"),
            tuple(str(one) for one in chain),
        )


_ROW: Final = {"endpoint", "credentialId", "holderPrincipal", "lifecycleUid", "sourceChain", "state", "exp"}


# ---- strict fields ----

_W = TypeVar("_W", bound=StrEnum)


def _object(data: bytes, required: set[str], optional: set[str]) -> Mapping[str, JsonValue]:
    try:
        value = parse(data, limit=MAX_ROW_BYTES, safe_integers=True)
    except JsonError as error:
        raise InvalidGate(f"it is no JSON: {error}") from None
    if not isinstance(value, Mapping):
        raise InvalidGate("it is no object")
    if required - value.keys() or value.keys() - required - optional:
        raise InvalidGate("its members are not exactly those of its shape")
    return value


def _op(value: JsonValue) -> Op:
    if not isinstance(value, Mapping) or not {"opId", "kind"} <= value.keys() <= {"opId", "kind", "successor"}:
        raise InvalidGate("op is no intent")
    successor = value.get("successor")
    return Op(
        _text(value["opId"], "opId"),
        _word(Intent, value["kind"], "kind"),
        None if successor is None else _text(successor, "successor"),
    )


def _word(kind: type[_W], value: JsonValue, name: str) -> _W:
    try:
        return kind(_text(value, name))
    except ValueError:
        raise InvalidGate(f"{name} is none of its words") from None


def _text(value: JsonValue, name: str) -> str:
    if not isinstance(value, str):
        raise InvalidGate(f"{name} is no text")
    return value


def _count(value: JsonValue, name: str) -> int:
    # bool is an int: True would pass for 1.
    if type(value) is not int or not 0 <= value <= SAFE_INTEGER:
        raise InvalidGate(f"{name} is no whole number")
    return value


def _principal(value: JsonValue, name: str) -> Principal:
    try:
        return Principal.from_dot(value)
    except InvalidName:
        raise InvalidGate(f"{name} is no principal") from None
