"""Keys that are revoked, expire, change or break while their sessions are active (W8)."""

from __future__ import annotations

import contextlib
import time
from typing import Any

import pytest

from sidecar.base.ed25519 import fingerprint
from sidecar.coordinator.authority.registry import REGISTRY_NAME, add_key, revoke_key
from sidecar.coordinator.wire import frames as fr
from sidecar.coordinator.wire.enums import ErrorCode, GapReason
from sidecar.coordinator.wire.records import Unknown
from tests.e2e.cluster import Cluster, eventually
from tests.e2e.peer import Peer
from tests.e2e.test_server_authority import goodbye

YEAR = 366 * 86_400


@pytest.fixture
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with Cluster(tmp_path_factory.mktemp("revocation"), certificate_seconds=60) as cluster:
        yield cluster


def revoke(cluster: Cluster, name: str) -> None:
    revoke_key(cluster.state_dir, fingerprint(cluster.key(name).public_key), now=time.time())


def ceiling(cluster: Cluster, name: str, scopes: int, life: int = YEAR) -> None:
    now = time.time()
    add_key(
        cluster.state_dir,
        cluster.key(name).public_key,
        scopes,
        int(now) + life,
        now=now,
        replace_existing=True,
    )


def loads(cluster: Cluster) -> float:
    return cluster.metrics().get('sidecar_registry_reloads_total{outcome="ok"}', 0)


@pytest.mark.req("W8-06", "W8-07", "W8-08", "W8-09", "W10-09", "P13-05")
def test_a_revoked_key_loses_its_idle_sessions(cluster: Cluster) -> None:
    with Peer(cluster.socket) as idle, Peer(cluster.socket) as other:
        idle.login(cluster.key("operator"), 0x1F)
        idle.subscribe()
        idle.subscribe()
        other.login(cluster.key("admin"))
        eventually(lambda: cluster.metrics()["sidecar_subscriptions"] == 2)
        revoke(cluster, "operator")
        goodbye(idle, GapReason.GRANT_REVOKED, ErrorCode.AUTHENTICATION_FAILED, subscriptions=2)
        other.ping()
    eventually(lambda: cluster.metrics()["sidecar_subscriptions"] == 0)
    with Peer(cluster.socket) as again:
        again.start()
        again.send(again.response(cluster.key("operator"), 0x01))
        assert again.refusal() == ErrorCode.AUTHENTICATION_FAILED


@pytest.mark.req("W8-07", "W8-10")
def test_a_command_after_the_revocation_has_no_effect(cluster: Cluster) -> None:
    with Peer(cluster.socket) as peer, Peer(cluster.socket) as admin:
        peer.login(cluster.key("commander"), 0x02)
        admin.login(cluster.key("admin"))
        before = loads(cluster)
        revoke(cluster, "commander")
        eventually(lambda: loads(cluster) > before)
        late = peer.create()
        with contextlib.suppress(BrokenPipeError):
            peer.send(late)
        goodbye(peer, GapReason.GRANT_REVOKED, ErrorCode.AUTHENTICATION_FAILED, subscriptions=0)
        assert isinstance(admin.lookup(late.operation_id).operation, Unknown)


@pytest.mark.req("W8-06", "W8-07", "W8-09", "W10-09")
def test_a_grant_that_expires_ends_its_session(cluster: Cluster) -> None:
    with Peer(cluster.socket) as peer:
        peer.login(cluster.key("admin"), life=2)
        peer.subscribe()
        goodbye(peer, GapReason.GRANT_REVOKED, ErrorCode.AUTHENTICATION_FAILED)


@pytest.mark.req("W8-07")
@pytest.mark.parametrize("change", ["scopes", "expiry"])
def test_a_ceiling_that_no_longer_contains_the_grant_ends_the_session(cluster: Cluster, change: str) -> None:
    with Peer(cluster.socket) as peer:
        peer.login(cluster.key("operator"), 0x03)
        if change == "scopes":
            ceiling(cluster, "operator", 0x01)
        else:
            ceiling(cluster, "operator", 0x1F, life=60)
        goodbye(peer, GapReason.GRANT_REVOKED, ErrorCode.AUTHENTICATION_FAILED, subscriptions=0)


