"""Batches that follow the reader, and waits that double up to a bound."""

from __future__ import annotations

import pytest

from sidecar.rails.messaging.pacing import FIRST_BATCH, Backoff, Batching


def test_batches_grow_while_they_come_full_and_shrink_while_they_do_not() -> None:
    batching = Batching(64)
    sizes = []
    for _ in range(5):
        sizes.append(batching.size)
        batching.came(batching.size)
    assert sizes == [FIRST_BATCH, 16, 32, 64, 64]
    batching.came(32)
    assert batching.size == 64, "half full is good"
    for _ in range(10):
        batching.came(0)
    assert batching.size == 1
    batching.came(1)
    assert batching.size == 2


def test_a_batch_never_passes_its_bound() -> None:
    batching = Batching(1)
    batching.came(1)
    assert batching.size == 1
    with pytest.raises(ValueError, match="at least one"):
        Batching(0)


@pytest.mark.req("C8.1-49")
def test_waits_double_to_their_bound_and_begin_anew() -> None:
    backoff = Backoff(5.0, 60.0)
    assert [backoff.failed() for _ in range(6)] == [5.0, 10.0, 20.0, 40.0, 60.0, 60.0]
    for _ in range(100):
        assert backoff.failed(0.0) == 30.0
    backoff.succeeded()
    assert backoff.failed(0.5) == pytest.approx(3.75)
