"""Whole-authority snapshots, seen by an independent client (P9)."""

from __future__ import annotations

import secrets
import time
from typing import Any

import pytest

from tests.interop.phux import enums as e
from tests.interop.phux.client import Client, Scoped
from tests.interop.phux.connection import Fatal
from tests.interop.phux.frames import Type, encode
from tests.interop.phux.stream import Snapshot
from tests.interop.raw import answer
from tests.interop.scenes import (
    PLENTY,
    create,
    create_many,
    events_until,
    head,
    killed,
    refused,
    same_view,
    update,
)
from tests.interop.server import Server

SMALL_PAGES = {"max_page_records": 3}


def next_page(snapshot: Snapshot, **values: Any) -> dict[str, Any]:
    return {"snapshot_id": snapshot.id, "cursor": snapshot.pages.cursor, **values}


def applied(snapshot: Snapshot, subscription_id: bytes | None = None, count: int = 0, size: int = 0) -> dict[str, Any]:
    return {
        "snapshot_id": snapshot.id,
        "subscription_id": subscription_id,
        "initial_credit_count": count,
        "initial_credit_bytes": size,
    }


@pytest.mark.req("P9-10", "P9-11", "P9-12", "P9-14", "P9-18", "P9-19", "P9-20", "P9-21", "P9-22", "P3-28", "P14-11")
@pytest.mark.parametrize("limits", [SMALL_PAGES, {"max_page_records": 1}, {"max_page_bytes": 9_000}])
def test_a_snapshot_in_pages(server: Server, writer: Client, limits: dict[str, int]) -> None:
    create_many(writer, 4)
    create(writer, bytes(6_000))
    with server.client(limits=limits) as client:
        snapshot = client.read_snapshot()
        assert snapshot.pages.index > 1
        whole = writer.read_snapshot()
        assert (snapshot.base, snapshot.records) == (whole.base, whole.records)


@pytest.mark.req("P9-05", "P3-40")
def test_a_lease_lasts_sixty_seconds(client: Client) -> None:
    before = time.time()
    snapshot = client.open_snapshot()
    assert before + 59 <= snapshot.lease_expires_at <= time.time() + 60


@pytest.mark.req("P9-13", "P9-25", "P9-23", "P9-24", "P10-04", "P14-12")
def test_a_cut_stands_still_and_what_follows_is_delivered_once(server: Server, writer: Client) -> None:
    old = create(writer)
    create_many(writer, 3)
    with server.client(limits=SMALL_PAGES) as client:
        snapshot = client.open_snapshot(reserve=True)
        client.next_page(snapshot)
        update(writer, old, b'{"new":1}')
        new = create(writer)
        while not snapshot.pages.ended:
            client.next_page(snapshot)
        assert snapshot.view().revisions[old] == 1
        assert new not in snapshot.view().revisions
        assert snapshot.stream
        client.apply_snapshot(snapshot, *PLENTY)
        client.pump_until(lambda: bool(snapshot.stream and len(snapshot.stream.events) == 4))
        assert min(event.event_sequence for event in snapshot.stream.events) > snapshot.base
        assert same_view(snapshot.stream, head(writer)[1])


@pytest.mark.req("P9-07", "P9-08", "P9-09", "P9-05", "W8-03")
def test_cursors_are_used_once_in_turn_and_by_their_holder(server: Server, writer: Client) -> None:
    create_many(writer, 4)
    with server.client(limits=SMALL_PAGES) as client, server.client("reader", scopes=1) as stranger:
        snapshot, other = client.open_snapshot(), client.open_snapshot()
        first = snapshot.pages.cursor
        assert first
        assert other.pages.cursor
        assert len({first, other.pages.cursor}) == 2
        assert 16 <= len(first) <= e.MAX_CURSOR
        for who in (writer, stranger):
            refused(e.ErrorCode.CURSOR_INVALID, who, Type.SNAPSHOT_NEXT, **next_page(snapshot))
        crossed = next_page(snapshot, cursor=other.pages.cursor)
        refused(e.ErrorCode.CURSOR_INVALID, client, Type.SNAPSHOT_NEXT, **crossed)
        client.next_page(snapshot)
        for cursor in (first, secrets.token_bytes(len(first)), b""):
            refused(e.ErrorCode.CURSOR_INVALID, client, Type.SNAPSHOT_NEXT, **next_page(snapshot, cursor=cursor))
        unknown = next_page(snapshot, snapshot_id=secrets.token_bytes(16))
        refused(e.ErrorCode.CURSOR_INVALID, client, Type.SNAPSHOT_NEXT, **unknown)
        while not snapshot.pages.ended:
            client.next_page(snapshot)
        client.apply_snapshot(snapshot)
        refused(e.ErrorCode.CURSOR_INVALID, client, Type.SNAPSHOT_NEXT, **next_page(snapshot, cursor=first))


