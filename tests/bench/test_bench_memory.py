"""Resident bytes of the server for one connection and for one subscription that do nothing.

What the process has for itself alone is read before and after. A few that came before stay, so that what is loaded or
made once counts for nobody, and nothing that they left is there to be used again.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from sidecar.base.ed25519 import SigningKey
from sidecar.coordinator.wire.frames import CoordPing, CoordPong
from sidecar.coordinator.wire.limits import QUOTAS, QuotaCaps
from tests.bench.lean import ALL_SCOPES, server, server_pid
from tests.bench.measure import resident, show
from tests.e2e.cluster import Cluster
from tests.e2e.peer import Peer

CONNECTIONS = 200
SUBSCRIPTIONS = 2_000
WARM = 16
BURST = 1_024
"""Pings that fill the storage of the receiving side."""


def caps(name: str) -> tuple[int, int]:
    """What one connection and one principal may have."""
    row: QuotaCaps = QUOTAS[name]
    assert row.principal is not None
    return row.connection or 1, row.principal


def connect(cluster: Cluster, key: SigningKey) -> Peer:
    """One that is logged in and has talked once."""
    peer = Peer(cluster.socket).login(key, ALL_SCOPES)
    peer.ping()
    return peer


def burst(peer: Peer) -> None:
    """More than the storage of the receiving side takes at once."""
    peer.send(CoordPing(nonce=1).encode() * BURST)
    for _ in range(BURST):
        peer.expect(CoordPong)


def test_idle_connections(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    _, each = caps("connections")
    with server(tmp_path, -(-(WARM + CONNECTIONS) // each)) as (cluster, keys):
        pid = server_pid(cluster)
        peers = [connect(cluster, keys[n // each]) for n in range(WARM)]
        for peer in peers:
            burst(peer)
        before = resident(pid)
        peers += [connect(cluster, keys[n // each]) for n in range(WARM, WARM + CONNECTIONS)]
        quiet = (resident(pid) - before) / CONNECTIONS
        for peer in peers[WARM:]:
            burst(peer)
        talked = (resident(pid) - before) / CONNECTIONS
        for peer in peers:
            peer.close()
    show(
        capsys,
        f"memory of an idle connection, of {CONNECTIONS}",
        {
            "logged in": (quiet / 1024, "KiB"),
            "logged in, and once sent more than its storage": (talked / 1024, "KiB"),
            "floor: the process with few connections": (before / 1024, "KiB"),
        },
    )
    assert 0 < quiet <= talked


def test_idle_subscriptions(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    per_connection, each = caps("subscriptions")
    with server(tmp_path, -(-(WARM + SUBSCRIPTIONS) // each)) as (cluster, keys):
        pid = server_pid(cluster)
        count = -(-(WARM + SUBSCRIPTIONS) // per_connection)
        peers = [connect(cluster, keys[n * per_connection // each]) for n in range(count)]
        for n in range(WARM):
            peers[n // per_connection].subscribe()
        before = resident(pid)
        for n in range(WARM, WARM + SUBSCRIPTIONS):
            peers[n // per_connection].subscribe()
        subscription = (resident(pid) - before) / SUBSCRIPTIONS
        for peer in peers:
            peer.close()
    show(
        capsys,
        f"memory of an idle subscription, of {SUBSCRIPTIONS} on {count} connections",
        {
            "live, with credit": (subscription / 1024, "KiB"),
            "floor: the process with its connections": (before / 1024, "KiB"),
        },
    )
    assert subscription > 0
