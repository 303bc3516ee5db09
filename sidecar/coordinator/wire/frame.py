"""What every frame is: a TLV body behind ``u32 length ‖ u8 type`` (P3-01)."""

from __future__ import annotations

import struct
from typing import Any, ClassVar

from cext.tlv import TlvError
from sidecar.coordinator.wire.enums import FrameType
from sidecar.coordinator.wire.errors import FrameTooLargeError, LocalProtocolError, MalformedMessage, ProtocolError
from sidecar.coordinator.wire.fields import Body, Field
from sidecar.coordinator.wire.limits import HARD
from sidecar.coordinator.wire.table import FRAME_TABLE, FrameRow

_HEADER = struct.Struct(">IB")

FRAMES: dict[int, type[Frame]] = {}
"""Class of each type; the classes in ``frames`` put themselves here."""


class Frame(Body):
    """Base of the frames; ``ROW`` says who may send it when, and how large."""

    TYPE: ClassVar[FrameType]
    ROW: ClassVar[FrameRow]

    def __init_subclass__(cls, *, type: FrameType, strict: bool = False) -> None:
        super().__init_subclass__(title=type.name, strict=strict)
        cls.TYPE = type
        cls.ROW = FRAME_TABLE[type]
        FRAMES[type] = cls

    def encode(self) -> bytes:
        """The whole message; ``LocalProtocolError`` when it is above the hard frame cap."""
        body = self.body()
        if len(body) + 1 > HARD.frame:
            raise LocalProtocolError(f"{self.TITLE} is longer than a frame may be")
        return _HEADER.pack(len(body) + 1, self.TYPE) + body

    @classmethod
    def typed_payload(cls) -> Field[Any] | None:
        """The field that the typed-payload cap bounds (P3-09), in the frames that have one."""
        if cls.ROW.cap != "T":
            return None
        return next(item for item in cls.FIELDS if item.name == "payload")

    @classmethod
    def _scan_error(cls, error: TlvError) -> type[ProtocolError]:
        bounded = cls.typed_payload()
        oversize = bounded is not None and error.reason == "cap" and error.field == bounded.id
        return FrameTooLargeError if oversize else MalformedMessage
