"""One legal example of every frame, payload and record, with every optional part present."""

from __future__ import annotations

from typing import Any

from sidecar.coordinator.wire import ids, records, results, terminal
from sidecar.coordinator.wire.enums import (
    AdminKind,
    Attention,
    BindingState,
    CommandKind,
    EffectKind,
    EffectState,
    EndReason,
    ErrorCode,
    EventKind,
    FrameType,
    GapReason,
    IndeterminateReason,
    InputResult,
    ObjectiveState,
    ObjectKind,
    OperationTag,
    ProcessSignal,
    RunState,
    Scope,
    SignalKind,
    SignalResult,
    SignalState,
    SourceFactKind,
    SourceGapReason,
    WorkSessionState,
)
from sidecar.coordinator.wire.fields import Body, Frame
from sidecar.coordinator.wire.frames import FRAMES
from sidecar.coordinator.wire.ids import ObjectId
from sidecar.coordinator.wire.images import Record
from sidecar.coordinator.wire.limits import RETENTION_FLOOR
from sidecar.coordinator.wire.payloads import COMMANDS, RECORD_PAYLOADS
from tests.vectors import expected_frames, expected_images, expected_proofs
from tests.vectors import inputs as fix

ARTIFACT = ids.artifact_id(b"\xcc" * 16)
SNAPSHOT = ids.snapshot_id(b"\xdd" * 16)
REPLAY = ids.replay_id(b"\xee" * 16)
ADMIN = records.AdminRetention(RETENTION_FLOOR, 1, 2)

VALUES: dict[str, Any] = {
    "request_id": 7,
    "authority_guard": fix.guard(),
    "operation_id": fix.OPERATION,
    "selector": 0,
    "reserve_subscription": True,
    "replace_paused_subscription": fix.SUBSCRIPTION,
    "snapshot_id": SNAPSHOT,
    "replay_id": REPLAY,
    "subscription_id": fix.SUBSCRIPTION,
    "cursor": b"cursor",
    "first_cursor": b"first",
    "next_cursor": b"next",
    "initial_credit_count": 16,
    "initial_credit_bytes": 65_536,
    "after_event_sequence": ids.event_cut(9),
    "add_count": 8,
    "add_bytes": 4_096,
    "nonce": 1,
    "activation_certificate": expected_proofs.certificate(),
    "operation": results.Unknown(),
    "base_event_sequence": ids.event_cut(9),
    "lease_expires_at": 1_900_000_060,
    "page_index": 0,
    "page_count": 1,
    "record_count": 5,
    "event_count": 2,
    "canonical_sha256": b"\x01" * 32,
    "next_delivery_sequence": ids.delivery_sequence(1),
    "first_event": ids.event_sequence(10),
    "replay_cut": ids.event_cut(12),
    "records": tuple(expected_images.RECORDS.values()),
    "events": (expected_images.EVENT_10, expected_images.EVENT_12),
    "last_contiguous_delivery": ids.delivery_cut(3),
    "last_contiguous_event": ids.event_cut(12),
    "observed_event": ids.event_sequence(13),
    "reason": GapReason.RETENTION,
    "code": ErrorCode.SCOPE_DENIED,
    "message": "no",
    "command_kind": CommandKind.CREATE_OBJECTIVE,
    "payload": expected_images.CREATE.body(),
    "preconditions": expected_images.PRECONDITIONS,
    "objective_id": fix.OBJECTIVE,
    "run_id": fix.RUN,
    "work_session_id": fix.SESSION,
    "artifact_id": ARTIFACT,
    "binding_id": fix.BINDING,
    "signal_id": fix.SIGNAL,
    "schema": 1,
    "document_schema": 1,
    "document": fix.DOCUMENT,
    "note": "ok",
    "revision": 1,
    "latest_revision": 1,
    "manifest": b"{}",
    "operation_result_secs": RETENTION_FLOOR,
    "event_bytes": 1,
    "artifact_bytes": 2,
    "attempt": 1,
    "outcome": b"\x00",
    "active_binding": fix.BINDING,
    "binding": fix.BINDING_REF,
    "end_reason": EndReason.FAILED,
    "kind": SignalKind.POLICY,
    "principal_key_id": b"\x02" * 32,
    "result": results.Unknown(),
    "seal_sha256": b"\x03" * 32,
    "admin_kind": AdminKind.RETENTION,
}
STATES: dict[ObjectKind, Any] = {
    ObjectKind.OBJECTIVE: ObjectiveState.COMPLETED,
    ObjectKind.RUN: RunState.FAILED,
    ObjectKind.WORK_SESSION: WorkSessionState.ENDED,
    ObjectKind.BINDING: BindingState.ENDED,
    ObjectKind.SIGNAL: SignalState.RESOLVED,
}
BUILT: dict[FrameType, Frame] = {
    FrameType.COORD_HELLO: expected_frames.hello(),
    FrameType.WORKLOAD_CHALLENGE: expected_frames.challenge(),
    FrameType.WORKLOAD_RESPONSE: expected_frames.response(),
    FrameType.COORD_HELLO_OK: expected_frames.hello_ok(),
    FrameType.COORD_EVENT: expected_frames.event(),
}


