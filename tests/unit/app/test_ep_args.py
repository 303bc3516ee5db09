"""What is typed behind `sidecar ep call`, as values."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.app.ep_args import (
    MAX_WORDS,
    Aim,
    BadArguments,
    Words,
    arguments,
    checked,
    misfit,
    read_bind,
    read_object,
    read_target,
    read_words,
)
from sidecar.rails.names.tokens import ENDPOINT_NAME, GRAMMARS

UID = "0123456789abcdefghijklmnop"
VOID = {"type": "null"}
ADD = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "b": {"$ref": "#/$defs/n"}, "note": {"type": ["string", "null"]}},
    "required": ["a", "b"],
    "additionalProperties": False,
    "$defs": {"n": {"type": "integer"}},
}


def typed(schema: Any, *words: str) -> Any:
    return arguments(read_words(words), schema)


def member(kind: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {"x": kind}, "additionalProperties": False}


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        ({"type": "string"}, "7", "7"),
        ({"type": "string"}, "", ""),
        ({"type": "string"}, "a=b=c", "a=b=c"),
        ({"type": "string"}, '"quoted"', '"quoted"'),
        ({"type": "integer"}, "7", 7),
        ({"type": "integer"}, "-7", -7),
        ({"type": "integer"}, "7.0", 7.0),
        ({"type": "number"}, "7", 7),
        ({"type": "number"}, "1e3", 1000.0),
        ({"type": "boolean"}, "true", True),
        ({"type": "null"}, "null", None),
        ({"type": "array"}, "[1,2]", [1, 2]),
        ({"type": "object"}, '{"a":{}}', {"a": {}}),
        ({"type": ["string", "null"]}, "null", None),
        ({"type": ["string", "integer"]}, "7", 7),
        ({"type": ["string", "integer"]}, "7x", "7x"),
        ({"enum": ["on", 1]}, "on", "on"),
        ({"enum": ["on", 1]}, "1", 1),
        ({"const": True}, "true", True),
        ({"anyOf": [{"type": "string"}, {"type": "boolean"}]}, "false", False),
        ({"anyOf": [{"type": "integer"}, {"type": "number"}]}, "2.5", 2.5),
        ({"type": "number", "enum": [1, 2]}, "2", 2),
        (True, "plain", "plain"),
        (True, "[1]", [1]),
        ({"$ref": "cotal:sha256:" + "0" * 64}, "7", 7),
    ],
)
def test_a_word_is_typed_by_the_schema(kind: Any, text: str, value: Any) -> None:
    found = typed(member(kind), f"x={text}")
    assert found == {"x": value}
    assert type(found["x"]) is type(value)


@pytest.mark.parametrize(
    ("kind", "text", "why"),
    [
        ({"type": "integer"}, "seven", "x is no integer"),
        ({"type": "integer"}, "7.5", "x is no integer"),
        ({"type": "integer"}, "", "x is no integer"),
        ({"type": "integer"}, '"7"', "x is no integer"),
        ({"type": "boolean"}, "yes", "x is no boolean"),
        ({"type": ["boolean", "null"]}, "1", "x is no boolean and no null"),
        ({"type": "object"}, "{", "x is no object"),
        ({"type": "array"}, "1,2", "x is no array"),
    ],
)
def test_a_word_of_another_type_is_refused_by_name_without_its_value(kind: Any, text: str, why: str) -> None:
    with pytest.raises(BadArguments) as caught:
        typed(member(kind), f"x={text}")
    assert str(caught.value) == why


def test_references_of_the_document_are_followed_and_others_are_refused_by_name() -> None:
    assert typed(ADD, "a=1", "b=2") == {"a": 1, "b": 2}
    with pytest.raises(BadArguments, match=r"^c is no argument of the command, which takes a, b, note$"):
        typed(ADD, "a=1", "b=2", "c=3")


def test_a_reference_that_goes_in_circles_ends() -> None:
    schema = {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}
    assert typed(schema, "x=1") == {"x": 1}


def test_an_open_schema_takes_any_word_and_branches_name_members_too() -> None:
    assert typed({"type": "object"}, "x=1", "y=z") == {"x": 1, "y": "z"}
    branched = {"oneOf": [member({"type": "string"}), {**member(True), "properties": {"y": {"type": "integer"}}}]}
    assert typed(branched, "x=1") == {"x": "1"}
    assert typed(branched, "y=1") == {"y": 1}
    with pytest.raises(BadArguments, match="z is no argument"):
        typed(branched, "z=1")


def test_raw_json_goes_past_the_schema() -> None:
    assert typed(member({"type": "integer"}), 'x:="7"') == {"x": "7"}
    with pytest.raises(BadArguments, match="x: what stands behind := is no JSON"):
        read_words(["x:={"])


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["x"], "argument 1 is no NAME=VALUE"),
        (["x=1", "=2"], "argument 2 is no NAME=VALUE"),
        (["x=1", '{"y":1}'], "argument 2 is no NAME=VALUE"),
        (["x=1", "x=2"], "x is given twice"),
        (["x=1", "x:=2"], "x is given twice"),
        ([f"x{n}=1" for n in range(MAX_WORDS + 1)], "more than 256 arguments"),
    ],
)
def test_words_that_are_none(words: list[str], why: str) -> None:
    with pytest.raises(BadArguments, match=why):
        read_words(words)


def test_no_arguments_are_null_for_a_command_without_any_and_an_empty_object_else() -> None:
    assert arguments(None, VOID) is None
    assert arguments({}, VOID) is None
    assert arguments(None, ADD) == {}
    assert arguments({"a": 1}, ADD) == {"a": 1}
    assert arguments({"a": 1}, VOID) == {"a": 1}  # the schema itself refuses it, by the name of the contract
    with pytest.raises(BadArguments, match="takes no arguments"):
        arguments(Words({"x": "1"}, {}), VOID)


def test_members_that_do_not_fit_are_named() -> None:
    assert misfit({"a": 1}, ADD) == "b is missing"
    assert misfit({}, ADD) == "a, b are missing"
    assert misfit({"a": 1, "b": 2, "c": {}}, ADD) == "c is no argument of the command, which takes a, b, note"
    assert misfit({"x": 1}, {"type": "object", "additionalProperties": False}) == "x is no argument of the command"
    assert misfit({"b": 1}, {"$ref": "#/$defs/n", "$defs": {"n": {"required": ["a"]}}}) == "a is missing"
    assert misfit({"a": 1, "b": "x"}, ADD) is None  # its type is for the schema to judge
    assert misfit({"x": 1}, True) is None
    assert misfit(None, ADD) is None


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (b"", "are no JSON"),
        (b"[1]", "are no JSON object"),
        (b"null", "are no JSON object"),
        (b'{"a":1,"a":2}', "are no JSON: "),
        (b'{"a":NaN}', "are no JSON: "),
        (b'{"a":"\\ud800"}', "are no JSON: "),
        (b"\xff{}", "are no JSON: "),
        (b'{"a":' + b" " * (1 << 20) + b"1}", "are no JSON: "),
    ],
)
def test_json_that_is_none(text: bytes, why: str) -> None:
    with pytest.raises(BadArguments, match=why) as caught:
        read_object(text, "of args.json")
    assert "args.json" in str(caught.value)


def test_text_that_is_no_utf8_is_refused() -> None:
    with pytest.raises(BadArguments, match="x is no text of UTF-8"):
        typed(member({"type": "string"}), "x=\udcff")


@given(st.dictionaries(st.text("ab_-.", min_size=1), st.text(), max_size=5))
def test_a_string_member_is_what_was_typed(values: dict[str, str]) -> None:
    schema = {"type": "object", "additionalProperties": False, "properties": {n: {"type": "string"} for n in values}}
    assert arguments(read_words([f"{name}={text}" for name, text in values.items()]), schema) == (values or {})


@given(st.recursive(st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(), st.lists, max_leaves=8))
def test_a_word_of_an_open_member_is_the_json_that_was_typed(value: Any) -> None:
    if isinstance(value, str):
        return
    assert typed(member(True), f"x={json.dumps(value)}") == {"x": value}


# ---- where to ----


@pytest.mark.parametrize(
    ("text", "aim"),
    [
        ("self", Aim("self")),
        ("owner=local.bob", Aim("owner", "local", "bob")),
        (f"handle=local.bob.{UID}", Aim("handle", "local", "bob", UID)),
        (f"exact=local.bob.{UID}@7", Aim("exact", "local", "bob", UID, 7)),
    ],
)
def test_a_target(text: str, aim: Aim) -> None:
    assert read_target(text) == aim


@pytest.mark.parametrize(
    "text",
    [
        *("", "bob", "self=local.bob", "owner", "owner=", "owner=local", "owner=local.bob.x", "owner=lo-cal.bob"),
        *(f"owner=local.bob.{UID}.x", "owner=local.bob@7", f"owner=local.bob.{UID}@07", f"owner=local.bob.{UID}@"),
        *(f"owner=local.bob.{UID}@{2**53}", "SELF", "all=local.bob"),
    ],
)
def test_a_target_that_is_none(text: str) -> None:
    with pytest.raises(BadArguments):
        read_target(text)


def test_a_bind_and_those_that_are_none() -> None:
    assert read_bind(f"{UID}@0") == (UID, 0)
    for text in ("", UID, f"{UID}@", f"{UID}@01", f"{UID}@-1", "short@1", f"{UID}@{2**53}", f"{UID}@1@2"):
        with pytest.raises(BadArguments):
            read_bind(text)


def test_a_name_is_refused_with_its_grammar() -> None:
    assert checked(ENDPOINT_NAME, "dev.sidecar.sample") == "dev.sidecar.sample"
    with pytest.raises(BadArguments, match="this is no endpoint name: "):
        checked(ENDPOINT_NAME, "Dev.Sample")
    with pytest.raises(BadArguments, match="one is like add-note"):
        checked(GRAMMARS["command"], "add_note")
