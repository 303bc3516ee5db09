"""docs/protocol.md is the output of the tables, and says everything that they hold."""

from __future__ import annotations

import re
from pathlib import Path

from sidecar.coordinator.describe import describe
from sidecar.coordinator.machines.all import MACHINES
from tests.unit.wire.samples import FRAME_SAMPLES

ROOT = Path(__file__).resolve().parents[3]


def test_the_protocol_page_is_the_output_of_the_tables() -> None:
    assert (ROOT / "docs" / "protocol.md").read_text(encoding="utf-8") == describe()


def test_the_protocol_page_names_every_frame_field_and_set() -> None:
    text = describe()
    for kind, frame in FRAME_SAMPLES.items():
        assert f"### 0x{kind:02x} {kind.name}" in text
        for item in frame.FIELDS:
            assert re.search(rf"\| {item.id} \| {item.name} \|", text)


def test_the_protocol_page_has_every_cell_of_every_machine() -> None:
    text = describe()
    for machine in MACHINES:
        section = text.split(f"### {machine.title}\n")[1].split("\n### ")[0]
        rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in section.splitlines() if "|" in line][2:]
        every = " · ".join(event.value for event in machine.events)
        cells = [(row[0], row[1].replace("every event", every), tuple(row[2:])) for row in rows]
        said = {(state, event): rest for state, events, rest in cells for event in events.split(" · ")}
        assert len(said) == len(list(machine))
        for state, event, step in machine:
            following = "same" if step.next is state else step.next.name
            refusal = "" if step.error is None else step.error.name
            assert said[state.name, event.value] == (following, step.reply, refusal)
