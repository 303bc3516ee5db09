"""Clusters, records and closures there and back, and what any other document meets: a typed refusal, nothing else."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from sidecar.base.strictjson import JsonValue, canonical
from sidecar.rails.endpoint.artifacts import ContractInvalid, MissingArtifact, digest, needed, read_closure, single
from sidecar.rails.endpoint.clusters import (
    AdmissionCeiling,
    Attribute,
    Cluster,
    Command,
    Event,
    Surface,
    UnsupportedProtocol,
    compatibility,
    load_cluster,
    read_cluster,
)
from sidecar.rails.endpoint.contract import document
from sidecar.rails.endpoint.contracts import KNOWN
from sidecar.rails.endpoint.descriptor import Descriptor, read_descriptor
from sidecar.rails.endpoint.schemas import load, schema
from sidecar.rails.endpoint.service_record import Activation, ServiceSpec, ServiceStatus, read_spec, read_status
from sidecar.rails.envelopes.errors import EnvelopeError
from sidecar.rails.envelopes.shapes import Shape
from sidecar.rails.names.tokens import MODES
from tests.unit.rails.endpoint import contract_samples as samples

T = TypeVar("T")
THOROUGH = settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
LABELS = st.from_regex(r"[a-z0-9](?:[a-z0-9-]{0,6}[a-z0-9])?", fullmatch=True)
URNS = st.lists(LABELS, min_size=2, max_size=16).map(".".join)
DIGESTS = st.from_regex(r"sha256:[0-9a-f]{64}", fullmatch=True)
NUMBERS = st.integers(0, 2**53 - 1)
COMMAND_NAMES = st.from_regex(r"[a-z0-9-]{1,32}", fullmatch=True).filter(
    lambda name: name not in ("describe", "cancel")
)
ITEM_NAMES = st.from_regex(r"[A-Za-z0-9_-]{1,64}", fullmatch=True)


@st.composite
def commands(draw: st.DrawFn, effects: bool) -> Command:
    journal = draw(st.booleans())
    action = journal and draw(st.booleans())
    return Command(
        name=draw(COMMAND_NAMES),
        input_digest=draw(DIGESTS),
        output_digest=draw(DIGESTS),
        capability=draw(st.from_regex(r"[a-z][a-z0-9._-]{0,63}", fullmatch=True)),
        contract_class="journal" if journal else "ephemeral",
        modes=tuple(draw(st.lists(st.sampled_from(MODES), unique=True))),
        effect=draw(st.sampled_from(["read", "write"])) if effects else None,
        traits=tuple(draw(st.lists(URNS, unique=True, max_size=3))),
        action=action,
        ceiling=AdmissionCeiling(*draw(st.tuples(*[st.integers(1, 2**53 - 1)] * 3))) if journal else None,
        readiness_ms=draw(st.none() | NUMBERS) if action else None,
    )


@st.composite
def clusters(draw: st.DrawFn, effects: bool) -> Cluster:
    names = st.lists(ITEM_NAMES, unique=True, max_size=3)
    return Cluster(
        draw(URNS),
        draw(NUMBERS),
        tuple(draw(st.lists(commands(effects), min_size=1, max_size=4, unique_by=lambda one: one.name))),
        tuple(Event(name, draw(DIGESTS)) for name in draw(names)),
        tuple(Attribute(name, draw(DIGESTS), draw(st.text(min_size=1, max_size=9))) for name in draw(names)),
    )


def again(value: JsonValue) -> Any:
    """What comes out of storage."""
    return json.loads(canonical(value))


@pytest.mark.req("C13.7-01", "C13.7-04", "C13.7-29")
@THOROUGH
@given(st.booleans().flatmap(lambda effects: st.tuples(clusters(effects), st.just(2 if effects else 1))))
def test_clusters_and_descriptors_there_and_back(made: tuple[Cluster, int]) -> None:
    cluster, protocol = made
    assert read_cluster(again(cluster.value()), protocol) == cluster
    assert load_cluster(cluster.closure, cluster.artifacts, protocol) == cluster
    surface = Surface((cluster,), protocol)
    assert compatibility(surface, surface) == ()
    for held in (None, (), (cluster.commands[0].name,)):
        told = Descriptor.of(surface, "com.acme.echo", "local", held=held)
        found = read_descriptor(again(told.value()))
        assert found == told
        assert {name for one in found.clusters for name in one.commands} <= set(surface.commands)


@pytest.mark.req("C13.7-61")
@THOROUGH
@given(
    st.builds(
        ServiceSpec,
        st.just("com.acme.echo"),
        st.just("local"),
        st.lists(DIGESTS, unique=True, min_size=1, max_size=4).map(tuple),
        st.sampled_from([1, 2]),
        st.none() | URNS,
        st.none() | st.builds(Activation, st.integers(1, 99), st.none() | NUMBERS, st.none() | st.integers(1, 99)),
    ),
    st.builds(
        ServiceStatus,
        NUMBERS,
        st.from_regex(r"[a-z][a-z0-9-]{0,31}", fullmatch=True),
        NUMBERS,
        st.dictionaries(st.sampled_from(["restarts", "retiredAt", "x"]), st.integers(0, 9)),
    ),
)
def test_records_there_and_back(spec: ServiceSpec, status: ServiceStatus) -> None:
    assert read_spec(again(spec.value())) == spec
    assert read_status(again(status.value())) == status


# ---- anything else ----

KEYS = st.sampled_from(
    [
        *("urn", "revision", "commands", "events", "attributes", "name", "class", "protocol", "v", "clusters"),
        *("descriptor", "public", "digest", "document", "endpoint", "owner", "root", "members"),
    ]
)
LEAVES: st.SearchStrategy[Any] = (
    st.none()
    | st.booleans()
    | st.integers(-9, 9)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=6)
    | st.sampled_from(["echo", "local", "com.acme.echo", samples.VOID, samples.CLUSTER_CLOSURE])
)
JSON: st.SearchStrategy[Any] = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=5)
)


def places(value: Any) -> list[tuple[Any, Any]]:
    """Every (container, key) of a value."""
    found: list[tuple[Any, Any]] = []
    if isinstance(value, dict):
        found = [(value, name) for name in value]
    elif isinstance(value, list):
        found = [(value, index) for index in range(len(value))]
    return found + [place for container, key in found for place in places(container[key])]


def outcome(call: Callable[..., T], *given: Any) -> T | None:
    """What a reader gives, None for a typed refusal that says little."""
    try:
        return call(*given)
    except (ContractInvalid, EnvelopeError, UnsupportedProtocol) as error:
        if len(str(error)) > 2_000:
            raise AssertionError("a refusal without bounds") from error
        return None


@pytest.mark.req("C13.7-01", "C13.7-04", "C13.7-36", "C13.7-61", "C13.7-65")
@THOROUGH
@given(st.data(), JSON)
def test_any_document_is_read_or_refused(data: st.DataObject, odd: Any) -> None:
    cluster = {"digest": samples.CLUSTER_CLOSURE, "commands": ["echo"], "document": samples.cluster()}
    descriptor = {"endpoint": "a.b", "owner": "local", "protocol": {"v": 1}, "clusters": [cluster]}
    whole = data.draw(
        st.sampled_from([samples.cluster(), samples.cluster_2(), {"public": True, "descriptor": descriptor}, odd])
    )
    value = json.loads(json.dumps(whole))
    spoil: bool = data.draw(st.booleans())
    if spoil and (found := places(value)):
        container, key = data.draw(st.sampled_from(found))
        container[key] = odd
    for protocol in (1, 2):
        read = outcome(read_cluster, value, protocol)
        assert read is None or again(read.value()) == value
    readers: tuple[Callable[[Any], object], ...] = (read_descriptor, read_spec, read_status)
    for reader in readers:
        outcome(reader, value)
    closure = outcome(single, value)
    assert closure is None or read_closure(closure.digest, closure.artifacts) == closure


@pytest.mark.req("C13.7-36", "C13.7-35")
@THOROUGH
@given(st.data())
def test_a_closure_with_one_byte_changed_is_refused(data: st.DataObject) -> None:
    made = schema(samples.INPUT, [samples.MEMBER])
    name = data.draw(st.sampled_from(sorted(made.artifacts)))
    stored = bytearray(made.artifacts[name])
    at = data.draw(st.integers(0, len(stored) - 1))
    stored[at] = data.draw(st.integers(0, 255))
    have = {**made.artifacts, name: bytes(stored)}
    with contextlib.suppress(ValueError):
        assume(canonical(json.loads(stored)) != made.artifacts[name])
    try:
        assert not needed(made.closure, have) or name == made.closure
        read_closure(made.closure, have)
    except (ContractInvalid, MissingArtifact):
        return
    raise AssertionError("a changed artifact was taken")


# ---- schemas ----

KEYWORDS = st.sampled_from(
    [
        *("type", "const", "enum", "maxLength", "pattern", "properties", "items", "allOf", "anyOf", "not", "required"),
        *("additionalProperties", "$ref", "$dynamicRef", "$defs", "$id", "$anchor", "$schema"),
    ]
)
ARGUMENTS = st.sampled_from(["string", "object", "#", "#/$defs/a", "a", "^a*$", 3, True, None, ["a"], {"type": "null"}])
WORDS: st.SearchStrategy[Any] = st.recursive(
    ARGUMENTS,
    lambda inner: (
        st.dictionaries(KEYWORDS, inner, max_size=4)
        | st.lists(inner, max_size=2)
        | st.dictionaries(st.sampled_from("ab"), inner, max_size=2)
    ),
    max_leaves=12,
)


@pytest.mark.req("C13.7-22", "C13.7-24")
@settings(max_examples=600, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(WORDS, JSON)
def test_any_schema_compiles_or_is_refused_and_judges_without_raising(made: Any, value: Any) -> None:
    compiled = outcome(schema, made)
    if compiled is None:
        return
    assert load(compiled.closure, compiled.artifacts).closure == compiled.closure
    first = compiled.shape.check(value)
    assert compiled.shape.check(value) == first
    assert digest(made) == compiled.root


SHAPES: list[tuple[str, Shape]] = [
    (f"{endpoint} {name} {side}", shape)
    for endpoint, known in KNOWN.items()
    for name, one in known.items()
    for side, shape in (("input", one.input), ("output", one.output))
]


def instances(words: dict[str, Any]) -> st.SearchStrategy[Any]:
    """Values that fit a schema of ours, nearly always."""
    if "const" in words:
        return st.just(words["const"])
    if "enum" in words:
        return st.sampled_from(words["enum"])
    for union in ("anyOf", "oneOf"):
        if union in words:
            return st.one_of([instances(one) for one in words[union]])
    match words.get("type"):
        case "object":
            return _objects(words)
        case "array":
            most = min(words.get("maxItems", 3), 3)
            return st.lists(instances(words["items"]), min_size=min(words.get("minItems", 0), most), max_size=most)
        case "string" if "pattern" in words:
            return st.from_regex(words["pattern"].replace("$", r"\Z"))
        case "string":
            return st.text(min_size=words.get("minLength", 0), max_size=words.get("minLength", 0) + 5)
        case "integer":
            return st.integers(words.get("minimum", -9), words.get("maximum", 2**53 - 1))
        case "boolean":
            return st.booleans()
        case "null":
            return st.none()
    return JSON


def _objects(words: dict[str, Any]) -> st.SearchStrategy[Any]:
    members = {name: instances(one) for name, one in words.get("properties", {}).items()}
    if not members and isinstance(words.get("additionalProperties"), dict):
        return st.dictionaries(st.text(max_size=3), instances(words["additionalProperties"]), max_size=2)
    required = words.get("required", ())
    return st.fixed_dictionaries(
        {name: one for name, one in members.items() if name in required},
        optional={name: one for name, one in members.items() if name not in required},
    )


@pytest.mark.req("C13.7-21", "C13.7-25")
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
@pytest.mark.parametrize("shape", [one for _, one in SHAPES], ids=[name for name, _ in SHAPES])
def test_a_shape_and_its_compiled_schema_agree(shape: Shape, data: st.DataObject) -> None:
    """The checks in Python are the oracle of the validator, on what fits and on what was changed in one place."""
    compiled = schema(document(shape)).shape
    value = data.draw(instances(shape.schema))
    assert (shape.check(value) is None) == (compiled.check(value) is None)
    spoilt = json.loads(json.dumps(value))
    if found := places(spoilt):
        container, key = data.draw(st.sampled_from(found))
        container[key] = data.draw(
            st.none() | st.booleans() | st.integers(-3, 99) | st.text(max_size=3) | st.just([]) | st.just({})
        )
    assert (shape.check(spoilt) is None) == (compiled.check(spoilt) is None)
