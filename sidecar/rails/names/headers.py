"""Header names, ack bodies and other literals of the messaging contract (Data D8)."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from typing import Final

from sidecar.rails.names import limits
from sidecar.rails.names.principals import Lifecycle

_HEADER_ID: Final = re.compile(rf"[!-~]{{1,{limits.MAX_MESSAGE_ID}}}")

MESSAGE_ID = "Nats-Msg-Id"
"""Equals ``CotalMessage.id``; absent on a backstop publish of an empty id and on every endpoint submission (C8-59)."""
EXPECTED_LAST_SEQUENCE = "Nats-Expected-Last-Subject-Sequence"
"""Compare-and-set on one subject; ``0`` creates."""
EXPECTED_LAST_ID = "Nats-Expected-Last-Msg-Id"
EXPECTED_STREAM = "Nats-Expected-Stream"
ROLLUP = "Nats-Rollup"
ROLLUP_SUBJECT = "sub"
TTL = "Nats-TTL"
"""Only on credential rows of the auth bucket; refused by CHAT (C8-05)."""
SCHEDULE = "Nats-Schedule"
SCHEDULE_TARGET = "Nats-Schedule-Target"
SCHEDULER = "Nats-Scheduler"
KV_OPERATION = "KV-Operation"
KV_DELETE, KV_PURGE = "DEL", "PURGE"
KV_MARKERS = frozenset((KV_DELETE, KV_PURGE))
MARKER_REASON = "Nats-Marker-Reason"
"""On a marker that the broker itself puts where a value has aged out."""
STATUS = "Status"
NO_RESPONDERS = "503"

TRANSFER_OFFSET = "Cotal-Offset"
TRANSFER_CHUNK = "Cotal-Chunk"
DELIVERY_LIMIT = "Cotal-Delivery-Limit"
"""DLV count in force when a copy was written: a whole number, or ``none`` (C8-54)."""
DELIVERY_LIMIT_NONE = "none"
COPY_SUBJECT = "Cotal-Subject"
"""On a backstop copy: the subject that the post was published on."""
COPY_SEQUENCE = "Cotal-Sequence"
"""On a backstop copy: the post's CHAT sequence."""
COPY_WHY = "Cotal-Why"
"""On a backstop copy: ``channel`` for a member of the channel, ``mention`` for a mentioned peer."""

ANYCAST_NOTICE = "cotalAnycastNotice"
"""Key of the data part that tells a sender about its anycast request."""

ACK, NAK, TERM, PROGRESS = b"+ACK", b"-NAK", b"+TERM", b"+WPI"

STREAM, SUBJECT, SEQUENCE, TIMESTAMP = "Nats-Stream", "Nats-Subject", "Nats-Sequence", "Nats-Time-Stamp"
LAST_SEQUENCE = "Nats-Last-Sequence"
PENDING = "Nats-Num-Pending"
KNOWN = (
    *(STREAM, SUBJECT, SEQUENCE, TIMESTAMP, LAST_SEQUENCE, PENDING, MESSAGE_ID, KV_OPERATION, STATUS),
    *(DELIVERY_LIMIT, COPY_SUBJECT, COPY_SEQUENCE, COPY_WHY),
)
"""The names of most headers that come."""
PROVENANCE = frozenset(name.lower() for name in (STREAM, SUBJECT, SEQUENCE, TIMESTAMP))
"""What the broker adds when it delivers stored bytes to a subject that a requester chose; lower case."""

DETAIL_BIND_REFUSED = "ai.cotal.ep.bind-refused"
DETAIL_UNBOUND_RESPONDER = "ai.cotal.ep.unbound-responder"
DETAIL_UNBOUND_AUTHORITY = "ai.cotal.ep.unbound-caller-authority"
DETAIL_UNMAPPED = "ai.cotal.ep.target-unmapped"
TRAIT_GUARDED = "ai.cotal.guarded"
TRAIT_PRICED = "ai.cotal.priced"

CLAIM_CREDENTIAL = "act.credentialId"
CLAIM_MANAGER = "act.managerInstanceId"
CLAIM_SESSION = "act.session"
CLAIM_TRANSFER = "act.transferWriter"

JOIN_SCHEMES = ("cotal", "cotals")
"""Join links without and with TLS."""


def carries_provenance(names: Iterable[str]) -> bool:
    """Whether a frame's header names, in any case, mark stored bytes: where a live publish is expected, such a frame
    was redirected there by a read and is discarded."""
    for name in names:  # noqa: SIM110 - asked for every message, of which most have one header
        if name.lower() in PROVENANCE:
            return True
    return False


def says_nobody(found: Mapping[str, str] | None, data: bytes, subject: str) -> bool:
    """Whether a message on a reply subject is the broker's word that nobody listened to a request to ``subject``. Newer
    brokers name the subject in it, in a header of stored messages; none of the other such headers is there."""
    told = {name.lower(): value for name, value in (found or {}).items()}
    if data or told.get(STATUS.lower()) != NO_RESPONDERS:
        return False
    return told.pop(SUBJECT.lower(), subject) == subject and not PROVENANCE & told.keys()


def copy_id(message_id: str, member: Lifecycle) -> str | None:
    """Message id of one member's backstop copy: what every covering membership of one post shares, so that the
    duplicate window keeps one (C8-50). None for an empty id, whose copies carry none (C8-59). An id that no header can
    hold as it is, or that is longer than one that we publish, is named by its digest."""
    if not message_id:
        return None
    if _HEADER_ID.fullmatch(message_id) is None:
        message_id = f"=sha256={hashlib.sha256(message_id.encode('utf-8', 'surrogatepass')).hexdigest()}"
    return f"{message_id}:{member.principal.dot}:{member.uid}"
