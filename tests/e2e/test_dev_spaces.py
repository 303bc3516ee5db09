"""The spaces of ``sidecar dev``: who is in them, what they may, and that they stay who they are."""

from __future__ import annotations

import asyncio
import json
import os
import stat
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import nats.errors
import pytest
import pytest_asyncio
from nats.aio.client import Client

from sidecar.app import dev_spaces
from sidecar.rails.names.principals import Lifecycle, OwnerKind, Principal, owner_kind
from sidecar.rails.space.creds import read_creds
from sidecar.rails.space.trust import new_user
from tests.e2e.devset import DevSet, dev_set
from tests.e2e.space_broker import User

pytestmark = pytest.mark.asyncio(loop_scope="module")

NAMES = ["alice", "bob", "reviewer", "observer", "operator"]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[DevSet]:
    with dev_set(tmp_path_factory.mktemp("spaces") / "dev") as found:
        yield found


async def connected(running: DevSet, space: str, name: str) -> User:
    user = User()
    member = running.ready["nats"]["spaces"][space]["principals"][name]
    await user.connect(running.ready["nats"]["url"], Path(member["creds"]), member["inbox_prefix"])
    return user


async def test_the_ready_line_says_who_is_in_which_space(running: DevSet) -> None:
    nats_line = running.ready["nats"]
    assert nats_line["space"] == "main"
    os.kill(nats_line["server_pid"], 0)
    spaces = nats_line["spaces"]
    assert {name: one["form"] for name, one in spaces.items()} == {"main": "compatible", "guarded": "mediated"}
    assert nats_line["creds"] == spaces["main"]["creds"]
    assert nats_line["principals"] == spaces["main"]["principals"]
    owners = set()
    for one in spaces.values():
        assert list(one["principals"]) == NAMES
        for name, member in one["principals"].items():
            assert one["creds"][name] == member["creds"]
            assert stat.S_IMODE(os.stat(member["creds"]).st_mode) == 0o600
            assert owner_kind(member["owner"]) is OwnerKind.DERIVED
            owners.add(member["owner"])
            tags = read_creds(member["creds"]).user.tags
            life = Lifecycle(Principal(member["owner"], name), member["lifecycle_uid"])
            assert f"lifecycle:{life.dot}" in tags
            assert f"form:{one['form']}" in tags
    assert len(owners) == 10, "everybody of every space is somebody else"
    assert [lane["serving"] for lane in running.ready["delivery"]["lanes"]] == [True, True]
    os.kill(running.ready["delivery"]["pid"], 0)


@pytest.mark.parametrize("space", ["main", "guarded"])
async def test_everybody_may_what_it_should(running: DevSet, space: str) -> None:
    members = running.ready["nats"]["spaces"][space]["principals"]

    def post(name: str, channel: str) -> str:
        return f"cotal.{space}.chat.{members[name]['owner']}.{name}.{channel}"

    allowed: dict[str, tuple[list[str], list[str]]] = {
        "alice": (["general", "team.x"], ["bob-only", "team"]),
        "bob": (["general", "team.x", "bob-only"], ["other"]),
        "reviewer": (["general", "team.x"], ["bob-only"]),
        "observer": ([], ["general", "team.x"]),
        "operator": (["general", "anything.else"], []),
    }
    for name, (yes, no) in allowed.items():
        user = await connected(running, space, name)
        assert [await user.may_publish(post(name, one)) for one in yes] == [True] * len(yes), name
        assert [await user.may_publish(post(name, one)) for one in no] == [False] * len(no), name
        reads = await user.may_subscribe(f"cotal.{space}.chat.*.*.bob-only")
        assert reads is (name in ("bob", "observer")), name
        taking = await user.may_publish(f"cotal.{space}.take.reviewer.{members[name]['owner']}.{name}")
        assert taking is (name == "reviewer"), name
        await user.close()


async def test_the_broker_admits_those_that_it_trusts_and_nobody_else(running: DevSet, tmp_path: Path) -> None:
    url = running.ready["nats"]["url"]
    stranger = new_user(os.urandom)

    async def refused(**options: Any) -> None:
        client = Client()
        with pytest.raises(nats.errors.Error):
            await client.connect(url, allow_reconnect=False, max_reconnect_attempts=1, **options)
        await client.close()

    await refused()
    await refused(nkeys_seed_str=stranger.seed_text().reveal().decode())
    config = (running.directory / "nats" / "nats-server.conf").read_bytes()
    for seed in (running.directory / "nats").rglob("*.nk"):
        assert seed.read_bytes() not in config


async def test_the_creds_that_end_within_the_hour_are_renewed(running: DevSet) -> None:
    spaces = running.ready["nats"]["spaces"]
    path = spaces["main"]["creds"]["operator"]
    before = read_creds(path)
    told: list[str] = []
    dev_spaces.renew_short(Path(running.ready["nats"]["root"]), spaces, told.append)
    after = read_creds(path)
    assert told == []
    assert after.key.public == before.key.public
    assert after.token_text.reveal() != before.token_text.reveal() or after.token == before.token
    broken = json.loads(json.dumps(spaces))
    broken["main"]["principals"]["operator"]["owner"] = "local"
    dev_spaces.renew_short(Path(running.ready["nats"]["root"]), broken, told.append)
    assert len(told) == 1
    assert "operator in main were not renewed" in told[0]


async def test_a_second_start_keeps_everybody(running: DevSet) -> None:
    before = running.ready["nats"]["spaces"]
    await asyncio.to_thread(running.stop)
    with dev_set(running.directory) as again:
        assert again.ready["nats"]["spaces"] == before
