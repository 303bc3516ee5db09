"""Metrics of the connections to the broker."""

from __future__ import annotations

from typing import Final

from sidecar.ops.metric import Kind, Metric, one_of

METRICS: Final = (
    Metric(
        "sidecar_nats_connections",
        Kind.GAUGE,
        "Connections to the broker that their owners hold open.",
        (one_of("state", "connecting", "connected", "renewing", "waiting", "stopped"),),
    ),
    Metric(
        "sidecar_nats_links",
        Kind.COUNTER,
        "Logins at the broker: the first of a connection, after a loss, and with fresh credentials ahead of their end.",
        (one_of("kind", "connected", "restored", "renewed"),),
    ),
    Metric(
        "sidecar_nats_faults",
        Kind.COUNTER,
        "What went wrong with connections to the broker, calls and subscriptions.",
        (
            one_of(
                "kind",
                "publish_denied",
                "subscribe_denied",
                "no_responders",
                "slow_consumer",
                "watch_silent",
                "expired",
                "revoked",
                "authorization",
                "account",
                "credentials",
                "credentials_refused",
                "auth_timeout",
                "max_connections",
                "max_subscriptions",
                "max_payload",
                "max_control_line",
                "dropped",
                "stale",
                "lost",
                "unreachable",
                "old_broker",
                "plaintext",
                "protocol",
                "unknown",
            ),
        ),
    ),
    Metric(
        "sidecar_nats_stores_refused",
        Kind.COUNTER,
        "Messages that a stream did not take; wrong_sequence is a lost compare-and-set.",
        (one_of("kind", "wrong_sequence", "full", "too_large", "expectation", "unclear", "other"),),
    ),
    Metric(
        "sidecar_nats_records_redirected",
        Kind.COUNTER,
        "Redirected reads of somebody in the place of a record or in the inbox of a watch; they were not believed.",
    ),
    Metric("sidecar_nats_messages_dropped", Kind.COUNTER, "Messages that a reader was too slow for."),
    Metric("sidecar_nats_callback_failures", Kind.COUNTER, "Notices of a connection whose receiver raised."),
)
