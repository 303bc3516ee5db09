"""Small reproducible damage to byte strings."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

BOUNDS = (0, 1, 2, 3, 4, 0x7F, 0x80, 0xFE, 0xFF)
LENGTHS = (0, 1, 0x7F, 0x80, 0xFF, 0x100, 0xFFFF, 0x10000, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF)


def flip(draw: random.Random, data: bytearray) -> None:
    if data:
        data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)


def put_bound(draw: random.Random, data: bytearray) -> None:
    if data:
        data[draw.randrange(len(data))] = draw.choice(BOUNDS)


def put_length(draw: random.Random, data: bytearray) -> None:
    at = draw.randrange(len(data) + 1)
    data[at : at + 4] = draw.choice(LENGTHS).to_bytes(4, "big")


def insert(draw: random.Random, data: bytearray) -> None:
    at = draw.randrange(len(data) + 1)
    data[at:at] = draw.randbytes(draw.randrange(1, 9))


def cut(draw: random.Random, data: bytearray) -> None:
    at = draw.randrange(len(data) + 1)
    del data[at : at + draw.randrange(1, 9)]


def truncate(draw: random.Random, data: bytearray) -> None:
    del data[draw.randrange(len(data) + 1) :]


def repeat(draw: random.Random, data: bytearray) -> None:
    start = draw.randrange(len(data) + 1)
    part = data[start : start + draw.randrange(1, 40)]
    at = draw.randrange(len(data) + 1)
    data[at:at] = part


MUTATIONS: Sequence[Callable[[random.Random, bytearray], None]] = (
    flip,
    put_bound,
    put_length,
    insert,
    cut,
    truncate,
    repeat,
)


def mutated(draw: random.Random, data: bytes, most: int = 3) -> bytes:
    """``data`` after 0 to ``most`` mutations."""
    changed = bytearray(data)
    for _ in range(draw.randrange(most + 1)):
        draw.choice(MUTATIONS)(draw, changed)
    return bytes(changed)
