"""Commands and lookups that wait for their turn: whose comes first, what ends them, when no batch is taken."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sidecar.base.clock import Now
from sidecar.coordinator.authority.grants import KeyRecord, Registry
from sidecar.coordinator.engine.policy import Policy
from sidecar.coordinator.engine.runtime import LEASE_MARGIN, Fenced
from sidecar.coordinator.engine.state import Batch
from sidecar.coordinator.wire import frames as fr
from sidecar.coordinator.wire.enums import ErrorCode
from sidecar.coordinator.wire.errors import ProtocolViolation
from sidecar.coordinator.wire.limits import QUOTAS, QuotaCaps
from sidecar.coordinator.wire.records import ActivationCertificate, Succeeded, Unknown
from tests.unit.engine.fakes import START, FakeAuthority, key
from tests.unit.engine.harness import Client, World, id16

REQUESTS = QUOTAS["requests"]


@pytest.fixture
def world() -> World:
    world = World()
    world.auto_commit = False
    return world


def taken(world: World) -> Batch:
    batch = world.engine.take_batch(world.now)
    assert batch is not None
    return batch


def settle(world: World, batch: Batch) -> None:
    world.disk.commit(batch)
    world.engine.batch_durable(batch, world.now)


def flood(world: World, principal: int = 1, document: bytes = b"d") -> list[Client]:
    """Connections of one principal with all the requests that it may have open, each a command of its own."""
    assert REQUESTS.connection is not None
    assert REQUESTS.principal is not None
    clients = [world.connect(principal) for _ in range(REQUESTS.principal // REQUESTS.connection)]
    for at, client in enumerate(clients):
        for number in range(REQUESTS.connection):
            client.send(client.create(10_000 * principal + 1_000 * at + number + 1, document))
    return clients


# ---- turns ----


@pytest.mark.req("P14-14")
@pytest.mark.parametrize("document", [b"d", b"d" * 100_000], ids=["small", "large"])
def test_a_newcomer_is_in_the_next_batch_whatever_another_principal_has_waiting(world: World, document: bytes) -> None:
    flood(world, document=document)
    on_its_way = taken(world)
    newcomer = world.connect(2)
    command = newcomer.create(1)
    newcomer.send(command)
    settle(world, on_its_way)
    own = taken(world)
    assert command.operation_id in [operation.id for operation in own.operations]
    assert len(own.operations) > 1, "the others have their turns too"
    settle(world, own)
    assert [type(frame) for frame in newcomer.pull()] == [fr.CoordCommandResult]
    assert world.engine.stats().backlog > 100


@pytest.mark.req("P14-14")
def test_principals_share_a_batch_evenly(world: World) -> None:
    for principal in range(1, 5):
        flood(world, principal)
    share = [operation.principal for operation in taken(world).operations]
    counts = [share.count(key(principal)) for principal in range(1, 5)]
    assert sum(counts) == world.policy.batch_events // 2
    assert max(counts) - min(counts) <= 1


@pytest.mark.req("P14-14")
def test_large_commands_of_one_weigh_as_much_as_small_ones_of_another(world: World) -> None:
    flood(world, 1, b"d" * 40_000)
    flood(world, 2, b"d")
    operations = taken(world).operations
    small = sum(operation.principal == key(2) for operation in operations)
    large = len(operations) - small
    assert small > 5 * large > 0


def test_one_batch_is_filled_and_no_more_is_executed(world: World) -> None:
    flood(world)
    before = world.engine.stats()
    assert (before.backlog, before.pending, before.head_sequence) == (512, 512, 0)
    batch = taken(world)
    assert len(batch.events) == world.policy.batch_events
    after = world.engine.stats()
    assert (after.backlog, after.pending) == (512 - len(batch.operations), 512)
    assert after.head_sequence == batch.last_sequence


def test_a_batch_is_full_by_bytes_too(world: World) -> None:
    flood(world, document=b"d" * 100_000)
    batch = taken(world)
    nbytes = sum(len(event.payload) for event in batch.events)
    assert world.policy.batch_bytes - 110_000 < nbytes < world.policy.batch_bytes + 110_000


def test_a_turn_of_lookups_is_bounded_and_says_that_there_is_more(world: World) -> None:
    client = world.connect()
    for _ in range(world.policy.batch_events):
        client.send(client.lookup(id16(1)))
    other = world.connect()
    for _ in range(10):
        other.send(other.lookup(id16(1)))
    assert world.engine.take_batch(world.now) is None
    assert world.engine.stats().backlog == 10
    assert world.engine.can_take(world.now)
    assert world.engine.take_batch(world.now) is None
    assert not world.engine.can_take(world.now)
    assert not world.engine.waiting
    assert len(client.pull()) == world.policy.batch_events
    assert len(other.pull()) == 10


def test_the_order_of_one_connection_is_kept(world: World) -> None:
    client = world.connect()
    first, second = client.create(1), client.update(1)
    frames: list[fr.CoordCommand | fr.GetOperationResult] = [
        client.lookup(first.operation_id),
        first,
        second,
        client.lookup(first.operation_id),
        client.create(1),
    ]
    for frame in frames:
        client.send(frame)
    world.commit()
    answers = client.pull()
    assert [getattr(answer, "request_id") for answer in answers] == [frame.request_id for frame in frames]  # noqa: B009
    before, _, _, after, refused = answers
    assert isinstance(before, fr.OperationResultFrame)
    assert before.operation == Unknown()
    assert isinstance(after, fr.OperationResultFrame)
    assert isinstance(after.operation, Succeeded)
    assert isinstance(refused, fr.CoordErrorFrame)
    assert refused.code is ErrorCode.REVISION_CONFLICT


def test_the_wait_is_told(world: World) -> None:
    client = world.connect()
    client.send(client.create(1))
    world.advance(0.25)
    client.send(client.lookup(id16(1)))
    world.commit()
    assert [call[1] for call in world.observer.calls if call[0] == "command_wait"] == [0.25, 0.0]


# ---- what ends it ----


def remaining(principal: int) -> Registry:
    return Registry((KeyRecord(bytes(32), key(principal), "phux-coordinator", 0x3F, 2**40),), 2)


@pytest.mark.req("P6-07", "W8-07", "P3-50")
@pytest.mark.parametrize("end", ["revoked", "expired"])
def test_work_that_waits_when_its_grant_ends_has_no_effect(world: World, end: str) -> None:
    client, other = world.connect(1, expires_in=100), world.connect(2)
    client.send(client.create(1))
    client.send(client.lookup(id16(1)))
    other.send(other.create(2))
    if end == "revoked":
        world.engine.set_registry(remaining(2), world.now)
    else:
        # Nothing but the check right before the transaction sees it.
        world.advance(100, tick=False)
    assert world.commit() == 1
    assert [id_ for _, id_ in world.disk.records if id_ in (id16(1), id16(2))] == [id16(2)]
    assert [(type(frame), getattr(frame, "code", None)) for frame in client.pull()] == [
        (fr.CoordErrorFrame, ErrorCode.AUTHENTICATION_FAILED)
    ]
    assert [type(frame) for frame in other.pull()] == [fr.CoordCommandResult]
    client.detach()
    other.detach()
    assert world.used() == {}


@pytest.mark.req("P3-50")
def test_work_of_a_connection_that_is_gone_is_dropped_and_its_requests_are_free(world: World) -> None:
    leaving, staying = world.connect(1), world.connect(1)
    leaving.send(leaving.create(1))
    staying.send(staying.create(2))
    leaving.send(leaving.lookup(id16(1)))
    leaving.detach()
    assert world.engine.stats().backlog == 1
    assert world.used() == {"connections": 1, "requests": 1}
    batch = taken(world)
    assert [record.id for record in batch.records] == [id16(2)]
    settle(world, batch)
    staying.pull()
    assert world.used() == {"connections": 1}


@pytest.mark.req("P12-17")
def test_a_fence_drops_what_waits_and_answers_none_of_it(world: World) -> None:
    client, closing = world.connect(1), world.connect(2)
    client.send(client.create(1))
    closing.send(closing.create(2))
    closing.conn.close(ProtocolViolation("on its way out"))
    world.engine.fence("the store lock was lost")
    assert world.engine.stats().backlog == 0
    assert not world.engine.can_take(world.now)
    with pytest.raises(Fenced):
        world.engine.take_batch(world.now)
    assert [getattr(frame, "code", None) for frame in client.pull()] == [ErrorCode.AUTHORITY_FENCED]


@pytest.mark.req("W8-10")
def test_work_of_a_connection_that_is_closing_has_no_effect(world: World) -> None:
    client = world.connect()
    client.send(client.create(1))
    client.conn.close(ProtocolViolation("on its way out"))
    assert world.engine.take_batch(world.now) is None
    assert (world.engine.stats().backlog, world.engine.stats().head_sequence) == (0, 0)
    client.detach()
    assert world.used() == {}


@pytest.mark.req("P13-05", "P7-26")
def test_a_malformed_payload_ends_the_connection_at_once_and_what_waited_before_it(world: World) -> None:
    client = world.connect()
    client.send(client.create(1))
    client.fatal(client.command(1, b"\x01\x04\x00"), ErrorCode.MALFORMED_MESSAGE)
    assert world.engine.take_batch(world.now) is None
    assert world.used() == {}


@pytest.mark.req("P13-05")
@pytest.mark.parametrize("error", [ProtocolViolation("fatal"), RuntimeError("a bug")])
def test_what_goes_wrong_in_a_turn_ends_that_connection_and_no_other(world: World, error: Exception) -> None:
    client, other = world.connect(1), world.connect(2)
    run = world.engine._transactions.command

    def broken(conn: object, command: object) -> object:
        if conn is client.conn:
            raise error
        return run(conn, command)  # type: ignore[arg-type]

    world.engine._transactions.command = broken  # type: ignore[assignment,method-assign]
    client.send(client.create(1, request=7))
    client.send(client.create(2))
    other.send(other.create(3))
    if isinstance(error, RuntimeError):
        with pytest.raises(RuntimeError, match="a bug"):
            world.commit()
    assert world.commit() == 1
    code = ErrorCode.INTERNAL if isinstance(error, RuntimeError) else ErrorCode.PROTOCOL_ERROR
    assert client.conn.closing is code
    assert [(type(frame), getattr(frame, "code", None)) for frame in client.pull()] == [(fr.CoordErrorFrame, code)]
    assert [type(frame) for frame in other.pull()] == [fr.CoordCommandResult]
    client.detach()
    assert world.used() == {"connections": 1}


# ---- back-pressure ----


@pytest.mark.parametrize(("short", "congested"), [(1, False), (0, True), (-1, True)])
def test_a_batch_of_waiting_payload_is_as_much_as_a_connection_may_have(
    world: World, short: int, congested: bool
) -> None:
    client, other = world.connect(1), world.connect(1)
    for number in range(1, 5):
        client.send(client.create(number, bytes(200_000)))
    overhead = len(client.create(9, bytes(200_000)).payload) - 200_000
    rest = world.policy.batch_bytes - client.conn.backlog_bytes - overhead - short
    client.send(client.create(5, bytes(rest)))
    assert client.conn.congested is congested
    assert not other.conn.congested
    client.pull()
    wakes = client.wakes
    world.commit()
    assert client.conn.backlog_bytes == 0
    assert not client.conn.congested
    assert client.wakes > wakes


def test_the_transport_is_woken_before_the_disk_answers() -> None:
    world = World(policy=Policy(batch_bytes=1_000))
    world.auto_commit = False
    client = world.connect()
    client.send(client.create(1, bytes(2_000)))
    assert client.conn.congested
    wakes = client.wakes
    taken(world)
    assert client.wakes == wakes + 1
    assert not client.conn.congested


# ---- the end of a certificate ----


class Lease(FakeAuthority):
    """An activation whose certificate says how long it lasts at all."""

    life = 60

    @property
    def certificate(self) -> ActivationCertificate:
        certificate = super().certificate
        return replace(certificate, issued_at=certificate.expires_at - self.life)


class ShortLease(Lease):
    life = 5


@pytest.mark.req("P12-16")
@pytest.mark.parametrize("clock", ["wall", "mono"])
@pytest.mark.parametrize(("kind", "margin"), [(Lease, LEASE_MARGIN), (ShortLease, 0.5)])
@pytest.mark.parametrize(("beyond", "takes"), [(-0.01, True), (0.0, True), (0.01, False)])
def test_no_batch_is_taken_in_the_last_moments_of_a_certificate(
    clock: str, kind: type[Lease], margin: float, beyond: float, takes: bool
) -> None:
    # Times that a float holds exactly, so that the limit is met to the bit.
    start = Now(1_024.0, 2_048.0)
    authority = kind(
        wall_expiry=start.wall + (kind.life if clock == "wall" else 10_000),
        deadline_mono=start.mono + (kind.life if clock == "mono" else 10_000),
    )
    world = World(authority=authority, now=start)
    world.auto_commit = False
    client = world.connect(expires_in=10_000)
    expiry = start.wall + kind.life if clock == "wall" else start.mono + kind.life
    moment = expiry - margin + beyond
    world.now = Now(moment, start.mono) if clock == "wall" else Now(start.wall, moment)
    client.send(client.create(1))
    client.send(client.lookup(id16(1)))
    assert world.engine.can_take(world.now) is takes
    batch = world.engine.take_batch(world.now)
    assert (batch is not None) is takes
    assert world.engine.waiting is not takes
    if not takes:
        assert client.pull() == [], "nothing is executed either"
        longer = replace(authority, wall_expiry=start.wall + 20_000, deadline_mono=start.mono + 20_000)
        world.engine.renew(longer)
        assert world.commit() == 1
        assert len([frame for frame in client.pull() if not isinstance(frame, fr.AuthorityRenewed)]) == 2


@pytest.mark.req("P12-16", "P12-17")
def test_what_waited_for_a_renewal_that_never_came_is_not_committed() -> None:
    world = World(authority=Lease(wall_expiry=START.wall + 60))
    world.auto_commit = False
    client = world.connect()
    world.advance(59.5)
    client.send(client.create(1))
    assert world.engine.take_batch(world.now) is None
    world.advance(0.5, tick=False)
    with pytest.raises(Fenced):
        world.engine.take_batch(world.now)
    assert world.disk.last_sequence == 0


@pytest.mark.req("P3-47", "P3-48")
def test_pending_operations_are_charged_in_a_turn_and_not_before() -> None:
    world = World(policy=Policy(quotas={"pending_operations": QuotaCaps(None, 2, 3)}))
    world.auto_commit = False
    first, second = world.connect(1), world.connect(2)
    for number in range(1, 5):
        first.send(first.create(number))
    second.send(second.create(11))
    second.send(second.create(12))
    assert "pending_operations" not in world.used()
    batch = taken(world)
    assert world.used()["pending_operations"] == 3
    assert [operation.principal for operation in batch.operations] == [key(1), key(2), key(1)]
    settle(world, batch)
    assert [type(frame) for frame in first.pull()] == [fr.CoordCommandResult] * 2 + [fr.CoordErrorFrame] * 2
    assert [type(frame) for frame in second.pull()] == [fr.CoordCommandResult, fr.CoordErrorFrame]
