"""The engine: every legal frame of every active connection, in one thread, without I/O.

The shell calls ``handle`` for each frame, ``take`` of a connection when its transport has room, ``take_batch`` and
``batch_durable`` around the store, and ``tick`` no later than ``next_deadline``. Time and entropy come in as arguments.

Commands and lookups wait for ``take_batch``, which executes them in fair order. A transaction is visible in three
steps: it changes the head when it is admitted, it is in the durable root once its batch is, and only then do its reply
and its events go out. Snapshots and subscriptions know the durable root alone.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from sidecar.base.clock import Now
from sidecar.coordinator.authority.grants import Grant, Registry
from sidecar.coordinator.engine.administration import Administration
from sidecar.coordinator.engine.connection import Connection, PageOrder, Reply, Sink
from sidecar.coordinator.engine.inspect import Document, inspect
from sidecar.coordinator.engine.lease import Leases
from sidecar.coordinator.engine.observer import EngineStats, NullObserver, Observer
from sidecar.coordinator.engine.policy import Policy
from sidecar.coordinator.engine.quota import Resource
from sidecar.coordinator.engine.replay import Replays
from sidecar.coordinator.engine.retention import Retention
from sidecar.coordinator.engine.runtime import Authority, Fenced, Runtime
from sidecar.coordinator.engine.schedule import Backlog
from sidecar.coordinator.engine.snapshot import Snapshots
from sidecar.coordinator.engine.state import Batch, State
from sidecar.coordinator.engine.subscription import Streams
from sidecar.coordinator.engine.transact import Decoded, Transactions
from sidecar.coordinator.machines.connection import CONNECTION, LOSSES, ConnectionEvent, ConnectionState
from sidecar.coordinator.machines.lease import LeaseEvent
from sidecar.coordinator.machines.subscription import SubscriptionEvent
from sidecar.coordinator.wire.enums import ErrorCode
from sidecar.coordinator.wire.errors import (
    ERRORS,
    AuthorityFenced,
    CapabilityRequired,
    ProtocolError,
    ProtocolViolation,
    ResourceExhausted,
)
from sidecar.coordinator.wire.frames import (
    FRAMES,
    AuthorityRenewed,
    CoordCommand,
    CoordErrorFrame,
    CoordPing,
    CoordPong,
    CreditFrame,
    Frame,
    GetOperationResult,
    OpenReplay,
    OpenSnapshot,
    ReplayApplied,
    ReplayNext,
    SnapshotApplied,
    SnapshotNext,
    Subscribe,
)
from sidecar.coordinator.wire.ids import CounterWrap
from sidecar.coordinator.wire.limits import Limits

GUARDED = frozenset(shape for shape in FRAMES.values() if any(item.name == "authority_guard" for item in shape.FIELDS))
"""State-rooting requests: they carry the guard themselves, continuations inherit it (P4-10, P4-13)."""
GOODBYE = "authentication failed"
"""What a revoked or expired connection is told; never why (W8-09, OPEN W8-a)."""


class Engine:
    """One authority and its connections."""

    def __init__(
        self,
        authority: Authority,
        state: State,
        *,
        policy: Policy,
        entropy: Callable[[int], bytes],
        observer: Observer | None = None,
    ) -> None:
        self.connections: list[Connection] = []
        self._runtime = Runtime(authority, state, policy, entropy, observer or NullObserver())
        self._transactions = Transactions(self._runtime)
        self._streams = Streams(self._runtime)
        self._leases = Leases(self._runtime, self._streams)
        self._snapshots = Snapshots(self._runtime, self._streams, self._leases)
        self._replays = Replays(self._runtime, self._streams, self._leases)
        self._retention = Retention(self._runtime, self._transactions, self._streams)
        self._retention.bound_log(self.connections)
        self._administration = Administration(self._runtime, self._transactions)
        self._backlog = Backlog(self._runtime, self._transactions, may_act=self._still_granted, broken=self._break_off)
        self._requests: dict[type[Frame], Callable[[Connection, Any], None]] = {
            CoordCommand: self._command,
            GetOperationResult: self._lookup,
            OpenSnapshot: self._open_snapshot,
            SnapshotNext: self._snapshots.next,
            SnapshotApplied: self._snapshots.applied,
            Subscribe: self._streams.subscribe,
            OpenReplay: self._open_replay,
            ReplayNext: self._replays.next,
            ReplayApplied: self._replays.applied,
        }
        # The first tick is due at once; it finds the first real deadline with the clocks at hand.
        self._deadline = 0.0

    @property
    def authority(self) -> Authority:
        """The activation, with the newest certificate."""
        return self._runtime.authority

    @property
    def fenced(self) -> str | None:
        """Why nothing is committed any more, or ``None``."""
        return self._runtime.fenced

    # ---- connections ----

    def attach(self, sink: Sink, grant: Grant, capabilities: int, selected: Limits, now: Now) -> Connection:
        """A connection whose handshake is complete.

        Raises fatal ``ResourceExhausted`` when its principal or the server has no connection left (P3-41) and
        ``AuthorityFenced`` when the engine is.
        """
        self.clock(now)
        self._fence_if_expired()
        if self._runtime.fenced is not None:
            raise AuthorityFenced("the authority is fenced")
        quota = self._runtime.quotas.connection(grant.key_id)
        try:
            self._runtime.charge(quota, [(Resource.CONNECTIONS, 1)])
        except ResourceExhausted as error:
            self._runtime.quotas.forget_idle(grant.key_id)
            raise ResourceExhausted(error.message, fatal=True) from None
        conn = Connection(self._runtime, self, sink, grant, capabilities, selected, quota)
        self.connections.append(conn)
        self._due_at(self._mono(grant.expires_at))
        return conn

    def detach(self, conn: Connection, now: Now) -> None:
        """The transport is gone: release everything that the connection holds (P3-50, P9-06). Idempotent."""
        self.clock(now)
        if conn not in self.connections:
            return
        self.connections.remove(conn)
        conn.shut(conn.closing or ErrorCode.PROTOCOL_ERROR)
        self._release(conn)
        conn.quota.release_all()
        self._runtime.quotas.forget_idle(conn.grant.key_id)

    def _release(self, conn: Connection) -> None:
        """Leases, subscriptions, waiting work and requests of a connection that is over (W8-07, W8-08)."""
        self._backlog.forget(conn)
        for lease in list(conn.leases.values()):
            lease.release(LeaseEvent.DISCONNECT)
        for sub in list(conn.subscriptions.values()):
            self._streams.close(sub, SubscriptionEvent.DISCONNECT)
        conn.forget_requests()

    def _dismiss(self, conn: Connection, event: ConnectionEvent, message: str) -> None:
        """One GAP for each open subscription, one error, then nothing more (W8-07..10, P6-20)."""
        code = CONNECTION.step(ConnectionState.ACT, event).error
        if conn.closing is None and code is not None:
            self._streams.end(conn, LOSSES[event])
            conn.close(ERRORS[code](message))
            self._release(conn)

    # ---- frames ----

    def handle(self, conn: Connection, frame: Frame, now: Now) -> None:
        """One frame of an active connection.

        A scoped refusal becomes a COORD_ERROR in the output; a fatal one is raised as ``ProtocolError``, with its
        request id if there is one, and the caller closes the connection (P13-05, P13-06). Once the connection is
        closing nothing is processed any more (W8-10).
        """
        self.clock(now)
        if conn.closing is not None:
            return
        try:
            if type(frame) in self._requests:
                self._request(conn, frame)
            elif isinstance(frame, CreditFrame):
                if self._may_act(conn, None):
                    self._streams.credit(conn, frame)
            elif isinstance(frame, CoordPing):
                conn.send_control(CoordPong(nonce=frame.nonce).encode())
            elif isinstance(frame, CoordErrorFrame):
                conn.shut(ErrorCode(frame.code))
                self._release(conn)
            elif not isinstance(frame, CoordPong):
                raise ProtocolViolation(f"{type(frame).__name__} is not a frame of a client")
        except CounterWrap as error:
            self.fence(str(error))

    def _request(self, conn: Connection, frame: Any) -> None:
        request_id: int = frame.request_id
        opened = False
        try:
            guard = frame.raw("authority_guard") if type(frame) in GUARDED else None
            if not self._may_act(conn, guard):
                return
            conn.open_request(request_id)
            opened = True
            self._requests[type(frame)](conn, frame)
        except ProtocolError as error:
            error.request_id = request_id
            if error.fatal:
                raise
            if opened:
                conn.reply(conn.refusal(error), request_id)
            else:
                conn.push_error(error)

    def _may_act(self, conn: Connection, guard: bytes | None) -> bool:
        """Guard and grant, before anything is allocated, changed or looked up (P4-12, P4-13, P6-07)."""
        self._runtime.check_authority(guard)
        return self._still_granted(conn)

    def _still_granted(self, conn: Connection) -> bool:
        if self._runtime.holds(conn.grant):
            return True
        self._dismiss(conn, ConnectionEvent.REVOKED, GOODBYE)
        return False

    def _break_off(self, conn: Connection, error: ProtocolError) -> None:
        """A fatal error that no frame of this moment raised: say why, then close (P13-05)."""
        conn.close(error)
        self._release(conn)

    def _command(self, conn: Connection, frame: CoordCommand) -> None:
        command = self._transactions.read(conn, frame)
        run: Callable[[], None]
        if isinstance(command, CapabilityRequired):
            run = partial(self._transactions.unknown_command, frame.operation_id, command)
        else:
            run = partial(self._execute, conn, command)
        self._backlog.add(conn, frame.request_id, len(frame.payload), run)

    def _execute(self, conn: Connection, command: Decoded) -> None:
        operation = self._transactions.command(conn, command)
        if operation is not None:
            self._retention.watch(operation)
            self._due_at(self._prune_deadline())

    def _lookup(self, conn: Connection, frame: GetOperationResult) -> None:
        run = partial(self._transactions.lookup, conn, frame.request_id, frame.operation_id)
        self._backlog.add(conn, frame.request_id, 0, run)

    def _open_snapshot(self, conn: Connection, frame: OpenSnapshot) -> None:
        self._due_at(self._snapshots.open(conn, frame))

    def _open_replay(self, conn: Connection, frame: OpenReplay) -> None:
        self._due_at(self._replays.open(conn, frame))

    # ---- output (see connection.Producer) ----

    def may_send(self, conn: Connection) -> bool:
        """Recheck grant and certificate before anything is serialized (P6-08, P4-13)."""
        self._fence_if_expired()
        return conn.closing is None and self._still_granted(conn)

    def page(self, conn: Connection, order: PageOrder) -> list[Reply]:
        """Build a page that the transport has room for."""
        return self._leases.page(conn, order)

    def events(self, conn: Connection, frames: list[bytes], room: int) -> None:
        """Append events that credit and transport allow."""
        try:
            self._streams.deliver(conn, frames, room)
        except CounterWrap as error:
            self.fence(str(error))

    def clock(self, now: Now) -> None:
        """The time of the current call."""
        self._runtime.now = now

    # ---- durability ----

    def take_batch(self, now: Now) -> Batch | None:
        """Execute what waits, in fair order, and take it as the next batch to make durable (P6-07).

        A bounded amount of work: ``None`` also when there were only lookups, and while the certificate does not last
        long enough for the disk (see ``can_take``). Several batches may be on their way at once; the store takes them
        in order. Raises ``Fenced`` when nothing may be committed any more, also because the certificate is not valid
        at this moment (P12-16).
        """
        self.clock(now)
        self._fence_if_expired()
        if self._runtime.fenced is None and not self._runtime.lease_is_short():
            try:
                self._backlog.run()
            except CounterWrap as error:
                self.fence(str(error))
            else:
                return self._transactions.take()
        if self._runtime.fenced is not None:
            raise Fenced(self._runtime.fenced)
        return None

    @property
    def waiting(self) -> bool:
        """Whether there is work that was not executed or not taken as a batch yet."""
        return len(self._backlog) > 0 or self._transactions.waiting

    def can_take(self, now: Now) -> bool:
        """Whether ``take_batch`` has something to do now, and not only once the certificate is renewed."""
        self.clock(now)
        return self.waiting and self._runtime.fenced is None and not self._runtime.lease_is_short()

    def batch_durable(self, batch: Batch, now: Now) -> None:
        """The store has committed ``batch``: its replies and events go out. ``ValueError`` out of order."""
        self.clock(now)
        if self._runtime.fenced is not None:
            return
        group = self._transactions.durable(batch.number)
        assert group.after is not None
        self._runtime.durable = group.after
        if group.events:
            self._streams.published(self._runtime.log.append(group.events), self.connections)
            self._retention.published(self.connections, len(group.events))
        for conn, frame, request_id in group.replies:
            conn.reply(frame, request_id)

    def fence(self, reason: str) -> None:
        """Commit nothing any more and tell everybody (P12-17). What waits is never answered: its fate is unknown."""
        if self._runtime.fenced is not None:
            return
        self._runtime.fenced = reason
        self._backlog.clear()
        self._transactions.drop()
        for conn in self.connections:
            self._dismiss(conn, ConnectionEvent.FENCED, "the authority is fenced")

    def _fence_if_expired(self) -> None:
        if self._runtime.fenced is None and not self._runtime.authority.valid(self._runtime.now):
            self.fence("the activation certificate expired")

    def renew(self, authority: Authority) -> None:
        """A new certificate of the same activation: every connection is told (P12-13, P12-15)."""
        if authority.guard != self._runtime.authority.guard:
            raise ValueError("a renewal keeps epoch, activation, token and incarnation")
        self._runtime.authority = authority
        frame = AuthorityRenewed(activation_certificate=authority.certificate).encode()
        for conn in self.connections:
            if conn.closing is None:
                conn.push_renewal(frame)
        self._deadline = self._soonest()

    def activated(self, now: Now) -> None:
        """The endpoint is about to serve: note this activation among the ADMIN records (OPEN P7-g)."""
        self.clock(now)
        if self._runtime.fenced is None:
            self._administration.activated()

    def set_registry(self, registry: Registry, now: Now) -> None:
        """A new generation of the key registry: whoever lost its grant is dismissed at once (W8-06..12).

        The CREDENTIAL records follow it.
        """
        self.clock(now)
        self._runtime.registry = registry
        if self._runtime.fenced is None:
            try:
                self._administration.registered(registry)
            except CounterWrap as error:
                self.fence(str(error))
        for conn in list(self.connections):
            if conn.closing is None:
                self._still_granted(conn)

    # ---- time ----

    def tick(self, now: Now) -> None:
        """Expiry of certificate, grants and leases, and retention. A bounded amount of work."""
        self.clock(now)
        self._fence_if_expired()
        if self._runtime.fenced is not None:
            return
        for conn in list(self.connections):
            if conn.closing is None:
                self._still_granted(conn)
        self._leases.expire(self.connections)
        self._retention.bound_log(self.connections)
        try:
            self._administration.catch_up()
            self._retention.prune()
        except CounterWrap as error:
            self.fence(str(error))
        self._deadline = self._soonest()

    def next_deadline(self) -> float | None:
        """Monotonic second by which ``tick`` is to be called; ``None`` once fenced."""
        return None if self._runtime.fenced is not None else self._deadline

    def _soonest(self) -> float:
        due = [self._runtime.authority.deadline_mono]
        due += (self._mono(conn.grant.expires_at) for conn in self.connections)
        due += (lease.expires for conn in self.connections for lease in conn.leases.values())
        pruning = self._prune_deadline()
        return min(due if pruning is None else [*due, pruning])

    def _prune_deadline(self) -> float | None:
        due = self._retention.next_due()
        return None if due is None else self._mono(due)

    def _due_at(self, mono: float | None) -> None:
        if mono is not None:
            self._deadline = min(self._deadline, mono)

    def _mono(self, wall: float) -> float:
        """The monotonic time of a wall time, as the clocks stand now."""
        return self._runtime.now.mono + wall - self._runtime.now.wall

    def inspect(self, now: Now) -> tuple[Document, dict[Connection, Document]]:
        """Everything that an operator may see of this moment; see ``inspect``."""
        self.clock(now)
        return inspect(self._runtime, self.connections)

    def stats(self) -> EngineStats:
        """Gauges for metrics."""
        server, log = self._runtime.quotas.server, self._runtime.log
        return EngineStats(
            connections=len(self.connections),
            subscriptions=server.used(Resource.SUBSCRIPTIONS),
            queued_frames=server.used(Resource.QUEUE_FRAMES),
            leases=server.used(Resource.LEASES),
            pinned_bytes=server.used(Resource.PINNED_BYTES),
            pending=self._transactions.pending + len(self._backlog),
            backlog=len(self._backlog),
            head_sequence=self._transactions.head.last_sequence,
            durable_sequence=self._runtime.durable.last_sequence,
            retained_from=log.first,
            fenced=self._runtime.fenced is not None,
        )
