"""A replay is published complete and verified on the subscription that it heals, or not at all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sidecar.coordinator import client_events as ev
from sidecar.coordinator.client_core import SyncState
from sidecar.coordinator.client_errors import ConnectionLost, PeerFault, ReplayTooLarge, VerificationFailed
from sidecar.coordinator.client_handshake import ReplayBound
from sidecar.coordinator.wire import frames as fr
from sidecar.coordinator.wire.enums import Capability, ErrorCode, EventKind, GapReason, ObjectKind
from sidecar.coordinator.wire.errors import CursorInvalid, LocalProtocolError, ResourceExhausted
from sidecar.coordinator.wire.fields import Frame
from sidecar.coordinator.wire.ids import SubscriptionId
from sidecar.coordinator.wire.records import ObjectRef, ReplayEvent, SnapshotRecord, SourceGap
from tests.oracles.fake_replay import FakeStream
from tests.oracles.fake_server import World, altered, objective
from tests.unit.client.rig import Rig, changing, rewriting


def replaying_world(page_size: int = 2) -> World:
    return World(page_size=page_size, capabilities=int(Capability.EVENT_REPLAY))


def paused(*missed: SnapshotRecord, world: World | None = None, **options: Any) -> Rig:
    """A stream with one delivered event (objective 1), a GAP behind it, and then what it missed."""
    rig = Rig(replaying_world() if world is None else world, **options).start()
    rig.session.open_snapshot(reserve=True)
    rig.go()
    pumped(rig, objective(1))
    rig.server.gap(stream_of(rig))
    for record in missed:
        rig.world.put(record)
    return rig.go()


def stream_of(rig: Rig) -> FakeStream:
    (stream,) = rig.server.streams.values()
    return stream


def pumped(rig: Rig, *records: SnapshotRecord) -> Rig:
    for record in records:
        rig.world.put(record)
    rig.server.pump()
    return rig.go()


def subscription_of(rig: Rig) -> SubscriptionId:
    return rig.of(ev.StreamLive)[0].subscription_id


def replayed(rig: Rig, **options: Any) -> Rig:
    rig.session.open_replay(subscription_of(rig), **options)
    return rig.go()


def known(rig: Rig) -> dict[bytes, SnapshotRecord]:
    return dict(rig.session.projection(subscription_of(rig)).records)


# -- a replay that works -----------------------------------------------------------------------------------------------


@pytest.mark.req("P10-32", "P10-34", "P10-24", "P14-11")
@pytest.mark.parametrize("step", [1, None])
@pytest.mark.parametrize(("count", "pages"), [(1, 1), (2, 1), (3, 2), (5, 3)])
def test_what_was_missed_is_published_and_the_stream_goes_on(count: int, pages: int, step: int | None) -> None:
    rig = paused(*(objective(number) for number in range(2, 2 + count)), step=step)
    assert rig.session.sync is SyncState.STALE
    handle = rig.session.open_replay(subscription_of(rig))
    rig.go()
    ready = rig.one(ev.ReplayReady)
    assert ready.request_id == handle
    replay = ready.replay
    assert [event.sequence for event in replay.events] == list(range(2, 2 + count))
    assert [event.record for event in replay.events] == [objective(number) for number in range(2, 2 + count)]
    assert [event.event_id for event in replay.events] == [event["event_id"] for event in rig.world.events[1:]]
    assert (replay.after, replay.through, replay.event_count, replay.page_count) == (1, 1 + count, count, pages)
    assert rig.of(ev.StreamLive)[1].request_id == handle
    assert (known(rig), rig.session.sync) == (rig.world.records, SyncState.CURRENT)
    assert rig.session.open_requests == 0
    pumped(rig, objective(1, 2))
    after = rig.of(ev.WorkEvent)[-1]
    assert (after.delivery, after.sequence) == (2, 2 + count)
    assert known(rig) == rig.world.records
    (asked,) = rig.server.of(fr.OpenReplay)
    assert (asked.subscription_id, asked.after_event_sequence) == (subscription_of(rig), 1)


@pytest.mark.req("P10-31")
def test_an_empty_replay_only_resumes() -> None:
    rig = replayed(paused())
    assert rig.one(ev.ReplayReady).replay.events == ()
    assert (rig.one(ev.ReplayReady).replay.through, rig.session.sync) == (1, SyncState.CURRENT)
    assert not rig.server.of(fr.ReplayNext)
    assert pumped(rig, objective(2)).of(ev.WorkEvent)[-1].delivery == 2


@pytest.mark.req("P10-32")
def test_hidden_events_end_in_the_cut() -> None:
    rig = paused(objective(2))
    rig.world.events += [{}, {}]
    replayed(rig)
    replay = rig.one(ev.ReplayReady).replay
    assert ([event.sequence for event in replay.events], replay.through) == ([2], 4)
    assert pumped(rig, objective(3)).of(ev.WorkEvent)[-1].sequence == 5
    rig.server.gap(stream_of(rig))
    rig.world.put(objective(4))
    replayed(rig.go())
    assert known(rig) == rig.world.records


@pytest.mark.req("P10-32")
def test_a_source_gap_in_a_replay_counts_as_a_revision() -> None:
    gap = SourceGap.decode(b"\x77" * 16 + (2).to_bytes(8, "big") + (5).to_bytes(8, "big") + b"\0")
    rig = paused()
    rig.session.projection(subscription_of(rig)).apply(
        ev.Change(1, b"\xe0" * 16, EventKind.SOURCE_GAP, ObjectRef(ObjectKind.BINDING, b"\x77" * 16), 1, b"", None)  # type: ignore[arg-type]
    )
    rig.world.events.append(
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
    (event,) = replayed(rig).one(ev.ReplayReady).replay.events
    assert (event.record, event.revision, event.payload) == (None, 2, gap.encode())


@settings(max_examples=60, deadline=None)
@given(
    history=st.lists(st.one_of(st.integers(1, 6), st.sampled_from(["gap", "void", "expire", "hidden"])), max_size=40),
    page_size=st.integers(1, 4),
)
@pytest.mark.req("P10-32", "P10-35")
def test_a_projection_after_gaps_and_replays_is_the_one_of_a_fresh_snapshot(history: list[Any], page_size: int) -> None:
    rig = Rig(replaying_world(page_size)).start()
    rig.session.open_snapshot(reserve=True)
    rig.go()
    told: list[ev.Change] = []
    for action in [*history, "gap"]:
        stream = stream_of(rig)
        if isinstance(action, int):
            old = rig.world.records.get(objective(action).key())
            rig.world.put(objective(action, 1 if old is None else old.revision + 1, b'"%d"' % len(rig.world.events)))
        elif action == "hidden":
            rig.world.events.append({})
        elif stream.paused:
            rig.session.open_replay(subscription_of(rig))
            if action != "gap":  # the replay is lost behind its END, before the server took REPLAY_APPLIED
                spoil(rig, action)
            rig.go()
        else:
            rig.server.gap(stream)
        rig.server.pump()
        rig.go()
    if stream_of(rig).paused:
        replayed(rig)
    for event in rig.events:
        if isinstance(event, ev.WorkEvent):
            told.append(event)
        elif isinstance(event, ev.ReplayReady):
            told += event.replay.events
    assert [event.sequence for event in told] == [at for at, event in enumerate(rig.world.events, 1) if event]
    rig.session.open_snapshot()
    fresh = rig.go().of(ev.SnapshotReady)[-1].snapshot
    assert known(rig) == {record.key(): record for record in fresh.records}
    assert not rig.session.closing


def spoil(rig: Rig, how: str) -> None:
    """After its END the replay is void: by a GAP of the stream, or because its lease ran out."""

    def behind(end: fr.ReplayEnd) -> bytes:
        rig.server.rewrite = None
        if how == "expire":
            rig.server.replays.expire()
            return end.encode()
        stream = stream_of(rig)
        gap = fr.Gap.build(
            {
                "subscription_id": stream.subscription_id,
                "last_contiguous_delivery": stream.delivery,
                "last_contiguous_event": stream.last,
                "reason": GapReason.QUEUE_OVERFLOW,
            }
        )
        rig.server.replays.end(stream)
        return end.encode() + gap.encode()

    rig.server.rewrite = changing(fr.ReplayEnd, behind)


# -- lies --------------------------------------------------------------------------------------------------------------


def nothing_published(rig: Rig) -> Exception:
    assert not rig.of(ev.ReplayReady)
    assert len(rig.of(ev.StreamLive)) == 1
    assert not rig.server.of(fr.ReplayApplied)
    assert set(known(rig).values()) == {objective(1)}
    assert (rig.session.sync, rig.session.closing) == (SyncState.STALE, True)
    return rig.closed


def event_of(page: fr.ReplayPage, at: int, **changes: Any) -> fr.ReplayPage:
    old = page.events[at]
    values = {name: getattr(old, name) for name, _ in ReplayEvent.COLUMNS} | changes
    events = list(page.events)
    events[at] = ReplayEvent(**values)
    return altered(page, events=tuple(events))


def on_page(index: int, change: Callable[[fr.ReplayPage], Frame]) -> Callable[[fr.ReplayPage], Frame]:
    return lambda page: change(page) if page.page_index == index else page


def jump(page: fr.ReplayPage) -> fr.ReplayPage:
    record = objective(2, 3)
    return event_of(page, 0, object=record.ref(), object_revision=3, payload=record.encode())


LIES: dict[str, tuple[type[Frame], Callable[[Any], Any], str]] = {
    "other subscription": (
        fr.ReplayBegin,
        lambda begin: altered(begin, subscription_id=b"\x01" * 16),
        "subscription",
    ),
    "cut before after": (fr.ReplayBegin, lambda begin: altered(begin, replay_cut=0), "cut"),
    "cut too low": (fr.ReplayBegin, lambda begin: altered(begin, replay_cut=begin.replay_cut - 1), "order"),
    "cut too high": (fr.ReplayBegin, lambda begin: altered(begin, replay_cut=begin.replay_cut + 1), "digest"),
    "no first event": (fr.ReplayBegin, lambda begin: altered(begin, first_event=None), "first_event"),
    "events without a page": (fr.ReplayBegin, lambda begin: altered(begin, first_cursor=None), "first_event"),
    "first event": (fr.ReplayBegin, lambda begin: altered(begin, first_event=3), "first_event"),
    "cursor": (fr.ReplayPage, lambda page: altered(page, cursor=b"other"), "cursor"),
    "repeated cursor": (
        fr.ReplayPage,
        on_page(1, lambda page: altered(page, next_cursor=b"replay-0")),
        "cursor",
    ),
    "own cursor": (fr.ReplayPage, on_page(0, lambda page: altered(page, next_cursor=page.cursor)), "cursor"),
    "replay id": (fr.ReplayPage, lambda page: altered(page, replay_id=b"\x01" * 16), "cursor"),
    "first index": (fr.ReplayPage, lambda page: altered(page, page_index=page.page_index + 1), "page_index"),
    "index again": (fr.ReplayPage, on_page(1, lambda page: altered(page, page_index=0)), "page_index"),
    "empty page": (fr.ReplayPage, lambda page: altered(page, events=()), "page_events"),
    "at after": (fr.ReplayPage, on_page(0, lambda page: event_of(page, 0, event_sequence=1)), "order"),
    "beyond the cut": (fr.ReplayPage, on_page(1, lambda page: event_of(page, 1, event_sequence=6)), "order"),
    "descending": (
        fr.ReplayPage,
        on_page(0, lambda page: altered(page, events=tuple(reversed(page.events)))),
        "first_event",
    ),
    "twice": (fr.ReplayPage, on_page(0, lambda page: altered(page, events=(page.events[0],) * 2)), "order"),
    "twice over pages": (fr.ReplayPage, on_page(1, lambda page: event_of(page, 0, event_sequence=3)), "order"),
    "revision jump": (fr.ReplayPage, on_page(0, jump), "revision"),
    "event id": (fr.ReplayPage, on_page(0, lambda page: event_of(page, 0, event_id=b"\x01" * 16)), "digest"),
    "left out": (fr.ReplayPage, on_page(1, lambda page: altered(page, events=page.events[:1])), "totals"),
    "page total": (fr.ReplayEnd, lambda end: altered(end, page_count=end.page_count + 1), "totals"),
    "event total": (fr.ReplayEnd, lambda end: altered(end, event_count=end.event_count - 1), "totals"),
    "digest": (fr.ReplayEnd, lambda end: altered(end, canonical_sha256=bytes(32)), "digest"),
    "end of another": (fr.ReplayEnd, lambda end: altered(end, replay_id=b"\x01" * 16), "end"),
}


@pytest.mark.req("P10-32")
@pytest.mark.parametrize("lie", LIES)
def test_one_lie_and_nothing_is_published(lie: str) -> None:
    shape, change, check = LIES[lie]
    rig = paused(*(objective(number) for number in range(2, 6)))
    rig.server.rewrite = changing(shape, change)
    error = nothing_published(replayed(rig))
    assert isinstance(error, VerificationFailed)
    assert error.check == check


@pytest.mark.req("P10-32", "P10-15")
def test_a_revision_that_repeats_within_the_replay_is_found() -> None:
    rig = paused(objective(2), objective(2, 2), objective(2, 2))
    error = nothing_published(replayed(rig))
    assert isinstance(error, VerificationFailed)
    assert error.check == "revision"


@pytest.mark.req("P10-31")
def test_the_digest_of_an_empty_replay_counts() -> None:
    rig = paused()
    rig.server.rewrite = rewriting(fr.ReplayEnd, canonical_sha256=bytes(32))
    error = nothing_published(replayed(rig))
    assert isinstance(error, VerificationFailed)
    assert error.check == "digest"


def end_of(page: fr.ReplayPage) -> fr.ReplayEnd:
    return fr.ReplayEnd.build(
        {
            "request_id": page.request_id,
            "replay_id": page.replay_id,
            "page_count": 1,
            "event_count": 2,
            "canonical_sha256": bytes(32),
        }
    )


@pytest.mark.req("P10-32")
@pytest.mark.parametrize(
    ("shape", "becomes"),
    [
        (fr.ReplayPage, end_of),
        (fr.ReplayBegin, lambda begin: fr.Ack(request_id=begin.request_id)),
        (fr.ReplayBegin, lambda begin: altered(begin, request_id=99)),
        (fr.ReplayEnd, lambda end: fr.Ack(request_id=end.request_id)),
        (fr.ReplayPage, lambda page: page.encode() * 2),
    ],
    ids=["END too early", "ACK for BEGIN", "no such request", "ACK for END", "PAGE twice"],
)
def test_a_frame_that_does_not_fit_its_request(shape: type[Frame], becomes: Callable[[Any], Any]) -> None:
    rig = paused(*(objective(number) for number in range(2, 6)))
    rig.server.rewrite = changing(shape, becomes)
    error = nothing_published(replayed(rig))
    assert isinstance(error, PeerFault)
    assert error.code is ErrorCode.PROTOCOL_ERROR


@pytest.mark.parametrize("shape", [fr.ReplayBegin, fr.ReplayPage, fr.ReplayEnd])
def test_a_replay_that_nobody_asked_for_is_a_breach(shape: type[Frame]) -> None:
    caught: list[Frame] = []

    def catch(frame: Frame) -> Frame:
        caught.append(frame)
        return frame

    source = paused(objective(2))
    source.server.rewrite = changing(shape, catch)
    replayed(source)
    rig = paused(objective(2))
    rig.session.feed(caught[0].encode(), rig.now)
    assert isinstance(rig.go().closed, PeerFault)


@pytest.mark.req("P10-32", "P10-08")
def test_a_page_that_never_ends_ends_with_the_connection() -> None:
    rig = paused(*(objective(number) for number in range(2, 8)))
    rig.server.rewrite = changing(fr.ReplayPage, lambda page: page if page.page_index == 0 else None)
    handle = rig.session.open_replay(subscription_of(rig))
    rig.go().session.eof(rig.now)
    assert isinstance(nothing_published(rig.go()), ConnectionLost)
    assert rig.one(ev.Closed).unfinished == (handle,)


@pytest.mark.req("P10-33", "P10-34")
@pytest.mark.parametrize("before", [fr.ReplayBegin, fr.ReplayEnd, fr.Ack])
def test_an_event_before_the_resumed_credit_was_acknowledged_is_a_breach(before: type[Frame]) -> None:
    rig = paused(objective(2))

    def early(frame: Frame) -> bytes:
        return rig.server.event(stream_of(rig), rig.world.events[-1]).encode() + frame.encode()

    rig.server.rewrite = changing(before, early)
    error = replayed(rig).closed
    assert isinstance(error, PeerFault)
    assert error.code is ErrorCode.PROTOCOL_ERROR
    assert len(rig.of(ev.WorkEvent)) == 1


@pytest.mark.req("P10-34")
@pytest.mark.parametrize(
    "change",
    [
        lambda event: altered(event, delivery_sequence=1),
        lambda event: altered(event, delivery_sequence=3),
        lambda event: altered(event, event_sequence=2),
    ],
    ids=["counts anew", "counts the replay", "within the replay"],
)
def test_the_delivery_after_a_replay_is_the_next_one_behind_its_cut(change: Callable[[Any], Any]) -> None:
    rig = replayed(paused(objective(2)))
    rig.server.rewrite = changing(fr.CoordEvent, change)
    pumped(rig, objective(3))
    assert len(rig.of(ev.WorkEvent)) == 1
    assert not rig.one(ev.StreamStale).healable
    assert not rig.session.replayable(subscription_of(rig))


# -- where a replay is possible ----------------------------------------------------------------------------------------


@pytest.mark.req("P10-22")
def test_event_replay_is_offered_and_its_absence_is_kept_to() -> None:
    rig = paused(objective(2), world=World())
    (hello,) = rig.server.of(fr.CoordHello)
    assert hello.offered_capabilities & Capability.EVENT_REPLAY
    assert not rig.session.replayable(subscription_of(rig))
    with pytest.raises(LocalProtocolError):
        rig.session.open_replay(subscription_of(rig))
    assert not rig.go().server.of(fr.OpenReplay)


@pytest.mark.req("P10-22")
def test_a_client_that_does_not_offer_it_never_asks() -> None:
    rig = paused(objective(2), capabilities=0)
    assert not rig.session.replayable(subscription_of(rig))


def test_only_a_paused_stream_is_replayed() -> None:
    rig = Rig(replaying_world()).start()
    rig.session.open_snapshot(reserve=True)
    rig.go()
    for unknown in (subscription_of(rig), SubscriptionId(b"\x09" * 16)):
        assert not rig.session.replayable(unknown)
        with pytest.raises(LocalProtocolError):
            rig.session.open_replay(unknown)
    rig.server.gap(stream_of(rig))
    rig.go().session.open_replay(subscription_of(rig))
    with pytest.raises(LocalProtocolError):  # one is under way
        rig.session.open_replay(subscription_of(rig))


@pytest.mark.req("P10-12")
def test_what_this_side_found_is_not_healed_by_a_replay() -> None:
    rig = Rig(replaying_world()).start()
    rig.session.open_snapshot(reserve=True)
    rig.go()
    rig.server.rewrite = changing(fr.CoordEvent, lambda event: altered(event, delivery_sequence=2))
    pumped(rig, objective(1))
    assert not rig.session.replayable(subscription_of(rig))
    rig.server.gap(stream_of(rig))
    assert not rig.go().session.replayable(subscription_of(rig))


@pytest.mark.req("P10-12", "P10-20")
@pytest.mark.parametrize(("delivery", "event"), [(2, 1), (0, 1), (1, 0), (1, 2)])
def test_a_gap_that_does_not_name_what_came_last_is_this_sides_finding(delivery: int, event: int) -> None:
    rig = Rig(replaying_world()).start()
    rig.session.open_snapshot(reserve=True)
    pumped(rig.go(), objective(1))
    rig.server.rewrite = rewriting(fr.Gap, last_contiguous_delivery=delivery, last_contiguous_event=event)
    rig.server.gap(stream_of(rig))
    rig.go()
    assert not rig.of(ev.StreamGap)
    assert not rig.one(ev.StreamStale).healable
    assert not rig.session.replayable(subscription_of(rig))


# -- refusals, overflow, expiry ----------------------------------------------------------------------------------------


@pytest.mark.req("P10-28", "P10-36")
def test_lost_retention_leaves_the_stream_for_a_snapshot() -> None:
    rig = paused(objective(2), objective(3))
    rig.world.first_retained = 3
    handle = rig.session.open_replay(subscription_of(rig))
    rig.go()
    refused = rig.one(ev.Refused)
    assert (refused.request_id, type(refused.error)) == (handle, CursorInvalid)
    assert [gap.reason for gap in rig.of(ev.StreamGap)] == [GapReason.QUEUE_OVERFLOW, GapReason.RETENTION]
    assert not rig.session.closing
    rig.session.open_snapshot(reserve=True, replaces=subscription_of(rig))
    rig.go()
    assert rig.session.sync is SyncState.CURRENT


@pytest.mark.req("P10-36")
@pytest.mark.parametrize("shape", [fr.ReplayBegin, fr.ReplayPage])
def test_a_scoped_refusal_leaves_the_stream_paused(shape: type[Frame]) -> None:
    def refuse(frame: Any) -> fr.CoordErrorFrame:
        return fr.CoordErrorFrame(request_id=frame.request_id, code=ErrorCode.RESOURCE_EXHAUSTED, message="full")

    rig = paused(objective(2), objective(3), objective(4))
    rig.server.rewrite = changing(shape, refuse)
    assert isinstance(replayed(rig).one(ev.Refused).error, ResourceExhausted)
    assert not rig.of(ev.ReplayReady)
    assert rig.session.sync is SyncState.STALE
    rig.server.rewrite = None
    assert replayed(rig).of(ev.ReplayReady)


def overtaken(rig: Rig, shape: type[Frame]) -> None:
    """A GAP of the stream goes out in front of the first frame of this type."""

    def behind(frame: Frame) -> bytes:
        rig.server.rewrite = None
        stream = stream_of(rig)
        gap = fr.Gap.build(
            {
                "subscription_id": stream.subscription_id,
                "last_contiguous_delivery": stream.delivery,
                "last_contiguous_event": 1,
                "reason": GapReason.QUEUE_OVERFLOW,
            }
        )
        rig.server.replays.end(stream)
        stream.paused, stream.last = True, 1
        return gap.encode() + frame.encode()

    rig.server.rewrite = changing(shape, behind)


@pytest.mark.req("P10-35")
@pytest.mark.parametrize("shape", [fr.ReplayBegin, fr.ReplayPage, fr.ReplayEnd])
@pytest.mark.parametrize("missed", [1, 3])
def test_an_overflow_during_the_replay_is_a_new_gap_and_the_next_replay_heals(shape: type[Frame], missed: int) -> None:
    rig = paused(*(objective(number) for number in range(2, 2 + missed)))
    overtaken(rig, shape)
    handle = rig.session.open_replay(subscription_of(rig))
    rig.go()
    assert not rig.of(ev.ReplayReady)
    assert (rig.one(ev.Refused).request_id, type(rig.one(ev.Refused).error)) == (handle, CursorInvalid)
    assert len(rig.of(ev.StreamGap)) == 2
    assert rig.session.open_requests == 0
    assert set(known(rig).values()) == {objective(1)}
    replayed(rig)
    assert len(rig.one(ev.ReplayReady).replay.events) == missed
    assert known(rig) == rig.world.records


@pytest.mark.req("P10-35", "P10-32")
def test_an_overflow_behind_the_published_end_is_told_and_nothing_is_published_twice() -> None:
    rig = paused(objective(2), objective(3))
    overtaken(rig, fr.Ack)
    replayed(rig)
    assert [event.sequence for event in rig.one(ev.ReplayReady).replay.events] == [2, 3]
    assert len(rig.of(ev.StreamGap)) == 2
    assert len(rig.of(ev.StreamLive)) == 1
    assert not rig.of(ev.Refused)
    assert rig.session.sync is SyncState.STALE
    rig.world.put(objective(2, 2))
    replayed(rig)
    again = rig.of(ev.ReplayReady)[1].replay
    assert (again.after, again.event_count) == (1, 3)
    assert [event.sequence for event in again.events] == [4]
    assert known(rig) == rig.world.records
    assert not rig.session.projection(subscription_of(rig)).stale


@pytest.mark.req("P10-29", "P10-35")
def test_a_lease_that_runs_out_between_pages_leaves_the_stream_paused() -> None:
    rig = paused(*(objective(number) for number in range(2, 6)))

    def expire(page: fr.ReplayPage) -> fr.ReplayPage:
        rig.server.rewrite = None
        rig.server.replays.expire()
        return page

    rig.server.rewrite = changing(fr.ReplayPage, expire)
    assert isinstance(replayed(rig).one(ev.Refused).error, CursorInvalid)
    assert len(rig.of(ev.StreamGap)) == 1
    assert replayed(rig).one(ev.ReplayReady).replay.event_count == 4


@pytest.mark.req("P10-33", "P10-32")
def test_a_lease_that_runs_out_before_applied_pauses_the_stream_again() -> None:
    rig = paused(objective(2))
    spoil(rig, "expire")
    replayed(rig)
    assert len(rig.one(ev.ReplayReady).replay.events) == 1
    assert rig.one(ev.StreamStale).healable
    assert not rig.of(ev.Refused)
    assert rig.session.projection(subscription_of(rig)).stale is not None
    assert replayed(rig).of(ev.ReplayReady)[1].replay.events == ()
    assert known(rig) == rig.world.records
    assert not rig.session.projection(subscription_of(rig)).stale


def test_the_connection_may_end_behind_the_published_replay() -> None:
    rig = paused(objective(2))
    rig.server.rewrite = changing(fr.Ack, lambda ack: None)
    replayed(rig).session.eof(rig.now)
    rig.go()
    assert rig.of(ev.ReplayReady)
    assert not rig.one(ev.StreamStale).healable
    assert rig.session.sync is SyncState.STALE


def test_a_second_gap_is_a_breach_after_the_replay_was_refused() -> None:
    rig = paused(objective(2))
    rig.world.first_retained = 3
    replayed(rig)
    rig.server.gap(stream_of(rig))
    assert isinstance(rig.go().closed, PeerFault)


# -- credit and bounds -------------------------------------------------------------------------------------------------


@pytest.mark.req("P10-33", "P14-12")
def test_the_resumed_credit_is_the_only_one() -> None:
    rig = Rig(replaying_world()).start()
    rig.session.open_snapshot(reserve=True, credit=(4, 100_000))
    pumped(rig.go(), objective(1), objective(2))
    rig.server.gap(stream_of(rig))
    rig.go()
    replayed(rig)
    (applied,) = rig.server.of(fr.ReplayApplied)
    assert (applied.initial_credit_count, applied.initial_credit_bytes) == (4, 100_000)
    for event in rig.of(ev.WorkEvent):  # their credit is gone with the balance that it came from
        rig.session.consumed(event)
    assert not rig.go().server.of(fr.CreditFrame)
    pumped(rig, *(objective(number) for number in range(3, 9)))
    assert len(rig.of(ev.WorkEvent)) == 6
    for event in rig.of(ev.WorkEvent)[2:]:
        rig.session.consumed(event)
        rig.go()
        assert stream_of(rig).count <= 4
    assert len(rig.of(ev.WorkEvent)) == 8


@pytest.mark.req("P10-33", "P10-16")
def test_the_resumed_credit_can_be_chosen_within_the_maxima() -> None:
    rig = paused()
    with pytest.raises(LocalProtocolError):
        rig.session.open_replay(subscription_of(rig), credit=(2_000, 1))
    replayed(rig, credit=(1, 100_000))
    pumped(rig, objective(2), objective(3))
    assert len(rig.of(ev.WorkEvent)) == 2


def images(world: World) -> int:
    """Bytes that the replay of all but the first event stages."""
    events = [ReplayEvent(**event).encode() for event in world.events[1:]]
    pages = (len(events) + 1) // 2
    return sum(map(len, events)) + pages * len(b"replay-0")


@pytest.mark.parametrize("over", [-1, 0, 1])
@pytest.mark.parametrize("what", ["events", "bytes"])
def test_a_replay_within_the_bound_is_taken_and_one_above_it_is_left(what: str, over: int) -> None:
    missed = [objective(number) for number in range(2, 6)]
    size = images(paused(*missed).world)
    bound = ReplayBound(events=4 - over) if what == "events" else ReplayBound(nbytes=size - over)
    rig = replayed(paused(*missed, replay=bound))
    if over <= 0:
        assert rig.of(ev.ReplayReady)
        return
    assert isinstance(rig.one(ev.Refused).error, ReplayTooLarge)
    assert not rig.of(ev.ReplayReady)
    assert not rig.server.of(fr.ReplayApplied)
    assert (rig.session.sync, rig.session.closing) == (SyncState.STALE, False)
    assert rig.session.open_requests == 0
    assert not rig.session.replayable(subscription_of(rig))


def test_a_replay_that_is_too_large_is_not_asked_for_any_further() -> None:
    rig = replayed(paused(*(objective(number) for number in range(2, 12)), replay=ReplayBound(events=3)))
    assert len(rig.server.of(fr.ReplayNext)) == 2
    assert isinstance(rig.one(ev.Refused).error, ReplayTooLarge)
    rig.server.gap(stream_of(rig))  # the server overflows while it holds the replay
    assert not rig.go().session.closing
    assert rig.session.replayable(subscription_of(rig))
