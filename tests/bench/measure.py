"""Medians of several ways to do one thing, taken in turns in one run and printed beside each other."""

from __future__ import annotations

import statistics
import timeit
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

ROUNDS = 15
ROUND_SECONDS = 0.01


def medians(ways: Mapping[str, Callable[[], object]]) -> dict[str, float]:
    """Median seconds per call of each way. The ways take turns, so that a slow moment of the machine hits all."""
    timers = {name: timeit.Timer(way) for name, way in ways.items()}
    numbers = {}
    for name, timer in timers.items():
        number = 1
        while (spent := timer.timeit(number)) < ROUND_SECONDS / 4:
            number *= 2
        numbers[name] = max(1, int(number * ROUND_SECONDS / spent))
    samples: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(ROUNDS):
        for name, timer in timers.items():
            samples[name].append(timer.timeit(numbers[name]) / numbers[name])
    return {name: statistics.median(values) for name, values in samples.items()}


def ratios(results: Mapping[str, float]) -> list[str]:
    """In words, what the product's own way (the first) costs beside every floor and every plain-Python way."""
    (name, own), *others = results.items()
    lines = []
    for other, seconds in others:
        if other.startswith("floor: "):
            lines.append(f"{name} takes {own / seconds:.2f} times its floor ({other.removeprefix('floor: ')})")
        elif other.startswith("plain Python"):
            lines.append(f"{other} takes {seconds / own:.2f} times as long as {name}")
    return lines


def report(capsys: pytest.CaptureFixture[str], title: str, ways: Mapping[str, Callable[[], object]]) -> None:
    """Print one line per way, the median per call, and the ratios between them in words."""
    results = medians(ways)
    with capsys.disabled():
        print(f"\n{title}")
        for name, seconds in results.items():
            print(f"  {name:<36}{seconds * 1e9:>14,.0f} ns")
        for line in ratios(results):
            print(f"  -> {line}")


def cpu_seconds(pid: int) -> float:
    """Seconds that all threads of a process have spent on a processor: what the noise of the others does not change."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9


def resident(pid: int) -> int:
    """Resident bytes of a process that it shares with no other."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    sizes = {name: int(rest.split()[0]) for name, _, rest in (line.partition(":") for line in lines[1:])}
    return (sizes["Private_Clean"] + sizes["Private_Dirty"]) * 1024


def show(capsys: pytest.CaptureFixture[str], title: str, rows: Mapping[str, tuple[float, str]], *remarks: str) -> None:
    """Print one line per figure with its unit, and remarks behind them."""
    with capsys.disabled():
        print(f"\n{title}")
        for name, (value, unit) in rows.items():
            print(f"  {name:<52}{value:>14,.{0 if abs(value) >= 100 else 2}f} {unit}")
        for remark in remarks:
            print(f"  -> {remark}")
