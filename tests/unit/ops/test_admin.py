"""The admin socket: one path for its owner, bounded in connections, bytes and time."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sidecar.base.unixsocket import CannotBind
from sidecar.ops import admin
from sidecar.ops.admin import MAX_CONNECTIONS, MAX_REQUEST, AdminServer, CannotAsk, NotBelieved, Unavailable, fetch
from sidecar.ops.metrics import Metrics

GOOD = b"GET /stats HTTP/1.1\r\nHost: x\r\n\r\n"


class Rig:
    def __init__(self, directory: Path) -> None:
        self.path = directory / "run" / "admin.sock"
        self.metrics = Metrics()
        self.looks = 0
        self.refuse: Exception | None = None
        self.gate = threading.Event()
        self.gate.set()
        self.server = AdminServer(self.path, self.look, self.metrics)
        self.server.start()

    def look(self) -> dict[str, Any]:
        self.gate.wait()
        self.looks += 1
        if self.refuse is not None:
            raise self.refuse
        return {"looks": self.looks}

    def connect(self) -> socket.socket:
        peer = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        peer.settimeout(20)
        peer.connect(str(self.path))
        return peer

    def ask(self, request: bytes) -> tuple[int, bytes]:
        with self.connect() as peer:
            with contextlib.suppress(BrokenPipeError):  # refused before all of it was read
                peer.sendall(request)
            return answer(peer)

    def count(self, outcome: str) -> float:
        return self.metrics.totals("admin_requests").get((outcome,), 0)


def answer(peer: socket.socket) -> tuple[int, bytes]:
    data = b""
    with contextlib.suppress(ConnectionResetError):
        while part := peer.recv(65536):
            data += part
    head, _, body = data.partition(b"\r\n\r\n")
    assert f"Content-Length: {len(body)}".encode() in head
    return int(head.split(b" ")[1]), body


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    rig = Rig(tmp_path)
    yield rig
    rig.gate.set()
    rig.server.stop()


def test_the_document_comes_with_its_version(rig: Rig) -> None:
    assert fetch(rig.path) == {"version": 1, "looks": 1}
    assert rig.count("ok") == 1


def test_the_file_is_the_owners_alone_and_goes_with_the_server(rig: Rig) -> None:
    assert rig.path.stat().st_mode & 0o777 == 0o600
    assert rig.path.parent.stat().st_mode & 0o777 == 0o700
    rig.server.stop()
    assert not rig.path.exists()
    with pytest.raises(CannotAsk, match="there is no admin socket"):
        fetch(rig.path)
    rig.server.start()
    assert fetch(rig.path)["looks"] >= 1


def test_a_directory_that_is_open_to_others_is_not_served_in(tmp_path: Path) -> None:
    tmp_path.joinpath("run").mkdir(mode=0o755)
    with pytest.raises(CannotBind, match="open to others"):
        Rig(tmp_path)


def test_a_socket_that_is_missing_is_missing_also_in_an_open_directory(tmp_path: Path) -> None:
    tmp_path.joinpath("open").mkdir(mode=0o755)
    with pytest.raises(CannotAsk, match="there is no admin socket"):
        fetch(tmp_path / "open" / "admin.sock")


@pytest.mark.parametrize(
    ("request_bytes", "status", "outcome"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", 404, "not_found"),
        (b"GET /stats/ HTTP/1.1\r\n\r\n", 404, "not_found"),
        (b"GET /metrics HTTP/1.1\r\n\r\n", 404, "not_found"),
        (b"GET /stats?x HTTP/1.1\r\n\r\n", 404, "not_found"),
        (b"POST /stats HTTP/1.1\r\n\r\n", 405, "method"),
        (b"HEAD /stats HTTP/1.1\r\n\r\n", 405, "method"),
        (b"get /stats HTTP/1.1\r\n\r\n", 405, "method"),
        (b"GET /stats\r\n\r\n", 400, "bad_request"),
        (b"GET /stats HTTP/2\r\n\r\n", 400, "bad_request"),
        (b"GET  /stats HTTP/1.1\r\n\r\n", 400, "bad_request"),
        (b"\r\n\r\n", 400, "bad_request"),
        (b"\x00\x00\x00\x0c\x82\r\n\r\n", 400, "bad_request"),
    ],
)
def test_everything_else_is_refused_and_counted(rig: Rig, request_bytes: bytes, status: int, outcome: str) -> None:
    assert rig.ask(request_bytes)[0] == status
    assert rig.count(outcome) == 1
    assert rig.looks == 0


def padded(size: int) -> bytes:
    return GOOD[:-2] + b"X: " + b"y" * (size - len(GOOD) - 5) + b"\r\n\r\n"


@pytest.mark.parametrize(("size", "status"), [(MAX_REQUEST - 1, 200), (MAX_REQUEST, 200), (MAX_REQUEST + 1, 431)])
def test_a_request_has_a_longest_length(rig: Rig, size: int, status: int) -> None:
    assert len(padded(size)) == size
    assert rig.ask(padded(size))[0] == status


def test_a_request_that_comes_too_slowly_is_ended(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """The time runs from the accept on, not from the last byte."""
    monkeypatch.setattr(admin, "REQUEST_SECONDS", 0.2)
    with rig.connect() as peer:
        stop = threading.Event()

        def drip() -> None:
            with contextlib.suppress(OSError):
                while not stop.wait(0.02):
                    peer.send(b"G")

        dripping = threading.Thread(target=drip)
        dripping.start()
        try:
            assert answer(peer)[0] == 408
        finally:
            stop.set()
            dripping.join()
    assert rig.count("timeout") == 1


def test_connections_are_bounded_and_one_more_is_told(rig: Rig) -> None:
    rig.gate.clear()
    with contextlib.ExitStack() as stack:
        held = [stack.enter_context(rig.connect()) for _ in range(MAX_CONNECTIONS)]
        for peer in held:
            peer.sendall(GOOD)
        with rig.connect() as one_more:
            assert answer(one_more) == (503, b"too many connections\n")
        rig.gate.set()
        assert [answer(peer)[0] for peer in held] == [200] * MAX_CONNECTIONS
    assert rig.count("busy") == 1
    assert rig.looks == 1, "who asks at once shares one look"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(admin, "FRESH_SECONDS", 0.0)
        assert rig.ask(GOOD)[0] == 200


def test_without_a_thread_for_one_connection_the_next_ones_are_served(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_thread(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as short:
        short.setattr(threading.Thread, "start", no_thread)
        for _ in range(MAX_CONNECTIONS + 1):
            with rig.connect() as peer:
                assert answer(peer)[0] == 503
    assert rig.count("busy") == MAX_CONNECTIONS + 1
    assert rig.ask(GOOD)[0] == 200


def test_a_source_that_cannot_tell_is_said_and_asked_again(rig: Rig) -> None:
    rig.refuse = Unavailable("the event loop did not answer in 2 s")
    with pytest.raises(CannotAsk, match="503 the event loop did not answer in 2 s"):
        fetch(rig.path)
    rig.refuse = None
    assert fetch(rig.path)["looks"] == 2
    assert (rig.count("unavailable"), rig.count("ok")) == (1, 1)


@pytest.mark.parametrize(("rest", "looks"), [(0, 2), (10**9, 1)])
def test_a_look_is_followed_by_a_rest_in_proportion(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, rest: int, looks: int
) -> None:
    """What the loop spends on being looked at is a share of its time, not a matter of how often it is asked."""
    monkeypatch.setattr(admin, "FRESH_SECONDS", 0.0)
    monkeypatch.setattr(admin, "REST", rest)
    assert fetch(rig.path)["looks"] == 1
    assert fetch(rig.path)["looks"] == rig.looks == looks


def test_another_user_is_refused(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel names the peer; here the server is the one that believes to be another user."""
    real = os.geteuid()
    monkeypatch.setattr("sidecar.ops.admin.os.geteuid", lambda: real + 1)
    assert rig.ask(GOOD) == (403, b"only for the user that runs the server\n")
    assert rig.looks == 0
    assert rig.count("peer_uid") == 1


