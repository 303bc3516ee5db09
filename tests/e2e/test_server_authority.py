"""Holding, losing and giving back the authority: real processes, a real witness, real signals."""

from __future__ import annotations

import errno
import os
import resource
import signal
import threading
from pathlib import Path

import pytest

from sidecar.coordinator.wire import frames as fr
from sidecar.coordinator.wire.enums import ErrorCode, GapReason
from sidecar.coordinator.wire.records import Succeeded, Unknown
from sidecar.ops.exitcodes import ExitCode
from tests.e2e.cluster import Cluster, Program, eventually
from tests.e2e.peer import Peer


def goodbye(peer: Peer, reason: GapReason, code: ErrorCode, subscriptions: int = 1) -> None:
    """The tail of a connection: one GAP for each live subscription, one error, the end."""
    tail = [frame for frame in peer.rest() if not isinstance(frame, fr.AuthorityRenewed)]
    gaps = [frame.reason for frame in tail if isinstance(frame, fr.Gap)]
    assert gaps == [reason] * subscriptions
    assert isinstance(tail[-1], fr.CoordErrorFrame), tail
    assert tail[-1].code == code
    assert len(tail) == subscriptions + 1


@pytest.mark.req("P12-15")
def test_every_connection_hears_of_each_renewal_before_the_expiry(tmp_path: Path) -> None:
    with Cluster(tmp_path, certificate_seconds=2) as cluster, Peer(cluster.socket) as peer:
        peer.login(cluster.key("reader"))
        assert peer.welcome is not None
        held = peer.welcome.activation_certificate
        for _ in range(3):
            renewed = peer.expect(fr.AuthorityRenewed).activation_certificate
            assert held.issued_at < renewed.issued_at <= held.expires_at < renewed.expires_at
            assert (renewed.activation_sequence, renewed.authority_epoch, renewed.incarnation_id) == (
                held.activation_sequence,
                held.authority_epoch,
                held.incarnation_id,
            )
            assert renewed.fencing_token == held.fencing_token
            held = renewed
        peer.ping()
        metrics = cluster.metrics()
        assert metrics['sidecar_authority_renewals_total{outcome="ok"}'] >= 3
        assert metrics["sidecar_authority_renewal_seconds_count"] >= 3


@pytest.mark.req("P12-17", "P12-24", "P13-05")
@pytest.mark.parametrize("how", ["killed", "stopped"])
def test_without_the_witness_the_server_fences_itself(tmp_path: Path, how: str) -> None:
    with Cluster(tmp_path, certificate_seconds=2) as cluster:
        assert cluster.serve is not None
        assert cluster.witness is not None
        with Peer(cluster.socket) as idle, Peer(cluster.socket) as subscriber, Peer(cluster.socket) as waiting:
            idle.login(cluster.key("reader"))
            subscriber.login(cluster.key("admin"))
            subscriber.subscribe()
            waiting.start()
            if how == "killed":
                cluster.witness.kill()
            else:
                cluster.stop_witness()
            goodbye(subscriber, GapReason.EPOCH_CHANGED, ErrorCode.AUTHORITY_FENCED)
            goodbye(idle, GapReason.EPOCH_CHANGED, ErrorCode.AUTHORITY_FENCED, subscriptions=0)
            assert waiting.refusal() == ErrorCode.AUTHORITY_FENCED
        assert cluster.serve.wait() == ExitCode.FENCED
        assert not cluster.socket.exists()
        assert any(line["event"] == "authority_fenced" for line in cluster.serve.lines())
        cluster.start_witness()
        epoch = cluster.ready["epoch"]
        assert cluster.start_serve()["epoch"] > epoch


