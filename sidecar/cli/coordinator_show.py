"""How records, events and results look: dictionaries for --json, rows and single lines for people."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from sidecar.base.ed25519 import digest_text
from sidecar.cli.main import one_line
from sidecar.coordinator.client_events import Change, Snapshot, Welcome, WorkEvent
from sidecar.coordinator.client_trust import Admission, Pin
from sidecar.coordinator.values import body_of as body_of
from sidecar.coordinator.values import key_of as key_of
from sidecar.coordinator.values import record_of as record_of
from sidecar.coordinator.values import result_of as result_of
from sidecar.coordinator.values import standing_of as standing_of
from sidecar.coordinator.values import value_of as value_of
from sidecar.coordinator.wire.enums import Capability, ObjectKind, Scope
from sidecar.coordinator.wire.records import OperationResult, SnapshotRecord

_DETAIL: Final = 60

ADMISSION: Final[dict[Admission, str]] = {
    Admission.FIRST: "new authority, pinned now",
    Admission.SAME: "authority already pinned, same activation",
    Admission.HIGHER: "later activation of the pinned authority adopted; current after the next snapshot",
}
"""What an admission means, for people; JSON has the word that is its value."""


def welcome_of(welcome: Welcome) -> dict[str, Any]:
    """A handshake for JSON."""
    return {
        "version": ".".join(str(part) for part in welcome.version),
        "authority": digest_text(welcome.fingerprint),
        "coordinator_id": welcome.coordinator_id.hex(),
        **standing_of(welcome.standing),
        "admission": welcome.admission.value,
        "certificate_expires_at": welcome.certificate.expires_at,
        "witness_id": welcome.certificate.witness_id.hex(),
        "key_id": digest_text(welcome.key_id),
        "scopes": value_of(Scope(welcome.scopes)),
        "grant_expires_at": welcome.grant_expires_at,
        "capabilities": value_of(Capability(welcome.capabilities)),
        "limits": {name: getattr(welcome.selected, name) for name in type(welcome.selected).__slots__},
        "retention_seconds": welcome.retention_seconds,
    }


def snapshot_of(snapshot: Snapshot) -> dict[str, Any]:
    """The head of a snapshot for JSON, without its records."""
    return {
        "cut": snapshot.base,
        "epoch": snapshot.standing.epoch,
        "activation": snapshot.standing.activation,
        "record_count": snapshot.record_count,
        "page_count": snapshot.page_count,
        "sha256": snapshot.digest.hex(),
    }


def event_of(event: Change) -> dict[str, Any]:
    """An event for JSON; one that a replay brought has no delivery."""
    return {
        "event": event.sequence,
        "event_id": event.event_id.hex(),
        "kind": event.kind.name,
        "object": value_of(event.object),
        "revision": event.revision,
        "delivery": event.delivery if isinstance(event, WorkEvent) else None,
        **({"payload_hex": event.payload.hex()} if event.record is None else {"record": record_of(event.record)}),
    }


def pin_of(pin: Pin) -> dict[str, Any]:
    """A pin for JSON."""
    quarantine = pin.quarantine
    return {
        "authority": digest_text(pin.fingerprint),
        "coordinator_id": pin.coordinator_id.hex(),
        "witness_id": pin.witness_id.hex(),
        "witness_key": pin.witness_key.hex(),
        "seen": standing_of(pin.seen),
        "current": standing_of(pin.current),
        "fenced": pin.fenced,
        "quarantine": quarantine and {"held": standing_of(quarantine.held), "offered": standing_of(quarantine.offered)},
    }


def record_row(record: SnapshotRecord) -> tuple[str, str, str, str, str]:
    """Kind, id, revision, state and a short detail."""
    shown = record_of(record)
    for name in ("kind", "id", "revision"):
        del shown[name]
    state = shown.pop("admin_kind" if record.kind is ObjectKind.ADMIN else "state", "-")
    shown.pop("document_schema", None)
    first = shown.get("document") if record.kind is ObjectKind.OBJECTIVE else None
    detail = (
        first if isinstance(first, str) else " ".join(_member(*item) for item in shown.items() if item[1] is not None)
    )
    if record.kind is ObjectKind.OPERATION:
        # A key id is never shortened: it is what `workload list` prints and `workload revoke` takes.
        state, short = shown["result"]["state"], f"principal={shown['principal_key_id']}"
    else:
        detail = one_line(detail)
        whole = record.kind is ObjectKind.ADMIN or len(detail) <= _DETAIL
        short = detail if whole else detail[: _DETAIL - 2] + ".."
    return record.kind.name, record.id.hex(), str(record.revision), str(state), short


def event_line(event: Change) -> str:
    """One event in one line."""
    head = f"event {event.sequence}  {event.kind.name}"
    if event.record is None:
        return f"{head}  {event.object.kind.name} {event.object.id.hex()} r{event.revision}"
    kind, object_id, revision, state, detail = record_row(event.record)
    return f"{head}  {kind} {object_id} r{revision}  {state}  {detail}"


def result_line(result: OperationResult) -> str:
    """One operation result in one line."""
    shown = result_of(result)
    state = shown.pop("state")
    return one_line(
        " ".join([state, *(f"{name}={_flat(value)}" for name, value in shown.items() if value is not None)])
    )


def _member(name: str, value: Any) -> str:
    """``NAME=VALUE``; instants (Unix seconds) can be read."""
    return f"{name}={instant(value) if name.endswith('_at') and isinstance(value, int) else _flat(value)}"


def _flat(value: Any) -> str:
    if isinstance(value, list):
        return ",".join(map(str, value))
    if isinstance(value, dict):
        return ":".join(str(part) for part in value.values())
    return str(value)


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Left-aligned columns."""
    lines = [tuple(head), *(tuple(row) for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )


def instant(seconds: int) -> str:
    """Unix seconds as UTC."""
    try:
        return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    except (ValueError, OverflowError, OSError):
        return str(seconds)  # beyond the calendar
