"""What a client knows about authorities and how it judges an offered one (W2-06..09, P5-09, P12-25..31). Pure values.

A pin is keyed by the authority fingerprint alone: socket path, certificate and incarnation may change (W2-07, W2-08).
Counters only rise. Two different holders of one activation are a conflict that this code never decides: it quarantines
the authority and leaves the decision to an operator (P12-30).
"""

from __future__ import annotations

import contextlib
import hmac
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from enum import Enum

from sidecar.base.ed25519 import digest_text
from sidecar.coordinator.client_errors import AuthorityChanged, AuthorityConflict, VerificationFailed


@dataclass(frozen=True, slots=True)
class Standing:
    """One activation, as a verified certificate names it. Only the hash of the fencing token is kept."""

    epoch: int
    activation: int
    incarnation: bytes
    token_sha256: bytes

    def __str__(self) -> str:
        return f"epoch {self.epoch}, activation {self.activation}, incarnation {self.incarnation.hex()}"


@dataclass(frozen=True, slots=True)
class Quarantine:
    """Both sides of a conflict, as evidence for the operator."""

    held: Standing
    offered: Standing


@dataclass(frozen=True, slots=True)
class Pin:
    """What is known of one authority.

    ``seen`` is the highest activation with a valid certificate: nothing lower is accepted any more. ``current`` is the
    one whose complete snapshot was verified (P12-31). ``fenced`` says that the holder of ``seen`` gave up its token.
    """

    fingerprint: bytes
    coordinator_id: bytes
    witness_id: bytes
    witness_key: bytes
    seen: Standing
    current: Standing
    fenced: bool = False
    quarantine: Quarantine | None = None


class Admission(Enum):
    """How an accepted authority relates to what was known."""

    FIRST = "first"
    """Trusted on first use: it is pinned now."""
    SAME = "same"
    """The activation that is current already."""
    HIGHER = "higher"
    """A later activation: current only after a complete snapshot (P12-31)."""


