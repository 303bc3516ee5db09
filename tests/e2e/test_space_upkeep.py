"""History limits of a space and the inventory of its backup, against a real nats-server."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from sidecar.app import space_upkeep as work
from sidecar.app.spaces import create_space, open_space
from sidecar.rails.names import buckets
from sidecar.rails.space import history_limits
from sidecar.rails.space.claims import Access, Permissions
from sidecar.rails.space.history_limits import Change
from sidecar.rails.space.holder import Form
from sidecar.rails.space.keys import read_key
from sidecar.rails.space.layout import History, InvalidLimit
from sidecar.rails.space.trust import SpaceTrust, new_user
from tests.e2e.space_broker import EVENT_SECONDS, SpaceBroker, User
from tests.e2e.space_members import clock

pytestmark = pytest.mark.asyncio

P = "cotal.main"


@pytest_asyncio.fixture
async def broker(tmp_path: Path) -> AsyncIterator[SpaceBroker]:
    async with SpaceBroker(tmp_path) as running:
        await create_space(tmp_path, "main", Form.MEDIATED, running.url)
        yield running


@pytest_asyncio.fixture
async def hand(broker: SpaceBroker) -> AsyncIterator[User]:
    """Someone who may say and look at everything."""
    account = SpaceTrust.open(broker.directory / "spaces" / "main", "main", os.urandom)
    key = new_user(os.urandom)
    inbox = f"_INBOX_{key.public}.>"
    granted = Permissions(Access(("$JS.API.>", "cotal.>", "$KV.>")), Access((inbox,)))
    async with broker.user(broker.creds(account.mint("x", granted, key, clock(), 300), key), inbox) as user:
        yield user


async def ask(user: User, subject: str, body: Any = None) -> dict[str, Any]:
    reply = await user.client.request(subject, json.dumps(body).encode() if body else b"", timeout=EVENT_SECONDS)
    answer: dict[str, Any] = json.loads(reply.data)
    assert "error" not in answer, answer
    return answer


async def post(user: User, subject: str, count: int) -> None:
    for n in range(count):
        await user.client.request(f"{P}.{subject}", str(n).encode(), timeout=EVENT_SECONDS)


async def held(user: User, stream: str) -> int:
    return int((await ask(user, f"$JS.API.STREAM.INFO.{stream}"))["state"]["messages"])


def command(broker: SpaceBroker, *arguments: str) -> subprocess.CompletedProcess[str]:
    at = ("--space", "main", "--root", str(broker.directory), "--server", broker.url)
    return subprocess.run(
        [sys.executable, "-m", "sidecar", "space", *arguments, *at],
        input="n\n", capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip


@pytest.mark.req("C8-07", "C8-08", "C8-09", "C8-12", "C8-57", "C8-14")
async def test_a_lower_count_deletes_what_was_said_before_and_setup_leaves_it(broker: SpaceBroker, hand: User) -> None:
    root = broker.directory
    await post(hand, "chat.local.alice.general", 7)
    await post(hand, "chat.local.bob.general", 2)
    await post(hand, "chat.local.alice.team.x", 4)
    change = [Change("chat", count=3)]
    (loss,) = await work.preview(root, "main", broker.url, change)
    assert (loss.messages, loss.by_count, loss.by_age, loss.least, loss.most) == (13, 5, 0, 5, 5)
    assert await held(hand, "CHAT_main") == 13, "a preview changes nothing"
    assert await work.set_limits(root, "main", broker.url, change) == ["CHAT_main"]
    assert await held(hand, "CHAT_main") == 8
    assert await work.set_limits(root, "main", broker.url, change) == []
    await create_space(root, "main", None, broker.url)
    found = await work.limits_of(root, "main", broker.url)
    assert found["CHAT_main"] == History(count=3)
    assert found["DM_main"] == History()
    await post(hand, "chat.local.alice.general", 1)
    assert await held(hand, "CHAT_main") == 8


@pytest.mark.req("C8-07", "C8-10", "C8-57")
async def test_what_an_age_deletes_is_counted_by_time(broker: SpaceBroker, hand: User) -> None:
    root = broker.directory
    await post(hand, "inst.local.bob.local.alice", 5)
    begun = time.time()
    async with work.limiter(root, "main", broker.url) as client:
        change = Change("dm", age_seconds=120)
        (later,) = await history_limits.preview(client, "main", change, begun + 121)
        assert (later.messages, later.by_age, later.least, later.most) == (5, 5, 5, 5)
        (now,) = await history_limits.preview(client, "main", change, begun)
        assert (now.by_age, now.least) == (0, 0)
        both = Change("dm", age_seconds=120, count=2)
        (mixed,) = await history_limits.preview(client, "main", both, begun + 121)
        assert (mixed.by_age, mixed.by_count, mixed.least, mixed.most) == (5, 3, 5, 5)
    names = await ask(hand, "$JS.API.CONSUMER.NAMES.DM_main")
    assert not names["consumers"], "the counting leaves nothing behind"
    assert await work.set_limits(root, "main", broker.url, [Change("dm", 120, 9)]) == ["DM_main"]
    assert (await work.limits_of(root, "main", broker.url))["DM_main"] == History(120, 9)
    await work.set_limits(root, "main", broker.url, [Change("dm", None, None)])
    config = (await ask(hand, "$JS.API.STREAM.INFO.DM_main"))["config"]
    assert (config["max_age"], config["max_msgs_per_subject"]) == (0, -1)


@pytest.mark.req("C8-15", "C8-51", "C8-52")
async def test_bounds_are_those_of_an_operator_and_both_backstop_streams_follow(broker: SpaceBroker) -> None:
    root = broker.directory
    for part, age, count in (
        ("chat", 119, 5), ("dm", 3650 * 86400 + 1, 5), ("backstop", 7199, 5), ("chat", 120, 0), ("dm", 120, -5),
    ):  # fmt: skip
        with pytest.raises(InvalidLimit, match=part):
            await work.preview(root, "main", broker.url, [Change(part, age, count)])
        with pytest.raises(InvalidLimit):
            await work.set_limits(root, "main", broker.url, [Change(part, age, count)])
    changed = await work.set_limits(root, "main", broker.url, [Change("backstop", 7200, 5)])
    assert changed == ["INBOX_main", "DLV_main"]
    # A change that stopped between the two is finished by the next.
    await work.set_limits(root, "main", broker.url, [Change("backstop", 7200, 6)])
    found = await work.limits_of(root, "main", broker.url)
    assert found["INBOX_main"] == found["DLV_main"] == History(7200, 6)
    for bad in ("119", "120.5s", "0", "x", "3651d"):
        done = await asyncio.to_thread(command, broker, "limits", "--chat-age", bad, "--yes")
        assert done.returncode in (1, 2)
        assert done.stderr.count("\n") == 1
    assert (await work.limits_of(root, "main", broker.url))["CHAT_main"] == History(count=1000)


@pytest.mark.req("C8-57", "C8-12")
async def test_the_command_shows_first_and_asks(broker: SpaceBroker, hand: User) -> None:
    await post(hand, "chat.local.alice.general", 4)
    asked = await asyncio.to_thread(command, broker, "limits", "--chat-count", "1")
    assert "no age, count 1000 -> no age, count 1; deletes 3 of 4 messages" in asked.stdout
    assert "Change the limits?" in asked.stdout
    assert await held(hand, "CHAT_main") == 4, "the answer was no"
    dry = await asyncio.to_thread(command, broker, "limits", "--chat-count", "1", "--json")
    said = json.loads(dry.stdout)
    assert (said["changed"], said["deletes"][0]["at_most"]) == ([], 3)
    done = await asyncio.to_thread(command, broker, "limits", "--chat-count", "1", "--chat-age", "30d", "--yes")
    assert "CHAT_main: age 2592000 s, count 1\n" in done.stdout
    assert await held(hand, "CHAT_main") == 1
    shown = json.loads((await asyncio.to_thread(command, broker, "limits", "--json")).stdout)
    assert shown["limits"]["CHAT_main"] == {"age_seconds": 2592000, "count": 1}
    assert shown["deletes"] == []


@pytest.mark.req("C8.1-32", "C8.1-56")
async def test_a_backup_holds_every_stream_but_those_that_come_back_by_themselves(
    broker: SpaceBroker, hand: User
) -> None:
    await post(hand, "chat.local.alice.general", 3)
    done = await asyncio.to_thread(command, broker, "backup-info", "--json")
    found = json.loads(done.stdout)
    kept = {one["stream"]: one for one in found["keep"]}
    assert "KV_cotal_anycast_main" in found["leave"]
    assert not set(kept) & set(found["leave"])
    assert {"CHAT_main", "DM_main", "TASK_main", "INBOX_main", "DLV_main", "KV_cotal_acl_main"} <= set(kept)
    assert len(kept) + len(found["leave"]) == 27
    assert (kept["CHAT_main"]["first_seq"], kept["CHAT_main"]["last_seq"]) == (1, 3)
    assert found["files"] == [str(broker.directory / "trust"), str(broker.directory / "spaces" / "main")]
    steps = found["restore"]
    stop = next(at for at, step in enumerate(steps) if "stop every delivery process" in step and "closed" in step)
    restore = next(at for at, step in enumerate(steps) if "restore the streams" in step)
    start = next(at for at, step in enumerate(steps) if "start the delivery processes" in step)
    assert stop < restore < start
    text = (await asyncio.to_thread(command, broker, "backup-info")).stdout
    assert "KV_cotal_anycast_main: comes back empty" in text
    # What was left out is made by the setup alone.
    await ask(hand, "$JS.API.STREAM.DELETE.KV_cotal_anycast_main")
    _, made = await create_space(broker.directory, "main", None, broker.url)
    assert made == ["KV_cotal_anycast_main"]


@pytest.mark.req("C7-08", "C7-03")
async def test_a_new_space_says_how_its_channels_are_delivered_and_a_setup_leaves_it(broker: SpaceBroker) -> None:
    await create_space(broker.directory, "public", None, broker.url, "live")
    await create_space(broker.directory, "public", None, broker.url, "durable")
    for space, wanted in (("main", "durable"), ("public", "live")):
        async with open_space(broker.directory, space, broker.url) as opened:
            subject = buckets.CHANNELS.subject(space, buckets.CHANNEL_DEFAULTS)
            kept = await read_key(opened.client, buckets.CHANNELS.stream(space), subject)
        assert kept.value is not None
        assert json.loads(kept.value) == {"deliveryClass": wanted}
        assert kept.revision == 1
