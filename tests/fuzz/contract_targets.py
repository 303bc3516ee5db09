"""Contracts of strangers: damaged clusters, descriptors, records and closures are read or refused, nothing else."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

from sidecar.base.strictjson import JsonError, canonical, parse
from sidecar.rails.endpoint.artifacts import ContractInvalid, MissingArtifact, digest_of, manifest, needed
from sidecar.rails.endpoint.clusters import UnsupportedProtocol, load_cluster, read_cluster
from sidecar.rails.endpoint.descriptor import read_descriptor
from sidecar.rails.endpoint.schemas import load
from sidecar.rails.endpoint.service_record import read_spec, read_status
from sidecar.rails.envelopes.errors import EnvelopeError
from tests.fuzz.mutate import mutated
from tests.unit.rails.endpoint import contract_samples as samples

REFUSALS = (ContractInvalid, MissingArtifact, UnsupportedProtocol, EnvelopeError)
DESCRIPTOR: dict[str, Any] = {
    "public": True,
    "descriptor": {
        "endpoint": "com.acme.echo",
        "owner": "local",
        "protocol": {"v": 1},
        "clusters": [{"digest": samples.CLUSTER_CLOSURE, "commands": ["echo"], "document": samples.cluster()}],
    },
}
SPEC: dict[str, Any] = {
    "endpoint": "com.acme.echo",
    "owner": "local",
    "clusterDigests": [samples.CLUSTER_CLOSURE],
    "protocol": {"v": 2},
    "activation": {"mode": "on-demand", "capacity": 1},
}
STATUS: dict[str, Any] = {"epoch": 0, "state": "ready", "observedSpecRevision": 1, "more": [1]}
DOCUMENTS = [canonical(one) for one in (samples.cluster(), samples.cluster_2(), DESCRIPTOR, SPEC, STATUS)]
SCHEMAS = [
    samples.INPUT_TEXT.encode(),
    samples.OUTPUT_TEXT.encode(),
    b'{"$id":"http://a.b/c","$ref":"d","$defs":{"d":{"$id":"d","$anchor":"x","pattern":"^a*$"}}}',
    b'{"$defs":{"n":{"anyOf":[{"type":"null"},{"properties":{"c":{"$ref":"#/$defs/n"}}}]}},"$ref":"#/$defs/n"}',
    b'{"properties":{"a":{"$dynamicRef":"#t"}},"$defs":{"t":{"$dynamicAnchor":"t","enum":[1,"a"]}},"unevaluatedProperties":false}',
]
VALUES: list[Any] = [None, 1, "a", {"text": "hi", "tag": "a"}, {"c": {"c": None}}, {"a": [1]}, [], 1.5]


def attempt(call: Callable[..., Any], *given: Any) -> Any:
    """The result, None for a refusal, which says little."""
    try:
        return call(*given)
    except REFUSALS as error:
        if len(str(error)) > 2_000:
            raise AssertionError("a refusal without bounds") from error
        return None


def contracts(draw: random.Random) -> None:
    """Documents with damage, as they come out of messages and records."""
    try:
        value = parse(mutated(draw, draw.choice(DOCUMENTS), 3))
    except JsonError:
        return
    for protocol in (1, 2):
        cluster = attempt(read_cluster, value, protocol)
        if cluster is not None:
            assert load_cluster(cluster.closure, cluster.artifacts, protocol) == cluster
    readers: tuple[Callable[[Any], object], ...] = (read_descriptor, read_spec, read_status)
    for reader in readers:
        attempt(reader, value)


def closures(draw: random.Random) -> None:
    """Schemas with damage under the digests that they then have, and manifests with damage."""
    data = draw.choice(SCHEMAS)
    if draw.random() < 0.9:
        data = mutated(draw, data, 2)
    member = samples.MEMBER_TEXT.encode()
    members = {samples.MEMBER_DIGEST} if samples.MEMBER_DIGEST.encode() in data else set()
    try:
        root = canonical(parse(data, safe_integers=True))
    except (JsonError, ValueError):
        root = data
    listing = manifest(digest_of(root), members)
    if draw.random() < 0.2:
        listing = mutated(draw, listing, 2)
    have = {digest_of(root): data, samples.MEMBER_DIGEST: member, digest_of(listing): listing}
    attempt(needed, digest_of(listing), have)
    compiled = attempt(load, digest_of(listing), have)
    if compiled is not None:
        for value in VALUES:
            compiled.shape.check(value)
        assert json.loads(compiled.artifacts[compiled.root]) == json.loads(root)
