"""Random histories of the engine; a failure names the seed that replays it.

More seeds: ``SIDECAR_SIM_SEEDS=10000 pytest tests/sim/test_engine_sim.py``.
"""

from __future__ import annotations

import os

import pytest

from tests.sim.engine_world import Simulation

SEEDS = int(os.environ.get("SIDECAR_SIM_SEEDS", "100"))
STEPS = 1500


@pytest.mark.req(
    "P8-13",
    "P8-14",
    "P8-17",
    "P9-12",
    "P9-13",
    "P9-25",
    "P10-11",
    "P10-14",
    "P10-18",
    "P10-20",
    "P10-25",
    "P10-27",
    "P10-30",
    "P10-34",
    "P10-35",
    "P10-37",
    "P13-08",
    "P3-50",
    "P6-09",
    "P6-17",
    "P12-16",
    "P12-17",
    "P15-06",
)
@pytest.mark.parametrize("seed", range(SEEDS))
def test_random_history(seed: int) -> None:
    simulation = Simulation(seed)
    try:
        for _ in range(STEPS):
            simulation.step()
        simulation.finish()
    except BaseException as error:
        raise AssertionError(f"seed {seed} fails: {error}") from error


def test_the_seeds_reach_what_they_are_for() -> None:
    """Crashes, gaps of several kinds, results, snapshots and replays all occur, or the simulation proves nothing."""
    crashes, gaps, results, snapshots, healed = 0, set(), 0, 0, 0
    for seed in range(25):
        simulation = Simulation(seed)
        for _ in range(STEPS):
            simulation.step()
        crashes += simulation.crashes
        healed += simulation.healed
        gaps |= set(simulation.gaps)
        results += len(simulation.results)
        snapshots += len(simulation.digests)
    assert crashes > 20
    assert len(gaps) == 5, gaps
    assert results > 500
    assert snapshots > 100
    assert healed > 10
