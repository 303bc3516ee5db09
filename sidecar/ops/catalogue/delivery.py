"""Metrics of the delivery plane: copies, hand-offs, memberships, anycast records."""

from __future__ import annotations

from typing import Final

from sidecar.ops.metric import SECONDS, Kind, Metric, one_of

_LOOP = one_of("kind", "fanout", "reader")
_LONG = (*SECONDS, 5.0, 10.0, 30.0, 60.0, 300.0)

METRICS: Final[tuple[Metric, ...]] = (
    Metric(
        "sidecar_delivery_copies",
        Kind.COUNTER,
        "Copies of posts that are stored for a member: as a member of the channel, because it was mentioned, or caught "
        "up with a join.",
        (one_of("kind", "channel", "mention", "catch_up"),),
    ),
    Metric(
        "sidecar_delivery_handed_off",
        Kind.COUNTER,
        "Copies that were handed off to the member's own store.",
        (one_of("kind", "channel", "mention"),),
    ),
    Metric(
        "sidecar_delivery_duplicates",
        Kind.COUNTER,
        "Copies that the broker held already, under the same message id: a crash or a lost link came in between.",
        (_LOOP,),
    ),
    Metric(
        "sidecar_delivery_dropped",
        Kind.COUNTER,
        "Posts and copies that go no further.",
        (
            _LOOP,
            one_of(
                "reason",
                "malformed_subject",
                "redirected",
                "malformed_json",
                "sender_mismatch",
                "malformed_envelope",
                "routing_mismatch",
                "malformed_copy",
                "too_large",
                "acl",
                "membership",
                "unknown_lifecycle",
            ),
        ),
    ),
    Metric(
        "sidecar_delivery_deferred",
        Kind.COUNTER,
        "Copies put off because the read list of their lifecycle is not known.",
    ),
    Metric(
        "sidecar_delivery_retries",
        Kind.COUNTER,
        "Posts and copies given back to the broker, to be carried again.",
        (_LOOP, one_of("reason", "refused", "timeout", "link", "stale")),
    ),
    Metric(
        "sidecar_delivery_pending",
        Kind.GAUGE,
        "Messages that a loop has before it: not yet delivered to it, or delivered and not settled.",
        (_LOOP,),
    ),
    Metric("sidecar_delivery_in_flight", Kind.GAUGE, "Copies sent and not yet acknowledged by the broker.", (_LOOP,)),
    Metric(
        "sidecar_delivery_durables_made",
        Kind.COUNTER,
        "Durables of the loops that were missing and were made. More than one of each in the life of a space: somebody "
        "deletes them.",
        (_LOOP,),
    ),
    Metric(
        "sidecar_delivery_floors",
        Kind.COUNTER,
        "Writes of up to where the durables of the loops are settled, and those that the disk refused: durables that "
        "somebody deletes meanwhile begin earlier, and old copies may come twice.",
        (one_of("outcome", "kept", "failed"),),
    ),
    Metric(
        "sidecar_delivery_store_seconds",
        Kind.HISTOGRAM,
        "From the sending of a copy to the broker's acknowledgement.",
        buckets=SECONDS,
    ),
    Metric(
        "sidecar_delivery_handoff_seconds",
        Kind.HISTOGRAM,
        "From the storing of a member's copy to its acknowledged hand-off.",
        buckets=_LONG,
    ),
    Metric(
        "sidecar_delivery_index_wait_seconds",
        Kind.HISTOGRAM,
        "Wait of a decision until memberships, read lists or the registry in memory were current.",
        buckets=SECONDS,
    ),
    Metric(
        "sidecar_delivery_index_behind",
        Kind.COUNTER,
        "Decisions put off because what is in memory of a bucket could not be made current in time.",
        (one_of("kind", "members", "acl", "channels", "membership"),),
    ),
    Metric(
        "sidecar_delivery_bad_rows",
        Kind.COUNTER,
        "Rows of a bucket that could not be read; they count as absent.",
        (one_of("kind", "members", "acl", "channels"),),
    ),
    Metric("sidecar_delivery_memberships", Kind.GAUGE, "Durable memberships, those that were left included."),
    Metric(
        "sidecar_delivery_joins",
        Kind.COUNTER,
        "Requests for a durable membership, by how they ended.",
        (
            one_of(
                "outcome",
                "joined",
                "kept",
                "evicted",
                "too_long",
                "acl",
                "fenced",
                "limit",
                "invalid",
                "conflict",
                "unavailable",
            ),
        ),
    ),
    Metric(
        "sidecar_delivery_leaves",
        Kind.COUNTER,
        "Requests to end a durable membership, by how they ended.",
        (one_of("outcome", "left", "already", "fenced", "invalid", "conflict", "unavailable"),),
    ),
    Metric("sidecar_delivery_inventories", Kind.COUNTER, "Membership inventories given for a lifecycle that ends."),
    Metric(
        "sidecar_delivery_mentions",
        Kind.COUNTER,
        "Names mentioned on live channels, by what they resolved to.",
        (one_of("outcome", "resolved", "unknown", "ambiguous", "unreadable", "author"),),
    ),
    Metric(
        "sidecar_feed_looks",
        Kind.COUNTER,
        "Looks of the membership feed at connections and memberships; an incomplete one removes nothing.",
        (one_of("outcome", "complete", "incomplete", "failed"),),
    ),
    Metric("sidecar_feed_look_seconds", Kind.HISTOGRAM, "Seconds of one look.", buckets=(*SECONDS, 5.0, 10.0)),
    Metric("sidecar_feed_rows", Kind.GAUGE, "Agents that listen to something, at the last look."),
    Metric("sidecar_feed_unattributed", Kind.GAUGE, "Connections at the last look that no principal is read from."),
    Metric("sidecar_feed_writes", Kind.COUNTER, "Rows written and removed.", (one_of("kind", "put", "delete"),)),
    Metric("sidecar_feed_bad_rows", Kind.COUNTER, "Memberships that could not be read; they count as absent."),
)
