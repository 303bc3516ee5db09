"""A store with work in it: runs, work sessions, signals, artifacts and evidence, which no command makes yet.

``seed(store_dir)`` writes through the store's own API, so that a real server recovers what a later version would have
written. The store must not be in use. It may be new: the server then starts on it as its first activation.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from sidecar.coordinator.engine.commands import record_of
from sidecar.coordinator.engine.state import Batch, Record
from sidecar.coordinator.store.sqlite import SqliteStore
from sidecar.coordinator.wire import payloads as pl
from sidecar.coordinator.wire.enums import ObjectKind, RunState, SignalState
from sidecar.coordinator.wire.ids import ArtifactId, RunId, SignalId, WorkSessionId
from tests.unit.engine import families as fam

_STEP = 0x100
"""Distance of the ids of two sets."""


class Seeded(NamedTuple):
    """Ids of one set of work. Every run has an Active work session of its own, in revision 1."""

    objective: bytes
    planned: RunId
    running: RunId
    paused: RunId
    finished: RunId
    bound: RunId
    """Running, and its work session names an active binding."""
    sessions: dict[RunId, WorkSessionId]
    open_signals: tuple[SignalId, SignalId]
    acknowledged_signal: SignalId
    resolved_signal: SignalId
    artifact: ArtifactId
    """Revision 1, of the running run's session, with its manifest."""


_RUNS = {
    "planned": RunState.PLANNED,
    "running": RunState.RUNNING,
    "paused": RunState.PAUSED,
    "finished": RunState.COMPLETED,
    "bound": RunState.RUNNING,
}
_SIGNALS = (SignalState.OPEN, SignalState.OPEN, SignalState.ACKNOWLEDGED, SignalState.RESOLVED)


def ids(sets: int) -> list[Seeded]:
    """What ``seed`` makes of so many sets; it is the same every time."""
    return [seeded for seeded, _ in _sets(sets)]


def seed(store_dir: Path, *, sets: int = 1) -> list[Seeded]:
    """Put so many sets of work into the store, one durable batch without events."""
    store = SqliteStore.open(store_dir, entropy=os.urandom)
    try:
        state, installed = store.load(), store.installed()
        batch = Batch(
            1,
            installed.epoch,
            installed.activation_sequence,
            tuple(record for _, records in _sets(sets) for record in records),
            (),
            (),
            (),
            state.last_sequence,
            state.last_sequence - len(state.tail),
        )
        store.commit(batch, lambda: None)
    finally:
        store.close()
    return ids(sets)


def _sets(count: int) -> list[tuple[Seeded, list[Record]]]:
    return [_set(0x1000 + _STEP * number) for number in range(count)]


def _set(base: int) -> tuple[Seeded, list[Record]]:
    numbers = iter(range(base, base + _STEP))
    objective = next(numbers)
    records = [fam.objective(objective)]
    runs: dict[str, RunId] = {}
    sessions: dict[RunId, WorkSessionId] = {}
    for name, state in _RUNS.items():
        run, session = next(numbers), next(numbers)
        records.append(fam.run(run, state, objective=objective))
        records.append(fam.session(session, run, binding=fam.BINDING if name == "bound" else None))
        runs[name] = RunId(fam.id16(run))
        sessions[runs[name]] = WorkSessionId(fam.id16(session))
    owner = int.from_bytes(sessions[runs["running"]], "big")
    signals = list(_signals(numbers, owner))
    artifact, evidence = next(numbers), next(numbers)
    seal = pl.EvidenceRecord(
        work_session_id=WorkSessionId(fam.id16(owner)),
        artifact_id=ArtifactId(fam.id16(artifact)),
        seal_sha256=bytes(32),
    )
    records += [
        *signals,
        fam.artifact(artifact, 1, session=owner),
        fam.manifest(artifact, 1, b'{"seeded":1}'),
        record_of(ObjectKind.EVIDENCE, fam.id16(evidence), 1, seal),
    ]
    first, second, acknowledged, resolved = (SignalId(signal.id) for signal in signals)
    seeded = Seeded(
        objective=fam.id16(objective),
        **runs,
        sessions=sessions,
        open_signals=(first, second),
        acknowledged_signal=acknowledged,
        resolved_signal=resolved,
        artifact=ArtifactId(fam.id16(artifact)),
    )
    return seeded, records


def _signals(numbers: Iterator[int], session: int) -> Iterator[Record]:
    for state in _SIGNALS:
        yield fam.signal(next(numbers), state, session=session)
