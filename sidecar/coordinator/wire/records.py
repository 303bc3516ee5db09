"""Positional records of the protocol (P4-10, P7-13..15, P10-26, P12-06, W7-05).

Those about terminals and results stand in files of their own and are re-exported here.
"""

from __future__ import annotations

import hashlib
from dataclasses import field
from typing import Annotated, Any, ClassVar, TypeAlias

from cext.tlv import Writer
from sidecar.coordinator.wire.codecs import (
    BYTES32,
    BYTES64,
    COUNTER,
    ID16,
    NONCE,
    SCHEMA_1,
    SECONDS,
    U64,
    Codec,
    bits,
    framed,
    leaf,
    listing,
    member,
    optional,
    uint,
    written,
)
from sidecar.coordinator.wire.enums import KNOWN_SCOPES, AdminKind, EventKind, ObjectKind, Scope
from sidecar.coordinator.wire.ids import (
    ActivationSequence,
    ActivationWitnessId,
    AuthorityEpoch,
    CoordinatorId,
    EventId,
    EventSequence,
    Fingerprint,
    IncarnationId,
    KeyId,
    ObjectId,
    ObjectRevision,
)
from sidecar.coordinator.wire.images import Record, nested, record, remembered
from sidecar.coordinator.wire.limits import (
    CERTIFICATE_VERSION,
    HARD,
    MAX_PRECONDITIONS,
    PROFILE,
    RETENTION_FLOOR,
)
from sidecar.coordinator.wire.results import (
    OPERATION_RESULT,
    RESULT_PAYLOADS,
    Document,
    Indeterminate,
    NoPayload,
    ObjectRef,
    OperationResult,
    Pending,
    Rejected,
    ResultPayload,
    Started,
    Succeeded,
    Tombstoned,
    Unknown,
    decode_operation,
    encode_operation,
    succeeded,
)
from sidecar.coordinator.wire.terminal import (
    EFFECT_PAYLOADS,
    FACT_PAYLOADS,
    ActiveBinding,
    AttentionRaised,
    Closed,
    EffectAttempt,
    EffectPayload,
    EffectTarget,
    FactPayload,
    GroupId,
    InputOutcome,
    KillPayload,
    LocalResource,
    Opened,
    OutputRange,
    PendingSpawn,
    ProcessSignalPayload,
    ResourceId,
    SatelliteResource,
    SignalOutcome,
    SourceGap,
    SpawnPayload,
    TerminalBindingRef,
    TerminalSourceFact,
    TerminalSourceRef,
    check_local,
    check_terminal_kind,
    decode_resource,
    encode_target,
)

__all__ = [
    "ADMIN_PAYLOADS",
    "AUTHORITY_GUARD",
    "EFFECT_PAYLOADS",
    "FACT_PAYLOADS",
    "OPERATION_RESULT",
    "PRECONDITIONS",
    "RESULT_PAYLOADS",
    "SCOPES",
    "ActivationCertificate",
    "ActiveBinding",
    "AdminActivation",
    "AdminCredential",
    "AdminPayload",
    "AdminRetention",
    "AttentionRaised",
    "AuthorityGuard",
    "Closed",
    "Document",
    "EffectAttempt",
    "EffectPayload",
    "EffectTarget",
    "FactPayload",
    "GroupId",
    "Indeterminate",
    "InputOutcome",
    "KillPayload",
    "LocalResource",
    "NoPayload",
    "ObjectRef",
    "Opened",
    "OperationResult",
    "OutputRange",
    "Pending",
    "PendingSpawn",
    "Precondition",
    "ProcessSignalPayload",
    "Rejected",
    "ReplayEvent",
    "ResourceId",
    "ResultPayload",
    "SatelliteResource",
    "SignalOutcome",
    "SnapshotRecord",
    "SourceGap",
    "SpawnPayload",
    "Started",
    "Succeeded",
    "TerminalBindingRef",
    "TerminalSourceFact",
    "TerminalSourceRef",
    "Tombstoned",
    "Unknown",
    "WorkloadGrant",
    "WorkloadOffer",
    "check_local",
    "check_terminal_kind",
    "decode_operation",
    "decode_resource",
    "encode_operation",
    "encode_target",
    "succeeded",
]

_UNSIGNED_CERTIFICATE = 145

SCOPES: Codec[Scope] = framed(bits(KNOWN_SCOPES), cap=8)
"""Scope bytes: exactly one big-endian u64 without unknown bits (P6-01..03)."""


@record
class AuthorityGuard(Record):
    """Which activation a request is meant for (P4-10); no request id, no operation id (P4-14)."""

    coordinator_id: Annotated[CoordinatorId, ID16]
    authority_epoch: Annotated[AuthorityEpoch, COUNTER]
    activation_sequence: Annotated[ActivationSequence, COUNTER]
    fencing_token_sha256: Annotated[bytes, BYTES32]


AUTHORITY_GUARD: Codec[AuthorityGuard] = remembered(AuthorityGuard, 64)
"""Every request of a connection repeats the same 64 bytes."""


@record
class Precondition(Record):
    """What a command expects of one object: its revision, or 0 when it must be absent (P7-13)."""

    object: Annotated[ObjectRef, nested(ObjectRef)]
    expected_revision: Annotated[int, U64]

    def key(self) -> bytes:
        """The 18 bytes by which preconditions are sorted and unique (P8-03, P8-04)."""
        return self.object.encode()


