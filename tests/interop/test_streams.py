"""Direct subscriptions and credit, seen by an independent client (P10-01 to P10-16)."""

from __future__ import annotations

import pytest

from tests.interop.phux import enums as e
from tests.interop.phux.client import Client, Scoped
from tests.interop.phux.connection import Fatal
from tests.interop.phux.frames import Type
from tests.interop.phux.stream import View
from tests.interop.scenes import PLENTY, create, create_many, follow, head, overflow, refused, same_view
from tests.interop.server import Server


@pytest.mark.req("P10-02", "P10-03", "P10-05", "P10-07", "P10-11", "P14-12")
def test_nothing_comes_before_both_credits(client: Client, writer: Client) -> None:
    stream = client.subscribe(*head(client))
    create(writer)
    client.ping()
    client.give_credit(stream, 2, 0)
    client.ping()
    assert not stream.events
    client.give_credit(stream, 0, PLENTY[1])
    client.pump_until(lambda: len(stream.events) == 2)
    create(writer)
    client.ping()
    assert len(stream.events) == 2
    client.give_credit(stream, 1, 0)
    client.pump_until(lambda: len(stream.events) == 3)


@pytest.mark.req("P10-06", "P10-07")
def test_credit_is_counted_to_the_byte(client: Client, writer: Client) -> None:
    base, view = head(client)
    sample = client.subscribe(base, View(dict(view.revisions)), *PLENTY)
    exact = client.subscribe(base, View(dict(view.revisions)))
    short = client.subscribe(base, View(dict(view.revisions)))
    create(writer, b"x" * 500)
    client.pump_until(lambda: len(sample.events) == 2)
    size = sample.sizes[0]
    client.give_credit(exact, 2, size)
    client.give_credit(short, 2, size - 1)
    client.pump_until(lambda: len(exact.events) == 1)
    client.ping()
    assert (len(exact.events), len(short.events)) == (1, 0)
    client.give_credit(short, 0, 1)
    client.pump_until(lambda: len(short.events) == 1)
    client.ping()
    assert (exact.credit, short.credit) == ((1, 0), (1, 0))
    assert (len(exact.events), len(short.events)) == (1, 1)


@pytest.mark.req("P10-09", "P10-16", "P3-35")
@pytest.mark.parametrize("over", [(1, 0), (0, 1), (0xFFFF_FFFF, 0), (0, 0xFFFF_FFFF)])
def test_credit_over_the_maximum_is_fatal(client: Client, over: tuple[int, int]) -> None:
    stream = client.subscribe(*head(client))
    client.give_credit(stream, *PLENTY)
    client.ping()
    client.give_credit(stream, *over)
    assert client.wait_closed() is e.ErrorCode.PROTOCOL_ERROR


@pytest.mark.req("P10-08")
@pytest.mark.parametrize("known", [False, True])
def test_credit_for_no_live_subscription_is_fatal(client: Client, known: bool) -> None:
    stream = client.open_snapshot(reserve=True).stream
    assert stream
    subscription_id = stream.id if known else bytes([stream.id[0] ^ 1]) + stream.id[1:]
    client.connection.send(Type.CREDIT, subscription_id=subscription_id, add_count=1, add_bytes=1)
    assert client.wait_closed() is e.ErrorCode.PROTOCOL_ERROR


@pytest.mark.req("P10-16")
@pytest.mark.parametrize("credit", [(PLENTY[0] + 1, 0), (0, PLENTY[1] + 1)])
def test_initial_credit_over_the_maximum_is_malformed(client: Client, credit: tuple[int, int]) -> None:
    with pytest.raises(Fatal) as caught:
        client.subscribe(0, View(), *credit)
    assert caught.value.code is e.ErrorCode.MALFORMED_MESSAGE


