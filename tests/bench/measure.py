"""Medians of several ways to do one thing, taken in turns in one run and printed beside each other."""

from __future__ import annotations

import statistics
import timeit
from collections.abc import Callable, Mapping

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


def report(capsys: pytest.CaptureFixture[str], title: str, ways: Mapping[str, Callable[[], object]]) -> None:
    """Print one line per way: median per call and its ratio to the first way, which is the product's own."""
    results = medians(ways)
    own = next(iter(results.values()))
    with capsys.disabled():
        print(f"\n{title}")
        for name, seconds in results.items():
            print(f"  {name:<34}{seconds * 1e9:>12.0f} ns  {seconds / own:>8.2f} x")
