"""What is given up with age: the old end of the event log, and the bodies of old results (P5-10, P8-40..42)."""

from __future__ import annotations

import heapq

from sidecar.coordinator.engine.commands import remains
from sidecar.coordinator.engine.connection import Connection
from sidecar.coordinator.engine.runtime import Runtime
from sidecar.coordinator.engine.state import Operation
from sidecar.coordinator.engine.subscription import Streams
from sidecar.coordinator.engine.transact import Transactions
from sidecar.coordinator.machines.operation import OPERATION, STATES, OperationEvent, OperationState
from sidecar.coordinator.wire.enums import CommandKind, ObjectKind, OperationTag
from sidecar.coordinator.wire.records import Tombstoned


class Retention:
    """Keeps every promise of the advertised retention, and gives up no sooner than that."""

    def __init__(self, runtime: Runtime, transactions: Transactions, streams: Streams) -> None:
        self._runtime = runtime
        self._transactions = transactions
        self._streams = streams
        self._due: list[tuple[float, bytes]] = []
        """Wall second and operation id, soonest first."""
        self._schedule()

    def watch(self, operation: Operation) -> None:
        """Remember when a completed operation may be pruned (P8-40)."""
        if operation.command_kind == CommandKind.CHANGE_RETENTION:
            self._schedule()
        elif operation.tag is not OperationTag.PENDING:
            heapq.heappush(self._due, (self._expires(operation, self._result_seconds()), operation.id))

    def _schedule(self) -> None:
        """The due times of all operations; as much work as there are operations."""
        seconds, due = self._result_seconds(), []
        for _, entry in self._transactions.head.family(ObjectKind.OPERATION).entries.items():
            assert isinstance(entry, Operation)
            if entry.tag is not OperationTag.PENDING:
                due.append((self._expires(entry, seconds), entry.id))
        heapq.heapify(due)
        self._due = due

    def _result_seconds(self) -> int:
        return self._runtime.kept(self._transactions.head).result_seconds

    def _expires(self, operation: Operation, result_seconds: int) -> float:
        """A lower retention never shortens what was promised when the operation completed (OPEN P7-l)."""
        kept = max(operation.retention, result_seconds)
        if operation.tag is OperationTag.TOMBSTONED:
            kept += self._runtime.policy.tombstone_seconds
        return operation.completed_at + kept

    def next_due(self) -> float | None:
        """Wall second at which something may be pruned, or ``None``."""
        return self._due[0][0] if self._due else None

    def prune(self) -> None:
        """Prune what is due, a bounded number of operations (P8-41, P8-42)."""
        now = self._runtime.now.wall
        for _ in range(self._runtime.policy.prune_batch):
            if not self._due or self._due[0][0] > now:
                return
            _, operation_id = heapq.heappop(self._due)
            operation = self._transactions.head.operation(operation_id)
            assert operation is not None
            self._prune(operation, now)

    def _prune(self, operation: Operation, now: float) -> None:
        used = remains(operation.created, self._transactions.head)
        before = STATES[operation.tag]
        after = OPERATION.after(before, OperationEvent.AGED if used else OperationEvent.AGED_UNUSED)
        if after is OperationState.NONE:
            self._transactions.remove_operation(operation)
            return
        if after is not before:
            self._transactions.change_operation(operation, Tombstoned(operation.digest, operation.tag))
        heapq.heappush(self._due, (now + self._runtime.policy.tombstone_seconds, operation.id))

    def bound_log(self, connections: list[Connection], fresh: int = 0) -> None:
        """Shorten the event log to its bounds; who still waited for the lost part has a GAP(RETENTION).

        The newest ``fresh`` events became durable just now: CHANGE_RETENTION does not take them away before anybody
        had a turn to read them. The configured bounds do.
        """
        log, policy, asked = self._runtime.log, self._runtime.policy, self._runtime.kept(self._runtime.durable)
        first = log.excess(policy.event_bytes, policy.event_count)
        if asked.event_bytes < policy.event_bytes:
            first = max(first, min(log.excess(asked.event_bytes, policy.event_count), log.head + 1 - fresh))
        if first > log.first:
            self._runtime.observer.events_dropped(first - log.first)
            self._streams.retained_from(first, connections)
            log.drop_before(first)
