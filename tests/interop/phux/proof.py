"""Identities, transcripts, strict Ed25519 and the activation certificate (parts W1, W2, W4, W5 and P12)."""

from __future__ import annotations

import hmac
from dataclasses import dataclass

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from tests.interop.phux import records as r
from tests.interop.phux.digests import sha256
from tests.interop.phux.enums import PROTOCOL, SERVICE, ChannelBinding
from tests.interop.phux.frames import Frame
from tests.interop.phux.tlv import U16, U32, U64

P = 2**255 - 19
L = 2**252 + 27742317777372353535851937790883648493
SMALL_ORDER = {
    bytes.fromhex(text)
    for text in (
        "01" + "00" * 31,
        "ec" + "ff" * 30 + "7f",
        "00" * 32,
        "00" * 31 + "80",
        "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05",
        "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc85",
        "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a",
        "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac03fa",
    )
}
SKEW_SECONDS = 5
MAX_CERTIFICATE_SECONDS = 60


class NotTrusted(Exception):  # noqa: N818 - what it is
    """A peer, a certificate or a grant that does not hold."""


def _strict_point(encoding: bytes) -> bool:
    """Canonical and not of small order, by its bytes alone."""
    y = int.from_bytes(encoding, "little")
    sign, y = y >> 255, y & (2**255 - 1)
    return y < P and not (sign and y in {1, P - 1}) and encoding not in SMALL_ORDER


def verifies(public_key: bytes, signature: bytes, message: bytes) -> bool:
    """Strict Ed25519: the pre-checks that `cryptography` does not make, then its verification (W1-09 to W1-14)."""
    if len(public_key) != 32 or len(signature) != 64:
        return False
    if not (_strict_point(public_key) and _strict_point(signature[:32])):
        return False
    if int.from_bytes(signature[32:], "little") >= L:
        return False
    try:
        Ed25519PublicKey.from_public_bytes(public_key).verify(signature, message)
    except (InvalidSignature, ValueError):
        return False
    return True


def public_key(seed: bytes) -> bytes:
    return Ed25519PrivateKey.from_private_bytes(seed).public_key().public_bytes_raw()


def sign(seed: bytes, message: bytes) -> bytes:
    return Ed25519PrivateKey.from_private_bytes(seed).sign(message)


def fingerprint_text(digest: bytes) -> str:
    return "sha256:" + digest.hex()


# ---- channel binding and transcripts ----


def uds_preimage(server_nonce: bytes, uid: int, gid: int, pid: int) -> bytes:
    return b"phux-workload/v1\0uds-peer\0" + server_nonce + U64.write(uid) + U64.write(gid) + U64.write(pid)


def _service_and_version(major: int, minor: int) -> bytes:
    return U16.write(len(SERVICE)) + SERVICE + U16.write(major) + U16.write(minor)


def tls_context() -> bytes:
    return sha256(b"phux-workload/v1\0tls-context\0" + _service_and_version(*PROTOCOL[:2]))


@dataclass(frozen=True)
class Session:
    """What both transcripts have in common: the members of the challenge before the proof."""

    client_nonce: bytes
    server_nonce: bytes
    server_incarnation: bytes
    binding_kind: ChannelBinding
    binding: bytes
    authority_public_key: bytes
    version: tuple[int, int] = (PROTOCOL[0], PROTOCOL[1])

    @classmethod
    def of(cls, challenge: Frame) -> Session:
        return cls(
            challenge["client_nonce"],
            challenge["server_nonce"],
            challenge["server_incarnation"],
            challenge["channel_binding_kind"],
            challenge["channel_binding"],
            challenge["authority_public_key"],
            (challenge["negotiated_major"], challenge["negotiated_minor"]),
        )

    def _common(self) -> bytes:
        return (
            _service_and_version(*self.version)
            + self.client_nonce
            + self.server_nonce
            + self.server_incarnation
            + bytes([self.binding_kind])
            + self.binding
            + self.authority_public_key
        )

    def server_transcript(self) -> bytes:
        return b"phux-workload/v1\0server-proof\0" + self._common()

    def client_transcript(self, authority_proof: bytes, key_id: bytes, expiry: int, scopes: int) -> bytes:
        return (
            b"phux-workload/v1\0client-proof\0"
            + self._common()
            + authority_proof
            + key_id
            + U64.write(expiry)
            + U32.write(8)
            + U64.write(scopes)
        )


# ---- the activation certificate ----


@dataclass(frozen=True)
class Pins:
    """What the client knows before it connects; four independent pins, the token being learned (P5-09)."""

    authority_fingerprint: bytes
    coordinator_id: bytes
    witness_id: bytes
    witness_public_key: bytes


def certificate_preimage(certificate: r.Certificate) -> bytes:
    return b"phux-coordinator-activation/v1\0" + r.CERTIFICATE.write(certificate)[:-64]


def guard_of(certificate: r.Certificate) -> r.Guard:
    return r.Guard(
        certificate.coordinator_id,
        certificate.authority_epoch,
        certificate.activation_sequence,
        sha256(certificate.fencing_token),
    )


def check_certificate(certificate: r.Certificate, pins: Pins, now: float) -> None:
    """Signature, witness pin, coordinator and times (P12-10, P12-19). Raises NotTrusted."""
    if certificate.witness_id != pins.witness_id:
        raise NotTrusted("a certificate of another witness")
    if not hmac.compare_digest(certificate.witness_key_id, sha256(pins.witness_public_key)):
        raise NotTrusted("a certificate by another witness key")
    if certificate.coordinator_id != pins.coordinator_id:
        raise NotTrusted("a certificate for another coordinator")
    if not 0 < certificate.expires_at - certificate.issued_at <= MAX_CERTIFICATE_SECONDS:
        raise NotTrusted("a certificate of an illegal life")
    if not (certificate.issued_at <= now + SKEW_SECONDS and now < certificate.expires_at):
        raise NotTrusted("a certificate that is not valid now")
    if not verifies(pins.witness_public_key, certificate.signature, certificate_preimage(certificate)):
        raise NotTrusted("a certificate with a wrong signature")


def check_renewal(old: r.Certificate, new: r.Certificate, pins: Pins, now: float) -> None:
    """A renewal keeps sequence, token, epoch and incarnation (P12-13, P12-18). Raises NotTrusted."""
    check_certificate(new, pins, now)
    same = ("activation_sequence", "authority_epoch", "incarnation_id", "fencing_token")
    if any(getattr(old, name) != getattr(new, name) for name in same):
        raise NotTrusted("a renewal that is another activation")
    if new.expires_at < old.expires_at:
        raise NotTrusted("a renewal that ends before the certificate it replaces")
