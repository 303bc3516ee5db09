"""The schema profile: what compiles is closed and bounded, judges as JSON Schema 2020-12, and tells no content."""

from __future__ import annotations

import json
import socket
from typing import Any

import pytest

from sidecar.base.strictjson import JsonValue
from sidecar.rails.endpoint import schemas
from sidecar.rails.endpoint.artifacts import ContractInvalid, MissingArtifact, digest, single
from sidecar.rails.endpoint.codes import Code
from sidecar.rails.endpoint.schemas import CACHED, COMPILED, VOID_SCHEMA, load, needed, schema
from sidecar.rails.endpoint.shapes import VOID
from tests.unit.rails.endpoint import contract_samples as samples

REFERRED: dict[str, Any] = {"$defs": {"x": {"$anchor": "word", "type": "string"}, "a/b~c%d": {"type": "integer"}}}
OTHER = f"cotal:{digest(REFERRED)}"


def accepts(document: JsonValue, *values: Any, members: tuple[JsonValue, ...] = ()) -> list[bool]:
    compiled = schema(document, members)
    return [compiled.shape.check(value) is None for value in values]


def refused(document: JsonValue, *members: JsonValue) -> ContractInvalid:
    with pytest.raises(ContractInvalid) as caught:
        schema(document, members)
    assert caught.value.code == Code.CONTRACT_INVALID
    assert len(str(caught.value)) < 400
    return caught.value


@pytest.mark.req("C13.7-26", "C13.7-28", "C13.7-29")
def test_vectors() -> None:
    assert (VOID_SCHEMA.closure, VOID_SCHEMA.root) == (samples.VOID_CLOSURE, samples.VOID)
    assert VOID_SCHEMA.shape is VOID
    assert VOID_SCHEMA.artifacts[samples.VOID] == b'{"type":"null"}'
    takes = schema(samples.INPUT, [samples.MEMBER])
    assert (takes.closure, takes.root) == (samples.INPUT_CLOSURE, samples.INPUT_DIGEST)
    assert takes.artifacts == {
        samples.INPUT_CLOSURE: samples.INPUT_MANIFEST.encode(),
        samples.INPUT_DIGEST: samples.INPUT_TEXT.encode(),
        samples.MEMBER_DIGEST: samples.MEMBER_TEXT.encode(),
    }
    assert schema(samples.OUTPUT).closure == samples.OUTPUT_CLOSURE
    check = takes.shape.check
    assert check({"text": "hi", "tag": "a-1"}) is None
    assert check({"text": "hi", "tag": "A"}) is not None


@pytest.mark.req("C13.7-35", "C13.7-36")
def test_load_takes_nothing_on_trust() -> None:
    document: dict[str, Any] = {"type": "object", "properties": {"here": {"$ref": OTHER + "#word"}}}
    made = schema(document, [REFERRED])
    COMPILED._kept.clear()
    assert needed(made.closure, {}) == [made.closure]
    with pytest.raises(MissingArtifact):
        load(made.closure, {})
    with pytest.raises(ContractInvalid):
        load(made.closure, {**made.artifacts, made.root: b'{"type":"null"}'})
    again = load(made.closure, made.artifacts)
    assert (again.closure, again.root, again.artifacts) == (made.closure, made.root, made.artifacts)
    assert again.shape.check({"here": 1}) is not None
    # Verified and compiled once: nothing is fetched for it any more.
    assert needed(made.closure, {}) == []
    assert load(made.closure, {}) is again


@pytest.mark.req("C13.7-28")
def test_members_are_exactly_what_the_root_reaches() -> None:
    assert "does not reach" in refused({"type": "string"}, REFERRED).why
    listing: dict[str, Any] = {"v": 1, "root": digest({"type": "string"}), "members": [digest(REFERRED)]}
    have: dict[str, Any] = {
        digest(listing): listing,
        digest({"type": "string"}): {"type": "string"},
        digest(REFERRED): REFERRED,
    }
    with pytest.raises(ContractInvalid, match="does not reach"):
        load(digest(listing), have)
    # A member that only another member reaches counts.
    between = {"$ref": OTHER + "#word"}
    top = {"$ref": f"cotal:{digest(between)}"}
    assert accepts(top, "a", 1, members=(between, REFERRED)) == [True, False]
    # The manifest without it: the reference leads out of the bundle.
    short = single(top)
    with pytest.raises(ContractInvalid, match="bundle"):
        load(short.digest, short.artifacts)


