"""Connections from their first byte to their end, as many as one likes, and what they leave behind.

One ``Street`` is one server with the people of one seed. A ``Life`` is one connection: it fails in the handshake or
logs in, does legal and illegal things, and ends in one of many ways, in the middle of whatever it was doing.
"""

from __future__ import annotations

import gc
import random
from collections import Counter, deque
from collections.abc import Callable, Iterator
from typing import Any

from sidecar.coordinator.authority.grants import KeyRecord
from sidecar.coordinator.engine.connection import Connection
from sidecar.coordinator.engine.lease import Lease
from sidecar.coordinator.engine.policy import Policy
from sidecar.coordinator.engine.quota import Resource
from sidecar.coordinator.engine.state import Batch, Record
from sidecar.coordinator.engine.subscription import Subscription
from sidecar.coordinator.session import ServerSession
from sidecar.coordinator.wire.limits import QuotaCaps
from tests.sim.lifecycle_steps import CAPABILITIES, KEYS, Life
from tests.unit.engine import families
from tests.unit.engine.harness import World
from tests.unit.session.bench import YEAR, House

SCOPES = (0x3F, 0x03, 0x01, 0x13, 0x2A, 0x09)
"""Ceiling of each key."""
NEIGHBOURS = 12
"""Connections that exist at once, about."""
FEW = {
    "connections": QuotaCaps(None, 4, 10),
    "requests": QuotaCaps(8, 12, 40),
    "leases": QuotaCaps(3, 4, 9),
    "pinned_bytes": QuotaCaps(None, 60_000, 150_000),
    "subscriptions": QuotaCaps(4, 6, 14),
    "queue_frames": QuotaCaps(None, 12, 40),
    "queue_bytes": QuotaCaps(None, 6_000, 20_000),
    "pending_operations": QuotaCaps(None, 3, 8),
}
"""Quotas of every level that this many neighbours do exhaust."""
SUMS: dict[Resource, Callable[[Connection], int]] = {
    Resource.CONNECTIONS: lambda conn: 1,
    Resource.REQUESTS: lambda conn: len(conn.requests),
    Resource.LEASES: lambda conn: len(conn.leases),
    Resource.PINNED_BYTES: lambda conn: sum(lease.pinned for lease in conn.leases.values()),
    Resource.SUBSCRIPTIONS: lambda conn: len(conn.subscriptions),
    Resource.QUEUE_FRAMES: lambda conn: sum(sub.queued_frames for sub in conn.subscriptions.values()),
    Resource.QUEUE_BYTES: lambda conn: sum(sub.queued_bytes for sub in conn.subscriptions.values()),
}
"""What one connection holds of each resource, counted and not charged."""


def seeded() -> Iterator[Record]:
    """Runs, work sessions and signals, so that every command has something to act on."""
    for number in range(1, 9):
        yield families.objective(number)
        yield families.run(number, objective=number)
        yield families.session(number, number)
        yield families.signal(number, session=number)


