"""`GET /stats`: what a coordinator is doing, as JSON over HTTP on an owner-only Unix socket.

It tells of keys, connections and subscriptions, which is why it is no part of the health listener: only the user that
runs the server may connect, and that is checked by the kernel's word for each connection. It is served by threads
beside the event loop; at most `MAX_CONNECTIONS` of them, each for at most `REQUEST_SECONDS` plus the answer.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import select
import socket
import stat
import struct
import threading
import time
from collections.abc import Callable
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final

from sidecar.base.safefile import UnsafeFile, check_private_dir, quoted
from sidecar.base.unixsocket import SocketFile, peer_uid
from sidecar.ops.metrics import Metrics

VERSION: Final = 1
"""Of the document. A member that is new does not change it; one that changes or goes does."""
PATH: Final = "/stats"
MAX_CONNECTIONS: Final = 8
MAX_REQUEST: Final = 4_096
"""Bytes of a request line with its headers."""
MAX_ANSWER: Final = 32 * 1_048_576
"""Bytes of an answer that a client takes; far above what the server's quotas allow to be told."""
REQUEST_SECONDS: Final = 2.0
"""From accept to the end of the headers, however slowly they come."""
ANSWER_SECONDS: Final = 5.0
FRESH_SECONDS: Final = 0.1
"""An answer younger than this is given again, and one younger than `REST` times what it took to make it: however often
and by how many it is asked, the event loop spends at most a tenth of its time on it."""
REST: Final = 10

_SHORT_OF: Final = frozenset({errno.ENOMEM, errno.ENFILE, errno.EMFILE, errno.ENOBUFS})
"""What an accept may be short of for a while."""

Source = Callable[[], dict[str, Any]]
"""Makes the document; called from a thread. Raises `Unavailable` when the server cannot tell now."""


class Unavailable(Exception):  # noqa: N818 - a state of the server
    """The event loop does not answer, or not yet, or not any more."""


