"""Metrics of the endpoint rails: calls made and served, and liveness probes."""

from __future__ import annotations

from typing import Final

from sidecar.ops.metric import SECONDS, Kind, Label, Metric, one_of

CODES: Final = (
    "bad-request",
    "unsupported-version",
    "op-mismatch",
    "class-mismatch",
    "target-mismatch",
    "sender-mismatch",
    "unauthenticated",
    "permission-denied",
    "not-found",
    "already-exists",
    "conflict",
    "contract-mismatch",
    "contract-invalid",
    "failed-precondition",
    "deadline-exceeded",
    "cancelled",
    "expired",
    "unavailable",
    "unimplemented",
    "resource-exhausted",
    "internal",
    "extension",
)
"""The codes of the wire and one word for every other one; a test holds them to the wire's own list."""
_RESULT: Final = Label("outcome", "`ok`, an error code, `extension` for a code outside of the catalog", ("ok", *CODES))
_LONG: Final = (*SECONDS, 5.0, 10.0, 30.0)
_PLANE: Final = one_of("kind", "manager", "delivery")
_VERDICT: Final = one_of("outcome", "bound", "unbound", "stale", "unknown")

METRICS: Final[tuple[Metric, ...]] = (
    Metric(
        "sidecar_endpoint_calls",
        Kind.COUNTER,
        "Requests made on the endpoint rails, by verb and by how they ended.",
        (one_of("verb", "call", "cast", "scatter", "describe", "probe", "endpoints"), _RESULT),
    ),
    Metric(
        "sidecar_endpoint_call_seconds",
        Kind.HISTOGRAM,
        "Seconds that those requests took, with all their repeats, failed ones included.",
        buckets=_LONG,
    ),
    Metric(
        "sidecar_endpoint_call_repeats",
        Kind.COUNTER,
        "Requests that were sent again by themselves: proved not executed, of a command that only reads, after a "
        "refused bind, a target that the instance does not host or a contract that changed, an unanswered describe.",
        (one_of("reason", "not_executed", "read", "bind", "unmapped", "contract", "unanswered"),),
    ),
    Metric(
        "sidecar_endpoint_resolve_seconds",
        Kind.HISTOGRAM,
        "Seconds until a contract that was not at hand was described, fetched, verified and compiled.",
        buckets=_LONG,
    ),
    Metric(
        "sidecar_endpoint_scatter_replies",
        Kind.COUNTER,
        "Expected instances and replies of scatters, by class.",
        (one_of("class", "answered", "duplicate", "unexpected", "churn", "late", "missing"),),
    ),
    Metric(
        "sidecar_endpoint_watch_gaps",
        Kind.COUNTER,
        "Times that a watch could not be sure to have everything: a replay or a record that could not be read, events "
        "that are not stored any more, frames that are no events.",
        (one_of("reason", "replay", "record", "retention", "invalid"),),
    ),
    Metric(
        "sidecar_endpoint_replies_dropped",
        Kind.COUNTER,
        "Replies that are none: redirected stored messages, to no call that waits, of another form or endpoint.",
        (one_of("reason", "redirected", "unasked", "subject", "elsewhere"),),
    ),
    Metric("sidecar_endpoint_requests", Kind.COUNTER, "Requests that were judged, by the answer.", (_RESULT,)),
    Metric(
        "sidecar_endpoint_request_seconds",
        Kind.HISTOGRAM,
        "Seconds that handlers ran, waiting ones included.",
        buckets=_LONG,
    ),
    Metric(
        "sidecar_endpoint_discarded",
        Kind.COUNTER,
        "Frames on request subjects that were discarded unanswered.",
        (one_of("reason", "redirected", "no_sender", "elsewhere"),),
    ),
    Metric(
        "sidecar_endpoint_answers_lost",
        Kind.COUNTER,
        "Answers that could not be sent: no link to the broker, larger than it takes (then a refusal went instead), or "
        "more than may wait for the socket.",
        (one_of("reason", "not_connected", "too_large", "overflow"),),
    ),
    Metric(
        "sidecar_endpoint_handlers",
        Kind.GAUGE,
        "Handlers that run: those that work, and those that wait for something to come.",
        (one_of("kind", "working", "waiting"),),
    ),
    Metric(
        "sidecar_endpoint_handler_failures",
        Kind.COUNTER,
        "Faults of handlers: one raised, gave a result outside of its contract, or ran for too long; `check` is a "
        "shape of the author that raised, `server` a fault of the instance itself.",
        (one_of("kind", "raised", "result", "overrun", "check", "server"),),
    ),
    Metric(
        "sidecar_endpoint_repeats",
        Kind.COUNTER,
        "Requests to idempotent commands that were here before: answered from what is kept, or with the one that runs.",
        (one_of("kind", "kept", "running"),),
    ),
    Metric(
        "sidecar_endpoint_views",
        Kind.COUNTER,
        "Descriptors asked for: told within the caller's view, public, or refused because the view cannot be read.",
        (one_of("outcome", "told", "public", "unavailable"),),
    ),
    Metric(
        "sidecar_endpoint_events",
        Kind.COUNTER,
        "Events that an instance emitted: stored, refused before they were sent, or without the word of the broker.",
        (one_of("outcome", "stored", "invalid", "failed"),),
    ),
    Metric(
        "sidecar_endpoint_superseded",
        Kind.COUNTER,
        "Instances that stopped because their credential was taken away.",
    ),
    Metric(
        "sidecar_endpoint_rails_lost",
        Kind.GAUGE,
        "Request rails that an instance should serve and that the broker does not let it subscribe now.",
    ),
    Metric(
        "sidecar_liveness_probes",
        Kind.COUNTER,
        "Liveness probes sent, by plane (`kind`) and verdict.",
        (_PLANE, _VERDICT),
    ),
    Metric(
        "sidecar_liveness_answers",
        Kind.COUNTER,
        "Liveness probes answered, by plane (`kind`) and verdict.",
        (_PLANE, _VERDICT),
    ),
    Metric(
        "sidecar_liveness_dropped",
        Kind.COUNTER,
        "Liveness probes dropped unanswered: a reply target that is not below the request, a stored message.",
        (_PLANE,),
    ),
)
