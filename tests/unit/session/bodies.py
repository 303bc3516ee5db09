"""Bodies of the handshake with single fields changed, and the one image of a failed login."""

from __future__ import annotations

from cext.frame import encode_frame
from sidecar.coordinator.machines.connection import ConnectionState
from sidecar.coordinator.session import GENERIC_FAILURE
from sidecar.coordinator.wire import frames as fr
from sidecar.coordinator.wire.enums import ErrorCode, FrameType
from tests.unit.session.bench import House, Wire, hello

GENERIC = fr.CoordErrorFrame(code=ErrorCode.AUTHENTICATION_FAILED, message=GENERIC_FAILURE).encode()


def body_of(frame: fr.Frame) -> bytes:
    return frame.encode()[5:]


def fields_of(body: bytes) -> dict[int, bytes]:
    """Whole field images of a body by id; every length fits one varint byte."""
    found, at = {}, 0
    while at < len(body):
        end = at + 3 + body[at + 2]
        found[body[at]] = body[at:end]
        at = end
    return found


def hello_body(**changes: bytes | None) -> bytes:
    """The body of an accepted HELLO with fields replaced (`f13=...`) or left out (`f13=None`)."""
    fields: dict[int, bytes | None] = {**fields_of(body_of(hello()))}
    fields.update({int(name[1:]): value for name, value in changes.items()})
    return b"".join(fields[number] or b"" for number in sorted(fields))


def field(number: int, value: bytes) -> bytes:
    return bytes([number, 4, len(value)]) + value


def refused(body: bytes) -> tuple[int, House]:
    house = House()
    wire = house.open()
    wire.send(encode_frame(FrameType.COORD_HELLO, body))
    code, _ = wire.refusal()
    return code, house


def generic_failure(wire: Wire, *parts: bytes | fr.Frame) -> None:
    held = wire.house.world.used()
    wire.send(*parts)
    assert wire.session.take_output(wire.now) == [GENERIC]
    assert wire.session.state is ConnectionState.CLOSED
    assert wire.house.world.used() == held
