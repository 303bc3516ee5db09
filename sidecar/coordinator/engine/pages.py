"""A snapshot page around record images as they are stored: no record is decoded to be sent again (P9-10, P9-11)."""

from __future__ import annotations

from cext.tlv import Writer
from sidecar.coordinator.wire.enums import FrameType
from sidecar.coordinator.wire.frames import SnapshotPage

_COUNT = 2
"""Bytes of the count in front of a list (E-22)."""
_SLACK = 2
"""Bytes by which the length of a full record list is longer than that of an empty one."""


def snapshot_page(
    request_id: int, snapshot_id: bytes, cursor: bytes, index: int, count: int, records: bytes, following: bytes | None
) -> bytes:
    """The whole frame; ``records`` are the joined images of ``count`` records."""
    out = Writer()
    out.field_u32(SnapshotPage.request_id.id, request_id)
    out.field_raw(SnapshotPage.snapshot_id.id, snapshot_id)
    out.field_leaf(SnapshotPage.cursor.id, cursor)
    out.field_u32(SnapshotPage.page_index.id, index)
    out.field_raw(SnapshotPage.records.id, count.to_bytes(_COUNT, "big") + records)
    if following is not None:
        out.field_leaf(SnapshotPage.next_cursor.id, following)
    return out.take_frame(FrameType.SNAPSHOT_PAGE)


def page_room(page_bytes: int, cursor_bytes: int) -> int:
    """Bytes of record images that a page payload of ``page_bytes`` can hold, with both cursors in it (P3-27)."""
    cursor = bytes(cursor_bytes)
    header = 5
    return page_bytes - (len(snapshot_page(1, bytes(16), cursor, 0, 0, b"", cursor)) - header) - _SLACK
