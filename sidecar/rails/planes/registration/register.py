"""Registration of one endpoint instance: an ordered machine that every run with the same intent goes on with.

    name authority, surface ─► freeze the gate ─► void and evict the predecessor ─► hold on the governance head
      ─► artifacts ─► service record ─► governance head ─► lifecycle head: epoch ─► open the gate at that epoch

Each arrow is a durable write. Nothing is served in between: credentials are released under an open gate alone
(:mod:`minting`), so that the new process serves only after the old one is gone everywhere (C13.14-01, OPEN C13.1-i).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from sidecar.base.strictjson import canonical
from sidecar.rails.endpoint.artifacts import ContractInvalid
from sidecar.rails.endpoint.clusters import GOVERNED, Surface
from sidecar.rails.endpoint.codes import Code
from sidecar.rails.endpoint.service_record import ServiceSpec
from sidecar.rails.names import buckets
from sidecar.rails.names.principals import Lifecycle
from sidecar.rails.planes.registration.barrier import RETRIES, Barrier, Doors, Keep, NewId, Progress, Standing, gate_of
from sidecar.rails.planes.registration.cells import read_cell, write_cell
from sidecar.rails.planes.registration.faults import Conflict, Corrupt, Denied, RegistrationRefused, Unverified
from sidecar.rails.planes.registration.gates import Gate, GateState, Intent
from sidecar.rails.planes.registration.govern import Head, Hold, InvalidHead, abandoned
from sidecar.rails.planes.registration.heads import advance, check_identity
from sidecar.rails.planes.registration.homogeneity import Form, MixedContracts, check_forms, registered, spec_of
from sidecar.rails.planes.registration.naming import Place
from sidecar.rails.planes.registration.publisher import check_artifacts, publish
from sidecar.rails.space.keys import read_key


@dataclass(frozen=True)
class Wanted:
    """What is to be registered. ``artifacts`` are all documents of the surface by digest, schemas included;
    ``authority`` is the revision of the claim behind the name (0: the operator's own), ``reserved`` are command names
    of composites that the endpoint owns (OPEN C13.2-a)."""

    place: Place
    lifecycle: Lifecycle
    spec: ServiceSpec
    surface: Surface
    artifacts: Mapping[str, bytes]
    authority: int = 0
    reserved: tuple[str, ...] = ()

    @property
    def form(self) -> Form:
        return self.surface.digests, self.surface.protocol

    @property
    def governed(self) -> dict[str, frozenset[str]]:
        """The governed traits of each command that has some."""
        found = {name: GOVERNED.intersection(command.traits) for name, command in self.surface.commands.items()}
        return {name: frozenset(urns) for name, urns in found.items() if urns}


@dataclass(frozen=True, slots=True)
class Registered:
    """What a completed registration gives: the epoch at which the instance may serve, the revision of its service
    record, the generation of its gate. ``evicted`` counts the credentials of the predecessor that were voided."""

    instance: str
    epoch: int
    registration_revision: int
    generation: int
    evicted: int = 0
    first: bool = False


async def register(
    doors: Doors, wanted: Wanted, progress: Progress | None, keep: Keep, new_id: NewId, now: int
) -> Registered:
    """Register the instance, or finish what an earlier run began. ``now`` is the Unix time.

    Raises Denied, Conflict, Unverified, MixedContracts, ArtifactClash, Corrupt and the other refusals of registration,
    BrokerRefused, nats.errors.Error. Refused before the service record is written, the gate opens again as it was;
    after that, and when eviction cannot be verified, it stays frozen for the next run.
    """
    return await _Registration(doors, wanted, progress, keep, new_id, now).run()


class _Registration:
    def __init__(
        self, doors: Doors, wanted: Wanted, progress: Progress | None, keep: Keep, new_id: NewId, now: int
    ) -> None:
        self._doors, self._wanted, self._now = doors, wanted, now
        self._place = wanted.place
        self._spec = canonical(wanted.spec.value())
        self._barrier = Barrier(doors, wanted.place, wanted.lifecycle, progress, keep, new_id)

    async def run(self) -> Registered:
        check_surface(self._wanted)
        check_artifacts(self._wanted.artifacts, self._doors.publisher.max_payload)
        await self._barrier.prove()
        await check_identity(self._doors.heads, self._wanted.place.space, self._wanted.lifecycle)
        standing = await self._standing()
        if (done := await self._completed(standing)) is not None:
            return done
        # Looked at before anybody is hurt: what is refused here leaves the predecessor serving.
        if standing.gate.state is GateState.OPEN:
            await self._judge(await self._head())
        standing = await self._barrier.freeze(Intent.REGISTRATION, self._now)
        evicted = await self._barrier.contain(self._now)
        try:
            await self._hold(standing.gate)
            await publish(self._doors.publisher, self._place.space, self._wanted.artifacts)
        except (Unverified, Corrupt):
            raise
        except RegistrationRefused:
            await self._abort(standing)
            raise
        return replace(await self._complete(standing), evicted=evicted)

    async def _standing(self) -> Standing:
        """The gate, which the first registration creates: open, and nothing is released under it (OPEN C13.1-i)."""
        found = await self._barrier.look()
        if found is not None:
            return found
        if (await self._record())[1] > 0:
            raise Corrupt(f"instance {self._place.instance} has a service record and no gate")
        virgin = Gate.virgin(self._wanted.lifecycle.principal, self._wanted.authority)
        return Standing(virgin, await write_cell(self._doors.registrar, self._place.gate, virgin.encode(), 0))

    async def _completed(self, standing: Standing) -> Registered | None:
        """What an earlier run has completed and died behind: the gate is open one generation after it froze it, which
        nobody else can have done, and its record says what is wanted now."""
        progress, gate = self._barrier.progress, standing.gate
        if progress is None or progress.kind is not Intent.REGISTRATION or gate.state is not GateState.OPEN:
            return None
        moved = gate.generation - progress.generation
        if not progress.frozen and moved > 0:
            self._barrier.done()
            raise Conflict(f"another registration of instance {self._place.instance} was faster")
        value, revision = await self._record()
        # One that was aborted, here or before the record was deleted, has opened at the epoch of before.
        told = gate.registered and gate.process_epoch == progress.epoch
        if moved == 1 and told and gate.registration_revision == revision and value == self._spec:
            self._barrier.done()
            return self._registered(gate)
        if moved > 0:
            self._barrier.done()
        return None

    async def _record(self) -> tuple[bytes | None, int]:
        kept = await read_key(self._doors.registrar, buckets.RECORDS.stream(self._place.space), self._place.spec)
        if kept.value is not None and spec_of(kept.value, self._place.spec).owner != self._wanted.spec.owner:
            raise Denied(f"instance {self._place.instance} is registered by another owner")
        return kept.value, kept.revision

    # ---- the governance head ----

    async def _head(self) -> tuple[Head, int]:
        cell = await read_cell(self._doors.registrar, buckets.RECORDS, self._place.space, self._place.govern)
        try:
            return (Head() if cell.value is None else Head.decode(cell.value)), cell.revision
        except InvalidHead as error:
            raise Corrupt(f"{self._place.govern} is no governance head: {error}") from None

    async def _judge(self, found: tuple[Head, int]) -> Head:
        """The head without abandoned holds, when the surface fits to it and to all that is registered or on its way."""
        head, _ = found
        head.check(self._wanted.surface.commands, self._wanted.governed)
        others = {name: hold for name, hold in head.holds.items() if name != self._place.instance}
        gone = {name for name, hold in others.items() if abandoned(hold, await self._gate(name))}
        specs = await registered(self._doors.registrar, self._place)
        if any(one.owner != self._wanted.spec.owner for one in specs.values()):
            raise Denied(f"{self._place.endpoint} is registered by another owner; a name has one (C13.2-23)")
        forms = [(one.cluster_digests, one.protocol) for name, one in specs.items() if name != self._place.instance]
        await check_forms(self._doors.publisher, self._place.space, self._wanted.surface, forms)
        live = [(hold.digests, hold.protocol) for name, hold in others.items() if name not in gone]
        try:
            await check_forms(self._doors.publisher, self._place.space, self._wanted.surface, live)
        except (MixedContracts, Corrupt):
            # Its artifacts may not stand yet: whether it can complete is not decided, so it is not passed over.
            raise Conflict("another registration of this endpoint is on its way with another contract") from None
        return head.without(gone)

    async def _gate(self, instance: str) -> Gate | None:
        subject = self._place.gate_of(instance)
        cell = await read_cell(self._doors.registrar, buckets.AUTH, self._place.space, subject)
        return None if cell.value is None else gate_of(cell.value, subject)

    async def _hold(self, gate: Gate) -> None:
        digests, protocol = self._wanted.form
        assert gate.op is not None
        hold = Hold(gate.op.id, gate.generation, digests, protocol)
        for _ in range(RETRIES):
            found = await self._head()
            if found[0].holds.get(self._place.instance) == hold:
                return
            head = (await self._judge(found)).taken(self._place.instance, hold)
            if await self._written(head, found[1]):
                return
        raise Conflict("others keep changing the governance head")

    async def _promote(self, gate: Gate) -> None:
        assert gate.op is not None
        for _ in range(RETRIES):
            head, revision = await self._head()
            mine = head.holds.get(self._place.instance)
            if mine is None:
                return  # an earlier run has promoted it: nobody takes a hold whose gate is still frozen by us
            if await self._written(head.promoted(self._place.instance, gate.op.id, self._wanted.governed), revision):
                return
        raise Conflict("others keep changing the governance head")

    async def _written(self, head: Head, revision: int) -> bool:
        try:
            await write_cell(self._doors.registrar, self._place.govern, head.encode(), revision)
        except Conflict:
            return False
        return True

    # ---- the end ----

    async def _complete(self, standing: Standing) -> Registered:
        gate = standing.gate
        assert gate.op is not None
        revision = await self._publish_spec(gate)
        await self._promote(gate)
        epoch = gate.next_epoch()
        await advance(self._doors.heads, self._place, self._wanted.lifecycle, epoch, gate.op.id)
        opened = gate.reopened(gate.op, epoch=epoch, revision=revision, authority=self._wanted.authority)
        await self._barrier.reopen(standing, opened)
        self._barrier.done()
        return replace(self._registered(opened), first=not gate.registered)

    async def _publish_spec(self, gate: Gate) -> int:
        """The revision of the service record under this freeze: written once, also when a run before was killed behind
        it. Only this path moves it (C13.7-62)."""
        value, revision = await self._record()
        if value == self._spec and revision > gate.registration_revision:
            return revision
        return await write_cell(self._doors.registrar, self._place.spec, self._spec, revision)

    async def _abort(self, standing: Standing) -> None:
        """Open again at the coordinates of before; the predecessor stays evicted (C13.1-033)."""
        gate = standing.gate
        assert gate.op is not None
        head, revision = await self._head()
        if self._place.instance in head.holds:
            await self._written(head.without((self._place.instance,)), revision)
        await self._barrier.reopen(standing, gate.reopened(gate.op))
        self._barrier.done()

    def _registered(self, gate: Gate) -> Registered:
        return Registered(self._place.instance, gate.process_epoch, gate.registration_revision, gate.generation)


def check_surface(wanted: Wanted) -> None:
    """That the surface may be registered and the record says it (C13.6-95..C13.6-97). Raises RegistrationRefused."""
    spec = wanted.spec
    try:
        wanted.surface.check(wanted.reserved, virtual=spec.activation is not None)
    except ContractInvalid as error:
        raise RegistrationRefused(str(error), Code.CONTRACT_INVALID) from None
    if (spec.cluster_digests, spec.protocol) != wanted.form or spec.endpoint != wanted.place.endpoint:
        raise RegistrationRefused("the service record does not say what the surface is", Code.CONTRACT_INVALID)
    if spec.owner != wanted.lifecycle.principal.owner:
        raise Denied("the service record names another owner than its instance")
    digests = {digest for one in wanted.surface.commands.values() for digest in (one.input_digest, one.output_digest)}
    digests |= {event.schema_digest for event in wanted.surface.events.values()}
    if missing := (digests | set(spec.cluster_digests)) - wanted.artifacts.keys():
        raise RegistrationRefused(f"{min(missing)} is not among the artifacts", Code.CONTRACT_INVALID)
