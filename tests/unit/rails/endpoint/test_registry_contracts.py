"""Contracts of the registry, the surfaces of compiled-in endpoints, and contracts out of clusters."""

from __future__ import annotations

from typing import Any

import pytest

from sidecar.base.strictjson import NotJson, canonical
from sidecar.rails.endpoint.artifacts import ContractInvalid
from sidecar.rails.endpoint.clusters import AdmissionCeiling, Command, read_cluster
from sidecar.rails.endpoint.contract import Contract, contracts, default_capability, document, joined, surface_of
from sidecar.rails.endpoint.contracts import DELIVERY, KNOWN, Compiled, delivery_surface
from sidecar.rails.endpoint.registry_contracts import (
    LISTING,
    LISTING_CLUSTER,
    MAX_COMBINATIONS,
    MAX_ROWS,
    RECORDS,
    RECORDS_CLUSTER,
    REGISTRY,
    registry_surface,
)
from sidecar.rails.endpoint.schemas import VOID_SCHEMA, load, schema
from sidecar.rails.endpoint.shapes import VOID
from tests.oracles.json_schema import Schema
from tests.unit.rails.endpoint import contract_samples as samples
from tests.unit.rails.endpoint.test_contracts import spoilt

IID = "i2" * 13
FORM: dict[str, Any] = {
    "rail": "ep.v1",
    "route": "inst",
    "mode": "owner",
    "literals": {"instanceId": [IID], "targetOwner": ["local"]},
    "covered": [{"instanceId": IID, "targetOwner": "*", "nonce": None}],
}
ROW: dict[str, Any] = {
    "endpoint": "com.acme-x.echo",
    "instances": [{"instanceId": IID, "state": None, "artifacts": "verified"}],
    "commands": [{"name": "echo", "class": "ephemeral", "forms": [FORM], "instances": [IID]}],
    "unprojected": ["drain"],
}
INSTANCE: dict[str, Any] = {
    "instanceId": IID,
    "owner": "local",
    "registrationRevision": 1,
    "epoch": 0,
    "state": None,
    "clusterDigests": [samples.CLUSTER_CLOSURE],
    "protocol": 1,
}
EVENT = {"sequence": 1, "instanceId": IID, "epoch": 0, "topic": "ev.com_acme.counted", "event": {"data": 1}}
FITS: dict[str, tuple[list[Any], list[Any]]] = {
    "endpoints": (
        [{}, {"limit": 1}, {"limit": MAX_ROWS, "after": "delivery"}],
        [{"rows": [ROW], "source": "recorded-ceiling", "next": "x.y"}, {"rows": [], "source": "no-permission-system"}],
    ),
    "instances": (
        [{"endpoint": "delivery"}, {"endpoint": "a.b", "after": IID}],
        [{"rows": []}, {"rows": [INSTANCE, {**INSTANCE, "state": "ready"}], "next": IID}],
    ),
    "artifacts": (
        [{"digests": [samples.VOID]}],
        [{"documents": []}, {"documents": [{"digest": samples.VOID, "document": {"type": "null"}}], "more": True}],
    ),
    "record": (
        [{"endpoint": "a.b", "instanceId": IID, "after": {"spec": 1, "status": 0}, "waitMs": 25_000}],
        [{}, {"spec": {"revision": 1, "value": {}}, "status": {"revision": 2, "value": {}}, "observed": True}],
    ),
    "events": (
        [{"endpoint": "a.b", "topic": "ev.com_acme.counted", "after": 0, "limit": 64}],
        [{"events": []}, {"events": [EVENT], "next": 7}],
    ),
    "target": ([{"owner": "local", "actor": "bob"}], [{}, {"lifecycleUid": IID, "mappingRevision": 3}]),
    "caller-view": (
        [{"endpoint": "a.b", "owner": "local", "actor": "bob", "uid": IID, "generation": "0" * 32}],
        [{"commands": ["echo"], "asOfMs": 1}],
    ),
}


def is_json(value: Any) -> bool:
    """Whether a value can come out of a message: what cannot is refused by other rules."""
    try:
        return len(canonical(value)) < 900_000
    except NotJson:
        return False


@pytest.mark.req("C13.20-02", "C13.7-12")
def test_every_question_is_an_untargeted_ephemeral_read_with_its_own_capability() -> None:
    surface = registry_surface().surface
    surface.check()
    assert [cluster.urn for cluster in surface.clusters] == [LISTING_CLUSTER, RECORDS_CLUSTER]
    assert set(surface.commands) == set(FITS) == set(REGISTRY) == {*LISTING, *RECORDS}
    for name, command in surface.commands.items():
        assert (command.contract_class, command.modes, command.action) == ("ephemeral", (), False)
        assert command.capability == f"registry.{name}"
        assert REGISTRY[name].reads
    assert surface.commands["endpoints"].capability == "registry.endpoints"


