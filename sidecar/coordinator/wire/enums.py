"""Every closed value set of the protocol (rows P7-01, P7-12, P5-15, P6-04, P8-21, P10-21, P11-04, P13-02).

Values are permanent: growth appends (P7-25), a value is never reused or re-pointed (P5-20). Names are the wire's words.
"""

from __future__ import annotations

from enum import IntEnum, IntFlag


class FrameType(IntEnum):
    """Frame discriminants, one namespace of this endpoint (P7-01, W1-02)."""

    COORD_HELLO = 0x01
    WORKLOAD_RESPONSE = 0x04
    COORD_COMMAND = 0x10
    GET_OPERATION_RESULT = 0x11
    OPEN_SNAPSHOT = 0x20
    SNAPSHOT_NEXT = 0x21
    SNAPSHOT_APPLIED = 0x22
    SUBSCRIBE = 0x23
    CREDIT = 0x24
    OPEN_REPLAY = 0x25
    REPLAY_NEXT = 0x26
    REPLAY_APPLIED = 0x27
    COORD_PING = 0x7F
    COORD_HELLO_OK = 0x80
    ACK = 0x82
    COORD_AUTHORITY_RENEWED = 0x83
    WORKLOAD_CHALLENGE = 0x84
    COORD_COMMAND_RESULT = 0x90
    OPERATION_RESULT = 0x91
    SNAPSHOT_BEGIN = 0xA0
    SNAPSHOT_PAGE = 0xA1
    SNAPSHOT_END = 0xA2
    SUBSCRIBED = 0xA3
    REPLAY_BEGIN = 0xA4
    REPLAY_PAGE = 0xA5
    REPLAY_END = 0xA6
    COORD_EVENT = 0xB0
    GAP = 0xB1
    COORD_ERROR = 0xC0
    COORD_PONG = 0xFF


class WireType(IntEnum):
    """TLV wire types; only BYTES is ever legal at body level (E-09, E-10)."""

    VARINT = 0
    SVARINT = 1
    FIXED32 = 2
    FIXED64 = 3
    BYTES = 4
    MESSAGE = 5
    LIST = 6
    TAGGED = 7


class Capability(IntFlag):
    """Negotiated feature bits, a u64 set (P5-15)."""

    EVENT_REPLAY = 0x1
    TERMINAL_BINDINGS = 0x2
    ARTIFACT_MANIFESTS = 0x4
    SIGNALS = 0x8
    ADMINISTRATION = 0x10


class Scope(IntFlag):
    """Authenticated right bits, a u64 set; independent of each other (P6-04, P6-05)."""

    WORK_READ = 0x1
    WORK_COMMAND = 0x2
    TERMINAL_CONTROL = 0x4
    ARTIFACT_READ = 0x8
    SIGNAL_ACK = 0x10
    ADMIN = 0x20


class ObjectKind(IntEnum):
    """Families of durable records (u16)."""

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
    """What a COORD_COMMAND asks for (u16)."""

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
    """Shape of a SUCCEEDED payload (u16)."""

    NONE = 0
    OBJECT_REF = 1
    STARTED = 2
    DOCUMENT = 3


class EventKind(IntEnum):
    """What a COORD_EVENT or ReplayEvent reports (u16)."""

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
    """Why a signal was raised (u16)."""

    EXECUTION_BLOCKED = 1
    EXECUTION_FAILED = 2
    EVIDENCE_GAP = 3
    POLICY = 4


class AdminKind(IntEnum):
    """Shape of an ADMIN record's payload (u16)."""

    ACTIVATION = 1
    RETENTION = 2
    CREDENTIAL = 3


class IndeterminateReason(IntEnum):
    """Why an operation's outcome can not be proved (u8)."""

    TARGET_OUTCOME_UNKNOWN = 0
    TARGET_DEDUPE_UNAVAILABLE = 1
    RECOVERY_STATE_INVALID = 2


class OperationTag(IntEnum):
    """Union tag of OperationResult (u8)."""

    PENDING = 0
    SUCCEEDED = 1
    REJECTED = 2
    INDETERMINATE = 3
    TOMBSTONED = 4
    UNKNOWN = 5


class EffectKind(IntEnum):
    """What a delegated terminal effect does (u8)."""

    SPAWN = 1
    KILL = 2
    PROCESS_SIGNAL = 3


