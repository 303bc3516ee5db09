"""HTTP for metrics and health on a loopback listener, served by daemon threads beside the event loop.

`/healthz` answers 200 while the process is worth keeping, `/readyz` 200 while it serves clients; both say in plain
lines why not. `/metrics` is the Prometheus exposition. Nothing else exists here, and nothing here tells of work,
clients or keys.
"""

from __future__ import annotations

import contextlib
import socket
import sys
import threading
from collections.abc import Callable, Iterable
from socketserver import ThreadingMixIn
from typing import TYPE_CHECKING, Any, Final
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import CollectorRegistry, make_wsgi_app

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

Reasons = Callable[[], list[str]]
"""Called for every request, from another thread: the reasons why not; empty when all is well."""


MAX_CONNECTIONS: Final = 32
"""Connections at a time; each is a thread and a descriptor of the process, and anybody on this machine may connect."""


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 32
    allow_reuse_address = True

    def __init__(self, *args: Any, **options: Any) -> None:
        self._open: dict[Any, None] = {}  # oldest first
        self._changing = threading.Lock()
        super().__init__(*args, **options)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer in a thread of its own. At the limit the oldest connection makes room: an answer takes no time."""
        with self._changing:
            if len(self._open) >= MAX_CONNECTIONS:
                oldest = next(iter(self._open))
                del self._open[oldest]
                with contextlib.suppress(OSError):
                    oldest.shutdown(socket.SHUT_RDWR)
            self._open[request] = None
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """A connection is over."""
        with self._changing:
            self._open.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that is slow or gone is nothing to tell; its traceback has no place in the log."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)


class _Handler(WSGIRequestHandler):
    timeout = 5.0  # a client that sends nothing gives its thread back

    def log_message(self, *_args: object) -> None:
        """Requests are not logged."""


class HealthServer:
    """The listener. `start` binds (OSError when it cannot) and serves until `stop`."""

    def __init__(self, host: str, port: int, registry: CollectorRegistry, *, healthy: Reasons, ready: Reasons) -> None:
        self._host = host
        self._port = port
        self._app = application(registry, healthy=healthy, ready=ready)
        self._server: WSGIServer | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Bind and serve in a daemon thread."""
        self._server = make_server(self._host, self._port, self._app, _Server, _Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, name="health", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop serving and free the port. Harmless when it never started."""
        if self._server is not None and self._thread is not None:
            self._server.shutdown()
            self._thread.join()
            self._server.server_close()
            self._server = self._thread = None

    @property
    def url(self) -> str:
        """`http://HOST:PORT` as bound."""
        assert self._server is not None
        host, port = self._server.server_address[0], self._server.server_port
        shown = host if isinstance(host, str) else host.decode()
        return f"http://[{shown}]:{port}" if ":" in shown else f"http://{shown}:{port}"


def application(registry: CollectorRegistry, *, healthy: Reasons, ready: Reasons) -> WSGIApplication:
    """The WSGI application of the three paths."""
    metrics: WSGIApplication = make_wsgi_app(registry)

    def app(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        path = environ.get("PATH_INFO", "")
        if environ.get("REQUEST_METHOD") not in ("GET", "HEAD"):
            return _answer(start_response, "405 Method Not Allowed", "only GET")
        if path == "/metrics":
            return metrics(environ, start_response)
        if path == "/healthz":
            return _verdict(start_response, healthy())
        if path == "/readyz":
            return _verdict(start_response, ready())
        return _answer(start_response, "404 Not Found", "/metrics /healthz /readyz")

    return app


def _verdict(start_response: StartResponse, reasons: list[str]) -> Iterable[bytes]:
    if reasons:
        return _answer(start_response, "503 Service Unavailable", "\n".join(reasons))
    return _answer(start_response, "200 OK", "ok")


def _answer(start_response: StartResponse, status: str, text: str) -> Iterable[bytes]:
    body = text.encode() + b"\n"
    start_response(status, [("Content-Type", "text/plain; charset=utf-8"), ("Content-Length", str(len(body)))])
    return [body]
