"""What the delivery plane reads for members of a mediated space, with its real credentials at a real broker."""

from __future__ import annotations

import asyncio
import base64
import json
import os
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from sidecar.base.strictjson import JsonValue
from sidecar.rails.connection.kv import KeyValue
from sidecar.rails.endpoint.call import Call
from sidecar.rails.endpoint.codes import Code, Outcome, Refusal
from sidecar.rails.endpoint.contracts import DELIVERY
from sidecar.rails.messaging.frames import read_frame
from sidecar.rails.names import api, buckets, headers, streams, subjects
from sidecar.rails.planes.delivery.anycast_desk import AnycastDesk
from sidecar.rails.planes.delivery.lease import LeaseRow
from sidecar.rails.planes.delivery.mediated import Mediated
from sidecar.rails.planes.delivery.plane import Plane
from sidecar.rails.space.holder import Form, Profile
from tests.e2e.delivery_rig import Author, Rig, root
from tests.e2e.durable_reads import Member, Town, document, life, town
from tests.e2e.space_broker import EVENT_SECONDS
from tests.e2e.space_members import SPACE

pytestmark = pytest.mark.asyncio(loop_scope="module")
ROLE = "reviewer"


class Desk:
    """The handlers, as the endpoint calls them."""

    def __init__(self, member: Member) -> None:
        self.member = member
        self.metrics = member.metrics
        plane = Plane(member.connection, SPACE, Form.MEDIATED, member.lifecycle, member.metrics)
        self.mediated = Mediated(plane, AnycastDesk(plane).epoch_or_refusal)

    async def ask(self, command: str, actor: str, deadline_ms: int | None = None, **args: JsonValue) -> Any:
        """The answer, which keeps its contract and can be said in JSON."""
        called = Call(life(actor), actor, args or None, "q", deadline_ms)
        contract = DELIVERY[command]
        assert contract.input.check(args or ({} if command.startswith("read") else None)) is None
        async with asyncio.timeout(EVENT_SECONDS):
            answer = await self.mediated.handlers[command](called)
        fault = contract.output.check(answer)
        assert fault is None, fault
        return json.loads(json.dumps(answer))

    async def fetch(self, actor: str, source: str = "dm", batch: int = 64, wait: int = 0, **more: Any) -> list[Any]:
        answer = await self.ask("fetch", actor, source=source, batch=batch, waitMs=wait, **more)
        frames: list[Any] = answer["frames"]
        return frames

    async def settle(self, actor: str, how: str, *frames: Any, source: str = "dm", **more: Any) -> list[bool]:
        items = [{"token": frame["token"], "how": how, **more.pop("item", {})} for frame in frames]
        answer = await self.ask("settle", actor, source=source, items=items, **more)
        settled: list[bool] = answer["settled"]
        return settled


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def here(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Town]:
    async with town(tmp_path_factory.mktemp("mediated"), Form.MEDIATED) as made:
        yield made


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def desk(here: Town) -> AsyncIterator[Desk]:
    async with here.member("delivery", Profile.DELIVERY) as member:
        yield Desk(member)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def alice(here: Town) -> AsyncIterator[Member]:
    async with here.member("alice", allow_publish=("team.>", "general")) as member:
        yield member


def ids(frames: list[Any]) -> list[str]:
    return [json.loads(base64.b64decode(frame["data"]))["id"] for frame in frames]


async def refused(awaited: Any) -> Refusal:
    with pytest.raises(Refusal) as caught:
        await awaited
    return caught.value


# ---- direct messages ----


@pytest.mark.req("C9-47", "C8-39")
async def test_copies_come_until_they_are_acked(here: Town, desk: Desk, alice: Member) -> None:
    await here.activate("bob")
    sequences = [await alice.tell("bob", f"d-{n}") for n in range(3)]
    frames = await desk.fetch("bob", batch=2)
    assert ids(frames) == ["d-0", "d-1"]
    read = read_frame(frames[0])
    assert (read.subject, read.sequence, read.delivered, read.pending) == (
        "cotal.main.inst.local.bob.local.alice", sequences[0], 1, 2,
    )  # fmt: skip
    assert await desk.settle("bob", "ack", frames[0]) == [True]
    assert await desk.settle("bob", "nak", frames[1]) == [True]
    again = await desk.fetch("bob", wait=5000)
    assert sorted(ids(again)) == ["d-1", "d-2"]
    assert {frame["delivered"] for frame in again} == {1, 2}
    assert await desk.settle("bob", "ack", *again) == [True, True]
    assert await desk.fetch("bob") == []


