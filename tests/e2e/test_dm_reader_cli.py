"""``sidecar dm inbox`` on the smallest credential, in both forms: what is shown, and what goes over the wire."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from sidecar.rails.messaging.durables import Durable
from sidecar.rails.names import api
from sidecar.rails.space.creds import write_creds
from sidecar.rails.space.holder import Form, Holder, Profile
from tests.e2e.devset import SIDECAR
from tests.e2e.durable_reads import life
from tests.e2e.peers import SECONDS, Society, society
from tests.e2e.space_members import SPACE, clock
from tests.e2e.wire_tap import tapped

PATIENCE = 60.0
pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=list(Form))
async def here(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Society]:
    async with society(tmp_path_factory.mktemp("dm-reader-cli"), request.param) as made:
        yield made


def creds(here: Society, actor: str) -> Path:
    key = here.key(actor)
    holder = Holder(SPACE, life(actor), key.public, here.form)
    path = here.town.broker.directory / f"{actor}.creds"
    write_creds(path, here.town.space.trust.issue(Profile.DM_READER, holder, key, clock(), SECONDS), key)
    return path


async def inbox(url: str, file: Path, *options: str) -> tuple[int | None, list[dict[str, Any]]]:
    """One run to its end: its exit code and what it printed."""
    words = (*SIDECAR, "dm", "inbox", "--json", "--creds", os.fspath(file), "--url", url, *options)
    process = await asyncio.create_subprocess_exec(*words, stdout=asyncio.subprocess.PIPE)
    async with asyncio.timeout(PATIENCE):
        printed, _ = await process.communicate()
    return process.returncode, [json.loads(line) for line in printed.splitlines()]


@pytest.mark.req("C8-36", "C8-38", "C8-39", "C8-62")
async def test_the_inbox_of_a_dm_reader_reads_settles_and_publishes_nothing_else(here: Society) -> None:
    await here.town.activate("ann")
    durable = Durable.dm(SPACE, life("ann"))
    async with here.plane(), here.town.member("sam") as sam, tapped(here.town.broker.port) as tap:
        for text in ("forged", "m1", "m2"):
            await sam.tell("ann", text, **({"as_actor": "carol"} if text == "forged" else {}))
        code, lines = await inbox(tap.url, creds(here, "ann"), "--count", "2")
        shown = [line["id"] for line in lines if line["type"] == "message"]
        assert (code, shown) == (0, ["m1", "m2"])
        found = await here.town.consumer(durable)
        assert (found["num_pending"], found["num_ack_pending"]) == (0, 0)
        again = await inbox(tap.url, creds(here, "ann"), "--idle", "0.5")
        assert again[0] == 0
        assert not [line for line in again[1] if line["type"] == "message"]
    if here.form is Form.COMPATIBLE:
        names = {"stream": durable.stream, "consumer": durable.consumer}
        own: tuple[str, ...] = (
            api.CONSUMER_INFO.build(**names),
            api.CONSUMER_NEXT.build(**names),
            api.ACK.build(**names) + ".",
        )
    else:
        own = tuple(f"cotal.{SPACE}.ep.one.delivery.{command}." for command in ("fetch", "settle"))
    assert [subject for subject in tap.published if not subject.startswith(own)] == []


@pytest.mark.req("C8-37")
async def test_without_a_store_it_is_refused(here: Society) -> None:
    async with here.plane():
        code, lines = await inbox(here.town.broker.url, creds(here, "bob"), "--idle", "5")
    assert (code, lines[-1]["type"], lines[-1]["exit_code"]) == (1, "error", 1)
