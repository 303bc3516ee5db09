"""NATS nkeys: the text form of Ed25519 keys that nats-server and its clients exchange.

An nkey is base32 (RFC 4648, no padding) over ``prefix bytes || 32 key bytes || CRC-16/XMODEM little-endian``. Public
keys have a one-byte prefix that names the role; a seed has two bytes that hold the seed marker and the role.
"""

from __future__ import annotations

import base64

from sidecar.base.secret import Secret

USER = 20 << 3
_SEED = 18 << 3


def crc16(data: bytes) -> int:
    """CRC-16/XMODEM (polynomial 0x1021, initial value 0) of ``data``."""
    crc = 0
    for byte in data:
        crc ^= byte << 8
        for _ in range(8):
            crc = ((crc << 1) ^ 0x1021 if crc & 0x8000 else crc << 1) & 0xFFFF
    return crc


def _encode(data: bytes) -> str:
    return base64.b32encode(data + crc16(data).to_bytes(2, "little")).rstrip(b"=").decode("ascii")


def public_nkey(role: int, public_key: bytes) -> str:
    """Text form of a raw 32-byte public key, such as ``U...`` for ``USER``; ValueError on another length."""
    if len(public_key) != 32:
        raise ValueError("an nkey holds exactly 32 bytes")
    return _encode(bytes([role]) + public_key)


def seed_nkey(role: int, seed: Secret) -> Secret:
    """Text form (``SU...`` for ``USER``) of a raw 32-byte seed, still secret; ValueError on another length."""
    raw = seed.reveal()
    if len(raw) != 32:
        raise ValueError("an nkey holds exactly 32 bytes")
    prefix = bytes([_SEED | (role >> 5), (role & 31) << 3])
    return Secret(_encode(prefix + raw).encode("ascii"))
