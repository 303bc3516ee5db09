"""`python -m tests.soak --seconds 600 --clients 64 --seed N`: prints what was done, or why it failed."""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

from tests.e2e.cluster import short_directory
from tests.soak.truth import Failed
from tests.soak.whole import soak


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak")
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    options = parser.parse_args()
    with short_directory() as directory:
        try:
            report = soak(Path(directory), seconds=options.seconds, clients=options.clients, seed=options.seed)
        except Failed as error:
            print(error, file=sys.stderr)
            return 1
    print(json.dumps(report, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
