"""The client's connection without its work: framing, handshake, certificate, liveness, errors, close (sans-IO).

Its states are those of the ledger's client table: HELLO_SENT, RESP_SENT, ACTIVE, CLOSED. ``ClientSession`` adds
requests, snapshots and streams on top.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from enum import Enum

from cext.frame import FrameTooLarge, FrameTypeRefused, Splitter
from sidecar.base.clock import Now
from sidecar.base.safefile import UnsafeFile
from sidecar.coordinator import client_events as ev
from sidecar.coordinator.client_errors import (
    AuthorityExpired,
    CannotConnect,
    ClientError,
    ConnectionLost,
    PeerFault,
    VerificationFailed,
)
from sidecar.coordinator.client_handshake import ClientConfig, Handshake, verify_renewal
from sidecar.coordinator.client_trust import Admission
from sidecar.coordinator.wire import frames as fr
from sidecar.coordinator.wire.enums import ErrorCode
from sidecar.coordinator.wire.errors import LocalProtocolError, ProtocolError, error_for
from sidecar.coordinator.wire.fields import Frame
from sidecar.coordinator.wire.records import ActivationCertificate, AuthorityGuard


class ClientState(Enum):
    """Connection states of the client."""

    NEW = "new"
    HELLO_SENT = "hello_sent"
    RESP_SENT = "resp_sent"
    ACTIVE = "active"
    CLOSED = "closed"


class ClientConnection(ABC):
    """Bytes in, verified events out, for everything but the work itself.

    Feed it bytes (``get_buffer``/``buffer_updated`` or ``feed``), the end of input (``eof``) and the time (``timeout``
    when ``deadline`` is reached); send what ``take_output`` gives; act on ``take_events``. When ``closing`` is true the
    output is the last one and the transport is to be closed. Wrong calls raise ``LocalProtocolError``.
    """

    def __init__(self, config: ClientConfig, entropy: Callable[[int], bytes]) -> None:
        self._config = config
        self._handshake = Handshake(config, entropy)
        self._splitter = Splitter(fr.caps_for("PRE", "client", None))
        self._state = ClientState.NEW
        self._output: list[bytes] = []
        self._events: list[ev.Event] = []
        self._welcome: ev.Welcome | None = None
        self._guard: AuthorityGuard | None = None
        self._certificate: ActivationCertificate | None = None
        self._adopting = False
        self._deadline: float | None = None
        self._now = Now(0.0, 0.0)

    @property
    def state(self) -> ClientState:
        """State of the connection."""
        return self._state

    @property
    def closing(self) -> bool:
        """Nothing more is read, and nothing is written after ``take_output``."""
        return self._state is ClientState.CLOSED

    @property
    def adopting(self) -> bool:
        """A later activation answered than the pinned current one: take a complete snapshot first (P12-31)."""
        return self._adopting

    @property
    def welcome(self) -> ev.Welcome:
        """The verified handshake; LocalProtocolError before it is complete."""
        if self._welcome is None:
            raise LocalProtocolError("the handshake is not complete")
        return self._welcome

    # -- input ------------------------------------------------------------------------------------------------------

    def start(self, now: Now) -> None:
        """Send COORD_HELLO; the handshake must finish within the configured seconds."""
        if self._state is not ClientState.NEW:
            raise LocalProtocolError("the session has been started")
        self._now = now
        self._deadline = now.mono + self._config.handshake_seconds
        self._state = ClientState.HELLO_SENT
        self._send(self._handshake.hello())

    def get_buffer(self, size_hint: int) -> memoryview:
        """Where the transport shall put received bytes."""
        return self._splitter.get_buffer(size_hint)

    def buffer_updated(self, nbytes: int, now: Now) -> None:
        """``nbytes`` arrived in the buffer."""
        self._splitter.buffer_updated(nbytes)
        self._drain(now)

    def feed(self, data: bytes, now: Now) -> None:
        """Bytes that arrived, in any fragments."""
        self._splitter.feed(data)
        self._drain(now)

    def eof(self, now: Now) -> None:
        """The peer closed: a gap of every stream, and every request is indeterminate (P10-19, P13-07)."""
        self._now = now
        if self._state in (ClientState.HELLO_SENT, ClientState.RESP_SENT):
            self._close(CannotConnect("the server closed the connection during the handshake"))
        else:
            self._close(ConnectionLost("the server closed the connection"))

    def deadline(self) -> float | None:
        """Monotonic second at which ``timeout`` wants to be called; None when there is nothing to wait for."""
        return None if self._state is ClientState.CLOSED else self._deadline

    def timeout(self, now: Now) -> None:
        """Time passed: the handshake took too long, or the certificate ran out (P12-18)."""
        self._now = now
        if self._deadline is None:
            return
        if self._certificate is not None:
            if now.mono >= self._deadline or now.wall >= self._certificate.expires_at:
                self._close(AuthorityExpired())
        elif now.mono >= self._deadline:
            self._close(CannotConnect("the server did not finish the handshake in time"))

    def take_output(self) -> list[bytes]:
        """Bytes to write, in order."""
        output, self._output = self._output, []
        return output

    def take_events(self) -> list[ev.Event]:
        """What happened since the last call, in order."""
        events, self._events = self._events, []
        return events

    def ping(self, nonce: int) -> None:
        """Ask for a sign of life; ``Pong`` follows with the same nonce."""
        self._require_active()
        self._send(fr.CoordPing(nonce=nonce))

    def close(self) -> None:
        """End the connection from this side."""
        self._close(ConnectionLost("the connection was closed by this client"))

    # -- frames -----------------------------------------------------------------------------------------------------

    def _drain(self, now: Now) -> None:
        """Take every whole frame. Any breach closes the connection: nothing after it is looked at."""
        self._now = now
        try:
            while self._state is not ClientState.CLOSED and (item := self._splitter.next_frame()) is not None:
                frame_type, body = item
                selected = None if self._welcome is None else self._welcome.selected
                self._frame(fr.decode_frame(frame_type, body, selected), len(body))
        except FrameTooLarge as error:
            self._breach(
                ErrorCode.FRAME_TOO_LARGE, f"a frame of type {error.frame_type:#04x} with {error.length} bytes"
            )
        except FrameTypeRefused as error:
            self._breach(ErrorCode.PROTOCOL_ERROR, f"a frame of type {error.frame_type:#04x} in {self._state.value}")
        except ProtocolError as error:  # from decoding: the server's image is not legal
            self._breach(error.code, error.message)
        except PeerFault as error:
            self._breach(error.code, error.detail)
        except ClientError as error:
            self._close(error)
        except (UnsafeFile, OSError) as error:
            self._close(VerificationFailed("pins", f"the pins cannot be kept: {error}"))

    def _breach(self, code: ErrorCode, detail: str) -> None:
        # During the handshake nothing is answered (W3-16); later the server is told why (P13-05).
        if self._state is ClientState.ACTIVE:
            self._send(fr.CoordErrorFrame(code=code, message=detail))
            self._close(PeerFault(code, detail))
        else:
            self._close(VerificationFailed("handshake", f"the server's answer is not legal ({code.name}): {detail}"))

    def _frame(self, frame: Frame, body_bytes: int) -> None:
        if isinstance(frame, fr.CoordErrorFrame):
            self._server_error(frame)
        elif isinstance(frame, fr.CoordPing):
            self._send(fr.CoordPong(nonce=frame.nonce))
        elif isinstance(frame, fr.CoordPong):
            self._emit(ev.Pong(frame.nonce))
        elif isinstance(frame, fr.WorkloadChallenge):
            self._send(self._handshake.answer(frame, self._now))
            self._state = ClientState.RESP_SENT
            self._splitter.set_caps(fr.caps_for("CHAL", "client", None))
        elif isinstance(frame, fr.CoordHelloOk):
            self._hello_ok(frame)
        elif isinstance(frame, fr.AuthorityRenewed):
            self._renewed(frame)
        else:
            self._work_frame(frame, body_bytes)

    @abstractmethod
    def _work_frame(self, frame: Frame, body_bytes: int) -> None:
        """A frame that answers or carries work."""

    def _hello_ok(self, frame: fr.CoordHelloOk) -> None:
        welcome = self._handshake.accept(frame, self._now)
        self._welcome = welcome
        self._guard = welcome.certificate.guard()
        self._adopting = welcome.admission is Admission.HIGHER
        self._state = ClientState.ACTIVE
        self._splitter.set_caps(fr.caps_for("ACT", "client", welcome.selected))
        self._hold(welcome.certificate)
        self._emit(ev.Ready(welcome))

    def _hold(self, certificate: ActivationCertificate) -> None:
        # Both clocks bound the certificate: a wall clock that is set back does not prolong it.
        self._certificate = certificate
        self._deadline = self._now.mono + (certificate.expires_at - self._now.wall)

    def _renewed(self, frame: fr.AuthorityRenewed) -> None:
        """Replace the certificate by a valid renewal; an invalid one is told and the old one runs out (P12-18)."""
        held = self._certificate
        if held is None:
            raise PeerFault(ErrorCode.PROTOCOL_ERROR, "a renewal before the handshake is complete")
        try:
            verify_renewal(held, frame.activation_certificate, self._handshake.witness, self._now)
        except VerificationFailed as error:
            self._emit(ev.RenewalRefused(str(error)))
            return
        self._hold(frame.activation_certificate)
        self._emit(ev.Renewed(frame.activation_certificate.expires_at))

    def _server_error(self, frame: fr.CoordErrorFrame) -> None:
        """COORD_ERROR: scoped to its request, or the end of the connection. Only the code decides (P13-04)."""
        error = error_for(frame.code, frame.message, frame.request_id)
        if frame.request_id is not None and self._state is ClientState.ACTIVE:
            self._refuse(frame.request_id, error)
        if error.fatal or self._state is not ClientState.ACTIVE:
            if error.code is ErrorCode.AUTHORITY_FENCED and self._welcome is not None:
                self._config.pins.mark_fenced(self._welcome.fingerprint, self._welcome.standing)
            self._close(error)

    @abstractmethod
    def _refuse(self, request_id: int, error: ProtocolError) -> None:
        """The server refused a request."""

    # -- plumbing ---------------------------------------------------------------------------------------------------

    def _require_active(self) -> AuthorityGuard:
        if self._state is not ClientState.ACTIVE or self._guard is None:
            raise LocalProtocolError(f"the connection is {self._state.value}, not active")
        return self._guard

    def _send(self, frame: Frame) -> None:
        image = frame.encode()
        if self._welcome is not None and len(image) - 4 > self._welcome.selected.frame:
            raise LocalProtocolError(f"a frame of {len(image)} bytes; the server takes {self._welcome.selected.frame}")
        self._output.append(image)

    def _emit(self, event: ev.Event) -> None:
        self._events.append(event)

    def _close(self, error: Exception) -> None:
        if self._state is not ClientState.CLOSED:
            self._state = ClientState.CLOSED
            self._emit(ev.Closed(error, self._abandon()))

    @abstractmethod
    def _abandon(self) -> tuple[int, ...]:
        """Give up everything unfinished; the ids of the open requests."""
