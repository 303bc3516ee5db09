"""Metrics of presence and of reads on demand: heartbeats, rosters, registries."""

from __future__ import annotations

from typing import Final

from sidecar.ops.metric import SECONDS, Kind, Metric, one_of

METRICS: Final[tuple[Metric, ...]] = (
    Metric(
        "sidecar_messaging_heartbeats",
        Kind.COUNTER,
        "Writes of the own presence record, one in three asks whether it was `stored`, the others are `sent`; "
        "three in a row that are neither make peers see the member offline.",
        (one_of("outcome", "stored", "sent", "refused", "denied", "unreachable"),),
    ),
    Metric(
        "sidecar_messaging_reads",
        Kind.COUNTER,
        "Reads of the roster and of the channel registry; an `unreadable` one said nothing of who or what is absent.",
        (one_of("kind", "roster", "registry"), one_of("outcome", "complete", "unreadable")),
    ),
    Metric(
        "sidecar_messaging_read_seconds",
        Kind.HISTOGRAM,
        "Seconds of one such read.",
        (one_of("kind", "roster", "registry"),),
        (*SECONDS, 5.0),
    ),
    Metric(
        "sidecar_messaging_presence_dropped",
        Kind.COUNTER,
        "Presence records that a reader dropped because they are not what they should be.",
    ),
    Metric(
        "sidecar_messaging_presence_changes",
        Kind.COUNTER,
        "Transitions that a watch of presence saw.",
        (one_of("kind", "joined", "changed", "offline"),),
    ),
    Metric(
        "sidecar_messaging_registry_unread",
        Kind.COUNTER,
        "Entries of the channel registry, or single fields, that count as absent because they have another form.",
    ),
)