@pytest.mark.req("C13.7-25", "C13.20-03", "C13.20-04", "C13.20-05", "C13.20-06", "C13.20-07")
@pytest.mark.parametrize("command", FITS)
def test_schema_check_and_validator_agree(command: str) -> None:
    contract = REGISTRY[command]
    for shape, good in zip((contract.input, contract.output), FITS[command], strict=True):
        oracle, compiled = Schema(document(shape)), schema(document(shape)).shape
        for value in good:
            assert shape.check(value) is None
            assert compiled.check(value) is None
            for one in filter(is_json, spoilt(value)):
                accepted = shape.check(one) is None
                assert accepted == oracle.accepts(one) == (compiled.check(one) is None), one


@pytest.mark.req("C13.20-03")
@pytest.mark.parametrize("limit", [0, 101, -1, "1", 1.5, True])
def test_a_page_has_1_to_100_rows(limit: Any) -> None:
    assert LISTING["endpoints"].input.check({"limit": limit}) is not None


@pytest.mark.req("C13.20-08")
def test_a_form_lists_at_most_4096_combinations() -> None:
    def of(count: int) -> Any:
        form = {**FORM, "covered": [{"nonce": "*"}] * count}
        return {"rows": [{**ROW, "commands": [{**ROW["commands"][0], "forms": [form]}]}], "source": "recorded-ceiling"}

    check = LISTING["endpoints"].output.check
    assert check(of(MAX_COMBINATIONS)) is None
    assert check(of(MAX_COMBINATIONS + 1)) is not None


@pytest.mark.req("C13.7-26", "C13.7-29", "C13.7-71")
@pytest.mark.parametrize("make", [delivery_surface, registry_surface])
def test_compiled_in_endpoints_publish_all_that_they_pin(make: Any) -> None:
    compiled: Compiled = make()
    compiled.surface.check()
    assert compiled.surface.protocol == 1
    for cluster in compiled.surface.clusters:
        assert cluster.artifacts.items() <= compiled.artifacts.items()
        assert read_cluster(cluster.value(), 1) == cluster
        for command in cluster.commands:
            for closure in (command.input_digest, command.output_digest):
                assert load(closure, compiled.artifacts).closure == closure
            known = KNOWN[make.__name__.partition("_")[0]][command.name]
            assert (known.input_digest, known.output_digest) == (command.input_digest, command.output_digest)
            # Version 1 declares no effects; what our callers may repeat is their own word.
            assert command.effect is None


@pytest.mark.req("C13.7-12")
def test_reads_of_delivery_are_those_that_change_nothing() -> None:
    changing = {"durable-join", "durable-leave", "anycast-cancel", "fetch", "settle"}
    assert {name for name, one in DELIVERY.items() if not one.reads} == changing


@pytest.mark.req("C13.7-04", "C13.7-09")
def test_contracts_and_commands_say_the_same() -> None:
    ceiling = AdmissionCeiling(1, 2, 3)
    command = Command(
        name="drain",
        input_digest=samples.INPUT_CLOSURE,
        output_digest=samples.VOID_CLOSURE,
        capability="acme.drain",
        contract_class="journal",
        modes=("self",),
        effect="write",
        traits=("a.b",),
        action=True,
        ceiling=ceiling,
        readiness_ms=5,
    )
    takes = schema(samples.INPUT, [samples.MEMBER])
    contract = Contract.of(command, takes, VOID_SCHEMA)
    assert contract.declared("com.acme.echo", 2) == command
    assert contract.declared("com.acme.echo", 1).effect is None
    assert contract.output is VOID
    assert contract.input.check({"text": "a"}) is None
    with pytest.raises(ContractInvalid):
        Contract.of(command, VOID_SCHEMA, VOID_SCHEMA)
    with pytest.raises(ContractInvalid):
        Contract.of(command, takes, takes)
    plain = Contract("echo", VOID, VOID)
    assert not plain.reads
    assert plain.declared("com.acme.echo", 2).effect == "write"
    assert plain.declared("com.acme.echo").capability == default_capability("com.acme.echo", "echo") == "echo.echo"
    assert default_capability("delivery", "fetch") == "delivery.fetch"


def test_surfaces_join_under_one_version_and_carry_events() -> None:
    one = surface_of(
        "a.one", contracts(Contract("x", VOID, VOID)), endpoint="a.b", events={"e": schema(samples.OUTPUT)}
    )
    two = surface_of("a.two", contracts(Contract("y", VOID, VOID)), endpoint="a.b", revision=4)
    both = joined(one, two)
    assert [cluster.revision for cluster in both.surface.clusters] == [1, 4]
    assert both.surface.events["a.one", "e"].schema_digest == samples.OUTPUT_CLOSURE
    assert {samples.OUTPUT_DIGEST, samples.OUTPUT_CLOSURE, samples.VOID, samples.VOID_CLOSURE} < set(both.artifacts)
    with pytest.raises(ContractInvalid, match="two clusters"):
        joined(one, surface_of("a.two", contracts(Contract("x", VOID, VOID)), endpoint="a.b"))
    with pytest.raises(ContractInvalid, match="protocol"):
        joined(one, surface_of("a.two", contracts(Contract("y", VOID, VOID)), endpoint="a.b", protocol=2))
