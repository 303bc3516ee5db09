"""The connection machine against real sessions: every state with every frame type and every other event."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any, cast

import pytest

from cext.frame import encode_frame
from sidecar.coordinator.authority.grants import Registry
from sidecar.coordinator.machines.connection import (
    CLASSES,
    CONNECTION,
    LOSSES,
    OUTCOMES,
    TIMERS,
    ConnectionEvent,
    ConnectionState,
    FrameClass,
)
from sidecar.coordinator.machines.machine import Step
from sidecar.coordinator.wire import frames as fr
from sidecar.coordinator.wire.enums import ErrorCode, FrameType
from sidecar.coordinator.wire.errors import CapabilityRequired
from sidecar.coordinator.wire.limits import HARD
from sidecar.coordinator.wire.table import FRAME_TABLE, caps_for
from sidecar.coordinator.wire.table import State as TableState
from tests.unit.engine.fakes import LIFE, START, FakeAuthority
from tests.unit.engine.harness import World
from tests.unit.session.bench import OTHER_KEY, STRANGER_KEY, House, Wire, hello
from tests.unit.session.bodies import field, hello_body
from tests.unit.session.states import OPEN_STATES, SMALL_PAYLOAD, in_state, legal_frame, values_of

E, S = ConnectionEvent, ConnectionState
FOREIGN = House().open()
FOREIGN.hello()
"""A connection that got as far as a challenge: what it would answer is a legal image anywhere."""
WORK = [kind for kind in FrameType if CLASSES[kind] is FrameClass.WORK]
ROOTED = [kind for kind in WORK if any(item.name == "authority_guard" for item in fr.FRAMES[kind].FIELDS)]
GARBAGE = b"\x01\x04\x01\x00"
Stimulus = Callable[[Wire], None]


def check(
    wire: Wire, before: ConnectionState, step: Step[ConnectionState], replies: Iterable[str] | None = None
) -> None:
    """What came out is what the table says, and so is the state; a closed connection holds nothing."""
    if replies is not None:
        wire.house.world.commit()
    frames = wire.received()
    assert wire.session.state is step.next
    names = [FrameType(frame.TYPE).name for frame in frames]
    if step.error is not None:
        error = frames[-1]
        assert isinstance(error, fr.CoordErrorFrame)
        assert error.code is step.error
        assert names[:-1] == (["GAP"] if step.reply.startswith("GAP") else [])
    elif replies is not None:
        assert names[:1] in [[reply] for reply in replies]
    else:
        assert names == ([step.reply] if step.reply in FrameType.__members__ else [])
    if step.next is S.CLOSED:
        assert wire.session.closing
        assert wire.session.deadline() is None
        if before is not S.CLOSED:
            assert not any(wire.house.world.used().values())
        wire.send(fr.CoordPing(nonce=1))
        assert wire.received() == []


def frame_image(wire: Wire, kind: FrameType) -> bytes:
    """An image of this type that a connection in the right state would take."""
    if kind is FrameType.WORKLOAD_RESPONSE and wire.session.state is not S.CHAL:
        return FOREIGN.response().encode()
    if wire.session.state is S.ACT or CLASSES[kind] in (FrameClass.HELLO, FrameClass.RESPONSE):
        return legal_frame(wire, kind).encode()
    return fr.FRAMES[kind](**values_of(wire)[kind]).encode()


def legal_replies(kind: FrameType) -> list[str] | None:
    """First frames that may answer a request; CREDIT has none."""
    replies = FRAME_TABLE[kind].replies
    return [*(reply.name for reply in replies), "COORD_ERROR"] if replies else None


@pytest.mark.req("P5-02", "P7-02", "P7-03", "P7-04", "W3-01", "W3-14", "P13-05", "P2-11", "W1-06", "P14-01", "P5-01")
@pytest.mark.parametrize("number", range(256))
@pytest.mark.parametrize("state", list(S))
def test_every_frame_type_in_every_state(state: ConnectionState, number: int) -> None:
    step = CONNECTION.step(state, OUTCOMES[CLASSES[number]][None])
    legal_here = step.error is None and state is not S.CLOSED
    bodies: list[bytes | None] = [None] if legal_here else [b"", GARBAGE, None]
    for body in bodies:
        if body is None and CLASSES[number] in (FrameClass.SERVER, FrameClass.UNKNOWN):
            continue
        wire = in_state(state)
        image = frame_image(wire, FrameType(number)) if body is None else encode_frame(number, body)
        wire.send(image)
        replies = legal_replies(FrameType(number)) if step.reply == "its reply" else None
        check(wire, state, step, replies)


@pytest.mark.req("P7-02", "P7-03", "P7-04")
@pytest.mark.parametrize("number", range(256))
@pytest.mark.parametrize("state", OPEN_STATES)
def test_a_refused_type_is_named_and_refused_on_its_header(state: ConnectionState, number: int) -> None:
    if CONNECTION.step(state, OUTCOMES[CLASSES[number]][None]).error is None:
        return
    wire = in_state(state)
    wire.send(b"\x00\x0f\xff\xff" + bytes([number]))
    code, message = wire.refusal()
    assert code == ErrorCode.PROTOCOL_ERROR
    assert message == (
        f"{FrameType(number).name} is not legal in state {state.value}"
        if number in FRAME_TABLE
        else f"unknown frame type {number:#04x}"
    )


@pytest.mark.req("P3-04")
def test_the_machine_and_the_frame_table_agree() -> None:
    """The splitter refuses types by the frame table, which cannot import the machine."""
    for state in OPEN_STATES:
        caps = caps_for(cast(TableState, state.value), "server", HARD)
        taken = {n for n in range(256) if CONNECTION.step(state, OUTCOMES[CLASSES[n]][None]).error is None}
        assert {number for number in range(256) if caps[number]} == taken
    for events in OUTCOMES.values():
        for state in OPEN_STATES:
            refused = CONNECTION.step(state, events[None]).error is ErrorCode.PROTOCOL_ERROR
            own = {event for code, event in events.items() if event not in LOSSES}
            assert not refused or {CONNECTION.step(state, event).error for event in own} == {ErrorCode.PROTOCOL_ERROR}


def sending(kind: FrameType, make: Callable[[Wire], bytes]) -> Stimulus:
    return lambda wire: wire.send(encode_frame(kind, make(wire)))


def response_body(wire: Wire, **changes: Any) -> bytes:
    maker = wire if wire.session.state is S.CHAL else FOREIGN
    good = maker.response(changes.pop("key", STRANGER_KEY))
    names = ("key_id", "requested_scope_bytes", "requested_expiry", "workload_proof")
    return fr.WorkloadResponse(**{**{name: getattr(good, name) for name in names}, **changes}).body()


def full_house(wire: Wire) -> None:
    if wire.session.state is S.CHAL:
        for _ in range(16):
            wire.house.login(OTHER_KEY, scopes=0x01)
    wire.send(encode_frame(FrameType.WORKLOAD_RESPONSE, response_body(wire, key=OTHER_KEY)))
    for other in wire.house.world.engine.connections[:]:
        wire.house.world.engine.detach(other, wire.now)


def stale_guard(kind: FrameType) -> Stimulus:
    def send(wire: Wire) -> None:
        values = values_of(wire)[kind]
        guard = dataclasses.replace(values["authority_guard"], fencing_token_sha256=b"\x02" * 32)
        wire.send(fr.FRAMES[kind](**{**values, "authority_guard": guard}))

    return send


def expired(kind: FrameType) -> Stimulus:
    def send(wire: Wire) -> None:
        image = frame_image(wire, kind)
        wire.house.world.advance(LIFE, tick=False)
        wire.send(image)

    return send


def oversize_payload(wire: Wire) -> None:
    values = values_of(wire)[FrameType.COORD_COMMAND]
    wire.send(fr.CoordCommand(**{**values, "payload": bytes(SMALL_PAYLOAD + 1)}))


def credit_above(wire: Wire) -> None:
    if wire.session.state is not S.ACT:
        wire.send(frame_image(wire, FrameType.CREDIT))
        return
    credit = legal_frame(wire, FrameType.CREDIT)
    assert isinstance(credit, fr.CreditFrame)
    wire.send(fr.CreditFrame(subscription_id=credit.subscription_id, add_count=HARD.credit_count + 1, add_bytes=1))


def oversize(length: int) -> Stimulus:
    return lambda wire: wire.send(length.to_bytes(4, "big") + bytes([FrameType.COORD_ERROR]))


def subscribed(wire: Wire) -> None:
    """So that a lost connection has a subscription to tell."""
    if wire.session.state is S.ACT:
        wire.send(fr.Subscribe(**values_of(wire)[FrameType.SUBSCRIBE]))
        wire.take(fr.Subscribed)


def timer(wire: Wire) -> None:
    wire.house.world.advance(TIMERS.get(wire.session.state, 100.0), tick=False)
    wire.session.timeout(wire.now)


def renewed(wire: Wire) -> None:
    wire.house.world.engine.renew(FakeAuthority(wall_expiry=START.wall + 2 * LIFE, deadline_mono=START.mono + 2 * LIFE))


def fenced(wire: Wire) -> None:
    subscribed(wire)
    wire.house.world.engine.fence("test")
    wire.session.check_fence(wire.now)


def fenced_and_speaking(wire: Wire) -> None:
    subscribed(wire)
    wire.house.world.engine.fence("test")
    wire.send(fr.CoordPing(nonce=1))


def revoked(wire: Wire) -> None:
    subscribed(wire)
    wire.house.registry = Registry()
    wire.house.world.engine.set_registry(Registry(), wire.now)


def fault(wire: Wire) -> None:
    """Something that should not happen, in what each state calls."""

    def broken(*_: object) -> Any:
        raise KeyError("canary")

    env, state = wire.house.env, wire.session.state
    if state is S.PRE:
        env.entropy = broken
        wire.send(hello())
    elif state is S.CHAL:
        env.registry = broken
        wire.respond()
    else:
        image = frame_image(wire, FrameType.COORD_PING)
        engine: Any = wire.house.world.engine
        engine.handle = broken
        wire.send(image)


STIMULI: dict[ConnectionEvent, list[Stimulus]] = {
    E.HELLO: [sending(FrameType.COORD_HELLO, lambda _: hello().body())],
    E.HELLO_VERSION: [sending(FrameType.COORD_HELLO, lambda _: hello_body(f2=field(2, b"\x00\x02")))],
    E.HELLO_MALFORMED: [
        sending(FrameType.COORD_HELLO, lambda _: GARBAGE),
        sending(FrameType.COORD_HELLO, lambda _: hello(max_frame_bytes=0).body()),
    ],
    E.HELLO_PROFILE: [sending(FrameType.COORD_HELLO, lambda _: hello_body(f13=None))],
    E.HELLO_CAPABILITY: [sending(FrameType.COORD_HELLO, lambda _: hello(required_capabilities=1 << 40).body())],
    E.RESPONSE: [lambda wire: wire.send(frame_image(wire, FrameType.WORKLOAD_RESPONSE))],
    E.RESPONSE_MALFORMED: [sending(FrameType.WORKLOAD_RESPONSE, lambda _: GARBAGE)],
    E.RESPONSE_FAILED: [sending(FrameType.WORKLOAD_RESPONSE, response_body)],
    E.RESPONSE_QUOTA: [full_house],
    E.WORK: [lambda wire, kind=kind: wire.send(frame_image(wire, kind)) for kind in WORK],  # type: ignore[misc]
    E.WORK_STALE: [*map(stale_guard, ROOTED), *map(expired, WORK)],
    E.WORK_MALFORMED: [sending(kind, lambda _: GARBAGE) for kind in WORK],
    E.WORK_TOO_LARGE: [oversize_payload],
    E.WORK_VIOLATION: [credit_above],
    E.PING: [lambda wire: wire.send(fr.CoordPing(nonce=7))],
    E.PONG: [lambda wire: wire.send(fr.CoordPong(nonce=7))],
    E.LIVENESS_MALFORMED: [sending(kind, lambda _: GARBAGE) for kind in (FrameType.COORD_PING, FrameType.COORD_PONG)],
    E.PEER_ERROR: [lambda wire: wire.send(frame_image(wire, FrameType.COORD_ERROR))],
    E.PEER_ERROR_MALFORMED: [sending(FrameType.COORD_ERROR, lambda _: GARBAGE)],
    E.SERVER_FRAME: [lambda wire: wire.send(fr.Ack(request_id=1))],
    E.UNKNOWN_FRAME: [lambda wire: wire.send(encode_frame(0x02, b""))],
    E.OVERSIZE: [oversize(0), oversize(1_048_577), oversize(0xFFFFFFFF)],
    E.TIMER: [timer],
    E.RENEWED: [renewed],
    E.FENCED: [fenced, fenced_and_speaking],
    E.REVOKED: [revoked],
    E.FAULT: [fault],
    E.EOF: [lambda wire: wire.session.eof(wire.now)],
}
CASES = [(state, event, at) for state in S for event in E for at in range(len(STIMULI[event]))]


@pytest.mark.req("P13-05", "P12-15", "P12-17", "P4-12", "P4-13", "W3-13", "W8-01", "W8-02", "W8-07", "W8-08", "P5-03")
@pytest.mark.req("P5-05", "P5-13", "P5-14", "P13-06")
@pytest.mark.parametrize(("state", "event", "at"), CASES)
def test_every_event_in_every_state(state: ConnectionState, event: ConnectionEvent, at: int) -> None:
    wire = in_state(state)
    step = CONNECTION.step(state, event)
    STIMULI[event][at](wire)
    replies = None
    if step.reply == "its reply":
        replies = legal_replies(WORK[at])
    check(wire, state, step, replies)
    crashed = event is E.FAULT and state is not S.CLOSED
    assert [type(error) for error in wire.house.crashes] == ([KeyError] if crashed else [])


@pytest.mark.req("P12-17")
def test_a_certificate_that_expires_within_the_handshake_is_a_fence() -> None:
    house = House(world=World(authority=FakeAuthority(deadline_mono=START.mono + 3)))
    wire = house.open()
    wire.hello()
    house.world.advance(3, tick=False)
    wire.respond()
    assert wire.refusal()[0] == ErrorCode.AUTHORITY_FENCED
    assert house.world.observer.named("handshake", "authority_fenced") == 1


def test_an_error_that_the_table_does_not_know_is_our_own_fault() -> None:
    wire = in_state(S.ACT)
    strange = CapabilityRequired("canary", fatal=True)

    def broken(*_: object) -> None:
        raise strange

    engine: Any = wire.house.world.engine
    engine.handle = broken
    wire.send(fr.CoordPing(nonce=1))
    code, message = wire.refusal()
    assert (code, message) == (ErrorCode.INTERNAL, "")
    assert wire.house.crashes == [strange]
