"""Our reading of header lines beside the client library's own."""

from __future__ import annotations

import random

from nats.aio.client import Client

from sidecar.rails.connection.client import LinkClient
from sidecar.rails.names import headers

PIECES = (
    *(name.encode() for name in headers.KNOWN if name != headers.STREAM),
    *(b"Other", b"nats-subject", b" Nats-Subject", b"Nats-Subject ", b"with space", b"caf\xc3\xa9", b"", b"\x00"),
)
VALUES = (b"", b"1", b" padded ", b"a:b", b"\xff\xfe", b"caf\xc3\xa9", b"\t", b"Nats-Sequence: 9")


def test_every_block_of_lines_is_read_as_the_library_reads_it() -> None:
    chance = random.Random(5)
    for _ in range(20_000):
        lines = [
            chance.choice(PIECES) + chance.choice((b":", b": ", b"", b"::")) + chance.choice(VALUES)
            for _ in range(chance.randrange(7))
        ]
        block = chance.choice((b"\r\n", b"\n", b"\r\n\r\n")).join(lines) + chance.choice((b"\r\n\r\n", b""))
        assert LinkClient._parse_header_lines(block) == Client._parse_header_lines(block), block


def test_a_stream_that_stands_there_twice_is_told_with_both() -> None:
    """The library keeps the last one alone, which is the broker's; the first one was in the stored message."""
    block = b"Nats-Stream: MINE\r\nNats-Stream: THEIRS\r\n\r\n"
    assert LinkClient._parse_header_lines(block) == {headers.STREAM: "MINE,THEIRS"}