def test_a_stop_ends_connections_that_wait(rig: Rig) -> None:
    with rig.connect() as peer:
        peer.sendall(b"GET")
        rig.server.stop()
        with contextlib.suppress(ConnectionResetError):
            assert peer.recv(100) == b""


# ---- the asking side ----


def test_what_is_not_ours_is_not_asked(tmp_path: Path, rig: Rig) -> None:
    rig.path.chmod(0o666)
    with pytest.raises(NotBelieved, match="open to others; run: chmod 600"):
        fetch(rig.path)
    rig.path.chmod(0o600)
    rig.path.parent.chmod(0o755)
    with pytest.raises(NotBelieved, match="open to others"):
        fetch(rig.path)
    rig.path.parent.chmod(0o700)
    file = rig.path.parent / "file"
    file.touch(mode=0o600)
    with pytest.raises(NotBelieved, match="is not a socket"):
        fetch(file)
    assert rig.looks == 0


def test_a_socket_that_nobody_serves(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    path = tmp_path / "dead.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as dead:
        dead.bind(str(path))
    path.chmod(0o600)
    with pytest.raises(CannotAsk, match="refused; is the coordinator running"):
        fetch(path)


@pytest.mark.parametrize(
    ("said", "error"),
    [
        (b"", CannotAsk),
        (b"SSH-2.0\r\n", CannotAsk),
        (b"HTTP/1.1 500 Internal\r\n\r\nno", CannotAsk),
        (b"HTTP/1.1 200 OK\r\n\r\n{", CannotAsk),
        (b"HTTP/1.1 200 OK\r\n\r\n[]", NotBelieved),
        (b'HTTP/1.1 200 OK\r\n\r\n{"version":2}', NotBelieved),
    ],
)
def test_an_answer_that_is_none(tmp_path: Path, said: bytes, error: type[Exception]) -> None:
    tmp_path.chmod(0o700)
    path = tmp_path / "odd.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as odd:
        odd.bind(str(path))
        path.chmod(0o600)
        odd.listen()

        def say() -> None:
            peer, _ = odd.accept()
            with peer:
                peer.recv(4096)
                peer.sendall(said)

        saying = threading.Thread(target=say)
        saying.start()
        with pytest.raises(error):
            fetch(path)
        saying.join()


def test_the_document_is_json_of_one_line(rig: Rig) -> None:
    status, body = rig.ask(GOOD)
    assert status == 200
    assert json.loads(body)["version"] == 1
    assert b"\n" not in body
