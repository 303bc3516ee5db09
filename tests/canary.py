"""A recognisable secret, and the search for it in every spelling that a leak could have."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping
from functools import lru_cache

CANARY = b"canary-seed-of-32-bytes-0123456!"
assert len(CANARY) == 32


def spellings_in(text: str | bytes, secret: bytes = CANARY) -> list[str]:
    """Names of the spellings of the secret (or of half of it) that occur in ``text``; it has 32 bytes or more."""
    data = text.encode("utf-8", "surrogateescape") if isinstance(text, str) else text
    folded = data.lower()
    return [name for name, spelling in _spellings(secret) if spelling in folded]


def leaks_in(text: str | bytes, secrets: Mapping[str, bytes]) -> list[str]:
    """Which of the named secrets occur in ``text``, and how."""
    data = text.encode("utf-8", "surrogateescape") if isinstance(text, str) else text
    folded = data.lower()
    return [f"{name} ({how})" for name, one in secrets.items() for how, found in _spellings(one) if found in folded]


@lru_cache(maxsize=1024)
def _spellings(secret: bytes) -> tuple[tuple[str, bytes], ...]:
    half = len(secret) // 2
    return tuple(spelling for part in (secret, secret[:half], secret[half:]) for spelling in _of(part))


def _of(part: bytes) -> Iterator[tuple[str, bytes]]:
    yield "raw", part.lower()
    yield "hex", part.hex().encode()
    yield "spaced hex", part.hex(" ").encode()
    yield "escaped", "".join(f"\\x{byte:02x}" for byte in part).encode()
    yield "decimal", ", ".join(str(byte) for byte in part).encode()
    yield "base64", base64.b64encode(part)[:20].lower()
    yield "base64url", base64.urlsafe_b64encode(part)[:20].lower()
    # An nkey seed begins with two bytes of its own; eight of its letters hold five bytes.
    yield "base32", base64.b32encode(part[: len(part) // 5 * 5]).lower()
    yield "nkey", base64.b32encode(b"\0\0" + part)[8 : (2 + len(part)) // 5 * 8].lower()
