"""What a schema may cost: each bound from both sides, and the bombs that it stands for."""

from __future__ import annotations

from typing import Any

import pytest

from sidecar.base.strictjson import JsonValue
from sidecar.rails.endpoint import schemas
from sidecar.rails.endpoint.schema_cost import MAX_EVALUATIONS
from sidecar.rails.endpoint.schema_patterns import MAX_LENGTH, MAX_STATES, states, weight
from sidecar.rails.endpoint.schema_walk import MAX_CHAIN, MAX_PATTERNS, MAX_SCHEMAS
from sidecar.rails.endpoint.schemas import schema
from tests.unit.rails.endpoint.test_schemas import accepts, refused


def chain(links: int) -> JsonValue:
    steps: dict[str, Any] = {f"a{at}": {"$ref": f"#/$defs/a{at + 1}"} for at in range(links - 1)}
    return {"$ref": "#/$defs/a0", "$defs": {**steps, f"a{links - 1}": {"type": "string"}}}


def wide(count: int) -> JsonValue:
    """That many schema positions, the root and its list among them."""
    return {"$defs": {f"a{at}": {} for at in range(count - 1)}}


def ladder(rungs: int) -> JsonValue:
    """Unions of the same schema twice, behind each other: 2 ** rungs ways to the last."""
    steps: dict[str, Any] = {f"a{at}": {"anyOf": [{"$ref": f"#/$defs/a{at + 1}"}] * 2} for at in range(rungs)}
    return {"$ref": "#/$defs/a0", "$defs": {**steps, f"a{rungs}": {"type": "string"}}}


def many_patterns(count: int) -> JsonValue:
    return {"$defs": {f"a{at}": {"pattern": f"^{at}$"} for at in range(count)}}


def united(count: int) -> JsonValue:
    """A union of that many, itself among the evaluations."""
    return {"anyOf": [{"type": "string"}] * (count - 1)}


