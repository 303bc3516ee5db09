"""Metrics of the bridge between coordinator and rails."""

from __future__ import annotations

from typing import Final

from sidecar.ops.metric import Kind, Metric, one_of

METRICS: Final[tuple[Metric, ...]] = (
    Metric(
        "sidecar_bridge_reads",
        Kind.COUNTER,
        "Questions about the coordinator, by command and by what became of them.",
        (
            one_of("kind", "status", "objects", "operation"),
            one_of("outcome", "ok", "expired", "unreachable", "fenced", "untrusted", "refused"),
        ),
    ),
    Metric("sidecar_bridge_connected", Kind.GAUGE, "Whether the bridge has a connection to its coordinator."),
    Metric("sidecar_bridge_cuts", Kind.GAUGE, "Snapshots that are kept for their next page."),
)
