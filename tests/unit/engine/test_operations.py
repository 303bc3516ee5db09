"""Commands, their identity, and what becomes of them (P8)."""

from __future__ import annotations

from typing import Any

import pytest

from sidecar.coordinator.engine.handlers import COMMANDS
from sidecar.coordinator.engine.policy import Policy
from sidecar.coordinator.wire import frames as fr
from sidecar.coordinator.wire import payloads as pl
from sidecar.coordinator.wire.enums import CommandKind, ErrorCode, EventKind, ObjectiveState, ObjectKind, Scope
from sidecar.coordinator.wire.errors import MalformedMessage
from sidecar.coordinator.wire.events import decode_event_payload
from sidecar.coordinator.wire.ids import ObjectiveId, RunId
from sidecar.coordinator.wire.limits import HARD, Limits
from sidecar.coordinator.wire.records import GroupId, ObjectRef, SnapshotRecord, Succeeded, Tombstoned, Unknown
from tests.unit.engine.fakes import key
from tests.unit.engine.harness import Client, World, id16, objective


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def client(world: World) -> Client:
    return world.connect()


def payload_of(kind: CommandKind) -> bytes:
    """Some legal payload of a kind."""
    id_, bytes32 = id16(7), bytes([7]) * 32
    values: dict[str, Any] = {
        "objective_id": id_,
        "run_id": id_,
        "work_session_id": id_,
        "pending_binding_id": id_,
        "owner_authority_fingerprint": bytes32,
        "owner_incarnation": id_,
        "signal_id": id_,
        "artifact_id": id_,
        "binding_id": id_,
        "executor_schema": 1,
        "executor_document": b"sh",
        "schema": 1,
        "document": b"x",
        "revision": 1,
        "manifest": b"m",
        "reason": 0,
        "operation_result_secs": 2_592_000,
        "event_bytes": 1,
        "artifact_bytes": 1,
        "terminal_group": GroupId(1),
    }
    shape = pl.COMMANDS[kind]
    return shape.build({item.name: values[item.name] for item in shape.FIELDS if item.required}).body()


@pytest.mark.req("P8-01", "P8-02", "P7-17", "P7-21")
def test_create_then_update_then_look_up(world: World, client: Client) -> None:
    create = client.create(1, b"one")
    created = client.one(create, fr.CoordCommandResult)
    assert created.request_id == create.request_id
    assert isinstance(created.operation, Succeeded)
    assert created.operation.completed_event_sequence == 2
    assert created.operation.content() == ObjectRef(ObjectKind.OBJECTIVE, ObjectiveId(id16(1)))  # type: ignore[arg-type]
    updated = client.one(client.update(1, b"two"), fr.CoordCommandResult)
    assert isinstance(updated.operation, Succeeded)
    assert updated.operation.completed_event_sequence == 4
    lookup = client.lookup(create.operation_id)
    found = client.one(lookup, fr.OperationResultFrame)
    assert (found.request_id, found.operation) == (lookup.request_id, created.operation)
    record = next(record for record in client.snapshot() if record.kind is ObjectKind.OBJECTIVE)
    assert (record.id, record.revision) == (id16(1), 2)
    content = pl.ObjectiveRecord.decode(record.payload)
    assert (content.document_schema, content.document, content.state) == (1, b"two", ObjectiveState.ACTIVE)


@pytest.mark.req("P7-17")
def test_ids_come_from_the_payload_never_from_the_operation(client: Client) -> None:
    client.done(client.create(1, operation=id16(99)))
    client.refused(client.create(1, operation=id16(98)), ErrorCode.REVISION_CONFLICT)
    client.done(client.create(99, operation=id16(97)))
    ids = [record.id for record in client.snapshot() if record.kind is ObjectKind.OBJECTIVE]
    assert ids == [id16(1), id16(99)]


