"""Takes of anycast requests at a real broker: nothing is shown without an `ok` for just the copy that is held."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import pytest_asyncio

from sidecar.base.strictjson import JsonValue
from sidecar.rails.connection import Connection
from sidecar.rails.endpoint.codes import CallFailed, CallRefused, Code, Outcome
from sidecar.rails.messaging.durables import Durable, judge
from sidecar.rails.messaging.held import Copy
from sidecar.rails.messaging.intake import ROLE_UNSHOWN, HeldCopy, RawIntake
from sidecar.rails.messaging.take_steps import Came
from sidecar.rails.messaging.takes import RawEpoch, TakeGate
from sidecar.rails.names import api, subjects
from sidecar.rails.space.holder import Profile
from tests.e2e.durable_reads import Member, Town, soon, town
from tests.e2e.space_broker import EVENT_SECONDS
from tests.e2e.space_members import SPACE

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def main(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Town]:
    async with town(tmp_path_factory.mktemp("takes")) as here:
        yield here


class Plane:
    """Serves takes with the credentials of the delivery plane; what it says is the test's."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.seen: list[tuple[str, dict[str, Any]]] = []
        self.answers: list[dict[str, Any] | None] = []
        """The next answers; None: silence. When there are none left: ok."""
        self.hold = asyncio.Event()
        self.hold.set()

    async def serve(self) -> None:
        subscription = await self.connection.subscribe(subjects.TAKE.filter(space=SPACE), "take")
        async for message in subscription:
            assert subjects.TAKE_REPLY.split(message.reply), "C8.1-03: below the request"
            self.seen.append((message.subject, json.loads(message.data)))
            answer = self.answers.pop(0) if self.answers else {"ok": True}
            await self.hold.wait()
            if answer is not None:
                await self.connection.send(message.reply, json.dumps(answer).encode())


@contextlib.asynccontextmanager
async def plane(here: Town) -> AsyncIterator[Plane]:
    async with here.member("delivery", Profile.DELIVERY) as daemon:
        served = Plane(daemon.connection)
        task = asyncio.create_task(served.serve())
        await soon(lambda: bool(daemon.connection._subscriptions.placed))
        try:
            yield served
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


class Endpoint:
    """How the delivery endpoint answers; by default nobody is there."""

    def __init__(self, **answers: Exception | JsonValue) -> None:
        self.answers = answers
        self.asked: list[str] = []

    async def call(
        self, endpoint: str, command: str, args: dict[str, JsonValue] | None = None, *, seconds: float = 5.0
    ) -> JsonValue:
        self.asked.append(command)
        nobody = CallFailed(Code.UNAVAILABLE, "nobody is there", Outcome.NOT_EXECUTED)
        answer = self.answers.get(command.replace("-", "_"), nobody)
        if isinstance(answer, Exception):
            raise answer
        return answer


class Holder:
    """A holder of a role that reads one request after the other."""

    def __init__(self, member: Member, role: str, endpoint: Endpoint | None = None, **options: Any) -> None:
        self.member = member
        self.intake = RawIntake(member.connection, Durable.of_role(SPACE, role), metrics=member.metrics, heartbeat=0.4)
        self.offered: asyncio.Queue[HeldCopy] = asyncio.Queue()
        self.gate = TakeGate(
            member.connection,
            SPACE,
            member.lifecycle,
            "Rev",
            epoch=RawEpoch(member.connection, SPACE),
            caller=endpoint or Endpoint(),
            offer=self.offered.put,
            entropy=os.urandom,
            metrics=member.metrics,
            **options,
        )

    async def __aenter__(self) -> Holder:
        await self.gate.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.gate.close()
        await self.intake.close()

    async def copy(self) -> HeldCopy:
        """The next copy of the queue."""
        async with asyncio.timeout(EVENT_SECONDS):
            return await self.intake.take()

    async def again(self) -> HeldCopy:
        """The next copy that the gate offers."""
        async with asyncio.timeout(EVENT_SECONDS):
            return await self.offered.get()

    async def read(self, copy: HeldCopy) -> bool:
        """Read the body: True when it is shown."""
        message = judge(copy.frame, self.intake.durable, mediated=False).message
        async with asyncio.timeout(EVENT_SECONDS):
            return await self.gate.admit(copy, message)

    @property
    def takes(self) -> dict[str, float]:
        return {labels[0]: count for labels, count in self.member.metrics.totals("messaging_takes").items()}

    @property
    def words(self) -> dict[str, float]:
        return {labels[0]: count for labels, count in self.member.metrics.totals("messaging_settled").items()}


Enter = Callable[..., Any]


