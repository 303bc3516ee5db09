"""What ``describe`` answers, and the records of registered instances."""

from __future__ import annotations

from typing import Any

import pytest

from sidecar.base.strictjson import JsonValue
from sidecar.rails.endpoint.artifacts import single
from sidecar.rails.endpoint.clusters import MAX_CLUSTERS, Surface, UnsupportedProtocol, read_cluster
from sidecar.rails.endpoint.codes import Code
from sidecar.rails.endpoint.descriptor import DescribedCluster, Descriptor, read_descriptor
from sidecar.rails.endpoint.service_record import Activation, ServiceSpec, ServiceStatus, read_spec, read_status
from sidecar.rails.envelopes.errors import EnvelopeError
from tests.unit.rails.endpoint import contract_samples as samples

SURFACE = Surface((read_cluster(samples.cluster(), 1),))


def answer(**changes: Any) -> dict[str, Any]:
    """A right answer, its descriptor changed."""
    cluster = {"digest": samples.CLUSTER_CLOSURE, "commands": ["echo", "drain"], "document": samples.cluster()}
    descriptor = {"endpoint": "com.acme.echo", "owner": "local", "protocol": {"v": 1}, "clusters": [cluster]}
    return {"public": False, "descriptor": {**descriptor, **changes}}


def described(**changes: Any) -> dict[str, Any]:
    """The same with its cluster changed."""
    return answer(clusters=[{**answer()["descriptor"]["clusters"][0], **changes}])


@pytest.mark.req("C13.7-65", "C13.7-68")
def test_the_shape_of_an_answer() -> None:
    """OPEN C13.7-h."""
    found = Descriptor.of(SURFACE, "com.acme.echo", "local", held=("echo", "drain", "whatever"))
    assert found.value() == answer()
    assert read_descriptor(answer()) == found
    assert found.clusters[0].cluster(1) == SURFACE.clusters[0]
    public = Descriptor.of(SURFACE, "com.acme.echo", "local", held=None, endpoint_type="com.acme.type")
    assert public.value() == {**answer(endpointType="com.acme.type"), "public": True}
    assert read_descriptor(public.value()) == public


@pytest.mark.req("C13.7-66")
def test_what_a_caller_may_know() -> None:
    part = Descriptor.of(SURFACE, "com.acme.echo", "local", held=("drain",))
    assert part.clusters == (DescribedCluster(samples.CLUSTER_CLOSURE, ("drain",)),)
    assert "document" not in str(part.value())
    assert part.clusters[0].cluster(1) is None
    nothing = Descriptor.of(SURFACE, "com.acme.echo", "local", held=())
    assert nothing.value() == answer(clusters=[])
    assert read_descriptor(nothing.value()) == nothing
    # To hold nothing is not the same as to be asked in public.
    assert not nothing.public


@pytest.mark.req("C13.7-18")
@pytest.mark.parametrize("version", [0, 3, 2**53 - 1])
def test_a_version_that_is_not_ours_fails_before_the_rest_is_read(version: int) -> None:
    unknown: JsonValue = {"descriptor": {"protocol": {"v": version, "more": 1}, "new": []}}
    for value in (answer(protocol={"v": version}), unknown):
        with pytest.raises(UnsupportedProtocol) as caught:
            read_descriptor(value)
        assert caught.value.code == Code.UNSUPPORTED_VERSION


@pytest.mark.req("C13.7-17", "C13.7-16", "C13.7-10")
def test_both_versions_are_read() -> None:
    two = samples.cluster_2()
    cluster = {"digest": samples.CLUSTER_2_CLOSURE, "commands": ["echo"], "document": two}
    found = read_descriptor(answer(protocol={"v": 2}, clusters=[cluster]))
    inlined = found.clusters[0].cluster(found.protocol)
    assert inlined is not None
    assert [one.effect for one in inlined.commands] == ["read", "write"]
    older = read_descriptor(answer(clusters=[cluster])).clusters[0].cluster(1)
    assert older is not None
    assert [one.reads for one in older.commands] == [False, False]
    with pytest.raises(EnvelopeError, match="no cluster"):
        read_descriptor(answer(protocol={"v": 2}))


@pytest.mark.req("C13.7-79")
def test_what_is_new_in_a_version_is_let_pass() -> None:
    value = answer(protocol={"v": 1, "hint": True}, newer={"a": 1})
    assert read_descriptor({**value, "also": 1}) == read_descriptor(answer())


@pytest.mark.req("C13.7-36", "C13.7-65")
@pytest.mark.parametrize(
    "wrong",
    [
        None,
        [],
        {},
        {"public": True},
        {**answer(), "public": 1},
        {"descriptor": answer()["descriptor"]},
        *(
            answer(**{name: one})
            for name in ("endpoint", "owner", "protocol", "clusters")
            for one in (None, 7, "A b", [1])
        ),
        answer(endpoint="a" * 65),
        answer(protocol={}),
        answer(protocol={"v": True}),
        answer(protocol={"v": "1"}),
        answer(endpointType="single"),
        answer(endpointType=None),
        answer(endpointType="a." + "b." * 130 + "c"),
        described(digest="sha256:" + "A" * 64),
        described(digest=samples.CLUSTER_DIGEST),
        described(digest=samples.CLUSTER_2_CLOSURE),
        described(document={}),
        described(document=samples.cluster(revision=7)),
        described(commands=["echo", "echo"]),
        described(commands=["echo", "other"]),
        described(commands=["Echo"]),
        described(commands=None),
        answer(clusters=[*answer()["descriptor"]["clusters"]] * 2),
        answer(clusters=[{"digest": single(at).digest, "commands": []} for at in range(MAX_CLUSTERS + 1)]),
    ],
)
def test_what_is_no_descriptor_is_refused(wrong: Any) -> None:
    with pytest.raises(EnvelopeError):
        read_descriptor(wrong)


