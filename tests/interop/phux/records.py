"""Positional records and the TLV payloads inside them (parts P4, P7, P8 and P11)."""

from __future__ import annotations

from typing import Any, NamedTuple

from tests.interop.phux import enums as e
from tests.interop.phux.tlv import (
    BYTES32,
    BYTES64,
    COUNTER,
    I32,
    IDENT,
    U16,
    U32,
    U64,
    Body,
    Codec,
    Field,
    Image,
    Malformed,
    checked,
    closed,
    leaf,
    list_of,
    literal,
    optional,
    record,
    text,
    union,
)

# ---- references and authority ----


class Guard(NamedTuple):
    coordinator_id: bytes
    authority_epoch: int
    activation_sequence: int
    fencing_token_sha256: bytes


class ObjectRef(NamedTuple):
    kind: e.ObjectKind
    id: bytes

    @property
    def key(self) -> bytes:
        """The 18 bytes by which objects are ordered."""
        return OBJECT_REF.write(self)


class Precondition(NamedTuple):
    object: ObjectRef
    expected_revision: int


class Certificate(NamedTuple):
    version: e.CertificateVersion
    witness_id: bytes
    coordinator_id: bytes
    activation_sequence: int
    authority_epoch: int
    incarnation_id: bytes
    fencing_token: bytes
    issued_at: int
    expires_at: int
    witness_key_id: bytes
    signature: bytes


class WorkloadOffer(NamedTuple):
    profile: bytes
    client_nonce: bytes


class WorkloadGrant(NamedTuple):
    key_id: bytes
    authority_fingerprint: bytes
    expires_at: int
    scopes: int


GUARD = record(Guard, IDENT, COUNTER, COUNTER, BYTES32)
OBJECT_REF = record(ObjectRef, closed(e.ObjectKind, 2), IDENT)
PRECONDITION = record(Precondition, OBJECT_REF, U64)
CERTIFICATE = record(
    Certificate,
    closed(e.CertificateVersion, 1),
    IDENT,
    IDENT,
    COUNTER,
    COUNTER,
    IDENT,
    BYTES32,
    U64,
    U64,
    BYTES32,
    BYTES64,
)
NONCE = checked(BYTES32, any, "a nonce of zeros")  # W3-08
PROFILE, SERVICE = literal(e.PROFILE), literal(e.SERVICE)


def _read_scopes(image: Image) -> int:
    if image.uint(4) != 8:
        raise Malformed("scopes are one u64")
    return _SCOPES.read(image)  # type: ignore[no-any-return]


_SCOPES = checked(U64, lambda value: not value & ~e.SCOPE_MASK, "an unknown scope")
SCOPES = Codec(lambda value: U32.write(8) + _SCOPES.write(value), _read_scopes)  # P6-01, P6-02
WORKLOAD_OFFER = record(WorkloadOffer, PROFILE, NONCE)
WORKLOAD_GRANT = record(WorkloadGrant, BYTES32, BYTES32, U64, SCOPES)


def _sorted_preconditions() -> Codec:
    """Written in canonical order (P8-03); read in any order, but one object never twice (P8-04)."""
    plain = list_of(PRECONDITION, e.MAX_PRECONDITIONS)

    def order(values: list[Precondition]) -> list[Precondition]:
        if len({value.object for value in values}) != len(values):
            raise Malformed("two preconditions on one object")
        return sorted(values, key=lambda value: value.object.key)

    return Codec(lambda values: plain.write(order(values)), lambda image: order(plain.read(image)))


PRECONDITIONS = _sorted_preconditions()

# ---- terminals ----


class LocalResource(NamedTuple):
    id: int


class SatelliteResource(NamedTuple):
    host: str
    id: int


class BindingRef(NamedTuple):
    binding_id: bytes
    work_session_id: bytes
    owner_fingerprint: bytes
    owner_incarnation: bytes
    resource: LocalResource | SatelliteResource


class SourceRef(NamedTuple):
    binding_id: bytes
    owner_fingerprint: bytes
    owner_incarnation: bytes
    source_sequence: int