@pytest.mark.req("P7-21", "P7-24")
def test_every_event_carries_the_record_it_tells_of_in_schema_1(client: Client) -> None:
    client.live()
    client.done(client.create(1))
    client.done(client.update(1))
    client.pull()
    events = client.events()
    kinds = [EventKind.OBJECTIVE_CHANGED, EventKind.OPERATION_CHANGED] * 2
    assert [event.event_kind for event in events] == kinds
    for event in events:
        record = decode_event_payload(event.event_kind, event.payload)
        assert isinstance(record, SnapshotRecord)
        assert (record.kind, record.id) == (event.object.kind, event.object.id)
        assert (record.revision, record.schema_version, event.schema) == (event.object_revision, 1, 1)


@pytest.mark.req("P8-14", "P8-09", "P8-12")
def test_a_retry_returns_the_stored_result_and_makes_nothing(world: World, client: Client) -> None:
    command = client.create(1)
    first = client.done(command).operation
    other = world.connect()
    for sender in (client, client, other):
        again = sender.create(1, operation=command.operation_id)
        assert sender.done(again).operation == first
    assert world.engine.stats().head_sequence == 2
    assert world.observer.count("command", CommandKind.CREATE_OBJECTIVE, "repeated") == 3


@pytest.mark.req("P8-09", "P8-14", "P8-17")
def test_a_retry_after_a_restart_returns_the_stored_result(world: World, client: Client) -> None:
    command = client.create(1)
    first = client.done(command).operation
    restarted = world.restart()
    again = restarted.connect()
    assert again.done(again.create(1, operation=command.operation_id)).operation == first
    assert restarted.engine.stats().head_sequence == 2


@pytest.mark.req("P8-09")
def test_equal_commands_have_one_digest_whatever_carries_them(world: World, client: Client) -> None:
    commands = [client.create(1), client.update(1), client.update(1, request=4_000)]
    for command in commands:
        client.done(command)
    restarted = world.restart()
    again = restarted.connect(2)
    commands.append(again.update(1))
    again.done(commands[-1])
    digests = [restarted.disk.operations[command.operation_id].digest for command in commands]
    assert len(set(digests)) == 2
    assert len(set(digests[1:])) == 1


@pytest.mark.req("P8-10", "P8-15")
@pytest.mark.parametrize("changed", ["kind", "payload", "preconditions", "extension", "principal", "unknown kind"])
def test_a_used_operation_id_with_anything_else_conflicts(world: World, client: Client, changed: str) -> None:
    command = client.create(1, b"secret document")
    client.done(command)
    sender, operation = client, command.operation_id
    if changed == "kind":
        frame = client.update(1, b"secret document", operation=operation)
    elif changed == "payload":
        frame = client.create(1, b"other", operation=operation)
    elif changed == "preconditions":
        frame = client.create(1, b"secret document", operation=operation, preconditions=[objective(1, 1)])
    elif changed == "extension":
        plain = client.create(1, b"secret document", operation=operation)
        frame = fr.CoordCommand.decode(plain.body() + b"\x07\x04\x03xyz")
    elif changed == "principal":
        sender = world.connect(2)
        frame = sender.create(1, b"secret document", operation=operation)
    else:
        frame = client.command(12, b"", operation=operation)
    sender.refused(frame, ErrorCode.OPERATION_CONFLICT)
    assert b"secret" not in sender.errors()[-1].message.encode()
    assert world.engine.stats().head_sequence == 2


@pytest.mark.req("P8-14", "P8-10", "P8-07")
def test_order_of_preconditions_is_no_change_and_unknown_fields_are(client: Client) -> None:
    client.done(client.create(1))
    client.done(client.create(2))
    held = [objective(1, 1), objective(2, 1)]
    plain = client.create(3, preconditions=held)
    first = client.done(plain).operation
    # Encoders sort; a peer that does not means the same (the two images are swapped by hand).
    image, swapped = (b"".join(entry.encode() for entry in order) for order in (held, held[::-1]))
    again = client.create(3, preconditions=held, operation=plain.operation_id)
    assert image in again.body()
    frame = fr.CoordCommand.decode(again.body().replace(image, swapped))
    assert client.done(frame).operation == first
    extended = client.create(3, preconditions=held, operation=plain.operation_id)
    client.refused(fr.CoordCommand.decode(extended.body() + b"\x63\x04\x00"), ErrorCode.OPERATION_CONFLICT)


