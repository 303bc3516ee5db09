"""What makes an activation certificate acceptable, and each fault that does not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from sidecar.base.clock import Now
from sidecar.base.ed25519 import InvalidKey, SigningKey
from sidecar.base.secret import Secret
from sidecar.coordinator.authority.certificate import (
    CertificateInvalid,
    Fault,
    WitnessPin,
    sign_certificate,
    verify_certificate,
    verify_renewal,
)
from sidecar.coordinator.wire.ids import (
    ActivationSequence,
    ActivationWitnessId,
    AuthorityEpoch,
    CoordinatorId,
    IncarnationId,
    KeyId,
)
from sidecar.coordinator.wire.records import ActivationCertificate
from tests.vectors import inputs
from tests.vectors.inputs import VECTORS

KEY = SigningKey(Secret(inputs.WITNESS_SEED))
STRANGER = SigningKey(Secret(b"\x01" * 32))
PIN = WitnessPin(inputs.WITNESS, KEY.public_key)
NOW = Now(inputs.ISSUED + 10.0, 500.0)
Change = Callable[[ActivationCertificate], ActivationCertificate]


def signed(
    *,
    key: SigningKey = KEY,
    issued_at: int = inputs.ISSUED,
    expires_at: int = inputs.EXPIRES,
    token: bytes = inputs.TOKEN,
) -> ActivationCertificate:
    return sign_certificate(
        key,
        witness_id=inputs.WITNESS,
        coordinator_id=inputs.COORDINATOR,
        activation_sequence=inputs.ACTIVATION,
        epoch=inputs.EPOCH,
        incarnation=inputs.INCARNATION,
        token=token,
        issued_at=issued_at,
        expires_at=expires_at,
    )


def verify(certificate: ActivationCertificate, now: Now = NOW, pin: WitnessPin = PIN) -> None:
    verify_certificate(
        certificate,
        pin,
        coordinator_id=inputs.COORDINATOR,
        epoch=inputs.EPOCH,
        incarnation=inputs.INCARNATION,
        now=now,
    )


def fault(certificate: ActivationCertificate, now: Now = NOW, pin: WitnessPin = PIN) -> Fault:
    with pytest.raises(CertificateInvalid) as caught:
        verify(certificate, now, pin)
    return caught.value.reason


@pytest.mark.req("P12-06", "P12-07")
def test_the_golden_certificate_is_signed_and_accepted() -> None:
    certificate = signed()
    assert certificate.signature.hex() == VECTORS["AC signature"]
    verify(certificate)
    verify(ActivationCertificate.decode(certificate.encode()))


@pytest.mark.req("P12-07", "P12-19")
def test_every_byte_is_signed() -> None:
    image = signed().encode()
    for position in range(1, len(image)):  # the version is judged by the decoder
        altered = image[:position] + bytes([image[position] ^ 1]) + image[position + 1 :]
        with pytest.raises(CertificateInvalid):
            verify(ActivationCertificate.decode(altered))


@pytest.mark.req("P12-19", "P12-08")
@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda c: replace(c, witness_id=ActivationWitnessId(b"\xab" * 16)), Fault.WITNESS_ID),
        (lambda c: replace(c, witness_key_id=KeyId(b"\xab" * 32)), Fault.WITNESS_KEY),
        (lambda c: replace(c, signature=STRANGER.sign(b"other")), Fault.SIGNATURE),
        (lambda c: replace(c, fencing_token=b"\xd1" * 32), Fault.SIGNATURE),
        (lambda c: replace(c, activation_sequence=ActivationSequence(8)), Fault.SIGNATURE),
    ],
)
def test_what_is_not_from_the_pinned_witness_is_refused(change: Change, reason: Fault) -> None:
    assert fault(change(signed())) is reason


@pytest.mark.req("P12-08", "P12-19")
def test_another_key_or_id_than_the_pinned_one_is_refused() -> None:
    assert fault(signed(key=STRANGER)) is Fault.WITNESS_KEY
    # A stranger that claims the pinned key id still has no signature of it.
    claimed = replace(signed(key=STRANGER), witness_key_id=KeyId(PIN.key_id))
    assert fault(claimed) is Fault.SIGNATURE
    assert fault(signed(), pin=WitnessPin(b"\xab" * 16, KEY.public_key)) is Fault.WITNESS_ID
    assert fault(signed(), pin=WitnessPin(inputs.WITNESS, STRANGER.public_key)) is Fault.WITNESS_KEY


@pytest.mark.req("P12-19")
@pytest.mark.parametrize(
    ("expected", "reason"),
    [
        ({"coordinator_id": CoordinatorId(b"\x12" * 16)}, Fault.COORDINATOR_ID),
        ({"epoch": AuthorityEpoch(6)}, Fault.EPOCH),
        ({"epoch": AuthorityEpoch(4)}, Fault.EPOCH),
        ({"incarnation": IncarnationId(b"\x56" * 16)}, Fault.INCARNATION),
    ],
)
def test_a_certificate_for_something_else_is_refused(expected: dict[str, object], reason: Fault) -> None:
    subject: dict[str, object] = {
        "coordinator_id": inputs.COORDINATOR,
        "epoch": inputs.EPOCH,
        "incarnation": inputs.INCARNATION,
        **expected,
    }
    with pytest.raises(CertificateInvalid) as caught:
        verify_certificate(signed(), PIN, now=NOW, **subject)  # type: ignore[arg-type]
    assert caught.value.reason is reason


@pytest.mark.req("P12-10", "P12-19")
@pytest.mark.parametrize("life", [61, 3600, 0, -1])
def test_a_life_of_more_than_60_seconds_or_none_is_refused(life: int) -> None:
    assert fault(signed(expires_at=inputs.ISSUED + life)) is Fault.LIFE


@pytest.mark.req("P12-10", "P12-19")
@pytest.mark.parametrize(
    ("offset", "reason"),
    [(-5.0, None), (-5.001, Fault.NOT_YET), (59.999, None), (60.0, Fault.EXPIRED), (1e9, Fault.EXPIRED)],
)
def test_the_times_are_those_of_now(offset: float, reason: Fault | None) -> None:
    now = Now(inputs.ISSUED + offset, 0.0)
    if reason is None:
        verify(signed(), now)
    else:
        assert fault(signed(), now) is reason


@pytest.mark.req("P12-13")
def test_a_renewal_is_the_same_activation_with_other_times() -> None:
    held = signed()
    verify_renewal(held, signed(issued_at=inputs.ISSUED + 8, expires_at=inputs.ISSUED + 68), PIN, NOW)
    for renewed, reason in (
        (signed(token=b"\xd1" * 32), Fault.TOKEN),
        (signed(expires_at=inputs.ISSUED + 5), Fault.EXPIRED),
        (signed(key=STRANGER), Fault.WITNESS_KEY),
    ):
        with pytest.raises(CertificateInvalid) as caught:
            verify_renewal(held, renewed, PIN, NOW)
        assert caught.value.reason is reason
    with pytest.raises(CertificateInvalid) as caught:
        verify_renewal(replace(held, activation_sequence=ActivationSequence(6)), held, PIN, NOW)
    assert caught.value.reason is Fault.ACTIVATION


@pytest.mark.req("P12-08")
@pytest.mark.parametrize("witness_id", [b"", bytes(16), b"\x01" * 15, b"\x01" * 17])
def test_a_pin_names_a_possible_witness(witness_id: bytes) -> None:
    with pytest.raises(ValueError, match="16 bytes"):
        WitnessPin(witness_id, KEY.public_key)
    with pytest.raises(InvalidKey):
        WitnessPin(inputs.WITNESS, bytes(32))


def test_the_error_shows_no_token() -> None:
    with pytest.raises(CertificateInvalid) as caught:
        verify(signed(), Now(0.0, 0.0))
    assert inputs.TOKEN.hex() not in str(caught.value)
