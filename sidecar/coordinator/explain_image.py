"""The walk through one body, for ``explain``: TLV fields, positional records, and what holds between them.

It reads plain values with the codecs of the tables, and everything that nests with the parts that they name.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum, IntFlag
from hashlib import sha256
from typing import Any, Final, NamedTuple, NoReturn

from cext.tlv import BOOL, FIXED, NONZERO, Cursor, TlvError
from sidecar.coordinator.wire.codecs import Codec, FramedOf, ListOf, OptionalOf
from sidecar.coordinator.wire.enums import AdminKind, EventKind, ObjectKind, SourceFactKind
from sidecar.coordinator.wire.errors import MalformedMessage
from sidecar.coordinator.wire.events import EVENT_OBJECTS, EVENT_PAYLOADS
from sidecar.coordinator.wire.fields import Body, Field, Frame
from sidecar.coordinator.wire.frames import CoordCommand, CoordEvent
from sidecar.coordinator.wire.images import Record, nested
from sidecar.coordinator.wire.payloads import COMMANDS, RECORD_PAYLOADS, AdminRecord
from sidecar.coordinator.wire.records import ADMIN_PAYLOADS, ReplayEvent, SnapshotRecord
from sidecar.coordinator.wire.results import RESULT_PAYLOADS, Succeeded
from sidecar.coordinator.wire.terminal import FACT_PAYLOADS, SourceGap, TerminalSourceFact

BYTES: Final = 4
"""The one wire type of a body (E-09)."""
MAX_FIELD: Final = 0xFFFFFFFF
_CLIP: Final = 32
"""Bytes of a value that are shown."""
_SHORTENED: Final = frozenset(
    {
        "authority_proof",
        "client_nonce",
        "cursor",
        "fencing_token",
        "first_cursor",
        "next_cursor",
        "server_nonce",
        "signature",
        "workload_proof",
    }
)
"""Whoever reads along must not get these from a report: of them only a digest is shown."""
_TOPICS: Final = {
    "u32 ≠ 0": "P7-09",
    "u64 ≠ 0": "P4-04",
    "id16": "P4-01",
    "nonce32": "W3-08",
    "u16 = 1": "P7-24",
    "u8 = 0": "P7-14",
    "u64 Scope": "P6-02",
    "u64 ≥": "P5-10",
    '"': "W1-01",
    "u16 ErrorCode": "P13-02",
    "u8 GapReason": "P10-21",
    "u8 ChannelBinding": "W5-01",
    "u8 IndeterminateReason": "P7-12",
    "u16 ObjectKind": "P7-12",
    "u16 ResultKind": "P7-12",
    "u16 EventKind": "P7-12",
    "u16 SignalKind": "P7-12",
    "u16 AdminKind": "P7-12",
    "u8": "P7-27",
    "u16": "P7-27",
}
"""How the documentation of a codec begins, and the row that a value outside of its set breaks."""
_REASONS: Final = {
    "truncated": ("E-14", "is cut off"),
    "length": ("E-17", "its leaf length is beyond the end of the value"),
    "cap": ("E-17", "its leaf is longer than its cap"),
    "zero": ("P4-01", "is all zero"),
    "presence": ("E-19", "is neither 0 nor 1"),
    "bool": ("E-19", "is neither 0 nor 1"),
}
"""What the reader of plain values says: the row and the words."""


class Item(NamedTuple):
    """One thing that was read."""

    offset: int
    depth: int
    id: int | None
    """Field id; None for a column of a record."""
    name: str
    type: str
    value: str


class Fault(NamedTuple):
    """The first thing that is wrong."""

    offset: int
    row: str
    """The requirement that it breaks."""
    problem: str


class Stop(Exception):  # noqa: N818 - the end of a walk
    """The walk met a fault."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(fault.problem)
        self.fault = fault


def refuse(offset: int, row: str, problem: str) -> NoReturn:
    """End the walk."""
    raise Stop(Fault(offset, row, problem))


def plural(count: int) -> str:
    """``1 byte``, ``2 bytes``."""
    return f"{count} byte{'' if count == 1 else 's'}"


