"""Strict JSON text, JSON values and the canonical form."""

from __future__ import annotations

import hashlib
import json
from enum import IntEnum, StrEnum
from pathlib import Path

import pytest

from sidecar.base.strictjson import (
    MAX_DEPTH,
    SAFE_INTEGER,
    JsonError,
    NotJson,
    canonical,
    canonical_text,
    check_value,
    parse,
)

JCS = Path(__file__).parents[2] / "vectors" / "jcs"


class Word(StrEnum):
    A = "a"


class Number(IntEnum):
    ONE = 1


@pytest.mark.parametrize("name", sorted(path.stem for path in (JCS / "input").glob("*.json")))
def test_published_canonical_forms(name: str) -> None:
    text = (JCS / "input" / f"{name}.json").read_bytes()
    expected = (JCS / "output" / f"{name}.json").read_bytes()
    assert canonical_text(text) == expected
    assert canonical(json.loads(text)) == expected


def test_digests_of_the_specification() -> None:
    numbers = b'{"numbers":[333333333.3333333,1e+30,4.5,0.002,1e-27]}'
    assert hashlib.sha256(canonical_text(numbers)).hexdigest() == (
        "7c892d3452ad85ad65857a43e8dcac93b79475d2334fc3e85bac5c599142c158"
    )


def test_names_are_in_the_order_of_utf16() -> None:
    names = ["\ufb33", "😀", "\u20ac", "ö", "\x80", "1", "\r", "a"]
    order = ["\r", "1", "a", "\x80", "ö", "\u20ac", "😀", "\ufb33"]
    expected = "{" + ",".join(f"{json.dumps(name, ensure_ascii=False)}:0" for name in order) + "}"
    assert canonical(dict.fromkeys(names, 0)) == expected.encode()


@pytest.mark.parametrize(
    ("value", "form"),
    [
        (None, b"null"),
        ('\x00\x1f\x7f\b\t\n\f\r"\\/\u2028é', b'"\\u0000\\u001f\x7f\\b\\t\\n\\f\\r\\"\\\\/\xe2\x80\xa8\xc3\xa9"'),
        ({"b": [], "a": {}}, b'{"a":{},"b":[]}'),
        (-0.0, b"0"),
        (1.0, b"1"),
        (1e21, b"1e+21"),
        (1e-7, b"1e-7"),
        (5e-324, b"5e-324"),
        (SAFE_INTEGER, b"9007199254740991"),
        ({"a": [1, 2.5]}, b'{"a":[1,2.5]}'),
    ],
)
def test_canonical_forms(value: object, form: bytes) -> None:
    assert canonical(value) == form  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b'{"a":1,"a":1}', "duplicate"),
        (b'"\\ud800"', "surrogate"),
        (b"9007199254740992", "number"),
        (b"1e400", "number"),
        (b"NaN", "syntax"),
        (b"{}{}", "trailing"),
    ],
)
def test_text_without_a_canonical_form(text: bytes, reason: str) -> None:
    with pytest.raises(JsonError) as refused:
        canonical_text(text)
    assert refused.value.reason == reason


@pytest.mark.req("CC-01")
def test_text_is_utf8_without_a_byte_order_mark() -> None:
    assert parse('{"a":"é"}'.encode()) == {"a": "é"}
    for text in (b'\xef\xbb\xbf{"a":1}', '{"a":"é"}'.encode("latin-1"), '{"a":1}'.encode("utf-16")):
        with pytest.raises(JsonError):
            parse(text)


def test_numbers_without_and_with_a_bound() -> None:
    assert parse(b"[9007199254740993,1e3,-0.0]") == [9007199254740993, 1000.0, -0.0]
    assert parse(b"[9007199254740991]", safe_integers=True) == [SAFE_INTEGER]
    with pytest.raises(JsonError, match="number at byte 1"):
        parse(b"[9007199254740993]", safe_integers=True)


def test_text_at_the_default_bounds() -> None:
    assert parse(b'"' + b"a" * 1_048_574 + b'"') == "a" * 1_048_574
    with pytest.raises(JsonError, match="size"):
        parse(b'"' + b"a" * 1_048_575 + b'"')
    parse(b"[" * MAX_DEPTH + b"]" * MAX_DEPTH)
    with pytest.raises(JsonError, match="depth"):
        parse(b"[" * (MAX_DEPTH + 1) + b"]" * (MAX_DEPTH + 1))


@pytest.mark.req("C5-09")
@pytest.mark.parametrize(
    ("value", "path"),
    [
        ({"a": [1, float("nan")]}, "data.a[1]"),
        ({"a": [1, float("-inf")]}, "data.a[1]"),
        ({"a": {"b": b"bytes"}}, "data.a.b"),
        ([[[{"deep": object()}]]], "data[0][0][0].deep"),
        ({"two words": {"é": ()}}, 'data["two words"]["\\u00e9"]'),
        ({"line\nend": [Word.A]}, 'data["line\\nend"][0]'),
        ({"a": Number.ONE}, "data.a"),
        ({"a": SAFE_INTEGER + 1}, "data.a"),
        ({"a": -SAFE_INTEGER - 1}, "data.a"),
        ({"a": {7: "number as name"}}, "data.a"),
        ({"a": {"\ud800": 1}}, "data.a"),
        ({"a": ["\udfff"]}, "data.a[0]"),
        (frozenset(), "data"),
    ],
)
def test_values_that_json_cannot_hold(value: object, path: str) -> None:
    with pytest.raises(NotJson) as refused:
        check_value(value, "data")
    assert refused.value.path == path
    assert str(refused.value).startswith(path)


@pytest.mark.req("C5-09")
def test_values_that_json_can_hold() -> None:
    check_value({"a": [None, True, 0, -SAFE_INTEGER, SAFE_INTEGER, 1.5, "é😀", [], {}]})


def nested(levels: int, kind: type[list[object]] | type[dict[str, object]]) -> object:
    value: object = 0
    for _ in range(levels):
        value = [value] if kind is list else {"a": value}
    return value


@pytest.mark.parametrize("kind", [list, dict])
def test_values_at_their_depth(kind: type[list[object]] | type[dict[str, object]]) -> None:
    check_value(nested(MAX_DEPTH, kind))
    assert canonical(nested(MAX_DEPTH, kind))  # type: ignore[arg-type]
    with pytest.raises(NotJson, match="deeper than 128 levels"):
        check_value(nested(MAX_DEPTH + 1, kind))


def test_a_value_that_contains_itself_is_refused() -> None:
    value: list[object] = []
    value.append(value)
    with pytest.raises(NotJson, match="deeper") as refused:
        check_value(value)
    assert len(refused.value.path) <= 160


def test_the_path_is_bounded_and_the_value_is_not_told() -> None:
    with pytest.raises(NotJson) as refused:
        check_value({"n" * 1000: {"secret": b"SECRET"}}, "data")
    assert len(refused.value.path) == 160
    assert refused.value.path.endswith("...")
    with pytest.raises(NotJson) as told:
        check_value({"a": b"SECRET"})
    assert "SECRET" not in str(told.value)
