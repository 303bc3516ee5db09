"""Content addressing: digests byte for byte, and closures of which nothing is believed."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from sidecar.base.strictjson import JsonValue, canonical
from sidecar.rails.endpoint import artifacts
from sidecar.rails.endpoint.artifacts import (
    MAX_ARTIFACTS,
    MAX_CLOSURE,
    MAX_DOCUMENT,
    MAX_NESTING,
    ContractInvalid,
    MissingArtifact,
    artifact,
    digest,
    digest_of,
    is_digest,
    manifest,
    needed,
    read_closure,
    single,
)
from sidecar.rails.endpoint.codes import Code
from sidecar.rails.endpoint.schema_walk import MAX_CHAIN
from tests.unit.rails.endpoint import contract_samples as samples

STORED: dict[str, bytes] = {
    samples.INPUT_CLOSURE: samples.INPUT_MANIFEST.encode(),
    samples.INPUT_DIGEST: samples.INPUT_TEXT.encode(),
    samples.MEMBER_DIGEST: samples.MEMBER_TEXT.encode(),
}


@pytest.mark.req("C13.7-27", "C13.7-28", "C13.7-29", "C13.7-30")
@pytest.mark.parametrize(
    ("text", "expected", "closure"),
    [
        ('{"type":"null"}', samples.VOID, samples.VOID_CLOSURE),
        (samples.MEMBER_TEXT, samples.MEMBER_DIGEST, None),
        (samples.INPUT_TEXT, samples.INPUT_DIGEST, None),
        (samples.INPUT_MANIFEST, samples.INPUT_CLOSURE, None),
        (samples.OUTPUT_TEXT, samples.OUTPUT_DIGEST, samples.OUTPUT_CLOSURE),
        (samples.CLUSTER_TEXT, samples.CLUSTER_DIGEST, samples.CLUSTER_CLOSURE),
        ("null", "sha256:74234e98afe7498fb5daf1f36ac2d78acc339464f950703b8c019892f982b90b", None),
        ("{}", "sha256:44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a", None),
        ('{"text":"hi"}', "sha256:e7b995efa755c5ff3b84d2188b58cb4ae916a59470eb3761df8a814f11763500", None),
        ('{"capacity":8,"mode":"on-demand"}', None, None),
    ],
)
def test_vectors_byte_for_byte(text: str, expected: str | None, closure: str | None) -> None:
    value = json.loads(text)
    assert canonical(value) == text.encode()
    policy = "sha256:caf04202bcc7028cada152dc54b2126950ef6431d5e3b9cdbec85ce5c8002466"
    assert digest(value) == (expected or policy)
    if closure is not None:
        assert single(value).digest == closure
        assert single(value).root == expected


@pytest.mark.req("C13.7-27")
def test_numbers_and_key_order_of_the_rfc() -> None:
    numbers: JsonValue = {"numbers": [333333333.33333329, 1e30, 4.50, 2e-3, 0.000000000000000000000000001]}
    assert canonical(numbers) == b'{"numbers":[333333333.3333333,1e+30,4.5,0.002,1e-27]}'
    assert digest(numbers) == "sha256:7c892d3452ad85ad65857a43e8dcac93b79475d2334fc3e85bac5c599142c158"
    keys = {
        "€": "Euro Sign",
        "\r": "Carriage Return",
        "\ufb33": "Hebrew Letter Dalet With Dagesh",
        "1": "One",
        "\U0001f600": "Emoji: Grinning Face",
        "\u0080": "Control",
        "ö": "Latin Small Letter O With Diaeresis",
    }
    assert digest(keys) == "sha256:5e321556d22018a9656991a9e94f77ec175fa193e52a2429d312f8419ec8b08c"


@pytest.mark.req("C13.7-30")
@pytest.mark.parametrize(
    "wrong", ["", "a" * 64, "sha256:" + "A" * 64, "sha256:" + "a" * 63, "sha256:" + "a" * 65, None, 7]
)
def test_a_digest_is_lowercase_and_names_its_algorithm(wrong: object) -> None:
    assert is_digest(samples.VOID)
    assert not is_digest(wrong)


@pytest.mark.req("C13.7-28", "C13.7-35", "C13.7-36")
def test_a_closure_is_fetched_by_its_manifest_and_verified() -> None:
    assert needed(samples.INPUT_CLOSURE, {}) == [samples.INPUT_CLOSURE]
    have = {samples.INPUT_CLOSURE: STORED[samples.INPUT_CLOSURE]}
    assert needed(samples.INPUT_CLOSURE, have) == [samples.INPUT_DIGEST, samples.MEMBER_DIGEST]
    assert needed(samples.INPUT_CLOSURE, STORED) == []
    found = read_closure(samples.INPUT_CLOSURE, STORED)
    assert (found.digest, found.root) == (samples.INPUT_CLOSURE, samples.INPUT_DIGEST)
    assert found.members == frozenset({samples.MEMBER_DIGEST})
    assert found.documents == {samples.INPUT_DIGEST: samples.INPUT, samples.MEMBER_DIGEST: samples.MEMBER}
    assert found.artifacts == STORED


@pytest.mark.req("C13.7-27", "C13.7-36")
def test_what_is_stored_otherwise_than_canonical_is_verified_by_its_canonical_form() -> None:
    """OPEN C13.7-d: white space and order do not matter, what reads in two ways does."""
    loose = {name: json.dumps(json.loads(data), indent=1).encode() for name, data in STORED.items()}
    assert read_closure(samples.INPUT_CLOSURE, loose).artifacts == STORED
    values: dict[str, JsonValue] = {name: json.loads(data) for name, data in STORED.items()}
    assert read_closure(samples.INPUT_CLOSURE, values).artifacts == STORED


@pytest.mark.req("C13.7-36")
@pytest.mark.parametrize("name", STORED)
def test_a_poisoned_artifact_fails_loudly(name: str) -> None:
    other = STORED[name].replace(b"1", b"2", 1)
    for poison in (other, b"{}", b'{"type":"null"}', json.loads(other)):
        with pytest.raises(ContractInvalid) as caught:
            read_closure(samples.INPUT_CLOSURE, {**STORED, name: poison})
        assert caught.value.code == Code.CONTRACT_INVALID
    with pytest.raises(MissingArtifact) as missing:
        read_closure(samples.INPUT_CLOSURE, {key: data for key, data in STORED.items() if key != name})
    assert missing.value.digest == name


@pytest.mark.req("C13.7-27", "C13.7-36")
@pytest.mark.parametrize(
    "text",
    [
        b'{"type":"null","type":"null"}',
        b'{"type":"nul\\ud800"}',
        b'{"type":"null"',
        b'{"type":"null"} {}',
        b'\xef\xbb\xbf{"type":"null"}',
        b'{"type":"nul\xff"}',
        b'{"const":9007199254740992}',
        b'{"const":1e999}',
        b"",
    ],
)
def test_text_that_readers_disagree_on_is_no_artifact(text: bytes) -> None:
    with pytest.raises(ContractInvalid, match="strict JSON"):
        read_closure(samples.VOID_CLOSURE, {samples.VOID_CLOSURE: text})


def _value(**changes: Any) -> dict[str, Any]:
    return {"v": 1, "root": samples.INPUT_DIGEST, "members": [samples.MEMBER_DIGEST], **changes}


@pytest.mark.req("C13.7-28")
@pytest.mark.parametrize(
    "wrong",
    [
        _value(v=2),
        _value(v=True),
        _value(v="1"),
        _value(root="sha256:" + "A" * 64),
        _value(root=None),
        _value(members=[samples.VOID, samples.MEMBER_DIGEST]),
        _value(members=[samples.MEMBER_DIGEST] * 2),
        _value(members=["x"]),
        _value(members=[7]),
        _value(members={}),
        _value(more=1),
        {"v": 1, "root": samples.INPUT_DIGEST},
        [],
        None,
    ],
)
def test_a_manifest_is_exact_sorted_and_names_nothing_twice(wrong: JsonValue) -> None:
    name = digest(wrong)
    for read in (needed, read_closure):
        with pytest.raises(ContractInvalid, match="manifest"):
            read(name, {name: wrong})


@pytest.mark.req("C13.7-24", "C13.7-28")
def test_a_manifest_lists_at_most_63_members() -> None:
    names = sorted(digest(number) for number in range(MAX_ARTIFACTS))
    most: dict[str, Any] = {"v": 1, "root": samples.VOID, "members": names[:-1]}
    assert len(needed(digest(most), {digest(most): most})) == MAX_ARTIFACTS
    more: dict[str, Any] = {**most, "members": names}
    with pytest.raises(ContractInvalid, match="at most 63"):
        needed(digest(more), {digest(more): more})


def _sized(size: int) -> JsonValue:
    """A document of exactly so many canonical bytes."""
    return {"const": "x" * (size - len('{"const":""}'))}


def _nested(levels: int) -> JsonValue:
    value: JsonValue = {}
    for _ in range(levels - 1):
        value = {"not": value}
    return value


@pytest.mark.req("C13.7-24")
def test_the_bounds_of_contracts_are_those_of_the_specification() -> None:
    assert (MAX_DOCUMENT, MAX_CLOSURE, MAX_NESTING, MAX_CHAIN) == (262_144, 1_048_576, 32, 32)


@pytest.mark.req("C13.7-24")
@pytest.mark.parametrize(("make", "most"), [(_sized, MAX_DOCUMENT), (_nested, MAX_NESTING)])
def test_a_document_is_bounded(make: Callable[[int], JsonValue], most: int) -> None:
    for number in (most - 1, most):
        assert digest_of(artifact(make(number))) == digest(make(number))
    for value in (make(most + 1), canonical(make(most + 1))):
        name = digest(make(most + 1))
        with pytest.raises(ContractInvalid):
            read_closure(name, {name: value})
    with pytest.raises(ContractInvalid):
        artifact(make(most + 1))


@pytest.mark.req("C13.7-24")
@pytest.mark.parametrize("beyond", [-1, 0, 1])
def test_a_closure_is_bounded(beyond: int) -> None:
    sizes = [MAX_DOCUMENT - less for less in (20, 21, 22, 23)]
    sizes.append(MAX_CLOSURE - sum(sizes) + beyond)
    data = {digest_of(one): one for one in (canonical(_sized(size)) for size in sizes)}
    assert sum(map(len, data.values())) == MAX_CLOSURE + beyond
    root, *members = data
    listing = manifest(root, set(members))
    have = {**data, digest_of(listing): listing}
    if beyond <= 0:
        assert len(read_closure(digest_of(listing), have).documents) == 5
    else:
        with pytest.raises(ContractInvalid, match="closure"):
            read_closure(digest_of(listing), have)


def test_values_that_json_cannot_hold_are_no_artifacts() -> None:
    for value in ({"a": float("nan")}, {"a": object()}, {"a": "\ud800"}, {"a": 2**53}):
        with pytest.raises(ContractInvalid):
            artifact(value)  # type: ignore[arg-type]
    with pytest.raises(ContractInvalid):
        artifacts.needed("sha256:nothing", {"sha256:nothing": {}})
