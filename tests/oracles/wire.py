"""Plain-Python codec of every frame, written from the schema tables with ``struct`` and knowing nothing of the product.

A value is an int, bytes, str, None, or a tuple of values; a union is ``(tag, values...)``. ``decode`` gives a dict by
field name with absent optional fields left out, or raises :class:`Refused`.
"""

from __future__ import annotations

import struct
from typing import Any

from tests.oracles.wire_tables import BODIES, COMMANDS, EFFECT_PAYLOADS, EVENTS, FACTS, FRAMES, RECORDS, RESULTS, TYPES

Spec = Any
Value = Any

STRICT = {0x04, 0x84}
INTEGERS = {"u8": ">B", "u16": ">H", "u32": ">I", "u64": ">Q", "i32": ">i", "req": ">I", "seq": ">Q"}
WIDTHS = {"id": 16, "b32": 32, "b64": 64, "n32": 32}


class Refused(Exception):  # noqa: N818 - a verdict
    """The bytes are no legal image."""


def need(condition: bool) -> None:
    if not condition:
        raise Refused


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    for step in range(10):
        need(at < len(data))
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            need(step == 0 or byte != 0)
            need(value < 1 << 64)
            return value, at
    raise Refused


def write_varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def split(body: bytes) -> list[tuple[int, bytes]]:
    """(id, value) of each field in the order sent."""
    fields, at = [], 0
    while at < len(body):
        field_id, at = read_varint(body, at)
        need(1 <= field_id <= 0xFFFFFFFF)
        need(at < len(body) and body[at] == 4)
        size, at = read_varint(body, at + 1)
        need(size <= len(body) - at)
        fields.append((field_id, body[at : at + size]))
        at += size
    need(len({field_id for field_id, _ in fields}) == len(fields))
    return fields


def join(fields: list[tuple[int, bytes]]) -> bytes:
    return b"".join(write_varint(field_id) + b"\x04" + write_varint(len(value)) + value for field_id, value in fields)


def read(spec: Spec, data: bytes, at: int) -> tuple[Value, int]:
    if isinstance(spec, str):
        return read_plain(spec, data, at)
    head, *rest = spec
    if head == "enum":
        value, at = read_plain(rest[0], data, at)
        need(value in rest[1])
        return value, at
    if head in ("leaf", "str"):
        (size,) = struct.unpack_from(">I", take(data, at, 4))
        need(size <= rest[0])
        content = take(data, at + 4, size)
        return (decode_text(content) if head == "str" else content), at + 4 + size
    if head == "opt":
        present = take(data, at, 1)[0]
        need(present < 2)
        return read(rest[0], data, at + 1) if present else (None, at + 1)
    if head == "list":
        (count,) = struct.unpack(">H", take(data, at, 2))
        need(count <= rest[1])
        values, at = [], at + 2
        for _ in range(count):
            value, at = read(rest[0], data, at)
            values.append(value)
        return tuple(values), at
    if head == "framed":
        (size,) = struct.unpack(">I", take(data, at, 4))
        return whole(rest[0], take(data, at + 4, size)), at + 4 + size
    if head == "union":
        tag = take(data, at, 1)[0]
        need(tag in rest[0])
        value, at = read(("rec", *rest[0][tag]), data, at + 1)
        return (tag, *value), at
    if head == "const":
        need(take(data, at, len(rest[0])) == rest[0])
        return rest[0], at + len(rest[0])
    values = []
    for part in rest:
        value, at = read(part, data, at)
        values.append(value)
    return tuple(values), at


def read_plain(spec: str, data: bytes, at: int) -> tuple[Value, int]:
    if spec in TYPES:
        value, at = read(TYPES[spec], data, at)
        check_type(spec, value)
        return value, at
    if spec in INTEGERS:
        (number,) = struct.unpack(INTEGERS[spec], take(data, at, struct.calcsize(INTEGERS[spec])))
        need(number != 0 or spec not in ("req", "seq"))
        return number, at + struct.calcsize(INTEGERS[spec])
    width = WIDTHS[spec]
    image = take(data, at, width)
    need(spec in ("b32", "b64") or image != bytes(width))
    return image, at + width


