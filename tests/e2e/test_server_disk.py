"""A disk that takes a commit and does not give it back: real processes, and an SQLite whose sync hangs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from sidecar.coordinator.wire import frames as fr
from sidecar.coordinator.wire.enums import ErrorCode
from sidecar.coordinator.wire.records import Succeeded
from sidecar.ops.exitcodes import ExitCode
from tests.e2e.cluster import Cluster, eventually
from tests.e2e.hanging_disk import install
from tests.e2e.peer import Peer


class Rig:
    """A cluster whose coordinator, and nobody else, has a disk that hangs while ``marker`` exists."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.cluster = Cluster(directory, certificate_seconds=2)
        self.cluster.start_witness()
        environment, self.marker = install(directory / "site")
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        self.cluster.start_serve()


@pytest.fixture
def rig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Rig]:
    rig = Rig(tmp_path, monkeypatch)
    yield rig
    rig.marker.unlink(missing_ok=True)
    rig.cluster.close()


@pytest.mark.req("P12-16", "P12-17")
def test_a_fenced_server_ends_beside_a_commit_that_hangs(rig: Rig) -> None:
    cluster, marker = rig.cluster, rig.marker
    with Peer(cluster.socket) as peer:
        assert cluster.serve is not None
        peer.login(cluster.key("admin"))
        kept = peer.create()
        peer.send(kept)
        assert isinstance(peer.expect(fr.CoordCommandResult).operation, Succeeded)
        marker.touch()
        unknown = peer.create()
        peer.send(unknown)
        cluster.stop_witness()
        assert peer.refusal() == ErrorCode.AUTHORITY_FENCED
        assert cluster.serve.wait() == ExitCode.FENCED
        last = cluster.serve.lines()[-1]
        assert (last["event"], last["exit_code"]) == ("stopped", ExitCode.FENCED)
        assert "the disk still has a commit" in last["problem"]
        assert cluster.serve.stderr.splitlines()[-1] == f"sidecar: {last['problem']}"
        assert not cluster.socket.exists()
        assert not Path(cluster.ready["admin_socket"]).exists()
        # The store is as after a kill: what was answered is there, and the next server goes on.
        marker.unlink()
        cluster.start_witness()
        cluster.start_serve()
        with Peer(cluster.socket) as later:
            later.login(cluster.key("admin"))
            assert isinstance(later.lookup(kept.operation_id).operation, Succeeded)
            later.lookup(unknown.operation_id)
            later.send(later.create())
            assert isinstance(later.expect(fr.CoordCommandResult).operation, Succeeded)


def test_a_server_whose_disk_keeps_a_commit_is_not_ready_and_goes_on_when_it_returns(rig: Rig) -> None:
    cluster, marker = rig.cluster, rig.marker
    with Peer(cluster.socket) as peer:
        peer.login(cluster.key("admin"))
        marker.touch()
        peer.send(peer.create())
        peer.ping()
        status, text = eventually(lambda: (found := cluster.health("/readyz"))[0] == 503 and found)
        assert status == 503
        assert "the disk has not finished a commit for" in text
        assert cluster.health("/healthz")[0] == 200
        marker.unlink()
        assert isinstance(peer.expect(fr.CoordCommandResult).operation, Succeeded)
        assert cluster.health("/readyz")[0] == 200
