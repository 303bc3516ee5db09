"""The engine under a seeded scheduler: virtual clocks, a store that crashes between commits, clients that misbehave.

One ``Simulation`` is one seed. Everything that a client is told is compared with what the store has made durable, and
every answer with every other answer about the same operation. Nothing here sleeps or reads a clock.
"""

from __future__ import annotations

import random
from collections import deque
from dataclasses import replace

from sidecar.base.clock import Now
from sidecar.coordinator.authority.grants import KeyRecord, Registry
from sidecar.coordinator.engine.policy import Policy
from sidecar.coordinator.engine.runtime import Fenced
from sidecar.coordinator.engine.state import Batch, Event
from sidecar.coordinator.engine.visibility import Visibility
from sidecar.coordinator.wire import frames as fr
from sidecar.coordinator.wire.enums import GapReason
from sidecar.coordinator.wire.limits import Limits, QuotaCaps
from sidecar.coordinator.wire.records import Tombstoned
from tests.sim.engine_actor import PRINCIPALS, Actor
from tests.unit.engine.fakes import START, Disk, FakeAuthority, key
from tests.unit.engine.harness import World

CERTIFICATE = 60.0
"""Seconds that a certificate lasts."""


class Simulation:
    """One seed."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.policy = Policy(
            limits=Limits(16_384, 12_288, 512, 8_192, 4_096, 1 << 20),
            event_count=self.rng.choice((40, 400, 10_000)),
            batch_events=self.rng.choice((2, 8, 20)),
            quotas={
                "queue_frames": QuotaCaps(None, 25, 60),
                "leases": QuotaCaps(4, 5, 9),
                "subscriptions": QuotaCaps(4, 6, 12),
                "requests": QuotaCaps(8, 12, 30),
                "pending_operations": QuotaCaps(None, 20, 40),
            },
        )
        self.history: list[Event] = []
        self.queue: deque[Batch] = deque()
        self.in_flight = self.rng.choice((1, 1, 3))
        """Batches that the shell lets the store have at once."""
        self.results: dict[bytes, bytes] = {}
        self.gaps: dict[GapReason, int] = {}
        self.digests: dict[tuple[Visibility, int, int], bytes] = {}
        self.crashes = 0
        self.healed = 0
        self.epoch = 1
        self.world = self._start(Disk(), START)
        self.actors = [Actor(self, number) for number in range(len(PRINCIPALS))]

    def _start(self, disk: Disk, now: Now) -> World:
        authority = FakeAuthority(
            epoch=self.epoch,
            activation_sequence=self.epoch,
            wall_expiry=now.wall + CERTIFICATE,
            deadline_mono=now.mono + CERTIFICATE,
        )
        world = World(policy=self.policy, disk=disk, authority=authority, now=now)
        world.auto_commit = False
        return world

    def told(self, operation: bytes, image: bytes, result: object) -> None:
        """Exactly one result for each operation id, whoever asks and whenever."""
        if not isinstance(result, Tombstoned):
            assert self.results.setdefault(operation, image) == image

    def digest(self, seen: Visibility, begin: fr.SnapshotBegin, end: fr.SnapshotEnd) -> None:
        """Who sees the same at the same cut of the same activation gets the same digest (P6-17)."""
        place = (seen, begin.base_event_sequence, begin.authority_guard.authority_epoch)
        assert self.digests.setdefault(place, end.canonical_sha256) == end.canonical_sha256

    # ---- the parts that can fail ----

    def take(self) -> None:
        """The shell hands a batch to the store, when that has room."""
        if len(self.queue) >= self.in_flight:
            return
        try:
            batch = self.world.engine.take_batch(self.world.now)
        except Fenced:
            return
        if batch is not None:
            self.queue.append(batch)

    def store(self) -> None:
        """The store commits the oldest batch; now and then it fails, and nobody knows whether it wrote."""
        if not self.queue or self.world.engine.fenced is not None:
            return
        batch = self.queue.popleft()
        if self.rng.random() < 0.01:
            if self.rng.random() < 0.5:
                self._write(batch)
            self.world.engine.fence("the store failed")
            return
        self._write(batch)
        self.world.engine.batch_durable(batch, self.world.now)

    def _write(self, batch: Batch) -> None:
        self.world.disk.commit(batch)
        assert [event.sequence for event in batch.events] == list(
            range(len(self.history) + 1, len(self.history) + 1 + len(batch.events))
        )
        self.history += batch.events
        assert len(self.history) == self.world.disk.last_sequence

    def crash(self) -> None:
        """kill -9: batches on their way are lost from some point on; a new process recovers what was durable."""
        self.crashes += 1
        while self.queue and self.world.engine.fenced is None and self.rng.random() < 0.5:
            self._write(self.queue.popleft())
        self.queue.clear()
        for actor in self.actors:
            actor.client = None
        self.epoch += 1
        self.world = self._start(self.world.disk, self.world.now)
        self.check_acknowledged()

    def check_acknowledged(self) -> None:
        """Whatever a client was told is in the store."""
        for operation, image in self.results.items():
            assert self.world.disk.operations[operation].result == image

    def renew(self, likely: float = 0.9) -> None:
        """The witness renews in time, mostly."""
        expiry = self.world.authority.deadline_mono
        if (
            self.world.engine.fenced is None
            and expiry - self.world.now.mono < CERTIFICATE / 2
            and self.rng.random() < likely
        ):
            now = self.world.now
            self.world.authority = replace(
                self.world.authority, wall_expiry=now.wall + CERTIFICATE, deadline_mono=now.mono + CERTIFICATE
            )
            self.world.engine.renew(self.world.authority)

    def idle(self) -> None:
        """Longer than a lease lasts, nobody does anything, and the witness renews."""
        for _ in range(4):
            self.world.advance(20.0)
            self.renew()

    def reload_registry(self) -> None:
        """A principal loses its key, or all have theirs."""
        lost = self.rng.choice((None, None, 2, 3))
        records = tuple(
            KeyRecord(bytes(32), key(number), "phux-coordinator", 0x3F, 1 << 40)
            for number in sorted({principal for principal, _ in PRINCIPALS} - {lost})
        )
        self.world.engine.set_registry(Registry(records, 2), self.world.now)

    def step(self) -> None:
        """One thing happens."""
        choice = self.rng.randrange(100)
        if choice < 40:
            self.rng.choice(self.actors).act()
        elif choice < 70:
            self.rng.choice(self.actors).listen()
        elif choice < 80:
            self.take()
        elif choice < 92:
            self.store()
        elif choice < 98:
            self.world.advance(self.rng.choice((0.1, 0.1, 1.0, 5.0)))
            self.renew()
        elif choice < 99:
            if self.rng.random() < 0.2:
                self.reload_registry()
            elif self.rng.random() < 0.2:
                self.idle()
        elif self.rng.random() < 0.2 or self.world.engine.fenced is not None:
            self.crash()

    def finish(self) -> None:
        """Everything settles: what is live and has credit is complete, and nothing is held any more."""
        if self.world.engine.fenced is not None:
            self.crash()
        self.renew(likely=1.0)
        while self.world.engine.can_take(self.world.now):
            self.take()
            self.store()
        while self.queue and self.world.engine.fenced is None:
            self.store()
        for actor in self.actors:
            if actor.client is not None:
                actor.client.conn.writable = True
                for _ in range(400):
                    actor.listen()
        self.check_complete()
        for actor in self.actors:
            actor.drop()
        self.check_acknowledged()
        held = self.world.used()
        assert held.keys() <= {"pending_operations"}, held
        self.world.advance(0.0)
        while self.world.engine.fenced is None and self.world.commit():
            pass
        assert self.world.used() == {}
        assert self.world.engine._runtime.quotas.principals == 0

    def check_complete(self) -> None:
        """A live subscription that still has credit has everything, in order, once (P10-37)."""
        if self.world.engine.fenced is not None:
            return
        for actor in self.actors:
            if actor.client is None or actor.client.conn.closing is not None:
                continue
            for id_, stream in actor.streams.items():
                sub = actor.client.conn.subscriptions.get(id_)
                assert stream.got == [event.sequence for event in actor.visible(stream.after, stream.event)]
                if stream.live and sub is not None and sub.credit.count and sub.credit.nbytes > 9_000:
                    durable = self.world.engine.stats().durable_sequence
                    assert actor.visible(stream.event, durable) == []
