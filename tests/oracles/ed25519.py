"""Ed25519 in plain Python (RFC 8032 formulas), slow and readable: what the strict rule must accept, and crafted cases.

Test material only: the product verifies with a vetted library (W1-15).
"""

from __future__ import annotations

import hashlib
from typing import NamedTuple

P = 2**255 - 19
L = 2**252 + 27742317777372353535851937790883648493
D = -121665 * pow(121666, P - 2, P) % P
SQRT_M1 = pow(2, (P - 1) // 4, P)


class Point(NamedTuple):
    """Affine coordinates."""

    x: int
    y: int


IDENTITY = Point(0, 1)


def add(a: Point, b: Point) -> Point:
    """The complete addition law of the curve -x^2 + y^2 = 1 + d x^2 y^2."""
    t = D * a.x * b.x * a.y * b.y % P
    x = (a.x * b.y + b.x * a.y) * pow(1 + t, P - 2, P)
    y = (a.y * b.y + a.x * b.x) * pow(1 - t, P - 2, P)
    return Point(x % P, y % P)


def negate(a: Point) -> Point:
    return Point(-a.x % P, a.y)


def multiply(k: int, a: Point) -> Point:
    """``k * a`` for k >= 0, without any reduction of k."""
    total = IDENTITY
    while k:
        if k & 1:
            total = add(total, a)
        a = add(a, a)
        k >>= 1
    return total


def encode(a: Point) -> bytes:
    """The one canonical encoding."""
    return (a.y | (a.x & 1) << 255).to_bytes(32, "little")


def decode_leniently(data: bytes) -> Point | None:
    """The point of 32 bytes with y reduced modulo p and any sign of x = 0; None off the curve."""
    number = int.from_bytes(data, "little")
    sign, y = number >> 255, (number & (1 << 255) - 1) % P
    square = (y * y - 1) * pow(D * y * y + 1, P - 2, P) % P
    x = pow(square, (P + 3) // 8, P)
    if x * x % P != square:
        x = x * SQRT_M1 % P
    if x * x % P != square:
        return None
    return Point(x if x & 1 == sign else -x % P, y)


def decode(data: bytes) -> Point | None:
    """The point of a canonical encoding, else None."""
    point = decode_leniently(data)
    return point if point is not None and encode(point) == data else None


def is_small(a: Point) -> bool:
    return multiply(8, a) == IDENTITY


def small_points() -> list[Point]:
    """The eight points of order 1, 2, 4, 8, as multiples of one of order 8."""
    generator = next(
        torsion
        for y in range(2, 50)
        if (point := decode(y.to_bytes(32, "little"))) is not None
        and multiply(4, torsion := multiply(L, point)) != IDENTITY
    )
    return [multiply(k, generator) for k in range(8)]


BASE = next(
    point
    for point in [decode((4 * pow(5, P - 2, P) % P).to_bytes(32, "little"))]
    if point is not None and multiply(L, point) == IDENTITY
)


def challenge(r: bytes, a: bytes, message: bytes) -> int:
    """SHA-512(R || A || M) as an integer modulo L."""
    return int.from_bytes(hashlib.sha512(r + a + message).digest(), "little") % L


def strict(public_key: bytes, message: bytes, signature: bytes) -> bool:
    """dalek's verify_strict: canonical A, no small order A or R, S < L, and [S]B - [k]A encodes to R."""
    a, r_bytes, s = decode(public_key), signature[:32], int.from_bytes(signature[32:], "little")
    if len(signature) != 64 or a is None or is_small(a) or s >= L:
        return False
    r = decode(r_bytes)
    if r is None or is_small(r):
        return False
    k = challenge(r_bytes, public_key, message)
    return encode(add(multiply(s, BASE), negate(multiply(k, a)))) == r_bytes


def cofactored(public_key: bytes, message: bytes, signature: bytes, *, reencode: bool = False) -> bool:
    """The permissive equation [8][S]B = [8]R + [8][k]A with lenient decoding and no bound on S.

    ``reencode`` hashes the canonical encodings instead of the received bytes, as some implementations do.
    """
    a, r, s = decode_leniently(public_key), decode_leniently(signature[:32]), int.from_bytes(signature[32:], "little")
    if a is None or r is None:
        return False
    k = challenge(encode(r), encode(a), message) if reencode else challenge(signature[:32], public_key, message)
    return multiply(8 * s, BASE) == add(multiply(8, r), multiply(8 * k, a))


def sign_with(
    a: int, r: int, message: bytes, *, torsion_a: Point = IDENTITY, torsion_r: Point = IDENTITY
) -> tuple[bytes, bytes]:
    """(public key, signature) for the scalars a and r, with torsion added to A and R.

    The signature satisfies the cofactored equation always, the cofactorless one iff torsion_r + k * torsion_a = 0.
    """
    public_key = encode(add(multiply(a, BASE), torsion_a))
    r_bytes = encode(add(multiply(r, BASE), torsion_r))
    k = challenge(r_bytes, public_key, message)
    return public_key, r_bytes + ((r + k * a) % L).to_bytes(32, "little")
