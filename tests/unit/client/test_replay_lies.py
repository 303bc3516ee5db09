"""What a broken or hostile server may say in a replay: nothing of it is published."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from sidecar.coordinator import client_events as ev
from sidecar.coordinator.client_core import SyncState
from sidecar.coordinator.client_errors import ConnectionLost, PeerFault, VerificationFailed
from sidecar.coordinator.wire import frames as fr
from sidecar.coordinator.wire.enums import ErrorCode
from sidecar.coordinator.wire.fields import Frame
from sidecar.coordinator.wire.records import ReplayEvent
from tests.oracles.fake_server import altered, objective
from tests.unit.client.replays import (
    known,
    paused,
    pumped,
    replayed,
    stream_of,
    subscription_of,
)
from tests.unit.client.rig import Rig, changing, rewriting


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
