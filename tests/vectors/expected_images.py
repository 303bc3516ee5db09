"""Values of the golden vectors, computed by the product: encodings, ids, digests of operations, effects, cuts."""

from __future__ import annotations

from collections.abc import Callable

from cext import digest
from cext.tlv import Writer, encode_varint
from sidecar.coordinator.wire import ids
from sidecar.coordinator.wire.digests import effect_digest_of, operation_digest_of
from sidecar.coordinator.wire.enums import (
    BindingState,
    CommandKind,
    EffectKind,
    EffectState,
    EventKind,
    ObjectiveState,
    ObjectKind,
    ProcessSignal,
    RunState,
    SignalKind,
    SignalState,
    SourceFactKind,
    SourceGapReason,
    WorkSessionState,
)
from sidecar.coordinator.wire.fields import Body
from sidecar.coordinator.wire.frames import Ack, CoordCommand
from sidecar.coordinator.wire.ids import ObjectId
from sidecar.coordinator.wire.payloads import (
    AckSignal,
    BindingRecord,
    CancelRun,
    CreateObjective,
    ObjectiveRecord,
    RunRecord,
    SignalRecord,
    StartRun,
    WorkSessionRecord,
)
from sidecar.coordinator.wire.records import (
    ActiveBinding,
    EffectAttempt,
    KillPayload,
    LocalResource,
    Opened,
    PendingSpawn,
    Precondition,
    ProcessSignalPayload,
    ReplayEvent,
    SatelliteResource,
    SnapshotRecord,
    SourceGap,
    SpawnPayload,
    TerminalBindingRef,
    TerminalSourceFact,
    TerminalSourceRef,
    encode_target,
)
from tests.vectors import inputs as fix

Expected = dict[str, tuple[tuple[str, ...], Callable[[], str]]]
"""Name of a vector -> the rows that it holds, and how the product makes its value."""

BASE = 9
PAGES = ((5,), (1, 4), (2, 2, 1), (1, 1, 1, 1, 1))


def _field(write: Callable[[Writer], None]) -> str:
    out = Writer()
    write(out)
    return out.take().hex()


def varints() -> Expected:
    numbers = (0, 1, 127, 128, 300, 16383, 16384, 1048576)
    return {f"varint({number})": (("E-03",), lambda number=number: encode_varint(number).hex()) for number in numbers}  # type: ignore[misc]


def encodings() -> Expected:
    return {
        "TLV field 2 = u16 1": (("E-02", "E-15", "P3-13"), lambda: _field(lambda out: out.field_u16(2, 1))),
        'TLV field 4 = str "ab" (leaf image)': (("E-02", "E-16"), lambda: _field(lambda out: out.field_text(4, "ab"))),
        "TLV field 1 = u32 request_id 7": (("E-02", "P3-13"), lambda: Ack(request_id=7).body().hex()),
        "ResourceId Local id=1": (("E-26",), lambda: LocalResource(1).encode().hex()),
        'ResourceId Satellite host="edge-1" id=7': (("E-26",), lambda: SatelliteResource("edge-1", 7).encode().hex()),
        "GroupId 1": (("E-27",), lambda: fix.GROUP.encode().hex()),
        "fencing_token_sha256": (("W1-07",), lambda: digest.sha256(fix.TOKEN).hex()),
        "AuthorityGuard (64 bytes)": (("P4-10",), lambda: fix.guard().encode().hex()),
    }


CREATE = CreateObjective(objective_id=fix.OBJECTIVE, schema=1, document=fix.DOCUMENT)
START = StartRun(
    objective_id=fix.OBJECTIVE,
    run_id=fix.RUN,
    work_session_id=fix.SESSION,
    executor_schema=1,
    executor_document=fix.EXECUTOR_DOCUMENT,
    pending_binding_id=fix.PENDING_BINDING,
    owner_authority_fingerprint=fix.OWNER_FINGERPRINT,
    owner_incarnation=fix.OWNER_INCARNATION,
    terminal_group=fix.GROUP,
)
PRECONDITIONS = (
    Precondition(fix.ref(ObjectKind.OBJECTIVE, fix.OBJECTIVE), 3),
    Precondition(fix.ref(ObjectKind.RUN, fix.RUN), 1),
)
EXTENSION_C = bytes.fromhex("07040378797a")
EXTENSION_D = EXTENSION_C + encode_varint(300) + b"\x04\x00"
UNKNOWN_9 = bytes.fromhex("09040101")
RAW_PAYLOAD = CREATE.body().replace(bytes.fromhex("03040b00000007"), bytes.fromhex("030407"))


