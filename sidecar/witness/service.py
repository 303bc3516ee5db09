"""From a signed request to the bytes of its reply: authenticate, decide, make durable, sign. One thread calls it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from cext import digest
from sidecar.base import ed25519
from sidecar.base.witnessing import Refusal
from sidecar.coordinator.wire.ids import ActivationWitnessId, KeyId
from sidecar.coordinator.wire.records import ActivationCertificate
from sidecar.ops.logging import Log
from sidecar.witness.messages import SIGNATURE_BYTES, Granted, Refused, Reply
from sidecar.witness.protocol import SignedRequest
from sidecar.witness.state import Instant, Terms, WitnessCore
from sidecar.witness.store import Identity, WitnessStateError, WitnessStore

_UNSIGNED: Final = bytes(SIGNATURE_BYTES)


def issue(terms: Terms, witness_id: ActivationWitnessId, key: ed25519.SigningKey) -> ActivationCertificate:
    """The signed certificate over exactly these terms (P12-06, P12-07)."""

    def certificate(signature: bytes) -> ActivationCertificate:
        return ActivationCertificate(
            witness_id=witness_id,
            coordinator_id=terms.coordinator_id,
            activation_sequence=terms.activation_sequence,
            authority_epoch=terms.epoch,
            incarnation_id=terms.incarnation_id,
            fencing_token=terms.token,
            issued_at=terms.issued_at,
            expires_at=terms.expires_at,
            witness_key_id=KeyId(ed25519.fingerprint(key.public_key)),
            signature=signature,
        )

    return certificate(key.sign(digest.certificate_preimage(certificate(_UNSIGNED).body())))


class WitnessService:
    """A store and the core over its records, reopened together whenever a commit failed."""

    def __init__(
        self,
        open_store: Callable[[], WitnessStore],
        *,
        lease_seconds: int,
        clients: frozenset[bytes],
        clock: Callable[[], Instant],
        entropy: Callable[[int], bytes],
        log: Log,
    ) -> None:
        """Open the store. Raises :exc:`WitnessStateError`."""
        self._open_store = open_store
        self._lease_seconds = lease_seconds
        self._clients = clients
        self._clock = clock
        self._entropy = entropy
        self._log = log
        self._opened: tuple[WitnessStore, WitnessCore] | None = self._open()
        self.identity: Identity = self._opened[0].identity

    def answer(self, signed: SignedRequest) -> Reply:
        """The reply to one request. What it says is durable. Raises :exc:`WitnessProtocolError` for values that no
        client sends."""
        try:
            request = signed.open(self.identity.witness_id)
        except ed25519.InvalidSignature:
            return Refused(Refusal.NOT_AUTHORISED)
        try:
            if self._opened is None:
                self._opened = self._open()
        except WitnessStateError as error:
            self._log.error("witness_state_unusable", reason=str(error))
            return Refused(Refusal.STORAGE)
        store, core = self._opened
        decision = core.decide(signed.client_key, request, self._clock(), self._entropy)
        if decision.record is not None:
            try:
                store.commit(decision.record)
            except Exception as error:  # whatever it was, the outcome is open until the store is read again
                self._log.error("witness_commit_failed", error=error)
                self.close()
                return Refused(Refusal.STORAGE)
            core.adopt(decision.record)
        outcome = decision.outcome
        self._report(request.kind.name.lower(), request.coordinator_id, outcome)
        if isinstance(outcome, Terms):
            return Granted(issue(outcome, self.identity.witness_id, store.key))
        return outcome

    def close(self) -> None:
        """Give the state directory free."""
        if self._opened is not None:
            self._opened[0].close()
            self._opened = None

    def _open(self) -> tuple[WitnessStore, WitnessCore]:
        store = self._open_store()
        return store, WitnessCore(store.load(), lease_seconds=self._lease_seconds, clients=self._clients)

    def _report(self, call: str, coordinator_id: bytes, outcome: object) -> None:
        coordinator = coordinator_id.hex()
        if isinstance(outcome, Refused):
            self._log.warning("witness_refused", call=call, coordinator_id=coordinator, reason=outcome.reason.value)
        elif isinstance(outcome, Terms):
            self._log.info(
                "witness_granted",
                call=call,
                coordinator_id=coordinator,
                epoch=outcome.epoch,
                activation_sequence=outcome.activation_sequence,
                expires_at=outcome.expires_at,
            )
        else:
            self._log.info("witness_answered", call=call, coordinator_id=coordinator)