def shown(name: str, value: Any) -> str:
    """A plain value in one short printable line."""
    if value is None:
        return "absent"
    if isinstance(value, bytes):
        if name in _SHORTENED:
            return f"digest {sha256(value).hexdigest()[:8]}.. of {plural(len(value))}"
        text = _printable(value) if len(value) not in (16, 32, 64) else None
        return f"{text or value[:_CLIP].hex() or '(empty)'}{_rest(value)}"
    if isinstance(value, IntFlag):
        names = "|".join(bit.name or "" for bit in type(value) if bit & value)
        return f"{names or 'none'} (0x{int(value):x})"
    if isinstance(value, IntEnum):
        return f"{value.name} ({int(value)})"
    if isinstance(value, str):
        return f"{value[:_CLIP]!a}{_rest(value.encode())}"
    return str(value)


def _rest(value: bytes) -> str:
    return f".. {plural(len(value))} in all" if len(value) > _CLIP else ""


def _printable(value: bytes) -> str | None:
    try:
        text = value[:_CLIP].decode("ascii")
    except UnicodeDecodeError:
        return None
    return ascii(text) if text.isprintable() and text else None


class Walk:
    """Reads ``data``, whose first byte is at ``base`` of what the user gave. ``items`` is what was read so far."""

    def __init__(self, data: bytes, base: int) -> None:
        self._data = data
        self._base = base
        self.items: list[Item] = []

    # ---- bodies ----

    def frame(self, shape: type[Frame], start: int) -> None:
        """The body of a frame, which goes to the end. Raises Stop."""
        values = self.body(shape, start, len(self._data), 1)
        if shape is CoordEvent:
            self._event(values, 2)
        elif shape is CoordCommand:
            self._command(values)

    def body(self, shape: type[Body], start: int, end: int, depth: int) -> dict[str, Any]:
        """A run of TLV fields: values by field name, and ``name@`` where the value's image begins."""
        known: dict[int, Field[Any]] = {item.id: item for item in shape.FIELDS}
        seen: set[int] = set()
        values: dict[str, Any] = {}
        at, last = start, 0
        while at < end:
            field_at = at
            field_id, at = self._field_id(at, end)
            item = known.get(field_id)
            at, stop = self._extent(field_id, item, at, end)
            if field_id in seen:
                refuse(field_at, "E-25" if shape.STRICT else "E-08", f"field {field_id} occurs twice")
            if shape.STRICT and item is None:
                refuse(field_at, "E-25", f"field {field_id} is unknown, which this frame does not allow")
            if shape.STRICT and field_id < last:
                refuse(field_at, "E-25", f"field {field_id} stands behind field {last}")
            seen.add(field_id)
            last = field_id
            if item is None:
                raw = shown("", self._data[at:stop][: _CLIP + 1])
                self._tell(at, depth, field_id, "?", f"unknown, {plural(stop - at)}", raw)
            else:
                values[item.name] = self._field(item, at, stop, depth)
                values[f"{item.name}@"] = at
            at = stop
        for item in shape.FIELDS:
            if item.required and item.id not in seen:
                refuse(self._at(end), _missing_row(shape), f"field {item.id} {item.name} is missing")
        if issubclass(shape, AdminRecord):
            kind: AdminKind = values["admin_kind"]
            self._inside(nested(ADMIN_PAYLOADS[kind]), values["payload@"], values["payload"], depth + 1)
        return values

    def _field_id(self, at: int, end: int) -> tuple[int, int]:
        field_id, after = self._varint(at, end, "a field id")
        if not 1 <= field_id <= MAX_FIELD:
            refuse(self._at(at), "E-11", f"field id {field_id} is outside 1..{MAX_FIELD}")
        return field_id, after

    def _extent(self, field_id: int, item: Field[Any] | None, at: int, end: int) -> tuple[int, int]:
        """Where the value of a field begins and ends."""
        name = f"field {field_id}" + ("" if item is None else f" {item.name}")
        if at >= end:
            refuse(self._at(at), "E-02", f"{name}: the body ends before its wire type")
        if self._data[at] != BYTES:
            row = "E-09" if item is None else "E-10"
            refuse(self._at(at), row, f"{name}: wire type {self._data[at]} instead of {BYTES}")
        size, value_at = self._varint(at + 1, end, f"{name}: its length")
        if size > end - value_at:
            refuse(self._at(at + 1), "E-05", f"{name}: declares {plural(size)}, {end - value_at} are left")
        return value_at, value_at + size

    def _varint(self, at: int, end: int, what: str) -> tuple[int, int]:
        value = 0
        for index in range(10):
            if at + index >= end:
                refuse(self._at(at), "E-04", f"{what} is a varint that ends early")
            byte = self._data[at + index]
            value |= (byte & 0x7F) << 7 * index
            if byte < 0x80:
                if index and not byte:
                    refuse(self._at(at), "E-04", f"{what} is a varint in {index + 1} bytes, not in its shortest form")
                if value >> 64:
                    break
                return value, at + index + 1
        refuse(self._at(at), "E-04", f"{what} is a varint beyond 64 bits")

    # ---- values ----

    def _field(self, item: Field[Any], at: int, end: int, depth: int) -> Any:
        value, after = self.value(item.codec, item.name, at, end, depth, item.id)
        if after != end:
            row = "E-14" if item.codec.kind & ~NONZERO in (FIXED, BOOL) and item.codec.parts is None else "E-23"
            refuse(self._at(after), row, f"field {item.id} {item.name}: {plural(end - after)} behind the value")
        return value

    def value(self, codec: Codec[Any], name: str, at: int, end: int, depth: int, id_: int | None) -> tuple[Any, int]:
        """One value that begins at ``at``, and where it ends."""
        parts = codec.parts
        if parts is None:
            return self._plain(codec, name, at, end, depth, id_)
        if isinstance(parts, OptionalOf):
            return self._optional(parts, name, at, end, depth, id_)
        if isinstance(parts, FramedOf):
            return self._framed(parts, name, at, end, depth, id_)
        head = len(self.items)
        self._tell(at, depth, id_, name, codec.doc, "")
        if isinstance(parts, ListOf):
            found, after = self._listing(parts, name, at, end, depth)
            self.items[head] = self.items[head]._replace(value=f"{len(found)} in all")
            return found, after
        if isinstance(parts, Mapping):
            if at >= end:
                refuse(self._at(at), "E-23", f"{name}: is cut off before its tag")
            member = parts.get(self._data[at])
            if member is None:
                refuse(self._at(at), "E-21", f"{name}: tag {self._data[at]} is not allocated")
            parts = member
            self.items[head] = self.items[head]._replace(value=member.__name__)
        return self.record(parts, name, at, end, depth + 1)

    def _plain(self, codec: Codec[Any], name: str, at: int, end: int, depth: int, id_: int | None) -> tuple[Any, int]:
        cursor = Cursor(self._data, at, end)
        try:
            value = codec.read(cursor)
        except TlvError as error:
            if error.reason == "utf8":
                refuse(self._at(at), "E-18", f"{name}: is not UTF-8")
            row, problem = _REASONS[error.reason]
            if error.reason == "cap" and name == "payload":
                row = "P3-09"
            refuse(self._at(at), row, f"{name}: {problem} ({codec.doc}, {plural(end - at)} here)")
        except MalformedMessage as error:
            refuse(self._at(at), _topic(codec), f"{name}: {error.message}")
        self._tell(at, depth, id_, name, codec.doc, shown(name, value))
        return value, end - cursor.remaining

    def _optional(
        self, parts: OptionalOf, name: str, at: int, end: int, depth: int, id_: int | None
    ) -> tuple[Any, int]:
        if at >= end or self._data[at] > 1:
            problem = "is cut off" if at >= end else f"presence byte {self._data[at]}"
            refuse(self._at(at), "E-20", f"{name}: {problem}")
        if self._data[at]:
            return self.value(parts.codec, name, at + 1, end, depth, id_)
        self._tell(at, depth, id_, name, f"optional<{parts.codec.doc}>", "absent")
        return None, at + 1

    def _framed(self, parts: FramedOf, name: str, at: int, end: int, depth: int, id_: int | None) -> tuple[Any, int]:
        if end - at < 4:
            refuse(self._at(at), "E-17", f"{name}: is cut off inside its length")
        size, start = int.from_bytes(self._data[at : at + 4], "big"), at + 4
        if size > min(end - start, parts.high):
            most = min(end - start, parts.high)
            refuse(self._at(at), "E-17", f"{name}: declares {plural(size)}, at most {most} are possible")
        value, after = self.value(parts.codec, name, start, start + size, depth, id_)
        if after != start + size:
            refuse(self._at(after), "E-23", f"{name}: {plural(start + size - after)} behind the value")
        return value, after

    def _listing(self, parts: ListOf, name: str, at: int, end: int, depth: int) -> tuple[list[Any], int]:
        if end - at < 2:
            refuse(self._at(at), "E-22", f"{name}: is cut off inside its count")
        count, after = int.from_bytes(self._data[at : at + 2], "big"), at + 2
        if count > parts.cap:
            refuse(self._at(at), "P3-60", f"{name}: {count} elements, at most {parts.cap} are allowed")
        found: list[Any] = []
        images: set[bytes] = set()
        for index in range(count):
            first = after
            if after >= end and parts.codec.width[0]:
                refuse(self._at(after), "E-22", f"{name}: counts {count} elements, the value ends after {index}")
            value, after = self.value(parts.codec, f"[{index}]", first, end, depth + 1, None)
            found.append(value)
            if parts.order is not None:
                key = self._data[first : first + 18]
                if key in images:
                    refuse(self._at(first), "P8-04", f"{name}: [{index}] has the key of an earlier element")
                images.add(key)
        return found, after

    # ---- records ----

    def record(self, shape: type[Record], name: str, at: int, end: int, depth: int) -> tuple[dict[str, Any], int]:
        """The columns of a positional record, its tag and its constant included, and what its payload holds."""
        lead = (b"" if shape.TAG is None else bytes([shape.TAG])) + shape.LEAD
        if self._data[at : at + len(lead)] != lead or end - at < len(lead):
            refuse(self._at(at), "P3-61", f"{name}: {shape.__name__} begins with {lead.hex()}")
        at += len(lead)
        values: dict[str, Any] = {"shape": shape}
        for column, codec in shape.COLUMNS:
            values[f"{column}@"] = at
            values[column], at = self.value(codec, column, at, end, depth, None)
        if shape is Succeeded:
            self._inside(nested(RESULT_PAYLOADS[values["result_kind"]]), values["payload@"], values["payload"], depth)
        elif shape is TerminalSourceFact:
            kind: SourceFactKind = values["kind"]
            self._inside(nested(FACT_PAYLOADS[kind]), values["payload@"], values["payload"], depth)
        elif shape is SnapshotRecord:
            start = values["payload@"] + 4
            self.body(RECORD_PAYLOADS[values["kind"]], start, start + len(values["payload"]), depth + 1)
        elif shape is ReplayEvent:
            self._event(values, depth)
        return values, at

    def _inside(self, codec: Codec[Any], leaf_at: int, content: bytes, depth: int) -> Any:
        """The one image that fills a leaf."""
        start = leaf_at + 4
        end = start + len(content)
        value, after = self.value(codec, "content", start, end, depth, None)
        if after != end:
            refuse(self._at(after), "E-23", f"payload: {plural(end - after)} behind the {codec.doc}")
        return value

    def _event(self, values: dict[str, Any], depth: int) -> None:
        """What an event carries, and that it is about the object that the event names (P7-21..23)."""
        kind: EventKind = values["event_kind"]
        subject = values["object"]
        if subject["kind"] not in EVENT_OBJECTS[kind]:
            refuse(self._at(values["object@"]), "P7-21", f"{kind.name} is not about {subject['kind'].name}")
        content = self._inside(EVENT_PAYLOADS[kind], values["payload@"], values["payload"], depth)
        shape = content["shape"]
        if shape is SnapshotRecord:
            about, row = (content["kind"], content["id"], content["revision"]), "P7-21"
        else:
            binding = content["binding_id"] if shape is SourceGap else content["source"]["binding_id"]
            about, row = (ObjectKind.BINDING, binding, values["object_revision"]), "P7-23"
        if about != (subject["kind"], subject["id"], values["object_revision"]):
            refuse(self._at(values["payload@"]), row, "the payload is about another object or revision")

    def _command(self, values: dict[str, Any]) -> None:
        """The payload of a command; one of a kind that this version does not know stays as it is (P7-26)."""
        shape = COMMANDS.get(values["command_kind"])
        if shape is not None:
            start = values["payload@"] + 4
            self.body(shape, start, start + len(values["payload"]), 2)

    # ---- helpers ----

    def _at(self, at: int) -> int:
        return self._base + at

    def _tell(self, at: int, depth: int, id_: int | None, name: str, kind: str, value: str) -> None:
        self.items.append(Item(self._at(at), depth, id_, name, kind, value))


def _missing_row(shape: type[Body]) -> str:
    if shape.STRICT:
        return "E-25"
    if issubclass(shape, Frame):
        return "E-13"
    return "P7-16" if shape in COMMANDS.values() else "P7-20"


def _topic(codec: Codec[Any]) -> str:
    """The row of a value that has the right width and is not in the set of its type."""
    return next((row for begin, row in _TOPICS.items() if codec.doc.startswith(begin)), "E-14")
