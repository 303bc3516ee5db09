"""A coordinator's stores and their witness, both real, under one virtual clock."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from sidecar.coordinator.authority import activation as subject
from sidecar.coordinator.authority.activation import Activation, Step
from sidecar.coordinator.authority.certificate import WitnessPin
from sidecar.coordinator.store.sqlite import SqliteStore
from tests.unit.witness.rig import Clock, LocalWitness, counting_entropy


class House:
    """A coordinator's store directories and their witness, under one virtual clock."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.clock = Clock()
        self.witness = LocalWitness(root / "witness", self.clock)
        self.entropy = counting_entropy()
        self.trace: list[Step] = []
        self.fault: Step | None = None
        self.slept: list[float] = []
        self.stack = ExitStack()

    def open(self, name: str = "store") -> SqliteStore:
        store = SqliteStore.open(self.root / name, entropy=self.entropy)
        self.stack.callback(store.close)
        return store

    def step(self, step: Step) -> None:
        self.trace.append(step)
        if step is self.fault:
            raise OSError(5, f"fault at {step}")

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.clock.advance(seconds)

    def activate(self, store: subject.Store, *, wait: float = 0.0, pin: WitnessPin | None = None) -> Activation:
        return subject.activate(
            store,
            self.witness,
            entropy=self.entropy,
            clock=self.clock.now,
            pin=pin or self.witness.pin,
            wait=wait,
            sleep=self.sleep,
            trace=self.step,
        )

    def ascend(self, store: SqliteStore) -> Activation:
        """All the way up; a bound endpoint is a file."""
        activation = self.activate(store)
        activation.recover(store.load)
        activation.bind(self.socket.touch)
        return activation

    @property
    def socket(self) -> Path:
        return self.root / "endpoint"
