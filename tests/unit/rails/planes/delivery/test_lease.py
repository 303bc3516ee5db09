"""The rules of the delivery lease: who may take it, how long it is believed in, and what its row says."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from sidecar.base.clock import Now
from sidecar.rails.messaging.liveness import Verdict
from sidecar.rails.names.limits import DELIVERY_LEASE_SECONDS
from sidecar.rails.planes.delivery.lease import (
    MARGIN_SECONDS,
    Claim,
    InvalidLease,
    LeaseRow,
    Term,
    claim,
    judge,
)

ROW = LeaseRow("local.delivery", "a" * 32, 1_800_000_000_000, ready=True)


@pytest.mark.parametrize(
    ("row", "unchanged", "ended", "expected"),
    [
        (None, 0.0, (), Claim.CREATE),
        (None, 999.0, ("a" * 32,), Claim.CREATE),
        (ROW, 0.0, (), Claim.WAIT),
        (ROW, DELIVERY_LEASE_SECONDS, (), Claim.WAIT),
        (ROW, DELIVERY_LEASE_SECONDS + 0.1, (), Claim.STEAL),
        (ROW, 0.0, ("a" * 32,), Claim.STEAL),
        (ROW, 0.0, ("b" * 32, "a" * 32), Claim.STEAL),
        (ROW, 0.0, ("b" * 32, "c" * 32), Claim.WAIT),
        (replace(ROW, instance=""), 0.0, (), Claim.WAIT),
    ],
)
def test_a_lease_is_taken_when_it_is_gone_silent_or_of_the_dead(
    row: LeaseRow | None, unchanged: float, ended: tuple[str, ...], expected: Claim
) -> None:
    assert claim(row, unchanged, ended) is expected


@pytest.mark.req("C6.1-15")
@pytest.mark.parametrize(
    ("row", "verdict"),
    [
        (None, Verdict.UNBOUND),
        (replace(ROW, ready=False), Verdict.UNBOUND),
        (replace(ROW, ready=False, instance="b" * 32), Verdict.UNBOUND),
        (ROW, Verdict.BOUND),
        (replace(ROW, instance="b" * 32), Verdict.STALE),
    ],
)
def test_a_row_says_whether_the_plane_is_bound(row: LeaseRow | None, verdict: Verdict) -> None:
    assert judge(row, "a" * 32) is verdict


def test_a_term_ends_on_either_clock_before_the_broker_forgets() -> None:
    term = Term.from_write(Now(1000.0, 50.0))
    life = DELIVERY_LEASE_SECONDS - MARGIN_SECONDS
    assert term.left(Now(1000.0, 50.0)) == life
    assert term.left(Now(1000.0 + life, 50.0)) == 0.0
    assert term.left(Now(1000.0, 50.0 + life)) == 0.0
    assert term.left(Now(0.0, 50.0 + life)) == 0.0, "a wall clock that was set back lengthens nothing"
    assert 0.0 < life < DELIVERY_LEASE_SECONDS
    assert life > DELIVERY_LEASE_SECONDS / 2, "there is time for a second try to renew"


def test_a_row_is_read_as_it_was_written() -> None:
    assert LeaseRow.decode(ROW.encode()) == ROW
    assert json.loads(ROW.encode()) == {
        "holder": "local.delivery", "instanceId": "a" * 32, "since": 1_800_000_000_000, "ready": True,
    }  # fmt: skip
    assert LeaseRow.decode(json.dumps({**json.loads(ROW.encode()), "more": 1}).encode()) == ROW


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("holder", "delivery"), ("holder", None), ("instanceId", ""), ("instanceId", "x" * 65), ("instanceId", 7),
        ("since", -1), ("since", 1.5), ("since", True), ("ready", "true"), ("ready", None), ("ready", 1),
    ],
)  # fmt: skip
def test_another_row_is_refused(name: str, value: object) -> None:
    with pytest.raises(InvalidLease):
        LeaseRow.decode(json.dumps({**json.loads(ROW.encode()), name: value}).encode())


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"null", b" " * 5000])
def test_bytes_that_are_no_row_are_refused(data: bytes) -> None:
    with pytest.raises(InvalidLease):
        LeaseRow.decode(data)
