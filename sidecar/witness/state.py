"""The witness's decisions as a pure core: one table of phases, time and entropy as arguments (P12-03..05, P12-09..13).

Per coordinator the witness holds the last epoch, the activation sequence and the active lease, beside the client key
that the coordinator is bound to. Nothing is changed by :meth:`WitnessCore.decide`; the shell makes the record durable,
then calls :meth:`WitnessCore.adopt`, then replies.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from typing import Final

from sidecar.base.witnessing import Refusal
from sidecar.coordinator.wire.ids import (
    U64_MAX,
    ActivationSequence,
    AuthorityEpoch,
    CoordinatorId,
    IncarnationId,
)
from sidecar.witness.messages import (
    TOKEN_BYTES,
    Activate,
    Kind,
    Refused,
    Released,
    Relinquish,
    Renew,
    Report,
    Request,
)

SECOND: Final = 1_000_000_000
MAX_LEASE_SECONDS: Final = 60
MAX_COORDINATORS: Final = 1024


@dataclass(frozen=True, slots=True)
class Instant:
    """One reading of the witness's clocks, in nanoseconds: Unix time, and time since this boot (suspend included)."""

    wall_ns: int
    boot_ns: int
    boot_id: bytes


@dataclass(frozen=True, slots=True)
class Lease:
    """The active lease: who holds which token until when.

    ``expires_at`` (Unix seconds) is the latest expiry ever certified for this token. ``boot_deadline_ns`` counts only
    within the boot ``boot_id``.
    """

    incarnation_id: IncarnationId
    token_sha256: bytes
    issued_at: int
    expires_at: int
    boot_id: bytes
    boot_deadline_ns: int
    spent: bool = False

    def phase(self, at: Instant) -> Phase:
        """Where this lease stands. The two clocks must agree that it is over before a successor may come:

        a wall clock that jumps forward must not let two tokens live, one that jumps back only delays.
        """
        if self.spent:
            return Phase.SPENT
        other_boot = at.boot_id != self.boot_id
        wall_over = at.wall_ns >= self.expires_at * SECOND
        boot_over = at.boot_ns >= self.boot_deadline_ns
        if wall_over and (other_boot or boot_over):
            return Phase.OVER
        if wall_over or (boot_over and not other_boot):
            return Phase.UNSETTLED
        return Phase.HELD

    def remaining_ns(self, at: Instant) -> int:
        """How long until a successor may come, as far as the clocks tell now."""
        boot_left = 0 if at.boot_id != self.boot_id else self.boot_deadline_ns - at.boot_ns
        return max(0, self.expires_at * SECOND - at.wall_ns, boot_left)


@dataclass(frozen=True, slots=True)
class Record:
    """All that the witness knows of one coordinator (P12-03), and the client key that alone may act for it."""

    coordinator_id: CoordinatorId
    client_key: bytes
    epoch: AuthorityEpoch
    activation_sequence: ActivationSequence
    lease: Lease


class Phase(Enum):
    """State of a coordinator's lease at one instant."""

    NEVER = auto()
    """Never activated."""
    HELD = auto()
    """In force by both clocks."""
    UNSETTLED = auto()
    """Over by one clock only: neither renewed nor followed."""
    OVER = auto()
    """Expired for certain."""
    SPENT = auto()
    """Relinquished by its holder."""


class Act(Enum):
    """What a request does when it is not refused."""

    GRANT = auto()
    REISSUE = auto()
    SPEND = auto()
    REPORT = auto()


TRANSITIONS: Final[Mapping[tuple[Phase, Kind], Act | Refusal]] = {
    (Phase.NEVER, Kind.ACTIVATE): Act.GRANT,
    (Phase.HELD, Kind.ACTIVATE): Refusal.LEASE_ACTIVE,
    (Phase.UNSETTLED, Kind.ACTIVATE): Refusal.LEASE_ACTIVE,
    (Phase.OVER, Kind.ACTIVATE): Act.GRANT,
    (Phase.SPENT, Kind.ACTIVATE): Act.GRANT,
    (Phase.NEVER, Kind.RENEW): Refusal.UNKNOWN,
    (Phase.HELD, Kind.RENEW): Act.REISSUE,
    (Phase.UNSETTLED, Kind.RENEW): Refusal.NOT_CURRENT,
    (Phase.OVER, Kind.RENEW): Refusal.NOT_CURRENT,
    (Phase.SPENT, Kind.RENEW): Refusal.SPENT,
    (Phase.NEVER, Kind.RELINQUISH): Refusal.UNKNOWN,
    (Phase.HELD, Kind.RELINQUISH): Act.SPEND,
    (Phase.UNSETTLED, Kind.RELINQUISH): Act.SPEND,
    (Phase.OVER, Kind.RELINQUISH): Act.SPEND,
    (Phase.SPENT, Kind.RELINQUISH): Refusal.SPENT,
    (Phase.NEVER, Kind.LAST): Act.REPORT,
    (Phase.HELD, Kind.LAST): Act.REPORT,
    (Phase.UNSETTLED, Kind.LAST): Act.REPORT,
    (Phase.OVER, Kind.LAST): Act.REPORT,
    (Phase.SPENT, Kind.LAST): Act.REPORT,
}
"""Every phase with every request. GRANT and REISSUE lead to HELD, SPEND to SPENT; the clocks do the rest."""


