"""An endpoint as its author writes it: what is derived, and what is refused at once."""

from __future__ import annotations

import io
from typing import Any

import pytest

from sidecar.base.strictjson import JsonValue
from sidecar.ops.logging import Log
from sidecar.ops.metrics import Metrics
from sidecar.rails import Caller, Endpoint
from sidecar.rails.endpoint import artifacts, schemas
from sidecar.rails.endpoint.artifacts import ContractInvalid, MissingArtifact
from sidecar.rails.endpoint.call import Call
from sidecar.rails.endpoint.clusters import load_cluster
from sidecar.rails.endpoint.contracts import DELIVERY, DELIVERY_ENDPOINT, JOURNAL, Contract, contracts
from sidecar.rails.endpoint.identity import Identity
from sidecar.rails.endpoint.schemas import VOID_SCHEMA
from sidecar.rails.endpoint.shapes import VOID, closed, whole
from sidecar.rails.names import InvalidName
from sidecar.rails.names.principals import Lifecycle, Principal

ONE = "a1" * 13
LIFE = Lifecycle(Principal("local", "epone"), ONE)
TEXT: dict[str, Any] = {"type": "string", "maxLength": 8}
PAIR = closed({"n": whole(0, 9)})


async def handler(call: Call) -> JsonValue:
    return call.args


async def related(call: Call) -> bool:
    return True


def lab(**more: Any) -> Endpoint:
    made = Endpoint("com.acme.lab", **more)

    @made.command(input=TEXT, output=PAIR, effect="read")
    async def say_it(call: Call) -> JsonValue:
        return {"n": len(str(call.args))}

    made.command("stop", modes=("self", "owner"), idempotent=True, waits=True, capability="lab.halt")(handler)
    made.command("far", cluster="com.acme.far")(handler)
    return made


def test_the_two_names_of_the_package_are_all_that_it_has() -> None:
    import sidecar.rails

    assert sidecar.rails.Endpoint is Endpoint
    assert sidecar.rails.Caller is Caller
    with pytest.raises(AttributeError, match="has no attribute 'Nothing'"):
        _ = sidecar.rails.Nothing


@pytest.mark.req("C13.7-01", "C13.7-04", "C13.7-26", "C13.7-17", "C13.4-01")
def test_what_is_declared_gives_clusters_contracts_and_artifacts() -> None:
    made = lab()
    counted = made.event("counted", {"type": "object"})
    own, far = made.surface.clusters
    assert (own.urn, far.urn, own.revision) == ("com.acme.lab", "com.acme.far", 1)
    assert [one.name for one in own.commands] == ["say-it", "stop"]
    assert [one.name for one in far.commands] == ["far"]
    said, stop = own.commands
    assert (said.capability, stop.capability, said.contract_class) == ("lab.say-it", "lab.halt", "ephemeral")
    assert (said.modes, stop.modes, said.effect) == ((), ("self", "owner"), None)
    assert (stop.input_digest, stop.output_digest) == (VOID_SCHEMA.closure, VOID_SCHEMA.closure)
    assert counted.topic == "ev.com_acme_lab.counted"
    assert [(one.name, one.schema_digest) for one in own.events] == [("counted", counted.schema.closure)]

    found = made.contracts["say-it"]
    assert (found.input_digest, found.output_digest) == (said.input_digest, said.output_digest)
    assert found.input.check("x" * 9) is not None
    assert found.input.check("x") is None
    assert found.output.check({"n": 1.0}) is not None  # a shape keeps its own check
    assert (made.contracts["stop"].idempotent, made.contracts["stop"].waits) == (True, True)
    assert made.contracts["far"].input.check(None) is None
    assert made.contracts["far"].input.check({}) is not None
    assert set(made.handlers) == {"say-it", "stop", "far"}


@pytest.mark.req("C13.7-26", "C13.7-46")
def test_the_order_of_declarations_is_no_part_of_the_contract() -> None:
    def made(*order: str) -> Endpoint:
        endpoint = Endpoint("com.acme.lab", protocol=2)
        for name in order:
            endpoint.command(name, input=TEXT)(handler)
            endpoint.event(f"{name}ed", TEXT)
        return endpoint

    one, other = made("b", "a", "c"), made("c", "b", "a")
    assert one.surface.digests == other.surface.digests
    assert one.artifacts == other.artifacts
    (cluster,) = one.surface.clusters
    assert [command.name for command in cluster.commands] == ["a", "b", "c"]
    assert [event.name for event in cluster.events] == ["aed", "bed", "ced"]
    assert made("a", "b").surface.digests != one.surface.digests


@pytest.mark.req("C13.14-02", "C13.7-28", "C13.7-29")
def test_the_artifacts_are_everything_that_a_stranger_needs() -> None:
    made = lab()
    event = made.event("counted", TEXT)
    published = made.artifacts
    for name, data in published.items():
        assert artifacts.digest_of(data) == name
    for closure in made.surface.digests:
        cluster = load_cluster(closure, published, 1)
        for command in cluster.commands:
            for digest in (command.input_digest, command.output_digest):
                assert not artifacts.needed(digest, published)
                assert schemas.load(digest, published).closure == digest
    assert not artifacts.needed(event.schema.closure, published)
    with pytest.raises(MissingArtifact):
        load_cluster(made.surface.digests[0], {}, 1)


