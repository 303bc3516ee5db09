"""Streams and buckets at a real broker: made once, proved, never changed."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from sidecar.rails.space.claims import Access, Permissions
from sidecar.rails.space.holder import Form, Profile
from sidecar.rails.space.layout import History, Limits, configurations
from sidecar.rails.space.provision import BrokerRefused, WrongShape, provision, shape
from sidecar.rails.space.trust import new_user
from tests.e2e.space_broker import EVENT_SECONDS, SpaceBroker, User
from tests.e2e.space_members import SPACE, Space, clock

pytestmark = pytest.mark.asyncio


@contextlib.asynccontextmanager
async def account(tmp_path: Path) -> AsyncIterator[Space]:
    """An account without any stream."""
    async with SpaceBroker(tmp_path) as broker:
        space = Space(broker, Form.MEDIATED)
        await broker.push(space.trust.account_token(broker.trust, clock()))
        yield space


@contextlib.asynccontextmanager
async def root(space: Space) -> AsyncIterator[User]:
    """Someone who may do everything in JetStream: the operator's hand that breaks things."""
    key = new_user(lambda size: bytes(range(1, size + 1)))
    inbox = f"_INBOX_{key.public}.>"
    granted = Permissions(Access(("$JS.API.>", "cotal.>", "$KV.>")), Access((inbox, "cotal.>")))
    token = space.trust.mint("local-root", granted, key, clock(), 300)
    async with space.broker.user(space.broker.creds(token, key), inbox) as user:
        yield user


async def ask(user: User, subject: str, body: Any = None) -> dict[str, Any]:
    reply = await user.client.request(subject, json.dumps(body).encode() if body else b"", timeout=EVENT_SECONDS)
    answer: dict[str, Any] = json.loads(reply.data)
    assert "error" not in answer, answer
    return answer


@pytest.mark.req("C8-01", "C8-02", "C8-03", "C8-04", "C8-13", "C8-69", "C8-70", "C8-71")
async def test_everything_is_made_once_and_stands_the_proof(tmp_path: Path) -> None:
    async with account(tmp_path) as space, space.member(Profile.PROVISIONER, "p") as (user, _):
        names = list(configurations(SPACE, Limits()))
        assert await shape(user.client, SPACE) == dict.fromkeys(names)
        assert await provision(user.client, SPACE) == names
        assert await provision(user.client, SPACE) == []
        assert await shape(user.client, SPACE) == {name: [] for name in names}
        async with root(space) as hand:
            for name, wanted in configurations(SPACE, Limits()).items():
                config = (await ask(hand, f"$JS.API.STREAM.INFO.{name}"))["config"]
                assert {field: config.get(field, type(value)()) for field, value in wanted.items()} == wanted


async def test_a_run_that_died_is_finished(tmp_path: Path) -> None:
    async with account(tmp_path) as space, space.member(Profile.PROVISIONER, "p") as (user, _):
        names = list(configurations(SPACE, Limits()))
        async with root(space) as hand:
            for name in names[:4]:
                await ask(hand, f"$JS.API.STREAM.CREATE.{name}", configurations(SPACE, Limits())[name])
        assert await provision(user.client, SPACE) == names[4:]


@pytest.mark.req("C8-14")
async def test_an_operators_limits_survive_another_setup(tmp_path: Path) -> None:
    async with account(tmp_path) as space, space.member(Profile.PROVISIONER, "p") as (user, _):
        await provision(user.client, SPACE, Limits(chat=History(None, 10)))
        assert await provision(user.client, SPACE, Limits(chat=History(3600, 5))) == []
        async with root(space) as hand:
            config = (await ask(hand, "$JS.API.STREAM.INFO.CHAT_main"))["config"]
            assert (config["max_age"], config["max_msgs_per_subject"]) == (0, 10)


@pytest.mark.req("C8-05", "C8-06")
async def test_another_shape_is_reported_and_never_repaired(tmp_path: Path) -> None:
    async with account(tmp_path) as space, space.member(Profile.PROVISIONER, "p") as (user, _):
        wanted = configurations(SPACE, Limits())
        changed = {**wanted["DM_main"], "allow_direct": True}
        async with root(space) as hand:
            await ask(hand, "$JS.API.STREAM.CREATE.DM_main", changed)
            for _ in range(2):
                with pytest.raises(WrongShape) as caught:
                    await provision(user.client, SPACE)
                assert caught.value.faults == {"DM_main": ["allow_direct is True, must be False"]}
            assert (await ask(hand, "$JS.API.STREAM.INFO.DM_main"))["config"]["allow_direct"] is True
        # All others were made nevertheless, so that one fault shows once and alone.
        assert [name for name, found in (await shape(user.client, SPACE)).items() if found != []] == ["DM_main"]


async def test_a_refusal_of_the_broker_is_told(tmp_path: Path) -> None:
    async with account(tmp_path) as space, space.member(Profile.PROVISIONER, "p") as (user, _):
        async with root(space) as hand:
            # Its subjects are taken, so that CHAT cannot be made.
            await ask(hand, "$JS.API.STREAM.CREATE.OTHER", {"name": "OTHER", "subjects": ["cotal.main.chat.>"]})
        with pytest.raises(BrokerRefused, match="overlap"):
            await provision(user.client, SPACE)


@pytest.mark.req("C8-08", "C8-09")
async def test_a_count_is_per_sender_and_channel(tmp_path: Path) -> None:
    async with account(tmp_path) as space, space.member(Profile.PROVISIONER, "p") as (user, _):
        await provision(user.client, SPACE, Limits(chat=History(None, 3)))
        async with space.member(Profile.AGENT, "alice", allow_publish=("a", "b")) as (alice, _):
            for number in range(5):
                await alice.client.request("cotal.main.chat.local.alice.a", str(number).encode(), timeout=EVENT_SECONDS)
            await alice.client.request("cotal.main.chat.local.alice.b", b"x", timeout=EVENT_SECONDS)
        async with root(space) as hand:
            state = (await ask(hand, "$JS.API.STREAM.INFO.CHAT_main", {"subjects_filter": ">"}))["state"]
            assert state["subjects"] == {"cotal.main.chat.local.alice.a": 3, "cotal.main.chat.local.alice.b": 1}
