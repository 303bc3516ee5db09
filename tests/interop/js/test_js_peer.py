"""The interop scenario of section 12 with a member that knows nothing of Sidecar, over the stock JavaScript client.

Alice is the foreign process, Bob and the second reviewer are ours; then the other way round.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from sidecar.rails.messaging.membership import State
from sidecar.rails.messaging.registry import DeliveryClass
from sidecar.rails.space.holder import Form
from tests.e2e.durable_reads import life
from tests.e2e.peers import OPEN, Society, got, quiet, society, text_of, texts, until
from tests.e2e.space_members import SPACE
from tests.interop.js.driver import JsPeer, js_peers

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def here(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Society]:
    async with society(tmp_path_factory.mktemp("interop"), Form.COMPATIBLE) as made:
        await made.configure("team.backend", delivery_class=DeliveryClass.DURABLE)
        async with made.plane():
            yield made


async def foreign(here: Society, actor: str, *roles: str) -> JsPeer:
    """A member that is not ours, with everything that belongs to its lifecycle."""
    await here.enrol(actor, OPEN, roles)
    return JsPeer(here.town.broker.url, SPACE, here.creds(actor, roles=roles), life(actor))


@pytest.mark.req("C12-25", "C12-26", "C12-27", "C4-05")
async def test_a_foreign_alice_reaches_our_bob(here: Society) -> None:
    async with await foreign(here, "alice") as alice, here.peer("bob") as bob:
        await alice.do("announce", name="Alice")
        assert set(await alice.do("roster")) >= {alice.id, "local.bob"}
        assert set((await bob.roster()).rows) >= {alice.id, "local.bob"}
        await alice.do("join", channel="team.backend")
        assert (await bob.join("team.backend")).state is State.DURABLE
        await alice.do("post", channel="team.backend", text="Can you review this?")
        await alice.do("tell", to="local.bob", text="Direct note.")
        delivered = [await got(bob), await got(bob)]
        assert {(one.meta.kind, one.meta.sender, text_of(one)) for one in delivered} == {
            ("channel", alice.id, "Can you review this?"),
            ("dm", alice.id, "Direct note."),
        }
        for one in delivered:
            await one.handled()
        await quiet(bob)


@pytest.mark.req("C12-25", "C12-26", "C12-27", "C5-04", "C8-60")
async def test_our_alice_reaches_a_foreign_bob(here: Society) -> None:
    async with here.peer("anna") as anna, await foreign(here, "ben") as ben:
        await ben.do("announce", name="Ben")
        await ben.do("join", channel="team.two")
        await ben.do("inbox")
        await anna.post("team.two", "to everybody", mentions=["Ben"])
        await anna.tell("Ben", "to one")
        (post,), (direct,) = await ben.surfaced("channel"), await ben.surfaced("dm")
        assert (post["sender"], post["target"], post["mismatched"]) == ("local.anna", "team.two", False)
        assert post["message"]["mentions"] == ["ben"]
        assert (direct["sender"], direct["target"], direct["mismatched"]) == ("local.anna", ben.id, False)
        assert [one for one in ben.events if one["event"] != "message"] == []


@pytest.mark.req("C12-28", "C4-04", "C8.1-12")
async def test_work_goes_to_exactly_one_of_two_reviewers(here: Society) -> None:
    async with (
        js_peers(await foreign(here, "rita", "reviewer"), await foreign(here, "asker")) as (rita, asker),
        here.peer("rolf", roles=("reviewer",)) as rolf,
    ):
        await rita.do("serve", role="reviewer")
        ours: list[str] = []

        async def review() -> None:
            async for delivered in rolf.deliveries():
                assert delivered.meta.kind == "anycast"
                ours.append(delivered.message.id)
                await delivered.handled()

        reviewing = asyncio.create_task(review())
        asked = [(await asker.do("ask", role="reviewer", text=f"review {number}"))["id"] for number in range(12)]
        await until(lambda: len(ours) + len(rita.messages("anycast")) >= len(asked))
        reviewing.cancel()
        theirs = [one["message"]["id"] for one in rita.messages("anycast")]
        assert sorted(ours + theirs) == sorted(asked)


@pytest.mark.req("C12-29", "C7-20", "C7-24", "C4-18")
@pytest.mark.parametrize("late_is_ours", [True, False])
async def test_a_late_joiner_reads_the_past_once(here: Society, late_is_ours: bool) -> None:
    channel = f"team.late{int(late_is_ours)}"
    async with await foreign(here, "jane") as jane, here.peer("paul") as paul:
        posted = [(await jane.do("post", channel=channel, text=f"j{n}"))["id"] for n in range(3)]
        posted += [(await paul.post(channel, f"p{n}")).id for n in range(3)]
        if late_is_ours:
            await paul.join(channel)
            seen = [await got(paul) for _ in posted]
            assert [(one.message.id, one.meta.historical) for one in seen] == [(one, True) for one in posted]
            for one in seen:
                await one.handled()
            await jane.do("post", channel=channel, text="now")
            assert await texts(paul, 1) == ["now"]
            await quiet(paul)
        else:
            await jane.do("join", channel=channel)
            last = await paul.post(channel, "now")
            shown = await jane.surfaced("channel", len(posted) + 1)
            assert [(one["message"]["id"], one["historical"]) for one in shown] == [
                *((one, True) for one in posted),
                (last.id, False),
            ]


async def bad(member: JsPeer, subject: str, value: Any) -> None:
    await member.do("publish", subject=subject, data=value if isinstance(value, str) else json.dumps(value))


@pytest.mark.req("C5-14", "C5-16", "C5-17", "C12-05", "C12-10")
async def test_what_a_foreign_member_gets_wrong_is_never_shown(here: Society) -> None:
    async with await foreign(here, "mal") as mal, here.peer("bo") as bo:
        await bo.join("team.odd")
        subject = f"cotal.{SPACE}.chat.{mal.id}.team.odd"
        fine = {"id": "odd-1", "ts": 1, "space": SPACE, "from": {"id": mal.id, "name": "mal"}, "channel": "team.odd"}
        text = [{"kind": "text", "text": "x"}]
        await bad(mal, subject, "{not json")
        await bad(mal, subject, {**fine, "parts": text, "from": {"id": "local.alice", "name": "alice"}})
        await bad(mal, subject, {**fine, "parts": text, "id": 5})
        await bad(mal, subject, {**fine, "parts": text, "to": mal.id})
        extension = {"kind": "com.acme.snapshot", "blob": [1]}
        await bad(mal, subject, {**fine, "parts": [extension, *text], "future": {"a": 1}})
        delivered = await got(bo)
        assert (delivered.message.id, text_of(delivered)) == ("odd-1", "x")
        await quiet(bo)
