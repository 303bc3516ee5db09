"""The one predicate of what a connection may see (P6-09, table P6-t1).

Snapshots, subscriptions, direct lookup, preconditions and operation results all ask this value and nothing else. It is
fixed when a connection is attached, and a reserved subscription keeps the one of its cut (P6-19).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import repeat
from operator import eq
from typing import NamedTuple

from sidecar.coordinator.engine.state import Entry, Event, Family, Operation, State
from sidecar.coordinator.wire.enums import Capability, ObjectKind, Scope


class _Rule(NamedTuple):
    scopes: Scope
    """All of them are needed."""
    capabilities: Capability
    """All of them are needed."""


_NONE = Capability(0)
_FAMILIES: dict[ObjectKind, _Rule] = {
    ObjectKind.OBJECTIVE: _Rule(Scope.WORK_READ, _NONE),
    ObjectKind.RUN: _Rule(Scope.WORK_READ, _NONE),
    ObjectKind.WORK_SESSION: _Rule(Scope.WORK_READ, _NONE),
    ObjectKind.BINDING: _Rule(Scope.WORK_READ, Capability.TERMINAL_BINDINGS),
    ObjectKind.ARTIFACT: _Rule(Scope.WORK_READ, _NONE),
    ObjectKind.ARTIFACT_MANIFEST: _Rule(Scope.ARTIFACT_READ, Capability.ARTIFACT_MANIFESTS),
    ObjectKind.EVIDENCE: _Rule(Scope.ARTIFACT_READ, Capability.ARTIFACT_MANIFESTS),
    ObjectKind.SIGNAL: _Rule(Scope.WORK_READ, Capability.SIGNALS),
    ObjectKind.ADMIN: _Rule(Scope.ADMIN, Capability.ADMINISTRATION),
}
"""Families that are visible as a whole or not at all; OPERATION rows depend on their principal (P6-15)."""


@lru_cache(maxsize=64)
def _table(families: frozenset[int]) -> bytes:
    """1 for each ObjectKind of ``families``, 0 for every other byte."""
    return bytes(kind in families for kind in range(256))


class Visibility(NamedTuple):
    """What one principal sees with its scopes and capabilities. Equal values see the same, byte for byte (P6-17)."""

    families: frozenset[int]
    """ObjectKinds of which everything is visible."""
    own_operations: bool
    """OPERATION rows of ``principal`` are visible."""
    principal: bytes

    @classmethod
    def of(cls, scopes: int, capabilities: int, principal: bytes) -> Visibility:
        """The predicate of a grant; bits that are not allocated mean nothing."""
        families = {
            int(kind)
            for kind, rule in _FAMILIES.items()
            if not rule.scopes & ~scopes and not rule.capabilities & ~capabilities
        }
        if scopes & Scope.ADMIN:
            families.add(ObjectKind.OPERATION)
        return cls(frozenset(families), bool(scopes & (Scope.WORK_READ | Scope.WORK_COMMAND)), principal)

    @property
    def operations(self) -> bool:
        """Whether the connection may ask for operations at all (P6-18, OPEN P8-e)."""
        return self.own_operations or ObjectKind.OPERATION in self.families

    def sees(self, kind: int, principal: bytes) -> bool:
        """Whether an object of this family is visible; ``principal`` is the originator of an OPERATION, else unused."""
        if kind in self.families:
            return True
        return kind == ObjectKind.OPERATION and self.own_operations and principal == self.principal

    def sees_entry(self, entry: Entry) -> bool:
        """Whether a stored entry is visible."""
        return self.sees(entry.kind, entry.principal if isinstance(entry, Operation) else b"")

    def sees_event(self, event: Event) -> bool:
        """Whether an event is visible: exactly when its object is."""
        return self.sees(event.object_kind, event.principal)

    def mask(self, kinds: bytearray, principals: Sequence[bytes]) -> bytes:
        """``sees`` for a row of events at once: a byte 1 or 0 for each. ``principals`` is empty where there is none."""
        seen = kinds.translate(_table(self.families))
        if self.own_operations and ObjectKind.OPERATION not in self.families:
            own = bytes(map(eq, principals, repeat(self.principal)))
            both = int.from_bytes(seen, "little") | int.from_bytes(own, "little")
            return both.to_bytes(len(own), "little")
        return bytes(seen)

    def cut(self, state: State) -> Iterator[Family]:
        """The visible families of a state, kinds ascending: the order of a snapshot (P9-12)."""
        for kind in sorted(ObjectKind):
            if kind in self.families:
                yield state.family(kind)
            elif kind == ObjectKind.OPERATION and self.own_operations:
                yield state.own_operations(self.principal)

    def find(self, state: State, kind: int, id_: bytes) -> Entry | None:
        """A visible entry; an invisible one is as absent (OPEN P8-d)."""
        entry = state.get(kind, id_)
        return entry if entry is not None and self.sees_entry(entry) else None