@pytest.mark.req("C13.7-16", "C13.7-12", "C13.7-15", "C13.8-04")
def test_under_version_two_every_command_says_its_effect() -> None:
    effects = {name: one.effect for name, one in lab(protocol=2).surface.commands.items()}
    assert effects == {"say-it": "read", "stop": "write", "far": "write"}  # what is idempotent is no read by that
    with pytest.raises(ContractInvalid):
        _ = lab(protocol=3).surface


def test_a_table_is_an_endpoint_too() -> None:
    handlers = dict.fromkeys(("durable-join", "fetch"), handler)
    made = Endpoint.of(DELIVERY_ENDPOINT, DELIVERY, handlers, public=True)
    (cluster,) = made.surface.clusters
    assert (cluster.urn, [one.name for one in cluster.commands]) == ("ai.cotal.delivery", ["durable-join", "fetch"])
    for name in handlers:
        assert made.contracts[name] is DELIVERY[name]
        assert made.surface.commands[name].input_digest == DELIVERY[name].input_digest
    with pytest.raises(ValueError, match="no contract for dig"):
        Endpoint.of(DELIVERY_ENDPOINT, DELIVERY, {"dig": handler})
    table = contracts(Contract("stop", VOID, VOID, modes=("child",)))
    with pytest.raises(ValueError, match="nobody checks the relation"):
        Endpoint.of("com.acme.lab", table, {"stop": handler})
    Endpoint.of("com.acme.lab", table, {"stop": handler}, authorize={"stop": related})


@pytest.mark.req("C13.2-01", "C13.2-07", "C13.2-08", "C13.2-34", "C13.2-35", "C13.4-01")
def test_what_must_not_be_declared_is_refused_at_once() -> None:
    for name in ("Com.acme", "com..acme", "a_b", ""):
        with pytest.raises(InvalidName):
            Endpoint(name)
    made = lab()
    for name in ("Bad", "a.b", "x" * 33):
        with pytest.raises(InvalidName):
            made.command(name)(handler)
    for name in ("describe", "cancel"):
        with pytest.raises(ValueError, match="reserved"):
            made.command(name)(handler)
    for name in ("stop", "far", "say-it"):
        with pytest.raises(ValueError, match="twice"):
            made.command(name)(handler)
    for mode in ("child", "ledger"):
        with pytest.raises(ValueError, match="nobody checks the relation"):
            made.command("kin", modes=("self", mode))(handler)
    with pytest.raises(ValueError, match="no authorization mode"):
        made.command("kin", modes=("everybody",))(handler)
    with pytest.raises(ContractInvalid):
        made.command("kin", input={"$ref": "https://example.com/x"})
    for wrong in ("reads", None):
        with pytest.raises(ValueError, match="read or write"):
            made.command("kin", effect=wrong)  # type: ignore[arg-type]

    def no_coroutine(call: Call) -> JsonValue:
        return None

    forgotten: Any = no_coroutine
    with pytest.raises(ValueError, match="kin: its handler is no async def"):
        made.command("kin")(forgotten)
    journal = contracts(Contract("go", VOID, VOID, contract_class=JOURNAL, action=True))
    with pytest.raises(ValueError, match="nobody decides"):
        Endpoint.of("com.acme.lab", journal, {"go": handler})
    made.event("counted", TEXT)
    with pytest.raises(ValueError, match="twice"):
        made.event("counted", TEXT)
    with pytest.raises(InvalidName):
        made.event("a.b", TEXT)
    made.command("kin", modes=("child",), authorize=related)(handler)
    _ = made.surface
    with pytest.raises(ValueError, match="takes no more"):
        made.command("late")(handler)
    for reserved in ("lease", "commit", "resume"):
        kept = Endpoint("com.acme.lab")
        kept.command(reserved)(handler)
        with pytest.raises(ContractInvalid):
            _ = kept.surface
        owner = Endpoint("com.acme.lab", owner_reserved=(reserved,))
        owner.command(reserved)(handler)
        assert reserved in owner.surface.commands


@pytest.mark.req("C13.7-66", "C13.2-38", "C13.14-01")
def test_nothing_is_served_that_nobody_could_judge() -> None:
    class View:
        async def held(self, caller: Lifecycle, generation: str | None) -> frozenset[str]:
            return frozenset()

        async def current(self, principal: Principal) -> None:
            return None

    def server(made: Endpoint, named: str = "com.acme.lab", **more: Any) -> None:
        identity = Identity("main", named, ONE, 0, LIFE, "local")
        connection: Any = None
        made.server(connection, identity, metrics=Metrics(), log=Log(io.StringIO()), **more)

    with pytest.raises(ValueError, match=r"serves com\.acme\.other"):
        server(lab(), "com.acme.other")
    with pytest.raises(ValueError, match="no view"):
        server(lab(), mappings=View())
    with pytest.raises(ValueError, match="look up the targets of stop"):
        server(lab(), view=View())
    server(lab(), view=View(), mappings=View())
    server(lab(public=True), mappings=View())


@pytest.mark.req("C13.7-08")
def test_a_type_is_a_name_that_changes_nothing() -> None:
    """What an endpoint serves is its clusters; of which conformance set they are is only told."""
    plain, typed = lab(), lab(endpoint_type="com.acme.maker")
    assert plain.surface == typed.surface
    assert plain.contracts.keys() == typed.contracts.keys()
    assert plain.artifacts == typed.artifacts
    for bad in ("maker", "Com.acme", "a_b.c", "", "com..acme", "a." + "b." * 130 + "c"):
        with pytest.raises(ContractInvalid, match="endpointType"):
            lab(endpoint_type=bad)
