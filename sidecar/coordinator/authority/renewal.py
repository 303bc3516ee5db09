"""When to renew the certificate and what a failure means, sans-IO (P12-13, P12-15, P12-17; OPEN P12-d, P12-e).

The shell polls, runs the request that :class:`Renewer` asks for in a thread, and hands the outcome back. A refusal, or
expiry before a valid renewal, fences for good: only a new activation, with a new process, writes again.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, auto
from typing import Final

from sidecar.base.clock import Now
from sidecar.base.witnessing import WitnessRefused
from sidecar.coordinator.authority.activation import Authority
from sidecar.coordinator.authority.certificate import CertificateInvalid, WitnessPin, verify_renewal
from sidecar.coordinator.wire.records import ActivationCertificate

RETRY_SECONDS: Final = 1.0
"""Pause between two attempts, shorter for short certificates.

In the second half of a life there is room for ten attempts at a witness that fails at once, and for three at one that
hangs: the client ends a renewal after an eighth of the life. The server's tick of a quarter of a second takes some of
that room from lives below 8 seconds.
"""
_ATTEMPTS: Final = 20


class Renewal(Enum):
    """States of the renewer."""

    HOLDING = auto()
    """The certificate holds; the next attempt is not due."""
    ASKING = auto()
    """A request is on its way."""
    FENCED = auto()
    """The authority is lost."""


class Happening(Enum):
    """What moves the renewer."""

    DUE = auto()
    GRANTED = auto()
    FAILED = auto()
    REFUSED = auto()
    EXPIRED = auto()


TRANSITIONS: Final[Mapping[tuple[Renewal, Happening], Renewal]] = {
    (Renewal.HOLDING, Happening.DUE): Renewal.ASKING,
    (Renewal.HOLDING, Happening.EXPIRED): Renewal.FENCED,
    (Renewal.ASKING, Happening.GRANTED): Renewal.HOLDING,
    (Renewal.ASKING, Happening.FAILED): Renewal.HOLDING,
    (Renewal.ASKING, Happening.REFUSED): Renewal.FENCED,
    (Renewal.ASKING, Happening.EXPIRED): Renewal.FENCED,
}
"""All moves. Whatever is not here changes nothing: an answer that comes after fencing is too late."""


class Action(Enum):
    """What the shell has to do now."""

    NOTHING = auto()
    RENEW = auto()
    """Send the certificate of ``authority`` to the witness; report with ``granted`` or ``failed``."""
    FENCE = auto()
    """Stop committing and tell every connection; this stays the answer."""


class Renewer:
    """Keeps one authority alive."""

    def __init__(self, authority: Authority, pin: WitnessPin) -> None:
        self.authority = authority
        """The authority in force; a new value after each renewal."""
        self.state = Renewal.HOLDING
        self.reason = ""
        """Why it is fenced."""
        self._pin = pin
        self._not_before = float("-inf")
        self._asked: Now | None = None

    def next_deadline(self) -> float:
        """Monotonic second at which :meth:`poll` has something to say at the latest; infinite when fenced."""
        if self.state is Renewal.FENCED:
            return float("inf")
        expiry = self.authority.deadline_mono
        if self.state is Renewal.ASKING:
            return expiry
        return min(max(expiry - self._life / 2, self._not_before), expiry)

    def poll(self, now: Now) -> Action:
        """Time passed. RENEW at half life by either clock, FENCE from expiry by either clock on."""
        if not self.authority.valid(now):
            self._move(Happening.EXPIRED, "the activation certificate expired before it could be renewed")
        elif self.state is Renewal.HOLDING and self._is_due(now):
            self._move(Happening.DUE)
            self._asked = now
            return Action.RENEW
        return Action.FENCE if self.state is Renewal.FENCED else Action.NOTHING

    def granted(self, certificate: ActivationCertificate, now: Now) -> Action:
        """The witness answered. A certificate that is not a valid renewal counts as a failed attempt."""
        if self.poll(now) is Action.FENCE or self._asked is None:
            return self.poll(now)
        try:
            verify_renewal(self.authority.certificate, certificate, self._pin, now)
        except CertificateInvalid as error:
            return self.failed(error, now)
        self._move(Happening.GRANTED)
        self.authority = Authority.under(certificate, self._asked)
        self._pause(now)
        return Action.NOTHING

    def failed(self, error: Exception, now: Now) -> Action:
        """The attempt failed: try again until expiry, unless the witness refused, which is final."""
        if isinstance(error, WitnessRefused):
            self._move(Happening.REFUSED, str(error))
        else:
            self._move(Happening.FAILED)
            self._pause(now)
        return self.poll(now)

    @property
    def _life(self) -> float:
        certificate = self.authority.certificate
        return float(certificate.expires_at - certificate.issued_at)

    def _is_due(self, now: Now) -> bool:
        half = self._life / 2
        # A wall clock that jumped ahead shortens what clients grant the certificate, so half life counts by either one.
        past_half = (
            now.mono >= self.authority.deadline_mono - half or now.wall >= self.authority.certificate.expires_at - half
        )
        return past_half and now.mono >= self._not_before

    def _pause(self, now: Now) -> None:
        self._not_before = now.mono + min(RETRY_SECONDS, self._life / _ATTEMPTS)

    def _move(self, happening: Happening, reason: str = "") -> None:
        after = TRANSITIONS.get((self.state, happening))
        if after is None:
            return
        self.state = after
        if after is Renewal.FENCED:
            self.reason = reason
