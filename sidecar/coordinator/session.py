"""One connection of the coordinator as a value: bytes in, bytes out (sans-IO).

What happens to it is told to the table of `machines/connection.py`, which says the next state and the error that ends
it. The session owns the frame splitter, the paired handshake and its timers; after the handshake it hands every frame
to the engine. It reads no clock, no random source and no socket (rows W3, P5, P7-02..04, P13-05).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, cast

from cext.frame import HEADER, FrameTooLarge, FrameTypeRefused, Splitter
from sidecar.base.clock import Now
from sidecar.base.ed25519 import SigningKey
from sidecar.coordinator.authority.grants import Registry
from sidecar.coordinator.authority.proof import ChannelBinding, grant_record, make_challenge, verify_response
from sidecar.coordinator.engine.connection import Connection
from sidecar.coordinator.engine.core import Engine
from sidecar.coordinator.engine.observer import Observer
from sidecar.coordinator.hello import read_hello, select_capabilities
from sidecar.coordinator.machines.connection import (
    CLASSES,
    CONNECTION,
    OUTCOMES,
    STAYING,
    TIMERS,
    ConnectionEvent,
    ConnectionState,
    FrameClass,
)
from sidecar.coordinator.wire import frames as fr
from sidecar.coordinator.wire.enums import ErrorCode, FrameType
from sidecar.coordinator.wire.errors import ERRORS, AuthenticationFailed, InternalError, ProtocolError
from sidecar.coordinator.wire.limits import HELLO_SECONDS, PROTOCOL, Limits, select
from sidecar.coordinator.wire.table import State as TableState

FRAMES_PER_TURN: Final = 128
"""Frames that one call processes at most: a peer that pipelines leaves room for the others."""
OUTPUT_PER_TURN: Final = 262_144
"""Bytes that one call of `take_output` aims at."""
LAST_OUTPUT: Final = 65_536
"""Bytes of finished output that still go out in front of a fatal error."""


GENERIC_FAILURE: Final = "authentication failed"
"""The one text of every failed authentication: it tells nothing (W4-08, W4-09)."""


@dataclass(slots=True)
class HandshakeEnv:
    """What all connections of a listener share."""

    engine: Engine
    key: SigningKey
    registry: Callable[[], Registry]
    limits: Limits
    capabilities: int
    entropy: Callable[[int], bytes]
    observer: Observer
    crashed: Callable[[Exception], None]
    """Told of what should not happen; the connection that met it is closed as INTERNAL, the others go on."""


@dataclass(slots=True)
class _Pending:
    """What is kept between CHALLENGE and RESPONSE, on this connection alone (W3-10)."""

    challenge: fr.WorkloadChallenge
    capabilities: int
    selected: Limits


_DEAR: Final = FrameType.OPEN_REPLAY
"""The one frame for which the whole log may be looked through: it ends the turn of its connection."""
_HANDSHAKE: Final = (ConnectionState.PRE, ConnectionState.CHAL)
_OUTCOMES: Final = {
    ConnectionEvent.TIMER: "timeout",
    ConnectionEvent.EOF: "closed",
    ConnectionEvent.PEER_ERROR: "peer_error",
}
"""What a handshake that ends so is counted as; the others as the code that was sent."""


def _caps(state: ConnectionState, selected: Limits | None) -> list[int]:
    return fr.caps_for(cast(TableState, state.value), "server", selected)


def _unexpected(number: int, state: ConnectionState) -> str:
    if CLASSES[number] is FrameClass.UNKNOWN:
        return f"unknown frame type {number:#04x}"
    return f"{FrameType(number).name} is not legal in state {state.value}"


class ServerSession:
    """One connection of the server.

    Feed it bytes (`get_buffer` and `buffer_updated`, or `feed`), the end of input (`eof`) and the time (`timeout` once
    `deadline` has passed); write what `take_output` gives. While `has_input` is true, call `process` again when there
    is time for it. Once `closing` is true the output is the last and the transport is to be closed after it.

    `binding` derives the channel binding from the server nonce: the transport knows how (W5). `wake` is called whenever
    output may have appeared outside of a call.
    """

    def __init__(
        self, env: HandshakeEnv, binding: Callable[[bytes], ChannelBinding], wake: Callable[[], None], now: Now
    ) -> None:
        self._env = env
        self._binding = binding
        self._wake = wake
        self._state = ConnectionState.PRE
        self._staying = STAYING[self._state]
        self._splitter = Splitter(_caps(self._state, None))
        self._pending: _Pending | None = None
        self._output: list[bytes] = []
        self._began = now.mono
        self._deadline: float | None = now.mono + TIMERS[self._state]
        self._more = False
        self._writable = True
        self.connection: Connection | None = None
        self.fault: ErrorCode | None = None
        """What this side closed the connection for; for the log."""
        self.claimed: bytes | None = None
        """Key id that the peer named, proved or not; for the log."""

    # ---- what it is ----

    @property
    def state(self) -> ConnectionState:
        """State of the connection."""
        return self._state

    @property
    def closing(self) -> bool:
        """No frame is read any more; close the transport once `take_output` is empty."""
        return self._state is ConnectionState.CLOSED or (
            self.connection is not None and self.connection.closing is not None
        )

    @property
    def writable(self) -> bool:
        """Whether the transport takes output, as `set_writable` said."""
        return self._writable

    @property
    def has_input(self) -> bool:
        """Frames may wait that the last call left for later, and nothing stands in the way of `process`."""
        return self._more and self._writable and not self.closing and not self._congested

    @property
    def behind(self) -> bool:
        """Frames may wait that the last call left for later: read nothing more until they are handled."""
        return self._more

    @property
    def _congested(self) -> bool:
        return self.connection is not None and self.connection.congested

    def deadline(self) -> float | None:
        """Monotonic time at which `timeout` is due; None when nothing is awaited."""
        return self._deadline

    # ---- input ----

    def get_buffer(self, size_hint: int) -> memoryview:
        """Where the transport puts the next bytes."""
        return self._splitter.get_buffer(size_hint)

    def buffer_updated(self, nbytes: int, now: Now) -> None:
        """`nbytes` were put into the buffer."""
        self._splitter.buffer_updated(nbytes)
        self.process(now)

    def feed(self, data: bytes, now: Now) -> None:
        """The same for bytes that are at hand."""
        self._splitter.feed(data)
        self.process(now)

    def process(self, now: Now) -> None:
        """Handle frames that have arrived: a bounded number, and none while the peer does not take its output."""
        self._more = False
        self.check_fence(now)
        for _ in range(FRAMES_PER_TURN):
            if self.closing:
                return
            if not self._writable or self._congested:
                break
            try:
                found = self._splitter.next_frame()
                if found is None:
                    return
                self._handle(found[0], found[1], now)
                if found[0] == _DEAR:
                    break
            except FrameTooLarge as error:
                detail = f"frame {error.frame_type:#04x} of length {error.length}"
                self._take(ConnectionEvent.OVERSIZE, now, detail=detail)
            except FrameTypeRefused as error:
                event = OUTCOMES[CLASSES[error.frame_type]][None]
                self._take(event, now, detail=_unexpected(error.frame_type, self._state))
            except Exception as error:
                self._env.crashed(error)
                self._take(ConnectionEvent.FAULT, now)
        self._more = True

    def check_fence(self, now: Now) -> None:
        """Tell a peer in the handshake that the authority is lost, if it is; the engine tells the others (P12-17)."""
        if self._state in _HANDSHAKE and self._env.engine.fenced is not None:
            self._take(ConnectionEvent.FENCED, now, detail="the authority is fenced")

    def set_writable(self, writable: bool) -> None:
        """Tell whether the transport takes more output; nothing is produced or processed while it does not."""
        self._writable = writable
        if self.connection is not None:
            self.connection.writable = writable

    def timeout(self, now: Now) -> None:
        """The time is what it is; once the deadline has passed the handshake has failed (W3-13, OPEN P5-b)."""
        if self._deadline is None or now.mono < self._deadline or self.closing:
            return
        detail = f"no COORD_HELLO within {HELLO_SECONDS} seconds"
        self._take(ConnectionEvent.TIMER, now, detail=detail)

    def eof(self, now: Now) -> None:
        """The transport is gone: everything that this connection held is released."""
        self._take(ConnectionEvent.EOF, now)
        self._output.clear()

    # ---- output ----

    def take_output(self, now: Now, max_bytes: int = OUTPUT_PER_TURN) -> list[bytes]:
        """Whole frames to write, in order: about `max_bytes` at most, and not less than one frame if there is any."""
        frames, self._output = self._output, []
        if self.connection is not None:
            frames += self.connection.take(max_bytes, now)
            if self.connection.closing is not None and not self.connection.control:
                self._release(now)
        self._env.observer.frames_out(frames)
        return frames

    # ---- frames ----

    def _handle(self, number: int, body: memoryview, now: Now) -> None:
        self._env.observer.frame_in(number, len(body) + HEADER)
        kind, staying = CLASSES[number], self._staying[number]
        found: ProtocolError | None = None
        try:
            self._act(kind, FrameType(number), body, now)
        except ProtocolError as error:
            found = error
            if error.code not in OUTCOMES[kind] and error.code is not ErrorCode.INTERNAL:
                self._env.crashed(error)
        if found is None and staying:
            return
        self._take(OUTCOMES[kind].get(None if found is None else found.code, ConnectionEvent.FAULT), now, found)

    def _act(self, kind: FrameClass, frame_type: FrameType, body: memoryview, now: Now) -> None:
        """Do what a frame asks for; ``ProtocolError`` when it is not acceptable."""
        if self.connection is not None:
            self._env.engine.handle(self.connection, fr.decode_frame(frame_type, body, self.connection.selected), now)
        elif kind is FrameClass.HELLO:
            self._hello(body)
        elif kind is FrameClass.RESPONSE:
            self._response(body, now)
        elif kind is FrameClass.PING:
            self._output.append(fr.CoordPong(nonce=fr.CoordPing.decode(body).nonce).encode())
        else:
            # A pong means nothing; the text of an error of the peer is repeated nowhere (OPEN P13-b).
            fr.decode_frame(frame_type, body)

    def _hello(self, body: memoryview) -> None:
        hello = read_hello(body)
        selected = select(hello.limits(), self._env.limits)
        capabilities = select_capabilities(hello, self._env.capabilities)
        nonce = self._nonce()
        incarnation = self._env.engine.authority.certificate.incarnation_id
        challenge = make_challenge(hello, self._env.key, incarnation, nonce, self._binding(nonce))
        self._pending = _Pending(challenge, capabilities, selected)
        self._output.append(challenge.encode())

    def _response(self, body: memoryview, now: Now) -> None:
        # Taken away before anything is looked at: one challenge serves one attempt, good or bad (W3-11).
        pending, self._pending = self._pending, None
        assert pending is not None
        env = self._env
        response = fr.WorkloadResponse.decode(body)
        self.claimed = bytes(response.key_id)
        grant = verify_response(
            pending.challenge,
            response,
            live_incarnation=env.engine.authority.certificate.incarnation_id,
            live_binding=self._binding(pending.challenge.server_nonce),
            registry=env.registry,
            now=now.wall,
        )
        self.connection = env.engine.attach(self, grant, pending.capabilities, pending.selected, now)
        self.connection.writable = self._writable
        certificate = env.engine.authority.certificate
        welcome = fr.CoordHelloOk(
            protocol_major=PROTOCOL[0],
            protocol_minor=PROTOCOL[1],
            protocol_patch=PROTOCOL[2],
            negotiated_capabilities=pending.capabilities,
            coordinator_id=certificate.coordinator_id,
            authority_epoch=certificate.authority_epoch,
            incarnation_id=certificate.incarnation_id,
            max_frame_bytes=pending.selected.frame,
            max_page_bytes=pending.selected.page_bytes,
            max_page_records=pending.selected.page_records,
            max_typed_payload_bytes=pending.selected.typed_payload,
            max_event_credit_count=pending.selected.credit_count,
            max_event_credit_bytes=pending.selected.credit_bytes,
            workload_grant=grant_record(grant),
            operation_result_retention_secs=self.connection.result_seconds,
            activation_certificate=certificate,
        )
        self._output.append(welcome.encode())

    def _nonce(self) -> bytes:
        nonce = self._env.entropy(32)
        if len(nonce) != 32 or not any(nonce):
            raise InternalError("the random source failed")
        return nonce

    # ---- transitions ----

    def wake(self) -> None:
        """The engine has output for this connection (it sees the session as its sink)."""
        self._wake()

    def _take(self, event: ConnectionEvent, now: Now, found: ProtocolError | None = None, *, detail: str = "") -> None:
        """The one place where the state moves on; ``found`` or ``detail`` says more about the error of the table."""
        step = CONNECTION.step(self._state, event)
        if step.error is not None:
            error = found if found is not None and found.code is step.error else ERRORS[step.error](detail)
            self._fail(error, now, _OUTCOMES.get(event, step.error.name.lower()))
        elif step.next is ConnectionState.CLOSED:
            self._ended(_OUTCOMES.get(event), now)
            self._release(now)
        elif step.next is not self._state:
            self._enter(step.next, now)

    def _enter(self, state: ConnectionState, now: Now) -> None:
        if state is ConnectionState.ACT:
            self._ended("ok", now)
        self._state = state
        self._staying = STAYING[state]
        self._splitter.set_caps(_caps(state, None if self.connection is None else self.connection.selected))
        seconds = TIMERS.get(state)
        self._deadline = None if seconds is None else now.mono + seconds

    def _ended(self, outcome: str | None, now: Now) -> None:
        """Count a handshake that is over, with its duration."""
        if outcome is not None and self._state in _HANDSHAKE:
            self._env.observer.handshake(outcome, now.mono - self._began)

    def _fail(self, error: ProtocolError, now: Now, outcome: str) -> None:
        """Say why, then close (P13-05). Before the handshake is done every error is fatal (OPEN P13-a)."""
        if isinstance(error, AuthenticationFailed):
            # One byte image for every reason; the request id is of no use to a stranger.
            error = AuthenticationFailed(GENERIC_FAILURE)
        self.fault = error.code
        self._ended(outcome, now)
        conn = self.connection
        if conn is not None:
            # Finished replies go out in front; what is not durable yet is never answered, and nothing is under a
            # certificate that has expired (P4-13).
            if self._writable and self._env.engine.authority.valid(now):
                self._output += conn.take(LAST_OUTPUT, now)
            conn.close(error)
            while conn.control:
                self._output += conn.take(LAST_OUTPUT, now)
        else:
            self._env.observer.refused(error.code)
            self._output.append(fr.CoordErrorFrame.of(error).encode())
        self._release(now)

    def _release(self, now: Now) -> None:
        self._state = ConnectionState.CLOSED
        self._deadline = None
        self._pending = None
        self._more = False
        if self.connection is not None:
            connection, self.connection = self.connection, None
            self.fault = self.fault or connection.closing
            self._env.engine.detach(connection, now)