@pytest.mark.req("P12-17")
def test_a_witness_that_answers_late_does_not_cost_the_authority(tmp_path: Path) -> None:
    with Cluster(tmp_path, certificate_seconds=8) as cluster:
        assert cluster.serve is not None
        cluster.stop_witness()
        eventually(lambda: cluster.metrics().get('sidecar_authority_renewals_total{outcome="unavailable"}'))
        cluster.start_witness()
        eventually(lambda: cluster.metrics().get('sidecar_authority_renewals_total{outcome="ok"}'))
        with Peer(cluster.socket) as peer:
            peer.login(cluster.key("admin")).ping()
        assert cluster.stop() == ExitCode.OK


@pytest.mark.req("P12-17")
def test_a_witness_that_hangs_for_a_while_does_not_cost_the_authority(tmp_path: Path) -> None:
    """Its socket accepts and nobody answers: no renewal may wait until the certificate is gone."""
    with Cluster(tmp_path, certificate_seconds=12) as cluster:
        assert cluster.serve is not None
        assert cluster.witness is not None

        def renewals(outcome: str) -> float:
            return cluster.metrics().get(f'sidecar_authority_renewals_total{{outcome="{outcome}"}}', 0.0)

        cluster.witness.process.send_signal(signal.SIGSTOP)
        try:
            eventually(lambda: renewals("unavailable") >= 2)
            before = renewals("ok")
        finally:
            cluster.witness.process.send_signal(signal.SIGCONT)
        eventually(lambda: renewals("ok") > before)
        with Peer(cluster.socket) as peer:
            peer.login(cluster.key("admin")).ping()
        assert cluster.stop() == ExitCode.OK


@pytest.mark.req("P12-17", "P13-05")
def test_a_lost_store_lock_fences(tmp_path: Path) -> None:
    with Cluster(tmp_path, certificate_seconds=30) as cluster:
        assert cluster.serve is not None
        with Peer(cluster.socket) as peer:
            peer.login(cluster.key("admin"))
            (cluster.layout.store / "store.lock").unlink()
            goodbye(peer, GapReason.EPOCH_CHANGED, ErrorCode.AUTHORITY_FENCED, subscriptions=0)
        assert cluster.serve.wait() == ExitCode.FENCED


@pytest.mark.req("P12-17", "P13-05")
def test_a_failed_commit_fences_and_is_never_answered(tmp_path: Path) -> None:
    with Cluster(tmp_path, certificate_seconds=3) as cluster:
        assert cluster.serve is not None
        with Peer(cluster.socket) as peer:
            peer.login(cluster.key("admin"))
            peer.send(first := peer.create())
            peer.expect(fr.CoordCommandResult)
            # From here on no file of the process may grow: what a full disk does, without one.
            resource.prlimit(cluster.serve.pid, resource.RLIMIT_FSIZE, (4096, 4096))
            peer.send(lost := peer.create(b'{"x":"' + b"y" * 100_000 + b'"}'))
            goodbye(peer, GapReason.EPOCH_CHANGED, ErrorCode.AUTHORITY_FENCED, subscriptions=0)
        assert cluster.serve.wait() == ExitCode.FENCED
        told = cluster.serve.stderr.splitlines()[-1]
        assert told.startswith(f"sidecar: the authority was lost: a commit failed: {cluster.layout.store}")
        assert told.endswith(", check the volume and its free space first; start again to activate anew")
        assert told.count("start again") == 1
        cluster.start_serve()
        with Peer(cluster.socket) as peer:
            peer.login(cluster.key("admin"))
            assert isinstance(peer.lookup(first.operation_id).operation, Succeeded)
            assert isinstance(peer.lookup(lost.operation_id).operation, Unknown)


@pytest.mark.req("P12-17")
def test_a_full_disk_that_takes_the_activation_and_no_batch_is_told_once(tmp_path: Path) -> None:
    """The log of the store has room for the activation, which is committed first, and none for its ADMIN record."""
    with Cluster(tmp_path, certificate_seconds=2) as cluster:
        assert cluster.stop() == ExitCode.OK
        config = str(cluster.serve_config)
        full = Program(tmp_path / "full.log", "serve", "--config", config, file_bytes=10_240)
        full.wait_ready()
        assert full.wait() == ExitCode.FENCED
        told = full.stderr.splitlines()[-1]
        assert told.startswith(f"sidecar: the authority was lost: a commit failed: {cluster.layout.store}")
        assert told.endswith(", check the volume and its free space first; start again to activate anew")
        assert told.count("start again") == 1
        cluster.start_serve()