@pytest.mark.req("C9-47")
async def test_a_fetch_waits_for_the_first_copy_and_leaves_no_pull_behind(
    here: Town, desk: Desk, alice: Member
) -> None:
    await here.activate("wait")
    waiting = asyncio.create_task(desk.fetch("wait", wait=20_000))
    name = f"dm_local-wait-{life('wait').uid}"

    async def pulls() -> int:
        async with root(Rig(here)) as operator:
            subject = api.CONSUMER_INFO.build(stream=streams.DM.stream(SPACE), consumer=name)
            return int(json.loads((await operator.request(subject)).data)["num_waiting"])

    async with asyncio.timeout(EVENT_SECONDS):
        while await pulls() != 1:
            pass
    await alice.tell("wait", "w-1")
    assert ids(await waiting) == ["w-1"]
    assert await pulls() == 0
    assert await desk.fetch("wait", wait=50) == []
    # A deadline of the caller's that is nearer than the wait ends it in time.
    assert await desk.ask("fetch", "wait", 600, source="dm", batch=1, waitMs=25_000) == {"frames": []}


@pytest.mark.req("C9-47")
async def test_what_was_fetched_by_a_plane_that_died_is_settled_at_the_next(
    here: Town, desk: Desk, alice: Member
) -> None:
    await here.activate("crash")
    await alice.tell("crash", "x-1")
    frames = await desk.fetch("crash")
    async with here.member("delivery", Profile.DELIVERY) as member:
        following = Desk(member)
        assert await following.fetch("crash") == []
        assert await following.settle("crash", "ack", *frames) == [True]
    info = await here.consumer(_durable("crash"))
    assert (info["num_ack_pending"], info["num_pending"]) == (0, 0)


def _durable(actor: str) -> Any:
    class Named:
        stream = streams.DM.stream(SPACE)
        consumer = f"dm_{life(actor).dash}"

    return Named


@pytest.mark.req("C9-47", "C9-44")
async def test_nobody_reads_or_settles_what_is_another_s(here: Town, desk: Desk, alice: Member) -> None:
    await here.activate("eve")
    await here.activate("vic")
    await alice.tell("vic", "v-1")
    frames = await desk.fetch("vic")
    assert await desk.fetch("eve") == []
    await desk.settle("eve", "ack", *frames)
    info = await here.consumer(_durable("vic"))
    assert info["num_ack_pending"] == 1, "the copy of another is not settled"
    refusal = await refused(desk.fetch("stranger"))
    assert (refusal.code, refusal.outcome) == (Code.NOT_FOUND, Outcome.NOT_EXECUTED)


async def test_a_word_that_is_none_settles_nothing(here: Town, desk: Desk) -> None:
    await here.activate("odd")
    tokens = ("1", "1.2.3.4", "1.2.3.4.5.6", "1.2.3.4.05", "....")
    frames = [{"token": token} for token in tokens]
    assert await desk.settle("odd", "ack", *frames) == [False] * len(tokens)


@pytest.mark.req("C9-47")
async def test_a_delayed_nak_a_renewal_and_an_end(here: Town, desk: Desk, alice: Member) -> None:
    await here.activate("words")
    await alice.tell("words", "n-1")
    frames = await desk.fetch("words")
    assert await desk.settle("words", "renew", *frames) == [True]
    assert await desk.settle("words", "nak", *frames, item={"delayMs": 300}) == [True]
    assert await desk.fetch("words") == []
    frames = await desk.fetch("words", wait=10_000)
    assert [frame["delivered"] for frame in frames] == [2]
    assert await desk.settle("words", "term", *frames) == [True]
    assert await desk.fetch("words", wait=50) == []


async def test_a_batch_is_cut_by_bytes_and_nothing_of_it_is_lost(here: Town, desk: Desk, alice: Member) -> None:
    await here.activate("big")
    text = "x" * 100_000
    for n in range(6):
        subject = subjects.INST.build(space=SPACE, to_owner="local", to_actor="big", owner="local", actor="alice")
        await alice.stored(subject, document("alice", f"b-{n}", text, to="local.big"))
    found: list[str] = []
    while frames := await desk.fetch("big", wait=50 if found else 1000):
        assert len(json.dumps(frames)) < 1_000_000
        found += ids(frames)
        assert all(await desk.settle("big", "ack", *frames))
    assert found == [f"b-{n}" for n in range(6)]


