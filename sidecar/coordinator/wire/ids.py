"""Nominal ids, counters and cuts as separate types (P4-01..06).

On the wire an id is 16 opaque nonzero bytes and a counter a nonzero u64, so nothing but the type keeps an ObjectiveId
from being used as a RunId. Each is a ``NewType``: mypy refuses the mix-up and the running program pays nothing. The
lower-case function of the same name is its checked constructor; it raises ``LocalProtocolError``. Ids are compared as
bytes and nothing is derived from them (P4-02).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NewType, TypeVar, cast

from sidecar.coordinator.wire.errors import LocalProtocolError

ID_SIZE = 16
U64_MAX = (1 << 64) - 1
ZERO_ID = bytes(ID_SIZE)

CoordinatorId = NewType("CoordinatorId", bytes)
IncarnationId = NewType("IncarnationId", bytes)
ObjectiveId = NewType("ObjectiveId", bytes)
RunId = NewType("RunId", bytes)
WorkSessionId = NewType("WorkSessionId", bytes)
BindingId = NewType("BindingId", bytes)
PendingBindingId = NewType("PendingBindingId", bytes)
ArtifactId = NewType("ArtifactId", bytes)
SignalId = NewType("SignalId", bytes)
EventId = NewType("EventId", bytes)
OperationId = NewType("OperationId", bytes)
EffectAttemptId = NewType("EffectAttemptId", bytes)
SnapshotId = NewType("SnapshotId", bytes)
ReplayId = NewType("ReplayId", bytes)
SubscriptionId = NewType("SubscriptionId", bytes)
ActivationWitnessId = NewType("ActivationWitnessId", bytes)
ObjectId = NewType("ObjectId", bytes)
"""The id half of an ObjectRef: which nominal id it is, is told by the kind beside it."""

AuthorityEpoch = NewType("AuthorityEpoch", int)
ObjectRevision = NewType("ObjectRevision", int)
EventSequence = NewType("EventSequence", int)
DeliverySequence = NewType("DeliverySequence", int)
SourceSequence = NewType("SourceSequence", int)
ActivationSequence = NewType("ActivationSequence", int)

EventCut = NewType("EventCut", int)
"""An immutable point of the event order; 0 = before the first event."""
DeliveryCut = NewType("DeliveryCut", int)
"""Last delivery of a subscription; 0 = none yet."""

KeyId = NewType("KeyId", bytes)
"""SHA-256 of a raw workload public key: the principal."""
Fingerprint = NewType("Fingerprint", bytes)
"""SHA-256 of a raw authority public key: what a client pins."""

_Id = TypeVar("_Id", bound=bytes)
_Counter = TypeVar("_Counter", bound=int)


class CounterWrap(OverflowError):  # noqa: N818 - names the event, as the ledger does
    """A counter would pass 2**64 - 1: the writer must fence itself (P4-06)."""


def _id(make: Callable[[bytes], _Id], name: str) -> Callable[[bytes], _Id]:
    def checked(data: bytes) -> _Id:
        if len(data) != ID_SIZE or data == ZERO_ID:
            raise LocalProtocolError(f"{name} must be {ID_SIZE} bytes, not all zero")
        return make(bytes(data))

    return checked


def _u64(make: Callable[[int], _Counter], name: str, lowest: int) -> Callable[[int], _Counter]:
    def checked(value: int) -> _Counter:
        if not lowest <= value <= U64_MAX:
            raise LocalProtocolError(f"{name} must be in {lowest}..2**64-1")
        return make(value)

    return checked


coordinator_id = _id(CoordinatorId, "CoordinatorId")
incarnation_id = _id(IncarnationId, "IncarnationId")
objective_id = _id(ObjectiveId, "ObjectiveId")
run_id = _id(RunId, "RunId")
work_session_id = _id(WorkSessionId, "WorkSessionId")
binding_id = _id(BindingId, "BindingId")
pending_binding_id = _id(PendingBindingId, "PendingBindingId")
artifact_id = _id(ArtifactId, "ArtifactId")
signal_id = _id(SignalId, "SignalId")
event_id = _id(EventId, "EventId")
operation_id = _id(OperationId, "OperationId")
effect_attempt_id = _id(EffectAttemptId, "EffectAttemptId")
snapshot_id = _id(SnapshotId, "SnapshotId")
replay_id = _id(ReplayId, "ReplayId")
subscription_id = _id(SubscriptionId, "SubscriptionId")
activation_witness_id = _id(ActivationWitnessId, "ActivationWitnessId")
object_id = _id(ObjectId, "ObjectId")

authority_epoch = _u64(AuthorityEpoch, "AuthorityEpoch", 1)
object_revision = _u64(ObjectRevision, "ObjectRevision", 1)
event_sequence = _u64(EventSequence, "EventSequence", 1)
delivery_sequence = _u64(DeliverySequence, "DeliverySequence", 1)
source_sequence = _u64(SourceSequence, "SourceSequence", 1)
activation_sequence = _u64(ActivationSequence, "ActivationSequence", 1)
event_cut = _u64(EventCut, "EventCut", 0)
delivery_cut = _u64(DeliveryCut, "DeliveryCut", 0)


def advance(counter: _Counter, by: int = 1) -> _Counter:
    """The value of a counter ``by`` steps later; raises ``CounterWrap`` instead of wrapping (P4-06)."""
    if counter > U64_MAX - by:
        raise CounterWrap("a u64 counter is exhausted")
    return cast(_Counter, counter + by)


def fresh_id(make: Callable[[bytes], _Id], entropy: Callable[[int], bytes]) -> _Id:
    """A new id from ``entropy(16)``, for example ``fresh_id(snapshot_id, os.urandom)``.

    A source that yields zeros is broken: the checked constructor refuses it, there is no fallback (P4-01, W2-16).
    """
    return make(entropy(ID_SIZE))
