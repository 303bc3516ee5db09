"""Bytes that no client would send, and what the server says to them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tests.interop.phux import frames
from tests.interop.phux.connection import Closed, Connection
from tests.interop.phux.enums import ErrorCode
from tests.interop.phux.frames import Frame, Type
from tests.interop.phux.tlv import field_bytes, split

Fields = dict[int, bytes]


def fields_of(frame_type: Type, **values: Any) -> Fields:
    """The TLV fields of a canonical frame, to be spoilt one by one."""
    return dict(split(frames.encode_body(frame_type, values)))


def body_of(fields: Fields | Sequence[tuple[int, bytes]]) -> bytes:
    """A body of the fields as they are given."""
    pairs = fields.items() if isinstance(fields, dict) else fields
    return b"".join(field_bytes(field_id, value) for field_id, value in pairs)


def header(length: int, frame_type: int) -> bytes:
    """The first five bytes of a message."""
    return length.to_bytes(4, "big") + bytes([frame_type])


def verdict(connection: Connection, data: bytes) -> Frame:
    """Send the bytes; the one COORD_ERROR after which the server closes."""
    connection.send_bytes(data)
    errors: list[Frame] = []
    try:
        while True:
            frame = connection.receive()
            assert not errors, f"{frame.type.name} after the last words"
            if frame.type is Type.COORD_ERROR:
                errors.append(frame)
    except Closed:
        connection.close()
    assert len(errors) == 1, "closed without a word"
    return errors[0]


def refuses(connection: Connection, data: bytes, code: ErrorCode) -> Frame:
    """Assert that the bytes end the connection with this code; the error frame."""
    frame = verdict(connection, data)
    assert frame["code"] is code
    return frame


def answer(connection: Connection, data: bytes) -> Frame:
    """Send the bytes; the first frame that comes because of them."""
    connection.send_bytes(data)
    while (frame := connection.receive()).type is Type.COORD_AUTHORITY_RENEWED:
        pass
    return frame
