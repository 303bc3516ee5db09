"""Metrics of the coordinator and of the process around it."""

from __future__ import annotations

from typing import Final

from sidecar.coordinator.wire.enums import CommandKind, ErrorCode, GapReason
from sidecar.coordinator.wire.limits import QUOTAS
from sidecar.ops.metric import SECONDS, SIZES, Kind, Label, Metric, names_of, one_of

WAYS = ("in", "out")
_FRAME_LABELS = (one_of("direction", *WAYS), Label("type", "frame names, `other` for unknown types"))


def _or_code(*values: str) -> Label:
    """An outcome that is one of these, or the code of the error that was sent."""
    meaning = ", ".join(f"`{value}`" for value in values)
    return Label("outcome", f"{meaning}, or the error code sent", (*values, *names_of(ErrorCode)))


METRICS: Final = (
    Metric(
        "sidecar_build_info",
        Kind.GAUGE,
        "Always 1; the labels name the build.",
        (Label("version", "release"), Label("python", "x.y.z")),
    ),
    Metric("sidecar_frames", Kind.COUNTER, "Frames received and sent.", _FRAME_LABELS),
    Metric("sidecar_frame_bytes", Kind.COUNTER, "Bytes of those frames, header included.", _FRAME_LABELS),
    Metric(
        "sidecar_handshakes",
        Kind.COUNTER,
        "Handshakes that ended, by how.",
        (_or_code("ok", "timeout", "closed", "peer_error"),),
    ),
    Metric(
        "sidecar_handshake_seconds",
        Kind.HISTOGRAM,
        "Seconds from taking a connection until its handshake ended, failed ones included.",
        buckets=(*SECONDS, 5.0, 10.0, 15.0),
    ),
    Metric(
        "sidecar_sockets",
        Kind.GAUGE,
        "Open sockets.",
        (one_of("state", "handshake", "active"),),
    ),
    Metric(
        "sidecar_sockets_refused",
        Kind.COUNTER,
        "Sockets closed before a byte was read.",
        (one_of("reason", "limit", "unauthenticated_limit", "peer_uid", "peer_unknown", "stopping"),),
    ),
    Metric(
        "sidecar_commands",
        Kind.COUNTER,
        "Commands by kind and how they were answered.",
        (Label("kind", "command kinds", names_of(CommandKind)), _or_code("succeeded", "repeated")),
    ),
    Metric(
        "sidecar_refusals",
        Kind.COUNTER,
        "COORD_ERROR frames sent.",
        (Label("code", "error codes", names_of(ErrorCode)),),
    ),
    Metric(
        "sidecar_gaps",
        Kind.COUNTER,
        "GAP frames: subscriptions that lost continuity.",
        (Label("reason", "gap reasons", names_of(GapReason)),),
    ),
    Metric(
        "sidecar_quota_refusals",
        Kind.COUNTER,
        "Actions refused because a quota was full.",
        (
            Label(
                "resource",
                "quota names of the limits table, `storage_bytes`, `artifact_bytes`",
                (*QUOTAS, "storage_bytes", "artifact_bytes"),
            ),
        ),
    ),
    Metric("sidecar_commit_batch_transactions", Kind.HISTOGRAM, "Transactions in one durable batch.", buckets=SIZES),
    Metric(
        "sidecar_commit_seconds", Kind.HISTOGRAM, "Seconds from taking a batch until it is durable.", buckets=SECONDS
    ),
    Metric("sidecar_commit_failures", Kind.COUNTER, "Batches that failed; each fences the server."),
    Metric("sidecar_credit_stalls", Kind.COUNTER, "Times a subscription had an event and too little credit for it."),
    Metric("sidecar_credit_stall_seconds", Kind.HISTOGRAM, "Seconds until such a stall was over.", buckets=SECONDS),
    Metric("sidecar_events_dropped", Kind.COUNTER, "Oldest events that left the retained log."),
    Metric("sidecar_events_sent", Kind.COUNTER, "COORD_EVENT frames sent."),
    Metric("sidecar_event_bytes", Kind.COUNTER, "Bytes of those frames."),
    Metric("sidecar_snapshot_pages", Kind.COUNTER, "Snapshot pages sent."),
    Metric("sidecar_snapshot_records", Kind.COUNTER, "Records in those pages."),
    Metric("sidecar_snapshot_page_bytes", Kind.COUNTER, "Bytes of those pages."),
    Metric("sidecar_replay_pages", Kind.COUNTER, "Replay pages sent."),
    Metric("sidecar_replay_events", Kind.COUNTER, "Events in those pages."),
    Metric("sidecar_replay_page_bytes", Kind.COUNTER, "Bytes of those pages."),
    Metric(
        "sidecar_leases_expired",
        Kind.COUNTER,
        "Snapshots and replays that their client did not finish within 60 seconds.",
        (Label("kind", "what was leased", ("snapshot", "replay")),),
    ),
    Metric("sidecar_subscriptions", Kind.GAUGE, "Subscriptions that exist."),
    Metric(
        "sidecar_subscription_queue_frames",
        Kind.GAUGE,
        "Events queued for subscriptions and not yet sent, all together.",
    ),
    Metric("sidecar_leases", Kind.GAUGE, "Snapshot and replay leases held."),
    Metric("sidecar_pinned_bytes", Kind.GAUGE, "Bytes held by snapshot cuts and replays."),
    Metric("sidecar_pending_operations", Kind.GAUGE, "Operations that wait to become durable."),
    Metric(
        "sidecar_command_queue",
        Kind.GAUGE,
        "Commands and lookups that wait for their turn; principals take turns.",
    ),
    Metric(
        "sidecar_command_wait_seconds",
        Kind.HISTOGRAM,
        "Seconds from the arrival of a command or lookup until it is executed.",
        buckets=SECONDS,
    ),
    Metric("sidecar_event_head", Kind.GAUGE, "Sequence of the newest event, durable or not."),
    Metric("sidecar_event_retained_from", Kind.GAUGE, "Sequence of the oldest event that a subscription can start at."),
    Metric("sidecar_event_durable", Kind.GAUGE, "Sequence of the newest durable event."),
    Metric("sidecar_authority_epoch", Kind.GAUGE, "Authority epoch of this activation."),
    Metric(
        "sidecar_authority_lease_seconds",
        Kind.GAUGE,
        "Seconds until the activation certificate expires; 0 when it has.",
    ),
    Metric("sidecar_authority_fenced", Kind.GAUGE, "1 once this process has fenced itself."),
    Metric(
        "sidecar_authority_renewals",
        Kind.COUNTER,
        "Renewals of the certificate.",
        (one_of("outcome", "ok", "refused", "unavailable", "invalid"),),
    ),
    Metric(
        "sidecar_authority_renewal_seconds",
        Kind.HISTOGRAM,
        "Seconds that a renewal took, failed ones included: the wait for the witness.",
        buckets=SECONDS,
    ),
    Metric(
        "sidecar_registry_reloads",
        Kind.COUNTER,
        "Times the key registry changed on disk.",
        (one_of("outcome", "ok", "malformed"),),
    ),
    Metric("sidecar_registry_keys", Kind.GAUGE, "Keys in the registry in force; 0 also while it is malformed."),
    Metric(
        "sidecar_admin_requests",
        Kind.COUNTER,
        "Requests on the admin socket, by how they ended.",
        (
            one_of(
                "outcome",
                "ok",
                "busy",
                "peer_uid",
                "timeout",
                "too_large",
                "bad_request",
                "method",
                "not_found",
                "unavailable",
            ),
        ),
    ),
    Metric("sidecar_loop_lag_seconds", Kind.HISTOGRAM, "How late the periodic tick ran.", buckets=SECONDS),
)
