"""Metrics of the messaging client: what a member of a space sends, receives and refuses."""

from __future__ import annotations

from typing import Final

from sidecar.ops.metric import SECONDS, Kind, Metric, one_of

_WAYS: Final = ("live", "history", "durable", "backstop")
_REASONS: Final = (
    "malformed-subject",
    "redirected",
    "malformed-json",
    "sender-mismatch",
    "malformed-envelope",
    "routing-mismatch",
)

METRICS: Final[tuple[Metric, ...]] = (
    Metric(
        "sidecar_messaging_sent",
        Kind.COUNTER,
        "Messages that a member wanted to send, by what became of them; `invalid` ones never left.",
        (
            one_of("kind", "channel", "dm", "anycast", "none"),
            one_of("outcome", "stored", "duplicate", "denied", "refused", "unconfirmed", "invalid"),
        ),
    ),
    Metric(
        "sidecar_messaging_send_retries",
        Kind.COUNTER,
        "Messages sent again under the same id, because no acknowledgement came.",
        (one_of("kind", "channel", "dm", "anycast"),),
    ),
    Metric(
        "sidecar_messaging_store_seconds",
        Kind.HISTOGRAM,
        "Seconds until a message stands in its stream, retries included.",
        buckets=(*SECONDS, 5.0, 10.0, 30.0),
    ),
    Metric(
        "sidecar_messaging_surfaced",
        Kind.COUNTER,
        "Messages handed to a member, by the way on which the first copy came.",
        (one_of("kind", "channel", "dm", "anycast"), one_of("type", *_WAYS)),
    ),
    Metric(
        "sidecar_messaging_coalesced",
        Kind.COUNTER,
        "Further copies of a message that was handed over before, or waits for that.",
        (one_of("type", *_WAYS),),
    ),
    Metric(
        "sidecar_messaging_refused",
        Kind.COUNTER,
        "Frames that are never shown, by way and reason.",
        (one_of("type", *_WAYS), one_of("reason", *_REASONS)),
    ),
    Metric(
        "sidecar_messaging_mismatched",
        Kind.COUNTER,
        "Messages shown with a mark: their routing field says something else than their subject.",
    ),
    Metric("sidecar_messaging_waiting", Kind.GAUGE, "Messages that wait for their member to take them."),
    Metric(
        "sidecar_messaging_in_flight", Kind.GAUGE, "Messages that a member was handed last time and has not settled."
    ),
    Metric(
        "sidecar_messaging_wait_seconds",
        Kind.HISTOGRAM,
        "Seconds that a durable copy was held before its member took it.",
        buckets=(*SECONDS, 5.0, 10.0, 30.0, 60.0),
    ),
    Metric(
        "sidecar_messaging_given_up",
        Kind.COUNTER,
        "Messages that a member has had for ten minutes without settling them; they come again.",
    ),
    Metric(
        "sidecar_messaging_source_failures",
        Kind.COUNTER,
        "Ends of a durable source that the member still needs; reading it is tried again.",
        (one_of("kind", "dm", "backstop", "role"), one_of("reason", "gone", "denied", "refused", "fault")),
    ),
    Metric(
        "sidecar_messaging_joins",
        Kind.COUNTER,
        "Joins of channels, by how they ended.",
        (one_of("outcome", "durable", "live", "refused", "failed"),),
    ),
    Metric(
        "sidecar_messaging_channels",
        Kind.GAUGE,
        "Channels of members by their standing; `unclosed` ones are left and their membership is not closed yet.",
        (one_of("state", "joining", "live", "durable", "leaving", "unclosed"),),
    ),
    Metric(
        "sidecar_messaging_channel_refusals", Kind.COUNTER, "Channels that the broker refused after they were joined."
    ),
    Metric(
        "sidecar_messaging_channel_faults",
        Kind.COUNTER,
        "Faults of ours while a channel was read; the reading went on.",
    ),
    Metric(
        "sidecar_messaging_gaps",
        Kind.COUNTER,
        "Stretches that a joined channel may have missed: read from history, left to the backstop, or lost.",
        (one_of("outcome", "read", "backstop", "lost"),),
    ),
    Metric(
        "sidecar_messaging_membership_requests",
        Kind.COUNTER,
        "Requests for a durable membership or its end, by the answer.",
        (one_of("kind", "join", "leave"), one_of("outcome", "done", "refused", "unavailable")),
    ),
    Metric("sidecar_messaging_backfilled", Kind.COUNTER, "Messages that members read from the history of channels."),
    Metric(
        "sidecar_messaging_history_reads",
        Kind.COUNTER,
        "Reads of what a channel lacks, by how they ended; `unreadable` ones are tried again.",
        (one_of("outcome", "complete", "unreadable", "not_granted"),),
    ),
    Metric(
        "sidecar_messaging_history_seconds",
        Kind.HISTOGRAM,
        "Seconds of a whole read.",
        buckets=(*SECONDS, 5.0, 10.0, 30.0),
    ),
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
