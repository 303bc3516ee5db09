"""Conformance of the space as a whole: one stock broker, one account, lateral peers, nothing of what was removed."""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from sidecar.rails.connection import Connection, Credentials, NoResponders, PermissionViolation
from sidecar.rails.envelopes.errors import EnvelopeError
from sidecar.rails.envelopes.message import ExtensionPart
from sidecar.rails.envelopes.presence import encode_presence
from sidecar.rails.envelopes.schema import EndpointKind
from sidecar.rails.messaging.membership import State
from sidecar.rails.messaging.registry import ChannelConfig, DeliveryClass, RegistryWriter
from sidecar.rails.names import api, buckets, consumers, streams, subjects
from sidecar.rails.names.tokens import PLANES
from sidecar.rails.space.claims import Access, Permissions
from sidecar.rails.space.creds import format_creds
from sidecar.rails.space.holder import Form, Profile
from sidecar.rails.space.provision import activate, provision
from sidecar.rails.space.trust import new_user
from tests.e2e.durable_reads import QUICK, document, life
from tests.e2e.peers import Society, got, quiet, society, text_of
from tests.e2e.space_members import SPACE, clock
from tests.e2e.wire_tap import Tap, tapped

pytestmark = pytest.mark.asyncio(loop_scope="module")

CHAT = streams.CHAT.stream(SPACE)


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=list(Form))
async def here(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Society]:
    async with society(tmp_path_factory.mktemp("conformance"), request.param) as made:
        yield made


@contextlib.asynccontextmanager
async def overseer(here: Society) -> AsyncIterator[Connection]:
    """Somebody who may ask and publish everything: what fails for them does not fail for want of grants."""
    key = new_user(os.urandom)
    inbox = f"_INBOX_{key.public}.>"
    everything = Permissions(Access(("$JS.API.>", "cotal.>", "$KV.>")), Access((inbox, "cotal.>", ">")))

    async def mint() -> Credentials:
        token = here.town.space.trust.mint("local-overseer", everything, key, clock(), 300)
        return Credentials(format_creds(token, key), clock() + 300)

    async with await Connection.open([here.town.broker.url], mint, policy=QUICK) as connection:
        yield connection


async def ask(connection: Connection, subject: str) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads((await connection.request(subject, b"")).data)
    return answer


async def consumers_of(connection: Connection, stream: str) -> set[str]:
    answer = await ask(connection, api.CONSUMER_NAMES.build(stream=stream))
    return set(answer["consumers"] or [])


@contextlib.asynccontextmanager
async def tap(here: Society) -> AsyncIterator[Tap]:
    async with tapped(here.town.broker.port) as made:
        yield made


@pytest.mark.req("C0-03", "C0-04")
async def test_peers_talk_over_a_stock_broker_without_the_streams_of_calls_and_runs(here: Society) -> None:
    async with overseer(here) as asked:
        for one in streams.CONTROL:
            assert (await ask(asked, api.STREAM_DELETE.build(stream=one.stream(SPACE))))["success"]
        names = set((await ask(asked, api.STREAM_NAMES.build()))["streams"])
    assert {one.stream(SPACE) for one in streams.MESSAGING} <= names
    assert not {one.stream(SPACE) for one in streams.CONTROL} & names
    assert here.town.broker.process is not None
    assert os.path.basename(os.readlink(f"/proc/{here.town.broker.process.pid}/exe")) == "nats-server"
    async with here.plane(), here.peer("alice") as alice, here.peer("bob1") as bob:
        await bob.join("team.talk")
        await alice.post("team.talk", "hello")
        assert text_of(await got(bob)) == "hello"
        await alice.tell("bob1", "psst")
        delivered = await got(bob)
        assert (delivered.meta.kind, text_of(delivered)) == ("dm", "psst")
        await delivered.handled()
    async with here.town.space.member(Profile.PROVISIONER, "provisioner") as (user, _):  # for the tests that follow
        assert set(await provision(user.client, SPACE)) == {one.stream(SPACE) for one in streams.CONTROL}


@pytest.mark.req("C0-05", "C11-03")
async def test_nobody_serves_the_deleted_control_rail(here: Society) -> None:
    async with here.plane(), here.peer("alice") as alice, overseer(here) as asked:
        for plane in PLANES:
            old = f"cotal.{SPACE}.ctl.{plane}.local.alice"
            with pytest.raises(NoResponders):
                await asked.request(old, b"{}")
            with pytest.raises(PermissionViolation):
                await alice.connection.request(old, b"{}")
        # The same question on the rail that took its place has an answer.
        assert (await alice.probe("delivery")).verdict == "bound"


