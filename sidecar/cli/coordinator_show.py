"""How records, events and results look: dictionaries for --json, rows and single lines for people."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from sidecar.base.ed25519 import digest_text
from sidecar.cli.main import one_line
from sidecar.coordinator.client_events import Change, Snapshot, Welcome, WorkEvent
from sidecar.coordinator.client_trust import Admission, Pin, Standing
from sidecar.coordinator.wire.enums import Capability, ObjectKind, Scope
from sidecar.coordinator.wire.fields import Body
from sidecar.coordinator.wire.images import Record
from sidecar.coordinator.wire.payloads import AdminRecord, decode_record_payload
from sidecar.coordinator.wire.records import (
    Indeterminate,
    OperationResult,
    Pending,
    Rejected,
    SnapshotRecord,
    Succeeded,
    Tombstoned,
)

_DETAIL: Final = 60

ADMISSION: Final[dict[Admission, str]] = {
    Admission.FIRST: "new authority, pinned now",
    Admission.SAME: "authority already pinned, same activation",
    Admission.HIGHER: "later activation of the pinned authority adopted; current after the next snapshot",
}
"""What an admission means, for people; JSON has the word that is its value."""


def value_of(value: Any) -> Any:
    """A wire value for JSON: names for enums, hex for ids, text for UTF-8 documents, members for records."""
    if isinstance(value, Scope | Capability):
        return [bit.name for bit in type(value) if bit & value]
    if hasattr(value, "name"):
        return value.name
    if isinstance(value, Body):
        return body_of(value)
    if isinstance(value, Record):
        members = {name: member_of(name, getattr(value, name)) for name, _ in value.COLUMNS}
        return {"type": type(value).__name__, **members} if value.TAG is not None else members
    if isinstance(value, bytes):
        return value.hex()
    return value


def member_of(name: str, value: Any) -> Any:
    """A named wire value for JSON: key ids and fingerprints have one text form, ``sha256:`` and 64 digits."""
    if isinstance(value, bytes) and name.endswith(("key_id", "fingerprint")):
        return digest_text(value)
    return value_of(value)


def body_of(body: Body) -> dict[str, Any]:
    """The fields of a body; documents are text when they are UTF-8, else ``NAME_hex``. ADMIN shows what it holds."""
    if isinstance(body, AdminRecord):
        return {"admin_kind": body.admin_kind.name, **value_of(body.content())}
    shown: dict[str, Any] = {}
    for item in body.FIELDS:
        value = getattr(body, item.name)
        if item.name in ("document", "manifest", "outcome") and isinstance(value, bytes):
            try:
                shown[item.name] = value.decode()
            except UnicodeDecodeError:
                shown[f"{item.name}_hex"] = value.hex()
        elif isinstance(value, OperationResult):
            shown[item.name] = result_of(value)
        elif value is not None:
            shown[item.name] = member_of(item.name, value)
    return shown


def record_of(record: SnapshotRecord) -> dict[str, Any]:
    """One record for JSON."""
    return {
        "kind": record.kind.name,
        "id": record.id.hex(),
        "revision": record.revision,
        **body_of(decode_record_payload(record.kind, record.payload)),
    }


def key_of(key: bytes) -> dict[str, str]:
    """The 18 bytes of a record's key for JSON."""
    return {"kind": ObjectKind(int.from_bytes(key[:2], "big")).name, "id": key[2:].hex()}


def result_of(result: OperationResult) -> dict[str, Any]:
    """An operation result for JSON; ``state`` names it."""
    shown: dict[str, Any] = {"state": state_of(result)}
    match result:
        case Pending():
            shown |= {"admitted_epoch": result.admitted_epoch, "admitted_event": result.admitted_event_sequence}
        case Succeeded():
            shown |= {
                "completed_event": result.completed_event_sequence,
                "result_kind": result.result_kind.name,
                "content": value_of(result.content()),
            }
        case Rejected():
            shown |= {
                "completed_event": result.completed_event_sequence,
                "error_code": result.error_code.name,
                "message": result.message,
            }
        case Indeterminate():
            attempt = result.effect_attempt_id
            shown |= {"reason": result.reason.name, "effect_attempt_id": None if attempt is None else attempt.hex()}
        case Tombstoned():
            shown |= {"final_state": result.final_state.name, "command_digest": digest_text(result.command_digest)}
    return shown


def state_of(result: OperationResult) -> str:
    """PENDING, SUCCEEDED, REJECTED, INDETERMINATE, TOMBSTONED or UNKNOWN."""
    return type(result).__name__.upper()


def standing_of(standing: Standing) -> dict[str, Any]:
    """An activation for JSON; of its token only the hash."""
    return {
        "epoch": standing.epoch,
        "activation": standing.activation,
        "incarnation": standing.incarnation.hex(),
        "token_sha256": digest_text(standing.token_sha256),
    }


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