@pytest.mark.req("P12-15", "P12-21")
def test_a_clean_stop_gives_the_token_back_and_leaves_nothing_open(tmp_path: Path) -> None:
    with Cluster(tmp_path, certificate_seconds=60, serve={"witness": {"wait_seconds": 0}}) as cluster:
        first = cluster.ready
        with Peer(cluster.socket) as peer:
            peer.login(cluster.key("admin"))
            peer.send(command := peer.create())
            peer.expect(fr.CoordCommandResult)
            assert cluster.stop() == ExitCode.OK
            assert [f for f in peer.rest() if not isinstance(f, fr.AuthorityRenewed)] == []
        assert not cluster.socket.exists()
        assert sorted(p.name for p in cluster.layout.store.iterdir() if p.name.endswith(("-wal", "-shm"))) == []
        # With a lease of 60 s and no patience the next start works only because the token was relinquished.
        second = cluster.start_serve()
        assert second["epoch"] > first["epoch"]
        assert second["incarnation_id"] != first["incarnation_id"]
        assert second["coordinator_id"] == first["coordinator_id"]
        assert second["authority_fingerprint"] == first["authority_fingerprint"]
        with Peer(cluster.socket) as peer:
            peer.login(cluster.key("admin"))
            assert isinstance(peer.lookup(command.operation_id).operation, Succeeded)


@pytest.mark.req("P12-24")
def test_after_kill_minus_nine_the_next_start_waits_for_the_lease(tmp_path: Path) -> None:
    with Cluster(tmp_path, certificate_seconds=2) as cluster:
        with Peer(cluster.socket) as peer:
            peer.login(cluster.key("admin"))
            peer.send(command := peer.create())
            peer.expect(fr.CoordCommandResult)
            cluster.kill()
            assert [f for f in peer.rest() if not isinstance(f, fr.AuthorityRenewed)] == []
        assert cluster.socket.exists(), "nobody was there to remove it"
        epoch = cluster.ready["epoch"]
        assert cluster.start_serve()["epoch"] > epoch
        with Peer(cluster.socket) as peer:
            peer.login(cluster.key("admin"))
            assert isinstance(peer.lookup(command.operation_id).operation, Succeeded)


@pytest.mark.req("P12-21")
@pytest.mark.parametrize("rounds", [3])
def test_a_stop_under_load_answers_or_forgets_but_never_lies(tmp_path: Path, rounds: int) -> None:
    """A clean stop answers all that it made durable: after the restart exactly the answered operations exist."""
    with Cluster(tmp_path, certificate_seconds=3) as cluster:
        answered: list[bytes] = []
        sent: list[bytes] = []
        for _ in range(rounds):
            with Peer(cluster.socket) as peer:
                peer.login(cluster.key("admin"))
                stopping = threading.Timer(0.3, cluster.serve.process.terminate) if cluster.serve else None
                assert stopping is not None
                stopping.start()
                pending: dict[int, bytes] = {}
                try:
                    while True:
                        command = peer.create()
                        peer.send(command)
                        sent.append(command.operation_id)
                        pending[command.request_id] = command.operation_id
                        while len(pending) >= 32:
                            result = peer.next()
                            if result is None:
                                raise ConnectionError(errno.EPIPE, os.strerror(errno.EPIPE))
                            if isinstance(result, fr.CoordCommandResult):
                                answered.append(pending.pop(result.request_id))
                except (BrokenPipeError, ConnectionError):
                    answered += [pending[f.request_id] for f in peer.rest() if isinstance(f, fr.CoordCommandResult)]
                stopping.join()
            assert cluster.serve is not None
            assert cluster.serve.wait() == ExitCode.OK
            cluster.start_serve()
        assert answered
        with Peer(cluster.socket) as peer:
            peer.login(cluster.key("admin"))
            found = {operation: peer.lookup(operation).operation for operation in sent}
        assert {operation for operation, result in found.items() if isinstance(result, Succeeded)} == set(answered)
        assert all(isinstance(result, Succeeded | Unknown) for result in found.values())