@dataclass(frozen=True, slots=True)
class Terms:
    """What a certificate is to say; the shell signs it. Times are whole Unix seconds."""

    coordinator_id: CoordinatorId
    activation_sequence: ActivationSequence
    epoch: AuthorityEpoch
    incarnation_id: IncarnationId
    token: bytes = field(repr=False)
    issued_at: int
    expires_at: int


@dataclass(frozen=True, slots=True)
class Decision:
    """The outcome of a request, and the record that must be durable before anybody hears of it (None: no change)."""

    outcome: Terms | Released | Report | Refused
    record: Record | None = None


class WitnessCore:
    """All coordinators of one witness. One thread uses it: that is what makes a grant atomic (P12-11)."""

    def __init__(
        self,
        records: Iterable[Record],
        *,
        lease_seconds: int,
        clients: Iterable[bytes],
        capacity: int = MAX_COORDINATORS,
    ) -> None:
        if not 1 <= lease_seconds <= MAX_LEASE_SECONDS:
            raise ValueError(f"a certificate lasts 1 to {MAX_LEASE_SECONDS} seconds (P12-10)")
        self._records = {record.coordinator_id: record for record in records}
        self._lease_seconds = lease_seconds
        self._clients = frozenset(clients)
        self._capacity = capacity

    @property
    def records(self) -> Mapping[CoordinatorId, Record]:
        """The durable records, by coordinator."""
        return self._records

    def adopt(self, record: Record) -> None:
        """Take over a record that is durable now."""
        self._records[record.coordinator_id] = record

    def decide(self, client_key: bytes, request: Request, at: Instant, entropy: Callable[[int], bytes]) -> Decision:
        """Judge one request of an authenticated client. Changes nothing."""
        record = self._records.get(request.coordinator_id)
        if client_key not in self._clients or (record is not None and record.client_key != client_key):
            return Decision(Refused(Refusal.NOT_AUTHORISED))
        if isinstance(request, Renew | Relinquish) and record is not None and not _is_current(record, request):
            return Decision(Refused(Refusal.NOT_CURRENT))
        if isinstance(request, Activate) and record is not None and request.epoch <= record.epoch:
            return Decision(Refused(Refusal.EPOCH_TOO_LOW, last_epoch=record.epoch))
        phase = Phase.NEVER if record is None else record.lease.phase(at)
        act = TRANSITIONS[phase, request.kind]
        if isinstance(act, Refusal):
            left = 0 if record is None or act is not Refusal.LEASE_ACTIVE else record.lease.remaining_ns(at)
            return Decision(Refused(act, retry_after_ms=min(-(-left // 1_000_000), U64_MAX)))
        match act, request, record:
            case Act.GRANT, Activate(), _:
                return self._grant(record, client_key, request, at, entropy)
            case Act.REISSUE, Renew(), Record():
                return self._reissue(record, request, at)
            case Act.SPEND, Relinquish(), Record():
                return Decision(Released(), replace(record, lease=replace(record.lease, spent=True)))
        return Decision(Report(record.epoch, record.activation_sequence) if record else Report(0, 0))

    def _grant(
        self,
        record: Record | None,
        client_key: bytes,
        request: Activate,
        at: Instant,
        entropy: Callable[[int], bytes],
    ) -> Decision:
        sequence = 0 if record is None else record.activation_sequence
        if sequence >= U64_MAX or (record is None and len(self._records) >= self._capacity):
            return Decision(Refused(Refusal.EXHAUSTED))
        token = entropy(TOKEN_BYTES)
        if len(token) != TOKEN_BYTES or not any(token):
            raise ValueError("the random source failed")
        lease = self._lease(request.incarnation_id, hashlib.sha256(token).digest(), at)
        granted = Record(request.coordinator_id, client_key, request.epoch, ActivationSequence(sequence + 1), lease)
        return Decision(_terms(granted, token, lease), granted)

    def _reissue(self, record: Record, request: Renew, at: Instant) -> Decision:
        old = record.lease
        new = self._lease(old.incarnation_id, old.token_sha256, at)
        # The certificate gets today's times; the lease remembers the latest that was ever certified, so that a clock
        # set back cannot end it before its older certificate.
        lease = replace(new, expires_at=max(old.expires_at, new.expires_at))
        return Decision(_terms(record, request.token, new), replace(record, lease=lease))

    def _lease(self, incarnation_id: IncarnationId, token_sha256: bytes, at: Instant) -> Lease:
        issued_at = at.wall_ns // SECOND
        return Lease(
            incarnation_id,
            token_sha256,
            issued_at,
            issued_at + self._lease_seconds,
            at.boot_id,
            at.boot_ns + self._lease_seconds * SECOND,
        )


def _is_current(record: Record, request: Renew | Relinquish) -> bool:
    token_matches = hmac.compare_digest(hashlib.sha256(request.token).digest(), record.lease.token_sha256)
    if not token_matches or request.activation_sequence != record.activation_sequence:
        return False
    if isinstance(request, Relinquish):
        return True
    return request.epoch == record.epoch and request.incarnation_id == record.lease.incarnation_id


def _terms(record: Record, token: bytes, times: Lease) -> Terms:
    return Terms(
        record.coordinator_id,
        record.activation_sequence,
        record.epoch,
        record.lease.incarnation_id,
        token,
        times.issued_at,
        times.expires_at,
    )