async def test_a_message_larger_than_an_answer_is_shown_without_its_payload(
    here: Town, desk: Desk, alice: Member
) -> None:
    await here.activate("huge")
    subject = subjects.INST.build(space=SPACE, to_owner="local", to_actor="huge", owner="local", actor="alice")
    data = document("alice", "h-1", "x" * 900_000, to="local.huge")
    await alice.stored(subject, data)
    await alice.stored(subject, document("alice", "h-2", to="local.huge"))
    for wait in (0, 1000):
        (frame, *_) = frames = await desk.fetch("huge", wait=wait)
        assert (frame["data"], frame["headers"], frame["omitted"]) == ("", {}, len(data))
        assert frame["subject"] == subject
        await desk.settle("huge", "nak", *frames)
    frames = [one for one in await desk.fetch("huge", wait=5000) if "omitted" in one]
    assert await desk.settle("huge", "term", *frames) == [True]
    rest = await desk.fetch("huge", wait=5000)
    assert ids(rest) == ["h-2"]
    assert desk.metrics.totals("delivery_frames_omitted")[("dm",)] == 3


async def test_headers_that_an_answer_cannot_hold_are_left_out(here: Town, desk: Desk, alice: Member) -> None:
    await here.activate("heads")
    await alice.tell("heads", "hd-1", **{"X-Long": "y" * 9_000})
    await alice.tell("heads", "hd-2", **{f"X-{n}": "y" for n in range(70)})
    frames = await desk.fetch("heads")
    assert [(frame["headers"], "omitted" in frame) for frame in frames] == [({}, True), ({}, True)]


@pytest.mark.req("C9-47")
async def test_provenance_of_stored_bytes_is_handed_on(here: Town, desk: Desk, alice: Member) -> None:
    """A frame that a read was made to put into an inbox is told from a publish by its headers."""
    await here.activate("prov")
    await alice.tell("prov", "p-1", **{headers.SEQUENCE: "7", headers.SUBJECT: "elsewhere"})
    (frame,) = await desk.fetch("prov", wait=5000)
    assert (frame["headers"][headers.SEQUENCE], frame["headers"][headers.SUBJECT]) == ("7", "elsewhere")


# ---- roles ----


@pytest.mark.req("C9-44", "C9-47")
async def test_a_role_is_read_by_those_whose_row_holds_it(here: Town, desk: Desk, alice: Member) -> None:
    rig = Rig(here)
    await here.activate("carol", (ROLE,))
    assert (await refused(desk.fetch("carol", "role", role=ROLE))).code == Code.PERMISSION_DENIED, "no row"
    await rig.acl("carol", roles=(ROLE,))
    sequence = await alice.request_role(ROLE, "r-1")
    (frame,) = await desk.fetch("carol", "role", wait=5000, role=ROLE)
    assert frame["sequence"] == sequence
    assert (await refused(desk.fetch("carol", "role", role="tester"))).code == Code.PERMISSION_DENIED
    assert await desk.settle("carol", "nak", frame, source="role", role=ROLE) == [True]
    waiting = await desk.fetch("carol", "role", wait=5000, role=ROLE)
    assert [one["delivered"] for one in waiting] == [2]
    await rig.acl("carol")
    refusal = await refused(desk.settle("carol", "ack", frame, source="role", role=ROLE))
    assert refusal.code == Code.PERMISSION_DENIED
    for args in ({"source": "role"}, {"source": "dm", "role": ROLE}):
        refusal = await refused(desk.ask("fetch", "carol", batch=1, waitMs=0, **args))  # type: ignore[arg-type]
        assert refusal.code == Code.BAD_REQUEST


@pytest.mark.req("C9-44")
async def test_a_row_that_was_narrowed_during_the_wait_counts(here: Town, desk: Desk, alice: Member) -> None:
    rig = Rig(here)
    await here.activate("dora", ("late",))
    await rig.acl("dora", roles=("late",))
    waiting = asyncio.create_task(desk.fetch("dora", "role", wait=20_000, role="late"))
    name = "svc_late"
    async with root(rig) as operator, asyncio.timeout(EVENT_SECONDS):
        subject = api.CONSUMER_INFO.build(stream=streams.TASK.stream(SPACE), consumer=name)
        while json.loads((await operator.request(subject)).data)["num_waiting"] != 1:
            pass
    await rig.acl("dora")
    await alice.request_role("late", "l-1")
    assert (await refused(waiting)).code == Code.PERMISSION_DENIED
    await rig.acl("dora", roles=("late",))
    (frame,) = await desk.fetch("dora", "role", wait=5000, role="late")
    assert frame["delivered"] == 2, "it was given back at once"