@pytest.mark.req("W8-12", "W8-06")
def test_a_ceiling_that_still_contains_the_grant_changes_nothing(cluster: Cluster) -> None:
    with Peer(cluster.socket) as peer:
        peer.login(cluster.key("reader"), 0x01)
        for scopes in (0x0B, 0x01, 0x09):
            before = loads(cluster)
            ceiling(cluster, "reader", scopes)
            eventually(lambda before=before: loads(cluster) > before)
            peer.ping()


@pytest.mark.req("W8-10", "W9-06")
@pytest.mark.parametrize("damage", ["malformed", "missing", "mode"])
def test_a_broken_registry_closes_everybody_until_it_is_repaired(cluster: Cluster, damage: str) -> None:
    file = cluster.state_dir / REGISTRY_NAME
    good = file.read_bytes()
    with Peer(cluster.socket) as first, Peer(cluster.socket) as second:
        first.login(cluster.key("admin"))
        second.login(cluster.key("reader"))
        if damage == "malformed":
            file.write_bytes(good[:-1])
        elif damage == "missing":
            file.unlink()
        else:
            file.chmod(0o644)
        goodbye(first, GapReason.GRANT_REVOKED, ErrorCode.AUTHENTICATION_FAILED, subscriptions=0)
        goodbye(second, GapReason.GRANT_REVOKED, ErrorCode.AUTHENTICATION_FAILED, subscriptions=0)
    with Peer(cluster.socket) as peer:
        peer.start()
        peer.send(peer.response(cluster.key("admin"), 0x01))
        assert peer.refusal() == ErrorCode.AUTHENTICATION_FAILED
    status, why = cluster.health("/readyz")
    assert (status, why.split(":")[0]) == (503, "registry")
    assert cluster.health("/healthz")[0] == 200
    if damage == "mode":
        file.chmod(0o600)
    else:
        file.write_bytes(good)
        file.chmod(0o600)
    eventually(lambda: cluster.health("/readyz")[0] == 200)
    with Peer(cluster.socket) as peer:
        peer.login(cluster.key("admin")).ping()


@pytest.mark.req("W8-10", "W8-07")
def test_nothing_that_a_client_sent_behind_its_revocation_is_answered(cluster: Cluster) -> None:
    with Peer(cluster.socket) as peer:
        peer.login(cluster.key("operator"), 0x1F)
        revoke(cluster, "operator")
        with contextlib.suppress(BrokenPipeError):
            while True:
                peer.send(fr.CoordPing(nonce=1))
                answer = peer.next()
                if isinstance(answer, fr.CoordErrorFrame):
                    break
                assert isinstance(answer, fr.CoordPong)
        assert not any(isinstance(frame, fr.CoordPong) for frame in peer.rest())


@pytest.mark.req("W8-08", "W8-10", "P3-50")
def test_a_revoked_peer_that_does_not_read_is_cut_off(cluster: Cluster) -> None:
    """Its socket is full, so that nothing can be told; the session, its quota and the socket go all the same."""
    with Peer(cluster.socket) as stalled, Peer(cluster.socket) as writer:
        stalled.login(cluster.key("operator"), 0x1F)
        writer.login(cluster.key("admin"))
        stalled.subscribe(nbytes=1 << 23)
        while eventually(lambda: cluster.stats()["connections"])[0]["writable"]:
            for _ in range(8):
                writer.send(writer.create(bytes(100_000)))
                writer.expect(fr.CoordCommandResult)
        assert [len(conn["subscriptions"]) for conn in cluster.stats()["connections"]] == [1, 0]
        revoke(cluster, "operator")
        left = eventually(lambda: (found := cluster.stats())["sockets"] == {"handshake": 0, "active": 1} and found)
        assert left["quotas"]["connections"]["used"] == left["quotas"]["subscriptions"]["used"] + 1 == 1
        writer.ping()
