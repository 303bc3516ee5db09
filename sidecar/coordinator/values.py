"""Wire values as JSON values: what the command line prints with --json, and what the bridge answers."""

from __future__ import annotations

from typing import Any

from sidecar.base.ed25519 import digest_text
from sidecar.coordinator.client_trust import Standing
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
