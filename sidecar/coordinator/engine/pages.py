"""A page around images as they are stored: no record and no event is decoded to be sent again (P9-10, P9-11, P10-29).

SNAPSHOT_PAGE and REPLAY_PAGE have the same fields under the same ids.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

from cext.tlv import Writer, encode_varint
from sidecar.coordinator.wire.enums import FrameType, WireType
from sidecar.coordinator.wire.frames import SnapshotPage

_HEADER = struct.Struct(">IB")
_COUNT = struct.Struct(">H")
"""The count in front of a list (E-22)."""
_SLACK = 2
"""Bytes by which the length of a full record list is longer than that of an empty one."""


class Page(NamedTuple):
    """A page that is ready to be sent."""

    frame: bytes
    images: memoryview
    """Where its images lie in the frame: what the digest covers."""


def page_frame(
    kind: FrameType,
    request_id: int,
    lease_id: bytes,
    cursor: bytes,
    index: int,
    images: Sequence[bytes],
    following: bytes | None,
) -> Page:
    """The whole frame around the images of records or events. Each image is copied once, to its place in the frame."""
    out = Writer()
    out.field_u32(SnapshotPage.request_id.id, request_id)
    out.field_raw(SnapshotPage.snapshot_id.id, lease_id)
    out.field_leaf(SnapshotPage.cursor.id, cursor)
    out.field_u32(SnapshotPage.page_index.id, index)
    before = out.take()
    size = sum(map(len, images))
    before += encode_varint(SnapshotPage.records.id) + bytes([WireType.BYTES]) + encode_varint(_COUNT.size + size)
    before += _COUNT.pack(len(images))
    if following is not None:
        out.field_leaf(SnapshotPage.next_cursor.id, following)
    behind = out.take()
    header = _HEADER.pack(1 + len(before) + size + len(behind), kind)
    frame = b"".join((header, before, *images, behind))
    at = len(header) + len(before)
    return Page(frame, memoryview(frame)[at : at + size])


def page_room(page_bytes: int, cursor_bytes: int) -> int:
    """Bytes of images that a page payload of ``page_bytes`` can hold, with both cursors in it (P3-27)."""
    cursor = bytes(cursor_bytes)
    empty = page_frame(FrameType.SNAPSHOT_PAGE, 1, bytes(16), cursor, 0, (), cursor).frame
    return page_bytes - (len(empty) - _HEADER.size) - _SLACK