def command(
    payload: bytes,
    kind: CommandKind = CommandKind.CREATE_OBJECTIVE,
    preconditions: tuple[Precondition, ...] = (),
    extensions: bytes = b"",
) -> CoordCommand:
    """A decoded COORD_COMMAND; preconditions keep the order given, extensions follow the known fields."""
    frame = CoordCommand(
        request_id=7, authority_guard=fix.guard(), operation_id=fix.OPERATION, command_kind=kind, payload=payload
    )
    tail = b""
    if preconditions:
        image = len(preconditions).to_bytes(2, "big") + b"".join(each.encode() for each in preconditions)
        tail = b"\x06\x04" + encode_varint(len(image)) + image
    return CoordCommand.decode(frame.body() + tail + extensions)


def _operation(*args: object, **more: object) -> Callable[[], str]:
    build: Callable[..., CoordCommand] = command
    return lambda: operation_digest_of(build(*args, **more)).hex()


def _sorted_image() -> str:
    frame = CoordCommand(
        request_id=7,
        authority_guard=fix.guard(),
        operation_id=fix.OPERATION,
        command_kind=CommandKind.CREATE_OBJECTIVE,
        payload=b"",
        preconditions=PRECONDITIONS[::-1],
    )
    return frame.raw("preconditions").hex()


def operations() -> Expected:
    payload = CREATE.body()
    cancel = CancelRun(run_id=fix.RUN).body()
    run_2 = (Precondition(fix.ref(ObjectKind.RUN, fix.RUN), 2),)
    digest_rows = ("P8-06", "P14-07")
    return {
        "CREATE_OBJECTIVE payload": (("P7-16",), lambda: payload.hex()),
        "OP-A preimage": (("P8-06",), lambda: digest.operation_preimage(1, payload, b"", 0, b"").hex()),
        "OP-A digest": (digest_rows, _operation(payload)),
        "OP-B preconditions image (sorted)": (("P7-13", "P8-03"), _sorted_image),
        "OP-B digest": (digest_rows, _operation(payload, preconditions=PRECONDITIONS)),
        "OP-B2 digest (same set, other order)": (digest_rows, _operation(payload, preconditions=PRECONDITIONS[::-1])),
        "OP-C extension bytes": (("P8-07",), lambda: command(payload, extensions=EXTENSION_C).unknown().hex()),
        "OP-C digest": ((*digest_rows, "P8-07"), _operation(payload, extensions=EXTENSION_C)),
        "OP-D extension bytes (ids 7, 300)": (
            ("P8-07",),
            lambda: command(payload, extensions=EXTENSION_D[6:] + EXTENSION_C).unknown().hex(),
        ),
        "OP-D digest": ((*digest_rows, "P8-07"), _operation(payload, extensions=EXTENSION_D)),
        "OP-E payload (unknown field 9)": (
            ("P8-08",),
            lambda: CreateObjective.decode(UNKNOWN_9 + payload).body().hex(),
        ),
        "OP-E digest": ((*digest_rows, "P8-08"), _operation(UNKNOWN_9 + payload)),
        "OP-F digest (kind UPDATE_OBJECTIVE=2, payload of A)": (
            digest_rows,
            _operation(payload, CommandKind.UPDATE_OBJECTIVE),
        ),
        "OP-A-raw payload (rejected reading, no u32 prefix)": (("E-16",), RAW_PAYLOAD.hex),
        "OP-A-raw digest": (("P8-06",), lambda: digest.operation_digest(1, RAW_PAYLOAD, b"", 0, b"").hex()),
        "START_RUN payload": (("P7-16",), lambda: START.body().hex()),
        "OP-G digest (START_RUN, no preconditions)": (digest_rows, _operation(START.body(), CommandKind.START_RUN)),
        "OP-H digest (CANCEL_RUN run=33.., precondition RUN rev 2)": (
            digest_rows,
            _operation(cancel, CommandKind.CANCEL_RUN, run_2),
        ),
        "ACK_SIGNAL payload, note absent": (("P7-16", "E-12"), lambda: AckSignal(signal_id=fix.SIGNAL).body().hex()),
        "OP-I digest": (digest_rows, _operation(AckSignal(signal_id=fix.SIGNAL).body(), CommandKind.ACK_SIGNAL)),
        'ACK_SIGNAL payload, note "ok"': (
            ("P7-16",),
            lambda: AckSignal(signal_id=fix.SIGNAL, note="ok").body().hex(),
        ),
        "OP-J digest": (
            digest_rows,
            _operation(AckSignal(signal_id=fix.SIGNAL, note="ok").body(), CommandKind.ACK_SIGNAL),
        ),
    }


