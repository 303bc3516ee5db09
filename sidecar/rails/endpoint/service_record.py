"""The record of a registered instance: what it serves (spec) and how it stands (status) (C13.7-61)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, cast

from sidecar.base.strictjson import JsonValue
from sidecar.rails.endpoint.clusters import MAX_CLUSTERS
from sidecar.rails.endpoint.descriptor import DIGEST, ENDPOINT, ENDPOINT_TYPE, OWNER, PROTOCOL, check_protocol
from sidecar.rails.endpoint.shapes import array, closed, whole
from sidecar.rails.envelopes.errors import EnvelopeError
from sidecar.rails.envelopes.shapes import constant, matching, record

READY: Final = "ready"
EXITED: Final = "exited"
ESCALATED: Final = "escalated"
ON_DEMAND: Final = "on-demand"

_ACTIVATION = closed(
    {"mode": constant(ON_DEMAND), "capacity": whole(1)}, {"maxRestarts": whole(), "restartWindowMs": whole(1)}
)
_SPEC = record(
    {
        "endpoint": ENDPOINT,
        "owner": OWNER,
        "clusterDigests": array(DIGEST, MAX_CLUSTERS, 1),
        "protocol": PROTOCOL,
    },
    {"endpointType": ENDPOINT_TYPE, "activation": _ACTIVATION},
)
_STATUS = record(
    {
        "epoch": whole(),
        "state": matching(r"^[a-z][a-z0-9-]{0,31}$", "is no state"),
        "observedSpecRevision": whole(),
    }
)
_KNOWN: Final = frozenset({"epoch", "state", "observedSpecRevision"})


@dataclass(frozen=True, slots=True)
class Activation:
    """How an endpoint is started on demand, and how often again (C13.6-97)."""

    capacity: int
    max_restarts: int | None = None
    restart_window_ms: int | None = None

    def value(self) -> dict[str, JsonValue]:
        value: dict[str, JsonValue] = {"mode": ON_DEMAND, "capacity": self.capacity}
        if self.max_restarts is not None:
            value["maxRestarts"] = self.max_restarts
        if self.restart_window_ms is not None:
            value["restartWindowMs"] = self.restart_window_ms
        return value


@dataclass(frozen=True, slots=True)
class ServiceSpec:
    """What an instance is registered as. ``cluster_digests`` are closure digests, in order, at least one."""

    endpoint: str
    owner: str
    cluster_digests: tuple[str, ...]
    protocol: int
    endpoint_type: str | None = None
    activation: Activation | None = None

    def value(self) -> dict[str, JsonValue]:
        value: dict[str, JsonValue] = {
            "endpoint": self.endpoint,
            "owner": self.owner,
            "clusterDigests": list(self.cluster_digests),
            "protocol": {"v": self.protocol},
        }
        if self.endpoint_type is not None:
            value["endpointType"] = self.endpoint_type
        if self.activation is not None:
            value["activation"] = self.activation.value()
        return value


@dataclass(frozen=True, slots=True)
class ServiceStatus:
    """How an instance stands. Epoch 0 is a normal epoch (C13.7-64). ``extra`` are members that mean nothing here."""

    epoch: int
    state: str
    observed_spec_revision: int
    extra: Mapping[str, JsonValue] = field(default_factory=dict)

    def value(self) -> dict[str, JsonValue]:
        own: dict[str, JsonValue] = {
            "epoch": self.epoch,
            "state": self.state,
            "observedSpecRevision": self.observed_spec_revision,
        }
        return {**self.extra, **own}


def read_spec(value: JsonValue) -> ServiceSpec:
    """The spec of a record. Raises UnsupportedProtocol for another version than ours (C13.7-19), and EnvelopeError."""
    check_protocol(value)
    if (fault := _SPEC.check(value)) is not None:
        raise EnvelopeError(*fault)
    found = cast("dict[str, Any]", value)
    digests = tuple(found["clusterDigests"])
    if len(set(digests)) != len(digests):
        raise EnvelopeError("clusterDigests", "name one cluster twice")
    activation = found.get("activation")
    return ServiceSpec(
        found["endpoint"],
        found["owner"],
        digests,
        found["protocol"]["v"],
        found.get("endpointType"),
        activation
        and Activation(activation["capacity"], activation.get("maxRestarts"), activation.get("restartWindowMs")),
    )


def read_status(value: JsonValue) -> ServiceStatus:
    """The status of a record. Raises EnvelopeError."""
    if (fault := _STATUS.check(value)) is not None:
        raise EnvelopeError(*fault)
    found = cast("dict[str, Any]", value)
    extra = {name: member for name, member in found.items() if name not in _KNOWN}
    return ServiceStatus(found["epoch"], found["state"], found["observedSpecRevision"], extra)
