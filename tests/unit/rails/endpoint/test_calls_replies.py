"""What a reply means to the call that waits for it (C13.2-49..57, C13.3-34..51)."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sidecar.rails.endpoint.calls_replies import Expected, Origin, answer, judged, origin
from sidecar.rails.endpoint.calls_request import Rail
from sidecar.rails.endpoint.codes import CallError, CallFailed, CallRefused, Code, Outcome
from sidecar.rails.endpoint.envelope import Bind
from sidecar.rails.endpoint.shapes import TRUE
from sidecar.rails.names import endpoint as subjects
from sidecar.rails.names import headers
from sidecar.rails.names.errors import InvalidName
from sidecar.rails.names.principals import Lifecycle, Principal
from sidecar.rails.names.tokens import GRAMMARS
from tests.property.test_endpoint_property import VALUES

INSTANCE, OTHER = "i2" * 13, "e5" * 13
ALICE = Lifecycle(Principal("local", "alice"), "a1" * 13)
NONCE = "0" * 32
BOUND = Bind(INSTANCE, 3)
EXPECTED = Expected("com.acme.echo", "echo", "r1")
FROM = Origin("com_acme_echo", INSTANCE, 3)


def reply(**members: Any) -> bytes:
    return json.dumps({"v": 1, "id": "r1", **members}).encode()


def refusal(code: str, outcome: str | None = "not-executed", *details: dict[str, Any]) -> bytes:
    error: dict[str, Any] = {"code": code, "message": "no", "details": list(details)}
    return reply(ok=False, error=error | ({} if outcome is None else {"outcome": outcome}))


def refused(data: bytes, expected: Expected = EXPECTED, found: Origin = FROM, newest: int | None = None) -> CallError:
    with pytest.raises(CallError) as error:
        answer(expected, data, found, newest)
    return error.value


def marker(**changes: Any) -> dict[str, Any]:
    return {
        "kind": headers.DETAIL_BIND_REFUSED,
        "endpoint": "com.acme.echo",
        "command": "echo",
        "boundTo": {"instanceId": INSTANCE, "epoch": 3},
        "servedBy": {"instanceId": OTHER, "epoch": 1},
        **changes,
    }


@pytest.mark.req("C13.2-49", "C13.3-34", "C13.3-48")
def test_an_answer_is_of_whom_the_subject_names_and_to_this_request() -> None:
    data = reply(ok=True, data={"instanceId": OTHER}, receipt="signed")
    assert answer(EXPECTED, data, FROM, None) == ({"instanceId": OTHER}, INSTANCE, 3, "r1", "signed")
    other = refused(data, EXPECTED._replace(id="r2"))
    assert (type(other), other.code, other.outcome) == (CallFailed, Code.INTERNAL, Outcome.EXECUTED)
    bad = refused(reply(ok=True, data=1), EXPECTED._replace(output=TRUE))
    assert (bad.code, bad.outcome) == (Code.INTERNAL, Outcome.EXECUTED)


@pytest.mark.req("C13.2-50", "C13.3-48")
def test_a_reply_of_a_superseded_epoch_is_refused_and_keeps_its_outcome() -> None:
    for data, outcome in (
        (reply(ok=True), Outcome.EXECUTED),
        (refusal("conflict", "not-executed"), Outcome.NOT_EXECUTED),
        (refusal("conflict", None), Outcome.UNKNOWN),
    ):
        error = refused(data, newest=4)
        assert (type(error), error.code, error.outcome) == (CallFailed, Code.EXPIRED, outcome)
    assert answer(EXPECTED, reply(ok=True), FROM, 3).epoch == 3
    assert answer(EXPECTED, reply(ok=True), FROM, 2).epoch == 3


@pytest.mark.req("C13.2-57", "C13.2-55", "C13.3-48", "C13.2-50")
@pytest.mark.parametrize(
    ("found", "code"),
    [
        (Origin("com_acme_echo", OTHER, 3), Code.FAILED_PRECONDITION),
        (Origin("com_acme_echo", INSTANCE, 2), Code.EXPIRED),
        (Origin("com_acme_echo", INSTANCE, 4), Code.EXPIRED),
    ],
)
def test_an_answer_of_another_incarnation_than_the_bound_one_is_refused_locally(found: Origin, code: Code) -> None:
    expected = EXPECTED._replace(bind=BOUND)
    for data, outcome in ((reply(ok=True), Outcome.EXECUTED), (refusal("conflict", None), Outcome.UNKNOWN)):
        error = refused(data, expected, found)
        assert (type(error), error.code, error.outcome) == (CallFailed, code, outcome)
        assert error.has(headers.DETAIL_UNBOUND_RESPONDER)
        assert not error.has(headers.DETAIL_BIND_REFUSED)
    assert answer(expected, reply(ok=True), FROM, None).instance == INSTANCE


@pytest.mark.req("C13.2-54", "C13.2-55")
@pytest.mark.parametrize(
    ("found", "code", "detail"),
    [
        (Origin("com_acme_echo", OTHER, 1), "failed-precondition", marker()),
        (Origin("com_acme_echo", OTHER, 1), "failed-precondition", {"kind": headers.DETAIL_BIND_REFUSED}),
        (
            Origin("com_acme_echo", INSTANCE, 4),
            "expired",
            marker(servedBy={"instanceId": INSTANCE, "epoch": 4}),
        ),
    ],
)
def test_a_bind_refusal_is_the_endpoints_own_word(found: Origin, code: str, detail: dict[str, Any]) -> None:
    error = refused(refusal(code, "not-executed", detail), EXPECTED._replace(bind=BOUND), found)
    assert (type(error), error.code, error.outcome) == (CallRefused, code, Outcome.NOT_EXECUTED)
    assert error.has(headers.DETAIL_BIND_REFUSED)


@pytest.mark.req("C13.2-56")
@pytest.mark.parametrize(
    ("bind", "found", "code", "outcome", "detail"),
    [
        (BOUND, FROM, "expired", "not-executed", marker(servedBy={"instanceId": INSTANCE, "epoch": 3})),
        (BOUND, FROM, "failed-precondition", "not-executed", {"kind": headers.DETAIL_BIND_REFUSED}),
        (None, FROM, "expired", "not-executed", marker()),
        (BOUND, Origin("e", OTHER, 1), "failed-precondition", "not-executed", marker(servedBy=None)),
        (BOUND, Origin("e", OTHER, 1), "failed-precondition", "not-executed", marker(boundTo={"instanceId": OTHER})),
        (BOUND, Origin("e", OTHER, 1), "failed-precondition", "not-executed", marker(command="other")),
        (BOUND, Origin("e", OTHER, 1), "expired", "not-executed", marker()),
        (BOUND, Origin("e", OTHER, 1), "failed-precondition", "executed", marker()),
        (BOUND, Origin("e", OTHER, 1), "failed-precondition", None, marker()),
    ],
)
def test_a_bind_refusal_that_cannot_be_true_is_internal(
    bind: Bind | None, found: Origin, code: str, outcome: str | None, detail: dict[str, Any]
) -> None:
    error = refused(refusal(code, outcome, detail), EXPECTED._replace(bind=bind), found)
    assert (type(error), error.code) == (CallFailed, Code.INTERNAL)
    assert error.outcome == (outcome or "unknown")


MEMBERS = {
    "v": st.sampled_from([1, 1.0, True, 2, "1", None]),
    "id": st.sampled_from(["r1", "r2", "invalid", "", 1]),
    "ok": st.sampled_from([True, False, 1, "true", None]),
}
MORE = {
    "data": VALUES | st.just(True),
    "error": st.sampled_from([None, {}, {"code": "conflict", "message": "", "outcome": "executed"}]),
    "receipt": st.sampled_from([None, "", "signed", 1]),
    "other": VALUES,
}
BINDS = st.sampled_from([None, BOUND, Bind(INSTANCE, 4), Bind(OTHER, 3)])


@pytest.mark.req("C13.3-34", "C13.3-35", "C13.2-50", "C13.2-57")
@settings(max_examples=500, deadline=None)
@given(
    st.fixed_dictionaries(MEMBERS, optional=MORE) | VALUES | st.just({"v": 1, "id": "r1", "ok": True, "data": True}),
    BINDS,
    st.none() | st.integers(2, 4),
    st.booleans(),
    st.booleans(),
)
def test_the_short_way_finds_what_the_plain_one_does(
    value: Any, bind: Bind | None, newest: int | None, checked: bool, cut: bool
) -> None:
    expected = EXPECTED._replace(bind=bind, output=TRUE if checked else None)
    data = json.dumps(value).encode()[: -1 if cut else None]

    def told(way: Any) -> Any:
        try:
            return way(expected, data, FROM, newest)
        except CallError as error:
            return type(error), error.code, error.message, error.outcome, error.details

    assert told(answer) == told(judged)


TOKENS = st.sampled_from(["", "x", INSTANCE, OTHER, "0", "3", "03", "-1", "9" * 30, "com_acme_echo", "_nr", "I2" * 13])


@pytest.mark.req("C13.2-49", "C13.2-45")
@given(st.lists(TOKENS, max_size=5), st.sampled_from([None, "0" * 32]))
def test_who_answered_is_what_the_template_says(tokens: list[str], generation: str | None) -> None:
    rail = Rail("main", ALICE, generation)
    subject = rail.reply_prefix + ".".join(tokens) + rail.caller + NONCE
    try:
        names = subjects.REPLIES[generation is not None].parse(subject)
    except InvalidName:
        expected = None
    else:
        expected = Origin(names["endpoint"], names["instance"], int(names["epoch"]))
    found = origin(subject, rail.reply_prefix, rail.caller + NONCE)
    if expected is not None:
        assert found == expected
    # The endpoint is compared with the one that was asked: its grammar is of no importance before that.
    if found is not None and GRAMMARS["endpoint"].accepts(found.endpoint):
        assert found == expected
