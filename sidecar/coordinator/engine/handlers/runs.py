"""PAUSE_RUN, RESUME_RUN and CANCEL_RUN as far as no terminal owner takes part (OPEN P7-c)."""

from __future__ import annotations

from sidecar.coordinator.engine.commands import Change, Put, Situation, changed, find, record_of
from sidecar.coordinator.engine.state import State
from sidecar.coordinator.wire.enums import Capability, EventKind, ObjectKind, RunState, Scope, WorkSessionState
from sidecar.coordinator.wire.errors import CapabilityRequired, NotFound, RevisionConflict, ScopeDenied
from sidecar.coordinator.wire.ids import advance
from sidecar.coordinator.wire.payloads import CancelRun, PauseRun, ResumeRun, RunRecord, WorkSessionRecord

_UNFINISHED = (RunState.PLANNED, RunState.RUNNING, RunState.PAUSED)
_BOUND_SCOPES = Scope.WORK_READ | Scope.TERMINAL_CONTROL


def pause_run(situation: Situation, command: PauseRun) -> Change:
    """Running to Paused: a state of the coordinator alone, nothing is sent anywhere."""
    put = _moved(situation.state, command.run_id, (RunState.RUNNING,), RunState.PAUSED)
    return changed((put,), put.record)


def resume_run(situation: Situation, command: ResumeRun) -> Change:
    """Paused to Running."""
    put = _moved(situation.state, command.run_id, (RunState.PAUSED,), RunState.RUNNING)
    return changed((put,), put.record)


def cancel_run(situation: Situation, command: CancelRun) -> Change:
    """A run that is not over to Cancelled; its work session ends with it.

    With an active binding it is a delegated effect: it needs the rights of one, and this version serves none.
    """
    state = situation.state
    if state.get(ObjectKind.RUN, command.run_id) is None:
        raise NotFound("no such run")
    ended = []
    for session_id in state.sessions_of(command.run_id):
        found = find(state, ObjectKind.WORK_SESSION, session_id, WorkSessionRecord)
        assert found is not None
        revision, session = found
        if session.active_binding is not None:
            _refuse_bound(situation)
        if session.state is WorkSessionState.ACTIVE:
            payload = WorkSessionRecord(run_id=session.run_id, state=WorkSessionState.ENDED)
            record = record_of(ObjectKind.WORK_SESSION, session_id, advance(revision), payload)
            ended.append(Put(record, EventKind.WORK_SESSION_CHANGED))
    run = _moved(state, command.run_id, _UNFINISHED, RunState.CANCELLED)
    return changed((run, *ended), run.record)


def _refuse_bound(situation: Situation) -> None:
    """Every way to end a binding is gated; the order is capability, then scope (P6-11, OPEN P8-b)."""
    if situation.capabilities & Capability.TERMINAL_BINDINGS and _BOUND_SCOPES & ~situation.scopes:
        raise ScopeDenied("the run has an active binding: CANCEL_RUN needs WORK_READ and TERMINAL_CONTROL")
    raise CapabilityRequired("the run has an active binding: CANCEL_RUN is not available without TERMINAL_BINDINGS")


def _moved(state: State, run_id: bytes, sources: tuple[RunState, ...], target: RunState) -> Put:
    found = find(state, ObjectKind.RUN, run_id, RunRecord)
    if found is None:
        raise NotFound("no such run")
    revision, run = found
    if run.state not in sources:
        raise RevisionConflict("the state of the run does not allow it")
    payload = RunRecord(objective_id=run.objective_id, attempt=run.attempt, state=target, outcome=run.outcome)
    return Put(record_of(ObjectKind.RUN, run_id, advance(revision), payload), EventKind.RUN_CHANGED)