class SourceFact(NamedTuple):
    source: SourceRef
    kind: e.SourceFactKind
    schema: int
    payload: bytes


class SourceGap(NamedTuple):
    binding_id: bytes
    expected_source: int
    observed_source: int
    reason: e.SourceGapReason


def within(codec: Codec, cap: int = 0xFFFF_FFFF) -> Codec:
    """`u32 length` and the image of another codec, which fills it."""
    outer = leaf(cap)
    return Codec(lambda value: outer.write(codec.write(value)), lambda image: codec.parse(outer.read(image)))


def _host(value: str) -> bool:
    return 1 <= len(value.encode()) <= 255 and not any(ord(c) < 32 or 127 <= ord(c) < 160 for c in value)


RESOURCE_ID = union(
    {
        0: (LocalResource, record(LocalResource, U32)),
        1: (SatelliteResource, record(SatelliteResource, checked(text(), _host, "a host"), U32)),
    }
)
GROUP_ID = U32
BINDING_REF = record(BindingRef, IDENT, IDENT, BYTES32, IDENT, within(RESOURCE_ID, e.MAX_CURSOR))
SOURCE_REF = record(SourceRef, IDENT, BYTES32, IDENT, COUNTER)
SOURCE_FACT = record(SourceFact, SOURCE_REF, closed(e.SourceFactKind, 2), U16, leaf())
SOURCE_GAP = record(SourceGap, IDENT, COUNTER, COUNTER, closed(e.SourceGapReason, 1))

FACT_PAYLOADS: dict[e.SourceFactKind, Codec] = {
    e.SourceFactKind.OPENED: record(tuple),
    e.SourceFactKind.CLOSED: optional(I32),
    e.SourceFactKind.INPUT_RESULT: record(lambda *v: v, IDENT, closed(e.Outcome, 1)),
    e.SourceFactKind.SIGNAL_RESULT: record(lambda *v: v, IDENT, closed(e.Outcome, 1)),
    e.SourceFactKind.OUTPUT_RANGE: record(lambda *v: v, U64, U64, U64, BYTES32),
    e.SourceFactKind.ATTENTION: closed(e.Attention, 2),
}

# ---- effects ----


class PendingSpawn(NamedTuple):
    pending_binding_id: bytes
    owner_fingerprint: bytes
    owner_incarnation: bytes
    group: int


class ActiveBinding(NamedTuple):
    binding: BindingRef


class SpawnPayload(NamedTuple):
    work_session_id: bytes
    executor_schema: int
    document: bytes


class EffectAttempt(NamedTuple):
    effect_attempt_id: bytes
    operation_id: bytes
    kind: e.EffectKind
    target: PendingSpawn | ActiveBinding
    digest: bytes
    payload: bytes
    state: e.EffectState


EFFECT_TARGET = union(
    {
        0: (PendingSpawn, record(PendingSpawn, IDENT, BYTES32, IDENT, within(GROUP_ID, e.MAX_CURSOR))),
        1: (ActiveBinding, record(ActiveBinding, BINDING_REF)),
    }
)
EFFECT_PAYLOADS: dict[e.EffectKind, Codec] = {
    e.EffectKind.SPAWN: record(SpawnPayload, IDENT, U16, leaf()),
    e.EffectKind.KILL: record(tuple),
    e.EffectKind.PROCESS_SIGNAL: closed(e.ProcessSignal, 1),
}
EFFECT_ATTEMPT = record(
    EffectAttempt, IDENT, IDENT, closed(e.EffectKind, 1), EFFECT_TARGET, BYTES32, leaf(), closed(e.EffectState, 1)
)

# ---- results of operations ----


class Started(NamedTuple):
    run_id: bytes
    work_session_id: bytes
    binding_id: bytes | None


class Document(NamedTuple):
    schema: int
    payload: bytes


class Pending(NamedTuple):
    admitted_epoch: int
    admitted_event_sequence: int


class Succeeded(NamedTuple):
    completed_event_sequence: int
    value: ObjectRef | Started | Document | None


