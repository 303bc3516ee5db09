"""Run the fuzz targets in turns for a while; the printed seed makes every case again.

``python -m tests.fuzz [--seed N] [--seconds S] [--target NAME]``; one case: ``--seed N --target NAME --case I``.
"""

from __future__ import annotations

import argparse
import itertools
import os
import random
import sys
import time
import traceback
from pathlib import Path

from tests.fuzz.targets import TARGETS

LAST_CASE = Path("build/fuzz.last")


def run_case(seed: int, target: str, case: int) -> None:
    """One case: it depends on these three values and on nothing else."""
    TARGETS[target](random.Random(f"{seed} {target} {case}"))


def fuzz(seed: int, seconds: float, targets: list[str]) -> int:
    """All targets in turns until the time is over or one fails; returns the exit code."""
    print(f"fuzz: seed {seed}, {seconds:g} s, targets {', '.join(targets)}", flush=True)
    LAST_CASE.parent.mkdir(exist_ok=True)
    # Native code may take the process with it: the case that it was at can be read here afterwards.
    last = os.open(LAST_CASE, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
    end = time.monotonic() + seconds
    for case in itertools.count():
        for target in targets:
            again = f"python -m tests.fuzz --seed {seed} --target {target} --case {case}"
            os.pwrite(last, f"{again:<120}\n".encode(), 0)
            try:
                run_case(seed, target, case)
            except Exception:
                traceback.print_exc()
                print(f"fuzz: FAILED; once more with: {again}", file=sys.stderr)
                return 1
        if time.monotonic() >= end:
            print(f"fuzz: {case + 1} cases of each target, no disagreement")
            return 0
    raise AssertionError


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--target", choices=sorted(TARGETS))
    parser.add_argument("--case", type=int)
    arguments = parser.parse_args()
    chosen = arguments.seed if arguments.seed is not None else int.from_bytes(os.urandom(4), "big")
    if arguments.case is not None:
        if arguments.target is None or arguments.seed is None:
            parser.error("--case needs --seed and --target")
        run_case(chosen, arguments.target, arguments.case)
    else:
        raise SystemExit(fuzz(chosen, arguments.seconds, [arguments.target] if arguments.target else list(TARGETS)))
