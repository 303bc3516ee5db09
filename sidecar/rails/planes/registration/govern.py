"""The governance head of an endpoint: where its registrations meet, one after the other (C13.7-46, C13.7-47).

Pure. The head keeps which governed traits a command carries, for good, and which registrations are on their way. Those
do not exclude each other: each is judged against all others, so that one that stopped blocks only what contradicts it,
and only until its gate shows that it can never complete.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from sidecar.base.strictjson import SAFE_INTEGER, JsonError, JsonValue, canonical, parse
from sidecar.rails.endpoint.codes import Code
from sidecar.rails.names.tokens import GRAMMARS
from sidecar.rails.planes.registration.faults import Conflict, RegistrationRefused
from sidecar.rails.planes.registration.gates import Gate, GateState

MAX_HEAD_BYTES: Final = 512 * 1024
MAX_PENDING: Final = 256
"""Registrations of one endpoint that may be on their way at once."""
MAX_COMMANDS: Final = 1_024
POLICY: Final = ("enforcedPolicyKey", "enforcedPolicyRevision", "pendingPolicyKey", "pendingPolicyRevision")
"""The admission policy selector (C13.6-105): carried as it is, and moved by nothing here."""

Bindings = Mapping[str, frozenset[str]]


class InvalidHead(ValueError):  # noqa: N818 - a state of the value
    """Bytes that are no governance head; the message says why."""


class BindingDropped(RegistrationRefused):
    """A surface serves a command without a governed trait that it has once had."""

    code = Code.CONTRACT_INVALID


@dataclass(frozen=True, slots=True)
class Hold:
    """A registration on its way: its operation, the generation at which its gate is frozen, and what it will serve."""

    op_id: str
    generation: int
    digests: tuple[str, ...]
    protocol: int


@dataclass(frozen=True, slots=True)
class Head:
    """The head of one endpoint. ``holds`` are the registrations on their way, by instance."""

    bindings: Bindings = field(default_factory=dict)
    holds: Mapping[str, Hold] = field(default_factory=dict)
    policy: Mapping[str, JsonValue] = field(default_factory=dict)

    def check(self, surface: Iterable[str], governed: Bindings) -> None:
        """That a surface strips no governed trait from a command that it serves (C13.7-46). ``surface`` are the names
        of its commands, ``governed`` those with governed traits. Raises BindingDropped."""
        for command in surface:
            missing = self.bindings.get(command, frozenset()) - governed.get(command, frozenset())
            if missing:
                raise BindingDropped(f"command {command} is served without {', '.join(sorted(missing))}")

    def taken(self, instance: str, hold: Hold) -> Head:
        """With the hold of an instance, in place of an earlier one of its own. Raises Conflict when too many are on
        their way."""
        if instance not in self.holds and len(self.holds) >= MAX_PENDING:
            raise Conflict(f"{MAX_PENDING} registrations of this endpoint are on their way", Code.RESOURCE_EXHAUSTED)
        return replace(self, holds={**self.holds, instance: hold})

    def without(self, instances: Iterable[str]) -> Head:
        """Without the holds of these instances."""
        gone = set(instances)
        return replace(self, holds={name: hold for name, hold in self.holds.items() if name not in gone})

    def promoted(self, instance: str, op_id: str, governed: Bindings) -> Head:
        """The registration is published: its hold is gone, its governed traits stand for good. Raises Conflict when the
        hold is not that of the operation any more."""
        hold = self.holds.get(instance)
        if hold is None or hold.op_id != op_id:
            raise Conflict("the registration was taken for abandoned by another one")
        merged = dict(self.bindings)
        for command, urns in governed.items():
            merged[command] = merged.get(command, frozenset()) | urns
        if len(merged) > MAX_COMMANDS:
            raise Conflict(f"more than {MAX_COMMANDS} commands have governed traits", Code.RESOURCE_EXHAUSTED)
        return replace(self.without((instance,)), bindings=merged)

    def encode(self) -> bytes:
        """The stored bytes, in canonical JSON."""
        holds: dict[str, JsonValue] = {
            name: {
                "opId": hold.op_id,
                "generation": hold.generation,
                "clusterDigests": list(hold.digests),
                "protocol": hold.protocol,
            }
            for name, hold in self.holds.items()
        }
        bindings: dict[str, JsonValue] = {command: sorted(urns) for command, urns in self.bindings.items() if urns}
        return canonical({"v": 1, "bindings": bindings, "holds": holds, **self.policy})

    @classmethod
    def decode(cls, data: bytes) -> Head:
        """The head in stored bytes. Raises InvalidHead for anything else."""
        try:
            value = parse(data, limit=MAX_HEAD_BYTES, safe_integers=True)
        except JsonError as error:
            raise InvalidHead(f"it is no JSON: {error}") from None
        if not isinstance(value, Mapping) or not {"v", "bindings", "holds"} <= value.keys():
            raise InvalidHead("its members are not those of a head")
        if value.keys() - {"v", "bindings", "holds", *POLICY} or value["v"] != 1 or value["v"] is True:
            raise InvalidHead("it is a head of another form")
        bindings = {command: frozenset(_texts(urns)) for command, urns in _members(value["bindings"])}
        holds = {instance: _hold(hold) for instance, hold in _members(value["holds"])}
        if not all(GRAMMARS["instance"].accepts(name) for name in holds):
            raise InvalidHead("a hold is of no instance")
        return cls(bindings, holds, {name: value[name] for name in POLICY if name in value})


def abandoned(hold: Hold, gate: Gate | None) -> bool:
    """Whether a hold can never complete, as the gate of its instance shows (C13.7-47): completion requires that it is
    still frozen at the recorded generation by that operation. A gate that is gone decides nothing."""
    if gate is None:
        return False
    own = gate.state is GateState.FROZEN and gate.op is not None and gate.op.id == hold.op_id
    return not own or gate.generation != hold.generation


def _members(value: JsonValue) -> Iterable[tuple[str, JsonValue]]:
    if not isinstance(value, Mapping):
        raise InvalidHead("bindings or holds are no object")
    return value.items()


def _hold(value: JsonValue) -> Hold:
    if not isinstance(value, Mapping) or value.keys() != {"opId", "generation", "clusterDigests", "protocol"}:
        raise InvalidHead("a hold has other members")
    op_id, generation, protocol = value["opId"], value["generation"], value["protocol"]
    if not isinstance(op_id, str) or type(generation) is not int or not 0 <= generation <= SAFE_INTEGER:
        raise InvalidHead("a hold names no operation or no generation")
    if type(protocol) is not int:
        raise InvalidHead("a hold names no protocol version")
    return Hold(op_id, generation, _texts(value["clusterDigests"]), protocol)


def _texts(value: JsonValue) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
        raise InvalidHead("a list holds something else than texts")
    return tuple(str(one) for one in value)