async def test_the_epoch_of_the_task_stream(here: Town, desk: Desk) -> None:
    async with root(Rig(here)) as operator:
        info = json.loads((await operator.request(api.STREAM_INFO.build(stream=streams.TASK.stream(SPACE)))).data)
    assert await desk.ask("task-epoch", "carol") == {"epoch": info["created"]}


# ---- history ----


@pytest.mark.req("C9-44", "C9-47")
async def test_history_is_read_within_the_current_read_list(here: Town, desk: Desk, alice: Member) -> None:
    rig, author = Rig(here), Author(alice)
    posted = [await author.post("team.a", f"t-{n}") for n in range(5)]
    await author.post("team.b", "t-b")
    await author.post("general", "t-g")
    await rig.acl("hist", "team.*")
    page = await desk.ask("read-history", "hist", channel="team.a", limit=3)
    assert ids(page["frames"]) == ["t-0", "t-1", "t-2"]
    assert (page["complete"], page["frontier"]) == (False, posted[-1] + 2)
    assert all("token" not in frame for frame in page["frames"])
    rest = await desk.ask("read-history", "hist", channel="team.a", limit=256, after=page["frames"][-1]["sequence"])
    assert (ids(rest["frames"]), rest["complete"]) == (["t-3", "t-4"], True)
    bounded = await desk.ask("read-history", "hist", channel="team.a", limit=256, upTo=posted[1])
    assert (ids(bounded["frames"]), bounded["complete"]) == (["t-0", "t-1"], True)
    only = await desk.ask("read-history", "hist", channel="team.a", limit=0)
    assert (only["frames"], only["frontier"], only["complete"]) == ([], posted[-1] + 2, False)
    assert (await desk.ask("read-history", "hist", channel="team.none", limit=9))["frames"] == []
    for channel in ("general", "team.a.b"):
        refusal = await refused(desk.ask("read-history", "hist", channel=channel, limit=1))
        assert refusal.code == Code.PERMISSION_DENIED
    for channel in ("team.*", "team.>", "team..a", ">"):
        refusal = await refused(desk.ask("read-history", "hist", channel=channel, limit=1))
        assert refusal.code == Code.BAD_REQUEST
    await rig.acl("hist", "general")
    refusal = await refused(desk.ask("read-history", "hist", channel="team.a", limit=1))
    assert refusal.code == Code.PERMISSION_DENIED


