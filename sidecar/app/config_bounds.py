"""The sections of `serve.toml` that lower what is not negotiated: storage and the aggregate quotas (OPEN P3-e).

A value is the hard bound when it is not given, and one above it is refused. Structural bounds (cursors, names,
diagnostics, preconditions) cannot be set.
"""

import dataclasses
from typing import Annotated, Final

from sidecar.coordinator.engine.policy import EVENT_BYTES, EVENT_COUNT, STORAGE_BYTES
from sidecar.coordinator.wire.limits import QUOTAS, QuotaCaps
from sidecar.ops.config import Key, integer

_MEANING: Final = {
    "connections": "Connections that proved a key.",
    "requests": "Requests that are not answered yet.",
    "leases": "Snapshots and replays that are read.",
    "pinned_bytes": "Bytes of the records and events that they hold.",
    "subscriptions": "Subscriptions.",
    "queue_frames": "Events that wait for their subscribers.",
    "queue_bytes": "Bytes of the events that wait. Below one event, subscribers only ever get gaps.",
    "pending_operations": "Operations that are not final yet.",
}


def _hard(level: str, resource: str) -> int:
    cap = getattr(QUOTAS[resource], level)
    assert isinstance(cap, int), "the limits table has no such row"
    return cap


def _key(level: str, resource: str) -> Key:
    return Key(integer(1, _hard(level, resource)), _MEANING[resource])


@dataclasses.dataclass(frozen=True, slots=True)
class StorageSection:
    """How much the coordinator keeps at most. Lowering takes effect at the next start."""

    record_bytes: Annotated[
        int,
        Key(
            integer(1, STORAGE_BYTES),
            "Bytes of all records. Above it new work is refused; nothing that is there is removed.",
        ),
    ] = STORAGE_BYTES
    event_bytes: Annotated[
        int,
        Key(
            integer(1, EVENT_BYTES),
            "Payload bytes of the event log. The oldest events are dropped; who still needs them starts again\n"
            "from a snapshot.",
        ),
    ] = EVENT_BYTES
    event_count: Annotated[int, Key(integer(1, EVENT_COUNT), "Events of that log.")] = EVENT_COUNT


@dataclasses.dataclass(frozen=True, slots=True)
class ConnectionQuotas:
    """What one connection may hold at most. A full quota refuses what is new and takes nothing away."""

    requests: Annotated[int, _key("connection", "requests")] = _hard("connection", "requests")
    leases: Annotated[int, _key("connection", "leases")] = _hard("connection", "leases")
    subscriptions: Annotated[int, _key("connection", "subscriptions")] = _hard("connection", "subscriptions")


@dataclasses.dataclass(frozen=True, slots=True)
class PrincipalQuotas:
    """What one key may hold at most, over all its connections."""

    connections: Annotated[int, _key("principal", "connections")] = _hard("principal", "connections")
    requests: Annotated[int, _key("principal", "requests")] = _hard("principal", "requests")
    leases: Annotated[int, _key("principal", "leases")] = _hard("principal", "leases")
    pinned_bytes: Annotated[int, _key("principal", "pinned_bytes")] = _hard("principal", "pinned_bytes")
    subscriptions: Annotated[int, _key("principal", "subscriptions")] = _hard("principal", "subscriptions")
    queue_frames: Annotated[int, _key("principal", "queue_frames")] = _hard("principal", "queue_frames")
    queue_bytes: Annotated[int, _key("principal", "queue_bytes")] = _hard("principal", "queue_bytes")
    pending_operations: Annotated[int, _key("principal", "pending_operations")] = _hard(
        "principal", "pending_operations"
    )


@dataclasses.dataclass(frozen=True, slots=True)
class ServerQuotas:
    """What all keys together may hold at most."""

    connections: Annotated[int, _key("server", "connections")] = _hard("server", "connections")
    requests: Annotated[int, _key("server", "requests")] = _hard("server", "requests")
    leases: Annotated[int, _key("server", "leases")] = _hard("server", "leases")
    pinned_bytes: Annotated[int, _key("server", "pinned_bytes")] = _hard("server", "pinned_bytes")
    subscriptions: Annotated[int, _key("server", "subscriptions")] = _hard("server", "subscriptions")
    queue_frames: Annotated[int, _key("server", "queue_frames")] = _hard("server", "queue_frames")
    queue_bytes: Annotated[int, _key("server", "queue_bytes")] = _hard("server", "queue_bytes")
    pending_operations: Annotated[int, _key("server", "pending_operations")] = _hard("server", "pending_operations")


DEFAULT_STORAGE: Final = StorageSection()
DEFAULT_CONNECTION: Final = ConnectionQuotas()
DEFAULT_PRINCIPAL: Final = PrincipalQuotas()
DEFAULT_SERVER: Final = ServerQuotas()
"""Sections that a file does not have."""


def quotas_of(connection: ConnectionQuotas, principal: PrincipalQuotas, server: ServerQuotas) -> dict[str, QuotaCaps]:
    """The three sections as rows of the limits table."""
    levels = (connection, principal, server)
    return {resource: QuotaCaps(*(getattr(level, resource, None) for level in levels)) for resource in QUOTAS}
