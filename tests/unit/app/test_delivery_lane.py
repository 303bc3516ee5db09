"""What a delivery lane keeps on disk from start to start."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from sidecar.app.delivery_lane import KEPT_LEASES, read_state, write_state
from sidecar.base.safefile import DirLock, UnsafeFile, ensure_private_dir
from sidecar.rails.planes.delivery.floors import Floor


def test_a_start_knows_the_leases_of_all_that_died_before_it(tmp_path: Path) -> None:
    """A process that is killed before it has the lease leaves the one of its predecessor standing."""
    directory = tmp_path / "lane"
    ensure_private_dir(directory)
    first = read_state(directory)
    for number in range(KEPT_LEASES + 2):
        with DirLock(directory) as lock:
            before = read_state(directory)
            state = before.started(f"lease{number}")
            write_state(directory, state, lock)
        assert state.lease == f"lease{number}"
        assert before.leases == tuple(f"lease{one}" for one in range(number))[-KEPT_LEASES:]
        assert len(state.leases) == min(number + 1, KEPT_LEASES)
    assert first.epoch == state.epoch == 0
    assert read_state(directory).uid == state.uid


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"uid":"x"}', '{"epoch":1,"leases":"x"}'])
def test_a_state_that_is_none_is_told(tmp_path: Path, text: str) -> None:
    directory = tmp_path / "lane"
    ensure_private_dir(directory)
    file = directory / "lane.json"
    file.touch(0o600)
    file.write_text(text)
    with pytest.raises(UnsafeFile, match="delivery lane"):
        read_state(directory)


def test_floors_are_kept_from_start_to_start_and_odd_ones_are_none(tmp_path: Path) -> None:
    directory = tmp_path / "lane"
    ensure_private_dir(directory)
    floors = {"fanout": Floor("2026-01-01T00:00:00Z", 7), "reader": Floor("2026-01-01T00:00:01Z", 0)}
    with DirLock(directory) as lock:
        write_state(directory, replace(read_state(directory), floors=floors).started("a"), lock)
    assert read_state(directory).started("b").floors == floors
    file = directory / "lane.json"
    value = json.loads(file.read_text())
    text = {"created": "x", "sequence": "7"}
    odds: list[object] = [None, [], {"fanout": 7}, {"fanout": text}, {"fanout": {"sequence": 7}}]
    for odd in odds:
        file.write_text(json.dumps({**value, "floors": odd}))
        assert read_state(directory).floors == {}
    del value["floors"]  # as before there were any
    file.write_text(json.dumps(value))
    assert read_state(directory).floors == {}
