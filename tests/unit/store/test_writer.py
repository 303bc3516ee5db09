"""The writer thread: order, grouping, and the end after a failure."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from sidecar.coordinator.store import writer as writer_module
from sidecar.coordinator.store.errors import StaleBatch, StoreStopped
from sidecar.coordinator.store.sqlite import SqliteStore
from sidecar.coordinator.store.writer import MAX_GROUP, MAX_WAITING, StoreWriter
from tests.fault.store_rig import History, activate


class Gate:
    """The check before COMMIT: it can hold the writer in the middle of a commit, or make the commit fail."""

    def __init__(self) -> None:
        self.commits = 0
        self.entered = threading.Event()
        self.go_on = threading.Event()
        self.error: Exception | None = None

    def __call__(self) -> None:
        self.commits += 1
        self.entered.set()
        assert self.go_on.wait(60)
        if self.error is not None:
            raise self.error


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    opened = SqliteStore.open(tmp_path / "store", entropy=os.urandom)
    activate(opened)
    yield opened
    opened.close()


@pytest.fixture
def gate() -> Gate:
    return Gate()


@pytest.fixture
def writer(store: SqliteStore, gate: Gate) -> Iterator[StoreWriter]:
    started = StoreWriter(store, gate)
    yield started
    gate.go_on.set()
    started.stop()


Outcomes = list[tuple[int, BaseException | None]]


def submit_all(writer: StoreWriter, history: History, count: int, outcomes: Outcomes) -> None:
    def done(number: int, error: BaseException | None) -> None:
        outcomes.append((number, error))

    for _ in range(count):
        batch = history.next(history.done + 1, 1)
        writer.submit(batch, partial(done, batch.number))


@pytest.mark.req("P8-17")
def test_nothing_is_reported_before_it_is_durable(
    store: SqliteStore, gate: Gate, writer: StoreWriter, tmp_path: Path
) -> None:
    outcomes: Outcomes = []
    history = History()
    submit_all(writer, history, 1, outcomes)
    assert gate.entered.wait(60)
    assert outcomes == []
    gate.go_on.set()
    writer.stop()
    assert outcomes == [(1, None)]
    history.check(store.load())


def test_waiting_batches_share_a_commit_and_keep_their_order(
    store: SqliteStore, gate: Gate, writer: StoreWriter
) -> None:
    outcomes: Outcomes = []
    history = History()
    submit_all(writer, history, 1, outcomes)
    assert gate.entered.wait(60)
    submit_all(writer, history, MAX_GROUP + 1, outcomes)
    gate.go_on.set()
    writer.stop()
    assert outcomes == [(number, None) for number in range(1, MAX_GROUP + 3)]
    assert gate.commits == 3
    assert writer.failure is None
    history.check(store.load())


@pytest.mark.req("P12-16")
def test_a_failure_is_told_once_and_ends_everything(store: SqliteStore, gate: Gate, writer: StoreWriter) -> None:
    outcomes: Outcomes = []
    history = History()
    submit_all(writer, history, 1, outcomes)
    assert gate.entered.wait(60)
    submit_all(writer, history, MAX_GROUP + 5, outcomes)
    gate.error = PermissionError("expired")
    gate.go_on.set()
    writer.stop()
    assert [number for number, _ in outcomes] == list(range(1, MAX_GROUP + 7))
    assert outcomes[0][1] is gate.error is writer.failure
    assert all(isinstance(error, StoreStopped) for _, error in outcomes[1:])
    assert gate.commits == 1
    with pytest.raises(StoreStopped, match="has ended"):
        writer.submit(history.next(1, 1), lambda error: None)
    with pytest.raises(StoreStopped):
        store.load()


def test_a_group_fails_together(store: SqliteStore, gate: Gate, writer: StoreWriter) -> None:
    outcomes: Outcomes = []
    history = History()
    submit_all(writer, history, 1, outcomes)
    assert gate.entered.wait(60)
    submit_all(writer, history, 2, outcomes)
    history.next(1, 1)  # a batch that never comes
    submit_all(writer, history, 1, outcomes)
    gate.go_on.set()
    writer.stop()
    assert outcomes[0] == (1, None)
    assert len({id(error) for _, error in outcomes[1:]}) == 1
    assert isinstance(outcomes[-1][1], StaleBatch)


def test_the_queue_is_bounded(gate: Gate, writer: StoreWriter) -> None:
    outcomes: Outcomes = []
    history = History()
    submit_all(writer, history, 1, outcomes)
    assert gate.entered.wait(60)
    submit_all(writer, history, MAX_WAITING, outcomes)
    with pytest.raises(StoreStopped, match="too many"):
        writer.submit(history.next(history.done + 1, 1), lambda error: None)
    gate.go_on.set()
    writer.stop()
    assert [error for _, error in outcomes] == [None] * (MAX_WAITING + 1)


def test_stopping_writes_what_waits_and_refuses_what_comes(gate: Gate, writer: StoreWriter) -> None:
    outcomes: Outcomes = []
    history = History()
    submit_all(writer, history, 3, outcomes)
    gate.go_on.set()
    writer.stop()
    writer.stop()
    assert outcomes == [(1, None), (2, None), (3, None)]
    with pytest.raises(StoreStopped, match="has ended"):
        writer.submit(history.next(4, 1), lambda error: None)


def test_a_callback_that_raises_is_logged_and_harms_nobody(
    gate: Gate, writer: StoreWriter, caplog: pytest.LogCaptureFixture
) -> None:
    outcomes: Outcomes = []
    history = History()

    def broken(error: BaseException | None) -> None:
        raise RuntimeError("no loop")

    callbacks: list[Callable[[BaseException | None], None]] = [broken, lambda error: outcomes.append((2, error))]
    with caplog.at_level(logging.ERROR, writer_module.__name__):
        for callback in callbacks:
            writer.submit(history.next(history.done + 1, 1), callback)
        gate.go_on.set()
        writer.stop()
    assert outcomes == [(2, None)]
    assert "completion callback" in caplog.text
