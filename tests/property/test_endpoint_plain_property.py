"""The short ways of requests and answers beside the plain ones: the same verdicts, the same bytes."""

from __future__ import annotations

import json
from typing import Any

import orjson
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from sidecar.rails.endpoint.contracts import DELIVERY, DELIVERY_ENDPOINT, contracts
from sidecar.rails.endpoint.envelope import encode_data, is_id
from sidecar.rails.endpoint.judge import Accepted, Serving
from sidecar.rails.names.tokens import GRAMMARS
from tests.property.test_endpoint_property import VALUES
from tests.unit.rails.endpoint.samples import INSTANCE, NONCE, START, STOP, TARGET, body, subject

THOROUGH = settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
SUBJECTS = [
    subject(),
    subject(route="all"),
    subject(route="inst"),
    subject(issued=True),
    subject("list-memberships"),
    subject("stop", mode="self"),
    subject("stop", mode="owner"),
]
TRACES = [
    {"traceparent": f"00-{'a' * 32}-{'b' * 16}-01"},
    {"traceparent": f"00-{'A' * 32}-{'b' * 16}-01"},
    {"traceparent": f"01-{'a' * 32}-{'b' * 16}-01"},
    {"traceparent": f"00-{'a' * 32}-{'b' * 16}-01", "tracestate": "x=1"},
    {"traceparent": f"00-{'a' * 32}-{'b' * 16}-01", "tracestate": 7},
    {"traceparent": f"00-{'a' * 32}-{'b' * 16}-01", "more": 1},
    {"traceparent": 7},
    {"tracestate": "x=1"},
    {},
]
NEAR: dict[str, list[Any]] = {
    "v": [1, 1.0, True, 2],
    "id": ["r1", "r2", "invalid", "", "x" * 64, "x" * 65, "r\n", "é"],
    "op": [body()["op"], body("list-memberships")["op"], {**body()["op"], "more": 1}],
    "class": ["ephemeral", "journal"],
    "replyExpected": [True, False, 1],
    "from": [
        {"id": "local.alice", "name": "alice"},
        {"id": "local.alice", "name": "other"},
        {"id": "local.bob", "name": "alice"},
        {"id": "local.alice", "name": "alice", "role": "x"},
        {"id": "local.alice", "name": "x" * 129},
        {"id": "local.bob"},
    ],
    "deadlineMs": [5000, 1, 0, -1, 5000.0, True, 2**53 - 1, 2**53],
    "args": [{"channel": "general", "joinCursor": 7}, {"channel": 7}, {}, None],
    "correlation": TRACES,
    "target": [TARGET],
    "goalId": ["g1"],
    "auth": ["a"],
    "more": [None],
}
CHANGES = st.dictionaries(st.sampled_from(sorted(NEAR)), st.integers(0, 9) | VALUES, max_size=3)


def serving() -> Serving:
    return Serving("main", DELIVERY_ENDPOINT, INSTANCE, 3, {**DELIVERY, **contracts(STOP, START)})


def right(at: str) -> dict[str, Any]:
    """A request that is accepted under a subject."""
    if ".stop." in at:
        return {**body("stop"), **({"target": TARGET} if ".owner." in at else {})}
    return body("list-memberships" if ".list-memberships." in at else "durable-join")


def changed(whole: dict[str, Any], changes: dict[str, Any], gone: set[str]) -> bytes:
    for name, value in changes.items():
        near = NEAR[name]
        whole[name] = near[value % len(near)] if type(value) is int else value
    return json.dumps({name: value for name, value in whole.items() if name not in gone}).encode()


