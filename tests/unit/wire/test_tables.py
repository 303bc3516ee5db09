"""The tables themselves: allocated values, schemas, versions, and what no schema may ever hold."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from sidecar.coordinator.wire import enums, errors, frames, limits, records
from sidecar.coordinator.wire.codecs import REQUEST_ID
from sidecar.coordinator.wire.enums import (
    KNOWN_CAPABILITIES,
    KNOWN_SCOPES,
    Capability,
    ErrorCode,
    FrameType,
    ObjectKind,
    Scope,
)
from sidecar.coordinator.wire.errors import ERRORS, MAX_DIAGNOSTIC, clip_diagnostic, error_for
from sidecar.coordinator.wire.events import EVENT_OBJECTS
from sidecar.coordinator.wire.fields import Body
from sidecar.coordinator.wire.payloads import COMMANDS, RECORD_PAYLOADS
from sidecar.coordinator.wire.records import AuthorityGuard
from sidecar.coordinator.wire.table import FRAME_TABLE
from sidecar.coordinator.wire.terminal import FACT_PAYLOADS
from tests.oracles import wire_tables as oracle
from tests.oracles.wire import join, split
from tests.unit.wire.samples import RECORDS
from tests.vectors.expected_frames import challenge

ALLOCATED: dict[str, tuple[tuple[str, ...], dict[str, int]]] = {
    "Capability": (
        ("P5-15", "P5-20"),
        {"EVENT_REPLAY": 1, "TERMINAL_BINDINGS": 2, "ARTIFACT_MANIFESTS": 4, "SIGNALS": 8, "ADMINISTRATION": 16},
    ),
    "Scope": (
        ("P6-04",),
        {
            "WORK_READ": 1,
            "WORK_COMMAND": 2,
            "TERMINAL_CONTROL": 4,
            "ARTIFACT_READ": 8,
            "SIGNAL_ACK": 16,
            "ADMIN": 32,
        },
    ),
    "ObjectKind": (
        ("P7-12",),
        {
            "OBJECTIVE": 1,
            "RUN": 2,
            "WORK_SESSION": 3,
            "BINDING": 4,
            "ARTIFACT": 5,
            "SIGNAL": 6,
            "OPERATION": 7,
            "EVIDENCE": 8,
            "ADMIN": 9,
            "ARTIFACT_MANIFEST": 10,
        },
    ),
    "CommandKind": (
        ("P7-12",),
        {
            "CREATE_OBJECTIVE": 1,
            "UPDATE_OBJECTIVE": 2,
            "START_RUN": 3,
            "CANCEL_RUN": 4,
            "PAUSE_RUN": 5,
            "RESUME_RUN": 6,
            "ACK_SIGNAL": 7,
            "SUPPRESS_SIGNAL": 8,
            "REGISTER_ARTIFACT_MANIFEST": 9,
            "END_BINDING": 10,
            "CHANGE_RETENTION": 11,
        },
    ),
    "ResultKind": (("P7-12",), {"NONE": 0, "OBJECT_REF": 1, "STARTED": 2, "DOCUMENT": 3}),
    "EventKind": (
        ("P7-12",),
        {
            "OBJECTIVE_CHANGED": 1,
            "RUN_CHANGED": 2,
            "WORK_SESSION_CHANGED": 3,
            "BINDING_OPENED": 4,
            "BINDING_ENDED": 5,
            "ARTIFACT_REVISION_ADDED": 6,
            "SIGNAL_RAISED": 7,
            "SIGNAL_ACKNOWLEDGED": 8,
            "SIGNAL_SUPPRESSED": 9,
            "SIGNAL_RESOLVED": 10,
            "OPERATION_CHANGED": 11,
            "SOURCE_FACT_ADMITTED": 12,
            "SOURCE_GAP": 13,
            "EVIDENCE_SEALED": 14,
        },
    ),
    "SignalKind": (("P7-12",), {"EXECUTION_BLOCKED": 1, "EXECUTION_FAILED": 2, "EVIDENCE_GAP": 3, "POLICY": 4}),
    "AdminKind": (("P7-12",), {"ACTIVATION": 1, "RETENTION": 2, "CREDENTIAL": 3}),
    "IndeterminateReason": (
        ("P7-12",),
        {"TARGET_OUTCOME_UNKNOWN": 0, "TARGET_DEDUPE_UNAVAILABLE": 1, "RECOVERY_STATE_INVALID": 2},
    ),
    "OperationTag": (
        ("P8-11",),
        {"PENDING": 0, "SUCCEEDED": 1, "REJECTED": 2, "INDETERMINATE": 3, "TOMBSTONED": 4, "UNKNOWN": 5},
    ),
    "EffectKind": (("P8-21",), {"SPAWN": 1, "KILL": 2, "PROCESS_SIGNAL": 3}),
    "EffectState": (("P8-21",), {"READY": 0, "DISPATCHED": 1, "SUCCEEDED": 2, "REJECTED": 3, "INDETERMINATE": 4}),
    "TargetTag": (("P8-22",), {"PENDING_SPAWN": 0, "ACTIVE_BINDING": 1}),
    "ProcessSignal": (("P8-23",), {"INTERRUPT": 0, "TERMINATE": 1, "KILL": 2}),
    "EndReason": (("P7-18",), {"COMPLETED": 0, "OWNER_LOST": 1, "CANCELLED": 2, "FAILED": 3}),
    "ObjectiveState": (("P7-20",), {"ACTIVE": 0, "COMPLETED": 1, "CANCELLED": 2}),
    "RunState": (
        ("P7-20",),
        {"PLANNED": 0, "RUNNING": 1, "PAUSED": 2, "COMPLETED": 3, "CANCELLED": 4, "FAILED": 5},
    ),
    "WorkSessionState": (("P7-20",), {"ACTIVE": 0, "ENDED": 1}),
    "BindingState": (("P7-20",), {"ACTIVE": 0, "ENDED": 1}),
    "SignalState": (("P7-20",), {"OPEN": 0, "ACKNOWLEDGED": 1, "SUPPRESSED": 2, "RESOLVED": 3}),
    "SourceFactKind": (
        ("P11-04",),
        {"OPENED": 1, "CLOSED": 2, "INPUT_RESULT": 3, "SIGNAL_RESULT": 4, "OUTPUT_RANGE": 5, "ATTENTION": 6},
    ),
    "InputResult": (("P11-07",), {"APPLIED": 0, "REJECTED": 1, "UNKNOWN": 2}),
    "SignalResult": (("P11-08",), {"DELIVERED": 0, "REJECTED": 1, "UNKNOWN": 2}),
    "Attention": (("P11-10",), {"BELL": 1, "BLOCKED": 2, "FAILED": 3}),
    "SourceGapReason": (("P7-23",), {"JUMP": 0, "CONFLICT": 1, "ENDED": 2}),
    "GapReason": (
        ("P10-21",),
        {
            "QUEUE_OVERFLOW": 0,
            "RETENTION": 1,
            "EPOCH_CHANGED": 2,
            "SOURCE_GAP": 3,
            "CURSOR_INVALID": 4,
            "REVISION_MISMATCH": 5,
            "GRANT_REVOKED": 6,
            "INTERNAL": 7,
        },
    ),
    "ErrorCode": (
        ("P13-02",),
        {
            "VERSION_INCOMPATIBLE": 1,
            "FRAME_TOO_LARGE": 2,
            "MALFORMED_MESSAGE": 3,
            "PROTOCOL_ERROR": 4,
            "AUTHENTICATION_FAILED": 5,
            "CAPABILITY_REQUIRED": 6,
            "SCOPE_DENIED": 7,
            "STALE_AUTHORITY": 8,
            "AUTHORITY_FENCED": 9,
            "OPERATION_CONFLICT": 10,
            "REVISION_CONFLICT": 11,
            "CURSOR_INVALID": 12,
            "RESOURCE_EXHAUSTED": 13,
            "NOT_FOUND": 14,
            "INTERNAL": 255,
        },
    ),
    "ChannelBinding": (("W5-01",), {"TLS_EXPORTER": 0, "UDS_PEER": 1}),
    "ResourceTag": (("E-26",), {"LOCAL": 0, "SATELLITE": 1}),
    "ResourceKind": (("E-28",), {"TERMINAL": 0, "AGENT_SESSION": 1}),
    "WireType": (
        ("E-09",),
        {
            "VARINT": 0,
            "SVARINT": 1,
            "FIXED32": 2,
            "FIXED64": 3,
            "BYTES": 4,
            "MESSAGE": 5,
            "LIST": 6,
            "TAGGED": 7,
        },
    ),
}


@pytest.mark.parametrize(
    ("name", "values"),
    [pytest.param(name, values, id=name, marks=pytest.mark.req(*rows)) for name, (rows, values) in ALLOCATED.items()],
)
def test_allocated_values(name: str, values: dict[str, int]) -> None:
    assert {member.name: int(member) for member in getattr(enums, name)} == values


def test_the_list_of_closed_sets_is_complete() -> None:
    closed = {
        name for name, value in vars(enums).items() if isinstance(value, type) and value.__module__ == enums.__name__
    }
    assert closed == {*ALLOCATED, "FrameType"}
    assert int(KNOWN_SCOPES) == 0x3F == sum(Scope)
    assert int(KNOWN_CAPABILITIES) == 0x1F == sum(Capability)


FRAME_IDS = (
    "01 COORD_HELLO · 04 WORKLOAD_RESPONSE · 10 COORD_COMMAND · 11 GET_OPERATION_RESULT · 20 OPEN_SNAPSHOT · "
    "21 SNAPSHOT_NEXT · 22 SNAPSHOT_APPLIED · 23 SUBSCRIBE · 24 CREDIT · 25 OPEN_REPLAY · 26 REPLAY_NEXT · "
    "27 REPLAY_APPLIED · 7f COORD_PING · 80 COORD_HELLO_OK · 82 ACK · 83 COORD_AUTHORITY_RENEWED · "
    "84 WORKLOAD_CHALLENGE · 90 COORD_COMMAND_RESULT · 91 OPERATION_RESULT · a0 SNAPSHOT_BEGIN · a1 SNAPSHOT_PAGE · "
    "a2 SNAPSHOT_END · a3 SUBSCRIBED · a4 REPLAY_BEGIN · a5 REPLAY_PAGE · a6 REPLAY_END · b0 COORD_EVENT · b1 GAP · "
    "c0 COORD_ERROR · ff COORD_PONG"
)


@pytest.mark.req("P7-01", "W1-02")
def test_frame_ids() -> None:
    expected = {name: int(number, 16) for number, name in (entry.split() for entry in FRAME_IDS.split(" · "))}
    assert {kind.name: int(kind) for kind in FrameType} == expected
    assert set(frames.FRAMES) == set(FRAME_TABLE) == set(FrameType)


@pytest.mark.req("E-11", "P7-05", "P7-06", "P7-07", "P7-08", "P13-01")
@pytest.mark.parametrize("kind", [pytest.param(kind, id=kind.name) for kind in FrameType])
def test_fields_are_those_of_the_schema(kind: FrameType) -> None:
    schema = oracle.FRAMES[kind]
    fields = frames.FRAMES[kind].FIELDS
    assert [(item.id, item.name, item.required) for item in fields] == [
        (number, name, required) for number, (name, _, required) in schema.items()
    ]


@pytest.mark.req("P7-16", "P7-20", "P7-05")
def test_payload_fields_are_those_of_the_schema() -> None:
    pairs: list[tuple[type[Body], oracle.Schema]] = []
    pairs += [(COMMANDS[kind], oracle.BODIES[name]) for kind, name in oracle.COMMANDS.items()]
    pairs += [(RECORD_PAYLOADS[ObjectKind(kind)], oracle.BODIES[name]) for kind, name in oracle.RECORDS.items()]
    assert len(pairs) == 21
    for shape, schema in pairs:
        assert [(item.id, item.name, item.required) for item in shape.FIELDS] == [
            (number, name, required) for number, (name, _, required) in schema.items()
        ]


@pytest.mark.req("P1-01", "P16-01", "W1-01", "W1-03")
def test_version_and_names() -> None:
    assert limits.PROTOCOL == (0, 1, 0)
    assert limits.SERVICE == b"phux-coordinator"
    assert limits.PROFILE == b"phux-workload/v1"
    assert len(limits.SERVICE) == len(limits.PROFILE) == 16
    assert limits.ALPN == b"phux-coordinator/1"


@pytest.mark.req("W1-01", "W1-03")
@pytest.mark.parametrize(
    ("field", "content"),
    [
        (1, b"phux-workload/v2"),
        (1, b"Phux-workload/v1"),
        (1, b"phux-workload/v"),
        (2, b"Phux-coordinator"),
        (2, b"phux-terminal"),
        (2, b"phux-coordinato/"),
    ],
)
def test_a_challenge_of_another_profile_or_service_is_refused(field: int, content: bytes) -> None:
    image = len(content).to_bytes(4, "big") + content
    body = join([(key, image if key == field else old) for key, old in split(challenge().body())])
    with pytest.raises(errors.MalformedMessage):
        frames.WorkloadChallenge.decode(body)


def names() -> Iterator[tuple[str, str]]:
    """(where, name) of every field of every body and every column of every record."""
    for shape in (*frames.FRAMES.values(), *COMMANDS.values(), *RECORD_PAYLOADS.values()):
        for item in shape.FIELDS:
            yield shape.TITLE, item.name
    for each in RECORDS:
        for name, _ in each.COLUMNS:
            yield type(each).__name__, name


@pytest.mark.req("P1-05", "P11-11")
def test_no_schema_carries_terminal_content() -> None:
    """Terminal bytes, cells, input atoms, history and bootstrap have no field; output is attested by digest only."""
    forbidden = ("cell", "glyph", "stroke", "input", "output", "scrollback", "history", "bootstrap", "screen")
    found = [(where, name) for where, name in names() if any(word in name for word in forbidden)]
    assert found == []
    columns = [name for name, _ in FACT_PAYLOADS[enums.SourceFactKind.OUTPUT_RANGE].COLUMNS]
    assert columns == ["first_owner_seq", "last_owner_seq", "byte_count", "content_sha256"]


@pytest.mark.req("P1-04", "P1-06")
def test_the_catalog_holds_work_and_nothing_of_the_terminal_endpoint() -> None:
    """Every frame is of this document or of the workload profile; none carries a stream, a bootstrap or L3 metadata."""
    assert all(name not in ("stream_id", "bootstrap_id", "metadata", "title", "cwd", "pid") for _, name in names())
    assert {kind for kind in FrameType if "TERMINAL" in kind.name or "INPUT" in kind.name} == set()


@pytest.mark.req("P8-34")
def test_effects_are_in_no_frame() -> None:
    """What a terminal owner is to do goes through an adapter inside: no frame, command or record has its shape."""
    effects = (records.EffectAttempt, records.SpawnPayload, records.PendingSpawn, records.ActiveBinding)
    shapes = (*frames.FRAMES.values(), *COMMANDS.values(), *RECORD_PAYLOADS.values())
    described = {(shape.TITLE, item.name): item.codec.doc for shape in shapes for item in shape.FIELDS}
    assert described["BINDING", "binding"] == records.TerminalBindingRef.__name__
    found = {where for where, doc in described.items() for effect in effects if effect.__name__ in doc}
    assert found == set()
    assert [kind.name for kind in FrameType if "EFFECT" in kind.name] == []


TYPED = limits.HARD.typed_payload + 4
CONTENT = {
    ("COORD_COMMAND", "payload"): TYPED,
    ("COORD_EVENT", "payload"): TYPED,
    # A tag, the completed sequence, the kind of the result, then its payload.
    ("COORD_COMMAND_RESULT", "operation"): 11 + TYPED,
    ("OPERATION_RESULT", "operation"): 11 + TYPED,
    ("SNAPSHOT_PAGE", "records"): limits.HARD.frame,
    ("REPLAY_PAGE", "events"): limits.HARD.frame,
}
"""Fields that can hold more than a cursor, and their most bytes; pages are bounded by the selected page as a whole."""


@pytest.mark.req("P3-52", "P3-51")
def test_content_is_in_bounded_payloads_and_pages_alone() -> None:
    fields = {
        (shape.TITLE, item.name): item.codec.width[1] for shape in frames.FRAMES.values() for item in shape.FIELDS
    }
    assert {where: most for where, most in fields.items() if most > limits.MAX_CURSOR + 4} == CONTENT
    for shape in (*COMMANDS.values(), *RECORD_PAYLOADS.values()):
        wide = [item.name for item in shape.FIELDS if item.codec.width[1] > 4_100]
        # A record or command has one place for content, never a list of them.
        assert len(wide) <= 1, shape
        assert all(item.codec.width[1] <= 11 + TYPED for item in shape.FIELDS)


UNCORRELATED = {
    FrameType.COORD_HELLO,
    FrameType.COORD_HELLO_OK,
    FrameType.CREDIT,
    FrameType.COORD_PING,
    FrameType.COORD_PONG,
    FrameType.GAP,
    FrameType.COORD_EVENT,
    FrameType.COORD_AUTHORITY_RENEWED,
    FrameType.WORKLOAD_CHALLENGE,
    FrameType.WORKLOAD_RESPONSE,
}


@pytest.mark.req("P7-09", "P7-11")
@pytest.mark.parametrize("kind", [pytest.param(kind, id=kind.name) for kind in FrameType])
def test_request_ids_are_nonzero_where_they_belong(kind: FrameType) -> None:
    carried = [item for item in frames.FRAMES[kind].FIELDS if item.name == "request_id"]
    assert bool(carried) is (kind not in UNCORRELATED)
    assert all(item.id == 1 and item.codec is REQUEST_ID for item in carried)


@pytest.mark.req("P4-10", "P4-14")
def test_state_rooting_requests_carry_a_guard_without_request_or_operation() -> None:
    rooted = {kind for kind, row in FRAME_TABLE.items() if row.direction == "c" and _has_guard(kind)}
    assert rooted == {
        FrameType.COORD_COMMAND,
        FrameType.GET_OPERATION_RESULT,
        FrameType.OPEN_SNAPSHOT,
        FrameType.SUBSCRIBE,
        FrameType.OPEN_REPLAY,
    }
    assert [name for name, _ in AuthorityGuard.COLUMNS] == [
        "coordinator_id",
        "authority_epoch",
        "activation_sequence",
        "fencing_token_sha256",
    ]
    assert AuthorityGuard.CODEC.width == (64, 64)


def _has_guard(kind: FrameType) -> bool:
    return any(item.name == "authority_guard" for item in frames.FRAMES[kind].FIELDS)


def test_every_request_names_what_answers_it() -> None:
    replies = {kind: row.replies for kind, row in FRAME_TABLE.items() if row.direction == "c"}
    assert replies[FrameType.CREDIT] == ()
    assert all(answers for kind, answers in replies.items() if kind is not FrameType.CREDIT)
    assert all(FRAME_TABLE[answer].direction == "s" for answers in replies.values() for answer in answers)


def test_every_event_kind_is_about_a_family() -> None:
    assert set(EVENT_OBJECTS) == set(enums.EventKind)
    assert {kind: set(map(int, EVENT_OBJECTS[kind])) for kind in enums.EventKind} == {
        kind: about for kind, (about, _) in oracle.EVENTS.items()
    }


FATAL = {1, 2, 3, 4, 5, 8, 9}


@pytest.mark.req("P13-02")
@pytest.mark.parametrize("code", [pytest.param(code, id=code.name) for code in ErrorCode])
def test_each_code_has_one_class_and_its_fatality(code: ErrorCode) -> None:
    error = error_for(code, "detail", 7)
    assert type(error) is ERRORS[code]
    assert (error.code, error.message, error.request_id) == (code, "detail", 7)
    assert error.fatal is (code in FATAL)
    assert ERRORS[code]("x", fatal=True).fatal
    assert str(ERRORS[code]()) == code.name
    assert str(error) == f"{code.name}: detail"
    frame = frames.CoordErrorFrame.of(error)
    assert (frame.request_id, frame.code, frame.message) == (7, code, "detail")


def test_an_internal_error_without_its_request_is_fatal() -> None:
    assert error_for(ErrorCode.INTERNAL).fatal
    assert not error_for(ErrorCode.INTERNAL, request_id=7).fatal
    assert set(ERRORS) == set(ErrorCode)


@pytest.mark.req("P3-32")
def test_a_diagnostic_is_cut_at_a_character() -> None:
    assert clip_diagnostic("é" * 600) == "é" * 512
    assert len(errors.InternalError("a" * 2_000).message) == MAX_DIAGNOSTIC
    assert clip_diagnostic("\ud800") == "?"
