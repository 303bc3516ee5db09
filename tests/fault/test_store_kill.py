"""kill -9 of a process in the middle of its commits, and a log whose end is torn."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from sidecar.coordinator.store.sqlite import SqliteStore
from tests.fault.store_rig import History, activate

ROOT = Path(__file__).resolve().parents[2]
ROUNDS = 36


def reopen(directory: Path, history: History) -> None:
    """The store holds a whole prefix of the history; ``history`` becomes that prefix."""
    store = SqliteStore.open(directory, entropy=os.urandom)
    state = store.load()
    history.skip_to(state.last_sequence)
    history.check(state)
    store.close()


@pytest.mark.req("P8-13", "P8-17", "P4-07")
@pytest.mark.timeout(300)
def test_nothing_reported_is_lost_and_no_batch_is_half_there(tmp_path: Path) -> None:
    draw = random.Random(20_240_611)
    directory = tmp_path / "store"
    first = SqliteStore.open(directory, entropy=os.urandom)
    coordinator_id = first.coordinator_id
    first.close()
    history = History()
    for round_ in range(ROUNDS):
        point = draw.randrange(1, 40)
        # Every third victim stands still inside the transaction; the others are hit wherever they happen to be.
        hold = point if round_ % 3 == 0 else 0
        argv = [sys.executable, "-m", "tests.fault.store_rig", str(directory), str(history.done + 1)]
        with subprocess.Popen(
            [*argv, "--hold", str(hold)], cwd=ROOT, stdout=subprocess.PIPE, text=True, bufsize=1
        ) as victim:
            assert victim.stdout is not None
            lines = []
            for line in victim.stdout:
                lines.append(line.split())
                if lines[-1] == ["commit", str(point)]:
                    victim.kill()
        reported = [int(number) for word, number in lines if word == "durable"]
        before = history.done
        reopen(directory, history)
        assert history.done >= max(reported, default=before)
        if hold:
            # The commit that stood still was never finished.
            assert history.done == max(reported, default=before)
    assert history.done > ROUNDS
    store = SqliteStore.open(directory, entropy=os.urandom)
    assert store.coordinator_id == coordinator_id
    assert store.installed().epoch == ROUNDS
    store.close()
    assert sorted(path.name for path in directory.iterdir()) == ["coordinator.db", "store.lock"]


@pytest.mark.req("P8-13")
def test_a_torn_log_leaves_a_whole_prefix(tmp_path: Path) -> None:
    draw = random.Random(7)
    live = tmp_path / "live"
    store = SqliteStore.open(live, entropy=os.urandom)
    epoch = activate(store)
    written = History()
    for number in range(1, 21):
        store.commit(written.next(number, epoch), lambda: None)
    log = (live / "coordinator.db-wal").read_bytes()
    kept: set[int] = set()
    for case in range(60):
        copy = tmp_path / f"copy-{case}"
        copy.mkdir(mode=0o700)
        for name in ("coordinator.db", "store.lock"):
            shutil.copy(live / name, copy / name)
        size = draw.randrange(len(log) + 1)
        tail = bytearray(log[:size])
        if case % 2 and size > 512:
            tail[-512:] = draw.randbytes(512)  # a sector that the disk never wrote
        (copy / "coordinator.db-wal").write_bytes(tail)
        history = History()
        reopen(copy, history)
        kept.add(history.done)
    assert len(kept) > 5
    assert max(kept) < written.done
    store.close()
    reopen(live, written)
