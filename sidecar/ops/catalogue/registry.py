"""Metrics of the registry: what it answers and refuses, and what it reads."""

from __future__ import annotations

from typing import Final

from sidecar.ops.metric import SECONDS, Kind, Metric, one_of

METRICS: Final[tuple[Metric, ...]] = (
    Metric(
        "sidecar_registry_refused",
        Kind.COUNTER,
        "Questions that the registry refused: the caller's rail is bound to no authority, that authority is not live, "
        "its ceiling or the records could not be read, no grants of the caller are recorded, it does not serve the "
        "endpoint, a row fits into no message, an argument is no name.",
        (
            one_of(
                "kind",
                *("unbound", "not_live", "ceiling", "records", "no_view", "not_serving", "too_large", "name"),
            ),
        ),
    ),
    Metric(
        "sidecar_registry_listing_seconds",
        Kind.HISTOGRAM,
        "Seconds that a page of the list of endpoints took.",
        buckets=(*SECONDS, 5.0, 10.0),
    ),
    Metric(
        "sidecar_registry_artifacts",
        Kind.COUNTER,
        "Contract documents that were asked for: kept in memory, read, missing, or not what their digest says.",
        (one_of("outcome", "kept", "read", "missing", "invalid"),),
    ),
    Metric(
        "sidecar_registry_events_skipped",
        Kind.COUNTER,
        "Stored events that are none and were left out of a replay.",
    ),
    Metric("sidecar_registry_polls", Kind.GAUGE, "Callers that wait for a change of a registration."),
    Metric(
        "sidecar_registry_lanes",
        Kind.GAUGE,
        "Spaces that this process serves, by where each one is.",
        (one_of("state", "connecting", "binding", "serving", "stopped"),),
    ),
    Metric(
        "sidecar_registry_restarts",
        Kind.COUNTER,
        "Lanes and loops that ended and were started again.",
        (one_of("kind", "lane", "writer"),),
    ),
)
