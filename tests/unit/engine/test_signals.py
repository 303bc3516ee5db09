"""ACK_SIGNAL and SUPPRESS_SIGNAL (OPEN P7-i)."""

from __future__ import annotations

import pytest

from sidecar.coordinator.wire import frames as fr
from sidecar.coordinator.wire import payloads as pl
from sidecar.coordinator.wire.enums import (
    Capability,
    CommandKind,
    ErrorCode,
    EventKind,
    ObjectKind,
    Scope,
    SignalKind,
    SignalState,
)
from sidecar.coordinator.wire.ids import ObjectId, SignalId
from sidecar.coordinator.wire.limits import RETENTION_FLOOR
from sidecar.coordinator.wire.records import ObjectRef, SnapshotRecord, Succeeded, Tombstoned, Unknown, decode_operation
from tests.unit.engine import families as fam
from tests.unit.engine.harness import Client, World, id16

ACK, SUPPRESS = CommandKind.ACK_SIGNAL, CommandKind.SUPPRESS_SIGNAL
LEGAL = {
    (ACK, SignalState.OPEN): (SignalState.ACKNOWLEDGED, EventKind.SIGNAL_ACKNOWLEDGED),
    (SUPPRESS, SignalState.OPEN): (SignalState.SUPPRESSED, EventKind.SIGNAL_SUPPRESSED),
    (SUPPRESS, SignalState.ACKNOWLEDGED): (SignalState.SUPPRESSED, EventKind.SIGNAL_SUPPRESSED),
}
"""OPEN P7-i, written down once more."""
SIGNAL = 30
NOTE = "schon gesehen, Schicht 2"


def command(client: Client, kind: CommandKind, note: str | None = None, **options: object) -> fr.CoordCommand:
    shape = pl.AckSignal if kind is ACK else pl.SuppressSignal
    return client.command(kind, shape(signal_id=SignalId(id16(SIGNAL)), note=note).body(), **options)  # type: ignore[arg-type]


@pytest.mark.req("P6-14", "P7-21")
@pytest.mark.parametrize("kind", [ACK, SUPPRESS])
@pytest.mark.parametrize("state", list(SignalState))
def test_both_commands_in_every_state(kind: CommandKind, state: SignalState) -> None:
    world = World(state=fam.holding(fam.signal(SIGNAL, state, session=5, revision=3)))
    client = world.connect(capabilities=Capability.SIGNALS)
    client.live()
    frame = command(client, kind)
    if (kind, state) not in LEGAL:
        client.refused(frame, ErrorCode.REVISION_CONFLICT)
        assert client.one(client.lookup(frame.operation_id), fr.OperationResultFrame).operation == Unknown()
        return
    target, event_kind = LEGAL[kind, state]
    result = client.done(frame).operation
    assert isinstance(result, Succeeded)
    assert result.content() == ObjectRef(ObjectKind.SIGNAL, ObjectId(id16(SIGNAL)))
    changed, done = client.events()
    assert (changed.event_kind, done.event_kind) == (event_kind, EventKind.OPERATION_CHANGED)
    record = SnapshotRecord.decode(changed.payload)
    signal = fam.payload_of(record)
    assert isinstance(signal, pl.SignalRecord)
    assert (record.revision, signal.state, signal.kind, signal.message, signal.work_session_id) == (
        4,
        target,
        SignalKind.POLICY,
        "disk budget",
        id16(5),
    )


@pytest.mark.req("P5-17", "P6-14")
@pytest.mark.parametrize("kind", [ACK, SUPPRESS])
@pytest.mark.parametrize(
    ("scopes", "capabilities", "code"),
    [
        (0x3F, 0x1F & ~Capability.SIGNALS, ErrorCode.CAPABILITY_REQUIRED),
        (0x3F & ~Scope.WORK_READ, 0x1F, ErrorCode.SCOPE_DENIED),
        (0x3F & ~Scope.SIGNAL_ACK, 0x1F, ErrorCode.SCOPE_DENIED),
    ],
)
def test_each_right_is_needed(kind: CommandKind, scopes: int, capabilities: int, code: ErrorCode) -> None:
    world = World(state=fam.holding(fam.signal(SIGNAL)))
    client = world.connect(scopes=scopes, capabilities=capabilities)
    client.refused(command(client, kind), code)
    assert world.disk.last_sequence == 0


def test_the_least_rights_suffice() -> None:
    world = World(state=fam.holding(fam.signal(SIGNAL)))
    client = world.connect(scopes=Scope.WORK_READ | Scope.SIGNAL_ACK, capabilities=Capability.SIGNALS)
    assert isinstance(client.done(command(client, ACK)).operation, Succeeded)


def test_an_absent_signal_is_not_found() -> None:
    client = World().connect(capabilities=Capability.SIGNALS)
    client.refused(command(client, ACK), ErrorCode.NOT_FOUND)
    client.refused(command(client, SUPPRESS), ErrorCode.NOT_FOUND)


@pytest.mark.req("P8-41")
def test_a_note_is_stored_with_the_operation_only_and_goes_with_its_body() -> None:
    world = World(state=fam.holding(fam.signal(SIGNAL)))
    client = world.connect(capabilities=Capability.SIGNALS)
    client.live()
    frame = command(client, ACK, NOTE)
    client.done(frame)
    row = world.disk.operations[frame.operation_id]
    assert row.note == NOTE.encode()
    assert all(NOTE.encode() not in event.payload for event in client.events())
    assert all(NOTE.encode() not in record.image for record in world.disk.records.values())
    client.refused(command(client, ACK, NOTE + ".", operation=frame.operation_id), ErrorCode.OPERATION_CONFLICT)
    world.advance(RETENTION_FLOOR)
    world.commit()
    pruned = world.disk.operations[frame.operation_id]
    assert isinstance(decode_operation(pruned.result), Tombstoned)
    assert pruned.note == b""


def test_a_command_without_a_note_has_none() -> None:
    world = World(state=fam.holding(fam.signal(SIGNAL)))
    client = world.connect(capabilities=Capability.SIGNALS)
    for kind in (ACK, SUPPRESS):
        client.done(command(client, kind))
    client.done(client.create(1))
    assert {row.note for row in world.disk.operations.values()} == {b""}


@pytest.mark.req("P8-42")
def test_an_overtaken_acknowledgement_is_forgotten_and_the_last_word_stays() -> None:
    world = World(state=fam.holding(fam.signal(SIGNAL)))
    client = world.connect(capabilities=Capability.SIGNALS)
    ack, suppress = command(client, ACK), command(client, SUPPRESS)
    client.done(ack)
    client.done(suppress)
    for _ in range(3):
        world.advance(RETENTION_FLOOR)
        world.commit()
    assert set(world.disk.operations) == {suppress.operation_id}
