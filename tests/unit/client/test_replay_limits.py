"""Where a replay is possible, how it is refused, overflows or expires, and what bounds it."""

from __future__ import annotations

from typing import Any

import pytest

from sidecar.coordinator import client_events as ev
from sidecar.coordinator.client_core import SyncState
from sidecar.coordinator.client_errors import PeerFault, ReplayTooLarge
from sidecar.coordinator.client_handshake import ReplayBound
from sidecar.coordinator.wire import frames as fr
from sidecar.coordinator.wire.enums import Capability, ErrorCode, GapReason
from sidecar.coordinator.wire.errors import CursorInvalid, LocalProtocolError, ResourceExhausted
from sidecar.coordinator.wire.fields import Frame
from sidecar.coordinator.wire.ids import SubscriptionId
from sidecar.coordinator.wire.records import ReplayEvent
from tests.oracles.fake_server import World, altered, objective
from tests.unit.client.replays import (
    known,
    paused,
    pumped,
    replayed,
    replaying_world,
    spoil,
    stream_of,
    subscription_of,
)
from tests.unit.client.rig import Rig, changing, rewriting

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
    assert rig.session.sync is SyncState.STALE


@pytest.mark.req("P10-19", "P10-22")
def test_a_paused_stream_ends_with_its_connection() -> None:
    rig = paused(objective(2))
    assert rig.session.replayable(subscription_of(rig))
    rig.session.eof(rig.now)
    assert not rig.session.replayable(subscription_of(rig))
    with pytest.raises(LocalProtocolError):
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


@pytest.mark.req("P10-20", "P10-34")
@pytest.mark.parametrize(("event", "fits"), [(1, False), (2, False), (3, True), (4, True), (5, True), (6, False)])
def test_a_gap_behind_a_replay_names_its_last_event_or_its_cut(event: int, fits: bool) -> None:
    rig = paused(objective(2), objective(3))
    rig.world.events += [{}, {}]
    replayed(rig)
    assert rig.one(ev.ReplayReady).replay.through == 5
    rig.server.rewrite = rewriting(fr.Gap, last_contiguous_event=event)
    rig.server.gap(stream_of(rig))
    rig.go()
    assert len(rig.of(ev.StreamStale)) == (not fits)
    assert rig.session.replayable(subscription_of(rig)) is fits


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
    asked = {fr.ReplayBegin: 0, fr.ReplayPage: 1, fr.ReplayEnd: (missed + 1) // 2}
    assert len(rig.server.of(fr.ReplayNext)) == asked[shape]  # nothing more of a replay that is void
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
    assert "not applied" in (rig.session.projection(subscription_of(rig)).stale or "")
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
    rig.session.open_snapshot(reserve=True, credit=(4, 400_000))
    pumped(rig.go(), objective(1), objective(2), objective(9))
    rig.session.consumed(rig.of(ev.WorkEvent)[0])  # too little to give back: it must be forgotten, not added later
    rig.server.gap(stream_of(rig))
    rig.go()
    replayed(rig)
    (applied,) = rig.server.of(fr.ReplayApplied)
    assert (applied.initial_credit_count, applied.initial_credit_bytes) == (4, 400_000)
    for event in rig.of(ev.WorkEvent):  # their credit is gone with the balance that it came from
        rig.session.consumed(event)
    assert not rig.go().server.of(fr.CreditFrame)
    pumped(rig, *(objective(number) for number in range(3, 9)))
    assert len(rig.of(ev.WorkEvent)) == 7
    balance = 0
    for used, event in enumerate(rig.of(ev.WorkEvent)[3:], 1):
        rig.session.consumed(event)
        rig.go()
        balance = sum(credit.add_count for credit in rig.server.of(fr.CreditFrame))
        assert balance <= used
    assert balance == 4
    assert len(rig.of(ev.WorkEvent)) == 9


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