@pytest.mark.req("P8-08", "P8-14", "P8-10")
def test_order_of_payload_fields_is_no_change_and_unknown_ones_are_part_of_it(client: Client) -> None:
    """The server digests the payload as it would encode it, with everything that it does not know in it."""
    body = client.create(1).payload
    parts = [body[:19], body[19:24], body[24:]]
    assert (parts[0][:3], parts[1][:3], parts[2][:2]) == (b"\x01\x04\x10", b"\x02\x04\x02", b"\x03\x04")
    unknown = b"\x63\x04\x01"
    plain = client.command(CommandKind.CREATE_OBJECTIVE, body + unknown + b"a")
    first = client.done(plain).operation
    shuffled = b"".join([parts[2], unknown + b"a", parts[0], parts[1]])
    same = client.command(CommandKind.CREATE_OBJECTIVE, shuffled, operation=plain.operation_id)
    assert same.payload == shuffled, "it is sent as it was put together"
    assert client.done(same).operation == first
    for other in (body, body + unknown + b"b"):
        changed = client.command(CommandKind.CREATE_OBJECTIVE, other, operation=plain.operation_id)
        client.refused(changed, ErrorCode.OPERATION_CONFLICT)


@pytest.mark.req("P8-05")
def test_absent_and_empty_preconditions_mean_the_same(client: Client) -> None:
    command = client.create(1)
    first = client.done(command).operation
    again = client.create(1, operation=command.operation_id)
    assert again.body() + b"\x06\x04\x02\x00\x00" != again.body()
    empty = fr.CoordCommand.decode(again.body() + b"\x06\x04\x02\x00\x00")
    assert client.done(empty).operation == first


@pytest.mark.req("P8-04", "P8-16")
@pytest.mark.parametrize("revisions", [(0, 0), (0, 5)])
def test_one_object_twice_in_the_preconditions_is_malformed(client: Client, revisions: tuple[int, int]) -> None:
    plain = client.create(1)
    pair = b"".join(objective(5, revision).encode() for revision in revisions)
    body = plain.body() + b"\x06\x04\x36\x00\x02" + pair
    with pytest.raises(MalformedMessage) as caught:
        fr.CoordCommand.decode(body)
    assert caught.value.fatal
    assert caught.value.request_id == plain.request_id
    assert client.one(client.lookup(plain.operation_id), fr.OperationResultFrame).operation == Unknown()


@pytest.mark.req("P8-16")
@pytest.mark.parametrize(
    ("existing", "expected", "holds"),
    [
        (False, 0, True),
        (False, 1, False),
        (True, 1, True),
        (True, 2, False),
        (True, 0, False),
    ],
)
def test_preconditions_hold_or_nothing_happens(client: Client, existing: bool, expected: int, holds: bool) -> None:
    if existing:
        client.done(client.create(5))
    command = client.create(1, preconditions=[objective(5, expected)])
    if holds:
        client.done(command)
        return
    client.refused(command, ErrorCode.REVISION_CONFLICT)
    assert client.one(client.lookup(command.operation_id), fr.OperationResultFrame).operation == Unknown()
    assert [record for record in client.snapshot() if record.id == id16(1)] == []


@pytest.mark.req("P8-16")
def test_a_finished_operation_is_not_judged_by_its_own_stale_preconditions(client: Client) -> None:
    client.done(client.create(1))
    command = client.update(1, preconditions=[objective(1, 1)])
    first = client.done(command).operation
    again = client.update(1, preconditions=[objective(1, 1)], operation=command.operation_id)
    assert client.done(again).operation == first