def test_health_follows_the_life_of_the_server(tmp_path: Path) -> None:
    with Cluster(tmp_path, certificate_seconds=30) as cluster:
        assert cluster.health("/readyz") == (200, "ok\n")
        assert cluster.health("/healthz") == (200, "ok\n")
        seen = eventually(lambda: (m := cluster.metrics()).get("sidecar_authority_epoch") and m)
        assert seen["sidecar_authority_epoch"] == cluster.ready["epoch"]
        assert 0 < seen["sidecar_authority_lease_seconds"] <= 30
        assert seen["sidecar_authority_fenced"] == 0
        assert seen["sidecar_registry_keys"] == 5
        with Peer(cluster.socket) as peer:
            peer.login(cluster.key("admin"))
            peer.send(peer.create())
            peer.expect(fr.CoordCommandResult)
            seen = cluster.metrics()
            assert seen['sidecar_commands_total{kind="create_objective",outcome="succeeded"}'] == 1
            # The ADMIN record of the activation was a batch of its own.
            assert seen["sidecar_commit_batch_transactions_count"] == 2
            eventually(lambda: cluster.metrics()['sidecar_sockets{state="active"}'] == 1)
        eventually(lambda: cluster.metrics()['sidecar_sockets{state="active"}'] == 0)


def test_a_server_whose_socket_file_is_gone_is_not_ready(tmp_path: Path) -> None:
    """Who is connected goes on; nobody else finds it, and a supervisor must hear of that."""
    with Cluster(tmp_path, certificate_seconds=30) as cluster, Peer(cluster.socket) as peer:
        peer.login(cluster.key("reader"))
        cluster.socket.unlink()
        status, why = cluster.health("/readyz")
        assert status == 503
        assert "removed or replaced" in why
        peer.ping()
        assert cluster.stop() == ExitCode.OK


def test_a_removed_store_log_fences_and_loses_nothing(tmp_path: Path) -> None:
    """Commits to a log without a name would be gone with the process: none of them is acknowledged."""
    with Cluster(tmp_path, certificate_seconds=3) as cluster:
        assert cluster.serve is not None
        with Peer(cluster.socket) as peer:
            peer.login(cluster.key("admin"))
            peer.send(command := peer.create())
            peer.expect(fr.CoordCommandResult)
            (cluster.layout.store / "coordinator.db-wal").unlink()
            goodbye(peer, GapReason.EPOCH_CHANGED, ErrorCode.AUTHORITY_FENCED, subscriptions=0)
        assert cluster.serve.wait() == ExitCode.FENCED
        cluster.start_serve()
        with Peer(cluster.socket) as peer:
            peer.login(cluster.key("admin"))
            assert isinstance(peer.lookup(command.operation_id).operation, Succeeded)


def test_a_store_log_that_is_cut_fences(tmp_path: Path) -> None:
    """The file keeps its name and inode; only its size tells."""
    with Cluster(tmp_path, certificate_seconds=3) as cluster:
        assert cluster.serve is not None
        with Peer(cluster.socket) as peer:
            peer.login(cluster.key("admin"))
            peer.send(peer.create())
            peer.expect(fr.CoordCommandResult)
            os.truncate(cluster.layout.store / "coordinator.db-wal", 0)
            goodbye(peer, GapReason.EPOCH_CHANGED, ErrorCode.AUTHORITY_FENCED, subscriptions=0)
        assert cluster.serve.wait() == ExitCode.FENCED
        cluster.start_serve()
        with Peer(cluster.socket) as peer:
            peer.login(cluster.key("admin")).ping()
