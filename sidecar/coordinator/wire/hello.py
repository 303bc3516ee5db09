"""Reading COORD_HELLO in the order that discloses least (W3-03, W3-17, P5-03).

The version decides before anything else is looked at, then whether the offer is of this profile at all, then the rest.
"""

from __future__ import annotations

from cext.tlv import FIXED, RAW, Schema, TlvError
from sidecar.coordinator.wire.errors import AuthenticationFailed, MalformedMessage, VersionIncompatible
from sidecar.coordinator.wire.frames import CoordHello
from sidecar.coordinator.wire.limits import HANDSHAKE_FRAME, PROFILE, PROTOCOL
from sidecar.coordinator.wire.records import WorkloadOffer

_MAJOR = CoordHello.protocol_major.id
_MINOR = CoordHello.protocol_minor.id
_OFFER = CoordHello.workload_offer.id

_GLANCE = Schema(
    [
        (_MAJOR, FIXED, 2, 2, True),
        (_MINOR, FIXED, 2, 2, True),
        (_OFFER, RAW, 0, HANDSHAKE_FRAME, False),
    ]
)
"""Knows the version and where the offer is; every other field is skipped unread (W3-04)."""


def decode_hello(data: bytes | bytearray | memoryview) -> CoordHello:
    """A COORD_HELLO of this version and profile.

    Raises ``VersionIncompatible`` when major or minor differ, whatever else is in the frame; ``AuthenticationFailed``
    when the workload offer is absent or names another profile; ``MalformedMessage`` for everything else.
    """
    try:
        glance = _GLANCE.scan(data)
    except TlvError as error:
        raise MalformedMessage(f"COORD_HELLO: {error.reason}") from None
    if (glance.u16(_MAJOR), glance.u16(_MINOR)) != PROTOCOL[:2]:
        raise VersionIncompatible(f"this server speaks {PROTOCOL[0]}.{PROTOCOL[1]}")
    if not glance.has(_OFFER):
        raise AuthenticationFailed("no workload offer")
    image = glance.raw(_OFFER)
    named = image[4 : 4 + len(PROFILE)]
    if len(image) == WorkloadOffer.CODEC.lo and image[:4] == WorkloadOffer.LEAD[:4] and named != PROFILE:
        raise AuthenticationFailed("the workload offer is of another profile")
    return CoordHello.decode(data)
