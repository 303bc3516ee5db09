"""The gate of one instance at the broker: frozen, its credentials contained, reopened (C13.1-031, C13.1-033).

``Barrier`` is what registration, deregistration and retirement have in common. The intent is on disk before the gate is
touched, and each step is durable before the next: whatever ends a run, the next one with the same intent goes on there.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from nats.aio.client import Client

from sidecar.rails.names import buckets
from sidecar.rails.names.principals import Lifecycle, Principal
from sidecar.rails.planes.registration.cells import prove_authority, read_cell, write_cell
from sidecar.rails.planes.registration.faults import Conflict, Corrupt, Denied
from sidecar.rails.planes.registration.gates import CredentialRow, Gate, GateState, Intent, InvalidGate, Op, RowState
from sidecar.rails.planes.registration.naming import Place
from sidecar.rails.space.retire import subjects_of

Evict = Callable[[Mapping[str, int], Principal], Awaitable[None]]
"""Void these user keys, each with the Unix end of its last token, and return when neither they nor the principal are
connected anywhere. Raises Unverified."""


@dataclass(frozen=True, slots=True)
class Doors:
    """The connections of one operation, each with the grants of its own profile. ``given_up`` are user keys that their
    own holder has destroyed, behind a connection of which nothing can come any more."""

    registrar: Client
    publisher: Client
    heads: Client
    evict: Evict
    given_up: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Progress:
    """What is kept of an operation until it is over. ``generation`` is that of the gate that it froze or wants to
    freeze, ``epoch`` the one that a registration gives it; ``frozen``: it is known to have done so."""

    op_id: str
    kind: Intent
    generation: int
    epoch: int
    frozen: bool = False

    @property
    def op(self) -> Op:
        return Op(self.op_id, self.kind)


Keep = Callable[[Progress | None], None]
"""Make the progress durable, or forget it; it is on disk when this returns."""
NewId = Callable[[], str]


@dataclass(frozen=True, slots=True)
class Standing:
    """A gate as it was read, with the revision that the next write names."""

    gate: Gate
    revision: int


RETRIES: Final = 16
"""How often a write is decided anew when others were faster at the same key."""


class Barrier:
    """The gate of one instance for one operation. ``progress`` is what an earlier run has left."""

    def __init__(
        self, doors: Doors, place: Place, lifecycle: Lifecycle, progress: Progress | None, keep: Keep, new_id: NewId
    ) -> None:
        self.doors, self.place, self.lifecycle = doors, place, lifecycle
        self.progress = progress
        self._keep, self._new_id = keep, new_id

    async def prove(self) -> None:
        """That both authority buckets lose nothing (C13.12-18). Raises Corrupt."""
        for bucket in (buckets.AUTH, buckets.RECORDS):
            await prove_authority(self.doors.registrar, bucket, self.place.space)

    async def look(self) -> Standing | None:
        """The gate; None when there is none yet. Raises Corrupt, and Denied for the gate of somebody else."""
        cell = await read_cell(self.doors.registrar, buckets.AUTH, self.place.space, self.place.gate)
        if cell.value is None:
            return None
        gate = gate_of(cell.value, self.place.gate)
        if gate.principal != self.lifecycle.principal:
            raise Denied(f"instance {self.place.instance} is one of {gate.principal.dot}")
        return Standing(gate, cell.revision)

    async def freeze(self, kind: Intent, now: int) -> Standing:
        """The gate frozen by our operation, now or by an earlier run; one of another kind that we left is aborted
        first. Raises Conflict when another operation has it or was faster, Denied for an instance that is retired."""
        for _ in range(RETRIES):
            standing = await self.look()
            if standing is None:
                break
            gate = standing.gate
            if gate.state is GateState.RETIRED:
                raise Denied(f"instance {self.place.instance} is retired and never comes back")
            if gate.state is GateState.FROZEN:
                if (found := await self._ours(kind, standing, now)) is not None:
                    return found
                continue
            own = self.progress
            if own is None or own.kind is not kind or own.frozen:
                own = Progress(self._new_id(), kind, gate.generation, gate.next_epoch())
                self._note(own)
            elif own.generation != gate.generation:
                break
            try:
                await write_cell(self.doors.registrar, self.place.gate, gate.frozen(own.op).encode(), standing.revision)
            except Conflict:
                continue  # a credential was released meanwhile, or somebody else froze it
        self.done()
        raise Conflict(f"the gate of instance {self.place.instance} was moved by somebody else")

    async def _ours(self, kind: Intent, standing: Standing, now: int) -> Standing | None:
        """A frozen gate that is ours to go on with; None when it was of another kind and is open again. Raises Conflict
        for anybody else's (C13.1-057)."""
        own, op = self.progress, standing.gate.op
        if own is None or op is None or op != own.op:
            if own is not None and not own.frozen:
                self.done()  # it never froze anything
            raise Conflict(f"the gate of instance {self.place.instance} is frozen by operation {op.id if op else '?'}")
        if own.kind is kind:
            self._note(replace(own, generation=standing.gate.generation, frozen=True))
            return standing
        if own.kind is Intent.RETIREMENT:
            raise Denied(f"instance {self.place.instance} is being retired")
        await self.contain(now)
        await self.reopen(standing, standing.gate.reopened(op))
        self.done()
        return None

    async def reopen(self, standing: Standing, gate: Gate) -> Standing:
        """Write the gate that opens (or ends) what our operation has frozen; the operation is over."""
        revision = await write_cell(self.doors.registrar, self.place.gate, gate.encode(), standing.revision)
        return Standing(gate, revision)

    def done(self) -> None:
        """Forget the operation."""
        self._note(None)

    async def contain(self, now: int) -> int:
        """No credential of the instance is good, and nobody who held one is connected, on any server; how many were
        voided, apart from those that were given up. Only after the freeze, so that every credential that was ever
        released is found (C13.1-075). Raises Corrupt for a row that cannot be read, behind the end of all others."""
        users: dict[str, int] = {}
        spoilt: Corrupt | None = None
        for subject in await self._rows():
            try:
                cell = await read_cell(self.doors.registrar, buckets.AUTH, self.place.space, subject)
                if cell.value is None:
                    continue  # it ended between the list and the read
                row = row_of(cell.value, subject)
                if row.holder != self.lifecycle.principal:
                    raise Corrupt(f"{subject} is held by another principal than its instance")
            except Corrupt as error:
                spoilt = spoilt or error  # the others do not stay for it
                continue
            if row.state is RowState.ACTIVE:
                await write_cell(
                    self.doors.registrar, subject, row.revoked().encode(), cell.revision, ttl=row.left(now)
                )
            if row.expires > now and row.credential_id not in self.doors.given_up:
                users[row.credential_id] = row.expires
        if users:
            await self.doors.evict(users, self.lifecycle.principal)
        if spoilt is not None:
            raise spoilt
        return len(users)

    async def _rows(self) -> list[str]:
        found = await subjects_of(self.doors.registrar, buckets.AUTH.stream(self.place.space), self.place.credentials)
        return sorted(found)

    def _note(self, progress: Progress | None) -> None:
        if progress != self.progress:
            self._keep(progress)
            self.progress = progress


def gate_of(data: bytes, subject: str) -> Gate:
    """The gate in stored bytes. Raises Corrupt."""
    try:
        return Gate.decode(data)
    except InvalidGate as error:
        raise Corrupt(f"{subject} is no gate: {error}") from None


def row_of(data: bytes, subject: str) -> CredentialRow:
    """The ledger row in stored bytes. Raises Corrupt."""
    try:
        return CredentialRow.decode(data)
    except InvalidGate as error:
        raise Corrupt(f"{subject} is no ledger row: {error}") from None
