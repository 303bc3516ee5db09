"""A member's durables at a real broker, read raw: at-least-once, one word for each copy, nothing foreign."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from sidecar.rails.connection.streams import ConsumerGone
from sidecar.rails.envelopes import backstop
from sidecar.rails.envelopes.receive import Rejected
from sidecar.rails.messaging.durables import Durable, judge
from sidecar.rails.messaging.held import NotShown
from sidecar.rails.messaging.intake import HeldCopy, IntakeClosed, RawIntake
from sidecar.rails.space.holder import Profile
from tests.e2e.durable_reads import Member, Town, document, life, soon, town
from tests.e2e.space_broker import EVENT_SECONDS
from tests.e2e.space_members import SPACE

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def main(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Town]:
    async with town(tmp_path_factory.mktemp("durables")) as here:
        yield here


async def taken(intake: RawIntake) -> HeldCopy:
    async with asyncio.timeout(EVENT_SECONDS):
        return await intake.take()


def dm(member: Member) -> RawIntake:
    return RawIntake(member.connection, Durable.dm(SPACE, member.lifecycle), metrics=member.metrics, heartbeat=0.4)


async def acked(here: Town, durable: Durable, count: int) -> None:
    """Wait until the broker has settled the first copies of a durable, so many deliveries of them."""
    async with asyncio.timeout(EVENT_SECONDS):
        while (await here.consumer(durable))["ack_floor"]["consumer_seq"] != count:
            pass


@pytest.mark.req("C8-29", "C4-03", "C4-11", "C8-62", "C12-07", "C4-09")
async def test_a_copy_that_was_not_acked_comes_again_after_a_crash(main: Town) -> None:
    await main.activate("ann")
    async with main.member("sam") as sam:
        await sam.tell("ann", "m1")
    async with main.member("ann") as ann:
        intake = dm(ann)
        copy = await taken(intake)
        assert (copy.frame.delivered, judge(copy.frame, intake.durable, mediated=False).message.id) == (1, "m1")
        with pytest.raises(NotShown):
            await copy.ack()
        copy.show()
        await copy.nak()  # a reader that dies has the broker do this after the ack wait
        again = await taken(intake)
        assert (again.frame.sequence, again.frame.delivered) == (copy.frame.sequence, 2)
        await intake.close()
    async with main.member("ann") as ann:
        intake = dm(ann)
        async with main.member("sam") as sam:
            await sam.tell("ann", "m2")
        second = await taken(intake)
        assert judge(second.frame, intake.durable, mediated=False).message.id == "m2"
        again.show()
        for one in (again, second):
            one.show()
            await RawIntake.ack(intake, one.frame)
        await acked(main, intake.durable, 3)
        await intake.close()


@pytest.mark.req("C4-27", "C8-64", "C8-38", "C4-25", "C5-14")
async def test_a_forged_copy_is_terminated_once_and_never_comes_again(main: Town) -> None:
    await main.activate("bea")
    async with main.member("sam") as sam, main.member("bea") as bea:
        await sam.tell("bea", "m1", as_actor="carol")
        await sam.tell("bea", "m2")
        intake = dm(bea)
        forged = await taken(intake)
        with pytest.raises(Rejected):
            judge(forged.frame, intake.durable, mediated=False)
        await forged.term()
        await forged.term()
        good = await taken(intake)
        assert good.frame.delivered == 1
        good.show()
        await good.ack()
        await acked(main, intake.durable, 2)
        assert bea.metrics.totals("messaging_settled") == {("term", "sent"): 1, ("ack", "sent"): 1}
        await intake.close()


@pytest.mark.req("C8-58", "C4-21", "C4-22", "C4-23")
async def test_two_messages_without_an_id_are_two_deliveries_with_two_acks(main: Town) -> None:
    await main.activate("cleo")
    async with main.member("sam") as sam, main.member("cleo") as cleo:
        assert await sam.tell("cleo", "") != await sam.tell("cleo", "")
        intake = dm(cleo)
        for floor in (1, 2):
            copy = await taken(intake)
            assert judge(copy.frame, intake.durable, mediated=False).message.id == ""
            copy.show()
            await copy.ack()
            await acked(main, intake.durable, floor)
        await intake.close()


@pytest.mark.req("C8-66", "C8-65")
async def test_a_renewal_is_said_to_the_copys_own_ack_subject(main: Town) -> None:
    await main.activate("dora")
    async with main.member("sam") as sam, main.member("dora") as dora:
        await sam.tell("dora")
        intake = dm(dora)
        copy = await taken(intake)
        async with copy.kept():
            assert await copy.renew()
        await copy.ack()
        assert not await copy.renew(), "a settled copy is not spoken of"
        await acked(main, intake.durable, 1)
        assert dora.metrics.totals("messaging_settled") == {("renew", "sent"): 1, ("ack", "sent"): 1}
        await intake.close()


@pytest.mark.req("C8-37", "C8-31")
async def test_a_durable_that_is_not_there_is_a_refusal(main: Town) -> None:
    async with main.member("nobody") as nobody:
        intake = dm(nobody)
        for _ in range(2):
            with pytest.raises(ConsumerGone):
                await taken(intake)
        await intake.close()


@pytest.mark.req("C8-43")
async def test_a_backstop_copy_waits_on_the_members_own_durable(main: Town) -> None:
    await main.activate("erin")
    erin_life = life("erin")
    durable = Durable.backstop(SPACE, erin_life)
    async with main.member("delivery", Profile.DELIVERY) as daemon:
        post = "cotal.main.chat.local.sam.general"
        headers = backstop.encode(post, 7, backstop.Why.CHANNEL, "m1", erin_life)
        await daemon.stored(durable.pattern, document("sam", channel="general"), **backstop.handed_off(headers, 1000))
    async with main.member("erin") as erin:
        intake = RawIntake(erin.connection, durable, heartbeat=0.4)
        copy = await taken(intake)
        assert judge(copy.frame, durable, mediated=False).meta.target == "general"
        async with copy.kept():
            pass
        await copy.ack()
        await acked(main, durable, 1)
        await intake.close()


async def test_reading_goes_on_behind_a_killed_broker(tmp_path: Path) -> None:
    async with town(tmp_path) as here:
        await here.activate("finn")
        async with here.member("sam") as sam, here.member("finn") as finn:
            intake = dm(finn)
            await sam.tell("finn", "m1")
            copy = await taken(intake)
            here.broker.kill()
            await soon(lambda: not finn.connection.linked)
            copy.show()
            lost = asyncio.create_task(copy.ack())
            here.broker.start()
            await lost
            await sam.connection.restored(-1)
            await sam.tell("finn", "m2")
            seen = {"m1"}
            while "m2" not in seen:
                seen.add(judge((await taken(intake)).frame, intake.durable, mediated=False).message.id)
            await intake.close()


async def test_a_closed_intake_says_so_to_who_waits(main: Town) -> None:
    await main.activate("gil")
    async with main.member("gil") as gil:
        intake = dm(gil)
        waiting = asyncio.create_task(taken(intake))
        await asyncio.sleep(0)
        await intake.close()
        with pytest.raises(IntakeClosed):
            await waiting
