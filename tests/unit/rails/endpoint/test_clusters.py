"""Clusters and surfaces: the documents of the vectors, every rule of the codec, and what may be registered."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from sidecar.base.strictjson import JsonValue, canonical
from sidecar.rails.endpoint.artifacts import ContractInvalid, MissingArtifact, digest, manifest
from sidecar.rails.endpoint.clusters import (
    GOVERNED,
    MAX_CLUSTERS,
    MAX_COMMANDS,
    OWNED,
    AdmissionCeiling,
    Attribute,
    Cluster,
    Command,
    Effect,
    Event,
    Surface,
    UnsupportedProtocol,
    compatibility,
    event_topic,
    load_cluster,
    needed,
    read_cluster,
)
from sidecar.rails.endpoint.codes import Code
from tests.unit.rails.endpoint import contract_samples as samples
from tests.unit.rails.endpoint.contract_samples import with_command

ECHO = Command(
    name="echo",
    input_digest=samples.INPUT_CLOSURE,
    output_digest=samples.OUTPUT_CLOSURE,
    capability="acme.echo",
)
DRAIN = Command(
    name="drain",
    input_digest=samples.VOID_CLOSURE,
    output_digest=samples.VOID_CLOSURE,
    capability="acme.drain",
    contract_class="journal",
    modes=("self", "owner"),
    ceiling=AdmissionCeiling(65_536, 16, 512),
)
CEILING: dict[str, Any] = {"maxBytes": 1, "maxDepth": 1, "maxItems": 1}
CLUSTER = Cluster("com.acme.echo", 1, (ECHO, DRAIN))
CLUSTER_2 = Cluster("com.acme.echo", 2, (replace(ECHO, effect="read"), replace(DRAIN, effect="write")))


def refused(value: JsonValue, protocol: int = 1) -> ContractInvalid:
    with pytest.raises(ContractInvalid) as caught:
        read_cluster(value, protocol)
    assert caught.value.code == Code.CONTRACT_INVALID
    return caught.value


@pytest.mark.req("C13.7-01", "C13.7-04", "C13.7-05", "C13.7-28", "C13.7-29")
def test_cluster_vectors_byte_for_byte() -> None:
    assert canonical(CLUSTER.value()) == samples.CLUSTER_TEXT.encode()
    assert CLUSTER.closure == samples.CLUSTER_CLOSURE
    listing = f'{{"members":[],"root":"{samples.CLUSTER_DIGEST}","v":1}}'
    assert CLUSTER.artifacts == {
        samples.CLUSTER_DIGEST: samples.CLUSTER_TEXT.encode(),
        samples.CLUSTER_CLOSURE: listing.encode(),
    }
    assert read_cluster(samples.cluster(), 1) == CLUSTER
    assert digest(CLUSTER_2.value()) == samples.CLUSTER_2_DIGEST
    assert CLUSTER_2.closure == samples.CLUSTER_2_CLOSURE
    assert read_cluster(samples.cluster_2(), 2) == CLUSTER_2


@pytest.mark.req("C13.7-10", "C13.7-11", "C13.7-09")
def test_under_version_1_an_effect_declares_nothing() -> None:
    found = read_cluster(samples.cluster_2(), 1)
    assert [one.effect for one in found.commands] == [None, None]
    assert not any(one.reads for one in found.commands)
    # What it was read from still has its digest.
    assert found.closure == samples.CLUSTER_2_CLOSURE
    assert read_cluster(with_command(effect="maybe"), 1).commands[0].effect is None
    assert [one.reads for one in read_cluster(samples.cluster_2(), 2).commands] == [True, False]


@pytest.mark.req("C13.7-09", "C13.7-16")
def test_under_version_2_every_command_says_read_or_write() -> None:
    refused(samples.cluster(), 2)
    for effect in ("maybe", None, True, ""):
        wrong = samples.cluster_2()
        wrong["commands"][0]["effect"] = effect
        refused(wrong, 2)
    with pytest.raises(ContractInvalid):
        Cluster("com.acme.echo", 1, (replace(ECHO, effect="read"), DRAIN))


@pytest.mark.req("C13.7-18", "C13.7-19")
@pytest.mark.parametrize("protocol", [0, 3, -1])
def test_another_version_is_unsupported(protocol: int) -> None:
    with pytest.raises(UnsupportedProtocol) as caught:
        read_cluster(samples.cluster(), protocol)
    assert caught.value.code == Code.UNSUPPORTED_VERSION


@pytest.mark.req("C13.7-15", "C13.4-01")
def test_effect_and_class_are_independent() -> None:
    effects: tuple[Effect, ...] = ("read", "write")
    for effect in effects:
        for command in (ECHO, DRAIN):
            made = Cluster("com.acme.x", 1, (replace(command, effect=effect),))
            assert read_cluster(made.value(), 2) == made


@pytest.mark.req("C13.7-01")
@pytest.mark.parametrize("missing", ["urn", "revision", "attributes", "commands", "events"])
def test_a_cluster_has_exactly_its_members(missing: str) -> None:
    refused({name: value for name, value in samples.cluster().items() if name != missing})
    refused(samples.cluster(more=1))
    wrong: tuple[JsonValue, ...] = (None, [], "x", 7, {})
    for value in wrong:
        refused(value)


@pytest.mark.req("C13.7-02")
def test_a_urn_has_2_to_16_labels() -> None:
    for urn in ("a.b", ".".join("abcdefghijklmnop"), "x" * 63 + ".y", "a-b.c-1", "ai.cotal.lifecycle"):
        assert read_cluster(samples.cluster(urn=urn), 1).urn == urn
    for other in (
        "echo",
        "",
        "a.",
        ".a",
        "a..b",
        "A.b",
        "a_b.c",
        "-a.b",
        "a-.b",
        "x" * 64 + ".y",
        ".".join("abcdefghijklmnopq"),
        "a.b\n",
        7,
    ):
        refused(samples.cluster(urn=other))


@pytest.mark.req("C13.7-33")
@pytest.mark.parametrize(
    ("revision", "fits"),
    [(0, True), (2**53 - 1, True), (2**53, False), (-1, False), ("1", False), (1.5, False), (True, False)],
)
def test_a_revision_is_a_whole_number(revision: Any, fits: bool) -> None:
    if fits:
        assert read_cluster(samples.cluster(revision=revision), 1).revision == revision
    else:
        refused(samples.cluster(revision=revision))


@pytest.mark.req("C13.7-03", "C13.7-07")
def test_events_and_attributes() -> None:
    own = Cluster(
        "com.acme.echo",
        1,
        (ECHO,),
        (Event("counted", samples.OUTPUT_CLOSURE),),
        (Attribute("level", samples.OUTPUT_CLOSURE, "goal"),),
    )
    value: dict[str, Any] = json.loads(canonical(own.value()))
    assert value["events"] == [{"name": "counted", "schemaDigest": samples.OUTPUT_CLOSURE}]
    assert value["attributes"] == [{"name": "level", "schemaDigest": samples.OUTPUT_CLOSURE, "record": "goal"}]
    assert read_cluster(value, 1) == own
    assert event_topic(own.urn, "counted") == f"ev.{own.topic}.counted" == "ev.com_acme_echo.counted"
    for kind in ("events", "attributes"):
        (row,) = value[kind]
        for wrong in ({}, {**row, "more": 1}, {**row, "name": "a.b"}, {**row, "schemaDigest": "x"}, None):
            refused({**value, kind: [wrong]})
        refused({**value, kind: [row, row]})
        refused({**value, kind: None})
    refused({**value, "attributes": [{"name": "level", "schemaDigest": samples.OUTPUT_CLOSURE}]})


@pytest.mark.req("C13.7-04")
@pytest.mark.parametrize("missing", ["name", "class", "targeted", "capability", "inputDigest", "outputDigest"])
def test_a_command_needs_each_of_its_members(missing: str) -> None:
    refused(with_command(without=missing))


@pytest.mark.req("C13.7-04", "C13.4-01", "C13.2-07", "C13.7-30")
@pytest.mark.parametrize(
    "changes",
    [
        {"more": 1},
        *({"name": name} for name in ("Foo", "a.b", "x" * 33, "", 7)),
        *({"class": one} for one in ("record", "", None, ["ephemeral"])),
        *({"targeted": one} for one in (True, 0, None)),
        *({"modes": one} for one in (["self"], [], None)),
        *({"capability": one} for one in ("", "Acme", "1a", "a" * 65, "a b", None)),
        *({"inputDigest": one} for one in ("", "sha256:" + "A" * 64, "a" * 64, None)),
        *({"outputDigest": one} for one in ("", "sha256:" + "A" * 64, "a" * 64, None)),
        *({"traits": one} for one in (["single"], ["a.b", "a.b"], "a.b", [7])),
        *({"action": one} for one in (False, True, None, 1)),
        {"readinessDeadlineMs": 5},
        {"admissionCeiling": CEILING},
    ],
)
def test_a_command_is_closed(changes: dict[str, Any]) -> None:
    refused(with_command(**changes))


@pytest.mark.req("C13.7-04", "C13.7-05")
@pytest.mark.parametrize(
    "changes",
    [
        {"targeted": False},
        *({"modes": one} for one in ([], ["self", "self"], ["other"], "self")),
        *({"admissionCeiling": one} for one in (None, {}, {"maxBytes": 1, "maxDepth": 1})),
        *({"admissionCeiling": {**CEILING, **one}} for one in ({"maxBytes": 0}, {"maxBytes": "1"}, {"more": 1})),
        {"readinessDeadlineMs": 5},
        {"action": True, "readinessDeadlineMs": -1},
        {"action": True, "readinessDeadlineMs": 2**53},
    ],
)
def test_a_journal_command_is_closed(changes: dict[str, Any]) -> None:
    refused(with_command(1, **changes))


@pytest.mark.req("C13.7-05", "C13.7-04")
def test_a_journal_command_has_a_ceiling_and_may_be_an_action() -> None:
    refused(with_command(1, without="admissionCeiling"))
    (_, found) = read_cluster(with_command(1, action=True, readinessDeadlineMs=0, traits=["a.b", "c.d"]), 1).commands
    assert (found.action, found.readiness_ms, found.traits) == (True, 0, ("a.b", "c.d"))
    assert found.ceiling == AdmissionCeiling(65_536, 16, 512)
    assert json.loads(canonical(found.value()))["action"] is True


@pytest.mark.req("C13.2-08")
@pytest.mark.parametrize("name", ["describe", "cancel"])
def test_reserved_names_are_never_declared(name: str) -> None:
    refused(with_command(name=name))
    with pytest.raises(ContractInvalid, match="reserved"):
        Cluster("com.acme.x", 1, (replace(ECHO, name=name),))


@pytest.mark.req("C13.2-08")
@pytest.mark.parametrize("name", sorted(OWNED))
def test_names_of_composites_need_what_they_act_on(name: str) -> None:
    """OPEN C13.2-a."""
    surface = Surface((Cluster("com.acme.x", 1, (replace(ECHO, name=name),)),))
    with pytest.raises(ContractInvalid, match="kept"):
        surface.check()
    with pytest.raises(ContractInvalid, match="kept"):
        surface.check(OWNED - {name})
    surface.check({name})


def test_the_number_of_commands_is_bounded() -> None:
    def many(count: int) -> Any:
        return samples.cluster(commands=[{**samples.cluster()["commands"][0], "name": f"c{at}"} for at in range(count)])

    assert len(read_cluster(many(MAX_COMMANDS), 1).commands) == MAX_COMMANDS
    refused(many(MAX_COMMANDS + 1))
    refused(many(0))
    refused(samples.cluster(commands=[samples.cluster()["commands"][0]] * 2))


@pytest.mark.req("C13.7-35", "C13.7-36")
def test_a_cluster_is_loaded_from_verified_artifacts() -> None:
    assert needed(samples.CLUSTER_CLOSURE, {}) == [samples.CLUSTER_CLOSURE]
    assert load_cluster(CLUSTER.closure, CLUSTER.artifacts, 1) == CLUSTER
    with pytest.raises(MissingArtifact):
        load_cluster(CLUSTER.closure, {}, 1)
    with pytest.raises(ContractInvalid):
        load_cluster(CLUSTER.closure, {**CLUSTER.artifacts, samples.CLUSTER_DIGEST: b"{}"}, 1)
    # OPEN C13.7-c: digests in a cluster are values, so that nothing is a member of its closure.
    listing = manifest(samples.CLUSTER_DIGEST, {samples.VOID})
    name = digest(json.loads(listing))
    have = {**CLUSTER.artifacts, name: listing, samples.VOID: b'{"type":"null"}'}
    with pytest.raises(ContractInvalid, match="members"):
        load_cluster(name, have, 1)


# ---- surfaces ----

OTHER = Cluster("com.acme.other", 1, (replace(ECHO, name="other"),))


@pytest.mark.req("C13.6-96", "C13.7-29")
def test_a_command_is_declared_once_over_all_clusters() -> None:
    surface = Surface((CLUSTER, OTHER))
    surface.check()
    assert set(surface.commands) == {"echo", "drain", "other"}
    assert surface.digests == (CLUSTER.closure, OTHER.closure)
    assert set(surface.artifacts) == {*CLUSTER.artifacts, *OTHER.artifacts}
    twice = Cluster("com.acme.third", 1, (ECHO,))
    with pytest.raises(ContractInvalid, match="two clusters"):
        Surface((CLUSTER, OTHER, twice)).check()
    with pytest.raises(ContractInvalid, match="URN twice"):
        Surface((CLUSTER, replace(CLUSTER, commands=(replace(ECHO, name="new"),)))).check()
    with pytest.raises(ContractInvalid):
        Surface(()).check()
    with pytest.raises(ContractInvalid):
        Surface((OTHER,) * (MAX_CLUSTERS + 1)).check()


@pytest.mark.req("C13.7-16", "C13.7-17", "C13.7-09")
def test_effects_are_all_or_none_and_need_version_2() -> None:
    with_effects = Cluster("com.acme.other", 1, (replace(ECHO, name="other", effect="read"),))
    Surface((CLUSTER_2, with_effects), 2).check()
    Surface((CLUSTER, OTHER), 1).check()
    for clusters, protocol in (
        ((CLUSTER, with_effects), 1),
        ((CLUSTER, with_effects), 2),
        ((CLUSTER_2, with_effects), 1),
        ((CLUSTER, OTHER), 2),
        ((CLUSTER,), 0),
        ((CLUSTER_2,), 3),
    ):
        with pytest.raises(ContractInvalid):
            Surface(clusters, protocol).check()


@pytest.mark.req("C13.7-77", "C13.7-74", "C13.7-75", "C13.10-06")
def test_governed_traits_are_not_registered_and_others_are_carried() -> None:
    free = Cluster("com.acme.x", 1, (replace(ECHO, traits=("com.acme.slow",)),))
    Surface((free,)).check()
    assert read_cluster(free.value(), 1).commands[0].traits == ("com.acme.slow",)
    for trait in sorted(GOVERNED):
        governed = Cluster("com.acme.x", 1, (replace(DRAIN, traits=("com.acme.slow", trait)),))
        with pytest.raises(ContractInvalid, match="governed"):
            Surface((governed,)).check()
    refused(with_command(traits=["ai.cotal.priced"]))


@pytest.mark.req("C13.6-95")
def test_an_endpoint_on_demand_has_journal_commands_alone() -> None:
    drained = Surface((Cluster("com.acme.x", 1, (DRAIN,)),))
    drained.check(virtual=True)
    with pytest.raises(ContractInvalid, match="on demand"):
        Surface((*drained.clusters, OTHER)).check(virtual=True)


@pytest.mark.req("C13.7-72", "C13.7-78")
def test_additions_are_compatible() -> None:
    old = Surface((CLUSTER,))
    more = replace(CLUSTER, revision=2, commands=(*CLUSTER.commands, replace(ECHO, name="new")))
    assert compatibility(old, old) == ()
    assert compatibility(old, Surface((more, OTHER))) == ()
    assert compatibility(old, Surface((CLUSTER_2,), 2)) == ()
    # A new line of the type has a new URN; its commands still have to be what callers of the class pin.
    assert compatibility(old, Surface((replace(CLUSTER, urn="com.acme.echo2"),))) == ()


@pytest.mark.req("C13.7-72", "C13.7-78")
@pytest.mark.parametrize(
    ("changed", "why"),
    [
        (replace(ECHO, input_digest=samples.VOID_CLOSURE), "echo has another input"),
        (replace(ECHO, output_digest=samples.VOID_CLOSURE), "echo has another output"),
        (replace(ECHO, modes=("self",)), "echo has another modes"),
        (replace(ECHO, capability="acme.other"), "echo has another capability"),
        (replace(ECHO, contract_class="journal", ceiling=DRAIN.ceiling), "echo has another class"),
        (replace(ECHO, name="renamed"), "com.acme.echo lost its command echo"),
    ],
)
def test_what_callers_pin_stays(changed: Command, why: str) -> None:
    new = Surface((replace(CLUSTER, revision=2, commands=(changed, DRAIN)),))
    assert compatibility(Surface((CLUSTER,)), new) == (why,)


@pytest.mark.req("C13.7-78")
def test_a_revision_line_loses_nothing_and_does_not_go_back() -> None:
    event, attribute = Event("e", samples.VOID_CLOSURE), Attribute("a", samples.VOID_CLOSURE, "goal")
    old = Surface((replace(CLUSTER, revision=3, events=(event,), attributes=(attribute,)),))
    assert compatibility(old, Surface((CLUSTER,))) == (
        "com.acme.echo goes back to revision 1",
        "com.acme.echo lost its event e",
        "com.acme.echo lost its attribute a",
    )
    action = replace(DRAIN, action=True)
    assert compatibility(Surface((CLUSTER,)), Surface((replace(CLUSTER, commands=(ECHO, action)),))) == (
        "drain has another action",
    )