def take(data: bytes, at: int, size: int) -> bytes:
    need(size <= len(data) - at)
    return data[at : at + size]


def decode_text(content: bytes) -> str:
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError:
        raise Refused from None


def whole(spec: Spec, data: bytes) -> Value:
    value, at = read(spec, data, 0)
    need(at == len(data))
    return value


def check_type(name: str, value: Value) -> None:
    """Rules between the parts of one named type."""
    if name == "host":
        need(value != "" and not any(ord(char) < 32 or 127 <= ord(char) < 160 for char in value))
    elif name == "preconditions":
        need(len({item[0] for item in value}) == len(value))
    elif name == "operation" and value[0] == 1:
        whole(RESULTS[value[2]], value[3])
    elif name == "fact":
        whole(FACTS[value[1]], value[3])
    elif name == "attempt":
        need(value[3][0] == (0 if value[2] == 1 else 1))
        whole(EFFECT_PAYLOADS[value[2]], value[5])
    elif name == "record":
        decode_body(BODIES[RECORDS[value[0]]], value[4])
    elif name == "event":
        check_event(value[2], value[3], value[4], value[6])


def check_event(kind: int, subject: tuple[int, bytes], revision: int, payload: bytes) -> None:
    about, shape = EVENTS[kind]
    need(subject[0] in about)
    content = whole(shape, payload)
    if shape == "record":
        need((content[0], content[1], content[2]) == (*subject, revision))
    else:
        need((content[0][0] if shape == "fact" else content[0]) == subject[1])


def decode_body(schema: dict[int, tuple[str, Spec, bool]], body: bytes, *, strict: bool = False) -> dict[str, Value]:
    fields = split(body)
    if strict:
        need([field_id for field_id, _ in fields] == sorted(schema))
    images = dict(fields)
    found = {}
    for field_id, (name, spec, required) in schema.items():
        if field_id in images:
            found[name] = whole(spec, images[field_id])
        else:
            need(not required)
    if "admin_kind" in found:
        whole(TYPES[f"admin_{found['admin_kind']}"], found["payload"])
    return found


def decode(frame_type: int, body: bytes) -> dict[str, Value]:
    """Values of a frame by field name."""
    need(frame_type in FRAMES)
    found = decode_body(FRAMES[frame_type], body, strict=frame_type in STRICT)
    if frame_type == 0xB0:
        check_event(found["event_kind"], found["object"], found["object_revision"], found["payload"])
    return found


def decode_command(kind: int, payload: bytes) -> dict[str, Value]:
    """Values of a command payload by field name."""
    return decode_body(BODIES[COMMANDS[kind]], payload)


def write(spec: Spec, value: Value) -> bytes:
    if isinstance(spec, str):
        if spec in TYPES:
            return write(TYPES[spec], value)
        return struct.pack(INTEGERS[spec], value) if spec in INTEGERS else bytes(value)
    head, *rest = spec
    if head == "enum":
        return write(rest[0], value)
    if head in ("leaf", "str"):
        content = value.encode() if head == "str" else value
        return struct.pack(">I", len(content)) + bytes(content)
    if head == "opt":
        return b"\x00" if value is None else b"\x01" + write(rest[0], value)
    if head == "list":
        return struct.pack(">H", len(value)) + b"".join(write(rest[0], item) for item in value)
    if head == "framed":
        image = write(rest[0], value)
        return struct.pack(">I", len(image)) + image
    if head == "union":
        return bytes([value[0]]) + write(("rec", *rest[0][value[0]]), value[1:])
    if head == "const":
        return bytes(rest[0])
    return b"".join(write(part, item) for part, item in zip(rest, value, strict=True))


def encode_body(schema: dict[int, tuple[str, Spec, bool]], values: dict[str, Value]) -> bytes:
    return join(
        [(field_id, write(spec, values[name])) for field_id, (name, spec, _) in schema.items() if name in values]
    )


def encode(frame_type: int, values: dict[str, Value]) -> bytes:
    """The whole message of a frame."""
    body = encode_body(FRAMES[frame_type], values)
    return struct.pack(">IB", len(body) + 1, frame_type) + body
