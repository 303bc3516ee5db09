"""cext.json_scan: every reason to refuse, the place it names, and its bounds."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest

from cext.json_scan import DEPTH_MAX, JsonError, check

SUITE = Path(__file__).parents[2] / "vectors" / "json-test-suite" / "cases.json"
CASES = {name: base64.b64decode(text) for name, text in json.loads(SUITE.read_text()).items()}
CASES["n_structure_100000_opening_arrays"] = b"[" * 100_000
CASES["n_structure_open_array_object"] = b'[{"":' * 50_000
# What the suite leaves to the reader ("i_"), and the one thing that it allows and we do not.
REASON_OF_PART = {
    "duplicated_key": "duplicate",
    "surrogate": "surrogate",
    "1st_valid_surrogate": "surrogate",
    "UTF8_surrogate": "utf8",
    "utf-8": "utf8",
    "UTF-8_invalid": "utf8",
    "UTF-16": "utf8",
    "utf16": "utf8",
    "utf8": "utf8",
    "iso_latin": "utf8",
    "overlong": "utf8",
    "not_in_unicode": "utf8",
    "UTF-8_BOM": "bom",
    "500_nested": "depth",
    "inverted": "surrogate",
    "huge_exp": "number",
    "overflow": "number",
    "double_huge_neg_exp": None,
}


def reason(data: bytes, *, limit: int = 1 << 20, depth: int = 128, safe_integers: bool = False) -> str | None:
    try:
        check(data, limit=limit, depth=depth, safe_integers=safe_integers)
    except JsonError as error:
        return error.reason
    return None


def expected_reason(name: str) -> str | None:
    found = [part for part in REASON_OF_PART if part in name]
    return REASON_OF_PART[max(found, key=len)] if found else None


@pytest.mark.req("CC-01")
@pytest.mark.parametrize("name", sorted(CASES))
def test_published_cases(name: str) -> None:
    found = reason(CASES[name])
    if name.startswith("n_"):
        assert found is not None
    elif name.startswith("y_") and "duplicated_key" not in name:
        assert found is None
    else:
        assert found == expected_reason(name)


def test_the_published_cases_are_all_there() -> None:
    assert len(CASES) == 318


@pytest.mark.req("CC-01")
@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", ("truncated", 0)),
        (b"  ", ("truncated", 2)),
        (b"\xef\xbb\xbf{}", ("bom", 0)),
        (b"\xef\xbb\xbf", ("bom", 0)),
        (b" \xef\xbb\xbf{}", ("syntax", 1)),
        (b'"\xed\xa0\x80"', ("utf8", 0)),
        (b'"\xc0\x80"', ("utf8", 0)),
        (b'{"a":1}{', ("trailing", 7)),
        (b"1 2", ("trailing", 2)),
        (b"NaN", ("syntax", 0)),
        (b"[Infinity]", ("syntax", 1)),
        (b"[-Infinity]", ("syntax", 1)),
        (b"[1,]", ("syntax", 3)),
        (b"[01]", ("syntax", 2)),
        (b"[1.]", ("syntax", 1)),
        (b"[1e+]", ("syntax", 1)),
        (b"[+1]", ("syntax", 1)),
        (b"'a'", ("syntax", 0)),
        (b"{a:1}", ("syntax", 1)),
        (b'{"a" 1}', ("syntax", 5)),
        (b'{"a":1 "b":2}', ("syntax", 7)),
        (b"[1}", ("syntax", 2)),
        (b'{"a":1]', ("syntax", 6)),
        (b"tru", ("syntax", 0)),
        (b'"a\nb"', ("syntax", 2)),
        (b'"a\0b"', ("syntax", 2)),
        (b'"abc', ("truncated", 4)),
        (b'"ab\\', ("truncated", 4)),
        (b'"\\u00', ("truncated", 5)),
        (b'"\\u00g0"', ("escape", 1)),
        (b'"\\x41"', ("escape", 1)),
        (b'"\\\'"', ("escape", 1)),
        (b'"\\ud800"', ("surrogate", 1)),
        (b'"\\udc00\\ud800"', ("surrogate", 1)),
        (b'"\\ud800\\u0041"', ("surrogate", 1)),
        (b'"\\ud800\\ud800"', ("surrogate", 1)),
        (b'"\\ud800\\ue000"', ("surrogate", 1)),
        (b'"\\udbff\\udbff"', ("surrogate", 1)),
        (b'"\\ud800\\udc0"', ("surrogate", 1)),
        (b'"\\ud800\\udc0', ("surrogate", 1)),
        (b'{"\\udfff":1}', ("surrogate", 2)),
        (b"1e309", ("number", 0)),
        (b"[-1e999999999999999999]", ("number", 1)),
        (b"1" * 400, ("number", 0)),
        (b"1.7976931348623159e308", ("number", 0)),
        (b'{"a":1,"a":2}', ("duplicate", 8)),
        (b'{"a":1,"b":2,"a":3,"b":4}', ("duplicate", 14)),
        (b'{"a":1,"\\u0061":2}', ("duplicate", 8)),
        (b'[[{"x":{"y":0,"y":0}}]]', ("duplicate", 15)),
        ('{"\\ud83d\\ude00":1,"😀":2}'.encode(), ("duplicate", 19)),
        (b'{"\\/":1,"/":2}', ("duplicate", 9)),
        (b'{"\\b\\f\\n\\r\\t":1,"\\u0008\\u000C\\u000a\\u000D\\u0009":2}', ("duplicate", 17)),
    ],
)
def test_refusals(data: bytes, expected: tuple[str, int]) -> None:
    with pytest.raises(JsonError) as refused:
        check(data, limit=1000, depth=8, safe_integers=False)
    assert (refused.value.reason, refused.value.offset) == expected
    assert str(refused.value) == f"{expected[0]} at byte {expected[1]}"


@pytest.mark.req("CC-01")
@pytest.mark.parametrize("place", [1, 7, 8, 9, 17])
def test_control_characters_are_escaped(place: int) -> None:
    for byte in range(0x21):
        raw = b'"' + b"a" * (place - 1) + bytes([byte]) + b'nnnnnnnnnn"'
        assert reason(raw) == (None if byte == 0x20 else "syntax"), byte
    assert reason(b'"' + b"a" * (place - 1) + b'\\u001f\x7f"') is None


@pytest.mark.req("CC-01")
@pytest.mark.parametrize(
    "data",
    [
        b"null",
        b' [ 1 , { "a" : -0.5e-7 } ]\r\n\t',
        b'"\\ud83d\\ude00 \\uD83D\\uDE00"',
        '"\x7f\u2028€😀"'.encode(),
        b"1.7976931348623158e308",
        b"[1e308, -1e308, 1e-999, 0.0001e312, 5e-324]",
        b'{"a":{"a":{"a":1}},"b":{"a":1},"A":1,"":0}',
        b'{"a":1,"\\u0000":2,"a\\u0000":3}',
        b"-0",
        bytearray(b"[true,false]"),
        memoryview(b"x[1]x")[1:4],
    ],
)
def test_accepted(data: bytes) -> None:
    check(data, limit=1000, depth=8, safe_integers=True)


def test_the_size_at_its_limit() -> None:
    assert reason(b"[1]", limit=3) is None
    assert reason(b"[1]", limit=2) == "size"
    assert reason(b"\xff\xff\xff\xff", limit=3) == "size"
    assert reason(b"", limit=0) == "truncated"


@pytest.mark.parametrize("depth", [0, 1, 2, 128, DEPTH_MAX])
@pytest.mark.parametrize(("opening", "closing"), [(b"[", b"]"), (b'{"a":', b"}"), (b'[{"a":', b"}]")])
def test_the_depth_at_its_limit(depth: int, opening: bytes, closing: bytes) -> None:
    repeats = depth // opening.count(b"[" if closing == b"]" else b"{") if closing != b"}]" else depth // 2
    nested = opening * repeats + b"0" + closing * repeats
    assert reason(nested, depth=depth) is None
    assert reason(b"[" * depth + b"[0]" + b"]" * depth, depth=depth) == "depth"
    # What was closed does not count.
    if depth > 1:
        assert reason(b"[" + b"[],{}," * 300 + b"0]", depth=depth) is None


@pytest.mark.parametrize("sign", [b"", b"-"])
def test_the_integer_at_its_limit(sign: bytes) -> None:
    for digits, safe in [(b"9007199254740990", True), (b"9007199254740991", True), (b"9007199254740992", False)]:
        assert (reason(sign + digits, safe_integers=True) is None) == safe
        assert reason(sign + digits) is None
    for digits in (b"10000000000000000", b"18446744073709551617", b"9" * 300):
        assert reason(sign + digits, safe_integers=True) == "number"
        assert reason(sign + digits) is None
    # Numbers with a fraction or an exponent are doubles for every reader.
    assert reason(sign + b"9007199254740992.0", safe_integers=True) is None
    assert reason(sign + b"1e300", safe_integers=True) is None


@pytest.mark.parametrize("count", [2, 7, 8, 9, 10, 500])
def test_duplicates_in_objects_of_every_size(count: int) -> None:
    names = [b'"%d"' % number for number in range(count)]
    distinct = b"{" + b",".join(name + b":0" for name in names) + b"}"
    assert reason(distinct) is None
    assert reason(b"[" + distinct + b"," + distinct + b"]") is None
    for repeated in {0, count // 2, count - 1}:
        text = distinct[:-1] + b',"%d":0}' % repeated
        with pytest.raises(JsonError) as refused:
            check(text, limit=100_000, depth=1, safe_integers=False)
        assert (refused.value.reason, refused.value.offset) == ("duplicate", len(distinct) + 1)


def test_the_first_name_that_stood_before_is_the_one_that_is_told() -> None:
    names = [b'"%d":0' % number for number in range(20)]
    for order in ((3, 17), (17, 3), (0, 0), (5, 5)):
        text = b"{" + b",".join([*names, *(names[index] for index in order)]) + b"}"
        with pytest.raises(JsonError) as refused:
            check(text, limit=1000, depth=1, safe_integers=False)
        assert refused.value.offset == len(b",".join(names)) + 3


@pytest.mark.parametrize("names", ["éè", "€₭", "😀😁", "a\x7f", "\ud7ff\ue000", "\uffff\U00010000", "\x80\u0100"])
def test_names_beyond_ascii_are_told_apart(names: str) -> None:
    for spell in (False, True):
        distinct = json.dumps(dict.fromkeys(names, 0), ensure_ascii=spell).encode()
        assert reason(distinct) is None
        for name in names:
            for again in (name, "".join(f"\\u{unit:04x}" for unit in memoryview(name.encode("utf-16-le")).cast("H"))):
                assert reason(distinct[:-1] + b',"%s":0}' % again.encode()) == "duplicate"


def test_names_of_one_hash_are_told_apart() -> None:
    # FNV-1a over code points: pairs of names whose hashes are equal, found by search.
    seen: dict[int, str] = {}
    pairs: list[tuple[str, str]] = []
    for number in range(400_000):
        name = f"{number:x}"
        mixed = 2166136261
        for character in name:
            mixed = (mixed ^ ord(character)) * 16777619 & 0xFFFFFFFF
        if mixed in seen:
            pairs.append((seen[mixed], name))
        seen[mixed] = name
    assert pairs
    few = json.dumps(dict.fromkeys(pairs[0], 0)).encode()
    many = json.dumps({name: 0 for pair in pairs for name in pair} | {f"x{n}": 0 for n in range(9)}).encode()
    assert reason(few) is None
    assert reason(many) is None
    # Also where a name of the same hash stands between the two.
    for name in pairs[-1]:
        assert reason(many[:-1] + b',"%s":0}' % name.encode()) == "duplicate"


@pytest.mark.parametrize(("limit", "depth"), [(-1, 1), (1, -1), (2**31, 1), (1, DEPTH_MAX + 1)])
def test_bounds_out_of_range(limit: int, depth: int) -> None:
    with pytest.raises(ValueError, match="out of range"):
        check(b"1", limit=limit, depth=depth, safe_integers=False)


def test_text_must_be_bytes() -> None:
    with pytest.raises(TypeError):
        check("1", limit=1, depth=1, safe_integers=False)  # type: ignore[arg-type]