def _build(shape: type[Body], **more: Any) -> Body:
    values = {**VALUES, **more}
    return shape.build({item.name: values[item.name] for item in shape.FIELDS})


def frame(kind: FrameType) -> Frame:
    """A frame of a type."""
    if kind in BUILT:
        return BUILT[kind]
    made = _build(FRAMES[kind])
    assert isinstance(made, Frame)
    return made


def _commands() -> dict[CommandKind, Body]:
    found: dict[CommandKind, Body] = {}
    for kind in CommandKind:
        if kind is CommandKind.START_RUN:
            found[kind] = expected_images.START
        elif kind is CommandKind.END_BINDING:
            found[kind] = _build(COMMANDS[kind], reason=EndReason.CANCELLED)
        else:
            found[kind] = _build(COMMANDS[kind])
    return found


def _payloads() -> dict[ObjectKind, Body]:
    found: dict[ObjectKind, Body] = {}
    for kind, shape in RECORD_PAYLOADS.items():
        more = {"payload": ADMIN.encode()} if kind is ObjectKind.ADMIN else {}
        found[kind] = _build(shape, state=STATES.get(kind), **more)
    return found


FRAME_SAMPLES: dict[FrameType, Frame] = {kind: frame(kind) for kind in FrameType}
COMMAND_SAMPLES: dict[CommandKind, Body] = _commands()
PAYLOAD_SAMPLES: dict[ObjectKind, Body] = _payloads()

BODIES: dict[str, Body] = {
    **{f"frame {kind.name}": body for kind, body in FRAME_SAMPLES.items()},
    **{f"command {kind.name}": body for kind, body in COMMAND_SAMPLES.items()},
    **{f"payload {kind.name}": body for kind, body in PAYLOAD_SAMPLES.items()},
}


def fact(kind: SourceFactKind, payload: terminal.FactPayload) -> records.TerminalSourceFact:
    """A source fact of the golden binding."""
    return records.TerminalSourceFact(expected_images.FACT.source, kind, 1, payload.encode())


