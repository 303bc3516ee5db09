"""Conformance of a client (C12-01..C12-14), seen on the wire and at the broker."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import orjson
import pytest
import pytest_asyncio

from sidecar.rails.connection import PermissionViolation
from sidecar.rails.messaging.durables import Durable
from sidecar.rails.messaging.history import HistoryNotGranted
from sidecar.rails.messaging.identity import OtherPrincipal
from sidecar.rails.messaging.membership import State
from sidecar.rails.messaging.peer import Peer
from sidecar.rails.messaging.registry import DeliveryClass
from sidecar.rails.names import Principal, buckets, consumers, subjects
from sidecar.rails.space.holder import Form
from tests.e2e.durable_reads import QUICK, document, life
from tests.e2e.peers import Society, got, quiet, society, text_of, until
from tests.e2e.space_broker import EVENT_SECONDS
from tests.e2e.space_members import SPACE
from tests.e2e.wire_tap import tapped

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=list(Form))
async def here(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Society]:
    async with society(tmp_path_factory.mktemp("client"), request.param) as made:
        yield made


@pytest.mark.req("C2-01", "C2-11", "C12-01", "C12-02", "C12-09")
async def test_one_principal_stands_everywhere_and_the_key_only_in_the_inbox(here: Society) -> None:
    async with (
        tapped(here.town.broker.port) as wire,
        here.plane(),
        here.peer("alice", url=wire.url, roles=("reviewer",)) as alice,
        here.peer("bob1") as bob,
    ):
        await bob.join("team.c1")
        await alice.join("team.c1")
        await alice.post("team.c1", "hello")
        await alice.tell("bob1", "psst")
        await alice.ask_role("reviewer", "look")
        assert text_of(await got(bob)) == "hello"
        await got(alice)
        if here.form is Form.COMPATIBLE:  # it reads its own durable itself
            durable = consumers.DM.build(**life("alice").names)
            await until(lambda: any(durable in subject for subject in wire.published))
        key = alice.identity.connection
        published, subscribed, bodies = list(wire.published), list(wire.subscribed), list(wire.bodies)
    own = [one for one in published if one.split(".")[:3][-1] in ("chat", "inst", "svc") and one.startswith("cotal.")]
    chat, inst, svc = (f"cotal.{SPACE}.{kind}." for kind in ("chat", "inst", "svc"))
    assert {one.split(".")[2] for one in own} == {"chat", "inst", "svc"}
    for subject in own:
        if subject.startswith(chat):
            assert subject.startswith(f"{chat}local.alice.")
        else:
            assert subject.startswith((inst, svc))
            assert subject.endswith(".local.alice")
    senders = {value["from"]["id"] for value in map(_object, bodies) if "parts" in value}
    cards = {value["card"]["id"] for value in map(_object, bodies) if "card" in value}
    presence = {one for one in published if one.startswith("$KV.")}
    assert senders == cards == {"local.alice"}
    assert presence == {buckets.PRESENCE.subject(SPACE, buckets.PRESENCE_KEY, owner="local", actor="alice")}
    assert not [subject for subject in published if key in subject and not subject.startswith("_INBOX_")]
    assert not [subject for subject in subscribed if key in subject and not subject.startswith(f"_INBOX_{key}.")]
    assert not [body for body in bodies if key.encode() in body]
    assert subscribed[0].startswith(f"_INBOX_{key}.")


def _object(body: bytes) -> dict[str, Any]:
    """What was published, without the headers in front of it; nothing for what is no object."""
    try:
        value = orjson.loads(body.rpartition(b"\r\n\r\n")[2])
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


@pytest.mark.req("C2-13", "C2-14")
async def test_a_client_is_whom_its_credential_names_and_says_nothing_when_asked_to_be_another(here: Society) -> None:
    await here.enrol("alice")
    creds = here.creds("alice")
    async with tapped(here.town.broker.port) as wire:
        with pytest.raises(OtherPrincipal):
            await Peer.connect([wire.url], creds, name="alice", principal=Principal("local", "bob"), policy=QUICK)
        assert wire.seen == []
        async with await Peer.connect([wire.url], creds, name="alice", policy=QUICK) as alice:
            assert alice.card.id == "local.alice"
            await alice.post("team.who", "me")
        chat = [subject for subject in wire.published if subject.startswith(f"cotal.{SPACE}.chat.")]
    assert chat == [subjects.CHAT.build(space=SPACE, owner="local", actor="alice", channel="team.who")]


@pytest.mark.req("C12-02", "C2-07")
async def test_the_broker_takes_nothing_under_another_name(here: Society) -> None:
    async with here.peer("alice") as alice:
        for subject in (
            subjects.CHAT.build(space=SPACE, owner="local", actor="bob", channel="team.c2"),
            subjects.INST.build(space=SPACE, to_owner="local", to_actor="carl", owner="local", actor="bob"),
            subjects.SVC.build(space=SPACE, role="reviewer", owner="local", actor="bob"),
            buckets.PRESENCE.subject(SPACE, buckets.PRESENCE_KEY, owner="local", actor="bob"),
        ):
            with pytest.raises(PermissionViolation):
                await alice.connection.publish(subject, document("bob", channel="team.c2"))


@pytest.mark.req("C12-08", "C6-29")
async def test_a_client_keeps_its_own_presence_and_no_other(here: Society) -> None:
    own = buckets.PRESENCE.subject(SPACE, buckets.PRESENCE_KEY, owner="local", actor="alice")
    async with tapped(here.town.broker.port) as wire, here.peer("alice", url=wire.url):
        await until(lambda: wire.published.count(own) >= 3)
        kept = [subject for subject in wire.published if subject.startswith("$KV.")]
        records = [value for value in map(_object, wire.bodies) if "card" in value]
    assert set(kept) == {own}
    times = [value["ts"] for value in records]
    assert times == sorted(times)
    assert times[2] - times[1] >= 1_500


@pytest.mark.req("C12-06", "C12-05")
async def test_the_kind_is_that_of_the_subject_and_a_false_sender_is_dropped(here: Society) -> None:
    chat = subjects.CHAT.build(space=SPACE, owner="local", actor="alice", channel="team.c4")
    async with here.plane(), here.peer("alice") as alice, here.peer("bob4") as bob:
        await bob.join("team.c4")
        await alice.connection.publish(chat, document("mallory", "forged", "forged", channel="team.c4"))
        await alice.connection.publish(chat, document("alice", "true", "true", channel="team.c4"))
        delivered = await got(bob)
        assert (delivered.message.id, delivered.meta.kind, delivered.meta.sender) == ("true", "channel", "local.alice")
        await quiet(bob, 0.2)


@pytest.mark.req("C12-07", "C8-62", "C4-27")
async def test_only_what_was_handled_is_acked_and_what_can_never_be_shown_is_terminated(here: Society) -> None:
    durable = Durable.dm(SPACE, life("reader"))

    async def pending() -> int:
        return int((await here.town.consumer(durable))["num_ack_pending"])

    inst = subjects.INST.build(space=SPACE, to_owner="local", to_actor="reader", owner="local", actor="alice")
    async with here.plane(), here.peer("alice") as alice, here.peer("reader") as reader:
        await alice.connection.request(inst, document("mallory", "forged", "forged", to="local.reader"))
        await alice.tell("local.reader", "first")
        delivered = await got(reader)
        assert text_of(delivered) == "first"
        assert await pending() >= 1
        await delivered.later()
        again = await got(reader)
        assert (text_of(again), again.key != delivered.key) == ("first", True)
        await again.handled()
        async with asyncio.timeout(EVENT_SECONDS):
            while await pending():  # each look is a round trip
                pass
        assert (await here.town.consumer(durable))["num_pending"] == 0
        await quiet(reader, 0.2)


@pytest.mark.req("C12-11", "C4-06")
async def test_the_class_of_a_channel_is_that_of_the_registry_at_each_moment(here: Society) -> None:
    async with here.plane(), here.peer("alice") as alice, here.peer("bob6") as bob:
        await here.configure("team.flip", delivery_class=DeliveryClass.LIVE)
        assert (await bob.join("team.flip")).state is State.LIVE
        await alice.post("team.flip", "live")
        delivered = await got(bob)
        assert (text_of(delivered), delivered.durable) == ("live", False)
        await bob.leave("team.flip")
        await here.configure("team.flip", delivery_class=DeliveryClass.DURABLE)
        assert (await bob.join("team.flip")).state is State.DURABLE
        await alice.post("team.flip", "kept")
        delivered = await got(bob)
        assert text_of(delivered) == "kept"
        await until(lambda: delivered.durable)
        await delivered.handled()
        await bob.leave("team.flip")
        await here.configure("team.flip", delivery_class=DeliveryClass.LIVE)
        assert (await bob.join("team.flip")).state is State.LIVE


@pytest.mark.req("C12-12", "C4-18", "C4-21", "C4-22", "C4-26")
async def test_copies_of_one_id_are_shown_once_and_of_an_empty_id_each(here: Society) -> None:
    await here.configure("team.kept", delivery_class=DeliveryClass.DURABLE)
    chat = subjects.CHAT.build(space=SPACE, owner="local", actor="alice", channel="team.kept")
    async with here.plane(), here.peer("alice") as alice:
        async with here.peer("bob7") as bob:
            assert (await bob.join("team.kept")).state is State.DURABLE
            await alice.post("team.kept", "one", message_id="same")
            delivered = await got(bob)
            await until(lambda: delivered.durable)
            await delivered.handled()
            await quiet(bob, 0.3)
            for text in ("a", "b"):
                await alice.connection.request(chat, document("alice", "", text, channel="team.kept"))
            shown: list[str] = []
            while set(shown) != {"a", "b"}:
                delivered = await got(bob)
                assert delivered.message.id == ""
                shown.append(text_of(delivered))
                await delivered.handled()
        await alice.post("team.kept", "while away", message_id="away")
        async with here.peer("bob7") as bob:  # the gap is made good by the backstop
            found = ""
            while found != "while away":
                delivered = await got(bob)
                found = text_of(delivered)
                await delivered.handled()


@pytest.mark.req("C12-13", "C7-18", "C7-12")
async def test_a_join_is_live_by_the_brokers_word_and_durable_only_with_a_membership(here: Society) -> None:
    await here.configure("team.member", delivery_class=DeliveryClass.DURABLE)
    async with here.peer("alice") as alice, here.peer("bob8", readable=("team.c8", "team.member")) as bob:
        if here.form is Form.COMPATIBLE:  # without a host only the raw reads are there
            joined = await bob.join("team.member")
            assert joined.state is State.LIVE
            assert joined.shortfall
            await alice.post("team.member", "live all the same")
            assert text_of(await got(bob)) == "live all the same"
            await bob.leave("team.member")
        async with here.plane():
            joined = await bob.join("team.member")
            assert (joined.state, joined.shortfall) == (State.DURABLE, None)
            with pytest.raises(PermissionViolation):
                await bob.join("team.other")
            assert "team.other" not in bob.joined


@pytest.mark.req("C12-14", "C7-22", "C7-31")
async def test_history_is_bounded_by_the_read_list_and_a_leave_is_the_end(here: Society) -> None:
    await here.configure("team.left", delivery_class=DeliveryClass.DURABLE)
    async with here.plane(), here.peer("alice") as alice:
        async with here.peer("bob9", readable=("team.c9", "team.left")) as bob:
            await alice.post("team.secret", "not for bob")
            with pytest.raises(HistoryNotGranted):
                [frame async for frame in await bob.history("team.secret")]
            assert (await bob.join("team.left")).state is State.DURABLE
            await bob.leave("team.left")
            await alice.post("team.left", "after the leave")
            await quiet(bob, 0.5)
        async with here.peer("bob9", readable=("team.c9", "team.left")) as bob:
            await quiet(bob, 0.5)
