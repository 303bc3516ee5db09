"""The retained part of the event order."""

from __future__ import annotations

import pytest

from sidecar.coordinator.engine.commands import record_of
from sidecar.coordinator.engine.log import EventLog, replay_event
from sidecar.coordinator.engine.state import Event
from sidecar.coordinator.wire import frames as fr
from sidecar.coordinator.wire.enums import EventKind, ObjectiveState, ObjectKind
from sidecar.coordinator.wire.events import event_frames
from sidecar.coordinator.wire.ids import DeliverySequence, SubscriptionId
from sidecar.coordinator.wire.payloads import ObjectiveRecord
from tests.unit.engine.harness import id16


def event(sequence: int, document: bytes = b"d") -> Event:
    payload = ObjectiveRecord(document_schema=1, document=document, state=ObjectiveState.ACTIVE)
    image = record_of(ObjectKind.OBJECTIVE, id16(1), 1, payload).image
    return Event(sequence, id16(sequence), EventKind.OBJECTIVE_CHANGED, 1, id16(1), 1, 1, image, b"")


def test_dropped_events_are_gone_at_once_and_indexes_stay_right_for_ever() -> None:
    log = EventLog([event(8), event(9)], 9)
    assert (log.first, log.head, len(log)) == (8, 9, 2)
    for sequence in range(10, 12_000):
        log.append([event(sequence)])
        log.drop_before(log.excess(1 << 30, 50))
    assert (log.first, log.head, len(log)) == (11_950, 11_999, 50)
    assert log.nbytes == 50 * len(event(1).payload)
    assert [log[sequence].event.sequence for sequence in range(11_950, 12_000)] == list(range(11_950, 12_000))
    for missing in (11_949, 10_000, 12_000):
        with pytest.raises(LookupError):
            log[missing]


def test_what_lies_behind_an_event() -> None:
    log = EventLog([event(sequence) for sequence in range(8, 13)], 12)
    log.drop_before(10)
    for sequence, behind in ((0, [10, 11, 12]), (9, [10, 11, 12]), (10, [11, 12]), (12, []), (13, [])):
        assert [entry.event.sequence for entry in log.after(sequence)] == behind
    assert EventLog([], 5).after(5) == []


def test_the_bound_of_bytes_may_empty_the_log() -> None:
    log = EventLog([], 5)
    log.append([event(6, bytes(500))])
    assert log.excess(100, 50) == 7
    log.drop_before(7)
    assert (log.first, log.head, log.nbytes) == (7, 6, 0)


@pytest.mark.req("P10-06", "P10-14")
def test_the_shared_encoding_is_that_of_the_frame() -> None:
    log = EventLog([event(3, b"x" * size) for size in (100,)], 3)
    entry, subscription = log[3], SubscriptionId(id16(9))
    made = event_frames(subscription, DeliverySequence(7), [entry.tail])[0]
    assert len(made) == entry.size
    frame = fr.CoordEvent.decode(made[5:])
    plain = replay_event(entry.event)
    assert (frame.subscription_id, frame.delivery_sequence) == (subscription, 7)
    assert (frame.event_sequence, frame.event_id, frame.payload) == (
        plain.event_sequence,
        plain.event_id,
        plain.payload,
    )
