"""The retained part of the event order."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.coordinator.engine.commands import record_of
from sidecar.coordinator.engine.log import EventLog, replay_event
from sidecar.coordinator.engine.state import Event
from sidecar.coordinator.engine.visibility import Visibility
from sidecar.coordinator.wire import frames as fr
from sidecar.coordinator.wire.enums import EventKind, ObjectiveState, ObjectKind, Scope
from sidecar.coordinator.wire.events import event_frames
from sidecar.coordinator.wire.ids import DeliverySequence, SubscriptionId
from sidecar.coordinator.wire.payloads import ObjectiveRecord
from tests.unit.engine.fakes import key
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
    seen, sizes = log.seen_behind(11_990, Visibility.of(Scope.WORK_READ, 0, key(1)))
    assert [entry.event.sequence for entry in seen] == list(range(11_991, 12_000))
    assert sizes == [len(event(1).payload)] * 9
    for missing in (11_949, 10_000, 12_000):
        with pytest.raises(LookupError):
            log[missing]


def test_what_is_visible_behind_an_event() -> None:
    log = EventLog([event(sequence) for sequence in range(8, 13)], 12)
    log.drop_before(10)
    everything, nothing = Visibility.of(Scope.WORK_READ, 0, key(1)), Visibility.of(0, 0, key(1))
    for sequence, behind in ((0, [10, 11, 12]), (9, [10, 11, 12]), (10, [11, 12]), (12, []), (13, [])):
        entries, sizes = log.seen_behind(sequence, everything)
        assert [entry.event.sequence for entry in entries] == behind
        assert sizes == [len(entry.event.payload) for entry in entries]
        assert log.seen_behind(sequence, nothing) == ([], [])
    assert EventLog([], 5).seen_behind(5, everything) == ([], [])


@given(
    events=st.lists(
        st.tuples(st.sampled_from(ObjectKind), st.integers(1, 3), st.binary(max_size=40)), min_size=1, max_size=60
    ),
    scopes=st.integers(0, 0x3F),
    capabilities=st.integers(0, 0x1F),
    cut=st.integers(0, 70),
    lost=st.integers(0, 60),
)
def test_a_row_of_events_is_seen_as_each_of_them_is(
    events: list[tuple[ObjectKind, int, bytes]], scopes: int, capabilities: int, cut: int, lost: int
) -> None:
    log = EventLog([], 5)
    for sequence, (kind, sender, payload) in enumerate(events, 6):
        principal = key(sender) if kind is ObjectKind.OPERATION else b""
        log.append([event(sequence)._replace(object_kind=kind, principal=principal, payload=payload)])
    log.drop_before(min(6 + lost, log.head + 1))
    visibility = Visibility.of(scopes, capabilities, key(1))
    wanted = [log[at] for at in range(max(cut + 1, log.first), log.head + 1) if visibility.sees_event(log[at].event)]
    assert log.seen_behind(cut, visibility) == (wanted, [len(entry.event.payload) for entry in wanted])


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
