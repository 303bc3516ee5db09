"""The HTTP listener: metrics, health and readiness, with the reasons."""

from __future__ import annotations

import contextlib
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest

from sidecar.ops.health import MAX_CONNECTIONS, HealthServer
from sidecar.ops.metrics import Metrics


class Probe:
    def __init__(self) -> None:
        self.unhealthy: list[str] = []
        self.unready: list[str] = ["not started"]
        self.server = HealthServer(
            "127.0.0.1", 0, Metrics().registry, healthy=lambda: self.unhealthy, ready=lambda: self.unready
        )

    def get(self, path: str, method: str = "GET") -> tuple[int, str]:
        request = urllib.request.Request(self.server.url + path, method=method)
        try:
            with urllib.request.urlopen(request, timeout=10) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()


@pytest.fixture
def probe() -> Iterator[Probe]:
    probe = Probe()
    probe.server.start()
    yield probe
    probe.server.stop()


def test_readiness_says_why_not_and_then_turns_ready(probe: Probe) -> None:
    probe.unready = ["witness: last renewal failed", "store: lock lost"]
    assert probe.get("/readyz") == (503, "witness: last renewal failed\nstore: lock lost\n")
    probe.unready = []
    assert probe.get("/readyz") == (200, "ok\n")


def test_health_is_judged_apart_from_readiness(probe: Probe) -> None:
    assert probe.get("/healthz") == (200, "ok\n")
    probe.unhealthy = ["event loop: silent for 12 s"]
    assert probe.get("/healthz")[0] == 503


def test_metrics_are_exposed(probe: Probe) -> None:
    status, text = probe.get("/metrics")
    assert status == 200
    assert "sidecar_build_info" in text


def test_other_paths_and_methods_are_refused(probe: Probe) -> None:
    assert probe.get("/")[0] == 404
    assert probe.get("/metrics", "POST")[0] == 405


def test_a_client_that_sends_nothing_does_not_block_others(probe: Probe) -> None:
    host, port = probe.server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))):
        assert probe.get("/healthz") == (200, "ok\n")


def test_clients_that_hold_their_connections_are_bounded_and_hurt_nobody(
    probe: Probe, capfd: pytest.CaptureFixture[str]
) -> None:
    """Threads and descriptors are those of the coordinator: the oldest connections make room for new ones."""
    host, port = probe.server.url.removeprefix("http://").split(":")
    threads = threading.active_count()
    with contextlib.ExitStack() as stack:
        held = []
        for _ in range(3 * MAX_CONNECTIONS):
            one = stack.enter_context(socket.create_connection((host, int(port)), timeout=10))
            one.sendall(b"GET /metrics HT")
            held.append(one)
        for one in held[: 2 * MAX_CONNECTIONS]:
            wait_ended(one)
        assert probe.get("/healthz") == (200, "ok\n")
        assert threading.active_count() <= threads + MAX_CONNECTIONS + 1
    assert probe.get("/healthz") == (200, "ok\n")
    assert "Traceback" not in capfd.readouterr().err


def wait_ended(one: socket.socket) -> None:
    """Until the server has ended the connection."""
    with contextlib.suppress(ConnectionResetError):
        while one.recv(4096):
            pass


def test_stopping_frees_the_port_and_may_be_repeated() -> None:
    probe = Probe()
    probe.server.stop()
    probe.server.start()
    port = int(probe.server.url.rpartition(":")[2])
    probe.server.stop()
    probe.server.stop()
    with socket.socket() as again:
        again.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        again.bind(("127.0.0.1", port))


def test_a_taken_port_is_an_os_error() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        server = HealthServer("127.0.0.1", taken.getsockname()[1], Metrics().registry, healthy=list, ready=list)
        with pytest.raises(OSError):
            server.start()
