"""Metrics of the registration of endpoint instances and of the record writer."""

from __future__ import annotations

from typing import Final

from sidecar.ops.metric import Kind, Metric, one_of

METRICS: Final[tuple[Metric, ...]] = (
    Metric(
        "sidecar_registration_registrations",
        Kind.COUNTER,
        "Registrations of endpoint instances, by how they ended: the first of an instance, a takeover, or the refusal.",
        (
            one_of(
                "outcome",
                "first",
                "takeover",
                "permission-denied",
                "conflict",
                "contract-invalid",
                "contract-mismatch",
                "resource-exhausted",
                "unavailable",
                "internal",
                "failed",
            ),
        ),
    ),
    Metric(
        "sidecar_registration_evictions",
        Kind.COUNTER,
        "Credentials of predecessors that were voided, whose holders were seen to be gone from every server.",
    ),
    Metric(
        "sidecar_registration_given_up",
        Kind.COUNTER,
        "Credentials that an instance has destroyed itself at a clean end; for those that were kept in mind the next "
        "start evicts nobody.",
        (one_of("outcome", "kept", "failed"),),
    ),
    Metric(
        "sidecar_registration_fences",
        Kind.COUNTER,
        "Credentials that were not released because a later registration has taken over.",
    ),
    Metric(
        "sidecar_registration_record_writes",
        Kind.COUNTER,
        "Statuses that instances reported, by what became of them; `retried` ones come again.",
        (
            one_of(
                "outcome",
                "written",
                "unchanged",
                "bad-request",
                "permission-denied",
                "resource-exhausted",
                "not-found",
                "expired",
                "conflict",
                "retried",
            ),
        ),
    ),
)
