"""One connection of the coordinator as a value: bytes in, bytes out (sans-IO).

`TRANSITIONS` is the connection state machine: what is not in it is refused as PROTOCOL_ERROR. The session owns the
frame splitter, the paired handshake and its timers; after the handshake it hands every frame to the engine. It reads no
clock, no random source and no socket (rows W3, P5, P7-02..04, P13-05).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
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
from sidecar.coordinator.wire import frames as fr
from sidecar.coordinator.wire.enums import ErrorCode, FrameType
from sidecar.coordinator.wire.errors import (
    AuthenticationFailed,
    FrameTooLargeError,
    InternalError,
    ProtocolError,
    ProtocolViolation,
)
from sidecar.coordinator.wire.limits import CHALLENGE_SECONDS, HELLO_SECONDS, PROTOCOL, Limits, select
from sidecar.coordinator.wire.table import State as TableState

FRAMES_PER_TURN: Final = 128
"""Frames that one call processes at most: a peer that pipelines leaves room for the others."""
OUTPUT_PER_TURN: Final = 262_144
"""Bytes that one call of `take_output` aims at."""
LAST_OUTPUT: Final = 65_536
"""Bytes of finished output that still go out in front of a fatal error."""


class State(Enum):
    """Connection states of the server."""

    PRE = "PRE"
    """Before a complete COORD_HELLO."""
    CHAL = "CHAL"
    """Challenge sent, its one response awaited."""
    ACT = "ACT"
    """Authenticated."""
    CLOSED = "CLOSED"
    """Nothing more is read; the output that is left is the last."""


class Action(Enum):
    """What a legal frame does."""

    HELLO = "hello"
    RESPONSE = "response"
    PING = "ping"
    IGNORE = "ignore"
    PEER_ERROR = "peer_error"
    ENGINE = "engine"
    """The engine's: every request, CREDIT, and PING, PONG, COORD_ERROR of an active connection."""


TRANSITIONS: Final[dict[tuple[State, FrameType], Action]] = {
    (State.PRE, FrameType.COORD_HELLO): Action.HELLO,
    (State.PRE, FrameType.COORD_PING): Action.PING,
    (State.PRE, FrameType.COORD_PONG): Action.IGNORE,
    (State.PRE, FrameType.COORD_ERROR): Action.PEER_ERROR,
    (State.CHAL, FrameType.WORKLOAD_RESPONSE): Action.RESPONSE,
    (State.CHAL, FrameType.COORD_ERROR): Action.PEER_ERROR,
    (State.ACT, FrameType.COORD_COMMAND): Action.ENGINE,
    (State.ACT, FrameType.GET_OPERATION_RESULT): Action.ENGINE,
    (State.ACT, FrameType.OPEN_SNAPSHOT): Action.ENGINE,
    (State.ACT, FrameType.SNAPSHOT_NEXT): Action.ENGINE,
    (State.ACT, FrameType.SNAPSHOT_APPLIED): Action.ENGINE,
    (State.ACT, FrameType.SUBSCRIBE): Action.ENGINE,
    (State.ACT, FrameType.CREDIT): Action.ENGINE,
    (State.ACT, FrameType.OPEN_REPLAY): Action.ENGINE,
    (State.ACT, FrameType.REPLAY_NEXT): Action.ENGINE,
    (State.ACT, FrameType.REPLAY_APPLIED): Action.ENGINE,
    (State.ACT, FrameType.COORD_PING): Action.ENGINE,
    (State.ACT, FrameType.COORD_PONG): Action.ENGINE,
    (State.ACT, FrameType.COORD_ERROR): Action.ENGINE,
}
"""(state, frame type of a client) -> what it does. Every other pair is a fatal PROTOCOL_ERROR (P7-02..04)."""

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
    retention_seconds: int
    observer: Observer
    crashed: Callable[[Exception], None]
    """Told of what should not happen; the connection that met it is closed as INTERNAL, the others go on."""


@dataclass(slots=True)
class _Pending:
    """What is kept between CHALLENGE and RESPONSE, on this connection alone (W3-10)."""

    challenge: fr.WorkloadChallenge
    capabilities: int
    selected: Limits


