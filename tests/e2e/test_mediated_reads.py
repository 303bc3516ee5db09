"""A member of a mediated space: the real delivery plane reads its durables, and nothing is lost while that is down."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from sidecar.base.strictjson import JsonValue
from sidecar.rails.connection.streams import ConsumerGone
from sidecar.rails.endpoint.caller import Caller
from sidecar.rails.endpoint.codes import CallFailed, Code, Outcome
from sidecar.rails.messaging.anycast import AnycastRequests, State
from sidecar.rails.messaging.dm_reader import DmReader
from sidecar.rails.messaging.durables import Durable, judge
from sidecar.rails.messaging.intake import HeldCopy, IntakeRefused
from sidecar.rails.messaging.mediated_intake import MediatedIntake
from sidecar.rails.messaging.notices import Notices, Turn, mediated_lease
from sidecar.rails.messaging.takes import MediatedEpoch, TakeGate
from sidecar.rails.names import Lifecycle
from sidecar.rails.space.holder import Form, Profile
from tests.e2e.durable_reads import Member, soon
from tests.e2e.peers import Society, society
from tests.e2e.space_broker import EVENT_SECONDS
from tests.e2e.space_members import SPACE

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def here(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Society]:
    async with society(tmp_path_factory.mktemp("mediated-reads"), Form.MEDIATED) as made:
        yield made


class Reader:
    """A member with a caller and one intake."""

    def __init__(self, member: Member, durable: Durable, **options: Any) -> None:
        self.member = member
        self.caller = Caller(member.connection, SPACE, member.lifecycle, "reader")
        self.intake = MediatedIntake(
            member.connection, options.pop("calls", self.caller), durable, metrics=member.metrics, chance=lambda: 0.0,
            **{"wait": 1.0, **options},
        )  # fmt: skip

    async def copy(self) -> HeldCopy:
        async with asyncio.timeout(EVENT_SECONDS):
            return await self.intake.take()

    def id_of(self, copy: HeldCopy) -> str:
        return judge(copy.frame, self.intake.durable, mediated=True).message.id

    @property
    def words(self) -> dict[tuple[str, ...], float]:
        return self.member.metrics.totals("messaging_settled")

    async def close(self) -> None:
        await self.intake.close()
        await self.caller.close()


@contextlib.asynccontextmanager
async def reader(
    here: Society, actor: str, role: str = "", profile: Profile = Profile.AGENT, **options: Any
) -> AsyncIterator[Reader]:
    roles = (role,) if role else ()
    lifecycle: Lifecycle = await here.enrol(actor, (), roles)
    durable = Durable.of_role(SPACE, role) if role else Durable.dm(SPACE, lifecycle)
    async with here.town.member(actor, profile, roles=roles) as member:
        made = Reader(member, durable, **options)
        try:
            yield made
        finally:
            await made.close()


async def quiet(here: Society, one: Reader) -> None:
    """The durable has nothing that is delivered and not settled, and nothing more to deliver."""
    async with asyncio.timeout(EVENT_SECONDS):
        while (info := await here.town.consumer(one.intake.durable))["num_ack_pending"] or info["num_pending"]:
            pass


@pytest.mark.req("C9-47", "C8-62", "C8-63", "C8-64", "C8-66", "C4-11")
async def test_copies_are_fetched_and_settled_one_word_each(here: Society) -> None:
    async with here.plane(), here.town.member("sam") as sam, reader(here, "ann") as ann:
        for number in range(3):
            await sam.tell("ann", f"m{number}")
        first, second, third = [await ann.copy() for _ in range(3)]
        assert [ann.id_of(copy) for copy in (first, second, third)] == ["m0", "m1", "m2"]
        async with first.kept():
            assert await first.renew()
        await first.ack()
        await second.nak()
        await third.term()
        again = await ann.copy()
        assert (ann.id_of(again), again.frame.delivered) == ("m1", 2)
        again.show()
        await again.ack()
        await quiet(here, ann)
        said = {("renew", "sent"): 1, ("ack", "sent"): 2, ("nak", "sent"): 1, ("term", "sent"): 1}
        async with asyncio.timeout(EVENT_SECONDS):
            while ann.words != said:  # noqa: ASYNC110 - the broker has the words before their answer is here
                await asyncio.sleep(0.01)


@pytest.mark.req("C9-47", "C4-09")
async def test_reading_goes_on_when_the_plane_comes_back_and_what_was_said_meanwhile_is_said(here: Society) -> None:
    async with here.town.member("sam") as sam, reader(here, "bob") as bob:
        await sam.tell("bob", "m1")
        async with here.plane():
            copy = await bob.copy()
        copy.show()
        await copy.ack()
        assert not await copy.renew()
        await sam.tell("bob", "m2")
        await soon(lambda: bob.member.metrics.totals("messaging_fetch_failures").get(("unanswered",), 0) >= 2)
        assert ("ack", "sent") not in bob.words
        async with here.plane():
            later = await bob.copy()
            assert bob.id_of(later) == "m2"
            later.show()
            await later.ack()
            await quiet(here, bob)
            assert bob.words == {("ack", "sent"): 2}


class Cut:
    """Calls whose answers get lost when told so."""

    def __init__(self) -> None:
        self.caller: Caller | None = None
        self.lose: set[str] = set()
        self.lost = 0

    async def call(
        self, endpoint: str, command: str, args: dict[str, JsonValue] | None = None, *, seconds: float = 5.0
    ) -> JsonValue:
        assert self.caller is not None
        answer = await self.caller.call(endpoint, command, args, seconds=seconds)
        if command in self.lose:
            self.lose.discard(command)
            self.lost += 1
            raise CallFailed(Code.DEADLINE_EXCEEDED, "the answer was lost", Outcome.UNKNOWN)
        return answer


@pytest.mark.req("C9-47")
async def test_a_settlement_whose_answer_was_lost_is_said_again_and_harms_nothing(here: Society) -> None:
    cut = Cut()
    async with here.plane(), here.town.member("sam") as sam, reader(here, "cleo", calls=cut) as cleo:
        cut.caller = cleo.caller
        await sam.tell("cleo", "m1")
        copy = await cleo.copy()
        cut.lose = {"settle"}
        copy.show()
        await copy.ack()
        await soon(lambda: ("ack", "sent") in cleo.words)
        assert cut.lost == 1
        await quiet(here, cleo)
        await sam.tell("cleo", "m2")
        again = await cleo.copy()
        cut.lose = {"settle"}
        assert not await again.renew(), "a renewal that may not have come through renews nothing"
        assert cleo.words[("renew", "lost")] == 1


@pytest.mark.req("C8-37")
async def test_a_missing_durable_and_a_role_of_others_are_refusals(here: Society) -> None:
    async with here.plane(), here.town.member("nobody", roles=("mine",)) as member:
        for durable, error in (
            (Durable.dm(SPACE, member.lifecycle), ConsumerGone),
            (Durable.of_role(SPACE, "mine"), IntakeRefused),
        ):
            nobody = Reader(member, durable)
            for _ in range(2):
                with pytest.raises(error):
                    await nobody.copy()
            await nobody.close()


@pytest.mark.req("C8-36", "C9-47")
async def test_a_reader_of_direct_messages_needs_no_more_than_its_profile(here: Society) -> None:
    async with (
        here.plane(),
        here.town.member("sam") as sam,
        reader(here, "dora", profile=Profile.DM_READER) as dora,
    ):
        await sam.tell("dora", "forged", as_actor="carol")
        await sam.tell("dora", "m1")
        direct = DmReader(dora.intake, mediated=True, metrics=dora.member.metrics)
        async with asyncio.timeout(EVENT_SECONDS):
            shown = await direct.next()
        assert shown.received.message.id == "m1"
        await shown.handled()
        await quiet(here, dora)
        assert dora.member.metrics.totals("nats_faults") == {}


@pytest.mark.req("C8.1-12", "C8.1-36", "C8.1-39", "C8.1-44", "C8.1-47", "C8.1-48", "C8.1-55", "C4-12", "C4-04")
async def test_a_request_from_asking_over_the_take_to_the_notice_of_its_sender(here: Society) -> None:
    async with here.plane(), reader(here, "rev", "rv") as rev, reader(here, "eve") as asker:
        requests = AnycastRequests(asker.caller)
        sequence = await asker.member.request_role("rv", "q1")
        waiting = await requests.status(sequence, "q1")
        assert (waiting.state, waiting.role) == (State.WAITING, "rv")
        assert (await requests.status(sequence, "other")).state is State.UNKNOWN

        async def offer(copy: HeldCopy) -> None:
            raise AssertionError("nothing has to be offered again")

        gate = TakeGate(
            rev.member.connection, SPACE, rev.member.lifecycle, "Rev", epoch=MediatedEpoch(rev.caller),
            caller=rev.caller, offer=offer, entropy=os.urandom, metrics=rev.member.metrics,
        )  # fmt: skip
        await gate.start()
        copy = await rev.copy()
        assert (await requests.status(sequence, "q1")).state is State.WAITING, "a copy that came is no take"
        message = judge(copy.frame, rev.intake.durable, mediated=True).message
        assert await gate.admit(copy, message)
        copy.show()
        taken = await requests.cancel(sequence, "q1")
        assert (taken.state, taken.taker) == (State.TAKEN, ("local.rev", "Rev", None))
        await copy.ack()
        await quiet(here, rev)
        told = await asker.copy()
        received = judge(told.frame, asker.intake.durable, mediated=True)
        notice = await Notices(mediated_lease(asker.caller)).of(received)
        assert notice is not None
        assert (notice.sequence, notice.turn, notice.taker.id) == (sequence, Turn.TAKEN, "local.rev")
        told.show()
        await told.ack()
        await gate.close()

        other = await asker.member.request_role("rv", "q2")
        cancelled = await requests.cancel(other, "q2")
        assert (cancelled.state, cancelled.sequence) == (State.CANCELLED, other)