@pytest.mark.req("P9-07", "P9-18", "P13-08")
def test_a_second_next_under_way_is_refused(server: Server, writer: Client) -> None:
    create_many(writer, 4)
    with server.client(limits=SMALL_PAGES) as client:
        opened = client.open_snapshot()
        both = [encode(Type.SNAPSHOT_NEXT, request_id=number, **next_page(opened)) for number in (101, 102)]
        replies = [answer(client.connection, b"".join(both)), answer(client.connection, b"")]
        by_request = {reply["request_id"]: reply for reply in replies}
        assert by_request[102]["code"] is e.ErrorCode.CURSOR_INVALID
        opened.add(by_request[101])
        client.next_page(opened)


@pytest.mark.req("P7-10", "P9-20", "P13-08")
def test_a_request_id_is_free_after_its_terminal_reply(client: Client, writer: Client) -> None:
    create(writer)
    for _ in range(2):
        begin = client.call(Type.OPEN_SNAPSHOT, request_id=9, selector=0, reserve_subscription=False)
        page = {"snapshot_id": begin["snapshot_id"], "cursor": begin["first_cursor"]}
        end = client.call(Type.SNAPSHOT_NEXT, request_id=9, **page)
        assert end.type is Type.SNAPSHOT_END
        refused(e.ErrorCode.CURSOR_INVALID, client, Type.SNAPSHOT_NEXT, request_id=9, **page)


@pytest.mark.req("P9-23")
def test_a_snapshot_is_applied_once_and_after_its_end(server: Server, writer: Client) -> None:
    create_many(writer, 4)
    with server.client(limits=SMALL_PAGES) as client:
        snapshot = client.open_snapshot(reserve=True)
        assert snapshot.stream
        early = applied(snapshot, snapshot.stream.id)
        refused(e.ErrorCode.CURSOR_INVALID, client, Type.SNAPSHOT_APPLIED, **early)
        while not snapshot.pages.ended:
            client.next_page(snapshot)
        client.apply_snapshot(snapshot)
        refused(e.ErrorCode.CURSOR_INVALID, client, Type.SNAPSHOT_APPLIED, **early)


@pytest.mark.req("P9-23", "P10-16")
@pytest.mark.parametrize("wrong", ["credit", "bytes", "subscription", "no subscription", "too much", "too many bytes"])
def test_a_wrong_application_is_malformed(client: Client, wrong: str) -> None:
    reserve = wrong not in {"credit", "bytes"}
    snapshot = client.read_snapshot(reserve=reserve)
    own = snapshot.stream.id if snapshot.stream else None
    values = {
        "credit": applied(snapshot, None, 1, 0),
        "bytes": applied(snapshot, None, 0, 1),
        "subscription": applied(snapshot, secrets.token_bytes(16)),
        "no subscription": applied(snapshot),
        "too much": applied(snapshot, own, 1_025, 0),
        "too many bytes": applied(snapshot, own, 0, PLENTY[1] + 1),
    }[wrong]
    killed(e.ErrorCode.MALFORMED_MESSAGE, client, Type.SNAPSHOT_APPLIED, **values)


@pytest.mark.req("P9-26")
def test_a_replacement_needs_a_reservation(client: Client) -> None:
    wrong = {"selector": 0, "reserve_subscription": False, "replace_paused_subscription": secrets.token_bytes(16)}
    killed(e.ErrorCode.MALFORMED_MESSAGE, client, Type.OPEN_SNAPSHOT, **wrong)


@pytest.mark.req("P3-38", "P3-49", "P3-50", "P9-04", "P9-06")
def test_leases_of_a_connection_are_counted(client: Client, writer: Client) -> None:
    create(writer)
    opened = [client.open_snapshot() for _ in range(8)]
    with pytest.raises(Scoped) as caught:
        client.open_snapshot()
    assert caught.value.code is e.ErrorCode.RESOURCE_EXHAUSTED
    while not opened[0].pages.ended:
        client.next_page(opened[0])
    client.apply_snapshot(opened[0])
    client.open_snapshot()