# ---- records of instances ----

SPEC: dict[str, Any] = {
    "endpoint": "com.acme.echo",
    "owner": "u_abcdefghijklmnopqrstuvwxyz",
    "clusterDigests": [samples.CLUSTER_CLOSURE],
    "protocol": {"v": 1},
}
ODD: tuple[Any, ...] = (None, 7, "A b", [])
STATUS: dict[str, Any] = {"epoch": 0, "state": "ready", "observedSpecRevision": 7}


@pytest.mark.req("C13.7-61", "C13.6-97")
def test_specs_there_and_back() -> None:
    plain = ServiceSpec("com.acme.echo", SPEC["owner"], (samples.CLUSTER_CLOSURE,), 1)
    assert plain.value() == SPEC
    assert read_spec(SPEC) == plain
    block = {"mode": "on-demand", "capacity": 1, "maxRestarts": 3, "restartWindowMs": 60_000}
    whole = {**SPEC, "protocol": {"v": 2}, "endpointType": "com.acme.type", "activation": block}
    found = read_spec(whole)
    assert found.activation == Activation(1, 3, 60_000)
    assert (found.protocol, found.endpoint_type) == (2, "com.acme.type")
    assert found.value() == whole
    least = {**SPEC, "activation": {"mode": "on-demand", "capacity": 2}}
    assert read_spec(least).value() == least


@pytest.mark.req("C13.7-61")
@pytest.mark.parametrize(
    "changes",
    [
        *({name: one} for name in SPEC for one in ODD),
        {"clusterDigests": [samples.CLUSTER_CLOSURE] * 2},
        {"clusterDigests": ["sha256:" + "A" * 64]},
        {"clusterDigests": [single(at).digest for at in range(MAX_CLUSTERS + 1)]},
        {"protocol": {"v": True}},
        {"endpointType": "single"},
    ],
)
def test_specs_that_are_none(changes: dict[str, Any]) -> None:
    with pytest.raises(EnvelopeError):
        read_spec({**SPEC, **changes})
    with pytest.raises(EnvelopeError):
        read_spec(
            {name: value for name, value in SPEC.items() if name not in changes or name == "endpointType"} | changes
        )


@pytest.mark.req("C13.7-61")
def test_a_spec_needs_each_of_its_members() -> None:
    for name in SPEC:
        with pytest.raises(EnvelopeError):
            read_spec({key: value for key, value in SPEC.items() if key != name})


@pytest.mark.req("C13.6-97")
@pytest.mark.parametrize(
    "block",
    [
        {},
        {"mode": "on-demand"},
        {"capacity": 1},
        {"mode": "always", "capacity": 1},
        {"mode": "on-demand", "capacity": 0},
        {"mode": "on-demand", "capacity": "1"},
        {"mode": "on-demand", "capacity": 1, "more": 1},
        {"mode": "on-demand", "capacity": 1, "maxRestarts": -1},
        {"mode": "on-demand", "capacity": 1, "restartWindowMs": 0},
        None,
        7,
    ],
)
def test_an_activation_is_closed(block: Any) -> None:
    with pytest.raises(EnvelopeError, match="activation"):
        read_spec({**SPEC, "activation": block})


@pytest.mark.req("C13.7-19")
@pytest.mark.parametrize("version", [0, 3])
def test_a_record_of_another_version_is_refused(version: int) -> None:
    with pytest.raises(UnsupportedProtocol):
        read_spec({**SPEC, "protocol": {"v": version}})
    with pytest.raises(UnsupportedProtocol):
        read_spec({"protocol": {"v": version}})


@pytest.mark.req("C13.7-61", "C13.7-64")
def test_statuses_there_and_back() -> None:
    assert read_status(STATUS) == ServiceStatus(0, "ready", 7)
    assert read_status(STATUS).epoch == 0
    more = {**STATUS, "epoch": 2**53 - 1, "state": "x" * 32, "restarts": [{"t": 1, "epoch": 0}]}
    found = read_status(more)
    assert found.extra == {"restarts": [{"t": 1, "epoch": 0}]}
    assert found.value() == more
    # What is known is never overwritten by what is not.
    assert ServiceStatus(1, "exited", 2, {"epoch": 9}).value()["epoch"] == 1


@pytest.mark.req("C13.7-61", "C13.7-64", "C13.7-33")
@pytest.mark.parametrize(
    "changes",
    [
        *({name: one} for name in ("epoch", "observedSpecRevision") for one in (None, -1, 2**53, "0", 1.5, False)),
        *({"state": one} for one in (None, "", "Ready", "1x", "x" * 33, "a_b", 7)),
    ],
)
def test_statuses_that_are_none(changes: dict[str, Any]) -> None:
    with pytest.raises(EnvelopeError):
        read_status({**STATUS, **changes})
    (name,) = changes
    with pytest.raises(EnvelopeError):
        read_status({key: value for key, value in STATUS.items() if key != name})