@pytest.mark.req("P8-16", "P8-13")
@pytest.mark.parametrize("reason", ["create existing", "update missing", "scope", "kind", "schema", "too large"])
def test_a_refused_command_leaves_no_row(world: World, reason: str) -> None:
    client = world.connect()
    client.done(client.create(1))
    before = world.engine.stats().head_sequence
    sender = client
    if reason == "create existing":
        frame, code = client.create(1), ErrorCode.REVISION_CONFLICT
    elif reason == "update missing":
        frame, code = client.update(2), ErrorCode.NOT_FOUND
    elif reason == "scope":
        sender = world.connect(2, scopes=Scope.WORK_READ)
        frame, code = sender.create(2), ErrorCode.SCOPE_DENIED
    elif reason == "kind":
        frame, code = client.command(12, b""), ErrorCode.CAPABILITY_REQUIRED
    elif reason == "schema":
        shape = pl.CreateObjective(objective_id=ObjectiveId(id16(2)), schema=2, document=b"")
        frame, code = client.command(1, shape.body()), ErrorCode.CAPABILITY_REQUIRED
    else:
        frame, code = client.create(2, bytes(HARD.typed_payload - 40)), ErrorCode.RESOURCE_EXHAUSTED
    sender.refused(frame, code)
    assert sender.one(sender.lookup(frame.operation_id), fr.OperationResultFrame).operation == Unknown()
    assert world.engine.stats().head_sequence == before
    assert world.disk.last_sequence == before


@pytest.mark.req("P7-26", "P7-24", "P5-17")
@pytest.mark.parametrize("kind", [kind for kind in CommandKind if COMMANDS[kind].run is None])
@pytest.mark.parametrize("capabilities", [0, 0x1F])
def test_gated_commands_are_refused_before_admission(world: World, kind: CommandKind, capabilities: int) -> None:
    client = world.connect(capabilities=capabilities)
    frame = client.command(kind, payload_of(kind))
    client.refused(frame, ErrorCode.CAPABILITY_REQUIRED)
    assert world.observer.count("command", kind, "capability_required") == 1
    assert client.one(client.lookup(frame.operation_id), fr.OperationResultFrame).operation == Unknown()


@pytest.mark.req("P7-26")
@pytest.mark.parametrize("kind", [12, 0, 65535])
def test_unknown_kinds_are_refused_before_admission(client: Client, kind: int) -> None:
    frame = client.command(kind, b"whatever")
    client.refused(frame, ErrorCode.CAPABILITY_REQUIRED)
    assert client.one(client.lookup(frame.operation_id), fr.OperationResultFrame).operation == Unknown()


@pytest.mark.parametrize("kind", [CommandKind.CANCEL_RUN, CommandKind.PAUSE_RUN, CommandKind.RESUME_RUN])
def test_no_run_is_found(client: Client, kind: CommandKind) -> None:
    payload = {"run_id": RunId(id16(1))}
    client.refused(client.command(kind, pl.COMMANDS[kind].build(payload).body()), ErrorCode.NOT_FOUND)


@pytest.mark.req("P7-26")
def test_a_malformed_payload_is_fatal_and_leaves_no_row(world: World, client: Client) -> None:
    frame = client.command(CommandKind.CREATE_OBJECTIVE, b"\x01\x04\x01\x00")
    client.fatal(frame, ErrorCode.MALFORMED_MESSAGE)
    other = world.connect()
    assert other.one(other.lookup(frame.operation_id), fr.OperationResultFrame).operation == Unknown()


def test_a_payload_above_the_selected_cap_is_fatal(world: World) -> None:
    small = Limits(8_192, 4_096, 16, 100, 16, 65_536)
    client = world.connect(selected=small)
    fits = client.create(1, b"x" * 60)
    assert len(fits.payload) <= 100
    client.done(fits)
    error = client.fatal(client.create(2, b"x" * 100), ErrorCode.FRAME_TOO_LARGE)
    assert error.request_id is not None


@pytest.mark.req("P8-17", "P8-13")
def test_nothing_is_answered_before_it_is_durable(world: World, client: Client) -> None:
    world.auto_commit = False
    command = client.create(1)
    client.send(command)
    lookup = client.lookup(command.operation_id)
    client.send(lookup)
    refusal = client.create(1)
    client.send(refusal)
    retry = client.create(1, operation=command.operation_id)
    client.send(retry)
    assert client.pull() == []
    batch = world.engine.take_batch(world.now)
    assert batch is not None
    assert client.pull() == []
    assert len(client.snapshot().records) == 0, "a snapshot shows the durable state only"
    world.disk.commit(batch)
    world.engine.batch_durable(batch, world.now)
    answers = client.pull()
    assert [getattr(answer, "request_id") for answer in answers] == [  # noqa: B009
        command.request_id,
        lookup.request_id,
        refusal.request_id,
        retry.request_id,
    ]
    assert [type(answer) for answer in answers] == [
        fr.CoordCommandResult,
        fr.OperationResultFrame,
        fr.CoordErrorFrame,
        fr.CoordCommandResult,
    ]