def _caps(state: State, selected: Limits | None) -> list[int]:
    return fr.caps_for(cast(TableState, state.value), "server", selected)


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
        self._splitter = Splitter(_caps(State.PRE, None))
        self._state = State.PRE
        self._pending: _Pending | None = None
        self._output: list[bytes] = []
        self._deadline: float | None = now.mono + HELLO_SECONDS
        self._more = False
        self._writable = True
        self.connection: Connection | None = None
        self.fault: ErrorCode | None = None
        """What this side closed the connection for; for the log."""

    # ---- what it is ----

    @property
    def state(self) -> State:
        """State of the connection."""
        return self._state

    @property
    def closing(self) -> bool:
        """No frame is read any more; close the transport once `take_output` is empty."""
        return self._state is State.CLOSED or (self.connection is not None and self.connection.closing is not None)

    @property
    def writable(self) -> bool:
        """Whether the transport takes output, as `set_writable` said."""
        return self._writable

    @property
    def has_input(self) -> bool:
        """Frames may wait that the last call left for later, and nothing stands in the way of `process`."""
        return self._more and self._writable and not self.closing

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
        for _ in range(FRAMES_PER_TURN):
            if self.closing:
                return
            if not self._writable or (self.connection is not None and self.connection.congested):
                break
            try:
                found = self._splitter.next_frame()
                if found is None:
                    return
                self._handle(found[0], found[1], now)
            except FrameTooLarge as error:
                self._fail(FrameTooLargeError(f"frame {error.frame_type:#04x} of length {error.length}"), now)
            except FrameTypeRefused as error:
                self._fail(self._refusal(error.frame_type), now)
            except ProtocolError as error:
                self._fail(error, now)
            except Exception as error:
                self._env.crashed(error)
                self._fail(InternalError(), now)
        self._more = True

    def set_writable(self, writable: bool) -> None:
        """Tell whether the transport takes more output; nothing is produced or processed while it does not."""
        self._writable = writable
        if self.connection is not None:
            self.connection.writable = writable

    def timeout(self, now: Now) -> None:
        """The time is what it is; once the deadline has passed the handshake has failed (W3-13, OPEN P5-b)."""
        if self._deadline is None or now.mono < self._deadline or self.closing:
            return
        late = ProtocolViolation(f"no COORD_HELLO within {HELLO_SECONDS} seconds")
        self._fail(late if self._state is State.PRE else AuthenticationFailed(), now, outcome="timeout")

    def eof(self, now: Now) -> None:
        """The transport is gone: everything that this connection held is released."""
        if self._state in (State.PRE, State.CHAL):
            self._env.observer.handshake("closed")
        self._release(now)
        self._output.clear()

    # ---- output ----

    def take_output(self, now: Now, max_bytes: int = OUTPUT_PER_TURN) -> list[bytes]:
        """Whole frames to write, in order: about `max_bytes` at most, and not less than one frame if there is any."""
        frames, self._output = self._output, []
        if self.connection is not None:
            frames += self.connection.take(max_bytes, now)
            if self.connection.closing is not None and not self.connection.control:
                self.fault = self.connection.closing
                self._release(now)
        for frame in frames:
            self._env.observer.frame_out(frame[HEADER - 1], len(frame))
        return frames

    # ---- frames ----

    def _handle(self, number: int, body: memoryview, now: Now) -> None:
        self._env.observer.frame_in(number, len(body) + HEADER)
        frame_type = FrameType(number)
        action = TRANSITIONS[self._state, frame_type]
        if action is Action.ENGINE:
            assert self.connection is not None
            self._env.engine.handle(self.connection, fr.decode_frame(frame_type, body, self.connection.selected), now)
        elif action is Action.HELLO:
            self._hello(body, now)
        elif action is Action.RESPONSE:
            self._response(body, now)
        elif action is Action.PING:
            self._output.append(fr.CoordPong(nonce=fr.CoordPing.decode(body).nonce).encode())
        elif action is Action.IGNORE:
            fr.CoordPong.decode(body)
        else:
            # The peer is done with us; its text is repeated nowhere (OPEN P13-b).
            fr.CoordErrorFrame.decode(body)
            self._env.observer.handshake("peer_error")
            self._release(now)

    def _hello(self, body: memoryview, now: Now) -> None:
        hello = read_hello(body)
        selected = select(hello.limits(), self._env.limits)
        capabilities = select_capabilities(hello, self._env.capabilities)
        nonce = self._nonce()
        incarnation = self._env.engine.authority.certificate.incarnation_id
        challenge = make_challenge(hello, self._env.key, incarnation, nonce, self._binding(nonce))
        self._pending = _Pending(challenge, capabilities, selected)
        self._output.append(challenge.encode())
        self._enter(State.CHAL, None)
        self._deadline = now.mono + CHALLENGE_SECONDS

    def _response(self, body: memoryview, now: Now) -> None:
        # Taken away before anything is looked at: one challenge serves one attempt, good or bad (W3-11).
        pending, self._pending = self._pending, None
        assert pending is not None
        env = self._env
        response = fr.WorkloadResponse.decode(body)
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
            operation_result_retention_secs=env.retention_seconds,
            activation_certificate=certificate,
        )
        self._output.append(welcome.encode())
        self._enter(State.ACT, pending.selected)
        self._deadline = None
        env.observer.handshake("ok")

    def _nonce(self) -> bytes:
        nonce = self._env.entropy(32)
        if len(nonce) != 32 or not any(nonce):
            raise InternalError("the random source failed")
        return nonce

    # ---- transitions ----

    def wake(self) -> None:
        """The engine has output for this connection (it sees the session as its sink)."""
        self._wake()

    def _enter(self, state: State, selected: Limits | None) -> None:
        self._state = state
        self._splitter.set_caps(_caps(state, selected))

    def _refusal(self, number: int) -> ProtocolError:
        known = number in FrameType._value2member_map_
        name = FrameType(number).name if known else f"frame type {number:#04x}"
        return ProtocolViolation(f"{name} is not legal in state {self._state.value}" if known else f"unknown {name}")

    def _fail(self, error: ProtocolError, now: Now, *, outcome: str | None = None) -> None:
        """Say why, then close (P13-05). Before the handshake is done every error is fatal (OPEN P13-a)."""
        if isinstance(error, AuthenticationFailed):
            # One byte image for every reason; the request id is of no use to a stranger.
            error = AuthenticationFailed(GENERIC_FAILURE)
        self.fault = error.code
        conn = self.connection
        if conn is not None:
            # Finished replies go out in front; what is not durable yet is never answered.
            if self._writable:
                self._output += conn.take(LAST_OUTPUT, now)
            conn.close(error)
            while conn.control:
                self._output += conn.take(LAST_OUTPUT, now)
        else:
            self._env.observer.handshake(outcome or error.code.name.lower())
            self._env.observer.refused(error.code)
            self._output.append(fr.CoordErrorFrame.of(error).encode())
        self._release(now)

    def _release(self, now: Now) -> None:
        self._state = State.CLOSED
        self._deadline = None
        self._pending = None
        self._more = False
        if self.connection is not None:
            connection, self.connection = self.connection, None
            self._env.engine.detach(connection, now)
