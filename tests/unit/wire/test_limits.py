"""Every bound at its value, one below and one above: negotiated, structural and by frame type."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest

from cext.frame import FrameTooLarge, FrameTypeRefused, Splitter
from sidecar.coordinator.wire import frames
from sidecar.coordinator.wire.enums import CommandKind, ErrorCode, EventKind, FrameType, ObjectKind
from sidecar.coordinator.wire.errors import FrameTooLargeError, LocalProtocolError, MalformedMessage, ProtocolViolation
from sidecar.coordinator.wire.events import event_frames, event_tail
from sidecar.coordinator.wire.fields import Body, Frame
from sidecar.coordinator.wire.ids import delivery_sequence
from sidecar.coordinator.wire.limits import (
    CONTROL_BYTES,
    CONTROL_FRAMES,
    HANDSHAKE_FRAME,
    HARD,
    LEASE_SECONDS,
    QUEUE_BYTES,
    QUEUE_FRAMES,
    QUOTAS,
    REFERENCE,
    Limits,
    check_service,
    largest_event,
    select,
)
from sidecar.coordinator.wire.records import Precondition, ReplayEvent
from sidecar.coordinator.wire.table import STATES, Receiver, State, caps_for
from tests.oracles.wire import join, split
from tests.unit.wire.samples import COMMAND_SAMPLES, FRAME_SAMPLES, PAYLOAD_SAMPLES, record, replay_event
from tests.vectors import expected_images
from tests.vectors import inputs as fix

NAMES = [item.name for item in fields(Limits)]
SMALL = Limits(frame=4_096, page_bytes=3_584, page_records=3, typed_payload=1_024, credit_count=4, credit_bytes=2_048)


@pytest.mark.req("P3-20")
@pytest.mark.parametrize("name", NAMES)
def test_the_smaller_of_each_pair_is_selected(name: str) -> None:
    lower = {name: getattr(REFERENCE, name) - 1}
    assert select(replace(REFERENCE, **lower), REFERENCE) == replace(REFERENCE, **lower)
    assert select(REFERENCE, replace(REFERENCE, **lower)) == replace(REFERENCE, **lower)
    assert select(HARD, HARD) == HARD


@pytest.mark.req("P3-21", "P3-25", "P3-27", "P3-28", "P3-29")
@pytest.mark.parametrize("name", NAMES)
def test_an_offer_of_zero_or_above_its_cap_is_malformed(name: str) -> None:
    for value in (0, getattr(HARD, name) + 1):
        with pytest.raises(MalformedMessage) as caught:
            select(replace(HARD, **{name: value}), HARD)
        assert caught.value.fatal
    assert select(replace(HARD, **{name: getattr(HARD, name)}), HARD) == HARD


@pytest.mark.req("P3-22", "P3-23")
@pytest.mark.parametrize("name", ["page_bytes", "typed_payload"])
def test_pages_and_payloads_stay_512_bytes_below_the_frame(name: str) -> None:
    base = replace(SMALL, credit_bytes=HARD.credit_bytes)
    assert getattr(select(replace(base, **{name: 3_584}), HARD), name) == 3_584
    with pytest.raises(MalformedMessage):
        select(replace(base, **{name: 3_585}), HARD)


@pytest.mark.req("P3-24")
@pytest.mark.parametrize(
    ("typed", "needed"), [(120, 120 + 114), (124, 124 + 115), (1_024, 1_139), (131_072, 131_188), (262_144, 262_260)]
)
def test_credit_bytes_hold_one_largest_event(typed: int, needed: int) -> None:
    offer = replace(HARD, typed_payload=typed, credit_bytes=needed)
    assert select(offer, HARD).credit_bytes == needed
    with pytest.raises(MalformedMessage):
        select(replace(offer, credit_bytes=needed - 1), HARD)


@pytest.mark.req("P3-24")
@pytest.mark.parametrize("size", [59, 100, 123, 124, 125, 16_379, 16_380, 16_381, 131_072, 262_144])
def test_the_largest_event_is_what_its_frame_measures(size: int) -> None:
    source = expected_images.EVENT_10
    event = ReplayEvent(
        source.event_sequence, source.event_id, source.event_kind, source.object, source.object_revision, 1, bytes(size)
    )
    assert len(event_frames(fix.SUBSCRIPTION, delivery_sequence(1), [event_tail(event)])[0]) == largest_event(size)


def leaf_image(size: int) -> bytes:
    return size.to_bytes(4, "big") + b"a" * size


def with_field(body: Body, name: str, image: bytes) -> bytes:
    item = getattr(type(body), name)
    return join([(key, image if key == item.id else old) for key, old in split(body.body())])


CAPS: list[tuple[str, Body, str, int, tuple[str, ...]]] = [
    ("name", FRAME_SAMPLES[FrameType.COORD_HELLO], "client_name", 128, ("P3-31",)),
    ("diagnostic", FRAME_SAMPLES[FrameType.COORD_ERROR], "message", 1_024, ("P3-32", "P13-01")),
    ("signal message", PAYLOAD_SAMPLES[ObjectKind.SIGNAL], "message", 1_024, ("P3-32",)),
    ("note", COMMAND_SAMPLES[CommandKind.ACK_SIGNAL], "note", 1_024, ("P3-32",)),
    ("snapshot cursor", FRAME_SAMPLES[FrameType.SNAPSHOT_NEXT], "cursor", 4_096, ("P3-30",)),
    ("replay cursor", FRAME_SAMPLES[FrameType.REPLAY_NEXT], "cursor", 4_096, ("P3-30",)),
    ("first cursor", FRAME_SAMPLES[FrameType.SNAPSHOT_BEGIN], "first_cursor", 4_096, ("P3-30",)),
    ("next cursor", FRAME_SAMPLES[FrameType.REPLAY_PAGE], "next_cursor", 4_096, ("P3-30",)),
    ("document", COMMAND_SAMPLES[CommandKind.CREATE_OBJECTIVE], "document", 262_144, ("P3-51",)),
]


@pytest.mark.parametrize(
    ("body", "name", "cap"), [pytest.param(*case[1:4], id=case[0], marks=pytest.mark.req(*case[4])) for case in CAPS]
)
def test_content_is_bounded(body: Body, name: str, cap: int) -> None:
    for size in (0, cap - 1, cap):
        decoded = type(body).decode(with_field(body, name, leaf_image(size)))
        assert len(getattr(decoded, name)) == size
    with pytest.raises(MalformedMessage):
        type(body).decode(with_field(body, name, leaf_image(cap + 1)))
    values = {item.name: getattr(body, item.name) for item in body.FIELDS}
    too_long = b"a" * (cap + 1) if isinstance(values[name], bytes) else "a" * (cap + 1)
    with pytest.raises(LocalProtocolError):
        type(body).build({**values, name: too_long})


@pytest.mark.req("P3-31", "P3-32")
def test_text_is_bounded_in_bytes_not_characters() -> None:
    hello = FRAME_SAMPLES[FrameType.COORD_HELLO]
    values = {item.name: getattr(hello, item.name) for item in hello.FIELDS}
    assert frames.CoordHello.build({**values, "client_name": "é" * 64}).client_name == "é" * 64
    with pytest.raises(LocalProtocolError):
        frames.CoordHello.build({**values, "client_name": "é" * 64 + "a"})


@pytest.mark.req("P3-39", "P3-60")
def test_a_command_has_at_most_64_preconditions() -> None:
    def image(count: int) -> bytes:
        items = [Precondition(fix.ref(ObjectKind.RUN, n.to_bytes(16, "big")), 1).encode() for n in range(1, count + 1)]
        return count.to_bytes(2, "big") + b"".join(items)

    command = FRAME_SAMPLES[FrameType.COORD_COMMAND]
    for count in (0, 63, 64):
        decoded = frames.CoordCommand.decode(with_field(command, "preconditions", image(count)))
        assert len(decoded.preconditions) == count
    with pytest.raises(MalformedMessage):
        frames.CoordCommand.decode(with_field(command, "preconditions", image(65)))


@pytest.mark.req("P3-28", "P3-60")
def test_a_page_has_at_most_1024_records_and_what_was_selected() -> None:
    one = record(ObjectKind.RUN)
    empty = replay_event(EventKind.RUN_CHANGED, ObjectKind.RUN)
    cases: list[tuple[type[Frame], str, bytes]] = [
        (frames.SnapshotPage, "records", one.encode()),
        (frames.ReplayPage, "events", empty.encode()),
    ]
    for shape, name, item in cases:
        sample = FRAME_SAMPLES[shape.TYPE]

        def body(count: int, sample: Frame = sample, name: str = name, item: bytes = item) -> bytes:
            return with_field(sample, name, count.to_bytes(2, "big") + item * count)

        for count in (1_023, 1_024):
            assert len(getattr(shape.decode(body(count)), name)) == count
        with pytest.raises(MalformedMessage):
            shape.decode(body(1_025))
        assert frames.decode_frame(shape.TYPE, body(3), SMALL)
        with pytest.raises(MalformedMessage):
            frames.decode_frame(shape.TYPE, body(4), SMALL)


@pytest.mark.req("P3-09", "P3-29")
def test_a_typed_payload_is_bounded_by_the_selected_and_the_hard_cap() -> None:
    command = FRAME_SAMPLES[FrameType.COORD_COMMAND]
    kind = FrameType.COORD_COMMAND
    for size in (SMALL.typed_payload - 1, SMALL.typed_payload):
        assert frames.decode_frame(kind, with_field(command, "payload", leaf_image(size)), SMALL)
    with pytest.raises(FrameTooLargeError) as caught:
        frames.decode_frame(kind, with_field(command, "payload", leaf_image(SMALL.typed_payload + 1)), SMALL)
    assert caught.value.fatal
    assert caught.value.request_id == command.fields.u32(1), "a fatal error names its request when it was decoded"
    for size in (HARD.typed_payload - 1, HARD.typed_payload):
        assert frames.decode_frame(kind, with_field(command, "payload", leaf_image(size)), HARD)
    for selected in (None, HARD):
        with pytest.raises(FrameTooLargeError):
            frames.decode_frame(kind, with_field(command, "payload", leaf_image(HARD.typed_payload + 1)), selected)


@pytest.mark.req("P3-09")
def test_an_event_payload_is_bounded_by_the_selected_cap() -> None:
    event = FRAME_SAMPLES[FrameType.COORD_EVENT]
    size = len(expected_images.EVENT_10.payload)
    assert frames.decode_frame(FrameType.COORD_EVENT, event.body(), replace(SMALL, typed_payload=size))
    with pytest.raises(FrameTooLargeError):
        frames.decode_frame(FrameType.COORD_EVENT, event.body(), replace(SMALL, typed_payload=size - 1))
    with pytest.raises(FrameTooLargeError):
        frames.CoordEvent.decode(with_field(event, "payload", leaf_image(HARD.typed_payload + 1)))


SIDES: tuple[Receiver, ...] = ("server", "client")


def expected_cap(kind: FrameType, state: State, receiver: Receiver) -> int:
    """The frame table of the ledger, spelled out by ranges of type bytes."""
    from_client = kind < 0x7F
    either = kind in (0x7F, 0xC0, 0xFF)
    if not either and from_client != (receiver == "server"):
        return 0
    legal = {
        0x01: {"PRE"},
        0x84: {"PRE"},
        0x04: {"CHAL"},
        0x80: {"CHAL"},
        0x7F: {"PRE", "ACT"},
        0xFF: {"PRE", "ACT"},
        0xC0: {"PRE", "CHAL", "ACT"},
    }.get(kind, {"ACT"})
    if state not in legal:
        return 0
    if state != "ACT":
        return 16_384
    return SMALL.page_bytes + 1 if kind in (0xA1, 0xA5) else SMALL.frame


@pytest.mark.req("P3-04", "P3-06", "P3-07", "P3-08", "P3-26", "P7-02", "P7-03", "P7-04")
@pytest.mark.parametrize("receiver", SIDES)
@pytest.mark.parametrize("state", STATES)
def test_caps_follow_state_direction_and_type(state: State, receiver: Receiver) -> None:
    caps = caps_for(state, receiver, SMALL)
    assert len(caps) == 256
    for number in range(256):
        expected = expected_cap(FrameType(number), state, receiver) if number in list(FrameType) else 0
        assert caps[number] == expected, hex(number)


def test_an_active_connection_needs_its_limits() -> None:
    with pytest.raises(ValueError, match="selected"):
        caps_for("ACT", "server")


def announce(state: State, receiver: Receiver, kind: int, length: int) -> Splitter:
    splitter = Splitter(caps_for(state, receiver, SMALL))
    splitter.feed(length.to_bytes(4, "big") + bytes([kind]))
    return splitter


@pytest.mark.req("P3-02", "P3-06", "P3-10", "P3-26")
@pytest.mark.parametrize(
    ("state", "receiver", "kind"),
    [
        ("PRE", "server", FrameType.COORD_HELLO),
        ("PRE", "server", FrameType.COORD_PING),
        ("CHAL", "server", FrameType.WORKLOAD_RESPONSE),
        ("PRE", "client", FrameType.WORKLOAD_CHALLENGE),
        ("CHAL", "client", FrameType.COORD_HELLO_OK),
        ("CHAL", "client", FrameType.COORD_ERROR),
    ],
)
def test_handshake_frames_are_at_most_16_kib(state: State, receiver: Receiver, kind: FrameType) -> None:
    for length in (1, 16_383, 16_384):
        assert announce(state, receiver, kind, length).next_frame() is None or length == 1
    for length in (0, 16_385, 1_048_576, 1_048_577, 0xFFFFFFFF):
        with pytest.raises(FrameTooLarge):
            announce(state, receiver, kind, length).next_frame()


@pytest.mark.req("P3-02", "P3-07", "P3-08", "P3-10", "P3-25")
@pytest.mark.parametrize(
    ("receiver", "kind", "cap"),
    [
        ("server", FrameType.COORD_COMMAND, SMALL.frame),
        ("server", FrameType.COORD_PING, SMALL.frame),
        ("client", FrameType.COORD_EVENT, SMALL.frame),
        ("client", FrameType.SNAPSHOT_PAGE, SMALL.page_bytes + 1),
        ("client", FrameType.REPLAY_PAGE, SMALL.page_bytes + 1),
    ],
)
def test_active_frames_are_at_most_what_was_selected(receiver: Receiver, kind: FrameType, cap: int) -> None:
    for length in (2, cap - 1, cap):
        assert announce("ACT", receiver, kind, length).next_frame() is None
    for length in (0, cap + 1, 1_048_577):
        with pytest.raises(FrameTooLarge):
            announce("ACT", receiver, kind, length).next_frame()


@pytest.mark.req("P3-04", "P3-10", "P7-02", "P7-03", "P7-04")
def test_an_illegal_type_is_refused_on_its_header_alone() -> None:
    for state in STATES:
        for receiver in SIDES:
            for kind in range(256):
                if caps_for(state, receiver, SMALL)[kind] == 0:
                    with pytest.raises(FrameTypeRefused):
                        announce(state, receiver, kind, HARD.frame).next_frame()


@pytest.mark.req("P7-02")
@pytest.mark.parametrize("kind", [0x00, 0x02, 0x12, 0x81, 0xB2, 0xFE])
def test_an_unknown_type_is_a_protocol_violation(kind: int) -> None:
    with pytest.raises(ProtocolViolation) as caught:
        frames.decode_frame(kind, b"")
    assert caught.value.fatal
    assert caught.value.code is ErrorCode.PROTOCOL_ERROR


@pytest.mark.req("P3-02", "P3-11")
def test_a_message_fills_its_boundaries() -> None:
    ping = frames.CoordPing(nonce=1)
    message = ping.encode()
    assert frames.decode_message(message) == ping
    for wrong in (message[:-1], message + b"\x00", message + join([(99, b"")]), message[:5]):
        with pytest.raises(MalformedMessage):
            frames.decode_message(wrong)
    for length in (0, HARD.frame + 1):
        with pytest.raises(FrameTooLargeError):
            frames.decode_message(length.to_bytes(4, "big") + message[4:])


@pytest.mark.req("P3-53")
def test_receiving_changes_no_limit() -> None:
    before = caps_for("ACT", "server", SMALL)
    with pytest.raises(FrameTooLarge):
        announce("ACT", "server", FrameType.CREDIT, SMALL.frame + 1).next_frame()
    assert caps_for("ACT", "server", SMALL) == before
    with pytest.raises(AttributeError):
        SMALL.frame = HARD.frame  # type: ignore[misc]


@pytest.mark.req("P3-25", "P3-26", "P3-27", "P3-28", "P3-29", "P3-35")
def test_the_hard_and_the_reference_limits_are_those_of_the_specification() -> None:
    assert Limits(1_048_576, 524_288, 1_024, 262_144, 4_096, 8_388_608) == HARD
    assert Limits(524_288, 262_144, 512, 131_072, 1_024, 4_194_304) == REFERENCE
    assert HANDSHAKE_FRAME == 16_384


@pytest.mark.req("P3-33", "P3-34", "P3-36", "P3-37", "P3-38", "P3-40", "P3-41", "P3-42", "P3-43", "P3-44", "P3-45")
@pytest.mark.req("P3-46", "P3-47")
def test_policy_limits_stand_in_the_table() -> None:
    """Hard ceilings per connection, principal and server; the engine holds them."""
    table: dict[str, tuple[Any, ...]] = {name: tuple(caps) for name, caps in QUOTAS.items()}
    assert table == {
        "connections": (None, 16, 256),
        "requests": (256, 512, 8_192),
        "leases": (8, 16, 256),
        "pinned_bytes": (None, 33_554_432, 536_870_912),
        "subscriptions": (32, 64, 2_048),
        "queue_frames": (None, 4_096, 65_536),
        "queue_bytes": (None, 16_777_216, 268_435_456),
        "pending_operations": (None, 10_000, 100_000),
    }
    assert (QUEUE_FRAMES, QUEUE_BYTES, CONTROL_FRAMES, CONTROL_BYTES, LEASE_SECONDS) == (
        1_024,
        4_194_304,
        32,
        65_536,
        60,
    )


@pytest.mark.req("W1-04")
def test_a_service_name_keeps_to_its_grammar() -> None:
    for good in (b"phux-coordinator", b"a", b"0-9/.", b"x" * 64):
        check_service(good)
    for bad in (b"", b"x" * 65, b"Phux-coordinator", b"a b", b"a\x00", b"a_b", "é".encode(), b"phux\n"):
        with pytest.raises(LocalProtocolError):
            check_service(bad)


def test_results_are_kept_at_least_thirty_days() -> None:
    retention = COMMAND_SAMPLES[CommandKind.CHANGE_RETENTION]
    ok = FRAME_SAMPLES[FrameType.COORD_HELLO_OK]
    for body, name in ((retention, "operation_result_secs"), (ok, "operation_result_retention_secs")):
        assert type(body).decode(with_field(body, name, (2_592_000).to_bytes(8, "big")))
        for seconds in (0, 2_591_999):
            with pytest.raises(MalformedMessage):
                type(body).decode(with_field(body, name, seconds.to_bytes(8, "big")))