@pytest.mark.req("C0-06")
async def test_a_join_makes_no_consumer_of_a_live_tail(here: Society) -> None:
    await here.configure("team.tail", delivery_class=DeliveryClass.DURABLE)
    async with here.plane(), here.peer("bob3") as bob, overseer(here) as asked:
        await bob.join("general")
        assert (await bob.join("team.tail")).state is State.DURABLE
        names = await consumers_of(asked, CHAT)
    assert not [name for name in names if consumers.REMOVED_LIVE_TAIL.fits(name)]
    assert not [name for name in names if "bob3" in name]


@pytest.mark.req("C0-07")
async def test_an_entry_without_a_class_resolves_by_the_formula(here: Society) -> None:
    async with here.plane(), here.operator() as operator, here.peer("plain") as reader:
        key = buckets.CHANNELS.subject(SPACE, buckets.CHANNEL_KEY, channel="team.plain")
        await operator.request(key, b'{"description":"an entry of an older writer"}')
        assert (await reader.registry()).effective("team.plain").delivery_class is DeliveryClass.DURABLE
        assert (await reader.join("team.plain")).state is State.DURABLE
        await reader.leave("team.plain")
        await RegistryWriter(operator, SPACE).set_defaults(ChannelConfig(delivery_class=DeliveryClass.LIVE))
        assert (await reader.registry()).effective("team.plain").delivery_class is DeliveryClass.LIVE
        assert (await reader.join("team.plain")).state is State.LIVE
        await RegistryWriter(operator, SPACE).set_defaults(ChannelConfig())


def keys_within(value: Any) -> set[str]:
    if isinstance(value, dict):
        return set(value) | {key for one in value.values() for key in keys_within(one)}
    return {key for one in value for key in keys_within(one)} if isinstance(value, list) else set()


@pytest.mark.req("C1-02", "C1-05", "C6-28", "C11-01", "C11-02", "C11-04", "C11-06")
async def test_what_goes_over_the_wire_knows_no_hierarchy_signature_date_or_handshake(here: Society) -> None:
    async with tap(here) as wire, here.plane(), here.peer("alice", url=wire.url) as alice, here.peer("bob5") as bob:
        await bob.join("team.wire")
        await alice.join("team.wire")
        await alice.post("team.wire", "unsigned", mentions=["bob5"])
        await alice.tell("bob5", "also unsigned")
        await alice.roster()
        shown = await got(bob)
        assert text_of(shown) == "unsigned"  # accepted as it is
        roots = {subject.split(".")[2] for subject in wire.published if subject.startswith(f"cotal.{SPACE}.")}
        contents = [body.rpartition(b"\r\n\r\n")[2] for body in wire.bodies]  # behind the headers, if there are any
        documents = [json.loads(body) for body in contents if body.startswith(b"{")]
    assert roots <= {"chat", "inst", "ep"}
    known = keys_within([one for one in documents if "card" in one or "parts" in one])
    assert {"card", "parts", "from", "status"} <= known
    assert not known & {"parent", "parents", "children", "supervisor", "manager", "sig", "signature", "proof", "hash"}
    cards = [one["card"] for one in documents if "card" in one]
    assert {card["protocolVersion"] for card in cards} == {"0.4"}
    spoken = [one for one in documents if "card" in one or "parts" in one]
    assert not re.search(r"\b20\d\d-\d\d-\d\d\b", json.dumps(spoken))


@pytest.mark.req("C1-03")
async def test_an_instance_keeps_its_id_and_shows_its_kind(here: Society) -> None:
    async with here.plane(), here.peer("bob6") as bob:
        async with here.peer("viewer", kind=EndpointKind.ENDPOINT) as viewer:
            first = viewer.card.id
        async with here.peer("viewer", kind=EndpointKind.ENDPOINT) as viewer:
            assert viewer.card.id == first == "local.viewer"
            roster = await bob.roster()
            kinds = {row.principal.actor: row.presence.card.kind for row in roster.live}
    assert (kinds["viewer"], kinds["bob6"]) == (EndpointKind.ENDPOINT, EndpointKind.AGENT)


@pytest.mark.req("C1-04", "C3-14", "C7-42")
async def test_a_channel_is_hierarchical_and_a_service_is_a_role(here: Society) -> None:
    async with (
        here.plane(),
        here.peer("alice") as alice,
        here.peer("bob7", roles=("reviewer",)) as bob,
    ):
        await bob.join("team.>")
        await alice.post("team.backend", "below")
        below = await got(bob)
        assert (below.meta.kind, below.meta.target, text_of(below)) == ("channel", "team.backend", "below")
        await below.handled()
        await alice.ask_role("reviewer", "look")
        work = await got(bob)
        assert (work.meta.kind, work.meta.target, text_of(work)) == ("anycast", "reviewer", "look")
        await work.handled()


