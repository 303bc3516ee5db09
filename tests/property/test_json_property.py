"""Strict JSON against its plain-Python oracle, and the canonical form against rfc8785."""

from __future__ import annotations

import json
import math
import tracemalloc
from collections.abc import Callable

import pytest
import rfc8785
from hypothesis import given, settings
from hypothesis import strategies as st

from cext.json_scan import JsonError, check
from sidecar.base.strictjson import JsonValue, NotJson, canonical, canonical_text, check_value, parse
from tests.oracles import json_scan as oracle

TOKENS = [
    *(bytes([byte]) for byte in b'{}[],:" \\-'),
    *(
        b'"a"',
        b'"\\u0061"',
        b'"\\ud83d\\ude00"',
        '"😀"'.encode(),
        b'"\\ud800"',
        b'"\\u00"',
        b'"\\x"',
        b'"\x01"',
        b"\xff",
    ),
    *(b"0", b"-0", b"01", b"1.", b".5", b"1e", b"1E+5", b"1e309", b"9007199254740992", b"18446744073709551616"),
    *(b"true", b"false", b"null", b"nul", b'"a":', b'"b":', b'"\\u0061":', b"\xef\xbb\xbf", b"0.00001e312", b"1" * 310),
]
NAMES = st.sampled_from(["a", "b", "", "\n", "/", "é", "\ufb33", "😀", "\x7f", "\u2028"]) | st.text(max_size=6)


def values(largest: float | None = None) -> st.SearchStrategy[JsonValue]:
    """JSON values; ``largest`` bounds the magnitude of their floats."""
    least = None if largest is None else -largest
    scalars: st.SearchStrategy[JsonValue] = (
        st.none()
        | st.booleans()
        | st.integers(-(2**53) + 1, 2**53 - 1)
        | st.floats(least, largest, allow_nan=False, allow_infinity=False)
        | st.text(max_size=20)
    )
    return st.recursive(
        scalars, lambda inner: st.lists(inner, max_size=5) | st.dictionaries(NAMES, inner, max_size=12), max_leaves=20
    )


VALUES = values()


def verdict(call: Callable[[], object]) -> tuple[str, int] | None:
    try:
        call()
    except (JsonError, oracle.JsonError) as refused:
        return refused.reason, refused.offset
    return None


def same(left: object, right: object) -> bool:
    """Equal, and of equal types and signs all the way down."""
    if isinstance(left, dict) and isinstance(right, dict):
        return list(left) == list(right) and all(same(left[name], right[name]) for name in left)
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, float) and isinstance(right, float):
        return left == right and math.copysign(1, left) == math.copysign(1, right)
    return type(left) is type(right) and left == right


def compare(data: bytes, limit: int, depth: int, safe: bool) -> None:
    expected = verdict(lambda: oracle.parse(data, limit=limit, depth=depth, safe_integers=safe))
    assert verdict(lambda: check(data, limit=limit, depth=depth, safe_integers=safe)) == expected
    if expected is None:
        value = parse(data, limit=limit, depth=depth, safe_integers=safe)
        assert same(value, oracle.parse(data, limit=limit, depth=depth, safe_integers=safe))


@pytest.mark.req("CC-01")
@given(
    tokens=st.lists(st.sampled_from(TOKENS), max_size=14),
    limit=st.sampled_from([20, 10_000]),
    depth=st.integers(0, 4) | st.just(128),
    safe=st.booleans(),
)
@settings(max_examples=500, deadline=None)
def test_texts_of_odd_tokens_equal_the_oracle(tokens: list[bytes], limit: int, depth: int, safe: bool) -> None:
    compare(b"".join(tokens), limit, depth, safe)


