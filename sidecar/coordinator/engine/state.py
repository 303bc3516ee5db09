"""The authority's durable state as one immutable value, and the batch of rows in which it changes.

A transaction makes the next ``State`` from this one; every older ``State`` stays whole. A snapshot cut is therefore a
reference, and how many records and bytes it pins is known at the cut, for the whole authority and for one principal's
operations alone (P3-48, P9-04, P9-13).

The row classes are what the store writes and reads back: ``Record`` and ``Operation`` are upserts by key, ``Event``
rows are appended. Their fields are plain integers and bytes, one column each.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import immutables

from sidecar.coordinator.engine.tree import Tree
from sidecar.coordinator.wire.enums import ObjectKind, OperationTag
from sidecar.coordinator.wire.errors import MalformedMessage
from sidecar.coordinator.wire.payloads import WorkSessionRecord
from sidecar.coordinator.wire.records import SnapshotRecord


class Record(NamedTuple):
    """One object of the authority in its current revision. Key: ``(kind, id)``."""

    kind: int
    """ObjectKind; never OPERATION, whose rows are :class:`Operation`."""
    id: bytes
    revision: int
    image: bytes
    """The complete SnapshotRecord image (P7-15): what snapshots, events and digests carry."""


class Operation(NamedTuple):
    """One admitted operation (P8-12, P8-13). Key: ``id``. Its SnapshotRecord has kind OPERATION and the same id."""

    id: bytes
    revision: int
    image: bytes
    """The complete SnapshotRecord image."""
    principal: bytes
    """Key id of the workload that sent it, 32 bytes."""
    digest: bytes
    """Operation digest, 32 bytes (P8-06); a tombstone keeps it."""
    command_kind: int
    result: bytes
    """OperationResult image as it now stands (P8-11)."""
    completed_at: int
    """Unix seconds of the final result, 0 while pending."""
    retention: int
    """Seconds of result retention advertised when it completed; a later, lower value does not shorten it."""
    created: bytes
    """State that the operation made: Precondition images of 26 bytes, revision 0 = the object in any revision, else
    exactly that revision of it. A tombstone stays while any of it remains (P8-42)."""
    note: bytes = b""
    """UTF-8 of the note that came with the command: kept here and nowhere else, dropped with the body of the result
    (OPEN P7-i)."""

    @property
    def kind(self) -> int:
        """The family of its record."""
        return ObjectKind.OPERATION

    @property
    def tag(self) -> OperationTag:
        """Where it stands: the union tag that its result begins with (E-21)."""
        return OperationTag(self.result[0])


class Event(NamedTuple):
    """One event of the authority. Key: ``sequence``; sequences are contiguous from 1 on."""

    sequence: int
    event_id: bytes
    kind: int
    object_kind: int
    object_id: bytes
    revision: int
    schema: int
    payload: bytes
    principal: bytes
    """Originating principal of an OPERATION event, which decides who may see it (P6-15); empty for other families."""


Entry = Record | Operation


class Batch(NamedTuple):
    """One durable unit, written in one transaction: all of it or nothing.

    What is removed goes first. Upserts replace the row of the same key; each key occurs once. ``events`` continue
    the stored sequence without a hole. Rows up to and including event ``pruned_through`` may be deleted, they are
    outside the retained log.
    """

    number: int
    """1, 2, 3 ... within one engine; batches become durable in this order."""
    epoch: int
    activation_sequence: int
    """The activation that made the batch; a store that has another one installed must refuse it."""
    records: tuple[Record, ...]
    operations: tuple[Operation, ...]
    removed_operations: tuple[bytes, ...]
    events: tuple[Event, ...]
    last_sequence: int
    """EventCut after the batch, also when it has no event."""
    pruned_through: int
    removed_records: tuple[tuple[int, bytes], ...] = ()
    """Keys of records; of the ADMIN family alone, every other record stays."""


class Family(NamedTuple):
    """One family of entries in id order, with what a cut of it costs."""

    entries: Tree[bytes, Entry]
    nbytes: int
    """Bytes of all images."""
    sizes: Tree[int, int]
    """How many images there are of each size."""

    @property
    def records(self) -> int:
        """Entries of the family."""
        return len(self.entries)

    @property
    def largest(self) -> int:
        """Bytes of the largest image, 0 when empty."""
        return self.sizes.last or 0

    def put(self, entry: Entry) -> Family:
        """The family with ``entry`` in place of the one with its id."""
        old = self.entries.get(entry.id)
        size = len(entry.image)
        was = -1 if old is None else len(old.image)
        sizes = self.sizes
        if size != was:
            sizes = sizes.set(size, (sizes.get(size) or 0) + 1)
            if old is not None:
                sizes = _one_less(sizes, was)
        return Family(self.entries.set(entry.id, entry), self.nbytes + size - max(was, 0), sizes)

    def drop(self, entry: Entry) -> Family:
        """The family without ``entry``, which it holds."""
        size = len(entry.image)
        return Family(self.entries.remove(entry.id), self.nbytes - size, _one_less(self.sizes, size))

    @classmethod
    def build(cls, entries: Iterable[Entry]) -> Family:
        """A family of ``entries`` in any order; ``ValueError`` when two share an id."""
        ordered = sorted(entries, key=lambda entry: entry.id)
        sizes: dict[int, int] = {}
        for entry in ordered:
            sizes[len(entry.image)] = sizes.get(len(entry.image), 0) + 1
        total = sum(size * count for size, count in sizes.items())
        return cls(Tree.build((entry.id, entry) for entry in ordered), total, Tree.build(sorted(sizes.items())))


def _one_less(sizes: Tree[int, int], size: int) -> Tree[int, int]:
    left = (sizes.get(size) or 0) - 1
    return sizes.set(size, left) if left else sizes.remove(size)


EMPTY_FAMILY = Family(Tree(), 0, Tree())


class State(NamedTuple):
    """Everything the authority knows, at one EventCut.

    ``families`` holds every family by ObjectKind, ``own`` the operations of each principal once more, ``last_sequence``
    the EventCut. ``tail`` is filled by recovery alone: the retained events, oldest first and ending at
    ``last_sequence``. The engine moves them to its log. ``sessions`` finds the work sessions of a run; a session never
    changes its run and is never dropped.
    """

    families: immutables.Map[int, Family]
    own: immutables.Map[bytes, Family]
    last_sequence: int
    tail: tuple[Event, ...]
    sessions: immutables.Map[bytes, tuple[bytes, ...]]

    @classmethod
    def build(
        cls,
        records: Iterable[Record],
        operations: Iterable[Operation],
        events: Iterable[Event],
        last_sequence: int,
    ) -> State:
        """The state that a store recovered, from rows in any order except ``events``, which ascend.

        ``ValueError`` when keys repeat, a work session cannot be read, or the events do not run without a hole up to
        ``last_sequence``.
        """
        kinds: dict[int, list[Entry]] = {}
        for record in records:
            kinds.setdefault(record.kind, []).append(record)
        own: dict[bytes, list[Entry]] = {}
        for operation in operations:
            kinds.setdefault(ObjectKind.OPERATION, []).append(operation)
            own.setdefault(operation.principal, []).append(operation)
        tail = tuple(events)
        if any(event.sequence != last_sequence - back for back, event in enumerate(reversed(tail))):
            raise ValueError("the events have a hole")
        sessions: immutables.Map[bytes, tuple[bytes, ...]] = immutables.Map()
        for session in kinds.get(ObjectKind.WORK_SESSION, ()):
            sessions = _with_session(sessions, session)
        return cls(
            immutables.Map({kind: Family.build(entries) for kind, entries in kinds.items()}),
            immutables.Map({principal: Family.build(entries) for principal, entries in own.items()}),
            last_sequence,
            tail,
            sessions,
        )

    def family(self, kind: int) -> Family:
        """All entries of one ObjectKind."""
        return self.families.get(kind, EMPTY_FAMILY)

    def own_operations(self, principal: bytes) -> Family:
        """The operations that ``principal`` sent."""
        return self.own.get(principal, EMPTY_FAMILY)

    def get(self, kind: int, id_: bytes) -> Entry | None:
        """The entry of an object, or ``None``."""
        return self.family(kind).entries.get(id_)

    def operation(self, operation_id: bytes) -> Operation | None:
        """The stored operation of an id, or ``None`` (P8-12)."""
        entry = self.family(ObjectKind.OPERATION).entries.get(operation_id)
        assert entry is None or isinstance(entry, Operation)
        return entry

    def sessions_of(self, run_id: bytes) -> tuple[bytes, ...]:
        """Ids of the work sessions of a run."""
        return self.sessions.get(run_id, ())

    @property
    def nbytes(self) -> int:
        """Bytes of all images: what a cut of everything pins."""
        return sum(family.nbytes for family in self.families.values())

    def put(self, entry: Entry) -> State:
        """The state with ``entry`` in place of the one with its key."""
        families = self.families.set(entry.kind, self.family(entry.kind).put(entry))
        own, sessions = self.own, self.sessions
        if isinstance(entry, Operation):
            own = own.set(entry.principal, self.own_operations(entry.principal).put(entry))
        elif entry.kind == ObjectKind.WORK_SESSION and self.get(entry.kind, entry.id) is None:
            sessions = _with_session(sessions, entry)
        return State(families, own, self.last_sequence, self.tail, sessions)

    def drop_operation(self, operation: Operation) -> State:
        """The state without a stored operation."""
        rest = self.own_operations(operation.principal).drop(operation)
        own = self.own.set(operation.principal, rest) if rest.records else self.own.delete(operation.principal)
        return self._without(operation)._replace(own=own)

    def drop_admin(self, record: Record) -> State:
        """The state without a stored record of the ADMIN family, the only one that gives records up."""
        assert record.kind == ObjectKind.ADMIN
        return self._without(record)

    def _without(self, entry: Entry) -> State:
        return self._replace(families=self.families.set(entry.kind, self.family(entry.kind).drop(entry)))

    def at(self, last_sequence: int) -> State:
        """The same entries at a later EventCut, without a recovered tail."""
        return State(self.families, self.own, last_sequence, (), self.sessions)


def _with_session(
    sessions: immutables.Map[bytes, tuple[bytes, ...]], session: Entry
) -> immutables.Map[bytes, tuple[bytes, ...]]:
    try:
        run_id = WorkSessionRecord.decode(SnapshotRecord.decode(session.image).payload).run_id
    except MalformedMessage as error:
        raise ValueError(f"a work session cannot be read: {error.message}") from None
    return sessions.set(run_id, (*sessions.get(run_id, ()), session.id))


EMPTY_STATE = State(immutables.Map(), immutables.Map(), 0, (), immutables.Map())
