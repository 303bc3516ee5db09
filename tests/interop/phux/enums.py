"""Closed sets of numbers (the `Data` part of the specification) and the hard limits."""

from __future__ import annotations

from enum import IntEnum, IntFlag

PROTOCOL = (0, 1, 0)
SERVICE = b"phux-coordinator"
PROFILE = b"phux-workload/v1"

HARD_FRAME = 1_048_576
HANDSHAKE_FRAME = 16_384
MAX_CURSOR = 4_096
MAX_NAME = 128
MAX_DIAGNOSTIC = 1_024
MAX_PRECONDITIONS = 64
MAX_PAGE_RECORDS = 1_024


class Capability(IntFlag):
    EVENT_REPLAY = 1
    TERMINAL_BINDINGS = 2
    ARTIFACT_MANIFESTS = 4
    SIGNALS = 8
    ADMINISTRATION = 16


class Scope(IntFlag):
    WORK_READ = 1
    WORK_COMMAND = 2
    TERMINAL_CONTROL = 4
    ARTIFACT_READ = 8
    SIGNAL_ACK = 16
    ADMIN = 32


SCOPE_MASK = 0x3F


class ObjectKind(IntEnum):
    OBJECTIVE = 1
    RUN = 2
    WORK_SESSION = 3
    BINDING = 4
    ARTIFACT = 5
    SIGNAL = 6
    OPERATION = 7
    EVIDENCE = 8
    ADMIN = 9
    ARTIFACT_MANIFEST = 10


class CommandKind(IntEnum):
    CREATE_OBJECTIVE = 1
    UPDATE_OBJECTIVE = 2
    START_RUN = 3
    CANCEL_RUN = 4
    PAUSE_RUN = 5
    RESUME_RUN = 6
    ACK_SIGNAL = 7
    SUPPRESS_SIGNAL = 8
    REGISTER_ARTIFACT_MANIFEST = 9
    END_BINDING = 10
    CHANGE_RETENTION = 11


class ResultKind(IntEnum):
    NONE = 0
    OBJECT_REF = 1
    STARTED = 2
    DOCUMENT = 3


class EventKind(IntEnum):
    OBJECTIVE_CHANGED = 1
    RUN_CHANGED = 2
    WORK_SESSION_CHANGED = 3
    BINDING_OPENED = 4
    BINDING_ENDED = 5
    ARTIFACT_REVISION_ADDED = 6
    SIGNAL_RAISED = 7
    SIGNAL_ACKNOWLEDGED = 8
    SIGNAL_SUPPRESSED = 9
    SIGNAL_RESOLVED = 10
    OPERATION_CHANGED = 11
    SOURCE_FACT_ADMITTED = 12
    SOURCE_GAP = 13
    EVIDENCE_SEALED = 14


class SignalKind(IntEnum):
    EXECUTION_BLOCKED = 1
    EXECUTION_FAILED = 2
    EVIDENCE_GAP = 3
    POLICY = 4


class AdminKind(IntEnum):
    ACTIVATION = 1
    RETENTION = 2
    CREDENTIAL = 3


class IndeterminateReason(IntEnum):
    TARGET_OUTCOME_UNKNOWN = 0
    TARGET_DEDUPE_UNAVAILABLE = 1
    RECOVERY_STATE_INVALID = 2


class EffectKind(IntEnum):
    SPAWN = 1
    KILL = 2
    PROCESS_SIGNAL = 3


class EffectState(IntEnum):
    READY = 0
    DISPATCHED = 1
    SUCCEEDED = 2
    REJECTED = 3
    INDETERMINATE = 4


class ProcessSignal(IntEnum):
    INTERRUPT = 0
    TERMINATE = 1
    KILL = 2


class EndReason(IntEnum):
    COMPLETED = 0
    OWNER_LOST = 1
    CANCELLED = 2
    FAILED = 3


class ObjectiveState(IntEnum):
    ACTIVE = 0
    COMPLETED = 1
    CANCELLED = 2


class RunState(IntEnum):
    PLANNED = 0
    RUNNING = 1
    PAUSED = 2
    COMPLETED = 3
    CANCELLED = 4
    FAILED = 5


class OpenState(IntEnum):
    """Of a work session or a binding."""

    ACTIVE = 0
    ENDED = 1


class SignalState(IntEnum):
    OPEN = 0
    ACKNOWLEDGED = 1
    SUPPRESSED = 2
    RESOLVED = 3


class SourceFactKind(IntEnum):
    OPENED = 1
    CLOSED = 2
    INPUT_RESULT = 3
    SIGNAL_RESULT = 4
    OUTPUT_RANGE = 5
    ATTENTION = 6


class Outcome(IntEnum):
    """Applied or delivered, rejected, unknown: of INPUT_RESULT and SIGNAL_RESULT."""

    DONE = 0
    REJECTED = 1
    UNKNOWN = 2


class Attention(IntEnum):
    BELL = 1
    BLOCKED = 2
    FAILED = 3


class SourceGapReason(IntEnum):
    JUMP = 0
    CONFLICT = 1
    ENDED = 2


class GapReason(IntEnum):
    QUEUE_OVERFLOW = 0
    RETENTION = 1
    EPOCH_CHANGED = 2
    SOURCE_GAP = 3
    CURSOR_INVALID = 4
    REVISION_MISMATCH = 5
    GRANT_REVOKED = 6
    INTERNAL = 7


class ErrorCode(IntEnum):
    VERSION_INCOMPATIBLE = 1
    FRAME_TOO_LARGE = 2
    MALFORMED_MESSAGE = 3
    PROTOCOL_ERROR = 4
    AUTHENTICATION_FAILED = 5
    CAPABILITY_REQUIRED = 6
    SCOPE_DENIED = 7
    STALE_AUTHORITY = 8
    AUTHORITY_FENCED = 9
    OPERATION_CONFLICT = 10
    REVISION_CONFLICT = 11
    CURSOR_INVALID = 12
    RESOURCE_EXHAUSTED = 13
    NOT_FOUND = 14
    INTERNAL = 255


class ChannelBinding(IntEnum):
    TLS_EXPORTER = 0
    UDS_PEER = 1


class FinalState(IntEnum):
    """What a tombstone remembers of its operation."""

    SUCCEEDED = 1
    REJECTED = 2
    INDETERMINATE = 3


class Selector(IntEnum):
    WHOLE_AUTHORITY = 0


class CertificateVersion(IntEnum):
    V1 = 1
