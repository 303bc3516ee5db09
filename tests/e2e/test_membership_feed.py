"""The membership feed at a real broker: who listens to what, and what becomes of those who leave."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from sidecar.base.clock import system_now
from sidecar.ops.metrics import Metrics
from sidecar.rails.connection import Connection, Credentials, PermissionViolation
from sidecar.rails.connection.kv import KeyValue
from sidecar.rails.connection.publishing import StoreRefused, store
from sidecar.rails.names import api, buckets, subjects
from sidecar.rails.names.limits import MAX_MEMBERSHIP_VALUE
from sidecar.rails.names.principals import Lifecycle, Principal
from sidecar.rails.planes.delivery.feed import MembershipFeed
from sidecar.rails.planes.delivery.membership import Interval, Membership
from sidecar.rails.planes.delivery.plane import Plane
from sidecar.rails.space.creds import format_creds
from sidecar.rails.space.holder import Form, Profile
from sidecar.rails.space.system import observer_permissions
from sidecar.rails.space.trust import new_user
from tests.e2e.space_broker import EVENT_SECONDS, SpaceBroker
from tests.e2e.space_dial import QUICK, dialled
from tests.e2e.space_members import SPACE, Space, clock, uid_of

pytestmark = pytest.mark.asyncio(loop_scope="module")

FEED = buckets.MEMBERSHIP_FEED.build()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def space(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Space]:
    directory: Path = tmp_path_factory.mktemp("feed")
    async with SpaceBroker(directory) as broker:
        made = Space(broker, Form.COMPATIBLE)
        await made.open()
        yield made


@contextlib.asynccontextmanager
async def observer(space: Space) -> AsyncIterator[Connection]:
    """The user of the system account that may ask who is connected."""
    key = new_user(os.urandom)

    async def mint() -> Credentials:
        granted = observer_permissions(space.trust.account)
        token = space.broker.trust.system_user("membership-observer", granted, key, clock(), 300)
        return Credentials(format_creds(token, key), clock() + 300)

    async with await Connection.open([space.broker.url], mint, policy=QUICK) as connection:
        yield connection


class Fed:
    """A running feed and what it has written."""

    def __init__(self, plane: Plane, feed: MembershipFeed) -> None:
        self.plane, self.feed = plane, feed
        self.values = KeyValue(plane.connection, buckets.MEMBERSHIP, SPACE)

    async def row(self, key: str) -> dict[str, Any] | None:
        entry = await self.values.get(key)
        return None if entry is None else json.loads(entry.value)

    async def until(self, key: str, met: Callable[[dict[str, Any] | None], bool]) -> dict[str, Any] | None:
        async with asyncio.timeout(EVENT_SECONDS):
            while True:  # each look is a round trip
                found = await self.row(key)
                if met(found):
                    return found


@contextlib.asynccontextmanager
async def feeding(space: Space, **more: Any) -> AsyncIterator[Fed]:
    async with (
        dialled(space, Profile.MEMBERSHIP_RW, "feeder") as (writer, holder),
        observer(space) as looker,
    ):
        plane = Plane(writer, SPACE, space.form, holder.lifecycle, Metrics())
        feed = MembershipFeed(plane, looker, space.trust.account, every=0.1, settle=0.01, **more)
        bound = asyncio.Event()
        running = asyncio.create_task(feed.run(bound))
        async with asyncio.timeout(EVENT_SECONDS):
            await asyncio.wait((running, asyncio.create_task(bound.wait())), return_when=asyncio.FIRST_COMPLETED)
        if running.done():
            running.result()
        try:
            yield Fed(plane, feed)
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)


def chat(channel: str) -> str:
    return subjects.CHAT.filter(space=SPACE, channel=channel)


async def remember(space: Space, row: Membership) -> None:
    """A durable membership, as the delivery daemon writes it."""
    async with dialled(space, Profile.DELIVERY, "daemon") as (daemon, _):
        await KeyValue(daemon, buckets.MEMBERS, SPACE).put(row.key, row.encode())


def membership(actor: str, channel: str, leave: int | None = None) -> Membership:
    return Membership(channel, Lifecycle(Principal("local", actor), uid_of(actor)), Interval(0, leave), 1, True)


@pytest.mark.req("C8-72", "CB-117", "CB-104")
async def test_a_silent_reader_has_a_row_with_its_patterns_and_loses_it_when_it_goes(space: Space) -> None:
    await remember(space, membership("ann", "team.>"))
    await remember(space, membership("ann", "left.one", 3))
    before = int(system_now().wall * 1000)
    async with feeding(space) as fed:
        async with dialled(space, Profile.AGENT, "ann", allow_subscribe=("team.>", "ops", "any.*")) as (ann, _):
            for channel in ("team.>", "ops", "any.*"):
                await ann.subscribe(chat(channel))
            row = await fed.until("local.ann", lambda row: row is not None and len(row["live"]) == 3)
            assert row is not None
            assert row["live"] == ["any.*", "ops", "team.>"]
            assert row["durable"] == ["team.>"]
            assert before <= row["observedAt"]
            assert set(row) == {"live", "durable", "observedAt"}
        gone = await fed.until("local.ann", lambda row: row is not None and row["live"] == [])
        assert gone is not None
        assert gone["durable"] == ["team.>"]
        await remember(space, membership("ann", "team.>", 9))
        assert await fed.until("local.ann", lambda row: row is None) is None


@pytest.mark.req("C8-72")
async def test_the_feed_says_when_it_looked_last_and_writes_a_row_only_when_it_changes(space: Space) -> None:
    async with feeding(space) as fed, dialled(space, Profile.AGENT, "bob", allow_subscribe=("quiet",)) as (bob, _):
        await bob.subscribe(chat("quiet"))
        await fed.until("local.bob", lambda row: row is not None)
        first = await fed.values.get("local.bob")
        beat = await fed.row(FEED)
        assert first is not None
        assert beat is not None
        later = await fed.until(FEED, lambda row: row is not None and row["observedAt"] > beat["observedAt"])
        assert later is not None
        assert later["complete"] is True
        again = await fed.values.get("local.bob")
        assert again is not None
        assert again.revision == first.revision


@pytest.mark.req("C8-72")
async def test_rows_that_somebody_else_left_are_repaired_and_removed(space: Space) -> None:
    async with dialled(space, Profile.MEMBERSHIP_RW, "other") as (other, _):
        values = KeyValue(other, buckets.MEMBERSHIP, SPACE)
        await values.put("local.ghost", b'{"live":["x"],"durable":[],"observedAt":1}')
        await values.put("local.carl", b"{broken")
    async with feeding(space) as fed, dialled(space, Profile.AGENT, "carl", allow_subscribe=("c",)) as (carl, _):
        await carl.subscribe(chat("c"))
        assert await fed.until("local.ghost", lambda row: row is None) is None
        async with asyncio.timeout(EVENT_SECONDS):
            while True:
                entry = await fed.values.get("local.carl")
                if entry is not None and entry.value.startswith(b'{"durable"'):
                    break
        assert json.loads(entry.value)["live"] == ["c"]


@pytest.mark.req("C8-72", "CB-117")
async def test_observers_and_users_of_other_accounts_have_no_row(space: Space) -> None:
    async with feeding(space) as fed, dialled(space, Profile.OBSERVER, "olga") as (olga, _):
        await olga.subscribe(subjects.CHAT.subtree(space=SPACE))
        async with dialled(space, Profile.AGENT, "dan", allow_subscribe=("d",)) as (dan, _dan):
            await dan.subscribe(chat("d"))
            await fed.until("local.dan", lambda row: row is not None)
            assert await fed.row("local.olga") is None


@pytest.mark.req("C8-73", "CB-64", "CB-117")
async def test_who_may_read_and_write_the_feed_and_what_the_observer_may_do(space: Space) -> None:
    stream, bucket = buckets.MEMBERSHIP.stream(SPACE), buckets.MEMBERSHIP.bucket(SPACE)
    row = buckets.KV_SUBJECT.build(bucket=bucket, key="local.ann")
    body = json.dumps({"last_by_subj": row}).encode()
    for profile, may in ((Profile.AGENT, False), (Profile.OBSERVER, True), (Profile.ADMIN, True)):
        async with dialled(space, profile, "reader") as (reader, _):
            for subject in (api.MESSAGE_GET.build(stream=stream), api.STREAM_INFO.build(stream=stream)):
                if may:
                    assert json.loads((await reader.request(subject, body)).data)
                else:
                    with pytest.raises(PermissionViolation):
                        await reader.request(subject, body)
            with pytest.raises(PermissionViolation):
                await reader.publish(row, b"{}")
    async with observer(space) as looker:
        for subject in (api.KICK.build(server="N" + "A" * 55), api.CONNECTIONS.build(account="A" * 56)):
            with pytest.raises(PermissionViolation):
                await looker.publish(subject, b"")
        with pytest.raises(PermissionViolation):
            await looker.subscribe(">")


@pytest.mark.req("C8-70")
async def test_a_value_beyond_the_bound_is_refused_by_the_bucket(space: Space) -> None:
    async with dialled(space, Profile.MEMBERSHIP_RW, "big") as (big, _):
        subject = buckets.KV_SUBJECT.build(bucket=buckets.MEMBERSHIP.bucket(SPACE), key="local.big")
        with pytest.raises(StoreRefused):
            await store(big, subject, b"x" * (MAX_MEMBERSHIP_VALUE + 1))
        await store(big, subject, b"x" * (MAX_MEMBERSHIP_VALUE - 1024))


@pytest.mark.req("C8-74", "CB-70")
async def test_a_corrupt_row_changes_no_delivery(space: Space) -> None:
    async with (
        dialled(space, Profile.MEMBERSHIP_RW, "writer") as (writer, _w),
        dialled(space, Profile.AGENT, "eve", allow_subscribe=("e",), allow_publish=("e",)) as (eve, _e),
    ):
        values = KeyValue(writer, buckets.MEMBERSHIP, SPACE)
        for value in (b"", b"{", b'{"live":[],"durable":[]}', b"null"):
            await values.put("local.eve", value)
            heard = await eve.subscribe(chat("e"))
            await eve.publish(subjects.CHAT.build(space=SPACE, owner="local", actor="eve", channel="e"), b"post")
            async with asyncio.timeout(EVENT_SECONDS):
                assert (await heard.next()).data == b"post"
            await heard.close()
        # A row that names a channel gives nobody the right to it.
        await values.put("local.eve", b'{"live":["secret"],"durable":["secret"]}')
        with pytest.raises(PermissionViolation):
            await eve.subscribe(chat("secret"))


async def test_a_lost_broker_is_survived_and_nothing_is_removed_by_it(space: Space) -> None:
    async with feeding(space) as fed, dialled(space, Profile.AGENT, "finn", allow_subscribe=("f",)) as (finn, _):
        await finn.subscribe(chat("f"))
        await fed.until("local.finn", lambda row: row is not None)
        entry = await fed.values.get("local.finn")
        space.broker.kill()
        space.broker.start()
        beat = int(system_now().wall * 1000)

        async def again() -> None:
            while True:
                with contextlib.suppress(Exception):
                    row = await fed.row(FEED)
                    if row is not None and row["observedAt"] > beat and row["complete"]:
                        return

        async with asyncio.timeout(EVENT_SECONDS):
            await again()
        after = await fed.until("local.finn", lambda row: row is not None)
        assert entry is not None
        assert after is not None
        assert after["live"] == ["f"]