FACT_SAMPLES: dict[SourceFactKind, terminal.FactPayload] = {
    SourceFactKind.OPENED: terminal.Opened(),
    SourceFactKind.CLOSED: terminal.Closed(-1),
    SourceFactKind.INPUT_RESULT: terminal.InputOutcome(fix.ATTEMPT, InputResult.UNKNOWN),
    SourceFactKind.SIGNAL_RESULT: terminal.SignalOutcome(fix.ATTEMPT, SignalResult.UNKNOWN),
    SourceFactKind.OUTPUT_RANGE: terminal.OutputRange(1, 2, 3, b"\x04" * 32),
    SourceFactKind.ATTENTION: terminal.AttentionRaised(Attention.FAILED),
}
SEQUENCE = ids.event_sequence(10)
RESULTS: tuple[results.OperationResult, ...] = (
    results.Pending(fix.EPOCH, SEQUENCE),
    results.succeeded(SEQUENCE, results.NoPayload()),
    results.succeeded(SEQUENCE, fix.ref(ObjectKind.OBJECTIVE, fix.OBJECTIVE)),
    results.succeeded(SEQUENCE, results.Started(fix.RUN, fix.SESSION, fix.BINDING)),
    results.succeeded(SEQUENCE, results.Document(1, b"{}")),
    results.Rejected(SEQUENCE, ErrorCode.REVISION_CONFLICT, "stale"),
    results.Indeterminate(IndeterminateReason.TARGET_DEDUPE_UNAVAILABLE, fix.ATTEMPT),
    results.Tombstoned(b"\x05" * 32, OperationTag.SUCCEEDED),
    results.Unknown(),
)
_SPAWN = expected_images.SPAWN_PAYLOAD
RECORDS: tuple[Record, ...] = (
    fix.guard(),
    fix.ref(ObjectKind.RUN, fix.RUN),
    *expected_images.PRECONDITIONS,
    *expected_images.RECORDS.values(),
    expected_images.EVENT_10,
    expected_images.EVENT_12,
    expected_proofs.certificate(),
    expected_proofs.offer(),
    expected_proofs.grant(),
    records.AdminActivation(fix.EPOCH, fix.ACTIVATION, fix.INCARNATION, b"\x06" * 32, fix.ISSUED),
    ADMIN,
    records.AdminCredential(ids.KeyId(b"\x07" * 32), Scope.ADMIN, fix.EXPIRES, fix.ISSUED),
    *RESULTS,
    results.NoPayload(),
    results.Started(fix.RUN, fix.SESSION, fix.BINDING),
    results.Document(1, b"{}"),
    terminal.LocalResource(1),
    terminal.SatelliteResource("edge-1", 7),
    fix.GROUP,
    fix.BINDING_REF,
    expected_images.SATELLITE_REF,
    expected_images.FACT.source,
    *FACT_SAMPLES.values(),
    *(fact(kind, payload) for kind, payload in FACT_SAMPLES.items()),
    records.SourceGap(fix.BINDING, ids.source_sequence(2), ids.source_sequence(5), SourceGapReason.ENDED),
    expected_images.SPAWN_TARGET,
    terminal.ActiveBinding(fix.BINDING_REF),
    _SPAWN,
    terminal.KillPayload(),
    terminal.ProcessSignalPayload(ProcessSignal.KILL),
    terminal.EffectAttempt(
        fix.ATTEMPT,
        fix.OPERATION,
        EffectKind.SPAWN,
        expected_images.SPAWN_TARGET,
        b"\x08" * 32,
        _SPAWN.encode(),
        EffectState.INDETERMINATE,
    ),
)


def record(kind: ObjectKind) -> records.SnapshotRecord:
    """A snapshot record of a family."""
    identity = ObjectId(bytes([kind]) * 16)
    return records.SnapshotRecord(kind, identity, ids.object_revision(3), 1, PAYLOAD_SAMPLES[kind].body())


def replay_event(kind: EventKind, about: ObjectKind) -> records.ReplayEvent:
    """An event of a kind about a family."""
    content: Record
    if kind is EventKind.SOURCE_FACT_ADMITTED:
        content, subject = expected_images.FACT, fix.ref(about, fix.BINDING)
    elif kind is EventKind.SOURCE_GAP:
        content, subject = expected_images.GAP, fix.ref(about, fix.BINDING)
    else:
        content = record(about)
        subject = content.ref()
    return records.ReplayEvent(
        ids.event_sequence(4), fix.EVENT_1, kind, subject, ids.object_revision(3), 1, content.encode()
    )
