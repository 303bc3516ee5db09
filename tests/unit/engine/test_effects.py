"""START_RUN becomes exactly one SPAWN, and is refused as long as nobody carries it out (P8-24..27)."""

from __future__ import annotations

import pytest

from sidecar.coordinator.engine.effects import spawn_of
from sidecar.coordinator.wire import frames as fr
from sidecar.coordinator.wire.digests import effect_digest_of
from sidecar.coordinator.wire.enums import CommandKind, EffectKind, EffectState, ErrorCode, Scope
from sidecar.coordinator.wire.errors import LocalProtocolError
from sidecar.coordinator.wire.ids import (
    BindingId,
    EffectAttemptId,
    Fingerprint,
    IncarnationId,
    ObjectiveId,
    OperationId,
    PendingBindingId,
    RunId,
    WorkSessionId,
)
from sidecar.coordinator.wire.limits import MAX_GROUP_ID
from sidecar.coordinator.wire.payloads import EndBinding, StartRun
from sidecar.coordinator.wire.records import (
    ActiveBinding,
    EffectAttempt,
    EffectTarget,
    GroupId,
    LocalResource,
    SpawnPayload,
    TerminalBindingRef,
    Unknown,
    encode_target,
)
from tests.unit.engine.harness import World, id16
from tests.vectors.inputs import VECTORS

GOLDEN = bytes.fromhex(VECTORS["START_RUN payload"])


def attempt(kind: EffectKind, target: EffectTarget, payload: bytes) -> EffectAttempt:
    return EffectAttempt(
        EffectAttemptId(id16(1)), OperationId(id16(2)), kind, target, bytes(32), payload, EffectState.READY
    )


@pytest.mark.req("P8-25", "P8-27")
def test_the_golden_start_run_is_the_golden_spawn() -> None:
    target, payload = spawn_of(StartRun.decode(GOLDEN))
    assert encode_target(target).hex() == VECTORS["SPAWN target"]
    assert payload.encode().hex() == VECTORS["SPAWN payload"]
    assert effect_digest_of(attempt(EffectKind.SPAWN, target, payload.encode())).hex() == VECTORS["EF-A digest (SPAWN)"]


@pytest.mark.req("P8-25")
def test_every_field_has_its_own_place() -> None:
    command = StartRun(
        objective_id=ObjectiveId(id16(1)),
        run_id=RunId(id16(2)),
        work_session_id=WorkSessionId(id16(3)),
        executor_schema=4,
        executor_document=b"five",
        pending_binding_id=PendingBindingId(id16(6)),
        owner_authority_fingerprint=Fingerprint(b"\x07" * 32),
        owner_incarnation=IncarnationId(id16(8)),
        terminal_group=GroupId(9),
    )
    target, payload = spawn_of(command)
    assert (target.pending_binding_id, target.owner_authority_fingerprint) == (id16(6), b"\x07" * 32)
    assert (target.owner_incarnation, target.group) == (id16(8), GroupId(9))
    assert payload == SpawnPayload(WorkSessionId(id16(3)), 4, b"five")
    # Objective and run are the coordinator's own: another run of the same work is the same effect.
    other = StartRun.build({**{item.name: getattr(command, item.name) for item in StartRun.FIELDS}, "run_id": id16(77)})
    assert spawn_of(other) == (target, payload)


@pytest.mark.req("P8-26")
def test_spawn_takes_no_active_binding_and_the_others_take_nothing_else() -> None:
    pending, payload = spawn_of(StartRun.decode(GOLDEN))
    active = ActiveBinding(
        TerminalBindingRef(
            BindingId(id16(6)),
            WorkSessionId(id16(3)),
            pending.owner_authority_fingerprint,
            pending.owner_incarnation,
            LocalResource(1),
        )
    )
    for kind, target, content in (
        (EffectKind.SPAWN, active, payload.encode()),
        (EffectKind.KILL, pending, b""),
        (EffectKind.PROCESS_SIGNAL, pending, b"\x01"),
    ):
        with pytest.raises(LocalProtocolError, match="target"):
            attempt(kind, target, content).encode()
    for kind, target, content in (
        (EffectKind.SPAWN, pending, payload.encode()),
        (EffectKind.KILL, active, b""),
        (EffectKind.PROCESS_SIGNAL, active, b"\x01"),
    ):
        made = attempt(kind, target, content)
        assert EffectAttempt.decode(made.encode()) == made


def with_group(group: bytes) -> bytes:
    """The golden payload with other bytes as its terminal group, the last field."""
    last = bytes.fromhex("0904080000000400000001")
    assert GOLDEN.endswith(last)
    value = len(group).to_bytes(4, "big") + group
    size = len(value)
    length = bytes([size]) if size < 128 else bytes([size & 0x7F | 0x80, size >> 7])
    return GOLDEN[: -len(last)] + b"\x09\x04" + length + value


@pytest.mark.req("P8-24", "P7-26")
@pytest.mark.parametrize("size", [0, 3, 5, MAX_GROUP_ID - 1, MAX_GROUP_ID, MAX_GROUP_ID + 1])
def test_a_group_that_is_no_canonical_group_id_is_malformed(size: int) -> None:
    world = World()
    client = world.connect(capabilities=0x1F)
    client.fatal(client.command(CommandKind.START_RUN, with_group(bytes(size))), ErrorCode.MALFORMED_MESSAGE)
    assert world.commit() == 0


@pytest.mark.req("P6-11", "P5-17", "P7-26")
@pytest.mark.parametrize("kind", [CommandKind.START_RUN, CommandKind.END_BINDING])
@pytest.mark.parametrize("scopes", [0x3F, int(Scope.WORK_COMMAND)])
@pytest.mark.parametrize("capabilities", [0, 0x1F])
def test_delegation_stays_gated(kind: CommandKind, scopes: int, capabilities: int) -> None:
    world = World()
    client = world.connect(scopes=scopes, capabilities=capabilities)
    end = EndBinding.build({"binding_id": id16(6), "reason": 0}).body()
    frame = client.command(kind, with_group(bytes(4)) if kind is CommandKind.START_RUN else end)
    client.refused(frame, ErrorCode.CAPABILITY_REQUIRED)
    assert client.one(client.lookup(frame.operation_id), fr.OperationResultFrame).operation == Unknown()