@pytest.mark.req("C9-44", "C9-47")
async def test_history_is_not_given_to_who_was_narrowed_while_it_was_read(
    here: Town, desk: Desk, alice: Member, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = Rig(here)
    await Author(alice).post("team.narrowed", "n-1")
    await rig.acl("nell", "team.>")
    history: Any = desk.mediated._history
    read = history.read

    async def narrowed(*args: Any, **more: Any) -> Any:
        page = await read(*args, **more)
        await rig.acl("nell")
        return page

    monkeypatch.setattr(history, "read", narrowed)
    refusal = await refused(desk.ask("read-history", "nell", channel="team.narrowed", limit=9))
    assert refusal.code == Code.PERMISSION_DENIED


async def test_history_begins_at_a_time(here: Town, desk: Desk, alice: Member) -> None:
    rig, author = Rig(here), Author(alice)
    await rig.acl("since", "team.since")
    sequences = []
    for n in range(3):
        sequences.append(await author.post("team.since", f"s-{n}"))
        await asyncio.sleep(0.005)  # two posts of one millisecond have no time between them
    page = await desk.ask("read-history", "since", channel="team.since", limit=9)
    times = [frame["timeMs"] for frame in page["frames"]]
    for after in (0, sequences[0] - 1, sequences[0]):
        page = await desk.ask("read-history", "since", channel="team.since", limit=9, after=after, sinceMs=times[1])
        assert ids(page["frames"])[-2:] == ["s-1", "s-2"]
        assert len(page["frames"]) == 2
        assert page["complete"]
    page = await desk.ask("read-history", "since", channel="team.since", limit=9, after=sequences[1], sinceMs=times[0])
    assert ids(page["frames"]) == ["s-2"]
    page = await desk.ask("read-history", "since", channel="team.since", limit=9, sinceMs=2**53 - 1)
    assert (page["frames"], page["complete"]) == ([], True)


async def test_history_is_cut_by_bytes_and_leaves_no_consumer(here: Town, desk: Desk, alice: Member) -> None:
    rig, author = Rig(here), Author(alice)
    await rig.acl("bytes", "team.bytes")
    big = document("alice", "y-1", "x" * 900_000, channel="team.bytes")
    await author.post("team.bytes", "y-0")
    await author.post("team.bytes", "y-1", raw=big)
    for n in range(2, 6):
        await author.post("team.bytes", f"y-{n}", text="x" * 100_000)
    found: list[Any] = []
    after = 0
    while True:
        page = await desk.ask("read-history", "bytes", channel="team.bytes", limit=256, after=after)
        found += page["frames"]
        if page["complete"]:
            break
        after = page["frames"][-1]["sequence"]
    assert [frame.get("omitted") for frame in found] == [None, len(big), None, None, None, None]
    async with root(rig) as operator:
        info = json.loads((await operator.request(api.STREAM_INFO.build(stream=streams.CHAT.stream(SPACE)))).data)
    assert info["state"]["consumer_count"] == 0


@pytest.mark.req("C9-47")
async def test_history_hands_on_the_marks_of_redirected_posts(here: Town, desk: Desk, alice: Member) -> None:
    rig, author = Rig(here), Author(alice)
    await rig.acl("marks", "team.marks")
    await author.post("team.marks", "m-1", headers={headers.SUBJECT: "elsewhere"})
    (frame,) = (await desk.ask("read-history", "marks", channel="team.marks", limit=9))["frames"]
    assert frame["headers"][headers.SUBJECT] == "elsewhere"
    assert frame["subject"] == "cotal.main.chat.local.alice.team.marks"


# ---- registry, roster, lease ----


async def test_the_registry_is_given_in_pages(here: Town, desk: Desk) -> None:
    async with Rig(here).operator() as operator:
        bucket = KeyValue(operator, buckets.CHANNELS, SPACE)
        assert (await desk.ask("read-registry", "carol"))["defaults"] is None
        await bucket.put("=defaults", b'{"deliveryClass":"durable"}')
        await bucket.put("bad", b"no json")
        for at in range(600):
            await bucket.put(f"c.{at:04}", json.dumps({"description": f"d{at}"}).encode())
    found: list[Any] = []
    args: dict[str, Any] = {}
    while True:
        page = await desk.ask("read-registry", "carol", **args)
        assert page["defaults"] == {"deliveryClass": "durable"}
        found += page["channels"]
        if "next" not in page:
            break
        args = {"after": page["next"]}
    assert [one["channel"] for one in found] == [f"c.{at:04}" for at in range(600)]
    assert found[7]["config"] == {"description": "d7"}


async def test_many_who_ask_at_once_share_few_reads(here: Town, desk: Desk, alice: Member) -> None:
    value = os.urandom(64).hex().encode()
    await alice.stored(buckets.PRESENCE.subject(SPACE, buckets.PRESENCE_KEY, owner="local", actor="alice"), value)
    asked: list[str] = []
    request_until = desk.member.connection.request_until

    async def counted(subject: str, *args: Any, **more: Any) -> Any:
        asked.append(subject)
        return await request_until(subject, *args, **more)

    desk.member.connection.request_until = counted  # type: ignore[method-assign]
    try:
        answers = await asyncio.gather(*(desk.ask("read-roster", f"peer{n}") for n in range(100)))
    finally:
        del desk.member.connection.request_until
    assert len(asked) <= 2
    for answer in answers:
        (entry,) = answer["entries"]
        assert (entry["key"], base64.b64decode(entry["value"])) == ("local.alice", value)


@pytest.mark.req("C8.1-47")
async def test_who_holds_the_lease(desk: Desk, here: Town) -> None:
    assert await desk.ask("lease-holder", "carol") == {}
    bucket = KeyValue(desk.member.connection, buckets.DELIVERY, SPACE)
    await bucket.put("lease.0", LeaseRow("local.delivery", "i", 1, ready=True).encode())
    assert await desk.ask("lease-holder", "carol") == {"holder": "local.delivery"}
    await bucket.put("lease.0", b"no row")
    assert (await refused(desk.ask("lease-holder", "carol"))).code == Code.UNAVAILABLE