@pytest.mark.req("P10-13", "P10-14", "P4-05")
def test_history_and_the_present_are_one_order(server: Server, client: Client, writer: Client) -> None:
    create_many(writer, 5)
    with server.client("reader", scopes=e.Scope.WORK_READ) as reader:
        every = client.subscribe(0, View(), *PLENTY)
        some = reader.subscribe(0, View(), *PLENTY)
        create(writer)
        _, view = head(client)
        client.pump_until(lambda: same_view(every, view))
        _, seen = head(reader)
        reader.pump_until(lambda: same_view(some, seen))
        by_sequence = {event.event_sequence: event for event in every.events}
        assert all(by_sequence[event.event_sequence] == event for event in some.events)
        assert 0 < len(some.events) < len(every.events)


@pytest.mark.req("P13-06")
def test_the_future_cannot_be_subscribed(client: Client) -> None:
    base, _ = head(client)
    values = {"initial_credit_count": 0, "initial_credit_bytes": 0}
    refused(e.ErrorCode.CURSOR_INVALID, client, Type.SUBSCRIBE, after_event_sequence=base + 1, **values)
    client.subscribe(base, None)


@pytest.mark.req("P3-34", "P3-49")
def test_subscriptions_of_a_connection_are_counted(client: Client, writer: Client) -> None:
    base, view = head(client)
    first = client.subscribe(base, view, *PLENTY)
    for _ in range(31):
        client.subscribe(base, None)
    with pytest.raises(Scoped) as caught:
        client.subscribe(base, None)
    assert caught.value.code is e.ErrorCode.RESOURCE_EXHAUSTED
    create(writer)
    client.pump_until(lambda: len(first.events) == 2)


@pytest.mark.req("P3-34", "P9-04", "P3-48", "P9-26")
def test_a_reserved_subscription_counts_and_a_replacement_does_not(client: Client, writer: Client) -> None:
    base, _ = head(client)
    stalled = client.subscribe(base, None)
    for _ in range(30):
        client.subscribe(base, None, *PLENTY)
    follow(client)
    refused(e.ErrorCode.RESOURCE_EXHAUSTED, client, Type.OPEN_SNAPSHOT, selector=0, reserve_subscription=True)
    client.read_snapshot()
    overflow(client, writer, stalled)
    assert client.open_snapshot(reserve=True, replace=stalled).stream


@pytest.mark.req("P3-46", "P3-49", "P14-14")
def test_unsent_events_of_a_principal_are_counted(server: Server, client: Client, writer: Client) -> None:
    """Five stalled subscriptions cross 4,096 frames together long before one alone has 1,024; others go on."""
    with server.client("reader", scopes=e.Scope.WORK_READ) as stranger:
        base, _ = head(client)
        stalled = [client.subscribe(base, None) for _ in range(5)]
        other = stranger.subscribe(base, None)
        create_many(writer, 409)
        client.ping()
        assert not any(stream.gaps for stream in stalled)  # 5 * 818 = 4,090
        create_many(writer, 1)
        client.pump_until(lambda: any(stream.gaps for stream in stalled))
        client.ping()
        assert [stream.gaps[0]["reason"] for stream in stalled if stream.gaps] == [e.GapReason.QUEUE_OVERFLOW]
        stranger.ping()
        assert not other.gaps


@pytest.mark.req("P3-45", "P14-14")
def test_subscriptions_of_a_principal_are_counted(server: Server) -> None:
    with server.client() as first, server.client() as second, server.client() as third:
        base, _ = head(first)
        for client in (first, second):
            for _ in range(32):
                client.subscribe(base, None)
        values = {"after_event_sequence": base, "initial_credit_count": 0, "initial_credit_bytes": 0}
        refused(e.ErrorCode.RESOURCE_EXHAUSTED, third, Type.SUBSCRIBE, **values)
        with server.client("reader", scopes=e.Scope.WORK_READ) as stranger:
            follow(stranger)


@pytest.mark.req("P7-07", "P7-11")
def test_pings_are_answered_in_the_middle_of_anything(client: Client) -> None:
    for nonce in (0, 1, 2**64 - 1):
        client.ping(nonce)
    assert client.pongs == [0, 1, 2**64 - 1]
