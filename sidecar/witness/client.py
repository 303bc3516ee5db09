"""Blocking client of the witness with one deadline per call; may be used from any thread.

Every call is one connection. It raises :exc:`WitnessRefused` (the witness said no), :exc:`WitnessUnavailable` (nobody
answered in time) or :exc:`WitnessProtocolError` (something else answered), never anything else.
"""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path
from typing import Final

from sidecar.base.ed25519 import SigningKey
from sidecar.base.unixsocket import peer_uid
from sidecar.base.witnessing import (
    Refusal,
    WitnessError,
    WitnessProtocolError,
    WitnessRefused,
    WitnessUnavailable,
)
from sidecar.coordinator.wire.ids import ActivationSequence, AuthorityEpoch, CoordinatorId, IncarnationId
from sidecar.coordinator.wire.records import ActivationCertificate
from sidecar.witness.messages import Activate, Granted, Last, Refused, Relinquish, Renew, Reply, Report, Request
from sidecar.witness.protocol import ClientExchange

_READ_BYTES: Final = 4096
RENEWAL_SHARE: Final = 1 / 8
"""Of the certificate's life: a renewal takes no longer, so that a witness that hangs is asked again before expiry."""
_SHORTEST_RENEWAL: Final = 0.1


class WitnessClient:
    """Calls one witness as one client key."""

    def __init__(
        self, path: Path, key: SigningKey, witness_id: bytes, *, timeout: float = 5.0, uid: int | None = None
    ) -> None:
        """``timeout`` (seconds) covers a whole call: connecting, the exchange and the witness's disk. A renewal
        has less where the certificate is short.

        Only a witness that runs as the user ``uid`` is talked to; by default the user that runs this.
        """
        self._path = path
        self._key = key
        self._witness_id = witness_id
        self._timeout = timeout
        self._uid = os.geteuid() if uid is None else uid

    def activate(
        self, coordinator_id: CoordinatorId, epoch: AuthorityEpoch, incarnation_id: IncarnationId
    ) -> ActivationCertificate:
        """A new certificate for exactly these. The caller verifies it against its pin."""
        return self._certificate(Activate(coordinator_id, epoch, incarnation_id))

    def renew(self, certificate: ActivationCertificate) -> ActivationCertificate:
        """A later certificate for the same token."""
        life = certificate.expires_at - certificate.issued_at
        return self._certificate(
            Renew(
                certificate.coordinator_id,
                certificate.activation_sequence,
                certificate.authority_epoch,
                certificate.incarnation_id,
                certificate.fencing_token,
            ),
            min(self._timeout, max(life * RENEWAL_SHARE, _SHORTEST_RENEWAL)),
        )

    def relinquish(self, coordinator_id: CoordinatorId, activation_sequence: ActivationSequence, token: bytes) -> None:
        """Give the token back; returns once it is durably spent."""
        self._call(Relinquish(coordinator_id, activation_sequence, token))

    def last(self, coordinator_id: CoordinatorId) -> tuple[int, int]:
        """Last epoch and activation sequence; (0, 0) for a coordinator that was never activated."""
        reply = self._call(Last(coordinator_id))
        assert isinstance(reply, Report)
        return reply.epoch, reply.activation_sequence

    def _certificate(self, request: Request, timeout: float | None = None) -> ActivationCertificate:
        reply = self._call(request, timeout)
        assert isinstance(reply, Granted)
        return reply.certificate

    def _call(self, request: Request, timeout: float | None = None) -> Reply:
        seconds = self._timeout if timeout is None else timeout
        try:
            reply = self._exchange(request, time.monotonic() + seconds)
        except WitnessError:
            raise
        except TimeoutError:
            raise WitnessUnavailable(f"the witness at {self._path} did not answer in {seconds:g} s") from None
        except OSError as error:
            raise WitnessUnavailable(f"the witness at {self._path} cannot be reached: {error}") from error
        if not isinstance(reply, Refused):
            return reply
        if reply.reason is Refusal.STORAGE:
            raise WitnessUnavailable("the witness cannot write its state; its log says why")
        raise WitnessRefused(
            reply.reason,
            retry_after=reply.retry_after_ms / 1000 if reply.reason is Refusal.LEASE_ACTIVE else None,
            last_epoch=reply.last_epoch if reply.reason is Refusal.EPOCH_TOO_LOW else None,
        )

    def _exchange(self, request: Request, deadline: float) -> Reply:
        exchange = ClientExchange(self._key, self._witness_id, request)
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as sock:
            sock.settimeout(_left(deadline))
            sock.connect(str(self._path))
            if peer_uid(sock) != self._uid:
                raise WitnessProtocolError(f"the socket {self._path} is served by another user")
            while exchange.reply is None:
                sock.settimeout(_left(deadline))
                data = sock.recv(_READ_BYTES)
                if not data:
                    raise WitnessUnavailable("the witness closed the connection without an answer")
                if output := exchange.feed(data):
                    sock.settimeout(_left(deadline))
                    sock.sendall(output)
        return exchange.reply


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left
