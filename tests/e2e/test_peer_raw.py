"""What peers of a compatible space do with the broker itself: history consumers."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from sidecar.rails.messaging.frames import Frame
from sidecar.rails.messaging.history import HistoryNotGranted, RawHistory
from sidecar.rails.messaging.peer import Peer
from sidecar.rails.names import api, consumers, streams
from sidecar.rails.names.subjects import CHAT
from sidecar.rails.space.holder import Form, Profile
from tests.e2e.peers import Society, society, texts
from tests.e2e.space_broker import EVENT_SECONDS
from tests.e2e.space_members import SPACE

pytestmark = pytest.mark.asyncio(loop_scope="module")

STREAM = streams.CHAT.stream(SPACE)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def here(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Society]:
    async with society(tmp_path_factory.mktemp("raw"), Form.COMPATIBLE) as made:
        yield made


async def read(peer: Peer, channel: str, **more: Any) -> list[Frame]:
    async with contextlib.aclosing(await peer.history(channel, **more)) as frames:
        return [frame async for frame in frames]


async def chat_consumers(here: Society) -> list[str]:
    """The consumers of CHAT, as an operator sees them."""
    async with here.town.space.member(Profile.PROVISIONER, "provisioner") as (user, _):
        info = json.loads((await user.client.request(api.STREAM_INFO.build(stream=STREAM), timeout=10)).data)
        return [str(info["state"]["consumer_count"])]


@pytest.mark.req("C8-28", "C7-22", "C7-23", "C8-68", "C4-29")
async def test_history_is_one_channel_in_order_within_its_bounds(here: Society) -> None:
    async with here.peer("alice") as alice, here.peer("hal") as hal:
        sent = [await alice.post("team.h", f"h{number}") for number in range(600)]
        await alice.post("general", "another channel")
        frames = await read(hal, "team.h")
        assert [frame.sequence for frame in frames] == [one.sequence for one in sent]
        assert {frame.subject for frame in frames} == {"cotal.main.chat.local.alice.team.h"}
        assert not any(frame.token for frame in frames)
        after = await read(hal, "team.h", after=sent[9].sequence)
        assert [frame.sequence for frame in after] == [one.sequence for one in sent[10:]]
        history = RawHistory(hal.connection, hal.identity, entropy=os.urandom)
        bounded = [one async for one in history.read("team.h", up_to=sent[4].sequence)]
        assert [frame.sequence for frame in bounded] == [one.sequence for one in sent[:5]]
        last = frames[-1].time_ms
        recent = await read(hal, "team.h", since_ms=last)
        assert 0 < len(recent) < 600
        assert all(frame.time_ms >= last for frame in recent)
        assert await read(hal, "team.h", after=sent[-1].sequence) == []
        assert await chat_consumers(here) == ["0"]


@pytest.mark.req("C8-28")
async def test_a_consumer_that_a_crash_left_behind_does_not_stand_in_the_way(here: Society) -> None:
    async with here.peer("alice") as alice, here.peer("ivy") as ivy:
        for number in range(5):
            await alice.post("team.i", f"i{number}")
        name = consumers.CHAT_HISTORY.build(**ivy.identity.lifecycle.names)
        pattern = CHAT.filter(space=SPACE, channel="team.i")
        subject = api.CONSUMER_CREATE_FILTERED.build(stream=STREAM, consumer=name, filter=pattern)
        config = {"name": name, "filter_subject": pattern, "ack_policy": "none", "inactive_threshold": 3_600 * 10**9}
        body = json.dumps({"stream_name": STREAM, "config": config, "action": "create"}).encode()
        assert "error" not in json.loads((await ivy.connection.request(subject, body)).data)
        assert len(await read(ivy, "team.i")) == 5
        assert await chat_consumers(here) == ["0"]


@pytest.mark.req("C8-28")
async def test_reads_of_one_lifecycle_take_turns(here: Society) -> None:
    async with here.peer("alice") as alice, here.peer("jo") as jo:
        for number in range(300):
            await alice.post(f"team.j{number % 3}", f"j{number}")
        found = await asyncio.gather(*(read(jo, f"team.j{number}") for number in range(3)))
        assert [len(frames) for frames in found] == [100, 100, 100]


@pytest.mark.req("C7-22", "C8-28")
async def test_what_is_not_granted_is_said_and_not_tried(here: Society) -> None:
    async with here.peer("alice") as alice, here.peer("kim", readable=("team.*", "general")) as kim:
        await alice.post("team.k", "past")
        with pytest.raises(HistoryNotGranted):
            await read(kim, "team.k")
        with pytest.raises(HistoryNotGranted):
            await read(kim, "secret")
        await kim.join("team.k")
        await alice.post("team.k", "live")
        assert await texts(kim, 1) == ["live"]


async def test_who_looks_at_a_frame_keeps_nobody_from_reading(here: Society) -> None:
    """A handler that reads history while a replay waits for room in the inbox would wait for itself."""
    async with here.peer("alice") as alice, here.peer("lou") as lou:
        for number in range(3):
            await alice.post(f"team.l{number % 2}", f"l{number}")
        async with contextlib.aclosing(await lou.history("team.l0")) as first:
            assert (await anext(first)).sequence
            async with asyncio.timeout(EVENT_SECONDS):
                assert len(await read(lou, "team.l1")) == 1
            assert len([frame async for frame in first]) == 1
        assert await chat_consumers(here) == ["0"]
