"""What a command takes and gives, as data: shapes, class and digests (13.7).

Both sides take a contract from here: the caller pins its digests and checks what it sends, the server refuses other
digests and checks what comes and what its handlers give.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sidecar.base.strictjson import JsonValue
from sidecar.rails.endpoint.artifacts import ContractInvalid, digest, digest_of, manifest
from sidecar.rails.endpoint.clusters import (
    EPHEMERAL,
    READ,
    RESERVED,
    AdmissionCeiling,
    Cluster,
    Command,
    Effect,
    Event,
    Surface,
)
from sidecar.rails.endpoint.schema_walk import DIALECT
from sidecar.rails.endpoint.schemas import Schema, schema
from sidecar.rails.endpoint.shapes import VOID
from sidecar.rails.envelopes.shapes import Shape
from sidecar.rails.names.tokens import GRAMMARS


def closure_digest(schema: Mapping[str, JsonValue]) -> str:
    """What a request pins for a schema that refers to nothing: the digest of its manifest (C13.7-28, -29)."""
    return digest_of(manifest(digest(schema)))


def document(shape: Shape) -> dict[str, JsonValue]:
    """The schema artifact of a shape. That of nothing is exactly ``{"type":"null"}`` (C13.7-26)."""
    return dict(shape.schema) if shape is VOID else {"$schema": DIALECT, **shape.schema}


@dataclass(frozen=True, slots=True)
class Contract:
    """One command. ``waits`` marks one that may wait for something to come, and is counted apart from working ones.

    ``modes`` are the authorization modes of a targeted command, empty for an untargeted one (C13.2-20). ``effect`` is
    None where nothing was declared, which counts as a write (C13.7-11). ``idempotent`` says that requests with one id
    converge on one recorded answer. An empty ``capability`` is the default one of its endpoint. The digests are those
    of the shapes unless a schema with members says others.
    """

    command: str
    input: Shape
    output: Shape
    contract_class: str = EPHEMERAL
    modes: tuple[str, ...] = ()
    action: bool = False
    waits: bool = False
    effect: Effect | None = None
    capability: str = ""
    idempotent: bool = False
    ceiling: AdmissionCeiling | None = None
    traits: tuple[str, ...] = ()
    readiness_ms: int | None = None
    input_digest: str = ""
    output_digest: str = ""

    def __post_init__(self) -> None:
        GRAMMARS["command"].check(self.command)
        if self.command in RESERVED:
            raise ValueError(f"{self.command} is a reserved command name")
        if not self.input_digest:
            object.__setattr__(self, "input_digest", closure_digest(document(self.input)))
        if not self.output_digest:
            object.__setattr__(self, "output_digest", closure_digest(document(self.output)))

    @classmethod
    def of(cls, command: Command, input: Schema, output: Schema) -> Contract:
        """The contract of a declared command, with the schemas of its digests. Raises ContractInvalid."""
        if (input.closure, output.closure) != (command.input_digest, command.output_digest):
            raise ContractInvalid(command.name, "has other schemas than its digests name")
        return cls(
            command.name,
            input.shape,
            output.shape,
            contract_class=command.contract_class,
            modes=command.modes,
            action=command.action,
            effect=command.effect,
            capability=command.capability,
            ceiling=command.ceiling,
            traits=command.traits,
            readiness_ms=command.readiness_ms,
            input_digest=command.input_digest,
            output_digest=command.output_digest,
        )

    @property
    def reads(self) -> bool:
        """Whether a repeat changes nothing (C13.7-12)."""
        return self.effect == READ

    def declared(self, endpoint: str, protocol: int = 1) -> Command:
        """The command as the cluster of an endpoint declares it: version 1 knows no effects (C13.7-17)."""
        return Command(
            name=self.command,
            input_digest=self.input_digest,
            output_digest=self.output_digest,
            capability=self.capability or default_capability(endpoint, self.command),
            contract_class=self.contract_class,
            modes=self.modes,
            effect=(self.effect or "write") if protocol >= 2 else None,
            traits=self.traits,
            action=self.action,
            ceiling=self.ceiling,
            readiness_ms=self.readiness_ms,
        )


Contracts = Mapping[str, Contract]


def default_capability(endpoint: str, command: str) -> str:
    """The capability of a command that names none: last label of the endpoint, and the command."""
    return f"{endpoint.rpartition('.')[2]}.{command}"


@dataclass(frozen=True, slots=True)
class Compiled:
    """What an endpoint with compiled-in contracts serves, and every artifact that it publishes for that."""

    surface: Surface
    artifacts: Mapping[str, bytes]


def surface_of(
    urn: str,
    contracts: Contracts,
    *,
    endpoint: str,
    revision: int = 1,
    protocol: int = 1,
    events: Mapping[str, Schema] | None = None,
) -> Compiled:
    """One cluster of contracts whose schemas are those of their shapes. Raises ContractInvalid.

    ``events``: payload schemas by name. Surfaces of several clusters are joined with ``joined``.
    """
    artifacts: dict[str, bytes] = {}
    for contract in contracts.values():
        for shape in (contract.input, contract.output):
            artifacts |= schema(document(shape)).artifacts
    # By name, as an endpoint declares what its author wrote: both give one digest for one contract.
    declared = tuple(Event(name, own.closure) for name, own in sorted((events or {}).items()))
    for own in (events or {}).values():
        artifacts |= own.artifacts
    commands = tuple(contract.declared(endpoint, protocol) for _, contract in sorted(contracts.items()))
    cluster = Cluster(urn, revision, commands, declared)
    return Compiled(Surface((cluster,), protocol), {**artifacts, **cluster.artifacts})


def joined(*compiled: Compiled) -> Compiled:
    """All clusters of several surfaces of one protocol version, as one that was checked. Raises ContractInvalid."""
    protocols = {one.surface.protocol for one in compiled}
    if len(protocols) != 1:
        raise ContractInvalid("protocol.v", "is not one for all clusters")
    clusters = tuple(cluster for one in compiled for cluster in one.surface.clusters)
    surface = Surface(clusters, protocols.pop())
    surface.check()
    return Compiled(surface, {name: data for one in compiled for name, data in one.artifacts.items()})


def contracts(*listed: Contract) -> Contracts:
    """Contracts by their command."""
    return {one.command: one for one in listed}
