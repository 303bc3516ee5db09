"""Durable commands per second through a real server, beside two floors measured in the same run.

The floors are what the parts below cost by themselves: the round trip of COORD_PING over the same socket (no disk),
and commits of the same rows by SQLite with ``synchronous=FULL`` on the same volume (no protocol). Rounds are
interleaved and medians are printed.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import apsw
import pytest

from sidecar.base.keysource import load_seed_file
from sidecar.coordinator.authority.certificate import WitnessPin
from sidecar.coordinator.client import CoordinatorClient
from sidecar.coordinator.pins import PinFile
from tests.e2e.devset import DevSet, dev_set

ROUNDS = 5
DOCUMENT = b'{"title":"bench","n":1}'
COMMANDS = {1: 200, 64: 2_000}


class Floor:
    """SQLite by itself: per command one record, one operation and two events of the same size."""

    def __init__(self, path: Path) -> None:
        self.database = apsw.Connection(str(path))
        self.database.pragma("journal_mode", "wal")
        self.database.pragma("synchronous", "full")
        self.database.execute("CREATE TABLE row (n INTEGER PRIMARY KEY, image BLOB)")
        self.next = 0

    def commits(self, commands: int, per_commit: int) -> float:
        """Commands per second when ``per_commit`` of them share a commit."""
        image = os.urandom(120)
        began = time.perf_counter()
        for _ in range(commands // per_commit):
            self.database.execute("BEGIN IMMEDIATE")
            rows = [(self.next + n, image) for n in range(4 * per_commit)]
            self.database.executemany("INSERT INTO row VALUES (?, ?)", rows)
            self.next += len(rows)
            self.database.execute("COMMIT")
        return commands / (time.perf_counter() - began)


async def rate(count: int, in_flight: int, action: Callable[[], Awaitable[object]]) -> float:
    """Actions per second with ``in_flight`` of them open at any time."""
    left = count

    async def worker() -> None:
        nonlocal left
        while left > 0:
            left -= 1
            await action()

    began = time.perf_counter()
    await asyncio.gather(*(worker() for _ in range(in_flight)))
    return count / (time.perf_counter() - began)


async def connect(running: DevSet) -> CoordinatorClient:
    coordinator = running.ready["coordinator"]
    return await CoordinatorClient.connect(
        coordinator["socket"],
        load_seed_file(running.ready["workloads"]["operator"]["key_file"]),
        pins=PinFile(running.directory / "bench-pins.json"),
        witness=WitnessPin(bytes.fromhex(coordinator["witness_id"]), bytes.fromhex(coordinator["witness_public_key"])),
    )


async def measure(running: DevSet, floor: Floor) -> dict[str, list[float]]:
    results: dict[str, list[float]] = {}
    async with await connect(running) as client:
        for _ in range(ROUNDS):
            for in_flight, count in COMMANDS.items():
                results.setdefault(f"commands, {in_flight} in flight", []).append(
                    await rate(count, in_flight, lambda: client.create_objective(DOCUMENT))
                )
                results.setdefault(f"pings, {in_flight} in flight", []).append(
                    await rate(count, in_flight, client.ping)
                )
                results.setdefault(f"SQLite FULL, {in_flight} commands a commit", []).append(
                    floor.commits(count, in_flight)
                )
    return results


def test_durable_commands(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with dev_set(tmp_path / "dev", "--certificate-seconds", "30") as running:
        results = asyncio.run(measure(running, Floor(tmp_path / "floor.db")))
    medians = {name: statistics.median(values) for name, values in results.items()}
    with capsys.disabled():
        print("\ndurable commands through a real server")
        for name, value in medians.items():
            print(f"  {name:<36}{value:>14,.0f} /s")
        for in_flight in COMMANDS:
            commands = medians[f"commands, {in_flight} in flight"]
            disk = medians[f"SQLite FULL, {in_flight} commands a commit"]
            ping = medians[f"pings, {in_flight} in flight"]
            print(
                f"  -> {in_flight} in flight: {commands / disk:.2f} of the rate of SQLite alone,"
                f" {commands / ping:.2f} of that of pings"
            )
    assert all(value > 0 for value in medians.values())