class Pins:
    """The pins of one client, in memory. ``PinFile`` keeps them on disk.

    Every change happens inside ``_transaction``; reading takes what is there.
    """

    def __init__(self, pins: Iterable[Pin] = (), approved: Iterable[bytes] = ()) -> None:
        self._pins = {pin.fingerprint: pin for pin in pins}
        self._approved = set(approved)

    @property
    def pins(self) -> tuple[Pin, ...]:
        """All pins, ordered by fingerprint."""
        return tuple(self._pins[key] for key in sorted(self._pins))

    @property
    def approved(self) -> frozenset[bytes]:
        """Fingerprints that an operator allowed beside the pinned ones and that were not met yet."""
        return frozenset(self._approved)

    def get(self, fingerprint: bytes) -> Pin | None:
        """The pin of an authority, if there is one."""
        return self._pins.get(fingerprint)

    def check_authority(self, fingerprint: bytes, expected: bytes | None) -> None:
        """May this authority key be talked to at all? Called before the challenge is answered (W3-19, W2-09, P12-27).

        ``expected`` narrows the choice to one fingerprint and never widens it. Without any pin the first authority may
        be pinned. Raises ``AuthorityChanged`` or ``AuthorityConflict``.
        """
        if expected is not None and not hmac.compare_digest(expected, fingerprint):
            raise AuthorityChanged(
                "expected", f"expected {digest_text(expected)}, the server proves {digest_text(fingerprint)}"
            )
        pin = self._pins.get(fingerprint)
        if pin is not None:
            self._check_quarantine(pin)
        elif self._pins and fingerprint not in self._approved:
            pinned = ", ".join(digest_text(known) for known in sorted(self._pins))
            raise AuthorityChanged("fingerprint", f"pinned {pinned}, the server proves {digest_text(fingerprint)}")

    def check_witness(self, fingerprint: bytes, witness_id: bytes, witness_key: bytes) -> None:
        """The witness in use must be the pinned one, id and key (P5-09, P12-08, P12-26), else ``AuthorityChanged``."""
        pin = self._pins.get(fingerprint)
        if pin is None:
            return
        if not hmac.compare_digest(pin.witness_id, witness_id):
            raise AuthorityChanged("witness_id", f"pinned witness {pin.witness_id.hex()}, offered {witness_id.hex()}")
        if not hmac.compare_digest(pin.witness_key, witness_key):
            raise AuthorityChanged("witness_key", "the witness key is not the pinned one")

    def admit(
        self, fingerprint: bytes, coordinator_id: bytes, witness_id: bytes, witness_key: bytes, offered: Standing
    ) -> Admission:
        """Judge a completely verified authority and remember it (W2-06, P12-25..30).

        Raises ``AuthorityChanged`` (nothing is remembered) or ``AuthorityConflict`` (the quarantine is remembered).
        """
        with self._transaction():
            self.check_authority(fingerprint, None)  # another process may have pinned or quarantined meanwhile
            self.check_witness(fingerprint, witness_id, witness_key)
            pin = self._pins.get(fingerprint)
            if pin is None:
                self._approved.discard(fingerprint)
                self._pins[fingerprint] = Pin(fingerprint, coordinator_id, witness_id, witness_key, offered, offered)
                return Admission.FIRST
            if not hmac.compare_digest(pin.coordinator_id, coordinator_id):
                raise AuthorityChanged(
                    "coordinator_id", f"pinned coordinator {pin.coordinator_id.hex()}, offered {coordinator_id.hex()}"
                )
            self._judge(pin, offered)
            if offered != pin.seen:
                self._pins[fingerprint] = replace(pin, seen=offered, fenced=False)
            return Admission.SAME if offered == pin.current else Admission.HIGHER

    def _judge(self, pin: Pin, offered: Standing) -> None:
        seen = pin.seen
        if offered == seen:
            if pin.fenced:
                raise VerificationFailed(
                    "token", f"the fencing token of {seen} was given up; the server must activate again"
                )
            return
        if offered.epoch > seen.epoch and offered.activation > seen.activation:
            return
        if offered.epoch < seen.epoch or offered.activation < seen.activation:
            raise AuthorityChanged("rollback", f"{offered} is lower than {seen}: an old copy of the server answers")
        self._pins[pin.fingerprint] = replace(pin, quarantine=Quarantine(seen, offered))
        raise AuthorityConflict(
            f"{offered} contradicts {seen}; both are refused until the pin is cleared", seen, offered
        )

    def _check_quarantine(self, pin: Pin) -> None:
        if pin.quarantine is not None:
            held, offered = pin.quarantine.held, pin.quarantine.offered
            raise AuthorityConflict(
                f"quarantined: {offered} contradicts {held}; clear the pin to decide", held, offered
            )

    def mark_current(self, fingerprint: bytes, standing: Standing) -> None:
        """A complete snapshot of this activation was verified: it is current, unless a later one was seen (P12-31)."""
        with self._transaction():
            pin = self._pins.get(fingerprint)
            if pin is not None and pin.seen == standing and pin.current != standing:
                self._pins[fingerprint] = replace(pin, current=standing)

    def mark_fenced(self, fingerprint: bytes, standing: Standing) -> None:
        """The holder said that it is fenced: its token counts as revoked from now on (P12-28)."""
        with self._transaction():
            pin = self._pins.get(fingerprint)
            if pin is not None and pin.seen == standing:
                self._pins[fingerprint] = replace(pin, fenced=True)

    def approve(self, fingerprint: bytes) -> None:
        """Operator action: allow one more authority; it is pinned when it proves itself (P12-27)."""
        with self._transaction():
            if fingerprint not in self._pins:
                self._approved.add(fingerprint)

    def forget(self, fingerprint: bytes) -> bool:
        """Operator action: drop a pin or an approval, a quarantine with it (P12-30). False when nothing was there."""
        with self._transaction():
            known = fingerprint in self._pins or fingerprint in self._approved
            self._pins.pop(fingerprint, None)
            self._approved.discard(fingerprint)
            return known

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        yield