class AdminServer:
    """The listener. `start` binds (CannotBind when it cannot) and serves in threads until `stop`."""

    def __init__(self, path: Path, source: Source, metrics: Metrics) -> None:
        self._file = SocketFile(path)
        self._source = source
        self._metrics = metrics
        self._listener: socket.socket | None = None
        self._thread: threading.Thread | None = None
        self._open: set[socket.socket] = set()
        self._changing = threading.Lock()
        self._looking = threading.Lock()
        self._answer = b""
        self._stale_at = 0.0

    def start(self) -> None:
        """Bind and serve."""
        self._listener = self._file.open()
        self._thread = threading.Thread(target=self._accept_forever, name="admin", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Remove the socket file and end every connection. Harmless when it never started."""
        if self._listener is None or self._thread is None:
            return
        self._file.close()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that waits in it
        self._thread.join()
        self._listener.close()
        with self._changing:
            for peer in self._open:
                with contextlib.suppress(OSError):
                    peer.shutdown(socket.SHUT_RDWR)
        self._listener = self._thread = None

    def _accept_forever(self) -> None:
        assert self._listener is not None
        self._listener.setblocking(True)
        while True:
            try:
                peer, _ = self._listener.accept()
            except ConnectionAbortedError:
                continue
            except OSError as error:
                if error.errno in _SHORT_OF:
                    time.sleep(FRESH_SECONDS)
                    continue
                return  # it was shut down
            self._admit(peer)

    def _admit(self, peer: socket.socket) -> None:
        with self._changing:
            full = len(self._open) >= MAX_CONNECTIONS
            if not full:
                self._open.add(peer)
        if not full:
            try:
                threading.Thread(target=self._serve, args=(peer,), name="admin-peer", daemon=True).start()
                return
            except RuntimeError:  # the system has no thread left
                with self._changing:
                    self._open.discard(peer)
        self._count("busy")
        with contextlib.suppress(OSError), peer:
            peer.settimeout(0)
            peer.sendall(_head(HTTPStatus.SERVICE_UNAVAILABLE, b"too many connections\n"))

    def _serve(self, peer: socket.socket) -> None:
        try:
            with peer:
                answer = self._judge(peer)
                if answer is not None:
                    peer.settimeout(ANSWER_SECONDS)
                    peer.sendall(answer)
        except OSError:
            pass  # whoever asked is gone or does not read
        finally:
            with self._changing:
                self._open.discard(peer)

    def _judge(self, peer: socket.socket) -> bytes | None:
        """The answer to one connection; None when it gets none."""
        try:
            if peer_uid(peer) != os.geteuid():
                return self._refuse("peer_uid", HTTPStatus.FORBIDDEN, "only for the user that runs the server")
        except (OSError, struct.error):
            return self._refuse("peer_uid", HTTPStatus.FORBIDDEN, "it cannot be seen who asks")
        try:
            request = _read_head(peer, time.monotonic() + REQUEST_SECONDS)
        except TimeoutError:
            return self._refuse("timeout", HTTPStatus.REQUEST_TIMEOUT, f"not complete in {REQUEST_SECONDS:g} s")
        if request is None:
            return self._refuse("too_large", HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, f"at most {MAX_REQUEST} bytes")
        words = request.partition(b"\r\n")[0].split(b" ")
        if len(words) != 3 or words[2] not in (b"HTTP/1.0", b"HTTP/1.1"):
            return self._refuse("bad_request", HTTPStatus.BAD_REQUEST, "not an HTTP/1.1 request")
        if words[0] != b"GET":
            return self._refuse("method", HTTPStatus.METHOD_NOT_ALLOWED, "only GET")
        if words[1] != PATH.encode():
            return self._refuse("not_found", HTTPStatus.NOT_FOUND, f"only {PATH}")
        try:
            body = self._look()
        except Unavailable as error:
            return self._refuse("unavailable", HTTPStatus.SERVICE_UNAVAILABLE, str(error))
        self._count("ok")
        return _head(HTTPStatus.OK, body, "application/json")

    def _look(self) -> bytes:
        """The document; one look at a time."""
        with self._looking:
            asked = time.monotonic()
            if asked >= self._stale_at:
                document = {"version": VERSION, **self._source()}
                self._answer = json.dumps(document, separators=(",", ":")).encode()
                self._stale_at = asked + max(FRESH_SECONDS, REST * (time.monotonic() - asked))
            return self._answer

    def _refuse(self, outcome: str, status: HTTPStatus, text: str) -> bytes:
        self._count(outcome)
        return _head(status, text.encode() + b"\n")

    def _count(self, outcome: str) -> None:
        self._metrics.counter("admin_requests", outcome).inc()


def _head(status: HTTPStatus, body: bytes, kind: str = "text/plain; charset=utf-8") -> bytes:
    lines = (
        f"HTTP/1.1 {status.value} {status.phrase}",
        f"Content-Type: {kind}",
        f"Content-Length: {len(body)}",
        "Connection: close",
    )
    return "\r\n".join((*lines, "", "")).encode() + body


def _read_head(peer: socket.socket, deadline: float) -> bytes | None:
    """Request line and headers; None when they are too long, TimeoutError when they are not there in time."""
    data = bytearray()
    while b"\r\n\r\n" not in data:
        if len(data) >= MAX_REQUEST:
            return None
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        peer.settimeout(left)
        part = peer.recv(MAX_REQUEST - len(data))
        if not part:
            raise ConnectionResetError
        data += part
    return bytes(data)


def counters_of(metrics: Metrics) -> dict[str, Any]:
    """What has happened since the process started; a client makes rates of two looks."""
    commands: dict[str, float] = {}
    for (_, outcome), count in metrics.totals("commands").items():
        commands[outcome] = commands.get(outcome, 0) + count
    by_one = {
        shown: {label: count for (label,), count in metrics.totals(name).items()}
        for shown, name in (
            ("refusals", "refusals"),
            ("gaps", "gaps"),
            ("quota_refusals", "quota_refusals"),
            ("handshakes", "handshakes"),
            ("sockets_refused", "sockets_refused"),
        )
    }
    alone = {name: metrics.totals(name).get((), 0.0) for name in ("events_sent", "event_bytes", "credit_stalls")}
    return {**metrics.frame_totals(), **alone, "commands": commands, **by_one}


# ---- the other end ----


class CannotAsk(Exception):  # noqa: N818 - what happened
    """No answer from the admin socket; one line says why. `exit_code` is that of the command that asked."""

    exit_code = 3


class NotBelieved(Exception):  # noqa: N818 - what happened
    """What is there is not the admin socket of a server of this user."""

    exit_code = 4


def fetch(path: Path, *, patience: float = 5.0) -> dict[str, Any]:
    """Ask once. Raises CannotAsk, NotBelieved."""
    _check_socket(path)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as server:
        server.settimeout(patience)
        try:
            server.connect(os.fspath(path))
            owner = peer_uid(server)
            if owner != os.geteuid():
                raise NotBelieved(f"{path}: served by uid {owner}, not by uid {os.geteuid()} that asks")
            # A server that refuses before it has read all leaves its answer to be read.
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                server.sendall(f"GET {PATH} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
            answer = _read_answer(server, time.monotonic() + patience)
        except TimeoutError:
            raise CannotAsk(f"{path}: no answer in {patience:g} s") from None
        except OSError as error:
            raise CannotAsk(f"{path}: {error.strerror or error}; is the coordinator running?") from None
    head, _, body = answer.partition(b"\r\n\r\n")
    return _document(path, head, body)


def _check_socket(path: Path) -> None:
    """The file and its directory are this user's alone, before a byte is sent there."""
    try:
        info = os.lstat(path)
        check_private_dir(path.parent)
    except FileNotFoundError:
        raise CannotAsk(f"{path}: there is no admin socket; is the coordinator running?") from None
    except UnsafeFile as error:
        raise NotBelieved(str(error)) from None
    except OSError as error:
        raise CannotAsk(f"{path}: {error.strerror}") from None
    if not stat.S_ISSOCK(info.st_mode):
        raise NotBelieved(f"{path}: is not a socket")
    if info.st_uid != os.geteuid():
        raise NotBelieved(f"{path}: belongs to uid {info.st_uid}, not to uid {os.geteuid()} that asks")
    if stat.S_IMODE(info.st_mode) & 0o077:
        raise NotBelieved(f"{path}: is open to others; run: chmod 600 {quoted(path)}")


def _read_answer(server: socket.socket, deadline: float) -> bytes:
    data = bytearray()
    while True:
        left = deadline - time.monotonic()
        if left <= 0 or not select.select([server], [], [], left)[0]:
            raise TimeoutError
        try:
            part = server.recv(262_144)
        except ConnectionResetError:
            part = b""
        if not part:
            return bytes(data)
        data += part
        if len(data) > MAX_ANSWER:
            raise ConnectionAbortedError("the answer does not end")


def _document(path: Path, head: bytes, body: bytes) -> dict[str, Any]:
    words = head.partition(b"\r\n")[0].split(b" ", 2)
    if len(words) < 2 or not words[0].startswith(b"HTTP/1."):
        raise CannotAsk(f"{path}: the connection ended without an answer; is this the admin socket?")
    if words[1] != b"200":
        said = body[:200].decode("utf-8", "replace").strip()
        raise CannotAsk(f"{path}: {words[1].decode('ascii', 'replace')} {said}")
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        raise CannotAsk(f"{path}: the answer was cut off or is no JSON") from None
    if not isinstance(document, dict) or document.get("version") != VERSION:
        raise NotBelieved(f"{path}: the server tells another version of its document; use a client of its release")
    return document