@pytest.mark.req("C13.7-21")
@pytest.mark.parametrize(
    ("document", "good", "bad"),
    [
        ({"prefixItems": [{"type": "string"}], "items": False}, ["a"], ["a", 1]),
        ({"dependentRequired": {"a": ["b"]}}, {"a": 1, "b": 1}, {"a": 1}),
        ({"dependentSchemas": {"a": {"required": ["b"]}}}, {"b": 1}, {"a": 1}),
        ({"allOf": [{"properties": {"a": True}}], "unevaluatedProperties": False}, {"a": 1}, {"b": 1}),
        ({"prefixItems": [True], "unevaluatedItems": False}, [1], [1, 2]),
        ({"contains": {"const": 1}, "minContains": 2, "maxContains": 3}, [1, 1], [1, 1, 1, 1]),
        ({"if": {"type": "string"}, "then": {"minLength": 2}, "else": {"minimum": 2}}, "ab", 1),
        ({"patternProperties": {"^a": {"type": "string"}}, "additionalProperties": False}, {"ab": ""}, {"ab": 1}),
        ({"propertyNames": {"maxLength": 2}}, {"ab": 1}, {"abc": 1}),
        ({"uniqueItems": True}, [1, 2], [1, 1.0]),
        ({"multipleOf": 0.5}, 1.5, 1.3),
        ({"type": "integer", "exclusiveMinimum": 0}, 1.0, 0),
        ({"oneOf": [{"type": "string"}, {"maxLength": 2}]}, "abc", "ab"),
        ({"not": {"enum": [1, None]}}, 2, None),
        ({"type": ["string", "null"]}, None, 1),
    ],
)
def test_keywords_of_the_dialect(document: JsonValue, good: Any, bad: Any) -> None:
    assert accepts(document, good, bad) == [True, False]


@pytest.mark.req("C13.7-21")
def test_what_only_annotates_refuses_nothing() -> None:
    assert accepts(True, 1, None) == [True, True]
    assert accepts(False, 1) == [False]
    assert accepts({"format": "email", "contentSchema": {"type": "null"}}, "no address") == [True]
    # Neither words that nobody knows nor constants hold schemas: what looks like a reference there is none.
    assert accepts({"x-mine": {"$ref": "http://example.com/"}}, 1) == [True]
    assert accepts({"const": {"$ref": "http://example.com/"}}, {"$ref": "http://example.com/"}, {}) == [True, False]


@pytest.mark.req("C13.7-22", "C13.7-23")
@pytest.mark.parametrize(
    ("document", "members"),
    [
        ({"$ref": "#/$defs/x", **REFERRED}, ()),
        ({"$ref": "#word", **REFERRED}, ()),
        ({"$ref": OTHER + "#/$defs/x"}, (REFERRED,)),
        ({"$ref": OTHER + "#word"}, (REFERRED,)),
        ({"$id": "http://example.com/dir/a", "$ref": "b", "$defs": {"b": {"$id": "b", "type": "string"}}}, ()),
        ({"$id": "http://example.com", "$ref": "b", "$defs": {"b": {"$id": "b", "type": "string"}}}, ()),
        (
            {
                "$id": "http://example.com/a",
                "$ref": "http://example.com/b",
                "$defs": {"b": {"$id": "b", "type": "string"}},
            },
            (),
        ),
        ({"$ref": "urn:x:y", "$defs": {"b": {"$id": "urn:x:y", "type": "string"}}}, ()),
        ({"$ref": "urn:x:y#/$defs/c", "$defs": {"b": {"$id": "urn:x:y", "$defs": {"c": {"type": "string"}}}}}, ()),
        ({"$dynamicRef": "#n", "$defs": {"x": {"$dynamicAnchor": "n", "type": "string"}}}, ()),
        ({"definitions": {"x": {"type": "string"}}, "$ref": "#/definitions/x"}, ()),
        ({"$ref": "#/properties/a", "properties": {"a": {"type": "string"}}}, ()),
    ],
)
def test_references_resolve_inside_the_bundle(document: JsonValue, members: tuple[JsonValue, ...]) -> None:
    assert accepts(document, "a", 1, members=members) == [True, False]


