"""Every metric of the project, one file per part of it."""

from __future__ import annotations

from typing import Final

from sidecar.ops.catalogue import (
    bridge,
    coordinator,
    daemon,
    delivery,
    endpoint,
    messaging,
    nats,
    presence,
    registration,
    registry,
)
from sidecar.ops.metric import Metric

CATALOGUE: Final[tuple[Metric, ...]] = (
    *coordinator.METRICS,
    *nats.METRICS,
    *messaging.METRICS,
    *presence.METRICS,
    *delivery.METRICS,
    *daemon.METRICS,
    *endpoint.METRICS,
    *registry.METRICS,
    *registration.METRICS,
    *bridge.METRICS,
)
