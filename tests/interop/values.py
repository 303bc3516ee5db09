"""The fixed inputs of the specification's vectors, as values."""

from __future__ import annotations

from tests.interop.phux import enums as e
from tests.interop.phux import proof, tlv
from tests.interop.phux import records as r
from tests.interop.phux.digests import sha256

COORDINATOR = b"\x11" * 16
OBJECTIVE = b"\x22" * 16
RUN = b"\x33" * 16
SUBSCRIPTION = b"\x44" * 16
INCARNATION = b"\x55" * 16
WORK_SESSION = b"\x66" * 16
BINDING = b"\x77" * 16
OPERATION = b"\x88" * 16
EFFECT_ATTEMPT = b"\x99" * 16
WITNESS = b"\xaa" * 16
SIGNAL = b"\xbb" * 16
OWNER = b"\xf1" * 32
OWNER_INCARNATION = b"\xf2" * 16
TOKEN = b"\xd0" * 32
EVENT_1, EVENT_2 = b"\xe1" * 16, b"\xe2" * 16
EPOCH, ACTIVATION = 5, 7
CLIENT_NONCE, SERVER_NONCE = b"\xb1" * 32, b"\xb2" * 32
WITNESS_SEED, AUTHORITY_SEED, WORKLOAD_SEED = b"\xa0" * 32, b"\xa1" * 32, b"\xa2" * 32
DOCUMENT = b'{"t":1}'
ISSUED, EXPIRES = 1_900_000_000, 1_900_000_060
REQUESTED_EXPIRY, GRANT_EXPIRY = 2_000_000_000, 1_950_000_000
SCOPES = e.Scope.WORK_READ | e.Scope.WORK_COMMAND
UID, GID, PID = 1000, 1000, 4242
RETENTION = 2_592_000
LIMITS = {
    "max_frame_bytes": 524_288,
    "max_page_bytes": 262_144,
    "max_page_records": 512,
    "max_typed_payload_bytes": 131_072,
    "max_event_credit_count": 1_024,
    "max_event_credit_bytes": 4_194_304,
}
VERSION = {"protocol_major": 0, "protocol_minor": 1, "protocol_patch": 0}

GUARD = r.Guard(COORDINATOR, EPOCH, ACTIVATION, sha256(TOKEN))
OBJECTIVE_REF = r.ObjectRef(e.ObjectKind.OBJECTIVE, OBJECTIVE)
RUN_REF = r.ObjectRef(e.ObjectKind.RUN, RUN)
PRECONDITIONS = [r.Precondition(OBJECTIVE_REF, 3), r.Precondition(RUN_REF, 1)]

WITNESS_KEY = proof.public_key(WITNESS_SEED)
AUTHORITY_KEY = proof.public_key(AUTHORITY_SEED)
WORKLOAD_KEY = proof.public_key(WORKLOAD_SEED)
KEY_ID = sha256(WORKLOAD_KEY)
FINGERPRINT = sha256(AUTHORITY_KEY)
PINS = proof.Pins(FINGERPRINT, COORDINATOR, WITNESS, WITNESS_KEY)

CREATE = r.COMMAND_PAYLOADS[e.CommandKind.CREATE_OBJECTIVE].encode(
    {"objective_id": OBJECTIVE, "schema": 1, "document": DOCUMENT}
)
CREATE_EXTENDED = CREATE + tlv.field_bytes(9, b"\x01")
CREATE_RAW = CREATE[:-14] + tlv.field_bytes(3, DOCUMENT)
START = r.COMMAND_PAYLOADS[e.CommandKind.START_RUN].encode(
    {
        "objective_id": OBJECTIVE,
        "run_id": RUN,
        "work_session_id": WORK_SESSION,
        "executor_schema": 1,
        "executor_document": b"sh",
        "pending_binding_id": BINDING,
        "owner_authority_fingerprint": OWNER,
        "owner_incarnation": OWNER_INCARNATION,
        "terminal_group": 1,
    }
)
CANCEL = r.COMMAND_PAYLOADS[e.CommandKind.CANCEL_RUN].encode({"run_id": RUN})
ACK_BARE = r.COMMAND_PAYLOADS[e.CommandKind.ACK_SIGNAL].encode({"signal_id": SIGNAL})
ACK_NOTED = r.COMMAND_PAYLOADS[e.CommandKind.ACK_SIGNAL].encode({"signal_id": SIGNAL, "note": "ok"})
EXTENSION_C = tlv.field_bytes(7, b"xyz")
EXTENSION_D = EXTENSION_C + tlv.field_bytes(300, b"")

