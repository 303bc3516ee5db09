"""What a server reads from COORD_HELLO, in the order in which it may (W3-03, W3-04, P5-03, P5-12..14)."""

from __future__ import annotations

from typing import Final

from cext.tlv import TlvError, decode_varint
from sidecar.coordinator.wire.enums import Capability
from sidecar.coordinator.wire.errors import CapabilityRequired, MalformedMessage, VersionIncompatible
from sidecar.coordinator.wire.frames import CoordHello
from sidecar.coordinator.wire.hello import decode_hello
from sidecar.coordinator.wire.limits import PROTOCOL

_BYTES: Final = 4
_MAJOR: Final = CoordHello.protocol_major.id
_MINOR: Final = CoordHello.protocol_minor.id


def read_version(body: memoryview) -> tuple[int, int]:
    """Major and minor, found by a walk that stops as soon as both are known: nothing behind them is looked at (W3-04).

    Raises MalformedMessage when the body breaks the encoding before that, or ends.
    """
    found: dict[int, int] = {}
    offset = 0
    try:
        while len(found) < 2:
            field, offset = decode_varint(body, offset)
            wire_type = body[offset]
            length, offset = decode_varint(body, offset + 1)
            if length > len(body) - offset:
                raise MalformedMessage("a field of COORD_HELLO is longer than the frame")
            if field in (_MAJOR, _MINOR):
                if wire_type != _BYTES or length != 2 or field in found:
                    raise MalformedMessage("the version fields of COORD_HELLO are malformed")
                found[field] = int.from_bytes(body[offset : offset + 2], "big")
            offset += length
    except (TlvError, IndexError):
        raise MalformedMessage("COORD_HELLO ends or breaks before its version fields") from None
    return found[_MAJOR], found[_MINOR]


def read_hello(body: memoryview) -> CoordHello:
    """The checked COORD_HELLO.

    Raises VersionIncompatible before a byte behind the version is interpreted, AuthenticationFailed when no workload
    proof of this profile is offered, MalformedMessage for everything that is no image of the frame.
    """
    major, minor = read_version(body)
    if (major, minor) != PROTOCOL[:2]:
        raise VersionIncompatible(f"this server speaks {PROTOCOL[0]}.{PROTOCOL[1]}, not {major}.{minor}")
    return decode_hello(body)


def select_capabilities(hello: CoordHello, supported: int) -> int:
    """Offered and supported bits (P5-12).

    Raises CapabilityRequired, fatal here, when a required bit was not offered (P5-13) or is not supported (P5-14).
    """
    negotiated = hello.offered_capabilities & supported
    if missing := hello.required_capabilities & ~negotiated:
        names = ", ".join(bit.name or "" for bit in Capability if bit & missing)
        raise CapabilityRequired(f"required, but not offered or not supported: {names or 'unknown bits'}", fatal=True)
    return negotiated
