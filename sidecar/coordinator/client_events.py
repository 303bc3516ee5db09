"""What a ``ClientSession`` tells its shell. Values only; every one of them is already verified."""

from __future__ import annotations

from dataclasses import dataclass, field

from sidecar.coordinator.client_trust import Admission, Standing
from sidecar.coordinator.wire.enums import EventKind, GapReason
from sidecar.coordinator.wire.ids import (
    DeliverySequence,
    EventCut,
    EventId,
    EventSequence,
    ObjectRevision,
    SubscriptionId,
)
from sidecar.coordinator.wire.limits import Selected
from sidecar.coordinator.wire.records import ActivationCertificate, ObjectRef, OperationResult, SnapshotRecord


@dataclass(frozen=True, slots=True)
class Welcome:
    """The verified outcome of a handshake (P5-22, W7-07)."""

    version: tuple[int, int, int]
    capabilities: int
    scopes: int
    grant_expires_at: int
    key_id: bytes
    fingerprint: bytes
    coordinator_id: bytes
    standing: Standing
    admission: Admission
    certificate: ActivationCertificate
    selected: Selected
    retention_seconds: int


@dataclass(frozen=True, slots=True)
class Ready:
    """The connection is active; nothing has been asked yet."""

    welcome: Welcome


@dataclass(frozen=True, slots=True)
class OperationReply:
    """The terminal reply of a command or of a lookup (P8-01, P8-02)."""

    request_id: int
    result: OperationResult


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One complete, verified cut of everything that this connection may see (P9-16).

    ``base`` is the event cut: later events are not in it. ``records`` ascend by (kind, id); it is empty when the
    snapshot was only verified and not kept. ``subscription_id`` is the stream that continues it, if one was reserved.
    """

    base: EventCut
    standing: Standing
    records: tuple[SnapshotRecord, ...]
    record_count: int
    page_count: int
    digest: bytes
    subscription_id: SubscriptionId | None


@dataclass(frozen=True, slots=True)
class SnapshotReady:
    """A snapshot was verified and may be published; ``request_id`` is the one of ``open_snapshot``."""

    request_id: int
    snapshot: Snapshot


@dataclass(frozen=True, slots=True)
class StreamLive:
    """Events of this subscription follow (P9-24, P10-02, P10-34); ``request_id`` is the one that asked for it."""

    request_id: int
    subscription_id: SubscriptionId


@dataclass(frozen=True, slots=True)
class Change:
    """One event of the authority: the same in live streams and in replays (P10-14).

    ``record`` is the object after the change; None for the kinds that carry a source fact or a source gap.
    """

    sequence: EventSequence
    event_id: EventId
    kind: EventKind
    object: ObjectRef
    revision: ObjectRevision
    payload: bytes = field(repr=False)  # documents stay out of logs
    record: SnapshotRecord | None


@dataclass(frozen=True, slots=True)
class WorkEvent(Change):
    """One delivered event, exact-next in its stream. ``nbytes`` is its whole size on the wire: its byte credit."""

    subscription_id: SubscriptionId
    delivery: DeliverySequence
    nbytes: int


@dataclass(frozen=True, slots=True)
class Replay:
    """Everything that a paused subscription missed: its visible events in ``(after, through]``, complete and verified.

    ``events`` are the ones that were not told before, so normally all ``event_count`` of them (P10-32).
    """

    subscription_id: SubscriptionId
    after: EventCut
    through: EventCut
    events: tuple[Change, ...]
    event_count: int
    page_count: int
    digest: bytes


@dataclass(frozen=True, slots=True)
class ReplayReady:
    """A replay was verified; ``StreamLive`` follows with the same ``request_id``, that of ``open_replay``.

    When the server does not resume the stream after all, ``StreamGap`` or ``StreamStale`` follows instead.
    """

    request_id: int
    replay: Replay


@dataclass(frozen=True, slots=True)
class StreamGap:
    """The server paused this subscription (P10-17, P10-20). Only a fresh snapshot or a replay heals it."""

    subscription_id: SubscriptionId
    last_delivery: int
    last_event: int
    observed_event: int | None
    reason: GapReason


@dataclass(frozen=True, slots=True)
class StreamStale:
    """This side found a discontinuity: a delivery or a revision is not the next one (P10-12, P10-15).

    ``healable``: nothing is wrong with the server, it holds the subscription paused (a replay was not applied in time).
    """

    subscription_id: SubscriptionId
    last_delivery: int
    last_event: int
    detail: str
    healable: bool = False


@dataclass(frozen=True, slots=True)
class Refused:
    """A request was refused with a scoped COORD_ERROR, or with a fatal one that names it (P13-06)."""

    request_id: int
    error: Exception


@dataclass(frozen=True, slots=True)
class Renewed:
    """The certificate was replaced by a valid renewal (P12-18)."""

    expires_at: int


@dataclass(frozen=True, slots=True)
class RenewalRefused:
    """A renewal did not verify: the old certificate stays and the connection closes at its expiry (P12-18)."""

    detail: str


@dataclass(frozen=True, slots=True)
class Pong:
    """The answer to ``ping``."""

    nonce: int


@dataclass(frozen=True, slots=True)
class Closed:
    """The end of the connection. ``unfinished`` requests are indeterminate, every stream is stale (P13-07, P10-19)."""

    error: Exception
    unfinished: tuple[int, ...]


Event = (
    Ready
    | OperationReply
    | SnapshotReady
    | StreamLive
    | WorkEvent
    | ReplayReady
    | StreamGap
    | StreamStale
    | Refused
    | Renewed
    | RenewalRefused
    | Pong
    | Closed
)
