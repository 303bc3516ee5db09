"""One Unix socket and the rules of the envelope: what may come, when, how long (P3-01 to P3-10, P7-02 to P7-04)."""

from __future__ import annotations

import contextlib
import socket
from pathlib import Path
from typing import Any, NoReturn

from tests.interop.phux import frames
from tests.interop.phux.enums import HANDSHAKE_FRAME, HARD_FRAME, ErrorCode
from tests.interop.phux.frames import SHAPES, Cap, Frame, State, Type
from tests.interop.phux.tlv import Malformed

PATIENCE_SECONDS = 30.0


class Closed(Exception):  # noqa: N818 - what happened
    """The server closed the connection: whatever was under way is indeterminate (P13-07)."""


class Fatal(Exception):  # noqa: N818 - what happened
    """The server sent a fatal error; it closes next."""

    def __init__(self, code: ErrorCode, request_id: int | None = None) -> None:
        super().__init__(f"{code.name} for request {request_id}")
        self.code = code
        self.request_id = request_id


class Violation(Exception):  # noqa: N818 - what happened
    """The server broke a rule that a client must hold; this side has closed with `code`."""

    def __init__(self, code: ErrorCode, why: str) -> None:
        super().__init__(f"{code.name}: {why}")
        self.code = code


class Connection:
    """Sends and receives whole frames. `sent` and `received` collect the types that went over the wire."""

    def __init__(self, path: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.settimeout(PATIENCE_SECONDS)
        self._socket.connect(str(path))
        self.state = State.PRE
        self.limits: dict[str, int] = {}
        self.sent: set[Type] = set()
        self.received: set[Type] = set()

    def close(self) -> None:
        self._socket.close()

    # ---- out ----

    def send(self, frame_type: Type, **values: Any) -> None:
        self.sent.add(frame_type)
        self.send_bytes(frames.encode(frame_type, **values))

    def send_bytes(self, data: bytes) -> None:
        """Raises Closed."""
        try:
            self._socket.sendall(data)
        except (BrokenPipeError, ConnectionResetError) as error:
            raise Closed from error

    def refuse(self, code: ErrorCode, why: str) -> NoReturn:
        """Tells the server by code (P13-05), closes, and raises Violation."""
        with contextlib.suppress(OSError, Closed):
            self.send(Type.COORD_ERROR, code=code, message="")
        self.close()
        raise Violation(code, why)

    # ---- in ----

    def receive(self) -> Frame:
        """The next frame. Raises Closed, Violation; TimeoutError when nothing comes."""
        head = self._read(5)  # length and type come first, nothing is reserved for the body yet (P3-03)
        length = int.from_bytes(head[:4], "big")
        if not 1 <= length <= HARD_FRAME:
            self.refuse(ErrorCode.FRAME_TOO_LARGE, f"length {length}")
        if head[4] not in list(Type):
            self.refuse(ErrorCode.PROTOCOL_ERROR, f"unknown type {head[4]:#x}")
        frame_type = Type(head[4])
        shape = SHAPES[frame_type]
        if not shape.to_client:
            self.refuse(ErrorCode.PROTOCOL_ERROR, f"{frame_type.name} from a server")
        if self.state not in shape.legal:
            self.refuse(ErrorCode.PROTOCOL_ERROR, f"{frame_type.name} in {self.state}")
        if length > self._cap(shape.cap):
            self.refuse(ErrorCode.FRAME_TOO_LARGE, f"{frame_type.name} of {length} bytes")
        try:
            frame = frames.decode(head + self._read(length - 1))
        except Malformed as error:
            self.refuse(ErrorCode.MALFORMED_MESSAGE, f"{frame_type.name}: {error}")
        if shape.cap is Cap.TYPED and len(frame["payload"]) > self.limits["max_typed_payload_bytes"]:
            self.refuse(ErrorCode.FRAME_TOO_LARGE, f"{frame_type.name} with a payload over the cap")
        self.received.add(frame_type)
        return frame

    def _cap(self, cap: Cap) -> int:
        """The most that `length` may be now (P3-06 to P3-08)."""
        if self.state is not State.ACT:
            return HANDSHAKE_FRAME
        frame = self.limits["max_frame_bytes"]
        return min(frame, self.limits["max_page_bytes"] + 1) if cap is Cap.PAGE else frame

    def _read(self, count: int) -> bytes:
        data = bytearray()
        while len(data) < count:
            try:
                part = self._socket.recv(min(count - len(data), 65_536))
            except ConnectionResetError as error:
                raise Closed from error
            if not part:
                raise Closed
            data += part
        return bytes(data)
