"""Strict Ed25519 (W1-08..W1-15) and the text form of digests (W2-02, W2-03).

libsodium does the curve arithmetic. The byte rules stand here as well and do not depend on the version of the library:
canonical A and R, no small order, S < L.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from typing import Final, NoReturn

from nacl import bindings
from nacl.exceptions import CryptoError

from sidecar.base.secret import Confined, Secret

SEED_BYTES: Final = 32
PUBLIC_KEY_BYTES: Final = 32
SIGNATURE_BYTES: Final = 64

_P: Final = 2**255 - 19
_L: Final = 2**252 + 27742317777372353535851937790883648493
_SIGN_BIT: Final = 1 << 255
_IDENTITY: Final = b"\x01" + bytes(31)
_SMALL_ORDER: Final = frozenset(
    bytes.fromhex(point)
    for point in (
        "0100000000000000000000000000000000000000000000000000000000000000",
        "ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
        "0000000000000000000000000000000000000000000000000000000000000000",
        "0000000000000000000000000000000000000000000000000000000000000080",
        "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05",
        "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc85",
        "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a",
        "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac03fa",
    )
)
_DIGEST_TEXT: Final = re.compile(r"sha256:([0-9a-f]{64})")


class InvalidKey(ValueError):  # noqa: N818 - a state of the key, not a mishap
    """A public key that the strict rule refuses; the message names the reason."""


class InvalidSignature(ValueError):  # noqa: N818 - as above
    """A signature (or the key it is checked with) that the strict rule refuses."""


def _point_fault(point: bytes) -> str | None:
    """Why 32 bytes are no acceptable point encoding, as far as bytes alone can tell (W1-09..12)."""
    y = int.from_bytes(point, "little")
    negative, y = y >= _SIGN_BIT, y & (_SIGN_BIT - 1)
    # x = 0 has no negative twin, so its two points (y = 1, y = -1) have only one canonical encoding each.
    if y >= _P or (negative and y in (1, _P - 1)):
        return "is not canonically encoded"
    if point in _SMALL_ORDER:
        return "has small order"
    return None


def check_public_key(key: bytes) -> None:
    """Accept exactly the keys of W1-14: 32 bytes, canonical, on the curve, not of small order; else :exc:`InvalidKey`.

    Points with a torsion component ("mixed order") are accepted, as dalek's ``verify_strict`` does.
    """
    key = bytes(key)
    if len(key) != PUBLIC_KEY_BYTES:
        raise InvalidKey(f"a public key has {PUBLIC_KEY_BYTES} bytes, not {len(key)}")
    if (fault := _point_fault(key)) is not None:
        raise InvalidKey(f"the public key {fault}")
    try:
        # Adding the identity decodes the point; unlike libsodium's is_valid_point it accepts mixed order (OPEN W2-c).
        same = bindings.crypto_core_ed25519_add(key, _IDENTITY)
    except (CryptoError, RuntimeError):
        same = b""
    if same != key:
        raise InvalidKey("the public key is not a point of the curve")


def verify(public_key: bytes, message: bytes, signature: bytes) -> None:
    """Check a 64-byte signature over ``message`` strictly (W1-09..W1-14); :exc:`InvalidSignature` on any fault."""
    public_key, signature = bytes(public_key), bytes(signature)
    if len(public_key) != PUBLIC_KEY_BYTES or len(signature) != SIGNATURE_BYTES:
        _refuse_signature()
    if _point_fault(public_key) is not None or _point_fault(signature[:32]) is not None:
        _refuse_signature()
    if int.from_bytes(signature[32:], "little") >= _L:
        _refuse_signature()
    try:
        bindings.crypto_sign_open(signature + bytes(message), public_key)
    except CryptoError:
        _refuse_signature()


def _refuse_signature() -> NoReturn:
    # One text for every reason: a prover learns nothing from it (W4-09).
    raise InvalidSignature("the signature is not valid") from None


class SigningKey(Confined):
    """An Ed25519 private key; shows only its public half."""

    __slots__ = ("_expanded", "public_key")

    def __init__(self, seed: Secret) -> None:
        """Expand a 32-byte seed. The derived public key passes the strict rules (W2-17), else :exc:`InvalidKey`."""
        if len(seed) != SEED_BYTES:
            raise InvalidKey(f"a private key seed has {SEED_BYTES} bytes, not {len(seed)}")
        self.public_key: bytes
        self.public_key, expanded = bindings.crypto_sign_seed_keypair(seed.reveal())
        self._expanded = Secret(expanded)
        check_public_key(self.public_key)

    @classmethod
    def generate(cls, entropy: Callable[[int], bytes]) -> SigningKey:
        """A fresh key; ``entropy(n)`` is the system's CSPRNG (``os.urandom``), its errors pass through (W2-16)."""
        return cls(fresh_seed(entropy))

    def sign(self, message: bytes) -> bytes:
        """The 64-byte signature over exactly ``message`` (W1-08, no prehash)."""
        return bindings.crypto_sign(bytes(message), self._expanded.reveal())[:SIGNATURE_BYTES]

    def wipe(self) -> None:
        """Overwrite the private half; :meth:`sign` raises ValueError afterwards."""
        self._expanded.wipe()

    def __repr__(self) -> str:
        return f"SigningKey(public_key={self.public_key.hex()})"


def fresh_seed(entropy: Callable[[int], bytes]) -> Secret:
    """32 random bytes from ``entropy``; :exc:`ValueError` when the source gives too few or only zeroes (W2-16)."""
    seed = Secret(entropy(SEED_BYTES))
    if len(seed) != SEED_BYTES or seed == Secret(bytes(SEED_BYTES)):
        raise ValueError("the random source failed")
    return seed


def fingerprint(public_key: bytes) -> bytes:
    """SHA-256 of the raw public key: authority fingerprint or workload key id (32 bytes)."""
    return hashlib.sha256(public_key).digest()


def digest_text(digest: bytes) -> str:
    """``sha256:`` and 64 lowercase hex digits of a 32-byte digest (W2-02)."""
    if len(digest) != 32:
        raise ValueError(f"a digest has 32 bytes, not {len(digest)}")
    return f"sha256:{digest.hex()}"


def parse_digest_text(text: str) -> bytes:
    """The 32 bytes of the one text form that exists; ValueError for any other spelling (W2-03)."""
    match = _DIGEST_TEXT.fullmatch(text)
    if match is None:
        raise ValueError("a digest is written sha256: and 64 lowercase hex digits")
    return bytes.fromhex(match[1])
