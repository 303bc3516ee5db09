"""A raw peer of the coordinator's socket: it does exactly what a test says, also what no client would."""

from __future__ import annotations

import os
import select
import socket
import struct
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from cext.frame import MAX_LENGTH, Splitter
from sidecar.base.ed25519 import SigningKey
from sidecar.coordinator.authority.proof import make_response, uds_binding, verify_challenge
from sidecar.coordinator.wire import frames as fr
from sidecar.coordinator.wire.enums import CommandKind, FrameType
from sidecar.coordinator.wire.ids import OperationId, objective_id
from sidecar.coordinator.wire.limits import HARD, SCHEMA
from sidecar.coordinator.wire.payloads import CreateObjective
from sidecar.coordinator.wire.records import WorkloadOffer

F = TypeVar("F", bound=fr.Frame)

PATIENCE = 20.0


def hello(**changes: Any) -> fr.CoordHello:
    """A COORD_HELLO that is accepted, but for what is changed."""
    values: dict[str, Any] = {
        "protocol_major": 0,
        "protocol_minor": 1,
        "protocol_patch": 0,
        "client_name": "peer",
        "offered_capabilities": 0,
        "required_capabilities": 0,
        "max_frame_bytes": HARD.frame,
        "max_page_bytes": HARD.page_bytes,
        "max_page_records": HARD.page_records,
        "max_typed_payload_bytes": HARD.typed_payload,
        "max_event_credit_count": HARD.credit_count,
        "max_event_credit_bytes": HARD.credit_bytes,
        "workload_offer": WorkloadOffer(os.urandom(32)),
    }
    return fr.CoordHello(**{**values, **changes})


class Peer:
    """One connection, blocking."""

    def __init__(self, path: Path) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(PATIENCE)
        self.sock.connect(str(path))
        self.welcome: fr.CoordHelloOk | None = None
        self.challenge: fr.WorkloadChallenge | None = None
        self.ended = False
        self._splitter = Splitter([MAX_LENGTH] * 256)
        self._request = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self.sock.close()

    def reset(self) -> None:
        """Go away without a word and with unread input."""
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.sock.close()

    def send(self, *parts: bytes | fr.Frame) -> None:
        self.sock.sendall(b"".join(part if isinstance(part, bytes) else part.encode() for part in parts))

    def next(self) -> fr.Frame | None:
        """The next frame, or None at the end of the connection."""
        give_up = time.monotonic() + PATIENCE
        while (found := self._splitter.next_frame()) is None:
            assert time.monotonic() < give_up, "nothing came"
            try:
                data = self.sock.recv(65536)
            except ConnectionResetError:
                data = b""
            if not data:
                self.ended = True
                return None
            self._splitter.feed(data)
        return fr.decode_frame(FrameType(found[0]), found[1], None)

    def expect(self, shape: type[F]) -> F:
        """The next frame of this shape; renewals in between are skipped."""
        frame = self.next()
        while isinstance(frame, fr.AuthorityRenewed) and shape is not fr.AuthorityRenewed:
            frame = self.next()
        assert isinstance(frame, shape), frame
        return frame

    def rest(self) -> list[fr.Frame]:
        """Everything until the end of the connection."""
        frames: list[fr.Frame] = []
        while (frame := self.next()) is not None:
            frames.append(frame)
        return frames

    def refusal(self) -> int:
        """The code of the COORD_ERROR with which the connection ends."""
        error = [frame for frame in self.rest() if not isinstance(frame, fr.AuthorityRenewed)][-1]
        assert isinstance(error, fr.CoordErrorFrame), error
        return int(error.code)

    def quiet(self, seconds: float) -> bool:
        """Whether nothing arrives for so long."""
        return not select.select([self.sock], [], [], seconds)[0]

    def start(self, **changes: Any) -> fr.WorkloadChallenge:
        """HELLO and its challenge, verified."""
        first = hello(**changes)
        self.send(first)
        self.challenge = challenge = self.expect(fr.WorkloadChallenge)
        verify_challenge(
            challenge,
            client_nonce=first.workload_offer.client_nonce,
            derive_binding=lambda nonce: uds_binding(nonce, os.geteuid(), os.getegid(), os.getpid()),
            check_pin=lambda _: None,
        )
        return challenge

    def response(self, key: SigningKey, scopes: int, life: float = 3600) -> fr.WorkloadResponse:
        """The answer to the challenge that came."""
        assert self.challenge is not None
        return make_response(self.challenge, key, scopes=scopes, requested_expiry=int(time.time() + life))

    def login(self, key: SigningKey, scopes: int = 0x3F, life: float = 3600, **changes: Any) -> Self:
        """The whole handshake."""
        self.start(**changes)
        self.send(self.response(key, scopes, life))
        self.welcome = self.expect(fr.CoordHelloOk)
        return self

    def ping(self) -> None:
        """Prove that the connection works."""
        self.send(fr.CoordPing(nonce=77))
        assert self.expect(fr.CoordPong).nonce == 77

    def request_id(self) -> int:
        self._request += 1
        return self._request

    @property
    def guard(self) -> Any:
        assert self.welcome is not None
        return self.welcome.activation_certificate.guard()

    def create(self, document: bytes = b'{"title":"x"}', *, operation: bytes | None = None) -> fr.CoordCommand:
        """A CREATE_OBJECTIVE of a fresh objective."""
        return fr.CoordCommand(
            request_id=self.request_id(),
            authority_guard=self.guard,
            operation_id=OperationId(operation or os.urandom(16)),
            command_kind=CommandKind.CREATE_OBJECTIVE,
            payload=CreateObjective(objective_id=objective_id(os.urandom(16)), schema=SCHEMA, document=document).body(),
        )

    def lookup(self, operation: bytes) -> fr.OperationResultFrame:
        """What the server knows of an operation."""
        self.send(
            fr.GetOperationResult(
                request_id=self.request_id(), authority_guard=self.guard, operation_id=OperationId(operation)
            )
        )
        return self.expect(fr.OperationResultFrame)

    def subscribe(self, after: int = 0, count: int = 4096, nbytes: int = 1 << 22) -> bytes:
        """A direct subscription; its id."""
        values: dict[str, Any] = {
            "request_id": self.request_id(),
            "authority_guard": self.guard,
            "after_event_sequence": after,
            "initial_credit_count": count,
            "initial_credit_bytes": nbytes,
        }
        self.send(fr.Subscribe(**values))
        return self.expect(fr.Subscribed).subscription_id
