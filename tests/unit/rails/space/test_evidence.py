"""Generations, the listing token, ceilings and the rows of the issued stores, with their vectors (C13.15)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.base.strictjson import canonical
from sidecar.rails.names.errors import InvalidName
from sidecar.rails.names.principals import Lifecycle, Principal
from sidecar.rails.space.ceilings import Ceiling, InvalidCeiling, Rule, ceiling_of, read_ceiling
from sidecar.rails.space.claims import NOTHING, Access, Permissions
from sidecar.rails.space.evidence import (
    AttemptState,
    Evidence,
    InvalidEvidence,
    Reference,
    Source,
    accepted_subject,
    accepted_value,
    attempt_subject,
    attempt_value,
    evidence_subject,
    horizon_of,
    listing_token,
    new_generation,
    read_accepted,
    read_attempt,
    read_evidence,
    source_subject,
)

UID = "a1" * 13
LIFE = Lifecycle(Principal("local", "alice"), UID)
HORIZON = 1_800_000_000
GENERATION = "6b49d200" + "0123456789abcdef01234567"
REF = Reference("main", LIFE, GENERATION)
CEILING = Ceiling(Rule(("cotal.main.ep.one.*.describe.x.*",), ("a.>",)), Rule(()))
EVIDENCE = Evidence(REF, CEILING, (), HORIZON)


def entropy(size: int) -> bytes:
    return bytes.fromhex("0123456789abcdef01234567")[:size]


@pytest.mark.req("C13.15-01", "C13.15-02")
def test_a_generation_is_its_horizon_and_entropy() -> None:
    assert new_generation(HORIZON, entropy) == GENERATION
    assert horizon_of(GENERATION) == HORIZON
    for bad in (0, -1, 1 << 32):
        with pytest.raises(ValueError, match="horizon"):
            new_generation(bad, entropy)
    for text in ("", GENERATION[:-1], GENERATION.upper(), f"{GENERATION}0", "g" * 32, 5, None):
        with pytest.raises(InvalidName):
            horizon_of(text)  # type: ignore[arg-type]


@pytest.mark.req("C13.15-01", "C13.15-03", "C13.15-13")
@given(horizon=st.integers(1, (1 << 32) - 1), noise=st.binary(min_size=12, max_size=12), now=st.integers(0, 1 << 33))
def test_a_horizon_is_read_back_and_ends_what_it_is_of(horizon: int, noise: bytes, now: int) -> None:
    generation = new_generation(horizon, lambda _: noise)
    assert horizon_of(generation) == horizon
    assert Reference("main", LIFE, generation).lives(now) is (now < horizon)


@pytest.mark.req("C13.15-30")
def test_the_listing_token_is_derived_by_both_sides() -> None:
    assert listing_token("U" + "A" * 55, HORIZON) == "0fb5726074b17f0b275d96df7cf76645"
    assert listing_token("U" + "A" * 55, HORIZON + 1) != listing_token("U" + "A" * 55, HORIZON)
    assert listing_token("U" + "B" * 55, HORIZON) != listing_token("U" + "A" * 55, HORIZON)


@pytest.mark.req("C13.15-05", "C13.15-07", "C13.15-10")
def test_each_row_has_its_key() -> None:
    tail = f"local.alice.{UID}.{GENERATION}"
    source = Source("main", "cotal_auth_main", f"cred.{UID}")
    digest = "923b0dcc0ec36adf79e870289e94477b385ddfeeb34ccda39f41300e523a4a7a"
    assert evidence_subject(REF) == f"$KV.cotal_issued_main.v1.{tail}"
    assert attempt_subject(REF) == f"$KV.cotal_issued_main.attempt.v1.{tail}"
    assert source_subject(REF, source) == f"$KV.cotal_issued_main.bysource.v1.{digest}.{tail}"
    assert accepted_subject("main", "ab" * 16) == f"$KV.cotal_accepted_main.accepted.v1.{'ab' * 16}"


@pytest.mark.req("C13.15-05", "C13.15-06")
def test_evidence_is_a_closed_object_and_read_back() -> None:
    ref = {"space": "main", "owner": "local", "actor": "alice", "uid": UID, "generation": GENERATION}
    allow = {"mode": "patterns", "patterns": ["cotal.main.ep.one.*.describe.x.*"]}
    value = {
        "version": 1,
        "ref": ref,
        "sources": [],
        "permissions": {
            "publish": {"allow": allow, "deny": ["a.>"]},
            "subscribe": {"allow": {"mode": "none"}, "deny": []},
        },
        "expiresAt": HORIZON,
    }
    assert EVIDENCE.value() == value
    assert read_evidence(REF, canonical(EVIDENCE.value())) == EVIDENCE
    sourced = Evidence(REF, CEILING, (Source("main", "b", "k"),))
    assert read_evidence(REF, canonical(sourced.value())) == sourced
    assert "expiresAt" not in sourced.value()
    broken: list[Any] = [
        {**value, "more": 1},
        {**value, "version": 2},
        {**value, "ref": {**ref, "uid": "b2" * 13}},
        {**value, "sources": {}},
        {**value, "expiresAt": HORIZON + 1},
        {**value, "expiresAt": None},
        {**value, "expiresAt": 1.5},
        [],
        None,
        {**value, "ref": {**ref, "owner": "a.b"}},
        {**value, "ref": {**ref, "x": 1}},
        {**value, "sources": [{"space": 1}]},
        {**value, "sources": [{"space": 1, "bucket": "b", "key": "k"}]},
        {**value, "permissions": {}},
        {key: one for key, one in value.items() if key != "expiresAt"},
    ]
    for one in broken:
        with pytest.raises(InvalidEvidence):
            read_evidence(REF, canonical(one))
    for raw in (b"", b"{", b"x" * 300_000):
        with pytest.raises(InvalidEvidence):
            read_evidence(REF, raw)


@pytest.mark.req("C13.15-07", "C13.15-11")
def test_attempt_and_accepted_rows_name_their_reference() -> None:
    for state in AttemptState:
        assert read_attempt(REF, canonical(attempt_value(REF, state))) is state
    other = replace(REF, generation=new_generation(HORIZON, lambda size: bytes(size)))
    with pytest.raises(InvalidEvidence, match="another"):
        read_attempt(REF, canonical(attempt_value(other, AttemptState.ACTIVE)))
    with pytest.raises(InvalidEvidence, match="state"):
        read_attempt(REF, canonical({**attempt_value(REF, AttemptState.ACTIVE), "state": "done"}))
    assert read_accepted(canonical(accepted_value(REF))) == REF
    for broken in ({"version": 1}, {"version": 1, "ref": 5}, {**accepted_value(REF), "x": 1}):
        with pytest.raises(InvalidEvidence):
            read_accepted(canonical(broken))


@pytest.mark.req("C13.15-05")
def test_an_issuance_without_a_source_ends_by_its_horizon() -> None:
    for ends in (None, 0, HORIZON + 1):
        with pytest.raises(InvalidEvidence):
            Evidence(REF, CEILING, (), ends)


# ---- ceilings ----


@pytest.mark.req("C13.15-06")
def test_a_ceiling_says_what_the_broker_reads_of_a_token() -> None:
    granted = Permissions(Access(("a.*",), ("a.b",)), Access(deny=("x",)))
    assert ceiling_of(granted) == Ceiling(Rule(("a.*",), ("a.b",)), Rule(None, ("x",)))
    assert ceiling_of(Permissions(NOTHING, Access())) == Ceiling(Rule((), (">",)), Rule(None))
    value = ceiling_of(granted).value()
    assert value["subscribe"]["allow"] == {"mode": "all"}
    assert read_ceiling(value) == ceiling_of(granted)


@pytest.mark.req("C13.15-06")
@pytest.mark.parametrize(
    "rule",
    [
        None, {}, {"allow": {"mode": "all"}}, {"allow": {"mode": "some"}, "deny": []},
        {"allow": {"mode": "patterns"}, "deny": []}, {"allow": {"mode": "patterns", "patterns": []}, "deny": []},
        {"allow": {"mode": "all", "patterns": ["a"]}, "deny": []}, {"allow": {"mode": "none"}, "deny": "a"},
        {"allow": {"mode": "none"}, "deny": [5]}, {"allow": {"mode": "none"}, "deny": ["x" * 9000]},
        {"allow": {"mode": "none"}, "deny": [], "more": 1}, {"allow": {"mode": "none"}, "deny": ["a"] * 5000},
        {"allow": {"mode": "patterns", "patterns": [""]}, "deny": []},
    ],
)  # fmt: skip
def test_what_is_no_rule_is_refused(rule: Any) -> None:
    good = {"allow": {"mode": "none"}, "deny": []}
    for value in ({"publish": rule, "subscribe": good}, {"publish": good, "subscribe": rule}):
        with pytest.raises(InvalidCeiling):
            read_ceiling(value)
    others: list[Any] = [None, [], {"publish": good}, {"publish": good, "subscribe": good, "x": good}]
    for value in others:
        with pytest.raises(InvalidCeiling):
            read_ceiling(value)


def test_a_rule_permits_what_lies_within_one_row_and_no_deny() -> None:
    rule = Rule(("a.*.c", "b.> group"), ("a.x.c",))
    assert rule.permits("a.b.c")
    assert not rule.permits("a.x.c")
    assert not rule.permits("a.*.c"), "a part of it is denied"
    assert rule.permits("b.c", "group")
    assert not rule.permits("b.c")
    assert not rule.permits("b.c", "other")
    assert Rule(None).permits("anything.>")
    assert not Rule(()).permits("a")
    assert not Rule(None, ("a.>",)).permits("a.b")
