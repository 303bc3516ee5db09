"""Holders of a compatible space against the real delivery plane: a request moves on, and its sender is told by whom."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from sidecar.rails.endpoint.caller import Caller
from sidecar.rails.envelopes.receive import Received
from sidecar.rails.messaging.anycast import AnycastRequests, State
from sidecar.rails.messaging.durables import Durable, judge
from sidecar.rails.messaging.intake import HeldCopy, RawIntake
from sidecar.rails.messaging.notices import Notices, Turn, raw_lease
from sidecar.rails.messaging.takes import RawEpoch, TakeGate
from sidecar.rails.names import headers
from sidecar.rails.space.holder import Form
from tests.e2e.durable_reads import Member
from tests.e2e.peers import Society, society
from tests.e2e.space_broker import EVENT_SECONDS
from tests.e2e.space_members import SPACE

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def here(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Society]:
    async with society(tmp_path_factory.mktemp("takes-plane"), Form.COMPATIBLE) as made:
        yield made


class Seat:
    """A member with a caller, its direct messages, and perhaps the queue of a role."""

    def __init__(self, member: Member, role: str) -> None:
        self.member = member
        self.caller = Caller(member.connection, SPACE, member.lifecycle, "seat")
        durable = Durable.of_role(SPACE, role) if role else Durable.dm(SPACE, member.lifecycle)
        self.intake = RawIntake(member.connection, durable, metrics=member.metrics, heartbeat=0.4)
        self.gate = TakeGate(
            member.connection, SPACE, member.lifecycle, member.lifecycle.principal.actor,
            epoch=RawEpoch(member.connection, SPACE), caller=self.caller, offer=self.offered, entropy=os.urandom,
            metrics=member.metrics,
        )  # fmt: skip

    async def offered(self, copy: HeldCopy) -> None:
        raise AssertionError("every take is decided at once")

    async def next(self) -> tuple[HeldCopy, Received]:
        async with asyncio.timeout(EVENT_SECONDS):
            copy = await self.intake.take()
        return copy, judge(copy.frame, self.intake.durable, mediated=False)

    async def shown(self) -> tuple[HeldCopy, bool]:
        """The next copy, and whether it may be shown."""
        copy, received = await self.next()
        return copy, await self.gate.admit(copy, received.message)


@contextlib.asynccontextmanager
async def seat(here: Society, actor: str, role: str = "") -> AsyncIterator[Seat]:
    roles = (role,) if role else ()
    await here.enrol(actor, (), roles)
    async with here.town.member(actor, roles=roles) as member:
        made = Seat(member, role)
        await made.gate.start()
        try:
            yield made
        finally:
            await made.gate.close()
            await made.intake.close()
            await made.caller.close()


@pytest.mark.req("C8.1-12", "C8.1-17", "C8.1-36", "C8.1-44", "C8.1-47", "C4-04", "C4-12", "C12-28", "C8-32")
async def test_a_request_moves_to_the_holder_of_the_later_copy(here: Society) -> None:
    async with here.plane(), seat(here, "asker") as asker:
        requests = AnycastRequests(asker.caller)
        async with seat(here, "one", "rv") as one:
            sequence = await asker.member.request_role("rv", "q1")
            copy, shown = await one.shown()
            assert shown
            copy.show()
            await one.intake.close()
            await copy.nak()  # as when its holder dies: nobody acks, and the broker gives it out again
        async with seat(here, "two", "rv") as two:
            copy, shown = await two.shown()
            assert shown
            copy.show()
            status = await requests.status(sequence, "q1")
            assert status.state is State.TAKEN
            assert status.taker is not None
            assert status.taker.id == "local.two"
            await copy.ack()
        notices = Notices(raw_lease(asker.member.connection, SPACE))
        seen: list[tuple[Turn, str, str | None]] = []
        while len(seen) < 2:
            told, received = await asker.next()
            notice = await notices.of(received)
            assert notice is not None
            seen.append((notice.turn, notice.taker.id, None if notice.previous is None else notice.previous.id))
            told.show()
            await told.ack()
        assert seen == [(Turn.TAKEN, "local.one", None), (Turn.REDELIVERED, "local.two", "local.one")]


@pytest.mark.req("C8.1-14", "C8.1-36", "C8.1-39")
async def test_a_cancelled_request_is_not_shown(here: Society) -> None:
    async with here.plane(), seat(here, "asker") as asker, seat(here, "one", "rw") as one:
        sequence = await asker.member.request_role("rw", "q2")
        copy, received = await one.next()
        cancelled = await AnycastRequests(asker.caller).cancel(sequence, "q2")
        assert cancelled.state is State.CANCELLED
        assert not await one.gate.admit(copy, received.message)
        assert one.member.metrics.totals("messaging_takes") == {("cancelled",): 1}
        assert ("ack", "sent") not in one.member.metrics.totals("messaging_settled")


@pytest.mark.req("C8.1-47")
async def test_the_same_words_of_a_peer_are_a_direct_message(here: Society) -> None:
    async with here.plane(), seat(here, "target") as target, here.town.member("eve") as eve:
        said = {headers.ANYCAST_NOTICE: {"seq": 1, "role": "rv", "event": "taken", "taker": {"id": "x", "name": "x"}}}
        await eve.tell_data("target", said)
        _, received = await target.next()
        assert await Notices(raw_lease(target.member.connection, SPACE)).of(received) is None
