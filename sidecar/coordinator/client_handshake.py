"""The client's side of the paired handshake: what it offers, and what it verifies before it believes (W3, P5, P12).

The proofs themselves are checked in ``authority.proof`` and the certificate in ``authority.certificate``; this module
holds the client's inputs, the order of the checks and the comparison with the pins.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from sidecar.base.clock import Now
from sidecar.base.ed25519 import SigningKey
from sidecar.coordinator.authority import certificate as witnessed
from sidecar.coordinator.authority.certificate import CertificateInvalid, WitnessPin
from sidecar.coordinator.authority.proof import (
    NONCE_BYTES,
    ChannelBinding,
    ProofRefused,
    check_grant,
    check_nonce,
    make_response,
    verify_challenge,
)
from sidecar.coordinator.client_errors import VerificationFailed
from sidecar.coordinator.client_events import Welcome
from sidecar.coordinator.client_trust import Pins, Standing
from sidecar.coordinator.wire.enums import Capability, Scope
from sidecar.coordinator.wire.errors import LocalProtocolError
from sidecar.coordinator.wire.frames import CoordHello, CoordHelloOk, WorkloadChallenge, WorkloadResponse
from sidecar.coordinator.wire.limits import PROTOCOL, REFERENCE, RETENTION_FLOOR, Limits, check_offer, select
from sidecar.coordinator.wire.records import ActivationCertificate, WorkloadOffer

DEFAULT_LIFETIME = 3600
"""Seconds for which a login asks its grant to last."""


@dataclass(frozen=True, slots=True)
class ReplayBound:
    """Most that one replay may stage before it is verified. More than that is cheaper to take as a fresh snapshot.

    ``nbytes`` counts event images and cursors on the wire; decoded they need about three times as much memory.
    """

    events: int = 65_536
    nbytes: int = 32 * 1_048_576


REPLAY_BOUND = ReplayBound()


@dataclass(frozen=True, slots=True)
class ClientConfig:
    """What a client brings to a connection.

    ``derive_binding`` gives this side's own channel binding for the server's nonce (W5-07). ``witness`` is needed until
    the authority is pinned, and must agree with the pin afterwards. ``authority`` narrows the accepted fingerprint.
    ``scopes``, ``capabilities`` (offered) and ``required`` are bit sets; ``lifetime`` and ``handshake_seconds`` are
    seconds.
    """

    key: SigningKey
    pins: Pins
    derive_binding: Callable[[bytes], ChannelBinding]
    witness: WitnessPin | None = None
    authority: bytes | None = None
    scopes: int = int(Scope.WORK_READ | Scope.WORK_COMMAND)
    capabilities: int = int(Capability.EVENT_REPLAY)
    required: int = 0
    client_name: str = "sidecar"
    limits: Limits = REFERENCE
    lifetime: int = DEFAULT_LIFETIME
    handshake_seconds: float = 10.0
    replay: ReplayBound = REPLAY_BOUND


class Handshake:
    """One handshake; its nonce is used once (W3-08). Every check that fails raises ``VerificationFailed``."""

    def __init__(self, config: ClientConfig, entropy: Callable[[int], bytes]) -> None:
        if config.required & ~config.capabilities:
            raise LocalProtocolError("a required capability is not offered")
        check_offer(config.limits)
        self._config = config
        self._nonce = entropy(NONCE_BYTES)
        check_nonce(self._nonce)
        self._challenge: WorkloadChallenge | None = None
        self._response: WorkloadResponse | None = None
        self._fingerprint = b""

    def hello(self) -> CoordHello:
        """COORD_HELLO with the offer: profile and a fresh nonce (W3-02)."""
        config, limits = self._config, self._config.limits
        return CoordHello(
            protocol_major=PROTOCOL[0],
            protocol_minor=PROTOCOL[1],
            protocol_patch=PROTOCOL[2],
            client_name=config.client_name,
            offered_capabilities=config.capabilities,
            required_capabilities=config.required,
            max_frame_bytes=limits.frame,
            max_page_bytes=limits.page_bytes,
            max_page_records=limits.page_records,
            max_typed_payload_bytes=limits.typed_payload,
            max_event_credit_count=limits.credit_count,
            max_event_credit_bytes=limits.credit_bytes,
            workload_offer=WorkloadOffer(self._nonce),
        )

    def answer(self, challenge: WorkloadChallenge, now: Now) -> WorkloadResponse:
        """Verify the challenge in the order of W3-19, the pins included, and only then prove the workload's key."""
        config = self._config
        try:
            self._fingerprint = verify_challenge(
                challenge,
                client_nonce=self._nonce,
                derive_binding=config.derive_binding,
                check_pin=lambda fingerprint: config.pins.check_authority(fingerprint, config.authority),
            )
        except ProofRefused as error:
            raise VerificationFailed(error.check, str(error)) from error
        self._challenge = challenge
        self._response = make_response(
            challenge, config.key, scopes=config.scopes, requested_expiry=int(now.wall) + config.lifetime
        )
        return self._response

    @property
    def witness(self) -> WitnessPin:
        """The witness whose signature counts: the given one, else the pinned one (P12-08)."""
        if self._config.witness is not None:
            return self._config.witness
        pin = self._config.pins.get(self._fingerprint)
        if pin is None:
            raise VerificationFailed(
                "witness", "no witness is pinned for this authority: give its id and public key once"
            )
        return WitnessPin(pin.witness_id, pin.witness_key)

    def accept(self, ok: CoordHelloOk, now: Now) -> Welcome:
        """Verify HELLO_OK completely, judge the authority by the pins and pin it (P5-22, W7-07, P12-19, W2-06)."""
        if self._challenge is None or self._response is None:
            raise VerificationFailed("downgrade", "the server skipped its proof")
        try:
            check_grant(self._challenge, ok, self._response, now=now.wall)
        except ProofRefused as error:
            raise VerificationFailed(error.check, str(error)) from error
        selected = self._check_terms(ok)
        witness = self.witness
        certificate = ok.activation_certificate
        try:
            witnessed.verify_certificate(
                certificate,
                witness,
                coordinator_id=ok.coordinator_id,
                epoch=ok.authority_epoch,
                incarnation=ok.incarnation_id,
                now=now,
            )
        except CertificateInvalid as error:
            raise VerificationFailed("certificate", str(error)) from error
        guard = certificate.guard()
        standing = Standing(
            guard.authority_epoch, guard.activation_sequence, ok.incarnation_id, guard.fencing_token_sha256
        )
        admission = self._config.pins.admit(
            self._fingerprint, ok.coordinator_id, witness.witness_id, witness.public_key, standing
        )
        return Welcome(
            (ok.protocol_major, ok.protocol_minor, ok.protocol_patch),
            ok.negotiated_capabilities,
            ok.workload_grant.scopes,
            ok.workload_grant.expires_at,
            ok.workload_grant.key_id,
            self._fingerprint,
            ok.coordinator_id,
            standing,
            admission,
            certificate,
            selected,
            ok.operation_result_retention_secs,
        )

    def _check_terms(self, ok: CoordHelloOk) -> Limits:
        """Version, capabilities, limits and retention are within what was asked for (P1-08, P3-20, P5-10, P5-12)."""
        config = self._config
        if (ok.protocol_major, ok.protocol_minor) != PROTOCOL[:2]:
            raise VerificationFailed("version", "HELLO_OK names another protocol version")
        if ok.negotiated_capabilities & ~config.capabilities:
            raise VerificationFailed("capabilities", "the server negotiated a capability that was not offered")
        if config.required & ~ok.negotiated_capabilities:
            raise VerificationFailed("capabilities", "the server does not have a required capability")
        selected = ok.limits()
        if select(config.limits, selected) != selected:
            raise VerificationFailed("limits", "the server selected limits above the offered ones")
        if ok.operation_result_retention_secs < RETENTION_FLOOR:
            raise VerificationFailed("retention", "the server keeps results for less than 30 days")
        return selected


def verify_renewal(held: ActivationCertificate, renewed: ActivationCertificate, witness: WitnessPin, now: Now) -> None:
    """A renewal keeps sequence, token, epoch and incarnation and lives on (P12-13, P12-18), else it is refused."""
    try:
        witnessed.verify_renewal(held, renewed, witness, now)
    except CertificateInvalid as error:
        raise VerificationFailed("certificate", str(error)) from error
    if renewed.expires_at < held.expires_at:
        raise VerificationFailed("certificate", "the renewal is older than the certificate that it renews")
