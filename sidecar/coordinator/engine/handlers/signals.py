"""ACK_SIGNAL and SUPPRESS_SIGNAL (OPEN P7-i). What their note says stays with the operation."""

from __future__ import annotations

from sidecar.coordinator.engine.commands import Change, Put, Situation, changed, find, record_of
from sidecar.coordinator.wire.enums import EventKind, ObjectKind, SignalState
from sidecar.coordinator.wire.errors import NotFound, RevisionConflict
from sidecar.coordinator.wire.ids import advance
from sidecar.coordinator.wire.payloads import AckSignal, SignalRecord, SuppressSignal


def ack_signal(situation: Situation, command: AckSignal) -> Change:
    """Open to Acknowledged."""
    return _moved(
        situation,
        command.signal_id,
        (SignalState.OPEN,),
        SignalState.ACKNOWLEDGED,
        EventKind.SIGNAL_ACKNOWLEDGED,
    )


def suppress_signal(situation: Situation, command: SuppressSignal) -> Change:
    """Open or Acknowledged to Suppressed."""
    return _moved(
        situation,
        command.signal_id,
        (SignalState.OPEN, SignalState.ACKNOWLEDGED),
        SignalState.SUPPRESSED,
        EventKind.SIGNAL_SUPPRESSED,
    )


def _moved(
    situation: Situation, signal_id: bytes, sources: tuple[SignalState, ...], target: SignalState, event: EventKind
) -> Change:
    found = find(situation.state, ObjectKind.SIGNAL, signal_id, SignalRecord)
    if found is None:
        raise NotFound("no such signal")
    revision, signal = found
    if signal.state not in sources:
        raise RevisionConflict("the state of the signal does not allow it")
    payload = SignalRecord(
        work_session_id=signal.work_session_id, kind=signal.kind, state=target, message=signal.message
    )
    record = record_of(ObjectKind.SIGNAL, signal_id, advance(revision), payload)
    return changed((Put(record, event),), record)