SPAWN_TARGET = PendingSpawn(fix.PENDING_BINDING, fix.OWNER_FINGERPRINT, fix.OWNER_INCARNATION, fix.GROUP)
SPAWN_PAYLOAD = SpawnPayload(fix.SESSION, 1, fix.EXECUTOR_DOCUMENT)
SATELLITE_REF = TerminalBindingRef(
    fix.BINDING, fix.SESSION, fix.OWNER_FINGERPRINT, fix.OWNER_INCARNATION, SatelliteResource("edge-1", 7)
)


def _attempt(kind: EffectKind, target: PendingSpawn | ActiveBinding, payload: bytes) -> EffectAttempt:
    empty = EffectAttempt(fix.ATTEMPT, fix.OPERATION, kind, target, bytes(32), payload, EffectState.READY)
    return EffectAttempt(fix.ATTEMPT, fix.OPERATION, kind, target, effect_digest_of(empty), payload, EffectState.READY)


def effects() -> Expected:
    spawn = _attempt(EffectKind.SPAWN, SPAWN_TARGET, SPAWN_PAYLOAD.encode())
    active = ActiveBinding(fix.BINDING_REF)
    kill = KillPayload().encode()
    terminate = ProcessSignalPayload(ProcessSignal.TERMINATE).encode()

    def preimage() -> str:
        return digest.effect_preimage(EffectKind.SPAWN, encode_target(SPAWN_TARGET), SPAWN_PAYLOAD.encode()).hex()

    def effect(kind: EffectKind, target: ActiveBinding, payload: bytes) -> Callable[[], str]:
        return lambda: _attempt(kind, target, payload).effect_digest.hex()

    return {
        "TerminalBindingRef (Local id 1)": (("P11-01",), lambda: fix.BINDING_REF.encode().hex()),
        "SPAWN target": (("P8-22",), lambda: encode_target(SPAWN_TARGET).hex()),
        "SPAWN payload": (("P8-23",), lambda: SPAWN_PAYLOAD.encode().hex()),
        "EF-A preimage": (("P8-27",), preimage),
        "EF-A digest (SPAWN)": (("P8-27",), lambda: spawn.effect_digest.hex()),
        "EF-B target (ACTIVE_BINDING)": (("P8-22",), lambda: encode_target(active).hex()),
        "EF-B digest (KILL)": (("P8-27", "P8-23"), effect(EffectKind.KILL, active, kill)),
        "EF-C digest (PROCESS_SIGNAL Terminate=1)": (
            ("P8-27", "P8-23"),
            effect(EffectKind.PROCESS_SIGNAL, active, terminate),
        ),
        "EF-D digest (KILL, Satellite edge-1/7)": (
            ("P8-27", "E-26"),
            effect(EffectKind.KILL, ActiveBinding(SATELLITE_REF), kill),
        ),
        "EffectAttempt row (SPAWN, READY)": (("P8-20",), lambda: spawn.encode().hex()),
    }


def _record(kind: ObjectKind, identity: bytes, revision: int, payload: Body) -> SnapshotRecord:
    return SnapshotRecord(kind, ObjectId(identity), ids.object_revision(revision), 1, payload.body())


def objective_record(revision: int) -> SnapshotRecord:
    """The OBJECTIVE record of the vectors at a revision."""
    payload = ObjectiveRecord(document_schema=1, document=fix.DOCUMENT, state=ObjectiveState.ACTIVE)
    return _record(ObjectKind.OBJECTIVE, fix.OBJECTIVE, revision, payload)


RECORDS: dict[str, SnapshotRecord] = {
    "record OBJECTIVE": objective_record(1),
    "record RUN (no outcome)": _record(
        ObjectKind.RUN, fix.RUN, 2, RunRecord(objective_id=fix.OBJECTIVE, attempt=1, state=RunState.RUNNING)
    ),
    "record WORK_SESSION (active binding)": _record(
        ObjectKind.WORK_SESSION,
        fix.SESSION,
        2,
        WorkSessionRecord(run_id=fix.RUN, state=WorkSessionState.ACTIVE, active_binding=fix.BINDING),
    ),
    "record BINDING (active)": _record(
        ObjectKind.BINDING, fix.BINDING, 1, BindingRecord(binding=fix.BINDING_REF, state=BindingState.ACTIVE)
    ),
    "record SIGNAL": _record(
        ObjectKind.SIGNAL,
        fix.SIGNAL,
        1,
        SignalRecord(
            work_session_id=fix.SESSION,
            kind=SignalKind.EXECUTION_FAILED,
            state=SignalState.OPEN,
            message="exit 1",
        ),
    ),
}