LOCAL = r.LocalResource(1)
SATELLITE = r.SatelliteResource("edge-1", 7)
BINDING_REF = r.BindingRef(BINDING, WORK_SESSION, OWNER, OWNER_INCARNATION, LOCAL)
SPAWN_TARGET = r.PendingSpawn(BINDING, OWNER, OWNER_INCARNATION, 1)
SPAWN_PAYLOAD = r.EFFECT_PAYLOADS[e.EffectKind.SPAWN].write(r.SpawnPayload(WORK_SESSION, 1, b"sh"))


def record(kind: e.ObjectKind, object_id: bytes, revision: int, /, **values: object) -> r.SnapshotRecord:
    """A snapshot record with the payload of the values."""
    return r.SnapshotRecord(r.ObjectRef(kind, object_id), revision, 1, r.RECORD_PAYLOADS[kind].encode(values))


def objective_record(revision: int) -> r.SnapshotRecord:
    return record(e.ObjectKind.OBJECTIVE, OBJECTIVE, revision, document_schema=1, document=DOCUMENT, state=0)


RECORDS = [
    objective_record(1),
    record(e.ObjectKind.RUN, RUN, 2, objective_id=OBJECTIVE, attempt=1, state=e.RunState.RUNNING),
    record(e.ObjectKind.WORK_SESSION, WORK_SESSION, 2, run_id=RUN, state=0, active_binding=BINDING),
    record(e.ObjectKind.BINDING, BINDING, 1, binding=BINDING_REF, state=0),
    record(
        e.ObjectKind.SIGNAL,
        SIGNAL,
        1,
        work_session_id=WORK_SESSION,
        kind=e.SignalKind.EXECUTION_FAILED,
        state=0,
        message="exit 1",
    ),
]
FACT = r.SOURCE_FACT.write(
    r.SourceFact(r.SourceRef(BINDING, OWNER, OWNER_INCARNATION, 1), e.SourceFactKind.OPENED, 1, b"")
)
SOURCE_GAP = r.SourceGap(BINDING, 2, 5, e.SourceGapReason.JUMP)
BINDING_OBJECT = r.ObjectRef(e.ObjectKind.BINDING, BINDING)
EVENTS = [
    r.ReplayEvent(
        10, EVENT_1, e.EventKind.OBJECTIVE_CHANGED, OBJECTIVE_REF, 2, 1, r.SNAPSHOT_RECORD.write(objective_record(2))
    ),
    r.ReplayEvent(12, EVENT_2, e.EventKind.SOURCE_FACT_ADMITTED, BINDING_OBJECT, 2, 1, FACT),
]

SESSION = proof.Session(
    CLIENT_NONCE,
    SERVER_NONCE,
    INCARNATION,
    e.ChannelBinding.UDS_PEER,
    sha256(proof.uds_preimage(SERVER_NONCE, UID, GID, PID)),
    AUTHORITY_KEY,
)
AUTHORITY_PROOF = proof.sign(AUTHORITY_SEED, SESSION.server_transcript())
CLIENT_TRANSCRIPT = SESSION.client_transcript(AUTHORITY_PROOF, KEY_ID, REQUESTED_EXPIRY, SCOPES)
GRANT = r.WorkloadGrant(KEY_ID, FINGERPRINT, GRANT_EXPIRY, SCOPES)


def certificate() -> r.Certificate:
    """The certificate of the vectors, signed here."""
    unsigned = r.Certificate(
        e.CertificateVersion.V1,
        WITNESS,
        COORDINATOR,
        ACTIVATION,
        EPOCH,
        INCARNATION,
        TOKEN,
        ISSUED,
        EXPIRES,
        sha256(WITNESS_KEY),
        b"\0" * 64,
    )
    return unsigned._replace(signature=proof.sign(WITNESS_SEED, proof.certificate_preimage(unsigned)))


CERTIFICATE = certificate()