PRECONDITIONS: Codec[tuple[Precondition, ...]] = listing(
    nested(Precondition), cap=MAX_PRECONDITIONS, order=Precondition.key
)


@record
class SnapshotRecord(Record):
    """One durable object at one revision (P7-15).

    Its image is built once and kept: the same record goes to many peers.
    """

    kind: Annotated[ObjectKind, member(2, ObjectKind)]
    id: Annotated[ObjectId, ID16]
    revision: Annotated[ObjectRevision, COUNTER]
    schema_version: Annotated[int, SCHEMA_1]
    payload: Annotated[bytes, leaf(HARD.page_bytes)]
    _image: bytes | None = field(default=None, init=False, compare=False)

    def encode(self) -> bytes:
        """The image, from the second call on without work."""
        image = self._image
        if image is None:
            image = written("SnapshotRecord", lambda out: Record.write(self, out))
            object.__setattr__(self, "_image", image)
        return image

    def write(self, out: Writer) -> None:
        out.raw(self.encode())

    def key(self) -> bytes:
        """The 18 bytes by which a snapshot is sorted and unique (P9-12)."""
        return self.encode()[:18]

    def ref(self) -> ObjectRef:
        """The object that this is a record of."""
        return ObjectRef(self.kind, self.id)


@record
class ReplayEvent(Record):
    """One event without subscription and delivery: the same in live streams and in replay (P10-14, P10-26)."""

    event_sequence: Annotated[EventSequence, COUNTER]
    event_id: Annotated[EventId, ID16]
    event_kind: Annotated[EventKind, member(2, EventKind)]
    object: Annotated[ObjectRef, nested(ObjectRef)]
    object_revision: Annotated[ObjectRevision, COUNTER]
    schema: Annotated[int, SCHEMA_1]
    payload: Annotated[bytes, leaf(HARD.typed_payload)]
    content: Any = field(default=None, init=False, compare=False)
    """What the payload holds, where it was decoded together with the event."""


@record
class ActivationCertificate(Record):
    """What the witness grants to one activation for at most 60 s (P12-06).

    ``fencing_token`` is a secret between witness, coordinator and its clients.
    """

    LEAD: ClassVar[bytes] = bytes([CERTIFICATE_VERSION])
    witness_id: Annotated[ActivationWitnessId, ID16]
    coordinator_id: Annotated[CoordinatorId, ID16]
    activation_sequence: Annotated[ActivationSequence, COUNTER]
    authority_epoch: Annotated[AuthorityEpoch, COUNTER]
    incarnation_id: Annotated[IncarnationId, ID16]
    fencing_token: Annotated[bytes, BYTES32]
    issued_at: Annotated[int, SECONDS]
    expires_at: Annotated[int, SECONDS]
    witness_key_id: Annotated[KeyId, BYTES32]
    signature: Annotated[bytes, BYTES64]

    def body(self) -> bytes:
        """The first 145 bytes: what the witness signs behind its domain tag (P12-07)."""
        return self.encode()[:_UNSIGNED_CERTIFICATE]

    def guard(self) -> AuthorityGuard:
        """The guard that requests carry under this certificate (P4-11)."""
        token = hashlib.sha256(self.fencing_token).digest()
        return AuthorityGuard(self.coordinator_id, self.authority_epoch, self.activation_sequence, token)


@record
class WorkloadOffer(Record):
    """Field 13 of COORD_HELLO: the profile and a fresh nonce, 52 bytes (W3-02, W7-05)."""

    LEAD: ClassVar[bytes] = len(PROFILE).to_bytes(4, "big") + PROFILE
    client_nonce: Annotated[bytes, NONCE]


@record
class WorkloadGrant(Record):
    """Field 14 of COORD_HELLO_OK, 84 bytes (W7-05): what this connection may do until when."""

    key_id: Annotated[KeyId, BYTES32]
    authority_fingerprint: Annotated[Fingerprint, BYTES32]
    expires_at: Annotated[int, SECONDS]
    scopes: Annotated[Scope, SCOPES]


@record
class AdminActivation(Record):
    """ADMIN payload ACTIVATION: who holds the authority since when."""

    authority_epoch: Annotated[AuthorityEpoch, COUNTER]
    activation_sequence: Annotated[ActivationSequence, COUNTER]
    incarnation_id: Annotated[IncarnationId, ID16]
    fencing_token_sha256: Annotated[bytes, BYTES32]
    issued_at: Annotated[int, SECONDS]


@record
class AdminRetention(Record):
    """ADMIN payload RETENTION: the values of the last CHANGE_RETENTION."""

    operation_result_secs: Annotated[int, uint(8, lowest=RETENTION_FLOOR, doc=f"u64 ≥ {RETENTION_FLOOR}")]
    event_bytes: Annotated[int, U64]
    artifact_bytes: Annotated[int, U64]


@record
class AdminCredential(Record):
    """ADMIN payload CREDENTIAL: one registered workload key."""

    key_id: Annotated[KeyId, BYTES32]
    scopes: Annotated[Scope, bits(KNOWN_SCOPES)]
    expires_at: Annotated[int, SECONDS]
    revoked_at: Annotated[int | None, optional(SECONDS)]


AdminPayload: TypeAlias = AdminActivation | AdminRetention | AdminCredential
ADMIN_PAYLOADS: dict[AdminKind, type[AdminPayload]] = {
    AdminKind.ACTIVATION: AdminActivation,
    AdminKind.RETENTION: AdminRetention,
    AdminKind.CREDENTIAL: AdminCredential,
}
