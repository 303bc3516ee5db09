"""NATS nkeys: the text form of Ed25519 keys that nats-server and its clients exchange.

An nkey is base32 (RFC 4648, no padding) over ``prefix bytes || 32 key bytes || CRC-16/XMODEM little-endian``. Public
keys have a one-byte prefix that names the role; a seed has two bytes that hold the seed marker and the role. A key has
exactly one spelling: whatever decodes here encodes to the same text again.
"""

from __future__ import annotations

import base64
import binascii
import hmac
from collections.abc import Callable
from typing import Final

from sidecar.base.ed25519 import InvalidKey, SigningKey, check_public_key, fresh_seed
from sidecar.base.secret import Confined, Secret

OPERATOR: Final = 14 << 3
ACCOUNT: Final = 0
USER: Final = 20 << 3
_SEED: Final = 18 << 3

_NAMES: Final = {OPERATOR: "operator", ACCOUNT: "account", USER: "user"}
PUBLIC_CHARS: Final = 56
SEED_CHARS: Final = 58


class InvalidNkey(ValueError):  # noqa: N818 - a state of the text, not a mishap
    """Text that is no nkey of the role that was asked for; the message names the reason and never shows the text."""


def crc16(data: bytes) -> int:
    """CRC-16/XMODEM (polynomial 0x1021, initial value 0) of ``data``."""
    return binascii.crc_hqx(data, 0)


def _encode(data: bytes) -> bytes:
    return base64.b32encode(data + crc16(data).to_bytes(2, "little")).rstrip(b"=")


def _prefix(role: int) -> bytes:
    return bytes([_SEED | (role >> 5), (role & 31) << 3])


def public_nkey(role: int, public_key: bytes) -> str:
    """Text form of a raw 32-byte public key, such as ``U...`` for ``USER``; ValueError on another length."""
    if len(public_key) != 32:
        raise ValueError("an nkey holds exactly 32 bytes")
    return _encode(bytes([role]) + public_key).decode("ascii")


def seed_nkey(role: int, seed: Secret) -> Secret:
    """Text form (``SU...`` for ``USER``) of a raw 32-byte seed, still secret; ValueError on another length."""
    raw = seed.reveal()
    if len(raw) != 32:
        raise ValueError("an nkey holds exactly 32 bytes")
    return Secret(_encode(_prefix(role) + raw))


def decode_public(role: int, text: str) -> bytes:
    """The raw public key of ``text``, which must be the one spelling of a usable key of ``role``.

    Raises InvalidNkey for another role, length, letter or checksum, and for a key that the strict Ed25519 rules refuse.
    """
    name = _NAMES[role]
    data = _decode(text.encode("utf-8", "replace"), PUBLIC_CHARS, f"a public {name} key")
    if data[0] != role:
        raise InvalidNkey(f"it is not the key of a {name}")
    try:
        check_public_key(data[1:])
    except InvalidKey as error:
        raise InvalidNkey(str(error)) from None
    return data[1:]


def decode_seed(role: int, text: Secret) -> Secret:
    """The raw 32-byte seed of ``text``, which must be the one spelling of a seed of ``role``; else InvalidNkey.

    Comparisons take the same time wherever the difference is, and no message shows a part of the text.
    """
    name = _NAMES[role]
    data = _decode(text.reveal(), SEED_CHARS, f"the seed of a {name}")
    if not hmac.compare_digest(data[:2], _prefix(role)):
        raise InvalidNkey(f"it is not the seed of a {name}")
    return Secret(data[2:])


def _decode(text: bytes, chars: int, what: str) -> bytes:
    """Prefix and key of a checked text; the checksum and every unused bit must be right."""
    if len(text) != chars:
        raise InvalidNkey(f"{what} has {chars} letters")
    try:
        whole = base64.b32decode(text + b"=" * (-chars % 8))
    except binascii.Error:
        raise InvalidNkey(f"{what} has the letters A-Z and 2-7 only") from None
    # Encoding again finds a wrong checksum as well as bits that base32 would drop.
    if not hmac.compare_digest(_encode(whole[:-2]), text):
        raise InvalidNkey(f"{what} with a wrong checksum")
    return whole[:-2]


class KeyPair(Confined):
    """An nkey with its private half; shows only the public text."""

    __slots__ = ("_seed", "_signing", "public", "role")

    def __init__(self, role: int, seed: Secret) -> None:
        """``seed`` are 32 raw bytes; :exc:`~sidecar.base.ed25519.InvalidKey` when they give no usable key."""
        self.role = role
        self._seed = Secret(seed.reveal())
        self._signing = SigningKey(self._seed)
        self.public: str = public_nkey(role, self._signing.public_key)

    @classmethod
    def generate(cls, role: int, entropy: Callable[[int], bytes]) -> KeyPair:
        """A fresh key; ``entropy(n)`` is the system's CSPRNG, its errors pass through."""
        return cls(role, fresh_seed(entropy))

    @classmethod
    def from_seed_text(cls, role: int, text: Secret) -> KeyPair:
        """The key of a seed such as ``SU...``; InvalidNkey when it is not exactly one of ``role``."""
        return cls(role, decode_seed(role, text))

    def seed_text(self) -> Secret:
        """``SO...``, ``SA...`` or ``SU...``: what a file holds."""
        return seed_nkey(self.role, self._seed)

    def sign(self, message: bytes) -> bytes:
        """The 64-byte signature over exactly ``message``."""
        return self._signing.sign(message)

    def wipe(self) -> None:
        """Overwrite the private half."""
        self._seed.wipe()
        self._signing.wipe()

    def __repr__(self) -> str:
        return f"KeyPair({self.public})"
