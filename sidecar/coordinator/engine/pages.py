"""A page around images as they are stored: no record and no event is decoded to be sent again (P9-10, P9-11, P10-29).

SNAPSHOT_PAGE and REPLAY_PAGE have the same fields under the same ids.
"""

from __future__ import annotations

from cext.tlv import Writer
from sidecar.coordinator.wire.enums import FrameType
from sidecar.coordinator.wire.frames import SnapshotPage

_COUNT = 2
"""Bytes of the count in front of a list (E-22)."""
_SLACK = 2
"""Bytes by which the length of a full record list is longer than that of an empty one."""


def page_frame(
    kind: FrameType,
    request_id: int,
    lease_id: bytes,
    cursor: bytes,
    index: int,
    count: int,
    images: bytes,
    following: bytes | None,
) -> bytes:
    """The whole frame; ``images`` are the joined images of ``count`` records or events."""
    out = Writer()
    out.field_u32(SnapshotPage.request_id.id, request_id)
    out.field_raw(SnapshotPage.snapshot_id.id, lease_id)
    out.field_leaf(SnapshotPage.cursor.id, cursor)
    out.field_u32(SnapshotPage.page_index.id, index)
    out.field_raw(SnapshotPage.records.id, count.to_bytes(_COUNT, "big") + images)
    if following is not None:
        out.field_leaf(SnapshotPage.next_cursor.id, following)
    return out.take_frame(kind)


def page_room(page_bytes: int, cursor_bytes: int) -> int:
    """Bytes of images that a page payload of ``page_bytes`` can hold, with both cursors in it (P3-27)."""
    cursor = bytes(cursor_bytes)
    header = 5
    return (
        page_bytes
        - (len(page_frame(FrameType.SNAPSHOT_PAGE, 1, bytes(16), cursor, 0, 0, b"", cursor)) - header)
        - _SLACK
    )
