"""Request ids against a real engine: every state and event, every pair of request kinds."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from sidecar.coordinator.machines.connection import CLASSES, ConnectionState, FrameClass
from sidecar.coordinator.machines.request import REQUEST, RequestEvent, RequestState
from sidecar.coordinator.wire import frames as fr
from sidecar.coordinator.wire.enums import ErrorCode, FrameType
from sidecar.coordinator.wire.errors import ProtocolError
from sidecar.coordinator.wire.limits import QUOTAS
from tests.unit.engine.harness import Client, World, id16
from tests.unit.session.states import in_state, values_of

ID = 7
QUOTA = QUOTAS["requests"].connection or 0
REQUESTS = [kind for kind in FrameType if CLASSES[kind] is FrameClass.WORK and kind is not FrameType.CREDIT]


def in_request_state(state: RequestState) -> Client:
    """A connection of an empty authority to which ``ID`` is free, or open with the two frames of its answer ahead."""
    world = World()
    world.auto_commit = False
    client = world.connect()
    if state is RequestState.OPEN:
        begin = client.open_snapshot()
        client.send(fr.OpenSnapshot(request_id=ID, authority_guard=begin.authority_guard, selector=0,
                                    reserve_subscription=False))  # fmt: skip
    assert client.conn.request_state(ID) is state
    return client


def ask(client: Client) -> fr.Frame:
    return client.lookup(id16(1), request=ID)


def fill(client: Client) -> None:
    for number in range(1000, 1000 + QUOTA - len(client.conn.requests)):
        client.send(client.lookup(id16(1), request=number))


def arrive(client: Client) -> None:
    client.send(ask(client))


def arrive_at_the_quota(client: Client) -> None:
    fill(client)
    client.send(ask(client))


def take_one(client: Client) -> None:
    (image,) = client.conn.take(1, client.world.now)
    assert fr.decode_frame(image[4], image[5:]).TYPE is FrameType.SNAPSHOT_BEGIN


def take_all(client: Client) -> None:
    assert [type(frame) for frame in client.pull()] == [fr.SnapshotBegin, fr.SnapshotEnd]


def disconnect(client: Client) -> None:
    client.detach()
    assert client.world.used() == {}


EVENTS: dict[RequestEvent, Callable[[Client], None]] = {
    RequestEvent.ARRIVED: arrive,
    RequestEvent.REFUSED: arrive_at_the_quota,
    RequestEvent.CONTINUED: take_one,
    RequestEvent.ANSWERED: take_all,
    RequestEvent.DISCONNECT: disconnect,
}


@pytest.mark.req("P7-09", "P7-10", "P3-33", "P13-06", "P13-08", "P13-09")
@pytest.mark.parametrize("event", RequestEvent)
@pytest.mark.parametrize("state", RequestState)
def test_every_event_in_every_state(state: RequestState, event: RequestEvent) -> None:
    step = REQUEST.step(state, event)
    client = in_request_state(state)
    if step.reply == "does not occur":
        assert client.pull() == [], "nothing is written under an id that is free"
        return
    if step.error is ErrorCode.MALFORMED_MESSAGE:
        with pytest.raises(ProtocolError) as caught:
            EVENTS[event](client)
        assert (caught.value.code, caught.value.request_id, caught.value.fatal) == (step.error, ID, True)
        client.detach()
    else:
        EVENTS[event](client)
    if step.error is ErrorCode.RESOURCE_EXHAUSTED:
        (error,) = client.pull()
        assert isinstance(error, fr.CoordErrorFrame)
        assert (error.request_id, error.code) == (ID, step.error)
        assert client.conn.closing is None
    assert client.conn.request_state(ID) is step.next


@pytest.mark.req("P7-10", "P13-05")
@pytest.mark.parametrize("second", REQUESTS)
@pytest.mark.parametrize("first", REQUESTS)
def test_an_open_id_is_taken_for_requests_of_every_kind(first: FrameType, second: FrameType) -> None:
    wire = in_state(ConnectionState.ACT)
    values = values_of(wire)
    wire.send(fr.FRAMES[first](**values[first]), fr.FRAMES[second](**values[second]))
    if wire.session.has_input:  # some kinds end the turn
        wire.session.process(wire.now)
    error = wire.received()[-1]
    assert isinstance(error, fr.CoordErrorFrame)
    assert (error.code, error.request_id) == (ErrorCode.MALFORMED_MESSAGE, 1)
    assert wire.session.state is ConnectionState.CLOSED


@pytest.mark.req("P7-09")
@pytest.mark.parametrize("kind", REQUESTS)
def test_0_is_no_request_id(kind: FrameType) -> None:
    wire = in_state(ConnectionState.ACT)
    image = fr.FRAMES[kind](**values_of(wire)[kind]).encode()
    at = image.index(b"\x01\x04\x04\x00\x00\x00\x01")
    wire.send(image[: at + 6] + b"\x00" + image[at + 7 :])
    assert wire.refusal()[0] == ErrorCode.MALFORMED_MESSAGE


@pytest.mark.req("P7-09", "P3-33")
@pytest.mark.parametrize("number", [1, 2**32 - 1])
def test_every_other_number_is_one_and_is_free_again_after_its_answer(number: int) -> None:
    world = World()
    client = world.connect()
    for _ in range(3):
        client.one(client.lookup(id16(1), request=number), fr.OperationResultFrame)
        assert client.conn.request_state(number) is RequestState.FREE
