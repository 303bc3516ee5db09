"""Unix socket connections: bytes between the kernel and a `ServerSession`.

Output is collected and written once per turn of the loop. A peer that does not read stops being read and served: what
it can hold is one write buffer, one receive buffer and its share of the engine's quotas.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, Protocol, cast

from sidecar.base.clock import Now
from sidecar.coordinator.authority.proof import ChannelBinding
from sidecar.coordinator.engine.connection import Connection
from sidecar.coordinator.machines.connection import ConnectionState
from sidecar.coordinator.session import OUTPUT_PER_TURN, ServerSession
from sidecar.coordinator.transport.peers import Peer, PeerRefused, peer_of
from sidecar.coordinator.wire.enums import ErrorCode

WRITE_HIGH: Final = 262_144
"""Bytes of unwritten output above which a connection is no longer served."""
WRITE_LOW: Final = 65_536
LINGER_SECONDS: Final = 2.0
"""How long a closing connection may take to read its last frames."""


class Host(Protocol):
    """What a connection needs from the server around it."""

    def now(self) -> Now: ...
    def owner(self) -> int:
        """The uid that may connect."""

    def refuse(self) -> str | None:
        """Why one more socket is not taken; None when it is."""

    def opened(self, connection: UnixConnection) -> None: ...
    def closed(self, connection: UnixConnection) -> None: ...
    def refused(self, reason: str) -> None: ...
    def session(self, binding: Callable[[bytes], ChannelBinding], wake: Callable[[], None]) -> ServerSession: ...
    def kick(self) -> None:
        """Transactions may wait to be made durable."""


class UnixConnection(asyncio.BufferedProtocol):
    """One accepted socket."""

    def __init__(self, host: Host, loop: asyncio.AbstractEventLoop) -> None:
        self._host = host
        self._loop = loop
        self.peer: Peer | None = None
        """Who connected; for the log."""
        self.fault: ErrorCode | None = None
        """What this side closed the connection for, once it is over."""
        self.claimed: bytes | None = None
        """Key id that the peer named, proved or not, once it is over."""
        self.since = host.now().mono
        """Monotonic second of its accept."""
        self._transport: asyncio.Transport | None = None
        self._session: ServerSession | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._linger: asyncio.TimerHandle | None = None
        self._flush_due = False
        self._continue_due = False
        self._reading = True
        self._stopped = False
        self._finishing = False

    @property
    def active(self) -> Connection | None:
        """The engine's connection, while there is one."""
        return None if self._session is None else self._session.connection

    @property
    def authenticated(self) -> bool:
        """Whether the handshake is done."""
        return self._session is not None and self._session.state is ConnectionState.ACT

    # ---- asyncio.BufferedProtocol ----

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Judge the peer before a byte is read, then wait for its HELLO."""
        self._transport = stream = cast(asyncio.Transport, transport)
        reason = self._host.refuse()
        if reason is None:
            try:
                self.peer = peer_of(stream.get_extra_info("socket").fileno())
                self.peer.check(self._host.owner())
            except PeerRefused as error:
                reason = error.reason
        if reason is not None or self.peer is None:
            self._host.refused(reason or "peer_unknown")
            stream.abort()
            return
        stream.set_write_buffer_limits(WRITE_HIGH, WRITE_LOW)
        self._session = self._host.session(self.peer.binding, self._schedule_flush)
        self._host.opened(self)
        self._arm_timer()

    def get_buffer(self, sizehint: int) -> memoryview:
        """The session's own receive buffer."""
        assert self._session is not None
        return self._session.get_buffer(sizehint)

    def buffer_updated(self, nbytes: int) -> None:
        """Bytes arrived."""
        if self._session is not None:
            self._session.buffer_updated(nbytes, self._host.now())
            self._after_input()

    def eof_received(self) -> bool:
        """The peer will send nothing more: the connection is over."""
        return False

    def connection_lost(self, _error: Exception | None) -> None:
        """Release everything."""
        self._transport = None
        for timer in (self._timer, self._linger):
            if timer is not None:
                timer.cancel()
        self._timer = self._linger = None
        if self._session is not None:
            self._session.eof(self._host.now())
            self.fault, self.claimed = self._session.fault, self._session.claimed
            self._session = None
            self._host.closed(self)

    def pause_writing(self) -> None:
        """The peer does not keep up: serve it no further."""
        if self._session is not None:
            self._session.set_writable(False)
            self._update_reading()

    def resume_writing(self) -> None:
        """The peer caught up."""
        if self._session is not None:
            self._session.set_writable(True)
            self._schedule_flush()
            self._continue()

    # ---- for the server ----

    def stop_input(self) -> None:
        """Read nothing more; what was accepted is still answered."""
        self._stopped = True
        self._update_reading()

    def check_fence(self) -> None:
        """The authority may be lost: a peer in the handshake is told so."""
        if self._session is not None:
            self._session.check_fence(self._host.now())
            self._after_input()

    def finish(self) -> None:
        """Write what there is and then close."""
        self._finishing = True
        self.stop_input()
        self._schedule_flush()

    def close(self) -> None:
        """Close after what was written; cut it off when the peer does not read it."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.close()
            self._linger = self._loop.call_later(LINGER_SECONDS, self.abort)

    def abort(self) -> None:
        """Close at once."""
        if self._transport is not None:
            self._transport.abort()

    # ---- input ----

    def _after_input(self) -> None:
        assert self._session is not None
        self._arm_timer()
        self._schedule_flush()
        if self._session.connection is not None:
            self._host.kick()
        self._schedule_continue()
        self._update_reading()

    def _schedule_continue(self) -> None:
        if self._session is not None and self._session.has_input and not self._continue_due:
            self._continue_due = True
            self._loop.call_soon(self._continue)

    def _continue(self) -> None:
        """Go on with frames that an earlier turn left."""
        self._continue_due = False
        if self._session is not None and self._session.has_input and not self._stopped:
            self._session.process(self._host.now())
            self._after_input()
        else:
            self._update_reading()

    def _update_reading(self) -> None:
        session, transport = self._session, self._transport
        if session is None or transport is None or transport.is_closing():
            return
        wanted = session.writable and not session.behind and not session.closing and not self._stopped
        if wanted != self._reading:
            self._reading = wanted
            (transport.resume_reading if wanted else transport.pause_reading)()

    # ---- timers ----

    def _arm_timer(self) -> None:
        assert self._session is not None
        due = self._session.deadline()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if due is not None:
            self._timer = self._loop.call_later(max(0.001, due - self._host.now().mono), self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        if self._session is not None:
            self._session.timeout(self._host.now())
            self._after_input()

    # ---- output ----

    def _schedule_flush(self) -> None:
        if not self._flush_due:
            self._flush_due = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_due = False
        session, transport = self._session, self._transport
        if session is None or transport is None or transport.is_closing():
            return
        frames = session.take_output(self._host.now()) if session.writable or session.closing else []
        if frames:
            # One buffer for one system call: handing over hundreds of small ones costs more than the copy.
            transport.write(b"".join(frames))
            if sum(map(len, frames)) >= OUTPUT_PER_TURN:
                self._schedule_flush()
        elif session.closing or self._finishing:
            self.close()
            return
        if session.closing or self._finishing:
            self._update_reading()
            self._schedule_flush()
        else:
            # What was written or executed may have been in the way of input.
            self._schedule_continue()
