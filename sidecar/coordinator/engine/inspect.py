"""What one engine holds at this moment, as a JSON document: for the operator, never for a client.

Positions, counts and ids of subscriptions and leases; no payload, no object id, no cursor, no token. Its cost grows
with connections, subscriptions and leases, which the server's quotas bound.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, Final

from cext.credit import Quota
from sidecar.base.ed25519 import digest_text
from sidecar.coordinator.engine.connection import Connection
from sidecar.coordinator.engine.lease import Lease
from sidecar.coordinator.engine.quota import Resource
from sidecar.coordinator.engine.runtime import Runtime
from sidecar.coordinator.engine.subscription import Subscription, SubscriptionState
from sidecar.coordinator.wire.enums import Capability, Scope
from sidecar.coordinator.wire.ids import U64_MAX

Document = dict[str, Any]

_RESOURCES: Final = tuple((resource, resource.label) for resource in Resource)
_BROKEN: Final = frozenset({SubscriptionState.PAUSED_GAP, SubscriptionState.REPLAYING})
"""States in which what happens is not delivered."""


def inspect(runtime: Runtime, connections: Sequence[Connection]) -> tuple[Document, dict[Connection, Document]]:
    """The engine's document, and beside it the one of each connection, so that a transport can add what it knows.

    The documents of the connections are those that stand in the engine's under ``connections``.
    """
    authority, server = runtime.authority, runtime.quotas.server
    views = {conn: _connection(runtime, conn) for conn in connections}
    document = {
        "authority": {
            "coordinator_id": authority.coordinator_id.hex(),
            "epoch": authority.epoch,
            "activation": authority.certificate.activation_sequence,
            "incarnation_id": authority.certificate.incarnation_id.hex(),
            "fenced": runtime.fenced,
        },
        "events": {
            "durable": runtime.durable.last_sequence,
            "retained_from": runtime.log.first,
            "retained": len(runtime.log),
            "retained_bytes": runtime.log.nbytes,
        },
        "quotas": quotas_of(server),
        "principals": [
            {"key_id": digest_text(key_id), "quotas": quotas_of(quota)} for key_id, quota in runtime.quotas.held()
        ],
        "connections": list(views.values()),
    }
    return document, views


def quotas_of(quota: Quota) -> Document:
    """Used and cap of each resource of one level; a cap of null where this level has none of its own."""
    return {
        label: {"used": quota.used(resource), "cap": _cap(quota.limit(resource))}
        for resource, label in _RESOURCES
        if quota.limit(resource) != U64_MAX or quota.used(resource)
    }


def _cap(limit: int) -> int | None:
    return None if limit == U64_MAX else limit


def _connection(runtime: Runtime, conn: Connection) -> Document:
    control_frames, control_bytes = conn.control_load
    return {
        "key_id": digest_text(conn.grant.key_id),
        "scopes": _names(Scope, conn.grant.scopes),
        "capabilities": _names(Capability, conn.capabilities),
        "grant_seconds": max(0.0, conn.grant.expires_at - runtime.now.wall),
        "requests": len(conn.requests),
        "backlog_bytes": conn.backlog_bytes,
        "replies": len(conn.out),
        "control_frames": control_frames,
        "control_bytes": control_bytes,
        "writable": conn.writable,
        "closing": None if conn.closing is None else conn.closing.name,
        "quotas": quotas_of(conn.quota),
        "subscriptions": [_subscription(runtime, sub) for sub in conn.subscriptions.values()],
        "leases": [_lease(runtime, lease) for lease in conn.leases.values()],
    }


@functools.lru_cache(64)
def _names(kind: type[Scope | Capability], bits: int) -> tuple[str, ...]:
    return tuple(bit.name or "" for bit in kind if int(bit) & bits)


def _subscription(runtime: Runtime, sub: Subscription) -> Document:
    return {
        "id": sub.id.hex(),
        "state": sub.state.name,
        "credit_count": sub.credit.count,
        "credit_bytes": sub.credit.nbytes,
        "queue_frames": sub.queued_frames,
        "queue_bytes": sub.queued_bytes,
        "lag": lag_of(sub, runtime.log.head),
        "stalled": sub.stalled,
        "deliveries": sub.delivery,
        "last_event": sub.last_event,
    }


def lag_of(sub: Subscription, durable: int) -> int:
    """Durable events behind what was delivered, hidden ones included. A subscription that is whole and has nothing to
    wait for has no lag, wherever its cursor rests."""
    if sub.state in _BROKEN:
        return max(0, durable - sub.last_event)
    return max(0, durable - sub.cursor) if sub.waiting else 0


def _lease(runtime: Runtime, lease: Lease) -> Document:
    return {
        "id": lease.id.hex(),
        "kind": lease.KIND,
        "seconds_left": max(0.0, lease.expires - runtime.now.mono),
        "pinned_bytes": lease.pinned,
        "pages": lease.page_count,
        "ended": lease.ended,
        "subscription_id": None if lease.subscription is None else lease.subscription.id.hex(),
    }
