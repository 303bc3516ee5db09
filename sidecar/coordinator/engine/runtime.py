"""What the parts of one engine share: the authority, the clock of the current call, the durable root, the log."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol, TypeVar

from cext.credit import Quota
from sidecar.base.clock import Now
from sidecar.coordinator.authority.grants import Grant, Registry
from sidecar.coordinator.engine.log import EventLog
from sidecar.coordinator.engine.observer import Observer
from sidecar.coordinator.engine.policy import Kept, Policy
from sidecar.coordinator.engine.quota import Quotas, Resource
from sidecar.coordinator.engine.state import State
from sidecar.coordinator.wire.errors import ResourceExhausted, StaleAuthority
from sidecar.coordinator.wire.ids import fresh_id
from sidecar.coordinator.wire.records import ActivationCertificate

Id = TypeVar("Id", bound=bytes)

LEASE_MARGIN = 1.0
"""Seconds that a commit is given to reach the disk before the certificate expires."""
CURSOR_BYTES = 32
"""Bytes of the cursors that this server mints, all of them random."""


class Fenced(Exception):  # noqa: N818 - a state, not a mishap
    """This engine commits nothing any more; the message says why (P12-16, P12-17)."""


class Authority(Protocol):
    """The activation under which the engine works; a renewal brings a new value with the same guard (P12-13)."""

    @property
    def coordinator_id(self) -> bytes:
        """16 bytes."""

    @property
    def epoch(self) -> int:
        """Authority epoch."""

    @property
    def activation_sequence(self) -> int:
        """Activation sequence."""

    @property
    def incarnation_id(self) -> bytes:
        """16 bytes, new at every start of the process."""

    @property
    def guard(self) -> bytes:
        """The 64 bytes that every state-rooting request repeats (P4-10)."""

    @property
    def certificate(self) -> ActivationCertificate:
        """The certificate in force."""

    @property
    def deadline_mono(self) -> float:
        """Monotonic second from which the certificate counts as expired."""

    def valid(self, now: Now) -> bool:
        """Whether the certificate is unexpired on both clocks."""


class Runtime:
    """Shared by the parts of one engine; only the engine itself changes ``now``, ``durable``, ``fenced``."""

    def __init__(
        self,
        authority: Authority,
        state: State,
        policy: Policy,
        entropy: Callable[[int], bytes],
        observer: Observer,
    ) -> None:
        self.authority = authority
        self.policy = policy
        self.observer = observer
        self.quotas = Quotas(policy.quotas)
        self.log = EventLog(state.tail, state.last_sequence)
        self.durable = state.at(state.last_sequence)
        self.registry: Registry | None = None
        self.now = Now(0.0, 0.0)
        self.fenced: str | None = None
        self._entropy = entropy

    def fresh_id(self, make: Callable[[bytes], Id]) -> Id:
        """A new id, for example ``fresh_id(snapshot_id)`` (P4-01)."""
        return fresh_id(make, self._entropy)

    def fresh_cursor(self) -> bytes:
        """A cursor nobody can guess (P9-08)."""
        return self._entropy(CURSOR_BYTES)

    def kept(self, state: State) -> Kept:
        """How long and how much is kept in a state of this authority."""
        return self.policy.kept(state, self.authority.coordinator_id)

    def holds(self, grant: Grant) -> bool:
        """Whether a grant is still good (P6-07, P6-08, W8-07)."""
        if self.registry is None:
            return grant.expires_at > self.now.wall
        return self.registry.still_grants(grant, self.now.wall)

    def check_authority(self, guard: bytes | None = None) -> None:
        """Refuse to act without an unexpired certificate or under another guard (P4-11..13)."""
        if self.fenced is not None or not self.authority.valid(self.now):
            raise StaleAuthority("the activation certificate is not valid")
        if guard is not None and guard != self.authority.guard:
            raise StaleAuthority("the guard is not that of this activation")

    def lease_is_short(self) -> bool:
        """Whether a batch that is taken now may reach the disk after the certificate has expired on either clock.

        A tenth of its life has to be left, but no more than ``LEASE_MARGIN`` seconds (P12-16).
        """
        certificate = self.authority.certificate
        left = min(self.authority.deadline_mono - self.now.mono, certificate.expires_at - self.now.wall)
        return left < min(LEASE_MARGIN, (certificate.expires_at - certificate.issued_at) / 10)

    def charge(self, quota: Quota, amounts: Iterable[tuple[Resource, int]]) -> None:
        """Charge everything or raise ``ResourceExhausted`` with nothing charged (P3-48, P3-49)."""
        wanted = list(amounts)
        if quota.charge_many(wanted):
            return
        for resource, amount in wanted:
            if not quota.charge(resource, amount):
                self.observer.quota(resource.label)
                raise ResourceExhausted(f"the quota of {resource.label} is used up")
            quota.release(resource, amount)
        raise ResourceExhausted("the quotas are used up")
