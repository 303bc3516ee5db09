"""What a registry grants, and what a later one still grants."""

from __future__ import annotations

import copy
import json
import pickle
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sidecar.coordinator.authority.registry import EMPTY, Grant, KeyRecord
from sidecar.coordinator.wire.enums import Scope
from tests.unit.authority.keys import BOTH, IDS, KEYS, LATER, NOW, RECORD, RECORDS, registry


@pytest.mark.req("W6-02", "W6-01")
@pytest.mark.parametrize("expiry", [0, int(NOW) - 1, int(NOW)])
def test_both_expiries_must_lie_in_the_future(expiry: int) -> None:
    assert registry(RECORD).grant(IDS[0], BOTH, expiry, NOW) is None
    assert registry(replace(RECORD, expires_at=expiry)).grant(IDS[0], BOTH, LATER, NOW) is None
    assert registry(RECORD).grant(IDS[0], BOTH, int(NOW) + 1, NOW) is not None
    assert registry(replace(RECORD, expires_at=int(NOW) + 1)).grant(IDS[0], BOTH, LATER, NOW) is not None


@pytest.mark.req("W6-03")
@pytest.mark.parametrize(("requested", "granted"), [(LATER + 5, LATER), (LATER - 5, LATER - 5), (2**64 - 1, LATER)])
def test_the_grant_expires_with_the_earlier_of_both(requested: int, granted: int) -> None:
    grant = registry(RECORD).grant(IDS[0], BOTH, requested, NOW)
    assert grant is not None
    assert grant.expires_at == granted


@pytest.mark.req("W6-04")
def test_the_grant_carries_key_and_generation() -> None:
    assert registry(RECORD).grant(IDS[0], BOTH, LATER, NOW) == Grant(IDS[0], BOTH, LATER, 7)


@pytest.mark.req("W6-05")
def test_a_grant_has_no_serial_form() -> None:
    grant = Grant(IDS[0], BOTH, LATER, 7)
    serialisers: list[Callable[[Any], object]] = [pickle.dumps, json.dumps, copy.copy, bytes]
    for serialise in serialisers:
        with pytest.raises(TypeError):
            serialise(grant)


@pytest.mark.req("P6-05", "P6-06", "W6-06", "W10-08")
@settings(max_examples=200)
@given(requested=st.integers(0, 63), ceiling=st.integers(0, 63))
def test_the_scopes_are_the_exact_intersection(requested: int, ceiling: int) -> None:
    grant = registry(replace(RECORD, scopes=ceiling)).grant(IDS[0], requested, LATER, NOW)
    if requested & ceiling:
        assert grant is not None
        assert grant.scopes == requested & ceiling
    else:
        assert grant is None


@pytest.mark.req("P6-05")
def test_admin_implies_nothing_else() -> None:
    admin = registry(replace(RECORD, scopes=int(Scope.ADMIN)))
    grant = admin.grant(IDS[0], 63, LATER, NOW)
    assert grant is not None
    assert grant.scopes == Scope.ADMIN
    for scope in set(Scope) - {Scope.ADMIN}:
        assert admin.grant(IDS[0], int(scope), LATER, NOW) is None


@pytest.mark.req("W10-09", "P6-06", "W2-18")
def test_unknown_revoked_and_foreign_service_keys_get_nothing() -> None:
    assert registry(RECORD).grant(IDS[1], BOTH, LATER, NOW) is None
    assert registry(replace(RECORD, revoked_at=int(NOW) + 999)).grant(IDS[0], BOTH, LATER, NOW) is None
    assert registry(replace(RECORD, service="phux-terminal")).grant(IDS[0], BOTH, LATER, NOW) is None
    assert EMPTY.grant(IDS[0], BOTH, LATER, NOW) is None
    assert EMPTY.lookup(IDS[0]) is None


GRANT = Grant(IDS[0], BOTH, LATER - 10, 1)


@pytest.mark.req("W8-12")
@pytest.mark.parametrize(
    "change", [{"scopes": 63}, {"expires_at": LATER + 1000}, {"expires_at": LATER - 10}, {}], ids=str
)
def test_a_ceiling_that_contains_the_grant_leaves_it(change: dict[str, int]) -> None:
    assert registry(replace(RECORD, **change)).still_grants(GRANT, NOW)  # type: ignore[arg-type]


@pytest.mark.req("W8-07", "W10-09")
@pytest.mark.parametrize(
    "change",
    [
        {"scopes": int(Scope.WORK_READ)},
        {"scopes": 63 & ~int(Scope.WORK_COMMAND)},
        {"scopes": 0},
        {"expires_at": LATER - 11},
        {"expires_at": int(NOW)},
        {"revoked_at": 1},
        {"revoked_at": LATER + 1000},
        {"service": "phux-terminal"},
    ],
    ids=str,
)
def test_a_ceiling_that_does_not_contain_the_grant_ends_it(change: dict[str, Any]) -> None:
    assert not registry(replace(RECORD, **change)).still_grants(GRANT, NOW)


@pytest.mark.req("W8-07", "W2-22")
def test_removal_emptiness_and_time_end_a_grant() -> None:
    assert not registry(KeyRecord.of(KEYS[1], 63, LATER)).still_grants(GRANT, NOW)
    assert not EMPTY.still_grants(GRANT, NOW)
    assert registry(RECORD).still_grants(GRANT, GRANT.expires_at - 0.001)
    assert not registry(RECORD).still_grants(GRANT, GRANT.expires_at)


@pytest.mark.req("W8-07", "W8-12")
@settings(max_examples=200)
@given(
    old=RECORDS, new=RECORDS, requested=st.integers(0, 63), expiry=st.integers(0, 2**64 - 1), now=st.integers(0, 2**64)
)
def test_still_granted_means_that_the_new_record_would_allow_it(
    old: KeyRecord, new: KeyRecord, requested: int, expiry: int, now: int
) -> None:
    grant = registry(old).grant(old.key_id, requested, expiry, now)
    if grant is None:
        return
    again = registry(new).grant(grant.key_id, grant.scopes, grant.expires_at, now)
    assert registry(new).still_grants(grant, now) == (again == grant)
