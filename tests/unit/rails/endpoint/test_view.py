"""What a serving instance makes of the answers of the registry, and of its own credential."""

from __future__ import annotations

import os
from collections.abc import Mapping as Members
from typing import Any

import pytest

from sidecar.base.clock import Now
from sidecar.base.secret import Secret
from sidecar.base.strictjson import JsonValue
from sidecar.rails.endpoint.clusters import Cluster, Surface
from sidecar.rails.endpoint.codes import CallFailed, Code, Outcome
from sidecar.rails.endpoint.contracts import DELIVERY
from sidecar.rails.endpoint.descriptor import read_descriptor
from sidecar.rails.endpoint.envelope import decode_reply
from sidecar.rails.endpoint.identity import Identity, NoIncarnation, identity_of
from sidecar.rails.endpoint.serve_describe import Described
from sidecar.rails.endpoint.view import Mapping, RegistryMappings, RegistryView, Unavailable
from sidecar.rails.names import InvalidName
from sidecar.rails.names.principals import Lifecycle, Principal
from sidecar.rails.space.creds import format_creds
from sidecar.rails.space.holder import Holder, Profile, Service
from sidecar.rails.space.trust import SpaceTrust, new_user

ALICE = Lifecycle(Principal("local", "alice"), "a1" * 13)
GENERATION = "0" * 32


class Registry:
    """Answers of the registry, one after the other."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.asked: list[tuple[str, str, Members[str, JsonValue] | None]] = []

    async def call(
        self, endpoint: str, command: str, args: dict[str, JsonValue] | None = None, *, seconds: float = 0.0
    ) -> JsonValue:
        self.asked.append((endpoint, command, args))
        found = self.answers.pop(0)
        if isinstance(found, Exception):
            raise found
        answer: JsonValue = found
        return answer


DOWN = CallFailed(Code.UNAVAILABLE, "nobody", Outcome.NOT_EXECUTED)


@pytest.mark.req("C13.7-66", "C13.7-67")
@pytest.mark.asyncio
async def test_a_view_is_the_registrys_and_fresh_or_there_is_none() -> None:
    now = Now(1_000.0, 0.0)
    fresh = {"commands": ["echo", "add"], "asOfMs": 999_000}
    registry = Registry(
        fresh,
        fresh,
        {**fresh, "asOfMs": 997_999},
        {**fresh, "asOfMs": 1_002_001},
        {"commands": ["echo"]},
        {"asOfMs": 999_000},
        None,
        DOWN,
    )
    view = RegistryView(registry, "com.acme.lab", clock=lambda: now)
    assert await view.held(ALICE, None) == {"echo", "add"}
    assert await view.held(ALICE, GENERATION) == {"echo", "add"}
    while registry.answers:
        with pytest.raises(Unavailable):
            await view.held(ALICE, None)
    asked = {"endpoint": "com.acme.lab", "owner": "local", "actor": "alice", "uid": "a1" * 13}
    assert registry.asked[:2] == [
        ("registry", "caller-view", asked),
        ("registry", "caller-view", {**asked, "generation": GENERATION}),
    ]


@pytest.mark.req("C13.2-38", "C13.2-41")
@pytest.mark.asyncio
async def test_a_mapping_is_what_the_registry_says_of_it() -> None:
    registry = Registry(
        {"lifecycleUid": "b2" * 13, "mappingRevision": 7},
        {},
        {"lifecycleUid": "b2" * 13},
        {"mappingRevision": 7},
        [],
        DOWN,
    )
    mappings = RegistryMappings(registry)
    assert await mappings.current(Principal("local", "bob")) == Mapping("b2" * 13, 7)
    assert await mappings.current(Principal("local", "bob")) is None
    while registry.answers:
        with pytest.raises(Unavailable):
            await mappings.current(Principal("local", "bob"))
    assert registry.asked[0] == ("registry", "target", {"owner": "local", "actor": "bob"})


@pytest.mark.req("C13.14-01", "C13.7-64", "C13.2-04")
def test_a_serving_credential_says_which_incarnation_it_is(tmp_path: Any) -> None:
    key = new_user(os.urandom)
    trust = SpaceTrust.open(tmp_path / "main", "main", os.urandom)
    life = Lifecycle(Principal("local", "epone"), "c3" * 13)
    holder = Holder("main", life, key.public, service=Service("d4" * 13, 0, ("echo",), endpoint="com.acme-x.lab"))
    creds = format_creds(trust.issue(Profile.ENDPOINT, holder, key, 1_000, 300), key)
    found = identity_of(creds)
    assert found == Identity("main", "com.acme-x.lab", "d4" * 13, 0, life, "local")
    assert found.token == "com_acme-x_lab"
    assert identity_of(Secret(creds.reveal() if isinstance(creds, Secret) else creds.encode())) == found
    agent = format_creds(trust.issue(Profile.AGENT, Holder("main", life, key.public), key, 1_000, 300), key)
    with pytest.raises(NoIncarnation):
        identity_of(agent)
    for wrong in ({"epoch": -1}, {"epoch": 2**53}, {"instance": "x"}, {"endpoint": "A"}, {"owner": ""}):
        named: dict[str, Any] = {
            "space": "main",
            "endpoint": "a.b",
            "instance": "d4" * 13,
            "epoch": 0,
            "lifecycle": life,
            "owner": "local",
        }
        with pytest.raises(InvalidName):
            Identity(**{**named, **wrong})


@pytest.mark.req("C13.7-65", "C13.7-66", "C13.7-68")
@pytest.mark.asyncio
async def test_a_descriptor_that_is_too_large_names_its_clusters_by_digest() -> None:
    commands = tuple(one.declared("delivery") for one in DELIVERY.values())
    surface = Surface((Cluster("ai.cotal.delivery", 1, commands),))
    described = Described(surface, "delivery", "local")
    whole = await described.answer(ALICE, None, "r1", 1 << 20)
    told = read_descriptor(decode_reply(whole).data)
    assert (told.public, told.clusters[0].document) == (True, surface.clusters[0].value())
    short = await described.answer(ALICE, None, "r1", len(whole) - 1)
    told = read_descriptor(decode_reply(short).data)
    assert len(short) < len(whole)
    assert (told.clusters[0].digest, told.clusters[0].document) == (surface.digests[0], None)
    assert told.clusters[0].commands == tuple(DELIVERY)
