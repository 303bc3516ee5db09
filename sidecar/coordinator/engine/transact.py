"""Transactions: commands become durable operations, and nothing is answered before it is durable (P8).

A transaction runs on the newest state, the *head*, when its turn has come (see ``schedule``). Its rows, its events and
its reply wait in a group; groups become durable in order, each in one store transaction. Every answer that depends on
the head waits behind the last group, so that no reply ever tells of something that a crash could undo (P8-17).
"""

from __future__ import annotations

from collections import deque

from cext.digest import operation_digest
from sidecar.coordinator.engine.commands import Change, Situation, record_of
from sidecar.coordinator.engine.connection import Connection
from sidecar.coordinator.engine.handlers import check_allowed
from sidecar.coordinator.engine.quota import Resource
from sidecar.coordinator.engine.runtime import Runtime
from sidecar.coordinator.engine.state import Batch, Entry, Event, Operation, Record, State
from sidecar.coordinator.machines.operation import MOVES, OPERATION, STATES, OperationEvent
from sidecar.coordinator.wire.enums import CommandKind, EventKind, ObjectKind, OperationTag
from sidecar.coordinator.wire.errors import (
    CapabilityRequired,
    FrameTooLargeError,
    InternalError,
    NotFound,
    ProtocolError,
    ResourceExhausted,
    RevisionConflict,
)
from sidecar.coordinator.wire.frames import CoordCommand, CoordCommandResult, OperationResultFrame
from sidecar.coordinator.wire.ids import EventSequence, KeyId, advance, event_id
from sidecar.coordinator.wire.limits import SCHEMA
from sidecar.coordinator.wire.payloads import (
    AckSignal,
    CommandPayload,
    OperationRecord,
    SuppressSignal,
    decode_command,
)
from sidecar.coordinator.wire.records import (
    OperationResult,
    Precondition,
    Tombstoned,
    Unknown,
    decode_operation,
    encode_operation,
    succeeded,
)


class Group:
    """Transactions that become durable together, and who is told then."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.taken = False
        self.entries: dict[tuple[int, bytes], Entry] = {}
        self.removed: list[bytes] = []
        self.removed_records: list[tuple[int, bytes]] = []
        self.events: list[Event] = []
        self.replies: list[tuple[Connection, bytes, int]] = []
        self.principals: list[bytes] = []
        """Key ids with an admitted operation that is not durable yet, once for each (P3-47)."""
        self.transactions = 0
        self.nbytes = 0
        """Payload bytes of the events."""
        self.after: State | None = None
        """The state once the group is durable."""


class Decoded:
    """A command frame with everything that its identity needs; it keeps nothing of the frame's buffer."""

    def __init__(self, frame: CoordCommand, payload: CommandPayload) -> None:
        self.request_id = frame.request_id
        self.kind = CommandKind(frame.command_kind)
        self.payload = payload
        self.operation_id = frame.operation_id
        preconditions = sorted(frame.preconditions or (), key=Precondition.key)
        images = b"".join(precondition.encode() for precondition in preconditions)
        # Request, guard and operation id are no part of it (P8-09); order in the frame does not matter (OPEN P8-c).
        self.digest = operation_digest(self.kind, payload.body(), images, len(preconditions), frame.unknown())
        self.preconditions = preconditions