@pytest.mark.req("CC-01")
@given(value=VALUES, escaped=st.booleans(), data=st.data(), safe=st.booleans())
@settings(max_examples=300, deadline=None)
def test_damaged_texts_equal_the_oracle(value: JsonValue, escaped: bool, data: st.DataObject, safe: bool) -> None:
    text = bytearray(json.dumps(value, ensure_ascii=escaped).encode("utf-8"))
    for _ in range(data.draw(st.integers(0, 2))):
        at = data.draw(st.integers(0, len(text)))
        text[at : at + data.draw(st.integers(0, 3))] = data.draw(
            st.sampled_from([b"", *TOKENS]) | st.binary(max_size=2)
        )
    compare(bytes(text), 10_000, 128, safe)


@given(data=st.binary(max_size=200))
@settings(max_examples=200, deadline=None)
def test_arbitrary_bytes_equal_the_oracle(data: bytes) -> None:
    compare(data, 10_000, 128, False)


@given(names=st.lists(NAMES, max_size=30), escaped=st.booleans())
@settings(max_examples=300, deadline=None)
def test_duplicates_equal_the_oracle(names: list[str], escaped: bool) -> None:
    members = (json.dumps(name, ensure_ascii=escaped and index % 2 == 0) for index, name in enumerate(names))
    compare(("{" + ",".join(f"{name}:{index}" for index, name in enumerate(members)) + "}").encode(), 10_000, 1, False)


@given(
    literal=st.from_regex(r"-?[0-9]{1,25}(\.[0-9]{1,20})?([eE][+-]?[0-9]{1,4})?", fullmatch=True), safe=st.booleans()
)
@settings(max_examples=500, deadline=None)
def test_numbers_equal_the_oracle(literal: str, safe: bool) -> None:
    compare(literal.encode(), 10_000, 0, safe)


@given(data=st.lists(st.sampled_from(TOKENS), max_size=60).map(b"".join))
@settings(max_examples=100, deadline=None)
def test_a_scan_allocates_in_proportion_to_the_text(data: bytes) -> None:
    verdict(lambda: check(data, limit=10_000, depth=128, safe_integers=False))
    tracemalloc.start()
    try:
        verdict(lambda: check(data, limit=10_000, depth=128, safe_integers=False))
        # The walk itself, an error with its traceback, and eight bytes for each name.
        assert tracemalloc.get_traced_memory()[1] < 8192 + 8 * len(data)
    finally:
        tracemalloc.stop()


@given(value=VALUES)
@settings(max_examples=500, deadline=None)
def test_the_canonical_form_is_that_of_rfc8785(value: JsonValue) -> None:
    form = canonical(value)
    assert form == rfc8785.dumps(value)
    # Every spelling of the value has this form.
    assert canonical_text(json.dumps(value, indent=1).encode()) == form


@pytest.mark.req("C13.7-27")
@settings(max_examples=1_000, deadline=None)
@given(
    st.floats(1e-8, 1e22) | st.floats(-1e22, -1e-8) | st.integers(-(10**12), 10**12).map(lambda number: number / 1_000)
)
def test_floats_of_every_notation_are_spelled_as_rfc8785_spells_them(number: float) -> None:
    assert canonical([number]) == rfc8785.dumps([number])


# Doubles that are whole and larger are spelled as integers that no reader of integers may take.
@given(value=values(largest=2.0**52))
@settings(max_examples=200, deadline=None)
def test_the_canonical_form_is_its_own(value: JsonValue) -> None:
    assert canonical_text(canonical(value)) == canonical(value)


@pytest.mark.req("C5-09")
@given(
    value=VALUES, bad=st.sampled_from([math.nan, math.inf, -math.inf, b"x", (1,), {1}, 1j, object(), 2**53, "\ud800"])
)
@settings(max_examples=200, deadline=None)
def test_a_bad_member_is_found_and_named_wherever_it_is(value: JsonValue, bad: object) -> None:
    check_value(value)
    for wrapped, path in [(bad, ""), ([value, bad], "[1]"), ({"k": {"n": [value, [bad]]}, "z": value}, "k.n[1][0]")]:
        with pytest.raises(NotJson) as refused:
            check_value(wrapped)
        assert refused.value.path == path
        with pytest.raises(NotJson):
            canonical(wrapped)  # type: ignore[arg-type]
