"""Activation certificates: who checks what against which pin (P12-06..08, P12-10, P12-19; OPEN P12-c, P12-d)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from cext import digest
from sidecar.base import ed25519
from sidecar.base.clock import Now
from sidecar.coordinator.wire.ids import (
    ID_SIZE,
    ActivationSequence,
    ActivationWitnessId,
    AuthorityEpoch,
    CoordinatorId,
    IncarnationId,
    KeyId,
)
from sidecar.coordinator.wire.records import ActivationCertificate

MAX_LIFE_SECONDS: Final = 60
"""A certificate lasts at most this long (P12-10)."""
MAX_SKEW_SECONDS: Final = 5
"""How far ahead the witness's clock may be; nothing is granted after expiry (OPEN P12-d)."""
_UNSIGNED: Final = bytes(ed25519.SIGNATURE_BYTES)


class Fault(StrEnum):
    """What is wrong with a certificate."""

    WITNESS_ID = "witness_id"
    WITNESS_KEY = "witness_key"
    SIGNATURE = "signature"
    COORDINATOR_ID = "coordinator_id"
    EPOCH = "epoch"
    INCARNATION = "incarnation"
    LIFE = "life"
    NOT_YET = "not_yet"
    EXPIRED = "expired"
    ACTIVATION = "activation"
    TOKEN = "token"  # noqa: S105 - a word, not a password


class CertificateInvalid(ValueError):  # noqa: N818 - a state of the certificate, as in InvalidSignature
    """A certificate that must not be relied on; ``reason`` is the first fault."""

    def __init__(self, reason: Fault) -> None:
        hint = "; compare the clocks here and at the witness" if reason in (Fault.NOT_YET, Fault.EXPIRED) else ""
        super().__init__(f"the activation certificate is not valid: {reason}{hint}")
        self.reason = reason


@dataclass(frozen=True, slots=True)
class WitnessPin:
    """The one witness that is trusted: its 16-byte id and 32-byte public key, kept outside the store (P12-08)."""

    witness_id: bytes
    public_key: bytes

    def __post_init__(self) -> None:
        """Raises ValueError (InvalidKey) for a pin that no witness can have."""
        if len(self.witness_id) != ID_SIZE or not any(self.witness_id):
            raise ValueError(f"a witness id has {ID_SIZE} bytes, not all zero")
        ed25519.check_public_key(self.public_key)

    @property
    def key_id(self) -> bytes:
        """SHA-256 of the public key, as certificates name it (OPEN P12-c)."""
        return ed25519.fingerprint(self.public_key)


def verify_certificate(
    certificate: ActivationCertificate,
    pin: WitnessPin,
    *,
    coordinator_id: bytes,
    epoch: int,
    incarnation: bytes,
    now: Now,
) -> None:
    """Check pin, signature, subject and times (P12-19); raises :exc:`CertificateInvalid`.

    In force means: life of 1..60 s, issued no more than 5 s ahead of ``now.wall``, and not expired, without grace.
    """
    faults = (
        (certificate.witness_id != pin.witness_id, Fault.WITNESS_ID),
        (certificate.witness_key_id != pin.key_id, Fault.WITNESS_KEY),
        (not _signed_by(certificate, pin.public_key), Fault.SIGNATURE),
        (certificate.coordinator_id != coordinator_id, Fault.COORDINATOR_ID),
        (certificate.authority_epoch != epoch, Fault.EPOCH),
        (certificate.incarnation_id != incarnation, Fault.INCARNATION),
        (not 0 < certificate.expires_at - certificate.issued_at <= MAX_LIFE_SECONDS, Fault.LIFE),
        (certificate.issued_at > now.wall + MAX_SKEW_SECONDS, Fault.NOT_YET),
        (now.wall >= certificate.expires_at, Fault.EXPIRED),
    )
    _refuse_first(faults)


def verify_renewal(held: ActivationCertificate, renewed: ActivationCertificate, pin: WitnessPin, now: Now) -> None:
    """Check that ``renewed`` is a valid certificate of the same activation as ``held`` (P12-13, P12-18)."""
    verify_certificate(
        renewed,
        pin,
        coordinator_id=held.coordinator_id,
        epoch=held.authority_epoch,
        incarnation=held.incarnation_id,
        now=now,
    )
    _refuse_first(
        (
            (renewed.activation_sequence != held.activation_sequence, Fault.ACTIVATION),
            (renewed.fencing_token != held.fencing_token, Fault.TOKEN),
        )
    )


def sign_certificate(
    key: ed25519.SigningKey,
    *,
    witness_id: bytes,
    coordinator_id: bytes,
    activation_sequence: int,
    epoch: int,
    incarnation: bytes,
    token: bytes,
    issued_at: int,
    expires_at: int,
) -> ActivationCertificate:
    """What a witness with ``key`` certifies (P12-06, P12-07). Nothing is judged: life and times are the caller's."""

    def certificate(signature: bytes) -> ActivationCertificate:
        return ActivationCertificate(
            witness_id=ActivationWitnessId(witness_id),
            coordinator_id=CoordinatorId(coordinator_id),
            activation_sequence=ActivationSequence(activation_sequence),
            authority_epoch=AuthorityEpoch(epoch),
            incarnation_id=IncarnationId(incarnation),
            fencing_token=token,
            issued_at=issued_at,
            expires_at=expires_at,
            witness_key_id=KeyId(ed25519.fingerprint(key.public_key)),
            signature=signature,
        )

    return certificate(key.sign(digest.certificate_preimage(certificate(_UNSIGNED).body())))


def _signed_by(certificate: ActivationCertificate, public_key: bytes) -> bool:
    try:
        ed25519.verify(public_key, digest.certificate_preimage(certificate.body()), certificate.signature)
    except ed25519.InvalidSignature:
        return False
    return True


def _refuse_first(faults: tuple[tuple[bool, Fault], ...]) -> None:
    for wrong, fault in faults:
        if wrong:
            raise CertificateInvalid(fault)
