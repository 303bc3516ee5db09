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
from sidecar.coordinator.wire.enums import ObjectKind, OperationTag
from sidecar.coordinator.wire.records import Tombstoned

LOG_STEP = 4_096
"""Events that CHANGE_RETENTION takes out of the log at once, so that nobody waits for all of it."""


class Retention:
    """Keeps every promise of the advertised retention, and gives up no sooner than that.

    An operation may be pruned once two times are over: what was promised when it completed, and the retention in force.
    It waits for one behind the other, so that CHANGE_RETENTION costs nothing, however many operations there are.
    """

    def __init__(self, runtime: Runtime, transactions: Transactions, streams: Streams) -> None:
        self._runtime = runtime
        self._transactions = transactions
        self._streams = streams
        self._promised: list[tuple[float, float, bytes]] = []
        """Wall second until which an operation is kept in any case, the second from which the retention in force
        counts, and its id; soonest first."""
        self._aged: list[tuple[float, bytes]] = []
        """Operations that are kept for the retention in force alone: the second it counts from, and the id."""
        self._fresh = 0
        """Events of the newest batch that became durable here."""
        for _, entry in transactions.head.family(ObjectKind.OPERATION).entries.items():
            assert isinstance(entry, Operation)
            if entry.tag is not OperationTag.PENDING:
                self._promised.append(self._promise(entry))
        heapq.heapify(self._promised)

    def watch(self, operation: Operation) -> None:
        """Remember when a completed operation may be pruned (P8-40)."""
        if operation.tag is not OperationTag.PENDING:
            heapq.heappush(self._promised, self._promise(operation))

    def _promise(self, operation: Operation) -> tuple[float, float, bytes]:
        """A lower retention never shortens what was promised when the operation completed (OPEN P7-l)."""
        base = operation.completed_at
        if operation.tag is OperationTag.TOMBSTONED:
            base += self._runtime.policy.tombstone_seconds
        return base + operation.retention, base, operation.id

    def _result_seconds(self) -> int:
        return self._runtime.kept(self._transactions.head).result_seconds

    def next_due(self) -> float | None:
        """Wall second at which something may be due, not later than the first that is; ``None`` when nothing is."""
        due = [self._promised[0][0]] if self._promised else []
        if self._aged:
            due.append(self._aged[0][0] + self._result_seconds())
        return min(due, default=None)

    def prune(self) -> None:
        """Prune what is due, a bounded number of operations (P8-41, P8-42)."""
        now, most = self._runtime.now.wall, self._runtime.policy.prune_batch
        for _ in range(most):
            if not self._promised or self._promised[0][0] > now:
                break
            heapq.heappush(self._aged, heapq.heappop(self._promised)[1:])
        seconds = self._result_seconds()
        for _ in range(most):
            if not self._aged or self._aged[0][0] + seconds > now:
                return
            operation = self._transactions.head.operation(heapq.heappop(self._aged)[1])
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
        again = self._runtime.policy.tombstone_seconds
        heapq.heappush(self._promised, (now + again, operation.completed_at + again, operation.id))

    def published(self, connections: list[Connection], count: int) -> None:
        """A batch of ``count`` events became durable: see to the bounds of the log."""
        self._fresh = count
        self.bound_log(connections)

    def bound_log(self, connections: list[Connection]) -> None:
        """Shorten the event log to its bounds; who still waited for the lost part has a GAP(RETENTION).

        The newest batch became durable just now: CHANGE_RETENTION does not take it away before anybody had a turn to
        read it. The configured bounds do. What CHANGE_RETENTION takes goes in steps, whoever calls next goes on.
        """
        log, policy, asked = self._runtime.log, self._runtime.policy, self._runtime.kept(self._runtime.durable)
        first = log.excess(policy.event_bytes, policy.event_count)
        if asked.event_bytes < policy.event_bytes:
            step = log.excess(asked.event_bytes, policy.event_count, LOG_STEP)
            first = max(first, min(step, log.head + 1 - self._fresh))
        if first > log.first:
            self._runtime.observer.events_dropped(first - log.first)
            self._streams.retained_from(first, connections)
            log.drop_before(first)