@pytest.mark.req("P3-43", "P3-50", "P14-14")
def test_leases_of_a_principal_are_counted_and_come_back(server: Server, writer: Client) -> None:
    create(writer)
    with server.client() as first, server.client() as second, server.client("reader", scopes=1) as stranger:
        for client in (first, second):
            for _ in range(8):
                client.open_snapshot()
        refused(e.ErrorCode.RESOURCE_EXHAUSTED, writer, Type.OPEN_SNAPSHOT, selector=0, reserve_subscription=False)
        stranger.read_snapshot()
        second.connection.send(Type.COORD_ERROR, code=e.ErrorCode.INTERNAL, message="")
        assert second.wait_closed() is None  # the server has let go of it before it closes
        writer.read_snapshot()


def kinds(client: Client) -> set[e.ObjectKind]:
    return {record.object.kind for record in client.read_snapshot().records}


@pytest.mark.req("P6-05", "P6-09", "P6-10", "P6-15", "P6-17", "P14-10")
def test_what_is_seen_depends_on_scopes_alone(server: Server, writer: Client) -> None:
    create(writer)
    with (
        server.client(scopes=e.Scope.WORK_READ) as reading,
        server.client("reader", scopes=e.Scope.WORK_READ) as stranger,
        server.client(scopes=e.Scope.WORK_COMMAND) as commanding,
        server.client("admin", scopes=e.Scope.ADMIN) as admin,
    ):
        objective, operation = e.ObjectKind.OBJECTIVE, e.ObjectKind.OPERATION
        assert kinds(writer) == kinds(reading) == {objective, operation}
        assert kinds(stranger) == {objective}
        assert kinds(commanding) == kinds(admin) == {operation}
        assert reading.read_snapshot().records == writer.read_snapshot().records
        for client in (writer, reading, stranger, commanding, admin):
            base, view = head(client)
            stream = client.subscribe(base, view, *PLENTY)
            expected = kinds(client)
            create_many(writer, 2)
            seen = events_until(client, stream, 2 * len(expected))
            assert sorted(event.object.kind for event in seen) == sorted([*expected, *expected])


GUARDED: dict[Type, dict[str, Any]] = {
    Type.OPEN_SNAPSHOT: {"selector": 0, "reserve_subscription": True},
    Type.SUBSCRIBE: {"after_event_sequence": 0, "initial_credit_count": 1, "initial_credit_bytes": 1_000},
    Type.OPEN_REPLAY: {"subscription_id": b"\x01" * 16, "after_event_sequence": 0},
    Type.GET_OPERATION_RESULT: {"operation_id": b"\x02" * 16},
}


@pytest.mark.req("P4-11", "P4-12")
@pytest.mark.parametrize("member", ["coordinator_id", "authority_epoch", "activation_sequence", "fencing_token_sha256"])
@pytest.mark.parametrize("request_type", GUARDED)
def test_another_guard_is_stale(client: Client, member: str, request_type: Type) -> None:
    value = getattr(client.guard, member)
    wrong = value + 1 if isinstance(value, int) else bytes([value[0] ^ 1]) + value[1:]
    values = GUARDED[request_type]
    changed: dict[str, Any] = {member: wrong}
    with pytest.raises(Fatal) as caught:
        client.call(request_type, authority_guard=client.guard._replace(**changed), **values)
    assert caught.value.code is e.ErrorCode.STALE_AUTHORITY


@pytest.mark.req("P3-51", "P9-10")
def test_a_record_over_a_page_is_never_cut(server: Server, writer: Client) -> None:
    """A client with smaller caps than a stored record gets no snapshot, and a gap in place of the event."""
    with server.client(limits={"max_page_bytes": 3_000, "max_typed_payload_bytes": 3_000}) as client:
        base, view = head(writer)
        stream = client.subscribe(base, view, *PLENTY)
        create(writer, bytes(4_000))
        client.pump_until(lambda: bool(stream.gaps))
        assert stream.gaps[0]["reason"] is e.GapReason.INTERNAL
        refused(e.ErrorCode.RESOURCE_EXHAUSTED, client, Type.OPEN_SNAPSHOT, selector=0, reserve_subscription=False)
