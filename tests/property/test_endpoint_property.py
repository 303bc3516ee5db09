"""Arbitrary frames at an instance, and arbitrary replies at a caller: a verdict or an EnvelopeError, nothing else."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sidecar.rails.endpoint.codes import Outcome, Refusal, is_code
from sidecar.rails.endpoint.envelope import (
    EndpointReply,
    ReplyError,
    decode_reply,
    encode_data,
    encode_refusal,
)
from sidecar.rails.endpoint.judge import Accepted, Discard, Refused
from sidecar.rails.envelopes.errors import EnvelopeError
from sidecar.rails.names import endpoint
from tests.unit.rails.endpoint.samples import TARGET, body, judged, subject

THOROUGH = settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
LEAVES = (
    st.none()
    | st.booleans()
    | st.integers(-(2**53) + 1, 2**53 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=12)
    | st.sampled_from(["r1", "ephemeral", "journal", "delivery", "durable-join", "local.alice", "executed", "conflict"])
)
VALUES = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3)
)
NAMES = st.sampled_from([*body(), "target", "bind", "goalId", "correlation", "auth", "whatever"])
OP_NAMES = st.sampled_from(["endpoint", "command", "inputDigest", "outputDigest"])
SUBJECTS = st.sampled_from([subject(), subject(route="all"), subject(route="inst"), subject(issued=True)])


def check(data: bytes, at: str) -> None:
    verdict = judged(data, at)
    if isinstance(verdict, Discard):
        return
    expected = endpoint.parse_request(at).reply("i2" * 13, 3)
    assert verdict.reply in (None, expected)
    if isinstance(verdict, Refused):
        assert verdict.refusal.outcome is Outcome.NOT_EXECUTED
        assert is_code(verdict.refusal.code)
        answer = decode_reply(encode_refusal(verdict.id, verdict.refusal))
        assert answer.error is not None
    else:
        assert isinstance(verdict, Accepted)
        assert verdict.contract.input.check(verdict.args) is None
        assert verdict.request.sender.id == "local.alice"
        assert (verdict.reply is None) is not verdict.request.reply_expected


@pytest.mark.req("C13.3-40", "C13.3-28", "C13.3-18")
@THOROUGH
@given(data=st.binary(max_size=200) | VALUES.map(lambda value: json.dumps(value).encode()), at=SUBJECTS)
def test_any_bytes_have_a_verdict(data: bytes, at: str) -> None:
    check(data, at)


@THOROUGH
@given(
    changes=st.dictionaries(NAMES, VALUES, max_size=3),
    gone=st.sets(NAMES, max_size=2),
    op=st.dictionaries(OP_NAMES, VALUES, max_size=1),
    at=SUBJECTS,
)
def test_any_change_of_a_right_request_has_a_verdict(
    changes: dict[str, Any], gone: set[str], op: dict[str, Any], at: str
) -> None:
    whole = body(target=TARGET) if "target" in gone else body()
    whole["op"] = {**whole["op"], **op}
    whole |= changes
    check(json.dumps({name: value for name, value in whole.items() if name not in gone}).encode(), at)


@THOROUGH
@given(at=st.text("cotalmineprv1.*>$ _-ABC0\n", max_size=80) | st.text(max_size=40), cut=st.integers(0, 140))
def test_any_subject_has_a_verdict(at: str, cut: int) -> None:
    for one in (at, subject()[:cut] + at, at + subject()[cut:]):
        verdict = judged(body(), one)
        assert isinstance(verdict, Discard | Refused | Accepted)


ANSWERS = st.fixed_dictionaries(
    {},
    optional={
        "v": st.just(1) | VALUES,
        "id": st.just("r1") | VALUES,
        "ok": st.booleans() | VALUES,
        "data": VALUES,
        "receipt": VALUES,
        "error": VALUES
        | st.fixed_dictionaries(
            {"code": st.just("conflict") | VALUES, "message": st.text() | VALUES},
            optional={"outcome": st.sampled_from([str(one) for one in Outcome]) | VALUES, "details": VALUES},
        ),
    },
)


@pytest.mark.req("C13.3-35", "C13.3-39", "C13.3-58")
@THOROUGH
@given(data=st.binary(max_size=80) | ANSWERS.map(lambda value: json.dumps(value).encode()))
def test_any_reply_is_one_or_is_refused(data: bytes) -> None:
    try:
        found = decode_reply(data)
    except EnvelopeError:
        return
    assert isinstance(found, EndpointReply)
    if found.error is not None:
        assert isinstance(found.error, ReplyError)
        assert is_code(found.error.code)
        assert found.data is None
        assert found.error.outcome in Outcome


@THOROUGH
@given(data=VALUES, message=st.text(max_size=700), outcome=st.sampled_from(Outcome))
def test_what_is_written_is_read_back(data: Any, message: str, outcome: Outcome) -> None:
    assert decode_reply(encode_data("r1", data)) == EndpointReply("r1", data)
    refused = decode_reply(encode_refusal("r1", Refusal("not-found", message, outcome)))
    assert refused.error == ReplyError("not-found", message[:512], outcome)
