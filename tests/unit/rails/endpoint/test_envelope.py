"""Requests and replies as bytes: what we write, and what a strict reader takes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sidecar.ops.catalogue.endpoint import CODES
from sidecar.rails.endpoint.codes import (
    MAX_DETAIL_BYTES,
    MAX_DETAILS,
    MAX_ERROR_TEXT,
    Code,
    Outcome,
    Refusal,
    is_code,
    label,
)
from sidecar.rails.endpoint.envelope import (
    Bind,
    Body,
    EndpointRequest,
    Op,
    Sender,
    Target,
    decode_reply,
    encode_data,
    encode_refusal,
    read_request,
)
from sidecar.rails.envelopes.errors import EnvelopeError

VOID = "sha256:" + "1" * 64
DETAIL = {"kind": "ai.cotal.ep.bind-refused", "n": [1, None]}


@pytest.mark.req("C13.3-37", "C13.3-40")
def test_a_refusal_fits_into_any_message_and_keeps_its_outcome() -> None:
    large: list[Any] = [{"kind": "com.acme.detail", "n": number, "text": "x" * 6_000} for number in range(5)]
    data = encode_refusal("r1", Refusal(Code.CONFLICT, "ü" * 10_000, Outcome.NOT_EXECUTED, large))
    assert len(data) < MAX_DETAIL_BYTES + 4 * MAX_ERROR_TEXT
    found = decode_reply(data).error
    assert found is not None
    assert (found.code, found.outcome) == (Code.CONFLICT, Outcome.NOT_EXECUTED)
    assert [one["n"] for one in found.details] == [0, 1]


@pytest.mark.req("C13.3-12", "C13.3-15")
def test_a_request_is_read_back_as_it_was_written() -> None:
    small = EndpointRequest("r1", Op("delivery", "describe"), "ephemeral", False, Sender("local.alice", "alice"))
    assert json.loads(small.encode()) == {
        "v": 1,
        "id": "r1",
        "op": {"endpoint": "delivery", "command": "describe"},
        "class": "ephemeral",
        "replyExpected": False,
        "from": {"id": "local.alice", "name": "alice"},
    }
    large = EndpointRequest(
        "r" * 64,
        Op("com.acme.echo", "echo", VOID, VOID),
        "journal",
        True,
        Sender("local.alice", "Alice Ö", "reviewer"),
        {"text": "hi"},
        15_000,
        "g1",
        Target("local", "bob", "b2" * 13, 7),
        Bind("i2" * 13, 0),
        {"traceparent": f"00-{'1' * 32}-{'2' * 16}-01", "baggage": "a=b"},
        "opaque",
    )
    for one in (small, large):
        assert read_request(Body(one.encode())) == one


def test_arguments_that_json_cannot_hold_are_not_written() -> None:
    for bad in ({"x": float("nan")}, {"x": b""}, {"x": "\ud800"}, {"x": (1,)}, {1: 2}):
        with pytest.raises(EnvelopeError):
            EndpointRequest("r", Op("e", "c"), "ephemeral", True, Sender("a.b", "c"), args=bad).encode()  # type: ignore[arg-type]


@pytest.mark.req("C13.3-34", "C13.3-35", "C13.3-38")
def test_an_answer_is_read_back_as_it_was_written() -> None:
    assert encode_data("r1", {"text": "hi"}) == b'{"v":1,"id":"r1","ok":true,"data":{"text":"hi"}}'
    assert encode_data("r1", None) == b'{"v":1,"id":"r1","ok":true}'
    assert decode_reply(encode_data("r1", [1])).data == [1]
    refusal = Refusal(Code.CONFLICT, "lost", Outcome.EXECUTED, (DETAIL,))
    found = decode_reply(encode_refusal("r1", refusal))
    assert found.error is not None
    assert (found.id, found.error.code, found.error.message) == ("r1", "conflict", "lost")
    assert (found.error.outcome, found.error.details) == (Outcome.EXECUTED, (DETAIL,))
    assert decode_reply(b'{"v":1,"id":"r1","ok":true,"receipt":"sealed","more":1}').receipt == "sealed"
    with pytest.raises(EnvelopeError):
        encode_data("r1", {"x": float("inf")})


@pytest.mark.req("C13.3-42", "C13.3-37", "C13.3-58")
def test_a_refusal_is_answered_whatever_a_handler_put_into_it() -> None:
    def said(refusal: Refusal) -> dict[str, Any]:
        error: dict[str, Any] = json.loads(encode_refusal("r1", refusal))["error"]
        return error

    assert said(Refusal("nonsense", "x"))["code"] == Code.INTERNAL
    assert said(Refusal(Code.CONFLICT, "x"))["outcome"] == "unknown"
    assert said(Refusal(Code.CONFLICT, "é" * 600))["message"] == "é" * MAX_ERROR_TEXT
    assert said(Refusal(Code.CONFLICT, "half \ud800"))["message"] == "half ?"
    wrong: Any = [{"kind": "bare"}, {"kind": "a.b", "x": float("nan")}, 7, DETAIL]
    assert said(Refusal(Code.CONFLICT, "x", details=wrong))["details"] == [DETAIL]
    assert len(said(Refusal(Code.CONFLICT, "x", details=(DETAIL,) * 99))["details"]) == MAX_DETAILS
    assert "details" not in said(Refusal(Code.CONFLICT, "x"))


GOOD_ERROR = {"code": "conflict", "message": "lost", "outcome": "executed"}


def reply(**changes: Any) -> bytes:
    return json.dumps({"v": 1, "id": "r1", "ok": False, "error": GOOD_ERROR, **changes}).encode()


@pytest.mark.req("C13.3-35", "C13.3-37", "C13.3-39", "C13.3-58", "C13.3-59")
@pytest.mark.parametrize(
    ("data", "field"),
    [
        (b"", ""),
        (b"[]", ""),
        (b'{"v":1,"id":"a","id":"b","ok":true}', ""),
        (reply(v=2), "v"),
        (reply(v=True), "v"),
        (reply(id="a.b"), "id"),
        (reply(id=None), "id"),
        (reply(ok=1), "ok"),
        (reply(ok=True), "error"),
        (reply(data=None), "data"),
        (reply(receipt=7), "receipt"),
        (reply(receipt="x" * 20_000), "receipt"),
        (reply(error=None), "error"),
        (reply(error={}), "error.code"),
        (reply(error={**GOOD_ERROR, "code": "foo"}), "error.code"),
        (reply(error={**GOOD_ERROR, "code": 7}), "error.code"),
        (reply(error={**GOOD_ERROR, "code": "com." + "a" * 61}), "error.code"),
        (reply(error={**GOOD_ERROR, "message": None}), "error.message"),
        (reply(error={**GOOD_ERROR, "outcome": "maybe"}), "error.outcome"),
        (reply(error={**GOOD_ERROR, "outcome": None}), "error.outcome"),
        (reply(error={**GOOD_ERROR, "details": {}}), "error.details"),
        (reply(error={**GOOD_ERROR, "details": [{"kind": "foo"}]}), "error.details"),
        (reply(error={**GOOD_ERROR, "details": [DETAIL] * 17}), "error.details"),
    ],
)
def test_what_is_no_reply_is_refused(data: bytes, field: str) -> None:
    with pytest.raises(EnvelopeError) as error:
        decode_reply(data)
    assert error.value.field == field


@pytest.mark.req("C13.3-43")
def test_a_missing_outcome_is_unknown() -> None:
    found = decode_reply(reply(error={"code": "com.acme.full", "message": "m" * 9_000}))
    assert found.error is not None
    assert (found.error.outcome, len(found.error.message)) == (Outcome.UNKNOWN, MAX_ERROR_TEXT)


@pytest.mark.req("C13.3-58", "C13.3-59")
def test_a_code_is_of_the_catalog_or_has_three_labels() -> None:
    assert len(Code) == 21
    assert all(is_code(code) and is_code(code.value) for code in Code)
    assert is_code("com.acme.full")
    assert is_code("a.b." + "c" * 60)
    for bad in ("foo", "a.b", "a..b", "a.b.", "A.b.c", "a.b.c-", "", "a.b." + "c" * 61, 7, None, "bad_request"):
        assert not is_code(bad)
    assert (label("com.acme.full"), label("conflict")) == ("extension", "conflict")
    assert {*(code.value for code in Code), "extension"} == set(CODES)