@pytest.mark.req("C13.7-22")
def test_a_pointer_is_unescaped() -> None:
    document: dict[str, Any] = {"$ref": "#/$defs/a~1b~0c%25d", **REFERRED}
    assert accepts(document, 1, "a") == [True, False]


@pytest.mark.req("C13.7-23")
def test_a_dynamic_reference_means_the_outermost_anchor() -> None:
    document: dict[str, Any] = {
        "$id": "http://example.com/root",
        "$ref": "list",
        "$defs": {
            "l": {
                "$id": "list",
                "type": "array",
                "items": {"$dynamicRef": "#T"},
                "$defs": {"T": {"$dynamicAnchor": "T"}},
            },
            "s": {"$dynamicAnchor": "T", "type": "string"},
        },
    }
    assert accepts(document, ["a"], [1]) == [True, False]


@pytest.mark.req("C13.7-22", "C13.7-23")
@pytest.mark.parametrize(
    "reference",
    [
        "http://example.com/schema",
        "https://example.com/schema#/a",
        "https://json-schema.org/draft/2020-12/schema",
        "file:///etc/passwd",
        "urn:example:x",
        "schema.json",
        "#/$defs/nothing",
        "#nothing",
        "#/x-mine",
        "#/const",
        "#/$defs",
        "#/$defs/x/enum/0",
        OTHER,
        OTHER + "#word",
        "cotal:sha256:" + "A" * 64,
        "cotal:md5:" + "a" * 32,
        digest(REFERRED),
        "#/%24defs%2Fx",
        7,
        None,
    ],
)
def test_references_that_lead_out_are_refused(reference: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_network(*_: object, **__: object) -> None:
        raise AssertionError("a schema was looked up")

    monkeypatch.setattr(socket, "socket", no_network)
    parts: dict[str, Any] = {
        "$defs": {"x": {"enum": [{"type": "string"}]}},
        "x-mine": {"type": "string"},
        "const": {"type": "string"},
    }
    for keyword in ("$ref", "$dynamicRef"):
        refused({keyword: reference, **parts})
        refused({"properties": {"deep": {"items": [{keyword: reference}]}}, **parts})
        refused({"items": {keyword: reference}, **parts})


@pytest.mark.req("C13.7-23")
@pytest.mark.parametrize(
    "name",
    ["b", "../b", "http://example.com/%61", "http://example.com/a/../b", "http://example.com/a?b", "HTTP://example.com",
     "file:///a", "cotal:" + samples.VOID, "https://json-schema.org/draft/2020-12/schema", "#a", "", 7],
)  # fmt: skip
def test_identifiers_that_readers_could_resolve_otherwise_are_refused(name: Any) -> None:
    refused({"$id": name})
    refused({"$defs": {"a": {"$id": name}}})


@pytest.mark.req("C13.7-23")
def test_identifiers_and_anchors_stand_once_and_in_their_own_document() -> None:
    refused({"$defs": {"a": {"$id": "urn:x:y"}, "b": {"$id": "urn:x:y"}}})
    refused({"$defs": {"a": {"$anchor": "x"}, "b": {"$anchor": "x"}}})
    refused({"$defs": {"a": {"$anchor": "x"}, "b": {"$dynamicAnchor": "x"}}})
    named = {"$id": "http://example.com/a", "type": "string"}
    refused({"allOf": [{"$ref": f"cotal:{digest(named)}"}, {"$ref": "http://example.com/a"}]}, named)
    refused({"$id": "http://example.com/a", "$ref": f"cotal:{digest(named)}"}, named)


@pytest.mark.req("C13.7-21", "C13.7-24")
@pytest.mark.parametrize(
    "document",
    [
        {"type": "strng"},
        {"properties": []},
        {"allOf": {}},
        {"properties": {"a": 1}},
        {"maxLength": -1},
        {"$schema": "http://json-schema.org/draft-07/schema#"},
        {"$schema": "https://example.com/own"},
        {"$defs": {"a": {"$id": "urn:x:y", "$schema": "http://json-schema.org/draft-07/schema#"}}},
        {"$recursiveRef": "#"},
        {"dependencies": {"a": ["b"]}},
        {"pattern": "("},
        {"pattern": "(?=a)"},
        {"pattern": "(a)\\1"},
        {"patternProperties": {"[": {}}},
        {"$defs": {"unused": {"pattern": "("}}},
        {"items": [{}]},
        "text",
        [],
        None,
        7,
    ],
)
def test_what_is_no_schema_of_the_dialect_is_refused(document: JsonValue) -> None:
    refused(document)
    if isinstance(document, dict):
        refused({"$ref": f"cotal:{digest(document)}"}, document)


@pytest.mark.req("C13.7-21", "C13.7-24")
@pytest.mark.parametrize("fault", [{"type": "strng"}, {"pattern": "("}, {"$defs": {"unused": {"pattern": "(?=a)"}}}])
def test_a_member_is_judged_whole_although_a_part_of_it_is_used(fault: dict[str, Any]) -> None:
    member = {**fault, "$defs": {**fault.get("$defs", {}), "x": {"type": "string"}}}
    refused({"$ref": f"cotal:{digest(member)}#/$defs/x"}, member)


@pytest.mark.req("C13.7-25")
def test_a_fault_names_the_field_and_nothing_of_the_value() -> None:
    inner: dict[str, Any] = {
        "type": "object",
        "properties": {"age": {"type": "integer", "maximum": 9}},
        "required": ["age"],
    }
    check = schema(
        {"properties": {"people": {"type": "array", "items": inner}}, "additionalProperties": False}
    ).shape.check
    assert check({"people": [{"age": 1}, {"age": "secret"}]}) == (
        "people[1].age",
        "is of another type than the schema wants",
    )
    assert check({"people": [{"age": 77}]}) == ("people[0].age", "breaks the rule maximum of the schema")
    assert check({"people": [{}]}) == ("people[0]", "lacks a member that the schema requires")
    assert check({"secret": 1}) == ("", "has a member that the schema does not know")
    names = schema({"additionalProperties": {"additionalProperties": {"type": "null"}}}).shape.check
    found = names({"se cret\n": {"x" * 65: 1}})
    assert found is not None
    assert found.field == "?.?"
    deep = names({"a" * 60: {"b" * 60: 1}})
    assert deep is not None
    assert len(deep.field) <= schemas.MAX_PATH


@pytest.mark.req("C13.7-25")
@pytest.mark.parametrize("value", [object(), {1: 2}, "\ud800", b"x", {1, 2}])
def test_a_value_that_is_no_json_has_a_fault(value: object) -> None:
    """As far as the schema looks at it; what is sent is checked whole by the canonical form."""
    assert schema({"type": ["object", "string", "array"]}).shape.check(value) is not None


def test_a_large_value_is_refused_without_an_explanation() -> None:
    """A validator takes long to say which branch of a union is broken where."""
    check = schema({"items": {"anyOf": [{"type": "string"}, {"type": "null"}]}}).shape.check
    assert check([*["a"] * 20_000, 7]) == ("", "does not fit the schema")
    small = check(["a", 7])
    assert small is not None
    assert small.field == "[1]"


@pytest.mark.req("C13.7-24")
def test_compiled_closures_are_kept_last_used_first_and_bounded() -> None:
    first = schema({"const": "first"})
    for number in range(CACHED - 1):
        schema({"const": number})
    assert schema({"const": "first"}) is first
    assert len(COMPILED) == CACHED
    schema({"const": "one more"})
    assert len(COMPILED) == CACHED
    assert COMPILED.get(first.closure) is first
    assert COMPILED.get(single({"const": 0}).digest) is None


def test_schemas_from_text_and_from_values_are_one() -> None:
    text = json.dumps(samples.OUTPUT, indent=2)
    assert schema(json.loads(text)) is schema(samples.OUTPUT)
