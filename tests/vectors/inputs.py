"""The fixed inputs of the golden vectors, and the file itself."""

from __future__ import annotations

from pathlib import Path

from sidecar.coordinator.wire import ids
from sidecar.coordinator.wire.enums import ObjectKind
from sidecar.coordinator.wire.ids import ObjectId
from sidecar.coordinator.wire.records import (
    AuthorityGuard,
    GroupId,
    LocalResource,
    ObjectRef,
    TerminalBindingRef,
)

VECTORS: dict[str, str] = dict(
    line.split("\t") for line in Path(__file__).with_name("coordinator.tsv").read_text(encoding="utf-8").splitlines()
)

COORDINATOR = ids.coordinator_id(b"\x11" * 16)
OBJECTIVE = ids.objective_id(b"\x22" * 16)
RUN = ids.run_id(b"\x33" * 16)
SUBSCRIPTION = ids.subscription_id(b"\x44" * 16)
INCARNATION = ids.incarnation_id(b"\x55" * 16)
SESSION = ids.work_session_id(b"\x66" * 16)
BINDING = ids.binding_id(b"\x77" * 16)
PENDING_BINDING = ids.pending_binding_id(b"\x77" * 16)
OPERATION = ids.operation_id(b"\x88" * 16)
ATTEMPT = ids.effect_attempt_id(b"\x99" * 16)
WITNESS = ids.activation_witness_id(b"\xaa" * 16)
SIGNAL = ids.signal_id(b"\xbb" * 16)
OWNER_FINGERPRINT = ids.Fingerprint(b"\xf1" * 32)
OWNER_INCARNATION = ids.incarnation_id(b"\xf2" * 16)
TOKEN = b"\xd0" * 32
EVENT_1 = ids.event_id(b"\xe1" * 16)
EVENT_2 = ids.event_id(b"\xe2" * 16)
EPOCH = ids.authority_epoch(5)
ACTIVATION = ids.activation_sequence(7)
CLIENT_NONCE = b"\xb1" * 32
SERVER_NONCE = b"\xb2" * 32
WITNESS_SEED = b"\xa0" * 32
AUTHORITY_SEED = b"\xa1" * 32
WORKLOAD_SEED = b"\xa2" * 32
UID = GID = 1000
PID = 4242
SCOPES = 3
REQUESTED_EXPIRY = 2_000_000_000
GRANT_EXPIRY = 1_950_000_000
ISSUED = 1_900_000_000
EXPIRES = 1_900_000_060
DOCUMENT = b'{"t":1}'
EXECUTOR_DOCUMENT = b"sh"
GROUP = GroupId(1)

BINDING_REF = TerminalBindingRef(BINDING, SESSION, OWNER_FINGERPRINT, OWNER_INCARNATION, LocalResource(1))


def guard() -> AuthorityGuard:
    """The guard of epoch 5, activation 7."""
    return AuthorityGuard(COORDINATOR, EPOCH, ACTIVATION, bytes.fromhex(VECTORS["fencing_token_sha256"]))


def ref(kind: ObjectKind, identity: bytes) -> ObjectRef:
    """An ObjectRef to any of the ids above."""
    return ObjectRef(kind, ObjectId(identity))