class EffectState(IntEnum):
    """Durable life of an effect attempt (u8)."""

    READY = 0
    DISPATCHED = 1
    SUCCEEDED = 2
    REJECTED = 3
    INDETERMINATE = 4


class TargetTag(IntEnum):
    """Union tag of EffectTarget (u8)."""

    PENDING_SPAWN = 0
    ACTIVE_BINDING = 1


class ProcessSignal(IntEnum):
    """Payload of a PROCESS_SIGNAL effect (u8)."""

    INTERRUPT = 0
    TERMINATE = 1
    KILL = 2


class EndReason(IntEnum):
    """Why a binding ended (u8)."""

    COMPLETED = 0
    OWNER_LOST = 1
    CANCELLED = 2
    FAILED = 3


class ObjectiveState(IntEnum):
    """State of an OBJECTIVE record (u8)."""

    ACTIVE = 0
    COMPLETED = 1
    CANCELLED = 2


class RunState(IntEnum):
    """State of a RUN record (u8)."""

    PLANNED = 0
    RUNNING = 1
    PAUSED = 2
    COMPLETED = 3
    CANCELLED = 4
    FAILED = 5


class WorkSessionState(IntEnum):
    """State of a WORK_SESSION record (u8)."""

    ACTIVE = 0
    ENDED = 1


class BindingState(IntEnum):
    """State of a BINDING record (u8)."""

    ACTIVE = 0
    ENDED = 1


class SignalState(IntEnum):
    """State of a SIGNAL record (u8)."""

    OPEN = 0
    ACKNOWLEDGED = 1
    SUPPRESSED = 2
    RESOLVED = 3


class SourceFactKind(IntEnum):
    """What a terminal owner reports about an active binding (u16)."""

    OPENED = 1
    CLOSED = 2
    INPUT_RESULT = 3
    SIGNAL_RESULT = 4
    OUTPUT_RANGE = 5
    ATTENTION = 6


class InputResult(IntEnum):
    """Outcome of an input effect (u8)."""

    APPLIED = 0
    REJECTED = 1
    UNKNOWN = 2


class SignalResult(IntEnum):
    """Outcome of a process signal (u8)."""

    DELIVERED = 0
    REJECTED = 1
    UNKNOWN = 2


class Attention(IntEnum):
    """Why a terminal asks for attention (u16)."""

    BELL = 1
    BLOCKED = 2
    FAILED = 3


class SourceGapReason(IntEnum):
    """Why the order of source facts is broken (u8)."""

    JUMP = 0
    CONFLICT = 1
    ENDED = 2


class GapReason(IntEnum):
    """Why a subscription lost continuity (u8)."""

    QUEUE_OVERFLOW = 0
    RETENTION = 1
    EPOCH_CHANGED = 2
    SOURCE_GAP = 3
    CURSOR_INVALID = 4
    REVISION_MISMATCH = 5
    GRANT_REVOKED = 6
    INTERNAL = 7


class ErrorCode(IntEnum):
    """Codes of COORD_ERROR and of REJECTED (u16, P13-02); clients branch on these only (P13-04)."""

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
    """How a proof is tied to its channel (u8, W5-01)."""

    TLS_EXPORTER = 0
    UDS_PEER = 1


class ResourceTag(IntEnum):
    """Union tag of ResourceId (u8, E-26)."""

    LOCAL = 0
    SATELLITE = 1


class ResourceKind(IntEnum):
    """Kinds of terminal resources known here; an open set held by the owner (u8, E-28)."""

    TERMINAL = 0
    AGENT_SESSION = 1


KNOWN_SCOPES = (
    Scope.WORK_READ | Scope.WORK_COMMAND | Scope.TERMINAL_CONTROL | Scope.ARTIFACT_READ | Scope.SIGNAL_ACK | Scope.ADMIN
)
"""All allocated scope bits (0x3f); any other bit in an image is refused (P6-02)."""

KNOWN_CAPABILITIES = (
    Capability.EVENT_REPLAY
    | Capability.TERMINAL_BINDINGS
    | Capability.ARTIFACT_MANIFESTS
    | Capability.SIGNALS
    | Capability.ADMINISTRATION
)
"""All allocated capability bits (0x1f); unknown offered bits are ignored (P5-12)."""
