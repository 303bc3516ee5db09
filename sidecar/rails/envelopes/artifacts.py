"""Bytes that a message only refers to: named by their digest, believed only when the digest holds (C5-10..13)."""

from __future__ import annotations

from hashlib import sha256

from sidecar.rails.envelopes.errors import EnvelopeError
from sidecar.rails.envelopes.message import ArtifactPart


def digest_of(data: bytes | bytearray | memoryview) -> str:
    """The identity of raw bytes: ``sha256:`` and 64 lowercase hex digits (C5-10)."""
    return f"sha256:{sha256(data).hexdigest()}"


def refer_to(data: bytes | bytearray | memoryview, name: str, media_type: str) -> ArtifactPart:
    """The part that stands in a message for bytes that are kept elsewhere."""
    return ArtifactPart(name, media_type, digest_of(data), memoryview(data).nbytes)


def verified(part: ArtifactPart, data: bytes) -> bytes:
    """The fetched bytes, if they are those of the part; EnvelopeError otherwise (C5-13).

    The digest alone decides: ``size`` is a claim, by which nothing is reserved or refused (C5-12).
    """
    if digest_of(data) != part.digest:
        raise EnvelopeError("digest", "is not that of the fetched bytes")
    return data
