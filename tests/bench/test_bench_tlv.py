"""Body scan, field access and encoding beside the plain-Python oracle and beside ``struct`` over known offsets."""

from __future__ import annotations

import random
import struct

import pytest

from cext.tlv import FIXED, LEAF, NONZERO, RAW, Cursor, Schema, Writer
from tests.bench.measure import report
from tests.oracles import tlv as oracle

FIELDS = [
    (1, FIXED | NONZERO, 4, 4, True),
    (2, FIXED, 64, 64, True),
    (3, FIXED | NONZERO, 16, 16, True),
    (4, FIXED, 2, 2, True),
    (5, LEAF, 0, 262_144, True),
    (6, RAW, 2, 1666, False),
]
VALUES = {1: b"\0\0\0\7", 2: bytes(64), 3: b"\x88" * 16, 4: b"\0\1", 5: oracle.leaf(b"d" * 200), 6: b"\0\0"}
BODY = oracle.body(VALUES.items())
SCHEMA = Schema(FIELDS)
# Where the values of this very body lie: what a reader could do that checks nothing.
POSITIONS = struct.Struct(">3xI3x64s3x16s3xH8x200s3x2s")


def test_scan(capsys: pytest.CaptureFixture[str]) -> None:
    assert POSITIONS.size == len(BODY)
    report(
        capsys,
        f"tlv: strict scan of a command, six fields, {len(BODY)} bytes",
        {
            "cext.tlv": lambda: SCHEMA.scan(BODY),
            "plain Python": lambda: oracle.scan(FIELDS, BODY),
            "floor: struct, offsets known": lambda: POSITIONS.unpack(BODY),
        },
    )


def test_access(capsys: pytest.CaptureFixture[str]) -> None:
    fields, plain = SCHEMA.scan(BODY), oracle.scan(FIELDS, BODY)
    values = plain.values
    report(
        capsys,
        "tlv: one u32 of a scanned body",
        {
            "cext.tlv": lambda: fields.u32(1),
            "plain Python": lambda: int.from_bytes(values[1], "big"),
            "floor: one C method call": lambda: b"".isdigit(),
        },
    )
    report(
        capsys,
        "tlv: 200 bytes of a leaf, copied and as a view",
        {
            "cext.tlv copy": lambda: fields.leaf(5),
            "cext.tlv view": lambda: fields.leaf_view(5),
            "plain Python": lambda: values[5][4:],
            "floor: one slice of bytes": lambda: BODY[100:300],
        },
    )


def test_hostile_body(capsys: pytest.CaptureFixture[str]) -> None:
    ids = random.Random(1).sample(range(2**28, 2**32), 120_000)
    body = b"".join(oracle.field(field_id, b"") for field_id in ids)
    schema = Schema([])
    report(
        capsys,
        f"tlv: scan of 120,000 unordered unknown fields, {len(body)} bytes",
        {
            "cext.tlv": lambda: schema.scan(body),
            "plain Python": lambda: oracle.scan([], body),
            "floor: sorting the ids": lambda: sorted(ids),
        },
    )


def test_encode(capsys: pytest.CaptureFixture[str]) -> None:
    writer = Writer()
    content = b"d" * 200

    def write() -> bytes:
        writer.field_u32(1, 7)
        writer.field_raw(2, VALUES[2])
        writer.field_raw(3, VALUES[3])
        writer.field_u16(4, 1)
        writer.field_leaf(5, content)
        writer.field_raw(6, VALUES[6])
        return writer.take()

    def plain() -> bytes:
        return oracle.body(
            [
                (1, (7).to_bytes(4, "big")),
                (2, VALUES[2]),
                (3, VALUES[3]),
                (4, (1).to_bytes(2, "big")),
                (5, oracle.leaf(content)),
                (6, VALUES[6]),
            ]
        )

    assert write() == plain() == BODY
    report(
        capsys,
        "tlv: encoding the same command",
        {
            "cext.tlv": write,
            "plain Python": plain,
            "floor: struct, offsets known": lambda: POSITIONS.pack(7, VALUES[2], VALUES[3], 1, content, VALUES[6]),
        },
    )


def test_cursor(capsys: pytest.CaptureFixture[str]) -> None:
    image = bytes(16) + (5).to_bytes(8, "big") + (7).to_bytes(8, "big") + bytes(32)
    layout = struct.Struct(">16sQQ32s")

    def real() -> None:
        cursor = Cursor(image)
        cursor.take(16)
        cursor.u64()
        cursor.u64()
        cursor.take(32)
        cursor.finish()

    def plain() -> None:
        cursor = oracle.Cursor(image)
        cursor.take(16)
        cursor.number(8)
        cursor.number(8)
        cursor.take(32)
        cursor.finish()

    report(
        capsys,
        "tlv: cursor over a guard of 64 bytes",
        {"cext.tlv": real, "plain Python": plain, "floor: struct": lambda: layout.unpack(image)},
    )