@pytest.mark.req("C13.3-09", "C13.3-40", "C13.2-22")
@THOROUGH
@given(
    at=st.sampled_from(SUBJECTS),
    first=CHANGES,
    second=CHANGES,
    gone=st.sets(st.sampled_from(sorted(NEAR)), max_size=1),
    nonce=st.just(NONCE) | st.text("ab-_.\n", min_size=18, max_size=70),
)
@example(at=subject(), first={"correlation": 0}, second={"correlation": 0, "id": 1}, gone=set(), nonce=NONCE)
@example(at=subject(), first={}, second={"v": 2}, gone=set(), nonce=NONCE)
def test_a_request_is_judged_alike_whatever_came_before_it(
    at: str, first: dict[str, Any], second: dict[str, Any], gone: set[str], nonce: str
) -> None:
    warm = serving()
    for whole in (changed(right(at), {}, set()), changed(right(at), first, set())):
        warm.judge(at, (), whole)
    assert warm._plain or right(at).get("target")
    data, later = changed(right(at), second, gone), at.removesuffix(NONCE) + nonce
    told, plain = warm.judge(later, (), data), serving().judge(later, (), data)
    assert type(told) is type(plain)
    if isinstance(told, Accepted):
        assert told == plain
        assert isinstance(plain, Accepted)
        assert [type(one) for one in told.request] == [type(one) for one in plain.request]
    else:
        assert repr(told) == repr(plain)


SINGLE: list[tuple[dict[str, Any], set[str]]] = [
    ({}, set()),
    *(({name: at}, set()) for name, near in NEAR.items() for at in range(len(near))),
    *(({}, {name}) for name in NEAR),
]


@pytest.mark.req("C13.3-09", "C13.3-40", "C13.2-29")
@pytest.mark.parametrize("at", SUBJECTS)
def test_each_change_of_a_request_is_judged_alike_behind_each_other_one(at: str) -> None:
    asked = [changed(right(at), change, gone) for change, gone in SINGLE]
    plain = [repr(serving().judge(at, (), data)) for data in asked]
    for first in asked:
        warm = serving()
        warm.judge(at, (), first)
        for data, expected in zip(asked, plain, strict=True):
            assert repr(warm.judge(at, (), data)) == expected, data


@pytest.mark.parametrize("extra", ["op", "from"])
def test_nothing_of_any_length_is_remembered(extra: str) -> None:
    made = serving()
    whole = body()
    whole[extra] = {**whole[extra], "role" if extra == "from" else "more": "x" * 100_000}
    assert isinstance(made.judge(subject(), (), json.dumps(whole).encode()), Accepted)
    assert not made._plain


def test_a_plain_request_goes_the_short_way() -> None:
    """Otherwise the comparison above compares nothing."""
    warm = serving()
    warm.judge(subject(), (), json.dumps(body()).encode())
    (known,) = warm._plain.values()
    for number in range(3):
        found = warm.judge(subject(), (), json.dumps(body(id=f"r{number}", correlation=TRACES[0])).encode())
        assert isinstance(found, Accepted)
        assert found.request.op is known.asked


def test_what_is_remembered_is_bounded_like_the_origins() -> None:
    made = serving()
    for number in range(2_100):
        at = subject(actor=f"a{number}")
        whole = {**body(), "from": {"id": f"local.a{number}", "name": "x"}}
        assert isinstance(made.judge(at, (), json.dumps(whole).encode()), Accepted)
    assert len(made._plain) == len(made._origins) == 2_048
    assert made._plain.keys() == made._origins.keys()


@THOROUGH
@given(identity=st.text("ab_-", min_size=1, max_size=64) | st.text(max_size=8), data=VALUES)
def test_an_answer_has_the_bytes_of_the_whole_envelope(identity: str, data: Any) -> None:
    whole = {"v": 1, "id": identity, "ok": True, **({} if data is None else {"data": data})}
    assert encode_data(identity, data) == orjson.dumps(whole)


@THOROUGH
@given(value=st.text("aZ09_-\n é", max_size=70) | VALUES | st.text("a", min_size=60, max_size=70))
def test_an_id_is_what_the_grammar_says(value: Any) -> None:
    assert is_id(value) is GRAMMARS["id"].accepts(value)
