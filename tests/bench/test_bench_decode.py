"""Full decode of the two frames that matter, beside the plain-Python oracle and the scan alone."""

from __future__ import annotations

import pytest

from sidecar.coordinator.wire.enums import FrameType
from sidecar.coordinator.wire.events import EventPayload, decode_event_payload, event_frames, event_tail
from sidecar.coordinator.wire.fields import Frame
from sidecar.coordinator.wire.frames import CoordEvent, decode_frame
from sidecar.coordinator.wire.ids import delivery_sequence
from tests.bench.measure import report
from tests.oracles import frame as oracle_frame
from tests.oracles import wire as oracle
from tests.vectors import expected_frames, expected_images
from tests.vectors import inputs as fix

TURN = 64
"""Events that a subscription gets at once when commands come in batches."""


def touch(frame: Frame) -> list[object]:
    """Read every field: what decoding costs when nothing stays lazy."""
    return [getattr(frame, item.name) for item in frame.FIELDS]


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, id=kind.name) for kind in (FrameType.COORD_COMMAND, FrameType.COORD_EVENT)]
)
def test_decode(capsys: pytest.CaptureFixture[str], kind: FrameType) -> None:
    made = expected_frames.command() if kind is FrameType.COORD_COMMAND else expected_frames.event()
    body = memoryview(made.encode())[5:]
    plain = bytes(body)
    scan = type(made).SCHEMA.scan
    report(
        capsys,
        f"decode of {kind.name}, {len(body)} bytes",
        {
            "decode_frame": lambda: decode_frame(kind, body),
            "decode_frame and every field": lambda: touch(decode_frame(kind, body)),
            "plain Python": lambda: oracle.decode(kind, plain),
            "floor: one scan": lambda: scan(body),
        },
    )
    assert decode_frame(kind, body) == made


def test_the_payload_of_an_event_is_decoded_once(capsys: pytest.CaptureFixture[str]) -> None:
    body = memoryview(expected_frames.event().encode())[5:]

    def once() -> EventPayload:
        frame = decode_frame(FrameType.COORD_EVENT, body)
        assert isinstance(frame, CoordEvent)
        return frame.content

    def twice() -> EventPayload:
        frame = decode_frame(FrameType.COORD_EVENT, body)
        assert isinstance(frame, CoordEvent)
        return decode_event_payload(frame.event_kind, frame.payload)

    report(
        capsys,
        f"content of COORD_EVENT, {len(body)} bytes",
        {"decoded with the frame": once, "decoded again from the payload": twice},
    )
    assert once() == twice()


def test_fan_out(capsys: pytest.CaptureFixture[str]) -> None:
    event = expected_frames.event()
    values = {item.name: getattr(event, item.name) for item in event.FIELDS}
    tail = event_tail(expected_images.EVENT_10)
    tails = [tail] * TURN
    head = bytes(35)
    report(
        capsys,
        f"{TURN} COORD_EVENTs for one more subscription, {len(event.encode())} bytes each",
        {
            "event_frames": lambda: event_frames(fix.SUBSCRIPTION, delivery_sequence(1), tails),
            "CoordEvent and encode": lambda: [CoordEvent.build(values).encode() for _ in tails],
            "plain Python": lambda: oracle_frame.numbered_frames(head[:-9], 1, tails),
            "floor: two bytes objects joined": lambda: [head + tail for tail in tails],
        },
    )
    assert event_frames(fix.SUBSCRIPTION, delivery_sequence(1), tails)[0] == event.encode()