class Rejected(NamedTuple):
    completed_event_sequence: int
    error_code: e.ErrorCode
    message: str


class Indeterminate(NamedTuple):
    reason: e.IndeterminateReason
    effect_attempt_id: bytes | None


class Tombstoned(NamedTuple):
    command_digest: bytes
    final_state: e.FinalState


class Unknown(NamedTuple):
    pass


RESULTS: dict[e.ResultKind, tuple[type, Codec]] = {
    e.ResultKind.NONE: (type(None), Codec(lambda _: b"", lambda _: None)),
    e.ResultKind.OBJECT_REF: (ObjectRef, OBJECT_REF),
    e.ResultKind.STARTED: (Started, record(Started, IDENT, IDENT, optional(IDENT))),
    e.ResultKind.DOCUMENT: (Document, record(Document, U16, leaf())),
}


def _write_result(value: object) -> bytes:
    kind = next(kind for kind, (of, _) in RESULTS.items() if isinstance(value, of))
    return kind.to_bytes(2, "big") + within(RESULTS[kind][1]).write(value)


def _read_result(image: Image) -> object:
    kind = closed(e.ResultKind, 2).read(image)
    return within(RESULTS[kind][1]).read(image)


OPERATION_RESULT = union(
    {
        0: (Pending, record(Pending, COUNTER, COUNTER)),
        1: (Succeeded, record(Succeeded, COUNTER, Codec(_write_result, _read_result))),
        2: (Rejected, record(Rejected, COUNTER, closed(e.ErrorCode, 2), text(e.MAX_DIAGNOSTIC))),
        3: (Indeterminate, record(Indeterminate, closed(e.IndeterminateReason, 1), optional(IDENT))),
        4: (Tombstoned, record(Tombstoned, BYTES32, closed(e.FinalState, 1))),
        5: (Unknown, record(Unknown)),
    }
)

# ---- snapshot records and events ----


class SnapshotRecord(NamedTuple):
    object: ObjectRef
    revision: int
    schema_version: int
    payload: bytes

    @property
    def values(self) -> dict[str, Any]:
        """The payload's fields. Raises Malformed (P7-20, P7-27)."""
        if self.schema_version != 1:
            raise Malformed(f"record schema {self.schema_version}")
        return RECORD_PAYLOADS[self.object.kind].decode(self.payload)


class ReplayEvent(NamedTuple):
    event_sequence: int
    event_id: bytes
    event_kind: e.EventKind
    object: ObjectRef
    object_revision: int
    schema: int
    payload: bytes


SNAPSHOT_RECORD = record(SnapshotRecord, OBJECT_REF, COUNTER, U16, leaf())
REPLAY_EVENT = record(ReplayEvent, COUNTER, IDENT, closed(e.EventKind, 2), OBJECT_REF, COUNTER, U16, leaf())

RECORD_PAYLOADS: dict[e.ObjectKind, Body] = {
    e.ObjectKind.OBJECTIVE: Body(
        Field(1, "document_schema", U16), Field(2, "document", leaf()), Field(3, "state", closed(e.ObjectiveState, 1))
    ),
    e.ObjectKind.RUN: Body(
        Field(1, "objective_id", IDENT),
        Field(2, "attempt", U32),
        Field(3, "state", closed(e.RunState, 1)),
        Field(4, "outcome", leaf(), required=False),
    ),
    e.ObjectKind.WORK_SESSION: Body(
        Field(1, "run_id", IDENT),
        Field(2, "state", closed(e.OpenState, 1)),
        Field(3, "active_binding", IDENT, required=False),
    ),
    e.ObjectKind.BINDING: Body(
        Field(1, "binding", BINDING_REF),
        Field(2, "state", closed(e.OpenState, 1)),
        Field(3, "end_reason", closed(e.EndReason, 1), required=False),
    ),
    e.ObjectKind.ARTIFACT: Body(Field(1, "work_session_id", IDENT), Field(2, "latest_revision", COUNTER)),
    e.ObjectKind.ARTIFACT_MANIFEST: Body(
        Field(1, "artifact_id", IDENT),
        Field(2, "revision", COUNTER),
        Field(3, "schema", U16),
        Field(4, "manifest", leaf()),
    ),
    e.ObjectKind.SIGNAL: Body(
        Field(1, "work_session_id", IDENT),
        Field(2, "kind", closed(e.SignalKind, 2)),
        Field(3, "state", closed(e.SignalState, 1)),
        Field(4, "message", text(e.MAX_DIAGNOSTIC)),
    ),
    e.ObjectKind.OPERATION: Body(Field(1, "principal_key_id", BYTES32), Field(2, "result", OPERATION_RESULT)),
    e.ObjectKind.EVIDENCE: Body(
        Field(1, "work_session_id", IDENT), Field(2, "artifact_id", IDENT), Field(3, "seal_sha256", BYTES32)
    ),
    e.ObjectKind.ADMIN: Body(Field(1, "admin_kind", closed(e.AdminKind, 2)), Field(2, "payload", leaf())),
}


