"""Whose work comes next when there is more than one batch can hold.

Commands and lookups wait here from their frame to the batch that executes them. Principals take turns, weighed by
bytes, so that neither many small commands of one nor few large ones keep the others waiting.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Generic, NamedTuple, TypeVar

from sidecar.coordinator.engine.connection import Connection
from sidecar.coordinator.engine.runtime import Runtime
from sidecar.coordinator.engine.transact import Transactions
from sidecar.coordinator.wire.errors import InternalError, ProtocolError
from sidecar.coordinator.wire.ids import CounterWrap

T = TypeVar("T")


class _Flow(Generic[T]):
    """What one principal has in the queue."""

    __slots__ = ("balance", "items", "key")

    def __init__(self, key: bytes, balance: int) -> None:
        self.key = key
        self.items: deque[tuple[T, int]] = deque()
        self.balance = balance
        """What it may still spend in its turn; below 0 the debt of an item that cost more than was left."""


class FairQueue(Generic[T]):
    """First in, first out for each flow; the flows take turns by deficit round robin.

    A turn is worth ``quantum``. A flow that has anything left may take its next item, whatever that costs, and pays the
    rest with its next turns: a newcomer never waits to save up. While two flows both have items, what they were served
    differs by at most ``quantum`` and the cost of the largest item. A debt outlives the items of its flow, but not the
    moment at which the whole queue is empty: then nobody was kept waiting.

    ``push`` takes constant time, ``pop`` amortised as many steps as the item costs quanta. It has no bound of its own.
    """

    def __init__(self, quantum: int) -> None:
        """``ValueError`` for a quantum below 1."""
        if quantum < 1:
            raise ValueError("a quantum is at least 1")
        self._quantum = quantum
        self._flows: dict[bytes, _Flow[T]] = {}
        self._turns: deque[_Flow[T]] = deque()
        """All flows; the first has its turn."""
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def push(self, key: bytes, item: T, cost: int) -> None:
        """Queue an item of a flow. ``ValueError`` for a cost below 1."""
        if cost < 1:
            raise ValueError("every item costs something")
        flow = self._flows.get(key)
        if flow is None:
            flow = self._flows[key] = _Flow(key, self._quantum)
            self._turns.append(flow)
        flow.items.append((item, cost))
        self._size += 1

    def pop(self) -> tuple[T, int] | None:
        """The next item and its cost; ``None`` when there is none."""
        if not self._size:
            return None
        while True:
            flow = self._turns[0]
            if flow.items and flow.balance > 0:
                found = flow.items.popleft()
                flow.balance -= found[1]
                self._size -= 1
                self._forget_if_empty()
                return found
            self._turns.popleft()
            if flow.items or flow.balance < 0:
                flow.balance += self._quantum
                self._turns.append(flow)
            else:
                del self._flows[flow.key]

    def discard(self, key: bytes, unwanted: Callable[[T], bool]) -> None:
        """Drop items of a flow; takes as long as the flow is."""
        flow = self._flows.get(key)
        if flow is not None:
            kept = [entry for entry in flow.items if not unwanted(entry[0])]
            self._size -= len(flow.items) - len(kept)
            flow.items = deque(kept)
            self._forget_if_empty()

    def clear(self) -> None:
        """Drop everything."""
        self._flows.clear()
        self._turns.clear()
        self._size = 0

    def _forget_if_empty(self) -> None:
        if not self._size:
            self.clear()


class Work(NamedTuple):
    """A command or lookup that waits for its turn."""

    conn: Connection
    request_id: int
    nbytes: int
    arrived: float
    """Monotonic second."""
    run: Callable[[], None]
    """Executes it on the head and sees to its answer, or raises ``ProtocolError``."""


class Backlog:
    """The commands and lookups of all connections that were accepted and are not executed yet.

    The request quota bounds their number, ``Connection.congested`` their bytes. What belongs to a connection that is
    over is dropped: it has no effect and no answer (W8-07).
    """

    def __init__(
        self,
        runtime: Runtime,
        transactions: Transactions,
        *,
        may_act: Callable[[Connection], bool],
        broken: Callable[[Connection, ProtocolError], None],
    ) -> None:
        """``may_act`` checks the grant once more, ``broken`` ends a connection with a fatal error."""
        policy = runtime.policy
        self._runtime = runtime
        self._transactions = transactions
        self._may_act = may_act
        self._broken = broken
        self._item_cost = max(1, policy.batch_bytes // policy.batch_events)
        """What an item costs beside its bytes: as many of them as a batch has events fill a batch."""
        self._queue: FairQueue[Work] = FairQueue(self._item_cost)

    def __len__(self) -> int:
        return len(self._queue)

    def add(self, conn: Connection, request_id: int, nbytes: int, run: Callable[[], None]) -> None:
        """Queue work whose request is open; ``nbytes`` of payload."""
        conn.backlog_bytes += nbytes
        work = Work(conn, request_id, nbytes, self._runtime.now.mono, run)
        self._queue.push(conn.grant.key_id, work, self._item_cost + nbytes)

    def run(self) -> None:
        """Execute in fair order until the open batch is full, a batch's worth of work is done, or none is left.

        An exception other than ``ProtocolError`` and ``CounterWrap`` is a bug: the connection that met it is ended as
        INTERNAL, what is left stays queued, and the exception goes on to the caller.
        """
        left = self._runtime.policy.batch_bytes
        while left > 0 and not self._transactions.full:
            found = self._queue.pop()
            if found is None:
                return
            left -= found[1]
            self._run(found[0])

    def _run(self, work: Work) -> None:
        conn = work.conn
        was_congested = conn.congested
        conn.backlog_bytes -= work.nbytes
        if was_congested and not conn.congested:
            conn.wake()
        self._runtime.observer.command_wait(self._runtime.now.mono - work.arrived)
        # Closing, revoked or expired since the frame came: it has no effect any more (P6-07, W8-07, W8-10).
        if conn.closing is not None or not self._may_act(conn):
            return
        try:
            work.run()
        except ProtocolError as error:
            error.request_id = work.request_id
            if error.fatal:
                self._broken(conn, error)
            else:
                # It was decided on the head, so that it waits for the head like an answer.
                self._transactions.answer(conn, conn.refusal(error), work.request_id)
        except CounterWrap:
            raise
        except Exception:
            self._broken(conn, InternalError())
            raise

    def forget(self, conn: Connection) -> None:
        """The connection is over."""
        if conn.backlog_bytes or conn.requests:
            self._queue.discard(conn.grant.key_id, lambda work: work.conn is conn)
            conn.backlog_bytes = 0

    def clear(self) -> None:
        """Nothing will be executed any more (P12-17)."""
        self._queue.clear()
