"""A stream is exact-next or stale; it is never quietly incomplete."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from sidecar.coordinator import client_events as ev
from sidecar.coordinator.client_core import SyncState
from sidecar.coordinator.client_errors import ConnectionLost, PeerFault
from sidecar.coordinator.client_stream import Projection
from sidecar.coordinator.wire import frames as fr
from sidecar.coordinator.wire.enums import ErrorCode, EventKind, GapReason, ObjectKind
from sidecar.coordinator.wire.errors import CursorInvalid, LocalProtocolError
from sidecar.coordinator.wire.ids import EventCut
from sidecar.coordinator.wire.limits import Limits, largest_event
from sidecar.coordinator.wire.payloads import BindingRecord
from sidecar.coordinator.wire.records import (
    LocalResource,
    ObjectRef,
    SnapshotRecord,
    SourceGap,
    TerminalBindingRef,
)
from tests.oracles.fake_replay import FakeStream
from tests.oracles.fake_server import World, altered, objective
from tests.unit.client.rig import Rig, changing

SMALL = Limits(frame=4096, page_bytes=1024, page_records=3, typed_payload=512, credit_count=8, credit_bytes=1256)


def following(world: World | None = None, **options: Any) -> Rig:
    """A live subscription that continues a snapshot."""
    rig = Rig(world, **options).start()
    rig.session.open_snapshot(reserve=True)
    rig.go()
    assert rig.of(ev.StreamLive)
    return rig


def stream_of(rig: Rig) -> FakeStream:
    (stream,) = rig.server.streams.values()
    return stream


def pumped(rig: Rig, *records: SnapshotRecord) -> Rig:
    for record in records:
        rig.world.put(record)
    rig.server.pump()
    return rig.go()


def projection_of(rig: Rig) -> Projection:
    return rig.session.projection(rig.one(ev.StreamLive).subscription_id)


@pytest.mark.req("P10-12", "P10-15")
@pytest.mark.parametrize("step", [1, None])
def test_events_continue_the_snapshot(step: int | None) -> None:
    world = World()
    world.put(objective(1))
    rig = following(world, step=step)
    pumped(rig, objective(2), objective(1, 2, b"[]"))
    events = rig.of(ev.WorkEvent)
    assert [(event.delivery, event.sequence, event.revision) for event in events] == [(1, 2, 1), (2, 3, 2)]
    assert [event.record for event in events] == [objective(2), objective(1, 2, b"[]")]
    projection = projection_of(rig)
    assert set(projection.records.values()) == {objective(1, 2, b"[]"), objective(2)}
    assert (projection.cut, projection.stale) == (3, None)
    assert rig.session.sync is SyncState.CURRENT


STALE: dict[str, Callable[[fr.CoordEvent], fr.CoordEvent]] = {
    "delivery skipped": lambda event: altered(event, delivery_sequence=event.delivery_sequence + 1),
    "delivery repeated": lambda event: altered(event, delivery_sequence=1),
    "event repeated": lambda event: altered(event, event_sequence=1),
}


@pytest.mark.req("P10-12")
@pytest.mark.parametrize("lie", STALE)
def test_a_delivery_that_is_not_the_next_is_a_gap(lie: str) -> None:
    rig = following()
    pumped(rig, objective(1))
    rig.server.rewrite = changing(fr.CoordEvent, STALE[lie])
    pumped(rig, objective(2), objective(3))
    stale = rig.one(ev.StreamStale)
    assert (stale.last_delivery, stale.last_event) == (1, 1)
    assert len(rig.of(ev.WorkEvent)) == 1
    assert rig.session.sync is SyncState.STALE
    assert not rig.session.closing
    assert projection_of(rig).stale is not None
    assert set(projection_of(rig).records.values()) == {objective(1)}


@pytest.mark.req("P10-15")
@pytest.mark.parametrize(
    "record", [objective(1, 3), objective(1, 1), objective(2, 2)], ids=["jump", "again", "first is not 1"]
)
def test_a_revision_that_is_not_the_next_makes_the_stream_stale(record: SnapshotRecord) -> None:
    world = World()
    world.put(objective(1))
    rig = following(world)
    pumped(rig, record, objective(7))
    assert not rig.of(ev.WorkEvent)
    assert rig.one(ev.StreamStale).last_event == 1
    assert set(projection_of(rig).records.values()) == {objective(1)}
    assert rig.session.sync is SyncState.STALE


@pytest.mark.req("P10-15")
def test_hidden_events_may_be_skipped_and_revisions_still_count() -> None:
    rig = following()
    pumped(rig, objective(1))
    rig.world.events += [{}, {}]
    stream_of(rig).cursor += 2
    pumped(rig, objective(1, 2))
    assert [event.sequence for event in rig.of(ev.WorkEvent)] == [1, 4]
    assert not rig.of(ev.StreamStale)


@pytest.mark.req("P10-19", "P13-07")
def test_a_bare_close_is_a_gap_and_leaves_requests_indeterminate() -> None:
    rig = following()
    pumped(rig, objective(1))
    rig.server.rewrite = lambda frame: None
    lookup = rig.session.lookup(b"\x88" * 16)  # type: ignore[arg-type]
    snapshot = rig.session.open_snapshot()
    rig.go()
    rig.session.eof(rig.now)
    rig.go()
    assert isinstance(rig.closed, ConnectionLost)
    assert rig.one(ev.Closed).unfinished == (lookup, snapshot)
    assert rig.one(ev.StreamStale).last_delivery == 1
    assert rig.session.sync is SyncState.STALE
    assert projection_of(rig).stale is not None
    assert set(projection_of(rig).records.values()) == {objective(1)}


@pytest.mark.req("P10-21")
@pytest.mark.parametrize(
    ("reason", "value"),
    [
        (GapReason.QUEUE_OVERFLOW, 0),
        (GapReason.RETENTION, 1),
        (GapReason.EPOCH_CHANGED, 2),
        (GapReason.SOURCE_GAP, 3),
        (GapReason.CURSOR_INVALID, 4),
        (GapReason.REVISION_MISMATCH, 5),
        (GapReason.GRANT_REVOKED, 6),
        (GapReason.INTERNAL, 7),
    ],
)
def test_a_gap_pauses_the_stream_and_tells_its_reason(reason: GapReason, value: int) -> None:
    rig = following()
    pumped(rig, objective(1))
    rig.server.gap(stream_of(rig), reason)
    rig.go()
    gap = rig.one(ev.StreamGap)
    assert gap.reason == value
    assert (gap.last_delivery, gap.last_event, gap.observed_event) == (1, 1, None)
    assert rig.session.sync is SyncState.STALE
    assert not rig.session.closing
    assert projection_of(rig).stale == f"gap: {reason.name}"


def test_an_event_after_a_gap_is_a_breach() -> None:
    rig = following()
    rig.server.gap(stream_of(rig))
    rig.world.put(objective(1))
    rig.server.send(rig.server.event(stream_of(rig), rig.world.events[0]))
    error = rig.go().closed
    assert isinstance(error, PeerFault)
    assert error.code is ErrorCode.PROTOCOL_ERROR
    assert not rig.of(ev.WorkEvent)


def test_a_second_gap_is_a_breach() -> None:
    rig = following()
    rig.server.gap(stream_of(rig))
    rig.server.gap(stream_of(rig))
    assert isinstance(rig.go().closed, PeerFault)


def test_a_gap_may_overtake_a_stream_that_is_stale_already() -> None:
    rig = following()
    rig.server.rewrite = changing(fr.CoordEvent, STALE["delivery skipped"])
    pumped(rig, objective(1))
    rig.server.gap(stream_of(rig))
    assert rig.go().of(ev.StreamGap)
    assert not rig.session.closing


def test_a_fresh_snapshot_replaces_a_paused_stream() -> None:
    rig = following()
    old = stream_of(rig).subscription_id
    rig.server.gap(stream_of(rig))
    rig.go()
    rig.world.put(objective(1))
    rig.session.open_snapshot(reserve=True, replaces=old)
    rig.go()
    assert rig.session.sync is SyncState.CURRENT
    assert stream_of(rig).subscription_id != old
    pumped(rig, objective(2))
    assert rig.one(ev.WorkEvent).delivery == 1
    with pytest.raises(LocalProtocolError):
        rig.session.projection(old)


def test_a_replacement_that_is_refused_leaves_the_stream_paused() -> None:
    def refuse(begin: fr.SnapshotBegin) -> fr.CoordErrorFrame:
        return fr.CoordErrorFrame(request_id=begin.request_id, code=ErrorCode.RESOURCE_EXHAUSTED, message="full")

    rig = following()
    old = stream_of(rig).subscription_id
    rig.server.gap(stream_of(rig))
    rig.go()
    rig.server.rewrite = changing(fr.SnapshotBegin, refuse)
    rig.session.open_snapshot(reserve=True, replaces=old)
    rig.go()
    assert rig.of(ev.Refused)
    assert rig.session.projection(old).stale is not None
    assert rig.session.sync is SyncState.STALE


# -- credit ------------------------------------------------------------------------------------------------------------


@pytest.mark.req("P10-16")
def test_credit_goes_back_when_half_of_it_was_used_and_never_exceeds_the_window() -> None:
    rig = Rig().start()
    rig.session.open_snapshot(reserve=True, credit=(4, 1_000_000))
    rig.go()
    pumped(rig, *(objective(number) for number in range(1, 21)))
    for delivered in range(1, 21):
        events = rig.of(ev.WorkEvent)
        rig.session.consumed(events[delivered - 1])
        rig.go()
        assert stream_of(rig).count <= 4
    assert len(rig.of(ev.WorkEvent)) == 20
    credits = rig.server.of(fr.CreditFrame)
    assert [credit.add_count for credit in credits] == [2] * 10
    sizes = [event.nbytes for event in rig.of(ev.WorkEvent)]
    assert [credit.add_bytes for credit in credits] == [sum(sizes[at : at + 2]) for at in range(0, 20, 2)]


def test_an_event_costs_its_whole_size_on_the_wire() -> None:
    rig = following()
    sizes: list[int] = []

    def measure(event: fr.CoordEvent) -> fr.CoordEvent:
        sizes.append(len(event.encode()))
        return event

    rig.server.rewrite = changing(fr.CoordEvent, measure)
    pumped(rig, objective(1))
    assert [rig.one(ev.WorkEvent).nbytes] == sizes


def test_an_application_that_takes_nothing_stops_the_stream() -> None:
    rig = Rig().start()
    rig.session.open_snapshot(reserve=True, credit=(3, 1_000_000))
    rig.go()
    pumped(rig, *(objective(number) for number in range(1, 21)))
    assert len(rig.of(ev.WorkEvent)) == 3
    assert not rig.server.of(fr.CreditFrame)


def test_byte_credit_never_rests_below_the_largest_event() -> None:
    """With the smallest legal window the stream still moves, one event at a time."""
    tight = Limits(4096, 1024, 3, 512, 100, largest_event(512))
    rig = following(World(limits=tight), limits=tight)
    # small and large ones in turn: after a small one less than half is owed, and too little is left for a large one
    pumped(rig, *(objective(number, document=b"x" * (400 * (number % 2 == 0))) for number in range(1, 7)))
    taken = 0
    while taken < len(rig.of(ev.WorkEvent)):
        rig.session.consumed(rig.of(ev.WorkEvent)[taken])
        taken += 1
        rig.go()
    assert taken == 6


@pytest.mark.req("P10-16")
@pytest.mark.parametrize("credit", [(1, 1_000_000), (100, 200)], ids=["count", "bytes"])
def test_an_event_beyond_the_credit_is_a_breach(credit: tuple[int, int]) -> None:
    rig = Rig().start()
    rig.session.open_snapshot(reserve=True, credit=credit)
    rig.go()
    pumped(rig, objective(1))
    assert len(rig.of(ev.WorkEvent)) == 1
    stream_of(rig).count, stream_of(rig).nbytes = 10, 10_000
    error = pumped(rig, objective(2)).closed
    assert isinstance(error, PeerFault)
    assert error.code is ErrorCode.PROTOCOL_ERROR
    assert len(rig.of(ev.WorkEvent)) == 1


@pytest.mark.req("P10-08")
def test_credit_of_a_paused_stream_is_not_given_back() -> None:
    rig = Rig().start()
    rig.session.open_snapshot(reserve=True, credit=(2, 1_000_000))
    rig.go()
    pumped(rig, objective(1))
    rig.server.gap(stream_of(rig))
    rig.go()
    rig.session.consumed(rig.one(ev.WorkEvent))
    assert not rig.go().server.of(fr.CreditFrame)


# -- direct subscriptions ----------------------------------------------------------------------------------------------


@pytest.mark.req("P10-15")
def test_a_direct_subscription_from_the_first_event_builds_the_whole_state() -> None:
    world = World()
    for number in (1, 2):
        world.put(objective(number))
    world.put(objective(1, 2))
    rig = Rig(world).start()
    request = rig.session.subscribe(EventCut(0))
    rig.go()
    assert rig.one(ev.StreamLive).request_id == request
    assert [event.sequence for event in rig.of(ev.WorkEvent)] == [1, 2, 3]
    assert set(projection_of(rig).records.values()) == {objective(1, 2), objective(2)}
    assert rig.session.sync is SyncState.CURRENT


@pytest.mark.req("P10-15")
def test_a_follower_from_the_middle_takes_the_first_sight_and_then_insists() -> None:
    world = World()
    for revision in range(1, 4):
        world.put(objective(1, revision))
    rig = Rig(world).start()
    rig.session.subscribe(EventCut(2))
    rig.go()
    assert [event.revision for event in rig.of(ev.WorkEvent)] == [3]
    pumped(rig, objective(1, 4))
    assert not rig.of(ev.StreamStale)
    assert pumped(rig, objective(1, 6)).of(ev.StreamStale)


def test_a_known_projection_can_be_continued() -> None:
    world = World()
    world.put(objective(1))
    rig = Rig(world).start()
    rig.session.open_snapshot()
    snapshot = rig.go().one(ev.SnapshotReady).snapshot
    known = Projection(snapshot.records, snapshot.base)
    world.put(objective(1, 2))
    rig.session.subscribe(snapshot.base, projection=known)
    rig.go()
    assert [event.revision for event in rig.of(ev.WorkEvent)] == [2]
    assert set(known.records.values()) == {objective(1, 2)}
    with pytest.raises(LocalProtocolError):
        rig.session.subscribe(snapshot.base, projection=known)
    known.stale = "gap"
    with pytest.raises(LocalProtocolError):
        rig.session.subscribe(known.cut, projection=known)


def test_a_refused_subscription() -> None:
    def refuse(frame: fr.Subscribed) -> fr.CoordErrorFrame:
        return fr.CoordErrorFrame(request_id=frame.request_id, code=ErrorCode.CURSOR_INVALID, message="above head")

    rig = Rig(rewrite=changing(fr.Subscribed, refuse)).start()
    request = rig.session.subscribe(EventCut(0))
    rig.go()
    assert rig.one(ev.Refused).request_id == request
    assert isinstance(rig.one(ev.Refused).error, CursorInvalid)
    assert not rig.of(ev.StreamLive)


@pytest.mark.parametrize(
    "change",
    [
        lambda frame: altered(frame, next_delivery_sequence=2),
        lambda frame: altered(frame, request_id=77),
        lambda frame: fr.Ack(request_id=frame.request_id),
    ],
    ids=["delivery 2", "no such request", "ACK"],
)
def test_a_subscription_that_starts_wrong_is_a_breach(change: Callable[[fr.Subscribed], fr.Frame]) -> None:
    rig = Rig(rewrite=changing(fr.Subscribed, change)).start()
    rig.session.subscribe(EventCut(0))
    assert isinstance(rig.go().closed, PeerFault)


def test_a_subscription_id_is_given_out_once() -> None:
    rig = Rig(rewrite=changing(fr.Subscribed, lambda frame: altered(frame, subscription_id=b"\x44" * 16))).start()
    rig.session.subscribe(EventCut(0))
    rig.session.subscribe(EventCut(0))
    assert isinstance(rig.go().closed, PeerFault)


@pytest.mark.parametrize("kind", ["event", "gap"])
def test_frames_of_unknown_subscriptions_are_a_breach(kind: str) -> None:
    rig = Rig().start()
    rig.world.put(objective(1))
    stream = FakeStream(b"\x44" * 16, 0, True)  # type: ignore[arg-type]
    if kind == "gap":
        rig.server.gap(stream)
    else:
        rig.server.send(rig.server.event(stream, rig.world.events[0]))
    error = rig.go().closed
    assert isinstance(error, PeerFault)
    assert error.code is ErrorCode.PROTOCOL_ERROR


# -- what an event carries ---------------------------------------------------------------------------------------------


@pytest.mark.req("P7-27")
@pytest.mark.parametrize("fault", ["other object", "other revision", "truncated", "unknown state"])
def test_an_event_whose_payload_is_not_its_object_is_malformed(fault: str) -> None:
    def change(event: fr.CoordEvent) -> bytes:
        image = event.encode()
        record = objective(1).encode()
        at = image.index(record)
        replacement = {
            "other object": objective(2).encode(),
            "other revision": objective(1, 2).encode(),
            "truncated": record[:-1] + b"\xff",
            "unknown state": record[:-1] + b"\x03",
        }[fault]
        return image[:at] + replacement + image[at + len(record) :]

    rig = following(rewrite=changing(fr.CoordEvent, change))
    error = pumped(rig, objective(1)).closed
    assert isinstance(error, PeerFault)
    assert error.code is ErrorCode.MALFORMED_MESSAGE
    assert not rig.of(ev.WorkEvent)
    (told,) = rig.server.of(fr.CoordErrorFrame)
    assert told.code is ErrorCode.MALFORMED_MESSAGE


@pytest.mark.req("P3-09")
def test_an_event_above_the_selected_typed_payload_is_too_large() -> None:
    rig = following(limits=SMALL)
    error = pumped(rig, objective(1, document=b"x" * 470)).closed
    assert isinstance(error, PeerFault)
    assert error.code is ErrorCode.FRAME_TOO_LARGE
    (told,) = rig.server.of(fr.CoordErrorFrame)
    assert told.code is ErrorCode.FRAME_TOO_LARGE


def test_an_event_of_exactly_the_selected_typed_payload_is_taken() -> None:
    rig = following(limits=SMALL)
    spare = 512 - len(objective(1, document=b"").encode())
    document = b"x" * spare
    while len(objective(1, document=document).encode()) > 512:
        document = document[1:]
    assert len(objective(1, document=document).encode()) == 512
    assert len(pumped(rig, objective(1, document=document)).of(ev.WorkEvent)) == 1


def test_a_source_gap_counts_as_a_revision_of_its_binding() -> None:
    ref = TerminalBindingRef.decode(
        b"\x77" * 16 + b"\x66" * 16 + b"\xf1" * 32 + b"\xf2" * 16 + b"\0\0\0\x05" + LocalResource(1).encode()
    )
    payload = BindingRecord.build({"binding": ref, "state": 0}).body()
    binding = SnapshotRecord(ObjectKind.BINDING, b"\x77" * 16, 1, 1, payload)  # type: ignore[arg-type]
    world = World()
    world.put(binding, EventKind.BINDING_OPENED)
    rig = following(world)
    gap = SourceGap.decode(b"\x77" * 16 + (2).to_bytes(8, "big") + (5).to_bytes(8, "big") + b"\0")
    world.events.append(
        {
            "event_sequence": 2,
            "event_id": b"\xe2" * 16,
            "event_kind": EventKind.SOURCE_GAP,
            "object": ObjectRef(ObjectKind.BINDING, b"\x77" * 16),  # type: ignore[arg-type]
            "object_revision": 2,
            "schema": 1,
            "payload": gap.encode(),
        }
    )
    event = pumped(rig).one(ev.WorkEvent)
    assert event.record is None
    (known,) = projection_of(rig).records.values()
    assert (known.revision, known.payload) == (2, payload)


def test_documents_are_not_in_the_text_of_an_event() -> None:
    rig = pumped(following(), objective(1, document=b'"canary-4711"'))
    assert "canary" not in repr(rig.events)