def event_record(event: ReplayEvent) -> SnapshotRecord | None:
    """What the event leaves of its object, or None when it only counts the revision (P7-21 to P7-24).

    Raises Malformed.
    """
    if event.schema != 1:
        raise Malformed(f"event schema {event.schema}")
    if event.event_kind is e.EventKind.SOURCE_FACT_ADMITTED:
        fact: SourceFact = SOURCE_FACT.parse(event.payload)
        FACT_PAYLOADS[fact.kind].parse(fact.payload)
        return None
    if event.event_kind is e.EventKind.SOURCE_GAP:
        SOURCE_GAP.parse(event.payload)
        return None
    after: SnapshotRecord = SNAPSHOT_RECORD.parse(event.payload)
    if (after.object, after.revision) != (event.object, event.object_revision):
        raise Malformed("the event's record is of another object or revision")
    _ = after.values
    return after


# ---- command payloads (table P7-t1) ----

_OBJECTIVE = Body(Field(1, "objective_id", IDENT), Field(2, "schema", U16), Field(3, "document", leaf()))
_RUN = Body(Field(1, "run_id", IDENT))
_SIGNAL = Body(Field(1, "signal_id", IDENT), Field(2, "note", text(e.MAX_DIAGNOSTIC), required=False))
COMMAND_PAYLOADS: dict[e.CommandKind, Body] = {
    e.CommandKind.CREATE_OBJECTIVE: _OBJECTIVE,
    e.CommandKind.UPDATE_OBJECTIVE: _OBJECTIVE,
    e.CommandKind.START_RUN: Body(
        Field(1, "objective_id", IDENT),
        Field(2, "run_id", IDENT),
        Field(3, "work_session_id", IDENT),
        Field(4, "executor_schema", U16),
        Field(5, "executor_document", leaf()),
        Field(6, "pending_binding_id", IDENT),
        Field(7, "owner_authority_fingerprint", BYTES32),
        Field(8, "owner_incarnation", IDENT),
        Field(9, "terminal_group", within(GROUP_ID, e.MAX_CURSOR)),
    ),
    e.CommandKind.CANCEL_RUN: _RUN,
    e.CommandKind.PAUSE_RUN: _RUN,
    e.CommandKind.RESUME_RUN: _RUN,
    e.CommandKind.ACK_SIGNAL: _SIGNAL,
    e.CommandKind.SUPPRESS_SIGNAL: _SIGNAL,
    e.CommandKind.REGISTER_ARTIFACT_MANIFEST: Body(
        Field(1, "artifact_id", IDENT),
        Field(2, "revision", COUNTER),
        Field(3, "schema", U16),
        Field(4, "manifest", leaf()),
    ),
    e.CommandKind.END_BINDING: Body(Field(1, "binding_id", IDENT), Field(2, "reason", closed(e.EndReason, 1))),
    e.CommandKind.CHANGE_RETENTION: Body(
        Field(1, "operation_result_secs", U64), Field(2, "event_bytes", U64), Field(3, "artifact_bytes", U64)
    ),
}