@contextlib.asynccontextmanager
async def holder(here: Town, role: str, actor: str = "rev", **options: Any) -> AsyncIterator[Holder]:
    await here.activate(actor, (role,))
    async with here.member(actor, roles=(role,)) as member, Holder(member, role, **options) as one:
        yield one


async def asked(here: Town, role: str, message_id: str = "m1") -> int:
    async with here.member("sam") as sam:
        return await sam.request_role(role, message_id)


async def settled(here: Town, durable: Durable) -> None:
    async with asyncio.timeout(EVENT_SECONDS):
        while (info := await here.consumer(durable))["num_ack_pending"] or info["num_pending"]:
            pass


@pytest.mark.req("C8.1-03", "C8.1-05", "C8.1-06", "C8.1-12", "C8.1-13", "C8.1-16", "C4-12", "C8-32")
async def test_a_request_is_taken_and_then_shown(main: Town) -> None:
    async with holder(main, "r1") as rev, plane(main) as served:
        sequence = await asked(main, "r1")
        copy = await rev.copy()
        assert served.seen == [], "a copy that came is no take"
        assert await rev.read(copy)
        ((subject, body),) = served.seen
        assert subject == "cotal.main.take.r1.local.rev"
        created = await RawEpoch(rev.member.connection, SPACE)()
        sender = {"id": "local.rev", "name": "Rev"}
        assert body == {"from": sender, "seq": sequence, "id": "m1", "count": 1, "epoch": created}
        assert rev.words == {"renew": 1}, "+WPI before it asks"
        copy.show()
        await copy.ack()
        await settled(main, rev.intake.durable)
        assert (rev.takes, rev.gate.held) == ({"ok": 1}, 0)


@pytest.mark.req("C8.1-14", "C8.1-11")
@pytest.mark.parametrize("code", ["cancelled", "taken", "gone"])
async def test_a_refused_copy_is_forgotten_without_a_word(main: Town, code: str) -> None:
    async with holder(main, f"r2{code}") as rev, plane(main) as served:
        served.answers = [{"ok": False, "code": code, "error": "x"}]
        await asked(main, f"r2{code}")
        copy = await rev.copy()
        assert not await rev.read(copy)
        assert (copy.held.state, rev.words, rev.gate.held) == (Copy.SETTLED, {"renew": 1}, 0)
        assert (await main.consumer(rev.intake.durable))["num_ack_pending"] == 1


@pytest.mark.req("C8.1-15")
async def test_a_mismatch_of_the_same_stream_is_forgotten_and_one_of_an_older_stream_comes_again(main: Town) -> None:
    async with holder(main, "r3") as rev, plane(main) as served:
        served.answers = [{"ok": False, "code": "mismatch", "error": "x"}] * 2
        await asked(main, "r3")
        rev.gate._epoch = "2020-01-01T00:00:00Z"  # what was read before the stream was made anew
        assert not await rev.read(await rev.copy())
        again = await rev.copy()
        assert (again.frame.delivered, rev.words) == (2, {"renew": 1, "nak": 1})
        assert not await rev.read(again)
        assert (rev.words, rev.gate.held) == ({"renew": 2, "nak": 1}, 0)
        assert served.seen[0][1]["epoch"] != served.seen[1][1]["epoch"]


@pytest.mark.req("C8.1-49", "C8.1-51", "C8.1-21")
async def test_a_request_that_cannot_be_decided_is_kept_and_asked_for_again(main: Town) -> None:
    async with holder(main, "r4", first_retry=0.2, take_seconds=0.3) as rev, plane(main) as served:
        served.answers = [{"ok": False, "code": "busy", "error": "x"}, None]
        await asked(main, "r4", "m1")
        await asked(main, "r4", "m2")
        first, second = await rev.copy(), await rev.copy()
        assert not await rev.read(first)
        assert not await rev.read(second), "takes fail: it is not asked for, and kept"
        assert len(served.seen) == 1
        assert await rev.again() is first, "the older one is the one to try"
        assert not await rev.read(first)
        assert await rev.again() is first
        assert await rev.read(first)
        assert await rev.again() is second
        assert await rev.read(second)
        assert rev.takes == {"busy": 1, "silent": 1, "ok": 2}
        assert rev.words == {"renew": 4}, "renewed when it is asked for, and at no other time"


