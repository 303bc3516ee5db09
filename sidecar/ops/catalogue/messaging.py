"""Metrics of the messaging client: what a member of a space sends, receives and refuses."""

from __future__ import annotations

from typing import Final

from sidecar.ops.metric import SECONDS, Kind, Metric, one_of

METRICS: Final[tuple[Metric, ...]] = (
    Metric(
        "sidecar_messaging_copies",
        Kind.COUNTER,
        "Copies that a member's durables delivered, by durable; `again` for copies that were delivered before.",
        (one_of("kind", "dm", "backstop", "role"), one_of("outcome", "first", "again")),
    ),
    Metric(
        "sidecar_messaging_frames_dropped",
        Kind.COUNTER,
        "Frames on a durable's way that were dropped unread: no copy of it, stored bytes in disguise, or too old.",
        (
            one_of("kind", "dm", "backstop", "role"),
            one_of("reason", "foreign", "provenance", "stale", "omitted"),
        ),
    ),
    Metric(
        "sidecar_messaging_copies_refused",
        Kind.COUNTER,
        "Copies that were terminated because they can never be shown.",
        (
            one_of("kind", "dm", "backstop", "role"),
            one_of(
                "reason",
                "malformed-subject",
                "redirected",
                "malformed-json",
                "sender-mismatch",
                "malformed-envelope",
                "routing-mismatch",
            ),
        ),
    ),
    Metric(
        "sidecar_messaging_settled",
        Kind.COUNTER,
        "Words about copies; a `lost` one brings the copy again.",
        (one_of("kind", "ack", "nak", "term", "renew"), one_of("outcome", "sent", "lost")),
    ),
    Metric(
        "sidecar_messaging_fetch_failures",
        Kind.COUNTER,
        "Fetches that the delivery plane did not answer, or not with frames.",
        (one_of("kind", "unanswered", "bad_answer"),),
    ),
    Metric(
        "sidecar_messaging_takes",
        Kind.COUNTER,
        "Takes of anycast requests by what came of them.",
        (
            one_of(
                "outcome",
                "ok",
                "cancelled",
                "taken",
                "gone",
                "mismatch",
                "busy",
                "silent",
                "old_daemon",
                "denied",
                "no_daemon",
                "interrupted",
            ),
        ),
    ),
    Metric(
        "sidecar_messaging_take_seconds",
        Kind.HISTOGRAM,
        "Seconds from a take to what came of it.",
        buckets=(*SECONDS, 5.0),
    ),
    Metric("sidecar_messaging_requests_held", Kind.GAUGE, "Anycast requests that are held and not shown yet."),
    Metric(
        "sidecar_messaging_notices",
        Kind.COUNTER,
        "Notices to the member: what became of its anycast request, and copies that may have been evicted.",
        (one_of("kind", "anycast", "eviction"),),
    ),
    Metric(
        "sidecar_history_steps",
        Kind.COUNTER,
        "Steps of history reads of observers and admins, and what went on beside them: a name that somebody else has, "
        "a delete whose outcome is not known, a frame of another consumer.",
        (one_of("outcome", "read", "failed", "refused", "no_name", "name_taken", "delete_unclear", "foreign_frame"),),
    ),
    Metric(
        "sidecar_tap_frames_refused",
        Kind.COUNTER,
        "Frames that a tap does not show.",
        (
            one_of(
                "reason",
                "malformed-subject",
                "redirected",
                "malformed-json",
                "sender-mismatch",
                "malformed-envelope",
                "routing-mismatch",
            ),
        ),
    ),
)