@pytest.mark.req("C1-06")
async def test_a_request_of_the_endpoint_rails_is_no_message(here: Society) -> None:
    subject = subjects.CHAT.build(space=SPACE, owner="local", actor="alice", channel="team.request")
    request = {"id": "r1", "endpoint": "delivery", "command": "describe", "args": {}, "ts": 1, "space": SPACE}
    async with here.plane(), here.peer("alice") as alice, here.peer("bob8") as bob:
        await bob.join("team.request")
        for document_ in (request, {**request, "from": {"id": "local.alice", "name": "alice"}}):
            await alice.connection.publish(subject, json.dumps(document_).encode())
        await alice.post("team.request", "a message")
        assert text_of(await got(bob)) == "a message"
        await quiet(bob, 0.2)


@pytest.mark.req("C3-03")
async def test_a_token_is_never_turned_into_a_name(here: Society) -> None:
    async with here.plane(), here.peer("teamlead", name="Team A: lead") as lead, here.peer("bob9") as bob:
        row = (await bob.roster()).get(lead.identity.principal)
        assert row is not None
        assert row.presence.card.name == "Team A: lead"
        await bob.join("team.names")
        await lead.post("team.names", "hello")
        delivered = await got(bob)
        assert delivered.message.sender.name == "Team A: lead"
        assert delivered.meta.sender == "local.teamlead"


@pytest.mark.req("C3-23")
async def test_an_upgrade_leaves_the_names_of_role_queues(here: Society) -> None:
    old = "svc_pro_be"  # of the role "pro be", which nobody can hold any more
    async with here.town.space.member(Profile.PROVISIONER, "provisioner") as (user, _), overseer(here) as asked:
        await activate(user.client, SPACE, life("worker"), ("reviewer",))
        task = streams.TASK.stream(SPACE)
        pattern = subjects.SVC.subtree(space=SPACE, role="pro_be")
        config = {"durable_name": old, "name": old, "ack_policy": "explicit", "filter_subject": pattern}
        create = api.CONSUMER_CREATE_FILTERED.build(stream=task, consumer=old, filter=pattern)
        body = json.dumps({"stream_name": task, "config": config}).encode()
        assert "error" not in json.loads((await user.client.request(create, body)).data)
        before = await consumers_of(asked, task)
        assert {old, "svc_reviewer"} <= before
        await provision(user.client, SPACE)
        await activate(user.client, SPACE, life("worker"), ("reviewer",))
        assert await consumers_of(asked, task) == before
        await asked.request(api.CONSUMER_DELETE.build(stream=task, consumer=old), b"")


@pytest.mark.req("C11-07", "C11-12", "C11-16", "C11-17")
async def test_a_peer_of_another_version_with_fields_that_nobody_knows_is_a_peer(here: Society) -> None:
    chat = subjects.CHAT.build(space=SPACE, owner="local", actor="later", channel="team.versions")
    async with here.plane(), here.peer("later", meta={"com.acme.region": "north"}) as later, here.peer("bob11") as bob:
        await bob.join("team.versions")
        record = json.loads(encode_presence(later.presence.own.record(clock() * 1000)))
        record["card"]["protocolVersion"] = "9.9"
        record["futureField"] = {"deep": [1]}
        record["card"]["futureField"] = True
        own = buckets.PRESENCE.subject(SPACE, buckets.PRESENCE_KEY, owner="local", actor="later")
        await later.connection.publish(own, json.dumps(record).encode())
        row = (await bob.roster()).get(later.identity.principal)
        assert row is not None
        assert row.presence.card.meta["com.acme.region"] == "north"
        message = json.loads(document("later", "m-later", "from the future", channel="team.versions"))
        message["futureField"] = {"deep": [1]}
        message["from"]["futureField"] = 1
        message["parts"][0]["futureField"] = None
        message["parts"].append({"kind": "com.acme.snapshot", "anything": {"at": "all"}})
        await later.connection.publish(chat, json.dumps(message).encode())
        delivered = await got(bob)
        assert delivered.message.id == "m-later"
        assert text_of(delivered) == "from the future"
        # An undotted kind is reserved to the specification: a publisher of ours sends none.
        with pytest.raises(EnvelopeError):
            await bob.post("team.versions", [ExtensionPart("snapshot", {"x": 1})])
        assert (await bob.post("team.versions", [ExtensionPart("com.acme.snapshot", {"x": 1})])).sequence > 0
