"""Clusters: what an endpoint offers under one type URN, as a document, and all that one endpoint serves (13.7).

The readers take documents of strangers and give values that keep every rule; ``Surface.check`` holds the rules of
who registers, which are stricter: names that are kept, effects all or none, and traits that somebody must verify.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final, Literal, cast

from sidecar.base.strictjson import JsonValue
from sidecar.rails.endpoint import artifacts
from sidecar.rails.endpoint.artifacts import Closure, ContractInvalid, Documents, read_closure, single
from sidecar.rails.endpoint.codes import Code
from sidecar.rails.endpoint.shapes import BOOLEAN, TRUE, array, closed, text, whole
from sidecar.rails.envelopes.shapes import ANYTHING, Shape, matching, words
from sidecar.rails.names.tokens import MODES

DESCRIBE: Final = "describe"
RESERVED: Final = frozenset({DESCRIBE, "cancel"})
"""Command names that no contract declares for itself (C13.2-08)."""
OWNED: Final = frozenset({"lease", "commit", "resume"})
"""Command names of composites: of an endpoint that owns a pool, or checkpoints (OPEN C13.2-a)."""
GOVERNED: Final = frozenset({"ai.cotal.guarded", "ai.cotal.priced"})
"""Traits that count only with an attachment that their authority signed (C13.7-74)."""
PRICED: Final = "ai.cotal.priced"
EPHEMERAL: Final = "ephemeral"
JOURNAL: Final = "journal"
CLASSES: Final = (EPHEMERAL, JOURNAL)
PROTOCOLS: Final = (1, 2)
"""Values of ``protocol.v`` that are implemented. ``effect`` is declared from the second on (C13.7-09)."""
Effect = Literal["read", "write"]
READ: Final = "read"
WRITE: Final = "write"

MAX_COMMANDS: Final = 256
"""Commands, events or attributes of one cluster."""
MAX_CLUSTERS: Final = 64
"""Clusters of one endpoint."""
MAX_TRAITS: Final = 32

_LABEL = "[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?"
URN: Final = re.compile(rf"{_LABEL}(?:\.{_LABEL}){{1,15}}")
"""A reverse-DNS type URN of 2 to 16 labels (C13.7-02)."""
CAPABILITY: Final = re.compile(r"[a-z][a-z0-9._-]{0,63}")


class UnsupportedProtocol(ValueError):  # noqa: N818 - the field's word
    """A ``protocol.v`` that is not implemented (C13.7-18, -19)."""

    code: Final = Code.UNSUPPORTED_VERSION

    def __init__(self) -> None:
        super().__init__(f"protocol.v is none of {PROTOCOLS}")


@dataclass(frozen=True, slots=True)
class AdmissionCeiling:
    """What a journal command takes at most: bytes, containers within each other, items of all containers (C13.7-05)."""

    max_bytes: int
    max_depth: int
    max_items: int

    def value(self) -> dict[str, JsonValue]:
        return {"maxBytes": self.max_bytes, "maxDepth": self.max_depth, "maxItems": self.max_items}


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """One command as a cluster declares it (C13.7-04). ``modes`` are empty for an untargeted one.

    ``effect`` is None where none is declared: such a command counts as a write (C13.7-11).
    """

    name: str
    input_digest: str
    output_digest: str
    capability: str
    contract_class: str = EPHEMERAL
    modes: tuple[str, ...] = ()
    effect: Effect | None = None
    traits: tuple[str, ...] = ()
    action: bool = False
    ceiling: AdmissionCeiling | None = None
    readiness_ms: int | None = None

    @property
    def reads(self) -> bool:
        """Whether a repeat changes nothing, as the endpoint declares (C13.7-11, -12)."""
        return self.effect == READ

    def value(self) -> dict[str, JsonValue]:
        value: dict[str, JsonValue] = {
            "name": self.name,
            "class": self.contract_class,
            "targeted": bool(self.modes),
            "capability": self.capability,
            "inputDigest": self.input_digest,
            "outputDigest": self.output_digest,
        }
        if self.modes:
            value["modes"] = list(self.modes)
        if self.traits:
            value["traits"] = list(self.traits)
        if self.action:
            value["action"] = True
        if self.ceiling is not None:
            value["admissionCeiling"] = self.ceiling.value()
        if self.readiness_ms is not None:
            value["readinessDeadlineMs"] = self.readiness_ms
        if self.effect is not None:
            value["effect"] = self.effect
        return value


@dataclass(frozen=True, slots=True)
class Event:
    """An event that is published at ``ev.<cluster>.<event>`` (C13.7-07)."""

    name: str
    schema_digest: str

    def value(self) -> dict[str, JsonValue]:
        return {"name": self.name, "schemaDigest": self.schema_digest}


@dataclass(frozen=True, slots=True)
class Attribute:
    """A value that is read through the record contract; ``record`` names how it is derived (C13.7-03)."""

    name: str
    schema_digest: str
    record: str

    def value(self) -> dict[str, JsonValue]:
        return {"name": self.name, "schemaDigest": self.schema_digest, "record": self.record}


@dataclass(frozen=True)
class Cluster:
    """A cluster. Making one refuses with ContractInvalid what its reader would refuse (C13.7-01)."""

    urn: str
    revision: int
    commands: tuple[Command, ...]
    events: tuple[Event, ...] = ()
    attributes: tuple[Attribute, ...] = ()
    document: JsonValue = field(default=None, compare=False, repr=False)
    """The document that ``read_cluster`` took this from: a key that means nothing here still counts in its digest."""

    def __post_init__(self) -> None:
        if self.document is None:
            _check_cluster(self.value(), any(one.effect for one in self.commands))

    def value(self) -> JsonValue:
        """The cluster document."""
        if self.document is not None:
            return self.document
        return {
            "urn": self.urn,
            "revision": self.revision,
            "attributes": [one.value() for one in self.attributes],
            "commands": [one.value() for one in self.commands],
            "events": [one.value() for one in self.events],
        }

    @cached_property
    def _closure(self) -> Closure:
        return single(self.value())

    @property
    def closure(self) -> str:
        """The closure digest, as ``clusterDigests`` and descriptors name it. A cluster refers to nothing."""
        return self._closure.digest

    @property
    def artifacts(self) -> Mapping[str, bytes]:
        """Document and manifest, canonical, by digest."""
        return self._closure.artifacts

    @property
    def topic(self) -> str:
        """The token of this cluster in event topics (OPEN C13.7-a)."""
        return self.urn.replace(".", "_")


def event_topic(urn: str, event: str) -> str:
    """The topic of an event (C13.7-07)."""
    return f"ev.{urn.replace('.', '_')}.{event}"


# ---- reading ----

_DIGEST = matching(r"^sha256:[0-9a-f]{64}$", "is no digest")
_URN = matching(rf"^{URN.pattern}$", "is no URN of 2 to 16 labels")
_NAME = matching(r"^[A-Za-z0-9_-]{1,64}$", "is no name of 1 to 64 characters")
_CEILING = closed({name: whole(1) for name in ("maxBytes", "maxDepth", "maxItems")})
_COMMAND = closed(
    {
        "name": matching(r"^[a-z0-9-]{1,32}$", "is no command name"),
        "class": words(*CLASSES),
        "targeted": BOOLEAN,
        "capability": matching(rf"^{CAPABILITY.pattern}$", "is no capability"),
        "inputDigest": _DIGEST,
        "outputDigest": _DIGEST,
    },
    {
        "modes": array(words(*MODES), len(MODES), 1),
        "traits": array(_URN, MAX_TRAITS),
        "action": TRUE,
        "admissionCeiling": _CEILING,
        "readinessDeadlineMs": whole(),
        "effect": ANYTHING,
    },
)
_EVENT = closed({"name": _NAME, "schemaDigest": _DIGEST})
_ATTRIBUTE = closed({"name": _NAME, "schemaDigest": _DIGEST, "record": text(256, 1)})
_CLUSTER = closed(
    {
        "urn": _URN,
        "revision": whole(),
        "attributes": array(_ATTRIBUTE, MAX_COMMANDS),
        "commands": array(_COMMAND, MAX_COMMANDS, 1),
        "events": array(_EVENT, MAX_COMMANDS),
    }
)


def read_cluster(value: JsonValue, protocol: int) -> Cluster:
    """The cluster of a document under a protocol version. Raises ContractInvalid, UnsupportedProtocol.

    Under version 1 an ``effect`` is no declaration, whatever it says; under version 2 every command has one
    (C13.7-09, -10, -16).
    """
    if protocol not in PROTOCOLS:
        raise UnsupportedProtocol
    found = _check_cluster(value, protocol >= 2)
    return Cluster(
        urn=found["urn"],
        revision=found["revision"],
        commands=tuple(_command(one, protocol) for one in found["commands"]),
        events=tuple(Event(one["name"], one["schemaDigest"]) for one in found["events"]),
        attributes=tuple(Attribute(one["name"], one["schemaDigest"], one["record"]) for one in found["attributes"]),
        document=value,
    )


def load_cluster(closure: str, fetch: Documents, protocol: int) -> Cluster:
    """The cluster of a closure out of artifacts, verified here. Raises like ``read_cluster``, and MissingArtifact."""
    found = read_closure(closure, fetch)
    if found.members:
        raise ContractInvalid("manifest.members", "are not empty, and a cluster refers to nothing")
    return read_cluster(found.documents[found.root], protocol)


needed = artifacts.needed


def _check_cluster(value: JsonValue, effects: bool) -> dict[str, Any]:
    """Refuse a document that is no cluster; ``effects``: every command must have one."""
    _fits(_CLUSTER, value)
    found = cast("dict[str, Any]", value)
    for kind in ("commands", "events", "attributes"):
        names = [one["name"] for one in found[kind]]
        if len(set(names)) != len(names):
            raise ContractInvalid(kind, "declare one name twice")
    for index, command in enumerate(found["commands"]):
        fault = _command_fault(command, effects)
        if fault:
            raise ContractInvalid(f"commands[{index}]", fault)
    return found


def _command_fault(command: Mapping[str, Any], effects: bool) -> str:
    """What is wrong with a command whose members have their types; empty if nothing."""
    journal = command["class"] == JOURNAL
    modes, traits = command.get("modes", ()), command.get("traits", ())
    if command["name"] in RESERVED:
        return "declares a reserved name"
    if command["targeted"] is not bool(modes):
        return "has modes exactly if it is targeted"
    if len(set(modes)) != len(modes) or len(set(traits)) != len(traits):
        return "names a mode or a trait twice"
    if ("admissionCeiling" in command) is not journal:
        return "has an admission ceiling exactly if it is of the class journal"
    if "action" in command and not journal:
        return "is an action, and not of the class journal"
    if "readinessDeadlineMs" in command and "action" not in command:
        return "has a readiness deadline, and is no action"
    if PRICED in traits and not journal:
        return "is priced, and not of the class journal"
    if effects and command.get("effect") not in (READ, WRITE):
        return "declares no effect, and it must say read or write"
    return ""


def _command(value: Mapping[str, Any], protocol: int) -> Command:
    ceiling = value.get("admissionCeiling")
    return Command(
        name=value["name"],
        input_digest=value["inputDigest"],
        output_digest=value["outputDigest"],
        capability=value["capability"],
        contract_class=value["class"],
        modes=tuple(value.get("modes", ())),
        effect=value["effect"] if protocol >= 2 else None,
        traits=tuple(value.get("traits", ())),
        action="action" in value,
        ceiling=ceiling and AdmissionCeiling(ceiling["maxBytes"], ceiling["maxDepth"], ceiling["maxItems"]),
        readiness_ms=value.get("readinessDeadlineMs"),
    )


def _fits(shape: Shape, value: JsonValue) -> None:
    if (fault := shape.check(value)) is not None:
        raise ContractInvalid(fault.field, fault.why)


# ---- the surface of one endpoint ----


@dataclass(frozen=True)
class Surface:
    """All clusters that an endpoint serves, under one protocol version."""

    clusters: tuple[Cluster, ...]
    protocol: int = 1

    @cached_property
    def commands(self) -> Mapping[str, Command]:
        """Commands by name; of a name that two clusters declare, the first (``check`` refuses those)."""
        found: dict[str, Command] = {}
        for cluster in self.clusters:
            for command in cluster.commands:
                found.setdefault(command.name, command)
        return found

    @cached_property
    def events(self) -> Mapping[tuple[str, str], Event]:
        """Events by URN of the cluster and name."""
        return {(cluster.urn, event.name): event for cluster in self.clusters for event in cluster.events}

    @cached_property
    def digests(self) -> tuple[str, ...]:
        """``clusterDigests`` of the service record: closure digests in order."""
        return tuple(cluster.closure for cluster in self.clusters)

    @property
    def artifacts(self) -> Mapping[str, bytes]:
        """Cluster documents and their manifests by digest; schemas are not among them."""
        return {name: data for cluster in self.clusters for name, data in cluster.artifacts.items()}

    def check(self, own_reserved: Collection[str] = (), *, virtual: bool = False) -> None:
        """Refuse with ContractInvalid what must not be registered.

        ``own_reserved`` are those of ``OWNED`` that the endpoint may declare because it owns what they act on;
        ``virtual`` is an endpoint that is activated on demand (C13.6-95).
        """
        if self.protocol not in PROTOCOLS:
            raise ContractInvalid("protocol.v", f"is none of {PROTOCOLS}")
        if not 1 <= len(self.clusters) <= MAX_CLUSTERS:
            raise ContractInvalid("clusters", f"are not 1 to {MAX_CLUSTERS}")
        urns = [cluster.urn for cluster in self.clusters]
        if len(set(urns)) != len(urns):
            raise ContractInvalid("clusters", "name one URN twice")
        seen: set[str] = set()
        for cluster in self.clusters:
            for command in cluster.commands:
                if fault := self._fault(command, seen, own_reserved, virtual):
                    raise ContractInvalid(f"{cluster.urn}.{command.name}", fault)
                seen.add(command.name)

    def _fault(self, command: Command, seen: set[str], own_reserved: Collection[str], virtual: bool) -> str:
        if command.name in seen:
            return "is declared by two clusters"
        if command.name in OWNED and command.name not in own_reserved:
            return "is kept for the owner of a pool or of checkpoints"
        if (command.effect is not None) is not (self.protocol >= 2):
            return "declares an effect exactly under protocol 2"
        if GOVERNED.intersection(command.traits):
            return "has a governed trait, and nobody verifies its attachment"
        if virtual and command.contract_class != JOURNAL:
            return "is not of the class journal, and the endpoint is activated on demand"
        return ""


def compatibility(old: Surface, new: Surface) -> tuple[str, ...]:
    """Why two generations cannot serve one class together; empty if they can (C13.7-72, -78).

    Additions are fine. What both have keeps class, modes, capability and digests; what a cluster had, it keeps.
    """
    faults = list(_losses(old, new))
    for name, before in old.commands.items():
        after = new.commands.get(name)
        if after is None:
            continue
        for what, left, right in (
            ("class", before.contract_class, after.contract_class),
            ("modes", set(before.modes), set(after.modes)),
            ("action", before.action, after.action),
            ("capability", before.capability, after.capability),
            ("input", before.input_digest, after.input_digest),
            ("output", before.output_digest, after.output_digest),
        ):
            if left != right:
                faults.append(f"{name} has another {what}")
    return tuple(faults)


def _losses(old: Surface, new: Surface) -> Iterator[str]:
    """What a cluster of the same URN had and has no more, or a revision that goes back."""
    now = {cluster.urn: cluster for cluster in new.clusters}
    for before in old.clusters:
        after = now.get(before.urn)
        if after is None:
            continue
        if after.revision < before.revision:
            yield f"{before.urn} goes back to revision {after.revision}"
        pairs: Sequence[tuple[str, Sequence[Command | Event | Attribute], Sequence[Command | Event | Attribute]]] = (
            ("command", before.commands, after.commands),
            ("event", before.events, after.events),
            ("attribute", before.attributes, after.attributes),
        )
        for kind, had, has in pairs:
            for name in sorted({one.name for one in had} - {one.name for one in has}):
                yield f"{before.urn} lost its {kind} {name}"
