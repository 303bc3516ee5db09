"""GAP, replay and replacement, seen by an independent client (P10-17 to P10-36, P9-26)."""

from __future__ import annotations

import secrets
import time
from typing import Any

import pytest

from tests.interop.phux import enums as e
from tests.interop.phux.client import Client, Scoped
from tests.interop.phux.frames import Type
from tests.interop.phux.stream import Phase, Replay, Stream
from tests.interop.scenes import (
    PLENTY,
    QUEUE_FRAMES,
    create,
    create_many,
    follow,
    head,
    killed,
    overflow,
    refused,
    same_view,
    update,
)
from tests.interop.server import Server

SMALL_PAGES = {"max_page_records": 300}


def paused(client: Client, writer: Client) -> Stream:
    """A subscription that delivered two events and then lost continuity."""
    stream = follow(client, 2, PLENTY[1])
    overflow(client, writer, stream)
    assert stream.phase is Phase.PAUSED_GAP
    return stream


def next_page(replay: Replay, **values: Any) -> dict[str, Any]:
    return {"replay_id": replay.id, "cursor": replay.pages.cursor, **values}


@pytest.mark.req("P10-17", "P10-18", "P10-20", "P3-36", "P3-37")
def test_one_gap_and_then_silence(client: Client, writer: Client) -> None:
    stream = paused(client, writer)
    gap = stream.gaps[0]
    assert gap["reason"] is e.GapReason.QUEUE_OVERFLOW
    assert (gap["last_contiguous_delivery"], gap["last_contiguous_event"]) == (2, stream.events[-1].event_sequence)
    assert gap["observed_event"] == stream.events[-1].event_sequence + 1
    client.connection.send(Type.CREDIT, subscription_id=stream.id, add_count=10, add_bytes=10_000)  # crossed the gap
    create(writer)
    client.ping()
    assert (len(stream.events), len(stream.gaps)) == (2, 1)


