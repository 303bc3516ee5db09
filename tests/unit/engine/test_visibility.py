"""One predicate for every surface (P6-05..19, table P6-t1)."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sidecar.coordinator.engine.commands import record_of
from sidecar.coordinator.engine.state import Event, Operation, Record, State
from sidecar.coordinator.engine.visibility import Visibility
from sidecar.coordinator.machines.subscription import SubscriptionEvent
from sidecar.coordinator.wire import frames as fr
from sidecar.coordinator.wire import payloads as pl
from sidecar.coordinator.wire import records as rec
from sidecar.coordinator.wire.enums import (
    AdminKind,
    BindingState,
    Capability,
    CommandKind,
    ErrorCode,
    EventKind,
    ObjectiveState,
    ObjectKind,
    RunState,
    Scope,
    SignalKind,
    SignalState,
    WorkSessionState,
)
from sidecar.coordinator.wire.ids import EventSequence
from sidecar.coordinator.wire.records import ObjectRef, Succeeded, Unknown
from tests.unit.engine.fakes import key
from tests.unit.engine.harness import World, id16
from tests.unit.engine.replays import Replay
from tests.unit.wire.samples import COMMAND_SAMPLES

ID = id16(3)
OWNER, STRANGER = 1, 2
BINDING_REF = "77" * 16 + "66" * 16 + "f1" * 32 + "f2" * 16 + "00000005" + "0000000001"
"""The golden TerminalBindingRef with a Local resource."""
EVENT_OF = {
    ObjectKind.OBJECTIVE: EventKind.OBJECTIVE_CHANGED,
    ObjectKind.RUN: EventKind.RUN_CHANGED,
    ObjectKind.WORK_SESSION: EventKind.WORK_SESSION_CHANGED,
    ObjectKind.BINDING: EventKind.BINDING_OPENED,
    ObjectKind.ARTIFACT: EventKind.ARTIFACT_REVISION_ADDED,
    ObjectKind.ARTIFACT_MANIFEST: EventKind.ARTIFACT_REVISION_ADDED,
    ObjectKind.SIGNAL: EventKind.SIGNAL_RAISED,
    ObjectKind.OPERATION: EventKind.OPERATION_CHANGED,
    ObjectKind.EVIDENCE: EventKind.EVIDENCE_SEALED,
}
"""ADMIN has no event kind (OPEN P7-g)."""


def payloads() -> dict[ObjectKind, pl.RecordPayload]:
    """A record of every family but OPERATION."""
    binding = rec.TerminalBindingRef.decode(bytes.fromhex(BINDING_REF))
    admin = rec.AdminRetention(2_592_000, 1, 1)
    make = {
        ObjectKind.OBJECTIVE: pl.ObjectiveRecord.build(
            {"document_schema": 1, "document": b"d", "state": ObjectiveState.ACTIVE}
        ),
        ObjectKind.RUN: pl.RunRecord.build({"objective_id": ID, "attempt": 1, "state": RunState.PLANNED}),
        ObjectKind.WORK_SESSION: pl.WorkSessionRecord.build({"run_id": ID, "state": WorkSessionState.ACTIVE}),
        ObjectKind.BINDING: pl.BindingRecord.build({"binding": binding, "state": BindingState.ACTIVE}),
        ObjectKind.ARTIFACT: pl.ArtifactRecord.build({"work_session_id": ID, "latest_revision": 1}),
        ObjectKind.ARTIFACT_MANIFEST: pl.ArtifactManifestRecord.build(
            {"artifact_id": ID, "revision": 1, "schema": 1, "manifest": b"m"}
        ),
        ObjectKind.SIGNAL: pl.SignalRecord.build(
            {"work_session_id": ID, "kind": SignalKind.POLICY, "state": SignalState.OPEN, "message": "m"}
        ),
        ObjectKind.EVIDENCE: pl.EvidenceRecord.build(
            {"work_session_id": ID, "artifact_id": ID, "seal_sha256": bytes(32)}
        ),
        ObjectKind.ADMIN: pl.AdminRecord.build({"admin_kind": AdminKind.RETENTION, "payload": admin.encode()}),
    }
    assert set(make) | {ObjectKind.OPERATION} == set(ObjectKind)
    return make  # type: ignore[return-value]


def operation(number: int, principal: int) -> Operation:
    result = rec.succeeded(EventSequence(1), ObjectRef(ObjectKind.OBJECTIVE, ID))  # type: ignore[arg-type]
    payload = pl.OperationRecord.build({"principal_key_id": key(principal), "result": result})
    image = record_of(ObjectKind.OPERATION, id16(number), 1, payload).image
    return Operation(
        id16(number),
        1,
        image,
        key(principal),
        bytes(32),
        1,
        rec.encode_operation(result),
        1_900_000_000,
        2_592_000,
        b"",
    )


def event(sequence: int, entry: Record | Operation) -> Event:
    principal = entry.principal if isinstance(entry, Operation) else b""
    kind = EVENT_OF[ObjectKind(entry.kind)]
    return Event(sequence, id16(900 + sequence), kind, entry.kind, entry.id, entry.revision, 1, entry.image, principal)


RECORDS = [record_of(kind, ID, 1, payload) for kind, payload in payloads().items()]
OPERATIONS = [operation(11, OWNER), operation(12, STRANGER)]
ENTRIES: list[Record | Operation] = [*RECORDS, *OPERATIONS]


def full_world() -> World:
    """A coordinator with one record of every family, two operations, and an event for each but ADMIN."""
    told = [entry for entry in ENTRIES if entry.kind != ObjectKind.ADMIN]
    events = [event(sequence, entry) for sequence, entry in enumerate(told, 1)]
    return World(state=State.build(RECORDS, OPERATIONS, events, len(events)))


def expected(scopes: int, capabilities: int) -> set[tuple[int, bytes]]:
    """Table P6-t1, written down once more, for the owner of operation 11."""
    read = scopes & Scope.WORK_READ
    artifact = scopes & Scope.ARTIFACT_READ and capabilities & Capability.ARTIFACT_MANIFESTS
    seen: set[tuple[int, bytes]] = set()
    if read:
        seen |= {(kind, ID) for kind in (1, 2, 3, 5)}
    if read and capabilities & Capability.TERMINAL_BINDINGS:
        seen.add((4, ID))
    if artifact:
        seen |= {(10, ID), (8, ID)}
    if read and capabilities & Capability.SIGNALS:
        seen.add((6, ID))
    if scopes & Scope.ADMIN and capabilities & Capability.ADMINISTRATION:
        seen.add((9, ID))
    if scopes & (Scope.WORK_READ | Scope.WORK_COMMAND):
        seen.add((7, id16(11)))
    if scopes & Scope.ADMIN:
        seen |= {(7, id16(11)), (7, id16(12))}
    return seen


@pytest.mark.req(
    "P6-05", "P6-09", "P6-10", "P6-11", "P6-12", "P6-13", "P6-14", "P6-15", "P6-16", "P6-17", "P5-18", "P14-10", "P1-02"
)
@settings(max_examples=120, deadline=None)
@given(scopes=st.integers(1, 0x3F), capabilities=st.integers(0, 0x1F))
def test_snapshot_subscription_replay_and_lookup_show_the_same(scopes: int, capabilities: int) -> None:
    world = full_world()
    client = world.connect(OWNER, scopes=scopes, capabilities=capabilities)
    visible = expected(scopes, capabilities)
    snapshot = client.snapshot()
    assert {(record.kind, record.id) for record in snapshot} == visible
    client.live(0)
    told = {(event.object.kind, event.object.id) for event in client.events()}
    assert told == {ref for ref in visible if ref[0] != ObjectKind.ADMIN}
    if capabilities & Capability.EVENT_REPLAY:
        paused = client.live(0, 0, 0)
        world.engine._streams.lose(client.conn.subscriptions[paused], SubscriptionEvent.QUEUE_FULL)
        client.pull()
        replayed = {(event.object.kind, event.object.id, event.payload) for event in Replay(client, paused, 0).events}
        assert replayed == {(event.object.kind, event.object.id, event.payload) for event in client.events()}
    for number in (11, 12, 13):
        frame = client.lookup(id16(number))
        if not scopes & (Scope.WORK_READ | Scope.WORK_COMMAND | Scope.ADMIN):
            client.refused(frame, ErrorCode.NOT_FOUND)
            continue
        found = client.one(frame, fr.OperationResultFrame).operation
        assert isinstance(found, Succeeded) == ((7, id16(number)) in visible)
        assert isinstance(found, Succeeded | Unknown)
    # The same scopes and principal see the same bytes (P6-17).
    twin = world.connect(OWNER, scopes=scopes, capabilities=capabilities)
    assert twin.snapshot().end.canonical_sha256 == snapshot.end.canonical_sha256


@pytest.mark.req("P6-05", "P6-09")
def test_every_bit_alone_and_all_together() -> None:
    for scopes, capabilities in itertools.product([1 << bit for bit in range(6)], [0, 0x1F]):
        seen = Visibility.of(scopes, capabilities, key(OWNER))
        families = {kind for kind in ObjectKind if seen.sees(kind, key(OWNER))}
        assert families == {kind for kind, _ in expected(scopes, capabilities)}
    everything = Visibility.of(0x3F, 0x1F, key(OWNER))
    assert all(everything.sees_entry(entry) for entry in ENTRIES)
    assert not any(Visibility.of(0, 0x1F, key(OWNER)).sees_entry(entry) for entry in ENTRIES)


@pytest.mark.req("P6-18")
def test_a_lookup_without_the_right_to_see_operations_is_not_found_for_every_id() -> None:
    world = full_world()
    blind = world.connect(OWNER, scopes=Scope.ARTIFACT_READ | Scope.SIGNAL_ACK | Scope.TERMINAL_CONTROL)
    for number in (11, 12, 13):
        blind.refused(blind.lookup(id16(number)), ErrorCode.NOT_FOUND)
    assert len({error.message for error in blind.errors()}) == 1


@pytest.mark.req("P6-05")
def test_admin_alone_neither_reads_nor_commands() -> None:
    world = full_world()
    admin = world.connect(5, scopes=Scope.ADMIN, capabilities=0x1F)
    assert admin.snapshot().kinds() == {ObjectKind.OPERATION, ObjectKind.ADMIN}
    admin.refused(admin.create(50), ErrorCode.SCOPE_DENIED)


@pytest.mark.req("P6-10", "P6-11", "P6-14", "P5-17", "P7-26")
@pytest.mark.parametrize(
    ("kind", "payload", "scopes", "code"),
    [
        (CommandKind.CREATE_OBJECTIVE, pl.CreateObjective, 0x3D, ErrorCode.SCOPE_DENIED),
        (CommandKind.CANCEL_RUN, pl.CancelRun, 0x3D, ErrorCode.SCOPE_DENIED),
        (CommandKind.ACK_SIGNAL, pl.AckSignal, 0x3F, ErrorCode.CAPABILITY_REQUIRED),
        (CommandKind.SUPPRESS_SIGNAL, pl.SuppressSignal, 0x2F, ErrorCode.CAPABILITY_REQUIRED),
    ],
)
def test_mutations_need_their_scopes_and_capabilities(
    kind: CommandKind, payload: type[pl.CommandPayload], scopes: int, code: ErrorCode
) -> None:
    values = {
        "objective_id": ID,
        "run_id": ID,
        "signal_id": ID,
        "schema": 1,
        "document": b"d",
    }
    body = payload.build({item.name: values[item.name] for item in payload.FIELDS if item.required}).body()
    world = full_world()
    client = world.connect(OWNER, scopes=scopes)
    client.refused(client.command(kind, body), code)


NEEDED = {
    CommandKind.CREATE_OBJECTIVE: Scope.WORK_COMMAND,
    CommandKind.UPDATE_OBJECTIVE: Scope.WORK_COMMAND,
    CommandKind.CANCEL_RUN: Scope.WORK_COMMAND,
    CommandKind.PAUSE_RUN: Scope.WORK_COMMAND,
    CommandKind.RESUME_RUN: Scope.WORK_COMMAND,
    CommandKind.ACK_SIGNAL: Scope.WORK_READ | Scope.SIGNAL_ACK,
    CommandKind.SUPPRESS_SIGNAL: Scope.WORK_READ | Scope.SIGNAL_ACK,
    CommandKind.REGISTER_ARTIFACT_MANIFEST: Scope.WORK_COMMAND,
    CommandKind.CHANGE_RETENTION: Scope.ADMIN,
}
"""Table P6-t2 written down once more, but for what is never served here."""


@pytest.mark.req("P6-10", "P6-14", "P6-05", "W8-03")
@pytest.mark.parametrize("kind", NEEDED)
def test_a_command_needs_exactly_its_scopes(kind: CommandKind) -> None:
    world = full_world()
    body = COMMAND_SAMPLES[kind].body()

    def denied(scopes: Scope) -> bool:
        client = world.connect(OWNER, scopes=scopes, capabilities=0x1F)
        code = {error.code for error in client.ask(client.command(kind, body)) if isinstance(error, fr.CoordErrorFrame)}
        assert client.conn.closing is None
        client.detach()
        return code == {ErrorCode.SCOPE_DENIED}

    assert not denied(NEEDED[kind])
    for bit in Scope:
        assert denied(Scope(0x3F) & ~bit) is bool(bit & NEEDED[kind])


@pytest.mark.req("P5-16")
def test_the_baseline_needs_no_capability() -> None:
    world = World()
    client = world.connect(capabilities=0)
    command = client.create(1)
    first = client.done(command).operation
    assert client.done(client.create(1, operation=command.operation_id)).operation == first
    assert client.one(client.lookup(command.operation_id), fr.OperationResultFrame).operation == first
    subscription = client.live(2, 1, 1_000)
    client.done(client.update(1))
    assert len(client.events()) == 1
    client.ask(client.credit(subscription, 1, 1_000))
    assert len(client.events()) == 2
    for number in range(2, 602):
        client.send(client.create(number))
        client.pull()
    (gap,) = client.gaps()
    replaced = client.snapshot(reserve=True, replace=gap.subscription_id)
    assert len(replaced.records) == 1 + 600 + 602
    client.ask(client.applied(replaced.begin, 4, 4_000))
    client.done(client.create(700))
    assert client.events()[-1].delivery_sequence == 2


@pytest.mark.req("P10-13", "P6-17")
def test_hidden_events_leave_holes_in_the_event_sequence_and_none_in_the_deliveries() -> None:
    world = World()
    owner, stranger = world.connect(OWNER), world.connect(STRANGER, scopes=Scope.WORK_READ)
    stranger.live()
    for number in range(1, 6):
        owner.done(owner.create(number))
    stranger.pull()
    assert [event.event_sequence for event in stranger.events()] == [1, 3, 5, 7, 9]
    assert [event.delivery_sequence for event in stranger.events()] == [1, 2, 3, 4, 5]
