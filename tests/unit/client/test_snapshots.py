"""A snapshot is published complete and verified, or not at all."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import pytest

from sidecar.coordinator import client_events as ev
from sidecar.coordinator.client_core import SyncState
from sidecar.coordinator.client_errors import ConnectionLost, PeerFault, VerificationFailed
from sidecar.coordinator.wire import frames as fr
from sidecar.coordinator.wire.enums import ErrorCode, GapReason, ObjectKind
from sidecar.coordinator.wire.errors import CursorInvalid, LocalProtocolError, ResourceExhausted
from sidecar.coordinator.wire.fields import Frame
from sidecar.coordinator.wire.ids import DeliveryCut, EventCut
from sidecar.coordinator.wire.limits import Limits
from sidecar.coordinator.wire.payloads import SignalRecord
from sidecar.coordinator.wire.records import SnapshotRecord
from tests.oracles.fake_server import World, altered, object_id, objective
from tests.unit.client.rig import Rig, changing, rewriting

SMALL = Limits(frame=4096, page_bytes=1024, page_records=3, typed_payload=512, credit_count=8, credit_bytes=8192)


def world_of(count: int, page_size: int = 2) -> World:
    world = World(page_size=page_size)
    for number in range(1, count + 1):
        world.put(objective(number))
    return world


def taken(world: World, **options: Any) -> Rig:
    rig = Rig(world, **options).start()
    rig.session.open_snapshot()
    return rig.go()


@pytest.mark.req("P9-16", "P9-15")
@pytest.mark.parametrize("step", [1, None])
@pytest.mark.parametrize(("count", "pages"), [(0, 0), (1, 1), (2, 1), (3, 2), (5, 3)])
def test_empty_one_page_and_many_pages(count: int, pages: int, step: int | None) -> None:
    world = world_of(count)
    rig = taken(world, step=step)
    snapshot = rig.one(ev.SnapshotReady).snapshot
    assert [record.id for record in snapshot.records] == [object_id(number) for number in range(1, count + 1)]
    assert (snapshot.base, snapshot.record_count, snapshot.page_count) == (count, count, pages)
    assert snapshot.standing.epoch == world.epoch
    assert rig.session.sync is SyncState.CURRENT
    assert rig.session.open_requests == 0
    assert len(rig.server.of(fr.SnapshotNext)) == pages
    (applied,) = rig.server.of(fr.SnapshotApplied)
    assert (applied.subscription_id, applied.initial_credit_count, applied.initial_credit_bytes) == (None, 0, 0)


@pytest.mark.req("P9-16")
def test_the_digest_is_the_published_one() -> None:
    record = objective(0x22, 1)
    image = bytes.fromhex("0001" + "22" * 16)
    world = World()
    world.records[image] = SnapshotRecord(ObjectKind.OBJECTIVE, b"\x22" * 16, 1, 1, record.payload)  # type: ignore[arg-type]
    world.events = [{}] * 9
    digest = taken(world).one(ev.SnapshotReady).snapshot.digest
    assert digest.hex() == "6f2e8ea00111c87eac1e25d8b3bdef9cec63579afa831f46200d661b8dd6a707"


def test_verified_but_not_kept() -> None:
    rig = Rig(world_of(3)).start()
    rig.session.open_snapshot(keep=False)
    snapshot = rig.go().one(ev.SnapshotReady).snapshot
    assert snapshot.records == ()
    assert snapshot.record_count == 3


def nothing_published(rig: Rig) -> Exception:
    assert not rig.of(ev.SnapshotReady)
    assert rig.session.sync is SyncState.STALE
    assert not rig.server.of(fr.SnapshotApplied)
    return rig.closed


def swap(page: fr.SnapshotPage) -> fr.SnapshotPage:
    return altered(page, records=tuple(reversed(page.records)))


def twice(page: fr.SnapshotPage) -> fr.SnapshotPage:
    return altered(page, records=(page.records[0], page.records[0]))


def second_page(change: Callable[[fr.SnapshotPage], Frame]) -> Callable[[fr.SnapshotPage], Frame]:
    return lambda page: change(page) if page.page_index == 1 else page


def repeated_key(page: fr.SnapshotPage) -> fr.SnapshotPage:
    return altered(page, records=(objective(2), *page.records[1:]))


def corrupt(page: fr.SnapshotPage) -> bytes:
    image = page.encode()
    at = image.index(b'{"t":1}')
    return image[: at + 5] + b"2" + image[at + 6 :]


LIES: dict[str, tuple[type[Frame], Callable[[Any], Any], str]] = {
    "other guard": (
        fr.SnapshotBegin,
        lambda begin: altered(begin, authority_guard=World(epoch=4).certificate(Rig().now).guard()),
        "guard",
    ),
    "first index": (fr.SnapshotPage, lambda page: altered(page, page_index=page.page_index + 1), "page_index"),
    "index gap": (fr.SnapshotPage, second_page(lambda page: altered(page, page_index=2)), "page_index"),
    "index again": (fr.SnapshotPage, second_page(lambda page: altered(page, page_index=0)), "page_index"),
    "cursor": (fr.SnapshotPage, lambda page: altered(page, cursor=b"other"), "cursor"),
    "snapshot id": (fr.SnapshotPage, lambda page: altered(page, snapshot_id=b"\x01" * 16), "cursor"),
    "order": (fr.SnapshotPage, swap, "order"),
    "duplicate": (fr.SnapshotPage, twice, "order"),
    "duplicate over pages": (fr.SnapshotPage, second_page(repeated_key), "order"),
    "order over pages": (fr.SnapshotPage, second_page(lambda page: altered(page, records=(objective(1),))), "order"),
    "empty page": (fr.SnapshotPage, lambda page: altered(page, records=()), "page_records"),
    "corrupt byte": (fr.SnapshotPage, corrupt, "digest"),
    "left out record": (fr.SnapshotPage, lambda page: altered(page, records=page.records[:1]), "totals"),
    "page total": (fr.SnapshotEnd, lambda end: altered(end, page_count=end.page_count + 1), "totals"),
    "record total": (fr.SnapshotEnd, lambda end: altered(end, record_count=end.record_count - 1), "totals"),
    "digest": (fr.SnapshotEnd, lambda end: altered(end, canonical_sha256=hashlib.sha256(b"").digest()), "digest"),
    "end of another": (fr.SnapshotEnd, lambda end: altered(end, snapshot_id=b"\x01" * 16), "end"),
    "other base": (
        fr.SnapshotBegin,
        lambda begin: altered(begin, base_event_sequence=begin.base_event_sequence + 1),
        "digest",
    ),
}


@pytest.mark.req("P9-16")
@pytest.mark.parametrize("lie", LIES)
def test_one_lie_and_nothing_is_published(lie: str) -> None:
    shape, change, check = LIES[lie]
    error = nothing_published(taken(world_of(4), rewrite=changing(shape, change)))
    assert isinstance(error, VerificationFailed)
    assert error.check == check


@pytest.mark.req("P9-16", "P12-31")
def test_a_close_in_the_middle_publishes_nothing() -> None:
    rig = taken(world_of(6), rewrite=changing(fr.SnapshotPage, lambda page: page if page.page_index == 0 else None))
    assert not rig.of(ev.SnapshotReady)
    rig.session.eof(rig.now)
    rig.go()
    assert isinstance(nothing_published(rig), ConnectionLost)
    assert rig.one(ev.Closed).unfinished == (1,)


@pytest.mark.req("P9-16")
@pytest.mark.parametrize(
    ("shape", "becomes"),
    [
        (fr.SnapshotPage, lambda page: fr.SnapshotEnd.build(end_of(page))),
        (fr.SnapshotEnd, lambda end: fr.Ack(request_id=end.request_id)),
        (fr.SnapshotBegin, lambda begin: fr.Ack(request_id=begin.request_id)),
        (fr.SnapshotBegin, lambda begin: altered(begin, subscription_id=b"\x44" * 16)),
        (fr.SnapshotBegin, lambda begin: altered(begin, request_id=99)),
    ],
    ids=["END for PAGE", "ACK for END", "ACK for BEGIN", "reserved unasked", "no such request"],
)
def test_a_frame_that_does_not_fit_its_request(shape: type[Frame], becomes: Callable[[Any], Frame]) -> None:
    error = nothing_published(taken(world_of(4), rewrite=changing(shape, becomes)))
    assert isinstance(error, PeerFault)
    assert error.code is ErrorCode.PROTOCOL_ERROR


def end_of(page: fr.SnapshotPage) -> dict[str, Any]:
    return {
        "request_id": page.request_id,
        "snapshot_id": page.snapshot_id,
        "page_count": 1,
        "record_count": 2,
        "canonical_sha256": bytes(32),
    }


@pytest.mark.req("P3-08")
def test_a_page_above_the_selected_bytes_is_too_large() -> None:
    world = World(page_size=3)
    for number in range(1, 4):
        world.put(objective(number, document=b"x" * 400))
    rig = taken(world, limits=SMALL)
    error = nothing_published(rig)
    assert isinstance(error, PeerFault)
    assert error.code is ErrorCode.FRAME_TOO_LARGE
    (told,) = rig.server.of(fr.CoordErrorFrame)
    assert told.code is ErrorCode.FRAME_TOO_LARGE


@pytest.mark.req("P3-28")
def test_a_page_above_the_selected_records_is_refused() -> None:
    error = nothing_published(taken(world_of(4, page_size=4), limits=SMALL))
    assert isinstance(error, PeerFault)
    assert error.code is ErrorCode.MALFORMED_MESSAGE


@pytest.mark.req("P7-27")
def test_an_enum_value_outside_its_set_in_a_record_refuses_the_page() -> None:
    payload = SignalRecord.build({"work_session_id": b"\x66" * 16, "kind": 2, "state": 0, "message": "exit 1"}).body()
    world = World()
    record = SnapshotRecord(ObjectKind.SIGNAL, b"\xbb" * 16, 1, 1, payload)  # type: ignore[arg-type]
    world.records[record.key()] = record
    assert taken(world).one(ev.SnapshotReady).snapshot.records == (record,)

    def unknown_kind(page: fr.SnapshotPage) -> bytes:
        image = page.encode()
        assert image.count(b"\x02\x04\x02\x00\x02") == 1
        return image.replace(b"\x02\x04\x02\x00\x02", b"\x02\x04\x02\x00\x05")

    error = nothing_published(taken(world, rewrite=changing(fr.SnapshotPage, unknown_kind)))
    assert isinstance(error, PeerFault)
    assert error.code is ErrorCode.MALFORMED_MESSAGE


def test_the_final_page_keeps_its_request_occupied_until_end() -> None:
    rig = taken(world_of(1), rewrite=changing(fr.SnapshotEnd, lambda end: None))
    assert rig.session.open_requests == 1
    ids = {rig.session.lookup(b"\x88" * 16) for _ in range(5)}  # type: ignore[arg-type]
    (following,) = rig.server.of(fr.SnapshotNext)
    assert following.request_id not in ids


@pytest.mark.parametrize("shape", [fr.SnapshotBegin, fr.SnapshotPage])
def test_a_scoped_refusal_ends_the_snapshot_and_not_the_connection(shape: type[Frame]) -> None:
    def refuse(frame: Any) -> fr.CoordErrorFrame:
        return fr.CoordErrorFrame(request_id=frame.request_id, code=ErrorCode.RESOURCE_EXHAUSTED, message="full")

    rig = taken(world_of(3), rewrite=changing(shape, refuse))
    refusal = rig.one(ev.Refused)
    assert refusal.request_id == 1
    assert isinstance(refusal.error, ResourceExhausted)
    assert not rig.session.closing
    rig.server.rewrite = None
    rig.session.open_snapshot()
    rig.server.received.clear()
    assert rig.go().of(ev.SnapshotReady)


def test_a_lease_that_ran_out_after_the_end_does_not_undo_the_snapshot() -> None:
    def refuse(ack: fr.Ack) -> fr.CoordErrorFrame:
        return fr.CoordErrorFrame(request_id=ack.request_id, code=ErrorCode.CURSOR_INVALID, message="late")

    rig = taken(world_of(1), rewrite=changing(fr.Ack, refuse))
    assert rig.of(ev.SnapshotReady)
    assert not rig.of(ev.Refused)
    assert rig.session.sync is SyncState.CURRENT


@pytest.mark.req("P9-23")
def test_applied_is_the_only_initial_credit_of_a_reserved_subscription() -> None:
    world = world_of(1)
    rig = Rig(world).start()
    handle = rig.session.open_snapshot(reserve=True, credit=(2, 5000))
    rig.go()
    assert [type(event) for event in rig.events[1:]] == [ev.SnapshotReady, ev.StreamLive]
    (applied,) = rig.server.of(fr.SnapshotApplied)
    assert (applied.initial_credit_count, applied.initial_credit_bytes) == (2, 5000)
    assert applied.subscription_id == rig.one(ev.SnapshotReady).snapshot.subscription_id
    assert rig.one(ev.StreamLive).request_id == handle
    assert not rig.server.of(fr.CreditFrame)


@pytest.mark.req("P9-23")
@pytest.mark.parametrize("before", [fr.SnapshotEnd, fr.Ack])
def test_an_event_before_the_credit_was_acknowledged_is_a_breach(before: type[Frame]) -> None:
    world = world_of(1)
    rig = Rig(world).start()

    def early(frame: Frame) -> bytes:
        world.put(objective(2))
        (stream,) = rig.server.streams.values()
        return rig.server.event(stream, world.events[-1]).encode() + frame.encode()

    rig.server.rewrite = changing(before, early)
    rig.session.open_snapshot(reserve=True)
    error = rig.go().closed
    assert isinstance(error, PeerFault)
    assert error.code is ErrorCode.PROTOCOL_ERROR
    assert not rig.of(ev.WorkEvent)


def test_a_refused_applied_leaves_no_stream_behind() -> None:
    def refuse(ack: fr.Ack) -> fr.CoordErrorFrame:
        return fr.CoordErrorFrame(request_id=ack.request_id, code=ErrorCode.CURSOR_INVALID, message="late")

    rig = Rig(world_of(1), rewrite=changing(fr.Ack, refuse)).start()
    handle = rig.session.open_snapshot(reserve=True)
    rig.go()
    assert isinstance(rig.one(ev.Refused).error, CursorInvalid)
    assert rig.one(ev.Refused).request_id == handle
    assert not rig.of(ev.StreamLive)
    assert rig.of(ev.StreamStale)
    assert rig.session.sync is SyncState.STALE


def test_a_reservation_that_is_not_given_is_a_breach() -> None:
    rig = Rig(world_of(1), rewrite=rewriting(fr.SnapshotBegin, subscription_id=None)).start()
    rig.session.open_snapshot(reserve=True)
    assert isinstance(nothing_published(rig.go()), PeerFault)


@pytest.mark.req("P10-16")
@pytest.mark.parametrize("credit", [(9, 100), (1, 8193), (-1, 0)])
def test_initial_credit_above_the_maxima_is_the_callers_mistake(credit: tuple[int, int]) -> None:
    rig = Rig(limits=SMALL).start()
    with pytest.raises(LocalProtocolError):
        rig.session.open_snapshot(reserve=True, credit=credit)
    assert rig.session.open_requests == 0


def test_a_late_refusal_of_a_reservation_that_was_replaced_breaks_nothing() -> None:
    rig = Rig(world_of(1), rewrite=changing(fr.Ack, lambda ack: None)).start()
    rig.session.open_snapshot(reserve=True)
    rig.go()
    (applied,) = rig.server.of(fr.SnapshotApplied)
    assert applied.subscription_id is not None
    gap = fr.Gap(
        subscription_id=applied.subscription_id,
        last_contiguous_delivery=DeliveryCut(0),
        last_contiguous_event=EventCut(1),
        reason=GapReason.QUEUE_OVERFLOW,
    )
    rig.session.feed(gap.encode(), rig.now)
    rig.server.streams[applied.subscription_id].paused = True
    rig.session.open_snapshot(reserve=True, replaces=applied.subscription_id)
    rig.go()
    late = fr.CoordErrorFrame(request_id=applied.request_id, code=ErrorCode.CURSOR_INVALID, message="")
    rig.session.feed(late.encode(), rig.now)
    rig.go()
    assert not rig.of(ev.Closed)
    assert [type(refused.error) for refused in rig.of(ev.Refused)] == [CursorInvalid]
