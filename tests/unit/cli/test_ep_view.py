"""Answers and refusals as text: safe for a terminal, still the same JSON, and the outcome beside every one."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.cli import ep_call, ep_view
from sidecar.cli.ep_call import scatter_lines
from sidecar.cli.ep_view import MAX_SHOWN, code_of, error_document, error_lines, pretty, safe_json, signature
from sidecar.ops.exitcodes import CallCode
from sidecar.rails.endpoint.calls_types import Answer, Scattered
from sidecar.rails.endpoint.codes import CallError, CallFailed, CallRefused, Code, Outcome, nobody, unsent

INSTANCE = "d4" * 13
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


@given(VALUES)
def test_what_is_shown_is_printable_and_the_same_json(value: Any) -> None:
    text = pretty(value)
    assert all(one.isprintable() or one == "\n" for one in text)
    assert json.loads(text) == value
    line = safe_json(value)
    assert line.isprintable()
    assert json.loads(line) == value


@pytest.mark.parametrize("nasty", ["\x1b[2J", "\x9b31m", "\u202e", "\u2028", "\x07", "\x7f", "\U000e0001", "\r"])
def test_control_characters_do_not_reach_the_terminal(nasty: str) -> None:
    assert nasty not in pretty({"text": nasty, nasty: 1})
    error = CallRefused(Code.NOT_FOUND, f"a{nasty}b", Outcome.EXECUTED, [{"kind": "a.b", "x": nasty}], INSTANCE, 3)
    assert not any(nasty in line for line in error_lines(error, f"{nasty}endpoint"))


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (CallRefused(Code.NOT_FOUND, "m", Outcome.NOT_EXECUTED, (), INSTANCE, 1), CallCode.REFUSED),
        (CallRefused(Code.UNAVAILABLE, "m", Outcome.NOT_EXECUTED, (), INSTANCE, 1), CallCode.REFUSED),
        (CallRefused(Code.INTERNAL, "m", Outcome.UNKNOWN, (), INSTANCE, 1), CallCode.UNKNOWN),
        (CallRefused(Code.INTERNAL, "m", Outcome.EXECUTED, (), INSTANCE, 1), CallCode.EXECUTED),
        (CallFailed(Code.DEADLINE_EXCEEDED, "m", Outcome.UNKNOWN), CallCode.UNKNOWN),
        (CallFailed(Code.DEADLINE_EXCEEDED, "m", Outcome.NOT_EXECUTED), CallCode.NO_CONNECTION),
        (CallFailed(Code.UNAVAILABLE, "m", Outcome.NOT_EXECUTED), CallCode.NO_CONNECTION),
        (CallFailed(Code.UNAVAILABLE, "m", Outcome.UNKNOWN), CallCode.UNKNOWN),
        (CallFailed(Code.PERMISSION_DENIED, "m", Outcome.NOT_EXECUTED), CallCode.REFUSED),
        (CallFailed(Code.EXPIRED, "m", Outcome.EXECUTED), CallCode.EXECUTED),
    ],
)
@pytest.mark.req("C13.3-46")
def test_the_exit_code_says_first_what_may_have_been_done(error: CallError, code: CallCode) -> None:
    assert code_of(error) is code


@pytest.mark.parametrize(("outcome", "said"), ep_view._OUTCOMES.items())
def test_every_refusal_shows_code_message_details_outcome_and_who(outcome: Outcome, said: str) -> None:
    details: list[dict[str, Any]] = [{"kind": "ai.cotal.ep.bind-refused", "epoch": 7}]
    error = CallRefused(Code.EXPIRED, "another incarnation", outcome, details, INSTANCE, 3)
    lines = error_lines(error, "com.acme.x go")
    assert lines[0] == f"-- com.acme.x go: refused by {INSTANCE} at epoch 3: expired: another incarnation; {said}"
    assert lines[1] == '--   {"kind": "ai.cotal.ep.bind-refused", "epoch": 7}'
    document = error_document(error)
    assert {name: document[name] for name in ("type", "ok", "code", "message", "outcome", "instance", "epoch")} == {
        "type": "refusal",
        "ok": False,
        "code": "expired",
        "message": "another incarnation",
        "outcome": outcome.value,
        "instance": INSTANCE,
        "epoch": 3,
    }
    assert document["details"] == details


def test_what_failed_here_says_so_and_where_to_look() -> None:
    (line,) = error_lines(CallFailed(Code.PERMISSION_DENIED, "no", Outcome.NOT_EXECUTED))
    assert line == "-- failed: permission-denied: no; it was not executed; what these creds may call: sidecar ep list"
    (line,) = error_lines(unsent(Code.UNIMPLEMENTED, "no"))
    assert line.endswith("principal add --may")
    assert str(nobody("com.acme.x")).endswith(": nobody serves com.acme.x")
    assert str(nobody("com.acme.x", "abc")).endswith(": nobody serves instance abc of com.acme.x")
    assert error_document(CallFailed(Code.PERMISSION_DENIED, "no", Outcome.NOT_EXECUTED))["type"] == "failure"


@pytest.mark.parametrize("terminal", [False, True])
def test_a_huge_answer_is_cut_at_a_terminal_and_whole_in_a_pipe(
    terminal: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: terminal)
    ep_view.show_data({"text": "x" * 100_000})
    said = capsys.readouterr().out
    if terminal:
        assert len(said) < MAX_SHOWN + 200
        assert "characters more; a pipe or --json gets all" in said
    else:
        assert json.loads(said) == {"text": "x" * 100_000}


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ({"type": "null"}, "-"),
        (True, "any"),
        ({"type": "string"}, "string"),
        ({"type": ["string", "null"]}, "string|null"),
        ({"enum": ["a", 1]}, '"a"|1'),
        ({"const": True}, "true"),
        ({"type": "array", "items": {"type": "integer"}}, "[integer]"),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, "string | null"),
        (
            {"type": "object", "properties": {"a": {"type": "integer"}, "b": True}, "required": ["a"]},
            "{a: integer, b?: any}",
        ),
        ({"$ref": "#/$defs/n", "$defs": {"n": {"type": "number"}}}, "number"),
        ({"$ref": "#/$defs/n", "$defs": {"n": {"$ref": "#/$defs/n"}}}, "..."),
        ({"$ref": "cotal:sha256:00"}, "..."),
        ({"type": "object", "properties": {"\x1b": True}}, "{\\x1b?: any}"),
    ],
)
def test_a_signature(schema: Any, text: str) -> None:
    assert signature(schema) == text


def test_a_signature_is_bounded_in_length_and_depth() -> None:
    wide = {"type": "object", "properties": {f"member{n}": {"type": "string"} for n in range(1000)}}
    assert len(signature(wide)) == 160
    deep: Any = {"type": "string"}
    for _ in range(500):
        deep = {"type": "object", "properties": {"a": deep}}
    assert signature(deep) == "{a?: {a?: {...}}}"


@pytest.mark.req("C13.5-24")
def test_a_scatter_names_everybody_who_did_not_answer() -> None:
    refused = CallRefused(Code.INTERNAL, "m", Outcome.UNKNOWN, (), "b" * 26, 1)
    found = Scattered(
        "id-1",
        {"a" * 26: Answer(1, "a" * 26, 1, "id-1"), "b" * 26: refused},
        missing=("c" * 26,),
        churn=("d" * 26,),
        late=("e" * 26,),
        unexpected=(("f" * 26, 9),),
        duplicate=(("a" * 26, 1),),
        complete=False,
    )
    lines = list(scatter_lines(found))
    assert lines[0] == "-- not complete: 2 of 5 instances answered, 1 of them refused"
    assert ep_call._show(found, as_json=False) is CallCode.PARTIAL
    whole = Scattered("id-2", {"b" * 26: refused, "a" * 26: Answer(1, "a" * 26, 1, "id-2")})
    assert ep_call._show(whole, as_json=True) is CallCode.UNKNOWN
    assert ep_call._show(Scattered("id-3", {"a" * 26: Answer(1, "a" * 26, 1, "id-3")}), as_json=True) is CallCode.OK
    for name, what in (("c", "did not answer"), ("d", "replaced"), ("e", "too late"), ("f", "unexpected")):
        assert any(name * 26 in line and what in line for line in lines)
