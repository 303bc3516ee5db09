"""What `make bench` prints, and the page that keeps its figures."""

from __future__ import annotations

import re
from pathlib import Path

from tests.bench.measure import ratios

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "benchmarks.md"


def test_ratios_say_which_way_round_they_are() -> None:
    results = {"cext.x": 2.0, "another way": 9.0, "plain Python": 7.0, "floor: one copy": 1.6}
    assert ratios(results) == [
        "plain Python takes 3.50 times as long as cext.x",
        "cext.x takes 1.25 times its floor (one copy)",
    ]


def test_the_page_has_a_section_for_every_bench() -> None:
    benches = {path.stem.removeprefix("test_bench_") for path in (ROOT / "tests" / "bench").glob("test_bench_*.py")}
    assert set(re.findall(r"^## `(\w+)`", PAGE.read_text(), re.MULTILINE)) == benches
    assert "docs/benchmarks.md" in (ROOT / "README.md").read_text()
