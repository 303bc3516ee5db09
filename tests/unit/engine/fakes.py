"""What stands around an engine in its tests: an activation, a store, an observer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from cext.digest import sha256
from sidecar.base.clock import Now
from sidecar.coordinator.engine.state import Batch, Event, Operation, Record, State
from sidecar.coordinator.wire.ids import (
    ActivationSequence,
    ActivationWitnessId,
    AuthorityEpoch,
    CoordinatorId,
    IncarnationId,
    KeyId,
)
from sidecar.coordinator.wire.records import ActivationCertificate, AuthorityGuard

COORDINATOR = CoordinatorId(b"\x11" * 16)
TOKEN = b"\xd0" * 32
START = Now(1_900_000_000.0, 5_000.0)
LIFE = 10**9


def key(number: int) -> KeyId:
    return KeyId(bytes([number]) * 32)


@dataclass(frozen=True)
class FakeAuthority:
    """An activation whose certificate lasts as long as a test wants."""

    epoch: int = 5
    activation_sequence: int = 7
    wall_expiry: float = START.wall + LIFE
    deadline_mono: float = START.mono + LIFE
    coordinator_id: bytes = COORDINATOR
    incarnation_id: bytes = b"\x55" * 16

    @property
    def guard(self) -> bytes:
        return AuthorityGuard(
            CoordinatorId(self.coordinator_id),
            AuthorityEpoch(self.epoch),
            ActivationSequence(self.activation_sequence),
            sha256(TOKEN),
        ).encode()

    @property
    def certificate(self) -> ActivationCertificate:
        return ActivationCertificate(
            ActivationWitnessId(b"\xaa" * 16),
            CoordinatorId(self.coordinator_id),
            ActivationSequence(self.activation_sequence),
            AuthorityEpoch(self.epoch),
            IncarnationId(self.incarnation_id),
            TOKEN,
            int(self.wall_expiry) - 60,
            int(self.wall_expiry),
            key(9),
            bytes(64),
        )

    def valid(self, now: Now) -> bool:
        return now.wall < self.wall_expiry and now.mono < self.deadline_mono


class Disk:
    """What a store keeps of batches; a new engine recovers from it."""

    def __init__(self) -> None:
        self.records: dict[tuple[int, bytes], Record] = {}
        self.operations: dict[bytes, Operation] = {}
        self.events: list[Event] = []
        self.last_sequence = 0

    def commit(self, batch: Batch) -> None:
        assert all(event.sequence == self.last_sequence + 1 + at for at, event in enumerate(batch.events))
        assert batch.last_sequence == self.last_sequence + len(batch.events)
        for operation_id in batch.removed_operations:
            del self.operations[operation_id]
        for removed in batch.removed_records:
            self.records.pop(removed, None)
        self.records |= {(record.kind, record.id): record for record in batch.records}
        self.operations |= {operation.id: operation for operation in batch.operations}
        self.events = [event for event in self.events if event.sequence > batch.pruned_through] + list(batch.events)
        self.last_sequence = batch.last_sequence

    def hold(self, state: State) -> None:
        """Keep what a test made by hand."""
        for _, family in state.families.items():
            for id_, entry in family.entries.items():
                if isinstance(entry, Operation):
                    self.operations[id_] = entry
                else:
                    self.records[entry.kind, id_] = entry
        self.events, self.last_sequence = list(state.tail), state.last_sequence

    def state(self) -> State:
        return State.build(self.records.values(), self.operations.values(), self.events, self.last_sequence)


class Recorder:
    """An observer that keeps what it was told."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def __getattr__(self, name: str) -> Any:
        return lambda *values: self.calls.append((name, *values))

    def frames_out(self, frames: Sequence[bytes]) -> None:
        """Each by itself."""
        self.calls += (("frame_out", frame[4], len(frame)) for frame in frames)

    def count(self, *call: Any) -> int:
        return self.calls.count(call)

    def named(self, *call: Any) -> int:
        """Calls that begin so, whatever was measured besides."""
        return sum(made[: len(call)] == call for made in self.calls)
