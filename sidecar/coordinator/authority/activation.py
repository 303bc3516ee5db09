"""Becoming the one writer, in the order of P12-20, and staying it (P4-08, P4-09, P12-14..17, P12-21..24).

Nothing here imports the witness or the store: both are handed in. Every step is announced to a trace before it is
taken, so that a test can see the order and break each step.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, Protocol, TypeVar

from sidecar.base.clock import Now
from sidecar.base.witnessing import Refusal, WitnessError, WitnessRefused
from sidecar.coordinator.authority.certificate import CertificateInvalid, WitnessPin, verify_certificate
from sidecar.coordinator.machines.authority import AUTHORITY, AuthorityEvent, AuthorityState
from sidecar.coordinator.wire.ids import (
    ActivationSequence,
    AuthorityEpoch,
    CoordinatorId,
    IncarnationId,
    advance,
    coordinator_id,
    fresh_id,
    incarnation_id,
)
from sidecar.coordinator.wire.records import ActivationCertificate

T = TypeVar("T")

_PROPOSALS: Final = 8
"""Epochs that may turn out too low, because another process was activated in between."""
_SHORTEST_PAUSE: Final = 0.05
"""Seconds between two requests while the lease of a predecessor runs out."""


class ActivationRefused(Exception):  # noqa: N818 - the witness or the state said no
    """This process must not become the writer; nothing was bound."""


class Step(StrEnum):
    """The steps of an activation, in their order (P12-20)."""

    LOCK = "lock"
    INCARNATION = "incarnation"
    EPOCH = "epoch"
    CERTIFICATE = "certificate"
    INSTALL = "install"
    RECOVER = "recover"
    BIND = "bind"


class InstalledActivation(Protocol):
    """What the store remembers of the last activation; zeros before the first."""

    @property
    def epoch(self) -> int:
        """Last installed epoch."""

    @property
    def activation_sequence(self) -> int:
        """Last installed activation sequence."""

    @property
    def incarnation_id(self) -> bytes:
        """Incarnation of the last activation."""


class Store(Protocol):
    """The open store of a coordinator: locked, and checked for integrity and schema."""

    @property
    def coordinator_id(self) -> bytes:
        """16 bytes."""

    def lock_held(self) -> bool:
        """Whether this process still holds the store lock."""

    def installed(self) -> InstalledActivation:
        """The activation installed last."""

    def install(self, epoch: int, activation_sequence: int, token_sha256: bytes, incarnation_id: bytes) -> None:
        """Make an activation durable."""


class Witness(Protocol):
    """A client of the witness; every call raises :exc:`WitnessError` when there is no usable answer."""

    def activate(
        self, coordinator_id: CoordinatorId, epoch: AuthorityEpoch, incarnation_id: IncarnationId
    ) -> ActivationCertificate:
        """A certificate for exactly these."""

    def renew(self, certificate: ActivationCertificate) -> ActivationCertificate:
        """The same activation, with a later expiry."""

    def relinquish(self, coordinator_id: CoordinatorId, activation_sequence: ActivationSequence, token: bytes) -> None:
        """Give the token back."""

    def last(self, coordinator_id: CoordinatorId) -> tuple[int, int]:
        """Last epoch and activation sequence, zeros before the first."""


@dataclass(frozen=True, slots=True)
class Authority:
    """The activation under which a server works. A renewal makes a new value with the same guard (P12-13, P12-f)."""

    coordinator_id: bytes
    epoch: int
    activation_sequence: int
    incarnation_id: bytes
    token_sha256: bytes = field(repr=False)
    guard: bytes = field(repr=False)
    """The 64 bytes that every state-rooting request must repeat (P4-10, P4-11)."""
    certificate: ActivationCertificate
    deadline_mono: float
    """Monotonic second from which the certificate counts as expired, whatever the wall clock says."""

    @classmethod
    def under(cls, certificate: ActivationCertificate, asked: Now) -> Authority:
        """The authority of a verified certificate. Its life is counted from when it was asked for: the witness granted
        it later than that, so it never outlives the witness's lease."""
        guard = certificate.guard()
        return cls(
            certificate.coordinator_id,
            certificate.authority_epoch,
            certificate.activation_sequence,
            certificate.incarnation_id,
            guard.fencing_token_sha256,
            guard.encode(),
            certificate,
            asked.mono + (certificate.expires_at - certificate.issued_at),
        )

    def valid(self, now: Now) -> bool:
        """Whether the certificate is unexpired by both clocks (P12-16)."""
        return now.wall < self.certificate.expires_at and now.mono < self.deadline_mono


def _no_trace(step: Step) -> None:
    """Nobody watches."""


def activate(
    store: Store,
    witness: Witness,
    *,
    entropy: Callable[[int], bytes],
    clock: Callable[[], Now],
    pin: WitnessPin,
    wait: float = 0.0,
    sleep: Callable[[float], None] = time.sleep,
    trace: Callable[[Step], None] = _no_trace,
) -> Activation:
    """Activate an open store: the steps of P12-20 from the lock to the durable install. Blocks.

    While the lease of a predecessor runs (restart after a crash, a copied store) it is asked again for at most
    ``wait`` seconds. Raises :exc:`ActivationRefused`, :exc:`WitnessError`, CertificateInvalid, CounterWrap or what the
    store raises; then this process is not the writer. There is no way on without a certificate (P12-23, P12-24).
    """
    trace(Step.LOCK)
    if not store.lock_held():
        raise ActivationRefused("the store lock is not held")
    coordinator = coordinator_id(store.coordinator_id)
    trace(Step.INCARNATION)
    incarnation = fresh_id(incarnation_id, entropy)
    installed = store.installed()
    if incarnation == installed.incarnation_id:
        raise ActivationRefused("the random source repeated the last incarnation")
    certificate, asked = _certificate(
        witness, coordinator, incarnation, installed.epoch, clock=clock, wait=wait, sleep=sleep, trace=trace, pin=pin
    )
    activation = Activation(Authority.under(certificate, asked), witness, clock, trace)
    with activation.stopped_by_failure():
        if certificate.activation_sequence <= installed.activation_sequence:
            raise ActivationRefused("the witness has lost activations that this store has seen; it must not be used")
    activation.install(store)
    return activation


