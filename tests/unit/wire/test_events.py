"""An event's payload is exactly one record, fact or gap about the very object that the event names."""

from __future__ import annotations

from typing import Any

import pytest

from sidecar.coordinator.wire import frames, records
from sidecar.coordinator.wire.enums import (
    EventKind,
    FrameType,
    ObjectKind,
)
from sidecar.coordinator.wire.errors import MalformedMessage
from sidecar.coordinator.wire.events import EVENT_OBJECTS, decode_event_payload
from sidecar.coordinator.wire.ids import ObjectRevision
from sidecar.coordinator.wire.records import ReplayEvent
from tests.oracles.wire import join, split
from tests.unit.wire.samples import (
    FRAME_SAMPLES,
    record,
    replay_event,
)
from tests.vectors import expected_images
from tests.vectors import inputs as fix


def coord_event(event: ReplayEvent) -> bytes:
    """Body of a COORD_EVENT with the parts of an event, whatever they are."""
    sample = dict(split(FRAME_SAMPLES[FrameType.COORD_EVENT].body()))
    image = event.encode()
    parts = {3: image[:8], 4: image[8:24], 5: image[24:26], 6: image[26:44], 7: image[44:52], 8: image[52:54]}
    return join([(1, sample[1]), (2, sample[2]), *parts.items(), (9, image[54:])])


def replay_page(event: ReplayEvent) -> bytes:
    value = b"\x00\x01" + event.encode()
    return join([(key, value if key == 5 else old) for key, old in split(FRAME_SAMPLES[FrameType.REPLAY_PAGE].body())])


def changed(event: ReplayEvent, **parts: Any) -> ReplayEvent:
    values = {name: getattr(event, name) for name, _ in event.COLUMNS}
    return ReplayEvent(**{**values, **parts})


def refuse_event(event: ReplayEvent) -> None:
    with pytest.raises(MalformedMessage):
        frames.CoordEvent.decode(coord_event(event))
    with pytest.raises(MalformedMessage):
        frames.ReplayPage.decode(replay_page(event))


ABOUT = [(kind, family) for kind in EventKind for family in sorted(EVENT_OBJECTS[kind])]


@pytest.mark.req("P7-21", "P7-22", "P7-23")
@pytest.mark.parametrize(("kind", "family"), ABOUT)
def test_an_event_is_about_its_payload(kind: EventKind, family: ObjectKind) -> None:
    event = replay_event(kind, family)
    decoded = frames.CoordEvent.decode(coord_event(event))
    content = decode_event_payload(kind, decoded.payload)
    assert content.encode() == event.payload
    assert frames.ReplayPage.decode(replay_page(event)).events == (event,)
    refuse_event(changed(event, object=fix.ref(family, b"\x0f" * 16)))
    refuse_event(changed(event, payload=event.payload + b"\x00"))
    refuse_event(changed(event, payload=event.payload[:-1]))
    refuse_event(changed(event, payload=b""))
    for other in ObjectKind:
        if other not in EVENT_OBJECTS[kind]:
            refuse_event(changed(event, object=fix.ref(other, event.object.id)))
            refuse_event(changed(event, object=record(other).ref(), payload=record(other).encode()))


@pytest.mark.req("P7-21")
@pytest.mark.parametrize(
    ("kind", "family"),
    [pair for pair in ABOUT if pair[0] not in (EventKind.SOURCE_FACT_ADMITTED, EventKind.SOURCE_GAP)],
)
def test_a_record_event_has_the_revision_of_its_record(kind: EventKind, family: ObjectKind) -> None:
    event = replay_event(kind, family)
    refuse_event(changed(event, object_revision=ObjectRevision(event.object_revision + 1)))
    refuse_event(changed(event, payload=event.payload + event.payload))
    refuse_event(changed(event, payload=expected_images.FACT.encode()))


@pytest.mark.req("P7-23")
@pytest.mark.parametrize("reason", [3, 255])
def test_a_source_gap_has_a_known_reason(reason: int) -> None:
    image = expected_images.GAP.encode()
    assert len(image) == 33
    with pytest.raises(MalformedMessage):
        records.SourceGap.decode(image[:-1] + bytes([reason]))
