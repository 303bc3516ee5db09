"""What ``describe`` answers: who serves what, in clusters by digest or with their documents (13.7, OPEN C13.7-h)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final, cast

from sidecar.base.strictjson import JsonValue
from sidecar.rails.endpoint.artifacts import ContractInvalid, single
from sidecar.rails.endpoint.clusters import (
    MAX_CLUSTERS,
    MAX_COMMANDS,
    PROTOCOLS,
    URN,
    Cluster,
    Surface,
    UnsupportedProtocol,
    read_cluster,
)
from sidecar.rails.endpoint.shapes import BOOLEAN, array, whole
from sidecar.rails.envelopes.errors import EnvelopeError
from sidecar.rails.envelopes.shapes import ANYTHING, matching, record
from sidecar.rails.names.tokens import ENDPOINT_NAME, GRAMMARS

__all__ = ["DescribedCluster", "Descriptor", "UnsupportedProtocol", "read_descriptor"]

MAX_TYPE: Final = 255
"""Characters of an endpoint type."""
ENDPOINT_TYPE: Final = matching(rf"^(?=.{{1,{MAX_TYPE}}}$){URN.pattern}$", "is no endpoint type")
"""An endpoint type names a conformance set by a URN of its own (C13.7-08)."""
ENDPOINT: Final = matching(rf"^(?=.{{1,64}}$){ENDPOINT_NAME.shape}$", "is no endpoint name")
OWNER: Final = matching(rf"^(?=.{{1,64}}$){GRAMMARS['owner'].shape}$", "is no owner")
DIGEST: Final = matching(r"^sha256:[0-9a-f]{64}$", "is no digest")
PROTOCOL: Final = record({"v": whole()})

_CLUSTER = record(
    {
        "digest": DIGEST,
        "commands": array(matching(r"^[a-z0-9-]{1,32}$", "is no command name"), MAX_COMMANDS),
    },
    {"document": ANYTHING},
)
_DESCRIPTOR = record(
    {
        "endpoint": ENDPOINT,
        "owner": OWNER,
        "protocol": PROTOCOL,
        "clusters": array(_CLUSTER, MAX_CLUSTERS),
    },
    {"endpointType": ENDPOINT_TYPE},
)
_ANSWER = record({"public": BOOLEAN, "descriptor": _DESCRIPTOR})


@dataclass(frozen=True, slots=True)
class DescribedCluster:
    """One cluster of a descriptor: closure digest, the commands that the caller may know, and its document if given.

    A cluster of which the caller may know a part only is answered without its document (OPEN C13.7-h).
    """

    digest: str
    commands: tuple[str, ...]
    document: JsonValue = None

    @classmethod
    def of(cls, cluster: Cluster, held: Iterable[str] | None = None) -> DescribedCluster | None:
        """What a caller that holds some commands is told of a cluster; None if it holds none of it (C13.7-66).

        ``held`` is None where the descriptor is public: then all of it is told (C13.7-68).
        """
        names = tuple(command.name for command in cluster.commands)
        if held is None:
            return cls(cluster.closure, names, cluster.value())
        known = frozenset(held)
        own = tuple(name for name in names if name in known)
        if not own:
            return None
        return cls(cluster.closure, own, cluster.value() if own == names else None)

    def value(self) -> dict[str, JsonValue]:
        value: dict[str, JsonValue] = {"digest": self.digest, "commands": list(self.commands)}
        if self.document is not None:
            value["document"] = self.document
        return value

    def cluster(self, protocol: int) -> Cluster | None:
        """The inlined cluster, None if it is named by digest alone. Raises ContractInvalid."""
        return None if self.document is None else read_cluster(self.document, protocol)


@dataclass(frozen=True, slots=True)
class Descriptor:
    """The description of an endpoint. ``public`` says that no view was read for it (C13.7-68)."""

    endpoint: str
    owner: str
    protocol: int
    clusters: tuple[DescribedCluster, ...]
    endpoint_type: str | None = None
    public: bool = False

    @classmethod
    def of(
        cls,
        surface: Surface,
        endpoint: str,
        owner: str,
        *,
        held: Iterable[str] | None,
        endpoint_type: str | None = None,
    ) -> Descriptor:
        """What is told about a surface to a caller that holds some commands; ``held`` None: to everybody."""
        known = None if held is None else frozenset(held)
        told = (DescribedCluster.of(cluster, known) for cluster in surface.clusters)
        clusters = tuple(one for one in told if one is not None)
        return cls(endpoint, owner, surface.protocol, clusters, endpoint_type, known is None)

    def value(self) -> dict[str, JsonValue]:
        descriptor: dict[str, JsonValue] = {
            "endpoint": self.endpoint,
            "owner": self.owner,
            "protocol": {"v": self.protocol},
            "clusters": [one.value() for one in self.clusters],
        }
        if self.endpoint_type is not None:
            descriptor["endpointType"] = self.endpoint_type
        return {"public": self.public, "descriptor": descriptor}


def read_descriptor(value: JsonValue) -> Descriptor:
    """The descriptor of an answer to ``describe``; members that are not known here are let pass (C13.7-79).

    Raises UnsupportedProtocol before anything else of the answer is read (C13.7-18), and EnvelopeError, also for an
    inlined document that is not what its digest names (C13.7-36) or no cluster.
    """
    told = value.get("descriptor") if isinstance(value, dict) else None
    check_protocol(told)
    if (fault := _ANSWER.check(value)) is not None:
        raise EnvelopeError(*fault)
    answer = cast("dict[str, Any]", value)
    found = answer["descriptor"]
    protocol = found["protocol"]["v"]
    clusters = tuple(
        DescribedCluster(one["digest"], tuple(one["commands"]), one.get("document")) for one in found["clusters"]
    )
    for index, cluster in enumerate(clusters):
        _check_inlined(cluster, protocol, f"descriptor.clusters[{index}]")
    if len({cluster.digest for cluster in clusters}) != len(clusters):
        raise EnvelopeError("descriptor.clusters", "name one cluster twice")
    return Descriptor(
        found["endpoint"], found["owner"], protocol, clusters, found.get("endpointType"), answer["public"]
    )


def check_protocol(value: object) -> None:
    """Refuse with UnsupportedProtocol a descriptor or record whose ``protocol.v`` is another whole number than ours."""
    protocol = value.get("protocol") if isinstance(value, dict) else None
    version = protocol.get("v") if isinstance(protocol, dict) else None
    if type(version) is int and version not in PROTOCOLS:
        raise UnsupportedProtocol


def _check_inlined(cluster: DescribedCluster, protocol: int, path: str) -> None:
    if len(set(cluster.commands)) != len(cluster.commands):
        raise EnvelopeError(f"{path}.commands", "name one command twice")
    if cluster.document is None:
        return
    try:
        if single(cluster.document).digest != cluster.digest:
            raise EnvelopeError(f"{path}.document", "is not what the digest names")
        declared = {command.name for command in read_cluster(cluster.document, protocol).commands}
    except ContractInvalid as error:
        raise EnvelopeError(f"{path}.document", f"is no cluster: {error}") from None
    if not declared.issuperset(cluster.commands):
        raise EnvelopeError(f"{path}.commands", "name what the document does not declare")
