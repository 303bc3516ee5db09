"""A reader of direct messages on the smallest credential: what it publishes, and what it does without its durable."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from sidecar.rails.connection import PermissionViolation
from sidecar.rails.connection.streams import ConsumerGone
from sidecar.rails.messaging.dm_reader import Direct, DmReader
from sidecar.rails.messaging.durables import Durable
from sidecar.rails.messaging.intake import RawIntake
from sidecar.rails.names import api
from sidecar.rails.space.holder import Profile
from tests.e2e.durable_reads import Member, Town, life, soon, town
from tests.e2e.space_broker import EVENT_SECONDS
from tests.e2e.space_members import SPACE
from tests.e2e.wire_tap import tapped

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def main(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Town]:
    async with town(tmp_path_factory.mktemp("dm-reader")) as here:
        yield here


def reader_of(member: Member) -> DmReader:
    intake = RawIntake(member.connection, Durable.dm(SPACE, member.lifecycle), metrics=member.metrics, heartbeat=0.4)
    return DmReader(intake, metrics=member.metrics)


async def direct(reader: DmReader) -> Direct:
    async with asyncio.timeout(EVENT_SECONDS):
        return await reader.next()


@pytest.mark.req("C8-36", "C8-38", "C8-39", "C8-62", "C8-64")
async def test_it_publishes_the_look_the_pull_and_the_ack_of_its_own_durable_and_nothing_else(main: Town) -> None:
    await main.activate("ann")
    durable = Durable.dm(SPACE, life("ann"))
    async with (
        main.member("sam") as sam,
        tapped(main.broker.port) as tap,
        main.member("ann", Profile.DM_READER, url=tap.url) as ann,
    ):
        await sam.tell("ann", "forged", as_actor="carol")
        await sam.tell("ann", "m1")
        reader = reader_of(ann)
        shown = await direct(reader)
        assert shown.received.message.id == "m1", "the forged one is terminated before any handler"
        await shown.handled()
        await sam.tell("ann", "m2")
        again = await direct(reader)
        await again.later()
        await (await direct(reader)).refuse()
        await soon(lambda: sum(subject.startswith(ack) for subject in tap.published) == 4)
        info = api.CONSUMER_INFO.build(stream=durable.stream, consumer=durable.consumer)
        pull = api.CONSUMER_NEXT.build(stream=durable.stream, consumer=durable.consumer)
        assert set(tap.published) - {one for one in tap.published if one.startswith(ack)} == {info, pull}
        assert all(subject.startswith(f"_INBOX_{ann.holder.connection}.") for subject in tap.subscribed)
        assert [body for body in tap.bodies if body[:1] in (b"+", b"-")] == [b"+TERM", b"+ACK", b"-NAK", b"+TERM"]
        assert ann.metrics.totals("messaging_copies_refused") == {("dm", "sender-mismatch"): 1}
        assert ann.metrics.totals("nats_faults") == {}
        await reader.close()
        assert [one async for one in reader] == []


ack = api.ACK.build(stream="DM_main", consumer=Durable.dm(SPACE, life("ann")).consumer) + "."


@pytest.mark.req("C8-37")
async def test_without_a_durable_there_is_a_refusal_and_no_other_way(main: Town) -> None:
    async with tapped(main.broker.port) as tap, main.member("bob", Profile.DM_READER, url=tap.url) as bob:
        reader = reader_of(bob)
        with pytest.raises(ConsumerGone):
            await direct(reader)
        durable = Durable.dm(SPACE, bob.lifecycle)
        assert set(tap.published) == {api.CONSUMER_INFO.build(stream=durable.stream, consumer=durable.consumer)}
        await reader.close()


@pytest.mark.req("C8-36", "C8-39")
async def test_its_credential_is_good_for_nothing_else(main: Town) -> None:
    await main.activate("cleo")
    async with main.member("cleo", Profile.DM_READER) as cleo:
        names = cleo.lifecycle.names
        others = Durable.backstop(SPACE, cleo.lifecycle)
        for subject in (
            api.INFO.build(),
            api.STREAM_INFO.build(stream="DM_main"),
            api.CONSUMER_NEXT.build(stream=others.stream, consumer=others.consumer),
            api.MESSAGE_GET.build(stream="KV_cotal_delivery_main"),
            f"cotal.main.inst.local.sam.local.{names['actor']}",
            "$KV.cotal_presence_main.local.cleo",
        ):
            with pytest.raises(PermissionViolation):
                await cleo.connection.publish(subject)


async def test_it_reads_no_other_durable() -> None:
    class Other:
        durable = Durable.of_role(SPACE, "r")

    with pytest.raises(ValueError, match="direct messages"):
        DmReader(Other())  # type: ignore[arg-type]