class Transactions:
    """The head, the groups on their way to the store, and what runs against the head."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self.head = runtime.durable
        self.groups: deque[Group] = deque()
        self._number = 0

    # ---- commands ----

    def read(self, conn: Connection, frame: CoordCommand) -> Decoded | CapabilityRequired:
        """A COORD_COMMAND as it arrives: what is malformed or too large is fatal here, before it waits for its turn.

        What this version does not know is no fault yet: its operation id may be taken (OPEN P8-b).
        """
        if len(frame.payload) > conn.selected.typed_payload:
            raise FrameTooLargeError("the payload is larger than the selected typed payload")
        try:
            return Decoded(frame, decode_command(frame.command_kind, frame.payload))
        except CapabilityRequired as error:
            return error

    def command(self, conn: Connection, decoded: Decoded) -> Operation | None:
        """A command whose turn has come, behind its guard, grant and request checks, in the order of OPEN P8-b.

        Returns the operation if it was admitted now, ``None`` if it was there already.
        """
        stored = self.head.operation(decoded.operation_id)
        try:
            if stored is not None:
                result = decode_operation(self._repeat(conn, decoded, stored).result)
                admitted = None
            else:
                result, admitted = self._first(conn, decoded)
        except ProtocolError as error:
            self._runtime.observer.command(decoded.kind, error.code.name.lower())
            raise
        self._runtime.observer.command(decoded.kind, "repeated" if admitted is None else "succeeded")
        answer = CoordCommandResult(request_id=decoded.request_id, operation=result)
        self.answer(conn, answer.encode(), decoded.request_id)
        return admitted

    def unknown_command(self, operation_id: bytes, error: CapabilityRequired) -> None:
        """A command that this version does not know: refused, whether its operation id is taken or not (OPEN P8-b)."""
        stored = self.head.operation(operation_id)
        if stored is not None:
            OPERATION.after(STATES[stored.tag], OperationEvent.CONFLICT)
        raise error

    def _first(self, conn: Connection, decoded: Decoded) -> tuple[OperationResult, Operation]:
        """A new operation id: every check, then the change and the row (P8-16)."""
        run = check_allowed(decoded.kind, conn.capabilities, conn.grant.scopes)
        for precondition in decoded.preconditions:
            # An invisible object behaves as absent, and absent is revision 0 (OPEN P8-d).
            seen = conn.visibility.find(self.head, precondition.object.kind, precondition.object.id)
            if precondition.expected_revision != (0 if seen is None else seen.revision):
                raise RevisionConflict("a precondition does not hold")
        situation = Situation(
            self.head,
            tuple(decoded.preconditions),
            conn.visibility,
            conn.capabilities,
            conn.grant.scopes,
            self._runtime.authority.coordinator_id,
        )
        change = run(situation, decoded.payload)
        return self._admit(conn, decoded, change)

    def _repeat(self, conn: Connection, decoded: Decoded, stored: Operation) -> Operation:
        """A used operation id: the stored state for the same principal and digest, else a conflict (P8-14, P8-15)."""
        event = OperationEvent.REPEAT
        if stored.principal != conn.grant.key_id or stored.digest != decoded.digest:
            event = OperationEvent.CONFLICT
        elif not conn.visibility.sees_entry(stored):
            event = OperationEvent.REPEAT_HIDDEN
        OPERATION.after(STATES[stored.tag], event)
        return stored

    def _admit(self, conn: Connection, decoded: Decoded, change: Change) -> tuple[OperationResult, Operation]:
        """Admission and completion in one transaction, with one OPERATION_CHANGED (P8-13, OPEN P8-f, P8-g)."""
        runtime, principal = self._runtime, KeyId(conn.grant.key_id)
        last = EventSequence(_plus(self.head.last_sequence, 1 + sum(put.event is not None for put in change.puts)))
        result = succeeded(last, change.result)
        operation = _operation(
            Operation(
                decoded.operation_id,
                1,
                b"",
                principal,
                decoded.digest,
                decoded.kind,
                b"",
                int(runtime.now.wall),
                max(runtime.kept(self.head).result_seconds, conn.result_seconds),
                change.created,
                _note(decoded.payload),
            ),
            result,
        )
        entries = [put.record for put in change.puts]
        self._check_room([*entries, operation])
        self._check_artifacts(entries)
        runtime.charge(runtime.quotas.principal(principal), [(Resource.PENDING_OPERATIONS, 1)])
        group = self._open_group()
        group.principals.append(principal)
        for put in change.puts:
            if put.event is None:
                self._keep(group, put.record)
            else:
                self._put(group, put.record, put.event)
        self._put(group, operation, EventKind.OPERATION_CHANGED)
        self._close_transaction(group)
        return result, operation

    def _check_room(self, entries: list[Record | Operation]) -> None:
        """Refuse what could never be sent, and new work under storage pressure (OPEN P3-f, P5-11)."""
        policy = self._runtime.policy
        if any(len(entry.image) > policy.largest_image for entry in entries):
            raise ResourceExhausted("the record would be larger than an event or a page can carry")
        if self.head.nbytes + sum(len(entry.image) for entry in entries) > policy.storage_bytes:
            self._runtime.observer.quota("storage_bytes")
            raise ResourceExhausted("the store is full")

    def _check_artifacts(self, entries: list[Record]) -> None:
        """Refuse a manifest above the bound of all manifests; none is given up for it (OPEN P7-g)."""
        grown = 0
        for entry in entries:
            if entry.kind == ObjectKind.ARTIFACT_MANIFEST:
                old = self.head.get(entry.kind, entry.id)
                grown += len(entry.image) - (0 if old is None else len(old.image))
        total = self.head.family(ObjectKind.ARTIFACT_MANIFEST).nbytes + grown
        if grown > 0 and total > self._runtime.kept(self.head).artifact_bytes:
            self._runtime.observer.quota("artifact_bytes")
            raise ResourceExhausted("the manifests would be larger than their retention allows")

    # ---- lookup ----

    def lookup(self, conn: Connection, request_id: int, operation_id: bytes) -> None:
        """GET_OPERATION_RESULT: absent and invisible look the same (P6-15, P6-18, OPEN P8-e)."""
        if not conn.visibility.operations:
            raise NotFound("no such operation")
        stored = self.head.operation(operation_id)
        found: OperationResult = Unknown()
        if stored is not None and conn.visibility.sees_entry(stored):
            found = decode_operation(stored.result)
        answer = OperationResultFrame(request_id=request_id, operation=found)
        self.answer(conn, answer.encode(), request_id)

    # ---- changes without a command ----

    def change_operation(self, operation: Operation, result: OperationResult) -> None:
        """A stored operation moves on by itself; its row and its event say so.

        ``InternalError`` for a move that its state does not allow; nothing has changed then.
        """
        before, target = STATES[operation.tag], STATES[OperationTag(encode_operation(result)[0])]
        if before is target or target not in MOVES or OPERATION.after(before, MOVES[target]) is not target:
            raise InternalError(f"no operation moves from {operation.tag.name} to {target.name}")
        kept = operation.note if not isinstance(result, Tombstoned) else b""
        changed = _operation(operation._replace(revision=advance(operation.revision), note=kept), result)
        _plus(self.head.last_sequence, 1)
        group = self._open_group()
        self._put(group, changed, EventKind.OPERATION_CHANGED)
        self._close_transaction(group)

    def remove_operation(self, operation: Operation) -> None:
        """A tombstone is forgotten (P8-42)."""
        group = self._open_group()
        group.entries.pop((operation.kind, operation.id), None)
        group.removed.append(operation.id)
        self.head = self.head.drop_operation(operation)
        self._close_transaction(group)

    def administer(self, puts: list[Record], drops: list[Record]) -> None:
        """Records of the ADMIN family change by themselves; no event tells of it (OPEN P7-g)."""
        group = self._open_group()
        for record in drops:
            group.entries.pop((record.kind, record.id), None)
            group.removed_records.append((record.kind, record.id))
            self.head = self.head.drop_admin(record)
        for record in puts:
            self._keep(group, record)
        self._close_transaction(group)

    # ---- groups ----

    def _open_group(self) -> Group:
        last = self.groups[-1] if self.groups else None
        if last is None or last.taken or self._filled(last):
            self._number += 1
            last = Group(self._number)
            self.groups.append(last)
        return last

    def _filled(self, group: Group) -> bool:
        policy = self._runtime.policy
        return len(group.events) >= policy.batch_events or group.nbytes >= policy.batch_bytes

    @property
    def waiting(self) -> bool:
        """Whether a group was not taken yet."""
        return bool(self.groups) and not self.groups[-1].taken

    @property
    def full(self) -> bool:
        """Whether a group waits that takes no further transaction."""
        return self.waiting and self._filled(next(group for group in self.groups if not group.taken))

    def _put(self, group: Group, entry: Entry, kind: EventKind) -> None:
        sequence = self.head.last_sequence + 1
        principal = entry.principal if isinstance(entry, Operation) else b""
        group.events.append(
            Event(
                sequence,
                self._runtime.fresh_id(event_id),
                kind,
                entry.kind,
                entry.id,
                entry.revision,
                SCHEMA,
                entry.image,
                principal,
            )
        )
        group.nbytes += len(entry.image)
        self._keep(group, entry)
        self.head = self.head.at(sequence)

    def _keep(self, group: Group, entry: Entry) -> None:
        """A row of the next batch; without an event of its own unless ``_put`` makes one."""
        group.entries[entry.kind, entry.id] = entry
        self.head = self.head.put(entry)

    def _close_transaction(self, group: Group) -> None:
        group.transactions += 1
        group.after = self.head

    def answer(self, conn: Connection, frame: bytes, request_id: int) -> None:
        """Reply once everything that the reply may tell of is durable (P8-17)."""
        if self.groups:
            self.groups[-1].replies.append((conn, frame, request_id))
        else:
            conn.reply(frame, request_id)

    def take(self) -> Batch | None:
        """The next group as a batch for the store; ``None`` when there is none."""
        group = next((group for group in self.groups if not group.taken), None)
        if group is None:
            return None
        assert group.after is not None
        group.taken = True
        authority = self._runtime.authority
        entries = group.entries.values()
        return Batch(
            group.number,
            authority.epoch,
            authority.activation_sequence,
            tuple(entry for entry in entries if isinstance(entry, Record)),
            tuple(entry for entry in entries if isinstance(entry, Operation)),
            tuple(group.removed),
            tuple(group.events),
            group.after.last_sequence,
            self._runtime.log.first - 1,
            tuple(group.removed_records),
        )

    def durable(self, number: int) -> Group:
        """The oldest taken group is durable; ``ValueError`` for any other number."""
        if not self.groups or self.groups[0].number != number or not self.groups[0].taken:
            raise ValueError("batches become durable in their order")
        self._settle(self.groups[0])
        return self.groups.popleft()

    def drop(self) -> None:
        """Nothing of what waits will ever be durable for this engine (P12-17)."""
        for group in self.groups:
            self._settle(group)
        self.groups.clear()

    def _settle(self, group: Group) -> None:
        """Its operations are not pending any more (P3-50)."""
        quotas = self._runtime.quotas
        for principal in group.principals:
            quotas.principal(principal).release(Resource.PENDING_OPERATIONS)
            quotas.forget_idle(principal)

    @property
    def pending(self) -> int:
        """Transactions that are not durable yet."""
        return sum(group.transactions for group in self.groups)


def _operation(row: Operation, result: OperationResult) -> Operation:
    """``row`` with a result and the SnapshotRecord image that tells of it."""
    payload = OperationRecord(principal_key_id=KeyId(row.principal), result=result)
    image = record_of(ObjectKind.OPERATION, row.id, row.revision, payload).image
    return row._replace(image=image, result=encode_operation(result))


def _note(payload: CommandPayload) -> bytes:
    """What goes into ``Operation.note``."""
    note = payload.note if isinstance(payload, AckSignal | SuppressSignal) else None
    return b"" if note is None else note.encode()


def _plus(sequence: int, events: int) -> int:
    """The event sequence after that many events; raises ``CounterWrap`` (P4-06)."""
    return advance(sequence + events - 1)
