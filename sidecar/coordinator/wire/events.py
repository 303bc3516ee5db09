"""What an event carries, and the bytes that all its receivers share (P7-21..24, P10-14)."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, TypeAlias

from cext.frame import numbered_frames
from cext.tlv import Cursor, Writer
from sidecar.coordinator.wire.codecs import Codec, decode_image
from sidecar.coordinator.wire.enums import EventKind, FrameType, ObjectKind
from sidecar.coordinator.wire.errors import MalformedMessage
from sidecar.coordinator.wire.ids import ID_SIZE, DeliverySequence, ObjectId, ObjectRevision, SubscriptionId
from sidecar.coordinator.wire.images import nested
from sidecar.coordinator.wire.payloads import COMPLETE_RECORD
from sidecar.coordinator.wire.records import ObjectRef, ReplayEvent, SnapshotRecord, SourceGap, TerminalSourceFact

EventPayload: TypeAlias = SnapshotRecord | TerminalSourceFact | SourceGap

EVENT_OBJECTS: dict[EventKind, frozenset[ObjectKind]] = {
    EventKind.OBJECTIVE_CHANGED: frozenset({ObjectKind.OBJECTIVE}),
    EventKind.RUN_CHANGED: frozenset({ObjectKind.RUN}),
    EventKind.WORK_SESSION_CHANGED: frozenset({ObjectKind.WORK_SESSION}),
    EventKind.BINDING_OPENED: frozenset({ObjectKind.BINDING}),
    EventKind.BINDING_ENDED: frozenset({ObjectKind.BINDING}),
    EventKind.ARTIFACT_REVISION_ADDED: frozenset({ObjectKind.ARTIFACT, ObjectKind.ARTIFACT_MANIFEST}),
    EventKind.SIGNAL_RAISED: frozenset({ObjectKind.SIGNAL}),
    EventKind.SIGNAL_ACKNOWLEDGED: frozenset({ObjectKind.SIGNAL}),
    EventKind.SIGNAL_SUPPRESSED: frozenset({ObjectKind.SIGNAL}),
    EventKind.SIGNAL_RESOLVED: frozenset({ObjectKind.SIGNAL}),
    EventKind.OPERATION_CHANGED: frozenset({ObjectKind.OPERATION}),
    EventKind.SOURCE_FACT_ADMITTED: frozenset({ObjectKind.BINDING}),
    EventKind.SOURCE_GAP: frozenset({ObjectKind.BINDING}),
    EventKind.EVIDENCE_SEALED: frozenset({ObjectKind.EVIDENCE}),
}
"""Families that an event of a kind may be about."""

_EVENT_PREFIX = bytes([FrameType.COORD_EVENT]) + b"\x01\x04\x10"
"""Type, and the header of field 1, an id."""
_FIELD_2_U64 = b"\x02\x04\x08"


def _payload_codec(kind: EventKind) -> Codec[Any]:
    if kind is EventKind.SOURCE_FACT_ADMITTED:
        return nested(TerminalSourceFact)
    if kind is EventKind.SOURCE_GAP:
        return nested(SourceGap)
    return COMPLETE_RECORD


EVENT_PAYLOADS: dict[EventKind, Codec[Any]] = {kind: _payload_codec(kind) for kind in EventKind}
"""Exactly one record, fact or gap fills the payload of an event."""


def decode_event_payload(kind: EventKind, payload: bytes | memoryview) -> EventPayload:
    """The content of an event's payload; raises ``MalformedMessage`` (P7-21..23)."""
    content: EventPayload = decode_image(EVENT_PAYLOADS[kind], payload)
    return content


def event_content(
    kind: EventKind, subject: ObjectRef, revision: ObjectRevision, payload: bytes | memoryview
) -> EventPayload:
    """The content of an event whose parts agree: its payload is about the very object and revision (P7-21).

    Raises ``MalformedMessage``.
    """
    if subject.kind not in EVENT_OBJECTS[kind]:
        raise MalformedMessage(f"{kind.name} is not about {subject.kind.name}")
    content = decode_event_payload(kind, payload)
    if isinstance(content, SnapshotRecord):
        same = content.id == subject.id and content.kind is subject.kind and content.revision == revision
    elif isinstance(content, TerminalSourceFact):
        same = subject.id == ObjectId(content.source.binding_id)
    else:
        same = subject.id == ObjectId(content.binding_id)
    if not same:
        raise MalformedMessage("the payload is about another object or revision")
    return content


def replayed_content(event: ReplayEvent) -> EventPayload:
    """The content of an event of a decoded page, which was decoded with the page."""
    content: EventPayload | None = event.content
    return decode_event_payload(event.event_kind, event.payload) if content is None else content


def _complete(codec: Codec[ReplayEvent]) -> Codec[ReplayEvent]:
    def read(cursor: Cursor) -> ReplayEvent:
        found = codec.read(cursor)
        content = event_content(found.event_kind, found.object, found.object_revision, found.payload)
        object.__setattr__(found, "content", content)
        return found

    return replace(codec, read=read)


COMPLETE_EVENT: Codec[ReplayEvent] = _complete(nested(ReplayEvent))
"""A ReplayEvent whose payload is decoded too and kept: what a client takes from replay pages."""


def event_tail(event: ReplayEvent) -> bytes:
    """Fields 3..9 of COORD_EVENT: the part that is the same for every subscription. Build it once per event."""
    out = Writer()
    out.field_u64(3, event.event_sequence)
    out.field_raw(4, event.event_id)
    out.field_u16(5, event.event_kind)
    out.field_raw(6, event.object.encode())
    out.field_u64(7, event.object_revision)
    out.field_u16(8, event.schema)
    out.field_leaf(9, event.payload)
    return out.take()


_IMAGE_HEAD = struct.Struct(">Q16sHH16sQHI")
IMAGE_HEAD_BYTES = _IMAGE_HEAD.size
"""Bytes of a ReplayEvent image in front of its payload (P10-26)."""


def event_image(
    sequence: int,
    event_id: bytes,
    kind: int,
    object_kind: int,
    object_id: bytes,
    revision: int,
    schema: int,
    payload: bytes,
) -> bytes:
    """The image of ``ReplayEvent`` from its plain columns: a long replay makes many, and none needs an object."""
    return _IMAGE_HEAD.pack(sequence, event_id, kind, object_kind, object_id, revision, schema, len(payload)) + payload


def event_frames(subscription: SubscriptionId, first: DeliverySequence, tails: Iterable[bytes]) -> list[bytes]:
    """Whole COORD_EVENTs for one subscription from shared tails, with the deliveries from ``first`` on.

    Each is equal to ``CoordEvent(...).encode()``. ``OverflowError`` when a delivery would wrap.
    """
    return numbered_frames(_EVENT_PREFIX + subscription + _FIELD_2_U64, first, tails)


EVENT_HEAD_BYTES = 4 + len(_EVENT_PREFIX) + ID_SIZE + len(_FIELD_2_U64) + 8
"""Bytes of a COORD_EVENT in front of its tail: ``EVENT_HEAD_BYTES + len(tail)`` is what credit is debited (P10-06)."""
