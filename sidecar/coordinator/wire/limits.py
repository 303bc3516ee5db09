"""Versions, names and every bound of the protocol, once (P1-01, P3-20..53, W1-01, W1-03).

Structural bounds (cursor, name, diagnostic, preconditions) hold everywhere at their hard cap. Six limits are negotiated
(``select``); the others are the server's policy at or below the hard cap, per connection and in aggregate (``QUOTAS``).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from typing import NamedTuple

from sidecar.coordinator.wire.errors import LocalProtocolError, MalformedMessage

PROTOCOL = (0, 1, 0)
"""Major, minor, patch. Major and minor must match, the patch may differ (P5-03, P5-04)."""
ALPN = b"phux-coordinator/1"
SERVICE = b"phux-coordinator"
PROFILE = b"phux-workload/v1"
SCHEMA = 1
"""Schema of documents, records, facts and events in this version (P7-24)."""
CERTIFICATE_VERSION = 1
WHOLE_AUTHORITY_SELECTOR = 0

HANDSHAKE_FRAME = 16_384
"""Cap on ``length`` of every frame before HELLO_OK (P3-06)."""
MAX_CURSOR = 4_096
MAX_RESOURCE_ID = 4_096
MAX_GROUP_ID = 4_096
MAX_HOST = 255
MAX_NAME = 128
MAX_PRECONDITIONS = 64
MAX_SERVICE = 64
FRAME_SLACK = 512
"""Bytes by which page and typed payload stay below the frame (P3-22, P3-23)."""

LEASE_SECONDS = 60
CERTIFICATE_SECONDS = 60
CHALLENGE_SECONDS = 5
HELLO_SECONDS = 10
"""From accept to a complete HELLO; pings do not extend it."""
RETENTION_FLOOR = 2_592_000
"""Seconds for which a final operation result is kept at least (P5-10)."""

EVENT_OVERHEAD = 116
"""Bytes of a whole COORD_EVENT beside its payload content, at the widest varint length (P3-24)."""
PAGE_OVERHEAD = 9 * 1_024
"""Room that a page needs beside its records: two cursors of 4 KiB and the fixed fields."""

_SERVICE_GRAMMAR = re.compile(rb"[a-z0-9\-/.]{1,%d}" % MAX_SERVICE)


@dataclass(frozen=True, slots=True)
class Limits:
    """The six negotiated limits, in bytes or counts (HELLO 7-12)."""

    frame: int
    """Cap on ``length`` (type + payload) of a frame."""
    page_bytes: int
    """Cap on the payload of a page frame."""
    page_records: int
    """Records or events in one page."""
    typed_payload: int
    """Content bytes of the ``payload`` field of commands and events."""
    credit_count: int
    """Most events that a credit balance may hold."""
    credit_bytes: int
    """Most bytes that a credit balance may hold."""


Selected = Limits
"""A negotiated result of :func:`select`."""

HARD = Limits(
    frame=1_048_576,
    page_bytes=524_288,
    page_records=1_024,
    typed_payload=262_144,
    credit_count=4_096,
    credit_bytes=8_388_608,
)
REFERENCE = Limits(
    frame=524_288,
    page_bytes=262_144,
    page_records=512,
    typed_payload=131_072,
    credit_count=1_024,
    credit_bytes=4_194_304,
)


class QuotaCaps(NamedTuple):
    """Hard ceilings of one resource; ``None`` where a level has no ceiling of its own."""

    connection: int | None
    principal: int | None
    server: int | None


QUOTAS: dict[str, QuotaCaps] = {
    "connections": QuotaCaps(None, 16, 256),
    "requests": QuotaCaps(256, 512, 8_192),
    "leases": QuotaCaps(8, 16, 256),
    "pinned_bytes": QuotaCaps(None, 32 * 1_048_576, 512 * 1_048_576),
    "subscriptions": QuotaCaps(32, 64, 2_048),
    "queue_frames": QuotaCaps(None, 4_096, 65_536),
    "queue_bytes": QuotaCaps(None, 16 * 1_048_576, 256 * 1_048_576),
    "pending_operations": QuotaCaps(None, 10_000, 100_000),
}
"""Aggregate resources (P3-33, P3-34, P3-38, P3-41..47). A new connection does not reset the principal's share."""

QUEUE_FRAMES = 1_024
QUEUE_BYTES = 4 * 1_048_576
"""Unsent queue of one subscription (P3-36)."""
CONTROL_FRAMES = 32
CONTROL_BYTES = 65_536
"""Reserved control lane of one connection (P3-37)."""

REFERENCE_REQUESTS = 128
REFERENCE_SUBSCRIPTIONS = 16
REFERENCE_LEASES = 4
REFERENCE_PRECONDITIONS = 32
"""What the reference client keeps to."""


def check_offer(offer: Limits) -> None:
    """Refuse an offer of zero or above a hard cap (P3-21); raises ``MalformedMessage``."""
    for field in fields(Limits):
        value = getattr(offer, field.name)
        if not 1 <= value <= getattr(HARD, field.name):
            raise MalformedMessage(f"offered {field.name} is outside 1..{getattr(HARD, field.name)}")


def select(offer: Limits, server: Limits) -> Selected:
    """The limits of a connection: the smaller of each pair (P3-20).

    Raises ``MalformedMessage`` when an offer is outside its range (P3-21) or the selected set can not work: page or
    typed payload not 512 bytes below the frame (P3-22, P3-23), or credit below one event of the largest size (P3-24).
    """
    check_offer(offer)
    chosen = Limits(*(min(getattr(offer, field.name), getattr(server, field.name)) for field in fields(Limits)))
    if chosen.page_bytes > chosen.frame - FRAME_SLACK:
        raise MalformedMessage("selected page bytes leave less than 512 bytes of the frame")
    if chosen.typed_payload > chosen.frame - FRAME_SLACK:
        raise MalformedMessage("selected typed payload leaves less than 512 bytes of the frame")
    if chosen.credit_bytes < largest_event(chosen.typed_payload):
        raise MalformedMessage("selected credit bytes can not hold one event of the largest size")
    return chosen


def largest_event(typed_payload: int) -> int:
    """Whole bytes of a COORD_EVENT whose payload content has ``typed_payload`` bytes (P3-24)."""
    image = typed_payload + 4
    return typed_payload + EVENT_OVERHEAD - (image < 16_384) - (image < 128)


def check_service(service: bytes) -> None:
    """Refuse a service name outside the profile's grammar (W1-04); raises ``LocalProtocolError``."""
    if _SERVICE_GRAMMAR.fullmatch(service) is None:
        raise LocalProtocolError(f"a service is 1..{MAX_SERVICE} bytes of a-z 0-9 - / .")
