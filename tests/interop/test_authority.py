"""Restart, fencing, revocation and retention, seen by an independent client (P4, P12, P14-06, W8, P10-28)."""

from __future__ import annotations

import secrets
from collections.abc import Iterator

import pytest

from tests.interop.phux import enums as e
from tests.interop.phux.client import Client, Scoped
from tests.interop.phux.connection import Fatal
from tests.interop.phux.frames import Type
from tests.interop.phux.stream import Phase, View
from tests.interop.scenes import PLENTY, create, create_many, follow, head, objective, overflow, retain, same_view
from tests.interop.server import Server, running

SHORT_CERTIFICATE_SECONDS = 3


@pytest.fixture
def server() -> Iterator[Server]:
    """A server of its own for each test, since each leaves it changed."""
    with running() as started:
        yield started


@pytest.mark.req("P4-07", "P4-08", "P4-09", "P8-09", "P8-17", "P12-14", "P14-06", "W2-01", "P10-14")
def test_a_crash_changes_the_activation_and_nothing_else() -> None:
    with running(SHORT_CERTIFICATE_SECONDS) as server:
        operation_id, values = secrets.token_bytes(16), objective()
        with server.client() as client:
            stream = client.subscribe(0, View(), *PLENTY)
            result = client.command(e.CommandKind.CREATE_OBJECTIVE, values, operation_id=operation_id)
            client.pump_until(lambda: len(stream.events) == 2)
            server.crash_and_restart()
            assert client.wait_closed() is None
        with server.client() as again:
            old, new = client.certificate, again.certificate
            assert new.coordinator_id == old.coordinator_id
            assert new.incarnation_id != old.incarnation_id
            assert new.fencing_token != old.fencing_token
            assert new.authority_epoch > old.authority_epoch
            assert new.activation_sequence > old.activation_sequence
            assert again.lookup(operation_id) == result
            assert result == again.command(e.CommandKind.CREATE_OBJECTIVE, values, operation_id=operation_id)
            history = again.subscribe(0, View(), *PLENTY)
            again.pump_until(lambda: len(history.events) == 2)
            assert history.events == stream.events
            assert same_view(history, head(again)[1])
            with pytest.raises(Fatal) as caught:
                again.call(Type.GET_OPERATION_RESULT, authority_guard=client.guard, operation_id=operation_id)
            assert caught.value.code is e.ErrorCode.STALE_AUTHORITY


def goodbye(client: Client, reason: e.GapReason, code: e.ErrorCode) -> None:
    """One gap for each live subscription, the error, the close (W8-09, P12-17)."""
    assert client.wait_closed() is code
    assert [[gap["reason"] for gap in stream.gaps] for stream in client.streams.values()] == [
        [reason] for _ in client.streams
    ]


@pytest.mark.req("P12-16", "P12-17", "P10-17", "P13-05")
def test_without_its_witness_a_server_ends_every_session() -> None:
    with running(SHORT_CERTIFICATE_SECONDS) as server, server.client() as client, server.client() as other:
        follow(client)
        client.subscribe(0, None)
        server.cluster.stop_witness()
        goodbye(client, e.GapReason.EPOCH_CHANGED, e.ErrorCode.AUTHORITY_FENCED)
        goodbye(other, e.GapReason.EPOCH_CHANGED, e.ErrorCode.AUTHORITY_FENCED)


@pytest.mark.req("W8-06", "W8-07", "W8-08", "W8-09", "W10-09", "P6-20", "W2-23")
def test_a_revoked_key_ends_its_sessions_and_no_others(server: Server) -> None:
    with server.client() as client, server.client("reader", scopes=e.Scope.WORK_READ) as reader:
        follow(client)
        client.subscribe(0, None)
        server.revoke("operator")
        goodbye(client, e.GapReason.GRANT_REVOKED, e.ErrorCode.AUTHENTICATION_FAILED)
        reader.read_snapshot()
        with pytest.raises(Fatal) as caught:
            server.client()
        assert caught.value.code is e.ErrorCode.AUTHENTICATION_FAILED


@pytest.mark.req("P10-28", "P10-17", "P10-36", "P10-10", "P7-19")
def test_what_is_no_longer_kept_cannot_be_replayed(server: Server) -> None:
    with server.client() as client, server.client("admin", scopes=0x3F, capabilities=0x1F) as admin:
        paused = follow(client)
        overflow(client, client, paused)
        waiting = client.subscribe(head(client)[0], None)
        create(client)
        retain(admin, 1)
        create_many(client, 3)
        client.pump_until(lambda: bool(waiting.gaps))
        assert waiting.gaps[0]["reason"] is e.GapReason.RETENTION
        with pytest.raises(Scoped) as caught:
            client.open_replay(paused)
        assert caught.value.code is e.ErrorCode.CURSOR_INVALID
        assert [gap["reason"] for gap in paused.gaps] == [e.GapReason.QUEUE_OVERFLOW, e.GapReason.RETENTION]
        assert paused.phase is Phase.PAUSED_GAP
        late = client.subscribe(0, None, *PLENTY)
        client.pump_until(lambda: bool(late.gaps))
        assert (late.gaps[0]["reason"], late.events) == (e.GapReason.RETENTION, [])
        fresh = client.read_snapshot(reserve=True, replace=paused)
        client.apply_snapshot(fresh, *PLENTY)
        create(client)
        client.pump_until(lambda: bool(fresh.stream and len(fresh.stream.events) == 2))
