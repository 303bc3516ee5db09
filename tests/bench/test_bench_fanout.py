"""Events per second from one stream of commands to 32 subscribers, through a real server process.

Every delivery is received and its sequences are checked. The floor is the same frames written to the same number of
sockets by a process that does nothing else, and received in the same way. Rounds with one more subscriber that reads
nothing take turns with rounds without it; each of them ends for it in a GAP, because its queue is full.
"""

from __future__ import annotations

import os
import select
import socket
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cext.frame import MAX_LENGTH, Splitter
from sidecar.coordinator.wire.limits import HARD
from tests.bench.lean import Commander, Lane, Listener, server, server_pid
from tests.bench.measure import cpu_seconds, show
from tests.e2e.cluster import Cluster
from tests.e2e.peer import Peer

SUBSCRIBERS = 32
ROUNDS = 10
COMMANDS = 2_000
EVENTS = 2 * COMMANDS
"""A command makes one event of its objective and one of its operation."""
DOCUMENT = b'{"title":"bench","n":1}'
FLOOR_BURST = 32


class Room:
    """One commander and all listeners in one poll."""

    def __init__(self, commander: Commander, listeners: list[Listener]) -> None:
        self.commander = commander
        self.listeners = listeners
        self._lanes: dict[int, Lane] = {lane.sock.fileno(): lane for lane in (commander, *listeners)}
        self._poll = select.epoll()
        for number, lane in self._lanes.items():
            lane.go()
            self._poll.register(number, select.EPOLLIN)

    def close(self) -> None:
        self._poll.close()
        for lane in self._lanes.values():
            lane.close()

    def round(self) -> float:
        """Seconds from the first command until every listener has every event."""
        self.commander.load(COMMANDS, DOCUMENT)
        wanted = self.listeners[0].seen + EVENTS
        began = time.perf_counter()
        self.commander.fill()
        while not self.commander.done or any(listener.seen < wanted for listener in self.listeners):
            ready = self._poll.poll(30)
            assert ready, "nothing comes any more"
            for number, _ in ready:
                self._lanes[number].readable()
        return time.perf_counter() - began


@contextmanager
def stalled(cluster: Cluster, peer: Peer) -> Iterator[None]:
    """A subscriber with all the credit there is, and it reads nothing."""
    peer.subscribe(head(cluster), HARD.credit_count, HARD.credit_bytes)
    try:
        yield
    finally:
        peer.close()


def head(cluster: Cluster) -> int:
    """The newest event."""
    return int(cluster.metrics()["sidecar_event_durable"])


def floor(frame: bytes) -> float:
    """Deliveries per second of sockets alone."""
    pairs = [socket.socketpair() for _ in range(SUBSCRIBERS)]
    child = os.fork()
    if child == 0:
        for _ in range(EVENTS // FLOOR_BURST):
            for ours, _ in pairs:
                ours.sendall(frame * FLOOR_BURST)
        os._exit(0)
    left = {theirs.fileno(): (theirs, Splitter([MAX_LENGTH] * 256)) for _, theirs in pairs}
    poll = select.epoll()
    for number in left:
        poll.register(number, select.EPOLLIN)
    wanted = EVENTS // FLOOR_BURST * FLOOR_BURST * SUBSCRIBERS
    got, began = 0, time.perf_counter()
    while got < wanted:
        for number, _ in poll.poll(30):
            theirs, splitter = left[number]
            splitter.buffer_updated(theirs.recv_into(splitter.get_buffer(-1)))
            while splitter.next_frame() is not None:
                got += 1
    spent = time.perf_counter() - began
    os.waitpid(child, 0)
    poll.close()
    for pair in pairs:
        for end in pair:
            end.close()
    return got / spent


def overflows(cluster: Cluster) -> int:
    """Subscriptions that lost continuity because their queue was full."""
    return int(cluster.metrics()['sidecar_gaps_total{reason="queue_overflow"}'])


class Rounds:
    """Deliveries per second, and processor seconds of the server for each of them."""

    def __init__(self, room: Room, pid: int) -> None:
        self._room, self._pid = room, pid
        self.rates: list[float] = []
        self.costs: list[float] = []

    def one(self) -> None:
        """One more round."""
        before, deliveries = cpu_seconds(self._pid), EVENTS * SUBSCRIBERS
        self.rates.append(deliveries / self._room.round())
        self.costs.append((cpu_seconds(self._pid) - before) / deliveries)

    @property
    def rate(self) -> float:
        return statistics.median(self.rates)

    @property
    def cost(self) -> float:
        return statistics.median(self.costs)


def change(plain: list[float], beside: list[float]) -> float:
    """Per cent by which the second of a pair is above the first; the median of all pairs."""
    return 100 * statistics.median(there / here - 1 for here, there in zip(plain, beside, strict=True))


@pytest.mark.timeout(600)
def test_fan_out(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    floors: list[float] = []
    with server(tmp_path, 4) as (cluster, keys):
        listeners = [Listener(cluster, keys[n % 2], 0) for n in range(SUBSCRIBERS)]
        room = Room(Commander(cluster, keys[2]), listeners)
        plain, beside = (Rounds(room, server_pid(cluster)) for _ in range(2))
        room.round()
        size = listeners[0].nbytes // listeners[0].seen
        for number in range(ROUNDS):
            # Which of the two comes first changes, so that a machine that grows slower or faster favours neither.
            for rounds in (plain, beside)[:: -1 if number % 2 else 1]:
                if rounds is plain:
                    plain.one()
                    continue
                with stalled(cluster, Peer(cluster.socket).login(keys[3])):
                    beside.one()
                assert overflows(cluster) == len(beside.rates)
            floors.append(floor((size - 4).to_bytes(4, "big") + b"\xb0" + bytes(size - 5)))
        room.close()
    floor_rate = statistics.median(floors)
    show(
        capsys,
        f"fan-out: {COMMANDS} commands, {EVENTS} events of {size} bytes, {SUBSCRIBERS} subscribers",
        {
            "deliveries": (plain.rate, "/s"),
            "deliveries beside a stalled subscriber": (beside.rate, "/s"),
            "floor: sockets alone": (floor_rate, "/s"),
            "processor time of the server for a delivery": (plain.cost * 1e6, "µs"),
            "deliveries of a server with a processor of its own": (1 / plain.cost, "/s"),
        },
        f"{plain.rate / floor_rate:.2f} of the rate of sockets alone",
        f"a stalled subscriber changes the others' rate by {change(plain.rates, beside.rates):+.1f} %",
        f"and the processor time for a delivery by {change(plain.costs, beside.costs):+.1f} % ({ROUNDS} pairs)",
    )
    assert all(listener.seen == EVENTS * (2 * ROUNDS + 1) for listener in listeners)