class Street:
    """A server, its clock, its store, and the connections of this moment."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        policy = Policy(
            quotas=FEW,
            event_count=self.rng.choice((100, 1_000)),
            batch_events=self.rng.choice((4, 32)),
            batch_bytes=self.rng.choice((1_500, 1_048_576)),
        )
        self.house = House(World(policy=policy, state=families.holding(*seeded())))
        self.house.env.capabilities = CAPABILITIES
        self.lives: list[Life] = []
        self.on_disk: deque[Batch] = deque()
        self.seen: Counter[Any] = Counter()
        """What the engine told its observer, and how the lives ended."""
        self.said: deque[dict[str, Any]] = deque(maxlen=20)
        """The last commands that were made up, to be sent again by whoever likes."""
        self.begun = 0
        self.most = 0
        """Connections, subscriptions and leases that were found alive at once."""
        self.enrol()

    @property
    def world(self) -> World:
        return self.house.world

    def enrol(self, lost: int | None = None, narrowed: int | None = None) -> None:
        """The registry: every key, but for one that is gone and one that may do less."""
        until = int(self.world.now.wall) + YEAR
        self.house.enrol(
            *(
                KeyRecord.of(key.public_key, 0x01 if number == narrowed else SCOPES[number], until)
                for number, key in enumerate(KEYS)
                if number != lost
            )
        )
        self.world.engine.set_registry(self.house.registry, self.world.now)

    # ---- what happens ----

    def run(self, lives: int) -> None:
        """Let so many connections live and end, but for the last ones."""
        steps = 0
        while self.begun < lives:
            self.step()
            steps += 1
            if steps % 16 == 0:
                self.check_counters()
            if steps in (1_000, 2_000, 3_000):
                self.most = max(self.most, len(self.alive()))

    def step(self) -> None:
        """One thing happens."""
        rng = self.rng
        choice = rng.randrange(1_000)
        if len(self.lives) < NEIGHBOURS and choice < 200:
            self.begun += 1
            self.lives.append(Life(self, rng.randrange(len(KEYS))))
        elif choice < 860:
            self.live(rng.choice(self.lives) if self.lives else None)
        elif choice < 930:
            self.take()
        elif choice < 990:
            self.store()
        elif choice < 996:
            self.pass_time(rng.choice((0.2, 0.2, 1.0, 4.0)))
        elif choice < 999:
            self.enrol(lost=rng.randrange(len(KEYS)), narrowed=rng.choice((None, 0, 4)))
            self.enrol()
        elif rng.random() < 0.3:
            self.pass_time(61.0)

    def live(self, life: Life | None) -> None:
        if life is not None:
            life.act()
            if life.over:
                self.lives.remove(life)

    def pass_time(self, seconds: float) -> None:
        self.world.advance(seconds)
        for life in list(self.lives):
            life.wire.session.timeout(self.world.now)

    def take(self) -> None:
        if len(self.on_disk) < 3 and (batch := self.world.engine.take_batch(self.world.now)) is not None:
            self.on_disk.append(batch)

    def store(self) -> None:
        if self.on_disk:
            batch = self.on_disk.popleft()
            self.world.disk.commit(batch)
            self.world.engine.batch_durable(batch, self.world.now)

    # ---- what is held ----

    def check_counters(self) -> None:
        """Each counter of the server says exactly what its connections hold (P3-48, P3-50)."""
        server = self.world.engine._runtime.quotas.server
        for resource, held in SUMS.items():
            counted = sum(held(conn) for conn in self.world.engine.connections)
            assert server.used(resource) == counted, resource
        assert server.used(Resource.PENDING_OPERATIONS) == sum(
            len(group.principals) for group in self.world.engine._transactions.groups
        )

    def alive(self) -> list[object]:
        """Every object of a connection of this street that the interpreter still has."""
        gc.collect()
        runtime, found = self.world.engine._runtime, []
        for thing in gc.get_objects():
            if isinstance(thing, ServerSession):
                mine = thing._env is self.house.env
            elif isinstance(thing, Connection):
                mine = thing._runtime is runtime
            elif isinstance(thing, Subscription | Lease):
                mine = thing.conn._runtime is runtime
            else:
                continue
            if mine:
                found.append(thing)
        return found

    def note(self) -> None:
        """Count what the observer was told, and forget it."""
        calls = self.world.observer.calls
        self.seen.update(call[:2] for call in calls if call[0] in ("gap", "quota", "lease_expired", "handshake"))
        self.seen.update(call[:3] for call in calls if call[0] == "command")
        calls.clear()

    # ---- the end ----

    def act_together(self) -> None:
        """Whoever may sends a command, and what is admitted is on its way to the disk."""
        self.settle()
        for life in self.lives:
            life.speak_up()
        self.take()

    def leave(self) -> None:
        """Everybody who is left disconnects, wherever he is."""
        for life in self.lives:
            life.leave()
        self.lives.clear()

    def settle(self) -> None:
        """What was admitted becomes durable."""
        engine = self.world.engine
        while engine.fenced is None and (engine.can_take(self.world.now) or self.on_disk):
            self.take()
            self.store()
