"""What is true of one soak, whoever was told: events, results, registry edits, and what was never allowed to happen."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter, deque
from dataclasses import dataclass, field
from typing import NamedTuple

from sidecar.coordinator.engine.visibility import Visibility
from sidecar.coordinator.wire import frames as fr
from sidecar.coordinator.wire.enums import ObjectKind
from sidecar.coordinator.wire.payloads import OperationRecord
from sidecar.coordinator.wire.records import ReplayEvent, SnapshotRecord

REMEMBERED = 20_000
"""Newest events that are kept to compare with."""
LATE = 3.0
"""Seconds for which the end of an edit of the registry may still be on its way."""


class Failed(AssertionError):  # noqa: N818 - what happened
    """An invariant does not hold."""


class Happened(NamedTuple):
    """One event, as everybody must be told of it."""

    event_id: bytes
    object_kind: int
    principal: bytes
    """Originator of an OPERATION, else empty."""
    content: int
    """Hash of kind, object, revision and payload."""


class Stretch(NamedTuple):
    """The claim that these are all events between two cuts that someone may see."""

    visibility: Visibility
    after: int
    until: int
    got: tuple[int, ...]
    history: tuple[str, ...]


@dataclass
class Edit:
    """A time in which some keys may be refused; ``end`` is ``inf`` while it lasts."""

    keys: frozenset[bytes]
    begin: float
    end: float = float("inf")


@dataclass
class Truth:
    """Shared by all clients of one soak."""

    seed: int
    seconds: float
    operations: int
    """Operations that may be made in all."""
    events: dict[int, Happened] = field(default_factory=dict)
    recorded: int = 0
    """The recorder has been told of every event up to here."""
    holes: list[range] = field(default_factory=list)
    """Events that the recorder missed because the registry was unusable."""
    results: dict[bytes, tuple[bytes, bytes]] = field(default_factory=dict)
    """Operation id -> principal and image of its result."""
    claims: deque[Stretch] = field(default_factory=deque)
    edits: list[Edit] = field(default_factory=list)
    seen: Counter[str] = field(default_factory=Counter)
    lives: int = 0
    """Connections that are over."""
    made: int = 0
    """Operations that were made."""
    verified: int = 0
    """Events that were found where they belong."""
    failure: BaseException | None = None
    started: asyncio.Event = field(default_factory=asyncio.Event)
    """The recorder listens."""
    over: asyncio.Event = field(default_factory=asyncio.Event)
    began: float = field(default_factory=time.monotonic)

    # ---- pace ----

    @property
    def elapsed(self) -> float:
        return time.monotonic() - self.began

    def may_operate(self) -> bool:
        """Nine tenths of the operations belong to the first half of the run: memory is measured in the second."""
        share = self.elapsed / self.seconds * 2
        due = self.operations * (0.9 * share if share < 1 else 0.9 + 0.1 * (share - 1))
        if self.made >= min(due + 20, self.operations):
            return False
        self.made += 1
        return True

    # ---- failing ----

    def fail(self, error: BaseException, who: str = "", history: tuple[str, ...] = ()) -> None:
        """The soak has failed: say which seed and what the client did, and end it."""
        if self.failure is None:
            told = "\n  ".join(history)
            self.failure = Failed(f"seed {self.seed}, {self.elapsed:.1f} s, {who}: {error!r}\n  {told}")
            self.failure.__cause__ = error
        self.over.set()

    # ---- the registry ----

    def edit(self, keys: frozenset[bytes]) -> Edit:
        """Keys may be refused from now on."""
        now = time.monotonic()
        self.edits = [edit for edit in self.edits if edit.end > now - 120] + [Edit(keys, now)]
        return self.edits[-1]

    def refusable(self, key_id: bytes, since: float) -> bool:
        """Whether a connection of this key that was made at ``since`` may be refused or dismissed now."""
        return any(key_id in edit.keys and edit.end + LATE >= since for edit in self.edits)

    # ---- events ----

    def told(self, event: fr.CoordEvent | ReplayEvent) -> None:
        """Everybody is told the same of one event sequence (P10-14)."""
        kind, payload = event.object.kind, event.payload
        principal = b""
        if kind is ObjectKind.OPERATION:
            principal = OperationRecord.decode(SnapshotRecord.decode(payload).payload).principal_key_id
        content = hash((int(event.event_kind), event.object.encode(), int(event.object_revision), payload))
        happened = Happened(event.event_id, int(kind), principal, content)
        known = self.events.setdefault(int(event.event_sequence), happened)
        if known != happened:
            raise Failed(f"event {event.event_sequence} is not the same for everybody")
        if len(self.events) > 2 * REMEMBERED:
            for old in sorted(self.events)[:REMEMBERED]:
                del self.events[old]

    def claim(self, stretch: Stretch) -> None:
        """To be verified as soon as the recorder has seen as much."""
        if stretch.until > stretch.after:
            self.claims.append(stretch)

    def verify(self, *, everything: bool = False) -> None:
        """Every visible event of a claimed stretch was delivered, and no other (P10-11, P10-37)."""
        for _ in range(len(self.claims)):
            stretch = self.claims.popleft()
            if stretch.until > self.recorded and not everything:
                self.claims.append(stretch)
            else:
                self._verify(stretch)

    def _verify(self, stretch: Stretch) -> None:
        span = range(stretch.after + 1, stretch.until + 1)
        oldest = min(self.events, default=0)
        if span.start < oldest or any(hole.start < span.stop and span.start < hole.stop for hole in self.holes):
            self.seen["unverified stretch"] += 1
            return
        seen = stretch.visibility
        expected = tuple(
            sequence
            for sequence in span
            if (happened := self.events.get(sequence)) is not None
            and seen.sees(happened.object_kind, happened.principal)
        )
        if expected != stretch.got:
            missing, extra = set(expected) - set(stretch.got), set(stretch.got) - set(expected)
            error = Failed(f"of the events {span.start}..{stretch.until} {missing} were lost and {extra} are too many")
            self.fail(error, "a subscription", stretch.history)
        self.verified += len(expected)

    # ---- results ----

    def answered(self, operation: bytes, principal: bytes, image: bytes) -> None:
        """One result for each operation id, whoever asks and whenever (P8-14, P8-17)."""
        if self.results.setdefault(operation, (principal, image)) != (principal, image):
            raise Failed(f"operation {operation.hex()} has another result than before")


def rng_of(seed: int, number: int) -> random.Random:
    """The choices of one client."""
    return random.Random(seed * 1_000_003 + number)
