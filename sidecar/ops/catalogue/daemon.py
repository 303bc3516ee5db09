"""Metrics of the delivery daemon beside its copies: its lease, anycast records, and the reads for members."""

from __future__ import annotations

from typing import Final

from sidecar.ops.metric import SECONDS, Kind, Metric, one_of

_SOURCE = one_of("kind", "dm", "backstop", "role")
_WAITS = (*SECONDS, 5.0, 10.0, 25.0, 30.0)

METRICS: Final[tuple[Metric, ...]] = (
    Metric(
        "sidecar_delivery_lease",
        Kind.COUNTER,
        "What happened to the delivery lease: taken where there was none, stolen from a holder that is gone, renewed, "
        "lost, given back; outrun by another, and trouble with reading or writing it.",
        (one_of("kind", "taken", "stolen", "renewed", "lost", "released", "outrun", "trouble"),),
    ),
    Metric(
        "sidecar_delivery_lanes",
        Kind.GAUGE,
        "Spaces that this process serves, by where each one is.",
        (one_of("state", "connecting", "waiting", "binding", "serving", "stopped"),),
    ),
    Metric(
        "sidecar_delivery_restarts",
        Kind.COUNTER,
        "Loops that died and were started again.",
        (one_of("kind", "backstop", "takes", "notices", "sweep", "endpoint", "liveness", "feed", "lane"),),
    ),
    Metric(
        "sidecar_delivery_unregistered",
        Kind.COUNTER,
        "Registrations of lanes that failed; a lane serves all the same, and tries again while it does.",
    ),
    Metric(
        "sidecar_delivery_takes",
        Kind.COUNTER,
        "Takes of anycast requests, by their answer; dropped ones have none.",
        (one_of("outcome", "ok", "cancelled", "taken", "gone", "mismatch", "busy", "dropped"),),
    ),
    Metric(
        "sidecar_delivery_take_seconds",
        Kind.HISTOGRAM,
        "From the arrival of a take to its answer.",
        buckets=SECONDS,
    ),
    Metric(
        "sidecar_delivery_cancels",
        Kind.COUNTER,
        "Cancelled anycast requests, by how they left the queue.",
        (one_of("outcome", "deleted", "already-gone"),),
    ),
    Metric(
        "sidecar_delivery_notices",
        Kind.COUNTER,
        "Notices to the senders of anycast requests; a duplicate is one that the broker had already.",
        (one_of("kind", "published", "duplicate"),),
    ),
    Metric("sidecar_delivery_notices_owed", Kind.GAUGE, "Anycast records whose notices are known to be unpublished."),
    Metric(
        "sidecar_delivery_anycast_conflicts",
        Kind.COUNTER,
        "Writes of an anycast record that somebody else had changed first.",
    ),
    Metric(
        "sidecar_delivery_anycast_trouble",
        Kind.COUNTER,
        "Reads and writes of anycast records and requests that the broker did not answer as they should be.",
    ),
    Metric("sidecar_delivery_anycast_invalid", Kind.COUNTER, "Anycast records that could not be read; they are kept."),
    Metric("sidecar_delivery_anycast_rows", Kind.GAUGE, "Anycast records at the last sweep."),
    Metric(
        "sidecar_delivery_sweeps",
        Kind.COUNTER,
        "Sweeps over the anycast records.",
        (one_of("outcome", "done", "failed"),),
    ),
    Metric(
        "sidecar_delivery_sweep_seconds",
        Kind.HISTOGRAM,
        "Time of one sweep over the anycast records.",
        buckets=(*SECONDS, 10.0, 60.0, 300.0),
    ),
    Metric(
        "sidecar_delivery_frames_fetched", Kind.COUNTER, "Copies handed out to members of mediated spaces.", (_SOURCE,)
    ),
    Metric(
        "sidecar_delivery_frames_returned",
        Kind.COUNTER,
        "Copies given back to the broker because they did not fit into an answer.",
        (_SOURCE,),
    ),
    Metric(
        "sidecar_delivery_frames_superseded",
        Kind.COUNTER,
        "Copies given back because a newer process of their member began to read while the fetch waited.",
        (_SOURCE,),
    ),
    Metric(
        "sidecar_delivery_frames_reclaimed",
        Kind.COUNTER,
        "Copies of a silent process, given back because a newer one of the same member reads.",
        (),
    ),
    Metric(
        "sidecar_delivery_frames_omitted",
        Kind.COUNTER,
        "Copies handed out without their payload, which is larger than an answer.",
        (_SOURCE,),
    ),
    Metric(
        "sidecar_delivery_fetch_seconds",
        Kind.HISTOGRAM,
        "Time of a fetch, with its wait for a first copy.",
        (_SOURCE,),
        buckets=_WAITS,
    ),
    Metric(
        "sidecar_delivery_settled",
        Kind.COUNTER,
        "Acks, naks, ends and renewals passed on for members; unconfirmed ones have no answer of the broker.",
        (_SOURCE, one_of("outcome", "confirmed", "unconfirmed")),
    ),
    Metric("sidecar_delivery_history_frames", Kind.COUNTER, "Stored posts read for members of mediated spaces."),
    Metric(
        "sidecar_delivery_registry_invalid",
        Kind.COUNTER,
        "Entries of a channel registry that are no object; they count as absent.",
    ),
    Metric(
        "sidecar_delivery_mediated_trouble",
        Kind.COUNTER,
        "Reads for members that the broker did not answer; the caller is told to ask again.",
    ),
)