@pytest.mark.req("C8.1-42", "C8.1-50", "C8.1-49", "C8.1-12")
@pytest.mark.parametrize(
    ("endpoint", "cause", "probes"),
    [
        (Endpoint(), "no_daemon", ["anycast-takes", "list-memberships"]),
        (
            Endpoint(anycast_takes=CallRefused(Code.UNIMPLEMENTED, "x", Outcome.NOT_EXECUTED)),
            "old_daemon",
            ["anycast-takes"],
        ),
        (Endpoint(list_memberships={"memberships": []}), "old_daemon", ["anycast-takes", "list-memberships"]),
        (Endpoint(anycast_takes={"takes": True}), "silent", ["anycast-takes"]),
    ],
    ids=["none", "refusing", "older", "starting"],
)
async def test_nobody_serves_takes(main: Town, endpoint: Endpoint, cause: str, probes: list[str]) -> None:
    endpoint.asked.clear()
    role = f"r5{cause}{len(probes)}"
    async with holder(main, role, endpoint=endpoint) as rev:
        await asked(main, role)
        copy = await rev.copy()
        assert not await rev.read(copy)
        assert (rev.takes, endpoint.asked, rev.gate.held) == ({cause: 1}, probes, 1)
        assert copy.held.state is Copy.HELD


@pytest.mark.req("C8.1-49", "C8.1-50", "C8.1-58")
async def test_a_credential_without_the_role_shows_nothing(main: Town) -> None:
    async with holder(main, "r6") as rev, plane(main) as served:
        await asked(main, "r6")
        copy = await rev.copy()
        stranger = TakeGate(
            rev.member.connection,
            SPACE,
            rev.member.lifecycle,
            "Rev",
            epoch=RawEpoch(rev.member.connection, SPACE),
            caller=Endpoint(),
            offer=rev.offered.put,
            entropy=os.urandom,
            metrics=rev.member.metrics,
        )
        await stranger.start()
        other = copy.frame._replace(subject=copy.frame.subject.replace(".r6.", ".other."))
        message = judge(copy.frame, rev.intake.durable, mediated=False).message
        renamed = HeldCopy(other, copy.held, rev.intake, copy._clock)
        assert not await stranger.admit(renamed, message)
        assert (rev.takes, served.seen) == ({"denied": 1}, [])
        await stranger.close()


@pytest.mark.req("C4-04", "C12-28", "C8-32", "C8.1-17")
async def test_two_holders_have_one_copy_and_the_next_holder_has_what_the_first_left(main: Town) -> None:
    async with plane(main), holder(main, "r7", "rev") as one, holder(main, "r7", "rex") as two:
        await asked(main, "r7")
        waiting = {asyncio.create_task(each.copy()): each for each in (one, two)}
        done, pending = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        assert len(done) == 1
        first = done.pop()
        assert await waiting[first].read(first.result())
        assert (await main.consumer(one.intake.durable))["num_ack_pending"] == 1
        first.result().show()
        await first.result().nak()
        again, _ = await asyncio.wait({*pending, asyncio.create_task(waiting[first].copy())}, timeout=EVENT_SECONDS,
                                      return_when=asyncio.FIRST_COMPLETED)  # fmt: skip
        assert again.pop().result().frame.delivered == 2


@pytest.mark.req("C8.1-18", "C8.1-19", "C8.1-20", "C8.1-17", "C4-12")
async def test_a_link_that_is_cut_under_a_take_has_the_request_taken_once_more(main: Town) -> None:
    async with holder(main, "r8") as rev, plane(main) as served:
        await asked(main, "r8")
        copy = await rev.copy()
        served.hold.clear()
        reading = asyncio.create_task(rev.read(copy))
        await soon(lambda: len(served.seen) == 1)
        link = rev.member.connection._link
        assert link is not None
        link._client._transport.close()  # type: ignore[union-attr]
        assert not await reading, "the take ends with its link"
        assert rev.takes == {"interrupted": 1}
        served.hold.set()
        assert await rev.again() is copy, "the host is told about it again"
        assert await rev.read(copy)
        assert [body["count"] for _, body in served.seen] == [1, 1]


@pytest.mark.req("C8.1-20")
async def test_a_read_while_the_link_is_down_is_offered_nothing(main: Town) -> None:
    async with holder(main, "r9") as rev, plane(main) as served:
        await asked(main, "r9")
        copy = await rev.copy()
        link = rev.member.connection._link
        assert link is not None
        link._client._transport.close()  # type: ignore[union-attr]
        await soon(lambda: not rev.member.connection.linked)
        assert not await rev.read(copy)
        assert served.seen == []
        assert await rev.again() is copy
        assert await rev.read(copy)


@pytest.mark.req("C8.1-17")
async def test_an_answer_behind_the_ack_wait_shows_nothing(main: Town) -> None:
    async with holder(main, "ra") as rev, plane(main) as served:
        await asked(main, "ra")
        copy = await rev.copy()
        served.hold.clear()
        reading = asyncio.create_task(rev.read(copy))
        await soon(lambda: len(served.seen) == 1)
        copy.held._wait = 0.0
        served.hold.set()
        assert not await reading
        assert (copy.held.state, rev.words, rev.gate.held) == (Copy.SETTLED, {"renew": 1}, 0)