@pytest.mark.req("P3-36")
def test_the_queue_holds_its_limit_and_not_one_more(client: Client, writer: Client) -> None:
    stream = follow(client)
    create_many(writer, QUEUE_FRAMES // 2)
    client.ping()
    assert not stream.gaps
    create(writer)
    client.pump_until(lambda: bool(stream.gaps))


@pytest.mark.req("P10-25", "P10-26", "P10-27", "P10-29", "P10-30", "P10-34", "P10-14", "P14-12", "P14-13")
def test_a_replay_closes_the_gap_and_later_events_follow_once(server: Server, writer: Client) -> None:
    with server.client(limits=SMALL_PAGES) as client, server.client() as witness:
        live = follow(witness, *PLENTY)
        stream = paused(client, writer)
        witness.give_credit(live, QUEUE_FRAMES, 1 << 20) if not live.credit[0] else None
        before = time.time()
        replay = client.open_replay(stream)
        assert before + 58 < replay.lease_expires_at <= time.time() + 61
        assert replay.first_event == stream.cut + 1
        client.next_replay_page(replay)
        late = create(writer)
        while not replay.pages.ended:
            client.next_replay_page(replay)
        assert len(replay.events) > 2 * SMALL_PAGES["max_page_records"]
        assert all(event.object != late for event in replay.events)
        client.apply_replay(replay, *PLENTY)
        update(writer, late, b"[1]")
        client.pump_until(lambda: stream.last_delivery == 6)
        seen = [event.object_revision for event in stream.events if event.object == late]
        assert seen == [1, 2]
        assert same_view(stream, head(writer)[1])
        witness.pump_until(lambda: live.last_delivery > 500)
        told = {event.event_sequence: event for event in live.events}
        assert all(told.get(event.event_sequence, event) == event for event in stream.events)


@pytest.mark.req("P10-33", "P10-06")
def test_only_the_new_credit_counts_after_a_replay(client: Client, writer: Client) -> None:
    stream = follow(client, 1, PLENTY[1])
    ref = overflow(client, writer, stream)
    assert stream.credit[1] > 0
    replay = client.read_replay(stream)
    size = stream.sizes[0]
    client.apply_replay(replay, 1, size + 10_000)
    update(writer, ref, b"[1]")
    client.pump_until(lambda: stream.last_delivery == 2)
    client.ping()
    assert stream.last_delivery == 2
    client.give_credit(stream, 1, 0)
    client.pump_until(lambda: stream.last_delivery == 3)


@pytest.mark.req("P10-35")
def test_an_overflow_during_a_replay_is_a_new_gap(server: Server, writer: Client) -> None:
    with server.client(limits=SMALL_PAGES) as client:
        stream = paused(client, writer)
        replay = client.open_replay(stream)
        client.next_replay_page(replay)
        overflow(client, writer, stream)
        assert [gap["reason"] for gap in stream.gaps] == [e.GapReason.QUEUE_OVERFLOW] * 2
        refused(e.ErrorCode.CURSOR_INVALID, client, Type.REPLAY_NEXT, **next_page(replay))
        again = client.read_replay(stream)
        assert again.after == replay.after
        client.apply_replay(again, *PLENTY)
        assert same_view(stream, head(client)[1])


@pytest.mark.req("P10-22", "P5-17")
def test_a_replay_needs_its_capability(server: Server, writer: Client) -> None:
    with server.client(capabilities=0) as client:
        stream = paused(client, writer)
        refused(
            e.ErrorCode.CAPABILITY_REQUIRED,
            client,
            Type.OPEN_REPLAY,
            subscription_id=stream.id,
            after_event_sequence=stream.cut,
        )


@pytest.mark.req("P10-23", "P13-06")
def test_a_replay_needs_a_paused_subscription_of_its_own(client: Client, writer: Client) -> None:
    def ask(who: Client, subscription_id: bytes, after: int, code: e.ErrorCode) -> None:
        refused(code, who, Type.OPEN_REPLAY, subscription_id=subscription_id, after_event_sequence=after)

    ask(client, secrets.token_bytes(16), 0, e.ErrorCode.NOT_FOUND)
    live = follow(client)
    ask(client, live.id, live.cut, e.ErrorCode.CURSOR_INVALID)
    reserved = client.open_snapshot(reserve=True).stream
    assert reserved
    ask(client, reserved.id, reserved.cut, e.ErrorCode.CURSOR_INVALID)
    stream = paused(client, writer)
    ask(writer, stream.id, stream.cut, e.ErrorCode.NOT_FOUND)
    client.open_replay(stream)
    ask(client, stream.id, stream.cut, e.ErrorCode.CURSOR_INVALID)


@pytest.mark.req("P10-24")
@pytest.mark.parametrize("off", [-1, 1])
def test_a_replay_from_another_cut_is_malformed(client: Client, writer: Client, off: int) -> None:
    stream = paused(client, writer)
    killed(
        e.ErrorCode.MALFORMED_MESSAGE,
        client,
        Type.OPEN_REPLAY,
        subscription_id=stream.id,
        after_event_sequence=stream.cut + off,
    )


@pytest.mark.req("P10-29", "P9-07", "P9-08", "P9-09")
def test_cursors_of_a_replay_are_used_once_and_in_turn(server: Server, writer: Client) -> None:
    with server.client(limits=SMALL_PAGES) as client:
        replay = client.open_replay(paused(client, writer))
        first = replay.pages.cursor
        refused(e.ErrorCode.CURSOR_INVALID, writer, Type.REPLAY_NEXT, **next_page(replay))
        client.next_replay_page(replay)
        assert first != replay.pages.cursor
        refused(e.ErrorCode.CURSOR_INVALID, client, Type.REPLAY_NEXT, **next_page(replay, cursor=first))
        foreign = secrets.token_bytes(32)
        refused(e.ErrorCode.CURSOR_INVALID, client, Type.REPLAY_NEXT, **next_page(replay, cursor=foreign))
        early = {"replay_id": replay.id, "subscription_id": replay.stream.id}
        none = {"initial_credit_count": 0, "initial_credit_bytes": 0}
        refused(e.ErrorCode.CURSOR_INVALID, client, Type.REPLAY_APPLIED, **early, **none)
        while not replay.pages.ended:
            client.next_replay_page(replay)
        client.apply_replay(replay, 0, 0)
        refused(e.ErrorCode.CURSOR_INVALID, client, Type.REPLAY_APPLIED, **early, **none)
        refused(e.ErrorCode.CURSOR_INVALID, client, Type.REPLAY_NEXT, **next_page(replay, cursor=first))


@pytest.mark.req("P10-08")
def test_credit_while_replaying_is_fatal(client: Client, writer: Client) -> None:
    replay = client.open_replay(paused(client, writer))
    client.give_credit(replay.stream, 1, 1)
    assert client.wait_closed() is e.ErrorCode.PROTOCOL_ERROR


@pytest.mark.req("P9-26", "P10-36")
def test_a_replacement_closes_the_paused_subscription_and_a_failed_one_does_not(client: Client, writer: Client) -> None:
    stream = paused(client, writer)
    live = follow(client)
    for wrong in (live.id, secrets.token_bytes(16)):
        refused(
            e.ErrorCode.NOT_FOUND,
            client,
            Type.OPEN_SNAPSHOT,
            selector=0,
            reserve_subscription=True,
            replace_paused_subscription=wrong,
        )
    fresh = client.read_snapshot(reserve=True, replace=stream)
    client.apply_snapshot(fresh, *PLENTY)
    client.connection.send(Type.CREDIT, subscription_id=stream.id, add_count=1, add_bytes=1)  # closed: ignored
    create(writer)
    assert fresh.stream
    client.pump_until(lambda: len(fresh.stream.events) == 2 if fresh.stream else False)
    assert same_view(fresh.stream, head(client)[1])
    with pytest.raises(Scoped) as caught:
        client.call(Type.OPEN_REPLAY, subscription_id=stream.id, after_event_sequence=stream.cut)
    assert caught.value.code in {e.ErrorCode.NOT_FOUND, e.ErrorCode.CURSOR_INVALID}


@pytest.mark.req("P9-27", "P10-17")
def test_an_overflow_before_the_snapshot_is_applied(client: Client, writer: Client) -> None:
    snapshot = client.read_snapshot(reserve=True)
    assert snapshot.stream
    overflow(client, writer, snapshot.stream)
    gap = snapshot.stream.gaps[0]
    assert (gap["last_contiguous_delivery"], gap["last_contiguous_event"]) == (0, snapshot.base)
    refused(
        e.ErrorCode.CURSOR_INVALID,
        client,
        Type.SNAPSHOT_APPLIED,
        snapshot_id=snapshot.id,
        subscription_id=snapshot.stream.id,
        initial_credit_count=1,
        initial_credit_bytes=1,
    )
    replay = client.read_replay(snapshot.stream)
    client.apply_replay(replay, *PLENTY)
    create(writer)
    client.pump_until(lambda: bool(snapshot.stream and snapshot.stream.last_delivery == 2))
