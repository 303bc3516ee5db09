"""A reproducible history of batches, what each prefix of it must leave, and a child process that commits it.

``python -m tests.fault.store_rig DIR FIRST`` commits the history from batch FIRST on, for ever, and says what it does
on stdout, one word and one number a line: ``commit`` in the middle of its n-th commit, ``durable`` when the writer has
reported a batch, ``failed`` with the error when the writer has ended. ``--hold N`` stays in the middle of the N-th
commit; ``--limit BYTES`` is how long its files may become.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import os
import random
import resource
import threading
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from sidecar.coordinator.engine.state import Batch, Event, Operation, Record, State
from sidecar.coordinator.store.errors import StoreError
from sidecar.coordinator.store.sqlite import SqliteStore
from sidecar.coordinator.store.writer import StoreWriter
from sidecar.coordinator.wire.enums import ObjectKind

TOKEN = hashlib.sha256(b"token").digest()
INCARNATION = b"\x55" * 16
PRINCIPAL = b"\xa7" * 32


def identity(kind: str, number: int) -> bytes:
    return hashlib.sha256(f"{kind} {number}".encode()).digest()[:16]


@dataclass
class History:
    """The rows that stand after ``done`` batches. Batch ``done + 1`` depends on nothing else."""

    done: int = 0
    last_sequence: int = 0
    pruned_through: int = 0
    records: dict[tuple[int, bytes], Record] = field(default_factory=dict)
    operations: dict[bytes, Operation] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)

    def next(self, number: int, epoch: int) -> Batch:
        """The next batch, as batch ``number`` of activation ``epoch``; the history is then one batch longer."""
        self.done += 1
        draw = random.Random(self.done)
        records = [self._record(draw) for _ in range(draw.randrange(3))]
        operations = [self._operation(draw, index) for index in range(1 + draw.randrange(3))]
        events = [
            self._event(draw, self.last_sequence + 1 + index, operations[index % len(operations)])
            for index in range(len(operations) + draw.randrange(3))
        ]
        stale = sorted(self.operations)
        removed = tuple({draw.choice(stale) for _ in range(draw.randrange(3))}) if stale else ()
        self.last_sequence += len(events)
        if draw.random() < 0.3:
            self.pruned_through = max(self.pruned_through, self.last_sequence - draw.randrange(40))
        # A key occurs once in a batch: the last image of a record wins.
        unique = {(record.kind, record.id): record for record in records}
        self.records |= unique
        for id_ in removed:
            del self.operations[id_]
        self.operations |= {operation.id: operation for operation in operations}
        self.events = [event for event in [*self.events, *events] if event.sequence > self.pruned_through]
        return Batch(
            number,
            epoch,
            epoch,
            tuple(unique.values()),
            tuple(operations),
            removed,
            tuple(events),
            self.last_sequence,
            self.pruned_through,
        )

    def _record(self, draw: random.Random) -> Record:
        id_ = identity("record", draw.randrange(50))
        return Record(ObjectKind.OBJECTIVE, id_, self.done, draw.randbytes(draw.randrange(1, 3000)))

    def _operation(self, draw: random.Random, index: int) -> Operation:
        id_ = identity("operation", 10 * self.done + index)
        image, digest = draw.randbytes(draw.randrange(1, 300)), draw.randbytes(32)
        return Operation(id_, 1, image, PRINCIPAL, digest, 1, b"\x01", self.done, 2**64 - 1, b"")

    def _event(self, draw: random.Random, sequence: int, operation: Operation) -> Event:
        event_id = identity("event", sequence)
        return Event(sequence, event_id, 9, ObjectKind.OPERATION, operation.id, 1, 1, draw.randbytes(80), PRINCIPAL)

    def skip_to(self, last_sequence: int) -> None:
        """Go on until the batch that ends at ``last_sequence``. Every batch has an event, so there is one or none."""
        while self.last_sequence < last_sequence:
            self.next(1, 1)
        assert self.last_sequence == last_sequence, "the store ends in the middle of a batch"

    def check(self, state: State) -> None:
        """The state holds exactly the rows of this history: nothing is missing, half, or too much."""
        assert state.last_sequence == self.last_sequence
        assert list(state.tail) == self.events
        entries = [entry for family in state.families.values() for _, entry in family.entries.items()]
        records = {(entry.kind, entry.id): entry for entry in entries if isinstance(entry, Record)}
        operations = {entry.id: entry for entry in entries if isinstance(entry, Operation)}
        assert records == self.records
        assert operations == self.operations


def activate(store: SqliteStore) -> int:
    """Install the next activation; returns its epoch."""
    epoch = store.installed().epoch + 1
    store.install(epoch, epoch, TOKEN, INCARNATION)
    return epoch


def say(text: str) -> None:
    os.write(1, f"{text}\n".encode())


def child(directory: Path, first: int, limit: int, hold: int) -> None:
    store = SqliteStore.open(directory, entropy=os.urandom)
    history = History()
    while history.done < first - 1:
        history.next(1, 1)
    epoch = activate(store)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
    commits = itertools.count(1)
    room = threading.Semaphore(4)
    ended = threading.Event()

    def check() -> None:
        commit = next(commits)
        say(f"commit {commit}")
        if commit == hold:
            threading.Event().wait()

    def done(batch: int, error: BaseException | None) -> None:
        if error is None:
            say(f"durable {batch}")
        else:
            say(f"failed {batch} {type(error).__name__}: {error}")
            ended.set()
        room.release()

    writer = StoreWriter(store, check)
    for number in itertools.count(1):
        room.acquire()
        if ended.is_set():
            break
        try:
            writer.submit(history.next(number, epoch), partial(done, history.done))
        except StoreError as error:
            say(f"refused {history.done} {type(error).__name__}")
            break
    writer.stop()
    store.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("directory", type=Path)
    parser.add_argument("first", type=int)
    parser.add_argument("--limit", type=int, default=resource.RLIM_INFINITY)
    parser.add_argument("--hold", type=int, default=0)
    child(**vars(parser.parse_args()))
