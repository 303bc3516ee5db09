"""The asyncio shell: lost replies, reconnects, back-pressure, timeouts, over a real Unix socket."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest

from sidecar.coordinator import client_events as ev
from sidecar.coordinator.client import CoordinatorClient, ReconnectPolicy
from sidecar.coordinator.client_errors import (
    AuthorityChanged,
    CannotConnect,
    ConnectionLost,
    ContinuityLost,
    OutcomeUnknown,
    VerificationFailed,
)
from sidecar.coordinator.client_trust import Pins
from sidecar.coordinator.wire import frames as fr
from sidecar.coordinator.wire.enums import CommandKind, ErrorCode
from sidecar.coordinator.wire.errors import LocalProtocolError, RevisionConflict, StaleAuthority
from sidecar.coordinator.wire.ids import EventCut, ObjectiveId, OperationId
from sidecar.coordinator.wire.records import Indeterminate, OperationResult, Succeeded, Unknown
from tests.oracles.fake_endpoint import FakeEndpoint
from tests.oracles.fake_server import Rewrite, World, altered, object_id, objective, seed
from tests.unit.client.rig import WORKLOAD, changing

OP = OperationId(b"\x88" * 16)
THRICE = ReconnectPolicy(attempts=3, first_delay=0.001)


async def connected(endpoint: FakeEndpoint, **options: Any) -> CoordinatorClient:
    values = {"pins": Pins(), "witness": endpoint.world.pin, "reconnect": THRICE, **options}
    return await CoordinatorClient.connect(endpoint.path, WORKLOAD, **values)


def losing(endpoint: FakeEndpoint, shape: type[fr.Frame], connections: tuple[int, ...]) -> None:
    """On these connections the server does its work and dies before it says so."""

    def behave(number: int) -> Rewrite | None:
        if number not in connections:
            return None

        def die(frame: fr.Frame) -> None:
            endpoint.servers[number - 1].closed = True

        return changing(shape, die)

    endpoint.behave = behave


# -- lost replies ------------------------------------------------------------------------------------------------------


@pytest.mark.req("P8-37", "P8-38")
@pytest.mark.asyncio
async def test_a_lost_reply_is_looked_up_by_the_same_id(endpoint: FakeEndpoint) -> None:
    losing(endpoint, fr.CoordCommandResult, (1,))
    async with await connected(endpoint) as client:
        outcome = await client.create_objective(b"{}", objective=ObjectiveId(object_id(1)), operation=OP)
    assert outcome.recovered
    assert outcome.operation_id == OP
    assert isinstance(outcome.result, Succeeded)
    assert [lookup.operation_id for lookup in endpoint.world.lookups] == [OP]
    assert [command.operation_id for command in endpoint.world.commands] == [OP]
    assert len(endpoint.world.events) == 1


@pytest.mark.req("P8-38", "P8-39")
@pytest.mark.asyncio
async def test_an_unknown_operation_is_sent_again_unchanged_under_its_id(endpoint: FakeEndpoint) -> None:
    arrived: list[fr.CoordCommand] = []
    async with await connected(endpoint) as client:
        server = endpoint.servers[0]

        def die_before_work(command: fr.CoordCommand) -> None:
            arrived.append(command)
            server.closed = True

        server._on_command = die_before_work  # type: ignore[method-assign]
        outcome = await client.create_objective(b'{"a":1}', operation=OP)
    assert outcome.recovered
    (sent_again,) = endpoint.world.commands
    (first,) = arrived
    for name in ("operation_id", "command_kind", "payload", "preconditions"):
        assert getattr(sent_again, name) == getattr(first, name)
    assert len(endpoint.world.lookups) == 1


@pytest.mark.req("P8-39", "P13-07")
@pytest.mark.asyncio
async def test_without_a_reconnect_policy_the_outcome_is_unknown_and_nothing_more_is_sent(
    endpoint: FakeEndpoint,
) -> None:
    losing(endpoint, fr.CoordCommandResult, (1,))
    client = await connected(endpoint, reconnect=ReconnectPolicy())
    with pytest.raises(OutcomeUnknown) as caught:
        await client.create_objective(b"{}", operation=OP)
    assert caught.value.operation_id == OP
    assert OP.hex() in str(caught.value)
    assert len(endpoint.servers) == 1
    assert len(endpoint.world.commands) == 1
    await client.close()


@pytest.mark.req("P8-37", "P8-39")
@pytest.mark.asyncio
async def test_when_every_lookup_is_lost_too_the_outcome_is_unknown(endpoint: FakeEndpoint) -> None:
    def behave(number: int) -> Rewrite | None:
        def die(frame: fr.Frame) -> fr.Frame | None:
            if isinstance(frame, fr.CoordCommandResult | fr.OperationResultFrame):
                endpoint.servers[number - 1].closed = True
                return None
            return frame

        return die

    endpoint.behave = behave
    client = await connected(endpoint)
    with pytest.raises(OutcomeUnknown):
        await client.create_objective(b"{}", operation=OP)
    assert len(endpoint.world.lookups) == 3
    assert len(endpoint.world.commands) == 1
    await client.close()


@pytest.mark.req("P8-39")
@pytest.mark.asyncio
@pytest.mark.parametrize("result", [Indeterminate.decode(b"\x03\x00\x00"), Unknown()], ids=["indeterminate", "unknown"])
async def test_an_open_outcome_is_an_answer_and_starts_nothing(endpoint: FakeEndpoint, result: OperationResult) -> None:
    endpoint.behave = lambda number: changing(fr.CoordCommandResult, lambda reply: altered(reply, operation=result))
    async with await connected(endpoint) as client:
        outcome = await client.create_objective(b"{}", operation=OP)
        assert outcome.result == result
        assert not outcome.recovered
        endpoint.world.operations[OP] = result
        assert await client.operation(OP) == result
    assert len(endpoint.world.commands) == 1
    assert len(endpoint.servers) == 1


@pytest.mark.req("P8-38", "P12-31")
@pytest.mark.asyncio
async def test_after_a_restart_continuity_is_established_by_a_snapshot_before_anything_is_sent_again(
    endpoint: FakeEndpoint,
) -> None:
    world, order = endpoint.world, []

    def behave(number: int) -> Rewrite | None:
        if number == 1:

            def restart(reply: fr.Frame) -> None:
                endpoint.servers[0].closed = True
                world.operations.clear()
                world.restart()

            return changing(fr.CoordCommandResult, restart)

        def note(frame: fr.Frame) -> fr.Frame:
            order.append(type(frame))
            return frame

        return note

    endpoint.behave = behave
    pins = Pins()
    async with await connected(endpoint, pins=pins) as client:
        outcome = await client.create_objective(b"{}", operation=OP)
        assert outcome.recovered
        assert client.welcome.standing.epoch == 6
    assert order[:2] == [fr.WorkloadChallenge, fr.CoordHelloOk]
    assert order.index(fr.SnapshotEnd) < order.index(fr.OperationResultFrame) < order.index(fr.CoordCommandResult)
    (pin,) = pins.pins
    assert pin.current.epoch == 6


@pytest.mark.req("P8-38", "W2-09")
@pytest.mark.asyncio
async def test_a_changed_authority_gets_neither_lookup_nor_resend(endpoint: FakeEndpoint) -> None:
    losing(endpoint, fr.CoordCommandResult, (1,))
    client = await connected(endpoint)
    first = endpoint.servers[0]
    world = World(authority=seed(0x31))
    world.admit(WORKLOAD)
    endpoint.world = world
    with pytest.raises(OutcomeUnknown) as caught:
        await client.create_objective(b"{}", operation=OP)
    assert isinstance(caught.value.__cause__, AuthorityChanged)
    assert world.commands == []
    assert world.lookups == []
    assert len(first.world.commands) == 1
    await client.close()


@pytest.mark.asyncio
async def test_a_refusal_of_the_resend_is_told_as_such(endpoint: FakeEndpoint) -> None:
    def behave(number: int) -> Rewrite | None:
        def refuse(reply: fr.CoordCommandResult) -> fr.CoordErrorFrame | None:
            if number == 1:
                endpoint.servers[0].closed = True
                endpoint.world.operations.clear()
                return None
            return fr.CoordErrorFrame(request_id=reply.request_id, code=ErrorCode.REVISION_CONFLICT, message="")

        return changing(fr.CoordCommandResult, refuse)

    endpoint.behave = behave
    async with await connected(endpoint) as client:
        with pytest.raises(RevisionConflict):
            await client.create_objective(b"{}", operation=OP)


@pytest.mark.req("P13-07")
@pytest.mark.asyncio
async def test_a_server_that_does_not_answer_is_left_and_the_outcome_looked_up(endpoint: FakeEndpoint) -> None:
    endpoint.behave = lambda number: changing(fr.CoordCommandResult, lambda reply: None) if number == 1 else None
    async with await connected(endpoint, patience=0.2) as client:
        outcome = await client.create_objective(b"{}", operation=OP)
        assert outcome.recovered
        assert isinstance(outcome.result, Succeeded)
    assert len(endpoint.world.commands) == 1


@pytest.mark.asyncio
async def test_many_commands_in_flight_recover_over_one_new_connection(endpoint: FakeEndpoint) -> None:
    served = 0

    def behave(number: int) -> Rewrite | None:
        def die(reply: fr.CoordCommandResult) -> fr.CoordCommandResult | None:
            nonlocal served
            served += 1
            if served < 10:
                return reply
            endpoint.servers[0].closed = True
            return None

        return changing(fr.CoordCommandResult, die) if number == 1 else None

    endpoint.behave = behave
    async with await connected(endpoint, max_in_flight=64) as client:
        outcomes = await asyncio.gather(*(client.create_objective(b"{}") for _ in range(40)))
    assert len({outcome.operation_id for outcome in outcomes}) == 40
    assert all(isinstance(outcome.result, Succeeded) for outcome in outcomes)
    assert len(endpoint.servers) == 2
    assert len(endpoint.world.events) == 40


# -- connecting --------------------------------------------------------------------------------------------------------


@pytest.mark.req("P1-08", "P1-09")
@pytest.mark.asyncio
async def test_no_endpoint_is_an_explicit_error(tmp_path: Path) -> None:
    with pytest.raises(CannotConnect, match="no\\.sock"):
        await CoordinatorClient.connect(tmp_path / "no.sock", WORKLOAD, pins=Pins(), witness=World().pin)
    assert os.listdir(tmp_path) == []


@pytest.mark.asyncio
async def test_the_policy_waits_for_a_server_that_comes_up(endpoint: FakeEndpoint) -> None:
    await endpoint.stop()
    waiting = asyncio.ensure_future(connected(endpoint, reconnect=ReconnectPolicy(attempts=1000, first_delay=0.001)))
    await asyncio.sleep(0)
    async with endpoint, await waiting as client:
        assert client.welcome.standing.epoch == 5


@pytest.mark.asyncio
async def test_verification_failures_are_never_retried(endpoint: FakeEndpoint) -> None:
    endpoint.behave = lambda number: changing(
        fr.WorkloadChallenge, lambda challenge: altered(challenge, authority_proof=bytes(64))
    )
    with pytest.raises(VerificationFailed):
        await connected(endpoint)
    assert len(endpoint.servers) == 1


@pytest.mark.req("P9-16")
@pytest.mark.asyncio
async def test_a_lie_is_told_to_who_asked_and_a_command_beside_it_is_recovered(endpoint: FakeEndpoint) -> None:
    def behave(number: int) -> Rewrite | None:
        def lie(frame: fr.Frame) -> fr.Frame | None:
            if number == 1 and isinstance(frame, fr.SnapshotEnd):
                return altered(frame, canonical_sha256=bytes(32))
            return None if number == 1 and isinstance(frame, fr.CoordCommandResult) else frame

        return lie

    endpoint.behave = behave
    async with await connected(endpoint) as client:
        command = asyncio.ensure_future(client.create_objective(b"{}", operation=OP))
        await endpoint.received(fr.CoordCommand)
        with pytest.raises(VerificationFailed):
            await client.snapshot()
        outcome = await command
    assert outcome.recovered
    assert isinstance(outcome.result, Succeeded)
    assert len(endpoint.world.commands) == 1


@pytest.mark.asyncio
async def test_a_silent_server_is_given_up(endpoint: FakeEndpoint) -> None:
    endpoint.behave = lambda number: lambda frame: None
    with pytest.raises(CannotConnect):
        await connected(endpoint, patience=0.1, reconnect=ReconnectPolicy())


@pytest.mark.asyncio
async def test_questions_are_asked_again_on_a_new_connection(endpoint: FakeEndpoint) -> None:
    losing(endpoint, fr.SnapshotEnd, (1,))
    endpoint.world.put(objective(1))
    async with await connected(endpoint) as client:
        snapshot = await client.snapshot()
        assert snapshot.record_count == 1
        assert await client.operation(OP) == Unknown()
    assert len(endpoint.servers) == 2


@pytest.mark.asyncio
async def test_a_question_without_policy_ends_with_the_connection(endpoint: FakeEndpoint) -> None:
    losing(endpoint, fr.SnapshotEnd, (1,))
    async with await connected(endpoint, reconnect=ReconnectPolicy()) as client:
        with pytest.raises(ConnectionLost):
            await client.snapshot()


@pytest.mark.asyncio
async def test_ping_measures_a_round_trip(endpoint: FakeEndpoint) -> None:
    async with await connected(endpoint) as client:
        assert await client.ping() >= 0
        assert [type(frame) for frame in endpoint.servers[0].received][-1] is fr.CoordPing


@pytest.mark.asyncio
async def test_a_closed_client_does_nothing_more(endpoint: FakeEndpoint) -> None:
    client = await connected(endpoint)
    await client.close()
    await client.close()
    with pytest.raises(ConnectionLost):
        await client.operation(OP)
    assert len(endpoint.servers) == 1


@pytest.mark.asyncio
async def test_closing_ends_calls_that_wait_for_a_server(endpoint: FakeEndpoint) -> None:
    client = await connected(endpoint, reconnect=ReconnectPolicy(attempts=100_000, first_delay=0.001))
    await endpoint.stop()
    question = asyncio.ensure_future(client.operation(OP))
    command = asyncio.ensure_future(client.create_objective(b"{}"))
    await asyncio.sleep(0)
    await client.close()
    for call in (question, command):
        with pytest.raises((CannotConnect, ConnectionLost, OutcomeUnknown)):
            await asyncio.wait_for(call, 15)


@pytest.mark.asyncio
async def test_a_subscription_of_an_earlier_connection_needs_no_replacement(endpoint: FakeEndpoint) -> None:
    async with await connected(endpoint) as client:
        _, events = await client.follow()
        endpoint.drop()
        with pytest.raises(ContinuityLost):
            await anext(events)
        await client.follow(replaces=events.subscription_id)
        (opened,) = endpoint.servers[1].of(fr.OpenSnapshot)
        assert opened.replace_paused_subscription is None


@pytest.mark.asyncio
async def test_misuse_is_the_callers_and_leaves_the_connection(endpoint: FakeEndpoint) -> None:
    async with await connected(endpoint) as client:
        with pytest.raises(LocalProtocolError):
            await client.command(CommandKind.CREATE_OBJECTIVE, b"x" * 200_000)
        assert isinstance((await client.create_objective(b"{}")).result, Succeeded)
    assert len(endpoint.servers) == 1


@pytest.mark.asyncio
async def test_a_stale_authority_is_a_refusal_and_not_a_reason_to_try_again(endpoint: FakeEndpoint) -> None:
    async with await connected(endpoint) as client:
        endpoint.world.restart()
        with pytest.raises(StaleAuthority):
            await client.create_objective(b"{}")
    assert endpoint.world.commands == []


# -- streams -----------------------------------------------------------------------------------------------------------


@pytest.mark.req("P9-23", "P10-12")
@pytest.mark.asyncio
async def test_following_gives_a_snapshot_and_then_every_event(endpoint: FakeEndpoint) -> None:
    world = endpoint.world
    world.put(objective(1))
    async with await connected(endpoint) as client:
        snapshot, events = await client.follow(credit=(4, 100_000))
        assert [record.id for record in snapshot.records] == [object_id(1)]
        for number in range(2, 32):
            world.put(objective(number))
        endpoint.flush()
        seen = [(await anext(events)).sequence for _ in range(30)]
        assert seen == list(range(2, 32))
        assert len(events.projection.records) == 31
        assert events.queued == 0


@pytest.mark.asyncio
async def test_an_iterator_that_is_not_read_holds_no_more_than_its_credit(endpoint: FakeEndpoint) -> None:
    async with await connected(endpoint) as client:
        _, events = await client.follow(credit=(3, 100_000))
        for number in range(1, 20):
            endpoint.world.put(objective(number))
        endpoint.flush()
        await client.ping()
        assert events.queued == 3


@pytest.mark.req("P10-19")
@pytest.mark.asyncio
async def test_a_close_ends_the_iteration_with_an_error_after_what_arrived(endpoint: FakeEndpoint) -> None:
    async with await connected(endpoint) as client:
        events = await client.subscribe(EventCut(0))
        endpoint.world.put(objective(1))
        endpoint.flush()
        await client.ping()
        endpoint.drop()
        assert (await anext(events)).sequence == 1
        with pytest.raises(ContinuityLost) as caught:
            await anext(events)
        assert (caught.value.last_delivery, caught.value.healable) == (1, False)
        assert events.projection.stale is not None
        with pytest.raises(ContinuityLost):
            await anext(events)


@pytest.mark.req("P10-21")
@pytest.mark.asyncio
async def test_a_gap_is_raised_and_healed_by_a_fresh_snapshot(endpoint: FakeEndpoint) -> None:
    async with await connected(endpoint) as client:
        _, events = await client.follow()
        server = endpoint.servers[0]
        (stream,) = server.streams.values()
        server.gap(stream)
        endpoint.flush()
        with pytest.raises(ContinuityLost, match="QUEUE_OVERFLOW") as caught:
            await anext(events)
        assert caught.value.healable
        endpoint.world.put(objective(1))
        snapshot, healed = await client.follow(replaces=events.subscription_id)
        assert snapshot.record_count == 1
        endpoint.world.put(objective(2))
        endpoint.flush()
        assert (await anext(healed)).sequence == 2
    assert list(server.streams) == [healed.subscription_id]


@pytest.mark.asyncio
async def test_notices_show_every_verified_event(endpoint: FakeEndpoint) -> None:
    notices: list[ev.Event] = []
    async with await connected(endpoint, notice=notices.append) as client:
        await client.create_objective(b"{}")
    assert [type(event) for event in notices] == [ev.Ready, ev.OperationReply, ev.Closed]


@pytest.mark.asyncio
async def test_writing_waits_for_the_transport(endpoint: FakeEndpoint) -> None:
    async with await connected(endpoint) as client:
        link = client._link
        assert link is not None
        link.pause_writing()
        asked = asyncio.ensure_future(client.operation(OP))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert link.session.open_requests == 0
        link.resume_writing()
        assert await asked == Unknown()


@pytest.mark.asyncio
async def test_a_connection_that_ends_while_writing_waits(endpoint: FakeEndpoint) -> None:
    async with await connected(endpoint, reconnect=ReconnectPolicy()) as client:
        link = client._link
        assert link is not None
        link.pause_writing()
        asked = asyncio.ensure_future(client.operation(OP))
        await asyncio.sleep(0)
        link.close()
        with pytest.raises(ConnectionLost):
            await asked


def test_delays_double_up_to_their_bound() -> None:
    assert list(ReconnectPolicy().delays()) == []
    assert list(ReconnectPolicy(5, 0.5, 2.0).delays()) == [0.5, 1.0, 2.0, 2.0, 2.0]
