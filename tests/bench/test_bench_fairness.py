"""How long one principal's single command takes while another floods the server, beside how long it takes alone.

The flood is a process of its own: all the requests that a principal may have open, over all the connections that it may
have, each answer followed by the next command. Quiet and flooded rounds take turns; medians are printed.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import select
import statistics
import time
from collections.abc import Iterator
from multiprocessing.synchronize import Event
from pathlib import Path

import pytest

from sidecar.base.keysource import load_seed_file
from sidecar.coordinator.wire import frames as fr
from sidecar.coordinator.wire.limits import QUOTAS
from tests.bench.measure import show
from tests.e2e.devset import DevSet, dev_set
from tests.e2e.peer import Peer

ROUNDS = 5
COMMANDS = 60
CONNECTIONS = QUOTAS["connections"].principal or 0
OPEN_REQUESTS = (QUOTAS["requests"].principal or 0) // CONNECTIONS


def flood(socket: str, key_file: str, started: Event, stop: Event) -> None:
    """Keep every connection of the principal full of commands."""
    with contextlib.ExitStack() as stack:
        peers = [stack.enter_context(Peer(Path(socket))) for _ in range(CONNECTIONS)]
        for peer in peers:
            peer.login(load_seed_file(key_file))
            peer.send(*[peer.create() for _ in range(OPEN_REQUESTS)])
        started.set()
        ready = {peer.sock: peer for peer in peers}
        while not stop.is_set():
            for sock in select.select(list(ready), [], [], 0.1)[0]:
                peer = ready[sock]
                frame = peer.next()
                if isinstance(frame, fr.CoordCommandResult | fr.CoordErrorFrame):
                    peer.send(peer.create())


@contextlib.contextmanager
def flooded(running: DevSet) -> Iterator[None]:
    """Another principal floods the server inside of this."""
    context = multiprocessing.get_context("spawn")
    started, stop = context.Event(), context.Event()
    socket, workloads = running.ready["coordinator"]["socket"], running.ready["workloads"]
    process = context.Process(target=flood, args=(socket, workloads["operator"]["key_file"], started, stop))
    process.start()
    try:
        assert started.wait(60)
        yield
    finally:
        stop.set()
        process.join(60)
        assert process.exitcode == 0


def latencies(peer: Peer) -> list[float]:
    """Seconds of single commands, one after the other."""
    found = []
    for _ in range(COMMANDS):
        command = peer.create()
        began = time.perf_counter()
        peer.send(command)
        peer.expect(fr.CoordCommandResult)
        found.append(time.perf_counter() - began)
    return found


def test_a_single_command_beside_a_flood(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    quiet: list[float] = []
    beside: list[float] = []
    with dev_set(tmp_path / "dev", "--certificate-seconds", "30") as running, contextlib.ExitStack() as stack:
        peer = stack.enter_context(Peer(Path(running.ready["coordinator"]["socket"])))
        peer.login(load_seed_file(running.ready["workloads"]["admin"]["key_file"]))
        for _ in range(ROUNDS):
            quiet += latencies(peer)
            with flooded(running):
                beside += latencies(peer)
    alone, among = statistics.median(quiet), statistics.median(beside)
    show(
        capsys,
        f"one command at a time, beside {CONNECTIONS * OPEN_REQUESTS} open commands of another principal",
        {
            "median alone": (alone * 1e3, "ms"),
            "median beside the flood": (among * 1e3, "ms"),
            "99th percentile beside the flood": (statistics.quantiles(beside, n=100)[98] * 1e3, "ms"),
        },
        f"beside the flood a command takes {among / alone:.1f} times as long",
    )
    assert len(beside) == ROUNDS * COMMANDS