def snapshot_digest(pages: tuple[bytes, ...], count: int, base: int = BASE) -> str:
    """canonical_sha256 folded page by page."""
    folded = digest.SnapshotDigest(fix.COORDINATOR, fix.EPOCH, fix.ACTIVATION, base, count)
    for page in pages:
        folded.update(page)
    return folded.digest().hex()


def _paged(sizes: tuple[int, ...]) -> tuple[bytes, ...]:
    images = [each.encode() for each in RECORDS.values()]
    pages, start = [], 0
    for size in sizes:
        pages.append(b"".join(images[start : start + size]))
        start += size
    return tuple(pages)


def _five() -> str:
    digests = {snapshot_digest(_paged(sizes), 5) for sizes in PAGES}
    return " and ".join(sorted(digests))


def snapshots() -> Expected:
    header = (fix.COORDINATOR, fix.EPOCH, fix.ACTIVATION)
    whole = b"".join(each.encode() for each in RECORDS.values())
    found: Expected = {
        "SN-0 preimage (empty, base 0)": (("P9-15",), lambda: digest.snapshot_header(*header, 0, 0).hex()),
        "SN-0 digest": (("P9-14", "P9-15"), lambda: snapshot_digest((), 0, base=0)),
        "SN-0b digest (empty, base 9)": (("P9-14", "P9-15"), lambda: snapshot_digest((), 0)),
        "SN-1 digest (OBJECTIVE only, base 9)": (
            ("P9-14",),
            lambda: snapshot_digest((objective_record(1).encode(),), 1),
        ),
        "SN-5 digest (5 records, base 9; same for 1, 2, 3 or 5 pages)": (("P9-14",), _five),
        "SN-5 preimage length": (("P9-14",), lambda: str(len(digest.snapshot_header(*header, BASE, 5) + whole))),
    }
    for name in RECORDS:
        found[name] = (("P7-15", "P7-20"), lambda name=name: RECORDS[name].encode().hex())  # type: ignore[misc]
    return found


FACT = TerminalSourceFact(
    TerminalSourceRef(fix.BINDING, fix.OWNER_FINGERPRINT, fix.OWNER_INCARNATION, ids.source_sequence(1)),
    SourceFactKind.OPENED,
    1,
    Opened().encode(),
)
EVENT_10 = ReplayEvent(
    ids.event_sequence(10),
    fix.EVENT_1,
    EventKind.OBJECTIVE_CHANGED,
    fix.ref(ObjectKind.OBJECTIVE, fix.OBJECTIVE),
    ids.object_revision(2),
    1,
    objective_record(2).encode(),
)
EVENT_12 = ReplayEvent(
    ids.event_sequence(12),
    fix.EVENT_2,
    EventKind.SOURCE_FACT_ADMITTED,
    fix.ref(ObjectKind.BINDING, fix.BINDING),
    ids.object_revision(2),
    1,
    FACT.encode(),
)
GAP = SourceGap(fix.BINDING, ids.source_sequence(2), ids.source_sequence(5), SourceGapReason.JUMP)


def _replay(cut: int, *events: ReplayEvent) -> Callable[[], str]:
    def compute() -> str:
        folded = digest.ReplayDigest(
            fix.COORDINATOR, fix.EPOCH, fix.ACTIVATION, fix.SUBSCRIPTION, BASE, cut, len(events)
        )
        for event in events:
            folded.update(event.encode())
        return folded.digest().hex()

    return compute


def replays() -> Expected:
    header = (fix.COORDINATOR, fix.EPOCH, fix.ACTIVATION, fix.SUBSCRIPTION, BASE, BASE, 0)
    return {
        "RP-0 preimage (empty, after 9, cut 9)": (("P10-31",), lambda: digest.replay_header(*header).hex()),
        "RP-0 digest": (("P10-30", "P10-31"), _replay(BASE)),
        "ReplayEvent 10 OBJECTIVE_CHANGED": (("P10-26",), lambda: EVENT_10.encode().hex()),
        "TerminalSourceFact OPENED seq 1": (("P11-02", "P11-03", "P11-05"), lambda: FACT.encode().hex()),
        "ReplayEvent 12 SOURCE_FACT_ADMITTED": (("P10-26", "P7-22"), lambda: EVENT_12.encode().hex()),
        "RP-1 digest (after 9, cut 10, event 10)": (("P10-30",), _replay(10, EVENT_10)),
        "RP-2 digest (after 9, cut 12, events 10 and 12)": (("P10-30",), _replay(12, EVENT_10, EVENT_12)),
        "SOURCE_GAP payload (expected 2, observed 5, Jump)": (("P7-23",), lambda: GAP.encode().hex()),
    }