async def test_only_so_many_requests_are_held(main: Town) -> None:
    async with holder(main, "rb", at_once=1, take_seconds=0.2) as rev, plane(main) as served:
        served.answers = [None]
        for message_id in ("m1", "m2"):
            await asked(main, "rb", message_id)
        assert not await rev.read(await rev.copy())
        assert not await rev.read(await rev.copy())
        assert (rev.gate.held, rev.words) == (1, {"renew": 1, "nak": 1})


async def test_a_copy_that_came_before_the_creation_time_was_read_comes_again(main: Town) -> None:
    async with holder(main, "rc") as rev, plane(main) as served:
        rev.gate._epoch = ""
        await asked(main, "rc")
        assert not await rev.read(await rev.copy())
        again = await rev.copy()
        assert again.frame.delivered == 2
        assert await rev.read(again)
        assert served.seen[0][1]["count"] == 2


@pytest.mark.req("C8.1-04")
async def test_stored_bytes_are_no_answer_to_a_take(main: Town) -> None:
    """A hostile member has the broker deliver its own presence record where an answer is expected."""
    async with holder(main, "rd", take_seconds=0.5) as rev, plane(main) as served, main.member("eve") as eve:
        await asked(main, "rd")
        copy = await rev.copy()
        await eve.stored("$KV.cotal_presence_main.local.eve", b'{"ok":true}')
        served.answers = [None]
        replies: list[str] = []
        original = rev.member.connection.publish

        async def publish(subject: str, data: bytes = b"", *, reply: str = "", **more: Any) -> None:
            await original(subject, data, reply=reply, **more)
            if subject != subjects.TAKE.build(space=SPACE, role="rd", owner="local", actor="rev"):
                return
            replies.append(reply)
            direct = api.DIRECT_GET.build(stream="KV_cotal_presence_main")
            body = json.dumps({"last_by_subj": "$KV.cotal_presence_main.local.eve"}).encode()
            await eve.connection.publish(direct, body, reply=reply)

        rev.member.connection.publish = publish  # type: ignore[method-assign]
        assert not await rev.read(copy)
        assert (len(replies), rev.takes) == (1, {"silent": 1})


async def test_a_holder_that_shows_nothing_leaves_the_queue_to_others(main: Town) -> None:
    async with holder(main, "re") as rev:
        async with main.member("sam") as sam:
            for number in range(ROLE_UNSHOWN + 3):
                await sam.request_role("re", f"m{number}")
        held = [await rev.copy() for _ in range(ROLE_UNSHOWN)]
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3):
                await rev.intake.take()
        info = await main.consumer(rev.intake.durable)
        assert (info["num_ack_pending"], info["num_pending"]) == (ROLE_UNSHOWN, 3)
        held[0].show()
        await rev.copy()
        held[1].forget()
        await rev.copy()


@pytest.mark.req("C8.1-17", "C8.1-18")
@pytest.mark.parametrize("back", [False, True])
async def test_a_link_that_is_cut_between_take_and_show_has_the_request_taken_once_more(main: Town, back: bool) -> None:
    async with holder(main, f"rf{int(back)}") as rev, plane(main) as served:
        await asked(main, f"rf{int(back)}")
        copy = await rev.copy()
        connection, take = rev.member.connection, rev.gate._take

        async def cut(request: Any, since: int) -> Came:
            came = await take(request, since)
            rev.gate._take = take  # type: ignore[method-assign]
            before, link = connection.interruptions, connection._link
            assert link is not None
            link._client._transport.close()  # type: ignore[union-attr]
            await soon(lambda: not connection.linked)
            if back:
                await connection.restored(before)
            return came

        rev.gate._take = cut  # type: ignore[method-assign]
        assert not await rev.read(copy), "what was taken on the lost link is not shown"
        assert rev.takes == {"interrupted": 1}
        assert await rev.again() is copy
        assert await rev.read(copy)
        assert [body["count"] for _, body in served.seen] == [1, 1]


@pytest.mark.req("C8.1-12")
async def test_a_take_whose_reader_gave_up_leaves_no_books_behind(main: Town) -> None:
    async with holder(main, "r99") as rev, plane(main) as served:
        served.answers = [None]
        await asked(main, "r99")
        copy = await rev.copy()
        reading = asyncio.create_task(rev.read(copy))
        await soon(lambda: len(served.seen) == 1)
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        assert rev.gate.held == 0
        served.answers = []
        assert await rev.read(copy), "it is still this holder's"
        copy.show()
        await copy.ack()