class Activation:
    """A certified activation on its way to the bound socket, and back to a clean stop or into the fence.

    ``stage`` moves by the table of `machines/authority.py`; a step out of order raises :exc:`ActivationRefused`.
    """

    def __init__(
        self, authority: Authority, witness: Witness, clock: Callable[[], Now], trace: Callable[[Step], None]
    ) -> None:
        self.authority = authority
        # It has the store and an incarnation: ``activate`` saw to that before it asked the witness.
        self.stage = AUTHORITY.after(AuthorityState.STOPPED, AuthorityEvent.OPENED)
        self._witness = witness
        self._clock = clock
        self._trace = trace

    def install(self, store: Store) -> None:
        """Make it durable, if the certificate still holds."""

        def checked() -> None:
            held = self.authority
            if not held.valid(self._clock()):
                raise ActivationRefused("the certificate expired before it was installed")
            store.install(held.epoch, held.activation_sequence, held.token_sha256, IncarnationId(held.incarnation_id))

        self._take(AuthorityEvent.INSTALL, Step.INSTALL, checked)

    def recover(self, work: Callable[[], T]) -> T:
        """Load and recover the state: before anything is bound, after the activation is durable."""
        return self._take(AuthorityEvent.RECOVER, Step.RECOVER, work)

    def bind(self, listen: Callable[[], T]) -> T:
        """Open the endpoint, last of all (P12-20, P12-21), if the certificate still holds."""

        def checked() -> T:
            if not self.authority.valid(self._clock()):
                raise ActivationRefused("the certificate expired before the endpoint was opened")
            return listen()

        return self._take(AuthorityEvent.BIND, Step.BIND, checked)

    def renewed(self, authority: Authority) -> None:
        """The certificate was renewed; an answer that comes after the end is too late."""
        if AUTHORITY.after(self.stage, AuthorityEvent.RENEWED) is AuthorityState.BOUND:
            self.authority = authority

    def lose(self) -> None:
        """The authority is lost: once bound it is fenced, and nothing brings it back (P12-17)."""
        self._end(AuthorityEvent.LOST)

    def relinquish(self) -> None:
        """Give the token back: nothing is or will be committed under it. Raises :exc:`WitnessError`: the successor
        then waits for the expiry. May be called twice. A fenced one keeps its token: what it committed last may be
        unknown, so a successor waits until no certificate of it can be in force."""
        self._end(AuthorityEvent.STOP)

    def _end(self, event: AuthorityEvent) -> None:
        before, self.stage = self.stage, AUTHORITY.step(self.stage, event).next
        if self.stage is AuthorityState.STOPPED and before is not AuthorityState.STOPPED:
            held = self.authority.certificate
            self._witness.relinquish(held.coordinator_id, held.activation_sequence, held.fencing_token)

    @contextlib.contextmanager
    def stopped_by_failure(self) -> Iterator[None]:
        """A failure inside ends this activation: the token goes back if the witness can be reached."""
        try:
            yield
        except BaseException:
            with contextlib.suppress(WitnessError):
                self._end(AuthorityEvent.FAILED)
            raise

    def _take(self, event: AuthorityEvent, step: Step, work: Callable[[], T]) -> T:
        reached = AUTHORITY.step(self.stage, event).next
        if reached is self.stage:
            raise ActivationRefused(f"{step} is not possible now: the activation is {self.stage.name.lower()}")
        with self.stopped_by_failure():
            self._trace(step)
            done = work()
        self.stage = reached
        return done


def _certificate(
    witness: Witness,
    coordinator: CoordinatorId,
    incarnation: IncarnationId,
    installed_epoch: int,
    *,
    pin: WitnessPin,
    clock: Callable[[], Now],
    wait: float,
    sleep: Callable[[float], None],
    trace: Callable[[Step], None],
) -> tuple[ActivationCertificate, Now]:
    """A verified certificate for an epoch above store and witness (P12-14), and when it was asked for."""
    give_up = clock().mono + wait
    too_low = 0
    while True:
        trace(Step.EPOCH)
        epoch = advance(AuthorityEpoch(max(installed_epoch, witness.last(coordinator)[0])))
        trace(Step.CERTIFICATE)
        asked = clock()
        try:
            certificate = witness.activate(coordinator, epoch, incarnation)
        except WitnessRefused as refused:
            left = give_up - clock().mono
            if refused.reason is Refusal.LEASE_ACTIVE and left > 0:
                sleep(min(max(refused.retry_after or 0.0, _SHORTEST_PAUSE), left))
                continue
            too_low += 1
            if refused.reason is not Refusal.EPOCH_TOO_LOW or too_low >= _PROPOSALS:
                raise
            continue
        try:
            verify_certificate(
                certificate, pin, coordinator_id=coordinator, epoch=epoch, incarnation=incarnation, now=clock()
            )
        except CertificateInvalid:
            # Whoever granted it holds the lease until its end; the token goes back where it came from.
            with contextlib.suppress(WitnessError):
                witness.relinquish(coordinator, certificate.activation_sequence, certificate.fencing_token)
            raise
        return certificate, asked