@pytest.mark.req("P8-13", "P8-17", "P14-08")
def test_one_batch_holds_operation_record_and_events_or_nothing_survives(world: World, client: Client) -> None:
    world.auto_commit = False
    command = client.create(1)
    client.send(command)
    batch = world.engine.take_batch(world.now)
    assert batch is not None
    assert [record.id for record in batch.records] == [id16(1)]
    assert [operation.id for operation in batch.operations] == [command.operation_id]
    assert [event.kind for event in batch.events] == [EventKind.OBJECTIVE_CHANGED, EventKind.OPERATION_CHANGED]
    assert batch.operations[0].principal == key(1)
    assert (batch.epoch, batch.activation_sequence) == (5, 7)
    # The process dies before the commit: the next one knows nothing of it.
    lost = world.restart().connect()
    assert lost.one(lost.lookup(command.operation_id), fr.OperationResultFrame).operation == Unknown()
    world.disk.commit(batch)
    kept = world.restart().connect()
    result = kept.one(kept.lookup(command.operation_id), fr.OperationResultFrame).operation
    assert isinstance(result, Succeeded)
    assert kept.done(kept.create(1, operation=command.operation_id)).operation == result
    assert world.disk.last_sequence == result.completed_event_sequence, "the reply that was lost made nothing twice"


def test_many_transactions_share_a_batch_up_to_its_bound() -> None:
    world = World(policy=Policy(batch_events=10))
    world.auto_commit = False
    client = world.connect()
    for number in range(1, 13):
        client.send(client.create(number))
    batches = []
    while (batch := world.engine.take_batch(world.now)) is not None:
        batches.append(batch)
    assert [len(batch.events) for batch in batches] == [10, 10, 4]
    assert [batch.last_sequence for batch in batches] == [10, 20, 24]
    with pytest.raises(ValueError, match="order"):
        world.engine.batch_durable(batches[1], world.now)
    for batch in batches:
        world.engine.batch_durable(batch, world.now)
    assert len(client.pull()) == 12


@pytest.mark.req("P8-15", "P8-12")
def test_another_principal_never_learns_a_result(world: World, client: Client) -> None:
    command = client.create(1)
    client.done(command)
    stranger = world.connect(2, scopes=Scope.WORK_READ | Scope.WORK_COMMAND)
    stranger.refused(stranger.create(1, operation=command.operation_id), ErrorCode.OPERATION_CONFLICT)
    assert stranger.one(stranger.lookup(command.operation_id), fr.OperationResultFrame).operation == Unknown()


def test_a_retry_whose_scopes_no_longer_show_the_operation_finds_nothing(world: World, client: Client) -> None:
    command = client.create(1)
    client.done(command)
    blind = world.connect(scopes=Scope.SIGNAL_ACK)
    blind.refused(blind.create(1, operation=command.operation_id), ErrorCode.NOT_FOUND)


def test_a_commander_without_read_creates_and_updates(world: World) -> None:
    commander = world.connect(scopes=Scope.WORK_COMMAND)
    command = commander.create(1)
    commander.done(command)
    commander.done(commander.update(1))
    assert isinstance(
        commander.one(commander.lookup(command.operation_id), fr.OperationResultFrame).operation, Succeeded
    )
    # An object that it can not see is absent for its preconditions.
    commander.refused(commander.update(1, preconditions=[objective(1, 2)]), ErrorCode.REVISION_CONFLICT)
    commander.done(commander.update(1, preconditions=[objective(1, 0)]))


def test_a_tombstone_answers_the_same_command_and_conflicts_with_another(world: World, client: Client) -> None:
    command = client.create(1)
    client.done(command)
    world.advance(world.policy.retention_seconds)
    again = client.create(1, operation=command.operation_id)
    assert isinstance(client.done(again).operation, Tombstoned)
    client.refused(client.create(1, b"other", operation=command.operation_id), ErrorCode.OPERATION_CONFLICT)
