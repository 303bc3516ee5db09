"""A client session and a fake server joined by hand, byte by byte if wanted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from sidecar.base.clock import Now
from sidecar.coordinator import client_events as ev
from sidecar.coordinator.authority.proof import uds_binding
from sidecar.coordinator.client_core import ClientSession
from sidecar.coordinator.client_handshake import ClientConfig
from sidecar.coordinator.client_trust import Pins
from sidecar.coordinator.wire import frames as fr
from sidecar.coordinator.wire.fields import Frame
from sidecar.coordinator.wire.payloads import CreateObjective
from tests.oracles.fake_server import SELF, START, FakeServer, Rewrite, World, altered, seed

E = TypeVar("E")

WORKLOAD = seed(0xA2)


def create_payload(number: int, document: bytes = b"{}") -> bytes:
    return CreateObjective.build({"objective_id": number.to_bytes(16, "big"), "schema": 1, "document": document}).body()


def counting_entropy() -> Callable[[int], bytes]:
    counter = iter(range(1, 1_000_000))
    return lambda size: next(counter).to_bytes(size, "big")


class Rig:
    """One connection. ``go`` moves everything that is to be moved; ``events`` keeps what the client told."""

    def __init__(
        self,
        world: World | None = None,
        *,
        pins: Pins | None = None,
        rewrite: Rewrite | None = None,
        step: int | None = None,
        peer: tuple[int, int, int] = SELF,
        own: tuple[int, int, int] = SELF,
        entropy: Callable[[int], bytes] | None = None,
        **config: Any,
    ) -> None:
        self.world = World() if world is None else world
        self.world.admit(WORKLOAD)
        self.pins = Pins() if pins is None else pins
        self.now = START
        self.step = step
        values = {"witness": self.world.pin, **config}
        self.session = ClientSession(
            ClientConfig(key=WORKLOAD, pins=self.pins, derive_binding=lambda nonce: uds_binding(nonce, *own), **values),
            counting_entropy() if entropy is None else entropy,
        )
        self.server = FakeServer(self.world, self.now, peer, rewrite)
        self.events: list[ev.Event] = []

    def start(self) -> Rig:
        self.session.start(self.now)
        return self.go()

    def go(self) -> Rig:
        while True:
            self.events += self.session.take_events()
            self.server.feed(b"".join(self.session.take_output()))
            data = self.server.take()
            if not data:
                self.events += self.session.take_events()
                return self
            size = self.step or len(data)
            for at in range(0, len(data), size):
                self.session.feed(data[at : at + size], self.now)

    def at(self, seconds: float) -> Rig:
        """Move both clocks, so many seconds after the start."""
        self.now = Now(START.wall + seconds, START.mono + seconds)
        self.server.now = self.now
        self.session.timeout(self.now)
        return self.go()

    def of(self, shape: type[E]) -> list[E]:
        return [event for event in self.events if isinstance(event, shape)]

    def one(self, shape: type[E]) -> E:
        (event,) = self.of(shape)
        return event

    @property
    def closed(self) -> Exception:
        return self.one(ev.Closed).error


def rewriting(shape: type[Frame], **values: object) -> Rewrite:
    """Change fields of every frame of one type, and nothing else."""

    def rewrite(frame: Frame) -> Frame:
        return altered(frame, **values) if isinstance(frame, shape) else frame

    return rewrite


def changing(shape: type[Frame], change: Callable[[Any], Frame | bytes | None]) -> Rewrite:
    """Put something in the place of every frame of one type."""

    def rewrite(frame: Frame) -> Frame | bytes | None:
        return change(frame) if isinstance(frame, shape) else frame

    return rewrite


__all__ = ["WORKLOAD", "Rig", "changing", "counting_entropy", "create_payload", "fr", "rewriting"]
