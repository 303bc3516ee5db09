"""The shell around one engine: the listening socket, the loop, the clock, the registry file, the renewals.

It decides nothing about the protocol. What it owes is that the engine is told the time, that batches become durable,
that the certificate is renewed and, when it cannot be, that the engine is fenced and every client is told (P12-15..17,
W8-06).
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from dataclasses import dataclass
from traceback import extract_tb
from typing import Any, Final

from sidecar.base.clock import Now
from sidecar.base.ed25519 import digest_text
from sidecar.base.unixsocket import BACKLOG, SocketFile
from sidecar.base.witnessing import WitnessError, WitnessRefused
from sidecar.coordinator.authority.activation import Activation, Witness
from sidecar.coordinator.authority.proof import ChannelBinding
from sidecar.coordinator.authority.registry import RegistryWatcher
from sidecar.coordinator.authority.renewal import Action, Renewer
from sidecar.coordinator.committer import Committer
from sidecar.coordinator.engine.core import Engine
from sidecar.coordinator.session import HandshakeEnv, ServerSession
from sidecar.coordinator.store.sqlite import SqliteStore
from sidecar.coordinator.transport.unix import UnixConnection
from sidecar.coordinator.wire.records import ActivationCertificate
from sidecar.ops.admin import Unavailable, counters_of
from sidecar.ops.logging import Log
from sidecar.ops.metrics import Metrics

TICK_SECONDS: Final = 0.25
"""How often time, registry, certificate and store lock are looked at: well within a second (W8-06)."""
LOOK_SECONDS: Final = 2.0
"""How long the admin socket waits for the loop."""
SILENT_SECONDS: Final = 10.0
"""A loop that has not ticked for so long is not healthy, a server whose disk keeps a commit for so long not ready."""
COMMIT_SECONDS: Final = 5.0
"""How long a fenced server waits for a commit that the disk does not give back."""


@dataclass(slots=True)
class Parts:
    """What a server is put together from; everything is made, nothing is bound yet."""

    engine: Engine
    store: SqliteStore
    activation: Activation
    renewer: Renewer
    witness: Witness
    watcher: RegistryWatcher
    env: HandshakeEnv
    socket_file: SocketFile
    metrics: Metrics
    log: Log
    clock: Callable[[], Now]
    max_sockets: int
    max_unauthenticated: int


class CoordinatorServer:
    """Serves one engine on one Unix socket until it is stopped or fenced."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._engine = parts.engine
        self._log = parts.log
        self._metrics = parts.metrics
        self._clock = parts.clock
        self._connections: set[UnixConnection] = set()
        self._stopping = False
        self._bound = False
        self._fence_noted = False
        self.held_up = False
        """After `serve`: the disk still has a commit. The store must not be touched, and no thread can end: only the
        end of the process is left. Whether that commit becomes durable nobody knows, as with every fence."""
        self.registry = parts.watcher.current
        """The snapshot in force: what the watcher found whole, never what it is just reading."""
        self._gone = asyncio.Event()
        self._ended: asyncio.Event | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._committer: Committer | None = None
        self._workers = ThreadPoolExecutor(max_workers=2, thread_name_prefix="coordinator")
        self._polling: asyncio.Future[None] | None = None
        self._renewing: asyncio.Future[None] | None = None
        self._last_tick = parts.clock().mono

    # ---- life ----

    def listen(self) -> socket.socket:
        """Bind the endpoint (the last step of an activation). Raises CannotBind."""
        return self._parts.socket_file.open()

    async def serve(self, listener: socket.socket, ready: Callable[[], None], stop: asyncio.Event) -> str | None:
        """Serve until `stop` is set, which losing the authority does too. None after a clean stop, else why fenced.

        A clean stop answers what was accepted, makes it durable and gives the fencing token back.
        """
        self._loop = loop = asyncio.get_running_loop()
        self._ended = stop
        self._committer = Committer(
            self._engine,
            self._parts.store,
            loop=loop,
            clock=self._clock,
            observer=self._metrics,
            failed=self._commit_failed,
        )
        self._engine.activated(self._clock())
        self._engine.set_registry(self.registry, self._clock())
        endpoint = await loop.create_unix_server(lambda: UnixConnection(self, loop), sock=listener, backlog=BACKLOG)
        self._bound = True
        loop.set_exception_handler(self._loop_failed)
        ticking = asyncio.create_task(self._tick_forever())
        ticking.add_done_callback(self._ticking_ended)
        try:
            ready()
            self._log.info("serving", socket=self._parts.socket_file.path, epoch=self._engine.authority.epoch)
            await stop.wait()
            self._stopping = True
            self._parts.socket_file.close()
            endpoint.close()
            await self._finish()
        finally:
            self._bound = False
            self._parts.socket_file.close()
            endpoint.close()
            for connection in list(self._connections):  # none is left after a stop in order
                connection.abort()
            ticking.cancel()
            await loop.run_in_executor(None, self._shut_down)
        return self._engine.fenced

    async def _finish(self) -> None:
        """Answer what was accepted before the stop, and let every peer read its last frames for a bounded time."""
        for connection in self._connections:
            connection.stop_input()
        assert self._committer is not None
        if self._engine.fenced is None:
            await self._committer.drain()
        for connection in list(self._connections):
            connection.finish()
        while self._connections:
            await self._gone.wait()

    def _shut_down(self) -> None:
        assert self._committer is not None
        fenced = self._engine.fenced is not None
        self.held_up = not self._committer.stop(COMMIT_SECONDS if fenced else None)
        self._workers.shutdown(wait=not self.held_up, cancel_futures=True)
        if fenced:
            return
        # From here on nothing is committed: a successor may start.
        try:
            self._parts.activation.relinquish()
        except WitnessError as error:
            self._log.warning("relinquish_failed", error=error, consequence="a successor waits for the expiry")

    def fence(self, reason: str) -> None:
        """Commit nothing any more, tell everybody, end."""
        if self._engine.fenced is None:
            self._engine.fence(reason)
        self._note_fenced()

    def _note_fenced(self) -> None:
        if not self._fence_noted:
            self._fence_noted = True
            self._metrics.gauge("authority_fenced").set(1)
            self._log.error("authority_fenced", reason=self._engine.fenced)
            self._parts.activation.lose()
            for connection in self._connections:
                connection.check_fence()
            if self._committer is not None:
                self._committer.kick()  # whoever waits for it to be idle need not wait for the disk any more
            assert self._ended is not None
            self._ended.set()

    def _commit_failed(self, reason: str) -> None:
        if self._engine.fenced is None:
            self._metrics.counter("commit_failures").inc()
        self.fence(reason)

    def _ticking_ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled():
            # Without the tick neither expiry nor revocation is seen: that is no state to go on in.
            self.crashed(task.exception())
            self.fence("an internal failure stopped the clock")

    def _loop_failed(self, _loop: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:
        error = context.get("exception")
        self.crashed(error if isinstance(error, BaseException) else None, where=str(context.get("message", "")))

    def crashed(self, error: BaseException | None, where: str = "") -> None:
        """A bug showed itself. The log gets the places in the code, never the values."""
        trace = [] if error is None else [f"{f.filename}:{f.lineno} {f.name}" for f in extract_tb(error.__traceback__)]
        self._log.error("internal_failure", kind=type(error).__name__, where=where, trace=trace)

    # ---- health, asked from other threads ----

    def unhealthy(self) -> list[str]:
        """Why this process is not worth keeping."""
        silent = self._clock().mono - self._last_tick
        reasons = [f"event loop: silent for {silent:.0f} s"] if silent > SILENT_SECONDS else []
        fenced = self._engine.fenced
        return [*reasons, f"authority: fenced, {fenced}"] if fenced is not None else reasons

    def unready(self) -> list[str]:
        """Why clients are not served now."""
        reasons = self.unhealthy()
        if self._stopping:
            reasons.append("server: stopping")
        elif not self._bound:
            reasons.append("server: not bound yet")
        elif not self._parts.socket_file.in_place():
            reasons.append("socket: its file was removed or replaced, clients do not find this server; restart it")
        if self._engine.fenced is None and not self._engine.authority.valid(self._clock()):
            reasons.append("authority: the certificate is expired")
        waiting = 0.0 if self._committer is None else self._committer.held_up(self._clock())
        if waiting > SILENT_SECONDS:
            reasons.append(
                f"store: the disk has not finished a commit for {waiting:.0f} s, commands wait; check the volume"
            )
        if self._parts.watcher.fault is not None:
            reasons.append("registry: not usable, nobody can log in (see the log)")
        return reasons

    # ---- what is going on, asked from other threads ----

    def describe(self) -> dict[str, Any]:
        """The document of the admin socket: a look at the engine, taken on the loop, and the counters.

        Raises Unavailable when the loop does not get to it within `LOOK_SECONDS`.
        """
        loop, look = self._loop, Future[dict[str, Any]]()
        try:
            if loop is None:
                raise Unavailable("the server is not serving yet")
            loop.call_soon_threadsafe(self._look, look)
            seen = look.result(LOOK_SECONDS)
        except (RuntimeError, CancelledError):
            raise Unavailable("the server has stopped") from None
        except TimeoutError:
            look.cancel()
            raise Unavailable(f"the event loop did not answer in {LOOK_SECONDS:g} s") from None
        return {**seen, "counters": counters_of(self._metrics)}

    def _look(self, look: Future[dict[str, Any]]) -> None:
        if not look.set_running_or_notify_cancel():
            return
        try:
            look.set_result(self._seen(self._clock()))
        except Exception as error:
            self.crashed(error, where="admin")
            look.set_exception(Unavailable("an internal failure; the log has it"))

    def _seen(self, now: Now) -> dict[str, Any]:
        document, views = self._engine.inspect(now)
        stats = self._engine.stats()
        for connection in self._connections:
            view = None if connection.active is None else views.get(connection.active)
            if view is not None and connection.peer is not None:
                view |= {
                    "pid": connection.peer.pid,
                    "uid": connection.peer.uid,
                    "age_seconds": max(0.0, now.mono - connection.since),
                }
        document["authority"]["lease_seconds"] = self._lease_left()
        document["events"]["head"] = stats.head_sequence
        return {
            "time": now.wall,
            "pid": os.getpid(),
            "stopping": self._stopping,
            "sockets": {"handshake": len(self._connections) - stats.connections, "active": stats.connections},
            "queues": {
                "backlog": stats.backlog,
                "pending_operations": stats.pending,
                "subscription_frames": stats.queued_frames,
            },
            **document,
        }

    # ---- Host of the connections ----

    def now(self) -> Now:
        """Both clocks."""
        return self._clock()

    def owner(self) -> int:
        """Only the user that runs this may connect (P2-06)."""
        return os.geteuid()

    def refuse(self) -> str | None:
        """Why one more socket is not taken."""
        if self._stopping:
            return "stopping"
        if len(self._connections) >= self._parts.max_sockets:
            return "limit"
        waiting = len(self._connections) - len(self._engine.connections)
        return "unauthenticated_limit" if waiting >= self._parts.max_unauthenticated else None

    def opened(self, connection: UnixConnection) -> None:
        """A socket was taken."""
        self._connections.add(connection)
        self._gone.clear()

    def closed(self, connection: UnixConnection) -> None:
        """A socket is gone."""
        self._connections.discard(connection)
        if connection.fault is not None and connection.peer is not None:
            key = None if connection.claimed is None else digest_text(connection.claimed)
            self._log.warning("connection_refused", code=connection.fault, peer_pid=connection.peer.pid, key_id=key)
        if not self._connections:
            self._gone.set()

    def refused(self, reason: str) -> None:
        """A socket was not taken."""
        self._metrics.counter("sockets_refused", reason).inc()
        self._log.warning("socket_refused", reason=reason)

    def session(self, binding: Callable[[bytes], ChannelBinding], wake: Callable[[], None]) -> ServerSession:
        """The session of a new connection."""
        return ServerSession(self._parts.env, binding, wake, self._clock())

    def kick(self) -> None:
        """Transactions may wait to be made durable."""
        assert self._committer is not None
        self._committer.kick()

    # ---- time ----

    async def _tick_forever(self) -> None:
        due = self._clock().mono
        while True:
            now = self._clock()
            self._metrics.histogram("loop_lag_seconds").observe(max(0.0, now.mono - due))
            self._last_tick = now.mono
            self._tick(now)
            due = self._clock().mono + TICK_SECONDS
            await asyncio.sleep(TICK_SECONDS)

    def _tick(self, now: Now) -> None:
        if not self._parts.store.lock_held():
            self.fence("the store lock was lost")
        self._renew_if_due(now)
        self._engine.tick(now)
        if self._engine.fenced is not None:
            self._note_fenced()
            return
        self.kick()
        if self._polling is None or self._polling.done():
            self._polling = asyncio.ensure_future(self._poll_registry())
        self._update_gauges(now)

    async def _poll_registry(self) -> None:
        watcher = self._parts.watcher
        loop = asyncio.get_running_loop()
        registry = await loop.run_in_executor(self._workers, watcher.poll)
        if registry is None:
            return
        self.registry = registry
        self._metrics.counter("registry_reloads", "malformed" if watcher.fault else "ok").inc()
        if watcher.fault:
            self._log.error("registry_unusable", fault=watcher.fault, consequence="every session is closed")
        else:
            self._log.info("registry_loaded", keys=len(registry.records), generation=registry.generation)
        self._engine.set_registry(registry, self._clock())

    def _renew_if_due(self, now: Now) -> None:
        action = self._parts.renewer.poll(now)
        if action is Action.FENCE:
            self.fence(self._parts.renewer.reason)
        elif action is Action.RENEW:
            self._renewing = asyncio.ensure_future(self._renew(self._parts.renewer.authority.certificate))

    async def _renew(self, certificate: ActivationCertificate) -> None:
        renewer, loop = self._parts.renewer, asyncio.get_running_loop()
        asked = self._clock().mono
        try:
            renewed = await loop.run_in_executor(self._workers, self._parts.witness.renew, certificate)
        except Exception as error:
            outcome = "refused" if isinstance(error, WitnessRefused) else "unavailable"
            action = renewer.failed(error, self._clock())
            self._log.warning("renewal_failed", error=error, lease_left=self._lease_left())
        else:
            before = renewer.authority
            action = renewer.granted(renewed, self._clock())
            outcome = "ok" if renewer.authority is not before else "invalid"
        self._metrics.histogram("authority_renewal_seconds").observe(self._clock().mono - asked)
        self._metrics.counter("authority_renewals", outcome).inc()
        if action is Action.FENCE:
            self.fence(renewer.reason)
        elif outcome == "ok":
            self._engine.renew(renewer.authority)
            self._parts.activation.renewed(renewer.authority)
            self.kick()
        elif outcome == "invalid":
            self._log.warning("renewal_invalid", lease_left=self._lease_left())

    def _lease_left(self) -> float:
        now, authority = self._clock(), self._engine.authority
        return max(0.0, min(authority.deadline_mono - now.mono, authority.certificate.expires_at - now.wall))

    def _update_gauges(self, now: Now) -> None:
        stats, gauge = self._engine.stats(), self._metrics.gauge
        gauge("sockets", "handshake").set(len(self._connections) - stats.connections)
        gauge("sockets", "active").set(stats.connections)
        gauge("subscriptions").set(stats.subscriptions)
        gauge("subscription_queue_frames").set(stats.queued_frames)
        gauge("leases").set(stats.leases)
        gauge("pinned_bytes").set(stats.pinned_bytes)
        gauge("pending_operations").set(stats.pending)
        gauge("command_queue").set(stats.backlog)
        gauge("event_head").set(stats.head_sequence)
        gauge("event_durable").set(stats.durable_sequence)
        gauge("event_retained_from").set(stats.retained_from)
        gauge("authority_epoch").set(self._engine.authority.epoch)
        gauge("authority_lease_seconds").set(self._lease_left())
        gauge("registry_keys").set(len(self.registry.records))
