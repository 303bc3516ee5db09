"""A coordinator that is told to stop before it serves: exit code 0, nothing bound, no token kept."""

from __future__ import annotations

import itertools
import os
import signal
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest

from sidecar.ops.exitcodes import ExitCode
from sidecar.witness import store
from tests.e2e.cluster import Cluster, Program, eventually

PATIENCE = 30.0


def check_stopped(cluster: Cluster, program: Program) -> None:
    """It ended as it should, and told nobody that it serves."""
    assert program.wait() == ExitCode.OK
    lines = program.lines()
    assert [line["event"] for line in lines] == ["activating", "stopped"]
    assert lines[-1]["exit_code"] == ExitCode.OK
    assert program.stderr.count("\n") == len(lines)
    assert program.rest_of_stdout() == b""
    assert not cluster.socket.exists()


def start(cluster: Cluster) -> Program:
    """Start the coordinator; wait until it activates."""
    program = cluster.program("stopping", "serve", "--config", str(cluster.serve_config))
    eventually(lambda: any(line["event"] == "activating" for line in program.lines()))
    return program


@pytest.mark.req("P12-21", "P12-23")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_while_it_waits_for_the_lease_of_a_predecessor(tmp_path: Path, number: signal.Signals) -> None:
    with Cluster(tmp_path, certificate_seconds=60) as cluster:
        assert cluster.witness is not None
        cluster.kill()
        cluster.socket.unlink()
        program = start(cluster)
        eventually(lambda: any(line["event"] == "witness_refused" for line in cluster.witness.lines()))
        program.process.send_signal(number)
        check_stopped(cluster, program)


@pytest.mark.req("P12-21", "P12-23")
def test_a_stop_while_the_witness_keeps_silent(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, serve={"witness": {"timeout_milliseconds": 1000}})
    try:
        cluster.start_witness()
        assert cluster.witness is not None
        cluster.witness.process.send_signal(signal.SIGSTOP)
        program = start(cluster)
        program.process.send_signal(signal.SIGTERM)
        check_stopped(cluster, program)
    finally:
        cluster.close()


class Relay:
    """Stands between a coordinator and its witness; `before_reply` hears of each reply before the coordinator does."""

    def __init__(self, path: Path, witness: Path, before_reply: Callable[[int], None]) -> None:
        self._witness = witness
        self._before_reply = before_reply
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join(PATIENCE)
        self._listener.close()

    def _run(self) -> None:
        for number in itertools.count(1):
            try:
                peer, _ = self._listener.accept()
            except OSError:
                return
            with peer, socket.socket(socket.AF_UNIX) as witness:
                witness.connect(str(self._witness))
                peer.sendall(witness.recv(4096))
                witness.sendall(peer.recv(4096))
                reply = witness.recv(4096)
                self._before_reply(number)
                peer.sendall(reply)


@pytest.mark.req("P12-21", "P12-23")
def test_a_token_that_is_granted_while_it_is_told_to_stop_goes_back(tmp_path: Path) -> None:
    path = tmp_path / "relay.sock"
    cluster = Cluster(tmp_path, certificate_seconds=60, serve={"witness": {"socket": str(path)}})
    started = threading.Event()
    pids: list[int] = []

    def stop_at_the_grant(number: int) -> None:
        if number == 2:  # the first request asks for the last epoch
            assert started.wait(PATIENCE)
            os.kill(pids[0], signal.SIGTERM)

    try:
        cluster.start_witness()
        assert cluster.witness is not None
        with Relay(path, cluster.layout.run / "witness.sock", stop_at_the_grant):
            program = start(cluster)
            pids.append(program.pid)
            started.set()
            check_stopped(cluster, program)
        assert [record.lease.spent for record in store.inspect(cluster.layout.witness)[2]] == [True]
    finally:
        cluster.close()