@pytest.mark.req("C13.7-24", "C13.8-51")
@pytest.mark.parametrize(
    ("make", "most"),
    [
        (chain, MAX_CHAIN),
        (wide, MAX_SCHEMAS),
        (many_patterns, MAX_PATTERNS),
        (united, MAX_EVALUATIONS),
        (lambda size: {"pattern": f"^{'a' * (size - 2)}$"}, MAX_LENGTH),
        (lambda size: {"pattern": f"^a{{{size - 3}}}$"}, MAX_STATES),
        (lambda sixteens: {"enum": list(range(16 * sixteens))}, MAX_EVALUATIONS - 1),
        (lambda size: {"patternProperties": {f"[{one}]" + "a" * (size // 4 - 1): True for one in "abcd"}}, 4 * 257 - 1),
    ],
)
def test_each_bound_of_the_profile(make: Any, most: int) -> None:
    for number in (most - 1, most):
        schema(make(number))
    refused(make(most + 1))


@pytest.mark.req("C13.8-51", "C13.7-24")
def test_ladders_of_unions_are_refused_before_they_are_run() -> None:
    assert schema(ladder(8)).work > 1_000
    for rungs in (9, 24, 30):
        assert "evaluations" in refused(ladder(rungs)).why


@pytest.mark.req("C13.8-51")
def test_what_cannot_be_followed_is_refused() -> None:
    """Which of the nodes come together at a member depends on the way to it, as in an automaton: 2 ** 20 sets."""
    steps: dict[str, Any] = {f"t{at}": {"additionalProperties": {"$ref": f"#/$defs/t{at + 1}"}} for at in range(20)}
    start: dict[str, Any] = {"$ref": "#/$defs/s"}
    both: dict[str, Any] = {"allOf": [start, {"$ref": "#/$defs/t0"}]}
    defs: dict[str, Any] = {**steps, "t20": True, "s": {"properties": {"a": both}, "additionalProperties": start}}
    assert "combinations" in refused({**start, "$defs": defs}).why


@pytest.mark.req("C13.7-24")
def test_a_dynamic_reference_counts_for_each_place_that_it_may_mean() -> None:
    inner: dict[str, Any] = {"$id": "inner", "$dynamicRef": "#n", "$defs": {"d": {"$dynamicAnchor": "n"}}}
    outer: dict[str, Any] = {
        "$id": "http://example.com/r",
        "$dynamicAnchor": "n",
        "$ref": "inner",
        "$defs": {"i": inner},
    }
    assert "itself" in refused(outer).why


NODE = "#/$defs/n"


@pytest.mark.req("C13.8-51")
@pytest.mark.parametrize(
    "node",
    [
        {"properties": {"c": {"allOf": [{"$ref": NODE}, {"$ref": NODE}]}}},
        {"properties": {"c": {"$ref": NODE}}, "patternProperties": {"^c": {"$ref": NODE}}},
        {"anyOf": [{"properties": {"c": {"$ref": NODE}}}, {"additionalProperties": {"$ref": NODE}}]},
        {"items": {"$ref": NODE}, "contains": {"$ref": NODE}},
        {"prefixItems": [{"anyOf": [{"$ref": NODE}, {"not": {"$ref": NODE}}]}]},
        {"if": {"items": {"$ref": NODE}}, "then": {"items": {"$ref": NODE}}},
        {"dependentSchemas": {"a": {"items": {"$ref": NODE}}}, "items": {"$ref": NODE}},
        {"anyOf": [{"properties": {"c": {"$ref": NODE}}}], "unevaluatedProperties": False},
        {"propertyNames": True, "properties": {"a": {"items": {"anyOf": [{"$ref": NODE}, {"$ref": NODE}]}}}},
        {"additionalProperties": {"allOf": [{"$ref": NODE}, {"$ref": "#/$defs/m"}]}},
    ],
)
def test_a_schema_that_comes_back_twice_for_one_part_is_refused(node: JsonValue) -> None:
    more: JsonValue = {"additionalProperties": {"allOf": [{"$ref": "#/$defs/m"}, {"$ref": NODE}]}}
    assert "evaluations" in refused({"$ref": NODE, "$defs": {"n": node, "m": more}}).why


@pytest.mark.req("C13.8-51")
def test_recursion_that_comes_back_once_is_fine() -> None:
    tree: dict[str, Any] = {
        "$ref": NODE,
        "$defs": {
            "n": {
                "anyOf": [
                    {"type": "null"},
                    {
                        "type": "object",
                        "properties": {"left": {"$ref": NODE}, "right": {"$ref": NODE}},
                        "required": ["left", "right"],
                        "additionalProperties": False,
                    },
                ]
            }
        },
    }
    deep: JsonValue = None
    bad: JsonValue = 7
    for _ in range(120):
        deep, bad = {"left": deep, "right": None}, {"left": bad, "right": None}
    assert accepts(tree, deep, bad) == [True, False]
    statements: dict[str, Any] = {
        "$ref": "#/$defs/s",
        "$defs": {
            "s": {"properties": {"of": {"$ref": "#/$defs/e"}, "body": {"items": {"$ref": "#/$defs/s"}}}},
            "e": {"properties": {"of": {"$ref": "#/$defs/s"}, "args": {"items": {"$ref": "#/$defs/e"}}}},
        },
    }
    assert schema(statements).work == 2
    # A member that is named is none of the additional ones.
    apart: JsonValue = {"properties": {"c": {"$ref": "#"}}, "additionalProperties": {"$ref": "#"}}
    assert schema(apart).work == 2


@pytest.mark.req("C13.7-24")
@pytest.mark.parametrize(
    "document",
    [
        {"$ref": "#"},
        {"allOf": [{"$ref": "#"}]},
        {"not": {"$ref": "#"}},
        {"$ref": "#/$defs/a", "$defs": {"a": {"anyOf": [{"$ref": "#/$defs/b"}]}, "b": {"$ref": "#/$defs/a"}}},
        {"$dynamicRef": "#n", "$dynamicAnchor": "n"},
        {"dependentSchemas": {"a": {"$ref": "#"}}},
        {"$defs": {"unused": {"$ref": "#/$defs/unused"}}},
    ],
)
def test_a_schema_that_applies_itself_to_the_same_value_is_refused(document: JsonValue) -> None:
    assert "itself" in refused(document).why


@pytest.mark.req("C13.8-51")
@pytest.mark.parametrize(
    ("pattern", "least"),
    [("^[a-z0-9-]{1,32}$", 32), ("(a{10}){10}", 100), ("(a|b){2,}", 4), ("\\p{L}{9}", 72), ("[^a]", 8), ("a{2}{3}", 6)],
)
def test_what_a_pattern_weighs(pattern: str, least: int) -> None:
    assert least <= states(pattern, "") <= 4 * least + 8


@pytest.mark.req("C13.8-51")
@pytest.mark.parametrize(
    ("pattern", "one_way"),
    [
        ("^sha256:[0-9a-f]{64}$", True),
        ("^[a-z][a-z0-9-]{0,63}$", True),
        ("^[A-Za-z0-9+/]*$", True),
        ("^a\\.[^]]{64}$", True),
        ("[0-9a-f]{64}$", False),
        ("^[0-9a-f]{64}", False),
        ("^[ab]*a[ab]{64}$", False),
        ("^[ab]{0,9}[ab]{64}$", False),
        ("^(?:a{64}|b)$", False),
        ("^a{64}|b$", False),
        ("^a{64}\\b$", False),
    ],
)
def test_a_pattern_that_may_be_in_many_states_weighs_each(pattern: str, one_way: bool) -> None:
    number = states(pattern, "")
    assert weight(pattern, "") == (number // 16 if one_way else number)


@pytest.mark.req("C13.8-51")
@pytest.mark.parametrize(
    "pattern", ["(a{64}){64}", "((a{20}){20}){20}", "(?:.{300})", "a{999999999}", "(" * 400, r"(?:x\p{L}){100}"]
)
def test_patterns_that_count_too_far_are_refused(pattern: str) -> None:
    refused({"pattern": pattern})
    refused({"patternProperties": {pattern: True}})


@pytest.mark.req("C13.8-51")
def test_costly_schemas_are_run_on_small_values_only() -> None:
    compiled = schema(united(MAX_EVALUATIONS))
    most = schemas.MAX_WORK // compiled.work
    fits, larger = "x" * (most - 2), "x" * (most - 1)
    assert compiled.shape.check(fits) is None
    fault = compiled.shape.check(larger)
    assert fault is not None
    assert "larger" in fault.why
    assert schema({"type": "string"}).shape.check("x" * (schemas.MAX_WORK + 1)) is None
