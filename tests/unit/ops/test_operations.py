"""What the page for operators names is there: metrics with their labels and values, and log events."""

from __future__ import annotations

import re
from pathlib import Path

from sidecar.ops.catalogue import CATALOGUE
from sidecar.rails.connection import Fault

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "operations.md").read_text()
_METRIC = re.compile(r"(sidecar_[a-z0-9_]+)(?:\{([^}]*)\})?(?! [A-Z])")
_LABEL = re.compile(r'([a-z]+)="([^"]+)"')


def test_every_metric_on_the_page_exists_with_its_labels() -> None:
    known = {metric.exposed: metric for metric in CATALOGUE}
    found = [one for one in _METRIC.findall(PAGE) if not one[0].endswith("_")]
    assert len({name for name, _ in found}) > 25
    for name, labels in found:
        assert name in known, name
        bounded = {label.name: label.values for label in known[name].labels}
        for label, value in _LABEL.findall(labels):
            assert value in bounded[label], (name, label, value)


def test_every_event_on_the_page_is_written_somewhere() -> None:
    events = set(re.findall(r"`((?:delivery|messaging|nats|anycast)_[a-z_]+)`", PAGE))
    assert len(events) > 15
    faults = {f"nats_{fault.value}" for fault in Fault}
    source = "\n".join(path.read_text() for path in (ROOT / "sidecar").rglob("*.py"))
    for event in events - faults - {"nats_restored"}:
        assert f'"{event}"' in source, event
