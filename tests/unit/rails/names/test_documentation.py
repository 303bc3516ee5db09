"""docs/names.md is the output of the name table, and says everything that it holds."""

from __future__ import annotations

from pathlib import Path

from sidecar.rails.names.describe import describe
from sidecar.rails.names.table import TEMPLATES
from sidecar.rails.names.tokens import GRAMMARS

ROOT = Path(__file__).resolve().parents[4]


def test_the_names_page_is_the_output_of_the_table() -> None:
    assert (ROOT / "docs" / "names.md").read_text(encoding="utf-8") == describe()


def test_the_names_page_has_every_template_and_grammar() -> None:
    lines = describe().splitlines()
    for template in TEMPLATES:
        assert f"| {template.name} | `{template.text}` | {template.use} | {template.row} |" in lines
    for name in GRAMMARS:
        assert any(line.startswith(f"| {name} | `") for line in lines)


def test_no_cell_of_the_page_breaks_its_row() -> None:
    for line in describe().splitlines():
        if line.startswith("| "):
            bare = line.replace(r"\|", "")
            assert bare.count("|") in (3, 5, 6)
