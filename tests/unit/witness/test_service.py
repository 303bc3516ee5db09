"""Authentication, certificates and their log, without sockets."""

from __future__ import annotations

from pathlib import Path

import pytest

from sidecar.base.clock import Now
from sidecar.base.ed25519 import SigningKey
from sidecar.base.secret import Secret
from sidecar.base.witnessing import Refusal, WitnessProtocolError, WitnessRefused
from sidecar.coordinator.authority.certificate import verify_certificate
from sidecar.coordinator.wire.ids import AuthorityEpoch
from sidecar.witness import protocol
from sidecar.witness.messages import Activate, Kind, Last, Refused
from sidecar.witness.protocol import ServerExchange, SignedRequest
from sidecar.witness.service import issue
from sidecar.witness.state import Terms
from tests.unit.witness.rig import COORDINATOR, LIFE, START_WALL, Clock, LocalWitness, client_key, incarnation
from tests.vectors import inputs
from tests.vectors.inputs import VECTORS


@pytest.fixture
def witness(tmp_path: Path) -> LocalWitness:
    return LocalWitness(tmp_path / "witness", Clock(), client_key(1), client_key(2))


@pytest.mark.req("P12-06", "P12-07")
def test_the_certificate_is_that_of_the_golden_vectors() -> None:
    terms = Terms(
        inputs.COORDINATOR,
        inputs.ACTIVATION,
        inputs.EPOCH,
        inputs.INCARNATION,
        inputs.TOKEN,
        inputs.ISSUED,
        inputs.EXPIRES,
    )
    certificate = issue(terms, inputs.WITNESS, SigningKey(Secret(inputs.WITNESS_SEED)))
    assert certificate.signature.hex() == VECTORS["AC signature"]
    assert b"phux-coordinator-activation/v1\0".hex() + certificate.body().hex() == VECTORS["AC preimage"]
    assert certificate.witness_key_id.hex() == VECTORS["witness_key_id = SHA-256(pub)"]
    assert len(certificate.encode()) == 209


@pytest.mark.req("P12-06", "P12-07", "P12-10")
def test_what_is_granted_verifies_against_the_pin(witness: LocalWitness) -> None:
    certificate = witness.activate(COORDINATOR, AuthorityEpoch(5), incarnation(1))
    verify_certificate(
        certificate,
        witness.pin,
        coordinator_id=COORDINATOR,
        epoch=5,
        incarnation=incarnation(1),
        now=witness.clock.now(),
    )
    assert (certificate.issued_at, certificate.expires_at) == (START_WALL, START_WALL + LIFE)


@pytest.mark.req("P12-12", "P12-23")
def test_a_key_that_is_not_pinned_gets_nothing(witness: LocalWitness) -> None:
    witness.key = client_key(3)
    with pytest.raises(WitnessRefused) as caught:
        witness.activate(COORDINATOR, AuthorityEpoch(5), incarnation(1))
    assert caught.value.reason is Refusal.NOT_AUTHORISED
    witness.key = client_key(1)
    assert witness.last(COORDINATOR) == (0, 0)


@pytest.mark.req("P12-12")
def test_a_token_alone_relinquishes_nothing(witness: LocalWitness) -> None:
    certificate = witness.activate(COORDINATOR, AuthorityEpoch(5), incarnation(1))
    witness.key = client_key(2)  # every client of the coordinator knows the token, and this key is pinned too
    with pytest.raises(WitnessRefused) as caught:
        witness.relinquish(COORDINATOR, certificate.activation_sequence, certificate.fencing_token)
    assert caught.value.reason is Refusal.NOT_AUTHORISED


@pytest.mark.req("P12-12")
def test_a_recorded_request_is_worth_nothing_on_another_connection(witness: LocalWitness) -> None:
    identity = witness.service.identity
    request = Activate(COORDINATOR, AuthorityEpoch(5), incarnation(1))
    client = protocol.ClientExchange(client_key(), identity.witness_id, request)
    recorded = client.feed(ServerExchange(identity.witness_id, b"\x01" * 32).opening())
    replayed = ServerExchange(identity.witness_id, b"\x02" * 32).feed(recorded)
    assert replayed is not None
    assert witness.service.answer(replayed) == Refused(Refusal.NOT_AUTHORISED)
    assert witness.last(COORDINATOR) == (0, 0)


def test_signed_nonsense_is_a_protocol_error(witness: LocalWitness) -> None:
    key, image = client_key(), bytes(16)
    identity = witness.service.identity
    signature = key.sign(protocol.transcript(bytes(32), identity.witness_id, key.public_key, Kind.LAST, image))
    with pytest.raises(WitnessProtocolError):
        witness.service.answer(SignedRequest(bytes(32), key.public_key, signature, Kind.LAST, image))


def test_the_log_says_what_was_decided_and_no_secret(witness: LocalWitness) -> None:
    certificate = witness.activate(COORDINATOR, AuthorityEpoch(5), incarnation(1))
    witness.renew(certificate)
    with pytest.raises(WitnessRefused):
        witness.activate(COORDINATOR, AuthorityEpoch(6), incarnation(2))
    witness.relinquish(COORDINATOR, certificate.activation_sequence, certificate.fencing_token)
    witness.call(Last(COORDINATOR))
    log = witness.log.getvalue()
    for word in ("witness_granted", "lease_active", "witness_answered", '"epoch": 5', COORDINATOR.hex()):
        assert word in log
    assert certificate.fencing_token.hex() not in log
    assert repr(certificate.fencing_token) not in log


@pytest.mark.req("P12-04", "P12-05", "P12-12")
def test_all_that_counts_survives_a_restart(witness: LocalWitness) -> None:
    certificate = witness.activate(COORDINATOR, AuthorityEpoch(5), incarnation(1))
    witness.restart()
    with pytest.raises(WitnessRefused, match=Refusal.LEASE_ACTIVE):
        witness.activate(COORDINATOR, AuthorityEpoch(6), incarnation(2))
    renewed = witness.renew(certificate)
    assert renewed.fencing_token == certificate.fencing_token
    witness.relinquish(COORDINATOR, certificate.activation_sequence, certificate.fencing_token)
    witness.restart()
    with pytest.raises(WitnessRefused, match=Refusal.SPENT):
        witness.relinquish(COORDINATOR, certificate.activation_sequence, certificate.fencing_token)
    with pytest.raises(WitnessRefused, match=Refusal.EPOCH_TOO_LOW):
        witness.activate(COORDINATOR, AuthorityEpoch(5), incarnation(2))
    assert witness.activate(COORDINATOR, AuthorityEpoch(6), incarnation(2)).activation_sequence == 2


def test_time_of_a_virtual_clock_is_shared(witness: LocalWitness) -> None:
    witness.clock.advance(1.5)
    assert witness.clock.now() == Now(START_WALL + 1.5, 5001.5)
