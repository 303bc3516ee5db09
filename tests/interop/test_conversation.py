"""One conversation in which every frame type of the table goes over the wire, each way that a client can cause."""

from __future__ import annotations

import pytest

from tests.interop.phux import enums as e
from tests.interop.phux import records as r
from tests.interop.phux.client import Client, Scoped
from tests.interop.phux.frames import SHAPES, Type
from tests.interop.phux.stream import Stream, View
from tests.interop.scenes import PLENTY, create, create_many, events_until, head, overflow, same_view, update
from tests.interop.server import Server, running


def begin_empty(client: Client) -> None:
    """Liveness, an empty authority, unknown operations."""
    client.ping()
    client.connection.send(Type.COORD_PONG, nonce=7)  # unasked: liveness only, no meaning (P7-07)
    snapshot = client.open_snapshot()
    assert snapshot.pages.ended
    assert (snapshot.base, snapshot.records) == (0, [])
    client.apply_snapshot(snapshot)
    assert client.lookup(b"\x01" * 16) == r.Unknown()


def refusals(client: Client) -> None:
    """A scoped error, after which the connection serves on."""
    with pytest.raises(Scoped) as caught:
        client.command(e.CommandKind.PAUSE_RUN, {"run_id": b"\x02" * 16})
    assert caught.value.code is e.ErrorCode.NOT_FOUND


def heal_by_replay(client: Client, stream: Stream) -> None:
    """A gap, its replay in several pages, and the stream live again at the next delivery."""
    ref = overflow(client, client, stream)
    replay = client.read_replay(stream)
    assert replay.pages.index > 1
    delivered = stream.last_delivery
    client.apply_replay(replay, *PLENTY)
    update(client, ref, b"[2]")
    client.pump_until(lambda: stream.last_delivery == delivered + 2)


def heal_by_snapshot(client: Client, writer: Client) -> Stream:
    """A gap, and another subscription from a fresh snapshot in place of the paused one."""
    base, view = head(client)
    paused = client.subscribe(base, view)
    overflow(client, writer, paused)
    snapshot = client.read_snapshot(reserve=True, replace=paused)
    assert snapshot.pages.index > 1
    client.apply_snapshot(snapshot, *PLENTY)
    assert snapshot.stream is not None
    return snapshot.stream


def end_by_errors(server: Server, client: Client) -> set[Type]:
    """A fatal error from the client, one from the server, both closed; what the second connection sent."""
    with server.client() as other:
        other.connection.send(Type.COORD_ERROR, code=e.ErrorCode.INTERNAL, message="")
        assert other.wait_closed() is None
        seen = other.connection.sent
    client.connection.send_bytes(b"\0\0\0\1\x02")
    assert client.wait_closed() is e.ErrorCode.PROTOCOL_ERROR
    return seen


@pytest.mark.req(
    "P7-01", "P7-06", "P7-07", "P7-08", "P7-11", "P12-13", "P12-15", "P13-08", "P13-09", "P14-13", "P5-16", "P9-17"
)
def test_every_frame_type_goes_over_the_wire() -> None:
    with (
        running(certificate_seconds=6) as server,  # renewed at half of it
        server.client(limits={"max_page_records": 100}) as client,
        server.client() as writer,
    ):
        begin_empty(client)
        refusals(client)
        stream = client.subscribe(0, View())
        create(client)
        client.give_credit(stream, *PLENTY)
        events_until(client, stream, 2)
        stalled = client.subscribe(stream.last_event, View(dict(stream.view.revisions)) if stream.view else None)
        heal_by_replay(client, stalled)
        fresh = heal_by_snapshot(client, writer)
        create_many(writer, 3)
        events_until(client, fresh, 6)
        assert same_view(fresh, head(client)[1])
        client.pump_until(lambda: client.renewals > 0)
        late_types = end_by_errors(server, client)
        sent = client.connection.sent | late_types
        assert sent == {frame_type for frame_type, shape in SHAPES.items() if shape.to_server}
        expected = {frame_type for frame_type, shape in SHAPES.items() if shape.to_client}
        assert client.connection.received | {Type.COORD_PING} == expected  # a server need not ping
